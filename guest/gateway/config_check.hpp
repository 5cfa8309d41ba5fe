// SPDX-License-Identifier: Apache-2.0
// The rules of the gateway's configuration, for config.cpp alone. What concerns one value is a
// function of its text; what concerns one item of a list, or items among each other, is checked as
// each item is read, so that the error shows the later of the two places.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "common/result.hpp"
#include "guest/gateway/config.hpp"

namespace causeway::gateway {

// A host name as a ClientHello may have it: labels of letters, digits and '-' (RFC 1123 2.1), 63
// bytes each, 253 in all; returned in lower case without a trailing dot. No IP address (RFC 6066
// 3).
Result<std::string> parse_host_name(std::string_view text);
// The same, or "*." in front of one, or "default".
Result<std::string> parse_route_name(std::string_view text);

struct NamedAddress {
  std::string name;  // a route's
  Address address;   // an upstream's
};
Result<NamedAddress> parse_named_address(std::string_view text);  // NAME=ADDR

Result<void> check_listener_address(const Address& address);
Result<void> check_upstream_address(const Address& address);
Result<void> check_application_id(std::string_view text);
Result<void> check_application_host(std::string_view text);  // a name or an IP literal
Result<void> check_alpn(std::string_view text);
Result<void> check_dns_server(std::string_view text);

// An application's upstream: tcp:HOST:PORT, with PORT 0 until a client's name says it.
Address application_address(const std::string& host, std::uint16_t port = 0);

// True when a connection to `upstream` arrives at `listener`, as far as the two texts can tell: the
// same address, or a loopback one where the listener takes every address of that family.
bool leads_to(const Address& upstream, const Address& listener);

// The routes of --passthrough, or of --terminate: one for each name, in the order of the first
// mention.
std::vector<RouteConfig> passthrough_routes(const GatewayConfig& config);
std::vector<RouteConfig> terminate_routes(const GatewayConfig& config);
// The route of --upstream, where it is given.
std::vector<RouteConfig> upstream_routes(const GatewayConfig& config);
// The route of an application.
RouteConfig application_route(const BaseDomainConfig& base, const ApplicationConfig& application);

// Of one item.
Result<void> check_upstreams(const RouteConfig& route);
Result<void> check_application(const ApplicationConfig& application);
Result<void> check_listener(const ListenerConfig& listener);
// No upstream of `routes`, which are effective ones, is a listener of ours.
Result<void> check_no_loop(const std::vector<RouteConfig>& routes,
                           const std::vector<ListenerConfig>& listeners);

// Which names and listeners are taken, as items are read. `where` is the item's place for messages:
// "routes[1]".
class Claims {
 public:
  Result<void> add_route(const RouteConfig& route, const std::string& where);
  Result<void> add_non_tls(const RouteConfig& route, const std::string& where);
  Result<void> add_base_domain(const BaseDomainConfig& base, const std::string& where);
  Result<void> add_listener(const Address& address);

 private:
  struct Below {
    std::string label;  // "*" or one label
    std::string where;
  };
  struct Base {
    std::string where;
    std::unordered_set<std::string> ids;
  };
  Result<void> add_name(const std::string& name, const RouteConfig& route,
                        const std::string& where);

  std::unordered_map<std::string, std::string> taken_;   // NAME\nALPN -> where
  std::unordered_multimap<std::string, Below> parents_;  // by what stands behind the first label
  std::unordered_map<std::string, Base> bases_;
  std::string non_tls_;  // where
  std::unordered_set<std::string> listeners_;
};

}  // namespace causeway::gateway
