// SPDX-License-Identifier: Apache-2.0
// The relay that ends TLS, with a client and an upstream around it: engines or plain sockets, and
// epoll's real edges in between, so that one that is missed shows as a relay that stands still.
#pragma once

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "common/os/unique_fd.hpp"
#include "gateway_tls_peers.hpp"
#include "guest/gateway/relay/terminated.hpp"

namespace causeway::gateway::tls::test {

using gateway::Terminated;
using Finish = Terminated::Finish;
using Shake = Terminated::Shake;

// Two ends of a stream.
struct Link {
  UniqueFd ours;
  UniqueFd theirs;
  bool tcp = false;

  // `buffer`: bytes of each socket's buffers; 0: the kernel's choice.
  explicit Link(bool over_tcp, int buffer) : tcp(over_tcp) {
    if (tcp) {
      UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      socklen_t size = sizeof address;
      auto* const any = reinterpret_cast<sockaddr*>(&address);  // the interface of sockets
      resize(listener.get(), buffer);
      REQUIRE(::bind(listener.get(), any, size) == 0);
      REQUIRE(::listen(listener.get(), 1) == 0);
      REQUIRE(::getsockname(listener.get(), any, &size) == 0);
      theirs.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      resize(theirs.get(), buffer);
      REQUIRE(::connect(theirs.get(), any, size) == 0);
      ours.reset(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      REQUIRE(ours.valid());
      for (const int fd : {ours.get(), theirs.get()}) {
        const int on = 1;
        REQUIRE(::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
      }
    } else {
      std::array<int, 2> fds{};
      REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds.data()) ==
              0);
      ours.reset(fds[0]);
      theirs.reset(fds[1]);
      resize(ours.get(), buffer);
      resize(theirs.get(), buffer);
    }
  }
  static void resize(int fd, int buffer) {
    if (buffer == 0) return;
    (void)::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
    (void)::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
  }
};

// One of the two that the relay is between: TLS if it has an engine.
class Talker {
 public:
  Talker(UniqueFd fd, std::unique_ptr<Engine> engine) : fd_(std::move(fd)) {
    if (engine) peer_.emplace(std::move(engine));
  }

  void say(const std::string& text) {
    if (peer_) return peer_->write(text);
    const auto bytes = std::as_bytes(std::span(text));
    unsent_.insert(unsent_.end(), bytes.begin(), bytes.end());
  }
  void say_raw(const Bytes& bytes) {
    collect();
    unsent_.insert(unsent_.end(), bytes.begin(), bytes.end());
  }
  void close_notify() { peer_->engine->close_notify(); }
  // The end of what it has to say, as it should be; by FIN alone; by a reset.
  void finish() {
    if (peer_) close_notify();
    ends_ = true;
  }
  void cut() { ends_ = true; }
  void reset() {
    const linger hard{1, 0};
    (void)::setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    fd_.reset();
  }
  void process() { peer_->process(); }
  // What was said and not sent yet.
  Bytes take() {
    collect();
    return std::exchange(unsent_, {});
  }

  // Sends and receives what the socket takes and has, `step` bytes each; true if anything moved.
  bool exchange(std::size_t step = ~std::size_t{0}) {
    if (!fd_.valid()) return false;
    if (peer_ && !peer_->engine->established()) peer_->process();
    collect();
    bool moved = false;
    for (std::size_t left = step; left > 0 && sent_ < unsent_.size();) {
      const auto part = std::span<const std::byte>(unsent_).subspan(sent_);
      const ssize_t count =
          ::send(fd_.get(), part.data(), std::min(part.size(), left), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (count <= 0) break;
      sent_ += static_cast<std::size_t>(count);
      left -= static_cast<std::size_t>(count);
      moved = true;
    }
    if (sent_ == unsent_.size()) {
      unsent_.clear();
      sent_ = 0;
      if (ends_ && !std::exchange(ended_, true)) {
        (void)::shutdown(fd_.get(), SHUT_WR);
        moved = true;
      }
    }
    std::string text(64 * 1024, '\0');
    for (std::size_t left = step; left > 0 && listens && !eof && !broken;) {
      const ssize_t count =
          ::recv(fd_.get(), text.data(), std::min(text.size(), left), MSG_DONTWAIT);
      if (count < 0 && errno != EAGAIN) broken = true;
      if (count < 0) break;
      moved = true;
      eof = count == 0;
      left -= static_cast<std::size_t>(count);
      const auto part = std::span(text).first(static_cast<std::size_t>(count));
      if (!peer_) {
        plain_.append(part.data(), part.size());
      } else if (count > 0) {
        peer_->receive(std::as_bytes(part));
      }
    }
    return moved;
  }

  [[nodiscard]] const std::string& heard() const { return peer_ ? peer_->plain : plain_; }
  // The end came as it should.
  [[nodiscard]] bool told() const { return peer_ ? peer_->status == Status::closed : eof; }
  [[nodiscard]] Engine& engine() { return *peer_->engine; }
  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] std::size_t unsent() const { return unsent_.size() - sent_; }

