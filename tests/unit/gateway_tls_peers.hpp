// SPDX-License-Identifier: Apache-2.0
// Engines that talk to each other over memory, and what they are made with.
#pragma once

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "guest/gateway/crypto/crypto.hpp"
#include "guest/gateway/tls/engine.hpp"

namespace causeway::gateway::tls::test {

using Bytes = std::vector<std::byte>;

inline Bytes bytes_of(std::string_view text) {
  const auto from = std::as_bytes(std::span(text));
  return {from.begin(), from.end()};
}

inline std::string hex_of(std::span<const std::byte> bytes) {
  std::string out;
  for (const std::byte byte : bytes) {
    out += "0123456789abcdef"[std::to_integer<unsigned>(byte >> 4)];
    out += "0123456789abcdef"[std::to_integer<unsigned>(byte & std::byte{15})];
  }
  return out;
}

inline std::string text_of(std::span<const std::byte> bytes) {
  std::string out;
  for (const std::byte byte : bytes)
    out.push_back(static_cast<char>(byte));
  return out;
}

// A directory with the key pairs of tests/unit/data/tls, the keys with mode 0600 (which a checkout
// does not keep).
class KeyDirectory {
 public:
  KeyDirectory() {
    crypto::initialise();
    std::string name = (std::filesystem::temp_directory_path() / "causeway-tls-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = name;
    for (const auto& entry :
         std::filesystem::directory_iterator(CAUSEWAY_SOURCE_DIR "/tests/unit/data/tls")) {
      const auto to = path_ / entry.path().filename();
      std::filesystem::copy_file(entry.path(), to);
      if (::chmod(to.c_str(), to.extension() == ".key" ? 0600 : 0644) != 0) {
        throw std::runtime_error("chmod failed");
      }
    }
  }
  ~KeyDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  KeyDirectory(const KeyDirectory&) = delete;
  KeyDirectory& operator=(const KeyDirectory&) = delete;

  [[nodiscard]] std::string file(const std::string& name) const { return (path_ / name).string(); }
  [[nodiscard]] CertificateFiles pair(const std::string& name, const std::string& key = {}) const {
    return {file(name + ".pem"), file((key.empty() ? name : key) + ".key")};
  }
  std::string write(const std::string& name, std::string_view content, mode_t mode = 0600) const {
    const std::string path = file(name);
    std::ofstream(path, std::ios::binary) << content;
    if (::chmod(path.c_str(), mode) != 0) throw std::runtime_error("chmod failed");
    return path;
  }

  static const KeyDirectory& shared() {
    static const KeyDirectory directory;
    return directory;
  }

 private:
  std::filesystem::path path_;
};

template <class T>
T must(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return *std::move(result);
}

inline std::shared_ptr<const CertificateStore> store_of(const std::vector<std::string>& names) {
  std::vector<CertificateFiles> files;
  for (const std::string& name : names)
    files.push_back(KeyDirectory::shared().pair(name));
  return must(CertificateStore::load(files));
}

inline std::shared_ptr<const Authorities> authorities(const std::string& name = "root") {
  return must(Authorities::load(KeyDirectory::shared().file(name + ".pem")));
}

inline std::shared_ptr<const Profile> server_profile(ProfileOptions options = {}) {
  options.role = Role::server;
  return must(Profile::make(std::move(options)));
}

inline std::shared_ptr<const Profile> client_profile(ProfileOptions options = {}) {
  options.role = Role::client;
  if (!options.authorities) options.authorities = authorities();
  return must(Profile::make(std::move(options)));
}

// One end: an engine, and what a relay would keep beside it.
struct Peer {
  explicit Peer(std::unique_ptr<Engine> of) : engine(std::move(of)) {}
  std::unique_ptr<Engine> engine;
  Bytes received;  // not consumed yet
  std::string plain;
  Status status = Status::need_read;
  Bytes to_send;  // sealed data that the link has not taken yet

