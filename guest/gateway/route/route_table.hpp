// SPDX-License-Identifier: Apache-2.0
// Theory of operation: from a ClientHello to a route.
//
// The table is immutable: built once from a configuration, then only read, by all workers at once.
// A name is looked up exactly, then as *.PARENT (one label, RFC 6125 6.4.3), then under the base
// domains, then the default. Of several routes with the same name the first whose ALPN list the
// client meets is taken; a route without a list takes every client, so it comes last. A name that
// has routes, none of which the client meets, is not looked up any further: the default is for
// names that have none.
//
// Under a base domain the one label in front is <id>[-[port][s|g]]: `s` passes TLS through, `g`
// terminates and offers ALPN h2, nothing terminates; the port is 80 by default, 443 with `s`. A
// label that is not of the grammar, or whose id no application has, goes to the default.
//
// The client chooses the port, so where an application's host is this machine it could choose that
// of our own listener, and a single connection would go round until descriptors run out:
// forbidden_port.
//
// A lookup hashes views of the client's name: it allocates nothing and takes no lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/result.hpp"
#include "guest/gateway/config.hpp"
#include "guest/gateway/counters.hpp"
#include "guest/gateway/sniff/client_hello.hpp"

namespace causeway::gateway {

// <id>[-[port][s|g]]
struct ApplicationName {
  std::string_view id;
  std::optional<std::uint16_t> port;  // as written; 1..65535, no leading zero
  enum class Mode : std::uint8_t { terminate, passthrough, terminate_h2 } mode = Mode::terminate;
  [[nodiscard]] std::uint16_t port_or_default() const {
    return port.value_or(mode == Mode::passthrough ? 443 : 80);
  }
};
// `label` is one label in lower case. None: not of the grammar ("gs", "sg", a second '-', no id,
// nothing behind the '-').
std::optional<ApplicationName> parse_application_name(std::string_view label);

struct RouteMatch {
  std::uint32_t route = 0;  // index into the snapshot's routes
  std::uint16_t port = 0;   // != 0: replaces the port of the upstream's addresses
  // Whether TLS ends here, and then what ALPN is offered: the route's protocols, or h2 alone, which
  // an application's client asks for in its name.
  enum class Mode : std::uint8_t { passthrough, terminate, terminate_h2 } mode = Mode::passthrough;
};

class RouteTable {
 public:
  // `config` has passed the checks. Routes are numbered as effective_routes() has them.
  explicit RouteTable(const GatewayConfig& config);

  // The route, or why there is none: no_name, unknown_name, no_protocol, forbidden_port. Without
  // any certificate an application's name without `s` is answered unknown_name as well.
  struct Found {
    std::optional<RouteMatch> match;
    End reason = End::unknown_name;
  };
  [[nodiscard]] Found find(const ClientHello& hello) const;
  // The default route that takes what is no TLS, if there is one.
  [[nodiscard]] std::optional<RouteMatch> find_non_tls() const;

 private:
  struct TextHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const noexcept {
      return std::hash<std::string_view>{}(text);
    }
  };
  template <class T>
  using TextMap = std::unordered_map<std::string, T, TextHash, std::equal_to<>>;

  struct Named {
    std::uint32_t route = 0;
    std::vector<std::string> alpn;  // empty: any client
    RouteMatch::Mode mode = RouteMatch::Mode::passthrough;
  };
  using Routes = std::vector<Named>;  // of one name, at least one; those without a list last
  struct Application {
    std::uint32_t route = 0;
    std::vector<std::uint16_t> ports;   // sorted; empty: any
    std::vector<std::uint16_t> denied;  // sorted; where a host is us, our own listeners' ports
    bool terminates = false;            // there is a certificate
  };

  void add(const std::string& name, const Named& named);
  static Found pick(const Routes& routes, const ClientHello& hello);
  static Found pick(const Application& application, const ApplicationName& name);

  TextMap<Routes> exact_;
  TextMap<Routes> wildcard_;  // by what stands behind "*."
  TextMap<TextMap<Application>> base_domains_;
  Routes default_;
  std::optional<RouteMatch> non_tls_;
};

}  // namespace causeway::gateway
