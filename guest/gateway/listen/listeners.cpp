// SPDX-License-Identifier: Apache-2.0
#include "guest/gateway/listen/listeners.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>

namespace causeway::gateway {

namespace {

bool is_tcp(const ListenerConfig& config) {
  return std::holds_alternative<TcpAddress>(config.address.value);
}

// [::] takes IPv4 clients too, unless another listener has them: then both can have the port.
bool has_ipv4_twin(const ListenerConfig& config, const std::vector<ListenerConfig>& all) {
  const auto* const tcp = std::get_if<TcpAddress>(&config.address.value);
  return tcp != nullptr && std::any_of(all.begin(), all.end(), [&](const ListenerConfig& other) {
           const auto* const twin = std::get_if<TcpAddress>(&other.address.value);
           const auto ip = twin != nullptr ? parse_ip(twin->host) : Result<IpAddress>(Error{});
           return ip && !ip->v6 && twin->port == tcp->port;
         });
}

int family_of(int fd) {
  int domain = AF_UNSPEC;
  socklen_t length = sizeof domain;
  return ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 ? domain : AF_UNSPEC;
}

// Nobody listens there yet.
Result<void> check_free(const Address& address, bool v6_only) {
  const auto where = net::to_socket_address(address);
  if (!where) return where.error();
  const UniqueFd probe(::socket(where->family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  (void)::setsockopt(probe.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (v6_only) (void)::setsockopt(probe.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
  if (!probe.valid() || ::bind(probe.get(), where->get(), where->length) != 0) {
    return system_error(to_string(address));
  }
  return {};
}

Result<void> open_sockets(OpenListener& listener, std::size_t count, bool v6_only) {
  net::StreamOptions options;
  options.backlog = kBacklog;
  options.reuse_port = !listener.shared;
  options.v6_only = v6_only;
  for (std::size_t i = 0; i < count; ++i) {
    auto socket = net::Listener::open(listener.config.address, options);
    if (!socket) return socket.error();
    if (socket->is_connected_stream()) {
      return Error{to_string(listener.config.address) + ": is connected, not listening", EINVAL};
    }
    listener.sockets.push_back(std::move(*socket));
  }
  const int family = family_of(listener.sockets.front().fd());
  listener.info.tcp = family == AF_INET || family == AF_INET6;
  listener.info.vsock = family == AF_VSOCK;
  if (listener.info.tcp && listener.info.proxy_protocol && listener.info.trusted.empty()) {
    return Error{to_string(listener.config.address) +
                     ": is tcp: proxy_protocol needs `trusted`, the networks that may send headers",
                 EINVAL};
  }
  for (const auto& socket : listener.sockets) {
    if (!listener.info.tcp) break;
    const int on = 1;  // connections inherit it
    (void)::setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  return {};
}

}  // namespace

bool reuse_port_works() {
  std::array<UniqueFd, 2> sockets;
  sockaddr_in loopback{};
  loopback.sin_family = AF_INET;
  loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof loopback;
  // The socket calls take sockaddr*, whatever the family: this cast is their calling convention.
  auto* const address = reinterpret_cast<sockaddr*>(&loopback);
  for (UniqueFd& socket : sockets) {
    const int on = 1;
    socket.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) != 0 ||
        ::bind(socket.get(), address, sizeof loopback) != 0 || ::listen(socket.get(), 1) != 0 ||
        ::getsockname(socket.get(), address, &length) != 0) {
      return false;
    }
  }
  return true;
}

Result<std::vector<OpenListener>> open_listeners(const std::vector<ListenerConfig>& configs,
                                                 unsigned workers, ThreadsModel model,
                                                 std::vector<std::string>& warnings) {
  bool per_worker = model == ThreadsModel::per_core && workers > 1;
  if (per_worker && std::any_of(configs.begin(), configs.end(), is_tcp) && !reuse_port_works()) {
    warnings.emplace_back("threads_model: no SO_REUSEPORT here; the workers share one listener");
    per_worker = false;
  }
  std::vector<OpenListener> listeners;
  for (const ListenerConfig& config : configs) {
    OpenListener listener;
    listener.config = config;
    listener.info.index = static_cast<std::uint32_t>(listeners.size());
    listener.info.proxy_protocol = config.proxy_protocol;
    listener.info.trusted = config.trusted;
    listener.shared = !per_worker || !is_tcp(config);
    const bool v6_only = has_ipv4_twin(config, configs);
    if (is_tcp(config)) {
      if (auto free = check_free(config.address, v6_only); !free) return free.error();
    }
    if (auto opened = open_sockets(listener, listener.shared ? 1 : workers, v6_only); !opened) {
      return opened.error();
    }
    listeners.push_back(std::move(listener));
  }
  return listeners;
}

}  // namespace causeway::gateway
