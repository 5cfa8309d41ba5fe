// SPDX-License-Identifier: Apache-2.0
// Theory of operation: the session.
//
// A Session ties one TAP to the streams of one peer. It lives on the control thread: coroutines
// accept or connect, greet the peer (handshake.hpp), and hand each stream to the Lane of one TAP
// queue, whose own thread pumps frames. On the native wire the lanes of one guest carry the same
// random session id; on the plain wire there is one lane.
//
//   listening side: accept for ever. A stream of the same session takes its lane's place; one of
//   another session, or a plain one, replaces all that is there, because an enclave that was
//   restarted connects while the helper still believes in the dead connection.
//   connecting side: one coroutine a lane connects, pumps until the connection ends, waits,
//   connects again with a fresh socket. The wait doubles from 50 ms to 2 s with jitter and starts
//   over once the peer was heard. Lane 0 finds out how many lanes there are; the others follow
//   it. A peer that does not speak the native wire gets a plain connection next, and the native
//   wire is tried again after that, so that hosts and images can be upgraded one at a time.
//
// The TAP stays up throughout, so a TCP connection in the guest lives through the gap. Queues whose
// lane is down are taken out of use while another lane is up; the kernel moves their flows.
//
// Keep-alive: the control thread looks at each native lane's counters. One keep-alive interval
// without a byte from the peer sends a ping, three end the lane. Data is as good as a pong, so the
// pump never looks at a clock.
//
// The admin thread reads a Status, a copy made under a lock that only the control thread and the
// admin thread ever take; the lanes' counters it reads directly.
#pragma once

#include <array>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "common/bridge/counters.hpp"
#include "common/bridge/handshake.hpp"
#include "common/bridge/lane.hpp"
#include "common/bridge/tap.hpp"
#include "common/log.hpp"
#include "common/net/acceptor.hpp"
#include "common/net/address.hpp"
#include "common/net/asio.hpp"
#include "common/net/stream.hpp"
#include "common/units.hpp"
#include "proto/hello.hpp"

namespace causeway::bridge {

std::string_view name(WireChoice choice);
std::string_view name(proto::Wire wire);

struct SessionOptions {
  WireChoice wire = WireChoice::automatic;
  std::uint32_t max_frame = proto::kMaxFrame;  // bytes, what we take and what we send
  std::uint64_t max_write = 0;                 // bytes; 0: by the kind of socket
  bool offload = true;                         // offer super-frames to a native peer
  unsigned busy_poll = 50;                     // looks before a lane's thread sleeps
  Duration keepalive{std::chrono::seconds{5}};
  net::StreamOptions stream;
  std::chrono::milliseconds connect_timeout{2000};
  unsigned max_handshakes = 32;  // connections greeted at once
};

class Session {
 public:
  struct LaneStatus {
    bool up = false;
    std::string transport, peer;
    std::uint64_t max_write = 0, vsock_buffer = 0;
  };
  struct Status {
    std::string state = "starting";  // then listening or connecting, up
    std::optional<proto::Wire> wire;
    std::string id;  // native: the session's id, hexadecimal
    proto::Features features = 0;
    std::uint32_t mtu = 0, max_frame = 0;
    std::vector<LaneStatus> lanes;
    std::uint64_t connections_total = 0, replaced_total = 0, connect_failures_total = 0;
    std::uint64_t offers_ignored_total = 0;  // malformed, or from a side that has none to make
    std::array<std::uint64_t, kEndReasons> ended{};
    std::string last_error;
    Offloads offloads;  // of the TAP, as switched on
  };

  Session(asio::io_context& control, Tap& tap, SessionOptions options);

  // Spawn the coroutines that serve until stop(). `reopen` makes the listener again when it broke;
  // without it there is no second one.
  void listen(net::Listener listener, std::function<Result<net::Listener>()> reopen);
  void connect(const Address& address);
  // Instead of listen(): streams that somebody else accepted for this guest come by serve().
  void wait_for_streams();
  void serve(UniqueFd stream);

  // Listening side: what the guest is offered, from now on and over the lanes that are up.
  void set_offer(std::optional<proto::Offer> offer);
  // Connecting side: called on the control thread with each offer that differs from the last.
  void on_offer(std::function<void(const proto::Offer&)> handler) { offered_ = std::move(handler); }
  // The last offer could not be applied: the next is handed over even if it is the same.
  void forget_offer() { offer_.reset(); }
  [[nodiscard]] bool has_offer() const { return offer_.has_value(); }
  // Connecting side: called on the control thread each time a connection is up, and its offer
  // taken.
  void on_up(std::function<void()> handler) { on_up_ = std::move(handler); }
  // Ends the lanes so that both sides agree anew, as after a change of the TAP's MTU.
  void renew();

