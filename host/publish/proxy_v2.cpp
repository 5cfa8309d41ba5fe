// SPDX-License-Identifier: Apache-2.0
#include "host/publish/proxy_v2.hpp"

#include <algorithm>
#include <cstring>

#include "proto/bytes.hpp"

namespace causeway::host {

namespace {

constexpr std::array<std::uint8_t, 12> kSignature = {0x0d, 0x0a, 0x0d, 0x0a, 0x00, 0x0d,
                                                     0x0a, 0x51, 0x55, 0x49, 0x54, 0x0a};
constexpr std::uint8_t kVersionAndProxy = 0x21;
constexpr std::uint8_t kTcpOverIpv4 = 0x11;
constexpr std::uint8_t kTcpOverIpv6 = 0x21;
constexpr std::size_t kFixedSize = 16;

IpAddress mapped(const IpAddress& ip) {
  if (ip.v6) return ip;
  IpAddress out{.v6 = true};
  out.bytes[10] = out.bytes[11] = 0xff;
  std::copy_n(ip.bytes.begin(), ip.size(), out.bytes.begin() + 12);
  return out;
}

}  // namespace

ProxyV2Header encode_proxy_v2(const Endpoint& client, const Endpoint& server) {
  const bool v6 = client.ip.v6 || server.ip.v6;
  const IpAddress from = v6 ? mapped(client.ip) : client.ip;
  const IpAddress to = v6 ? mapped(server.ip) : server.ip;

  ProxyV2Header header;
  const std::span<std::byte> out(header.storage);
  std::memcpy(out.data(), kSignature.data(), kSignature.size());
  std::size_t at = kSignature.size();
  proto::store_u8(out, at, kVersionAndProxy);
  proto::store_u8(out, at + 1, v6 ? kTcpOverIpv6 : kTcpOverIpv4);
  const std::size_t length = 2 * from.size() + 2 * sizeof(std::uint16_t);
  proto::store_be16(out, at + 2, static_cast<std::uint16_t>(length));
  at = kFixedSize;
  for (const IpAddress* ip : {&from, &to}) {
    std::memcpy(out.subspan(at, ip->size()).data(), ip->bytes.data(), ip->size());
    at += ip->size();
  }
  proto::store_be16(out, at, client.port);
  proto::store_be16(out, at + 2, server.port);
  header.size = kFixedSize + length;
  return header;
}

}  // namespace causeway::host
