// SPDX-License-Identifier: Apache-2.0
// The TLS engine against OpenSSL, over memory: another implementation, and what ours cannot be made
// to do as a client. Built where OpenSSL is (CAUSEWAY_TEST_OPENSSL).
#include <doctest/doctest.h>

#include "tests/unit/gateway_tls_peers.hpp"

#if !defined(CAUSEWAY_TEST_OPENSSL)

TEST_CASE("the TLS engine against OpenSSL" * doctest::skip()) {
  MESSAGE("skipped: built without OpenSSL");
}

#else

#include <openssl/ssl.h>

namespace causeway::gateway::tls {
namespace {

using namespace test;

constexpr std::array kVersions{Version::tls12, Version::tls13};

int number(Version version) {
  return version == Version::tls13 ? TLS1_3_VERSION : TLS1_2_VERSION;
}

struct Free {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(SSL* ssl) const { SSL_free(ssl); }
  void operator()(SSL_SESSION* session) const { SSL_SESSION_free(session); }
};

// OpenSSL's end of a connection.
struct Other {
  Other(bool server, Version version)
      : context(SSL_CTX_new(server ? TLS_server_method() : TLS_client_method())) {
    SSL_CTX_set_min_proto_version(context.get(), number(version));
    SSL_CTX_set_max_proto_version(context.get(), number(version));
    SSL_CTX_set_app_data(context.get(), this);
    if (server) {
      const auto files = KeyDirectory::shared().pair("ecdsa");
      REQUIRE(SSL_CTX_use_certificate_chain_file(context.get(), files.chain.c_str()) == 1);
      REQUIRE(SSL_CTX_use_PrivateKey_file(context.get(), files.key.c_str(), SSL_FILETYPE_PEM) == 1);
    } else {
      SSL_CTX_set_session_cache_mode(context.get(),
                                     SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
      SSL_CTX_sess_set_new_cb(context.get(), [](SSL* of, SSL_SESSION* made) {
        auto* self = static_cast<Other*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(of)));
        self->session.reset(made);
        return 1;
      });
      SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
      REQUIRE(SSL_CTX_load_verify_locations(
                  context.get(), KeyDirectory::shared().file("root.pem").c_str(), nullptr) == 1);
    }
    is_server = server;
  }
  Other(const Other&) = delete;
  Other& operator=(const Other&) = delete;

