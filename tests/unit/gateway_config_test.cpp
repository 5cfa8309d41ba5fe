// SPDX-License-Identifier: Apache-2.0
// What a configuration may not be, and where it says so.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tests/unit/gateway_configs.hpp"

namespace causeway::gateway {
namespace {

using namespace test;

// What is refused, where, and why: `text` has an @ at the place that the message has to name
// (without one the message names no place).
struct Case {
  std::string text;
  std::string expected;  // the beginning of the message behind the place
};

void check_cases(const std::vector<Case>& cases) {
  for (const Case& each : cases) {
    CAPTURE(each.text);
    std::string text = each.text;
    const std::string expected = take_place(text) + each.expected;
    CAPTURE(expected);
    const std::string found = "\n" + refusal(text);
    CHECK_MESSAGE(found.find("\n" + expected) != std::string::npos, found);
  }
}

}  // namespace

TEST_CASE("gateway config: what a route may not be, with its place") {
  const auto one = [](const std::string& rest) { return routes({route(R"("a.example")", rest)}); };
  const std::string required = "required but not given";
  check_cases({
      {one(R"(, @"retries": 1)"), "routes[0].retries: unknown key"},
      {routes({R"(@{"names": ["a"]})"}), "routes[0].upstreams: a route needs an upstream"},
      {routes({R"({"names": ["a"], "upstreams": @[]})"}), "routes[0].upstreams: a route needs"},
      {routes({R"(@{"upstreams": [{"address": "tcp:u:1"}]})"}), "routes[0].names: " + required},
      {routes({R"(@{"names": [], "upstreams": [{"address": "tcp:u:1"}]})"}),
       "routes[0].names: " + required},
      {one(R"(, "mode": @"pass")"), "routes[0].mode: \"pass\" is not one of passthrough"},
      {one(R"(, "race": @0)"), "routes[0].race: \"0\" is out of range: 1 to 16"},
      {one(R"(, "race": @17)"), "routes[0].race: \"17\" is out of range"},
      {one(R"(, "choice": @"random")"), "routes[0].choice: \"random\" is not one of race"},
      {one(R"(, "alpn": ["h2", @""])"), "routes[0].alpn[1]: a protocol's name has 1 to 255 bytes"},
      {one(R"(, "alpn": @")" + std::string(256, 'x') + "\""), "routes[0].alpn: a protocol's name"},
      {one(R"(, "proxy_protocol": @"v3")"), "routes[0].proxy_protocol: \"v3\" is not one of"},
      {one(R"(, "health": {"interval": @"never"})"), "routes[0].health.interval: \"never\" is out"},
      {one(R"(, "health": {"fall": @0})"), "routes[0].health.fall: \"0\" is out of range"},
      {one(R"(, "health": {@"falls": 1})"), "routes[0].health.falls: unknown key"},
      {one(R"(, "non_tls": @true)"), "routes[0].non_tls: what is no TLS has no name"},
      {routes({route(R"("default", "b")", R"(, "non_tls": true)"),
               route(R"("default")", R"(, "alpn": "h2", "non_tls": @true)")}),
       "routes[1].non_tls: overlapping routes: routes[0] takes what is no TLS already"},
  });
  CHECK(refusal(one(R"(, "alpn": ")" + std::string(255, 'x') + "\"")).empty());
}

