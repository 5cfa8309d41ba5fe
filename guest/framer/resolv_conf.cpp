// SPDX-License-Identifier: Apache-2.0
// Theory of operation: resolv.conf.
//
// A C library reads the file whenever it likes, so it is replaced by rename(2). Containers and
// enclave images often mount it over /etc/resolv.conf by itself: rename then fails with EBUSY
// (rename(2): the target is a mount point), a read-only root with EROFS, and the file is written in
// place. Distributions make it a symbolic link whose target may not exist yet, which realpath(3)
// refuses to follow, so the links are followed here.
#include "guest/framer/resolv_conf.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include "common/os/unique_fd.hpp"

namespace causeway::guest {

namespace {

constexpr int kMaxLinks = 40;           // as the kernel's MAXSYMLINKS
constexpr std::size_t kLongest = 4096;  // bytes; a longer file is not one that we wrote
constexpr mode_t kMode = 0644;

Result<std::string> follow_links(const std::string& path) {
  std::filesystem::path current(path);
  for (int i = 0; i < kMaxLinks; ++i) {
    std::error_code error;
    const auto target = std::filesystem::read_symlink(current, error);
    if (error) return current.string();  // no link, or nothing there
    current = target.is_absolute() ? target : current.parent_path() / target;
  }
  return system_error(path, ELOOP);
}

// The file's content; nothing when it is absent or too long to be ours.
Result<std::optional<std::string>> read_file(const std::string& path) {
  // O_NONBLOCK: a FIFO must not block us before it is refused.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) {
    if (errno == ENOENT) return std::optional<std::string>{};
    return system_error("cannot read " + path);
  }
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return system_error("cannot read " + path);
  if (!S_ISREG(info.st_mode)) return Error{"cannot write " + path + ": not a file", EINVAL};
  std::array<char, kLongest + 1> buffer{};
  std::size_t used = 0;
  while (used < buffer.size()) {
    const ssize_t got = ::read(file.get(), buffer.data() + used, buffer.size() - used);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error("cannot read " + path);
    if (got == 0) break;
    used += static_cast<std::size_t>(got);
  }
  if (used > kLongest) return std::optional<std::string>{};
  return std::optional<std::string>{std::string(buffer.data(), used)};
}

Result<void> write_all(int fd, const std::string& path, std::string_view text) {
  while (!text.empty()) {
    const ssize_t put = ::write(fd, text.data(), text.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return system_error("cannot write " + path);
    text.remove_prefix(static_cast<std::size_t>(put));
  }
  return {};
}

// False: the directory does not allow it, and writing in place is the way.
Result<bool> replace(const std::string& path, std::string_view text) {
  const auto in_place = [](int code) {
    return code == EBUSY || code == EXDEV || code == EROFS || code == EACCES || code == EPERM;
  };
  std::string temporary = path + ".XXXXXX";
  const UniqueFd file(::mkostemp(temporary.data(), O_CLOEXEC));
  if (!file.valid()) {
    if (in_place(errno)) return false;
    return system_error("cannot write " + path);
  }
  auto written = write_all(file.get(), path, text);
  if (written && ::fchmod(file.get(), kMode) != 0) {
    written = system_error("cannot set the mode of " + temporary);
  }
  if (written && ::rename(temporary.c_str(), path.c_str()) == 0) return true;
  const int code = errno;
  ::unlink(temporary.c_str());
  if (!written) return written.error();
  if (in_place(code)) return false;
  return system_error("cannot replace " + path, code);
}

Result<void> write_in_place(const std::string& path, std::string_view text) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, kMode));
  if (!file.valid()) return system_error("cannot write " + path);
  // Cut off afterwards: a reader in between sees old or new lines, never an empty file.
  if (auto written = write_all(file.get(), path, text); !written) return written;
  if (::ftruncate(file.get(), static_cast<off_t>(text.size())) != 0) {
    return system_error("cannot write " + path);
  }
  return {};
}

}  // namespace

std::string resolv_conf_text(std::span<const IpAddress> resolvers) {
  std::string text = "# Written by causeway-guest; changes made here are overwritten.\n";
  for (const IpAddress& resolver : resolvers) {
    text += "nameserver " + to_string(resolver) + "\n";
  }
  return text;
}

Result<bool> write_resolv_conf(const std::string& path, std::span<const IpAddress> resolvers) {
  const auto target = follow_links(path);
  if (!target) return target.error();
  const std::string text = resolv_conf_text(resolvers);
  const auto present = read_file(*target);
  if (!present) return present.error();
  if (*present == text) return false;
  const auto replaced = replace(*target, text);
  if (!replaced) return replaced.error();
  if (!*replaced) {
    if (auto written = write_in_place(*target, text); !written) return written.error();
  }
  return true;
}

}  // namespace causeway::guest
