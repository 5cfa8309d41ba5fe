// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/pair/sockets.hpp"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/un.h>
#include <unistd.h>
// linux/vm_sockets.h needs sys/socket.h before it.
#include <linux/vm_sockets.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <iostream>
#include <stdexcept>
#include <system_error>
#include <thread>

namespace causeway::bench {

namespace {

std::uint32_t parse_u32(const std::string& text, const std::string& whole) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) {
    throw std::invalid_argument("'" + text + "' in '" + whole + "' is not a number");
  }
  return value;
}

// sockaddr_storage is made to hold every address family; copying avoids a cast that aliases.
template <typename T>
SocketAddress pack(const T& address) {
  SocketAddress out;
  std::memcpy(&out.storage, &address, sizeof address);
  out.size = sizeof address;
  return out;
}

extern "C" void on_deadline(int) {
  static constexpr char kText[] = "causeway bench: deadline reached\n";
  [[maybe_unused]] const auto written = write(STDERR_FILENO, kText, sizeof kText - 1);
  _exit(3);
}

}  // namespace

void Fd::reset() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

const sockaddr* SocketAddress::get() const {
  return reinterpret_cast<const sockaddr*>(&storage);  // the sockets API's own convention
}

void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

SocketAddress parse_ip_port(const std::string& text) {
  const auto colon = text.rfind(':');
  if (colon == std::string::npos) throw std::invalid_argument("'" + text + "': want IP:PORT");
  std::string host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), text.c_str() + colon + 1, &hints, &found);
  if (error != 0) throw std::invalid_argument("'" + text + "': " + gai_strerror(error));
  SocketAddress out;
  std::memcpy(&out.storage, found->ai_addr, found->ai_addrlen);
  out.size = found->ai_addrlen;
  freeaddrinfo(found);
  return out;
}

SocketAddress parse_stream_address(const std::string& text) {
  if (text.starts_with("unix:")) {
    const std::string path = text.substr(5);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.empty() || path.size() >= sizeof address.sun_path) {
      throw std::invalid_argument("'" + text + "': the path must have 1 to 107 bytes");
    }
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    return pack(address);
  }
  const auto colon = text.rfind(':');
  if (text.starts_with("vsock:") && colon > 6) {
    const std::string cid = text.substr(6, colon - 6);
    sockaddr_vm address{};
    address.svm_family = AF_VSOCK;
    address.svm_cid = cid == "any" ? VMADDR_CID_ANY : parse_u32(cid, text);
    address.svm_port = parse_u32(text.substr(colon + 1), text);
    return pack(address);
  }
  throw std::invalid_argument("'" + text + "': want unix:PATH or vsock:CID:PORT");
}

Fd listen_on(const SocketAddress& address, int type, int backlog) {
  const int family = address.storage.ss_family;
  Fd fd(socket(family, type | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) fail("socket");
  if (family == AF_INET || family == AF_INET6) {
    set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR");
  }
  if (bind(fd.get(), address.get(), address.size) != 0) fail("bind");
  if (type == SOCK_STREAM && listen(fd.get(), backlog) != 0) fail("listen");
  return fd;
}

void announce(const Fd& fd) {
  SocketAddress bound;
  bound.size = sizeof bound.storage;
  if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.size) != 0) {
    fail("getsockname");
  }
  char host[128];
  char port[32];
  const bool ip = getnameinfo(bound.get(), bound.size, host, sizeof host, port, sizeof port,
                              NI_NUMERICHOST | NI_NUMERICSERV) == 0;
  std::cerr << "listening" << (ip ? std::string(" ") + host + ":" + port : "") << std::endl;
}

Fd accept_one(const Fd& listener) {
  for (;;) {
    Fd fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (fd.get() >= 0) return fd;
    if (errno != EINTR) fail("accept");
  }
}

Fd connect_to(const SocketAddress& address, int type, std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (;;) {
    // A fresh socket for each try: reusing one after a refusal is undefined on vsock.
    Fd fd(socket(address.storage.ss_family, type | SOCK_CLOEXEC, 0));
    if (fd.get() < 0) fail("socket");
    if (connect(fd.get(), address.get(), address.size) == 0) return fd;
    const bool again = errno == ECONNREFUSED || errno == ENOENT || errno == ECONNRESET;
    if (!again || std::chrono::steady_clock::now() >= deadline) fail("connect");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // no event tells of a listener
  }
}

void send_all(const Fd& fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    } else if (errno != EINTR) {
      fail("send");
    }
  }
}

std::size_t receive_some(const Fd& fd, std::span<std::byte> bytes) {
  for (;;) {
    const ssize_t got = recv(fd.get(), bytes.data(), bytes.size(), 0);
    if (got >= 0) return static_cast<std::size_t>(got);
    if (errno != EINTR) fail("recv");
  }
}

void set_option(const Fd& fd, int level, int name, int value, const char* what) {
  if (setsockopt(fd.get(), level, name, &value, sizeof value) != 0) fail(what);
}

double now_seconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

void arm_deadline(unsigned seconds) {
  struct sigaction action {};
  action.sa_handler = on_deadline;
  if (sigaction(SIGALRM, &action, nullptr) != 0) fail("sigaction");
  alarm(seconds);
}

}  // namespace causeway::bench
