// SPDX-License-Identifier: Apache-2.0
#include "guest/gateway/tls_material.hpp"

#include <doctest/doctest.h>

#include <filesystem>

#include "tests/unit/gateway_tls_peers.hpp"

namespace causeway::gateway {
namespace {

using tls::test::KeyDirectory;
using tls::test::must;

RouteConfig route(const std::string& name, TerminateConfig terms = {}) {
  RouteConfig made;
  made.names = {name};
  made.mode = RouteMode::terminate;
  made.terminate = std::move(terms);
  UpstreamConfig upstream;
  upstream.address = must(parse_address("tcp:localhost:80"));
  made.upstreams.push_back(std::move(upstream));
  return made;
}

TerminateConfig protocols(std::vector<std::string> list) {
  TerminateConfig terms;
  terms.protocols = std::move(list);
  return terms;
}

BaseDomainConfig apps() {
  ApplicationConfig shop;
  shop.id = "shop";
  shop.hosts = {"10.0.0.1"};
  BaseDomainConfig base;
  base.name = "apps.example";
  base.applications.push_back(std::move(shop));
  return base;
}

GatewayConfig config_of(const KeyDirectory& keys) {
  GatewayConfig config;
  config.cert = keys.file("ecdsa.pem");
  config.key = keys.file("ecdsa.key");
  config.passthrough = {"through.example=tcp:127.0.0.1:1"};
  config.routes = {route("a.example"), route("b.example", protocols({"h2", "http/1.1"})),
                   route("c.example")};
  return config;
}

TEST_CASE("profiles: one for each kind of terms, by the routes' order; none where TLS goes on") {
  const KeyDirectory keys;
  GatewayConfig config = config_of(keys);
  config.base_domains.push_back(apps());
  config.tls.min_version = TlsVersion::v1_3;
  const auto tls = must(load_tls(config));
  REQUIRE(tls->routes.size() == config.effective_routes().size());
  REQUIRE(tls->routes.size() == 5);
  CHECK(tls->routes[0].client == tls->routes[2].client);
  CHECK(tls->routes[0].client != tls->routes[1].client);
  CHECK(tls->routes[1].client->options().alpn == std::vector<std::string>{"h2", "http/1.1"});
  CHECK(tls->routes[0].client->options().min_version == tls::Version::tls13);
  CHECK(tls->routes[3].client == nullptr);
  CHECK(tls->routes[4].client == tls->routes[0].client);
  CHECK(tls->routes[4].client_h2->options().alpn == std::vector<std::string>{"h2"});
  CHECK(tls->routes[1].upstream.empty());
}

TEST_CASE("without a certificate an application does not terminate") {
  GatewayConfig config;
  config.base_domains.push_back(apps());
  const auto tls = must(load_tls(config));
  CHECK(tls->certificates == nullptr);
  CHECK(tls->routes.at(0).client == nullptr);
}

TEST_CASE("TLS to the upstream: a profile for each protocol, and one without") {
  const KeyDirectory keys;
  GatewayConfig config = config_of(keys);
  TerminateConfig terms = protocols({"h2", "http/1.1"});
  terms.upstream_tls = true;
  terms.upstream_ca = keys.file("root.pem");
  terms.upstream_cert = keys.file("client.pem");
  terms.upstream_key = keys.file("client.key");
  config.routes = {route("a.example", terms)};
  const RouteTls made = must(load_tls(config))->routes.at(0);
  REQUIRE(made.upstream.size() == 3);
  CHECK(made.upstream_protocols == std::vector<std::string>{"h2", "http/1.1"});
  CHECK(made.upstream[0]->options().alpn == std::vector<std::string>{"h2"});
  CHECK(made.upstream[2]->options().alpn.empty());
  CHECK(made.upstream[0]->options().role == tls::Role::client);
  CHECK(made.upstream[0]->options().identity != nullptr);
}

TEST_CASE("what is wrong with a file is said with its path, and with the route that names it") {
  const KeyDirectory keys;
  const auto complaint = [](const GatewayConfig& config) {
    const auto loaded = load_tls(config);
    return loaded ? std::string() : loaded.error().message;
  };
  GatewayConfig config = config_of(keys);
  config.key = keys.file("missing.key");
  CHECK(complaint(config).rfind(config.key + ": ", 0) == 0);
  config = config_of(keys);
  config.certificates = {{.cert = keys.file("expired.pem"), .key = keys.file("ecdsa.key")}};
  CHECK(complaint(config).rfind(keys.file("expired.pem") + ": the certificate expired", 0) == 0);
  config = config_of(keys);
  config.routes[1].terminate.client_certificates = ClientCertificates::required;
  config.routes[1].terminate.client_ca = keys.file("missing.pem");
  CHECK(complaint(config).rfind("b.example: " + keys.file("missing.pem") + ": ", 0) == 0);
}

TEST_CASE("files that are watched: each once, and every way to become another one") {
  const KeyDirectory keys;
  GatewayConfig config = config_of(keys);
  config.certificates = {{.cert = config.cert, .key = {}}};
  config.tls.ticket_keys = keys.write("tickets", "x");
  config.routes[0].terminate.client_ca = keys.file("root.pem");
  CHECK(tls_files(config) == std::vector<std::string>{keys.file("ecdsa.key"), config.cert,
                                                      keys.file("root.pem"), keys.file("tickets")});

  namespace fs = std::filesystem;
  const std::string link = keys.file("link");
  fs::create_symlink(keys.file("tickets"), link);
  FileWatch watch;
  CHECK(watch.empty());
  watch.watch({link, keys.file("absent")});
  CHECK(!watch.changed());
  keys.write("tickets", "more");  // written to
  CHECK(watch.changed());
  CHECK(!watch.changed());
  fs::rename(keys.write("fresh", "more"), keys.file("tickets"));  // replaced
  CHECK(watch.changed());
  keys.write("elsewhere", "more");
  fs::remove(link);
  CHECK(watch.changed());
  fs::create_symlink(keys.file("elsewhere"), link);  // leads elsewhere
  CHECK(watch.changed());
  CHECK(!watch.changed());
  CHECK(::chmod(keys.file("elsewhere").c_str(), 0640) == 0);
  CHECK(watch.changed());
  keys.write("absent", "");
  CHECK(watch.changed());
  CHECK(!watch.changed());
}

}  // namespace
}  // namespace causeway::gateway
