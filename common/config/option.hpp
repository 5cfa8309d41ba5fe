// SPDX-License-Identifier: Apache-2.0
// Theory of operation: one option and the variable that it sets.
//
// Every value has a text form: "1500", "64KiB", "10.0.0.1/24". A Codec reads and writes that form
// for one type; flags and JSON strings are that form already, JSON booleans and integers are turned
// into it first. So each type has one parser and one error text, wherever the value came from.
//
// A Binding ties a codec to a variable: T, std::optional<T> (may be unset) or std::vector<T> (a
// list). Values are staged one at a time, so that each error has its own place, and stored
// together.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/net/address.hpp"
#include "common/result.hpp"
#include "common/units.hpp"

namespace causeway {

// What the caller says about an option. All of it is optional, but `doc` should be there.
struct OptionSpec {
  std::string value = {};                // the value's name in help: "NAME"; by default the type's
  std::string doc = {};                  // one or two sentences
  std::string flag = {};                 // by default made of the key: max_frame -> --max-frame
  std::optional<std::int64_t> min = {};  // integers: the value; sizes: bytes; durations: ms
  std::optional<std::int64_t> max = {};
  std::string unset_word = {};  // std::optional only: a word that stands for "unset", as in "off"
  bool required = false;        // has to be given by a flag or by the file
  bool reloadable = false;      // takes effect on a reload; the others need a restart
  bool flag_only = false;       // not a key of the configuration file
  bool file_only = false;       // not a flag
  bool positional = false;      // an argument without a flag; implies flag_only
  std::function<Result<void>(std::string_view)> check = {};  // one value's text, once it parsed
};

enum class JsonType : std::uint8_t { boolean, integer, string };

template <class T>
struct Codec {
  JsonType json = JsonType::string;
  std::string type;          // "size", for people
  std::string value_name;    // "BYTES"
  std::string pattern = {};  // ECMA-262 regular expression of the text, for the schema
  std::vector<std::string> choices = {};
  std::string range = {};                // "68 to 65520"
  std::optional<std::int64_t> min = {};  // integers only, for the schema
  std::optional<std::int64_t> max = {};
  std::function<Result<T>(std::string_view)> parse;
  std::function<std::string(const T&)> format;
};

Codec<bool> bool_codec();
Codec<std::int64_t> integer_codec(const OptionSpec& spec, std::int64_t lowest,
                                  std::int64_t highest);
Codec<std::string> string_codec();
Codec<Size> size_codec(const OptionSpec& spec);
Codec<Duration> duration_codec(const OptionSpec& spec);
Codec<Address> address_codec();
Codec<IpAddress> ip_codec();
Codec<Cidr> cidr_codec();

// The index of `text` in `names`, or an error that lists them.
Result<std::size_t> parse_choice(std::string_view text, const std::vector<std::string>& names);

template <class T>
Codec<T> codec_for(const OptionSpec& spec) {
  if constexpr (std::is_same_v<T, bool>) {
    return bool_codec();
  } else if constexpr (std::is_integral_v<T>) {
    using Limits = std::numeric_limits<T>;
    constexpr auto kTop = std::numeric_limits<std::int64_t>::max();
    const auto lowest = static_cast<std::int64_t>(Limits::min());
    const auto highest = std::in_range<std::int64_t>(Limits::max())
                             ? static_cast<std::int64_t>(Limits::max())
                             : kTop;
    auto wide = integer_codec(spec, lowest, highest);
    return Codec<T>{wide.json,
                    wide.type,
                    wide.value_name,
                    {},
                    {},
                    wide.range,
                    wide.min,
                    wide.max,
                    [parse = wide.parse](std::string_view text) -> Result<T> {
                      const auto value = parse(text);
                      if (!value) return value.error();
                      return static_cast<T>(*value);
                    },
                    [](const T& value) { return std::to_string(value); }};
  } else if constexpr (std::is_same_v<T, std::string>) {
    return string_codec();
  } else if constexpr (std::is_same_v<T, Size>) {
    return size_codec(spec);
  } else if constexpr (std::is_same_v<T, Duration>) {
    return duration_codec(spec);
  } else if constexpr (std::is_same_v<T, Address>) {
    return address_codec();
  } else if constexpr (std::is_same_v<T, IpAddress>) {
    return ip_codec();
  } else {
    static_assert(std::is_same_v<T, Cidr>, "no codec for this type: give one to add_with()");
    return cidr_codec();
  }
}

// A codec for an enumeration. Each value needs one name; the names are all there is to accept.
template <class T>
Codec<T> choice_codec(std::vector<std::pair<std::string, T>> choices) {
  Codec<T> codec;
  codec.type = "choice";
  for (const auto& choice : choices) {
    codec.choices.push_back(choice.first);
    codec.value_name += (codec.value_name.empty() ? "" : "|") + choice.first;
  }
  codec.parse = [choices, names = codec.choices](std::string_view text) -> Result<T> {
    const auto index = parse_choice(text, names);
    if (!index) return index.error();
    return choices[*index].second;
  };
  codec.format = [choices](const T& value) {
    for (const auto& choice : choices) {
      if (choice.second == value) return choice.first;
    }
    return std::string();
  };
  return codec;
}

template <class V>
struct ElementOf {
  using type = V;
  static constexpr bool kList = false;
  static constexpr bool kOptional = false;
};
template <class T>
struct ElementOf<std::vector<T>> {
  using type = T;
  static constexpr bool kList = true;
  static constexpr bool kOptional = false;
};
template <class T>
struct ElementOf<std::optional<T>> {
  using type = T;
  static constexpr bool kList = false;
  static constexpr bool kOptional = true;
};

class Binding {
 public:
  Binding() = default;
  Binding(const Binding&) = delete;
  Binding& operator=(const Binding&) = delete;
  virtual ~Binding() = default;

