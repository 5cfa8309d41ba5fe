// SPDX-License-Identifier: Apache-2.0
#include "common/net/proxy_protocol.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "proto/bytes.hpp"

namespace causeway::net {

namespace {

using Bytes = std::span<const std::byte>;
using State = ProxyReader::State;

constexpr std::string_view kV1Start = "PROXY ";
constexpr std::string_view kV2Signature("\r\n\r\n\0\r\nQUIT\n", 12);
constexpr std::size_t kV2Fixed = 16;  // signature, version and command, family, length

constexpr std::uint8_t kVersion2 = 0x20;
constexpr std::uint8_t kLocal = 0;
constexpr std::uint8_t kProxy = 1;
constexpr std::uint8_t kStream = 1;
constexpr std::uint8_t kDatagram = 2;
constexpr std::uint8_t kInet = 1;
constexpr std::uint8_t kInet6 = 2;
constexpr std::uint8_t kUnix = 3;
// Bytes of both addresses and ports, by family.
constexpr std::array<std::size_t, 4> kAddressBlock = {0, 12, 36, 216};

constexpr std::uint8_t kTlvAlpn = 0x01;
constexpr std::uint8_t kTlvAuthority = 0x02;
constexpr std::uint8_t kTlvCrc32c = 0x03;
constexpr std::uint8_t kTlvSsl = 0x20;
constexpr std::uint8_t kTlvSslVersion = 0x21;
constexpr std::uint8_t kTlvSslCipher = 0x23;
constexpr std::size_t kTlvHeader = 3;

// The same bytes at the front, as far as both go.
bool agrees(Bytes bytes, std::string_view expected) {
  const std::size_t size = std::min(bytes.size(), expected.size());
  return std::memcmp(bytes.data(), expected.data(), size) == 0;
}

// Version 1 ----------------------------------------------------------------------------------

// Takes the next field of a line whose fields are separated by exactly one space.
std::string_view next_field(std::string_view& line) {
  const std::size_t space = line.find(' ');
  const std::string_view field = line.substr(0, space);
  line.remove_prefix(space == std::string_view::npos ? line.size() : space + 1);
  return field;
}

bool parse_port(std::string_view text, std::uint16_t& port) {
  if (text.empty() || (text.size() > 1 && text.front() == '0')) return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() && end == text.data() + text.size();
}

bool parse_address(std::string_view text, bool v6, IpAddress& ip) {
  std::array<char, INET6_ADDRSTRLEN> terminated{};
  if (text.size() >= terminated.size() || text.find('\0') != std::string_view::npos) return false;
  std::copy(text.begin(), text.end(), terminated.begin());
  ip.v6 = v6;
  return ::inet_pton(v6 ? AF_INET6 : AF_INET, terminated.data(), ip.bytes.data()) == 1;
}

// `line` follows "PROXY TCP4 " or "PROXY TCP6 " and is without its CRLF.
bool parse_endpoints(std::string_view line, bool v6, ProxySource& source) {
  if (std::count(line.begin(), line.end(), ' ') != 3) return false;
  Endpoint client;
  Endpoint server;
  if (!parse_address(next_field(line), v6, client.ip) ||
      !parse_address(next_field(line), v6, server.ip) ||
      !parse_port(next_field(line), client.port) || !parse_port(next_field(line), server.port)) {
    return false;
  }
  source = {client, server};
  return true;
}

// Version 2 ----------------------------------------------------------------------------------

// CRC32c as in RFC 4960 appendix B: the reflected polynomial 0x1edc6f41.
constexpr std::array<std::uint32_t, 256> kCrcTable = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) {
      value = (value >> 1) ^ ((value & 1) != 0 ? 0x82f6'3b78U : 0U);
    }
    table[i] = value;
  }
  return table;
}();

// Of the header with four zero bytes in the place of its checksum.
std::uint32_t checksum(Bytes header, std::size_t place) {
  std::uint32_t crc = ~std::uint32_t{0};
  for (std::size_t i = 0; i < header.size(); ++i) {
    const bool zero = i >= place && i < place + sizeof crc;
    const std::uint8_t byte = zero ? 0 : proto::load_u8(header, i);
    crc = (crc >> 8) ^ kCrcTable[(crc ^ byte) & 0xff];
  }
  return ~crc;
}

// The TLVs from `at` to the header's end.
bool check_tlvs(Bytes header, std::size_t at) {
  while (at < header.size()) {
    if (header.size() - at < kTlvHeader) return false;
    const std::uint8_t type = proto::load_u8(header, at);
    const std::size_t length = proto::load_be16(header, at + 1);
    at += kTlvHeader;
    if (header.size() - at < length) return false;
    if (type == kTlvCrc32c) {
      if (length != sizeof(std::uint32_t)) return false;
      if (proto::load_be32(header, at) != checksum(header, at)) return false;
    }
    at += length;
  }
  return true;
}

