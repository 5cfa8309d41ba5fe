// SPDX-License-Identifier: Apache-2.0
#include "guest/gateway/route/route_table.hpp"

#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <vector>

#include "tests/unit/gateway_configs.hpp"

namespace causeway::gateway {
namespace {

using Views = std::vector<std::string_view>;
using Mode = ApplicationName::Mode;

using test::accepted;
using test::route;

RouteTable routes(const std::string& list) {
  return RouteTable(accepted(R"({"listen": "tcp:0.0.0.0:443", "routes": [)" + list + "]}"));
}

RouteTable::Found find(const RouteTable& table, std::string_view name, const Views& alpn = {}) {
  ClientHello hello;
  hello.server_name = name;
  hello.alpn = alpn;
  return table.find(hello);
}

// "3", "3:8443", with " t" where TLS ends here or " g" where h2 alone is offered; or the reason.
std::string found(const RouteTable& table, std::string_view name, const Views& alpn = {}) {
  const auto result = find(table, name, alpn);
  if (result.match) {
    std::string text = std::to_string(result.match->route);
    if (result.match->port != 0) text += ":" + std::to_string(result.match->port);
    switch (result.match->mode) {
      case RouteMatch::Mode::passthrough:
        return text;
      case RouteMatch::Mode::terminate:
        return text + " t";
      case RouteMatch::Mode::terminate_h2:
        return text + " g";
    }
  }
  switch (result.reason) {
    case End::no_name:
      return "no_name";
    case End::unknown_name:
      return "unknown_name";
    case End::no_protocol:
      return "no_protocol";
    case End::forbidden_port:
      return "forbidden_port";
    default:
      return "?";
  }
}

}  // namespace

TEST_CASE("gateway route: the most specific name wins") {
  const auto table =
      routes(route(R"("default")") + "," + route(R"("*.b.example", "*.example")") + "," +
             route(R"("a.example", "x.b.example")") + "," + route(R"("*.a.example")"));
  CHECK(found(table, "a.example") == "2");
  CHECK(found(table, "x.b.example") == "2");
  CHECK(found(table, "y.b.example") == "1");
  CHECK(found(table, "b.example") == "1");
  CHECK(found(table, "z.a.example") == "3");
  CHECK(found(table, "y.z.a.example") == "0");  // a wildcard is one label
  CHECK(found(table, "example") == "0");
  CHECK(found(table, "") == "0");
  CHECK(found(table, "a.example.org") == "0");
}

TEST_CASE("gateway route: without a default") {
  const auto table = routes(route(R"("a.example", "*.b.example")"));
  CHECK(found(table, "a.example") == "0");
  CHECK(found(table, "") == "no_name");
  CHECK(found(table, "c.example") == "unknown_name");
  CHECK(found(table, "c") == "unknown_name");
  CHECK(found(table, "b.example") == "unknown_name");
  CHECK(found(table, "x.y.b.example") == "unknown_name");
  CHECK(found(table, "aa.example") == "unknown_name");
  CHECK_FALSE(table.find_non_tls());
}

TEST_CASE("gateway route: ALPN") {
  // The route for any client stands first and is asked last.
  const auto table = routes(route(R"("a")") + "," + route(R"("a")", R"(, "alpn": ["h2"])") + "," +
                            route(R"("a", "b")", R"(, "alpn": ["x", "y"])") + "," +
                            route(R"("b")", R"(, "alpn": ["h2"])") + "," + route(R"("default")"));
  CHECK(found(table, "a") == "0");
  CHECK(found(table, "a", {"h2"}) == "1");
  CHECK(found(table, "a", {"y"}) == "2");
  CHECK(found(table, "a", {"y", "h2"}) == "1");  // the table's order, not the client's
  CHECK(found(table, "a", {"H2", "h22", ""}) == "0");
  CHECK(found(table, "b", {"h2", "x"}) == "2");
  CHECK(found(table, "b", {"h2"}) == "3");
  // The default is for names without routes.
  CHECK(found(table, "b", {"http/1.1"}) == "no_protocol");
  CHECK(found(table, "b") == "no_protocol");
  CHECK(found(table, "c", {"h2"}) == "4");
  const auto wild = routes(route(R"("*.a")", R"(, "alpn": "h2")") + "," +
                           route(R"("default")", R"(, "alpn": "h2")"));
  CHECK(found(wild, "x.a", {"h2"}) == "0");
  CHECK(found(wild, "x.a") == "no_protocol");
  CHECK(found(wild, "", {"h2"}) == "1");
  CHECK(found(wild, "") == "no_protocol");
}

TEST_CASE("gateway route: what is no TLS") {
  const auto table = routes(route(R"("a")") + "," + route(R"("default")", R"(, "alpn": "h2")") +
                            "," + route(R"("default")", R"(, "non_tls": true)"));
  REQUIRE(table.find_non_tls());
  CHECK(table.find_non_tls()->route == 2);
  CHECK(table.find_non_tls()->port == 0);
  CHECK_FALSE(routes(route(R"("default")")).find_non_tls());
}

TEST_CASE("gateway route: the grammar of application names") {
  struct Case {
    std::string label;
    std::string id;
    std::uint16_t port;
    Mode mode;
  };
  const std::vector<Case> good = {
      {"app", "app", 80, Mode::terminate},
      {"app-8080", "app", 8080, Mode::terminate},
      {"app-8443s", "app", 8443, Mode::passthrough},
      {"app-s", "app", 443, Mode::passthrough},
      {"app-50051g", "app", 50051, Mode::terminate_h2},
      {"app-g", "app", 80, Mode::terminate_h2},
      {"myapps", "myapps", 80, Mode::terminate},  // an id, no suffix
      {"s", "s", 80, Mode::terminate},
      {"g-s", "g", 443, Mode::passthrough},
      {"0", "0", 80, Mode::terminate},
      {"1-1s", "1", 1, Mode::passthrough},
      {"app-65535s", "app", 65535, Mode::passthrough},
      {std::string(63, 'a'), std::string(63, 'a'), 80, Mode::terminate},
  };
  for (const Case& each : good) {
    CAPTURE(each.label);
    const auto name = parse_application_name(each.label);
    REQUIRE(name);
    CHECK(name->id == each.id);
    CHECK(name->port_or_default() == each.port);
    CHECK(name->mode == each.mode);
  }
  CHECK_FALSE(parse_application_name("app-s")->port);
  CHECK(parse_application_name("app-443s")->port == 443);
  for (const std::string bad : {"",
                                "-",
                                "-8080",
                                "-s",
                                "app-",
                                "app-gs",
                                "app-sg",
                                "app-8080gs",
                                "app-8080sg",
                                "app-ss",
                                "app--s",
                                "app-8080-s",
                                "app-8080s-",
                                "app-s8080",
                                "app-0",
                                "app-0s",
                                "app-08080s",
                                "app-65536s",
                                "app-99999999999999999999s",
                                "app-18446744073709551617s",
                                "app-+80s",
                                "app- 80s",
                                "app-x",
                                "app-80x",
                                "app-80S",
                                "App-s",
                                "a_b",
                                "a.b",
                                "\xc3\xa9"}) {
    CAPTURE(bad);
    CHECK_FALSE(parse_application_name(bad));
  }
  CHECK_FALSE(parse_application_name(std::string(64, 'a')));
}

TEST_CASE("gateway route: applications of a base domain") {
  const std::string base = R"("base_domains": [
      {"name": "one.example", "applications": [
        {"id": "any", "hosts": "10.0.0.1"},
        {"id": "few", "hosts": "10.0.0.2", "ports": [9443, 443, 8443]}]},
      {"name": "two.example", "applications": [{"id": "any", "hosts": "10.0.0.3"}]}])";
  const std::string start = R"({"listen": "tcp:0.0.0.0:443", "routes": [)" + route(R"("r")") +
                            R"(], "passthrough": ["p=tcp:u:1", "q=tcp:u:1", "p=tcp:u:2"], )";
  const RouteTable table(accepted(start + base + "}"));
  CHECK(found(table, "r") == "0");
  CHECK(found(table, "p") == "1");
  CHECK(found(table, "q") == "2");
  CHECK(found(table, "any-s.one.example") == "3:443");
  CHECK(found(table, "any-1s.one.example") == "3:1");
  CHECK(found(table, "few-s.one.example") == "4:443");
  CHECK(found(table, "few-9443s.one.example") == "4:9443");
  CHECK(found(table, "few-9444s.one.example") == "forbidden_port");
  CHECK(found(table, "few.one.example") == "forbidden_port");  // 80
  CHECK(found(table, "any-65535s.two.example") == "5:65535");
  CHECK(found(table, "few-s.two.example") == "unknown_name");
  // TLS would end here, which needs a certificate.
  CHECK(found(table, "any.one.example") == "unknown_name");
  CHECK(found(table, "any-8080.one.example") == "unknown_name");
  CHECK(found(table, "any-g.one.example") == "unknown_name");
  CHECK(found(table, "few-443g.one.example") == "unknown_name");
  // One label, in the grammar, in front of the whole base domain.
  CHECK(found(table, "x.any-s.one.example") == "unknown_name");
  CHECK(found(table, "any-gs.one.example") == "unknown_name");
  CHECK(found(table, "one.example") == "unknown_name");
  CHECK(found(table, "any-s.example") == "unknown_name");
  CHECK(found(table, "any-s") == "unknown_name");

  // What the applications do not answer goes to exact names before, and to the default behind them.
  const RouteTable open(accepted(R"({"listen": "tcp:0.0.0.0:443", "routes": [)" +
                                 route(R"("www.one.example")") + "," + route(R"("default")") +
                                 "], " + base + "}"));
  CHECK(found(open, "www.one.example") == "0");
  CHECK(found(open, "www-s.one.example") == "1");
  CHECK(found(open, "any-gs.one.example") == "1");
  CHECK(found(open, "any-s.one.example") == "2:443");
  CHECK(found(open, "any.one.example") == "unknown_name");
  CHECK(found(open, "few-9444s.one.example") == "forbidden_port");
}