TEST_CASE("gateway config: overlapping routes") {
  const std::string overlap = "names: overlapping routes: routes[0] has ";
  // As route(), with the @.
  const auto at = [](const std::string& names, const std::string& rest = "") {
    std::string text = route(names, rest);
    return text.insert(text.find('['), "@");
  };
  check_cases({
      {routes({route(R"("a.example")"), at(R"("b.example", "A.Example.")")}),
       "routes[1]." + overlap + "\"a.example\" already"},
      {routes({at(R"("a.example", "a.example")")}),
       "routes[0].names: \"a.example\" is there twice"},
      {routes({route(R"("*.example")"), at(R"("*.example")")}),
       "routes[1]." + overlap + "\"*.example\" already"},
      {routes({route(R"("default")"), route(R"("a")"), at(R"("default")")}),
       "routes[2]." + overlap + "\"default\" already"},
      {routes({route(R"("a")", R"(, "alpn": ["h2", "x"])"), at(R"("a")", R"(, "alpn": "h2")")}),
       "routes[1]." + overlap + "\"a\" with ALPN \"h2\" already"},
      {routes({at(R"("a")", R"(, "alpn": ["h2", "h2"])")}),
       "routes[0].names: \"a\" with ALPN \"h2\" is there twice"},
      {file({R"("passthrough": @["a=tcp:u:1"])", R"("routes": [)" + route(R"("a")") + "]"}),
       "passthrough: overlapping routes: routes[0] has \"a\" already"},
  });
  // The same name without overlap, in either order.
  const std::string any = route(R"("a")");
  const std::string h2 = route(R"("a")", R"(, "alpn": ["h2"])");
  const std::string http = route(R"("a")", R"(, "alpn": ["http/1.1"])");
  CHECK(refusal(routes({any, h2, http})).empty());
  CHECK(refusal(routes({http, h2, any})).empty());
  CHECK(refusal(routes({route(R"("*.a")"), any, route(R"("b.a")"), route(R"("*.b.a")")})).empty());
  const auto labels = [](const std::string& text) {
    Texts out;
    for (const RouteConfig& each : accepted(text).effective_routes()) {
      out.push_back(each.label);
    }
    return out;
  };
  CHECK(labels(routes({any, h2, http})) == Texts{"a", "a alpn h2", "a alpn http/1.1"});
}

TEST_CASE("gateway config: names") {
  const std::string label(63, 'x');
  const std::string longest = label + "." + label + "." + label + "." + std::string(61, 'x');
  REQUIRE(longest.size() == 253);
  const auto names = [](const std::string& name) {
    return accepted(routes({route("\"" + name + "\"")})).routes.front().names;
  };
  CHECK(names("WWW.Example.COM.") == Texts{"www.example.com"});
  CHECK(names("*.Example.com") == Texts{"*.example.com"});
  CHECK(names("default") == Texts{"default"});
  CHECK(names("localhost") == Texts{"localhost"});
  CHECK(names("xn--bcher-kva.example") == Texts{"xn--bcher-kva.example"});
  CHECK(names("1.2.3.4.example") == Texts{"1.2.3.4.example"});
  CHECK(names(longest + ".") == Texts{longest});
  CHECK(names("*." + longest.substr(2)) == Texts{"*." + longest.substr(2)});
  std::vector<Case> cases;
  for (const std::string& bad : {std::string(),
                                 std::string("."),
                                 std::string("a..b"),
                                 std::string(".a"),
                                 std::string("a.."),
                                 std::string("a.-b"),
                                 std::string("a-.b"),
                                 std::string("a_b"),
                                 std::string("a b"),
                                 std::string("a/b"),
                                 std::string("*"),
                                 std::string("*."),
                                 std::string("*a.b"),
                                 std::string("a.*.b"),
                                 std::string("*.*.b"),
                                 std::string("**.b"),
                                 std::string("10.0.0.1"),
                                 std::string("::1"),
                                 std::string("b\\u00fccher.example"),
                                 std::string("a.b:443"),
                                 longest + "y",
                                 label + "y.example",
                                 "*." + longest.substr(1)}) {
    cases.push_back({routes({route("@\"" + bad + "\"")}), "routes[0].names[0]: "});
  }
  check_cases(cases);
}

