// SPDX-License-Identifier: Apache-2.0
#include "common/bridge/counters.hpp"

#include <cerrno>

namespace causeway::bridge {

namespace {

constexpr std::array<std::string_view, kOwnDrops> kOwnDropNames = {
    "tap_write_invalid", "tap_write_down", "tap_write_error"};

constexpr std::array<std::string_view, kEndReasons> kEndNames = {"peer_closed",
                                                                 "truncated",
                                                                 "record_too_short",
                                                                 "record_too_long",
                                                                 "unknown_record_type",
                                                                 "control_malformed",
                                                                 "stream_reset",
                                                                 "stream_broken",
                                                                 "stream_no_buffers",
                                                                 "stream_no_device",
                                                                 "stream_timed_out",
                                                                 "stream_error",
                                                                 "bye",
                                                                 "bye_replaced",
                                                                 "keepalive_timeout",
                                                                 "replaced",
                                                                 "stopped",
                                                                 "renewed",
                                                                 "handshake_malformed",
                                                                 "handshake_refused",
                                                                 "handshake_timeout",
                                                                 "handshake_fallback",
                                                                 "too_many_handshakes",
                                                                 "tap_error"};

// A name left out of a list would be an empty string at its end.
static_assert(!kOwnDropNames.back().empty() && !kEndNames.back().empty());

}  // namespace

std::string_view name(DropReason reason) {
  auto index = static_cast<std::size_t>(reason);
  if (index < kOwnDrops) {
    return kOwnDropNames[index];
  }
  index -= kOwnDrops;
  if (index < proto::kOffloadDropCount) {
    return index == 0 ? std::string_view{} : to_string(static_cast<proto::OffloadDrop>(index));
  }
  index -= proto::kOffloadDropCount;
  return index == 0 ? std::string_view{}
                    : proto::segment_status_name(static_cast<proto::SegmentStatus>(index));
}

std::string_view name(EndReason reason) {
  return kEndNames.at(static_cast<std::size_t>(reason));
}

EndReason end_reason_of(int code) {
  switch (code) {
    case ECONNRESET:
      return EndReason::stream_reset;
    case EPIPE:
      return EndReason::stream_broken;
    case ENOBUFS:
      return EndReason::stream_no_buffers;
    case ENODEV:
    case ENETUNREACH:
      return EndReason::stream_no_device;
    case ETIMEDOUT:
      return EndReason::stream_timed_out;
    default:
      return EndReason::stream_error;
  }
}

}  // namespace causeway::bridge
