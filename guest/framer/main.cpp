// SPDX-License-Identifier: Apache-2.0
// causeway-guest: the framer. TAP in the guest to the wire.
//
// The guest's network is its own configuration's; what the helper offers is taken only where that
// says `auto`, and within what it pins (offer.hpp). With --exec an application runs under it once
// the network is there, as under the first process of a system (supervise.hpp).
#include <csignal>
#include <exception>

#include "guest/framer/framer.hpp"

int main(int argc, char** argv) {
  using namespace causeway;
  guest::FramerConfig config;
  OptionTable table("causeway-guest",
                    "Carries Ethernet frames between a TAP in the guest and the host's helper.",
                    bridge::version_text("causeway-guest"));
  guest::add_framer_options(table, config);
  const auto outcome = table.parse(argc, argv);
  if (outcome.exit_code) {
    return *outcome.exit_code;
  }
  log::init("causeway-guest", config.program.log_level);
  std::signal(SIGPIPE, SIG_IGN);
  try {
    return guest::run_framer(config);
  } catch (const std::exception& error) {
    return bridge::fail("causeway-guest", Error{error.what()});
  }
}
