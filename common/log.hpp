// SPDX-License-Identifier: Apache-2.0
// Logging: spdlog behind four names. Lines go to stderr as `LEVEL message`, with the journal's
// `<N>` priority in front where systemd reads them. Only mains and the control plane log; library
// code returns errors, and nothing on the data path logs at all.
#pragma once

#include <spdlog/spdlog.h>

#include <cstdint>

namespace causeway::log {

using spdlog::debug;
using spdlog::error;
using spdlog::info;
using spdlog::warn;

enum class Level : std::uint8_t { debug, info, warning, error };

// Once, at the start of main().
void init(const char* program, Level level);

}  // namespace causeway::log
