// SPDX-License-Identifier: Apache-2.0
// Theory of operation: JSON (RFC 8259) with // and /* */ comments, read into a tree that knows
// where everything stands.
//
// nlohmann_json's SAX parser does the grammar, but reports no positions except for syntax errors.
// So a cursor walks the same text in step with the parser's events: between two events there is
// only white space, comments, commas and colons, which makes the start of each key and each value
// exact. Bounds: the caller limits the size of the text, kMaxJsonDepth the nesting. No exception
// leaves parse_json().
//
// This is the one file that includes nlohmann_json on behalf of the configuration.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace causeway {

inline constexpr std::size_t kMaxJsonDepth = 16;

enum class JsonKind : std::uint8_t { null, boolean, integer, real, string, array, object };

struct JsonMember;

struct JsonNode {
  JsonKind kind = JsonKind::null;
  std::size_t offset = 0;  // of the value's first byte in the text
  std::string text;        // scalars: "true", "-5", "1.5" or the unescaped string
  std::vector<JsonNode> items;
  std::vector<JsonMember> members;  // in the order of the text
};

struct JsonMember {
  std::string key;
  std::size_t offset = 0;  // of the key's opening quote
  bool duplicate = false;  // the key stood in this object before
  std::size_t first = 0;   // duplicate: the offset of the first one
  JsonNode value;
};

struct JsonFault {
  std::size_t offset = 0;
  std::string message;
};

// Exactly one of the two counts: `root` when `faults` is empty.
struct JsonDocument {
  JsonNode root;
  std::vector<JsonFault> faults;
};

JsonDocument parse_json(std::string_view text);

// Line and column count from 1; a column is a character, not a byte.
struct JsonPosition {
  std::size_t line = 1;
  std::size_t column = 1;
};
JsonPosition locate(std::string_view text, std::size_t offset);

// `text` as a JSON string, with its quotes; what is not UTF-8 is replaced by U+FFFD.
std::string json_quote(std::string_view text);

// The tree as JSON, indented by two spaces, without a final newline. Offsets do not matter.
std::string to_json(const JsonNode& node, std::size_t indent = 0);

}  // namespace causeway
