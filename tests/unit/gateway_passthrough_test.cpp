// SPDX-License-Identifier: Apache-2.0
// The relay over socket pairs, driven by hand with the events that epoll would report.
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <csignal>
#include <string>

#include "common/os/unique_fd.hpp"
#include "guest/gateway/relay/passthrough.hpp"

namespace {

using namespace causeway;
using gateway::End;
using gateway::Passthrough;

constexpr End kGoesOn = End::count_;
End on(const std::optional<End>& outcome) {
  return outcome.value_or(kGoesOn);
}

struct Ends {
  UniqueFd ours;
  UniqueFd theirs;
  Ends() {
    std::array<int, 2> fds{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds.data()) == 0);
    ours.reset(fds[0]);
    theirs.reset(fds[1]);
  }
  void send(const std::string& text) const {
    REQUIRE(::send(theirs.get(), text.data(), text.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(text.size()));
  }
  [[nodiscard]] std::string receive() const {
    std::string text(100'000, '\0');
    const ssize_t count = ::recv(theirs.get(), text.data(), text.size(), 0);
    text.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
    return count == 0 ? "<end>" : text;
  }
};

struct Relayed {
  Ends client;
  Ends upstream;
  relay::RelayPool pool;
  gateway::WorkerCounters counters;
  Passthrough relay{pool,
                    counters,
                    relay::Gate{},
                    {client.ours.get(), false, true, 1000},
                    {upstream.ours.get(), false, true, 1000}};
  Relayed() {
    std::signal(SIGPIPE, SIG_IGN);
    auto buffer = pool.take_buffer(false);
    buffer.bytes[10] = std::byte{'H'};
    buffer.bytes[11] = std::byte{'i'};
    relay.put_first(std::move(buffer), 10, 2, 0, true);
    CHECK(on(relay.start()) == kGoesOn);
    CHECK(upstream.receive() == "Hi");
  }
};

constexpr std::uint32_t kIn = EPOLLIN | EPOLLOUT;
constexpr std::uint32_t kEnd = EPOLLIN | EPOLLOUT | EPOLLRDHUP;
constexpr std::uint32_t kGone = kEnd | EPOLLHUP;

TEST_CASE("both directions carry bytes, ends are passed on, the second one ends the relay") {
  for (const bool client_first : {true, false}) {
    CAPTURE(client_first);
    Relayed it;
    it.client.send("question");
    CHECK(on(it.relay.on_client(kIn)) == kGoesOn);
    CHECK(it.upstream.receive() == "question");
    it.upstream.send("answer");
    CHECK(on(it.relay.on_upstream(kIn)) == kGoesOn);
    CHECK(it.client.receive() == "answer");
    CHECK(it.counters.bytes_to_upstream.get() == 10);
    CHECK(it.counters.bytes_to_client.get() == 6);

    const auto& first = client_first ? it.client : it.upstream;
    const auto& second = client_first ? it.upstream : it.client;
    ::shutdown(first.theirs.get(), SHUT_WR);
    CHECK(on(client_first ? it.relay.on_client(kEnd) : it.relay.on_upstream(kEnd)) == kGoesOn);
    CHECK(second.receive() == "<end>");
    second.send("still");
    CHECK(on(client_first ? it.relay.on_upstream(kIn) : it.relay.on_client(kIn)) == kGoesOn);
    CHECK(first.receive() == "still");
    ::shutdown(second.theirs.get(), SHUT_WR);
    CHECK(on(client_first ? it.relay.on_upstream(kGone) : it.relay.on_client(kGone)) ==
          End::orderly);
  }
}

TEST_CASE("bytes and end that came in one edge are both carried") {
  Relayed it;
  it.upstream.send("last words");
  ::shutdown(it.upstream.theirs.get(), SHUT_WR);
  CHECK(on(it.relay.on_upstream(kEnd)) == kGoesOn);
  CHECK(it.client.receive() == "last words");
  CHECK(it.client.receive() == "<end>");
}

TEST_CASE("a client that takes no more, or resets, ends it at once") {
  Relayed taking;
  taking.client.theirs.reset();
  taking.upstream.send("for nobody");
  CHECK(on(taking.relay.on_upstream(kIn)) == End::client_reset);
  Relayed resetting;
  CHECK(on(resetting.relay.on_client(kGone | EPOLLERR)) == End::client_reset);
}

TEST_CASE("an upstream that takes no more still delivers its answer") {
  Relayed it;
  it.upstream.send("413 too large");
  ::shutdown(it.upstream.theirs.get(), SHUT_RD);
  it.client.send("upload");
  CHECK(on(it.relay.on_client(kIn)) == kGoesOn);  // EPIPE
  CHECK(on(it.relay.on_upstream(kIn)) == kGoesOn);
  CHECK(it.client.receive() == "413 too large");
  ::shutdown(it.upstream.theirs.get(), SHUT_WR);
  CHECK(on(it.relay.on_upstream(kGone)) == End::upstream_reset);
}

TEST_CASE("an upstream that breaks after its end was passed on: orderly") {
  Relayed it;
  ::shutdown(it.upstream.theirs.get(), SHUT_WR);
  CHECK(on(it.relay.on_upstream(kEnd)) == kGoesOn);
  it.upstream.theirs.reset();
  it.client.send("too late");
  CHECK(on(it.relay.on_client(kIn)) == End::orderly);
}

TEST_CASE("an upstream's reset that a write meets first is not taken for its end") {
  for (const bool with_answer : {false, true}) {
    CAPTURE(with_answer);
    Relayed it;
    // A real reset needs tcp.
    const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof at;
    auto* const address = reinterpret_cast<sockaddr*>(&at);  // the socket calls' convention
    REQUIRE(::bind(listener.get(), address, sizeof at) == 0);
    REQUIRE(::listen(listener.get(), 1) == 0);
    REQUIRE(::getsockname(listener.get(), address, &length) == 0);
    const UniqueFd near(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(::connect(near.get(), address, sizeof at) == 0);
    UniqueFd far(::accept(listener.get(), nullptr, nullptr));
    Passthrough relay(it.pool, it.counters, relay::Gate{},
                      {it.client.ours.get(), false, true, 1000}, {near.get(), true, true, 1000});
    relay.put_first(it.pool.take_buffer(false), 0, 2, 0, true);
    CHECK(on(relay.start()) == kGoesOn);
    if (with_answer) REQUIRE(::send(far.get(), "no", 2, 0) == 2);
    const linger now{.l_onoff = 1, .l_linger = 0};
    REQUIRE(::setsockopt(far.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now) == 0);
    far.reset();
    it.client.send("more");
    CHECK(on(relay.on_client(kIn)) == kGoesOn);  // the write takes the error
    CHECK(on(relay.on_upstream(kGone)) == End::upstream_reset);
    CHECK(it.client.receive() == (with_answer ? "no" : ""));
    CHECK(it.client.receive().empty());  // and no end
  }
}

TEST_CASE("a full sink waits for room, and nothing is lost") {
  Relayed it;
  const std::string block(50'000, 'x');
  std::size_t sent = 0;
  while (!it.relay.waits_for_client_room()) {
    it.upstream.send(block);
    sent += block.size();
    CHECK(on(it.relay.on_upstream(kIn)) == kGoesOn);
  }
  const std::uint64_t stuck = it.relay.progress();
  CHECK(on(it.relay.on_upstream(kIn)) == kGoesOn);
  CHECK(it.relay.progress() == stuck);
  std::size_t received = 0;
  while (received < sent) {
    received += it.client.receive().size();
    CHECK(on(it.relay.on_client(EPOLLOUT)) == kGoesOn);
  }
  CHECK(received == sent);
  CHECK_FALSE(it.relay.waits_for_client_room());
}

}  // namespace
