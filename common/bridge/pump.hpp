// SPDX-License-Identifier: Apache-2.0
// Theory of operation: the pump.
//
// One Pump moves frames between one TAP queue and one stream, on the one thread that calls run().
// Both directions share that thread: on two cores a thread for each direction costs wake-ups and
// gains nothing (tests/bench/NOTES.md has the figures).
//
//   towards the wire: read the TAP without blocking into the slab until it is dry or the slab is
//   full, then send the slab in writes of at most max_write bytes. No timer: a lone frame leaves at
//   once, and a batch forms only when frames are waiting anyway. While the stream takes no more,
//   the TAP is not read: its queue fills, and the kernel counts what it drops.
//
//   from the wire: one recv() of all that is there, decode in place, one TAP write a record. A
//   short recv() means that the stream is dry, so no second one asks again.
//
// The loop waits in poll(2) on three descriptors. Asio's reactor would add an epoll_ctl() to every
// wait; poll() on three descriptors costs less than that one call. There is no allocation, no lock,
// no clock, no log and no virtual call per packet; buffers are made once and live with the lane.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "common/bridge/counters.hpp"
#include "common/os/unique_fd.hpp"
#include "common/result.hpp"
#include "proto/record.hpp"

namespace causeway::bridge {

// How other threads reach a running pump.
class PumpControl {
 public:
  static Result<std::unique_ptr<PumpControl>> create();

  // Makes run() return `reason`; the first reason given wins. Safe from any thread.
  void stop(EndReason reason);
  [[nodiscard]] int event_fd() const { return event_.get(); }
  // Clears the event and gives the reason to stop for, or count_ when there is none.
  EndReason take();
  // Makes the control good for the next run().
  void reset();

 private:
  explicit PumpControl(UniqueFd event) : event_(std::move(event)) {}
  UniqueFd event_;
  std::atomic<EndReason> reason_{EndReason::count_};
};

struct PumpSettings {
  proto::Wire wire = proto::Wire::plain;
  std::uint32_t max_frame = proto::kMaxFrame;  // bytes: longest frame that either side may send
  std::size_t max_write = 256 * 1024;          // bytes: most that one send() is given
};

// A lane's memory, reused over its connections.
class PumpBuffers {
 public:
  PumpBuffers();
  [[nodiscard]] std::span<std::byte> slab() { return {slab_.get(), kSlab}; }
  [[nodiscard]] std::span<std::byte> reader() { return {reader_.get(), proto::kReaderStorage}; }

 private:
  // Room for two of the longest super-frames: a fill stops when less than one would fit.
  static constexpr std::size_t kSlab = 192 * 1024;
  std::unique_ptr<std::byte[]> slab_;
  std::unique_ptr<std::byte[]> reader_;
};

class Pump {
 public:
  // Borrows all of its arguments; `tap` and `stream` must be non-blocking.
  Pump(int tap, int stream, const PumpSettings& settings, PumpBuffers& buffers,
       LaneCounters& counters, PumpControl& control);

  // Bytes that were read from the stream before the pump had it; they come first.
  void feed(std::span<const std::byte> bytes);
  // Pumps until the connection ends. Blocks.
  EndReason run();
  // The record header that ended the connection, for the log.
  [[nodiscard]] std::uint32_t bad_header() const { return reader_.last_header(); }

 private:
  // Each step returns count_ to go on, or why the connection ends.
  EndReason step_to_wire();
  EndReason step_from_wire();
  EndReason send_pending();
  EndReason decode_all();
  bool fill_from_tap(EndReason& end);
  void write_tap(const proto::Record& record);

  int tap_;
  int stream_;
  PumpSettings settings_;
  LaneCounters& counters_;
  PumpControl& control_;
  proto::RecordReader reader_;
  proto::RecordWriter writer_;
};

}  // namespace causeway::bridge
