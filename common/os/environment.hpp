// SPDX-License-Identifier: Apache-2.0
// What a service manager says through the environment, taken out of it.
#pragma once

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace causeway {

// The variable's value; it is unset, so that no child sees it. Before threads exist.
inline std::optional<std::string> take_variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) {
    return std::nullopt;
  }
  std::string text = value;
  ::unsetenv(name);
  return text;
}

// All of `text` as a decimal number.
inline std::optional<std::int64_t> decimal(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

}  // namespace causeway
