// SPDX-License-Identifier: Apache-2.0
#include "common/units.hpp"

#include <algorithm>
#include <limits>
#include <span>

#include "common/config/text.hpp"

namespace causeway {
namespace {

struct Unit {
  std::string_view name;
  std::uint64_t factor;
};

constexpr std::uint64_t kKi = 1024;
constexpr std::uint64_t kK = 1000;
// In descending order, for to_string(): the first unit that divides exactly gives the shortest
// text.
constexpr Unit kSizeUnits[] = {{"TiB", kKi* kKi* kKi* kKi},
                               {"TB", kK* kK* kK* kK},
                               {"GiB", kKi* kKi* kKi},
                               {"GB", kK* kK* kK},
                               {"MiB", kKi* kKi},
                               {"MB", kK* kK},
                               {"KiB", kKi},
                               {"KB", kK},
                               {"B", 1}};
constexpr Unit kDurationUnits[] = {{"h", 3'600'000}, {"m", 60'000}, {"s", 1000}, {"ms", 1}};

struct Grammar {
  std::string_view what;
  std::span<const Unit> units;
  std::string_view help;  // closes every message: the valid units and one example
  std::uint64_t max;      // in the smallest unit
  std::string_view max_text;
};

constexpr Grammar kSize{"size", kSizeUnits,
                        "a size is a whole number and one of B, KiB, MiB, GiB, TiB, KB, MB, GB or "
                        "TB, as in 64KiB",
                        std::numeric_limits<std::uint64_t>::max(), "18446744073709551615B"};
constexpr Grammar kDuration{
    "duration", kDurationUnits,
    "a duration is a whole number and one of ms, s, m or h, as in 250ms, or never",
    static_cast<std::uint64_t>(kMaxDuration.value.count()), "876000h"};

Error fault(std::string_view text, const std::string& what, std::size_t at,
            const Grammar& grammar) {
  return Error{in_quotes(text) + ": " + what + " at column " + std::to_string(at + 1) + "; " +
               std::string(grammar.help)};
}

// The value in the smallest unit of the grammar.
Result<std::uint64_t> parse(std::string_view text, const Grammar& grammar) {
  if (text.empty())
    return Error{"empty " + std::string(grammar.what) + "; " + std::string(grammar.help)};
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  if (digits == 0) {
    const char first = text.front();
    if (first == '-' || first == '+') return fault(text, "a sign is not allowed", 0, grammar);
    if (first == ' ' || first == '\t') return fault(text, "white space is not allowed", 0, grammar);
    return fault(text, "a digit is missing", 0, grammar);
  }
  const std::string_view unit = text.substr(digits);
  if (unit.empty()) return fault(text, "the unit is missing", digits, grammar);

  for (const Unit& known : grammar.units) {
    if (unit != known.name) continue;
    const auto number = parse_decimal(text.substr(0, digits), grammar.max / known.factor);
    if (!number) {
      return fault(text,
                   "the number is too large (the most is " + std::string(grammar.max_text) + ")", 0,
                   grammar);
    }
    return *number * known.factor;
  }
  if (unit.front() == ' ' || unit.front() == '\t') {
    return fault(text, "white space is not allowed", digits, grammar);
  }
  if (unit.front() == '.' || unit.front() == ',') {
    return fault(text, "a fraction is not allowed", digits, grammar);
  }
  return fault(text, "unknown unit " + in_quotes(unit), digits, grammar);
}

std::string format(std::uint64_t value, std::span<const Unit> units) {
  for (const Unit& unit : units) {
    if (value % unit.factor == 0) {
      return std::to_string(value / unit.factor).append(unit.name);
    }
  }
  return {};  // not reached: the last unit of each table has the factor 1
}

}  // namespace

Result<Size> parse_size(std::string_view text) {
  const auto bytes = parse(text, kSize);
  if (!bytes) return bytes.error();
  return Size{*bytes};
}

Result<Duration> parse_duration(std::string_view text) {
  if (text == "never") return Duration::forever();
  const auto milliseconds = parse(text, kDuration);
  if (!milliseconds) return milliseconds.error();
  return Duration{std::chrono::milliseconds{static_cast<std::int64_t>(*milliseconds)}};
}

std::string to_string(Size size) {
  if (size.bytes == 0) return "0B";
  return format(size.bytes, kSizeUnits);
}

std::string to_string(Duration duration) {
  if (duration.never) return "never";
  if (duration.value.count() <= 0) return "0s";
  return format(static_cast<std::uint64_t>(duration.value.count()), kDurationUnits);
}

}  // namespace causeway
