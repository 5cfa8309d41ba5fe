// SPDX-License-Identifier: Apache-2.0
#include "proto/offload.hpp"

#include <array>

#include "proto/checksum.hpp"
#include "proto/headers.hpp"

namespace causeway::proto {

namespace {

constexpr std::array<std::string_view, kOffloadDropCount> kDropNames = {
    "offload_none",
    "offload_flags",
    "offload_type",
    "offload_not_negotiated",
    "offload_ethernet",
    "offload_vlan_depth",
    "offload_ethertype",
    "offload_ip_header",
    "offload_ip_length",
    "offload_fragment",
    "offload_extension_header",
    "offload_protocol",
    "offload_transport_header",
    "offload_checksum_place",
    "offload_gso_size",
    "offload_segments",
};

OffloadDrop drop_of(HeaderStatus status) {
  switch (status) {
    case HeaderStatus::ok:
      return OffloadDrop::none;
    case HeaderStatus::ethernet:
      return OffloadDrop::ethernet;
    case HeaderStatus::vlan_depth:
      return OffloadDrop::vlan_depth;
    case HeaderStatus::ethertype:
      return OffloadDrop::ethertype;
    case HeaderStatus::ip_header:
      return OffloadDrop::ip_header;
    case HeaderStatus::ip_length:
      return OffloadDrop::ip_length;
    case HeaderStatus::fragment:
      return OffloadDrop::fragment;
    case HeaderStatus::extension_header:
      return OffloadDrop::extension_header;
    case HeaderStatus::protocol:
      return OffloadDrop::protocol;
    case HeaderStatus::transport_header:
      return OffloadDrop::transport_header;
  }
  return OffloadDrop::ethernet;
}

// What the fixed part of the header asks for, before the frame is looked at.
OffloadDrop check_request(std::uint8_t flags, std::uint8_t gso_type, const OffloadLimits& limits) {
  if ((flags & ~kVnetNeedsCsum) != 0) return OffloadDrop::flags;
  switch (gso_type) {
    case kGsoNone:
    case kGsoTcp4:
    case kGsoTcp6:
      break;
    case kGsoUdpL4:
      if (!limits.uso) return OffloadDrop::not_negotiated;
      break;
    default:
      return OffloadDrop::type;
  }
  if (!limits.offload) return OffloadDrop::not_negotiated;
  // virtio 1.2, 5.1.6.2: a sender of GSO sets needs-checksum as well; segments cannot keep the
  // checksum of the whole.
  return flags == 0 ? OffloadDrop::flags : OffloadDrop::none;
}

// The GSO type against the frame's own headers.
OffloadDrop check_type(std::uint8_t gso_type, const Headers& at) {
  if ((gso_type == kGsoTcp4 && at.ipv6) || (gso_type == kGsoTcp6 && !at.ipv6)) {
    return OffloadDrop::ethertype;
  }
  const bool tcp = at.protocol == kProtocolTcp;
  if (gso_type != kGsoNone && tcp != (gso_type != kGsoUdpL4)) return OffloadDrop::protocol;
  return OffloadDrop::none;
}

// Fills in the checksum that the kernel left to a device: its field holds the pseudo-header's sum
// and the rest of the frame is summed from `start` on, whatever the protocol. False when the place
// is outside the frame.
bool finish_checksum(std::span<std::byte> frame, std::size_t start, std::size_t offset) {
  if (start + offset + sizeof(std::uint16_t) > frame.size()) return false;
  store_folded(frame, start + offset, checksum_not_zero(sum_bytes(frame.subspan(start))));
  return true;
}

}  // namespace

std::string_view to_string(OffloadDrop drop) {
  return kDropNames.at(static_cast<std::size_t>(drop));
}

OffloadDrop rebuild_offload(const OffloadHeader& received, std::span<const std::byte> frame,
                            const OffloadLimits& limits, VnetHeader& out) {
  out = VnetHeader{};
  const auto flags = static_cast<std::uint8_t>(received.flags & ~kVnetDataValid);
  if (flags == 0 && received.gso_type == kGsoNone) return OffloadDrop::none;
  OffloadDrop drop = check_request(flags, received.gso_type, limits);
  if (drop != OffloadDrop::none) return drop;

  Headers at;
  drop = drop_of(parse_headers(frame, at));
  // `end` is known once the IP header is. parse_headers() leaves padding to its callers; here there
  // is none, and what follows a wrong length is not worth a reason of its own.
  if (at.end != 0 && at.end != frame.size()) return OffloadDrop::ip_length;
  if (drop == OffloadDrop::none) drop = check_type(received.gso_type, at);
  if (drop != OffloadDrop::none) return drop;
  const std::uint16_t checksum_at = at.protocol == kProtocolTcp ? kTcpChecksumAt : kUdpChecksumAt;
  if (received.csum_start != at.l4 || received.csum_offset != checksum_at) {
    return OffloadDrop::checksum_place;  // e.g. inside a tunnel, where we do not look
  }

  VnetHeader rebuilt{.flags = kVnetNeedsCsum, .csum_start = at.l4, .csum_offset = checksum_at};
  if (received.gso_type != kGsoNone) {
    const std::size_t gso_size = received.gso_size;
    if (gso_size < kMinGsoSize || gso_size + (at.payload - at.l3) > limits.mtu) {
      return OffloadDrop::gso_size;
    }
    const std::size_t segments = (at.payload_size() + gso_size - 1) / gso_size;
    if (segments == 0 || segments > kMaxGsoSegments) return OffloadDrop::segments;
    if (segments > 1) {
      rebuilt.gso_type = received.gso_type;
      rebuilt.gso_size = received.gso_size;
      rebuilt.hdr_len = at.payload;
    }
  }
  out = rebuilt;
  return OffloadDrop::none;
}

OffloadDrop prepare_offload(const VnetHeader& header, std::span<std::byte> frame,
                            const OffloadLimits& limits, OffloadHeader& out) {
  out = OffloadHeader{};
  const auto flags = static_cast<std::uint8_t>(header.flags & kVnetNeedsCsum);
  if (flags == 0 && header.gso_type == kGsoNone) return OffloadDrop::none;
  const OffloadHeader asked{.flags = flags,
                            .gso_type = header.gso_type,
                            .gso_size = header.gso_size,
                            .csum_start = header.csum_start,
                            .csum_offset = header.csum_offset};
  VnetHeader rebuilt;
  const OffloadDrop drop = rebuild_offload(asked, frame, limits, rebuilt);
  if (drop == OffloadDrop::none) {
    out = OffloadHeader{.flags = rebuilt.flags,
                        .gso_type = rebuilt.gso_type,
                        .gso_size = rebuilt.gso_size,
                        .csum_start = rebuilt.csum_start,
                        .csum_offset = rebuilt.csum_offset};
    return drop;
  }
  if (header.gso_type == kGsoNone &&
      finish_checksum(frame, header.csum_start, header.csum_offset)) {
    return OffloadDrop::none;
  }
  return drop;
}

}  // namespace causeway::proto
