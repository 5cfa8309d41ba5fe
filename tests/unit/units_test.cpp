// SPDX-License-Identifier: Apache-2.0
#include "common/units.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <string>

namespace {

using namespace causeway;
using std::chrono::milliseconds;

constexpr std::uint64_t kMaxU64 = std::numeric_limits<std::uint64_t>::max();

TEST_CASE("sizes parse and print") {
  const struct {
    std::string text;
    std::uint64_t bytes;
    std::string printed;
  } rows[] = {
      {"0B", 0, "0B"},
      {"0KiB", 0, "0B"},
      {"1B", 1, "1B"},
      {"4096B", 4096, "4KiB"},
      {"64KiB", 65536, "64KiB"},
      {"1MB", 1'000'000, "1MB"},
      {"1MiB", 1U << 20U, "1MiB"},
      {"3GB", 3'000'000'000, "3GB"},
      {"2GiB", 2ULL << 30U, "2GiB"},
      {"1500KB", 1'500'000, "1500KB"},
      {"5TB", 5'000'000'000'000, "5TB"},
      {"7TiB", 7ULL << 40U, "7TiB"},
      {"0010KiB", 10240, "10KiB"},
      {"18446744073709551615B", kMaxU64, "18446744073709551615B"},
      {"16777215TiB", 16777215ULL << 40U, "16777215TiB"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.text);
    const auto size = parse_size(row.text);
    REQUIRE(size);
    CHECK(size->bytes == row.bytes);
    CHECK(to_string(*size) == row.printed);
  }
}

TEST_CASE("sizes: bad input names the place and the units") {
  const struct {
    std::string_view text;
    std::string says;
  } rows[] = {
      {"", "empty size"},
      {"0", "the unit is missing at column 2"},
      {"4096", "the unit is missing at column 5"},
      {"KiB", "a digit is missing at column 1"},
      {"-1B", "a sign is not allowed at column 1"},
      {"+1B", "a sign is not allowed at column 1"},
      {" 1B", "white space is not allowed at column 1"},
      {"1 B", "white space is not allowed at column 2"},
      {"1\tB", "white space is not allowed at column 2"},
      {"1B ", "unknown unit \"B \" at column 2"},
      {"1.5MiB", "a fraction is not allowed at column 2"},
      {"64kib", "unknown unit \"kib\" at column 3"},
      {"64Kib", "unknown unit \"Kib\" at column 3"},
      {"64K", "unknown unit \"K\" at column 3"},
      {"10s", "unknown unit \"s\" at column 3"},
      {"10\xc2\xb5"
       "B",
       "unknown unit \"\\xc2\\xb5B\" at column 3"},
      {"\xef\xbc\x91"
       "B",
       "a digit is missing at column 1"},
      {std::string_view("1\0B", 3), "unknown unit \"\\x00B\" at column 2"},
      {std::string_view("1B\0", 3), "unknown unit \"B\\x00\" at column 2"},
      {"0x10B", "unknown unit \"x10B\" at column 2"},
      {"18446744073709551616B", "too large"},
      {"16777216TiB", "too large"},
      {"99999999999999999999999999B", "too large"},
      {"never", "a digit is missing at column 1"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.text);
    const auto size = parse_size(row.text);
    REQUIRE_FALSE(size);
    const std::string& message = size.error().message;
    CAPTURE(message);
    CHECK(message.find(row.says) != std::string::npos);
    CHECK(message.find("KiB, MiB") != std::string::npos);
    CHECK(message.find('\n') == std::string::npos);
  }
}

TEST_CASE("durations parse and print") {
  const struct {
    std::string text;
    std::int64_t milliseconds;
    std::string printed;
  } rows[] = {
      {"0ms", 0, "0s"},
      {"250ms", 250, "250ms"},
      {"5s", 5000, "5s"},
      {"1500ms", 1500, "1500ms"},
      {"10m", 600'000, "10m"},
      {"60s", 60'000, "1m"},
      {"2h", 7'200'000, "2h"},
      {"90m", 5'400'000, "90m"},
      {"876000h", 3'153'600'000'000, "876000h"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.text);
    const auto duration = parse_duration(row.text);
    REQUIRE(duration);
    CHECK_FALSE(duration->never);
    CHECK(duration->value.count() == row.milliseconds);
    CHECK(to_string(*duration) == row.printed);
    CHECK(*parse_duration(to_string(*duration)) == *duration);
  }
  const auto never = parse_duration("never");
  REQUIRE(never);
  CHECK(never->never);
  CHECK(to_string(*never) == "never");
  CHECK(*never > kMaxDuration);
  CHECK(Duration{milliseconds{1}} < Duration{milliseconds{2}});
}

TEST_CASE("durations: bad input names the place and the units") {
  const struct {
    std::string_view text;
    std::string says;
  } rows[] = {
      {"", "empty duration"},
      {"5", "the unit is missing at column 2"},
      {"s", "a digit is missing at column 1"},
      {"-5s", "a sign is not allowed at column 1"},
      {"5 s", "white space is not allowed at column 2"},
      {"0.5s", "a fraction is not allowed at column 2"},
      {"5d", "unknown unit \"d\" at column 2"},
      {"5S", "unknown unit \"S\" at column 2"},
      {"5us", "unknown unit \"us\" at column 2"},
      {"5\xc2\xb5s", "unknown unit \"\\xc2\\xb5s\" at column 2"},
      {"1h30m", "unknown unit \"h30m\" at column 2"},
      {"Never", "a digit is missing at column 1"},
      {"never ", "a digit is missing at column 1"},
      {"876001h", "too large (the most is 876000h)"},
      {"3153600000001ms", "too large"},
      {"18446744073709551616s", "too large"},
      {"5KiB", "unknown unit \"KiB\" at column 2"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.text);
    const auto duration = parse_duration(row.text);
    REQUIRE_FALSE(duration);
    const std::string& message = duration.error().message;
    CAPTURE(message);
    CHECK(message.find(row.says) != std::string::npos);
    CHECK(message.find("ms, s, m or h") != std::string::npos);
  }
}

TEST_CASE("sizes and durations: to_string round-trips over many values") {
  std::uint64_t state = 0x9e3779b97f4a7c15ULL;
  for (int i = 0; i < 2000; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    const Size size{state >> (state & 63U)};
    CHECK(*parse_size(to_string(size)) == size);
    const Duration duration{milliseconds{static_cast<std::int64_t>(state % 3'153'600'000'001ULL)}};
    CHECK(*parse_duration(to_string(duration)) == duration);
  }
}

}  // namespace
