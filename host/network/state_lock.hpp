// SPDX-License-Identifier: Apache-2.0
// A lock file: held by flock() from take() to destruction, and removed with it, so that nothing is
// left behind. The kernel lets go of it however the process ends; a child that inherits the
// descriptor would hold it too, so it is close-on-exec and taken after the last fork().
#pragma once

#include <chrono>
#include <filesystem>

#include "common/os/unique_fd.hpp"
#include "common/result.hpp"

namespace causeway::host {

class StateLock {
 public:
  // Waits at most `patience`; the error names the process that has it.
  static Result<StateLock> take(const std::filesystem::path& path,
                                std::chrono::milliseconds patience);
  // Whether somebody holds it now.
  static bool held(const std::filesystem::path& path);

  StateLock(StateLock&&) noexcept = default;
  StateLock& operator=(StateLock&&) = delete;
  ~StateLock();

 private:
  StateLock(UniqueFd fd, std::filesystem::path path);
  UniqueFd fd_;
  std::filesystem::path path_;
};

}  // namespace causeway::host
