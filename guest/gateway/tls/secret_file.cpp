// SPDX-License-Identifier: Apache-2.0
#include "guest/gateway/tls/secret_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdio>

#include "common/os/unique_fd.hpp"

namespace causeway::gateway::tls {
namespace {

Error of_file(const std::string& path, const std::string& what, int code = 0) {
  return Error{path + ": " + what, code};
}

}  // namespace

Result<FileContent> read_secret_file(const std::string& path, FileAccess access) {
  // O_NONBLOCK: a FIFO at that path must not hang the program; a regular file does not mind.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (file.get() < 0) return system_error(path);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return system_error(path);
  if (!S_ISREG(status.st_mode)) return of_file(path, "is not a regular file", EINVAL);
  if (access == FileAccess::owner_only && (status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    std::array<char, 8> mode{};
    std::snprintf(mode.data(), mode.size(), "%04o", status.st_mode & 07777U);
    return of_file(path,
                   std::string("holds a secret, but its mode ") + mode.data() +
                       " lets others at it; chmod 0600 it",
                   EACCES);
  }
  if (static_cast<std::size_t>(status.st_size) > kMaxSecretFile) {
    return of_file(path, "is larger than 4 MiB, which no certificate or key is", EFBIG);
  }

  FileContent out;
  // One byte more than it should have shows that it grew meanwhile; the last stays a NUL.
  out.bytes = Secret(static_cast<std::size_t>(status.st_size) + 2);
  while (true) {
    const auto room = out.bytes.bytes().subspan(out.size, out.bytes.size() - 1 - out.size);
    if (room.empty()) return of_file(path, "changed while it was read; try again", EAGAIN);
    const ssize_t got = ::read(file.get(), room.data(), room.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error(path);
    if (got == 0) return out;
    out.size += static_cast<std::size_t>(got);
  }
}

std::string mbedtls_text(int code) {
  std::array<char, 160> text{};
  mbedtls_strerror(code, text.data(), text.size());
  return text.data();
}

}  // namespace causeway::gateway::tls
