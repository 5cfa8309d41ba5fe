// SPDX-License-Identifier: Apache-2.0
// Theory of operation: the PROXY protocol, versions 1 and 2 (HAProxy's proxy-protocol.txt), sans
// I/O.
//
// A header in front of a stream that names the client and the address it connected to. Reading is
// for listeners behind a balancer, writing for upstreams. Reading is incremental: called with all
// bytes so far, it says how many more are needed or how long the header is. Lengths are bounded:
// 107 bytes for v1 (section 2.1), kMaxProxyV2 for v2, TLVs included. What cannot become a header
// any more is refused at the byte that shows it.
//
// Of v2 the TLVs have to fit into the header and are skipped, but for a CRC32C (2.2.3), which has
// to be right. Datagram transports are read as section 2.2 asks of a receiver that has no use for
// them: the header is valid and names nobody.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "common/net/address.hpp"

namespace causeway::net {

struct Endpoint {
  IpAddress ip;
  std::uint16_t port = 0;
  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

inline constexpr std::size_t kMaxProxyV1 = 107;
inline constexpr std::size_t kMaxProxyV2 = 2048;

enum class ProxyVersions : std::uint8_t { v1, v2, any };  // what a listener accepts

struct ProxySource {
  // Both or neither: LOCAL, UNKNOWN, UNSPEC, datagrams and unix addresses name nobody.
  std::optional<Endpoint> client;
  std::optional<Endpoint> server;
};

class ProxyReader {
 public:
  enum class State : std::uint8_t { need_more, done, refused };
  explicit ProxyReader(ProxyVersions accepted) : accepted_(accepted) {}
  // `bytes`: everything received so far, from the first byte.
  State read(std::span<const std::byte> bytes);
  [[nodiscard]] std::size_t size() const { return size_; }  // after done: the header's bytes
  [[nodiscard]] const ProxySource& source() const { return source_; }

 private:
  using Bytes = std::span<const std::byte>;

  State read_v1(Bytes bytes);
  State read_v2(Bytes bytes);

  ProxyVersions accepted_;
  std::size_t size_ = 0;
  ProxySource source_;
};

// TLVs of v2 (section 2.2). Views are borrowed until the header is encoded. Empty: left out.
struct ProxyTlvs {
  std::string_view alpn = {};         // PP2_TYPE_ALPN 0x01
  std::string_view authority = {};    // PP2_TYPE_AUTHORITY 0x02: the server_name
  bool ssl = false;                   // PP2_TYPE_SSL 0x20 with the client bit PP2_CLIENT_SSL
  std::string_view tls_version = {};  // PP2_SUBTYPE_SSL_VERSION 0x21
  std::string_view cipher = {};       // PP2_SUBTYPE_SSL_CIPHER 0x23
};

// A header ready to be sent. Room for both addresses, a 253-byte authority, an ALPN of 255 bytes
// and the TLS TLVs.
struct ProxyHeader {
  static constexpr std::size_t kMaxSize = 700;
  std::array<std::byte, kMaxSize> storage;  // not initialised behind the first `size` bytes
  std::size_t size = 0;
  [[nodiscard]] std::span<const std::byte> bytes() const { return std::span(storage).first(size); }
};

// Of two families, which one socket cannot have, the IPv4 one is written as ::ffff:A.B.C.D. Without
// a source (a client on a unix or vsock socket): "PROXY UNKNOWN" and v2's LOCAL, without TLVs:
// receivers discard those of LOCAL. A TLV that does not fit into kMaxSize is left out, never cut.
ProxyHeader encode_proxy_v1(const ProxySource& source);
ProxyHeader encode_proxy_v2(const ProxySource& source, const ProxyTlvs& tlvs = {});

}  // namespace causeway::net
