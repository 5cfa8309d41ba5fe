// SPDX-License-Identifier: Apache-2.0
// What the data plane counts. Each counter has one writer, the lane's thread, so an increment is a
// plain load, add and store (no locked instruction); any thread may read. Reasons come from fixed
// lists, so that nothing a peer sends can make a new one.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "common/counter.hpp"
#include "proto/offload.hpp"
#include "proto/segment.hpp"

namespace causeway::bridge {

// Why a frame was dropped; the connection goes on. Three lists laid end to end: what the TAP
// refuses, why a received super-frame is not written (proto::OffloadDrop), and why a frame from
// the TAP cannot be sent (proto::SegmentStatus). Entry 0 of the latter two means "not dropped".
enum class DropReason : std::uint8_t {
  tap_write_invalid,  // the kernel refused the frame (EINVAL)
  tap_write_down,     // the TAP's link is down (EIO)
  tap_write_error,    // any other error of the TAP write
  own_count_
};
inline constexpr auto kOwnDrops = static_cast<std::size_t>(DropReason::own_count_);
inline constexpr std::size_t kDropReasons =
    kOwnDrops + proto::kOffloadDropCount + proto::kSegmentStatusCount;
constexpr DropReason drop_reason(proto::OffloadDrop drop) {
  return static_cast<DropReason>(kOwnDrops + static_cast<std::size_t>(drop));
}
constexpr DropReason drop_reason(proto::SegmentStatus status) {
  return static_cast<DropReason>(kOwnDrops + proto::kOffloadDropCount +
                                 static_cast<std::size_t>(status));
}

// Why a connection ended, or was not begun.
enum class EndReason : std::uint8_t {
  peer_closed,          // end of stream between records
  truncated,            // end of stream inside a record
  record_too_short,     // a length below the lower bound
  record_too_long,      // a length above the upper bound
  unknown_record_type,  // native wire
  control_malformed,    // native wire
  stream_reset,         // ECONNRESET
  stream_broken,        // EPIPE
  stream_no_buffers,    // ENOBUFS: a kernel that bounds queued vsock buffers reset the stream
  stream_no_device,     // ENODEV, ENETUNREACH: the vsock transport went away
  stream_timed_out,     // ETIMEDOUT
  stream_error,         // any other error of the stream
  bye,                  // the peer said so
  bye_replaced,         // the peer said that a newer session of this guest took over
  keepalive_timeout,    // nothing was heard for three keep-alive intervals
  replaced,             // a newer connection or session took its place
  stopped,              // this program is stopping
  renewed,              // ended by us, to agree anew after a change of the configuration
  handshake_malformed,  // the preface or hello could not be read
  handshake_refused,    // no agreement, on either side
  handshake_timeout,    // the hello did not come in time
  handshake_fallback,   // the peer does not speak the native wire; the plain wire is next
  too_many_handshakes,  // more connections at once than are greeted
  tap_error,            // reading the TAP failed
  count_
};
inline constexpr auto kEndReasons = static_cast<std::size_t>(EndReason::count_);

std::string_view name(DropReason reason);  // empty for the entries that mean "not dropped"
std::string_view name(EndReason reason);

// The reason for an errno of the stream.
EndReason end_reason_of(int code);

// One lane's counters; a cache line of their own keeps two lanes' threads apart.
struct alignas(64) LaneCounters {
  Counter from_tap_frames, from_tap_bytes;
  Counter to_tap_frames, to_tap_bytes;  // TAP writes, and the bytes of Ethernet in them
  Counter from_wire_records, from_wire_bytes, from_wire_reads;
  Counter to_wire_records, to_wire_bytes, to_wire_writes;
  Counter pings_sent, pongs_received, pings_received, unknown_controls;
  Counter proofs;  // how often the lane's thread showed that it runs, for the watchdog
  std::array<Counter, kDropReasons> dropped;

  void drop(DropReason reason) { dropped[static_cast<std::size_t>(reason)].add(); }
};

}  // namespace causeway::bridge
