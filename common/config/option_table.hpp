// SPDX-License-Identifier: Apache-2.0
// Theory of operation: one table of options per program.
//
// Each option is described once, beside the variable that it sets. From that description come the
// flags, the configuration file's keys, --help, --print-schema, --print-default-config and the
// manual page, so they cannot disagree. The variable's value when add() is called is the default.
//
//   Config config;
//   OptionTable table("causeway-host", "Carries Ethernet frames ...", version_text);
//   table.add("tap", config.tap, {.value = "NAME", .doc = "The TAP device.", .required = true});
//   table.add("mtu", config.mtu, {.doc = "...", .min = 68, .max = 65520});
//   table.section("splice", "...").add("after", config.splice_after, {...});  // --splice-after
//   const auto outcome = table.parse(argc, argv);
//   if (outcome.exit_code) return *outcome.exit_code;
//
// Precedence: defaults < file < flags. A list from a flag replaces the file's list. The file's
// values are checked even where a flag overrides them.
//
// Errors. Command line: one line on stderr, exit code 2. File: every fault of the file, one per
// line as `FILE:LINE:COLUMN: KEY: MESSAGE`, exit code 1; a syntax error ends the reading and stands
// alone. After a failure the variables are in no useful state. To reload, fill a fresh
// configuration from the same arguments and compare (options() tells what is reloadable).
//
// Bounds: a file has at most kMaxConfigSize bytes, kMaxJsonDepth levels; of its faults
// kMaxConfigFaults are listed and the rest is counted.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/config/option.hpp"

namespace causeway {

inline constexpr std::size_t kMaxConfigSize = std::size_t{1} << 20;
inline constexpr std::size_t kMaxConfigFaults = 100;
inline constexpr int kExitConfig = 1;
inline constexpr int kExitUsage = 2;

struct JsonNode;

// One option, as documentation sees it.
struct OptionInfo {
  std::string path;  // "splice.after"; within a list of objects "guests[].tap"
  std::string key;   // its last part
  std::string flag;  // "--splice-after", "command" if positional, empty if file_only
  std::string value;
  std::string doc;
  std::string type;                   // "size"
  std::string range;                  // "68 to 65520"
  std::string pattern;                // regular expression of the text
  std::vector<std::string> choices;   // an enumeration's names
  std::vector<std::string> defaults;  // one text, one per element of a list; none: unset
  JsonType json = JsonType::string;
  std::optional<std::int64_t> min;
  std::optional<std::int64_t> max;
  std::string unset_word;
  bool list = false;
  bool optional = false;
  bool required = false;
  bool reloadable = false;
  bool flag_only = false;
  bool positional = false;
  bool command = false;  // the program and its arguments behind "--"
};

class OptionGroup {
 public:
  OptionGroup();
  OptionGroup(const OptionGroup&) = delete;
  OptionGroup& operator=(const OptionGroup&) = delete;
  OptionGroup(OptionGroup&&) noexcept;
  ~OptionGroup();

  // `variable` is a T, std::optional<T> or std::vector<T>, where T is bool, an integer,
  // std::string, Size, Duration, Address, IpAddress or Cidr. It has to outlive the table.
  // Throws std::logic_error if the key is taken.
  template <class V>
  OptionGroup& add(const std::string& key, V& variable, const OptionSpec& spec = {}) {
    auto codec = codec_for<typename ElementOf<V>::type>(spec);
    return add_with(key, variable, std::move(codec), spec);
  }

  // An enumeration: {{"auto", Wire::automatic}, ...}.
  template <class V>
  OptionGroup& add_choice(const std::string& key, V& variable,
                          std::vector<std::pair<std::string, typename ElementOf<V>::type>> choices,
                          OptionSpec spec = {}) {
    auto codec = choice_codec<typename ElementOf<V>::type>(std::move(choices));
    return add_with(key, variable, std::move(codec), spec);
  }

  // Any other type: the codec's parse and format are the caller's.
  template <class V>
  OptionGroup& add_with(const std::string& key, V& variable,
                        Codec<typename ElementOf<V>::type> codec, const OptionSpec& spec = {}) {
    OptionInfo info;
    info.type = codec.type;
    info.value = codec.value_name;
    info.range = codec.range;
    info.pattern = codec.pattern;
    info.choices = codec.choices;
    info.json = codec.json;
    info.min = codec.min;
    info.max = codec.max;
    info.list = ElementOf<V>::kList;
    info.optional = ElementOf<V>::kOptional;
    auto binding = std::make_unique<VariableBinding<V>>(variable, std::move(codec), spec);
    insert(key, std::move(info), spec, std::move(binding));
    return *this;
  }

  // A program to run with its arguments: `--exec -- CMD ARGS...`, or a list of strings in the file.
  OptionGroup& add_command(const std::string& key, std::vector<std::string>& variable,
                           OptionSpec spec = {});

  // An object under `key`. The flags of its options carry its name in front. The reference is valid
  // as long as the table.
  OptionGroup& section(const std::string& key, std::string doc);

