// SPDX-License-Identifier: Apache-2.0
// The framer's options, and its life: set-up, the session, what is offered, the application.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/bridge/program.hpp"
#include "common/config/option_table.hpp"
#include "common/net/address.hpp"

namespace causeway::guest {

// `--address`: a fixed one, or `auto` for what the helper offers.
struct AddressChoice {
  std::optional<Cidr> fixed;  // none: auto
};

struct FramerConfig {
  std::optional<Address> connect;
  bridge::LinkConfig link;
  std::vector<AddressChoice> addresses;
  std::vector<Cidr> accept_within;
  std::optional<IpAddress> gateway;
  std::vector<IpAddress> resolvers;
  std::optional<std::string> resolv_conf;
  std::vector<std::string> exec;
  bridge::ProgramConfig program;
};

void add_framer_options(OptionTable& table, FramerConfig& config);

// Sets up, runs until a signal or the end of the application, cleans up. Returns the exit code; on
// a failed set-up it has written one line to stderr and returns 1.
int run_framer(const FramerConfig& config);

}  // namespace causeway::guest
