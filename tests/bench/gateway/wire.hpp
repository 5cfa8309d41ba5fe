// SPDX-License-Identifier: Apache-2.0
// What the load clients and the origin of the gateway benchmark say to each other. It looks like
// TLS as far as a passthrough proxy reads: one handshake record (a recorded ClientHello, sent as it
// is), answered by a greeting in the place of the server's flight. Behind it there is no
// cryptography, since a passthrough proxy does not see any and one core of load would measure
// nothing else:
//
//   client  record header (5 bytes, length in bytes 3 and 4), record
//   origin  `greeting` filler bytes
//   client  request: u64 payload, u64 reply (big-endian), then `payload` filler bytes
//   origin  `reply` filler bytes                                    (any number of requests)
//
// Where the proxy terminates TLS, the client speaks real TLS, with a real handshake in the place of
// record and greeting, and the origin (`--plain`) hears requests from the first byte.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace causeway::bench {

inline constexpr std::size_t kRecordHeaderSize = 5;
inline constexpr std::size_t kRequestSize = 16;
// Of one receive, one send, and one receive that throws away (MSG_TRUNC).
inline constexpr std::size_t kReadSize = std::size_t{64} * 1024;
inline constexpr std::size_t kSendSize = std::size_t{512} * 1024;
inline constexpr std::size_t kDiscardSize = std::size_t{1024} * 1024;
inline constexpr std::byte kFiller{0x5a};
inline constexpr std::uint64_t kDefaultGreeting = 256;
// Beyond this a request is taken for a fault of one of the ends.
inline constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 40;

struct Request {
  std::uint64_t payload = 0;  // bytes that follow the request
  std::uint64_t reply = 0;    // bytes that answer it
};

using RequestBytes = std::array<std::byte, kRequestSize>;

constexpr RequestBytes encode(const Request& request) {
  RequestBytes out{};
  for (std::size_t i = 0; i < 8; ++i) {
    out[i] = static_cast<std::byte>(request.payload >> (56 - 8 * i));
    out[8 + i] = static_cast<std::byte>(request.reply >> (56 - 8 * i));
  }
  return out;
}

constexpr Request decode(const RequestBytes& bytes) {
  Request out;
  for (std::size_t i = 0; i < 8; ++i) {
    out.payload = out.payload << 8 | std::to_integer<std::uint64_t>(bytes[i]);
    out.reply = out.reply << 8 | std::to_integer<std::uint64_t>(bytes[8 + i]);
  }
  return out;
}

}  // namespace causeway::bench
