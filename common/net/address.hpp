// SPDX-License-Identifier: Apache-2.0
// Theory of operation: addresses as an operator writes them.
//
// One grammar everywhere (flags, configuration, causewayctl):
//   tcp:HOST:PORT        tcp:[V6]:PORT  tcp:[V6%ZONE]:PORT   HOST is a name or an IPv4 literal
//   unix:/PATH           absolute, at most 107 bytes (sun_path is 108 with its NUL, linux/un.h)
//   vsock:CID:PORT       vsock:any:PORT listens on every CID (VMADDR_CID_ANY, linux/vm_sockets.h)
//   hvsock:/PATH:PORT    hybrid vsock: a Unix socket of Firecracker, Cloud Hypervisor or Kata
//   fd:N                 an inherited descriptor
// This file only parses and writes them: nothing is resolved, opened or looked up, so the same text
// means the same on every machine. to_string() of what was parsed parses back to the same value.
//
// Abstract Unix sockets (unix:@name) are refused: they have no file permissions, so every process
// of the network namespace could take the name or connect.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "common/result.hpp"

namespace causeway {

inline constexpr std::uint32_t kVsockCidAny = 0xffff'ffffU;  // VMADDR_CID_ANY
inline constexpr std::size_t kMaxUnixPath = 107;

struct TcpAddress {
  std::string host;  // a name, an IPv4 literal, or an IPv6 literal without brackets
  std::uint16_t port = 0;
  friend bool operator==(const TcpAddress&, const TcpAddress&) = default;
};

struct UnixAddress {
  std::string path;
  friend bool operator==(const UnixAddress&, const UnixAddress&) = default;
};

struct VsockAddress {
  std::uint32_t cid = kVsockCidAny;
  std::uint32_t port = 0;
  friend bool operator==(const VsockAddress&, const VsockAddress&) = default;
};

// `path` is the device's socket. Connections that the guest opens arrive at PATH_PORT, so that
// longer name is what has to fit into sun_path.
struct HybridVsockAddress {
  std::string path;
  std::uint32_t port = 0;
  friend bool operator==(const HybridVsockAddress&, const HybridVsockAddress&) = default;
};

struct FdAddress {
  int fd = -1;
  friend bool operator==(const FdAddress&, const FdAddress&) = default;
};

struct Address {
  std::variant<TcpAddress, UnixAddress, VsockAddress, HybridVsockAddress, FdAddress> value;
  friend bool operator==(const Address&, const Address&) = default;
};

// An IPv4 or IPv6 address in network order; IPv4 uses the first four bytes.
struct IpAddress {
  bool v6 = false;
  std::array<std::uint8_t, 16> bytes{};
  [[nodiscard]] std::size_t size() const { return v6 ? 16 : 4; }  // bytes
  friend auto operator<=>(const IpAddress&, const IpAddress&) = default;
};

// An interface's address with the length of its network's prefix; host bits are kept.
struct Cidr {
  IpAddress address;
  std::uint8_t prefix = 0;                  // 0..32, 0..128
  [[nodiscard]] IpAddress network() const;  // `address` with its host bits cleared
  [[nodiscard]] bool contains(const IpAddress& ip) const;
  friend auto operator<=>(const Cidr&, const Cidr&) = default;
};

// Each error is one line: the text, what is wrong, the column, and an example of the right form.
Result<Address> parse_address(std::string_view text);
Result<IpAddress> parse_ip(std::string_view text);
Result<Cidr> parse_cidr(std::string_view text);  // 10.0.0.1/24, fd00::1/64

std::string to_string(const Address& address);
std::string to_string(const IpAddress& ip);
std::string to_string(const Cidr& cidr);

}  // namespace causeway
