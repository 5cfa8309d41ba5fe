// SPDX-License-Identifier: Apache-2.0
// What the data plane counts. Each counter has one writer, the lane's thread, so an increment is a
// plain load, add and store (no locked instruction); any thread may read. Reasons come from fixed
// lists, so that nothing a peer sends can make a new one.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

namespace causeway::bridge {

class Counter {
 public:
  void add(std::uint64_t amount = 1) {
    value_.store(value_.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

// Why a frame was dropped. The connection goes on.
enum class DropReason : std::uint8_t {
  tap_write_invalid,  // the kernel refused the frame (EINVAL)
  tap_write_down,     // the TAP's link is down (EIO)
  tap_write_error,    // any other error of the TAP write
  frame_too_long,     // from the TAP, longer than the peer takes
  frame_too_short,    // from the TAP, shorter than an Ethernet header
  count_
};

// Why a connection ended.
enum class EndReason : std::uint8_t {
  peer_closed,          // end of stream between records
  truncated,            // end of stream inside a record
  record_too_short,     // a length below the lower bound
  record_too_long,      // a length above the upper bound
  unknown_record_type,  // native wire
  stream_error,         // reset, broken pipe, and other errors of the stream
  replaced,             // a newer connection took its place
  stopped,              // this program is stopping
  tap_error,            // reading the TAP failed
  count_
};

inline constexpr auto kDropReasons = static_cast<std::size_t>(DropReason::count_);
inline constexpr auto kEndReasons = static_cast<std::size_t>(EndReason::count_);

std::string_view name(DropReason reason);
std::string_view name(EndReason reason);

// One lane's counters; a cache line of their own keeps two lanes' threads apart.
struct alignas(64) LaneCounters {
  Counter from_tap_frames, from_tap_bytes;
  Counter to_tap_frames, to_tap_bytes;
  Counter from_wire_records, from_wire_bytes, from_wire_reads;
  Counter to_wire_records, to_wire_bytes, to_wire_writes;
  std::array<Counter, kDropReasons> dropped;

  void drop(DropReason reason) { dropped[static_cast<std::size_t>(reason)].add(); }
};

}  // namespace causeway::bridge