TEST_CASE("gateway route: where TLS ends") {
  const std::string start = R"({"listen": "tcp:0.0.0.0:443", "cert": "c", )";
  const RouteTable table(
      accepted(start + "\"routes\": [" + route(R"("a", "*.w")", R"(, "mode": "terminate")") + "," +
               route(R"("a")", R"(, "alpn": "acme-tls/1")") + "," + route(R"("p")") +
               R"(], "passthrough": "q=tcp:u:1", "terminate": ["b=tcp:u:1", "*.q=tcp:u:1"],
           "upstream": "tcp:u:1"})"));
  CHECK(found(table, "a") == "0 t");
  CHECK(found(table, "a", {"h2"}) == "0 t");
  CHECK(found(table, "a", {"h2", "acme-tls/1"}) == "1");
  CHECK(found(table, "x.w") == "0 t");
  CHECK(found(table, "p") == "2");
  CHECK(found(table, "q") == "3");
  CHECK(found(table, "b") == "4 t");
  CHECK(found(table, "x.q") == "5 t");
  CHECK(found(table, "other") == "6 t");
  CHECK(found(table, "") == "6 t");
  CHECK_FALSE(table.find_non_tls());

  const std::string base = R"("base_domains": [{"name": "one.example", "applications": [
      {"id": "any", "hosts": "127.0.0.1"}, {"id": "few", "hosts": "10.0.0.2", "ports": [8080]}]}])";
  const RouteTable applications(accepted(start + R"("terminate": "b=tcp:u:1", )" + base + "}"));
  CHECK(found(applications, "b") == "0 t");
  CHECK(found(applications, "any.one.example") == "1:80 t");
  CHECK(found(applications, "any-8080.one.example") == "1:8080 t");
  CHECK(found(applications, "any-g.one.example") == "1:80 g");
  CHECK(found(applications, "any-50051g.one.example") == "1:50051 g");
  CHECK(found(applications, "any-8443s.one.example") == "1:8443");
  CHECK(found(applications, "any-443.one.example") == "forbidden_port");  // our own
  CHECK(found(applications, "any-443g.one.example") == "forbidden_port");
  CHECK(found(applications, "few-8080.one.example") == "2:8080 t");
  CHECK(found(applications, "few.one.example") == "forbidden_port");
  CHECK(found(applications, "none.one.example") == "unknown_name");
}