  bool listens = true;
  bool eof = false;     // a FIN
  bool broken = false;  // a reset

 private:
  void collect() {
    if (!peer_) return;
    const Bytes bytes = peer_->take();
    unsent_.insert(unsent_.end(), bytes.begin(), bytes.end());
  }
  UniqueFd fd_;
  std::optional<Peer> peer_;
  std::string plain_;
  Bytes unsent_;
  std::size_t sent_ = 0;
  bool ends_ = false;
  bool ended_ = false;
};

struct StageOptions {
  Version version = Version::tls13;
  bool upstream_tls = false;
  Version upstream_version = Version::tls13;
  bool tcp = false;
  int buffer = 0;  // Link
  std::string certificate = "ecdsa";
  std::string upstream_name = "a.example";  // that is verified
  std::size_t sniffed = 100;                // bytes of the ClientHello that come by start()
  std::size_t max_write = 256'000;
  std::string proxy_header{};
};

// The relay as the connection drives it (guest/gateway/connection_tls.cpp).
class Stage {
 public:
  explicit Stage(StageOptions given = {})
      : options(std::move(given)),
        client_link(options.tcp, options.buffer),
        upstream_link(options.tcp, options.buffer),
        pair(pair_options(options)),
        upstream_terms(client_profile(of(options.upstream_version))),
        client(std::move(client_link.theirs), std::move(pair.client->engine)),
        origin(std::move(upstream_link.theirs), origin_engine(options)),
        relay(pool, counters, std::move(pair.server->engine),
              {client_link.ours.get(), options.tcp, true, options.max_write}) {
    std::signal(SIGPIPE, SIG_IGN);
    epoll.reset(::epoll_create1(EPOLL_CLOEXEC));
    watch(EPOLL_CTL_ADD, client_link.ours.get(), kClient);
    watch(EPOLL_CTL_ADD, upstream_link.ours.get(), kUpstream);
  }

  // ---- the connection's part ----
  // One round of what epoll reports; true if there was something. Waits for `timeout` ms at most.
  bool turn(int timeout = 0) {
    std::array<epoll_event, 4> events{};
    const int count = ::epoll_wait(epoll.get(), events.data(), 4, timeout);
    for (const epoll_event& event : std::span(events).first(static_cast<std::size_t>(count))) {
      on(event.data.fd == client_link.ours.get(), event.events);
    }
    const bool goes_on = phase == Phase::relay && relay.wants_turn();
    if (goes_on) {
      ++turns;
      took(relay.go_on());
    }
    return count > 0 || goes_on;
  }
  void on(bool of_client, std::uint32_t events) {
    switch (phase) {
      case Phase::hello:
        break;
      case Phase::handshake:
        if (!of_client) upstream_events |= events;
        if (!of_client) return;
        if (last_shake != Shake::done) return shaken(relay.shake(events));
        client_events |= events;
        break;
      case Phase::upstream_handshake:
        if (!of_client) return upstream_shaken(relay.shake_upstream(events));
        client_events |= events;
        break;
      case Phase::relay:
        return took(of_client ? relay.on_client(events) : relay.on_upstream(events));
      case Phase::over:
        break;
    }
  }
  // With what the sniffer got.
  void begin(const Bytes& hello) {
    auto buffer = pool.take_buffer(false);
    std::copy(hello.begin(), hello.end(), buffer.bytes.get() + 100);
    phase = Phase::handshake;
    shaken(relay.start(std::move(buffer), 100, hello.size(), false));
  }
  void shaken(Shake shake) {
    last_shake = shake;
    if (shake == Shake::wait && relay.waits_for_client_room()) watch_for_room();
    if (shake == Shake::client_left || shake == Shake::failed) phase = Phase::over;
    if (shake != Shake::done || holds) return;
    dialled();
  }
  void dialled() {
    if (!options.upstream_tls) return begin_relay();
    phase = Phase::upstream_handshake;
    upstream_events = 0;
    auto engine = Engine::client(pair.own_context, upstream_terms, options.upstream_name);
    upstream_shaken(relay.start_upstream(upstream_side(), std::move(engine), proxy_header()));
  }
  void upstream_shaken(Shake shake) {
    last_upstream_shake = shake;
    if (shake == Shake::done) begin_relay();
    if (shake == Shake::client_left || shake == Shake::failed) phase = Phase::over;
  }
  void begin_relay() {
    phase = Phase::relay;
    took(relay.relay(upstream_side(),
                     options.upstream_tls ? std::span<const std::byte>() : proxy_header()));
    if (client_events != 0 && phase == Phase::relay) took(relay.on_client(client_events));
    if (upstream_events != 0 && phase == Phase::relay) took(relay.on_upstream(upstream_events));
  }
  void took(const std::optional<Finish>& outcome) {
    if (outcome) {
      finish = outcome;
      phase = Phase::over;
    } else if (relay.waits_for_client_room()) {
      watch_for_room();
    }
  }

