// SPDX-License-Identifier: Apache-2.0
#include "guest/gateway/config_check.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <vector>

#include "common/config/text.hpp"
#include "guest/gateway/route/route_table.hpp"

namespace causeway::gateway {

namespace {

constexpr std::size_t kMaxName = 253;
constexpr std::size_t kMaxLabel = 63;
constexpr std::size_t kLongestSuffix = std::string_view("-65535s").size();
constexpr std::string_view kWildcard = "*.";

Error wrong(std::string message) {
  return Error{std::move(message), EINVAL};
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_lower(char c) {
  return c >= 'a' && c <= 'z';
}

char to_lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

// What is wrong with one label in lower case; empty: nothing.
std::string label_fault(std::string_view label) {
  if (label.empty()) return "an empty label";
  if (label.size() > kMaxLabel) return "a label of more than 63 bytes";
  if (label.front() == '-' || label.back() == '-') return "a label that begins or ends with '-'";
  const auto bad = std::find_if(label.begin(), label.end(),
                                [](char c) { return !is_lower(c) && !is_digit(c) && c != '-'; });
  if (bad == label.end()) return {};
  return in_quotes(std::string_view(&*bad, 1)) + ", where only letters, digits and '-' may be";
}

std::optional<IpAddress> literal(const std::string& host) {
  const auto ip = parse_ip(host);
  return ip ? std::optional(*ip) : std::nullopt;
}

std::string as_tcp(std::string_view host, std::string_view port) {
  const bool v6 = host.find(':') != std::string_view::npos;
  std::string text = v6 ? "tcp:[" : "tcp:";
  text += host;
  text += v6 ? "]:" : ":";
  return text.append(port);
}

bool is_any(const IpAddress& ip) {
  return std::all_of(ip.bytes.begin(), ip.bytes.end(), [](std::uint8_t byte) { return byte == 0; });
}

bool is_loopback(const IpAddress& ip) {
  if (!ip.v6) return ip.bytes[0] == 127;
  IpAddress one{true, {}};
  one.bytes.back() = 1;
  return ip == one;
}

Result<void> check_vsock_port(std::uint32_t port) {
  // VMADDR_PORT_ANY is all ones (linux/vm_sockets.h).
  if (port == 0 || port == 0xffff'ffffU) return wrong("a vsock port is 1 to 4294967294");
  return {};
}

Result<void> check_tcp_port(std::uint32_t port) {
  if (port == 0) return wrong("a port is 1 to 65535");
  return {};
}

template <class T>
bool has_twins(std::vector<T> list) {
  std::sort(list.begin(), list.end());
  return std::adjacent_find(list.begin(), list.end()) != list.end();
}

Result<void> too_many(std::string_view what, std::size_t count) {
  return wrong(std::to_string(count) + " " + std::string(what) + ", the most is " +
               std::to_string(Candidates::kMax));
}

// One route for each name of `list`, which has NAME=ADDR.
std::vector<RouteConfig> named_routes(const std::vector<std::string>& list, RouteMode mode) {
  std::vector<RouteConfig> routes;
  std::unordered_map<std::string, std::size_t> index;
  for (const std::string& text : list) {
    auto parsed = parse_named_address(text);
    if (!parsed) continue;  // refused by the table
    const auto [place, fresh] = index.emplace(parsed->name, routes.size());
    if (fresh) {
      RouteConfig& route = routes.emplace_back();
      route.mode = mode;
      route.label = parsed->name;
      route.names = {std::move(parsed->name)};
    }
    UpstreamConfig upstream;
    upstream.address = std::move(parsed->address);
    routes[place->second].upstreams.push_back(std::move(upstream));
  }
  return routes;
}

}  // namespace

Result<std::string> parse_host_name(std::string_view text) {
  std::string name(text);
  std::transform(name.begin(), name.end(), name.begin(), to_lower);
  if (name.size() > 1 && name.back() == '.') name.pop_back();
  const auto refuse = [&](const std::string& what) -> Result<std::string> {
    return wrong(in_quotes(text) + " is no host name: it has " + what);
  };
  if (name.size() > kMaxName) return refuse("more than 253 bytes");
  std::string_view rest = name;
  std::string_view label;
  while (true) {
    const std::size_t dot = rest.find('.');
    label = rest.substr(0, dot);
    if (const std::string fault = label_fault(label); !fault.empty()) return refuse(fault);
    if (dot == std::string_view::npos) break;
    rest.remove_prefix(dot + 1);
  }
  if (std::all_of(label.begin(), label.end(), is_digit)) {
    return wrong(in_quotes(text) +
                 " is no host name: its last label is a number, as in an IP "
                 "address, which no client sends as a name");
  }
  return name;
}

Result<std::string> parse_route_name(std::string_view text) {
  if (text == kDefaultName) return std::string(text);
  if (text == "*") return wrong("\"*\" is no name: write \"default\" for what has no other route");
  const bool wildcard = text.starts_with(kWildcard);
  const std::string_view host = wildcard ? text.substr(kWildcard.size()) : text;
  if (host.find('*') != std::string_view::npos) {
    return wrong(in_quotes(text) +
                 ": a '*' stands for one whole label in front, as in *.example.com");
  }
  auto name = parse_host_name(host);
  if (!name || !wildcard) return name;
  // With one more label in front there has to be room for the client's name.
  if (name->size() + kWildcard.size() > kMaxName) {
    return wrong(in_quotes(text) + " is no host name: it has more than 253 bytes");
  }
  return std::string(kWildcard) + *name;
}

Result<NamedAddress> parse_named_address(std::string_view text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos) {
    return wrong(in_quotes(text) +
                 ": write NAME=ADDRESS, as in www.example.com=tcp:127.0.0.1:8443");
  }
  auto name = parse_route_name(text.substr(0, equals));
  if (!name) return name.error();
  auto address = parse_address(text.substr(equals + 1));
  if (!address) return address.error();
  if (auto good = check_upstream_address(*address); !good) return good.error();
  return NamedAddress{*std::move(name), *std::move(address)};
}

Result<void> check_listener_address(const Address& address) {
  if (const auto* tcp = std::get_if<TcpAddress>(&address.value)) {
    // A zone is looked at when the listener opens.
    if (!literal(tcp->host.substr(0, tcp->host.find('%')))) {
      return wrong(in_quotes(tcp->host) +
                   ": a listener has an IP address, 0.0.0.0 or [::] for all");
    }
    return check_tcp_port(tcp->port);
  }
  if (const auto* vsock = std::get_if<VsockAddress>(&address.value)) {
    return check_vsock_port(vsock->port);
  }
  if (std::holds_alternative<HybridVsockAddress>(address.value)) {
    return wrong("a listener is tcp:IP:PORT, unix:/PATH, vsock:any:PORT or fd:N, not hvsock");
  }
  return {};
}

Result<void> check_upstream_address(const Address& address) {
  if (const auto* tcp = std::get_if<TcpAddress>(&address.value)) return check_tcp_port(tcp->port);
  if (std::holds_alternative<FdAddress>(address.value)) {
    return wrong("an upstream cannot be an inherited descriptor: each connection needs its own");
  }
  std::uint32_t port = 1;
  if (const auto* vsock = std::get_if<VsockAddress>(&address.value)) {
    if (vsock->cid == kVsockCidAny) return wrong("an upstream needs a CID: vsock:CID:PORT");
    port = vsock->port;
  }
  if (const auto* hybrid = std::get_if<HybridVsockAddress>(&address.value)) port = hybrid->port;
  return check_vsock_port(port);
}

Result<void> check_application_id(std::string_view text) {
  // A '-' would end it in the client's name, which has to have room for -PORTs.
  const bool good =
      std::all_of(text.begin(), text.end(), [](char c) { return is_lower(c) || is_digit(c); });
  if (!good || text.empty() || text.size() + kLongestSuffix > kMaxLabel) {
    return wrong(in_quotes(text) + " is no application id: 1 to " +
                 std::to_string(kMaxLabel - kLongestSuffix) + " of a-z and 0-9");
  }
  return {};
}

Result<void> check_application_host(std::string_view text) {
  if (parse_address(as_tcp(text, "1"))) return {};
  return wrong(in_quotes(text) + " is neither a host name nor an IP address");
}

Result<void> check_alpn(std::string_view text) {
  if (text.empty() || text.size() > 255) {
    return wrong("a protocol's name has 1 to 255 bytes (RFC 7301 3.1)");
  }
  return {};
}

Result<void> check_dns_server(std::string_view text) {
  if (parse_ip(text)) return {};
  const std::string as_address = "tcp:" + std::string(text);
  if (const auto address = parse_address(as_address)) {
    const auto& tcp = std::get<TcpAddress>(address->value);
    if (literal(tcp.host) && tcp.port != 0) return {};
  }
  return wrong(in_quotes(text) + ": write IP, IP:PORT or [IPV6]:PORT, as in 10.0.0.53");
}

Address application_address(const std::string& host, std::uint16_t port) {
  return Address{TcpAddress{host, port}};
}

bool leads_to(const Address& upstream, const Address& listener) {
  if (std::holds_alternative<FdAddress>(listener.value)) return false;
  if (upstream == listener) return true;
  const auto* to = std::get_if<TcpAddress>(&upstream.value);
  const auto* at = std::get_if<TcpAddress>(&listener.value);
  if (!to || !at || to->port != at->port) return false;
  const auto at_ip = literal(at->host);
  if (!at_ip) return false;
  if (to->host == "localhost") return is_any(*at_ip) || is_loopback(*at_ip);
  const auto to_ip = literal(to->host);
  if (!to_ip || to_ip->v6 != at_ip->v6) return false;
  return *to_ip == *at_ip || (is_any(*at_ip) && is_loopback(*to_ip));
}

std::vector<RouteConfig> passthrough_routes(const GatewayConfig& config) {
  return named_routes(config.passthrough, RouteMode::passthrough);
}

std::vector<RouteConfig> terminate_routes(const GatewayConfig& config) {
  return named_routes(config.terminate, RouteMode::terminate);
}

std::vector<RouteConfig> upstream_routes(const GatewayConfig& config) {
  if (config.upstream.empty()) return {};
  RouteConfig route;
  route.names = {std::string(kDefaultName)};
  route.label = kDefaultName;
  route.mode = RouteMode::terminate;
  for (const Address& address : config.upstream) {
    UpstreamConfig upstream;
    upstream.address = address;
    route.upstreams.push_back(std::move(upstream));
  }
  return {std::move(route)};
}

RouteConfig application_route(const BaseDomainConfig& base, const ApplicationConfig& application) {
  RouteConfig route;
  route.application = true;
  for (const std::string& host : application.hosts) {
    UpstreamConfig upstream;
    upstream.address = application_address(host);
    route.upstreams.push_back(std::move(upstream));
  }
  route.choice = application.choice;
  route.race = application.race;
  route.race_given = application.race_given;
  route.max_connections = application.max_connections;
  route.proxy_protocol = application.proxy_protocol;
  route.label = application.id + "." + base.name;
  if (!application.ports.empty()) {
    route.health = application.health;
    route.health_port = static_cast<std::uint16_t>(application.ports.front());
  }
  return route;
}

Result<void> check_upstreams(const RouteConfig& route) {
  if (route.upstreams.empty()) return wrong("a route needs an upstream: [{\"address\": ADDR}]");
  if (route.upstreams.size() > Candidates::kMax) {
    return too_many("upstreams", route.upstreams.size());
  }
  std::set<std::string> seen;
  for (const UpstreamConfig& upstream : route.upstreams) {
    const std::string text = to_string(upstream.address);
    if (!seen.insert(text).second) return wrong(text + " is there twice; a weight gives it more");
  }
  return {};
}

Result<void> check_application(const ApplicationConfig& application) {
  if (application.hosts.size() > Candidates::kMax) {
    return too_many("hosts", application.hosts.size());
  }
  if (has_twins(application.hosts)) return wrong("a host is there twice");
  return {};
}

Result<void> check_listener(const ListenerConfig& listener) {
  if (!listener.proxy_protocol || !listener.trusted.empty()) return {};
  if (!std::holds_alternative<TcpAddress>(listener.address.value)) return {};
  return wrong(
      "a tcp listener with proxy_protocol needs trusted, the networks of those who may "
      "say who the client is: [\"10.0.0.0/8\"]");
}

Result<void> check_no_loop(const std::vector<RouteConfig>& routes,
                           const std::vector<ListenerConfig>& listeners) {
  for (const RouteConfig& route : routes) {
    for (const UpstreamConfig& upstream : route.upstreams) {
      for (const ListenerConfig& listener : listeners) {
        if (!leads_to(upstream.address, listener.address)) continue;
        return wrong("the upstream " + to_string(upstream.address) + " of \"" +
                     route.names.front() + "\" is this gateway's own listener " +
                     to_string(listener.address));
      }
    }
  }
  return {};
}

Result<void> Claims::add_name(const std::string& name, const RouteConfig& route,
                              const std::string& where) {
  static const std::vector<std::string> kAnyProtocol{""};
  const bool any = route.alpn.empty();
  for (const std::string& protocol : any ? kAnyProtocol : route.alpn) {
    const auto [taken, fresh] = taken_.emplace(name + "\n" + protocol, where);
    if (fresh) continue;
    const std::string what =
        any ? "\"" + name + "\"" : "\"" + name + "\" with ALPN " + in_quotes(protocol);
    if (taken->second == where) return wrong(what + " is there twice");
    return wrong("overlapping routes: " + taken->second + " has " + what + " already");
  }
  const std::size_t dot = name.find('.');
  if (dot == std::string::npos) return {};
  const std::string label = name.substr(0, dot);
  const std::string parent = name.substr(dot + 1);
  parents_.emplace(parent, Below{label, where});
  const auto base = bases_.find(parent);
  if (base == bases_.end()) return {};
  if (label == "*") {
    return wrong("overlapping routes: \"" + name + "\" would take every application of " +
                 base->second.where);
  }
  const auto parsed = parse_application_name(label);
  if (parsed && base->second.ids.contains(std::string(parsed->id))) {
    return wrong("overlapping routes: \"" + name + "\" is the application \"" +
                 std::string(parsed->id) + "\" of " + base->second.where + " already");
  }
  return {};
}

Result<void> Claims::add_route(const RouteConfig& route, const std::string& where) {
  for (const std::string& name : route.names) {
    if (auto good = add_name(name, route, where); !good) return good;
  }
  return {};
}

Result<void> Claims::add_non_tls(const RouteConfig& route, const std::string& where) {
  if (!route.non_tls) return {};
  if (std::find(route.names.begin(), route.names.end(), kDefaultName) == route.names.end()) {
    return wrong("what is no TLS has no name: only a route named \"default\" can take it");
  }
  if (route.mode == RouteMode::terminate) {
    return wrong("a route of mode terminate relays what comes inside TLS, nothing else");
  }
  if (!non_tls_.empty()) {
    return wrong("overlapping routes: " + non_tls_ + " takes what is no TLS already");
  }
  non_tls_ = where;
  return {};
}

Result<void> Claims::add_listener(const Address& address) {
  std::string text = to_string(address);
  if (!listeners_.insert(text).second) return wrong(text + " is there twice");
  return {};
}

Result<void> Claims::add_base_domain(const BaseDomainConfig& base, const std::string& where) {
  Base fresh{where, {}};
  for (const ApplicationConfig& application : base.applications) {
    if (application.id.size() + kLongestSuffix + 1 + base.name.size() > kMaxName) {
      return wrong("too long: with the id \"" + application.id +
                   "\" and a port in front it has more than 253 bytes");
    }
    fresh.ids.insert(application.id);
  }
  const auto [place, added] = bases_.emplace(base.name, std::move(fresh));
  if (!added) return wrong("\"" + base.name + "\" is " + place->second.where + " already");
  const auto [first, last] = parents_.equal_range(base.name);
  for (auto it = first; it != last; ++it) {
    const Below& below = it->second;
    if (below.label == "*") {
      return wrong("overlapping routes: \"*." + base.name + "\" of " + below.where +
                   " would take every application");
    }
    const auto parsed = parse_application_name(below.label);
    if (parsed && place->second.ids.contains(std::string(parsed->id))) {
      return wrong("overlapping routes: " + below.where + " has \"" + below.label + "." +
                   base.name + "\", the application \"" + std::string(parsed->id) + "\", already");
    }
  }
  return {};
}

}  // namespace causeway::gateway
