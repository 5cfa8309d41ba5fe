// SPDX-License-Identifier: Apache-2.0
// The TLS engine against itself, over memory: handshakes, data, ends.
#include "guest/gateway/tls/engine.hpp"

#include <doctest/doctest.h>
#include <malloc.h>
#include <mbedtls/sha256.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "tests/unit/gateway_tls_peers.hpp"

namespace causeway::gateway::tls {
namespace {

using namespace test;

ProfileOptions only(Version version) {
  ProfileOptions options;
  options.min_version = version;
  options.max_version = version;
  return options;
}

TEST_CASE("handshakes: TLS 1.2 and 1.3, each kind of certificate, whole and byte by byte") {
  for (const Version version : {Version::tls12, Version::tls13}) {
    for (const std::string certificate : {"ecdsa", "rsa", "p384"}) {
      for (const std::size_t step : {~std::size_t{0}, std::size_t{1}, std::size_t{7}}) {
        CAPTURE(certificate);
        CAPTURE(step);
        PairOptions options;
        options.certificates = {certificate};
        options.client = only(version);
        if (certificate == "p384") options.name = "c.example";
        Pair pair(std::move(options));
        REQUIRE(pair.shake(step));
        for (const Engine* engine : {pair.server->engine.get(), pair.client->engine.get()}) {
          CHECK(engine->version() == version);
          CHECK(!engine->cipher().empty());
          CHECK(!engine->resumed());
          CHECK(engine->alpn().empty());
          CHECK(engine->fault() == Fault::none);
        }
        CHECK(pair.server->engine->server_name() ==
              (certificate == "p384" ? "c.example" : "a.example"));
        CHECK(!pair.server->engine->had_client_certificate());
        pair.client->write("a question");
        pair.server->write("an answer");
        run(*pair.client, *pair.server, step);
        CHECK(pair.server->plain == "a question");
        CHECK(pair.client->plain == "an answer");
        CHECK(pair.server->received.empty());
      }
    }
  }
}

TEST_CASE("with both kinds of certificate the client gets the one that it can verify") {
  for (const Version version : {Version::tls12, Version::tls13}) {
    PairOptions options;
    options.certificates = {"rsa", "ecdsa"};
    options.client = only(version);
    Pair pair(std::move(options));
    REQUIRE(pair.shake());
    if (version == Version::tls12) {
      CHECK(pair.client->engine->cipher().find("ECDSA") != std::string_view::npos);
    }
  }
}

TEST_CASE("versions that do not meet") {
  for (const Version version : {Version::tls12, Version::tls13}) {
    PairOptions options;
    options.server = only(version);
    options.client = only(version == Version::tls12 ? Version::tls13 : Version::tls12);
    Pair pair(std::move(options));
    CHECK(!pair.shake());
    CHECK(pair.server->status == Status::error);
    // A server of TLS 1.2 alone does not know what the other version is: it misses its ciphers.
    const bool old_server = version == Version::tls12;
    CHECK(pair.server->engine->fault() ==
          (old_server ? Fault::no_shared_cipher : Fault::no_shared_version));
    CHECK(pair.client->engine->fault() == Fault::alert_received);
    CHECK(pair.client->engine->alert() == (old_server ? 40 : 70));
  }
}

TEST_CASE("ALPN: ours in our order; none in common is refused") {
  for (const Version version : {Version::tls12, Version::tls13}) {
    PairOptions options;
    options.server.alpn = {"h2", "http/1.1"};
    options.client = only(version);
    options.client.alpn = {"http/1.1", "h2"};
    Pair pair(options);
    REQUIRE(pair.shake());
    CHECK(pair.server->engine->alpn() == "h2");
    CHECK(pair.client->engine->alpn() == "h2");

    options.client.alpn = {"imap"};
    Pair other(options);
    CHECK(!other.shake());
    CHECK(other.server->engine->fault() == Fault::no_application_protocol);
    CHECK(other.client->engine->alert() == 120);

    options.client.alpn = {};
    Pair none(options);
    CHECK(none.shake());
    CHECK(none.server->engine->alpn().empty());

    options.server.alpn = {};
    options.client.alpn = {"imap"};
    Pair ignored(options);
    CHECK(ignored.shake());
    CHECK(ignored.server->engine->alpn().empty());
  }
}

TEST_CASE("a client verifies the server: authority, name") {
  for (const Version version : {Version::tls12, Version::tls13}) {
    PairOptions options;
    options.client = only(version);
    options.client.authorities = authorities("client_root");
    Pair stranger(options);
    CHECK(!stranger.shake());
    CHECK(stranger.client->engine->fault() == Fault::bad_certificate);
    CHECK(stranger.server->engine->fault() == Fault::alert_received);
    CHECK(stranger.server->engine->alert() == 48);  // unknown_ca

    options.client.authorities = nullptr;
    options.name = "wrong.example";
    Pair misnamed(options);
    CHECK(!misnamed.shake());
    CHECK(misnamed.client->engine->fault() == Fault::bad_certificate);
    CHECK(misnamed.server->engine->alert() == 42);

    options.name = "any.wild.example";
    CHECK(Pair(options).shake());
  }
}

TEST_CASE("client certificates: none, good, a stranger's; required and optional") {
  const auto identity = [](const std::string& name) {
    return must(Identity::load(KeyDirectory::shared().pair(name), Identity::Clock::now(),
                               Identity::Purpose::client));
  };
  CHECK(!Identity::load(KeyDirectory::shared().pair("client")));
  for (const Version version : {Version::tls12, Version::tls13}) {
    for (const ClientAuth auth : {ClientAuth::required, ClientAuth::optional}) {
      CAPTURE(static_cast<int>(version));
      CAPTURE(static_cast<int>(auth));
      PairOptions options;
      options.server.client_auth = auth;
      options.server.authorities = authorities("client_root");
      options.client = only(version);

      Pair none(options);
      // In TLS 1.3 the client is through before the server has seen what it lacks.
      none.shake();
      CHECK(none.server->engine->established() == (auth == ClientAuth::optional));
      if (auth == ClientAuth::required) {
        CHECK(none.server->engine->fault() == Fault::client_certificate_required);
        CHECK(none.client->engine->fault() == Fault::alert_received);
        CHECK(none.client->engine->alert() == (version == Version::tls13 ? 41 : 40));
      } else {
        CHECK(!none.server->engine->had_client_certificate());
      }

      options.client.identity = identity("client");
      Pair good(options);
      REQUIRE(good.shake());
      CHECK(good.server->engine->had_client_certificate());
      CHECK(good.server->engine->client_subject() == "CN=a client");

      options.client.identity = identity("stranger");
      Pair stranger(options);
      stranger.shake();
      CHECK(!stranger.server->engine->established());
      CHECK(stranger.server->engine->fault() == Fault::bad_certificate);
      CHECK(stranger.client->engine->fault() == Fault::alert_received);
      CHECK(!stranger.client->engine->take_session());
    }
  }
}

TEST_CASE("a server without certificates says so") {
  for (const Version version : {Version::tls12, Version::tls13}) {
    PairOptions options;
    options.client = only(version);
    Pair pair(std::move(options));
    pair.own_context.use(nullptr);
    pair.server.emplace(std::make_unique<Engine>(pair.own_context, pair.server_terms, "a.example"));
    CHECK(!pair.shake());
    CHECK(pair.server->engine->fault() == Fault::no_certificate);
    CHECK(pair.client->engine->alert() == 40);
  }
}

// Both ways 100 MiB, sealed in place and opened in place, by cipher.
struct Bulk {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  static constexpr std::size_t kTotal = std::size_t{4} << 20;
#else
  static constexpr std::size_t kTotal = std::size_t{100} << 20;
#endif
  static std::array<unsigned char, 32> push(Engine& from, Engine& to, bool planned,
                                            std::array<unsigned char, 32>& sent) {
    mbedtls_sha256_context in;
    mbedtls_sha256_context out;
    mbedtls_sha256_init(&in);
    mbedtls_sha256_init(&out);
    REQUIRE(mbedtls_sha256_starts(&in, 0) == 0);
    REQUIRE(mbedtls_sha256_starts(&out, 0) == 0);
    const std::string source = random_text(std::size_t{1} << 20, 9);
    Bytes slab(256 * 1024);
    std::size_t records = 0;
    std::size_t at = 0;
    for (std::size_t total = 0; total < kTotal;) {
      Engine::Sealed sealed;
      const std::size_t want = std::min(kTotal - total, std::size_t{1} + (total * 7) % 200'000);
      at = (at + 4099) % (source.size() / 2);
      const auto part = std::as_bytes(std::span(source)).subspan(at, want);
      if (planned) {
        std::array<iovec, 20> parts;
        const std::size_t count = from.plan(slab, parts);
        REQUIRE(count > 10);
        std::size_t done = 0;
        for (const iovec& one : std::span(parts).first(count)) {
          const std::size_t size = std::min(one.iov_len, part.size() - done);
          std::memcpy(one.iov_base, part.data() + done, size);
          done += size;
        }
        REQUIRE(done == part.size());
        sealed = from.seal_planned(slab, done);
      } else {
        sealed = from.seal(part, slab);
      }
      REQUIRE(sealed.status == Status::done);
      REQUIRE(sealed.consumed == part.size());
      total += part.size();
      const auto* bytes = reinterpret_cast<const unsigned char*>(part.data());
      REQUIRE(mbedtls_sha256_update(&in, bytes, part.size()) == 0);

      std::array<iovec, 20> pieces;
      const auto opened = to.open(std::span(slab).first(sealed.bytes), pieces);
      REQUIRE(opened.status == Status::need_read);
      REQUIRE(opened.consumed == sealed.bytes);
      REQUIRE(opened.bytes == part.size());
      records += opened.pieces;
      for (const iovec& piece : std::span(pieces).first(opened.pieces)) {
        REQUIRE(mbedtls_sha256_update(&out, static_cast<const unsigned char*>(piece.iov_base),
                                      piece.iov_len) == 0);
      }
    }
    // As few records as there can be.
    CHECK(records < 2 * kTotal / Engine::kMaxPlaintext + 2000);
    std::array<unsigned char, 32> received{};
    REQUIRE(mbedtls_sha256_finish(&in, sent.data()) == 0);
    REQUIRE(mbedtls_sha256_finish(&out, received.data()) == 0);
    mbedtls_sha256_free(&in);
    mbedtls_sha256_free(&out);
    return received;
  }
};

TEST_CASE("100 MiB each way by each cipher, with a digest") {
  for (const int cipher : {0x1301, 0x1302, 0x1303, 0xc02b, 0xc02c, 0xcca9}) {
    CAPTURE(cipher);
    PairOptions options;
    options.client = only(cipher < 0xc000 ? Version::tls13 : Version::tls12);
    Pair pair(std::move(options));
    const std::array list{cipher, 0};
    // Not a setting of ours: the client is made to ask for one cipher alone.
    auto& config = const_cast<Config&>(*pair.client_context.config(pair.client_terms));
    mbedtls_ssl_conf_ciphersuites(&config.config, list.data());
    REQUIRE(pair.shake());
    CHECK(pair.server->engine->cipher() == cipher_name(cipher));
    CHECK(!cipher_name(cipher).empty());
    std::array<unsigned char, 32> sent{};
    CHECK(Bulk::push(*pair.client->engine, *pair.server->engine, false, sent) == sent);
    CHECK(Bulk::push(*pair.server->engine, *pair.client->engine, true, sent) == sent);
  }
}

TEST_CASE("seal: what does not fit stays with the caller, and output goes first") {
  Pair pair;
  REQUIRE(pair.shake());
  Engine& engine = *pair.client->engine;
  const std::string text = random_text(40'000);
  const auto plain = std::as_bytes(std::span(text));

  Bytes small(1000);
  auto sealed = engine.seal(plain, small);
  CHECK(sealed.status == Status::need_write);
  CHECK(sealed.consumed > 900);
  CHECK(sealed.bytes <= small.size());
  std::size_t done = sealed.consumed;
  pair.server->receive(std::span(small).first(sealed.bytes));
  // Room for one record and a bit: no second, tiny one.
  Bytes one(Engine::kMaxRecord + 500);
  sealed = engine.seal(plain.subspan(done), one);
  CHECK(sealed.status == Status::need_write);
  CHECK(sealed.consumed <= Engine::kMaxPlaintext);
  CHECK(sealed.consumed >= Engine::kMaxPlaintext - 1);
  done += sealed.consumed;
  pair.server->receive(std::span(one).first(sealed.bytes));

  Bytes none(Engine::kMaxOverhead);
  sealed = engine.seal(plain.subspan(done), none);
  CHECK(sealed.status == Status::need_write);
  CHECK(sealed.consumed + sealed.bytes == 0);
  CHECK(engine.plan(none, {}) == 0);

  Bytes large(64 * 1024);
  sealed = engine.seal(plain.subspan(done), large);
  CHECK(sealed.status == Status::done);
  pair.server->receive(std::span(large).first(sealed.bytes));
  CHECK(pair.server->plain == text);

  // close_notify goes out through seal() too, in parts if it must.
  engine.close_notify();
  std::array<iovec, 4> parts{};
  CHECK(engine.plan(large, parts) == 0);
  CHECK(engine.seal_planned(large, 10).status == Status::error);
  Bytes out;
  Bytes tiny(10);
  do {
    sealed = engine.seal({}, tiny);
    out.insert(out.end(), tiny.begin(), tiny.begin() + static_cast<std::ptrdiff_t>(sealed.bytes));
  } while (sealed.status == Status::need_write);
  pair.server->receive(out);
  CHECK(pair.server->status == Status::closed);
  CHECK(engine.seal(plain, large).status == Status::error);
}

TEST_CASE("plan: where plaintext goes, whatever the slab's size") {
  for (const Version version : {Version::tls12, Version::tls13}) {
    PairOptions options;
    options.client = only(version);
    Pair pair(std::move(options));
    REQUIRE(pair.shake());
    pair.client->take();
    Engine& engine = *pair.client->engine;
    std::mt19937 random(5);
    std::string expected;
    for (std::size_t size = 1; size < 120'000; size = size * 5 / 4 + 3) {
      Bytes slab(size);
      std::array<iovec, 5> parts{};
      const std::size_t count = engine.plan(slab, parts);
      std::size_t room = 0;
      for (const iovec& part : std::span(parts).first(count)) {
        CHECK(part.iov_len > 0);
        room += part.iov_len;
      }
      if (size > Engine::kMaxOverhead) CHECK(count > 0);
      if (room == 0) continue;
      for (const std::size_t amount : {room, std::size_t{1} + random() % room}) {
        const std::string text = random_text(amount, static_cast<unsigned>(amount));
        REQUIRE(engine.plan(slab, parts) == count);
        std::size_t done = 0;
        for (const iovec& part : std::span(parts).first(count)) {
          const std::size_t n = std::min(part.iov_len, text.size() - done);
          std::memcpy(part.iov_base, text.data() + done, n);
          done += n;
        }
        const auto sealed = engine.seal_planned(slab, amount);
        REQUIRE(sealed.status == Status::done);
        REQUIRE(sealed.consumed == amount);
        REQUIRE(sealed.bytes <= slab.size());
        expected += text;
        pair.server->receive(std::span(slab).first(sealed.bytes));
      }
      REQUIRE(pair.server->plain == expected);
    }
  }
}

TEST_CASE("records that come together, and in pieces of every size") {
  Pair pair;
  REQUIRE(pair.shake());
  std::string expected;
  for (unsigned i = 0; i < 40; ++i) {
    const std::string text = random_text(1 + i * 37, i);
    expected += text;
    pair.client->write(text);
  }
  const Bytes all = pair.client->take();
  for (std::size_t at = 0; at < all.size();) {
    const std::size_t part = std::min<std::size_t>(1 + at % 613, all.size() - at);
    pair.server->receive(std::span(all).subspan(at, part));
    at += part;
    // What is in hand is in sight: less than a record.
    CHECK(pair.server->received.size() < 40 * 37 + Engine::kMaxOverhead);
  }
  CHECK(pair.server->plain == expected);
  CHECK(pair.server->received.empty());
}

TEST_CASE("ends: close_notify each way, data behind it, a FIN without it") {
  for (const Version version : {Version::tls12, Version::tls13}) {
    PairOptions options;
    options.client = only(version);
    Pair pair(std::move(options));
    REQUIRE(pair.shake());
    CHECK(pair.server->engine->end_of_input() == Status::truncated);
    pair.client->write("last words");
    pair.client->engine->close_notify();
    CHECK(pair.client->engine->write_closed());
    pair.client->engine->close_notify();  // once is enough
    run(*pair.client, *pair.server);
    CHECK(pair.server->plain == "last words");
    CHECK(pair.server->status == Status::closed);
    CHECK(pair.server->engine->end_of_input() == Status::closed);
    CHECK(pair.server->engine->fault() == Fault::none);
    // The other direction goes on.
    CHECK(!pair.server->engine->write_closed());
    pair.server->write("an answer, late");
    run(*pair.client, *pair.server);
    CHECK(pair.client->plain == "an answer, late");
    pair.server->engine->close_notify();
    run(*pair.client, *pair.server);
    CHECK(pair.client->status == Status::closed);
    // What follows a close_notify is not looked at.
    pair.server->receive(bytes_of("no TLS at all"));
    CHECK(pair.server->status == Status::closed);
    CHECK(pair.server->engine->output().empty());
  }
}

TEST_CASE("a refusal of the caller's, early and late") {
  Pair early;
  early.client->process();
  early.server->engine->refuse(112);
  run(*early.client, *early.server);
  CHECK(early.client->engine->fault() == Fault::alert_received);
  CHECK(early.client->engine->alert() == 112);
  Pair late;
  REQUIRE(late.shake());
  late.server->engine->refuse(90);
  run(*late.client, *late.server);
  CHECK(late.client->engine->alert() == 90);
  Bytes slab(100);
  CHECK(late.server->engine->seal(bytes_of("x"), slab).status == Status::error);
}

TEST_CASE("an idle connection keeps no buffer, and little else") {
  for (const Version version : {Version::tls12, Version::tls13}) {
    TicketKeys keys;
    Context server(&keys);
    server.use(store_of({"ecdsa"}));
    Context client;
    const auto server_terms = server_profile();
    const auto client_terms = client_profile(only(version));
    std::vector<std::unique_ptr<Engine>> idle;
    std::size_t before = 0;
    constexpr std::size_t kCount = 64;
    for (std::size_t i = 0; i < kCount + 8; ++i) {
      // What is made once is made by then.
      if (i == 8) before = ::mallinfo2().uordblks;
      Peer accepted(std::make_unique<Engine>(server, server_terms, "a.example"));
      Peer asked(Engine::client(client, client_terms, "a.example"));
      asked.process();
      run(asked, accepted);
      accepted.write("x");
      asked.write("y");
      run(asked, accepted);
      REQUIRE(accepted.plain == "y");
      idle.push_back(std::move(accepted.engine));
    }
    // mbedTLS's own two buffers would be 33 KiB. (A sanitizer's allocator says 0.)
    const std::size_t after = ::mallinfo2().uordblks;
    CHECK((after - before) / kCount < 6 * 1024);
  }
}

TEST_CASE("workers share certificates, authorities and ticket keys, and nothing else") {
  TicketKeys keys;
  const auto store = store_of({"ecdsa", "rsa"});
  ProfileOptions options;
  options.client_auth = ClientAuth::optional;
  options.authorities = authorities("client_root");
  const auto server_terms = server_profile(options);
  const auto client_terms = client_profile();
  std::atomic<int> resumed{0};
  std::atomic<int> failed{0};
  std::vector<std::thread> workers;
  for (int worker = 0; worker < 3; ++worker) {
    workers.emplace_back([&] {
      Context server(&keys);
      Context client;
      server.use(store);
      std::unique_ptr<Session> session;
      for (int i = 0; i < 12; ++i) {
        server.refresh();
        Peer accepted(std::make_unique<Engine>(server, server_terms, "a.example"));
        Peer asked(Engine::client(client, client_terms, "a.example", session.get()));
        asked.process();
        run(asked, accepted);
        if (!accepted.engine->established()) ++failed;
        if (accepted.engine->resumed()) ++resumed;
        session = asked.engine->take_session();
      }
    });
  }
  auto now = TicketKeys::Clock::now();
  for (int i = 0; i < 20; ++i) {
    keys.rotate(now += TicketKeys::kRotation);
    std::this_thread::yield();
  }
  for (std::thread& worker : workers)
    worker.join();
  CHECK(failed == 0);
  CHECK(resumed > 0);
}

TEST_CASE("profiles: what they refuse") {
  ProfileOptions options;
  options.min_version = Version::tls13;
  options.max_version = Version::tls12;
  CHECK(!Profile::make(options));
  options = {};
  options.client_auth = ClientAuth::required;
  CHECK(!Profile::make(options));
  options = {};
  options.role = Role::client;
  CHECK(!Profile::make(options));
  for (const std::string& protocol :
       {std::string(), std::string(256, 'x'), std::string("a\0b", 3)}) {
    options = {};
    options.alpn = {protocol};
    CHECK(!Profile::make(options));
  }
}

TEST_CASE("a context drops the configurations of profiles that are gone") {
  Context context;
  context.use(store_of({"ecdsa"}));
  auto first = server_profile();
  auto engine = std::make_unique<Engine>(context, first, "a.example");
  CHECK(context.configs() == 1);
  { const Engine again(context, first, "a.example"); }
  CHECK(context.configs() == 1);
  first.reset();
  const auto second = server_profile();
  CHECK(context.config(second) != nullptr);
  CHECK(context.configs() == 2);  // the engine still uses the first
  engine.reset();
  const auto third = server_profile();
  CHECK(context.config(third) != nullptr);
  CHECK(context.configs() == 2);
}

}  // namespace
}  // namespace causeway::gateway::tls
