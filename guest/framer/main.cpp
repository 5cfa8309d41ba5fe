// SPDX-License-Identifier: Apache-2.0
// causeway-guest: the framer. TAP in the guest to the wire.
#include "common/bridge/program.hpp"

int main(int argc, char** argv) {
  using namespace causeway;
  bridge::ProgramConfig config;
  std::optional<Address> connect;
  std::optional<IpAddress> gateway;
  OptionTable table("causeway-guest",
                    "Carries Ethernet frames between a TAP in the guest and the host's helper.",
                    bridge::version_text("causeway-guest"));
  table.add("connect", connect,
            {.doc = "Where the helper listens: vsock:CID:PORT, unix:/PATH, tcp:IP:PORT or "
                    "hvsock:/PATH:PORT.",
             .required = true});
  bridge::add_program_options(table, config);
  table.add("gateway", gateway, {.doc = "The default route's next hop, through the TAP."});
  const auto outcome = table.parse(argc, argv);
  if (outcome.exit_code) {
    return *outcome.exit_code;
  }
  bridge::Role role;
  role.program = "causeway-guest";
  role.role = "guest";
  role.connect = connect;
  role.gateway = gateway;
  return bridge::run_program(role, config);
}
