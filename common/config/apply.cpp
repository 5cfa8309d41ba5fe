// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "common/config/entry.hpp"
#include "common/config/text.hpp"

namespace causeway {
namespace {

std::string_view kind_name(JsonKind kind) {
  switch (kind) {
    case JsonKind::null:
      return "null";
    case JsonKind::boolean:
      return "a boolean";
    case JsonKind::integer:
      return "a number";
    case JsonKind::real:
      return "a number with a fraction or exponent, or out of all range";
    case JsonKind::string:
      return "a string";
    case JsonKind::array:
      return "a list";
    case JsonKind::object:
      return "an object";
  }
  return "?";
}

std::string wrong_type(std::string_view wanted, const JsonNode& node) {
  return "takes " + std::string(wanted) + ", not " + std::string(kind_name(node.kind));
}

std::string_view wanted_type(const OptionInfo& info) {
  switch (info.json) {
    case JsonType::boolean:
      return "true or false";
    case JsonType::integer:
      return "a whole number";
    case JsonType::string:
      break;
  }
  return "a string";
}

bool fits(JsonType wanted, JsonKind kind) {
  switch (wanted) {
    case JsonType::boolean:
      return kind == JsonKind::boolean;
    case JsonType::integer:
      return kind == JsonKind::integer;
    case JsonType::string:
      break;
  }
  return kind == JsonKind::string;
}

}  // namespace

void ConfigReader::fault(std::size_t offset, std::string path, std::string message) {
  faults_.push_back({Origin::file, offset, std::move(path), std::move(message)});
}

void ConfigReader::apply(OptionGroup& group, const JsonNode& node, const std::string& path,
                         bool root) {
  if (node.kind != JsonKind::object) {
    return fault(node.offset, root ? "configuration" : path.substr(0, path.size() - 1),
                 wrong_type("an object", node));
  }
  for (const JsonMember& member : node.members) {
    if (member.duplicate) {
      fault(member.offset, path + printable(member.key), "duplicate key");
    } else if (root && member.key == "$schema") {
      if (member.value.kind != JsonKind::string) {
        fault(member.value.offset, "$schema", wrong_type("a string", member.value));
      }
    } else {
      apply_member(group, member, path);
    }
  }
}

void ConfigReader::apply_member(OptionGroup& group, const JsonMember& member,
                                const std::string& path) {
  for (const auto& entry : group.entries_) {
    if (entry->info.key != member.key || entry->info.flag_only) continue;
    const std::string full = path + member.key;
    if (entry->section) {
      entry->origin = Origin::file;
      entry->offset = member.value.offset;
      return apply(*entry->section, member.value, full + ".", false);
    }
    if (entry->items) return apply_items(*entry, member.value, full);
    return apply_value(*entry, member.value, full);
  }
  unknown(group, member, path);
}

void ConfigReader::unknown(const OptionGroup& group, const JsonMember& member,
                           const std::string& path) {
  std::string message = "unknown key";
  if (faults_.size() < kMaxConfigFaults) {  // the rest is only counted
    std::vector<std::string> keys;
    for (const auto& entry : group.entries_) {
      if (!entry->info.flag_only) keys.push_back(entry->info.key);
    }
    const std::string near = nearest(member.key, keys);
    message += near.empty() ? "; --print-default-config lists the keys"
                            : "; did you mean " + in_quotes(near) + "?";
  }
  const std::string shown = member.key.empty() ? "\"\"" : printable(member.key);
  fault(member.offset, path + shown, std::move(message));
}

bool ConfigReader::stage(Entry& entry, const JsonNode& node, const std::string& path) {
  const OptionInfo& info = entry.info;
  const bool word = !info.unset_word.empty() && node.kind == JsonKind::string;
  if (!fits(info.json, node.kind) && !word) {
    fault(node.offset, path, wrong_type(wanted_type(info), node));
    return false;
  }
  if (auto staged = entry.binding->stage(node.text); !staged) {
    fault(node.offset, path, staged.error().message);
    return false;
  }
  return true;
}

void ConfigReader::apply_value(Entry& entry, const JsonNode& node, const std::string& path) {
  bool good = true;
  if (node.kind == JsonKind::null && entry.info.optional) {
    // unset: nothing is staged
  } else if (entry.info.list && node.kind == JsonKind::array) {
    for (std::size_t i = 0; i < node.items.size(); ++i) {
      good = stage(entry, node.items[i], path + "[" + std::to_string(i) + "]") && good;
    }
  } else if (entry.info.command) {
    fault(node.offset, path, wrong_type("a list of strings", node));
    good = false;
  } else {
    good = stage(entry, node, path);
  }
  entry.refused = !good;
  if (!good || entry.origin == Origin::flag) return entry.binding->discard();
  entry.binding->commit();
  entry.origin = Origin::file;
  entry.offset = node.offset;
}

void ConfigReader::apply_items(Entry& entry, const JsonNode& node, const std::string& path) {
  if (node.kind != JsonKind::array) {
    return fault(node.offset, path, wrong_type("a list of objects", node));
  }
  entry.items->clear();
  entry.origin = Origin::file;
  entry.offset = node.offset;
  for (std::size_t i = 0; i < node.items.size(); ++i) {
    const std::size_t before = faults_.size();
    const std::string item_path = path + "[" + std::to_string(i) + "].";
    OptionGroup group;
    group.flags_ = false;
    entry.items->open(group);
    apply(group, node.items[i], item_path, false);
    if (node.items[i].kind == JsonKind::object) {
      require(group, item_path, Origin::file, node.items[i].offset);
    }
    if (faults_.size() == before) run_checks(group, item_path);
    // A check without a key in the item has no place of its own.
    for (std::size_t k = before; k < faults_.size(); ++k) {
      if (faults_[k].origin == Origin::none) {
        faults_[k].origin = Origin::file;
        faults_[k].offset = node.items[i].offset;
      }
    }
    entry.items->keep();
  }
}

void ConfigReader::require(const OptionGroup& group, const std::string& path, Origin origin,
                           std::size_t offset) {
  for (const auto& entry : group.entries_) {
    const std::string full = path + entry->info.key;
    if (entry->section) {
      const bool there = entry->origin == Origin::file;
      require(*entry->section, full + ".", origin, there ? entry->offset : offset);
      continue;
    }
    if (!entry->binding || !entry->info.required || entry->refused) continue;
    const bool given = entry->origin != Origin::none;
    const bool empty =
        (entry->info.list || entry->info.optional) && entry->binding->current().empty();
    if (given && !empty) continue;
    const std::string& flag = entry->info.flag;
    std::string how = flag;
    if (!flag.empty() && !entry->info.positional) how += " " + entry->info.value;
    if (entry->info.command) how = flag + " -- CMD ARGS...";
    const bool at_flag = origin == Origin::none || entry->info.flag_only;
    std::string message = "required but not given";
    if (at_flag) {
      message += ": " + how;
    } else if (!flag.empty()) {
      message += ", here or as " + how;
    }
    faults_.push_back(
        {at_flag ? Origin::none : Origin::file, offset, at_flag ? flag : full, std::move(message)});
  }
}

void ConfigReader::run_checks(const OptionGroup& group, const std::string& path) {
  for (const auto& check : group.checks_) {
    const auto result = check.run();
    if (result) continue;
    ConfigFault found{Origin::none, 0, path + check.key, result.error().message};
    for (const auto& entry : group.entries_) {
      if (entry->info.key != check.key) continue;
      found.origin = entry->origin;
      found.offset = entry->offset;
      if (found.origin != Origin::file && !entry->info.flag.empty()) {
        found.where = entry->info.flag;
      }
    }
    faults_.push_back(std::move(found));
  }
  for (const auto& entry : group.entries_) {
    if (entry->section) run_checks(*entry->section, path + entry->info.key + ".");
  }
}

}  // namespace causeway
