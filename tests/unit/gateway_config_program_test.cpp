// SPDX-License-Identifier: Apache-2.0
// The configuration as the program has it: files and flags that are right, what is printed, and the
// settings without effect.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/unit/gateway_configs.hpp"

namespace causeway::gateway {
namespace {

using namespace test;
using namespace std::chrono_literals;
using ms = std::chrono::milliseconds;

GatewayConfig from_flags(const Texts& args) {
  Program program;
  const auto outcome = program.table.evaluate(args);
  REQUIRE_MESSAGE(!outcome.exit_code, outcome.err);
  return program.config;
}

std::string flag_refusal(const Texts& args) {
  Program program;
  const auto outcome = program.table.evaluate(args);
  return outcome.exit_code == kExitUsage ? outcome.err : std::string();
}

// A file that is gone at the end.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text) {
    const int fd = mkstemp(path_.data());
    REQUIRE(fd >= 0);
    close(fd);
    std::ofstream(path_) << text;
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() { unlink(path_.c_str()); }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/causeway-gateway-XXXXXX";
};

}  // namespace

TEST_CASE("gateway config: everything in a file arrives") {
  const auto config = accepted(R"({
    "listen": ["tcp:0.0.0.0:443", "tcp:[::]:443"],
    "threads": 2, "threads_model": "shared", "rebalance": false, "buffer_size": "128KiB",
    "splice": {"after": "off", "after_time": "5s"}, "drain": "never", "max_connections": 100,
    "timeouts": {"proxy_header": "1s", "handshake": "2s", "connect": "3s", "idle": "4s",
                 "shutdown": "6s", "total": "never"},
    "dns": {"servers": ["10.0.0.53", "10.0.0.54:5353", "fd00::53", "[fd00::54]:5353"]},
    "admin": "unix:/run/g.sock", "log_level": "debug",
    "routes": [{
      "names": ["a.example", "*.b.example"], "alpn": ["h2", "http/1.1"], "mode": "passthrough",
      "upstreams": [{"address": "tcp:u:1", "weight": 256, "drain": true, "max_connections": 7},
                    {"address": "unix:/u"}],
      "choice": "race", "race": 16, "max_connections": 9, "proxy_protocol": "v1",
      "health": {"interval": "1s", "fall": 5}}],
    "base_domains": [{"name": "Apps.Example", "applications": [{
      "id": "app", "hosts": ["h1", "10.0.0.1", "fd00::1"], "ports": [8443, 443],
      "max_connections": 5, "choice": "least_connections", "proxy_protocol": "v2",
      "health": {"timeout": "100ms"}}]}]})");
  CHECK(config.listen.size() == 2);
  CHECK(config.threads == 2);
  CHECK(config.threads_model == ThreadsModel::shared);
  CHECK(config.rebalance == false);
  CHECK(config.buffer_size == Size{131072});
  CHECK_FALSE(config.splice_after);
  CHECK(config.splice_after_time == Duration{5s});
  CHECK(config.drain.never);
  CHECK(config.max_connections == 100);
  CHECK(config.timeouts == Timeouts{ms(1s), ms(2s), ms(3s), ms(4s), ms(6s), Duration::forever()});
  CHECK(config.dns_servers.size() == 4);
  CHECK(to_string(*config.admin) == "unix:/run/g.sock");
  CHECK(config.log_level == log::Level::debug);

  const auto all = config.effective_routes();
  REQUIRE(all.size() == 2);
  const RouteConfig& first = all[0];
  CHECK(first.label == "a.example alpn h2,http/1.1");
  CHECK(first.names == Texts{"a.example", "*.b.example"});
  CHECK(first.upstreams.at(0).weight == 256);
  CHECK(first.upstreams[0].drain);
  CHECK(first.upstreams[0].max_connections == 7);
  CHECK(to_string(first.upstreams.at(1).address) == "unix:/u");
  CHECK(first.choice == Choice::race);
  CHECK(first.race == 16);
  CHECK(first.max_connections == 9);
  CHECK(first.proxy_protocol == ProxyOut::v1);
  CHECK(first.health == HealthCheck{ms(1s), ms(2s), 5, 2});

  const RouteConfig& app = all[1];
  CHECK(app.label == "app.apps.example");
  CHECK(app.names.empty());
  REQUIRE(app.upstreams.size() == 3);
  CHECK(to_string(app.upstreams[0].address) == "tcp:h1:0");
  CHECK(to_string(app.upstreams[1].address) == "tcp:10.0.0.1:0");
  CHECK(to_string(app.upstreams[2].address) == "tcp:[fd00::1]:0");
  CHECK(app.max_connections == 5);
  CHECK(app.choice == Choice::least_connections);
  CHECK(app.race == 3);
  CHECK(app.proxy_protocol == ProxyOut::v2);
  CHECK(app.health == HealthCheck{ms(5s), ms(100ms), 3, 2});
  CHECK(app.health_port == 8443);
}

