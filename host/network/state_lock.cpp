// SPDX-License-Identifier: Apache-2.0
#include "host/network/state_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <string>
#include <thread>
#include <utility>

namespace causeway::host {
namespace {

constexpr std::chrono::milliseconds kPause{20};

// The holder removes the file before it lets go, so the lock counts only if the path still leads
// to the file that was locked.
bool is_current(int fd, const std::filesystem::path& path) {
  struct stat locked {};
  struct stat now {};
  return ::fstat(fd, &locked) == 0 && ::stat(path.c_str(), &now) == 0 &&
         locked.st_ino == now.st_ino && locked.st_dev == now.st_dev;
}

std::string holder(int fd) {
  std::array<char, 16> text{};
  const ssize_t size = ::pread(fd, text.data(), text.size(), 0);
  if (size <= 0) return "another process";
  return "process " + std::string(text.data(), static_cast<std::size_t>(size));
}

}  // namespace

StateLock::StateLock(UniqueFd fd, std::filesystem::path path)
    : fd_(std::move(fd)), path_(std::move(path)) {}

StateLock::~StateLock() {
  if (fd_.valid()) ::unlink(path_.c_str());
}

Result<StateLock> StateLock::take(const std::filesystem::path& path,
                                  std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (true) {
    UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd.valid()) return system_error("cannot open " + path.string());
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) {
      if (!is_current(fd.get(), path)) continue;
      const std::string pid = std::to_string(::getpid());
      // For the message above only: a full disk is no reason to fail.
      if (::ftruncate(fd.get(), 0) != 0 || ::pwrite(fd.get(), pid.data(), pid.size(), 0) < 0) {
      }
      return StateLock(std::move(fd), path);
    }
    if (errno != EWOULDBLOCK && errno != EINTR) return system_error("cannot lock " + path.string());
    if (std::chrono::steady_clock::now() >= deadline) {
      return Error{path.string() + " is in use by " + holder(fd.get()), EWOULDBLOCK};
    }
    std::this_thread::sleep_for(kPause);
  }
}

bool StateLock::held(const std::filesystem::path& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid()) return false;
  return ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0;  // closing lets go of it again
}

}  // namespace causeway::host
