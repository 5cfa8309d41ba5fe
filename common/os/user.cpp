// SPDX-License-Identifier: Apache-2.0
#include "common/os/user.hpp"

#include <grp.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace causeway {

namespace {

// Sizes for entries of a directory service, too. More than that is refused.
constexpr std::size_t kEntrySize = std::size_t{64} * 1024;
constexpr int kMaxGroups = 4096;

// Code ENOENT: no such user.
Result<Identity> look_up(const std::string& name) {
  passwd entry{};
  passwd* found = nullptr;
  std::string buffer(kEntrySize, '\0');
  int code = 0;
  do {
    code = ::getpwnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  } while (code == EINTR);
  // getpwnam(3) lists these as ways of saying "not found".
  constexpr std::array kAbsent{0, ENOENT, ESRCH, EBADF, EPERM};
  if (found == nullptr) {
    if (std::find(kAbsent.begin(), kAbsent.end(), code) != kAbsent.end()) {
      return Error{"no user named " + name, ENOENT};
    }
    return system_error("user " + name, code);
  }
  Identity identity{name, entry.pw_uid, entry.pw_gid, {}};
  int count = 64;
  identity.groups.resize(static_cast<std::size_t>(count));
  if (::getgrouplist(name.c_str(), identity.gid, identity.groups.data(), &count) < 0) {
    if (count > kMaxGroups) {
      return Error{"user " + name + ": in too many groups", E2BIG};
    }
    identity.groups.resize(static_cast<std::size_t>(count));
    if (::getgrouplist(name.c_str(), identity.gid, identity.groups.data(), &count) < 0) {
      return Error{"user " + name + ": the list of groups changes", EAGAIN};
    }
  }
  identity.groups.resize(static_cast<std::size_t>(count));
  return identity;
}

}  // namespace

Result<Identity> find_user(const std::optional<std::string>& name) {
  if (name) {
    return look_up(*name);
  }
  auto own = look_up("causeway");
  if (own || own.error().code != ENOENT) {
    return own;
  }
  return look_up("nobody");
}

Result<void> drop_privileges_to(const std::optional<std::string>& user) {
  if (::getuid() != 0 && ::geteuid() != 0) {
    return drop_privileges(std::nullopt);
  }
  const auto identity = find_user(user);
  if (!identity) {
    return identity.error();
  }
  return drop_privileges(*identity);
}

}  // namespace causeway