TEST_CASE("gateway config: a route without health has none") {
  CHECK_FALSE(accepted(routes({route(R"("a")")})).routes.front().health);
  CHECK_FALSE(accepted(applications(R"({"id": "a", "hosts": "h"})"))
                  .base_domains.front()
                  .applications.front()
                  .health);
}

TEST_CASE("gateway config: flags") {
  const auto config = from_flags({"--listen",
                                  "tcp:0.0.0.0:443",
                                  "--listen",
                                  "unix:/a",
                                  "--passthrough",
                                  "B.Example=tcp:u:1",
                                  "--passthrough",
                                  "a.example=unix:/u",
                                  "--passthrough",
                                  "b.example.=tcp:u:2",
                                  "--passthrough",
                                  "default=vsock:3:443",
                                  "--threads",
                                  "4",
                                  "--threads-model",
                                  "per_core",
                                  "--rebalance",
                                  "false",
                                  "--splice-after",
                                  "off",
                                  "--splice-after-time",
                                  "200ms",
                                  "--buffer-size",
                                  "16KiB",
                                  "--timeouts-proxy-header",
                                  "1s",
                                  "--timeouts-handshake",
                                  "2s",
                                  "--timeouts-connect",
                                  "3s",
                                  "--timeouts-idle",
                                  "4s",
                                  "--timeouts-shutdown",
                                  "5s",
                                  "--timeouts-total",
                                  "6s",
                                  "--drain",
                                  "0s",
                                  "--max-connections",
                                  "9",
                                  "--dns-servers",
                                  "10.0.0.53",
                                  "--dns-servers",
                                  "[::1]:53",
                                  "--admin",
                                  "unix:/g",
                                  "--log-level",
                                  "error"});
  CHECK(config.all_listeners().size() == 2);
  CHECK(config.rebalance == false);
  CHECK_FALSE(config.splice_after);
  CHECK(config.splice_after_time == Duration{200ms});
  CHECK(config.timeouts == Timeouts{ms(1s), ms(2s), ms(3s), ms(4s), ms(5s), ms(6s)});
  CHECK(config.drain == Duration{0s});
  CHECK(config.dns_servers == Texts{"10.0.0.53", "[::1]:53"});
  // One route for each name, in the order of the first mention.
  const auto all = config.effective_routes();
  REQUIRE(all.size() == 3);
  CHECK(all[0].label == "b.example");
  CHECK(all[0].names == Texts{"b.example"});
  REQUIRE(all[0].upstreams.size() == 2);
  CHECK(to_string(all[0].upstreams[1].address) == "tcp:u:2");
  CHECK(all[0].mode == RouteMode::passthrough);
  CHECK(all[1].label == "a.example");
  CHECK(all[2].names == Texts{"default"});

  const auto least = from_flags({"--listen=unix:/a", "--passthrough=a=unix:/b"});
  CHECK_FALSE(least.rebalance);
  CHECK(least.splice_after == Size{65536});
  CHECK_FALSE(least.splice_after_time);
  CHECK(least.timeouts == Timeouts{});
  CHECK(from_flags({"--listen=unix:/a", "--passthrough=a=unix:/b", "--rebalance=true"}).rebalance ==
        true);
  CHECK(from_flags({"--listen=unix:/a", "--passthrough=a=unix:/b", "--splice-after=0B"})
            .splice_after == Size{0});

  const std::string start = "causeway-gateway: ";
  CHECK(flag_refusal({}).starts_with(start + "--listen: nothing to listen on"));
  CHECK(flag_refusal({"--listen=unix:/a"}).starts_with(start + "--passthrough: no route"));
  CHECK(flag_refusal({"--passthrough=a"}).starts_with(start + "--passthrough: \"a\": write NAME"));
  CHECK(flag_refusal({"--rebalance", "maybe"}).starts_with(start + "--rebalance: \"maybe\""));
  CHECK(flag_refusal({"--timeouts-idle=0s"}).starts_with(start + "--timeouts-idle: \"0s\""));
  CHECK(flag_refusal({"--routes=x"}).starts_with(start + "unknown flag --routes"));
}

