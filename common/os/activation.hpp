// SPDX-License-Identifier: Apache-2.0
// Sockets that a service manager opened for us (sd_listen_fds(3), systemd.socket(5)).
#pragma once

#include <string>
#include <vector>

#include "common/os/unique_fd.hpp"
#include "common/result.hpp"

namespace causeway {

struct InheritedSocket {
  UniqueFd fd;       // close-on-exec
  std::string name;  // FileDescriptorName= of the unit; "unknown" when the manager gave no names
};

// Takes the descriptors that LISTEN_FDS counts from 3 on, when LISTEN_PID is this process, and
// unsets LISTEN_FDS, LISTEN_PID and LISTEN_FDNAMES in any case. Nothing inherited: an empty list.
// An error: a count that is no number from 1 to 64, other names than descriptors, a descriptor that
// is not open or no socket; those taken so far are closed. Call it once, before anything else
// opens a descriptor and before threads exist.
Result<std::vector<InheritedSocket>> take_inherited_sockets();

}  // namespace causeway
