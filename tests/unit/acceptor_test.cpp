// SPDX-License-Identifier: Apache-2.0
#include "common/net/acceptor.hpp"

#include <netinet/in.h>
#include <sys/socket.h>

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "common/net/socket_address.hpp"

namespace causeway::net {
namespace {

using namespace std::chrono_literals;

// A TCP port of loopback: shutdown() breaks its listener for good, accept() fails with EINVAL then.
struct Place {
  Address address{TcpAddress{"127.0.0.1", 0}};
  [[nodiscard]] Result<Listener> open() {
    auto listener = Listener::open(address, {});
    sockaddr_in bound{};
    socklen_t length = sizeof bound;
    // sockaddr_in is what an AF_INET socket's name is.
    if (listener &&
        ::getsockname(listener->fd(), reinterpret_cast<sockaddr*>(&bound), &length) == 0) {
      std::get<TcpAddress>(address.value).port = ntohs(bound.sin_port);
    }
    return listener;
  }
  [[nodiscard]] UniqueFd connect() const {
    const auto where = to_socket_address(address);
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    return where && ::connect(fd.get(), where->get(), where->length) == 0 ? std::move(fd)
                                                                          : UniqueFd();
  }
};

struct Fixture {
  Place place;
  asio::io_context context{1};
  std::vector<UniqueFd> taken;
  std::vector<std::string> faults;
  unsigned opened = 0;

  AcceptorHandlers handlers() {
    AcceptorHandlers result;
    result.take = [this](UniqueFd stream) { taken.push_back(std::move(stream)); };
    result.fault = [this](const std::string& text) { faults.push_back(text); };
    result.reopen = [this] {
      ++opened;
      return place.open();
    };
    return result;
  }

  template <class Condition>
  bool run_until(Condition&& condition) {
    for (unsigned i = 0; i < 1000 && !condition(); ++i) {
      context.run_for(5ms);
      context.restart();
    }
    return condition();
  }
};

}  // namespace

TEST_CASE("an acceptor hands over each stream") {
  Fixture f;
  auto listener = f.place.open();
  REQUIRE(listener);
  const Acceptor acceptor(f.context, std::move(*listener), f.handlers());
  const UniqueFd first = f.place.connect();
  const UniqueFd second = f.place.connect();
  REQUIRE(first.valid());
  REQUIRE(second.valid());
  CHECK(f.run_until([&] { return f.taken.size() == 2; }));
  CHECK(f.faults.empty());
}

TEST_CASE("a listener that does not accept any more is made anew") {
  Fixture f;
  auto listener = f.place.open();
  REQUIRE(listener);
  const int fd = listener->fd();
  const Acceptor acceptor(f.context, std::move(*listener), f.handlers(),
                          {.pause = 1ms, .failures = 3});
  REQUIRE(::shutdown(fd, SHUT_RDWR) == 0);
  CHECK(f.run_until([&] { return acceptor.renewals() == 1; }));
  CHECK(f.faults.size() == 3);
  const UniqueFd client = f.place.connect();
  REQUIRE(client.valid());
  CHECK(f.run_until([&] { return f.taken.size() == 1; }));
  CHECK(f.opened == 1);
}

TEST_CASE("without a way to make another the acceptor goes on trying") {
  Fixture f;
  auto listener = f.place.open();
  REQUIRE(listener);
  const int fd = listener->fd();
  auto handlers = f.handlers();
  handlers.reopen = nullptr;
  const Acceptor acceptor(f.context, std::move(*listener), std::move(handlers),
                          {.pause = 1ms, .failures = 2});
  REQUIRE(::shutdown(fd, SHUT_RDWR) == 0);
  CHECK(f.run_until([&] { return f.faults.size() >= 6; }));
  CHECK(acceptor.renewals() == 0);
}

TEST_CASE("a reopening that fails is tried again") {
  Fixture f;
  auto listener = f.place.open();
  REQUIRE(listener);
  const int fd = listener->fd();
  auto handlers = f.handlers();
  handlers.reopen = [&f]() -> Result<Listener> {
    if (++f.opened < 3) {
      return Error{"not yet", EADDRINUSE};
    }
    return f.place.open();
  };
  const Acceptor acceptor(f.context, std::move(*listener), std::move(handlers),
                          {.pause = 1ms, .failures = 1});
  REQUIRE(::shutdown(fd, SHUT_RDWR) == 0);
  CHECK(f.run_until([&] { return acceptor.renewals() == 1; }));
  CHECK(f.opened == 3);
}

TEST_CASE("while somebody is missed the listener is made anew, and serves") {
  Fixture f;
  auto listener = f.place.open();
  REQUIRE(listener);
  bool missed = true;
  auto handlers = f.handlers();
  handlers.misses_somebody = [&missed] { return missed; };
  const Acceptor acceptor(f.context, std::move(*listener), std::move(handlers),
                          {.pause = 1ms, .renewal = 5ms, .renew_any = true});
  CHECK(f.run_until([&] { return acceptor.renewals() >= 3; }));
  CHECK(f.faults.empty());  // the address was free each time
  missed = false;
  f.context.run_for(30ms);
  f.context.restart();
  const auto before = acceptor.renewals();
  const UniqueFd client = f.place.connect();
  REQUIRE(client.valid());
  CHECK(f.run_until([&] { return f.taken.size() == 1; }));
  CHECK(acceptor.renewals() == before);
}

TEST_CASE("an acceptor that is destroyed closes its listener") {
  Fixture f;
  auto listener = f.place.open();
  REQUIRE(listener);
  {
    const Acceptor acceptor(f.context, std::move(*listener), f.handlers());
    f.context.poll();
  }
  f.context.restart();
  f.context.run_for(20ms);
  CHECK_FALSE(f.place.connect().valid());
}

}  // namespace causeway::net
