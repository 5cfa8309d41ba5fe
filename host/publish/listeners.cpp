// SPDX-License-Identifier: Apache-2.0
#include "host/publish/listeners.hpp"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "common/net/socket_address.hpp"

namespace causeway::host {

namespace {

constexpr int kBacklog = 4096;  // the kernel takes net.core.somaxconn if that is less

Result<UniqueFd> open_one(const IpAddress& ip, std::uint16_t port) {
  const Address address{TcpAddress{to_string(ip), port}};
  const auto where = net::to_socket_address(address);
  if (!where) return where.error();
  UniqueFd fd(::socket(where->family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  if (!fd.valid() ||
      // Without it a restart would have to wait for the last connections' TIME_WAIT.
      ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      (ip.v6 && ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on) != 0) ||
      ::bind(fd.get(), where->get(), where->length) != 0 || ::listen(fd.get(), kBacklog) != 0) {
    return system_error("publishing on " + to_string(address));
  }
  return fd;
}

}  // namespace

Result<std::vector<UniqueFd>> open_publish_listeners(const Publish& publish) {
  if (publish.transport != Transport::tcp || publish.first > publish.last) {
    return Error{"publishing over a stream: only TCP ports can be", EINVAL};
  }
  std::vector<UniqueFd> listeners;
  for (std::uint32_t port = publish.first; port <= publish.last; ++port) {
    auto one = open_one(publish.address, static_cast<std::uint16_t>(port));
    if (!one) return one.error();
    listeners.push_back(*std::move(one));
  }
  return listeners;
}

}  // namespace causeway::host
