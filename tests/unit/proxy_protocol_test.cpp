// SPDX-License-Identifier: Apache-2.0
#include "common/net/proxy_protocol.hpp"

#include <doctest/doctest.h>

#include <string>

#include "tests/unit/vectors.hpp"

namespace causeway::net {
namespace {

using test::bytes_of;
using test::unhex;
using State = ProxyReader::State;

struct Outcome {
  State state = State::need_more;
  std::size_t size = 0;
  ProxySource source;
  std::size_t received = 0;  // bytes in hand when it was known
};

// As it comes from a socket, a byte more each time; the whole at once has to say the same.
Outcome read(std::span<const std::byte> stream, ProxyVersions accepted = ProxyVersions::any) {
  ProxyReader reader(accepted);
  Outcome out;
  while (out.state == State::need_more && out.received < stream.size()) {
    out.state = reader.read(stream.first(++out.received));
  }
  out.size = reader.size();
  out.source = reader.source();
  ProxyReader whole(accepted);
  REQUIRE(whole.read(stream) == out.state);
  REQUIRE(whole.size() == out.size);
  REQUIRE(whole.source().client == out.source.client);
  REQUIRE(whole.source().server == out.source.server);
  return out;
}
Outcome read(const std::string& text, ProxyVersions accepted = ProxyVersions::any) {
  return read(bytes_of(text), accepted);
}

Endpoint endpoint(const std::string& ip, std::uint16_t port) {
  return {*parse_ip(ip), port};
}

void check_names(const Outcome& out, std::size_t size, const Endpoint& client,
                 const Endpoint& server) {
  REQUIRE(out.state == State::done);
  CHECK(out.size == size);
  CHECK(out.received == size);
  CHECK(out.source.client == client);
  CHECK(out.source.server == server);
}

void check_nobody(const Outcome& out, std::size_t size) {
  REQUIRE(out.state == State::done);
  CHECK(out.size == size);
  CHECK_FALSE(out.source.client);
  CHECK_FALSE(out.source.server);
}

// Refused by the byte after the first `received - 1`.
void check_refused(const Outcome& out, std::size_t received) {
  CHECK(out.state == State::refused);
  CHECK(out.received == received);
  CHECK(out.size == 0);
  CHECK_FALSE(out.source.client);
}

std::string text_of(const ProxyHeader& header) {
  std::string text;
  for (const std::byte byte : header.bytes())
    text += std::to_integer<char>(byte);
  return text;
}

const std::string kSignature = "0d0a0d0a000d0a515549540a";
const std::string kBlock4 = "cb007109c0000201c73801bb";
const std::string kBlock6 =
    "20010db8000000000000000000000009fd0000000000000000000000000000010001ffff";
const Endpoint kClient4 = endpoint("203.0.113.9", 51000);
const Endpoint kServer4 = endpoint("192.0.2.1", 443);
const Endpoint kClient6 = endpoint("2001:db8::9", 1);
const Endpoint kServer6 = endpoint("fd00::1", 65535);

// A v2 header of these parts in hex, with the length of what follows it.
test::ByteVector v2(const std::string& command_family, const std::string& rest) {
  const std::size_t length = rest.size() / 2;
  const std::byte field[] = {static_cast<std::byte>(length >> 8),
                             static_cast<std::byte>(length & 0xff)};
  return unhex(kSignature + command_family + test::hex(field) + rest);
}

TEST_CASE("PROXY v1: the lines of section 2.1") {
  const std::string line = "PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\n";
  check_names(read(line + "GET / HTTP/1.1\r\n"), line.size(), endpoint("192.168.0.1", 56324),
              endpoint("192.168.0.11", 443));
  const std::string longest4 = "PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n";
  CHECK(longest4.size() == 56);
  check_names(read(longest4), 56, endpoint("255.255.255.255", 65535),
              endpoint("255.255.255.255", 65535));
  const std::string most6 = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
  const std::string longest6 = "PROXY TCP6 " + most6 + " " + most6 + " 65535 65535\r\n";
  CHECK(longest6.size() == 104);
  check_names(read(longest6), 104, endpoint(most6, 65535), endpoint(most6, 65535));
  check_nobody(read("PROXY UNKNOWN\r\n"), 15);
  const std::string longest = "PROXY UNKNOWN " + most6 + " " + most6 + " 65535 65535\r\n";
  CHECK(longest.size() == kMaxProxyV1);
  check_nobody(read(longest), kMaxProxyV1);
}

TEST_CASE("PROXY v1: forms of addresses and ports") {
  const auto line = [](const std::string& rest) { return read("PROXY " + rest + "\r\n"); };
  CHECK(line("TCP4 1.2.3.4 5.6.7.8 0 1").source.client == endpoint("1.2.3.4", 0));
  CHECK(line("TCP6 ::1 FD00::AbCd 1 2").source.server == endpoint("fd00::abcd", 2));
  CHECK(line("TCP6 ::ffff:1.2.3.4 ::1 1 2").source.client == endpoint("::ffff:102:304", 1));
  for (const char* rest : {
           "TCP4 1.2.3.4 5.6.7.8 65536 1",
           "TCP4 1.2.3.4 5.6.7.8 1 65536",
           "TCP4 1.2.3.4 5.6.7.8 1 4294967297",
           "TCP4 1.2.3.4 5.6.7.8 01 1",
           "TCP4 1.2.3.4 5.6.7.8 00 1",
           "TCP4 1.2.3.4 5.6.7.8 -1 1",
           "TCP4 1.2.3.4 5.6.7.8 +1 1",
           "TCP4 1.2.3.4 5.6.7.8 1a 1",
           "TCP4 1.2.3.4 5.6.7.8 0x1 1",
           "TCP4 1.2.3.4 5.6.7.8 1",
           "TCP4 1.2.3.4 5.6.7.8 1 ",
           "TCP4 1.2.3.4 5.6.7.8 1 2 ",
           "TCP4 1.2.3.4 5.6.7.8 1 2 3",
           "TCP4  1.2.3.4 5.6.7.8 1 2",
           "TCP4 1.2.3.4  5.6.7.8 1 2",
           "TCP4 1.2.3.4\t5.6.7.8 1 2",
           "TCP4 1.2.3.04 5.6.7.8 1 2",
           "TCP4 1.2.3.256 5.6.7.8 1 2",
           "TCP4 1.2.3 5.6.7.8 1 2",
           "TCP4 1.2.3.4.5 5.6.7.8 1 2",
           "TCP4 0x1.2.3.4 5.6.7.8 1 2",
           "TCP4 host 5.6.7.8 1 2",
           "TCP4 ::1 ::1 1 2",
           "TCP4 1.2.3.4 ::1 1 2",
           "TCP4 111111.222222.3333333.444444444444444444444444444 5.6.7.8 1 2",
           "TCP6 1.2.3.4 5.6.7.8 1 2",
           "TCP6 ::1 1.2.3.4 1 2",
           "TCP6 [::1] ::1 1 2",
           "TCP6 fe80::1%lo ::1 1 2",
           "TCP6 1::2::3 ::1 1 2",
           "TCP6 12345::1 ::1 1 2",
           "TCP6 1:2:3:4:5:6:7:8:9 ::1 1 2",
           "TCP4 ",
       }) {
    CAPTURE(rest);
    CHECK(line(rest).state == State::refused);
  }
  CHECK(line(std::string("TCP4 1.2.3.4\0 5.6.7.8 1 2", 25)).state == State::refused);
}

TEST_CASE("PROXY v1: what is no such line is refused as soon as it shows") {
  check_refused(read("GET / HTTP/1.1\r\n"), 1);
  check_refused(read("PRI * HTTP/2.0\r\n"), 3);
  check_refused(read("PROXY\r\n"), 6);
  check_refused(read("PROXY  TCP4"), 7);
  check_refused(read("proxy TCP4 1.2.3.4 5.6.7.8 1 2\r\n"), 1);
  check_refused(read("PROXY tcp4 1.2.3.4 5.6.7.8 1 2\r\n"), 7);
  check_refused(read("PROXY TCP5 1.2.3.4 5.6.7.8 1 2\r\n"), 10);
  check_refused(read("PROXY UDP4 1.2.3.4 5.6.7.8 1 2\r\n"), 8);
  check_refused(read("PROXY TCP4\r\n"), 11);
  check_refused(read("PROXY UNKNOWNS\r\n"), 16);
  // No line ends with a CR or an LF of its own.
  check_refused(read("PROXY TCP4 1.2.3.4 5.6.7.8 1 2\nmore"), 31);
  check_refused(read("PROXY TCP4 1.2.3.4 5.6.7.8 1 2\rmore"), 32);
  check_refused(read("PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\r\n"), 32);
  check_refused(read("PROXY UNKNOWN\n"), 14);
  check_refused(read("PROXY UNKNOWN a\rb\r\n"), 17);
  // 107 bytes without CRLF; the same one byte shorter may still become a line.
  const std::string start = "PROXY UNKNOWN ";
  const std::string fill(kMaxProxyV1 - start.size(), 'x');
  check_refused(read(start + fill + "\r\n"), kMaxProxyV1);
  CHECK(read(start + fill.substr(1)).state == State::need_more);
  check_refused(read(start + fill.substr(1) + "\r\n"), kMaxProxyV1);
  check_nobody(read(start + fill.substr(2) + "\r\n"), kMaxProxyV1);
}

TEST_CASE("PROXY v2: addresses") {
  check_names(read(v2("2111", kBlock4)), 28, kClient4, kServer4);
  check_names(read(v2("2121", kBlock6)), 52, kClient6, kServer6);
  auto followed = v2("2111", kBlock4);
  followed.resize(followed.size() + 2000, std::byte{0x16});
  check_names(read(followed), 28, kClient4, kServer4);
  // The length may leave room for more than the addresses: TLVs, skipped.
  check_names(read(v2("2111", kBlock4 + "0100026832040000e000017f")), 40, kClient4, kServer4);
}

TEST_CASE("PROXY v2: what names nobody") {
  check_nobody(read(v2("2000", "")), 16);       // LOCAL
  check_nobody(read(v2("2011", kBlock4)), 28);  // LOCAL: the rest is to be ignored,
  check_nobody(read(v2("20ff", "0102")), 18);   // whatever it is
  check_nobody(read(v2("2100", "")), 16);       // UNSPEC
  check_nobody(read(v2("2100", "ffffff")), 19);
  check_nobody(read(v2("2110", kBlock4)), 28);  // transport UNSPEC
  check_nobody(read(v2("2110", "abcd")), 18);
  check_nobody(read(v2("2101", "")), 16);       // family UNSPEC
  check_nobody(read(v2("2112", kBlock4)), 28);  // UDP
  check_nobody(read(v2("2122", kBlock6)), 52);
  check_nobody(read(v2("2131", std::string(432, '7'))), 232);  // unix stream
  check_nobody(read(v2("2132", std::string(432, '7') + "040000")), 235);
}

TEST_CASE("PROXY v2: refused as soon as it shows") {
  check_refused(read(unhex("0d0a0d0a000d0a515549540b")), 12);
  check_refused(read(unhex("0d0a0d0a0a")), 5);
  check_refused(read(v2("1111", kBlock4)), 13);  // version 1, 3
  check_refused(read(v2("3111", kBlock4)), 13);
  check_refused(read(v2("2211", kBlock4)), 13);  // no such command
  check_refused(read(v2("2f11", kBlock4)), 13);
  check_refused(read(v2("2141", kBlock4)), 14);            // no such family
  check_refused(read(v2("2113", kBlock4)), 14);            // no such transport
  check_refused(read(v2("2111", kBlock4.substr(2))), 16);  // too short for the addresses
  check_refused(read(v2("2121", kBlock6.substr(2))), 16);
  check_refused(read(v2("2112", kBlock4.substr(2))), 16);
  check_refused(read(v2("2131", std::string(430, '7'))), 16);
  // As long as it may be, and longer.
  const auto padded = [](std::size_t size) {
    const std::size_t value = size - 28 - 3;
    const std::byte field[] = {std::byte{4}, static_cast<std::byte>(value >> 8),
                               static_cast<std::byte>(value & 0xff)};
    return v2("2111", kBlock4 + test::hex(field) + std::string(2 * value, '0'));
  };
  check_names(read(padded(kMaxProxyV2)), kMaxProxyV2, kClient4, kServer4);
  check_refused(read(padded(kMaxProxyV2 + 1)), 16);
  check_refused(read(unhex(kSignature + "2000ffff")), 16);
}

TEST_CASE("PROXY v2: TLVs that lie") {
  for (const char* tlvs :
       {"01", "0100", "010001", "010002680001", "01ffff68", "04000005", "0400010004"}) {
    CAPTURE(tlvs);
    CHECK(read(v2("2111", kBlock4 + tlvs)).state == State::refused);
  }
  CHECK(read(v2("2132", std::string(432, '7') + "0100")).state == State::refused);
}

TEST_CASE("PROXY v2: a CRC32C has to be right") {
  // The sum was computed bit by bit by another program.
  const std::string padding = "0400020000";
  check_names(read(v2("2111", kBlock4 + "030004224d2b98" + padding)), 40, kClient4, kServer4);
  for (const char* tlv : {"030004224d2b99", "03000400000000", "030004982b4d22", "030003224d2b",
                          "030005224d2b9800", "030000", "030004224d2b98030004224d2b98"}) {
    CAPTURE(tlv);
    CHECK(read(v2("2111", kBlock4 + tlv + padding)).state == State::refused);
  }
  // It covers every byte, those behind it included.
  const auto good = v2("2111", kBlock4 + "030004224d2b98" + padding);
  for (std::size_t at = 16; at < good.size(); ++at) {
    auto changed = good;
    changed[at] ^= std::byte{0x40};
    CAPTURE(at);
    if (at != 28) CHECK(read(changed).state == State::refused);  // 28: another TLV now
  }
}

TEST_CASE("PROXY: until its last byte is there, more is needed") {
  for (const auto& header :
       {bytes_of("PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n"), bytes_of("PROXY TCP6 ::1 ::2 1 2\r\n"),
        bytes_of("PROXY UNKNOWN\r\n"), bytes_of("PROXY UNKNOWN ffff 1\r\n"), v2("2000", ""),
        v2("2111", kBlock4 + "0100026832"), v2("2121", kBlock6),
        v2("2131", std::string(432, '7'))}) {
    for (std::size_t size = 0; size < header.size(); ++size) {
      CAPTURE(size);
      ProxyReader reader(ProxyVersions::any);
      REQUIRE(reader.read(std::span(header).first(size)) == State::need_more);
      REQUIRE(reader.size() == 0);
    }
    CHECK(read(header).state == State::done);
  }
}

TEST_CASE("PROXY: a listener accepts the versions that it is set to") {
  const auto one = bytes_of("PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n");
  const auto two = v2("2111", kBlock4);
  CHECK(read(one, ProxyVersions::v1).state == State::done);
  CHECK(read(two, ProxyVersions::v2).state == State::done);
  check_refused(read(one, ProxyVersions::v2), 1);
  check_refused(read(two, ProxyVersions::v1), 1);
}

TEST_CASE("PROXY: what is written is what is read") {
  const auto same = [](const ProxyHeader& header, const Endpoint& client, const Endpoint& server) {
    check_names(read(header.bytes()), header.size, client, server);
  };
  same(encode_proxy_v1({kClient4, kServer4}), kClient4, kServer4);
  same(encode_proxy_v1({kClient6, kServer6}), kClient6, kServer6);
  same(encode_proxy_v2({kClient4, kServer4}), kClient4, kServer4);
  same(encode_proxy_v2({kClient6, kServer6}), kClient6, kServer6);
  const Endpoint mapped = endpoint("::ffff:203.0.113.9", 51000);
  same(encode_proxy_v1({kClient4, kServer6}), mapped, kServer6);
  same(encode_proxy_v2({kServer6, kClient4}), kServer6, mapped);
  check_nobody(read(encode_proxy_v1({}).bytes()), 15);
  check_nobody(read(encode_proxy_v2({}).bytes()), 16);

  CHECK(text_of(encode_proxy_v1({kClient4, kServer4})) ==
        "PROXY TCP4 203.0.113.9 192.0.2.1 51000 443\r\n");
  CHECK(text_of(encode_proxy_v1({endpoint("::", 0), kServer6})) ==
        "PROXY TCP6 :: fd00::1 0 65535\r\n");
  CHECK(text_of(encode_proxy_v1({kClient4, kServer6})) ==
        "PROXY TCP6 ::ffff:203.0.113.9 fd00::1 51000 65535\r\n");
  CHECK(text_of(encode_proxy_v1({})) == "PROXY UNKNOWN\r\n");
  CHECK(test::hex(encode_proxy_v2({}).bytes()) == kSignature + "20000000");
  CHECK(test::hex(encode_proxy_v2({kClient4, kServer4}).bytes()) ==
        kSignature + "2111000c" + kBlock4);
}

TEST_CASE("PROXY v2: the TLVs that are written") {
  const auto tlvs = [](const ProxyTlvs& given) {
    const ProxyHeader header = encode_proxy_v2({kClient4, kServer4}, given);
    check_names(read(header.bytes()), header.size, kClient4, kServer4);
    return test::hex(header.bytes()).substr(2 * 28);
  };
  CHECK(tlvs({}).empty());
  CHECK(tlvs({.alpn = "h2"}) == "0100026832");
  CHECK(tlvs({.authority = "a.b"}) == "020003612e62");
  CHECK(tlvs({.alpn = "h2", .authority = "a.b"}) == "0100026832020003612e62");
  CHECK(tlvs({.ssl = true}) == "2000050100000001");
  CHECK(tlvs({.ssl = true, .tls_version = "TLSv1.3", .cipher = "X"}) ==
        "2000130100000001210007544c5376312e3323000158");
  CHECK(tlvs({.tls_version = "TLSv1.3", .cipher = "X"}).empty());  // no TLS, nothing of it

  // The longest of everything fits.
  const std::string alpn(255, 'a');
  const std::string name(253, 'n');
  const std::string cipher(45, 'c');
  const ProxyTlvs full{
      .alpn = alpn, .authority = name, .ssl = true, .tls_version = "TLSv1.3", .cipher = cipher};
  const ProxyHeader longest = encode_proxy_v2({kClient6, kServer6}, full);
  CHECK(longest.size == 52 + 258 + 256 + 8 + 10 + 48);
  check_names(read(longest.bytes()), longest.size, kClient6, kServer6);
  // What does not fit is left out, the rest stays.
  const std::string huge(70000, 'h');
  CHECK(tlvs({.alpn = huge, .authority = "a.b"}) == "020003612e62");
  for (std::size_t size = 600; size <= ProxyHeader::kMaxSize; ++size) {
    CAPTURE(size);
    const std::string text(size, 'h');
    const auto header = encode_proxy_v2({kClient4, kServer4},
                                        {.authority = text, .ssl = true, .tls_version = "TLSv1.2"});
    REQUIRE(header.size <= ProxyHeader::kMaxSize);
    check_names(read(header.bytes()), header.size, kClient4, kServer4);
  }
}

}  // namespace
}  // namespace causeway::net
