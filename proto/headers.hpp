// SPDX-License-Identifier: Apache-2.0
// Theory of operation: a checked look at the headers of an Ethernet frame, for all who must know
// where its parts lie: the segmenter, the coalescer, the offload header's validation. One pass,
// from the outside in; it stops at the first header that does not hold together, and whatever it
// reports as found lies inside the frame.
//
// Sources: IEEE 802.1Q (tags), RFC 791, RFC 8200, RFC 9293, RFC 768.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace causeway::proto {

inline constexpr std::size_t kEthernetHeader = 14;
inline constexpr std::size_t kVlanTag = 4;
inline constexpr std::size_t kIpv4Header = 20;  // without options
inline constexpr std::size_t kIpv6Header = 40;
inline constexpr std::size_t kTcpHeader = 20;  // without options
inline constexpr std::size_t kUdpHeader = 8;
// Ethernet, one tag, the longest IPv4 header (60) and the longest TCP header (60).
inline constexpr std::size_t kMaxHeaders = kEthernetHeader + kVlanTag + 60 + 60;

inline constexpr std::uint8_t kProtocolTcp = 6;
inline constexpr std::uint8_t kProtocolUdp = 17;
inline constexpr std::uint16_t kTcpChecksumAt = 16;  // from the start of the TCP header
inline constexpr std::uint16_t kUdpChecksumAt = 6;

enum class HeaderStatus : std::uint8_t {
  ok,
  ethernet,          // shorter than an Ethernet header and its tag
  vlan_depth,        // more than one VLAN tag
  ethertype,         // neither IPv4 nor IPv6; only `l3` is set
  ip_header,         // the IP header does not fit, or its version or length field is wrong
  ip_length,         // the IP length is beyond the frame, or shorter than the headers
  fragment,          // an IPv4 or IPv6 fragment (any, the first too)
  extension_header,  // IPv6 with an extension header
  protocol,          // neither TCP nor UDP; all but `payload` is set
  transport_header,  // a TCP header that does not fit, or a UDP length other than the IP payload's
};

// Offsets from the start of the frame.
struct Headers {
  bool ipv6 = false;
  std::uint8_t protocol = 0;
  std::uint16_t l3 = 0;       // the IP header: 14 or 18
  std::uint16_t l4 = 0;       // the TCP or UDP header
  std::uint16_t payload = 0;  // what the transport carries; at most kMaxHeaders
  std::uint32_t end = 0;      // where the IP packet ends; the frame may go on with padding

  [[nodiscard]] std::size_t payload_size() const { return end - payload; }
  [[nodiscard]] bool ip_options() const { return !ipv6 && l4 - l3 != kIpv4Header; }
};

HeaderStatus parse_headers(std::span<const std::byte> frame, Headers& headers);

// Source and destination address, as the pseudo-header wants them: 8 or 32 bytes.
inline std::span<const std::byte> address_pair(std::span<const std::byte> frame,
                                               const Headers& headers) {
  return headers.ipv6 ? frame.subspan(headers.l3 + 8U, 32) : frame.subspan(headers.l3 + 12U, 8);
}

}  // namespace causeway::proto
