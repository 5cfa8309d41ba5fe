// SPDX-License-Identifier: Apache-2.0
#include "common/net/stream.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>

// linux/vm_sockets.h needs sockaddr to be declared before it.
#include <linux/vm_sockets.h>

#include "common/net/socket_address.hpp"
#include "proto/hvsock.hpp"

namespace causeway::net {

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

milliseconds left_until(Clock::time_point deadline) {
  return std::max(milliseconds{1},
                  std::chrono::duration_cast<milliseconds>(deadline - Clock::now()));
}

int family_of(int fd) {
  int domain = AF_UNSPEC;
  socklen_t length = sizeof domain;
  return ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 ? domain : AF_UNSPEC;
}

// Hybrid vsock: says CONNECT on a connected unix socket and reads the answer byte by byte, because
// the guest's first bytes may follow it directly. Empty on success.
asio::awaitable<Result<void>> say_connect(asio::posix::stream_descriptor& descriptor,
                                          std::uint32_t port, Clock::time_point deadline) {
  const std::string request = proto::hvsock_request(port);
  const ssize_t sent = ::send(descriptor.native_handle(), request.data(), request.size(),
                              MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent != static_cast<ssize_t>(request.size())) {  // a fresh socket takes 20 bytes
    co_return system_error("hybrid vsock: CONNECT");
  }
  proto::HvsockReply reply;
  for (;;) {
    std::byte next{};
    const ssize_t got = ::recv(descriptor.native_handle(), &next, 1, MSG_DONTWAIT);
    if (got == 1) {
      const auto state = reply.add(next);
      if (state == proto::HvsockReply::State::accepted) {
        co_return Result<void>{};
      }
      if (state == proto::HvsockReply::State::malformed) {
        co_return Error{"hybrid vsock: the answer to CONNECT is not OK", EPROTO};
      }
      continue;
    }
    if (got == 0) {
      co_return Error{"hybrid vsock: refused (nobody listens on that port in the guest)",
                      ECONNREFUSED};
    }
    if (errno != EAGAIN && errno != EINTR) {
      co_return system_error("hybrid vsock");
    }
    const auto wait_type = asio::posix::stream_descriptor::wait_read;
    const Ready ready = co_await wait_for(descriptor, wait_type, left_until(deadline));
    if (ready != Ready::ready) {
      co_return Error{"hybrid vsock: no answer to CONNECT", ETIMEDOUT};
    }
  }
}

}  // namespace

asio::awaitable<Ready> wait_for(asio::posix::stream_descriptor& descriptor,
                                asio::posix::stream_descriptor::wait_type what,
                                milliseconds limit) {
  using namespace asio::experimental::awaitable_operators;
  asio::steady_timer timer(descriptor.get_executor(), limit);
  const auto outcome =
      co_await (descriptor.async_wait(what, as_result) || timer.async_wait(as_result));
  if (outcome.index() == 1) {
    co_return Ready::timed_out;
  }
  co_return std::get<0>(std::get<0>(outcome)) ? Ready::failed : Ready::ready;
}

asio::awaitable<void> sleep_for(milliseconds time) {
  asio::steady_timer timer(co_await asio::this_coro::executor, time);
  co_await timer.async_wait(as_result);
}

