// SPDX-License-Identifier: Apache-2.0
#include "common/os/notify.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>

namespace {

using namespace causeway;
using std::chrono::microseconds;

// Stands in for the service manager: a datagram socket by path or by abstract name.
class Manager {
 public:
  explicit Manager(const std::string& address) : address_(address) { bind(); }
  ~Manager() { remove(); }
  Manager(const Manager&) = delete;
  Manager& operator=(const Manager&) = delete;

  void bind_anew() {
    remove();
    bind();
  }
  std::string next() {
    std::array<char, 4096> buffer{};
    const ssize_t got = ::recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    return got < 0 ? "nothing" : std::string(buffer.data(), static_cast<std::size_t>(got));
  }

 private:
  void bind() {
    socket_.reset(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_un un{};
    un.sun_family = AF_UNIX;
    std::memcpy(un.sun_path, address_.data(), address_.size());
    if (address_[0] == '@') {
      un.sun_path[0] = '\0';
    }
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address_.size());
    REQUIRE(::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&un), length) == 0);
  }
  void remove() {
    socket_.reset();
    if (address_[0] == '/') {
      ::unlink(address_.c_str());
    }
  }
  std::string address_;
  UniqueFd socket_;
};

Notifier notifier(const std::string& address, const char* usec = nullptr,
                  const char* pid = nullptr) {
  ::setenv("NOTIFY_SOCKET", address.c_str(), 1);
  if (usec != nullptr) {
    ::setenv("WATCHDOG_USEC", usec, 1);
  }
  if (pid != nullptr) {
    ::setenv("WATCHDOG_PID", pid, 1);
  }
  Notifier made = Notifier::from_environment();
  for (const char* name : {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}) {
    CAPTURE(name);
    CHECK(std::getenv(name) == nullptr);
  }
  return made;
}

std::string path() {
  return "/tmp/causeway-notify-" + std::to_string(::getpid());
}
std::string abstract() {
  return "@causeway-notify-" + std::to_string(::getpid());
}

TEST_CASE("notify: every message, by path and by abstract name") {
  for (const std::string& address : {path(), abstract()}) {
    CAPTURE(address);
    Manager manager(address);
    Notifier notify = notifier(address);
    REQUIRE(notify.active());
    CHECK(manager.next() == "nothing");
    notify.ready();
    CHECK(manager.next() == "READY=1");
    notify.status("2 guests, 1 up");
    CHECK(manager.next() == "STATUS=2 guests, 1 up");
    notify.watchdog();
    CHECK(manager.next() == "WATCHDOG=1");
    notify.stopping();
    CHECK(manager.next() == "STOPPING=1");
  }
}

TEST_CASE("notify: a reload carries the monotonic time") {
  Manager manager(abstract());
  Notifier notify = notifier(abstract());
  const auto now = [] {
    timespec time{};
    ::clock_gettime(CLOCK_MONOTONIC, &time);
    return std::int64_t{time.tv_sec} * 1'000'000 + time.tv_nsec / 1'000;
  };
  const auto before = now();
  notify.reloading();
  const auto after = now();
  const std::string message = manager.next();
  const std::string head = "RELOADING=1\nMONOTONIC_USEC=";
  REQUIRE(message.substr(0, head.size()) == head);
  const auto told = std::stoll(message.substr(head.size()));
  CHECK(told >= before);
  CHECK(told <= after);
}

TEST_CASE("notify: a status is one line of bounded length") {
  Manager manager(abstract());
  Notifier notify = notifier(abstract());
  notify.status("a\nREADY=1\tb\x7f");
  CHECK(manager.next() == "STATUS=a READY=1 b ");
  notify.status("\xc3\xbc");
  CHECK(manager.next() == "STATUS=\xc3\xbc");
  notify.status(std::string(100'000, 'x'));
  CHECK(manager.next() == "STATUS=" + std::string(512, 'x'));
}

TEST_CASE("notify: without a manager, or with one that is not for us, nothing is sent") {
  ::unsetenv("NOTIFY_SOCKET");
  Notifier none = Notifier::from_environment();
  CHECK_FALSE(none.active());
  none.ready();  // nothing happens
  for (const std::string& address :
       {std::string(), std::string("/"), std::string("@"), std::string("vsock:2:1"),
        std::string("relative"), path() + "-absent", "/" + std::string(200, 'x')}) {
    CAPTURE(address);
    CHECK_FALSE(notifier(address).active());
  }
  // A watchdog that nobody could be told about does not run.
  CHECK_FALSE(notifier(path() + "-absent", "1000000").watchdog_interval());
}

TEST_CASE("notify: the watchdog's interval") {
  Manager manager(abstract());
  const std::string own = std::to_string(::getpid());
  CHECK_FALSE(notifier(abstract()).watchdog_interval());
  CHECK(notifier(abstract(), "30000000").watchdog_interval() == microseconds{15'000'000});
  CHECK(notifier(abstract(), "30000000", own.c_str()).watchdog_interval() ==
        microseconds{15'000'000});
  CHECK(notifier(abstract(), "1").watchdog_interval() == microseconds{1});
  CHECK_FALSE(notifier(abstract(), "30000000", "1").watchdog_interval());
  for (const char* bad : {"", "0", "-5", "3s", " 3", "99999999999999999999"}) {
    CAPTURE(bad);
    CHECK_FALSE(notifier(abstract(), bad).watchdog_interval());
  }
  CHECK_FALSE(notifier(abstract(), "30000000", "").watchdog_interval());
}

TEST_CASE("notify: a manager that was restarted is found again") {
  Manager manager(path());
  Notifier notify = notifier(path());
  manager.bind_anew();
  notify.ready();
  CHECK(manager.next() == "READY=1");
}

TEST_CASE("notify: a manager that does not read holds nobody up with status and watchdog") {
  Manager manager(abstract());
  Notifier notify = notifier(abstract());
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 5000; ++i) {
    notify.watchdog();
    notify.status("busy");
  }
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds{5});
  CHECK(manager.next() == "WATCHDOG=1");
}

}  // namespace
