// SPDX-License-Identifier: Apache-2.0
// The resolver against a DNS server on the loopback interface.
#include "guest/gateway/upstream/resolver.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "gateway_dns_server.hpp"

namespace causeway::gateway {
namespace {

using namespace std::chrono_literals;
using test::DnsServer;
using test::run_until;
using Way = test::DnsRecords::Way;
using Strings = std::vector<std::string>;

constexpr const char* kName = "app.test";

// Quick enough for a test; a query that is to be answered has all the time it needs.
ResolverOptions quick() {
  ResolverOptions options;
  options.min_ttl = 50ms;
  options.max_ttl = 100ms;
  options.first_retry = 40ms;
  options.max_retry = 160ms;
  return options;
}

ResolverOptions impatient() {
  ResolverOptions options = quick();
  options.timeout = 250ms;  // c-ares' least
  return options;
}

Strings texts(const std::vector<IpAddress>& addresses) {
  Strings result;
  for (const IpAddress& ip : addresses)
    result.push_back(to_string(ip));
  return result;
}

struct Fixture {
  explicit Fixture(ResolverOptions options = quick()) : resolver(context, std::move(options)) {
    REQUIRE(resolver.set_servers({server.address()}));
    resolver.on_change([this](const std::string& name, const std::vector<IpAddress>& addresses) {
      changes.push_back(name + ": " + std::to_string(addresses.size()));
    });
  }
  [[nodiscard]] Strings known(const char* name = kName) const {
    return texts(resolver.addresses(name));
  }
  bool until(const Strings& wanted) {
    return run_until(context, [&] { return known() == wanted; });
  }
  // Until `count` more rounds of all names have begun.
  bool rounds(std::uint64_t count) {
    const std::uint64_t end = resolver.counters().rounds.get() + count;
    return run_until(context, [&] { return resolver.counters().rounds.get() >= end; });
  }
  bool failures(std::uint64_t count) {
    const std::uint64_t end = resolver.counters().failed_rounds.get() + count;
    return run_until(context, [&] { return resolver.counters().failed_rounds.get() >= end; });
  }
  asio::io_context context{1};
  DnsServer server;
  Strings changes;
  Resolver resolver;
};

TEST_CASE("both families, sorted, each address once") {
  Fixture fixture;
  fixture.server.set4(kName, {{"192.0.2.9", "192.0.2.1", "192.0.2.9", "10.0.0.7"}});
  fixture.server.set6(kName, {{"2001:db8::2", "2001:db8::1"}});
  CHECK(fixture.known().empty());
  fixture.resolver.watch({kName});
  CHECK(fixture.until({"10.0.0.7", "192.0.2.1", "192.0.2.9", "2001:db8::1", "2001:db8::2"}));
  CHECK(run_until(fixture.context, [&] { return !fixture.changes.empty(); }));
  CHECK(run_until(fixture.context, [&] { return fixture.changes.back() == "app.test: 5"; }));
  // The same answer, in another order, is no change.
  const std::size_t calls = fixture.changes.size();
  fixture.server.set4(kName, {{"192.0.2.1", "10.0.0.7", "192.0.2.9"}});
  CHECK(fixture.rounds(5));
  CHECK(fixture.changes.size() == calls);
  CHECK(fixture.resolver.counters().failed_rounds.get() == 0);
}

TEST_CASE("asked again when the time to live is over, within bounds") {
  Fixture fixture;
  // An hour is cut to max_ttl, nothing raised to min_ttl.
  for (const std::uint32_t ttl : {3600U, 0U}) {
    CAPTURE(ttl);
    fixture.server.set4(kName, {.addresses = {"192.0.2.1"}, .ttl = ttl});
    fixture.server.set6(kName, {.addresses = {}});
    fixture.resolver.watch({kName});
    CHECK(fixture.until({"192.0.2.1"}));
    const std::size_t from = fixture.server.asked(kName).size();
    CHECK(
        run_until(fixture.context, [&] { return fixture.server.asked(kName).size() > from + 3; }));
    const auto asked = fixture.server.asked(kName);
    for (std::size_t i = from + 1; i < asked.size(); ++i) {
      CHECK(asked[i] - asked[i - 1] >= (ttl == 0 ? 45ms : 90ms));
    }
    fixture.server.set4(kName, {.addresses = {"192.0.2.2"}, .ttl = ttl});
    CHECK(fixture.until({"192.0.2.2"}));
    fixture.resolver.watch({});
    CHECK(fixture.known().empty());
  }
}

TEST_CASE("the time to live of an alias and of either family counts") {
  ResolverOptions options = quick();
  options.max_ttl = 10min;
  Fixture fixture(options);
  SUBCASE("alias") {
    fixture.server.set4(kName, {.addresses = {"192.0.2.1"}, .ttl = 3600, .alias_ttl = 1});
    fixture.server.set6(kName, {.addresses = {}});
  }
  SUBCASE("IPv6") {
    fixture.server.set4(kName, {.addresses = {"192.0.2.1"}, .ttl = 3600});
    fixture.server.set6(kName, {.addresses = {"2001:db8::1"}, .ttl = 1});
  }
  fixture.resolver.watch({kName});
  CHECK(run_until(fixture.context, [&] { return fixture.known().size() > 0; }));
  CHECK(run_until(fixture.context, [&] { return fixture.server.asked(kName).size() == 2; }));
  const auto asked = fixture.server.asked(kName);
  CHECK(asked[1] - asked[0] >= 950ms);
}

TEST_CASE("a failure or a negative answer loses nothing, and backs off") {
  for (const Way way :
       {Way::no_name, Way::fault, Way::garbage, Way::silent, Way::cut, Way::answer}) {
    CAPTURE(static_cast<int>(way));
    Fixture fixture(impatient());
    fixture.server.set4(kName, {{"192.0.2.1"}});
    fixture.server.set6(kName, {{"2001:db8::1"}});
    fixture.resolver.watch({kName});
    CHECK(fixture.until({"192.0.2.1", "2001:db8::1"}));
    fixture.server.set(kName, way);
    CHECK(fixture.failures(way == Way::silent || way == Way::garbage ? 1 : 4));
    CHECK(fixture.known() == Strings{"192.0.2.1", "2001:db8::1"});
    fixture.server.set4(kName, {{"192.0.2.2"}});
    fixture.server.set6(kName, {{"2001:db8::2"}});
    CHECK(fixture.until({"192.0.2.2", "2001:db8::2"}));
  }
}

TEST_CASE("the pause between attempts doubles up to its bound, and starts anew") {
  Fixture fixture;
  fixture.server.set(kName, Way::no_name);
  fixture.resolver.watch({kName});
  CHECK(run_until(fixture.context, [&] { return fixture.server.asked(kName).size() >= 6; }));
  auto asked = fixture.server.asked(kName);
  // Up to a fifth less by jitter.
  CHECK(asked[1] - asked[0] >= 32ms);
  CHECK(asked[2] - asked[1] >= 64ms);
  CHECK(asked[3] - asked[2] >= 128ms);
  CHECK(asked[4] - asked[3] >= 128ms);
  CHECK(fixture.known().empty());
  CHECK(fixture.changes.empty());
  fixture.server.set4(kName, {{"192.0.2.1"}});
  CHECK(fixture.until({"192.0.2.1"}));
}

TEST_CASE("one family does not wait for the other, nor takes what the other had") {
  SUBCASE("the first answer is known at once") {
    ResolverOptions options = quick();
    options.timeout = 60s;
    Fixture fixture(options);
    fixture.server.set4(kName, {{"192.0.2.1"}});
    fixture.server.set6(kName, {.addresses = {}, .way = Way::silent});
    fixture.resolver.watch({kName});
    CHECK(fixture.until({"192.0.2.1"}));
    CHECK(fixture.resolver.ready());
    CHECK(fixture.resolver.counters().rounds.get() == 1);
  }
  SUBCASE("a family that fails keeps its addresses, one that is empty does not") {
    Fixture fixture(impatient());
    fixture.server.set4(kName, {{"192.0.2.1"}});
    fixture.server.set6(kName, {{"2001:db8::1"}});
    fixture.resolver.watch({kName});
    CHECK(fixture.until({"192.0.2.1", "2001:db8::1"}));
    fixture.server.set4(kName, {{"192.0.2.2"}});
    fixture.server.set6(kName, {.addresses = {}, .way = Way::fault});
    CHECK(fixture.until({"192.0.2.2", "2001:db8::1"}));
    fixture.server.set6(kName, {.addresses = {}});
    CHECK(fixture.until({"192.0.2.2"}));
    fixture.server.set4(kName, {.addresses = {}, .way = Way::no_name});
    fixture.server.set6(kName, {{"2001:db8::3"}});
    CHECK(fixture.until({"2001:db8::3"}));
    CHECK(fixture.resolver.counters().failed_rounds.get() == 0);
  }
}

TEST_CASE("at most sixteen addresses, and no family crowds out the other") {
  Strings v4;
  Strings v6;
  for (int i = 1; i <= 40; ++i) {
    v4.push_back("192.0.2." + std::to_string(i));
    v6.push_back("2001:db8::" + std::to_string(1000 + i));
  }
  const auto check = [](std::size_t given4, std::size_t given6, std::size_t left4,
                        std::size_t left6, const Strings& all4, const Strings& all6) {
    Fixture fixture;
    fixture.server.set4(kName, {Strings(all4.begin(), all4.begin() + static_cast<int>(given4))});
    fixture.server.set6(kName, {Strings(all6.begin(), all6.begin() + static_cast<int>(given6))});
    fixture.resolver.watch({kName});
    Strings wanted(all4.begin(), all4.begin() + static_cast<int>(left4));
    wanted.insert(wanted.end(), all6.begin(), all6.begin() + static_cast<int>(left6));
    CHECK(fixture.until(wanted));
  };
  check(40, 40, 8, 8, v4, v6);
  check(40, 3, 13, 3, v4, v6);
  check(2, 40, 2, 14, v4, v6);
  check(40, 0, 16, 0, v4, v6);
}

TEST_CASE("a truncated answer is asked for over TCP") {
  Fixture fixture;
  fixture.server.set4(kName, {.addresses = {"192.0.2.1"}, .way = Way::truncated});
  fixture.resolver.watch({kName});
  CHECK(fixture.until({"192.0.2.1"}));
  CHECK(fixture.server.over_tcp() >= 1);
}

TEST_CASE("what an answer from DNS may lead to") {
  for (const char* text :
       {"127.0.0.1", "127.255.1.2", "0.0.0.0", "0.1.2.3", "169.254.169.254", "224.0.0.1",
        "239.255.255.250", "255.255.255.255", "::", "::1", "::127.0.0.1", "fe80::1", "febf::1",
        "ff02::1", "::ffff:127.0.0.1", "::ffff:169.254.1.1", "::ffff:0.0.0.0"}) {
    CAPTURE(text);
    CHECK_FALSE(may_come_from_dns(*parse_ip(text)));
  }
  for (const char* text : {"128.0.0.1", "126.255.255.255", "10.0.0.1", "192.168.1.1", "1.0.0.1",
                           "169.253.0.1", "223.255.255.255", "240.0.0.1", "fd00::1", "fec0::1",
                           "2001:db8::1", "64:ff9b::a00:1", "::ffff:10.0.0.1"}) {
    CAPTURE(text);
    CHECK(may_come_from_dns(*parse_ip(text)));
  }
}

TEST_CASE("an answer that leads to this machine is dropped and counted") {
  Fixture fixture;
  fixture.server.set4(kName, {{"127.0.0.1", "192.0.2.1", "169.254.169.254"}});
  fixture.server.set6(kName, {{"::1", "::ffff:127.0.0.1", "::ffff:192.0.2.9"}});
  fixture.resolver.watch({kName});
  CHECK(fixture.until({"192.0.2.1", "192.0.2.9"}));
  CHECK(fixture.resolver.counters().refused_addresses.get() >= 4);
  // Nothing else in the answer: as a failure.
  fixture.server.set4(kName, {{"127.0.0.1"}});
  fixture.server.set6(kName, {{"::1"}});
  CHECK(fixture.failures(2));
  CHECK(fixture.known() == Strings{"192.0.2.1", "192.0.2.9"});
}

TEST_CASE("localhost never leaves the machine") {
  Fixture fixture;
  for (const char* name : {"localhost", "LocalHost.", "app.localhost"}) {
    fixture.server.set4(name, {{"192.0.2.1"}});
    fixture.resolver.watch({name});
    const auto known = fixture.known(name);  // known at once
    CHECK(std::find(known.begin(), known.end(), "127.0.0.1") != known.end());
    CHECK(fixture.resolver.ready());
    CHECK(run_until(fixture.context, [&] { return !fixture.changes.empty(); }));
    CHECK(fixture.changes.back().starts_with(name));
    CHECK(fixture.server.asked(name).empty());
    fixture.changes.clear();
  }
}

TEST_CASE("/etc/hosts may lead to loopback") {
  std::ifstream hosts("/etc/hosts");
  std::string found;
  for (std::string line; found.empty() && std::getline(hosts, line);) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string address;
    words >> address;
    for (std::string name; words >> name;) {
      if (address.starts_with("127.") && name.find("localhost") == std::string::npos) found = name;
    }
  }
  if (found.empty()) {
    MESSAGE("SKIP: no name but localhost for 127.0.0.0/8 in /etc/hosts");
    return;
  }
  Fixture fixture;
  fixture.resolver.watch({found});
  const auto known = fixture.known(found.c_str());
  REQUIRE(!known.empty());
  CHECK(known[0].starts_with("127."));
  CHECK(fixture.server.asked(found).empty());
  CHECK(fixture.resolver.counters().refused_addresses.get() == 0);
}

TEST_CASE("names come and go") {
  Fixture fixture;
  fixture.server.set4("a.test", {.addresses = {"192.0.2.1"}, .ttl = 0});
  fixture.server.set4("b.test", {.addresses = {"192.0.2.2"}, .ttl = 0});
  fixture.resolver.watch({"a.test", "b.test", "a.test"});
  CHECK(run_until(fixture.context, [&] {
    return fixture.known("a.test").size() == 1 && fixture.known("b.test").size() == 1;
  }));
  fixture.resolver.watch({"b.test"});
  CHECK(fixture.known("a.test").empty());
  const std::size_t asked = fixture.server.asked("a.test").size();
  const std::size_t other = fixture.server.asked("b.test").size();
  CHECK(run_until(fixture.context,
                  [&] { return fixture.server.asked("b.test").size() >= other + 5; }));
  CHECK(fixture.server.asked("a.test").size() <= asked + 1);  // one may have been under way
  // Watching what is watched starts nothing.
  const auto rounds = fixture.resolver.counters().rounds.get();
  fixture.resolver.watch({"b.test"});
  CHECK(fixture.resolver.counters().rounds.get() == rounds);
  CHECK(fixture.known("b.test") == Strings{"192.0.2.2"});
}

TEST_CASE("other servers") {
  ResolverOptions options = impatient();
  options.max_ttl = 10min;
  Fixture fixture(options);
  fixture.server.set4(kName, {{"192.0.2.1"}});
  fixture.server.set6(kName, {{"2001:db8::1"}});
  fixture.resolver.watch({kName});
  CHECK(fixture.until({"192.0.2.1", "2001:db8::1"}));
  DnsServer other;
  other.set4(kName, {{"192.0.2.7"}});
  other.set6(kName, {{"2001:db8::7"}});
  const auto wrong = fixture.resolver.set_servers({other.address(), "dns.test"});
  CHECK_FALSE(wrong);
  CHECK(wrong.error().message.find("\"dns.test\"") != std::string::npos);
  std::string dead;
  {
    const DnsServer gone;
    dead = gone.address();
  }
  // The first does not answer: the second does.
  CHECK(fixture.resolver.set_servers({dead, other.address()}));
  CHECK(fixture.until({"192.0.2.7", "2001:db8::7"}));
  const auto rounds = fixture.resolver.counters().rounds.get();
  CHECK(fixture.resolver.set_servers({dead, other.address()}));
  CHECK(fixture.resolver.counters().rounds.get() == rounds);
}

TEST_CASE("the system's servers, and others when its file changes") {
  std::string directory = "/tmp/causeway-resolv-XXXXXX";
  REQUIRE(::mkdtemp(directory.data()) != nullptr);
  ResolverOptions options = quick();
  options.timeout = 600s;
  options.resolv_conf = directory + "/resolv.conf";
  asio::io_context context{1};
  DnsServer server;
  options.port = server.port();
  server.set4("app.one.test", {{"192.0.2.1"}});
  server.set4("app.two.test", {{"192.0.2.2"}});
  const auto write = [&](const std::string& text) {
    std::ofstream(options.resolv_conf + ".new") << text;
    std::filesystem::rename(options.resolv_conf + ".new", options.resolv_conf);
  };
  write("nameserver 127.0.0.1\nsearch one.test\n");
  Resolver resolver(context, options);
  resolver.watch({"app"});
  const auto is = [&](const Strings& wanted) {
    return run_until(context, [&] { return texts(resolver.addresses("app")) == wanted; });
  };
  CHECK(is({"192.0.2.1"}));
  write("nameserver 127.0.0.1\nsearch two.test\n");
  CHECK(is({"192.0.2.2"}));
  // A question that is under way then is asked again as well.
  server.set("slow.two.test", Way::silent);
  server.set4("slow.three.test", {{"192.0.2.3"}});
  server.set4("app.three.test", {{"192.0.2.4"}});
  resolver.watch({"app", "slow"});
  CHECK(run_until(context, [&] { return !server.asked("slow.two.test").empty(); }));
  write("nameserver 127.0.0.1\nsearch three.test\n");
  CHECK(is({"192.0.2.4"}));
  CHECK(run_until(context,
                  [&] { return texts(resolver.addresses("slow")) == Strings{"192.0.2.3"}; }));
  std::filesystem::remove_all(directory);
}

TEST_CASE("when_ready") {
  ResolverOptions options = quick();
  options.timeout = 60s;
  Fixture fixture(options);
  unsigned called = 0;
  Strings seen;
  const auto note = [&] {
    ++called;
    seen = fixture.known();
  };
  fixture.resolver.when_ready(60s, note);  // no name: at once, but not from within the call
  CHECK(called == 0);
  CHECK(run_until(fixture.context, [&] { return called == 1; }));

  fixture.server.set(kName, Way::silent);
  fixture.resolver.watch({kName});
  CHECK_FALSE(fixture.resolver.ready());
  fixture.resolver.when_ready(30ms, note);
  CHECK(run_until(fixture.context, [&] { return called == 2; }));
  CHECK_FALSE(fixture.resolver.ready());
  fixture.resolver.when_ready(600s, note);
  fixture.resolver.when_ready(600s, note);
  fixture.resolver.watch({});  // nobody is waited for any more
  CHECK(run_until(fixture.context, [&] { return called == 4; }));

  fixture.server.set4("b.test", {{"192.0.2.1"}});
  fixture.server.set(kName, Way::answer);
  fixture.server.set4(kName, {{"192.0.2.1"}});
  fixture.resolver.watch({kName, "b.test", "none.test"});
  fixture.resolver.when_ready(600s, note);
  CHECK(run_until(fixture.context, [&] { return called == 5; }));
  CHECK(seen == Strings{"192.0.2.1"});
  CHECK(fixture.resolver.ready());
  CHECK(fixture.changes.size() == 2);  // told before
}

TEST_CASE("the resolver may go at any time") {
  asio::io_context context{1};
  DnsServer server;
  server.set(kName, Way::silent);
  server.set4("b.test", {{"192.0.2.1"}});
  {
    Resolver resolver(context, quick());
    REQUIRE(resolver.set_servers({server.address()}));
    resolver.watch({kName, "b.test"});
    resolver.when_ready(600s, [] { FAIL("the resolver is gone"); });
    CHECK(run_until(context, [&] { return !server.asked(kName).empty(); }));
  }
  // From its own handler.
  std::optional<Resolver> resolver(std::in_place, context, quick());
  REQUIRE(resolver->set_servers({server.address()}));
  resolver->on_change([&](const std::string&, const std::vector<IpAddress>&) { resolver.reset(); });
  resolver->watch({kName, "b.test"});
  CHECK(run_until(context, [&] { return !resolver; }));
  context.restart();
  context.run();  // until nothing is left
}

TEST_CASE("DNS servers as they are written") {
  const std::pair<const char*, const char*> good[] = {{"10.0.0.53", "10.0.0.53:53"},
                                                      {"10.0.0.53:5353", "10.0.0.53:5353"},
                                                      {"fd00::53", "[fd00::53]:53"},
                                                      {"[fd00::53]", "[fd00::53]:53"},
                                                      {"[fd00::53]:5353", "[fd00::53]:5353"}};
  for (const auto& [text, wanted] : good) {
    CAPTURE(text);
    const auto server = parse_dns_server(text);
    REQUIRE(server);
    CHECK(*server == wanted);
  }
  for (const char* text :
       {"", "dns.test", "10.0.0.53:", "10.0.0.53:0", "10.0.0.53:65536", "10.0.0.53:5a", "[fd00::53",
        "[fd00::53]53", "[10.0.0.53]:53", "10.0.0.53,10.0.0.54", "fe80::1%eth0", "[]", ":53",
        "10.0.0.53 ", "256.0.0.1"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_dns_server(text));
  }
}

}  // namespace
}  // namespace causeway::gateway