TEST_CASE("gateway config: flags win over the file, and are checked with it") {
  const TemporaryFile file(R"({"listen": "unix:/a", "passthrough": "a=unix:/b", "rebalance": true,
    "splice": {"after": "1MiB"}, "routes": [)" +
                           route(R"("c")") + "]}");
  Program program;
  const Texts args{"-c",  file.path(),     "--rebalance", "false", "--splice-after",
                   "off", "--passthrough", "b=unix:/c"};
  const auto outcome = program.table.evaluate(args);
  REQUIRE_MESSAGE(!outcome.exit_code, outcome.err);
  CHECK(program.config.rebalance == false);
  CHECK_FALSE(program.config.splice_after);
  CHECK(program.config.effective_routes().size() == 2);

  Program other;
  const Texts clash{"-c", file.path(), "--passthrough", "c=unix:/c"};
  CHECK(other.table.evaluate(clash).err.starts_with(
      "causeway-gateway: --passthrough: overlapping routes: routes[0] has \"c\" already"));
}

TEST_CASE("gateway config: --check-config") {
  const TemporaryFile good(routes({route(R"("a")")}));
  const TemporaryFile bad(
      routes({route(R"("a")", R"(, "race": 99)"), route(R"("b")", R"(, "x": 1)")}));
  const auto check = [](const TemporaryFile& file) {
    Program program;
    const Texts args{"--config", file.path(), "--check-config"};
    return program.table.evaluate(args);
  };
  CHECK(check(good).exit_code == 0);
  CHECK(check(good).out == "configuration ok\n");
  const auto outcome = check(bad);
  CHECK(outcome.exit_code == kExitConfig);
  CHECK(outcome.err.starts_with(bad.path() + ":2:"));
  CHECK(outcome.err.find(": routes[0].race: \"99\" is out of range") != std::string::npos);
  CHECK(outcome.err.find("\n" + bad.path() + ":3:") != std::string::npos);
  CHECK(outcome.err.find(": routes[1].x: unknown key") != std::string::npos);
}

TEST_CASE("gateway config: --print-default-config parses back") {
  Program program;
  const TemporaryFile file(program.table.default_config());
  Program again;
  const Texts args{"-c", file.path(), "--listen", "unix:/a", "--passthrough", "a=unix:/b"};
  const auto outcome = again.table.evaluate(args);
  REQUIRE_MESSAGE(!outcome.exit_code, outcome.err);
  const GatewayConfig fresh;
  CHECK(again.config.splice_after == fresh.splice_after);
  CHECK(again.config.splice_after_time == fresh.splice_after_time);
  CHECK(again.config.rebalance == fresh.rebalance);
  CHECK(again.config.timeouts == fresh.timeouts);
  CHECK(again.config.buffer_size == fresh.buffer_size);
  CHECK(again.config.drain == fresh.drain);
  CHECK(again.config.tls == fresh.tls);
  CHECK(again.config.all_certificates().empty());
}

