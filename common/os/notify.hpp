// SPDX-License-Identifier: Apache-2.0
// What a service manager wants to hear (sd_notify(3)): ready, reloading, stopping, a status line,
// a sign of life. Without a manager every call does nothing.
//
// The protocol is one datagram of NAME=VALUE lines, stable and documented for others to implement.
// It is written here rather than taken from libsystemd, which would bring its own dependencies
// (lz4, zstd, lzma, libgcrypt, libcap) into a process on a trust boundary for the sake of a send().
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "common/os/unique_fd.hpp"

namespace causeway {

class Notifier {
 public:
  Notifier() = default;

  // Reads NOTIFY_SOCKET (a path or @abstract), WATCHDOG_USEC and WATCHDOG_PID and unsets them, so
  // that no child speaks in our name. The socket is connected here: it still works once privileges
  // are gone or the path cannot be reached. Call it before threads exist (it changes the
  // environment), in the process that the manager started: with NotifyAccess=main only that one is
  // listened to. What is there but cannot be used counts as no manager.
  static Notifier from_environment();

  [[nodiscard]] bool active() const { return socket_.valid(); }

  void ready();
  void status(std::string_view text);  // one line; control characters become spaces
  // Before a reload; ready() ends it. Carries the time that Type=notify-reload asks for.
  void reloading();
  void stopping();
  void watchdog();

  // How often watchdog() should be called: half the time after which the manager gives up on us.
  // None: nobody watches.
  [[nodiscard]] std::optional<std::chrono::microseconds> watchdog_interval() const {
    return interval_;
  }

 private:
  [[nodiscard]] UniqueFd connect() const;
  void send(std::string_view message, int flags);

  std::string path_;
  UniqueFd socket_;
  std::optional<std::chrono::microseconds> interval_;
};

}  // namespace causeway
