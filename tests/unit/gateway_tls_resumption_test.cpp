// SPDX-License-Identifier: Apache-2.0
// Session tickets between contexts, gateways and names.
#include <doctest/doctest.h>

#include "tests/unit/gateway_tls_peers.hpp"

namespace causeway::gateway::tls {
namespace {

using namespace test;
using namespace std::chrono_literals;

ProfileOptions only(Version version) {
  ProfileOptions options;
  options.min_version = version;
  options.max_version = version;
  return options;
}

// A gateway's server side, to be shaken hands with again and again.
struct Gateway {
  explicit Gateway(const std::vector<std::string>& certificates = {"ecdsa", "other"})
      : context(&keys) {
    context.use(store_of(certificates));
  }
  TicketKeys keys;
  Context context;
};

struct Outcome {
  bool established = false;
  bool resumed = false;
  bool both_agree = true;
  std::unique_ptr<Session> session;
  std::string subject;
  bool certified = false;
};

Outcome shake(Gateway& gateway, Version version, Session* resume = nullptr,
              PairOptions options = {}) {
  options.server_context = &gateway.context;
  options.client.min_version = version;
  options.client.max_version = version;
  options.resume = resume;
  Pair pair(std::move(options));
  Outcome out;
  out.established = pair.shake();
  if (!out.established) return out;
  // The ticket of TLS 1.3 comes with the data.
  pair.server->write("hello");
  pair.client->write("hello");
  run(*pair.client, *pair.server);
  CHECK(pair.client->plain == "hello");
  CHECK(pair.server->plain == "hello");
  out.resumed = pair.server->engine->resumed();
  out.both_agree = out.resumed == pair.client->engine->resumed();
  out.session = pair.client->engine->take_session();
  out.certified = pair.server->engine->had_client_certificate();
  out.subject = pair.server->engine->client_subject();
  CHECK(out.both_agree);
  return out;
}

constexpr std::array kVersions{Version::tls12, Version::tls13};

TEST_CASE("a ticket resumes, by every worker, and again with the ticket that came of it") {
  for (const Version version : kVersions) {
    CAPTURE(static_cast<int>(version));
    Gateway gateway;
    auto first = shake(gateway, version);
    REQUIRE(first.established);
    CHECK(!first.resumed);
    REQUIRE(first.session);
    auto second = shake(gateway, version, first.session.get());
    CHECK(second.resumed);

    // Another worker: a context of its own with the same keys.
    Context worker(&gateway.keys);
    worker.use(gateway.context.key_ring() != nullptr ? store_of({"ecdsa", "other"}) : nullptr);
    PairOptions options;
    options.client = only(version);
    options.server_context = &worker;
    options.resume = first.session.get();
    Pair pair(std::move(options));
    REQUIRE(pair.shake());
    CHECK(pair.server->engine->resumed());

    if (version == Version::tls13) {
      REQUIRE(second.session);
      CHECK(shake(gateway, version, second.session.get()).resumed);
    }
  }
}

TEST_CASE("another gateway does not resume; one with the same key file does, after a restart too") {
  const std::string file = KeyDirectory::shared().write(
      "fleet", "# of the fleet\n" + std::string(32, '7') + std::string(128, '9') + "\n");
  for (const Version version : kVersions) {
    CAPTURE(static_cast<int>(version));
    std::unique_ptr<Session> session;
    {
      Gateway gateway;
      REQUIRE(gateway.keys.load_file(file));
      gateway.context.refresh();
      session = shake(gateway, version).session;
      REQUIRE(session);
    }
    Gateway stranger;
    const auto refused = shake(stranger, version, session.get());
    CHECK(refused.established);
    CHECK(!refused.resumed);
    Gateway sibling;
    REQUIRE(sibling.keys.load_file(file));
    CHECK(!shake(sibling, version, session.get()).resumed);  // its worker has not looked yet
    sibling.context.refresh();
    CHECK(shake(sibling, version, session.get()).resumed);
  }
}

TEST_CASE("after rotation: still accepted with the key before, refused when that is gone") {
  for (const Version version : kVersions) {
    CAPTURE(static_cast<int>(version));
    Gateway gateway;
    const auto now = TicketKeys::Clock::now();
    const auto session = shake(gateway, version).session;
    REQUIRE(session);
    REQUIRE(gateway.keys.rotate(now + 7h));
    gateway.context.refresh();
    CHECK(shake(gateway, version, session.get()).resumed);
    REQUIRE(gateway.keys.rotate(now + 14h));
    gateway.context.refresh();
    const auto refused = shake(gateway, version, session.get());
    CHECK(refused.established);
    CHECK(!refused.resumed);
  }
}

// The name that the client sends is `to`'s; mbedTLS as a client would not offer its session there,
// so the server is told another name than it was made for.
TEST_CASE("a ticket is worth nothing at another name, certificate or route") {
  for (const Version version : kVersions) {
    CAPTURE(static_cast<int>(version));
    Gateway gateway;
    PairOptions wild;
    wild.name = "one.wild.example";
    const auto session = shake(gateway, version, nullptr, wild).session;
    REQUIRE(session);
    CHECK(shake(gateway, version, session.get(), wild).resumed);

    PairOptions other = wild;
    other.sniffed = "two.wild.example";  // the same certificate
    const auto elsewhere = shake(gateway, version, session.get(), other);
    CHECK(elsewhere.established);
    CHECK(!elsewhere.resumed);
    // Another certificate: not resumed, so the client gets to see that it is the wrong one.
    other.sniffed = "b.example";
    CHECK(!shake(gateway, version, session.get(), other).established);

    // The same name, under another key.
    Gateway renewed({"rsa"});
    const std::string file =
        KeyDirectory::shared().write("both", std::string(32, '3') + std::string(128, '4') + "\n");
    Gateway before;
    REQUIRE(before.keys.load_file(file));
    REQUIRE(renewed.keys.load_file(file));
    before.context.refresh();
    renewed.context.refresh();
    const auto old = shake(before, version).session;
    REQUIRE(old);
    const auto fresh = shake(renewed, version, old.get());
    CHECK(fresh.established);
    CHECK(!fresh.resumed);

    // A route with another ALPN list, and one that wants client certificates.
    PairOptions alpn;
    alpn.server.alpn = {"h2"};
    alpn.client.alpn = {"h2"};
    const auto plain = shake(gateway, version).session;
    REQUIRE(plain);
    CHECK(!shake(gateway, version, plain.get(), alpn).resumed);
    PairOptions strict;
    strict.server.client_auth = ClientAuth::optional;
    strict.server.authorities = authorities("client_root");
    CHECK(!shake(gateway, version, plain.get(), strict).resumed);
    strict.server.client_auth = ClientAuth::required;
    CHECK(!shake(gateway, version, plain.get(), strict).established);
  }
}

TEST_CASE("a client's certificate is remembered in the ticket") {
  for (const Version version : kVersions) {
    CAPTURE(static_cast<int>(version));
    Gateway gateway;
    PairOptions options;
    options.server.client_auth = ClientAuth::required;
    options.server.authorities = authorities("client_root");
    options.client.identity = must(Identity::load(
        KeyDirectory::shared().pair("client"), Identity::Clock::now(), Identity::Purpose::client));
    auto first = shake(gateway, version, nullptr, options);
    REQUIRE(first.session);
    CHECK(first.subject == "CN=a client");
    for (int again = 0; again < 3; ++again) {
      auto next = shake(gateway, version, first.session.get(), options);
      CHECK(next.resumed);
      CHECK(next.certified);
      CHECK(next.subject == "CN=a client");
      if (next.session) first = std::move(next);
    }
    // Other authorities: other terms.
    options.server.authorities = authorities("stranger");
    CHECK(!shake(gateway, version, first.session.get(), options).established);
  }
}

TEST_CASE("no tickets: none are issued, none accepted") {
  for (const Version version : kVersions) {
    Gateway gateway;
    const auto session = shake(gateway, version).session;
    REQUIRE(session);
    PairOptions options;
    options.server.tickets = false;
    CHECK(!shake(gateway, version, session.get(), options).resumed);
    const auto fresh = shake(gateway, version, nullptr, options);
    CHECK(fresh.established);
    if (version == Version::tls13) CHECK(!fresh.session);
    CHECK(!shake(gateway, version, fresh.session.get()).resumed);
  }
}

}  // namespace
}  // namespace causeway::gateway::tls
