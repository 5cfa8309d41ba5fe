// SPDX-License-Identifier: Apache-2.0
// The inside of OptionGroup, shared by the files that implement it. Not for other code.
#pragma once

#include "common/config/json_tree.hpp"
#include "common/config/option_table.hpp"

namespace causeway {

enum class Origin : std::uint8_t { none, file, flag };

// Exactly one of `binding`, `section` and `items` is set.
struct OptionGroup::Entry {
  OptionInfo info;
  std::unique_ptr<Binding> binding;
  std::unique_ptr<OptionGroup> section;
  std::unique_ptr<Items> items;
  Origin origin = Origin::none;
  std::size_t offset = 0;  // origin file: of the value
  bool refused = false;    // the file's value had a fault, which is reported already
};

struct OptionGroup::Check {
  std::string key;
  std::function<Result<void>()> run;
};

struct ConfigFault {
  Origin origin = Origin::file;
  std::size_t offset = 0;  // origin file
  std::string where;       // the key's path, or the flag
  std::string message;
};

// Applies a tree to a group: unknown keys, types, values, required options, then checks.
class ConfigReader {
 public:
  explicit ConfigReader(std::vector<ConfigFault>& faults) : faults_(faults) {}

  void apply(OptionGroup& group, const JsonNode& node, const std::string& path, bool root);
  // Options that neither the flags nor the file gave. `offset` is where the file should have them.
  void require(const OptionGroup& group, const std::string& path, Origin origin,
               std::size_t offset);
  void run_checks(const OptionGroup& group, const std::string& path);

 private:
  using Entry = OptionGroup::Entry;

  void apply_member(OptionGroup& group, const JsonMember& member, const std::string& path);
  void apply_value(Entry& entry, const JsonNode& node, const std::string& path);
  void apply_items(Entry& entry, const JsonNode& node, const std::string& path);
  bool stage(Entry& entry, const JsonNode& node, const std::string& path);
  void unknown(const OptionGroup& group, const JsonMember& member, const std::string& path);
  void fault(std::size_t offset, std::string path, std::string message);

  std::vector<ConfigFault>& faults_;
};

// Documentation made from a group.
struct Describer {
  static void collect(const OptionGroup& group, std::vector<OptionInfo>& out);
  static void collect_values(const OptionGroup& group,
                             std::vector<std::pair<std::string, std::vector<std::string>>>& out);
  static JsonNode schema(const OptionGroup& group, bool root);
  static std::string default_config(const OptionGroup& group, std::size_t indent);
};

}  // namespace causeway
