// SPDX-License-Identifier: Apache-2.0
// Theory of operation: one client's connection, from its accept to its end, on one worker.
//
//   proxy header -> ClientHello -> route -> [TLS handshake] -> dial -> (CONNECT of hybrid vsock)
//     -> [TLS handshake with the upstream] -> relay
//                        \-> refuse: the TLS alert, FIN, and a short while for the client to read
//                        it
//   relay -> linger: an upstream that ended in the middle of an upload; the client gets what was
//   sent
//            to it before its connection is closed, which would throw that away
//
// The connection is a state machine driven by its worker: by epoll's edges for its sockets, by its
// one timer, and by go_on() after a turn that was full. Every phase has a deadline: proxy_header,
// handshake, connect, idle, shutdown; `total` holds over all of them.
//
// The client's socket is read before it is put into the epoll set: under load the ClientHello is
// there already. Edges are not missed by that: adding a socket reports what is ready.
//
// The upstream's socket is added when its connect begins. In a race each attempt has an object of
// its own in the epoll set, and the first that connects becomes the upstream.
//
// end() only marks the connection and closes its sockets; the worker frees it when the events it
// has at hand are through, since one of them may still name it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "common/net/proxy_protocol.hpp"
#include "common/os/unique_fd.hpp"
#include "guest/gateway/relay/passthrough.hpp"
#include "guest/gateway/relay/terminated.hpp"
#include "guest/gateway/sniff/client_hello.hpp"
#include "guest/gateway/upstream/dialler.hpp"
#include "guest/gateway/worker_context.hpp"
#include "proto/hvsock.hpp"

namespace causeway::gateway {

// What a listener tells of the connections that it accepts.
struct ListenerInfo {
  std::uint32_t index = 0;
  bool tcp = false;
  bool vsock = false;
  std::optional<net::ProxyVersions> proxy_protocol;
  std::vector<Cidr> trusted;
};

class alignas(8) Connection : private TimerWheel::Timer {
 public:
  // One attempt of a race; epoll names it.
  struct alignas(8) Racer {
    Connection* owner = nullptr;
    Attempt attempt;
    bool over = false;
  };

  // `listener` outlives the connection.
  Connection(WorkerContext& context, const ListenerInfo& listener, UniqueFd client,
             ConnectionSlot slot);
  ~Connection();  // after end()
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void start();
  void on_client(std::uint32_t events);
  void on_upstream(std::uint32_t events);
  void on_attempt(Racer& racer, std::uint32_t events);
  void on_timer();
  void go_on();
  // Ends it from outside, as the worker's drain does.
  void end(End reason);

  static Connection& of_timer(TimerWheel::Timer& timer) { return static_cast<Connection&>(timer); }
  [[nodiscard]] bool over() const { return phase_ == Phase::over; }
  [[nodiscard]] Connection* next() const { return next_; }

 private:
  enum class Phase : std::uint8_t {
    proxy,
    hello,
    handshake,  // TLS with the client
    dial,
    hvsock,
    upstream_handshake,  // TLS with the upstream
    relay,
    linger,
    refuse,
    over
  };

  // What is needed until the relay begins.
  struct Sniff {
    relay::RelayBuffer buffer;
    std::size_t begin = 0;  // of the client's TLS bytes in the buffer
    std::size_t end = 0;    // of what was received
    std::optional<net::ProxyReader> proxy;
    ClientHelloReader hello;
    bool dry = false;  // the socket was empty after the last read
    [[nodiscard]] std::span<const std::byte> bytes() const {
      return std::span<const std::byte>(buffer.bytes.get(), end).subspan(begin);
    }
  };

  [[nodiscard]] const Snapshot& snapshot() const { return *epoch_->snapshot; }
  [[nodiscard]] const Route& route() const { return *snapshot().routes[match_.route]; }
  [[nodiscard]] Upstream::Clock::time_point clock() const;

  bool watch_client(std::uint32_t more_events = 0);
  void set_deadline(Duration limit);
  void arm();
  [[nodiscard]] bool is_trusted() const;

  void read_hello();
  bool make_room();
  void parse();
  void parse_proxy();
  void parse_hello();
  void take_route(const RouteTable::Found& found, Alert alert);
  void refuse(End reason, Alert alert);
  void discard();
  void linger(End reason, bool answered);
  void check_linger();
  void drop_upstreams();
  void leave_route();

  void dial();
  void dial_next();
  void race();
  void nothing_left();
  void attempt_failed(int code);
  [[nodiscard]] bool leads_to_us() const;
  void connected(std::uint32_t events);
  void say_connect();
  void read_hvsock_reply();
  void start_relay(std::uint32_t events);
  void after(const std::optional<End>& outcome);

  // connection_tls.cpp
  void begin_tls();
  void shaken(Terminated::Shake shake);
  void count_handshake();
  void start_tls_relay(std::uint32_t events);
  [[nodiscard]] Terminated::Side upstream_side() const;
  void begin_upstream_tls(std::span<const std::byte> first, std::uint32_t events);
  void upstream_shaken(Terminated::Shake shake, std::uint32_t events);
  void run_tls_relay(std::span<const std::byte> first, std::uint32_t events);
  [[nodiscard]] const std::shared_ptr<const tls::Profile>& upstream_profile() const;
  void keep_upstream_session();
  void after_tls(const std::optional<Terminated::Finish>& outcome);
  void tls_broke(Terminated::Finish outcome);
  bool watch_for_room();
  [[nodiscard]] net::ProxyHeader proxy_header();
  void set_idle_deadline();
  void check_idle();

  WorkerContext& context_;
  const ListenerInfo& listener_;
  Epoch* const epoch_;
  Connection* next_ = nullptr;  // the worker's list
  Connection* previous_ = nullptr;

  UniqueFd client_;
  Attempt upstream_;
  ConnectionSlot slot_;
  RouteState* route_state_ = nullptr;  // counted there
  RouteMatch match_;

  Phase phase_ = Phase::hello;
  bool client_watched_ = false;
  bool client_for_room_ = false;  // watched for EPOLLOUT too
  bool client_ended_ = false;     // EPOLLRDHUP was seen before the relay began
  bool counted_ = false;          // its reason was
  bool in_turns_ = false;
  bool cut_ = false;  // with Phase::linger: to be reset, once the client's kernel has what was sent
  std::uint32_t race_width_ = 0;  // attempts at once

  std::uint64_t deadline_ = TimerWheel::kNever;  // of the phase
  std::uint64_t attempt_deadline_ = TimerWheel::kNever;
  std::uint64_t total_deadline_ = TimerWheel::kNever;
  std::uint64_t moved_at_ = 0;  // when progress was last seen to have changed
  std::uint64_t progress_ = 0;
  std::uint64_t unsent_ = 0;  // bytes in both send buffers when that was last asked
  std::uint64_t discarded_ = 0;
  std::uint64_t may_discard_ = 0;
  std::uint64_t linger_until_ = 0;

  net::ProxySource source_;
  std::unique_ptr<Sniff> sniff_;
  std::optional<Dialler> dialler_;
  std::vector<std::unique_ptr<Racer>> racers_;
  proto::HvsockReply hvsock_;
  std::optional<Passthrough> relay_;
  std::unique_ptr<Terminated> tls_;  // from its handshake on
  std::uint32_t client_events_ = 0;  // that came while the upstream was dialled, for tls_
};

}  // namespace causeway::gateway
