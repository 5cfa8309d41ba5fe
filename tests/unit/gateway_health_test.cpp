// SPDX-License-Identifier: Apache-2.0
// Health checks against real sockets.
#include "guest/gateway/upstream/health.hpp"

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "common/net/socket_address.hpp"
#include "common/net/stream.hpp"
#include "gateway_dns_server.hpp"

namespace causeway::gateway {
namespace {

using namespace std::chrono_literals;
using test::run_until;

constexpr HealthCheck kQuick{
    .interval = Duration{20ms}, .timeout = Duration{2000ms}, .fall = 3, .rise = 2};

// A listener on a TCP port of 127.0.0.1, or at a path, that can be closed and opened again.
struct Place {
  explicit Place(const char* kind = "tcp") : unix_(std::string(kind) == "unix") {
    if (unix_) {
      std::string name = "/tmp/causeway-health-XXXXXX";
      REQUIRE(::mkdtemp(name.data()) != nullptr);
      directory_ = name;
    }
    open();
  }
  ~Place() {
    close();
    if (unix_) ::rmdir(directory_.c_str());
  }
  void open() {
    const auto where = address();
    listener.reset(::socket(where.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int on = 1;
    REQUIRE(::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
    REQUIRE(::bind(listener.get(), where.get(), where.length) == 0);
    REQUIRE(::listen(listener.get(), 256) == 0);
    if (!unix_ && port_ == 0) {
      sockaddr_in bound{};
      socklen_t length = sizeof bound;
      // sockaddr_in is what an AF_INET socket's name is.
      REQUIRE(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&bound), &length) == 0);
      port_ = ntohs(bound.sin_port);
    }
  }
  void close() {
    listener.reset();
    if (unix_) ::unlink((directory_ + "/s").c_str());
  }
  [[nodiscard]] net::SocketAddress address() const {
    if (unix_) return net::unix_socket_address(directory_ + "/s");
    return *net::to_socket_address(Address{TcpAddress{"127.0.0.1", port_}});
  }
  [[nodiscard]] Target target(std::uint32_t hvsock_port = 0) const {
    return {address(), hvsock_port};
  }
  // Takes what is waiting; how many.
  unsigned take(const char* say = nullptr) {
    unsigned count = 0;
    for (;;) {
      const UniqueFd stream(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!stream.valid()) return count;
      ++count;
      if (say == nullptr) continue;
      char request[64];
      (void)::recv(stream.get(), request, sizeof request, MSG_DONTWAIT);
      (void)!::send(stream.get(), say, std::char_traits<char>::length(say), MSG_NOSIGNAL);
    }
  }
  UniqueFd listener;

 private:
  bool unix_;
  std::string directory_;
  std::uint16_t port_ = 0;
};

struct Fixture {
  asio::io_context context{1};
  HealthChecker checker{context};
  std::shared_ptr<Upstream> upstream = std::make_shared<Upstream>("route tcp:x");
  void check(std::vector<Target> targets, HealthCheck settings = kQuick) {
    checker.update({{upstream, settings, std::move(targets)}});
  }
  bool wait_for(bool up) {
    return run_until(context, [&] { return upstream->checked_up() == up; });
  }
};

TEST_CASE("an upstream goes down and comes up again") {
  for (const char* kind : {"tcp", "unix"}) {
    CAPTURE(kind);
    Place place(kind);
    Fixture fixture;
    fixture.check({place.target()});
    unsigned seen = 0;
    CHECK(run_until(fixture.context, [&] { return (seen += place.take()) >= 5; }));
    CHECK(fixture.upstream->checked_up());
    place.close();
    CHECK(fixture.wait_for(false));
    place.open();
    seen = 0;
    CHECK(run_until(fixture.context, [&] {
      seen += place.take();
      return fixture.upstream->checked_up();
    }));
    CHECK(seen + place.take() == kQuick.rise);
  }
}

TEST_CASE("it takes `fall` failures in a row") {
  // Hybrid vsock's VMM accepts every connection and then says whether the guest does.
  Place place("unix");
  Fixture fixture;
  const auto target = place.target(1024);
  HealthCheck settings = kQuick;
  settings.fall = 4;
  fixture.check({target}, settings);
  unsigned failures = 0;
  CHECK(run_until(fixture.context, [&] { return (failures += place.take()) == 3; }));
  CHECK(run_until(fixture.context, [&] { return place.take("OK 7\n") == 1; }));
  failures = 0;
  CHECK(run_until(fixture.context, [&] {
    failures += place.take();
    return !fixture.upstream->checked_up();
  }));
  CHECK(failures == 4);
  CHECK(run_until(fixture.context, [&] {
    (void)place.take("OK 7\n");
    return fixture.upstream->checked_up();
  }));
}

TEST_CASE("one address of several is enough") {
  Place dead;
  Place alive;
  dead.close();
  Fixture fixture;
  fixture.upstream->set_up(false);
  fixture.check({dead.target(), alive.target()});
  CHECK(fixture.wait_for(true));
  alive.close();
  CHECK(fixture.wait_for(false));
}

TEST_CASE("nobody answers: down after `timeout`") {
  Place place("unix");
  Fixture fixture;
  HealthCheck settings = kQuick;
  settings.timeout = Duration{30ms};
  fixture.check({place.target(1024), place.target(1025)}, settings);
  CHECK(fixture.wait_for(false));
}

TEST_CASE("an upstream without an address keeps its state until it has one") {
  Place place;
  Fixture fixture;
  fixture.upstream->set_up(false);
  fixture.check({});
  const auto until = std::chrono::steady_clock::now() + 200ms;
  CHECK(run_until(fixture.context, [&] { return std::chrono::steady_clock::now() > until; }));
  CHECK_FALSE(fixture.upstream->checked_up());
  fixture.check({place.target()});
  CHECK(fixture.wait_for(true));
}

TEST_CASE("what is not checked any more is up; new settings keep the state") {
  Place place;
  place.close();
  Fixture fixture;
  fixture.check({place.target()});
  CHECK(fixture.wait_for(false));
  HealthCheck other = kQuick;
  other.fall = 100;
  other.rise = 3;
  fixture.check({place.target()}, other);
  CHECK_FALSE(fixture.upstream->checked_up());
  place.open();
  unsigned seen = 0;
  CHECK(run_until(fixture.context, [&] {
    seen += place.take();
    return fixture.upstream->checked_up();
  }));
  CHECK(seen + place.take() == 3);
  place.close();
  fixture.check({place.target()});
  CHECK(fixture.wait_for(false));
  fixture.checker.update({});
  CHECK(fixture.upstream->checked_up());
  CHECK(run_until(fixture.context, [&] { return fixture.checker.running() == 0; }));
  CHECK(fixture.upstream->checked_up());
}

TEST_CASE("a bounded number of connections at a time") {
  Place place("unix");
  Fixture fixture;
  HealthCheck settings = kQuick;
  settings.interval = Duration{10min};
  settings.timeout = Duration{50ms};
  settings.fall = 1;
  std::vector<HealthChecker::Check> checks;
  std::vector<std::shared_ptr<Upstream>> upstreams;
  for (int i = 0; i < 50; ++i) {
    upstreams.push_back(std::make_shared<Upstream>("u" + std::to_string(i)));
    checks.push_back({upstreams.back(), settings, {place.target(1024)}});
  }
  checks.push_back(checks.front());  // twice: checked once
  fixture.checker.update(checks);
  std::size_t most = 0;
  CHECK(run_until(fixture.context, [&] {
    most = std::max(most, fixture.checker.running());
    return std::all_of(upstreams.begin(), upstreams.end(),
                       [](const auto& upstream) { return !upstream->checked_up(); });
  }));
  CHECK(most == HealthChecker::kMaxAtOnce);
  CHECK(place.take() == 50);
}

TEST_CASE("no descriptors: no fault of the upstream's") {
  Place place;
  Fixture fixture;
  fixture.check({place.target()});
  CHECK(run_until(fixture.context, [&] { return place.take() > 0; }));
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  const auto until = std::chrono::steady_clock::now() + 300ms;
  const bool ran =
      run_until(fixture.context, [&] { return std::chrono::steady_clock::now() > until; });
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(ran);
  CHECK(fixture.upstream->checked_up());
  (void)place.take();
  CHECK(run_until(fixture.context, [&] { return place.take() > 0; }));
}

TEST_CASE("a checker may go while its checks are under way") {
  Place place("unix");
  asio::io_context context{1};
  const auto upstream = std::make_shared<Upstream>("u");
  HealthCheck settings = kQuick;
  settings.timeout = Duration{100ms};
  settings.fall = 1;
  {
    HealthChecker checker(context);
    checker.update({{upstream, settings, {place.target(1024)}}});
    CHECK(run_until(context, [&] { return place.take(nullptr) == 0 && checker.running() == 1; }));
  }
  context.restart();
  context.run();  // until nothing is left
  CHECK(upstream->checked_up());
  std::optional<HealthChecker> other(std::in_place, context);
  other->update({{upstream, settings, {place.target(1024)}}});
  CHECK(other->running() == 1);
  // And the context with the coroutine still in it.
}

}  // namespace
}  // namespace causeway::gateway
