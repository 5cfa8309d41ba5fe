// SPDX-License-Identifier: Apache-2.0
#include "common/os/notify.hpp"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <ctime>

#include "common/os/environment.hpp"

namespace causeway {

namespace {

constexpr std::size_t kMaxStatus = 512;
// A manager that does not read holds us up no longer than this.
constexpr timeval kSendLimit{.tv_sec = 1, .tv_usec = 0};

}  // namespace

Notifier Notifier::from_environment() {
  Notifier notifier;
  const auto path = take_variable("NOTIFY_SOCKET");
  const auto microseconds = take_variable("WATCHDOG_USEC");
  const auto pid = take_variable("WATCHDOG_PID");
  // Newer managers may name a vsock: address as well. The rest of the kinds is not for us.
  if (!path || path->size() < 2 || (path->front() != '/' && path->front() != '@')) {
    return notifier;
  }
  notifier.path_ = *path;
  notifier.socket_ = notifier.connect();
  const bool for_us = !pid || decimal(*pid) == ::getpid();
  if (notifier.active() && microseconds && for_us) {
    if (const auto limit = decimal(*microseconds); limit && *limit > 0) {
      notifier.interval_ = std::chrono::microseconds{std::max<std::int64_t>(1, *limit / 2)};
    }
  }
  return notifier;
}

UniqueFd Notifier::connect() const {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path_.size() >= sizeof address.sun_path) {
    return {};
  }
  std::copy(path_.begin(), path_.end(), address.sun_path);
  std::size_t length = offsetof(sockaddr_un, sun_path) + path_.size();
  if (path_.front() == '@') {
    address.sun_path[0] = '\0';  // an abstract name has no terminator: its length ends it
  } else {
    ++length;
  }
  UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  // The kernel's interface: every kind of address goes through sockaddr*.
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  if (!socket.valid() || ::connect(socket.get(), generic, static_cast<socklen_t>(length)) != 0) {
    return {};
  }
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &kSendLimit, sizeof kSendLimit);
  return socket;
}

void Notifier::send(std::string_view message, int flags) {
  if (!active()) {
    return;
  }
  for (bool again = true;;) {
    if (::send(socket_.get(), message.data(), message.size(), MSG_NOSIGNAL | flags) >= 0) {
      return;
    }
    if (errno == EINTR) {
      continue;
    }
    // A manager that made its socket anew leaves the connected one dead.
    if ((errno != ECONNREFUSED && errno != ENOTCONN) || !again) {
      return;
    }
    again = false;
    UniqueFd fresh = connect();
    if (!fresh.valid()) {
      return;  // the old one stays: the next call tries again
    }
    socket_ = std::move(fresh);
  }
}

void Notifier::ready() {
  send("READY=1", 0);
}

void Notifier::stopping() {
  send("STOPPING=1", 0);
}

// These two are not waited for: there will be a next one.
void Notifier::watchdog() {
  send("WATCHDOG=1", MSG_DONTWAIT);
}

void Notifier::status(std::string_view text) {
  std::string line = "STATUS=";
  line += text.substr(0, kMaxStatus);
  std::replace_if(
      line.begin(), line.end(), [](char c) { return c >= 0 && (c < ' ' || c == '\x7f'); }, ' ');
  send(line, MSG_DONTWAIT);
}

void Notifier::reloading() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const std::int64_t microseconds =
      std::int64_t{now.tv_sec} * 1'000'000 + std::int64_t{now.tv_nsec} / 1'000;
  send("RELOADING=1\nMONOTONIC_USEC=" + std::to_string(microseconds), 0);
}

}  // namespace causeway
