// SPDX-License-Identifier: Apache-2.0
// Stream sockets of every kind in the address grammar: listening, connecting, and the waits that
// the control thread needs around them. All descriptors are non-blocking and close-on-exec.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "common/net/address.hpp"
#include "common/net/asio.hpp"
#include "common/os/unique_fd.hpp"
#include "common/result.hpp"

namespace causeway::net {

struct StreamOptions {
  // vsock: the stream's buffer on our side (SO_VM_SOCKETS_BUFFER_SIZE), bytes. Our credit towards
  // the peer, and since Linux 6.19 also the bound of what we may have in flight.
  std::uint64_t vsock_buffer = 8 * 1024 * 1024;
  int backlog = 64;      // connections that wait to be accepted; the kernel clamps it to somaxconn
  bool v6_only = false;  // tcp: an IPv6 address does not take IPv4 clients
  bool reuse_port =
      false;  // tcp: several listeners share the address, the kernel spreads over them
};

// A listening socket; a unix socket's file is removed with it.
class Listener {
 public:
  // A unix path whose socket has no listener any more is taken over; one that answers is an error.
  static Result<Listener> open(const Address& address, const StreamOptions& options);
  Listener(Listener&&) noexcept = default;
  Listener& operator=(Listener&&) noexcept;
  ~Listener();
  [[nodiscard]] int fd() const { return fd_.get(); }
  // An inherited descriptor (fd:N) may be a stream that is connected already.
  [[nodiscard]] bool is_connected_stream() const { return connected_; }
  [[nodiscard]] UniqueFd take() { return std::move(fd_); }

 private:
  Listener() = default;
  UniqueFd fd_;
  std::string unlink_path_;
  bool connected_ = false;
};

// Makes room for a unix socket: a socket file on which nobody answers is removed. A live one, and
// anything that is not a socket, is an error and stays.
Result<void> clear_stale_socket(const std::string& path);

// Connects a fresh socket, hybrid vsock's CONNECT/OK included, within `limit`.
asio::awaitable<Result<UniqueFd>> connect_stream(Address address, StreamOptions options,
                                                 std::chrono::milliseconds limit);

// Applies what every stream of ours wants: TCP_NODELAY on tcp, a large send buffer on unix. Errors
// are of no consequence.
void tune_stream(int fd);

// "unix", "tcp", "vsock"..., with the peer where the kernel names one ("vsock:16:1027").
std::string describe_transport(int fd);
std::string describe_peer(int fd);

// The vsock buffer in force, bytes; 0 on other sockets.
std::uint64_t effective_vsock_buffer(int fd);

// The most that one send() should carry on this kind of socket, bytes. On vsock larger sends have
// been corrupted by hypervisors (wire.md, "Writing to vsock").
std::size_t default_max_write(int fd);
constexpr std::size_t default_max_write_of(bool vsock) {
  return vsock ? std::size_t{31'000} : std::size_t{256} * 1024;
}

enum class Ready : std::uint8_t { ready, timed_out, failed };
// Waits until `descriptor` is readable (or writable), at most `limit`.
asio::awaitable<Ready> wait_for(asio::posix::stream_descriptor& descriptor,
                                asio::posix::stream_descriptor::wait_type what,
                                std::chrono::milliseconds limit);
asio::awaitable<void> sleep_for(std::chrono::milliseconds time);

}  // namespace causeway::net