asio::awaitable<Result<UniqueFd>> connect_stream(Address address, StreamOptions options,
                                                 milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  Address target = address;
  const auto* hybrid = std::get_if<HybridVsockAddress>(&address.value);
  if (hybrid != nullptr) {
    target.value = UnixAddress{hybrid->path};
  }
  const auto where = to_socket_address(target);
  if (!where) {
    co_return where.error();
  }
  const std::string text = to_string(address);
  UniqueFd fd(::socket(where->family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) {
    co_return system_error(text);
  }
  if (where->family() == AF_VSOCK) {
    raise_vsock_buffer(fd.get(), options);
  }
  const int started = ::connect(fd.get(), where->get(), where->length);
  if (started != 0 && errno != EINPROGRESS) {
    co_return system_error(text);
  }
  const bool in_progress = started != 0;
  asio::posix::stream_descriptor descriptor(co_await asio::this_coro::executor, fd.release());
  if (in_progress) {
    const auto wait_type = asio::posix::stream_descriptor::wait_write;
    const Ready ready = co_await wait_for(descriptor, wait_type, left_until(deadline));
    if (ready == Ready::timed_out) {
      co_return Error{text + ": no answer to connect", ETIMEDOUT};
    }
    int error = 0;
    socklen_t length = sizeof error;
    ::getsockopt(descriptor.native_handle(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) {
      co_return system_error(text, error);
    }
  }
  if (hybrid != nullptr) {
    const auto said = co_await say_connect(descriptor, hybrid->port, deadline);
    if (!said) {
      co_return Error{text + ": " + said.error().message, said.error().code};
    }
  }
  tune_stream(descriptor.native_handle());
  co_return UniqueFd(descriptor.release());
}

void tune_stream(int fd) {
  const int family = family_of(fd);
  if (family == AF_INET || family == AF_INET6) {
    const int on = 1;
    (void)::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  } else if (family == AF_UNIX) {
    // The default holds three super-frames; the kernel clamps this to net.core.wmem_max.
    const int size = 4 * 1024 * 1024;
    (void)::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
  }
}

std::string describe_transport(int fd) {
  switch (family_of(fd)) {
    case AF_UNIX:
      return "unix";
    case AF_VSOCK:
      return "vsock";
    case AF_INET:
    case AF_INET6:
      return "tcp";
    default:
      return "other";
  }
}

std::string describe_peer(int fd) {
  SocketAddress peer;
  peer.length = sizeof peer.storage;
  // The mirror of SocketAddress::get(): getpeername() writes through the same convention.
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer.storage), &peer.length) != 0) {
    return "unknown";
  }
  switch (peer.family()) {
    case AF_VSOCK: {
      const auto& vm = reinterpret_cast<const sockaddr_vm&>(peer.storage);  // as its family says
      return "vsock:" + std::to_string(vm.svm_cid) + ':' + std::to_string(vm.svm_port);
    }
    case AF_UNIX: {
      ucred who{};
      socklen_t length = sizeof who;
      if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &length) == 0 && who.pid != 0) {
        return "unix:pid=" + std::to_string(who.pid) + ",uid=" + std::to_string(who.uid);
      }
      return "unix";
    }
    case AF_INET:
    case AF_INET6: {
      IpAddress ip{.v6 = peer.family() == AF_INET6};
      // As the family says; both are at least as long as sockaddr_in.
      const auto& in4 = reinterpret_cast<const sockaddr_in&>(peer.storage);
      const auto& in6 = reinterpret_cast<const sockaddr_in6&>(peer.storage);
      if (ip.v6) {
        std::copy_n(in6.sin6_addr.s6_addr, ip.size(), ip.bytes.begin());
      } else {
        for (std::size_t i = 0; i < ip.size(); ++i) {
          ip.bytes[i] = static_cast<std::uint8_t>(ntohl(in4.sin_addr.s_addr) >> (24 - 8 * i));
        }
      }
      return to_string(Address{TcpAddress{to_string(ip), ntohs(in4.sin_port)}});
    }
    default:
      return "unknown";
  }
}

std::uint64_t effective_vsock_buffer(int fd) {
  std::uint64_t size = 0;
  socklen_t length = sizeof size;
  if (family_of(fd) != AF_VSOCK ||
      ::getsockopt(fd, AF_VSOCK, SO_VM_SOCKETS_BUFFER_SIZE, &size, &length) != 0) {
    return 0;
  }
  return size;
}

std::size_t default_max_write(int fd) {
  return default_max_write_of(family_of(fd) == AF_VSOCK);
}

}  // namespace causeway::net