TEST_CASE("gateway config: upstreams") {
  const auto upstreams = [](const std::string& list) {
    return routes({R"({"names": "a", "upstreams": )" + list + "}"});
  };
  const auto address = [&](const std::string& text) {
    return upstreams(R"([{"address": @")" + text + "\"}]");
  };
  const std::string first = "routes[0].upstreams[0].";
  check_cases({
      {upstreams(R"([@{"weight": 1}])"), first + "address: required but not given"},
      {address("fd:3"), first + "address: an upstream cannot be an inherited"},
      {address("vsock:any:5"), first + "address: an upstream needs a CID"},
      {address("vsock:3:0"), first + "address: a vsock port is 1 to"},
      {address("vsock:3:4294967295"), first + "address: a vsock port is 1 to"},
      {address("hvsock:/v:0"), first + "address: a vsock port is 1 to"},
      {address("tcp:u:0"), first + "address: a port is 1 to 65535"},
      {address("tcp:u:65536"), first + "address: "},
      {upstreams(R"([{"address": "tcp:u:1", "weight": @0}])"),
       first + "weight: \"0\" is out of range: 1 to 256"},
      {upstreams(R"([{"address": "tcp:u:1", "weight": @257}])"), first + "weight: \"257\" is out"},
      {upstreams(R"(@[{"address": "tcp:u:1"}, {"address": "tcp:u:1"}])"),
       "routes[0].upstreams: tcp:u:1 is there twice"},
  });
  for (const std::string own : {"tcp:0.0.0.0:443", "tcp:127.0.0.2:443", "tcp:localhost:443"}) {
    std::string text = upstreams(R"([{"address": ")" + own + "\"}]");
    text.insert(text.find('[', text.find("routes")), "@");
    check_cases({{text, "routes: the upstream " + own + " of \"a\" is this gateway's own"}});
  }
  std::string many;
  for (int i = 1; i <= 16; ++i) {
    many +=
        (i == 1 ? "" : ", ") + std::string(R"({"address": "tcp:u:)") + std::to_string(i) + "\"}";
  }
  CHECK(accepted(upstreams("[" + many + "]")).routes.front().upstreams.size() == 16);
  check_cases({{upstreams("@[" + many + R"(, {"address": "tcp:u:17"}])"),
                "routes[0].upstreams: 17 upstreams, the most is 16\n"}});
  CHECK(refusal(upstreams(R"([{"address": "tcp:[::1]:443"}, {"address": "tcp:127.0.0.1:444"},
                              {"address": "unix:/run/x"}, {"address": "vsock:3:443"},
                              {"address": "hvsock:/v:1"}, {"address": "tcp:app.internal:443"}])"))
            .empty());
}

TEST_CASE("gateway config: base domains and applications") {
  const std::string good = R"({"id": "app", "hosts": "h"})";
  const auto with = [](const std::string& rest) {
    return applications(R"({"id": "app", "hosts": "h", )" + rest + "}");
  };
  const std::string first = "base_domains[0].applications[0].";
  const auto bases = [&](const std::string& one, const std::string& other = "") {
    std::string list = R"({"name": )" + one + R"(, "applications": [)" + good + "]}";
    if (!other.empty()) list += ",\n{\"name\": " + other + R"(, "applications": [)" + good + "]}";
    return file({"\"base_domains\": [" + list + "]"});
  };
  const std::string label(63, 'x');
  const std::string long_base = label + "." + label + "." + label + "." + std::string(51, 'x');
  check_cases({
      {file({R"("base_domains": [{"name": "a.example", "applications": @[]}])"}),
       "base_domains[0].applications: a base domain needs an application"},
      {file({R"("base_domains": [@{"name": "a.example"}])"}),
       "base_domains[0].applications: a base domain needs an application"},
      {file({"\"base_domains\": [@{\"applications\": [" + good + "]}]"}),
       "base_domains[0].name: required but not given"},
      {applications(R"(@{"hosts": "h"})"), first + "id: required but not given"},
      {applications(R"(@{"id": "a"})"), first + "hosts: required but not given"},
      {applications(R"({"id": @"a-b", "hosts": "h"})"), first + "id: \"a-b\" is no application id"},
      {applications(R"({"id": @"A", "hosts": "h"})"), first + "id: "},
      {applications(R"({"id": @"a.b", "hosts": "h"})"), first + "id: "},
      {applications(R"({"id": @"a_b", "hosts": "h"})"), first + "id: "},
      {applications(R"({"id": @"", "hosts": "h"})"), first + "id: "},
      {applications(R"({"id": @")" + std::string(57, 'a') + R"(", "hosts": "h"})"), first + "id: "},
      {applications(good + R"(, {"id": @"app", "hosts": "i"})"),
       "base_domains[0].applications[1].id: \"app\" is there twice"},
      {applications(R"({"id": "app", "hosts": ["h", @"a b"]})"),
       first + "hosts[1]: \"a b\" is neither a host name nor an IP address"},
      {applications(R"({"id": "app", "hosts": @"h:80"})"), first + "hosts: "},
      {applications(R"({"id": "app", "hosts": @["h", "h"]})"),
       first + "hosts: a host is there twice"},
      {with(R"("ports": [443, @0])"), first + "ports[1]: \"0\" is out of range: 1 to 65535"},
      {with(R"("ports": @65536)"), first + "ports: "},
      {with(R"("race": @0)"), first + "race: "},
      {with(R"(@"weight": 1)"), first + "weight: unknown key"},
      {bases("@\"*.x\""), "base_domains[0].name: "},
      {bases("\"x\"", "@\"X.\""), "base_domains[1].name: \"x\" is base_domains[0] already"},
      {bases("@\"" + long_base + "\""), "base_domains[0].name: too long: with the id \"app\""},
  });
  CHECK(refusal(bases("\"" + long_base.substr(1) + "\"")).empty());  // 242 bytes, and app-65535s.
  CHECK(refusal(bases("\"x\"", "\"y.x\"")).empty());
  CHECK(
      refusal(applications(R"({"id": ")" + std::string(56, 'a') + R"(", "hosts": "h"})")).empty());
}

