// SPDX-License-Identifier: Apache-2.0
// The header in front of every frame that is read from or written to a TAP with IFF_VNET_HDR: the
// layout and the values of the kernel's struct virtio_net_hdr (linux/virtio_net.h, virtio 1.2
// section 5.1.6), little-endian after TUNSETVNETLE, and of TUNSETVNETHDRSZ 10.
#pragma once

#include <cstdint>

namespace causeway::proto {

struct VnetHeader {
  std::uint8_t flags = 0;         // kVnetNeedsCsum, kVnetDataValid
  std::uint8_t gso_type = 0;      // kGso*, kGsoEcn may be or'ed to a TCP type
  std::uint16_t hdr_len = 0;      // Ethernet + IP + transport header, bytes (a hint)
  std::uint16_t gso_size = 0;     // payload bytes of each segment but the last
  std::uint16_t csum_start = 0;   // where summing starts, from the start of the frame
  std::uint16_t csum_offset = 0;  // where the checksum goes, from csum_start
  friend bool operator==(const VnetHeader&, const VnetHeader&) = default;
};
static_assert(sizeof(VnetHeader) == 10);

inline constexpr std::uint8_t kVnetNeedsCsum = 1;  // the field holds the pseudo-header's sum only
inline constexpr std::uint8_t kVnetDataValid = 2;  // checksum verified by the sender of the header
inline constexpr std::uint8_t kGsoNone = 0;
inline constexpr std::uint8_t kGsoTcp4 = 1;
inline constexpr std::uint8_t kGsoUdp = 3;  // UFO: obsolete, never accepted
inline constexpr std::uint8_t kGsoTcp6 = 4;
inline constexpr std::uint8_t kGsoUdpL4 = 5;
inline constexpr std::uint8_t kGsoEcn = 0x80;

}  // namespace causeway::proto
