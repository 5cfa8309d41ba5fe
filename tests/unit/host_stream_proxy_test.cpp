// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <string>

#include "common/net/proxy_protocol.hpp"

namespace {

using namespace causeway;
using namespace causeway::net;

Endpoint endpoint(const std::string& ip, std::uint16_t port) {
  return {*parse_ip(ip), port};
}

std::string hex(const ProxyHeader& header) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : header.bytes()) {
    text += kDigits[std::to_integer<unsigned>(byte) >> 4];
    text += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return text;
}

// proxy-protocol.txt 2.2: signature, version 2 with command PROXY, family and transport, length.
const std::string kSignature = "0d0a0d0a000d0a515549540a";

TEST_CASE("PROXY v2: IPv4 over TCP") {
  const auto header = encode_proxy_v2({endpoint("203.0.113.9", 51000), endpoint("192.0.2.1", 443)});
  CHECK(hex(header) == kSignature + "2111000c" + "cb007109" + "c0000201" + "c738" + "01bb");
  CHECK(header.size == 28);
}

TEST_CASE("PROXY v2: IPv6 over TCP") {
  const auto header = encode_proxy_v2({endpoint("2001:db8::9", 1), endpoint("fd00::1", 65535)});
  CHECK(hex(header) == kSignature + "21210024" + "20010db8000000000000000000000009" +
                           "fd000000000000000000000000000001" + "0001" + "ffff");
  CHECK(header.size == 52);
}

TEST_CASE("PROXY v2: two families are written as IPv6") {
  const auto header = encode_proxy_v2({endpoint("10.0.0.1", 2), endpoint("fd00::1", 3)});
  CHECK(hex(header) == kSignature + "21210024" + "00000000000000000000ffff0a000001" +
                           "fd000000000000000000000000000001" + "0002" + "0003");
}

}  // namespace