  void start(const char* name = "a.example", SSL_SESSION* resume = nullptr) {
    // A session whose connection was cut would not be resumed.
    if (ssl) SSL_set_shutdown(ssl.get(), SSL_SENT_SHUTDOWN | SSL_RECEIVED_SHUTDOWN);
    ssl.reset(SSL_new(context.get()));
    SSL_set_bio(ssl.get(), BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    if (is_server) {
      SSL_set_accept_state(ssl.get());
    } else {
      SSL_set_connect_state(ssl.get());
      SSL_set_tlsext_host_name(ssl.get(), name);
      SSL_set1_host(ssl.get(), name);
      if (resume != nullptr) REQUIRE(SSL_set_session(ssl.get(), resume) == 1);
    }
  }
  void receive(const Bytes& bytes) {
    if (!bytes.empty())
      BIO_write(SSL_get_rbio(ssl.get()), bytes.data(), static_cast<int>(bytes.size()));
    process();
  }
  void process() {
    if (SSL_is_init_finished(ssl.get()) == 0) {
      const int done = SSL_do_handshake(ssl.get());
      error = SSL_get_error(ssl.get(), done);
      if (done <= 0) return;
    }
    std::array<char, 20'000> buffer;
    int got = 0;
    while ((got = SSL_read(ssl.get(), buffer.data(), buffer.size())) > 0) {
      plain.append(buffer.data(), static_cast<std::size_t>(got));
    }
    error = SSL_get_error(ssl.get(), got);
  }
  void write(const std::string& text) {
    REQUIRE(SSL_write(ssl.get(), text.data(), static_cast<int>(text.size())) ==
            static_cast<int>(text.size()));
  }
  Bytes take() {
    Bytes out(BIO_ctrl_pending(SSL_get_wbio(ssl.get())));
    if (!out.empty()) BIO_read(SSL_get_wbio(ssl.get()), out.data(), static_cast<int>(out.size()));
    return out;
  }
  [[nodiscard]] bool established() const { return SSL_is_init_finished(ssl.get()) == 1; }

  bool is_server = false;
  std::unique_ptr<SSL_CTX, Free> context;
  std::unique_ptr<SSL, Free> ssl;
  std::unique_ptr<SSL_SESSION, Free> session;
  std::string plain;
  int error = 0;
};

void run(Other& other, Peer& peer) {
  other.process();
  for (int quiet = 0; quiet < 2;) {
    quiet = 0;
    const Bytes out = other.take();
    if (out.empty()) ++quiet;
    if (!out.empty()) peer.receive(out);
    const Bytes back = peer.take();
    if (back.empty()) ++quiet;
    other.receive(back);
  }
}

struct Served {
  explicit Served(const std::vector<std::string>& certificates = {"ecdsa", "rsa"},
                  ProfileOptions options = {})
      : context(&keys), profile(server_profile(std::move(options))) {
    context.use(store_of(certificates));
  }
  Peer accept(const char* name = "a.example") {
    return Peer(std::make_unique<Engine>(context, profile, name));
  }
  TicketKeys keys;
  Context context;
  std::shared_ptr<const Profile> profile;
};

TEST_CASE("OpenSSL as a client: versions, ciphers, certificates, data both ways") {
  struct Suite {
    Version version;
    const char* list;
    bool rsa;
  };
  for (const Suite& suite : {
           Suite{Version::tls13, "TLS_AES_128_GCM_SHA256", false},
           Suite{Version::tls13, "TLS_AES_256_GCM_SHA384", true},
           Suite{Version::tls13, "TLS_CHACHA20_POLY1305_SHA256", false},
           Suite{Version::tls12, "ECDHE-ECDSA-AES128-GCM-SHA256", false},
           Suite{Version::tls12, "ECDHE-ECDSA-CHACHA20-POLY1305", false},
           Suite{Version::tls12, "ECDHE-RSA-AES256-GCM-SHA384", true},
           Suite{Version::tls12, "ECDHE-RSA-AES128-GCM-SHA256", true},
       }) {
    CAPTURE(suite.list);
    Served served;
    Other client(false, suite.version);
    if (suite.version == Version::tls13) {
      SSL_CTX_set_ciphersuites(client.context.get(), suite.list);
    } else {
      SSL_CTX_set_cipher_list(client.context.get(), suite.list);
    }
    // Who verifies RSA only gets the RSA certificate (its issuers are signed with ECDSA all the
    // same).
    if (suite.rsa && suite.version == Version::tls13) {
      SSL_CTX_set1_sigalgs_list(client.context.get(), "rsa_pss_rsae_sha256:ECDSA+SHA256");
    }
    client.start();
    Peer peer = served.accept();
    run(client, peer);
    REQUIRE(client.established());
    REQUIRE(peer.engine->established());
    CHECK(peer.engine->cipher() == suite.list);
    CHECK(EVP_PKEY_get_base_id(X509_get0_pubkey(SSL_get0_peer_certificate(client.ssl.get()))) ==
          (suite.rsa ? EVP_PKEY_RSA : EVP_PKEY_EC));
    const std::string up = random_text(300'000, 3);
    const std::string down = random_text(250'001, 4);
    client.write(up);
    peer.write(down);
    run(client, peer);
    CHECK(peer.plain == up);
    CHECK(client.plain == down);

    // Ends, one direction after the other.
    CHECK(SSL_shutdown(client.ssl.get()) == 0);
    run(client, peer);
    CHECK(peer.status == Status::closed);
    peer.write("late");
    peer.engine->close_notify();
    run(client, peer);
    CHECK(client.plain == down + "late");
    CHECK(client.error == SSL_ERROR_ZERO_RETURN);
  }
}

TEST_CASE("OpenSSL as a server: verified, and data both ways") {
  for (const Version version : kVersions) {
    Other server(true, version);
    Context context;
    server.start();
    Peer client(Engine::client(context, client_profile(), "a.example"));
    client.process();
    run(server, client);
    REQUIRE(client.engine->established());
    CHECK(client.engine->version() == version);
    server.write(random_text(100'000));
    client.write(random_text(90'000, 2));
    run(server, client);
    CHECK(client.plain == random_text(100'000));
    CHECK(server.plain == random_text(90'000, 2));

    // Tickets of OpenSSL's (two, in TLS 1.3), and back with one.
    const auto session = client.engine->take_session();
    REQUIRE(session);
    server.start();
    Peer again(Engine::client(context, client_profile(), "a.example", session.get()));
    again.process();
    run(server, again);
    REQUIRE(again.engine->established());
    CHECK(again.engine->resumed());
    CHECK(SSL_session_reused(server.ssl.get()) == 1);

    server.start();
    ProfileOptions strangers;
    strangers.authorities = authorities("client_root");
    Peer wary(Engine::client(context, client_profile(strangers), "a.example"));
    wary.process();
    run(server, wary);
    CHECK(wary.engine->fault() == Fault::bad_certificate);
    CHECK(!server.established());
  }
}

TEST_CASE("OpenSSL resumes, and sees a ticket of another name refused") {
  for (const Version version : kVersions) {
    Served served({"ecdsa", "other"});
    Other client(false, version);
    client.start();
    Peer first = served.accept();
    run(client, first);
    first.write("x");
    run(client, first);
    REQUIRE(client.session);
    const auto session = std::move(client.session);
    client.start("a.example", session.get());
    Peer second = served.accept();
    run(client, second);
    CHECK(second.engine->established());
    CHECK(second.engine->resumed());
    CHECK(SSL_session_reused(client.ssl.get()) == 1);

    client.start("b.example", session.get());
    Peer other = served.accept("b.example");
    run(client, other);
    CHECK(!other.engine->resumed());
    CHECK(SSL_session_reused(client.ssl.get()) == 0);
  }
}

TEST_CASE("HelloRetryRequest: a first key share of a group that we do not have") {
  Served served;
  for (const char* groups : {"P-521:X25519", "P-521:P-256", "P-521:P-384"}) {
    CAPTURE(groups);
    Other client(false, Version::tls13);
    SSL_CTX_set1_groups_list(client.context.get(), groups);
    client.start();
    Peer peer = served.accept();
    run(client, peer);
    CHECK(client.established());
    CHECK(peer.engine->established());
    client.write("x");
    run(client, peer);
    CHECK(peer.plain == "x");
  }
  Other client(false, Version::tls13);
  SSL_CTX_set1_groups_list(client.context.get(), "P-521");
  client.start();
  Peer peer = served.accept();
  run(client, peer);
  CHECK(peer.engine->fault() == Fault::no_shared_cipher);
}

TEST_CASE("a renegotiation is refused") {
  Served served;
  Other client(false, Version::tls12);
  client.start();
  Peer peer = served.accept();
  run(client, peer);
  client.write("before");
  run(client, peer);
  REQUIRE(SSL_renegotiate(client.ssl.get()) == 1);
  CHECK(SSL_do_handshake(client.ssl.get()) <= 0);
  run(client, peer);
  // OpenSSL takes the no for an end; others may go on.
  CHECK(client.error == SSL_ERROR_SSL);
  CHECK(peer.plain == "before");
  CHECK(peer.engine->fault() == Fault::alert_received);  // OpenSSL's, behind its no
}

TEST_CASE("a KeyUpdate ends the connection with a fault of its own") {
  Served served;
  Other client(false, Version::tls13);
  client.start();
  Peer peer = served.accept();
  run(client, peer);
  REQUIRE(SSL_key_update(client.ssl.get(), SSL_KEY_UPDATE_REQUESTED) == 1);
  client.write("behind it");
  run(client, peer);
  CHECK(name(peer.engine->fault()) == "key_update");
  CHECK(peer.plain.empty());
}

TEST_CASE("0-RTT data is not taken") {
  Served served;
  Other client(false, Version::tls13);
  client.start();
  Peer first = served.accept();
  run(client, first);
  first.write("x");
  run(client, first);
  REQUIRE(client.session);
  const auto session = std::move(client.session);
  CHECK(SSL_SESSION_get_max_early_data(session.get()) == 0);
  SSL_SESSION_set_max_early_data(session.get(), 1000);
  client.start("a.example", session.get());
  std::size_t written = 0;
  REQUIRE(SSL_write_early_data(client.ssl.get(), "early", 5, &written) == 1);
  Peer peer = served.accept();
  run(client, peer);
  CHECK(peer.plain.empty());
#if defined(MBEDTLS_SSL_EARLY_DATA)
  CHECK(peer.engine->established());
#else
  CHECK(name(peer.engine->fault()) == "bad_mac");
#endif
}

TEST_CASE("OpenSSL's client certificates") {
  for (const Version version : kVersions) {
    ProfileOptions options;
    options.client_auth = ClientAuth::required;
    options.authorities = authorities("client_root");
    Served served({"rsa"}, options);
    Other client(false, version);
    client.start();
    Peer none = served.accept();
    run(client, none);
    CHECK(none.engine->fault() == Fault::client_certificate_required);
    CHECK(client.error != SSL_ERROR_WANT_READ);  // it understood the alert

    const auto files = KeyDirectory::shared().pair("client");
    REQUIRE(SSL_CTX_use_certificate_chain_file(client.context.get(), files.chain.c_str()) == 1);
    REQUIRE(SSL_CTX_use_PrivateKey_file(client.context.get(), files.key.c_str(),
                                        SSL_FILETYPE_PEM) == 1);
    client.start();
    Peer good = served.accept();
    run(client, good);
    CHECK(good.engine->client_subject() == "CN=a client");
  }
}

}  // namespace
}  // namespace causeway::gateway::tls

#endif
