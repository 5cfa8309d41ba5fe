// SPDX-License-Identifier: Apache-2.0
// Theory of operation: the gateway's listening sockets, all bound up front and in order, before a
// worker runs: any that cannot be bound ends the start.
//
// A tcp address gets a socket for each worker (SO_REUSEPORT), so that a connection is accepted on
// the thread that serves it. Where the kernel has no SO_REUSEPORT, with --threads-model shared, and
// for unix, vsock, hybrid vsock and inherited sockets, all workers share one. SO_REUSEPORT would
// also let a second gateway of the same user take half of our connections in silence: so the
// address is first bound without it, which fails while somebody else listens there.
#pragma once

#include <string>
#include <vector>

#include "common/net/stream.hpp"
#include "guest/gateway/config.hpp"
#include "guest/gateway/worker.hpp"

namespace causeway::gateway {

struct OpenListener {
  ListenerConfig config;
  ListenerInfo info;
  std::vector<net::Listener> sockets;  // one for each worker, or one for all
  bool shared = false;

  [[nodiscard]] WorkerListener of_worker(std::size_t worker) const {
    return {info, sockets.at(shared ? 0 : worker).fd(), shared};
  }
};

inline constexpr int kBacklog = 4096;

// Whether two listeners of ours can share a port, tried on a throwaway loopback port.
bool reuse_port_works();

// What is not as asked for is said in `warnings`.
Result<std::vector<OpenListener>> open_listeners(const std::vector<ListenerConfig>& configs,
                                                 unsigned workers, ThreadsModel model,
                                                 std::vector<std::string>& warnings);

}  // namespace causeway::gateway
