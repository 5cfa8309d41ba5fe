// SPDX-License-Identifier: Apache-2.0
// The beginning of a stream: which wire it speaks, and on the native wire what both sides agree on
// (PROTOCOL.md, "Preface" and "Detection"). Runs on the control thread, bounded in time and bytes;
// what was read beyond the preface is handed on.
//
//   listening side: the first four bytes tell. A peer that stays silent for kDetectTime is plain
//   when nobody else is served: a native peer speaks at once, a plain one may have nothing to say
//   for long. While a session is up a silent connection takes nobody's place; it has kHelloTime.
//   connecting side: says its hello first. A peer that closes, answers with a frame, or says
//   nothing for kAnswerTime does not speak the native wire; the stream is spent, and the caller
//   connects again and speaks plain.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "common/bridge/counters.hpp"
#include "common/net/asio.hpp"
#include "proto/hello.hpp"

namespace causeway::bridge {

enum class WireChoice : std::uint8_t { automatic, plain, native };

inline constexpr std::chrono::milliseconds kDetectTime{1000};
inline constexpr std::chrono::milliseconds kAnswerTime{2000};
inline constexpr std::chrono::milliseconds kHelloTime{5000};

struct Greeting {
  proto::Wire wire = proto::Wire::plain;
  proto::Hello theirs;  // native only, like the next
  proto::Agreement agreement;
  std::vector<std::byte> rest;  // read from the stream, and not part of the preface
};

struct GreetingFailure {
  EndReason reason = EndReason::handshake_refused;
  std::string detail;  // for the log
};

using GreetingResult = std::variant<Greeting, GreetingFailure>;

// `limits` is what this side takes; its session and lane are filled in from the peer's hello.
// `occupied` tells whether a session is up.
asio::awaitable<GreetingResult> greet_as_listener(asio::posix::stream_descriptor& stream,
                                                  WireChoice choice, proto::Hello limits,
                                                  std::function<bool()> occupied);

asio::awaitable<GreetingResult> greet_as_connector(asio::posix::stream_descriptor& stream,
                                                   WireChoice choice, proto::Hello ours);

}  // namespace causeway::bridge
