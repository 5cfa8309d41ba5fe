// SPDX-License-Identifier: Apache-2.0
#include "common/config/option.hpp"

#include <algorithm>
#include <charconv>

#include "common/config/text.hpp"

namespace causeway {
namespace {

constexpr std::string_view kSizePattern = "^[0-9]+(B|KiB|MiB|GiB|TiB|KB|MB|GB|TB)$";
constexpr std::string_view kDurationPattern = "^([0-9]+(ms|s|m|h)|never)$";
constexpr std::string_view kAddressPattern =
    "^(tcp:.+:[0-9]+|unix:/.+|vsock:(any|[0-9]+):[0-9]+|hvsock:/.+:[0-9]+|fd:[0-9]+)$";
constexpr std::string_view kCidrPattern = "^[0-9A-Fa-f.:]+/[0-9]+$";
constexpr std::string_view kIpPattern = "^[0-9A-Fa-f.:]+$";

// "68 to 65520", "at least 68", "at most 65520" or nothing.
std::string range_text(const std::string& min, const std::string& max) {
  if (!min.empty() && !max.empty()) return min + " to " + max;
  if (!min.empty()) return "at least " + min;
  if (!max.empty()) return "at most " + max;
  return {};
}

Error out_of_range(std::string_view text, const std::string& range) {
  return Error{in_quotes(text) + " is out of range: " + range};
}

template <class T, class Make>
Codec<T> bounded_codec(Codec<T> codec, const OptionSpec& spec, Result<T> (*parse)(std::string_view),
                       Make make) {
  std::optional<T> min;
  std::optional<T> max;
  if (spec.min) min = make(*spec.min);
  if (spec.max) max = make(*spec.max);
  codec.range = range_text(min ? to_string(*min) : "", max ? to_string(*max) : "");
  codec.parse = [min, max, parse, range = codec.range](std::string_view text) -> Result<T> {
    auto value = parse(text);
    if (value && ((min && *value < *min) || (max && *value > *max))) {
      return out_of_range(text, range);
    }
    return value;
  };
  codec.format = [](const T& value) { return to_string(value); };
  return codec;
}

}  // namespace

Codec<bool> bool_codec() {
  Codec<bool> codec;
  codec.json = JsonType::boolean;
  codec.type = "boolean";
  codec.value_name = "true|false";
  codec.parse = [](std::string_view text) -> Result<bool> {
    if (text == "true") return true;
    if (text == "false") return false;
    return Error{in_quotes(text) + " is neither true nor false"};
  };
  codec.format = [](const bool& value) { return std::string(value ? "true" : "false"); };
  return codec;
}

Codec<std::int64_t> integer_codec(const OptionSpec& spec, std::int64_t lowest,
                                  std::int64_t highest) {
  Codec<std::int64_t> codec;
  codec.json = JsonType::integer;
  codec.type = "whole number";
  codec.value_name = "N";
  codec.min = std::max(lowest, spec.min.value_or(lowest));
  codec.max = std::min(highest, spec.max.value_or(highest));
  codec.range = range_text(std::to_string(*codec.min), std::to_string(*codec.max));
  codec.parse = [min = *codec.min, max = *codec.max,
                 range = codec.range](std::string_view text) -> Result<std::int64_t> {
    std::int64_t value = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, code] = std::from_chars(text.data(), end, value);
    if (stop != end || code == std::errc::invalid_argument) {
      return Error{in_quotes(text) + " is not a whole number; it takes " + range};
    }
    if (code != std::errc{} || value < min || value > max) return out_of_range(text, range);
    return value;
  };
  codec.format = [](const std::int64_t& value) { return std::to_string(value); };
  return codec;
}

Codec<std::string> string_codec() {
  Codec<std::string> codec;
  codec.type = "string";
  codec.value_name = "TEXT";
  codec.parse = [](std::string_view text) -> Result<std::string> {
    // Also keeps a NUL from shortening the text once it reaches a system call.
    const auto control = std::find_if(text.begin(), text.end(), [](char c) {
      return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
    });
    if (control == text.end()) return std::string(text);
    return Error{in_quotes(text) + " has a control character"};
  };
  codec.format = [](const std::string& value) { return value; };
  return codec;
}

Codec<Size> size_codec(const OptionSpec& spec) {
  Codec<Size> codec;
  codec.type = "size";
  codec.value_name = "SIZE";
  codec.pattern = kSizePattern;
  return bounded_codec(std::move(codec), spec, parse_size, [](std::int64_t bytes) {
    return Size{static_cast<std::uint64_t>(std::max<std::int64_t>(bytes, 0))};
  });
}

Codec<Duration> duration_codec(const OptionSpec& spec) {
  Codec<Duration> codec;
  codec.type = "duration";
  codec.value_name = "TIME";
  codec.pattern = kDurationPattern;
  return bounded_codec(std::move(codec), spec, parse_duration,
                       [](std::int64_t ms) { return Duration{std::chrono::milliseconds{ms}}; });
}

Codec<Address> address_codec() {
  Codec<Address> codec;
  codec.type = "address";
  codec.value_name = "ADDR";
  codec.pattern = kAddressPattern;
  codec.parse = parse_address;
  codec.format = [](const Address& value) { return to_string(value); };
  return codec;
}

Codec<IpAddress> ip_codec() {
  Codec<IpAddress> codec;
  codec.type = "IP address";
  codec.value_name = "IP";
  codec.pattern = kIpPattern;
  codec.parse = parse_ip;
  codec.format = [](const IpAddress& value) { return to_string(value); };
  return codec;
}

Codec<Cidr> cidr_codec() {
  Codec<Cidr> codec;
  codec.type = "IP address with prefix";
  codec.value_name = "CIDR";
  codec.pattern = kCidrPattern;
  codec.parse = parse_cidr;
  codec.format = [](const Cidr& value) { return to_string(value); };
  return codec;
}

Result<std::size_t> parse_choice(std::string_view text, const std::vector<std::string>& names) {
  const auto found = std::find(names.begin(), names.end(), text);
  if (found != names.end()) return static_cast<std::size_t>(found - names.begin());
  const std::string near = nearest(text, names);
  return Error{in_quotes(text) + " is not one of " + join_or(names) +
               (near.empty() ? "" : "; did you mean " + in_quotes(near) + "?")};
}

}  // namespace causeway