TEST_CASE("gateway config: --print-schema is JSON with every key") {
  Program program;
  const auto schema = nlohmann::json::parse(program.table.schema());
  for (const std::string key :
       {"listen", "listeners", "passthrough",   "terminate",       "upstream",
        "cert",   "key",       "certificates",  "routes",          "base_domains",
        "tls",    "threads",   "threads_model", "rebalance",       "buffer_size",
        "splice", "timeouts",  "drain",         "max_connections", "dns",
        "admin",  "log_level"}) {
    CAPTURE(key);
    CHECK(schema["properties"].contains(key));
  }
  CHECK(schema["properties"].size() == 23);  // with $schema
  const auto& item = schema["properties"]["routes"]["items"]["properties"];
  CHECK(item["upstreams"]["items"]["properties"]["weight"]["maximum"] == 256);
  CHECK(item["health"]["properties"].contains("rise"));
  CHECK(item["client_certificates"]["enum"].size() == 3);
  CHECK(item["upstream_tls"]["type"] == "boolean");
  CHECK(schema["properties"]["tls"]["properties"].size() == 5);
  CHECK(schema["properties"]["certificates"]["items"]["required"][0] == "cert");
  CHECK(schema["properties"]["rebalance"]["anyOf"][0]["type"] == "boolean");
}

TEST_CASE("gateway config: what a reload may change") {
  Program program;
  for (const OptionInfo& info : program.table.options()) {
    CAPTURE(info.path);
    const std::string top = info.path.substr(0, info.path.find_first_of(".["));
    const bool restart = top == "listen" || top == "listeners" || top == "threads" ||
                         top == "threads_model" || top == "rebalance" || top == "rebalance_flag" ||
                         top == "admin" || top == "log_level";
    CHECK(info.reloadable == !restart);
  }
}

