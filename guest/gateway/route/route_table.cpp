// SPDX-License-Identifier: Apache-2.0
#include "guest/gateway/route/route_table.hpp"

#include <algorithm>

#include "common/config/text.hpp"
#include "guest/gateway/config_check.hpp"

namespace causeway::gateway {

namespace {

constexpr std::string_view kWildcard = "*.";
constexpr std::size_t kMaxLabel = 63;  // RFC 1035 2.3.4

bool is_id(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
  });
}

// The ports of our own listeners that a connection to one of `hosts` would arrive at, sorted.
std::vector<std::uint16_t> own_ports(const std::vector<ListenerConfig>& listeners,
                                     const std::vector<std::string>& hosts) {
  std::vector<std::uint16_t> ports;
  for (const ListenerConfig& listener : listeners) {
    const auto* tcp = std::get_if<TcpAddress>(&listener.address.value);
    if (!tcp) continue;
    for (const std::string& host : hosts) {
      if (!leads_to(application_address(host, tcp->port), listener.address)) continue;
      ports.push_back(tcp->port);
      break;
    }
  }
  std::sort(ports.begin(), ports.end());
  return ports;
}

bool has(const std::vector<std::uint16_t>& sorted, std::uint16_t port) {
  return std::binary_search(sorted.begin(), sorted.end(), port);
}

RouteMatch::Mode mode_of(const RouteConfig& route) {
  return route.mode == RouteMode::terminate ? RouteMatch::Mode::terminate
                                            : RouteMatch::Mode::passthrough;
}

RouteMatch::Mode mode_of(ApplicationName::Mode mode) {
  switch (mode) {
    case ApplicationName::Mode::passthrough:
      return RouteMatch::Mode::passthrough;
    case ApplicationName::Mode::terminate:
      return RouteMatch::Mode::terminate;
    case ApplicationName::Mode::terminate_h2:
      break;
  }
  return RouteMatch::Mode::terminate_h2;
}

}  // namespace

std::optional<ApplicationName> parse_application_name(std::string_view label) {
  using Mode = ApplicationName::Mode;
  if (label.size() > kMaxLabel) return std::nullopt;
  const std::size_t dash = label.find('-');
  ApplicationName name;
  name.id = label.substr(0, dash);
  if (!is_id(name.id)) return std::nullopt;
  if (dash == std::string_view::npos) return name;
  std::string_view rest = label.substr(dash + 1);
  if (rest.empty()) return std::nullopt;
  if (rest.back() == 's' || rest.back() == 'g') {
    name.mode = rest.back() == 's' ? Mode::passthrough : Mode::terminate_h2;
    rest.remove_suffix(1);
    if (rest.empty()) return name;
  }
  const auto port = parse_decimal(rest, 65535);
  if (!port || rest.front() == '0') return std::nullopt;
  name.port = static_cast<std::uint16_t>(*port);
  return name;
}

RouteTable::RouteTable(const GatewayConfig& config) {
  const std::vector<RouteConfig> routes = config.effective_routes();
  std::size_t applications = 0;
  for (const BaseDomainConfig& base : config.base_domains) {
    applications += base.applications.size();
  }
  const std::size_t named = routes.size() - applications;
  std::uint32_t index = 0;
  for (; index < named; ++index) {
    const RouteConfig& route = routes[index];
    if (route.non_tls && !non_tls_) non_tls_ = RouteMatch{.route = index};
    for (const std::string& name : route.names) {
      add(name, Named{index, route.alpn, mode_of(route)});
    }
  }
  const std::vector<ListenerConfig> listeners = config.all_listeners();
  const bool terminates = !config.all_certificates().empty();
  for (const BaseDomainConfig& base : config.base_domains) {
    auto& known = base_domains_[base.name];
    for (const ApplicationConfig& application : base.applications) {
      Application& entry = known[application.id];
      entry.route = index++;
      entry.terminates = terminates;
      entry.denied = own_ports(listeners, application.hosts);
      for (const std::uint32_t port : application.ports) {
        entry.ports.push_back(static_cast<std::uint16_t>(port));
      }
      std::sort(entry.ports.begin(), entry.ports.end());
    }
  }
}

void RouteTable::add(const std::string& name, const Named& named) {
  Routes* routes = &default_;
  if (name.starts_with(kWildcard)) {
    routes = &wildcard_[name.substr(kWildcard.size())];
  } else if (name != kDefaultName) {
    routes = &exact_[name];
  }
  // The one without a list stays last.
  const auto place =
      routes->empty() || !routes->back().alpn.empty() ? routes->end() : std::prev(routes->end());
  routes->insert(place, named);
}

RouteTable::Found RouteTable::pick(const Routes& routes, const ClientHello& hello) {
  for (const Named& named : routes) {
    const auto offered = [&](const std::string& protocol) { return hello.offers(protocol); };
    if (named.alpn.empty() || std::any_of(named.alpn.begin(), named.alpn.end(), offered)) {
      return {.match = RouteMatch{.route = named.route, .mode = named.mode}};
    }
  }
  return {.match = std::nullopt, .reason = End::no_protocol};
}

RouteTable::Found RouteTable::pick(const Application& application, const ApplicationName& name) {
  const std::uint16_t port = name.port_or_default();
  const auto& ports = application.ports;
  if ((!ports.empty() && !has(ports, port)) || has(application.denied, port)) {
    return {.match = std::nullopt, .reason = End::forbidden_port};
  }
  // Passing its TLS on to a port that expects plain bytes would be worse than refusing.
  const RouteMatch::Mode mode = mode_of(name.mode);
  if (mode != RouteMatch::Mode::passthrough && !application.terminates) {
    return {.match = std::nullopt, .reason = End::unknown_name};
  }
  return {.match = RouteMatch{.route = application.route, .port = port, .mode = mode}};
}

RouteTable::Found RouteTable::find(const ClientHello& hello) const {
  const std::string_view name = hello.server_name;
  if (!name.empty()) {
    if (const auto found = exact_.find(name); found != exact_.end()) {
      return pick(found->second, hello);
    }
    if (const std::size_t dot = name.find('.'); dot != std::string_view::npos) {
      const std::string_view parent = name.substr(dot + 1);
      if (const auto found = wildcard_.find(parent); found != wildcard_.end()) {
        return pick(found->second, hello);
      }
      if (const auto base = base_domains_.find(parent); base != base_domains_.end()) {
        if (const auto parsed = parse_application_name(name.substr(0, dot))) {
          const auto found = base->second.find(parsed->id);
          if (found != base->second.end()) return pick(found->second, *parsed);
        }
      }
    }
  }
  if (!default_.empty()) return pick(default_, hello);
  return {.match = std::nullopt, .reason = name.empty() ? End::no_name : End::unknown_name};
}

std::optional<RouteMatch> RouteTable::find_non_tls() const {
  return non_tls_;
}

}  // namespace causeway::gateway
