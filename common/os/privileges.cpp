// SPDX-License-Identifier: Apache-2.0
#include "common/os/privileges.hpp"

#include <grp.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>

namespace causeway {

namespace {

// A set of capabilities: bit N is capability N.
using Bits = std::uint64_t;

constexpr Bits bit(int capability) {
  return Bits{1} << static_cast<unsigned>(capability);
}

struct Sets {
  Bits effective = 0;
  Bits permitted = 0;
  Bits inheritable = 0;
};

using Data = std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3>;

Result<Sets> read_sets() {
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  Data data{};
  if (::syscall(SYS_capget, &header, data.data()) != 0) {
    return system_error("capget");
  }
  const auto join = [&data](auto member) { return Bits{data[1].*member} << 32 | data[0].*member; };
  return Sets{join(&__user_cap_data_struct::effective), join(&__user_cap_data_struct::permitted),
              join(&__user_cap_data_struct::inheritable)};
}

Result<void> write_sets(const Sets& sets) {
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  const auto low = [](Bits bits) { return static_cast<std::uint32_t>(bits); };
  const auto high = [](Bits bits) { return static_cast<std::uint32_t>(bits >> 32); };
  Data data{};
  data[0] = {low(sets.effective), low(sets.permitted), low(sets.inheritable)};
  data[1] = {high(sets.effective), high(sets.permitted), high(sets.inheritable)};
  if (::syscall(SYS_capset, &header, data.data()) != 0) {
    return system_error("capset");
  }
  return {};
}

Result<void> change(const char* what, int option, unsigned long a = 0, unsigned long b = 0) {
  if (::prctl(option, a, b, 0UL, 0UL) != 0) {
    return system_error(what);
  }
  return {};
}

// All but `kept` out of the bounding and ambient sets. The first capability that the kernel does
// not know ends the list.
Result<void> shrink_bounds(Bits kept, bool may_shrink_bounding) {
  for (int capability = 0; capability < 64; ++capability) {
    const int bounded = ::prctl(PR_CAPBSET_READ, capability, 0UL, 0UL, 0UL);
    if (bounded < 0) {
      break;
    }
    if ((kept & bit(capability)) != 0) {
      continue;
    }
    if (bounded == 1 && may_shrink_bounding) {
      if (auto dropped = change("capability bounding set", PR_CAPBSET_DROP,
                                static_cast<unsigned long>(capability));
          !dropped) {
        return dropped;
      }
    }
  }
  return change("ambient capabilities", PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL);
}

Result<void> become(const Identity& identity) {
  const std::string what = "user " + identity.name;
  if (identity.uid == 0 || identity.gid == 0) {
    return Error{what + ": is root, or in root's group: name another one", EINVAL};
  }
  if (::setgroups(identity.groups.size(), identity.groups.data()) != 0 ||
      ::setresgid(identity.gid, identity.gid, identity.gid) != 0 ||
      ::setresuid(identity.uid, identity.uid, identity.uid) != 0) {
    return system_error(what);
  }
  return {};
}

// Nothing is taken on trust: securebits can change what setresuid() does to capabilities.
Result<void> check_dropped() {
  const auto left = read_sets();
  if (!left) {
    return left.error();
  }
  if ((left->effective | left->permitted | left->inheritable) != 0) {
    return Error{"privileges: capabilities are left after all were dropped", EPERM};
  }
  uid_t real = 0;
  uid_t effective = 0;
  uid_t saved = 0;
  if (::getresuid(&real, &effective, &saved) != 0) {
    return system_error("getresuid");
  }
  if (real == 0 || effective == 0 || saved == 0 || ::setresuid(0, 0, 0) == 0) {
    return Error{"privileges: root can be had back after it was given up", EPERM};
  }
  return {};
}

}  // namespace

Result<void> drop_privileges(const std::optional<Identity>& identity) {
  const auto before = read_sets();
  if (!before) {
    return before.error();
  }
  // First, while CAP_SETPCAP is there.
  if (auto done = shrink_bounds(0, (before->effective & bit(CAP_SETPCAP)) != 0); !done) {
    return done;
  }
  if (::getuid() == 0 || ::geteuid() == 0) {
    if (!identity) {
      return Error{"privileges: running as root and no user to become", EINVAL};
    }
    if (auto done = become(*identity); !done) {
      return done;
    }
  }
  if (auto done = write_sets({}); !done) {
    return done;
  }
  if (auto done = change("no-new-privileges", PR_SET_NO_NEW_PRIVS, 1); !done) {
    return done;
  }
  if (auto done = change("PR_SET_DUMPABLE", PR_SET_DUMPABLE, 0); !done) {
    return done;
  }
  return check_dropped();
}

Result<void> keep_only(std::span<const int> capabilities) {
  const auto before = read_sets();
  if (!before) {
    return before.error();
  }
  Bits wanted = 0;
  for (const int capability : capabilities) {
    if (capability < 0 || capability > 63) {
      return Error{"privileges: no capability has the number " + std::to_string(capability),
                   EINVAL};
    }
    wanted |= bit(capability);
  }
  const Bits kept = wanted & before->permitted;
  if (auto done = shrink_bounds(kept, (before->effective & bit(CAP_SETPCAP)) != 0); !done) {
    return done;
  }
  if (auto done = write_sets({kept, kept, kept}); !done) {
    return done;
  }
  for (int capability = 0; capability < 64; ++capability) {
    if ((kept & bit(capability)) != 0) {
      if (auto raised = change("ambient capabilities", PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE,
                               static_cast<unsigned long>(capability));
          !raised) {
        return raised;
      }
    }
  }
  return change("no-new-privileges", PR_SET_NO_NEW_PRIVS, 1);
}

}  // namespace causeway
