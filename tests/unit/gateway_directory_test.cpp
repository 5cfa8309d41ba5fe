// SPDX-License-Identifier: Apache-2.0
#include "guest/gateway/upstream/directory.hpp"

#include <doctest/doctest.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <string>
#include <vector>

#include "gateway_dns_server.hpp"

namespace causeway::gateway {
namespace {

using namespace std::chrono_literals;
using test::DnsServer;
using test::run_until;
using Strings = std::vector<std::string>;

UpstreamConfig to(const char* address) {
  UpstreamConfig config;
  config.address = *parse_address(address);
  return config;
}

RouteConfig route(const char* label, std::vector<UpstreamConfig> upstreams) {
  RouteConfig config;
  config.label = label;
  config.names = {label};
  config.upstreams = std::move(upstreams);
  return config;
}

std::string text(const Target& target) {
  // As the families say.
  if (target.address.family() == AF_UNIX) {
    const auto& un = reinterpret_cast<const sockaddr_un&>(target.address.storage);
    return un.sun_path + (target.hvsock_port != 0 ? '#' + std::to_string(target.hvsock_port) : "");
  }
  IpAddress ip{.v6 = target.address.family() == AF_INET6};
  std::uint16_t port = 0;
  std::string zone;
  if (ip.v6) {
    const auto& in6 = reinterpret_cast<const sockaddr_in6&>(target.address.storage);
    std::copy_n(in6.sin6_addr.s6_addr, 16, ip.bytes.begin());
    port = ntohs(in6.sin6_port);
    if (in6.sin6_scope_id != 0) zone = '%' + std::to_string(in6.sin6_scope_id);
  } else {
    const auto& in4 = reinterpret_cast<const sockaddr_in&>(target.address.storage);
    const std::uint32_t host = ntohl(in4.sin_addr.s_addr);
    for (unsigned i = 0; i < 4; ++i)
      ip.bytes[i] = static_cast<std::uint8_t>(host >> (24 - 8 * i));
    port = ntohs(in4.sin_port);
  }
  return to_string(ip) + zone + ' ' + std::to_string(port);
}

struct Fixture {
  Fixture() {
    REQUIRE(resolver.set_servers({server.address()}));
    directory.on_change([this] { ++changes; });
  }
  [[nodiscard]] Strings targets(std::size_t route = 0, std::size_t upstream = 0) const {
    Strings result;
    for (const Target& target : directory.routes()[route]->upstreams[upstream].targets) {
      result.push_back(text(target));
    }
    return result;
  }
  [[nodiscard]] const Upstream& state(std::size_t route = 0, std::size_t upstream = 0) const {
    return *directory.routes()[route]->upstreams[upstream].state;
  }
  bool run(const std::function<bool()>& condition) { return run_until(context, condition); }

