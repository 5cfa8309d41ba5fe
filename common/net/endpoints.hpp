// SPDX-License-Identifier: Apache-2.0
// Who is at the two ends of a connected socket.
#pragma once

#include <optional>

#include "common/net/proxy_protocol.hpp"
#include "common/net/socket_address.hpp"

namespace causeway::net {

// The IP endpoint; of a v4 client on a v6 socket (::ffff:A.B.C.D) the IPv4 one. None: another
// family.
std::optional<Endpoint> endpoint_of(const SocketAddress& address);

// Peer and own address of a connected socket. Neither: not tcp, or the peer has gone already.
ProxySource endpoints_of_socket(int fd);

// The address that a tcp socket is bound to, a listener's for one; ::ffff:0.0.0.0 is written as it
// is.
std::optional<Endpoint> own_endpoint(int fd);

}  // namespace causeway::net
