// SPDX-License-Identifier: Apache-2.0
#include "common/net/endpoints.hpp"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

namespace causeway::net {

std::optional<Endpoint> endpoint_of(const SocketAddress& address) {
  Endpoint endpoint;
  if (address.family() == AF_INET) {
    sockaddr_in in4{};
    std::memcpy(&in4, &address.storage, sizeof in4);
    endpoint.port = ntohs(in4.sin_port);
    std::memcpy(endpoint.ip.bytes.data(), &in4.sin_addr, endpoint.ip.size());
    return endpoint;
  }
  if (address.family() != AF_INET6) return std::nullopt;
  sockaddr_in6 in6{};
  std::memcpy(&in6, &address.storage, sizeof in6);
  endpoint.port = ntohs(in6.sin6_port);
  const std::span<const std::uint8_t> bytes(in6.sin6_addr.s6_addr);
  if (IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr)) {
    std::copy_n(bytes.subspan(12).begin(), endpoint.ip.size(), endpoint.ip.bytes.begin());
    return endpoint;
  }
  endpoint.ip.v6 = true;
  std::copy_n(bytes.begin(), endpoint.ip.size(), endpoint.ip.bytes.begin());
  return endpoint;
}

std::optional<Endpoint> own_endpoint(int fd) {
  SocketAddress own;
  own.length = sizeof(sockaddr_storage);
  // The mirror of SocketAddress::get(): this writes through the same convention.
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&own.storage), &own.length) != 0) return {};
  return endpoint_of(own);
}

ProxySource endpoints_of_socket(int fd) {
  SocketAddress peer;
  SocketAddress own;
  peer.length = own.length = sizeof(sockaddr_storage);
  // The mirror of SocketAddress::get(): these write through the same convention.
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer.storage), &peer.length) != 0 ||
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&own.storage), &own.length) != 0) {
    return {};
  }
  const auto client = endpoint_of(peer);
  const auto server = endpoint_of(own);
  if (!client || !server) return {};
  return {client, server};
}

}  // namespace causeway::net
