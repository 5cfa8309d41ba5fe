// SPDX-License-Identifier: Apache-2.0
#include "common/config/option_table.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <stdexcept>

#include "common/config/command_line.hpp"
#include "common/config/entry.hpp"
#include "common/config/text.hpp"

namespace causeway {
namespace {

std::string flag_of(const std::string& prefix, const std::string& key) {
  std::string flag = "--" + prefix + key;
  std::replace(flag.begin() + 2, flag.end(), '_', '-');
  return flag;
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  [[nodiscard]] int get() const { return fd_; }

 private:
  int fd_;
};

// The flags that every table has, in the order of their forms behind those of the options.
enum Builtin : std::size_t { kHelp, kVersion, kConfig, kCheck, kSchema, kDefaults, kBuiltins };

std::vector<FlagForm> builtin_forms(bool config_file) {
  std::vector<FlagForm> forms{{"-h,--help", "", true}, {"--version", "", true}};
  if (config_file) {
    forms.push_back({"-c,--config", "FILE"});
    forms.push_back({"--check-config", "", true});
    forms.push_back({"--print-schema", "", true});
    forms.push_back({"--print-default-config", "", true});
  }
  return forms;
}

}  // namespace

OptionGroup::OptionGroup() = default;
OptionGroup::OptionGroup(OptionGroup&&) noexcept = default;
OptionGroup::~OptionGroup() = default;

OptionGroup::Entry& OptionGroup::append(std::string key) {
  for (const auto& entry : entries_) {
    if (entry->info.key == key) throw std::logic_error("option table: key taken: " + path_ + key);
  }
  auto entry = std::make_unique<Entry>();
  entry->info.path = path_ + key;
  entry->info.key = std::move(key);
  entries_.push_back(std::move(entry));
  return *entries_.back();
}

void OptionGroup::insert(std::string key, OptionInfo info, const OptionSpec& spec,
                         std::unique_ptr<Binding> binding) {
  Entry& entry = append(std::move(key));
  info.path = entry.info.path;
  info.key = entry.info.key;
  if (!spec.value.empty()) info.value = spec.value;
  info.doc = spec.doc;
  info.unset_word = info.optional ? spec.unset_word : std::string();
  info.required = spec.required;
  info.reloadable = spec.reloadable;
  info.positional = spec.positional;
  info.flag_only = spec.flag_only || spec.positional;
  if (flags_ && !spec.file_only) {
    info.flag = spec.positional     ? info.key
                : spec.flag.empty() ? flag_of(flag_prefix_, info.key)
                                    : spec.flag;
  }
  info.defaults = binding->current();
  entry.info = std::move(info);
  entry.binding = std::move(binding);
}

OptionGroup& OptionGroup::add_command(const std::string& key, std::vector<std::string>& variable,
                                      OptionSpec spec) {
  if (spec.value.empty()) spec.value = "-- CMD ARGS...";
  add(key, variable, spec);
  entries_.back()->info.command = true;
  return *this;
}

OptionGroup& OptionGroup::section(const std::string& key, std::string doc) {
  Entry& entry = append(key);
  entry.info.doc = std::move(doc);
  entry.section = std::make_unique<OptionGroup>();
  entry.section->path_ = path_ + key + ".";
  entry.section->flag_prefix_ = flag_prefix_ + key + "-";
  entry.section->flags_ = flags_;
  return *entry.section;
}

void OptionGroup::insert_list(std::string key, std::string doc, std::unique_ptr<Items> items) {
  Entry& entry = append(std::move(key));
  entry.info.doc = std::move(doc);
  entry.items = std::move(items);
}

OptionGroup& OptionGroup::add_check(std::string key, std::function<Result<void>()> check) {
  checks_.push_back({std::move(key), std::move(check)});
  return *this;
}

std::vector<OptionInfo> OptionGroup::options() const {
  std::vector<OptionInfo> out;
  Describer::collect(*this, out);
  return out;
}

std::vector<std::pair<std::string, std::vector<std::string>>> OptionGroup::values() const {
  std::vector<std::pair<std::string, std::vector<std::string>>> out;
  Describer::collect_values(*this, out);
  return out;
}

// A regular file or a pipe (a shell's process substitution), of bounded size.
Result<std::string> read_config(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  if (file.get() < 0) return system_error("cannot be opened");
  struct stat status {};
  if (fstat(file.get(), &status) != 0) return system_error("cannot be read");
  if (S_ISDIR(status.st_mode)) return Error{"is a directory, not a configuration file", EISDIR};
  std::string text;
  char buffer[16384];
  while (true) {
    const ssize_t got = read(file.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error("cannot be read");
    if (got == 0) return text;
    text.append(buffer, static_cast<std::size_t>(got));
    if (text.size() > kMaxConfigSize) {
      return Error{"is too large: the most is " + std::to_string(kMaxConfigSize) + " bytes", EFBIG};
    }
  }
}

OptionTable::OptionTable(std::string program, std::string summary, std::string version)
    : program_(std::move(program)), summary_(std::move(summary)), version_(std::move(version)) {
  if (version_.empty()) version_ = program_;
  read_config_ = read_config;
}

OptionTable& OptionTable::without_config_file() {
  config_file_ = false;
  return *this;
}

ParseOutcome OptionTable::usage_error(const std::string& message) const {
  ParseOutcome outcome;
  outcome.exit_code = kExitUsage;
  outcome.err = program_ + ": " + message + " (" + program_ + " --help lists the flags)\n";
  return outcome;
}

ParseOutcome OptionTable::parse(int argc, const char* const* argv) {
  std::vector<std::string> args;
  for (int i = 1; i < argc; ++i)
    args.emplace_back(argv[i]);
  ParseOutcome outcome = evaluate(args);
  std::fputs(outcome.out.c_str(), stdout);
  if (std::fflush(stdout) != 0 && outcome.exit_code == 0) outcome.exit_code = kExitConfig;
  std::fputs(outcome.err.c_str(), stderr);
  return outcome;
}

std::optional<Error> OptionTable::apply_flag(Entry& entry, std::span<const std::string> values) {
  for (const std::string& value : values) {
    if (auto staged = entry.binding->stage(value); !staged) {
      entry.binding->discard();
      return Error{entry.info.flag + ": " + staged.error().message};
    }
  }
  entry.binding->commit();
  entry.origin = Origin::flag;
  return std::nullopt;
}

ParseOutcome OptionTable::evaluate(std::span<const std::string> args) {
  std::vector<Entry*> flagged;
  Entry* command = nullptr;
  const std::function<void(OptionGroup&)> collect = [&](OptionGroup& group) {
    for (const auto& entry : group.entries_) {
      if (entry->section) collect(*entry->section);
      if (entry->info.flag.empty()) continue;
      if (entry->info.command) command = entry.get();
      flagged.push_back(entry.get());
    }
  };
  collect(*this);
  std::vector<FlagForm> forms;
  for (const Entry* entry : flagged) {
    const OptionInfo& info = entry->info;
    const bool a_switch = info.command || (info.json == JsonType::boolean && !info.list);
    forms.push_back({info.flag, a_switch ? "" : info.value, info.list && !info.command});
  }
  const std::size_t first_builtin = forms.size();
  for (FlagForm& form : builtin_forms(config_file_))
    forms.push_back(std::move(form));

  const auto line = read_command_line(forms, args);
  if (!line) return usage_error(line.error().message);
  const auto given = [&](Builtin which) {
    const std::size_t index = first_builtin + which;
    return index < line->values.size() && !line->values[index].empty();
  };
  ParseOutcome outcome;
  outcome.exit_code = 0;
  if (given(kHelp)) return outcome.out = help(), outcome;
  if (given(kVersion)) return outcome.out = version_ + "\n", outcome;
  if (given(kSchema)) return outcome.out = schema(), outcome;
  if (given(kDefaults)) return outcome.out = default_config(), outcome;

  bool command_given = false;
  for (std::size_t i = 0; i < flagged.size(); ++i) {
    if (line->values[i].empty()) continue;
    if (flagged[i] == command) {
      command_given = true;
      continue;
    }
    if (const auto error = apply_flag(*flagged[i], line->values[i])) {
      return usage_error(error->message);
    }
  }
  if (command_given) {
    const std::string form = command->info.flag + " -- CMD ARGS...";
    if (!line->command || line->command->empty()) {
      return usage_error(command->info.flag + " needs a command: " + form);
    }
    if (const auto error = apply_flag(*command, *line->command)) {
      return usage_error(error->message);
    }
  } else if (line->command) {
    return usage_error(command ? "-- has to follow " + command->info.flag
                               : std::string("unexpected argument \"--\""));
  }

  std::string text;
  std::string name;
  if (given(kConfig)) {
    name = line->values[first_builtin + kConfig].front();
    auto read = read_config_(name);
    if (!read) {
      outcome.exit_code = kExitConfig;
      outcome.err = printable(name) + ": " + read.error().message + "\n";
      return outcome;
    }
    text = *std::move(read);
  }
  outcome = finish(text, name, given(kConfig));
  outcome.config_file = name;
  if (!outcome.exit_code && given(kCheck)) {
    if (const auto good = check_files_ ? check_files_() : Result<void>(); !good) {
      outcome.exit_code = kExitConfig;
      outcome.err = program_ + ": " + good.error().message + "\n";
      return outcome;
    }
    outcome.exit_code = 0;
    outcome.out = "configuration ok\n";
    if (remarks_) {
      for (const auto& remark : remarks_(text, name)) {
        outcome.err += "warning: " + remark + "\n";
      }
    }
  }
  return outcome;
}

OptionTable& OptionTable::read_config_with(
    std::function<Result<std::string>(const std::string& path)> read) {
  read_config_ = std::move(read);
  return *this;
}

OptionTable& OptionTable::remark_with(
    std::function<std::vector<std::string>(std::string_view, const std::string&)> remarks) {
  remarks_ = std::move(remarks);
  return *this;
}

OptionTable& OptionTable::check_files_with(std::function<Result<void>()> check) {
  check_files_ = std::move(check);
  return *this;
}

ParseOutcome OptionTable::evaluate_text(std::string_view text, const std::string& name) {
  return finish(text, name, true);
}

ParseOutcome OptionTable::finish(std::string_view text, const std::string& name, bool have_file) {
  std::vector<ConfigFault> faults;
  ConfigReader reader(faults);
  if (have_file) {
    JsonDocument document = parse_json(text);
    for (JsonFault& fault : document.faults) {
      faults.push_back({Origin::file, fault.offset, "syntax", std::move(fault.message)});
    }
    if (faults.empty()) {
      reader.apply(*this, document.root, "", true);
      if (document.root.kind == JsonKind::object) {
        reader.require(*this, "", Origin::file, document.root.offset);
      }
    }
  } else {
    reader.require(*this, "", Origin::none, 0);
  }
  if (faults.empty()) reader.run_checks(*this, "");
  if (faults.empty()) return {};

  std::stable_sort(faults.begin(), faults.end(), [](const ConfigFault& a, const ConfigFault& b) {
    const bool a_file = a.origin == Origin::file;
    const bool b_file = b.origin == Origin::file;
    return a_file != b_file ? a_file : a.offset < b.offset;
  });
  const auto say = [](const ConfigFault& fault) {
    return fault.where.empty() ? fault.message : fault.where + ": " + fault.message;
  };
  if (faults.front().origin != Origin::file) return usage_error(say(faults.front()));

  ParseOutcome outcome;
  outcome.exit_code = kExitConfig;
  for (std::size_t i = 0; i < std::min(faults.size(), kMaxConfigFaults); ++i) {
    if (faults[i].origin != Origin::file) {
      outcome.err += program_ + ": " + say(faults[i]) + "\n";
      continue;
    }
    const JsonPosition at = locate(text, faults[i].offset);
    outcome.err += printable(name) + ":" + std::to_string(at.line) + ":" +
                   std::to_string(at.column) + ": " + say(faults[i]) + "\n";
  }
  if (faults.size() > kMaxConfigFaults) {
    outcome.err += printable(name) + ": " + std::to_string(faults.size() - kMaxConfigFaults) +
                   " more errors\n";
  }
  return outcome;
}

}  // namespace causeway
