// SPDX-License-Identifier: Apache-2.0
#include "common/bridge/counters.hpp"

namespace causeway::bridge {

namespace {

constexpr std::array<std::string_view, kDropReasons> kDropNames = {
    "tap_write_invalid", "tap_write_down", "tap_write_error", "frame_too_long", "frame_too_short"};

constexpr std::array<std::string_view, kEndReasons> kEndNames = {
    "peer_closed",  "truncated", "record_too_short", "record_too_long", "unknown_record_type",
    "stream_error", "replaced",  "stopped",          "tap_error"};

// A name left out of a list would be an empty string at its end.
static_assert(!kDropNames.back().empty() && !kEndNames.back().empty());

}  // namespace

std::string_view name(DropReason reason) {
  return kDropNames.at(static_cast<std::size_t>(reason));
}
std::string_view name(EndReason reason) {
  return kEndNames.at(static_cast<std::size_t>(reason));
}

}  // namespace causeway::bridge