  asio::io_context context{1};
  DnsServer server;
  Resolver resolver{context, {.min_ttl = 50ms, .max_ttl = 100ms, .first_retry = 50ms}};
  HealthChecker health{context};
  Directory directory{context, resolver, health};
  unsigned changes = 0;
};

TEST_CASE("literals have their target at once") {
  Fixture fixture;
  fixture.directory.update({route(
      "a.test", {to("tcp:192.0.2.1:443"), to("tcp:[2001:db8::1]:8443"), to("unix:/run/app.sock"),
                 to("hvsock:/run/vm:1024"), to("tcp:192.0.2.2:0"), to("tcp:[fe80::1%lo]:80"),
                 to("tcp:[fe80::1%nowhere]:80"), to("vsock:3:1024")})});
  CHECK(fixture.directory.ready());
  CHECK(fixture.targets(0, 0) == Strings{"192.0.2.1 443"});
  CHECK(fixture.targets(0, 1) == Strings{"2001:db8::1 8443"});
  CHECK(fixture.targets(0, 2) == Strings{"/run/app.sock"});
  CHECK(fixture.targets(0, 3) == Strings{"/run/vm#1024"});
  CHECK(fixture.targets(0, 4) == Strings{"192.0.2.2 0"});
  const unsigned loopback = ::if_nametoindex("lo");
  if (loopback != 0) {
    CHECK(fixture.targets(0, 5) == Strings{"fe80::1%" + std::to_string(loopback) + " 80"});
  }
  CHECK(fixture.targets(0, 6).empty());
  const auto& vsock = fixture.directory.routes()[0]->upstreams[7].targets;
  REQUIRE(vsock.size() == 1);
  CHECK(vsock[0].address.family() == AF_VSOCK);
  CHECK(fixture.resolver.counters().rounds.get() == 0);
}

TEST_CASE("names are resolved and followed, IPv6 and IPv4 in turn") {
  Fixture fixture;
  fixture.server.set4("app.test", {{"192.0.2.3", "192.0.2.1", "192.0.2.2"}});
  fixture.server.set6("app.test", {{"2001:db8::1"}});
  fixture.directory.update({route("a.test", {to("tcp:app.test:443"), to("tcp:192.0.2.9:443")}),
                            route("b.test", {to("tcp:app.test:0")})});
  CHECK(fixture.targets().empty());
  CHECK_FALSE(fixture.directory.ready());
  unsigned ready = 0;
  fixture.directory.when_ready(600s, [&] {
    ++ready;
    CHECK_FALSE(fixture.targets().empty());
  });
  CHECK(fixture.run([&] { return fixture.targets().size() == 4 && ready == 1; }));
  CHECK(fixture.targets() ==
        Strings{"2001:db8::1 443", "192.0.2.1 443", "192.0.2.2 443", "192.0.2.3 443"});
  CHECK(fixture.targets(1) ==
        Strings{"2001:db8::1 0", "192.0.2.1 0", "192.0.2.2 0", "192.0.2.3 0"});
  CHECK(fixture.targets(0, 1) == Strings{"192.0.2.9 443"});
  CHECK(fixture.run([&] { return fixture.changes >= 1; }));
  auto rounds = fixture.resolver.counters().rounds.get();
  CHECK(fixture.run([&] { return fixture.resolver.counters().rounds.get() >= rounds + 2; }));
  CHECK(fixture.changes <= 2);  // one for each family at most, whatever the number of routes

  fixture.changes = 0;
  fixture.server.set6("app.test", {.addresses = {}});
  CHECK(fixture.run([&] { return fixture.targets().size() == 3; }));
  CHECK(fixture.run([&] { return fixture.changes == 1; }));
  rounds = fixture.resolver.counters().rounds.get();
  CHECK(fixture.run([&] { return fixture.resolver.counters().rounds.get() >= rounds + 4; }));
  CHECK(fixture.changes == 1);
}

TEST_CASE("what is known lives on across updates, as long as it is named") {
  Fixture fixture;
  fixture.server.set4("app.test", {{"192.0.2.1"}});
  const auto a = route("a.test", {to("tcp:app.test:443"), to("tcp:192.0.2.9:443")});
  const auto b = route("b.test", {to("tcp:192.0.2.9:443")});
  fixture.directory.update({a, b});
  CHECK(fixture.run([&] { return fixture.targets().size() == 1; }));
  const auto route_a = fixture.directory.routes()[0]->state;
  const auto first = fixture.directory.routes()[0]->upstreams[0].state;
  const auto second = fixture.directory.routes()[0]->upstreams[1].state;
  CHECK(fixture.directory.routes()[1]->upstreams[0].state != second);  // another route's
  CHECK(first->key() == "a.test tcp:app.test:443");

  // In another order, with other settings.
  auto changed = route("a.test", {to("tcp:192.0.2.9:443"), to("tcp:app.test:443")});
  changed.upstreams[1].weight = 7;
  changed.upstreams[1].drain = true;
  fixture.directory.update({b, changed});
  const Route& now = *fixture.directory.routes()[1];
  CHECK(now.state == route_a);
  CHECK(now.config == changed);
  CHECK(now.upstreams[0].state == second);
  CHECK(now.upstreams[1].state == first);
  CHECK(now.upstreams[1].config.weight == 7);
  CHECK(fixture.targets(1, 1) == Strings{"192.0.2.1 443"});  // still known

  fixture.directory.update({b});
  CHECK(first.use_count() == 1);
  CHECK(route_a.use_count() == 1);
  CHECK(fixture.resolver.addresses("app.test").empty());
  fixture.directory.update({a, b});
  CHECK(fixture.directory.routes()[0]->state != route_a);
  CHECK(fixture.directory.routes()[0]->upstreams[0].state != first);
  CHECK(fixture.run([&] { return fixture.targets().size() == 1; }));
  fixture.directory.update({});
  CHECK(fixture.directory.routes().empty());
}

// A TCP listener of 127.0.0.1.
struct Listener {
  Listener() : fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const auto where = *net::to_socket_address(Address{TcpAddress{"127.0.0.1", 0}});
    REQUIRE(::bind(fd.get(), where.get(), where.length) == 0);
    REQUIRE(::listen(fd.get(), 64) == 0);
    sockaddr_in bound{};
    socklen_t length = sizeof bound;
    REQUIRE(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &length) == 0);
    port = ntohs(bound.sin_port);
  }
  UniqueFd fd;
  std::uint16_t port = 0;
};