ProxySource read_endpoints(Bytes block, bool v6) {
  Endpoint client;
  Endpoint server;
  client.ip.v6 = server.ip.v6 = v6;
  const std::size_t size = client.ip.size();
  std::memcpy(client.ip.bytes.data(), block.first(size).data(), size);
  std::memcpy(server.ip.bytes.data(), block.subspan(size, size).data(), size);
  client.port = proto::load_be16(block, 2 * size);
  server.port = proto::load_be16(block, 2 * size + 2);
  return {client, server};
}

// Writing ------------------------------------------------------------------------------------

IpAddress mapped(const IpAddress& ip) {
  if (ip.v6) return ip;
  IpAddress out{.v6 = true};
  out.bytes[10] = out.bytes[11] = 0xff;
  std::copy_n(ip.bytes.begin(), ip.size(), out.bytes.begin() + 12);
  return out;
}

// Both addresses in one family, if there are any.
std::optional<std::array<Endpoint, 2>> endpoints_of(const ProxySource& source) {
  if (!source.client || !source.server) return std::nullopt;
  std::array<Endpoint, 2> both = {*source.client, *source.server};
  if (both[0].ip.v6 != both[1].ip.v6) {
    for (Endpoint& endpoint : both)
      endpoint.ip = mapped(endpoint.ip);
  }
  return both;
}

class Writer {
 public:
  explicit Writer(ProxyHeader& header) : header_(header) {}
  [[nodiscard]] std::size_t room() const { return ProxyHeader::kMaxSize - header_.size; }

  void text(std::string_view text) { raw(text.data(), text.size()); }
  void u8(std::uint8_t value) { proto::store_u8(grow(1), 0, value); }
  void be16(std::uint16_t value) { proto::store_be16(grow(sizeof value), 0, value); }
  void be32(std::uint32_t value) { proto::store_be32(grow(sizeof value), 0, value); }
  void ip(const IpAddress& ip) { raw(ip.bytes.data(), ip.size()); }
  void number(std::uint16_t value) {
    std::array<char, 5> digits{};
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
    text({digits.data(), static_cast<std::size_t>(end - digits.data())});
  }
  void tlv(std::uint8_t type, std::string_view value) {
    if (value.empty() || room() < kTlvHeader || room() - kTlvHeader < value.size()) return;
    u8(type);
    be16(static_cast<std::uint16_t>(value.size()));
    text(value);
  }
  // The length at `place` becomes that of everything behind it.
  void close_length(std::size_t place) {
    const std::size_t length = header_.size - place - sizeof(std::uint16_t);
    proto::store_be16(header_.storage, place, static_cast<std::uint16_t>(length));
  }

 private:
  std::span<std::byte> grow(std::size_t size) {
    const auto room = std::span(header_.storage).subspan(header_.size, size);
    header_.size += size;
    return room;
  }
  void raw(const void* from, std::size_t size) { std::memcpy(grow(size).data(), from, size); }

  ProxyHeader& header_;
};

static_assert(kMaxProxyV1 <= ProxyHeader::kMaxSize);

}  // namespace

ProxyReader::State ProxyReader::read(std::span<const std::byte> bytes) {
  if (bytes.empty()) return State::need_more;
  const bool v1 = accepted_ != ProxyVersions::v2 && agrees(bytes, kV1Start);
  const bool v2 = accepted_ != ProxyVersions::v1 && agrees(bytes, kV2Signature);
  if (v1) return read_v1(bytes);
  return v2 ? read_v2(bytes) : State::refused;
}

ProxyReader::State ProxyReader::read_v1(Bytes bytes) {
  const std::size_t size = std::min(bytes.size(), kMaxProxyV1);
  std::array<char, kMaxProxyV1> copy;
  std::memcpy(copy.data(), bytes.data(), size);
  std::string_view line(copy.data(), size);

  bool known = false;
  for (const std::string_view kind : {"PROXY TCP4 ", "PROXY TCP6 ", "PROXY UNKNOWN"}) {
    known = known || line.substr(0, kind.size()) == kind.substr(0, line.size());
  }
  if (!known) return State::refused;

  // The line ends with CRLF; a CR or LF of its own is no end and belongs nowhere else.
  const std::size_t end = line.find_first_of("\r\n");
  if (end == std::string_view::npos || (end + 1 == line.size() && line[end] == '\r')) {
    return line.size() < kMaxProxyV1 ? State::need_more : State::refused;
  }
  if (line.substr(end, 2) != "\r\n") return State::refused;
  line = line.substr(kV1Start.size(), end - kV1Start.size());

  ProxySource source;
  const std::string_view protocol = next_field(line);
  if (protocol == "TCP4" || protocol == "TCP6") {
    if (!parse_endpoints(line, protocol == "TCP6", source)) return State::refused;
  } else if (protocol != "UNKNOWN") {
    return State::refused;
  }
  source_ = source;
  size_ = end + 2;
  return State::done;
}

