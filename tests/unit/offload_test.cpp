// SPDX-License-Identifier: Apache-2.0
#include "proto/offload.hpp"

#include <doctest/doctest.h>

#include <map>
#include <random>
#include <set>
#include <string>

#include "proto/bytes.hpp"
#include "tests/unit/vectors.hpp"

namespace causeway::proto {
namespace {

using test::ByteVector;
using test::Json;

OffloadHeader header_of(const Json& json) {
  return {json.at("flags"), json.at("gso_type"), json.at("gso_size"), json.at("csum_start"),
          json.at("csum_offset")};
}

VnetHeader vnet_of(const Json& json) {
  return {json.at("flags"),    json.at("gso_type"),   json.at("hdr_len"),
          json.at("gso_size"), json.at("csum_start"), json.at("csum_offset")};
}

OffloadLimits limits_of(const Json& json) {
  return {.mtu = json.at("mtu"), .offload = json.at("offload"), .uso = json.at("uso")};
}

VnetHeader vnet_of(const OffloadHeader& header) {
  return {.flags = header.flags,
          .gso_type = header.gso_type,
          .hdr_len = 0,
          .gso_size = header.gso_size,
          .csum_start = header.csum_start,
          .csum_offset = header.csum_offset};
}

// One's complement sum of big-endian words, the slow way.
std::uint16_t slow_sum(std::span<const std::byte> bytes) {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    sum += std::to_integer<std::uint32_t>(bytes[i]) << (i % 2 == 0 ? 8 : 0);
    sum = (sum & 0xffff) + (sum >> 16);
  }
  return static_cast<std::uint16_t>(sum);
}

TEST_CASE("offload: the vectors") {
  const auto vectors = test::load_vectors("offload");
  std::set<std::string> drops;
  for (const auto& vector : vectors) {
    CAPTURE(vector.at("name").get<std::string>());
    const ByteVector frame = test::join(vector.at("frame"));
    VnetHeader out{.flags = 0xff, .gso_type = 0xff};
    const auto drop =
        rebuild_offload(header_of(vector.at("header")), frame, limits_of(vector), out);
    if (vector.contains("drop")) {
      CHECK(to_string(drop) == vector.at("drop").get<std::string>());
      CHECK(out == VnetHeader{});
      drops.emplace(to_string(drop));
    } else {
      CHECK(to_string(drop) == "offload_none");
      CHECK(out == vnet_of(vector.at("vnet")));
    }
  }
  CHECK(drops.size() == kOffloadDropCount - 1);  // every reason has its vector
}

TEST_CASE("offload: names are fixed, distinct and one for each reason") {
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < kOffloadDropCount; ++i) {
    const auto name = to_string(static_cast<OffloadDrop>(i));
    CHECK(name.starts_with("offload_"));
    names.insert(name);
  }
  CHECK(names.size() == kOffloadDropCount);
  CHECK(to_string(OffloadDrop::segments) == "offload_segments");
  CHECK(to_string(OffloadDrop::checksum_place) == "offload_checksum_place");
}

TEST_CASE("offload: what the receiver takes, the sender sends, and the other way round") {
  for (const auto& vector : test::load_vectors("offload")) {
    CAPTURE(vector.at("name").get<std::string>());
    const ByteVector frame = test::join(vector.at("frame"));
    const OffloadHeader header = header_of(vector.at("header"));
    if ((header.flags & ~(kVnetNeedsCsum | kVnetDataValid)) != 0) continue;  // cleared by sender
    ByteVector sent = frame;
    OffloadHeader out{0xff, 0xff, 0xffff, 0xffff, 0xffff};
    const auto drop = prepare_offload(vnet_of(header), sent, limits_of(vector), out);
    if (!vector.contains("drop")) {
      CHECK(drop == OffloadDrop::none);
      CHECK(sent == frame);
      VnetHeader received;
      CHECK(rebuild_offload(out, sent, limits_of(vector), received) == OffloadDrop::none);
      CHECK(received == vnet_of(vector.at("vnet")));
    } else if (header.gso_type != kGsoNone) {
      CHECK(to_string(drop) == vector.at("drop").get<std::string>());
      CHECK(sent == frame);
      CHECK(out == OffloadHeader{});
    } else if (header.csum_start + header.csum_offset + 2U <= frame.size()) {
      CHECK(drop == OffloadDrop::none);  // the checksum was filled in here
      CHECK(out == OffloadHeader{});
      const auto before = slow_sum(std::span(frame).subspan(header.csum_start));
      const auto field = load_be16(sent, header.csum_start + std::size_t{header.csum_offset});
      CHECK(field == (before == 0xffff ? 0xffff : static_cast<std::uint16_t>(~before)));
    } else {
      CHECK(to_string(drop) == vector.at("drop").get<std::string>());
      CHECK(sent == frame);
    }
  }
}

TEST_CASE("offload: the sender clears flags of its kernel that the wire does not have") {
  ByteVector frame(60);
  OffloadHeader out;
  const OffloadLimits limits{.mtu = 1500, .offload = true, .uso = true};
  for (const unsigned bits : {2U, 4U, 6U, 0xfeU}) {
    const auto flags = static_cast<std::uint8_t>(bits);
    const VnetHeader header{.flags = flags,
                            .gso_type = 0,
                            .hdr_len = 54,
                            .gso_size = 1,
                            .csum_start = 2,
                            .csum_offset = 3};
    CHECK(prepare_offload(header, frame, limits, out) == OffloadDrop::none);
    CHECK(out == OffloadHeader{});
  }
}

