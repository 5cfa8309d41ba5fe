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
// The TAP always gives and takes super-frames. With the `offload` feature they cross the wire
// whole, behind an offload header that the receiver rebuilds from the frame (proto/offload.hpp). A
// peer without it gets frames cut to the MTU with their checksums filled in (proto/segment.hpp).
// What comes as single frames, from either, is merged before the TAP write (proto/coalesce.hpp),
// since a TAP write costs about the same for 1,500 bytes as for 64 KiB. Both live within one batch.
//
// The loop waits in poll(2) on three descriptors, after `busy_poll` looks without waiting
// where an answer is likely. Asio's
// reactor would add an epoll_ctl() to every wait; poll() on three descriptors costs less than that
// one call. There is no allocation, no lock, no clock, no log and no virtual call per packet;
// buffers are made once and live with the lane.
#pragma once

#include <poll.h>
#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "common/bridge/counters.hpp"
#include "common/os/unique_fd.hpp"
#include "common/result.hpp"
#include "proto/coalesce.hpp"
#include "proto/control.hpp"
#include "proto/offload.hpp"
#include "proto/record.hpp"
#include "proto/segment.hpp"

namespace causeway::bridge {

// How other threads reach a running pump. All of it is safe from any thread.
class PumpControl {
 public:
  static Result<std::unique_ptr<PumpControl>> create();

  struct Requests {
    EndReason stop = EndReason::count_;  // count_: go on
    bool ping = false;
    bool proof = false;
    std::vector<std::byte> offer;  // to send; empty: none
  };

  // Makes run() return `reason`; the first reason given wins.
  void stop(EndReason reason);
  void request_ping();
  void request_proof();
  void send_offer(std::vector<std::byte> json);
  [[nodiscard]] int event_fd() const { return event_.get(); }
  // Clears the event and gives what was asked for since.
  Requests take();

 private:
  explicit PumpControl(UniqueFd event) : event_(std::move(event)) {}
  void signal();

  UniqueFd event_;
  std::atomic<EndReason> reason_{EndReason::count_};
  std::atomic<bool> ping_{false};
  std::atomic<bool> proof_{false};
  std::mutex offer_mutex_;  // taken once for each offer, never for a frame
  std::vector<std::byte> offer_;
};

struct PumpSettings {
  proto::Wire wire = proto::Wire::plain;
  bool offload = false;                        // super-frames cross the wire
  bool uso = false;                            // UDP segmentation may be used
  std::uint32_t mtu = 1500;                    // bytes: the lower of both sides'
  std::uint32_t max_frame = proto::kMaxFrame;  // bytes: longest frame that either side may send
  std::size_t max_write = std::size_t{256} * 1024;  // bytes: most that one send() is given
  unsigned busy_poll = 0;                           // looks before the thread sleeps
};

// The longest frame that a TAP can give: an IP packet of 65,535 bytes behind an Ethernet header and
// a VLAN tag, rounded up. Those few above kMaxFrame are cut into segments.
inline constexpr std::size_t kMaxTapFrame = 65'568;

// A lane's memory, reused over its connections.
class PumpBuffers {
 public:
  PumpBuffers();
  [[nodiscard]] std::span<std::byte> slab() { return {slab_.get(), kSlab}; }
  [[nodiscard]] std::span<std::byte> reader() { return {reader_.get(), proto::kReaderStorage}; }
  [[nodiscard]] std::span<std::byte> scratch() { return {scratch_.get(), kMaxTapFrame}; }

 private:
  // Room for several of the longest super-frames: a fill stops when one might not fit any more.
  static constexpr std::size_t kSlab = std::size_t{256} * 1024;
  std::unique_ptr<std::byte[]> slab_;
  std::unique_ptr<std::byte[]> reader_;
  std::unique_ptr<std::byte[]> scratch_;
};

class Pump {
 public:
  // Borrows all of its arguments; `tap` and `stream` must be non-blocking.
  Pump(int tap, int stream, const PumpSettings& settings, PumpBuffers& buffers,
       LaneCounters& counters, PumpControl& control);

  // Bytes that were read from the stream before the pump had it; they come first.
  void feed(std::span<const std::byte> bytes);
  // Called on the pump's thread with the body of an offer_changed record.
  void on_offer(std::function<void(std::span<const std::byte>)> handler) {
    on_offer_ = std::move(handler);
  }
  // Pumps until the connection ends. Blocks.
  EndReason run();
  // The record header that ended the connection, for the log.
  [[nodiscard]] std::uint32_t bad_header() const { return reader_.last_header(); }

 private:
  struct TapSink;
  enum class Fill : std::uint8_t { dry, slab_full, failed };
  // count_ as an EndReason means "go on".
  bool wait(std::span<pollfd> waits, bool answer_likely) const;
  EndReason step_to_wire();
  EndReason step_from_wire();
  EndReason send_pending();
  EndReason last_words(EndReason failed);
  EndReason decode_all();
  EndReason take_control_record(std::span<const std::byte> payload);
  EndReason handle_requests();
  Fill fill_super_frames();
  Fill fill_segments();
  bool drain_segmenter();
  void queue_control();
  void queue_offer();
  void say_bye(proto::ByeReason reason);
  void take_frame(const proto::Record& record);
  void write_tap(std::span<const iovec> pieces);

  int tap_;
  int stream_;
  PumpSettings settings_;
  proto::OffloadLimits limits_;
  std::span<std::byte> scratch_;
  LaneCounters& counters_;
  PumpControl& control_;
  proto::RecordReader reader_;
  proto::RecordWriter writer_;
  proto::Segmenter segmenter_;
  proto::Coalescer coalescer_;
  bool ping_wanted_ = false;
  std::optional<std::uint64_t> pong_wanted_;
  std::vector<std::byte> offer_wanted_;
  std::function<void(std::span<const std::byte>)> on_offer_ = [](std::span<const std::byte>) {};
};

}  // namespace causeway::bridge