  // Parses one value and keeps it until commit() or discard().
  virtual Result<void> stage(std::string_view text) = 0;
  // Stores what was staged: the last value, or the whole list, which may be empty.
  virtual void commit() = 0;
  virtual void discard() = 0;
  // The variable's value now: one text, or one for each element; none when unset.
  [[nodiscard]] virtual std::vector<std::string> current() const = 0;
};

template <class V>
class VariableBinding final : public Binding {
 public:
  using Shape = ElementOf<V>;
  using T = typename Shape::type;

  VariableBinding(V& variable, Codec<T> codec, const OptionSpec& spec)
      : variable_(variable),
        codec_(std::move(codec)),
        check_(spec.check),
        unset_word_(Shape::kOptional ? spec.unset_word : std::string()) {}

  Result<void> stage(std::string_view text) override {
    if (!unset_word_.empty() && text == unset_word_) {
      staged_.clear();
      return {};
    }
    auto value = codec_.parse(text);
    if (!value) {
      if (unset_word_.empty()) return value.error();
      return Error{value.error().message + ", or " + unset_word_};
    }
    if (check_) {
      if (auto checked = check_(text); !checked) return checked.error();
    }
    if constexpr (!Shape::kList) staged_.clear();
    staged_.push_back(*std::move(value));
    return {};
  }

  void commit() override {
    if constexpr (Shape::kList) {
      variable_ = std::move(staged_);
    } else if constexpr (Shape::kOptional) {
      variable_.reset();
      if (!staged_.empty()) variable_ = std::move(staged_.back());
    } else {
      if (!staged_.empty()) variable_ = std::move(staged_.back());
    }
    staged_.clear();
  }

  void discard() override { staged_.clear(); }

  [[nodiscard]] std::vector<std::string> current() const override {
    std::vector<std::string> texts;
    if constexpr (Shape::kList) {
      for (const T& value : variable_)
        texts.push_back(codec_.format(value));
    } else if constexpr (Shape::kOptional) {
      if (variable_) texts.push_back(codec_.format(*variable_));
    } else {
      texts.push_back(codec_.format(variable_));
    }
    return texts;
  }

 private:
  // std::vector<bool> hands out no references; a wrapper keeps one code path.
  using Staged = std::conditional_t<std::is_same_v<T, bool>, std::vector<char>, std::vector<T>>;

  V& variable_;
  Codec<T> codec_;
  std::function<Result<void>(std::string_view)> check_;
  std::string unset_word_;
  Staged staged_;
};

}  // namespace causeway
