// SPDX-License-Identifier: Apache-2.0
// The gateway's configuration: flags for the common case, the same and more in a file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/config/option_table.hpp"
#include "common/log.hpp"
#include "common/net/address.hpp"
#include "common/net/proxy_protocol.hpp"
#include "common/units.hpp"
#include "guest/gateway/upstream/upstream.hpp"

namespace causeway::gateway {

inline constexpr std::string_view kDefaultName =
    "default";  // a route's name for whatever has no other

struct ListenerConfig {
  Address address;
  std::optional<net::ProxyVersions> proxy_protocol;  // none: no PROXY header is read
  std::vector<Cidr> trusted;  // who may send PROXY headers; empty with a tcp listener is an error
  friend bool operator==(const ListenerConfig&, const ListenerConfig&) = default;
};

enum class RouteMode : std::uint8_t { passthrough, terminate };

enum class TlsVersion : std::uint8_t { v1_2, v1_3 };
// optional: a client may have no certificate, but one that it presents has to verify.
enum class ClientCertificates : std::uint8_t { none, optional, required };

struct CertificateConfig {
  std::string cert;  // a PEM file: the certificate, then its issuers
  std::string key;   // a PEM file; empty: `cert` has both
  friend bool operator==(const CertificateConfig&, const CertificateConfig&) = default;
};

// With mode terminate.
struct TerminateConfig {
  // ALPN, best first. A client that offers none of them is refused, one without ALPN is not. Empty:
  // those of the route's `alpn`, where it has some, or none is negotiated.
  std::vector<std::string> protocols;
  ClientCertificates client_certificates = ClientCertificates::none;
  std::string client_ca;  // a PEM file of authorities
  // TLS to the upstream as well, with its certificate verified.
  bool upstream_tls = false;
  std::string upstream_name;  // asked for and verified; empty: the host of the upstream's address
  std::string upstream_ca;    // a PEM file; empty: the system's authorities
  std::string upstream_cert;  // PEM files, presented to an upstream that asks; empty: none
  std::string upstream_key;
  friend bool operator==(const TerminateConfig&, const TerminateConfig&) = default;
};

struct RouteConfig {
  std::vector<std::string> names;  // host names, *.name, "default"; lower case, no trailing dot
  std::vector<std::string> alpn;   // empty: any client
  RouteMode mode = RouteMode::passthrough;
  bool non_tls = false;  // a default route that also takes what is no TLS; never with terminate
  TerminateConfig terminate;
  std::vector<UpstreamConfig> upstreams;
  Choice choice = Choice::round_robin;
  std::uint32_t race = 3;             // with Choice::race: dialled together
  bool race_given = false;            // the file says it; only inert_settings() asks
  std::uint32_t max_connections = 0;  // 0: no limit
  ProxyOut proxy_protocol = ProxyOut::off;
  std::optional<HealthCheck> health;
  // An application's: where its checks connect, since its addresses have port 0. 0: nothing to
  // check.
  std::uint16_t health_port = 0;
  // An application's: the client's name says whether TLS ends here (route_table.hpp).
  bool application = false;
  // For status and log, set by effective_routes(): the first name with the ALPN list if there is
  // one ("a.example alpn h2,http/1.1"), or ID.BASE. Unique, and the same in whatever order the
  // routes stand.
  std::string label;
  friend bool operator==(const RouteConfig&, const RouteConfig&) = default;
};

struct ApplicationConfig {
  std::string id;                    // one label without '-', lower case
  std::vector<std::string> hosts;    // names or IP literals; the port comes from the client's name
  std::vector<std::uint32_t> ports;  // those that may be asked for; empty: any
  std::uint32_t max_connections = 0;
  Choice choice = Choice::round_robin;
  std::uint32_t race = 3;
  bool race_given = false;
  ProxyOut proxy_protocol = ProxyOut::off;
  std::optional<HealthCheck> health;  // checks the first of `ports`
};

struct BaseDomainConfig {
  std::string name;
  std::vector<ApplicationConfig> applications;
};

struct Timeouts {
  Duration proxy_header{std::chrono::seconds{5}};
  Duration handshake{std::chrono::seconds{5}};
  Duration connect{std::chrono::seconds{5}};
  Duration idle{std::chrono::minutes{10}};
  Duration shutdown{std::chrono::seconds{5}};
  Duration total{std::chrono::hours{5}};
  friend bool operator==(const Timeouts&, const Timeouts&) = default;
};

struct TlsConfig {
  TlsVersion min_version = TlsVersion::v1_2;
  TlsVersion max_version = TlsVersion::v1_3;
  bool tickets = true;
  std::string ticket_keys;  // a file of keys that a fleet shares; empty: random ones, rotated
  // How often the files of certificates, keys and authorities are looked at for a change.
  Duration watch{std::chrono::seconds{5}};
  friend bool operator==(const TlsConfig&, const TlsConfig&) = default;
};

enum class ThreadsModel : std::uint8_t { per_core, shared };

struct GatewayConfig {
  std::vector<Address> listen;            // --listen; become listeners without PROXY protocol
  std::vector<ListenerConfig> listeners;  // from the file; all_listeners() has both
  std::vector<std::string> passthrough;   // --passthrough NAME=ADDR; become routes
  std::vector<std::string> terminate;     // --terminate NAME=ADDR; the same, with TLS ending here
  std::vector<Address> upstream;          // --upstream; a default route with TLS ending here
  std::vector<RouteConfig> routes;        // from the file
  std::vector<BaseDomainConfig> base_domains;

