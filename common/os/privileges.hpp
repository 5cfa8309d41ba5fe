// SPDX-License-Identifier: Apache-2.0
// Giving up what a process may do, for good. All of it before threads exist: capabilities belong to
// threads, and only the calling one changes.
//
// capset(2) and prctl(2) as they are: the three calls do not earn a library (libcap, libcap-ng) in
// a process on a trust boundary.
#pragma once

#include <sys/types.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/result.hpp"

namespace causeway {

struct Identity {
  std::string name;  // for messages
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;  // supplementary ones, in full
};

// For a process that touches a guest's bytes. As root: becomes `identity` (required then, and not
// root). In any case: empties every capability set (effective, permitted, inheritable, ambient, and
// the bounding set where CAP_SETPCAP allows it: without it no-new-privileges has the same effect),
// sets no-new-privileges, and makes the process undumpable, so that others of the same user can
// neither trace it nor read its memory. Checked afterwards: no capability is left and root cannot
// be had back. On an error the process may be in between: end it.
Result<void> drop_privileges(const std::optional<Identity>& identity);

// For a process that needs a few: keeps those of `capabilities` (CAP_... of linux/capability.h)
// that it has and drops all others from every set. What is kept is inheritable and ambient as well,
// so that a child program (nft) has it, whatever the user. Sets no-new-privileges. The user stays.
Result<void> keep_only(std::span<const int> capabilities);

}  // namespace causeway
