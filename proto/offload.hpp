// SPDX-License-Identifier: Apache-2.0
// Theory of operation: the offload header of a super-frame (PROTOCOL.md, "Offload header").
//
// A super-frame carries, in front of the Ethernet frame, what the sending kernel left undone: a
// checksum to fill in, a payload to cut into segments. The peer is not trusted, and the kernel
// believes much of what a virtio_net_hdr says: it takes a gso_size of 1, it does not compare the IP
// length with the frame, and it hands the frame to code that has had bugs for exactly such headers.
// So nothing of the received header reaches the TAP. rebuild_offload() reads the frame's own
// headers and makes a new virtio_net_hdr from them; the received fields only say which of the few
// allowed things is asked for, and must agree with what was found.
//
// prepare_offload() is the other direction: it makes the header to send from what the TAP gave. It
// holds our own frames against the same rules, so that nothing is sent that a peer would drop
// without the caller's knowing.
//
// Both run once per frame: no allocation, and no look at the frame when nothing is left undone.
// Sources: virtio 1.2 section 5.1.6; the kernel's uapi/linux/virtio_net.h (the layout) and
// linux/virtio_net.h (what a write to a TAP checks).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "proto/record.hpp"
#include "proto/vnet.hpp"

namespace causeway::proto {

inline constexpr std::uint32_t kMinGsoSize = 512;      // bytes of payload in a segment
inline constexpr std::uint32_t kMaxGsoSegments = 128;  // the kernel's UDP_MAX_SEGMENTS, for TCP too

struct OffloadLimits {
  std::uint32_t mtu = 0;  // of the session: the lower of both sides', bytes of IP packet
  bool offload = false;   // `offload` was negotiated
  bool uso = false;       // `uso` was negotiated
};

// Why a super-frame is dropped; one counter each, named offload_* (to_string).
enum class OffloadDrop : std::uint8_t {
  none,              // not dropped
  flags,             // a flag other than needs-checksum, or GSO without it
  type,              // a GSO type that no peer may send (UFO, tunnels, ECN, unknown)
  not_negotiated,    // USO, or any offload at all, without its feature
  ethernet,          // no room for the Ethernet header and its tag
  vlan_depth,        // more than one VLAN tag
  ethertype,         // neither IPv4 nor IPv6, or not the one of the GSO type
  ip_header,         // wrong version or header length
  ip_length,         // the IP packet does not end with the frame
  fragment,          // an IP fragment
  extension_header,  // IPv6 with an extension header
  protocol,          // neither TCP nor UDP, or not the one of the GSO type
  transport_header,  // TCP header or UDP length that does not fit the IP packet
  checksum_place,    // csum_start or csum_offset are not those of the transport header
  gso_size,          // below kMinGsoSize, or segments would be longer than the MTU
  segments,          // no payload, or more than kMaxGsoSegments segments
};
inline constexpr std::size_t kOffloadDropCount = 16;

// "offload_flags", ...; a fixed string, also for `none`.
std::string_view to_string(OffloadDrop drop);

// The header for the TAP write of a received super-frame. Flags are 0 or kVnetNeedsCsum only
// (kVnetDataValid is accepted and cleared: we verified nothing). A frame that would make one
// segment comes out with kGsoNone. `out` is all zero unless the result is `none`.
OffloadDrop rebuild_offload(const OffloadHeader& received, std::span<const std::byte> frame,
                            const OffloadLimits& limits, VnetHeader& out);

// The header to send with a frame that the TAP gave with `header`, against the peer's limits. A
// checksum that the peer would not take as an offload (another protocol, an IPv6 extension header,
// offload not negotiated) is filled into `frame` here, and the frame goes without. For a
// super-frame that the peer would drop the reason comes back: the caller segments it
// (proto/segment.hpp) and sends the segments, or counts the drop.
OffloadDrop prepare_offload(const VnetHeader& header, std::span<std::byte> frame,
                            const OffloadLimits& limits, OffloadHeader& out);

}  // namespace causeway::proto