TEST_CASE("gateway config: routes against the applications of a base domain") {
  const std::string base =
      R"([{"name": "apps.example", "applications": [{"id": "app", "hosts": "h"}]}])";
  const auto behind = [&](const std::string& name) {
    return file(
        {"\"base_domains\": " + base,
         R"("routes": [{"names": @[")" + name + R"("], "upstreams": [{"address": "tcp:u:1"}]}])"});
  };
  const auto before = [&](const std::string& name) {
    std::string marked = base;
    return file({"\"routes\": [" + route("\"" + name + "\"") + "]",
                 "\"base_domains\": " + marked.insert(marked.find("\"apps"), "@")});
  };
  for (const std::string name :
       {"app.apps.example", "app-s.apps.example", "app-8443s.apps.example", "*.apps.example"}) {
    check_cases({
        {behind(name), "routes[0].names: overlapping routes: \"" + name + "\" "},
        {before(name), "base_domains[0].name: overlapping routes: "},
        {file({"\"passthrough\": @\"" + name + "=tcp:u:1\"", "\"base_domains\": " + base}),
         "passthrough: overlapping routes: \"" + name + "\" "},
    });
    std::string text = behind(name);
    take_place(text);
    CHECK(refusal(text).find("base_domains[0]") != std::string::npos);
    text = before(name);
    take_place(text);
    CHECK(refusal(text).find("routes[0]") != std::string::npos);
  }
  for (const std::string name : {"other.apps.example", "app-x.apps.example", "apps.example",
                                 "a.app.apps.example", "*.app.apps.example", "default"}) {
    CAPTURE(name);
    for (std::string text : {behind(name), before(name)}) {
      take_place(text);
      CHECK(refusal(text).empty());
    }
  }
}

TEST_CASE("gateway config: listeners") {
  const auto listeners = [](const std::string& list) {
    return "{\"listeners\": [" + list + "],\n\"passthrough\": \"a=tcp:u:1\"}";
  };
  const auto address = [&](const std::string& text) {
    return listeners(R"({"address": @")" + text + "\"}");
  };
  const std::string first = "listeners[0].";
  const std::string trusted = first + "trusted: a tcp listener with proxy_protocol needs trusted";
  check_cases({
      {address("tcp:localhost:443"),
       first + "address: \"localhost\": a listener has an IP address"},
      {address("tcp:0.0.0.0:0"), first + "address: a port is 1 to 65535"},
      {address("hvsock:/v:1"), first + "address: a listener is tcp:IP:PORT"},
      {address("vsock:any:0"), first + "address: a vsock port is"},
      {listeners(R"(@{"proxy_protocol": "v1"})"), first + "address: required but not given"},
      {listeners(R"(@{"address": "tcp:0.0.0.0:443", "proxy_protocol": "any"})"), trusted},
      {listeners(R"({"address": "tcp:0.0.0.0:443", "proxy_protocol": "v1", "trusted": @[]})"),
       trusted},
      {listeners(R"({"address": "tcp:0.0.0.0:443", "trusted": [@"10.0.0.0"]})"),
       first + "trusted[0]: "},
      {listeners(R"({"address": "unix:/a"}, {"address": @"unix:/a"})"),
       "listeners[1].address: unix:/a is there twice"},
      {R"({"passthrough": "a=tcp:u:1", "listeners": [{"address": "unix:/a"}], "listen": @"unix:/a"})",
       "listen: unix:/a is there twice"},
      {R"({"passthrough": "a=tcp:u:1", "listen": @["unix:/a", "unix:/a"]})",
       "listen: unix:/a is there twice"},
      {R"({"passthrough": "a=tcp:u:1", "listen": @"tcp:0.0.0.0:0"})", "listen: a port is"},
      {R"({"passthrough": "a=tcp:u:1", "listen": @[]})", "listen: nothing to listen on"},
      {R"({"passthrough": "a=tcp:u:1"})", "causeway-gateway: --listen: nothing to listen on"},
      {R"({"listen": "unix:/a"})", "causeway-gateway: --passthrough: no route: "},
      {R"({"listen": "unix:/a", "passthrough": @[]})", "passthrough: no route: "},
  });
  const auto config = accepted(listeners(
      R"({"address": "tcp:[::]:443", "proxy_protocol": "v2", "trusted": "10.0.0.0/8"},
         {"address": "unix:/a", "proxy_protocol": "off"}, {"address": "vsock:any:443"},
         {"address": "fd:3", "proxy_protocol": "any"})"));
  const auto all = config.all_listeners();
  REQUIRE(all.size() == 4);
  CHECK(all[0].proxy_protocol == net::ProxyVersions::v2);
  CHECK(to_string(all[0].trusted.at(0)) == "10.0.0.0/8");
  CHECK_FALSE(all[1].proxy_protocol);
  CHECK(all[3].proxy_protocol == net::ProxyVersions::any);
}