TEST_CASE("the health checks get the targets, names and applications included") {
  Fixture fixture;
  Listener listener;
  std::uint16_t dead = 0;
  {
    const Listener gone;
    dead = gone.port;
  }
  const auto with_port = [](const char* host, std::uint16_t port) {
    return to((std::string("tcp:") + host + ':' + std::to_string(port)).c_str());
  };
  HealthCheck quick{.interval = Duration{20ms}, .timeout = Duration{2000ms}, .fall = 2, .rise = 2};
  auto checked =
      route("a.test", {with_port("127.0.0.1", listener.port), with_port("127.0.0.1", dead),
                       with_port("localhost", dead), with_port("127.0.0.1", 0)});
  checked.health = quick;
  auto application = route("b.test", {with_port("127.0.0.1", 0)});
  application.health = quick;
  application.health_port = dead;
  auto never = route("c.test", {with_port("127.0.0.1", dead)});
  never.health = quick;
  never.health->interval = Duration::forever();
  const auto passive = route("d.test", {with_port("127.0.0.1", dead)});
  fixture.directory.update({checked, application, never, passive});
  CHECK(fixture.run([&] {
    return !fixture.state(0, 1).checked_up() && !fixture.state(0, 2).checked_up() &&
           !fixture.state(1, 0).checked_up();
  }));
  CHECK(fixture.state(0, 0).checked_up());
  CHECK(fixture.state(0, 3).checked_up());  // no port to check
  CHECK(fixture.state(2, 0).checked_up());
  CHECK(fixture.state(3, 0).checked_up());
  // The application's first port is another now: up again.
  application.health_port = listener.port;
  fixture.directory.update({checked, application, never, passive});
  CHECK_FALSE(fixture.state(1, 0).checked_up());
  CHECK(fixture.run([&] { return fixture.state(1, 0).checked_up(); }));
  // Checks that are taken away leave nothing down.
  checked.health.reset();
  fixture.directory.update({checked, application, never, passive});
  CHECK(fixture.state(0, 1).checked_up());
}

TEST_CASE("a directory may go before its resolver and its checker") {
  asio::io_context context{1};
  DnsServer server;
  server.set4("app.test", {{"192.0.2.1"}});
  Resolver resolver(context);
  HealthChecker health(context);
  REQUIRE(resolver.set_servers({server.address()}));
  unsigned changes = 0;
  {
    Directory directory(context, resolver, health);
    directory.on_change([&] { ++changes; });
    directory.update({route("a.test", {to("tcp:app.test:443")})});
  }
  CHECK(run_until(context, [&] { return resolver.addresses("app.test").size() == 1; }));
  CHECK(run_until(context, [&] { return resolver.ready(); }));
  CHECK(changes == 0);
}

}  // namespace
}  // namespace causeway::gateway
