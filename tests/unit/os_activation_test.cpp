// SPDX-License-Identifier: Apache-2.0
// The descriptors begin at 3, which the test program may use: each case runs in a child.
#include "common/os/activation.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>

namespace {

using namespace causeway;

// Runs `body` in a child whose descriptors 3, 4, ... are what `kinds` says: s socket, f file, - not
// open. True when body was.
bool in_child(const std::string& kinds, const std::function<bool()>& body) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::close_range(3, ~0U, 0);
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      const int want = 3 + static_cast<int>(i);
      int fd = -1;
      if (kinds[i] == 's') {
        fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
      } else if (kinds[i] == 'f') {
        fd = ::open("/dev/null", O_RDONLY);
      }
      if (fd >= 0 && fd != want) {
        ::dup2(fd, want);
        ::close(fd);
      }
    }
    ::_exit(body() ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return status == 0;
}

void announce(const std::string& count, const char* names, pid_t pid = ::getpid()) {
  ::setenv("LISTEN_PID", std::to_string(pid).c_str(), 1);
  ::setenv("LISTEN_FDS", count.c_str(), 1);
  if (names != nullptr) {
    ::setenv("LISTEN_FDNAMES", names, 1);
  }
}

bool environment_is_clean() {
  return std::getenv("LISTEN_PID") == nullptr && std::getenv("LISTEN_FDS") == nullptr &&
         std::getenv("LISTEN_FDNAMES") == nullptr;
}

bool open_fd(int fd) {
  return ::fcntl(fd, F_GETFD) >= 0;
}

TEST_CASE("activation: sockets are taken with their names, and no child inherits them") {
  CHECK(in_child("ss", [] {
    announce("2", "admin:metrics");
    const auto sockets = take_inherited_sockets();
    return sockets && sockets->size() == 2 && (*sockets)[0].fd.get() == 3 &&
           (*sockets)[0].name == "admin" && (*sockets)[1].fd.get() == 4 &&
           (*sockets)[1].name == "metrics" && (::fcntl(3, F_GETFD) & FD_CLOEXEC) != 0 &&
           (::fcntl(4, F_GETFD) & FD_CLOEXEC) != 0 && environment_is_clean();
  }));
  CHECK(in_child("s", [] {
    announce("1", nullptr);
    const auto sockets = take_inherited_sockets();
    return sockets && sockets->size() == 1 && sockets->front().name == "unknown";
  }));
}

TEST_CASE("activation: nothing inherited is no error") {
  CHECK(in_child("", [] {
    const auto sockets = take_inherited_sockets();
    return sockets && sockets->empty();
  }));
  CHECK(in_child("s", [] {
    announce("1", "admin", ::getppid());  // meant for another process: 3 is something else
    const auto sockets = take_inherited_sockets();
    return sockets && sockets->empty() && open_fd(3) && environment_is_clean();
  }));
}

TEST_CASE("activation: what cannot be right is an error, and leaves nothing open") {
  for (const char* count : {"", "0", "-1", "65", "1x", "99999999999999999999"}) {
    CAPTURE(count);
    CHECK(in_child("s", [count] {
      announce(count, nullptr);
      const auto sockets = take_inherited_sockets();
      return !sockets && sockets.error().message.find("LISTEN_FDS") == 0 && environment_is_clean();
    }));
  }
  CHECK(in_child("ss", [] {
    announce("2", "admin");
    const auto sockets = take_inherited_sockets();
    return !sockets && sockets.error().message.find("LISTEN_FDNAMES: 1 names for 2") == 0;
  }));
  CHECK(in_child("sf", [] {
    announce("2", nullptr);
    const auto sockets = take_inherited_sockets();
    return !sockets && sockets.error().code == ENOTSOCK && !open_fd(3) && !open_fd(4);
  }));
  CHECK(in_child("s-", [] {
    announce("2", nullptr);
    const auto sockets = take_inherited_sockets();
    return !sockets && sockets.error().code == EBADF && !open_fd(3);
  }));
}

}  // namespace