  // ---- the test's part ----
  // Lets everybody act until nobody does any more.
  void settle(std::size_t step = ~std::size_t{0}) {
    for (int quiet = 0; quiet < 3;) {
      bool moved = client.exchange(step);
      moved = origin.exchange(step) || moved;
      moved = turn(quiet > 0 && options.tcp ? 20 : 0) || moved;
      quiet = moved ? 0 : quiet + 1;
    }
  }
  // The same until `done`, for what TCP takes its time with: small windows, delayed ACKs.
  template <class Done>
  void settle_until(Done done) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!done() && std::chrono::steady_clock::now() < limit) {
      const bool moved = client.exchange();
      if (!origin.exchange() && !moved) turn(1);
      settle();
    }
  }
  // The client's handshake, the upstream's, and the relay's begin.
  void open() {
    start();
    settle_until([&] { return phase == Phase::relay && client.engine().established(); });
    REQUIRE(phase == Phase::relay);
    REQUIRE(client.engine().established());
  }
  // The ClientHello, the first of it by way of the sniffer.
  void start() {
    client.process();
    Bytes hello = client.take();
    const std::size_t first = std::min(options.sniffed, hello.size());
    client.say_raw(Bytes(hello.begin() + static_cast<std::ptrdiff_t>(first), hello.end()));
    hello.resize(first);
    begin(hello);
  }
  // How many of the pool's large buffers the relay does not hold.
  std::size_t large_buffers_left() {
    std::vector<relay::RelayBuffer> all;
    std::size_t count = 0;
    do {
      all.push_back(pool.take_buffer(true));
      if (all.back().size == pool.large_buffer()) ++count;
    } while (all.back().size == pool.large_buffer());
    for (auto& buffer : all)
      pool.give_back(std::move(buffer));
    return count;
  }
  [[nodiscard]] bool holds_nothing() {
    return large_buffers_left() == relay::RelayPool::kMaxLargeBuffers;
  }

  StageOptions options;
  Link client_link;
  Link upstream_link;
  Pair pair;
  std::shared_ptr<const Profile> upstream_terms;
  relay::RelayPool pool;
  gateway::WorkerCounters counters;
  TicketKeys origin_keys;
  std::optional<Context> origin_context;
  Talker client;
  Talker origin;
  Terminated relay;
  UniqueFd epoll;
  enum class Phase { hello, handshake, upstream_handshake, relay, over };
  Phase phase = Phase::hello;
  bool holds = false;  // stays between the handshake and the dial
  Shake last_shake = Shake::wait;
  Shake last_upstream_shake = Shake::wait;
  std::optional<Finish> finish;
  std::uint32_t client_events = 0;  // that came before the relay
  std::uint32_t upstream_events = 0;
  int turns = 0;

 private:
  static constexpr std::uint32_t kClient = EPOLLIN | EPOLLRDHUP | EPOLLET;
  static constexpr std::uint32_t kUpstream = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;

  static ProfileOptions of(Version version) {
    ProfileOptions terms;
    terms.min_version = terms.max_version = version;
    return terms;
  }
  static PairOptions pair_options(const StageOptions& options) {
    PairOptions out;
    out.certificates = {options.certificate};
    out.client = of(options.version);
    return out;
  }
  std::unique_ptr<Engine> origin_engine(const StageOptions& given) {
    if (!given.upstream_tls) return nullptr;
    origin_context.emplace(&origin_keys);
    origin_context->use(store_of({given.certificate}));
    return std::make_unique<Engine>(*origin_context, server_profile(of(given.upstream_version)),
                                    "a.example");
  }
  [[nodiscard]] Terminated::Side upstream_side() const {
    return {upstream_link.ours.get(), options.tcp, true, options.max_write};
  }
  [[nodiscard]] std::span<const std::byte> proxy_header() const {
    return std::as_bytes(std::span(options.proxy_header));
  }
  void watch(int how, int fd, std::uint32_t events) const {
    epoll_event event{};
    event.events = events;
    event.data.fd = fd;
    REQUIRE(::epoll_ctl(epoll.get(), how, fd, &event) == 0);
  }
  void watch_for_room() {
    if (!std::exchange(watched_for_room_, true)) {
      watch(EPOLL_CTL_MOD, client_link.ours.get(), kClient | EPOLLOUT);
    }
  }
  bool watched_for_room_ = false;
};

}  // namespace causeway::gateway::tls::test
