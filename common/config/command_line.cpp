// SPDX-License-Identifier: Apache-2.0
#include "common/config/command_line.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "common/config/text.hpp"

namespace causeway {
namespace {

// The long name of a form, as messages show it.
std::string shown(const FlagForm& form) {
  const std::size_t comma = form.names.rfind(',');
  return comma == std::string::npos ? form.names : form.names.substr(comma + 1);
}

std::vector<std::string> flag_names(std::span<const FlagForm> forms) {
  std::vector<std::string> names;
  for (const FlagForm& form : forms) {
    if (form.names.starts_with('-')) names.push_back(shown(form));
  }
  return names;
}

Error unknown_argument(const std::string& argument, std::span<const FlagForm> forms) {
  if (!argument.starts_with('-')) return Error{"unexpected argument " + in_quotes(argument)};
  const std::string name = argument.substr(0, argument.find('='));
  const auto names = flag_names(forms);
  const std::string near = nearest(name, names);
  return Error{"unknown flag " + printable(name) +
               (near.empty() ? "" : "; did you mean " + near + "?")};
}

// CLI11 reads "--flag=" as a flag without a value, and takes the next argument for it. Such an
// argument is split here into the flag and an empty value.
Result<std::vector<std::string>> split_empty_values(std::span<const FlagForm> forms,
                                                    std::span<const std::string> args) {
  std::vector<std::string> out;
  for (const std::string& arg : args) {
    out.push_back(arg);
    if (!arg.starts_with("--") || arg.find('=') != arg.size() - 1) continue;
    out.back().pop_back();
    for (const FlagForm& form : forms) {
      if (shown(form) != out.back()) continue;
      if (form.value.empty()) return Error{shown(form) + " takes no empty value"};
      out.emplace_back();
      break;
    }
  }
  return out;
}

}  // namespace

Result<CommandLine> read_command_line(std::span<const FlagForm> forms,
                                      std::span<const std::string> args) {
  CommandLine line;
  line.values.resize(forms.size());
  const auto dashes = std::find(args.begin(), args.end(), "--");
  if (dashes != args.end()) line.command.emplace(dashes + 1, args.end());

  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  std::vector<CLI::Option*> options;
  // CLI11 refuses names that its own grammar has no room for; that is a fault of the caller and
  // leaves as an exception.
  for (std::size_t i = 0; i < forms.size(); ++i) {
    if (forms[i].value.empty()) {
      options.push_back(app.add_flag(forms[i].names, line.values[i]));
    } else {
      options.push_back(app.add_option(forms[i].names, line.values[i])->allow_extra_args(false));
    }
  }
  try {
    auto ordered = split_empty_values(forms, std::span(args.begin(), dashes));
    if (!ordered) return ordered.error();
    std::reverse(ordered->begin(), ordered->end());  // the order that CLI11 takes them in
    app.parse(*std::move(ordered));
  } catch (const CLI::ArgumentMismatch& error) {
    // The message starts with the option's name.
    const std::string what = error.what();
    for (const FlagForm& form : forms) {
      if (!what.starts_with(shown(form) + ":")) continue;
      return Error{shown(form) + " needs a value: " + shown(form) + " " + form.value};
    }
    return Error{printable(what)};
  } catch (const CLI::ParseError& error) {
    return Error{printable(error.what())};
  }
  if (const auto extra = app.remaining(); !extra.empty()) {
    return unknown_argument(extra.front(), forms);
  }
  for (std::size_t i = 0; i < forms.size(); ++i) {
    // CLI11 stores an empty value as nothing at all.
    if (options[i]->count() > 0) line.values[i] = options[i]->results();
    if (!forms[i].repeatable && line.values[i].size() > 1) {
      return Error{shown(forms[i]) + " is given more than once"};
    }
  }
  return line;
}

}  // namespace causeway
