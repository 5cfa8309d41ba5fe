// SPDX-License-Identifier: Apache-2.0
// Theory of operation: the Internet checksum (RFC 1071).
//
// A Sum is a partial one's complement sum of 16-bit words as they lie in memory. RFC 1071 shows
// that the sum may be built in either byte order and in words of any even width, so the words are
// loaded in the host's order, as wide as the processor likes, and the result is stored back without
// a swap; only numbers that come from the program (a length, a protocol) are swapped first, by
// word(). Sums of parts add up with a plain +, as long as every part but the last has an even size
// (or starts at an even place of the whole). A Sum has room for 2^30 parts before it must be
// folded.
//
// copy_and_sum() does what the segmenter needs: a payload is read once while it is copied into the
// slab, instead of once by a copy and again by a sum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace causeway::proto {

using Sum = std::uint64_t;

// The sum of `bytes`, an odd last byte padded with zero. Below 2^34.
Sum sum_bytes(std::span<const std::byte> bytes);

// Copies `in` to the front of `out`, which must be as long at least and must not overlap it, and
// returns the sum of `in`.
Sum copy_and_sum(std::span<std::byte> out, std::span<const std::byte> in);

// A 16-bit number of the host as it adds to a Sum.
inline Sum word(std::uint16_t value) {
  return __builtin_bswap16(value);
}

// The 16-bit one's complement sum: 0xffff over data that includes a right checksum (or 0, when
// every word is zero, which no IP header is).
inline std::uint16_t fold(Sum sum) {
  sum = (sum & 0xffffffff) + (sum >> 32);
  sum = (sum & 0xffff) + (sum >> 16);
  sum = (sum & 0xffff) + (sum >> 16);
  sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<std::uint16_t>(sum);
}

inline bool verifies(Sum sum) {
  return fold(sum) == 0xffff;
}

// Stores a sum or a checksum as it is: both are in memory order already.
inline void store_folded(std::span<std::byte> bytes, std::size_t at, std::uint16_t folded) {
  std::memcpy(bytes.subspan(at, sizeof folded).data(), &folded, sizeof folded);
}

inline std::uint16_t load_folded(std::span<const std::byte> bytes, std::size_t at) {
  std::uint16_t folded;
  std::memcpy(&folded, bytes.subspan(at, sizeof folded).data(), sizeof folded);
  return folded;
}

// The checksum field of `sum`. A zero goes out as 0xffff, which means the same in one's complement
// and which UDP needs, because there zero says that there is no checksum (RFC 768, RFC 8200 8.1).
inline std::uint16_t checksum_not_zero(Sum sum) {
  const auto checksum = static_cast<std::uint16_t>(~fold(sum));
  return checksum == 0 ? std::uint16_t{0xffff} : checksum;
}

inline std::uint16_t checksum(Sum sum) {
  return static_cast<std::uint16_t>(~fold(sum));
}

// The checksum field after one 16-bit word of the data went from `before` to `after`, all three as
// in memory: equation 3 of RFC 1624.
inline std::uint16_t update_checksum(std::uint16_t field, std::uint16_t before,
                                     std::uint16_t after) {
  return checksum(Sum{static_cast<std::uint16_t>(~field)} + static_cast<std::uint16_t>(~before) +
                  after);
}

// The pseudo-header of TCP and UDP: `addresses` is source and destination as they lie in the IP
// header, 8 bytes for IPv4 (RFC 9293 3.1) and 32 for IPv6 (RFC 8200 8.1); `length` is that of the
// transport header and its payload.
inline Sum pseudo_header_sum(std::span<const std::byte> addresses, std::uint8_t protocol,
                             std::uint16_t length) {
  return sum_bytes(addresses) + word(protocol) + word(length);
}

namespace detail {
// The two paths behind sum_bytes() and copy_and_sum(), for tests and benchmarks. The first runs
// anywhere. The second may be called where has_wide_sum() is true only.
Sum portable_sum(std::span<const std::byte> bytes);
Sum portable_copy_and_sum(std::span<std::byte> out, std::span<const std::byte> in);
bool has_wide_sum();
Sum wide_sum(std::span<const std::byte> bytes);
Sum wide_copy_and_sum(std::span<std::byte> out, std::span<const std::byte> in);
}  // namespace detail

}  // namespace causeway::proto