TEST_CASE("gateway route: a client cannot make the gateway dial itself") {
  const RouteTable table(accepted(R"({
      "listen": ["tcp:0.0.0.0:443", "tcp:[::1]:8443", "unix:/a", "tcp:10.0.0.9:9443"],
      "base_domains": [{"name": "b", "applications": [
        {"id": "four", "hosts": ["10.0.0.1", "127.0.0.1"]},
        {"id": "six", "hosts": "::1"},
        {"id": "name", "hosts": "localhost"},
        {"id": "own", "hosts": "10.0.0.9", "ports": [9443, 9444]},
        {"id": "far", "hosts": "10.0.0.1"}]}]})"));
  CHECK(found(table, "four-s.b") == "forbidden_port");
  CHECK(found(table, "four-8443s.b") == "0:8443");
  CHECK(found(table, "six-s.b") == "1:443");
  CHECK(found(table, "six-8443s.b") == "forbidden_port");
  CHECK(found(table, "name-s.b") == "forbidden_port");
  CHECK(found(table, "name-8443s.b") == "forbidden_port");
  CHECK(found(table, "name-9443s.b") == "2:9443");
  CHECK(found(table, "own-9443s.b") == "forbidden_port");
  CHECK(found(table, "own-9444s.b") == "3:9444");
  CHECK(found(table, "far-s.b") == "4:443");
}

}  // namespace causeway::gateway
