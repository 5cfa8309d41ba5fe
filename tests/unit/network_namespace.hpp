// SPDX-License-Identifier: Apache-2.0
// A network namespace of a test's own, with a TAP in it: a thread that leaves the machine's
// namespace, so that nothing is left behind when it ends.
#pragma once

#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <future>
#include <string>

#include "common/os/unique_fd.hpp"

namespace causeway::test {

// A TAP without anyone to read it; it goes with the descriptor. Invalid when it cannot be made.
inline UniqueFd make_tap(const std::string& name) {
  UniqueFd tap(::open("/dev/net/tun", O_RDWR | O_CLOEXEC));
  ifreq request{};
  name.copy(request.ifr_name, IFNAMSIZ - 1);
  request.ifr_flags = IFF_TAP | IFF_NO_PI;
  if (tap.valid() && ::ioctl(tap.get(), TUNSETIFF, &request) != 0) tap.reset();
  return tap;
}

// Runs `body` in a fresh network namespace; a failed REQUIRE comes out of it as from any test.
inline void in_network_namespace(const std::function<void()>& body) {
  std::async(std::launch::async, [&] {
    if (::unshare(CLONE_NEWNET) == 0) body();
  }).get();
}

// For doctest::skip(): whether this machine lets us make namespaces and TAPs.
inline bool can_make_networks() {
  static const bool can = [] {
    bool made = false;
    in_network_namespace([&] { made = make_tap("probe").valid(); });
    return made;
  }();
  return can;
}

}  // namespace causeway::test