  std::string cert;  // --cert, --key: one certificate; all_certificates() has the others too
  std::string key;
  std::vector<CertificateConfig> certificates;  // from the file
  TlsConfig tls;

  std::uint32_t threads = 0;  // 0: one for each processor that we may use
  ThreadsModel threads_model = ThreadsModel::per_core;
  bool threads_model_given = false;  // a flag or the file says it
  std::optional<bool> rebalance;     // unset: on where there is more than one worker

  Size buffer_size{std::uint64_t{64} * 1024};
  std::optional<Size> splice_after =
      Size{std::uint64_t{64} * 1024};         // unset ("off"): no gate by bytes
  std::optional<Duration> splice_after_time;  // unset: no gate by age
  Timeouts timeouts;
  Duration drain{std::chrono::seconds{30}};
  std::uint32_t max_connections = 0;     // 0: as many as descriptors allow
  std::vector<std::string> dns_servers;  // IP or IP:PORT / [IP]:PORT; empty: the system's

  std::optional<Address> admin;
  log::Level log_level = log::Level::info;

  [[nodiscard]] std::vector<ListenerConfig> all_listeners() const;
  // --cert's first: the first is presented for whatever name no other has.
  [[nodiscard]] std::vector<CertificateConfig> all_certificates() const;
  // `routes`, then one for each name of --passthrough, one for each name of --terminate, one for
  // --upstream, then one for each application of each base domain. Labels are filled in. An
  // application's upstreams are tcp:HOST:0.
  [[nodiscard]] std::vector<RouteConfig> effective_routes() const;
};

// `config` outlives the table, which reads one configuration and no second one.
void add_gateway_options(OptionTable& table, GatewayConfig& config);

// Settings that have no effect as things are, one line each, with the key in front: "rebalance: one
// worker has nobody to ...". Where `config_file` (may be empty) has the key, its place comes first,
// as in an error: "FILE:LINE:COLUMN: KEY: ...". `config` has passed the checks. `workers`: how many
// there will be.
std::vector<std::string> inert_settings(const GatewayConfig& config, unsigned workers,
                                        const std::string& config_file = {});
// The same with the file's text at hand.
std::vector<std::string> inert_settings_of(const GatewayConfig& config, unsigned workers,
                                           std::string_view text, const std::string& file);

}  // namespace causeway::gateway
