// SPDX-License-Identifier: Apache-2.0
// What the workers see of the configuration: immutable, shared, swapped as a whole by the control
// thread on a reload and when a name resolves to something else. A connection keeps the snapshot
// that it was routed by.
#pragma once

#include <memory>
#include <vector>

#include "guest/gateway/config.hpp"
#include "guest/gateway/route/route_table.hpp"
#include "guest/gateway/tls/settings.hpp"
#include "guest/gateway/upstream/upstream.hpp"

namespace causeway::gateway {

// What is counted for a route across reloads.
struct RouteState {
  LimitedCount active;
  std::atomic<std::uint64_t> total{0};
};

struct Route {
  RouteConfig config;
  std::shared_ptr<RouteState> state;
  std::vector<UpstreamView> upstreams;
};

// What TLS that ends here is made with, for one route.
struct RouteTls {
  std::shared_ptr<const tls::Profile> client;     // null: the route never terminates
  std::shared_ptr<const tls::Profile> client_h2;  // for RouteMatch::Mode::terminate_h2
  // To the upstream; empty: plain. One for each protocol that the client may have negotiated, by
  // upstream_protocols, and last the one without ALPN.
  std::vector<std::shared_ptr<const tls::Profile>> upstream;
  std::vector<std::string> upstream_protocols;
  std::string upstream_name;  // empty: the upstream's host
};
struct TlsSnapshot {
  std::shared_ptr<const tls::CertificateStore> certificates;  // null: there are none
  std::vector<RouteTls> routes;                               // by RouteMatch::route
};

struct Snapshot {
  std::shared_ptr<const RouteTable> table;
  // By RouteMatch::route. Snapshots share the routes that are the same in both.
  std::vector<std::shared_ptr<const Route>> routes;
  std::shared_ptr<const TlsSnapshot> tls;  // never null
  Timeouts timeouts;
  std::size_t buffer_size = 0;                // bytes
  std::optional<std::uint64_t> splice_after;  // bytes; none: no gate
  std::optional<std::chrono::milliseconds> splice_after_time;
  std::uint32_t max_connections = 0;      // of all workers together; never 0
  std::vector<ListenerConfig> listeners;  // by listener index
};

}  // namespace causeway::gateway
