// SPDX-License-Identifier: Apache-2.0
#include "common/os/activation.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string_view>
#include <utility>

#include "common/os/environment.hpp"

namespace causeway {

namespace {

constexpr int kFirst = 3;  // SD_LISTEN_FDS_START
constexpr std::int64_t kMost = 64;

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> parts;
  for (;;) {
    const auto colon = text.find(':');
    parts.emplace_back(text.substr(0, colon));
    if (colon == std::string_view::npos) {
      return parts;
    }
    text.remove_prefix(colon + 1);
  }
}

Result<UniqueFd> take(int fd) {
  const std::string what = "inherited descriptor " + std::to_string(fd);
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    return system_error(what);
  }
  UniqueFd owned(fd);
  if (!S_ISSOCK(info.st_mode)) {
    return Error{what + ": not a socket", ENOTSOCK};
  }
  const int flags = ::fcntl(fd, F_GETFD);
  if (flags < 0 || ::fcntl(fd, F_SETFD, flags | FD_CLOEXEC) != 0) {
    return system_error(what);
  }
  return owned;
}

}  // namespace

Result<std::vector<InheritedSocket>> take_inherited_sockets() {
  const auto pid = take_variable("LISTEN_PID");
  const auto count_text = take_variable("LISTEN_FDS");
  const auto names_text = take_variable("LISTEN_FDNAMES");
  std::vector<InheritedSocket> sockets;
  // Meant for a parent of ours that did not unset them: then 3 is some other descriptor.
  if (!pid || !count_text || decimal(*pid) != ::getpid()) {
    return sockets;
  }
  const auto count = decimal(*count_text);
  if (!count || *count < 1 || *count > kMost) {
    return Error{"LISTEN_FDS: not a number from 1 to " + std::to_string(kMost), EINVAL};
  }
  std::vector<std::string> names(static_cast<std::size_t>(*count), "unknown");
  if (names_text) {
    names = split(*names_text);
    if (names.size() != static_cast<std::size_t>(*count)) {
      return Error{"LISTEN_FDNAMES: " + std::to_string(names.size()) + " names for " +
                       std::to_string(*count) + " descriptors",
                   EINVAL};
    }
  }
  for (auto& name : names) {
    auto fd = take(kFirst + static_cast<int>(sockets.size()));
    if (!fd) {
      return fd.error();
    }
    sockets.push_back({std::move(*fd), std::move(name)});
  }
  return sockets;
}

}  // namespace causeway
