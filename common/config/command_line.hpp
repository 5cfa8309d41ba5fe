// SPDX-License-Identifier: Apache-2.0
// Theory of operation: splitting argv into flags and values, nothing more.
//
// CLI11 does the splitting (--flag value, --flag=value, -c value, -cvalue); what a value means is
// the option table's business. Everything behind the first "--" is a command and is not looked at.
//
// This is the one file that includes CLI11, which is slow to compile.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/result.hpp"

namespace causeway {

struct FlagForm {
  std::string names;        // "--mtu", "-c,--config", or "command" for a positional argument
  std::string value;        // the value's name, for messages; empty: a switch
  bool repeatable = false;  // a list; the others may be given once
};

struct CommandLine {
  std::vector<std::vector<std::string>> values;     // per form; a bare switch has the value "true"
  std::optional<std::vector<std::string>> command;  // what follows "--"
};

// `args` without the program's name. Errors: one line, without the program's name.
Result<CommandLine> read_command_line(std::span<const FlagForm> forms,
                                      std::span<const std::string> args);

}  // namespace causeway
