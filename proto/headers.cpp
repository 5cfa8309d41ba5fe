// SPDX-License-Identifier: Apache-2.0
#include "proto/headers.hpp"

#include "proto/bytes.hpp"

namespace causeway::proto {

namespace {

constexpr std::uint16_t kEthertypeIpv4 = 0x0800;
constexpr std::uint16_t kEthertypeIpv6 = 0x86dd;
constexpr std::uint16_t kIpv4MoreOrOffset = 0x3fff;  // more-fragments bit and fragment offset

bool is_vlan(std::uint16_t ethertype) {
  return ethertype == 0x8100 || ethertype == 0x88a8;
}

HeaderStatus parse_ipv4(std::span<const std::byte> frame, Headers& headers) {
  const std::size_t l3 = headers.l3;
  if (frame.size() < l3 + kIpv4Header) {
    return HeaderStatus::ip_header;
  }
  const std::uint8_t first = load_u8(frame, l3);
  const std::size_t size = std::size_t{first & 0xfU} * 4;
  if (first >> 4 != 4 || size < kIpv4Header || frame.size() < l3 + size) {
    return HeaderStatus::ip_header;
  }
  const std::size_t length = load_be16(frame, l3 + 2);
  if (length < size || length > frame.size() - l3) {
    return HeaderStatus::ip_length;
  }
  headers.l4 = static_cast<std::uint16_t>(l3 + size);
  headers.end = static_cast<std::uint32_t>(l3 + length);
  headers.protocol = load_u8(frame, l3 + 9);
  return (load_be16(frame, l3 + 6) & kIpv4MoreOrOffset) != 0 ? HeaderStatus::fragment
                                                             : HeaderStatus::ok;
}

HeaderStatus parse_ipv6(std::span<const std::byte> frame, Headers& headers) {
  const std::size_t l3 = headers.l3;
  headers.ipv6 = true;
  if (frame.size() < l3 + kIpv6Header || load_u8(frame, l3) >> 4 != 6) {
    return HeaderStatus::ip_header;
  }
  const std::size_t length = load_be16(frame, l3 + 4);
  if (length > frame.size() - l3 - kIpv6Header) {
    return HeaderStatus::ip_length;
  }
  headers.l4 = static_cast<std::uint16_t>(l3 + kIpv6Header);
  headers.end = static_cast<std::uint32_t>(headers.l4 + length);
  headers.protocol = load_u8(frame, l3 + 6);
  switch (headers.protocol) {
    case 44:  // the fragment header, when it is the first one
      return HeaderStatus::fragment;
    case 0:    // hop-by-hop options
    case 43:   // routing
    case 51:   // authentication
    case 60:   // destination options
    case 135:  // mobility
    case 139:  // host identity
    case 140:  // shim6
      return HeaderStatus::extension_header;
    default:
      return HeaderStatus::ok;
  }
}

HeaderStatus parse_transport(std::span<const std::byte> frame, Headers& headers) {
  const std::size_t room = headers.end - headers.l4;
  std::size_t size = kUdpHeader;
  if (headers.protocol == kProtocolTcp) {
    if (room < kTcpHeader) {
      return HeaderStatus::transport_header;
    }
    size = std::size_t{load_u8(frame, headers.l4 + 12U)} >> 4 << 2;
    if (size < kTcpHeader || size > room) {
      return HeaderStatus::transport_header;
    }
  } else if (headers.protocol == kProtocolUdp) {
    if (room < kUdpHeader || load_be16(frame, headers.l4 + 4U) != room) {
      return HeaderStatus::transport_header;
    }
  } else {
    return HeaderStatus::protocol;
  }
  headers.payload = static_cast<std::uint16_t>(headers.l4 + size);
  return HeaderStatus::ok;
}

}  // namespace

HeaderStatus parse_headers(std::span<const std::byte> frame, Headers& headers) {
  headers = Headers{};
  if (frame.size() < kEthernetHeader) {
    return HeaderStatus::ethernet;
  }
  std::uint16_t ethertype = load_be16(frame, 12);
  headers.l3 = kEthernetHeader;
  if (is_vlan(ethertype)) {
    if (frame.size() < kEthernetHeader + kVlanTag) {
      return HeaderStatus::ethernet;
    }
    ethertype = load_be16(frame, 16);
    headers.l3 = kEthernetHeader + kVlanTag;
    if (is_vlan(ethertype)) {
      return HeaderStatus::vlan_depth;
    }
  }
  HeaderStatus status = HeaderStatus::ethertype;
  if (ethertype == kEthertypeIpv4) {
    status = parse_ipv4(frame, headers);
  } else if (ethertype == kEthertypeIpv6) {
    status = parse_ipv6(frame, headers);
  }
  return status == HeaderStatus::ok ? parse_transport(frame, headers) : status;
}

}  // namespace causeway::proto
