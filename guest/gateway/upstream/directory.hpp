// SPDX-License-Identifier: Apache-2.0
// Theory of operation: from the routes of a configuration to those of a snapshot.
//
// What is counted and known lives here across reloads: a RouteState for each route label, an
// Upstream for each label and address. update() keeps those that the new configuration names and
// forgets the others (connections that still use them hold them). Addresses become targets at once
// where they are literals, and by the resolver where they are names; the health checks get the same
// targets.
//
// An address with port 0 (an application's) keeps port 0 in its targets: the worker fills in the
// port that the client's name asks for.
//
// All of it runs on the control thread.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/net/asio.hpp"
#include "guest/gateway/snapshot.hpp"
#include "guest/gateway/upstream/health.hpp"
#include "guest/gateway/upstream/resolver.hpp"

namespace causeway::gateway {

class Directory {
 public:
  // All three outlive the directory. It takes over resolver.on_change().
  Directory(asio::io_context& context, Resolver& resolver, HealthChecker& health);
  ~Directory();
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  // Called when the targets of any route have changed since: from the event loop, once for all
  // changes of a turn, never from within update().
  void on_change(std::function<void()> handler);

  // The routes from now on, in their order; labels are unique.
  void update(const std::vector<RouteConfig>& routes);

  // As the last update() gave them, with what is known now.
  [[nodiscard]] const std::vector<std::shared_ptr<const Route>>& routes() const { return routes_; }

  // As the resolver's: whether every name has been looked up once.
  [[nodiscard]] bool ready() const { return resolver_.ready(); }
  void when_ready(std::chrono::milliseconds limit, std::function<void()> then);

 private:
  std::vector<Target> find_targets(const Address& address) const;
  void resolved(const std::string& name);
  void feed_health();

  asio::io_context& context_;
  Resolver& resolver_;
  HealthChecker& health_;
  std::function<void()> changed_;
  std::vector<std::shared_ptr<const Route>> routes_;
  std::map<std::string, std::shared_ptr<RouteState>> states_;   // by label
  std::map<std::string, std::shared_ptr<Upstream>> upstreams_;  // by key
  bool telling_ = false;                                        // a call of changed_ is on its way
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // for what is on its way
};

}  // namespace causeway::gateway
