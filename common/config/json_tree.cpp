// SPDX-License-Identifier: Apache-2.0
#include "common/config/json_tree.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

namespace causeway {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kSpace = " \t\r\n";
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

// Walks a text whose grammar the parser has accepted, or is about to judge, token by token.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {
    if (text_.starts_with(kByteOrderMark)) at_ = kByteOrderMark.size();
  }

  // The start of the next token, at or behind the cursor.
  std::size_t skip_space() {
    while (at_ < text_.size()) {
      if (kSpace.find(text_[at_]) != std::string_view::npos) {
        ++at_;
      } else if (text_.substr(at_).starts_with("//")) {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (text_.substr(at_).starts_with("/*")) {
        const std::size_t close = text_.find("*/", at_ + 2);
        at_ = close == std::string_view::npos ? text_.size() : close + 2;
      } else {
        break;
      }
    }
    return at_;
  }

  void skip_token() {
    if (at_ >= text_.size()) return;
    if (text_[at_] == '"') {
      ++at_;
      while (at_ < text_.size() && text_[at_] != '"')
        at_ += text_[at_] == '\\' ? 2U : 1U;
      at_ = std::min(at_ + 1, text_.size());
    } else if (text_[at_] == '-' || is_digit(at_)) {
      skip_number();
    } else if (is_letter(at_)) {
      while (is_letter(at_))
        ++at_;
    } else {
      ++at_;  // structural
    }
  }

  // The next key, value or closing bracket: its start; the cursor moves behind it.
  std::size_t take() {
    while (true) {
      const std::size_t start = skip_space();
      const bool separator = start < text_.size() && (text_[start] == ',' || text_[start] == ':');
      skip_token();
      if (!separator) return start;
    }
  }

  // The start of the token that ends at or behind `end`.
  std::size_t token_before(std::size_t end) {
    while (true) {
      const std::size_t start = skip_space();
      skip_token();
      if (at_ >= end || at_ >= text_.size()) return start;
    }
  }

 private:
  [[nodiscard]] bool is_digit(std::size_t i) const {
    return i < text_.size() && text_[i] >= '0' && text_[i] <= '9';
  }
  [[nodiscard]] bool is_letter(std::size_t i) const {
    return i < text_.size() && text_[i] >= 'a' && text_[i] <= 'z';
  }
  [[nodiscard]] bool is_one_of(std::string_view set) const {
    return at_ < text_.size() && set.find(text_[at_]) != std::string_view::npos;
  }

  // As far as the grammar goes: "05" is the number 0 with something behind it.
  void skip_number() {
    if (text_[at_] == '-') ++at_;
    if (is_one_of("0")) {
      ++at_;
    } else {
      while (is_digit(at_))
        ++at_;
    }
    if (is_one_of(".")) {
      ++at_;
      while (is_digit(at_))
        ++at_;
    }
    if (is_one_of("eE")) {
      ++at_;
      if (is_one_of("+-")) ++at_;
      while (is_digit(at_))
        ++at_;
    }
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

// The parser's message without its preamble, such as "unexpected ','; expected ':'".
std::string plain_message(std::string message) {
  for (const std::string_view before : {": syntax error ", "[json.exception.out_of_range.406] "}) {
    const std::size_t at = message.find(before);
    if (at != std::string::npos) message.erase(0, at + before.size());
  }
  const std::size_t dash = message.find(" - ");
  if (message.starts_with("while parsing ") && dash != std::string::npos) {
    message.erase(0, dash + 3);
  } else if (message.starts_with("- ")) {
    message.erase(0, 2);
  }
  message.erase(std::min(message.find("; last read: "), message.size()));
  return message;
}

class TreeBuilder {
 public:
  TreeBuilder(std::string_view text, JsonDocument& document)
      : text_(text), cursor_(text), document_(document) {}

  bool null() { return scalar(JsonKind::null, "null"); }
  bool boolean(bool value) { return scalar(JsonKind::boolean, value ? "true" : "false"); }
  bool number_integer(Json::number_integer_t value) {
    return scalar(JsonKind::integer, std::to_string(value));
  }
  bool number_unsigned(Json::number_unsigned_t value) {
    return scalar(JsonKind::integer, std::to_string(value));
  }
  bool number_float(Json::number_float_t /*value*/, const std::string& text) {
    return scalar(JsonKind::real, text);
  }
  bool string(std::string& value) { return scalar(JsonKind::string, std::move(value)); }
  bool binary(Json::binary_t& /*value*/) { return false; }  // never from text

  bool start_object(std::size_t /*count*/) { return open(JsonKind::object); }
  bool start_array(std::size_t /*count*/) { return open(JsonKind::array); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& name) {
    JsonMember member;
    member.key = std::move(name);
    member.offset = cursor_.take();
    const auto [seen, fresh] = open_.back().keys.try_emplace(member.key, member.offset);
    member.duplicate = !fresh;
    member.first = seen->second;
    open_.back().node.members.push_back(std::move(member));
    return true;
  }

  bool parse_error(std::size_t read, const std::string& /*token*/, const Json::exception& error) {
    std::string message = plain_message(error.what());
    // `read` counts the bytes up to and with the offending one. What is wrong inside a token is at
    // that byte; an unexpected token is better shown at its start.
    std::size_t offset = std::min(read > 0 ? read - 1 : 0, text_.size());
    if (message.starts_with("unexpected end of input")) {
      offset = text_.size();
    } else if (message.starts_with("unexpected ") || message.starts_with("number overflow")) {
      offset = cursor_.token_before(std::min(read, text_.size()));
    }
    return fault(offset, std::move(message));
  }

 private:
  struct Open {
    JsonNode node;
    std::unordered_map<std::string, std::size_t> keys;
  };

  bool fault(std::size_t offset, std::string message) {
    document_.faults.push_back({offset, std::move(message)});
    return false;
  }

  bool open(JsonKind kind) {
    const std::size_t offset = cursor_.take();
    if (open_.size() == kMaxJsonDepth) {
      return fault(offset, "nested too deeply, the most is " + std::to_string(kMaxJsonDepth));
    }
    open_.emplace_back();
    open_.back().node.kind = kind;
    open_.back().node.offset = offset;
    return true;
  }

  bool close() {
    cursor_.take();
    JsonNode node = std::move(open_.back().node);
    open_.pop_back();
    return place(std::move(node));
  }

  bool scalar(JsonKind kind, std::string text) {
    JsonNode node;
    node.kind = kind;
    node.offset = cursor_.take();
    node.text = std::move(text);
    return place(std::move(node));
  }

  bool place(JsonNode node) {
    if (open_.empty()) {
      document_.root = std::move(node);
    } else if (open_.back().node.kind == JsonKind::array) {
      open_.back().node.items.push_back(std::move(node));
    } else {
      open_.back().node.members.back().value = std::move(node);
    }
    return true;
  }

  std::string_view text_;
  Cursor cursor_;
  JsonDocument& document_;
  std::vector<Open> open_;
};

// The offset of the first byte that is not part of well-formed UTF-8 (RFC 3629 section 4), or the
// size. The parser checks strings only; comments are checked here.
std::size_t utf8_prefix(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    const auto lead = static_cast<unsigned char>(text[i]);
    std::size_t more = 0;
    unsigned char low = 0x80;   // bounds of the second byte: they refuse overlong forms,
    unsigned char high = 0xbf;  // surrogates and what is above U+10FFFF
    if (lead >= 0xc2 && lead <= 0xdf) {
      more = 1;
    } else if (lead >= 0xe0 && lead <= 0xef) {
      more = 2;
      if (lead == 0xe0) low = 0xa0;
      if (lead == 0xed) high = 0x9f;
    } else if (lead >= 0xf0 && lead <= 0xf4) {
      more = 3;
      if (lead == 0xf0) low = 0x90;
      if (lead == 0xf4) high = 0x8f;
    } else if (lead >= 0x80) {
      return i;
    }
    if (text.size() - i <= more) return i;
    for (std::size_t k = 1; k <= more; ++k) {
      const auto byte = static_cast<unsigned char>(text[i + k]);
      if (byte < low || byte > high) return i;
      low = 0x80;
      high = 0xbf;
    }
    i += more + 1;
  }
  return i;
}

}  // namespace

