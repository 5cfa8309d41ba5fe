// SPDX-License-Identifier: Apache-2.0
// What a table says about itself: --help, --print-schema, --print-default-config.
#include <algorithm>

#include "common/config/entry.hpp"

namespace causeway {
namespace {

constexpr std::size_t kHelpColumn = 28;
constexpr std::size_t kHelpWidth = 96;

JsonNode scalar(JsonKind kind, std::string text) {
  JsonNode node;
  node.kind = kind;
  node.text = std::move(text);
  return node;
}

JsonNode string_node(std::string text) {
  return scalar(JsonKind::string, std::move(text));
}
JsonNode bool_node(bool value) {
  return scalar(JsonKind::boolean, value ? "true" : "false");
}

JsonNode object_node() {
  JsonNode node;
  node.kind = JsonKind::object;
  return node;
}

JsonNode array_node(std::vector<JsonNode> items = {}) {
  JsonNode node;
  node.kind = JsonKind::array;
  node.items = std::move(items);
  return node;
}

void set(JsonNode& object, std::string key, JsonNode value) {
  JsonMember member;
  member.key = std::move(key);
  member.value = std::move(value);
  object.members.push_back(std::move(member));
}

JsonNode typed_node(JsonType type, std::string text) {
  switch (type) {
    case JsonType::boolean:
      return scalar(JsonKind::boolean, std::move(text));
    case JsonType::integer:
      return scalar(JsonKind::integer, std::move(text));
    case JsonType::string:
      break;
  }
  return string_node(std::move(text));
}

// An option's default as the file would have it.
JsonNode default_node(const OptionInfo& info) {
  if (info.list) {
    JsonNode list = array_node();
    for (const std::string& text : info.defaults)
      list.items.push_back(typed_node(info.json, text));
    return list;
  }
  if (!info.defaults.empty()) return typed_node(info.json, info.defaults.front());
  return info.unset_word.empty() ? JsonNode{} : string_node(info.unset_word);
}

// Words of `text` in lines of at most `width`, each behind `prefix`, joined by newlines.
std::string wrap(const std::string& text, const std::string& prefix, std::size_t width) {
  std::string out;
  std::string line;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    at = end + 1;
    if (word.empty()) continue;
    if (!line.empty() && prefix.size() + line.size() + 1 + word.size() > width) {
      out += (out.empty() ? "" : "\n") + prefix + line;
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  if (!line.empty()) out += (out.empty() ? "" : "\n") + prefix + line;
  return out;
}

std::string default_text(const OptionInfo& info) {
  if (info.positional || info.command) return {};
  if (info.defaults.empty()) return info.list ? std::string() : info.unset_word;
  std::string out;
  for (const std::string& text : info.defaults)
    out += (out.empty() ? "" : " ") + text;
  return out;
}

// "68 to 65520, default 1500, required"
std::string facts(const OptionInfo& info, bool with_default) {
  std::string out;
  const auto append = [&out](const std::string& text) {
    if (!text.empty()) out += (out.empty() ? "" : ", ") + text;
  };
  append(info.range);
  const std::string value = default_text(info);
  const bool off_switch = info.json == JsonType::boolean && value == "false";
  if (with_default && !value.empty() && !off_switch) append("default " + value);
  if (info.list && !info.command) append("may be repeated");
  if (info.required) append("required");
  if (info.reloadable) append("reloadable");
  return out;
}

std::string help_line(const std::string& form, const std::string& text) {
  std::string line = "  " + form;
  const std::string gap(kHelpColumn, ' ');
  if (text.empty()) return line + "\n";
  const std::string body = wrap(text, gap, kHelpWidth);
  if (line.size() + 2 > kHelpColumn) return line + "\n" + body + "\n";
  line.resize(kHelpColumn, ' ');
  return line + body.substr(kHelpColumn) + "\n";
}

std::string flag_form(const OptionInfo& info) {
  if (info.positional) return info.value;
  if (info.json == JsonType::boolean && !info.list) return info.flag;
  return info.flag + " " + info.value;
}

JsonNode value_schema(const OptionInfo& info) {
  static constexpr std::string_view kNames[] = {"boolean", "integer", "string"};
  JsonNode node = object_node();
  set(node, "type", string_node(std::string(kNames[static_cast<std::size_t>(info.json)])));
  if (info.min) set(node, "minimum", scalar(JsonKind::integer, std::to_string(*info.min)));
  if (info.max) set(node, "maximum", scalar(JsonKind::integer, std::to_string(*info.max)));
  if (!info.pattern.empty()) set(node, "pattern", string_node(info.pattern));
  if (!info.choices.empty()) {
    JsonNode choices = array_node();
    for (const std::string& choice : info.choices)
      choices.items.push_back(string_node(choice));
    set(node, "enum", std::move(choices));
  }
  return node;
}

JsonNode option_schema(const OptionInfo& info) {
  JsonNode node = object_node();
  std::string description = info.doc;
  if (info.min == std::nullopt && !info.range.empty()) description += " Range: " + info.range + ".";
  set(node, "description", string_node(description));
  JsonNode value = value_schema(info);
  if (info.list) {
    JsonNode list = object_node();
    set(list, "type", string_node("array"));
    set(list, "items", value);
    std::vector<JsonNode> either{std::move(list)};
    if (!info.command) either.push_back(std::move(value));  // one element needs no brackets
    set(node, "anyOf", array_node(std::move(either)));
  } else if (info.optional) {
    JsonNode null = object_node();
    set(null, "type", string_node("null"));
    std::vector<JsonNode> either{std::move(value), std::move(null)};
    if (!info.unset_word.empty()) {
      JsonNode word = object_node();
      set(word, "const", string_node(info.unset_word));
      either.push_back(std::move(word));
    }
    set(node, "anyOf", array_node(std::move(either)));
  } else {
    for (JsonMember& member : value.members)
      node.members.push_back(std::move(member));
  }
  set(node, "default", default_node(info));
  if (info.reloadable) set(node, "x-reloadable", bool_node(true));
  return node;
}

}  // namespace

void Describer::collect(const OptionGroup& group, std::vector<OptionInfo>& out) {
  for (const auto& entry : group.entries_) {
    if (entry->section) {
      collect(*entry->section, out);
    } else if (entry->items) {
      OptionGroup item;
      item.path_ = entry->info.path + "[].";
      item.flags_ = false;
      entry->items->open(item);
      collect(item, out);
    } else {
      out.push_back(entry->info);
    }
  }
}

void Describer::collect_values(const OptionGroup& group,
                               std::vector<std::pair<std::string, std::vector<std::string>>>& out) {
  for (const auto& entry : group.entries_) {
    if (entry->section) collect_values(*entry->section, out);
    if (entry->binding) out.emplace_back(entry->info.path, entry->binding->current());
  }
}

JsonNode Describer::schema(const OptionGroup& group, bool root) {
  JsonNode properties = object_node();
  if (root) {
    JsonNode self = object_node();
    set(self, "type", string_node("string"));
    set(properties, "$schema", std::move(self));
  }
  JsonNode required = array_node();
  for (const auto& entry : group.entries_) {
    const OptionInfo& info = entry->info;
    if (info.flag_only) continue;
    if (entry->section) {
      JsonNode section = schema(*entry->section, false);
      set(section, "description", string_node(info.doc));
      set(properties, info.key, std::move(section));
    } else if (entry->items) {
      OptionGroup item;
      item.flags_ = false;
      entry->items->open(item);
      JsonNode list = object_node();
      set(list, "type", string_node("array"));
      set(list, "description", string_node(info.doc));
      set(list, "items", schema(item, false));
      set(properties, info.key, std::move(list));
    } else {
      set(properties, info.key, option_schema(info));
      // What a flag can give as well is not required of the file.
      if (info.required && info.flag.empty()) required.items.push_back(string_node(info.key));
    }
  }
  JsonNode node = object_node();
  set(node, "type", string_node("object"));
  set(node, "properties", std::move(properties));
  if (!required.items.empty()) set(node, "required", std::move(required));
  set(node, "additionalProperties", bool_node(false));
  return node;
}

std::string Describer::default_config(const OptionGroup& group, std::size_t indent) {
  const std::string pad(indent, ' ');
  const std::string comment = pad + "// ";
  std::string out;
  for (const auto& entry : group.entries_) {
    const OptionInfo& info = entry->info;
    if (info.flag_only) continue;
    if (!out.empty()) out += ",\n\n";
    std::string doc = info.doc;
    if (entry->binding) {
      const std::string more = facts(info, false);
      if (!more.empty()) doc += (doc.empty() ? "(" : " (") + more + ")";
    }
    if (!doc.empty()) out += wrap(doc, comment, kHelpWidth) + "\n";
    std::string value;
    if (entry->section) {
      value = default_config(*entry->section, indent + 2);
      value = value.empty() ? "{}" : "{\n" + value + "\n" + pad + "}";
    } else if (entry->items) {
      OptionGroup item;
      item.flags_ = false;
      entry->items->open(item);
      out += comment + "Each item has these keys:\n";
      for (const auto& part : item.entries_) {
        const OptionInfo& key = part->info;
        std::string text = key.key + ": " + key.doc;
        if (const std::string more = facts(key, true); part->binding && !more.empty()) {
          text += " (" + more + ")";
        }
        out += wrap(text, comment + "  ", kHelpWidth) + "\n";
      }
      value = "[]";
    } else {
      value = to_json(default_node(info), indent);
    }
    out += pad + json_quote(info.key) + ": " + value;
  }
  return out;
}

std::string OptionTable::help() const {
  const auto all = options();
  std::string usage = "Usage: " + program_ + " [FLAG]...";
  std::string positional;
  std::string flags;
  for (const OptionInfo& info : all) {
    if (info.flag.empty()) continue;
    std::string text = info.doc;
    if (const std::string more = facts(info, true); !more.empty()) text += " (" + more + ")";
    (info.positional ? positional : flags) += help_line(flag_form(info), text);
    if (info.positional) usage += info.required ? " " + info.value : " [" + info.value + "]";
    if (info.command) usage += " [" + flag_form(info) + "]";
  }
  std::string out = usage + "\n";
  if (!summary_.empty()) out += wrap(summary_, "", kHelpWidth) + "\n";
  if (!positional.empty()) out += "\nArguments:\n" + positional;
  if (!flags.empty()) out += "\nFlags:\n" + flags;
  out += "\nGeneral:\n";
  if (config_file_) {
    out += help_line("-c, --config FILE",
                     "Read a JSON file, which may have // and /* */ comments; flags win over it.");
    out += help_line("--check-config", "Check flags and file, then exit.");
    out += help_line("--print-default-config", "Print a file with every key and its default.");
    out += help_line("--print-schema", "Print the JSON Schema of the file.");
  }
  out += help_line("-h, --help", "Print this text.");
  out += help_line("--version", "Print the version.");
  return out;
}

std::string OptionTable::schema() const {
  JsonNode root = object_node();
  set(root, "$schema", string_node("https://json-schema.org/draft/2020-12/schema"));
  set(root, "$id", string_node("urn:causeway:schema:" + program_ + ":1"));
  set(root, "title", string_node("Configuration of " + program_));
  if (!summary_.empty()) set(root, "description", string_node(summary_));
  for (JsonMember& member : Describer::schema(*this, true).members) {
    root.members.push_back(std::move(member));
  }
  return to_json(root) + "\n";
}

std::string OptionTable::default_config() const {
  const std::string body = Describer::default_config(*this, 2);
  std::string out = "// The defaults of " + program_ + ". JSON with // and /* */ comments.\n{\n";
  if (!body.empty()) out += body + "\n";
  return out + "}\n";
}

}  // namespace causeway
