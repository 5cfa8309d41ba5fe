// SPDX-License-Identifier: Apache-2.0
// From the address grammar to what the socket calls take.
#pragma once

#include <sys/socket.h>

#include <string>

#include "common/net/address.hpp"
#include "common/result.hpp"

namespace causeway::net {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  [[nodiscard]] int family() const { return storage.ss_family; }
  // The socket calls take sockaddr*, whatever the family: this cast is their calling convention.
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// tcp takes IP literals only: nothing here resolves names. fd:N and hvsock: have no such form.
Result<SocketAddress> to_socket_address(const Address& address);
SocketAddress unix_socket_address(const std::string& path);

struct StreamOptions;
// Raises a vsock socket's buffer, before connect() or listen(); children of a listener inherit it.
void raise_vsock_buffer(int fd, const StreamOptions& options);

}  // namespace causeway::net