JsonDocument parse_json(std::string_view text) {
  JsonDocument document;
  if (const std::size_t valid = utf8_prefix(text); valid < text.size()) {
    document.faults.push_back({valid, "not valid UTF-8"});
    return document;
  }
  TreeBuilder builder(text, document);
  try {
    const bool parsed =
        Json::sax_parse(text.begin(), text.end(), &builder, Json::input_format_t::json,
                        /*strict=*/true, /*ignore_comments=*/true);
    if (!parsed && document.faults.empty()) document.faults.push_back({0, "not valid JSON"});
  } catch (const std::exception& error) {
    document.faults.push_back({0, plain_message(error.what())});
  }
  return document;
}

JsonPosition locate(std::string_view text, std::size_t offset) {
  JsonPosition position;
  std::size_t begin = text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
  const std::size_t end = std::min(offset, text.size());
  for (std::size_t i = begin; i < end; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == '\n') {
      ++position.line;
      position.column = 1;
    } else if ((byte & 0xc0U) != 0x80) {  // not a continuation byte
      ++position.column;
    }
  }
  return position;
}

std::string json_quote(std::string_view text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string to_json(const JsonNode& node, std::size_t indent) {
  const std::string inner(indent + 2, ' ');
  const std::string outer(indent, ' ');
  std::string out;
  switch (node.kind) {
    case JsonKind::null:
      return "null";
    case JsonKind::boolean:
    case JsonKind::integer:
    case JsonKind::real:
      return node.text;
    case JsonKind::string:
      return json_quote(node.text);
    case JsonKind::array: {
      // Lists of scalars stay on one line.
      const bool flat = std::all_of(node.items.begin(), node.items.end(), [](const JsonNode& item) {
        return item.kind != JsonKind::array && item.kind != JsonKind::object;
      });
      for (const JsonNode& item : node.items) {
        if (!out.empty()) out += flat ? ", " : ",\n" + inner;
        out += to_json(item, indent + 2);
      }
      return flat ? "[" + out + "]" : "[\n" + inner + out + "\n" + outer + "]";
    }
    case JsonKind::object:
      for (const JsonMember& member : node.members) {
        if (!out.empty()) out += ",\n" + inner;
        out += json_quote(member.key) + ": " + to_json(member.value, indent + 2);
      }
      return out.empty() ? "{}" : "{\n" + inner + out + "\n" + outer + "}";
  }
  return out;
}

}  // namespace causeway
