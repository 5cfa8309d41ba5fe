// SPDX-License-Identifier: Apache-2.0
#include "common/config/text.hpp"

#include <algorithm>
#include <charconv>
#include <vector>

namespace causeway {
namespace {

constexpr std::size_t kMaxShown = 64;
constexpr std::size_t kMaxCompared = 64;

// Optimal string alignment distance; three rows are enough for the swap of two neighbours.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> two_back(b.size() + 1);
  std::vector<std::size_t> back(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j)
    back[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = back[j - 1] + (a[i - 1] == b[j - 1] ? 0U : 1U);
      row[j] = std::min({back[j] + 1, row[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], two_back[j - 2] + 1);
      }
    }
    std::swap(two_back, back);
    std::swap(back, row);
  }
  return back[b.size()];
}

}  // namespace

std::string printable(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (const char c : text.substr(0, kMaxShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte > 0x7e) {
      out += "\\x";
      out += kHex[byte >> 4U];
      out += kHex[byte & 0xfU];
    } else {
      out += c;
    }
  }
  if (text.size() > kMaxShown) out += "...";
  return out;
}

std::string in_quotes(std::string_view text) {
  return '"' + printable(text) + '"';
}

std::optional<std::uint64_t> parse_decimal(std::string_view digits, std::uint64_t max) {
  if (digits.empty() || digits.size() > 20) return std::nullopt;
  std::uint64_t value = 0;
  const char* const end = digits.data() + digits.size();
  const auto [stop, code] = std::from_chars(digits.data(), end, value);
  if (code != std::errc{} || stop != end || value > max) return std::nullopt;
  return value;
}

std::string nearest(std::string_view word, std::span<const std::string> candidates) {
  if (word.size() > kMaxCompared) return {};
  std::size_t best = std::max<std::size_t>(1, word.size() / 3) + 1;
  std::string found;
  for (const std::string& candidate : candidates) {
    if (candidate.size() > kMaxCompared) continue;
    const std::size_t d = distance(word, candidate);
    // A candidate that shares nothing with the word is no help.
    if (d < best && d < std::max(word.size(), candidate.size())) {
      best = d;
      found = candidate;
    }
  }
  return found;
}

std::string join_or(std::span<const std::string> words) {
  std::string out;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) out += i + 1 == words.size() ? " or " : ", ";
    out += words[i];
  }
  return out;
}

}  // namespace causeway
