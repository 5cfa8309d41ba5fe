// SPDX-License-Identifier: Apache-2.0
#include "proto/checksum.hpp"

#include <doctest/doctest.h>

#include <random>
#include <string>

#include "tests/unit/packets.hpp"

namespace causeway::proto {
namespace {

using test::Bytes;

std::uint16_t swapped(unsigned value) {
  return __builtin_bswap16(static_cast<std::uint16_t>(value));
}

TEST_CASE("checksum: the example of RFC 1071 section 3") {
  Bytes bytes;
  for (const unsigned value : {0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7}) {
    test::put8(bytes, value);
  }
  CHECK(swapped(fold(sum_bytes(bytes))) == 0xddf2);
}

TEST_CASE("checksum: every size and alignment agrees with the simple sum, on both paths") {
  const Bytes data = test::pattern(700);
  for (std::size_t start = 0; start < 9; ++start) {
    for (std::size_t size = 0; size + start <= data.size(); ++size) {
      const auto bytes = std::span{data}.subspan(start, size);
      const auto expected = swapped(test::slow_sum(bytes));
      REQUIRE(fold(sum_bytes(bytes)) == expected);
      REQUIRE(fold(detail::portable_sum(bytes)) == expected);
      Bytes copy(size + 1, std::byte{0x5a});
      REQUIRE(fold(detail::portable_copy_and_sum(copy, bytes)) == expected);
      REQUIRE(std::equal(bytes.begin(), bytes.end(), copy.begin()));
      REQUIRE(copy.back() == std::byte{0x5a});
      if (detail::has_wide_sum()) {
        REQUIRE(fold(detail::wide_sum(bytes)) == expected);
        std::fill(copy.begin(), copy.end(), std::byte{0x5a});
        REQUIRE(fold(detail::wide_copy_and_sum(copy, bytes)) == expected);
        REQUIRE(std::equal(bytes.begin(), bytes.end(), copy.begin()));
        REQUIRE(copy.back() == std::byte{0x5a});
      }
    }
  }
}

TEST_CASE("checksum: all ones, the case with the most carries, in 64 KiB and more") {
  for (const std::size_t size : {65'535U, 65'536U, 1'000'001U}) {
    const Bytes bytes(size, std::byte{0xff});
    const auto expected = swapped(test::slow_sum(bytes));
    CHECK(fold(sum_bytes(bytes)) == expected);
    CHECK(fold(detail::portable_sum(bytes)) == expected);
    CHECK(sum_bytes(bytes) < Sum{1} << 34);
  }
}

TEST_CASE("checksum: parts add up when all but the last are even") {
  const Bytes data = test::pattern(1500);
  std::mt19937 random(71);
  for (int round = 0; round < 200; ++round) {
    const std::size_t cut = random() % 750 * 2;
    const auto first = std::span{data}.first(cut);
    const auto rest = std::span{data}.subspan(cut);
    CHECK(fold(sum_bytes(first) + sum_bytes(rest)) == swapped(test::slow_sum(data)));
  }
}

TEST_CASE("checksum: a changed word updates the field as a new sum would") {
  std::mt19937 random(72);
  for (int round = 0; round < 2000; ++round) {
    Bytes data = test::pattern(40, random());
    const std::uint16_t before_field = checksum(sum_bytes(data));
    const std::size_t at = random() % 20 * 2;
    const std::uint16_t before = load_folded(data, at);
    const auto after = static_cast<std::uint16_t>(round % 4 == 0 ? 0xffff : random());
    store_folded(data, at, after);
    const std::uint16_t updated = update_checksum(before_field, before, after);
    CHECK(updated == checksum(sum_bytes(data)));
  }
}

TEST_CASE("checksum: zero goes out as all ones where zero means none") {
  Bytes data(2, std::byte{0xff});
  CHECK(checksum(sum_bytes(data)) == 0);
  CHECK(checksum_not_zero(sum_bytes(data)) == 0xffff);
  data[1] = std::byte{0xfe};
  CHECK(checksum_not_zero(sum_bytes(data)) == checksum(sum_bytes(data)));
}

TEST_CASE("checksum: pseudo-headers of both IP versions") {
  for (const bool ipv6 : {false, true}) {
    for (const bool tcp : {false, true}) {
      test::Packet packet;
      packet.ipv6 = ipv6;
      packet.tcp = tcp;
      packet.payload = test::pattern(77);
      const Bytes frame = test::build(packet);
      const auto addresses = std::span{frame}.subspan(ipv6 ? 22 : 26, ipv6 ? 32 : 8);
      const auto l4 = std::span{frame}.subspan(packet.l4());
      const Sum pseudo =
          pseudo_header_sum(addresses, tcp ? 6 : 17, static_cast<std::uint16_t>(l4.size()));
      CHECK(fold(pseudo) == swapped(test::pseudo_sum(packet, frame)));
      CHECK(verifies(pseudo + sum_bytes(l4)));
      CHECK_FALSE(verifies(pseudo + sum_bytes(l4) + 1));
    }
  }
}

}  // namespace
}  // namespace causeway::proto
