// SPDX-License-Identifier: Apache-2.0
// Frames for the tests of the segmenter and the coalescer, and a second opinion on them: everything
// here is written byte by byte from the RFCs and uses nothing of proto/ but the vnet header's
// struct, so that a fault there cannot hide here. Slow and simple on purpose.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "proto/vnet.hpp"

namespace causeway::test {

using Bytes = std::vector<std::byte>;

inline void put8(Bytes& out, unsigned value) {
  out.push_back(static_cast<std::byte>(value));
}

inline void put16(Bytes& out, unsigned value) {
  put8(out, value >> 8 & 0xff);
  put8(out, value & 0xff);
}

inline void put32(Bytes& out, std::uint32_t value) {
  put16(out, value >> 16);
  put16(out, value & 0xffff);
}

inline void put(Bytes& out, const Bytes& bytes) {
  out.insert(out.end(), bytes.begin(), bytes.end());
}

inline unsigned get8(std::span<const std::byte> bytes, std::size_t at) {
  return std::to_integer<unsigned>(bytes[at]);
}

inline unsigned get16(std::span<const std::byte> bytes, std::size_t at) {
  return get8(bytes, at) << 8 | get8(bytes, at + 1);
}

inline std::uint32_t get32(std::span<const std::byte> bytes, std::size_t at) {
  return std::uint32_t{get16(bytes, at)} << 16 | get16(bytes, at + 2);
}

inline void set16(std::span<std::byte> bytes, std::size_t at, unsigned value) {
  bytes[at] = static_cast<std::byte>(value >> 8 & 0xff);
  bytes[at + 1] = static_cast<std::byte>(value & 0xff);
}

// The one's complement sum of RFC 1071, in big-endian words, folded after each.
inline unsigned slow_sum(std::span<const std::byte> bytes, unsigned sum = 0) {
  for (std::size_t at = 0; at < bytes.size(); at += 2) {
    sum += get8(bytes, at) << 8 | (at + 1 < bytes.size() ? get8(bytes, at + 1) : 0U);
    sum = (sum & 0xffff) + (sum >> 16);
  }
  return sum;
}

struct Packet {
  bool ipv6 = false;
  bool tcp = true;
  bool vlan = false;
  std::uint16_t source_port = 40'000;
  std::uint16_t destination_port = 443;
  std::uint8_t last_address_byte = 1;
  std::uint8_t tos = 0;
  std::uint8_t ttl = 64;
  std::uint16_t id = 7;
  bool dont_fragment = true;
  std::uint32_t sequence = 1000;
  std::uint32_t acknowledgement = 2000;
  std::uint8_t flags = 0x10;  // ACK
  std::uint16_t window = 501;
  Bytes tcp_options;  // a multiple of 4
  Bytes ip_options;   // a multiple of 4
  Bytes payload;