  // A list of objects under `key`, from the file only. `describe` adds the options of one item; the
  // defaults are those of a fresh T. The file's list replaces what `items` held.
  template <class T>
  OptionGroup& add_list(const std::string& key, std::vector<T>& items,
                        const std::function<void(OptionGroup&, T&)>& describe,
                        const std::string& doc) {
    insert_list(key, doc, std::make_unique<ItemsOf<T>>(items, describe));
    return *this;
  }

  // A rule over several options, run once all values are in and none was refused. Its error is
  // shown at `key`: where the file or the flag set it.
  OptionGroup& add_check(std::string key, std::function<Result<void>()> check);

  // Every option in the order of add(), those of sections and lists included.
  [[nodiscard]] std::vector<OptionInfo> options() const;
  // options() as it is now in the variables rather than by default: (path, texts).
  [[nodiscard]] std::vector<std::pair<std::string, std::vector<std::string>>> values() const;

 private:
  friend class OptionTable;
  friend class ConfigReader;
  friend struct Describer;

  // A list of objects: makes an item with its group, and keeps it.
  class Items {
   public:
    Items() = default;
    Items(const Items&) = delete;
    Items& operator=(const Items&) = delete;
    virtual ~Items() = default;
    virtual void clear() = 0;
    virtual void open(OptionGroup& group) = 0;  // a fresh item, described to `group`
    virtual void keep() = 0;                    // append it
  };

  template <class T>
  class ItemsOf final : public Items {
   public:
    ItemsOf(std::vector<T>& items, std::function<void(OptionGroup&, T&)> describe)
        : items_(items), describe_(std::move(describe)) {}
    void clear() override { items_.clear(); }
    void open(OptionGroup& group) override {
      item_ = std::make_unique<T>();
      describe_(group, *item_);
    }
    void keep() override { items_.push_back(std::move(*item_)); }

   private:
    std::vector<T>& items_;
    std::function<void(OptionGroup&, T&)> describe_;
    std::unique_ptr<T> item_;  // the group's bindings refer to it
  };

  struct Entry;
  struct Check;

  void insert(std::string key, OptionInfo info, const OptionSpec& spec,
              std::unique_ptr<Binding> binding);
  void insert_list(std::string key, std::string doc, std::unique_ptr<Items> items);
  Entry& append(std::string key);

  std::string path_;         // "" or "splice."
  std::string flag_prefix_;  // "" or "splice-"
  bool flags_ = true;        // false within a list of objects
  std::vector<std::unique_ptr<Entry>> entries_;
  std::vector<Check> checks_;
};

// The text of a configuration file, kMaxConfigSize bytes at most.
Result<std::string> read_config(const std::string& path);

// What the program should do now: go on (no exit code), or print and exit.
struct ParseOutcome {
  std::optional<int> exit_code;
  std::string out;          // for stdout
  std::string err;          // for stderr; each line ends in a newline
  std::string config_file;  // of --config; empty: none
};

class OptionTable : public OptionGroup {
 public:
  // `version` is what --version prints; a newline is added.
  OptionTable(std::string program, std::string summary, std::string version = {});

  // For a program that has flags only.
  OptionTable& without_config_file();

  // How the file of --config is read, instead of from the file system: a reload reads a copy that
  // somebody with more rights made.
  OptionTable& read_config_with(std::function<Result<std::string>(const std::string& path)> read);

  // What --check-config remarks on a configuration that is right: lines about settings without
  // effect, from the file's text and name (both empty: no file). They are no errors.
  OptionTable& remark_with(
      std::function<std::vector<std::string>(std::string_view text, const std::string& file)>
          remarks);

  // What --check-config looks at besides: the files that a right configuration names.
  OptionTable& check_files_with(std::function<Result<void>()> check);

  // Reads flags and file, prints what is to be printed.
  ParseOutcome parse(int argc, const char* const* argv);
  // The same without printing. `args` is without the program's name.
  ParseOutcome evaluate(std::span<const std::string> args);
  // Reads a configuration from memory; `name` stands for the file in messages. No flags.
  ParseOutcome evaluate_text(std::string_view text, const std::string& name);

  [[nodiscard]] std::string help() const;
  [[nodiscard]] std::string schema() const;          // JSON Schema, draft 2020-12
  [[nodiscard]] std::string default_config() const;  // JSON with comments

 private:
  ParseOutcome usage_error(const std::string& message) const;
  ParseOutcome finish(std::string_view text, const std::string& name, bool have_file);
  std::optional<Error> apply_flag(Entry& entry, std::span<const std::string> values);

  std::string program_;
  std::string summary_;
  std::string version_;
  bool config_file_ = true;
  std::function<Result<std::string>(const std::string& path)> read_config_;
  std::function<std::vector<std::string>(std::string_view, const std::string&)> remarks_;
  std::function<Result<void>()> check_files_;
};

}  // namespace causeway
