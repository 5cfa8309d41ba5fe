// SPDX-License-Identifier: Apache-2.0
#include "guest/gateway/upstream/directory.hpp"

#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "common/config/text.hpp"
#include "common/log.hpp"

namespace causeway::gateway {

namespace {

// What the resolver is asked for, or nothing: literals are not.
const std::string* name_of(const Address& address) {
  const auto* tcp = std::get_if<TcpAddress>(&address.value);
  if (tcp == nullptr || tcp->host.find(':') != std::string::npos) return nullptr;
  return parse_ip(tcp->host) ? nullptr : &tcp->host;
}

Target make_target(const IpAddress& ip, std::uint16_t port) {
  return {*net::to_socket_address(Address{TcpAddress{to_string(ip), port}})};
}

// [fe80::1%eth0]: the interface has to be there now.
std::vector<Target> zone_target(const TcpAddress& tcp, std::size_t percent) {
  const auto ip = parse_ip(tcp.host.substr(0, percent));
  if (!ip) return {};
  const std::string zone = tcp.host.substr(percent + 1);
  const auto number = parse_decimal(zone, UINT32_MAX);
  const auto scope = number ? static_cast<std::uint32_t>(*number) : ::if_nametoindex(zone.c_str());
  if (scope == 0) {
    log::warn("upstream {}: there is no interface {}", to_string(Address{tcp}), zone);
    return {};
  }
  Target target = make_target(*ip, tcp.port);
  // An address with a zone is IPv6.
  reinterpret_cast<sockaddr_in6&>(target.address.storage).sin6_scope_id = scope;
  return {target};
}

// v6 and v4 in turn, v6 first (RFC 8305 4): where one family has no route, connect() fails at once.
std::vector<Target> interleaved(const std::vector<IpAddress>& sorted, std::uint16_t port) {
  const auto v6 = std::find_if(sorted.begin(), sorted.end(), [](const auto& ip) { return ip.v6; });
  std::vector<Target> targets;
  targets.reserve(sorted.size());
  auto next4 = sorted.begin();
  auto next6 = v6;
  while (next4 != v6 || next6 != sorted.end()) {
    if (next6 != sorted.end()) targets.push_back(make_target(*next6++, port));
    if (next4 != v6) targets.push_back(make_target(*next4++, port));
  }
  return targets;
}

bool same(const Target& a, const Target& b) {
  return a.hvsock_port == b.hvsock_port && a.address.length == b.address.length &&
         std::memcmp(&a.address.storage, &b.address.storage, a.address.length) == 0;
}

bool same(const std::vector<Target>& a, const std::vector<Target>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Target& x, const Target& y) { return same(x, y); });
}

// The target for a health check, with a port; false when there is none.
bool fill_in_port(Target& target, std::uint16_t port) {
  const int family = target.address.family();
  if (family != AF_INET && family != AF_INET6) return true;
  // As the family says.
  in_port_t& at = family == AF_INET6
                      ? reinterpret_cast<sockaddr_in6&>(target.address.storage).sin6_port
                      : reinterpret_cast<sockaddr_in&>(target.address.storage).sin_port;
  if (at == 0) at = htons(port);
  return at != 0;
}

}  // namespace

Directory::Directory(asio::io_context& context, Resolver& resolver, HealthChecker& health)
    : context_(context), resolver_(resolver), health_(health) {
  resolver_.on_change(
      [this](const std::string& name, const std::vector<IpAddress>&) { resolved(name); });
}

Directory::~Directory() {
  resolver_.on_change({});
  *alive_ = false;
}

void Directory::on_change(std::function<void()> handler) {
  changed_ = std::move(handler);
}

void Directory::update(const std::vector<RouteConfig>& routes) {
  std::vector<std::string> names;
  for (const RouteConfig& route : routes) {
    for (const UpstreamConfig& upstream : route.upstreams) {
      if (const std::string* name = name_of(upstream.address)) names.push_back(*name);
    }
  }
  resolver_.watch(names);

  std::map<std::string, std::shared_ptr<RouteState>> states;
  std::map<std::string, std::shared_ptr<Upstream>> upstreams;
  std::vector<std::shared_ptr<const Route>> made;
  made.reserve(routes.size());
  for (const RouteConfig& config : routes) {
    auto& state = states[config.label];
    if (!state) {
      const auto before = states_.find(config.label);
      state = before != states_.end() ? before->second : std::make_shared<RouteState>();
    }
    Route route{config, state, {}};
    for (const UpstreamConfig& upstream : config.upstreams) {
      const std::string key = config.label + ' ' + to_string(upstream.address);
      auto& known = upstreams[key];
      if (!known) {
        const auto before = upstreams_.find(key);
        known = before != upstreams_.end() ? before->second : std::make_shared<Upstream>(key);
      }
      route.upstreams.push_back({upstream, known, find_targets(upstream.address)});
    }
    made.push_back(std::make_shared<const Route>(std::move(route)));
  }
  states_ = std::move(states);
  upstreams_ = std::move(upstreams);
  routes_ = std::move(made);
  feed_health();
}

std::vector<Target> Directory::find_targets(const Address& address) const {
  if (const std::string* name = name_of(address)) {
    return interleaved(resolver_.addresses(*name), std::get<TcpAddress>(address.value).port);
  }
  if (const auto* tcp = std::get_if<TcpAddress>(&address.value)) {
    const std::size_t percent = tcp->host.find('%');
    if (percent != std::string::npos) return zone_target(*tcp, percent);
  }
  if (const auto* hybrid = std::get_if<HybridVsockAddress>(&address.value)) {
    return {{net::unix_socket_address(hybrid->path), hybrid->port}};
  }
  const auto where = net::to_socket_address(address);
  return where ? std::vector<Target>{{*where}} : std::vector<Target>{};
}

void Directory::resolved(const std::string& name) {
  bool changed = false;
  for (auto& route : routes_) {
    for (std::size_t i = 0; i < route->upstreams.size(); ++i) {
      const UpstreamView& view = route->upstreams[i];
      const std::string* watched = name_of(view.config.address);
      if (watched == nullptr || *watched != name) continue;
      auto targets = find_targets(view.config.address);
      if (same(targets, view.targets)) continue;
      // Snapshots have the old one.
      auto fresh = std::make_shared<Route>(*route);
      fresh->upstreams[i].targets = std::move(targets);
      route = std::move(fresh);
      changed = true;
    }
  }
  if (!changed) return;
  feed_health();
  if (telling_) return;
  telling_ = true;
  asio::post(context_, [this, alive = alive_] {
    if (!*alive) return;
    telling_ = false;
    const auto call = changed_;  // it may be replaced by what it does
    if (call) call();
  });
}

void Directory::feed_health() {
  std::vector<HealthChecker::Check> checks;
  for (const auto& route : routes_) {
    if (!route->config.health || route->config.health->interval.never) continue;
    for (const UpstreamView& view : route->upstreams) {
      HealthChecker::Check check{view.state, *route->config.health, {}};
      for (Target target : view.targets) {
        if (fill_in_port(target, route->config.health_port)) check.targets.push_back(target);
      }
      checks.push_back(std::move(check));
    }
  }
  health_.update(std::move(checks));
}

void Directory::when_ready(std::chrono::milliseconds limit, std::function<void()> then) {
  resolver_.when_ready(limit, std::move(then));
}

}  // namespace causeway::gateway
