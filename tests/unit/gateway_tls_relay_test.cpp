// SPDX-License-Identifier: Apache-2.0
// The relay that ends TLS, over socket pairs: an engine of ours plays the client.
#include <doctest/doctest.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <csignal>
#include <string>

#include "common/os/unique_fd.hpp"
#include "gateway_tls_peers.hpp"
#include "guest/gateway/relay/terminated.hpp"

namespace {

using namespace causeway;
using namespace causeway::gateway::tls::test;
using gateway::Terminated;
using gateway::tls::Status;
using gateway::tls::Version;
using Finish = Terminated::Finish;

struct Ends {
  UniqueFd ours;
  UniqueFd theirs;
  Ends() {
    std::array<int, 2> fds{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds.data()) == 0);
    ours.reset(fds[0]);
    theirs.reset(fds[1]);
  }
};

// The empty text at an end, "-" while there is nothing.
std::string receive(int fd) {
  std::string text(300'000, '\0');
  const ssize_t count = ::recv(fd, text.data(), text.size(), 0);
  if (count < 0) return "-";
  text.resize(static_cast<std::size_t>(count));
  return text;
}

constexpr std::uint32_t kIn = EPOLLIN | EPOLLOUT;
constexpr std::uint32_t kEnd = EPOLLIN | EPOLLOUT | EPOLLRDHUP;

struct Relayed {
  explicit Relayed(Version version, const std::string& certificate = "ecdsa")
      : pair(options(version, certificate)),
        relay(pool, counters, std::move(pair.server->engine),
              {client.ours.get(), false, true, 256'000}) {
    std::signal(SIGPIPE, SIG_IGN);
  }
  static PairOptions options(Version version, const std::string& certificate) {
    PairOptions options;
    options.certificates = {certificate};
    options.client.min_version = options.client.max_version = version;
    return options;
  }
  void client_sends() {
    const Bytes bytes = pair.client->take();
    if (bytes.empty()) return;
    REQUIRE(::send(client.theirs.get(), bytes.data(), bytes.size(), 0) ==
            static_cast<ssize_t>(bytes.size()));
  }
  void client_receives() {
    const std::string text = receive(client.theirs.get());
    if (text != "-" && !text.empty()) pair.client->receive(std::as_bytes(std::span(text)));
  }
  // The first bytes of the ClientHello as the sniffer hands them over, the rest by the socket.
  void shake(std::size_t sniffed) {
    pair.client->process();
    const Bytes hello = pair.client->take();
    auto buffer = pool.take_buffer(false);
    const std::size_t first = std::min(sniffed, hello.size());
    std::copy_n(hello.begin(), first, buffer.bytes.get() + 100);
    const std::span rest = std::span(hello).subspan(first);
    REQUIRE(::send(client.theirs.get(), rest.data(), rest.size(), 0) ==
            static_cast<ssize_t>(rest.size()));
    auto step = relay.start(std::move(buffer), 100, first, false);
    for (int i = 0; i < 10 && step == Terminated::Shake::wait; ++i) {
      client_receives();
      client_sends();
      step = relay.shake(kIn);
    }
    REQUIRE(step == Terminated::Shake::done);
    CHECK_FALSE(relay.relay({upstream.ours.get(), false, true, 256'000}, {}).has_value());
    client_receives();
    REQUIRE(pair.client->engine->established());
  }
  void say(const std::string& text) {
    pair.client->write(text);
    client_sends();
  }

  Ends client;
  Ends upstream;
  Pair pair;
  relay::RelayPool pool;
  gateway::WorkerCounters counters;
  Terminated relay;
};

TEST_CASE("a relay that ends TLS carries both directions, and their ends") {
  for (const Version version : {Version::tls12, Version::tls13}) {
    for (const std::size_t sniffed : {std::size_t{5}, std::size_t{100'000}}) {
      CAPTURE(version == Version::tls13);
      CAPTURE(sniffed);
      Relayed it(version);
      it.shake(sniffed);
      it.say("question");
      CHECK_FALSE(it.relay.on_client(kIn).has_value());
      CHECK(receive(it.upstream.theirs.get()) == "question");
      REQUIRE(::send(it.upstream.theirs.get(), "answer", 6, 0) == 6);
      CHECK_FALSE(it.relay.on_upstream(kIn).has_value());
      it.client_receives();
      CHECK(it.pair.client->plain == "answer");

      // The application ends first: close_notify, then FIN; the client's last words still arrive.
      ::shutdown(it.upstream.theirs.get(), SHUT_WR);
      CHECK_FALSE(it.relay.on_upstream(kEnd).has_value());
      it.client_receives();
      CHECK(it.pair.client->status == Status::closed);
      CHECK(receive(it.client.theirs.get()).empty());
      it.say("thanks");
      it.pair.client->engine->close_notify();
      it.client_sends();
      ::shutdown(it.client.theirs.get(), SHUT_WR);
      const auto finish = it.relay.on_client(kEnd);
      CHECK(receive(it.upstream.theirs.get()) == "thanks");
      REQUIRE(finish.has_value());
      CHECK(*finish == Finish::orderly);
      CHECK_FALSE(it.relay.truncated());
    }
  }
}

TEST_CASE("a client that half-closes still gets its answer; without close_notify it is truncated") {
  for (const bool notifies : {true, false}) {
    CAPTURE(notifies);
    Relayed it(Version::tls13);
    it.shake(1'000);
    it.say("all I have");
    if (notifies) it.pair.client->engine->close_notify();
    it.client_sends();
    ::shutdown(it.client.theirs.get(), SHUT_WR);
    CHECK_FALSE(it.relay.on_client(kEnd).has_value());
    CHECK(receive(it.upstream.theirs.get()) == "all I have");
    CHECK(receive(it.upstream.theirs.get()).empty());
    CHECK(it.relay.truncated() != notifies);
    REQUIRE(::send(it.upstream.theirs.get(), "answer", 6, 0) == 6);
    ::shutdown(it.upstream.theirs.get(), SHUT_WR);
    const auto finish = it.relay.on_upstream(kEnd);
    REQUIRE(finish.has_value());
    CHECK(*finish == Finish::orderly);
    it.client_receives();
    CHECK(it.pair.client->plain == "answer");
    CHECK(it.pair.client->status == Status::closed);
  }
}

TEST_CASE("megabytes each way through small sockets, records in pieces") {
  for (const Version version : {Version::tls12, Version::tls13}) {
    Relayed it(version, "rsa");
    it.shake(100'000);
    const std::string down = random_text(3'000'000, 3);
    std::size_t sent = 0;
    int turns = 0;
    while (it.pair.client->plain.size() < down.size()) {
      REQUIRE(++turns < 100'000);
      if (sent < down.size()) {
        const ssize_t count = ::send(it.upstream.theirs.get(), down.data() + sent,
                                     std::min<std::size_t>(down.size() - sent, 70'001), 0);
        if (count > 0) sent += static_cast<std::size_t>(count);
      }
      CHECK_FALSE(it.relay.on_upstream(kIn).has_value());
      it.client_receives();
      CHECK_FALSE(it.relay.on_client(kIn).has_value());
      if (it.relay.wants_turn()) CHECK_FALSE(it.relay.go_on().has_value());
    }
    CHECK((it.pair.client->plain == down));

    const std::string up = random_text(2'000'000, 4);
    it.pair.client->write(up);
    const Bytes sealed = it.pair.client->take();
    std::string got;
    for (std::size_t at = 0; got.size() < up.size();) {
      REQUIRE(++turns < 200'000);
      if (at < sealed.size()) {
        const auto part =
            std::span(sealed).subspan(at, std::min<std::size_t>(sealed.size() - at, 9'999));
        const ssize_t count = ::send(it.client.theirs.get(), part.data(), part.size(), 0);
        if (count > 0) at += static_cast<std::size_t>(count);
      }
      CHECK_FALSE(it.relay.on_client(kIn).has_value());
      it.relay.shrink();
      if (it.relay.wants_turn()) CHECK_FALSE(it.relay.go_on().has_value());
      const std::string text = receive(it.upstream.theirs.get());
      if (text != "-") got += text;
      CHECK_FALSE(it.relay.on_upstream(kIn).has_value());
    }
    CHECK((got == up));
  }
}

TEST_CASE(
    "a record that does not authenticate ends it with an alert, what came before is delivered") {
  Relayed it(Version::tls13);
  it.shake(100'000);
  it.pair.client->write("good");
  Bytes bytes = it.pair.client->take();
  it.pair.client->write("bad");
  Bytes broken = it.pair.client->take();
  broken.back() ^= std::byte{1};
  bytes.insert(bytes.end(), broken.begin(), broken.end());
  REQUIRE(::send(it.client.theirs.get(), bytes.data(), bytes.size(), 0) ==
          static_cast<ssize_t>(bytes.size()));
  const auto finish = it.relay.on_client(kIn);
  REQUIRE(finish.has_value());
  CHECK(*finish == Finish::tls_failed);
  CHECK(receive(it.upstream.theirs.get()) == "good");
  it.client_receives();
  CHECK(it.pair.client->status == Status::error);  // the alert
}

TEST_CASE("resets: a client's ends it at once") {
  Relayed it(Version::tls13);
  it.shake(100'000);
  const auto finish = it.relay.on_client(kEnd | EPOLLHUP | EPOLLERR);
  REQUIRE(finish.has_value());
  CHECK(*finish == Finish::client_reset);
}

}  // namespace
