// SPDX-License-Identifier: Apache-2.0
// Bulk TCP with checked payloads. Both buffers exist and are faulted in before the connection is
// made, the digests are computed after it is over: the timed section holds socket calls only.
// Streamed, a payload takes one chunk of memory and is made and hashed on the way.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/evp.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <thread>

#include "tests/bench/pair/sockets.hpp"
#include "tests/bench/pair/traffic.hpp"

namespace causeway::bench {

namespace {

constexpr std::size_t kChunk = 256 * 1024;  // of one send or receive call

class Memory {
 public:
  explicit Memory(std::size_t size) : size_(size) {
    void* mapped = mmap(nullptr, std::max<std::size_t>(size, 1), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) fail("mmap of the payload");
    data_ = static_cast<std::byte*>(mapped);
    madvise(data_, size, MADV_HUGEPAGE);
    for (std::size_t at = 0; at < size; at += 4096)
      data_[at] = std::byte{1};
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { munmap(data_, std::max<std::size_t>(size_, 1)); }

  [[nodiscard]] std::span<std::byte> bytes() const { return {data_, size_}; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_;
};

// SplitMix64 (Steele, Lea, Flood 2014): incompressible, and determined by the seed.
class Pattern {
 public:
  explicit Pattern(std::uint64_t seed) : state_(seed) {}

  // Goes on where the last call ended, if that one's size was a multiple of eight.
  void fill(std::span<std::byte> out) {
    while (!out.empty()) {
      state_ += 0x9e3779b97f4a7c15;
      std::uint64_t z = state_;
      z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
      z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
      z ^= z >> 31;
      const std::size_t size = std::min(sizeof z, out.size());
      std::memcpy(out.data(), &z, size);
      out = out.subspan(size);
    }
  }

 private:
  std::uint64_t state_;
};

class Sha256 {
 public:
  Sha256() {
    if (!context_ || EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) != 1) broken();
  }
  void update(std::span<const std::byte> bytes) {
    if (EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) != 1) broken();
  }
  [[nodiscard]] std::string finish() {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned length = 0;
    if (EVP_DigestFinal_ex(context_.get(), digest, &length) != 1) broken();
    static constexpr char kHex[] = "0123456789abcdef";
    std::string text;
    for (const unsigned char byte : std::span(digest).first(length)) {
      text += kHex[byte >> 4];
      text += kHex[byte & 15];
    }
    return text;
  }

 private:
  [[noreturn]] static void broken() { throw std::runtime_error("SHA-256 failed"); }
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_{EVP_MD_CTX_new(),
                                                                   &EVP_MD_CTX_free};
};

// What is sent: held whole, or made and hashed chunk by chunk (streamed).
class Outgoing {
 public:
  Outgoing(std::size_t size, std::uint64_t seed, bool streamed)
      : left_(size), streamed_(streamed), memory_(streamed ? kChunk : size), pattern_(seed) {
    if (!streamed) pattern_.fill(memory_.bytes());
  }
  // The next bytes to send; none at the end.
  std::span<const std::byte> next() {
    const std::size_t size = std::min(kChunk, left_);
    const auto chunk =
        streamed_ ? memory_.bytes().first(size) : memory_.bytes().last(left_).first(size);
    if (streamed_) {
      pattern_.fill(chunk);
      digest_.update(chunk);
    }
    left_ -= size;
    return chunk;
  }
  [[nodiscard]] std::string sha256() {
    if (!streamed_) digest_.update(memory_.bytes());
    return digest_.finish();
  }

 private:
  std::size_t left_;
  bool streamed_;
  Memory memory_;
  Pattern pattern_;
  Sha256 digest_;
};

// What is received, likewise.
class Incoming {
 public:
  Incoming(std::size_t size, bool streamed)
      : left_(size), streamed_(streamed), memory_(streamed ? kChunk : size) {}
  // Room for the next read; none once all that was expected is there.
  [[nodiscard]] std::span<std::byte> room() const {
    const std::size_t size = std::min(kChunk, left_);
    return streamed_ ? memory_.bytes().first(size) : memory_.bytes().last(left_).first(size);
  }
  void took(std::size_t size) {
    if (streamed_) digest_.update(room().first(size));
    left_ -= size;
  }
  [[nodiscard]] std::size_t missing() const { return left_; }
  [[nodiscard]] std::string sha256() {
    if (!streamed_) digest_.update(memory_.bytes());
    return digest_.finish();
  }

