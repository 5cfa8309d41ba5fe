// SPDX-License-Identifier: Apache-2.0
#include "guest/gateway/config.hpp"

#include <memory>
#include <utility>

#include "guest/gateway/config_check.hpp"
#include "guest/gateway/config_tls.hpp"

namespace causeway::gateway {

namespace {

using Check = std::function<Result<void>(std::string_view)>;

constexpr std::int64_t kHour = 3'600'000;  // ms

// What the items of the lists share while one configuration is read.
struct Reading {
  GatewayConfig& config;
  Claims claims;
  std::optional<bool> rebalance_flag;
};

std::string item(std::string_view list, std::size_t index) {
  return std::string(list) + "[" + std::to_string(index) + "]";
}

// A string that is stored in the form that `parse` gives it.
Codec<std::string> name_codec(const std::string& pattern,
                              Result<std::string> (*parse)(std::string_view)) {
  Codec<std::string> codec = string_codec();
  codec.type = "host name";
  codec.value_name = "NAME";
  codec.pattern = pattern;
  codec.parse = parse;
  return codec;
}

Check check_address(Result<void> (*check)(const Address&)) {
  return [check](std::string_view text) -> Result<void> {
    const auto address = parse_address(text);
    return address ? check(*address) : Result<void>(address.error());
  };
}

// A check that refuses nothing and notes that the value was given.
Check note(bool& given) {
  return [&given](std::string_view) -> Result<void> {
    given = true;
    return {};
  };
}

std::vector<std::pair<std::string, Choice>> choices() {
  return {{"race", Choice::race},
          {"round_robin", Choice::round_robin},
          {"least_connections", Choice::least_connections}};
}

// What routes and applications have in common.
template <class T>
void describe_balance(OptionGroup& group, T& owner) {
  group.add_choice("choice", owner.choice, choices(),
                   {.doc = "How one of several upstreams is chosen: by turns, the one with the "
                           "fewest connections for its weight, or the first of some that "
                           "answers.",
                    .reloadable = true});
  group.add("race", owner.race,
            {.doc = "With choice race: how many are dialled together.",
             .min = 1,
             .max = static_cast<std::int64_t>(Candidates::kMax),
             .reloadable = true,
             .check = note(owner.race_given)});
  group.add("max_connections", owner.max_connections,
            {.doc = "Connections at once; 0 for no limit.", .reloadable = true});
  group.add_choice(
      "proxy_protocol", owner.proxy_protocol,
      {{"off", ProxyOut::off}, {"v1", ProxyOut::v1}, {"v2", ProxyOut::v2}},
      {.doc = "The PROXY header that tells the upstream who the client is.", .reloadable = true});
}

// A section cannot be absent, so its options are bound to a HealthCheck that is taken away again
// when none of them was given.
template <class T>
void describe_health(OptionGroup& group, T& owner) {
  HealthCheck& health = owner.health.emplace();
  const auto given = std::make_shared<bool>(false);
  const Check noted = [given](std::string_view) -> Result<void> {
    *given = true;
    return {};
  };
  auto& section = group.section("health",
                                "Active checks: a connection is made and closed again. On where "
                                "any of interval, timeout, fall and rise is given.");
  section.add("interval", health.interval,
              {.doc = "Between two checks of an upstream.",
               .min = 10,
               .max = kHour,
               .reloadable = true,
               .check = noted});
  section.add("timeout", health.timeout,
              {.doc = "For a connection to be made.",
               .min = 10,
               .max = kHour,
               .reloadable = true,
               .check = noted});
  section.add("fall", health.fall,
              {.doc = "Failures in a row until the upstream is down.",
               .min = 1,
               .max = 1000,
               .reloadable = true,
               .check = noted});
  section.add("rise", health.rise,
              {.doc = "Successes in a row until it is up again.",
               .min = 1,
               .max = 1000,
               .reloadable = true,
               .check = noted});
  group.add_check("health", [&owner, given]() -> Result<void> {
    if (!*given) owner.health.reset();
    return {};
  });
}

void describe_upstream(OptionGroup& group, UpstreamConfig& upstream) {
  group.add("address", upstream.address,
            {.doc = "tcp:HOST:PORT, where HOST may be a name, unix:/PATH, vsock:CID:PORT or "
                    "hvsock:/PATH:PORT.",
             .required = true,
             .reloadable = true,
             .check = check_address(check_upstream_address)});
  group.add("weight", upstream.weight,
            {.doc = "Its share of the connections, against the other upstreams' weights.",
             .min = 1,
             .max = 256,
             .reloadable = true});
  group.add("drain", upstream.drain,
            {.doc = "Takes no new connections; those that it has go on.", .reloadable = true});
  group.add("max_connections", upstream.max_connections,
            {.doc = "Connections at once; 0 for no limit.", .reloadable = true});
}

void describe_route(OptionGroup& group, RouteConfig& route, Reading& reading) {
  group.add_with("names", route.names,
                 name_codec("^(\\*\\.)?[A-Za-z0-9][A-Za-z0-9.-]*$", parse_route_name),
                 {.doc = "Host names, *.NAME for any one label in front of NAME, or \"default\" "
                         "for what has no other route.",
                  .required = true,
                  .reloadable = true});
  group.add("alpn", route.alpn,
            {.value = "PROTOCOL",
             .doc = "Only clients that offer one of these protocols; by default any client.",
             .reloadable = true,
             .check = check_alpn});
  group.add_choice("mode", route.mode,
                   {{"passthrough", RouteMode::passthrough}, {"terminate", RouteMode::terminate}},
                   {.doc = "passthrough: TLS goes to the upstream as it is. terminate: it ends "
                           "here, and the upstream gets what was inside.",
                    .reloadable = true});
  describe_terminate(group, route);
  group.add("non_tls", route.non_tls,
            {.doc = "A default route that passes TLS through takes what is no TLS as well.",
             .reloadable = true});
  group.add_list<UpstreamConfig>("upstreams", route.upstreams, describe_upstream,
                                 "Where its connections go: 1 to 16 items with address, weight, "
                                 "drain, max_connections.");
  describe_balance(group, route);
  describe_health(group, route);
  const auto where = [&reading] { return item("routes", reading.config.routes.size()); };
  group.add_check("names",
                  [&route, &reading, where] { return reading.claims.add_route(route, where()); });
  group.add_check("non_tls",
                  [&route, &reading, where] { return reading.claims.add_non_tls(route, where()); });
  group.add_check("upstreams", [&route] { return check_upstreams(route); });
}

using Ids = std::unordered_set<std::string>;

void describe_application(OptionGroup& group, ApplicationConfig& application,
                          const std::shared_ptr<Ids>& ids) {
  group.add("id", application.id,
            {.value = "ID",
             .doc = "What clients ask for: ID-PORTs in front of the base domain's name.",
             .required = true,
             .reloadable = true,
             .check = check_application_id});
  group.add("hosts", application.hosts,
            {.value = "HOST",
             .doc = "Names or IP addresses that run it, 16 at most; the port comes from the "
                    "client's name.",
             .required = true,
             .reloadable = true,
             .check = check_application_host});
  group.add("ports", application.ports,
            {.value = "PORT",
             .doc = "The ports that may be asked for; by default any.",
             .min = 1,
             .max = 65535,
             .reloadable = true});
  describe_balance(group, application);
  describe_health(group, application);
  group.add_check("id", [&application, ids]() -> Result<void> {
    if (ids->insert(application.id).second) return {};
    return Error{"\"" + application.id + "\" is there twice", EINVAL};
  });
  group.add_check("hosts", [&application] { return check_application(application); });
}

void describe_base_domain(OptionGroup& group, BaseDomainConfig& base, Reading& reading) {
  const auto ids = std::make_shared<Ids>();
  group.add_with("name", base.name, name_codec("^[A-Za-z0-9][A-Za-z0-9.-]*$", parse_host_name),
                 {.doc = "The part of the clients' names behind ID-PORTs.",
                  .required = true,
                  .reloadable = true});
  group.add_list<ApplicationConfig>(
      "applications", base.applications,
      [ids](OptionGroup& each, ApplicationConfig& application) {
        describe_application(each, application, ids);
      },
      "Items with id, hosts, ports, choice, race, max_connections, proxy_protocol, health.");
  group.add_check("name", [&base, &reading] {
    return reading.claims.add_base_domain(base,
                                          item("base_domains", reading.config.base_domains.size()));
  });
  group.add_check("applications", [&base]() -> Result<void> {
    if (!base.applications.empty()) return {};
    return Error{"a base domain needs an application: [{\"id\": ID, \"hosts\": [HOST]}]", EINVAL};
  });
}

void describe_listener(OptionGroup& group, ListenerConfig& listener, Reading& reading) {
  group.add("address", listener.address,
            {.doc = "tcp:IP:PORT, unix:/PATH, vsock:any:PORT or fd:N.",
             .required = true,
             .check = check_address(check_listener_address)});
  group.add_choice(
      "proxy_protocol", listener.proxy_protocol,
      {{"v1", net::ProxyVersions::v1},
       {"v2", net::ProxyVersions::v2},
       {"any", net::ProxyVersions::any}},
      {.doc = "The PROXY header that has to come first on every connection.", .unset_word = "off"});
  group.add("trusted", listener.trusted,
            {.value = "CIDR",
             .doc = "Networks of those who may send PROXY headers; others are refused. A tcp "
                    "listener with proxy_protocol needs it."});
  group.add_check("address",
                  [&listener, &reading] { return reading.claims.add_listener(listener.address); });
  group.add_check("trusted", [&listener] { return check_listener(listener); });
}

void add_timeout(OptionGroup& section, const std::string& key, Duration& value, std::string doc) {
  // A timeout of nothing would end every connection.
  section.add(key, value, {.doc = std::move(doc), .min = 1, .reloadable = true});
}

void add_timeouts(OptionTable& table, Timeouts& timeouts) {
  auto& section = table.section("timeouts", "Each may be never.");
  add_timeout(section, "proxy_header", timeouts.proxy_header, "For the PROXY header to come.");
  add_timeout(section, "handshake", timeouts.handshake,
              "For the ClientHello to come and, where TLS ends here, for the whole handshake; "
              "from the accept on.");
  add_timeout(section, "connect", timeouts.connect,
              "For an upstream to answer, retries and TLS with it included.");
  add_timeout(section, "idle", timeouts.idle, "Silence of both directions.");
  add_timeout(section, "shutdown", timeouts.shutdown,
              "For a refused client to read its alert and leave.");
  add_timeout(section, "total", timeouts.total, "A connection's whole life.");
}

void add_routing(OptionTable& table, GatewayConfig& config,
                 const std::shared_ptr<Reading>& reading) {
  table.add("listen", config.listen,
            {.doc = "Where clients connect: tcp:IP:PORT, unix:/PATH, vsock:any:PORT or fd:N.",
             .check = check_address(check_listener_address)});
  table.add_list<ListenerConfig>(
      "listeners", config.listeners,
      [reading](OptionGroup& group, ListenerConfig& listener) {
        describe_listener(group, listener, *reading);
      },
      "More listeners, those that take a PROXY header among them.");
  const Check named = [](std::string_view text) -> Result<void> {
    const auto parsed = parse_named_address(text);
    return parsed ? Result<void>() : Result<void>(parsed.error());
  };
  table.add("passthrough", config.passthrough,
            {.value = "NAME=ADDR",
             .doc = "Relays the TLS of clients that ask for NAME to ADDR. NAME may be *.PARENT or "
                    "default; the same NAME again adds an upstream.",
             .reloadable = true,
             .check = named});
  table.add("terminate", config.terminate,
            {.value = "NAME=ADDR",
             .doc = "Ends the TLS of clients that ask for NAME and relays what was inside to ADDR. "
                    "NAME is as in passthrough. Needs a certificate.",
             .reloadable = true,
             .check = named});
  table.add("upstream", config.upstream,
            {.doc = "Ends the TLS of clients that ask for no name of the others, or for none, and "
                    "relays what was inside to ADDR: the same as terminate with the NAME default.",
             .reloadable = true,
             .check = check_address(check_upstream_address)});
  add_certificates(table, config);
  table.add_list<RouteConfig>(
      "routes", config.routes,
      [reading](OptionGroup& group, RouteConfig& route) { describe_route(group, route, *reading); },
      "What passthrough, terminate and upstream can say, and more.");
  table.add_list<BaseDomainConfig>(
      "base_domains", config.base_domains,
      [reading](OptionGroup& group, BaseDomainConfig& base) {
        describe_base_domain(group, base, *reading);
      },
      "Domains under which clients name an application and its port: ID-PORTs.NAME passes TLS "
      "through to PORT (443 by default) of one of the application's hosts. With a certificate, "
      "TLS for ID-PORT.NAME ends here (PORT is 80 by default); so it does for ID-PORTg.NAME, which "
      "offers h2 alone by ALPN.");
}

void add_workers(OptionTable& table, GatewayConfig& config, Reading& reading) {
  table.add("threads", config.threads,
            {.doc = "Worker threads; 0 for one for each processor.", .max = 1024});
  table.add_choice("threads_model", config.threads_model,
                   {{"per_core", ThreadsModel::per_core}, {"shared", ThreadsModel::shared}},
                   {.doc = "per_core: each worker has a tcp listener of its own (SO_REUSEPORT). "
                           "shared: all accept from one.",
                    .check = note(config.threads_model_given)});
  table.add("rebalance", config.rebalance,
            {.doc = "Hand new connections to a less loaded worker; by default where there is more "
                    "than one.",
             .file_only = true});
  // As a flag it takes a value, so that --rebalance false can be said.
  Codec<bool> words = bool_codec();
  words.json = JsonType::string;
  table.add_with("rebalance_flag", reading.rebalance_flag, std::move(words),
                 {.doc = "Hand new connections to a less loaded worker; by default where there is "
                         "more than one.",
                  .flag = "--rebalance",
                  .flag_only = true});
  table.add("buffer_size", config.buffer_size,
            {.doc = "The buffer of a relay's direction once it is busy.",
             .min = 4096,
             .max = 1024 * 1024,
             .reloadable = true});
  auto& splice =
      table.section("splice",
                    "From when on a relay that passes TLS through moves bytes inside the "
                    "kernel, whichever gate comes first.");
  splice.add(
      "after", config.splice_after,
      {.doc = "Once it relayed so much; 0B is at once.", .unset_word = "off", .reloadable = true});
  splice.add("after_time", config.splice_after_time,
             {.doc = "Once it is so old.",
              .unset_word = "off",
              .reloadable = true,
              .check = [](std::string_view text) -> Result<void> {
                if (text == "never") return Error{"\"never\" is written off here", EINVAL};
                return {};
              }});
}

void add_rest(OptionTable& table, GatewayConfig& config) {
  table.add("drain", config.drain,
            {.doc = "How long relays may go on after SIGTERM.", .reloadable = true});
  table.add(
      "max_connections", config.max_connections,
      {.doc = "Connections at once; 0 for as many as descriptors allow.", .reloadable = true});
  auto& dns = table.section("dns", "How the names of upstreams are resolved.");
  dns.add("servers", config.dns_servers,
          {.value = "IP[:PORT]",
           .doc = "DNS servers to ask; by default the system's.",
           .reloadable = true,
           .check = check_dns_server});
  table.add("admin", config.admin,
            {.doc = "Where GET /status and GET /healthz are served: unix:/PATH.",
             .check = check_address([](const Address& address) -> Result<void> {
               if (std::holds_alternative<UnixAddress>(address.value)) return {};
               return Error{"the admin endpoint listens on unix:/PATH only", EINVAL};
             })});
  table.add_choice("log_level", config.log_level,
                   {{"debug", log::Level::debug},
                    {"info", log::Level::info},
                    {"warning", log::Level::warning},
                    {"error", log::Level::error}},
                   {.doc = "The least severe messages to log."});
}

// The rules of routes that flags, or their keys, give. `key` is --passthrough's and so on.
void add_flag_checks(OptionTable& table, const std::shared_ptr<Reading>& reading, const char* key,
                     std::vector<RouteConfig> (*routes_of)(const GatewayConfig&)) {
  table.add_check(key, [reading, key, routes_of]() -> Result<void> {
    for (const RouteConfig& route : routes_of(reading->config)) {
      if (auto good = reading->claims.add_route(route, key); !good) return good;
      if (auto good = check_upstreams(route); !good) {
        return Error{"\"" + route.label + "\": " + good.error().message, EINVAL};
      }
    }
    return {};
  });
  table.add_check(key, [reading, routes_of] {
    return check_has_certificate(routes_of(reading->config), reading->config);
  });
  table.add_check(key, [reading, routes_of] {
    return check_no_loop(routes_of(reading->config), reading->config.all_listeners());
  });
}

// One rule for each key, in the order in which an operator would mend them.
void add_checks(OptionTable& table, GatewayConfig& config,
                const std::shared_ptr<Reading>& reading) {
  table.add_check("rebalance", [reading]() -> Result<void> {
    if (reading->rebalance_flag) reading->config.rebalance = reading->rebalance_flag;
    return {};
  });
  table.add_check("listen", [&config]() -> Result<void> {
    if (!config.listen.empty() || !config.listeners.empty()) return {};
    return Error{"nothing to listen on: --listen ADDR, or listen or listeners in the file", EINVAL};
  });
  table.add_check("listen", [reading]() -> Result<void> {
    for (const Address& address : reading->config.listen) {
      if (auto good = reading->claims.add_listener(address); !good) return good;
    }
    return {};
  });
  table.add_check("passthrough", [&config]() -> Result<void> {
    if (!config.passthrough.empty() || !config.terminate.empty() || !config.upstream.empty() ||
        !config.routes.empty() || !config.base_domains.empty()) {
      return {};
    }
    return Error{
        "no route: --passthrough NAME=ADDR, --terminate NAME=ADDR or --upstream ADDR, or routes or "
        "base_domains in the file",
        EINVAL};
  });
  add_flag_checks(table, reading, "passthrough", passthrough_routes);
  add_flag_checks(table, reading, "terminate", terminate_routes);
  add_flag_checks(table, reading, "upstream", upstream_routes);
  table.add_check("routes", [&config] { return check_has_certificate(config.routes, config); });
  table.add_check("routes",
                  [&config] { return check_no_loop(config.routes, config.all_listeners()); });
}

}  // namespace

std::vector<ListenerConfig> GatewayConfig::all_listeners() const {
  std::vector<ListenerConfig> all;
  for (const Address& address : listen) {
    ListenerConfig listener;
    listener.address = address;
    all.push_back(std::move(listener));
  }
  all.insert(all.end(), listeners.begin(), listeners.end());
  return all;
}

std::vector<CertificateConfig> GatewayConfig::all_certificates() const {
  std::vector<CertificateConfig> all;
  if (!cert.empty()) all.push_back({cert, key});
  all.insert(all.end(), certificates.begin(), certificates.end());
  return all;
}

std::vector<RouteConfig> GatewayConfig::effective_routes() const {
  std::vector<RouteConfig> all = routes;
  for (RouteConfig& route : all) {
    // Names and their ALPN lists do not overlap, so neither do labels.
    route.label = route.names.front();
    for (std::size_t i = 0; i < route.alpn.size(); ++i) {
      route.label += (i == 0 ? " alpn " : ",") + route.alpn[i];
    }
  }
  for (const auto& routes_of : {passthrough_routes, terminate_routes, upstream_routes}) {
    for (RouteConfig& route : routes_of(*this)) {
      all.push_back(std::move(route));
    }
  }
  for (const BaseDomainConfig& base : base_domains) {
    for (const ApplicationConfig& application : base.applications) {
      all.push_back(application_route(base, application));
    }
  }
  return all;
}

void add_gateway_options(OptionTable& table, GatewayConfig& config) {
  // Lives as long as the table, whose checks and lists hold it.
  const auto reading =
      std::make_shared<Reading>(Reading{.config = config, .claims = {}, .rebalance_flag = {}});
  add_routing(table, config, reading);
  add_tls(table, config);
  add_workers(table, config, *reading);
  add_timeouts(table, config.timeouts);
  add_rest(table, config);
  add_checks(table, config, reading);
}

}  // namespace causeway::gateway
