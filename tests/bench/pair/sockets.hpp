// SPDX-License-Identifier: Apache-2.0
// The few socket helpers that the traffic tool and the reference arm share. They are kept apart
// from common/net on purpose: a fault in the code under test must not hide in the code that
// measures it. Errors are exceptions (std::system_error, std::invalid_argument).
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace causeway::bench {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { reset(); }

  [[nodiscard]] int get() const { return fd_; }
  void reset();

 private:
  int fd_ = -1;
};

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  [[nodiscard]] const sockaddr* get() const;
};

[[noreturn]] void fail(const std::string& what);  // std::system_error from errno

// "IP:PORT" or "[IPV6]:PORT"; numeric only.
SocketAddress parse_ip_port(const std::string& text);
// "unix:PATH", "vsock:CID:PORT" or "vsock:any:PORT". Opens nothing.
SocketAddress parse_stream_address(const std::string& text);

// A bound socket; a stream socket listens too. Announces itself on stderr as "listening IP:PORT"
// so that whoever started the program can wait for that line.
Fd listen_on(const SocketAddress& address, int type, int backlog = 16);
void announce(const Fd& fd);
Fd accept_one(const Fd& listener);
// Connects; a refused connection is tried again until `patience` is over.
Fd connect_to(const SocketAddress& address, int type, std::chrono::milliseconds patience);

void send_all(const Fd& fd, std::span<const std::byte> bytes);
// Returns the bytes received, 0 at the end of the stream.
std::size_t receive_some(const Fd& fd, std::span<std::byte> bytes);

void set_option(const Fd& fd, int level, int name, int value, const char* what);

// Seconds on the monotonic clock.
double now_seconds();

// Ends the process with status 3 and one line on stderr when `seconds` are over: nothing that a
// test starts may outlive it.
void arm_deadline(unsigned seconds);

}  // namespace causeway::bench
