// SPDX-License-Identifier: Apache-2.0
// Theory of operation: sizes and durations.
//
// There is one grammar for each, used by flags, configuration files and causewayctl alike: a whole
// decimal number directly followed by a unit, in ASCII, case as written here.
//   size:      B KiB MiB GiB TiB (powers of 1024), KB MB GB TB (powers of 1000)
//   duration:  ms s m h, or the word "never"
// A number without a unit is refused even when it is zero, so that nobody has to remember which
// unit a bare number would have had. Everything else (sign, white space, fraction, unknown or
// non-ASCII unit, overflow) is an error that names the place. to_string() writes the shortest exact
// form, which parses back to the same value.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/result.hpp"

namespace causeway {

struct Size {
  std::uint64_t bytes = 0;
  friend auto operator<=>(const Size&, const Size&) = default;
};

// A span of time, or "never" (a timeout that does not fire), which is later than any span.
struct Duration {
  // The order of the members makes the defaulted comparison right: never beats every value.
  bool never = false;
  std::chrono::milliseconds value{0};

  constexpr Duration() = default;
  constexpr Duration(std::chrono::milliseconds span) : value(span) {}
  static constexpr Duration forever() {
    Duration duration;
    duration.never = true;
    return duration;
  }
  friend auto operator<=>(const Duration&, const Duration&) = default;
};

// 100 years: a longer span would overflow once it is added to a clock that counts nanoseconds.
inline constexpr Duration kMaxDuration{std::chrono::hours{876'000}};

Result<Size> parse_size(std::string_view text);
Result<Duration> parse_duration(std::string_view text);

std::string to_string(Size size);
std::string to_string(Duration duration);

}  // namespace causeway