TEST_CASE("offload: a checksum left undone is filled in for a peer without offload") {
  // UDP over IPv4, 192.0.2.1 to 192.0.2.2, with the pseudo-header's sum in the checksum field.
  ByteVector frame = test::unhex(
      "020000000001020000000002"
      "0800"
      "4500001f000040004011b6cb"
      "c0000201"
      "c0000202"
      "14e901bb000b0000"
      "616263");
  ByteVector pseudo = test::unhex("c0000201c00002020011000b");
  store_be16(frame, 40, slow_sum(pseudo));
  const VnetHeader header{.flags = kVnetNeedsCsum,
                          .gso_type = 0,
                          .hdr_len = 0,
                          .gso_size = 0,
                          .csum_start = 34,
                          .csum_offset = 6};
  OffloadHeader out;
  const OffloadLimits limits{.mtu = 1500, .offload = false, .uso = false};
  REQUIRE(prepare_offload(header, frame, limits, out) == OffloadDrop::none);
  CHECK(out == OffloadHeader{});
  const auto datagram = std::span(frame).subspan(34);
  pseudo.insert(pseudo.end(), datagram.begin(), datagram.end());
  CHECK(slow_sum(pseudo) == 0xffff);

  // A checksum that comes out as 0 is sent as 0xffff: in UDP 0 means that there is none.
  ByteVector zero(frame.begin(), frame.begin() + 44);
  store_be16(zero, 40, 0);
  store_be16(zero, 42, 0);
  store_be16(zero, 42, static_cast<std::uint16_t>(~slow_sum(std::span(zero).subspan(34))));
  REQUIRE(prepare_offload(header, zero, limits, out) == OffloadDrop::none);
  CHECK(load_be16(zero, 40) == 0xffff);
}

// A frame that holds together, and the header that goes with it.
struct Made {
  ByteVector frame;
  OffloadHeader header;
};

Made make_frame(std::mt19937& random) {
  const bool ipv6 = random() % 2 == 0;
  const bool udp = random() % 3 == 0;
  const bool tagged = random() % 3 == 0;
  const std::size_t ip_options = ipv6 ? 0 : 4 * (random() % 3);
  const std::size_t tcp_options = udp ? 0 : 4 * (random() % 4);
  const std::size_t l3 = tagged ? 18 : 14;
  const std::size_t l4 = l3 + (ipv6 ? 40 : 20 + ip_options);
  const std::size_t l4_size = udp ? 8 : 20 + tcp_options;
  const auto payload = test::pick<std::size_t>(random, 0, 65'535 - 80 - l4_size);
  Made made{ByteVector(l4 + l4_size + payload), {}};
  auto& frame = made.frame;
  if (tagged) store_be16(frame, 12, 0x8100);
  store_be16(frame, l3 - 2, ipv6 ? 0x86dd : 0x0800);
  store_u8(frame, l3, static_cast<std::uint8_t>(ipv6 ? 0x60 : 0x45 + ip_options / 4));
  store_be16(frame, l3 + (ipv6 ? 4 : 2),
             static_cast<std::uint16_t>(frame.size() - (ipv6 ? l4 : l3)));
  store_u8(frame, l3 + (ipv6 ? 6 : 9), udp ? 17 : 6);
  if (udp) {
    store_be16(frame, l4 + 4, static_cast<std::uint16_t>(frame.size() - l4));
  } else {
    store_u8(frame, l4 + 12, static_cast<std::uint8_t>(l4_size / 4 << 4));
  }
  const std::array<std::uint8_t, 2> types = {kGsoNone, udp    ? kGsoUdpL4
                                                       : ipv6 ? kGsoTcp6
                                                              : kGsoTcp4};
  made.header = {.flags = 1,
                 .gso_type = types[random() % 2],
                 .gso_size = static_cast<std::uint16_t>(test::pick(random, 512, 1380)),
                 .csum_start = static_cast<std::uint16_t>(l4),
                 .csum_offset = static_cast<std::uint16_t>(udp ? 6 : 16)};
  return made;
}

TEST_CASE("offload: random good frames pass; one changed byte or a cut never breaks the rules") {
  std::mt19937 random(5);
  const OffloadLimits limits{.mtu = 1500, .offload = true, .uso = true};
  std::map<OffloadDrop, int> drops;
  for (int round = 0; round < 4000; ++round) {
    CAPTURE(round);
    Made made = make_frame(random);
    VnetHeader out;
    const auto drop = rebuild_offload(made.header, made.frame, limits, out);
    if (made.header.gso_type == kGsoNone || made.frame.size() > 200) {
      REQUIRE(drop == OffloadDrop::none);
      REQUIRE(out.flags == kVnetNeedsCsum);
      REQUIRE(out.csum_start == made.header.csum_start);
      REQUIRE(out.csum_offset == made.header.csum_offset);
    }
    if (random() % 4 == 0) {
      made.frame.resize(14 + random() % (made.frame.size() - 14));  // any cut is noticed
      REQUIRE(rebuild_offload(made.header, made.frame, limits, out) != OffloadDrop::none);
    } else {
      const std::size_t headers = std::min<std::size_t>(made.frame.size(), 90);
      made.frame[random() % headers] = static_cast<std::byte>(random() & 0xff);
    }
    const auto changed = rebuild_offload(made.header, made.frame, limits, out);
    ++drops[changed];
    if (changed == OffloadDrop::none) {
      REQUIRE(out.csum_start + out.csum_offset + 2U <= made.frame.size());
      REQUIRE(out.hdr_len <= made.frame.size());
    }
  }
  CHECK(drops.size() > 6);
}

TEST_CASE("offload: the smallest gso_size keeps any frame within the segment bound") {
  CHECK((65'535 + kMinGsoSize - 1) / kMinGsoSize <= kMaxGsoSegments);
}

}  // namespace
}  // namespace causeway::proto
