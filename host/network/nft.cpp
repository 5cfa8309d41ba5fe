// SPDX-License-Identifier: Apache-2.0
#include "host/network/nft.hpp"

#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "common/os/unique_fd.hpp"

namespace causeway::host {
namespace {

constexpr std::size_t kMaxComplaint = 4096;  // bytes of stderr that are looked at
constexpr std::size_t kMaxMessage = 300;

std::optional<std::string> find_nft(const NftOptions& options) {
  for (const std::string& directory : options.directories) {
    std::string path = directory + "/nft";
    if (::access(path.c_str(), X_OK) == 0) return path;
  }
  return std::nullopt;
}

// Files rather than pipes: nothing has to be fed or drained while the program runs.
Result<UniqueFd> memory_file(const std::string& content) {
  UniqueFd fd(::memfd_create("causeway-nft", MFD_CLOEXEC));
  if (!fd.valid()) return system_error("memfd_create");
  std::size_t done = 0;
  while (done < content.size()) {
    const ssize_t size = ::write(fd.get(), content.data() + done, content.size() - done);
    if (size < 0 && errno != EINTR) return system_error("cannot hand the rules to nft");
    if (size > 0) done += static_cast<std::size_t>(size);
  }
  if (::lseek(fd.get(), 0, SEEK_SET) != 0) return system_error("lseek");
  return fd;
}

class SpawnActions {
 public:
  SpawnActions() {
    ::posix_spawn_file_actions_init(&actions_);
    ::posix_spawnattr_init(&attributes_);
  }
  SpawnActions(const SpawnActions&) = delete;
  SpawnActions& operator=(const SpawnActions&) = delete;
  ~SpawnActions() {
    ::posix_spawn_file_actions_destroy(&actions_);
    ::posix_spawnattr_destroy(&attributes_);
  }
  // The caller may have signals blocked or ignored; the program starts without either.
  int prepare(int in, int out) {
    sigset_t none{};
    sigset_t all{};
    sigemptyset(&none);
    sigfillset(&all);
    int code = ::posix_spawn_file_actions_adddup2(&actions_, in, STDIN_FILENO);
    if (code == 0) code = ::posix_spawn_file_actions_adddup2(&actions_, out, STDOUT_FILENO);
    if (code == 0) code = ::posix_spawn_file_actions_adddup2(&actions_, out, STDERR_FILENO);
    if (code == 0) code = ::posix_spawnattr_setsigmask(&attributes_, &none);
    if (code == 0) code = ::posix_spawnattr_setsigdefault(&attributes_, &all);
    if (code == 0) {
      code =
          ::posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    }
    return code;
  }
  Result<pid_t> spawn(const std::string& path) {
    std::string program = path;
    std::string flag = "-f";
    std::string input = "-";
    std::string locale = "LC_ALL=C";
    std::array<char*, 4> arguments{program.data(), flag.data(), input.data(), nullptr};
    std::array<char*, 2> environment{locale.data(), nullptr};
    pid_t pid = 0;
    const int code = ::posix_spawn(&pid, path.c_str(), &actions_, &attributes_, arguments.data(),
                                   environment.data());
    if (code != 0) return system_error("cannot run " + path, code);
    return pid;
  }

 private:
  posix_spawn_file_actions_t actions_{};
  posix_spawnattr_t attributes_{};
};

// The wait status, or nothing when the time was up and the process has been killed.
Result<std::optional<int>> wait_for(pid_t pid, std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  // glibc has pidfd_open() only since 2.36.
  const UniqueFd handle(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  const int open_error = handle.valid() ? 0 : errno;
  bool ended = false;
  while (handle.valid() && !ended) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) break;
    pollfd wanted{handle.get(), POLLIN, 0};
    ended = ::poll(&wanted, 1, static_cast<int>(left.count())) > 0;
  }
  if (!ended) ::kill(pid, SIGKILL);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return system_error("waitpid");
  }
  if (!handle.valid()) return system_error("pidfd_open", open_error);
  if (!ended) return std::optional<int>{};
  return std::optional<int>{status};
}

// nft writes "FILE:LINE:COLUMNS: Error: WHAT", the line, and a marker below it. The first complaint
// counts.
std::string one_line(int fd) {
  std::string text(kMaxComplaint, '\0');
  const ssize_t size = ::pread(fd, text.data(), text.size(), 0);
  text.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  std::string_view rest = text;
  if (const std::size_t at = rest.find("Error: "); at != std::string_view::npos) {
    rest.remove_prefix(at + 7);
  }
  std::string line(rest.substr(0, std::min(rest.find('\n'), kMaxMessage)));
  std::replace_if(
      line.begin(), line.end(), [](unsigned char c) { return c < 0x20 || c > 0x7e; }, '?');
  return line;
}

}  // namespace

Result<void> run_nft(const std::string& script, const NftOptions& options) {
  const auto path = find_nft(options);
  if (!path) {
    std::string places;
    for (const std::string& directory : options.directories) {
      places += (places.empty() ? "" : ", ") + directory;
    }
    return Error{"there is no nft in " + places +
                     ": NAT, publishing over the TAP and egress rules need the package nftables",
                 ENOENT};
  }
  const auto input = memory_file(script);
  if (!input) return input.error();
  const auto output = memory_file({});
  if (!output) return output.error();
  SpawnActions actions;
  if (const int code = actions.prepare(input->get(), output->get()); code != 0) {
    return system_error("posix_spawn", code);
  }
  const auto pid = actions.spawn(*path);
  if (!pid) return pid.error();
  const auto status = wait_for(*pid, options.limit);
  if (!status) return status.error();
  if (!status->has_value()) {
    return Error{*path + " did not end within " + std::to_string(options.limit.count()) +
                     " ms and was killed",
                 ETIMEDOUT};
  }
  if (WIFEXITED(**status) && WEXITSTATUS(**status) == 0) return {};
  std::string message = *path + ": ";
  const std::string complaint = one_line(output->get());
  if (!complaint.empty()) {
    message += complaint;
  } else if (WIFSIGNALED(**status)) {
    message += "ended by signal " + std::to_string(WTERMSIG(**status));
  } else {
    message += "ended with code " + std::to_string(WEXITSTATUS(**status));
  }
  if (complaint.find("Operation not permitted") != std::string::npos) {
    message += " (rules need CAP_NET_ADMIN)";
  }
  return Error{std::move(message)};
}

}  // namespace causeway::host