TEST_CASE("gateway config: inert settings") {
  // `text` may have an @ at the place of the first line, which begins with `expected` behind it.
  const auto inert = [](std::string text, unsigned workers = 2) {
    take_place(text);
    std::string all;
    for (const std::string& line : inert_settings_of(accepted(text), workers, text, "f.json")) {
      all += line + "\n";
    }
    return all;
  };
  const auto check = [&](std::string text, const std::string& expected, unsigned workers = 2) {
    CAPTURE(text);
    const std::string found = inert(text, workers);
    const std::string place = take_place(text);
    CHECK_MESSAGE(found.starts_with(place + expected), found);
  };
  const auto with = [](const std::string& rest) {
    return "{\"listen\": \"unix:/a\", \"passthrough\": \"a=unix:/b\",\n" + rest + "}";
  };
  CHECK(inert(with(R"("rebalance": true)"), 2).empty());
  CHECK(inert(with(R"("rebalance": false)"), 1).empty());
  check(with(R"("rebalance": @true)"), "rebalance: one worker has nobody to hand connections to\n",
        1);
  CHECK(inert(with(R"("threads_model": "shared")")).empty());
  check(with(R"("threads_model": @"per_core")"), "threads_model: only a tcp listener");
  CHECK(inert(R"({"listen": "tcp:0.0.0.0:1", "passthrough": "a=unix:/b",
                  "threads_model": "per_core"})")
            .empty());
  CHECK(inert(with(R"("splice": {"after": "off", "after_time": "1s"})")).empty());
  check(with(R"("splice": {"after": "0B", "after_time": @"1s"})"),
        "splice.after_time: with splice");
  CHECK(inert(with(R"("timeouts": {"total": "1s"})")).empty());  // the others are defaults
  CHECK(inert(with(R"("timeouts": {"total": "never", "idle": "never"})")).empty());
  check(with(R"("timeouts": {"total": "1m", "idle": @"1m", "connect": "1s"})"),
        "timeouts.idle: timeouts.total, 1m, comes first\n");
  check(with(R"("timeouts": {"proxy_header": @"1s"})"),
        "timeouts.proxy_header: no listener has proxy_protocol\n");
  check(with(R"("dns": {"servers": @"10.0.0.53"})"), "dns.servers: no upstream is a name\n");
  CHECK(inert(R"({"listen": "unix:/a", "passthrough": "a=tcp:u:1", "dns": {"servers": "::1"}})")
            .empty());
  check(with(R"("listeners": [{"address": "tcp:0.0.0.0:1", "trusted": @"10.0.0.0/8"}])"),
        "listeners[0].trusted: proxy_protocol is off");
  check(with(R"("listeners": [{"address": "unix:/c", "proxy_protocol": "v1",
                               "trusted": @"10.0.0.0/8"}])"),
        "listeners[0].trusted: clients of unix:/c have no IP address");

  CHECK(inert(routes({route(R"("a")")})).empty());
  check(routes({route(R"("a")"), route(R"("b")", R"(, "race": @3)")}),
        "routes[1].race: choice is not race\n");
  check(routes({route(R"("a")", R"(, "choice": @"race", "race": 3)")}),
        "routes[0].choice: there is one upstream to choose\n");
  check(routes({R"({"names": "a", "upstreams": [{"address": "tcp:u:1", "weight": @2}]})"}),
        "routes[0].upstreams[0].weight: there is no other upstream\n");
  check(
      routes({R"({"names": "a", "max_connections": 5, "upstreams": [
            {"address": "tcp:u:2"}, {"address": "tcp:u:1", "weight": 2, "max_connections": @6}]})"}),
      "routes[0].upstreams[1].max_connections: the route's max_connections, 5, is reached first\n");
  check(file({R"("max_connections": 4)",
              "\"routes\": [" + route(R"("a")", R"(, "max_connections": @5)") + "]"}),
        "routes[0].max_connections: the gateway's max_connections, 4, is reached first\n");
  CHECK(inert(file({R"("max_connections": 4)",
                    "\"routes\": [" + route(R"("a")", R"(, "max_connections": 3)") + "]"}))
            .empty());
  check(routes({route(R"("a")", R"(, "health": @{})")}), "routes[0].health: empty");
  check(applications(R"({"id": "a", "hosts": "h", "ports": 1, "health": @{}})"),
        "base_domains[0].applications[0].health: empty");
  check(applications(R"({"id": "a", "hosts": "h", "health": @{"rise": 1}})"),
        "base_domains[0].applications[0].health: without ports");
  check(applications(R"({"id": "a", "hosts": ["h", "i"], "race": @2})"),
        "base_domains[0].applications[0].race: choice is not race\n");

  Texts many;
  for (int i = 0; i < 102; ++i) {
    many.push_back(route("\"n" + std::to_string(i) + "\"", R"(, "race": 3)"));
  }
  const auto bounded = inert_settings_of(accepted(routes(many)), 2, routes(many), "f.json");
  REQUIRE(bounded.size() == 101);
  CHECK(bounded.back() == "2 more settings have no effect");

  // Without a file there is no place; one that cannot be read is none.
  const auto config = from_flags({"--listen=unix:/a", "--passthrough=a=unix:/b", "--rebalance=true",
                                  "--threads-model=per_core"});
  CHECK(inert_settings(config, 1).size() == 2);
  CHECK(inert_settings(config, 1).front().starts_with("rebalance: one worker"));
  CHECK(inert_settings(config, 1, "/nowhere").size() == 2);
  const std::string text = routes({route(R"("b")", R"(, "race": 3)")});
  const TemporaryFile file(text);
  const auto lines = inert_settings(accepted(text), 1, file.path());
  REQUIRE(lines.size() == 1);
  CHECK(lines.front().starts_with(file.path() + ":2:"));
}

}  // namespace causeway::gateway
