// SPDX-License-Identifier: Apache-2.0
// What helper and framer share beside the session itself: the options of one link (a TAP and how
// its frames cross the wire) and of the program around it. What the two do around the TAP differs,
// and is in host/ and guest/framer/.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/bridge/session.hpp"
#include "common/bridge/tap.hpp"
#include "common/config/option_table.hpp"
#include "common/log.hpp"
#include "common/net/address.hpp"
#include "proto/hello.hpp"

namespace causeway::bridge {

inline constexpr int kExitFailure = 1;

// One TAP and the wire behind it.
struct LinkConfig {
  std::optional<std::string> tap;
  std::vector<Cidr> addresses;
  std::optional<std::string> mac;
  std::optional<std::uint32_t> mtu;
  std::uint32_t txqueuelen = 4096;
  std::uint32_t max_frame = proto::kMaxFrame;
  std::optional<Size> max_write;
  Size vsock_buffer{8 * 1024 * 1024};
  WireChoice wire = WireChoice::automatic;
  std::uint32_t lanes = 1;
  bool offload = true;
  std::uint32_t busy_poll = 50;
  Duration keepalive{std::chrono::seconds{5}};
  [[nodiscard]] std::uint32_t frame_mtu() const { return mtu.value_or(proto::kDefaultMtu); }
  friend bool operator==(const LinkConfig&, const LinkConfig&) = default;
};

struct ProgramConfig {
  std::optional<Address> admin;
  log::Level log_level = log::Level::info;
};

// The options that both programs have. `address` is left to the caller: a framer's may be "auto".
void add_link_options(OptionGroup& group, LinkConfig& config);
void add_program_options(OptionTable& table, ProgramConfig& config);

// As the kernel's dev_valid_name() has it.
Result<void> check_interface_name(std::string_view text);
// `role` is "host" or "guest": it goes into the derived MAC. `config` has passed the checks.
TapOptions tap_options(const LinkConfig& config, const std::string& role);
SessionOptions session_options(const LinkConfig& config);

// The text of --version.
std::string version_text(const std::string& program);

// One line on stderr; the exit code.
int fail(const std::string& program, const Error& error);

}  // namespace causeway::bridge
