// SPDX-License-Identifier: Apache-2.0
// Small helpers for messages and for reading decimal numbers, shared by every parser of operator
// input (units, addresses, flags, configuration files).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace causeway {

// `text` made fit for one line of a terminal: control bytes and bytes above 0x7e become \xNN and
// everything past 64 bytes is cut off and replaced by "...".
std::string printable(std::string_view text);

// printable(text) between double quotes.
std::string in_quotes(std::string_view text);

// An unsigned decimal number: 1 to 20 ASCII digits and nothing else, at most `max`. nullopt for
// everything else, which includes an empty text, a sign, white space and overflow.
std::optional<std::uint64_t> parse_decimal(std::string_view digits, std::uint64_t max);

// The candidate that a typing error most likely meant: the least number of inserted, deleted,
// replaced or swapped neighbouring characters, and few enough of them for the length of `word`.
// Empty when none is near.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

// "a, b or c".
std::string join_or(std::span<const std::string> words);

}  // namespace causeway