  // Ends all lanes and stops listening; from the control thread.
  void stop();
  // True once a stopped session has nothing left on the control thread: it may be destroyed.
  [[nodiscard]] bool finished() const {
    return stopping_ && coroutines_ == 0 && ends_expected_ == 0;
  }
  // Asks each lane that is up to show that its thread runs; proven() tells whether all have since
  // the last request. For a watchdog that is fed from the data loop.
  void request_proofs();
  [[nodiscard]] bool proven() const;
  // Called once, on the control thread, when the session cannot go on; see failed().
  void on_failure(std::function<void()> handler) { on_failure_ = std::move(handler); }
  // The session cannot go on: the TAP is gone, or a connected stream was inherited and has ended.
  [[nodiscard]] bool failed() const { return failed_; }

  // From any thread.
  [[nodiscard]] Status status() const;
  [[nodiscard]] const std::vector<std::unique_ptr<Lane>>& lanes() const { return lanes_; }
  [[nodiscard]] const SessionOptions& options() const { return options_; }

 private:
  // What the connecting side's lane and the keep-alive remember of one lane.
  struct LaneMemory {
    std::chrono::milliseconds backoff{0};
    std::uint64_t heard_bytes = 0;
    std::chrono::steady_clock::time_point heard_at;
    bool pinged = false;
    bool keepalive = false;
    std::uint64_t proofs_before = 0;
    bool proof_wanted = false;
    bool displaced = false;  // another session took over: it gets time before we do the same
  };

  asio::awaitable<void> greet_accepted(UniqueFd stream);
  asio::awaitable<void> connect_loop(Address address, unsigned lane);
  // One connection of one lane from connect to end. True when the peer was heard on it.
  asio::awaitable<bool> connect_once(Address address, unsigned lane);
  asio::awaitable<void> keep_alive();

  [[nodiscard]] proto::Hello hello(unsigned lane) const;
  Result<void> attach(unsigned index, UniqueFd stream, Greeting greeting);
  void take_offer(std::span<const std::byte> json);
  void take_offer(const proto::Offer& offer);
  Result<void> make_room(unsigned index, const Greeting& greeting);
  void use_queues();
  void on_lane_end(unsigned index, LaneEnd end);
  void count_end(EndReason reason);
  void note_failure(const std::string& message);
  void set_idle();
  void give_up();
  [[nodiscard]] bool any_running() const;
  // What happens when a coroutine ends by an exception, which none should: log, stop, exit code 1.
  std::function<void(std::exception_ptr)> on_coroutine_end();
  std::chrono::milliseconds next_backoff(unsigned lane);

  asio::io_context& control_;
  Tap& tap_;
  SessionOptions options_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<LaneMemory> memory_;
  std::optional<net::Acceptor> acceptor_;
  std::optional<proto::Offer> offer_;  // listening: what we offer; connecting: the last we got
  std::function<void(const proto::Offer&)> offered_;
  proto::SessionId id_{};  // ours when connecting, the peer's when listening
  proto::Wire wire_ = proto::Wire::plain;
  unsigned agreed_lanes_ = 1;
  unsigned coroutines_ = 0;     // running on the control thread
  unsigned ends_expected_ = 0;  // handlers of lanes that were started
  unsigned greeting_ = 0;       // connections being greeted
  unsigned not_native_ = 0;     // answers in a row that were not native
  bool native_seen_ = false;    // the peer has spoken native before
  bool plain_next_ = false;     // the last peer did not speak the native wire
  asio::steady_timer changed_;  // never expires; a cancel wakes whoever waits for a change
  std::minstd_rand jitter_{std::random_device{}()};
  std::string idle_state_ = "listening";
  std::string last_message_;
  LogBudget peer_log_;  // for lines that a peer can cause
  bool stopping_ = false;
  bool single_stream_ = false;  // an inherited stream: there will be no other
  bool failed_ = false;
  std::function<void()> on_failure_;
  std::function<void()> on_up_;

  mutable std::mutex status_mutex_;
  Status status_;
};

}  // namespace causeway::bridge
