// SPDX-License-Identifier: Apache-2.0
#include "proto/control.hpp"

#include <algorithm>

#include "proto/bytes.hpp"

namespace causeway::proto {

namespace {
constexpr std::size_t kTokenSize = 8;
}  // namespace

std::string_view to_string(ByeReason reason) {
  switch (reason) {
    case ByeReason::unspecified:
      break;
    case ByeReason::stopping:
      return "stopping";
    case ByeReason::replaced:
      return "replaced";
    case ByeReason::keepalive:
      return "keepalive";
    case ByeReason::protocol:
      return "protocol";
  }
  return "unspecified";
}

ControlStatus decode_control(std::span<const std::byte> payload, Control& control) {
  if (payload.empty()) return ControlStatus::malformed;
  const auto body = payload.subspan(1);
  control = Control{};
  control.kind = static_cast<ControlKind>(load_u8(payload, 0));
  switch (control.kind) {
    case ControlKind::ping:
    case ControlKind::pong:
      if (body.size() < kTokenSize) return ControlStatus::malformed;
      control.token = std::uint64_t{load_be32(body, 0)} << 32 | load_be32(body, 4);
      return ControlStatus::ok;
    case ControlKind::bye:
      if (body.empty()) return ControlStatus::malformed;
      control.reason = static_cast<ByeReason>(load_u8(body, 0));
      return ControlStatus::ok;
    case ControlKind::offer_changed:
      if (body.empty()) return ControlStatus::malformed;
      control.offer = body;
      return ControlStatus::ok;
  }
  return ControlStatus::unknown_kind;
}

std::size_t encode_control(const Control& control, std::span<std::byte> out) {
  std::size_t size = 1;
  switch (control.kind) {
    case ControlKind::ping:
    case ControlKind::pong:
      size += kTokenSize;
      break;
    case ControlKind::bye:
      size += 1;
      break;
    case ControlKind::offer_changed:
      if (control.offer.empty() || control.offer.size() > kMaxOfferBody) return 0;
      size += control.offer.size();
      break;
    default:
      return 0;
  }
  if (out.size() < size) return 0;
  store_u8(out, 0, static_cast<std::uint8_t>(control.kind));
  if (control.kind == ControlKind::bye) {
    store_u8(out, 1, static_cast<std::uint8_t>(control.reason));
  } else if (control.kind == ControlKind::offer_changed) {
    std::copy(control.offer.begin(), control.offer.end(), out.begin() + 1);
  } else {
    store_be32(out, 1, static_cast<std::uint32_t>(control.token >> 32));
    store_be32(out, 5, static_cast<std::uint32_t>(control.token));
  }
  return size;
}

}  // namespace causeway::proto
