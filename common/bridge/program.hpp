// SPDX-License-Identifier: Apache-2.0
// What helper and framer are made of: the same TAP, session, lanes and admin endpoint. The two
// programs differ in who listens, in their option tables, and in what they set up around the TAP.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/bridge/session.hpp"
#include "common/bridge/tap.hpp"
#include "common/config/option_table.hpp"
#include "common/log.hpp"
#include "common/net/address.hpp"

namespace causeway::bridge {

struct ProgramConfig {
  std::optional<std::string> tap;  // required: set once the options are read
  std::vector<Cidr> addresses;
  std::optional<std::string> mac;
  std::uint32_t mtu = 1500;
  std::uint32_t txqueuelen = 4096;
  std::uint32_t max_frame = proto::kMaxFrame;
  std::optional<Size> max_write;
  Size vsock_buffer{8 * 1024 * 1024};
  WireChoice wire = WireChoice::automatic;
  std::uint32_t lanes = 1;
  bool offload = true;
  std::uint32_t busy_poll = 50;
  Duration keepalive{std::chrono::seconds{5}};
  std::optional<Address> admin;
  log::Level log_level = log::Level::info;
};

// The options that both programs have, bound to `config`.
void add_program_options(OptionTable& table, ProgramConfig& config);

// The text of --version.
std::string version_text(const std::string& program);

struct Role {
  std::string program;  // "causeway-host"
  std::string role;     // "host", for the derived MAC
  std::optional<Address> listen;
  std::optional<Address> connect;
  std::optional<IpAddress> gateway;  // default route to set
};

// Sets up, runs until SIGTERM or SIGINT, cleans up. Returns the exit code; on a failed set-up it
// has written one line to stderr and returns 1.
int run_program(const Role& role, const ProgramConfig& config);

}  // namespace causeway::bridge
