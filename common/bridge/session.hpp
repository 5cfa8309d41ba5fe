// SPDX-License-Identifier: Apache-2.0
// Theory of operation: the session.
//
// A Session ties one TAP to the streams of one peer. It lives on the control thread: coroutines
// accept or connect, and hand each connected stream to a Lane, whose own thread pumps frames.
//
//   listening side: accept for ever. The newest connection replaces an older one, because an
//   enclave that was restarted connects while the helper still believes in the dead connection.
//   connecting side: connect, pump until the connection ends, wait, connect again with a fresh
//   socket. The wait doubles from 50 ms to 2 s with jitter, and starts over once a connection has
//   lasted. The TAP stays up throughout, so a TCP connection in the guest lives through the gap.
//
// The admin thread reads a Status, a copy made under a lock that only the control thread and the
// admin thread ever take; the lanes' counters it reads directly.
#pragma once

#include <array>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "common/bridge/counters.hpp"
#include "common/bridge/lane.hpp"
#include "common/bridge/tap.hpp"
#include "common/net/address.hpp"
#include "common/net/asio.hpp"
#include "common/net/stream.hpp"

namespace causeway::bridge {

enum class WireChoice : std::uint8_t { automatic, plain, native };
std::string_view name(WireChoice choice);
std::string_view name(proto::Wire wire);

struct SessionOptions {
  WireChoice wire = WireChoice::automatic;
  std::uint32_t max_frame = proto::kMaxFrame;  // bytes, what we take and what we send
  std::uint64_t max_write = 0;                 // bytes; 0: by the kind of socket
  net::StreamOptions stream;
  std::chrono::milliseconds connect_timeout{2000};
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
    std::vector<LaneStatus> lanes;
    std::uint64_t connections_total = 0, replaced_total = 0, connect_failures_total = 0;
    std::array<std::uint64_t, kEndReasons> ended{};
    std::string last_error;
  };

  Session(asio::io_context& control, Tap& tap, SessionOptions options);

  // Coroutines for the control thread; they return once stop() was called or the TAP is gone.
  asio::awaitable<void> listen(net::Listener listener);
  asio::awaitable<void> connect(Address address);

  // Ends all lanes; from the control thread.
  void stop();
  // The TAP could not be read any more: the program cannot go on.
  [[nodiscard]] bool tap_lost() const { return tap_lost_; }

  // From any thread.
  [[nodiscard]] Status status() const;
  [[nodiscard]] const std::vector<std::unique_ptr<Lane>>& lanes() const { return lanes_; }
  [[nodiscard]] const SessionOptions& options() const { return options_; }

 private:
  Result<void> attach(UniqueFd stream);
  void on_lane_end(std::size_t index, LaneEnd end);
  void set_state(std::string state);
  std::chrono::milliseconds next_backoff();

  asio::io_context& control_;
  Tap& tap_;
  SessionOptions options_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  asio::steady_timer lane_ended_;  // never expires; a cancel wakes the connecting coroutine
  std::minstd_rand jitter_{std::random_device{}()};
  std::chrono::milliseconds backoff_{0};
  std::string idle_state_ = "listening";
  bool stopping_ = false;
  bool tap_lost_ = false;

  mutable std::mutex status_mutex_;
  Status status_;
};

}  // namespace causeway::bridge
