// SPDX-License-Identifier: Apache-2.0
// Logging: spdlog behind four names. Lines go to stderr as `LEVEL message`, with the journal's
// `<N>` priority in front where systemd reads them. Only mains and the control plane log; library
// code returns errors, and nothing on the data path logs at all.
#pragma once

#include <spdlog/spdlog.h>

#include <chrono>
#include <cstdint>
#include <string>

namespace causeway::log {

using spdlog::debug;
using spdlog::error;
using spdlog::info;
using spdlog::warn;

enum class Level : std::uint8_t { debug, info, warning, error };

// Lines that a peer can cause again and again share a budget: ten at once, then one a second. Not
// for more than one thread.
class LogBudget {
 public:
  // True when a line may be written now.
  bool take();
  // "", or how many lines were left out since the last one that was written.
  std::string suppressed_text();

 private:
  static constexpr unsigned kBurst = 10;
  unsigned left_ = kBurst;
  std::uint64_t suppressed_ = 0;
  std::chrono::steady_clock::time_point refilled_ = std::chrono::steady_clock::now();
};

// Once, at the start of main().
void init(const char* program, Level level);

}  // namespace causeway::log

namespace causeway {
using log::LogBudget;
}  // namespace causeway
