// SPDX-License-Identifier: Apache-2.0
// causeway-host: the helper. TAP on the untrusted host to the wire.
#include "common/bridge/program.hpp"

int main(int argc, char** argv) {
  using namespace causeway;
  bridge::ProgramConfig config;
  std::optional<Address> listen;
  OptionTable table("causeway-host",
                    "Carries Ethernet frames between a TAP on the host and a guest's framer.",
                    bridge::version_text("causeway-host"));
  table.add("listen", listen,
            {.doc = "Where the framer connects: vsock:any:PORT, unix:/PATH, tcp:IP:PORT, "
                    "hvsock:/PATH:PORT or fd:N.",
             .required = true});
  bridge::add_program_options(table, config);
  const auto outcome = table.parse(argc, argv);
  if (outcome.exit_code) {
    return *outcome.exit_code;
  }
  bridge::Role role;
  role.program = "causeway-host";
  role.role = "host";
  role.listen = listen;
  return bridge::run_program(role, config);
}