ProxyReader::State ProxyReader::read_v2(Bytes bytes) {
  if (bytes.size() <= kV2Signature.size()) return State::need_more;
  const std::uint8_t command = proto::load_u8(bytes, 12) & 0x0f;
  if ((proto::load_u8(bytes, 12) & 0xf0) != kVersion2 || command > kProxy) return State::refused;
  if (bytes.size() < 14) return State::need_more;
  const std::uint8_t family = proto::load_u8(bytes, 13) >> 4;
  const std::uint8_t transport = proto::load_u8(bytes, 13) & 0x0f;
  // LOCAL: all but the length is to be ignored.
  if (command != kLocal && (family > kUnix || transport > kDatagram)) return State::refused;
  if (bytes.size() < kV2Fixed) return State::need_more;
  const std::size_t length = proto::load_be16(bytes, 14);
  const std::size_t size = kV2Fixed + length;
  const bool addressed = command == kProxy && family != 0 && transport != 0;
  if (size > kMaxProxyV2 || (addressed && length < kAddressBlock[family])) return State::refused;
  if (bytes.size() < size) return State::need_more;

  ProxySource source;
  if (addressed) {
    const Bytes header = bytes.first(size);
    if (!check_tlvs(header, kV2Fixed + kAddressBlock[family])) return State::refused;
    if (family != kUnix && transport == kStream) {
      source = read_endpoints(header.subspan(kV2Fixed), family == kInet6);
    }
  }
  source_ = source;
  size_ = size;
  return State::done;
}

ProxyHeader encode_proxy_v1(const ProxySource& source) {
  ProxyHeader header;
  Writer out(header);
  out.text(kV1Start);
  const auto endpoints = endpoints_of(source);
  if (!endpoints) {
    out.text("UNKNOWN\r\n");
    return header;
  }
  const bool v6 = endpoints->front().ip.v6;
  out.text(v6 ? "TCP6" : "TCP4");
  for (const Endpoint& endpoint : *endpoints) {
    std::array<char, INET6_ADDRSTRLEN> text{};
    ::inet_ntop(v6 ? AF_INET6 : AF_INET, endpoint.ip.bytes.data(), text.data(), text.size());
    out.text(" ");
    out.text(text.data());
  }
  for (const Endpoint& endpoint : *endpoints) {
    out.text(" ");
    out.number(endpoint.port);
  }
  out.text("\r\n");
  return header;
}

ProxyHeader encode_proxy_v2(const ProxySource& source, const ProxyTlvs& tlvs) {
  ProxyHeader header;
  Writer out(header);
  out.text(kV2Signature);
  const auto endpoints = endpoints_of(source);
  if (!endpoints) {
    out.u8(kVersion2 | kLocal);
    out.u8(0);
    out.be16(0);
    return header;
  }
  const auto& [client, server] = *endpoints;
  out.u8(kVersion2 | kProxy);
  out.u8(static_cast<std::uint8_t>((client.ip.v6 ? kInet6 : kInet) << 4 | kStream));
  const std::size_t length = header.size;
  out.be16(0);
  out.ip(client.ip);
  out.ip(server.ip);
  out.be16(client.port);
  out.be16(server.port);

  out.tlv(kTlvAlpn, tlvs.alpn);
  out.tlv(kTlvAuthority, tlvs.authority);
  constexpr std::size_t kSslFixed = 1 + 4;  // client, verify
  if (tlvs.ssl && out.room() >= kTlvHeader + kSslFixed) {
    constexpr std::uint8_t kClientSsl = 0x01;
    out.u8(kTlvSsl);
    const std::size_t ssl_length = header.size;
    out.be16(0);
    out.u8(kClientSsl);
    out.be32(1);  // 0 would say that the client showed a certificate and it was verified (2.2.6)
    out.tlv(kTlvSslVersion, tlvs.tls_version);
    out.tlv(kTlvSslCipher, tlvs.cipher);
    out.close_length(ssl_length);
  }
  out.close_length(length);
  return header;
}

}  // namespace causeway::net