TEST_CASE("gateway config: the rest of the file") {
  const auto with = [](const std::string& rest) {
    return "{\"listen\": \"unix:/a\", \"passthrough\": \"a=tcp:u:1\",\n" + rest + "}";
  };
  check_cases({
      {with(R"("timeouts": {"idle": @"0s"})"),
       "timeouts.idle: \"0s\" is out of range: at least 1ms"},
      {with(R"("timeouts": {"idle": @"600"})"), "timeouts.idle: "},
      {with(R"("timeouts": {@"handshakes": "1s"})"),
       "timeouts.handshakes: unknown key; did you mean \"handshake\"?"},
      {with(R"("buffer_size": @"4095B")"), "buffer_size: \"4095B\" is out of range: 4KiB to 1MiB"},
      {with(R"("buffer_size": @"1025KiB")"), "buffer_size: "},
      {with(R"("threads": @1025)"), "threads: "},
      {with(R"("threads_model": @"per-core")"), "threads_model: "},
      {with(R"("rebalance": @"true")"), "rebalance: "},
      {with(R"(@"rebalance_flag": true)"), "rebalance_flag: unknown key"},
      {with(R"("splice": {"after": @"never"})"), "splice.after: "},
      {with(R"("splice": {"after_time": @"never"})"),
       "splice.after_time: \"never\" is written off"},
      {with(R"("dns": {"servers": ["10.0.0.53", @"dns.example"]})"),
       "dns.servers[1]: \"dns.example\": write IP, IP:PORT or [IPV6]:PORT"},
      {with(R"("dns": {"servers": @"10.0.0.53:0"})"), "dns.servers: "},
      {with(R"("dns": {"servers": @"10.0.0.53:65536"})"), "dns.servers: "},
      {with(R"("admin": @"tcp:127.0.0.1:80")"), "admin: the admin endpoint listens on unix:"},
      {with(R"(@"route": [])"), "route: unknown key; did you mean \"routes\"?"},
  });
  const auto passthrough = [](const std::string& list) {
    return R"({"listen": "unix:/a", "passthrough": )" + list + "}";
  };
  check_cases({
      {passthrough(R"(["a=tcp:u:1", @"b"])"), "passthrough[1]: \"b\": write NAME=ADDRESS"},
      {passthrough(R"([@"a_b=tcp:u:1"])"), "passthrough[0]: \"a_b\" is no host name"},
      {passthrough(R"([@"a=u:1"])"), "passthrough[0]: "},
      {passthrough(R"([@"a=fd:1"])"), "passthrough[0]: an upstream cannot be"},
      {passthrough(R"(@["a=unix:/a"])"),
       "passthrough: the upstream unix:/a of \"a\" is this gateway's own listener"},
      {passthrough(R"(@["a=unix:/b", "A=unix:/b"])"), "passthrough: \"a\": unix:/b is there twice"},
  });
}

}  // namespace causeway::gateway
