// SPDX-License-Identifier: Apache-2.0
// The PROXY protocol, version 2 (HAProxy's proxy-protocol.txt, section 2.2): a binary header in
// front of a stream that names the client and the address it connected to. Command PROXY over TCP
// only: what is published always has a client. Makes bytes, no system calls.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/net/address.hpp"

namespace causeway::host {

struct Endpoint {
  IpAddress ip;
  std::uint16_t port = 0;
  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

struct ProxyV2Header {
  static constexpr std::size_t kMaxSize = 16 + 2 * 16 + 2 * 2;  // IPv6; IPv4 has 28 bytes
  std::array<std::byte, kMaxSize> storage{};
  std::size_t size = 0;
  [[nodiscard]] std::span<const std::byte> bytes() const { return std::span(storage).first(size); }
};

// Of two families, which one socket cannot have, the IPv4 one is written as ::ffff:A.B.C.D.
ProxyV2Header encode_proxy_v2(const Endpoint& client, const Endpoint& server);

}  // namespace causeway::host
