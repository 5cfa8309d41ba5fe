// SPDX-License-Identifier: Apache-2.0
#include "guest/framer/supervise.hpp"

#include <fcntl.h>
#include <linux/close_range.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace causeway::guest {

namespace {

constexpr int kFirstOther = 3;  // the descriptors from here on are not inherited
constexpr long kMostDescriptors = 65'536;
constexpr int kExitNotFound = 127;   // as shells have it, POSIX.1 XCU 2.8.2
constexpr int kExitNoProgram = 126;  // found, and cannot be executed
constexpr int kExitSignal = 128;     // and the signal's number

// What posix_spawn(3) wants to know, freed in any case.
class SpawnSettings {
 public:
  SpawnSettings() : code_(posix_spawnattr_init(&attributes_)) {
    sigset_t all;
    sigset_t none;
    sigfillset(&all);
    sigemptyset(&none);
    constexpr short kFlags = POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK;
    then(posix_spawnattr_setflags(&attributes_, kFlags));
    then(posix_spawnattr_setpgroup(&attributes_, 0));
    then(posix_spawnattr_setsigdefault(&attributes_, &all));
    then(posix_spawnattr_setsigmask(&attributes_, &none));
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;
  ~SpawnSettings() { posix_spawnattr_destroy(&attributes_); }
  [[nodiscard]] int code() const { return code_; }
  [[nodiscard]] const posix_spawnattr_t* attributes() const { return &attributes_; }

 private:
  void then(int code) {
    if (code_ == 0) code_ = code;
  }
  posix_spawnattr_t attributes_{};
  int code_;
};

// Our own descriptors are close-on-exec from birth; this catches what we inherited ourselves.
void close_others_on_exec() {
  if (::syscall(SYS_close_range, kFirstOther, ~0U, CLOSE_RANGE_CLOEXEC) == 0) return;
  // Before Linux 5.11, as enclave kernels often are.
  const auto end = static_cast<int>(std::clamp(::sysconf(_SC_OPEN_MAX), 256L, kMostDescriptors));
  for (int fd = kFirstOther; fd < end; ++fd) {
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
}

}  // namespace

Supervisor::Supervisor(asio::io_context& control, std::vector<std::string> command,
                       std::function<void(int exit_code)> on_exit)
    : command_(std::move(command)),
      on_exit_(std::move(on_exit)),
      child_signal_(control),
      signals_(control),
      grace_(control) {}

void Supervisor::take_signals() {
  for (const int signal : kForwardedSignals) {
    signals_.add(signal);
  }
  wait_for_signals();
}

Result<void> Supervisor::start() {
  if (command_.empty() || command_.front().empty()) return Error{"no command to run", ENOENT};
  if (::getpid() != 1 && ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0) {
    return system_error("cannot become the reaper of orphans");
  }
  // Before the application exists, so that not even its immediate end is missed.
  child_signal_.add(SIGCHLD);
  wait_for_children();

  std::vector<char*> arguments;
  for (std::string& word : command_) {
    arguments.push_back(word.data());
  }
  arguments.push_back(nullptr);
  close_others_on_exec();
  // The process has threads: posix_spawn() does in the child only what is safe there, and reports
  // what exec() said.
  const SpawnSettings settings;
  pid_t child = -1;
  const int code = settings.code() != 0
                       ? settings.code()
                       : posix_spawnp(&child, arguments.front(), nullptr, settings.attributes(),
                                      arguments.data(), environ);
  if (code != 0) return system_error("cannot run '" + command_.front() + "'", code);
  child_ = child;
  return {};
}

int Supervisor::start_exit_code(const Error& error) {
  return error.code == ENOENT ? kExitNotFound : kExitNoProgram;
}

void Supervisor::forward(int signal) {
  // It was not reaped yet, so the number is still its own.
  if (running()) ::kill(child_, signal);
}

void Supervisor::kill() {
  if (!running()) return;
  ::kill(-child_, SIGKILL);
  ::kill(child_, SIGKILL);  // it may have left the group
}

void Supervisor::terminate(std::chrono::milliseconds grace) {
  forward(SIGTERM);
  // A second request does not make the grace period longer.
  if (!running() || grace_.expiry() > std::chrono::steady_clock::now()) return;
  grace_.expires_after(grace);
  grace_.async_wait([this](const asio::error_code& error) {
    if (!error) kill();
  });
}

void Supervisor::wait_for_children() {
  child_signal_.async_wait([this](const asio::error_code& error, int) {
    if (error) return;
    wait_for_children();
    reap();
  });
}

// One SIGCHLD may stand for many ends.
void Supervisor::reap() {
  std::optional<int> exit_code;
  while (true) {
    int status = 0;
    const pid_t pid = ::waitpid(-1, &status, WNOHANG);
    if (pid < 0 && errno == EINTR) continue;
    if (pid <= 0) break;
    if (pid == child_) {
      exit_code = WIFSIGNALED(status) ? kExitSignal + WTERMSIG(status) : WEXITSTATUS(status);
    }
  }
  if (!exit_code) return;
  child_ = -1;
  grace_.cancel();
  finish(*exit_code);
}

void Supervisor::wait_for_signals() {
  signals_.async_wait([this](const asio::error_code& error, int signal) {
    if (error) return;
    wait_for_signals();
    on_signal(signal);
  });
}

void Supervisor::on_signal(int signal) {
  if (running()) {
    signal == SIGTERM ? terminate() : forward(signal);
    return;
  }
  const std::array ending{SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  if (std::find(ending.begin(), ending.end(), signal) != ending.end()) {
    finish(kExitSignal + signal);
  }
}

void Supervisor::finish(int exit_code) {
  if (on_exit_) std::exchange(on_exit_, nullptr)(exit_code);
}

}  // namespace causeway::guest
