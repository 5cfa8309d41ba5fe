// SPDX-License-Identifier: Apache-2.0
#include "proto/segment.hpp"

#include <doctest/doctest.h>

#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/unit/packets.hpp"

namespace causeway::proto {
namespace {

using test::Bytes;
using test::Packet;
using test::SuperFrame;

struct Result {
  SegmentStatus status = SegmentStatus::ok;
  std::vector<Bytes> frames;
};

// Runs a frame through a slab of `room` bytes, sent and filled again until it is done.
Result run(const Bytes& frame, const VnetHeader& header, std::size_t room = 200'000,
           std::uint32_t max_frame = kMaxFrame) {
  Result result;
  Segmenter segmenter(max_frame);
  result.status = segmenter.begin(frame, header);
  Bytes slab(room);
  while (!segmenter.done()) {
    std::fill(slab.begin(), slab.end(), std::byte{0xee});
    const Segmenter::Filled filled = segmenter.fill(slab);
    REQUIRE(filled.records > 0);
    std::size_t at = 0;
    for (std::size_t i = 0; i < filled.records; ++i) {
      const std::size_t length = test::get32(slab, at);
      REQUIRE(at + 4 + length <= filled.bytes);
      const auto record = std::span{slab}.subspan(at + 4, length);
      result.frames.emplace_back(record.begin(), record.end());
      at += 4 + length;
    }
    CHECK(at == filled.bytes);
    const auto behind = std::span{slab}.subspan(at);
    CHECK(std::all_of(behind.begin(), behind.end(),
                      [](std::byte value) { return value == std::byte{0xee}; }));
  }
  return result;
}

std::vector<Packet> kinds() {
  std::vector<Packet> packets;
  for (int bits = 0; bits < 8; ++bits) {
    Packet packet;
    packet.ipv6 = (bits & 1) != 0;
    packet.tcp = (bits & 2) != 0;
    packet.vlan = (bits & 4) != 0;
    packets.push_back(packet);
  }
  return packets;
}

TEST_CASE("segment: super-frames of every kind become the packets that RFC 9293 wants") {
  for (Packet packet : kinds()) {
    for (const std::size_t size : {1U, 999U, 1000U, 1001U, 2000U, 12'345U, 64'000U}) {
      CAPTURE(packet.ipv6);
      CAPTURE(packet.tcp);
      CAPTURE(size);
      packet.payload = test::pattern(size);
      packet.tcp_options = test::pattern(12, 9);
      const SuperFrame super = test::super_frame(packet, 1000);
      const Result result = run(super.frame, super.header);
      REQUIRE(result.status == SegmentStatus::ok);
      CHECK(result.frames == test::expected_segments(packet, 1000));
    }
  }
}

TEST_CASE("segment: all flags, with wrapping sequence and identification") {
  for (const bool ipv6 : {false, true}) {
    for (unsigned flags = 0; flags < 256; ++flags) {
      Packet packet;
      packet.ipv6 = ipv6;
      packet.flags = static_cast<std::uint8_t>(flags);
      packet.sequence = 0xfffffc00;
      packet.id = 0xffff;
      packet.dont_fragment = false;
      packet.payload = test::pattern(3500);
      SuperFrame super = test::super_frame(packet, 1448);
      if ((flags & 0x80) != 0) {
        super.header.gso_type |= kGsoEcn;
      }
      const Result result = run(super.frame, super.header);
      REQUIRE(result.status == SegmentStatus::ok);
      REQUIRE(result.frames == test::expected_segments(packet, 1448));
    }
  }
}

TEST_CASE("segment: random super-frames through slabs of random sizes") {
  std::mt19937 random(20'261);
  for (int round = 0; round < 200; ++round) {
    Packet packet = kinds()[random() % 8];
    const bool tiny = round % 8 == 0;
    packet.payload = test::pattern(random() % (tiny ? 2000 : 65'000), random());
    packet.tcp_options = test::pattern(random() % 11 * 4, random());
    packet.ip_options = test::pattern(packet.ipv6 ? 0 : random() % 3 * 4, random());
    packet.sequence = static_cast<std::uint32_t>(random());
    packet.flags = static_cast<std::uint8_t>(random());
    packet.tos = static_cast<std::uint8_t>(random());
    packet.id = static_cast<std::uint16_t>(random());
    const auto gso_size = static_cast<std::uint16_t>(1 + random() % (tiny ? 64 : 9000));
    if (packet.payload.size() + packet.headers() > 65'500) {
      continue;
    }
    const SuperFrame super = test::super_frame(packet, gso_size);
    const std::size_t room = 4 + packet.headers() + gso_size + random() % 40'000;
    const Result result = run(super.frame, super.header, room);
    REQUIRE(result.status == SegmentStatus::ok);
    REQUIRE(result.frames == test::expected_segments(packet, gso_size));
  }
}

TEST_CASE("segment: a UDP checksum that comes out as zero goes out as all ones") {
  for (const std::uint8_t gso_type : {kGsoUdpL4, kGsoNone}) {
    Packet packet;
    packet.tcp = false;
    packet.payload = Bytes(2);
    // The checksum of the packet with a zero in this word is what makes it zero.
    const unsigned word = test::get16(test::build(packet), packet.checksum_at());
    test::set16(packet.payload, 0, word);
    SuperFrame super = test::super_frame(packet, 2);
    super.header.gso_type = gso_type;
    const Result result = run(super.frame, super.header);
    CHECK(test::get16(result.frames.at(0), packet.checksum_at()) == 0xffff);
    CHECK(result.frames.at(0) == test::build(packet));
  }
}

TEST_CASE("segment: a frame without offload is copied as it is") {
  for (const std::size_t size : {14U, 60U, 1514U, 65'550U}) {
    const Bytes frame = test::pattern(size);
    const Result result = run(frame, VnetHeader{.flags = kVnetDataValid});
    REQUIRE(result.status == SegmentStatus::ok);
    REQUIRE(result.frames.size() == 1);
    CHECK(result.frames[0] == frame);
  }
}

TEST_CASE("segment: a checksum left to us is filled in, whatever the protocol") {
  for (Packet packet : kinds()) {
    for (const std::size_t size : {0U, 1U, 2U, 63U, 64U, 65U, 1400U}) {
      packet.payload = test::pattern(size);
      SuperFrame super = test::super_frame(packet, 0);
      super.header.gso_type = kGsoNone;
      const Result result = run(super.frame, super.header);
      REQUIRE(result.status == SegmentStatus::ok);
      REQUIRE(result.frames.size() == 1);
      CHECK(result.frames[0] == test::build(packet));
    }
  }
}

TEST_CASE("segment: places of a checksum at and beyond the end of the frame") {
  const Bytes frame = test::pattern(60);
  const auto status = [&](unsigned start, unsigned offset) {
    return run(frame, VnetHeader{.flags = kVnetNeedsCsum,
                                 .csum_start = static_cast<std::uint16_t>(start),
                                 .csum_offset = static_cast<std::uint16_t>(offset)})
        .status;
  };
  CHECK(status(42, 16) == SegmentStatus::ok);
  CHECK(status(0, 0) == SegmentStatus::ok);
  CHECK(status(43, 16) == SegmentStatus::checksum_place);
  CHECK(status(34, 7) == SegmentStatus::checksum_place);
  CHECK(status(60, 0) == SegmentStatus::checksum_place);
  CHECK(status(65'535, 65'534) == SegmentStatus::checksum_place);
}

TEST_CASE("segment: the peer's longest frame is kept to") {
  const Bytes frame = test::pattern(1519);
  CHECK(run(frame, VnetHeader{}, 4000, 1518).status == SegmentStatus::frame_too_long);
  CHECK(run(frame, VnetHeader{}, 4000, 1519).status == SegmentStatus::ok);
  Packet packet;
  packet.payload = test::pattern(9000);
  const SuperFrame super = test::super_frame(packet, 1465);
  CHECK(run(super.frame, super.header, 4000, 1518).status == SegmentStatus::frame_too_long);
  CHECK(run(super.frame, super.header, 4000, 1519).status == SegmentStatus::ok);
  // A gso_size above the payload does not count: the only record is short.
  packet.payload = test::pattern(100);
  const SuperFrame small = test::super_frame(packet, 9000);
  CHECK(run(small.frame, small.header, 4000, 1518).status == SegmentStatus::ok);
}

TEST_CASE("segment: a slab without room for the next record leaves everything for the next call") {
  Packet packet;
  packet.payload = test::pattern(2500);
  const SuperFrame super = test::super_frame(packet, 1000);
  Segmenter segmenter;
  REQUIRE(segmenter.begin(super.frame, super.header) == SegmentStatus::ok);
  Bytes slab(1057);
  Segmenter::Filled filled = segmenter.fill(slab);
  CHECK(filled.bytes == 0);
  CHECK(filled.records == 0);
  CHECK_FALSE(segmenter.done());
  filled = segmenter.fill({});
  CHECK(filled.records == 0);
  slab.resize(2 * 1058);  // exactly two
  filled = segmenter.fill(slab);
  CHECK(filled.records == 2);
  CHECK(filled.bytes == 2 * 1058);
  filled = segmenter.fill(slab);
  CHECK(filled.records == 1);
  CHECK(filled.bytes == 558);
  CHECK(segmenter.done());
  filled = segmenter.fill(slab);
  CHECK(filled.records == 0);
}

TEST_CASE("segment: a vnet header that does not fit its frame is a reason, not a record") {
  Packet packet;
  packet.payload = test::pattern(3000);
  const SuperFrame good = test::super_frame(packet, 1000);
  const auto status_of = [&](auto change) {
    SuperFrame super = good;
    change(super);
    const Result result = run(super.frame, super.header);
    if (result.status != SegmentStatus::ok) {
      CHECK(result.frames.empty());
    }
    return result.status;
  };
  using S = SegmentStatus;
  const auto type = [](std::uint8_t value) {
    return [value](SuperFrame& super) { super.header.gso_type = value; };
  };
  const auto byte = [](std::size_t at, unsigned value) {
    return [at, value](SuperFrame& super) { super.frame[at] = static_cast<std::byte>(value); };
  };
  CHECK(status_of([](SuperFrame&) {}) == S::ok);
  CHECK(status_of(type(kGsoUdp)) == S::gso_type);
  CHECK(status_of(type(2)) == S::gso_type);
  CHECK(status_of(type(kGsoUdpL4 | kGsoEcn)) == S::gso_type);
  CHECK(status_of(type(kGsoEcn)) == S::gso_type);
  CHECK(status_of(type(kGsoTcp4 | 0x20)) == S::gso_type);
  CHECK(status_of(type(kGsoTcp6)) == S::ethertype);
  CHECK(status_of(type(kGsoUdpL4)) == S::protocol);
  CHECK(status_of([](SuperFrame& super) { super.header.gso_size = 0; }) == S::gso_size);
  CHECK(status_of([](SuperFrame& super) { super.frame.resize(13); }) == S::frame_too_short);
  CHECK(status_of([](SuperFrame& super) { super.frame.resize(33); }) == S::ip_header);
  CHECK(status_of([](SuperFrame& super) { super.frame.resize(53); }) == S::ip_length);
  CHECK(status_of([](SuperFrame& super) { super.frame.pop_back(); }) == S::ip_length);
  CHECK(status_of([](SuperFrame& super) { super.frame.emplace_back(); }) == S::ip_length);
  CHECK(status_of(byte(12, 0x09)) == S::ethertype);
  CHECK(status_of(byte(14, 0x65)) == S::ip_header);
  CHECK(status_of(byte(14, 0x44)) == S::ip_header);
  CHECK(status_of(byte(20, 0x20)) == S::fragment);
  CHECK(status_of(byte(21, 0x01)) == S::fragment);
  CHECK(status_of(byte(23, 1)) == S::protocol);
  CHECK(status_of(byte(23, 17)) == S::transport_header);
  CHECK(status_of(byte(46, 0x40)) == S::transport_header);
  CHECK(status_of([](SuperFrame& super) {
          super.frame.resize(14 + 39);
          test::set16(super.frame, 16, 39);
        }) == S::transport_header);
  // A TCP header of 60 bytes in a packet that has 40 of them.
  CHECK(status_of([](SuperFrame& super) {
          super.frame.resize(14 + 20 + 40);
          test::set16(super.frame, 16, 60);
          super.frame[46] = std::byte{0xf0};
        }) == S::transport_header);
  // Two tags.
  CHECK(status_of([](SuperFrame& super) {
          test::set16(super.frame, 12, 0x88a8);
          test::set16(super.frame, 16, 0x8100);
        }) == S::vlan_depth);

  packet.ipv6 = true;
  const SuperFrame six = test::super_frame(packet, 1000);
  for (const unsigned next : {0U, 43U, 51U, 60U}) {
    Bytes frame = six.frame;
    frame[20] = static_cast<std::byte>(next);
    CHECK(run(frame, six.header).status == S::extension_header);
  }
  Bytes fragment = six.frame;
  fragment[20] = std::byte{44};
  CHECK(run(fragment, six.header).status == S::fragment);
}

TEST_CASE("segment: every status has its own name") {
  std::set<std::string> names;
  for (std::size_t i = 0; i < kSegmentStatusCount; ++i) {
    names.insert(segment_status_name(static_cast<SegmentStatus>(i)));
  }
  CHECK(names.size() == kSegmentStatusCount);
}

}  // namespace
}  // namespace causeway::proto
