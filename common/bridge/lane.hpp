// SPDX-License-Identifier: Apache-2.0
// A Lane is one TAP queue and, while one is connected, one stream with a thread that pumps between
// the two. The control thread starts and stops it; the lane's thread touches nothing but its pump,
// and tells the control thread by a posted handler that it has ended. A thread is made for each
// connection: connections are rare, and a thread that is not there cannot hold anything.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "common/bridge/counters.hpp"
#include "common/bridge/pump.hpp"
#include "common/net/asio.hpp"
#include "common/os/unique_fd.hpp"

namespace causeway::bridge {

struct LaneEnd {
  EndReason reason = EndReason::stopped;
  std::uint32_t bad_header = 0;  // with record_* reasons: the header that was refused
};

class Lane {
 public:
  // `tap_queue` is borrowed. `on_end` runs on `control` once for each start(), also after stop();
  // `on_offer` with the body of each offer that came in, not parsed.
  Lane(asio::io_context& control, int tap_queue, std::function<void(LaneEnd)> on_end,
       std::function<void(std::span<const std::byte>)> on_offer);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Takes over a connected stream; `prefill` was read from it already. Not while running().
  Result<void> start(UniqueFd stream, const PumpSettings& settings, std::vector<std::byte> prefill);
  // Ends the pump, if one runs, and waits for its thread (it never blocks outside
  // poll(), but finishes the batch in hand).
  void stop(EndReason reason);
  // Has the pump send a ping.
  void request_ping();
  // Has the pump send this offer; a later one takes the place of one that is not sent yet.
  void send_offer(std::vector<std::byte> json);
  // Has the pump show that it runs: proofs() of its counters goes up by one, soon.
  void request_proof();
  [[nodiscard]] bool running() const { return running_; }
  [[nodiscard]] const LaneCounters& counters() const { return counters_; }

 private:
  void keep_offer(std::span<const std::byte> json);
  void thread_main(std::uint64_t generation, PumpSettings settings, std::vector<std::byte> prefill);

  asio::io_context& control_;
  int tap_queue_;
  std::function<void(LaneEnd)> on_end_;
  std::function<void(std::span<const std::byte>)> on_offer_;
  std::mutex offer_mutex_;
  std::vector<std::byte> offer_;
  bool offer_posted_ = false;
  LaneCounters counters_;
  PumpBuffers buffers_;
  std::unique_ptr<PumpControl> pump_control_;
  UniqueFd stream_;
  std::thread thread_;
  std::uint64_t generation_ = 0;
  bool running_ = false;
};

}  // namespace causeway::bridge
