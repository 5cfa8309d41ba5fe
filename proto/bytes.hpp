// SPDX-License-Identifier: Apache-2.0
// Checked big-endian reads and writes on byte spans. Every multi-byte field that arrives from a
// peer goes through these; an offset that does not fit is a caller's fault and aborts under
// _GLIBCXX_ASSERTIONS (span::subspan), so callers check lengths first.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace causeway::proto {

static_assert(std::endian::native == std::endian::little, "only little-endian hosts are built");

inline std::uint8_t load_u8(std::span<const std::byte> bytes, std::size_t at) {
  return std::to_integer<std::uint8_t>(bytes[at]);
}

inline std::uint16_t load_be16(std::span<const std::byte> bytes, std::size_t at) {
  std::uint16_t value;
  std::memcpy(&value, bytes.subspan(at, sizeof value).data(), sizeof value);
  return __builtin_bswap16(value);
}

inline std::uint32_t load_be32(std::span<const std::byte> bytes, std::size_t at) {
  std::uint32_t value;
  std::memcpy(&value, bytes.subspan(at, sizeof value).data(), sizeof value);
  return __builtin_bswap32(value);
}

inline void store_u8(std::span<std::byte> bytes, std::size_t at, std::uint8_t value) {
  bytes[at] = std::byte{value};
}

inline void store_be16(std::span<std::byte> bytes, std::size_t at, std::uint16_t value) {
  value = __builtin_bswap16(value);
  std::memcpy(bytes.subspan(at, sizeof value).data(), &value, sizeof value);
}

inline void store_be32(std::span<std::byte> bytes, std::size_t at, std::uint32_t value) {
  value = __builtin_bswap32(value);
  std::memcpy(bytes.subspan(at, sizeof value).data(), &value, sizeof value);
}

}  // namespace causeway::proto
