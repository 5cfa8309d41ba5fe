// SPDX-License-Identifier: Apache-2.0
// The payload of a control record (native wire, type 2): u8 kind | body. The record's own length
// bounds the body. A body longer than its kind defines is accepted and its tail ignored, so that a
// later version can append to it; a kind that is not known is for the caller to count and ignore.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "proto/record.hpp"

namespace causeway::proto {

enum class ControlKind : std::uint8_t {
  ping = 1,           // u64be token
  pong = 2,           // u64be token of the ping
  bye = 3,            // u8 ByeReason
  offer_changed = 4,  // JSON of an offer (decode_offer), from the listener
};

enum class ByeReason : std::uint8_t {
  unspecified = 0,
  stopping = 1,   // the sender's program ends
  replaced = 2,   // a newer session of this guest took over
  keepalive = 3,  // nothing was heard for too long
  protocol = 4,   // the stream broke the rules of the wire
};
std::string_view to_string(ByeReason reason);  // "unspecified" for any that is not listed

struct Control {
  ControlKind kind = ControlKind::ping;
  std::uint64_t token = 0;                    // ping, pong
  ByeReason reason = ByeReason::unspecified;  // bye; may hold a value that is not listed
  std::span<const std::byte> offer;           // offer_changed: into the payload, not parsed
};

enum class ControlStatus : std::uint8_t {
  ok,
  unknown_kind,  // ignore and count
  malformed,     // empty, or a body shorter than its kind's: the stream is closed
};
ControlStatus decode_control(std::span<const std::byte> payload, Control& control);

inline constexpr std::size_t kMaxOfferBody = kMaxControl - 1;

// Writes the payload of a control record into `out` and returns its size; 0 when it does not fit or
// when an offer is empty or longer than kMaxOfferBody.
std::size_t encode_control(const Control& control, std::span<std::byte> out);

}  // namespace causeway::proto
