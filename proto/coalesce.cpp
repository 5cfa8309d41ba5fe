// SPDX-License-Identifier: Apache-2.0
#include "proto/coalesce.hpp"

#include <algorithm>
#include <cstring>

#include "proto/bytes.hpp"
#include "proto/checksum.hpp"
#include "proto/record.hpp"

namespace causeway::proto {

namespace {

constexpr std::uint8_t kFin = 0x01;
constexpr std::uint8_t kSyn = 0x02;
constexpr std::uint8_t kRst = 0x04;
constexpr std::uint8_t kPsh = 0x08;
constexpr std::uint8_t kUrg = 0x20;
constexpr std::uint8_t kCwr = 0x80;
// A frame with one of these neither joins a group nor opens one. CWR would have to be marked for
// the kernel (VIRTIO_NET_HDR_GSO_ECN) and means something else under accurate ECN; it is rare.
constexpr std::uint8_t kNeverMerged = kSyn | kRst | kUrg | kCwr;
constexpr std::uint8_t kLastOnly = kFin | kPsh;

constexpr std::uint16_t kDontFragment = 0x4000;

bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b, std::size_t at,
                std::size_t size) {
  return std::memcmp(a.subspan(at, size).data(), b.subspan(at, size).data(), size) == 0;
}

// Both with the same l3 and without options.
bool same_ip_header(std::span<const std::byte> a, std::span<const std::byte> b, const Headers& at) {
  if (at.ipv6) {
    return same_bytes(a, b, at.l3, 4) && same_bytes(a, b, at.l3 + 6U, 2);
  }
  return same_bytes(a, b, at.l3, 2) && same_bytes(a, b, at.l3 + 6U, 4);
}

// Both with the same l4; addresses and ports are the flow's and equal already. The header lengths
// are compared before the options, so these have the same size in both.
bool same_tcp_header(std::span<const std::byte> a, std::span<const std::byte> b,
                     const Headers& at) {
  const auto flags_differ =
      static_cast<unsigned>(load_u8(a, at.l4 + 13U)) ^ load_u8(b, at.l4 + 13U);
  return (flags_differ & ~unsigned{kLastOnly}) == 0 &&
         same_bytes(a, b, at.l4 + 8U, 5) &&                        // acknowledgement, header length
         same_bytes(a, b, at.l4 + 14U, 2) &&                       // window
         same_bytes(a, b, at.l4 + 18U, at.payload - at.l4 - 18U);  // urgent pointer, options
}

bool checksums_right(std::span<const std::byte> frame, const Headers& at, const VnetHeader& vnet) {
  if (!at.ipv6 && !verifies(sum_bytes(frame.subspan(at.l3, kIpv4Header)))) {
    return false;
  }
  if ((vnet.flags & kVnetNeedsCsum) != 0) {
    return true;  // still to be filled in, as it will be in the merged frame
  }
  const auto length = static_cast<std::uint16_t>(at.end - at.l4);
  return verifies(pseudo_header_sum(address_pair(frame, at), at.protocol, length) +
                  sum_bytes(frame.subspan(at.l4, length)));
}

// Whether a frame of a known flow may be part of a group at all.
bool mergeable(std::span<const std::byte> frame, const Headers& at) {
  if (at.ip_options() || at.end != frame.size() || at.payload_size() == 0) {
    return false;
  }
  if (at.protocol == kProtocolUdp) {
    return load_be16(frame, at.l4 + kUdpChecksumAt) != 0;
  }
  return (load_u8(frame, at.l4 + 13U) & kNeverMerged) == 0;
}

// The largest payload of a group whose headers are as in `at`.
std::size_t payload_room(const Headers& at) {
  const std::size_t ip_room = std::min<std::size_t>(65'535, kMaxFrame - at.l3);
  return ip_room - (at.payload - at.l3);
}

iovec piece(std::span<std::byte> bytes) {
  return iovec{.iov_base = bytes.data(), .iov_len = bytes.size()};
}

// Edits the headers of a merged frame in `head` and says the rest to the kernel.
void finish_headers(std::span<std::byte> head, const Headers& at, std::size_t payload,
                    std::uint8_t last_flags) {
  const auto ip_length = static_cast<std::uint16_t>(at.payload - at.l3 + payload);
  const auto l4_length = static_cast<std::uint16_t>(at.payload - at.l4 + payload);
  if (at.ipv6) {
    store_be16(head, at.l3 + 4U, l4_length);
  } else {
    store_be16(head, at.l3 + 2U, ip_length);
    store_be16(head, at.l3 + 10U, 0);
    store_folded(head, at.l3 + 10U, checksum(sum_bytes(head.subspan(at.l3, kIpv4Header))));
  }
  std::size_t checksum_at = at.l4 + std::size_t{kTcpChecksumAt};
  if (at.protocol == kProtocolTcp) {
    const auto flags = static_cast<unsigned>(load_u8(head, at.l4 + 13U)) | last_flags;
    store_u8(head, at.l4 + 13U, static_cast<std::uint8_t>(flags));
  } else {
    store_be16(head, at.l4 + 4U, l4_length);
    checksum_at = at.l4 + std::size_t{kUdpChecksumAt};
  }
  store_folded(head, checksum_at,
               fold(pseudo_header_sum(address_pair(head, at), at.protocol, l4_length)));
}

}  // namespace

void Coalescer::add(std::span<std::byte> frame, const VnetHeader& vnet, WriteSink sink) {
  ++counters_.frames;
  if (vnet.gso_type != kGsoNone) {  // merged by the sender already; smaller ones go before it
    flush(sink);
    pass(frame, vnet, sink);
    return;
  }
  Frame next{.bytes = frame, .at = {}, .key = {}, .vnet = vnet};
  const HeaderStatus status = parse_headers(frame, next.at);
  const Headers& at = next.at;
  if (status != HeaderStatus::ok) {
    // Other protocols are other flows; for the rest nobody can tell.
    if (status != HeaderStatus::ethertype && status != HeaderStatus::protocol) {
      flush(sink);
    }
    pass(frame, vnet, sink);
    return;
  }
  const bool may_merge = (at.protocol == kProtocolTcp || uso_) && mergeable(frame, at);
  if (!may_merge && open_ == 0) {  // most of all: acknowledgements of bulk the other way
    pass(frame, vnet, sink);
    return;
  }
  next.key.ports = std::uint64_t{load_be32(frame, at.l4)} << 32 |
                   static_cast<std::uint64_t>(at.protocol) << 8 | (at.ipv6 ? 6U : 4U);
  const std::span<const std::byte> addresses = address_pair(frame, at);
  std::memcpy(next.key.addresses.data(), addresses.data(), addresses.size());

  for (std::size_t position = open_; position-- > 0;) {
    Group& group = groups_[order_[position]];
    if (group.head.key != next.key) {
      continue;
    }
    const Joined joined = may_merge ? join(group, next) : Joined::no;
    if (joined == Joined::open) {
      return;
    }
    close(position, sink);
    if (joined == Joined::complete) {
      return;
    }
    if (joined == Joined::bad_frame) {
      pass(frame, vnet, sink);
      return;
    }
    break;
  }
  // PSH and FIN mean that nothing will follow, so there is nothing to wait for.
  const bool last = at.protocol == kProtocolTcp && (load_u8(frame, at.l4 + 13U) & kLastOnly) != 0;
  if (may_merge && !last) {
    open(next, sink);
  } else {
    pass(frame, vnet, sink);
  }
}

void Coalescer::flush(WriteSink sink) {
  while (open_ > 0) {
    close(0, sink);
  }
}

Coalescer::Joined Coalescer::join(Group& group, const Frame& frame) {
  const Headers& at = frame.at;
  const std::span<const std::byte> bytes = frame.bytes;
  const std::span<const std::byte> head = group.head.bytes;
  const bool tcp = at.protocol == kProtocolTcp;
  const std::size_t size = at.payload_size();
  // Equal Ethernet headers have equal ethertypes, so from here on both have the same l3 and l4.
  if (size > group.gso_size || group.payload + size > payload_room(at) ||
      !same_bytes(bytes, head, 0, at.l3) || !same_ip_header(bytes, head, at)) {
    return Joined::no;
  }
  std::uint16_t id = 0;
  bool fixed_id = false;
  if (!at.ipv6) {
    id = load_be16(bytes, at.l3 + 4U);
    const bool may_stay = (load_be16(bytes, at.l3 + 6U) & kDontFragment) != 0;
    fixed_id = group.frames == 1 ? may_stay && id == group.id : group.fixed_id;
    if (id != static_cast<std::uint16_t>(group.id + (fixed_id ? 0 : 1))) {
      return Joined::no;
    }
  }
  std::uint8_t flags = 0;
  if (tcp) {
    const auto expected = load_be32(head, at.l4 + 4U) + static_cast<std::uint32_t>(group.payload);
    if (load_be32(bytes, at.l4 + 4U) != expected || !same_tcp_header(bytes, head, at)) {
      return Joined::no;
    }
    flags = load_u8(bytes, at.l4 + 13U) & kLastOnly;
  }
  // Only now, because this reads the whole frame; a frame that stays alone is never summed.
  if (!group.verified) {
    if (!checksums_right(head, group.head.at, group.head.vnet)) {
      ++counters_.bad_checksum;
      return Joined::no;
    }
    group.verified = true;
  }
  if (!checksums_right(bytes, at, frame.vnet)) {
    ++counters_.bad_checksum;
    return Joined::bad_frame;
  }
  group.id = id;
  group.fixed_id = fixed_id;
  group.flags = flags;
  group.payload += size;
  ++group.frames;
  group.pieces[group.frames] = piece(frame.bytes.subspan(at.payload));
  const bool complete =
      size < group.gso_size || flags != 0 || group.frames == (tcp ? kMaxSegments : kMaxUdpSegments);
  return complete ? Joined::complete : Joined::open;
}

void Coalescer::open(const Frame& frame, WriteSink sink) {
  if (open_ == kGroups) {
    close(0, sink);
  }
  Group& group = groups_[order_[open_]];
  ++open_;
  group.head = frame;
  group.gso_size = static_cast<std::uint16_t>(frame.at.payload_size());
  group.id = frame.at.ipv6 ? std::uint16_t{0} : load_be16(frame.bytes, frame.at.l3 + 4U);
  group.flags = 0;
  group.fixed_id = false;
  group.verified = false;
  group.payload = group.gso_size;
  group.frames = 1;
  group.pieces[1] = piece(frame.bytes);
}

// `position` is one of order_.
void Coalescer::close(std::size_t position, WriteSink sink) {
  const auto first = order_.begin() + static_cast<std::ptrdiff_t>(position);
  Group& group = groups_[*first];
  std::rotate(first, first + 1, order_.begin() + static_cast<std::ptrdiff_t>(open_));
  --open_;
  if (group.frames == 1) {
    pass(group.head.bytes, group.head.vnet, sink);
    return;
  }
  const Headers& at = group.head.at;
  const bool tcp = at.protocol == kProtocolTcp;
  finish_headers(group.head.bytes, at, group.payload, group.flags);
  group.vnet = VnetHeader{.flags = kVnetNeedsCsum,
                          .gso_type = !tcp      ? kGsoUdpL4
                                      : at.ipv6 ? kGsoTcp6
                                                : kGsoTcp4,
                          .hdr_len = at.payload,
                          .gso_size = group.gso_size,
                          .csum_start = at.l4,
                          .csum_offset = tcp ? kTcpChecksumAt : kUdpChecksumAt};
  group.pieces[0] = iovec{.iov_base = &group.vnet, .iov_len = sizeof group.vnet};
  ++counters_.writes;
  sink(group.vnet, std::span{group.pieces}.first(1 + group.frames));
}

void Coalescer::pass(std::span<std::byte> frame, VnetHeader vnet, WriteSink sink) {
  const std::array<iovec, 2> pieces = {iovec{.iov_base = &vnet, .iov_len = sizeof vnet},
                                       piece(frame)};
  ++counters_.writes;
  sink(vnet, pieces);
}

}  // namespace causeway::proto
