// SPDX-License-Identifier: Apache-2.0
// The relay that ends TLS between two of OpenSSL's: its client, and its server as the upstream,
// which sends tickets when it likes. Built where OpenSSL is (CAUSEWAY_TEST_OPENSSL).
#include "gateway_tls_relay_stage.hpp"

#if !defined(CAUSEWAY_TEST_OPENSSL)

TEST_CASE("the relay that ends TLS, against OpenSSL" * doctest::skip()) {
  MESSAGE("skipped: built without OpenSSL");
}

#else

#include <openssl/ssl.h>

namespace causeway::gateway::tls {
namespace {

using namespace test;

// OpenSSL on a socket, driven until it would wait.
struct Other {
  Other(int fd, bool server, Version version)
      : context(SSL_CTX_new(server ? TLS_server_method() : TLS_client_method())) {
    const int number = version == Version::tls13 ? TLS1_3_VERSION : TLS1_2_VERSION;
    SSL_CTX_set_min_proto_version(context.get(), number);
    SSL_CTX_set_max_proto_version(context.get(), number);
    if (server) {
      const auto files = KeyDirectory::shared().pair("ecdsa");
      REQUIRE(SSL_CTX_use_certificate_chain_file(context.get(), files.chain.c_str()) == 1);
      REQUIRE(SSL_CTX_use_PrivateKey_file(context.get(), files.key.c_str(), SSL_FILETYPE_PEM) == 1);
    } else {
      REQUIRE(SSL_CTX_load_verify_locations(
                  context.get(), KeyDirectory::shared().file("root.pem").c_str(), nullptr) == 1);
      SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
    }
    ssl.reset(SSL_new(context.get()));
    SSL_set_fd(ssl.get(), fd);
    SSL_set_mode(ssl.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    if (server) {
      SSL_set_accept_state(ssl.get());
    } else {
      SSL_set_connect_state(ssl.get());
      SSL_set_tlsext_host_name(ssl.get(), "a.example");
    }
  }
  // True if anything moved.
  bool exchange() {
    bool moved = false;
    if (!unsent.empty() || SSL_is_init_finished(ssl.get()) == 0) {
      const int count = unsent.empty()
                            ? SSL_do_handshake(ssl.get())
                            : SSL_write(ssl.get(), unsent.data(), static_cast<int>(unsent.size()));
      if (count > 0 && !unsent.empty()) unsent.erase(0, static_cast<std::size_t>(count));
      moved = count > 0;
    }
    std::array<char, 20'000> buffer;
    int got = 0;
    while (SSL_is_init_finished(ssl.get()) == 1 &&
           (got = SSL_read(ssl.get(), buffer.data(), buffer.size())) > 0) {
      heard.append(buffer.data(), static_cast<std::size_t>(got));
      moved = true;
    }
    return moved;
  }
  [[nodiscard]] bool told() const {
    return (SSL_get_shutdown(ssl.get()) & SSL_RECEIVED_SHUTDOWN) != 0;
  }

  struct Free {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };
  std::unique_ptr<SSL_CTX, Free> context;
  std::unique_ptr<SSL, Free> ssl;
  std::string unsent;
  std::string heard;
};

TEST_CASE("between OpenSSL's client and OpenSSL's server") {
  for (const Version version : {Version::tls12, Version::tls13}) {
    CAPTURE(static_cast<int>(version));
    StageOptions options;
    options.upstream_tls = true;
    options.upstream_version = version;
    Stage it(std::move(options));
    Other client(it.client.fd(), false, version);
    Other origin(it.origin.fd(), true, version);
    const auto settle = [&] {
      for (int quiet = 0; quiet < 3;) {
        bool moved = client.exchange();
        moved = origin.exchange() || moved;
        moved = it.turn() || moved;
        quiet = moved ? 0 : quiet + 1;
      }
    };
    (void)client.exchange();
    it.begin({});
    settle();
    REQUIRE(it.phase == Stage::Phase::relay);

    const std::string text = random_text(1'000'000);
    client.unsent = text;
    settle();
    CHECK((origin.heard == text));
    if (version == Version::tls13) {
      // More tickets in the middle of the stream.
      for (int i = 0; i < 3; ++i) {
        REQUIRE(SSL_new_session_ticket(origin.ssl.get()) == 1);
        origin.unsent = "part";
        settle();
      }
      CHECK(client.heard == "partpartpart");
    }
    client.heard.clear();
    origin.unsent = text;
    settle();
    CHECK((client.heard == text));
    CHECK_FALSE(it.finish);
    CHECK(it.holds_nothing());

    SUBCASE("the client ends first") {
      CHECK(SSL_shutdown(client.ssl.get()) == 0);
      ::shutdown(it.client.fd(), SHUT_WR);
      settle();
      CHECK(origin.told());
      origin.unsent = "answer";
      settle();
      CHECK(SSL_shutdown(origin.ssl.get()) == 1);
      settle();
      CHECK(client.heard == text + "answer");
      CHECK(client.told());
    }
    SUBCASE("the server ends first") {
      CHECK(SSL_shutdown(origin.ssl.get()) == 0);
      ::shutdown(it.origin.fd(), SHUT_WR);
      settle();
      CHECK(client.told());
      CHECK(SSL_shutdown(client.ssl.get()) == 1);
      settle();
      CHECK(origin.told());
    }
    CHECK(it.finish == Finish::orderly);
  }
}

}  // namespace
}  // namespace causeway::gateway::tls

#endif
