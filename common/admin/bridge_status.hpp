// SPDX-License-Identifier: Apache-2.0
// GET /status of helper and framer: one JSON document of everything that is known and counted.
#pragma once

#include <chrono>
#include <string>

#include "common/bridge/session.hpp"
#include "common/bridge/tap.hpp"
#include "common/net/netlink.hpp"

namespace causeway::admin {

class BridgeStatus {
 public:
  // Borrows all of them; render() is called on the admin threads, one at a time.
  BridgeStatus(std::string program, const bridge::Tap& tap, const bridge::Session& session,
               net::Netlink netlink);
  std::string render();

 private:
  std::string program_;
  const bridge::Tap& tap_;
  const bridge::Session& session_;
  std::mutex mutex_;  // two admin threads, one netlink socket
  net::Netlink netlink_;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

}  // namespace causeway::admin
