// SPDX-License-Identifier: Apache-2.0
// Theory of operation: --exec, the application under the framer.
//
// Enclave images have no service manager: the framer is the first process, or all but the first,
// and the application runs below it. So it does what such a process owes: it passes signals on,
// reaps every child that comes to it, the application's orphans included (as PID 1 they are its
// own by birth; elsewhere PR_SET_CHILD_SUBREAPER, prctl(2), brings them), and ends with the
// application's exit code.
//
// The application gets a process group of its own, so that a terminal's Ctrl-C reaches it once, by
// way of the framer, and that a kill takes what it left in its group. Signals that are passed on go
// to the application alone. It starts with default signal dispositions, an empty mask, and
// descriptors 0 to 2.
//
// All of it on the thread of the io_context. SIGCHLD and waitpid(-1) belong to one Supervisor of
// the process; nothing else in it may wait for children.
#pragma once

#include <array>
#include <chrono>
#include <csignal>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/net/asio.hpp"
#include "common/result.hpp"

namespace causeway::guest {

inline constexpr std::array kForwardedSignals{SIGTERM, SIGINT,  SIGHUP,  SIGQUIT,
                                              SIGUSR1, SIGUSR2, SIGWINCH};

class Supervisor {
 public:
  static constexpr std::chrono::seconds kGrace{10};

  // `on_exit` is called once, with the exit code that the framer should end with: the
  // application's, or 128 and the number of the signal that ended it. The Supervisor must outlive
  // the io_context's handlers.
  Supervisor(asio::io_context& control, std::vector<std::string> command,
             std::function<void(int exit_code)> on_exit);

  // Handles the forwarded signals from now on. Before start(), SIGTERM, SIGINT, SIGHUP and SIGQUIT
  // end the wait for it: on_exit is called with 128 and their number. After it they are passed on,
  // and SIGTERM starts the grace period too, as terminate() does.
  void take_signals();

  // Starts the application; its name is looked up in PATH as execvp(3) does. On an error there is
  // none, and on_exit is not called.
  Result<void> start();
  // What to exit with after start() failed: 127 when there is no such program, else 126.
  static int start_exit_code(const Error& error);

  // Without an application, or after its end, these do nothing.
  void forward(int signal);
  void kill();  // SIGKILL, to its whole process group
  // SIGTERM, and kill() when it is still there after `grace`.
  void terminate(std::chrono::milliseconds grace = kGrace);

  [[nodiscard]] bool running() const { return child_ > 0; }
  [[nodiscard]] pid_t pid() const { return child_; }

 private:
  void wait_for_children();
  void reap();
  void wait_for_signals();
  void on_signal(int signal);
  void finish(int exit_code);

  std::vector<std::string> command_;
  std::function<void(int)> on_exit_;
  asio::signal_set child_signal_;
  asio::signal_set signals_;
  asio::steady_timer grace_;
  pid_t child_ = -1;
};

}  // namespace causeway::guest