 private:
  std::size_t left_;
  bool streamed_;
  Memory memory_;
  Sha256 digest_;
};

void send_payload(const Fd& fd, Outgoing& payload) {
  for (auto chunk = payload.next(); !chunk.empty(); chunk = payload.next())
    send_all(fd, chunk);
  if (shutdown(fd.get(), SHUT_WR) != 0) fail("shutdown");
}

// True when the stream ended exactly behind the last byte that was expected.
bool receive_payload(const Fd& fd, Incoming& payload) {
  for (auto room = payload.room(); !room.empty(); room = payload.room()) {
    const std::size_t got = receive_some(fd, room);
    if (got == 0) return false;
    payload.took(got);
  }
  std::byte extra;
  return receive_some(fd, {&extra, 1}) == 0;
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

unsigned retransmits(const Fd& fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(fd.get(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return 0;
  return info.tcpi_total_retrans;
}

std::string expected_digest(std::uint64_t seed, std::size_t size) {
  Outgoing expected(size, seed, true);
  while (!expected.next().empty()) {
  }
  return expected.sha256();
}

}  // namespace

nlohmann::json run_bulk(const BulkOptions& options) {
  const std::size_t size = options.bytes;
  Outgoing outgoing(options.sends ? size : 0, options.seed.value_or(1), options.streamed);
  Incoming incoming(options.receives ? size : 0, options.streamed);

  Fd connection;
  const SocketAddress address = parse_ip_port(options.place.address);
  if (options.place.listens) {
    const Fd listener = listen_on(address, SOCK_STREAM);
    announce(listener);
    connection = accept_one(listener);
  } else {
    connection = connect_to(
        address, SOCK_STREAM,
        std::chrono::milliseconds(static_cast<std::int64_t>(options.place.patience * 1000)));
  }

  const double cpu_before = cpu_seconds();
  const double start = now_seconds();
  bool eof = false;
  std::exception_ptr sender_error;
  if (options.sends && options.receives) {
    std::thread sender([&] {
      try {
        send_payload(connection, outgoing);
      } catch (...) {
        sender_error = std::current_exception();
        shutdown(connection.get(), SHUT_RDWR);  // or the receiver would wait for its deadline
      }
    });
    try {
      eof = receive_payload(connection, incoming);
    } catch (...) {
      shutdown(connection.get(), SHUT_RDWR);
      sender.join();
      throw;
    }
    sender.join();
    if (sender_error) std::rethrow_exception(sender_error);
  } else if (options.sends) {
    send_payload(connection, outgoing);
    eof = receive_payload(connection, incoming);  // the peer closes once it has seen our end
  } else {
    eof = receive_payload(connection, incoming);
  }
  const double seconds = now_seconds() - start;
  const double cpu = cpu_seconds() - cpu_before;
  const unsigned retransmitted = retransmits(connection);
  connection.reset();

  const double mib = static_cast<double>(size) / (1024.0 * 1024.0);
  nlohmann::json out = {{"bytes", size},
                        {"seconds", seconds},
                        {"mib_per_second", mib / seconds},
                        {"cpu_seconds", cpu},
                        {"eof", eof}};
  bool ok = eof;
  if (options.sends) {
    out["sent_sha256"] = outgoing.sha256();
    out["retransmits"] = retransmitted;
  }
  if (options.receives) {
    out["received_bytes"] = size - incoming.missing();
    out["received_sha256"] = incoming.sha256();
    if (options.peer_seed) {
      out["digest_ok"] = out["received_sha256"] == expected_digest(*options.peer_seed, size);
      ok = ok && out["digest_ok"].get<bool>();
    }
  }
  out["ok"] = ok;
  return out;
}

}  // namespace causeway::bench