  [[nodiscard]] std::size_t l3() const { return vlan ? 18 : 14; }
  [[nodiscard]] std::size_t l4() const { return l3() + (ipv6 ? 40 : 20 + ip_options.size()); }
  [[nodiscard]] std::size_t headers() const { return l4() + (tcp ? 20 + tcp_options.size() : 8); }
  [[nodiscard]] std::size_t checksum_at() const { return l4() + (tcp ? 16 : 6); }
};

// The sum of the pseudo-header of the frame that `packet` describes.
inline unsigned pseudo_sum(const Packet& packet, std::span<const std::byte> frame) {
  const auto addresses =
      packet.ipv6 ? frame.subspan(packet.l3() + 8, 32) : frame.subspan(packet.l3() + 12, 8);
  Bytes rest;
  put32(rest, static_cast<std::uint32_t>(frame.size() - packet.l4()));
  put32(rest, packet.tcp ? 6 : 17);
  return slow_sum(rest, slow_sum(addresses));
}

// The complete frame with right checksums.
inline Bytes build(const Packet& packet) {
  Bytes frame;
  for (unsigned i = 0; i < 12; ++i) {
    put8(frame, i < 6 ? 0x02 + i : 0x52 + i);
  }
  if (packet.vlan) {
    put16(frame, 0x8100);
    put16(frame, 0x2007);
  }
  put16(frame, packet.ipv6 ? 0x86dd : 0x0800);
  const std::size_t l4_size = packet.headers() - packet.l4() + packet.payload.size();
  const unsigned protocol = packet.tcp ? 6 : 17;
  if (packet.ipv6) {
    put32(frame, 6U << 28 | std::uint32_t{packet.tos} << 20 | 0x12345);
    put16(frame, static_cast<unsigned>(l4_size));
    put8(frame, protocol);
    put8(frame, packet.ttl);
    for (unsigned i = 0; i < 32; ++i) {
      put8(frame, i == 31 ? packet.last_address_byte : i % 16 == 0 ? 0xfd : i);
    }
  } else {
    const std::size_t size = 20 + packet.ip_options.size();
    put8(frame, static_cast<unsigned>(0x40 + size / 4));
    put8(frame, packet.tos);
    put16(frame, static_cast<unsigned>(size + l4_size));
    put16(frame, packet.id);
    put16(frame, packet.dont_fragment ? 0x4000 : 0);
    put8(frame, packet.ttl);
    put8(frame, protocol);
    put16(frame, 0);
    put32(frame, 0x0a010203);
    put32(frame, 0x0a010000U | packet.last_address_byte);
    put(frame, packet.ip_options);
    const auto header = std::span{frame}.subspan(packet.l3());
    set16(frame, packet.l3() + 10, ~slow_sum(header) & 0xffff);
  }
  put16(frame, packet.source_port);
  put16(frame, packet.destination_port);
  if (packet.tcp) {
    put32(frame, packet.sequence);
    put32(frame, packet.acknowledgement);
    put8(frame, static_cast<unsigned>((20 + packet.tcp_options.size()) / 4 << 4));
    put8(frame, packet.flags);
    put16(frame, packet.window);
    put32(frame, 0);
    put(frame, packet.tcp_options);
  } else {
    put16(frame, static_cast<unsigned>(l4_size));
    put16(frame, 0);
  }
  put(frame, packet.payload);
  unsigned checksum =
      ~slow_sum(std::span{frame}.subspan(packet.l4()), pseudo_sum(packet, frame)) & 0xffff;
  if (checksum == 0 && !packet.tcp) {
    checksum = 0xffff;
  }
  set16(frame, packet.checksum_at(), checksum);
  return frame;
}

struct SuperFrame {
  Bytes frame;
  proto::VnetHeader header;
};

// What the kernel hands out for a packet whose payload is above gso_size.
inline SuperFrame super_frame(const Packet& packet, std::uint16_t gso_size) {
  SuperFrame result{.frame = build(packet), .header = {}};
  set16(result.frame, packet.checksum_at(), pseudo_sum(packet, result.frame));
  result.header.flags = proto::kVnetNeedsCsum;
  result.header.gso_type = !packet.tcp   ? proto::kGsoUdpL4
                           : packet.ipv6 ? proto::kGsoTcp6
                                         : proto::kGsoTcp4;
  result.header.hdr_len = static_cast<std::uint16_t>(packet.headers());
  result.header.gso_size = gso_size;
  result.header.csum_start = static_cast<std::uint16_t>(packet.l4());
  result.header.csum_offset = packet.tcp ? 16 : 6;
  return result;
}

// Payload that tells its place, so that a swap or a gap of slices cannot pass.
inline Bytes pattern(std::size_t size, std::uint64_t seed = 1) {
  Bytes bytes(size);
  auto state = static_cast<std::uint32_t>(seed * 2'654'435'761U + 1);
  for (std::byte& value : bytes) {
    state = state * 1'664'525U + 1'013'904'223U;
    value = static_cast<std::byte>(state >> 24);
  }
  return bytes;
}

// The packets of `packet` cut to `gso_size`, as RFC 9293 and the IPv4 identification want them.
inline std::vector<Bytes> expected_segments(const Packet& packet, std::size_t gso_size) {
  std::vector<Bytes> segments;
  std::size_t at = 0;
  do {
    Packet part = packet;
    const std::size_t end = std::min(packet.payload.size(), at + gso_size);
    part.payload.assign(packet.payload.begin() + static_cast<std::ptrdiff_t>(at),
                        packet.payload.begin() + static_cast<std::ptrdiff_t>(end));
    part.id = static_cast<std::uint16_t>(packet.id + segments.size());
    part.sequence = packet.sequence + static_cast<std::uint32_t>(at);
    if (at > 0) {
      part.flags &= 0x7f;  // CWR on the first only
    }
    if (end < packet.payload.size()) {
      part.flags &= 0xf6;  // FIN and PSH on the last only
    }
    segments.push_back(build(part));
    at = end;
  } while (at < packet.payload.size());
  return segments;
}

}  // namespace causeway::test
