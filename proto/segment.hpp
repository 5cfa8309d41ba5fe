// SPDX-License-Identifier: Apache-2.0
// Theory of operation: from a super-frame to plain records.
//
// With offloads on, one read of the TAP gives a frame of up to 64 KiB that the kernel has not cut
// to the MTU and whose checksums it has not filled in. A plain peer takes complete frames only, so
// this does what a network card would have done: begin() looks at the frame and its vnet header
// once and prepares the headers that all segments share with their sums; fill() then writes records
// (u32be length | frame) into the slab, each a copy of those headers with its own fields patched
// and a slice of the payload, which is summed while it is copied. When the slab has no room for the
// next record fill() stops there, the caller sends what it has and calls fill() again.
//
// Frames that need less take the same way: with a checksum left to fill in they are copied and
// summed, complete ones are copied. Nothing is allocated. The vnet header comes from our own
// kernel; it is checked all the same, because a wrong one must cost a frame and not the process.
//
// Segments are as RFC 9293 and the kernel's own GSO make them: sequence numbers and IPv4
// identifications count up, FIN and PSH are on the last one only, CWR is on the first one only
// (RFC 3168 6.1.2).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "proto/checksum.hpp"
#include "proto/headers.hpp"
#include "proto/record.hpp"
#include "proto/vnet.hpp"

namespace causeway::proto {

// Why a frame from the TAP cannot go onto the plain wire. All but ok are drops.
enum class SegmentStatus : std::uint8_t {
  ok,
  frame_too_short,  // below 14 bytes
  frame_too_long,   // the (first) record would be above the peer's max_frame
  gso_type,         // not one of none, TCPv4, TCPv6, UDP_L4, or ECN with another than TCP
  gso_size,         // 0
  checksum_place,   // csum_start and csum_offset do not lead to a 16-bit word of the frame
  ethertype,        // this and the following: a super-frame whose headers cannot be read (see
  vlan_depth,       // HeaderStatus), or are not those of its gso_type
  ip_header,
  ip_length,  // also: the IP packet does not end with the frame
  fragment,
  extension_header,
  protocol,
  transport_header,
};
inline constexpr std::size_t kSegmentStatusCount = 14;

// For counters and logs, a fixed string: "frame_too_long", "segment_gso_type", ...
const char* segment_status_name(SegmentStatus status);

class Segmenter {
 public:
  struct Filled {
    std::size_t bytes = 0;    // of the slab, from its front
    std::size_t records = 0;  // complete records in them
  };

  explicit Segmenter(std::uint32_t max_frame = kMaxFrame) : max_frame_(max_frame) {}

  // Takes up `frame`, which must stay as it is until done(). Whatever was left of the frame before
  // is forgotten. After any status but ok, done() is true.
  SegmentStatus begin(std::span<const std::byte> frame, const VnetHeader& header);

  // Writes as many whole records as fit. {0, 0} without done() means that `slab` is too small for
  // the next record: one of 4 + max_frame bytes never is.
  Filled fill(std::span<std::byte> slab);

  [[nodiscard]] bool done() const { return done_; }

 private:
  enum class Kind : std::uint8_t { copy, checksum, tcp, udp };

  SegmentStatus begin_gso(const VnetHeader& header);
  void prepare_headers();
  std::size_t write_record(std::span<std::byte> slab);
  void write_segment(std::span<std::byte> record, std::span<const std::byte> payload);

  std::span<const std::byte> frame_;
  std::uint32_t max_frame_;
  bool done_ = true;
  Kind kind_ = Kind::copy;
  std::uint8_t tcp_flags_ = 0;
  Headers at_;
  std::uint16_t checksum_start_ = 0;  // Kind::checksum
  std::uint16_t checksum_at_ = 0;
  std::size_t step_ = 0;    // payload bytes in every record but the last
  std::size_t offset_ = 0;  // payload bytes already written
  std::uint16_t id_ = 0;    // IPv4 identification of the next record
  std::uint32_t sequence_ = 0;
  Sum ip_sum_ = 0;  // of the IPv4 header without length, identification and checksum
  Sum l4_sum_ = 0;  // of pseudo- and transport header without lengths, sequence, flags, checksum
  // What every record starts with: room for its length, then all headers.
  std::array<std::byte, kRecordHeaderSize + kMaxHeaders> prefix_;
};

}  // namespace causeway::proto