  void receive(std::span<const std::byte> bytes) {
    received.insert(received.end(), bytes.begin(), bytes.end());
    process();
  }
  void process() {
    if (!engine->established()) {
      const auto progress = engine->handshake(received);
      status = progress.status;
      consume(progress.consumed);
      if (!engine->established()) return;
    }
    do {
      std::array<iovec, 3> pieces{};
      const auto opened = engine->open(received, pieces);
      std::size_t bytes = 0;
      for (const iovec& piece : std::span(pieces).first(opened.pieces)) {
        const auto* at = static_cast<const std::byte*>(piece.iov_base);
        plain += text_of({at, piece.iov_len});
        bytes += piece.iov_len;
      }
      if (bytes != opened.bytes) throw std::runtime_error("pieces do not add up");
      status = opened.status;
      consume(opened.consumed);
    } while (status == Status::done);
  }
  void write(std::string_view text) {
    auto left = std::as_bytes(std::span(text));
    Bytes slab(64 * 1024);
    do {
      const auto sealed = engine->seal(left, slab);
      if (sealed.status == Status::error) throw std::runtime_error("seal failed");
      to_send.insert(to_send.end(), slab.begin(),
                     slab.begin() + static_cast<std::ptrdiff_t>(sealed.bytes));
      left = left.subspan(sealed.consumed);
    } while (!left.empty());
  }
  Bytes take() {
    Bytes out = std::move(to_send);
    to_send.clear();
    const auto more = engine->output();
    out.insert(out.end(), more.begin(), more.end());
    engine->sent(more.size());
    return out;
  }
  void consume(std::size_t size) {
    received.erase(received.begin(), received.begin() + static_cast<std::ptrdiff_t>(size));
  }
};

// Moves what each side has to say until both are quiet, `step` bytes at a time.
inline void run(Peer& a, Peer& b, std::size_t step = ~std::size_t{0}) {
  for (int quiet = 0; quiet < 2;) {
    quiet = 0;
    for (auto [from, to] : {std::pair{&a, &b}, std::pair{&b, &a}}) {
      const Bytes bytes = from->take();
      if (bytes.empty()) ++quiet;
      for (std::size_t at = 0; at < bytes.size();) {
        const std::size_t part = std::min(step, bytes.size() - at);
        to->receive(std::span(bytes).subspan(at, part));
        at += part;
      }
    }
  }
}

struct PairOptions {
  std::vector<std::string> certificates{"ecdsa"};
  ProfileOptions server;
  ProfileOptions client;
  std::string name = "a.example";
  std::string sniffed;  // what the server is told; empty: `name`
  Session* resume = nullptr;
  Context* server_context = nullptr;  // another one than the pair's own
};

// A server and a client, contexts and all.
struct Pair {
  explicit Pair(PairOptions options = {})
      : own_context(&keys),
        server_context(options.server_context != nullptr ? *options.server_context : own_context),
        server_terms(server_profile(std::move(options.server))),
        client_terms(client_profile(std::move(options.client))) {
    if (options.server_context == nullptr) own_context.use(store_of(options.certificates));
    server.emplace(std::make_unique<Engine>(
        server_context, server_terms, options.sniffed.empty() ? options.name : options.sniffed));
    client.emplace(Engine::client(client_context, client_terms, options.name, options.resume));
  }
  // Client first. True when both sides are through.
  bool shake(std::size_t step = ~std::size_t{0}) {
    client->process();
    run(*client, *server, step);
    return client->engine->established() && server->engine->established();
  }

  TicketKeys keys;
  Context own_context;
  Context& server_context;
  Context client_context;
  std::shared_ptr<const Profile> server_terms;
  std::shared_ptr<const Profile> client_terms;
  std::optional<Peer> server;
  std::optional<Peer> client;
};

inline std::string random_text(std::size_t size, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::string out(size, '\0');
  for (char& c : out)
    c = static_cast<char>(random());
  return out;
}

}  // namespace causeway::gateway::tls::test
