// SPDX-License-Identifier: Apache-2.0
// SIGHUP: what the new configuration changes of the running one.
#include <algorithm>
#include <utility>

#include "host/guest.hpp"

namespace causeway::host {

void Helper::reload(const std::vector<std::string>& args) {
  notifier_.reloading();
  const auto refused = [this](const std::string& why) {
    log::error("reload refused, the running configuration stays: {}", why);
    {
      const std::lock_guard lock(mutex_);
      last_reload_error_ = why;
    }
    notifier_.ready();
  };
  auto text = broker_.reload();
  if (!text) {
    refused(text.error().message);
    return;
  }
  // The broker has read and checked it, and both sides have to see the same text.
  ConfigParser parser;
  parser.table().read_config_with([&text](const std::string&) { return *text; });
  const auto outcome = parser.table().evaluate(args);
  if (outcome.exit_code) {
    refused(outcome.err.substr(0, outcome.err.find('\n')));
    return;
  }
  change(std::move(parser).finish());
  {
    const std::lock_guard lock(mutex_);
    last_reload_error_.clear();
  }
  notifier_.ready();
}

void Helper::change(const HostConfig& fresh) {
  if (fresh.listen != config_.listen || fresh.instance != config_.instance ||
      fresh.program.admin != config_.program.admin) {
    log::warn("listen, instance and admin take effect after a restart");
  }
  std::map<std::string, const GuestConfig*> wanted;
  for (const auto& config : fresh.guests) {
    wanted[config.name] = &config;
  }
  std::vector<std::string> names;
  for (const auto& [name, guest] : guests_) {
    names.push_back(name);
  }
  unsigned changed = 0;
  unsigned removed = 0;
  for (const auto& name : names) {
    Guest& guest = *guests_.at(name);
    const auto found = wanted.find(name);
    if (guest.number != 0) {
      const auto again = unknown_guest(fresh.unknown, guest.number, *guest.config.cid);
      const bool named =
          std::any_of(fresh.guests.begin(), fresh.guests.end(),
                      [&](const auto& each) { return each.cid == guest.config.cid; });
      if (!named && again && guest.number <= fresh.unknown.limit &&
          same_guest(guest.config, *again)) {
        continue;
      }
    }
    if (found == wanted.end() || !same_link(guest.config, *found->second)) {
      close_guest(name, {});
      ++removed;
      continue;
    }
    const std::lock_guard lock(mutex_);
    guest.config = *found->second;
    guest.session.set_offer(offer_of(guest.config));
    ++changed;
  }
  {
    const std::lock_guard lock(mutex_);
    failed_.clear();
    config_.guests = fresh.guests;
    config_.unknown = fresh.unknown;
  }
  std::vector<std::string> added;
  for (const auto& config : config_.guests) {
    if (guests_.count(config.name) != 0) {
      continue;
    }
    if (auto opened = open_guest(config); !opened) {
      log::error("guest '{}': {}", config.name, opened.error().message);
      const std::lock_guard lock(mutex_);
      failed_[config.name] = opened.error().message;
    } else {
      added.push_back(config.name);
    }
  }
  if (auto applied = broker_.rules(); !applied) {
    log_rules(applied);
    for (const auto& name : added) {  // the rules that stay do not know them
      close_guest(name, applied.error().message);
    }
  }
  if (auto published = publish(); !published) {
    log::error("publish: {}", published.error().message);
  }
  log::info("reloaded: {} guests closed, {} opened, {} kept", removed, added.size(), changed);
}

}  // namespace causeway::host
