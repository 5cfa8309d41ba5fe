// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>

// linux/vm_sockets.h needs sockaddr to be declared before it.
#include <linux/vm_sockets.h>

#include "common/net/socket_address.hpp"
#include "common/net/stream.hpp"

namespace causeway::net {

namespace {

template <class T>
T& as(SocketAddress& address, socklen_t length, sa_family_t family) {
  static_assert(sizeof(T) <= sizeof(sockaddr_storage));
  address.length = length;
  address.storage.ss_family = family;
  // sockaddr_storage is made to be looked at as the sockaddr of its family.
  return *reinterpret_cast<T*>(&address.storage);
}

Result<bool> adopt(int fd) {
  int listening = 0;
  socklen_t length = sizeof listening;
  if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &length) != 0) {
    return system_error("fd:" + std::to_string(fd));
  }
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 ||
      ::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
    return system_error("fd:" + std::to_string(fd));
  }
  return listening != 0;
}

}  // namespace

void raise_vsock_buffer(int fd, const StreamOptions& options) {
  // The maximum first: the size is clamped to it (linux/vm_sockets.h).
  const std::uint64_t size = options.vsock_buffer;
  (void)::setsockopt(fd, AF_VSOCK, SO_VM_SOCKETS_BUFFER_MAX_SIZE, &size, sizeof size);
  (void)::setsockopt(fd, AF_VSOCK, SO_VM_SOCKETS_BUFFER_SIZE, &size, sizeof size);
}

Result<void> clear_stale_socket(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? Result<void>{} : Result<void>{system_error(path)};
  }
  if (!S_ISSOCK(info.st_mode)) {
    return Error{path + ": exists and is not a socket: choose another path", EEXIST};
  }
  const UniqueFd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const SocketAddress address = unix_socket_address(path);
  if (::connect(probe.get(), address.get(), address.length) == 0 || errno != ECONNREFUSED) {
    return Error{path + ": in use by a live process: stop that one, or choose another path",
                 EADDRINUSE};
  }
  if (::unlink(path.c_str()) != 0) {
    return system_error(path);
  }
  return {};
}

SocketAddress unix_socket_address(const std::string& path) {
  SocketAddress address;
  auto& un = as<sockaddr_un>(address, sizeof(sockaddr_un), AF_UNIX);
  std::copy_n(path.data(), std::min(path.size(), sizeof un.sun_path - 1), un.sun_path);
  return address;
}

Result<SocketAddress> to_socket_address(const Address& address) {
  SocketAddress result;
  if (const auto* local = std::get_if<UnixAddress>(&address.value)) {
    return unix_socket_address(local->path);
  }
  if (const auto* vsock = std::get_if<VsockAddress>(&address.value)) {
    auto& vm = as<sockaddr_vm>(result, sizeof(sockaddr_vm), AF_VSOCK);
    vm.svm_cid = vsock->cid;
    vm.svm_port = vsock->port;
    return result;
  }
  if (const auto* tcp = std::get_if<TcpAddress>(&address.value)) {
    const auto ip = parse_ip(tcp->host);
    if (!ip) {
      return Error{to_string(address) + ": host names are not resolved here: give an IP address",
                   EINVAL};
    }
    if (ip->v6) {
      auto& in6 = as<sockaddr_in6>(result, sizeof(sockaddr_in6), AF_INET6);
      in6.sin6_port = htons(tcp->port);
      std::memcpy(&in6.sin6_addr, ip->bytes.data(), sizeof in6.sin6_addr);
    } else {
      auto& in4 = as<sockaddr_in>(result, sizeof(sockaddr_in), AF_INET);
      in4.sin_port = htons(tcp->port);
      std::memcpy(&in4.sin_addr, ip->bytes.data(), sizeof in4.sin_addr);
    }
    return result;
  }
  return Error{to_string(address) + ": has no socket address of its own", EINVAL};
}

Listener& Listener::operator=(Listener&& other) noexcept {
  fd_ = std::move(other.fd_);
  std::swap(unlink_path_, other.unlink_path_);
  connected_ = other.connected_;
  return *this;
}

Listener::~Listener() {
  if (fd_.valid() && !unlink_path_.empty()) {
    ::unlink(unlink_path_.c_str());
  }
}

Result<Listener> Listener::open(const Address& address, const StreamOptions& options) {
  Listener listener;
  if (const auto* inherited = std::get_if<FdAddress>(&address.value)) {
    const auto listening = adopt(inherited->fd);
    if (!listening) {
      return listening.error();
    }
    listener.fd_.reset(inherited->fd);
    listener.connected_ = !*listening;
    return listener;
  }
  Address target = address;
  if (const auto* hybrid = std::get_if<HybridVsockAddress>(&address.value)) {
    // The VMM connects to PATH_PORT for a connection that the guest opens (bridge-peers.md 3).
    target.value = UnixAddress{hybrid->path + '_' + std::to_string(hybrid->port)};
  }
  const auto where = to_socket_address(target);
  if (!where) {
    return where.error();
  }
  const std::string text = to_string(target);
  const auto* local = std::get_if<UnixAddress>(&target.value);
  if (local != nullptr) {
    if (auto cleared = clear_stale_socket(local->path); !cleared) {
      return cleared.error();
    }
  }
  listener.fd_.reset(::socket(where->family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.fd_.valid()) {
    return system_error(text);
  }
  if (where->family() == AF_VSOCK) {
    raise_vsock_buffer(listener.fd(), options);
  } else if (where->family() != AF_UNIX) {
    const int on = 1;
    (void)::setsockopt(listener.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (options.v6_only && where->family() == AF_INET6 &&
        ::setsockopt(listener.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on) != 0) {
      return system_error(text + ": IPV6_V6ONLY");
    }
    if (options.reuse_port &&
        ::setsockopt(listener.fd(), SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) != 0) {
      return system_error(text + ": SO_REUSEPORT");
    }
  }
  if (::bind(listener.fd(), where->get(), where->length) != 0) {
    return system_error(text);
  }
  if (local != nullptr) {
    listener.unlink_path_ = local->path;
  }
  if (::listen(listener.fd(), options.backlog) != 0) {
    return system_error(text);
  }
  return listener;
}

}  // namespace causeway::net
