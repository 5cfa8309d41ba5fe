// SPDX-License-Identifier: Apache-2.0
// The parts of GET /status that helper and framer share: what is known and counted of one bridge.
#pragma once

#include <chrono>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "common/bridge/session.hpp"
#include "common/bridge/tap.hpp"
#include "common/net/netlink.hpp"

namespace causeway::admin {

// {"program", "version", "commit", "pid", "uptime_seconds"}
nlohmann::ordered_json describe_program(const std::string& program,
                                        std::chrono::steady_clock::time_point started);

// Adds "wire", "tap", "session", "counters", "dropped" and "ended". From any thread, but `netlink`
// has to be the caller's alone.
void describe_bridge(nlohmann::ordered_json& json, const bridge::Tap& tap,
                     const bridge::Session& session, net::Netlink& netlink);

}  // namespace causeway::admin
