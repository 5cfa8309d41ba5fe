// SPDX-License-Identifier: Apache-2.0
// Settings without effect. Each is found by its path in the file's terms; a line gets its place
// when the file's text has that path, so what came from a flag, or is a default, goes without.
#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <utility>

#include "common/config/json_tree.hpp"
#include "common/config/text.hpp"
#include "guest/gateway/config.hpp"
#include "guest/gateway/config_check.hpp"

namespace causeway::gateway {

namespace {

struct Inert {
  std::string path;  // "routes[1].race"
  std::string why;
};

class Finder {
 public:
  Finder(const GatewayConfig& config, unsigned workers)
      : config_(config),
        workers_(workers),
        routes_(config.effective_routes()),
        has_certificate_(!config.all_certificates().empty()) {}
  std::vector<Inert> find() {
    check_listeners();
    check_workers();
    check_splice();
    check_tls();
    check_timeouts();
    for (std::size_t i = 0; i < config_.routes.size(); ++i) {
      check_route(config_.routes[i], item("routes", i));
      check_terminate(config_.routes[i], item("routes", i));
    }
    for (std::size_t b = 0; b < config_.base_domains.size(); ++b) {
      const BaseDomainConfig& base = config_.base_domains[b];
      for (std::size_t a = 0; a < base.applications.size(); ++a) {
        check_application(base, base.applications[a],
                          item(item("base_domains", b) + ".applications", a));
      }
    }
    check_dns();
    return std::move(found_);
  }

 private:
  static std::string item(const std::string& list, std::size_t index) {
    return list + "[" + std::to_string(index) + "]";
  }
  void say(std::string path, std::string why) {
    found_.push_back({std::move(path), std::move(why)});
  }

  void check_listeners() {
    for (std::size_t i = 0; i < config_.listeners.size(); ++i) {
      const ListenerConfig& listener = config_.listeners[i];
      if (listener.trusted.empty()) continue;
      const std::string path = item("listeners", i) + ".trusted";
      const auto& address = listener.address.value;
      if (!listener.proxy_protocol) {
        say(path, "proxy_protocol is off, so nobody sends a PROXY header");
      } else if (!std::holds_alternative<TcpAddress>(address) &&
                 !std::holds_alternative<FdAddress>(address)) {
        say(path, "clients of " + to_string(listener.address) + " have no IP address");
      }
    }
  }

  void check_workers() {
    const auto all = config_.all_listeners();
    if (config_.rebalance.value_or(false) && workers_ == 1) {
      say("rebalance", "one worker has nobody to hand connections to");
    }
    const bool asked =
        config_.threads_model_given && config_.threads_model == ThreadsModel::per_core;
    const bool tcp = std::any_of(all.begin(), all.end(), [](const ListenerConfig& listener) {
      return std::holds_alternative<TcpAddress>(listener.address.value);
    });
    if (asked && !tcp) {
      say("threads_model",
          "only a tcp listener can be had once for each worker, and there is none");
    }
  }

  // Whether a connection may go through a route of this kind. An application has both.
  [[nodiscard]] bool any(RouteMode mode) const {
    const bool terminates = mode == RouteMode::terminate;
    if (!config_.base_domains.empty() && (!terminates || has_certificate_)) return true;
    return std::any_of(routes_.begin(), routes_.end(),
                       [mode](const RouteConfig& route) { return route.mode == mode; });
  }

  void check_splice() {
    if (!any(RouteMode::passthrough)) {
      const std::string why = "every route ends TLS here, so no relay is spliced";
      if (config_.splice_after != GatewayConfig{}.splice_after) say("splice.after", why);
      if (config_.splice_after_time) say("splice.after_time", why);
      return;
    }
    if (config_.splice_after_time && config_.splice_after == Size{0}) {
      say("splice.after_time", "with splice.after 0B every relay is spliced at once");
    }
  }

  void check_tls() {
    const TlsConfig& now = config_.tls;
    if (any(RouteMode::terminate)) {
      if (!now.tickets && !now.ticket_keys.empty()) {
        say("tls.ticket_keys", "tls.tickets is false");
      }
      return;
    }
    const TlsConfig defaults;
    const std::string why = has_certificate_ || config_.base_domains.empty()
                                ? "no route ends TLS here"
                                : "without a certificate no application's TLS ends here";
    const std::pair<const char*, bool> all[] = {
        {"cert", !config_.cert.empty()},
        {"key", !config_.key.empty()},
        {"certificates", !config_.certificates.empty()},
        {"tls.min_version", now.min_version != defaults.min_version},
        {"tls.max_version", now.max_version != defaults.max_version},
        {"tls.tickets", now.tickets != defaults.tickets},
        {"tls.ticket_keys", !now.ticket_keys.empty()},
        {"tls.watch", now.watch != defaults.watch},
    };
    for (const auto& [key, given] : all) {
      if (given) say(key, why);
    }
  }

  // Of a route of the file.
  void check_terminate(const RouteConfig& route, const std::string& path) {
    const TerminateConfig& now = route.terminate;
    const auto say_each = [&](const std::string& why,
                              std::initializer_list<std::pair<const char*, bool>> keys) {
      for (const auto& [key, given] : keys) {
        if (given) say(path + "." + key, why);
      }
    };
    const bool certified = now.client_certificates != ClientCertificates::none;
    if (route.mode == RouteMode::passthrough) {
      say_each("mode is passthrough", {{"protocols", !now.protocols.empty()},
                                       {"client_certificates", certified},
                                       {"client_ca", !now.client_ca.empty()},
                                       {"upstream_tls", now.upstream_tls},
                                       {"upstream_name", !now.upstream_name.empty()},
                                       {"upstream_ca", !now.upstream_ca.empty()},
                                       {"upstream_cert", !now.upstream_cert.empty()},
                                       {"upstream_key", !now.upstream_key.empty()}});
      return;
    }
    if (!certified) {
      say_each("client_certificates is none", {{"client_ca", !now.client_ca.empty()}});
    }
    if (!now.upstream_tls) {
      say_each("upstream_tls is false", {{"upstream_name", !now.upstream_name.empty()},
                                         {"upstream_ca", !now.upstream_ca.empty()},
                                         {"upstream_cert", !now.upstream_cert.empty()},
                                         {"upstream_key", !now.upstream_key.empty()}});
    }
  }

  // A timeout that another one always comes before. Defaults are nobody's setting.
  void check_timeouts() {
    const Timeouts& now = config_.timeouts;
    const Timeouts defaults;
    const std::pair<const char*, Duration Timeouts::*> all[] = {
        {"proxy_header", &Timeouts::proxy_header}, {"handshake", &Timeouts::handshake},
        {"connect", &Timeouts::connect},           {"idle", &Timeouts::idle},
        {"shutdown", &Timeouts::shutdown},
    };
    const auto proxied = std::any_of(
        config_.listeners.begin(), config_.listeners.end(),
        [](const ListenerConfig& listener) { return listener.proxy_protocol.has_value(); });
    for (const auto& [key, timeout] : all) {
      if (now.*timeout == defaults.*timeout) continue;
      const std::string path = std::string("timeouts.") + key;
      if (timeout == &Timeouts::proxy_header && !proxied) {
        say(path, "no listener has proxy_protocol");
      } else if (!(now.*timeout).never && !now.total.never && now.*timeout >= now.total) {
        say(path, "timeouts.total, " + to_string(now.total) + ", comes first");
      }
    }
  }

  // What `from` (0: none) allows can never be reached where `limit` is less.
  void check_limit(const std::string& path, std::uint32_t from, std::uint32_t limit,
                   const std::string& whose) {
    if (from == 0 || limit == 0 || from < limit) return;
    say(path + ".max_connections",
        "the " + whose + "'s max_connections, " + std::to_string(limit) + ", is reached first");
  }

  // `path` is the route's or the application's.
  void check_route(const RouteConfig& route, const std::string& path) {
    const bool one = route.upstreams.size() == 1;
    if (route.race_given && route.choice != Choice::race) {
      say(path + ".race", "choice is not race");
    }
    if (one && route.choice != Choice::round_robin) {
      say(path + ".choice", "there is one upstream to choose");
    }
    for (std::size_t i = 0; i < route.upstreams.size(); ++i) {
      const std::string each = item(path + ".upstreams", i);
      const UpstreamConfig& upstream = route.upstreams[i];
      if (one && upstream.weight != 1) say(each + ".weight", "there is no other upstream");
      if (route.max_connections == 0) {
        check_limit(each, upstream.max_connections, config_.max_connections, "gateway");
      } else {
        check_limit(each, upstream.max_connections, route.max_connections, "route");
      }
    }
    check_limit(path, route.max_connections, config_.max_connections, "gateway");
  }

  void check_application(const BaseDomainConfig& base, const ApplicationConfig& application,
                         const std::string& path) {
    check_route(application_route(base, application), path);
    if (application.health && application.ports.empty()) {
      say(path + ".health", "without ports there is none to check");
    }
  }

  void check_dns() {
    if (config_.dns_servers.empty()) return;
    for (const RouteConfig& route : routes_) {
      for (const UpstreamConfig& upstream : route.upstreams) {
        const auto* tcp = std::get_if<TcpAddress>(&upstream.address.value);
        if (tcp && tcp->host.find(':') == std::string::npos && !parse_ip(tcp->host)) return;
      }
    }
    say("dns.servers", "no upstream is a name");
  }

  const GatewayConfig& config_;
  unsigned workers_;
  std::vector<RouteConfig> routes_;
  bool has_certificate_;
  std::vector<Inert> found_;
};

// The value at a path such as "routes[1].race"; none: nullptr.
const JsonNode* at_path(const JsonNode& root, std::string_view path) {
  const JsonNode* node = &root;
  while (!path.empty()) {
    if (path.front() == '[') {
      const std::size_t close = path.find(']');
      const auto index = parse_decimal(path.substr(1, close - 1), node->items.size());
      if (!index || *index == node->items.size()) return nullptr;
      node = &node->items[static_cast<std::size_t>(*index)];
      path.remove_prefix(close + 1);
      continue;
    }
    if (path.front() == '.') path.remove_prefix(1);
    const std::string_view key = path.substr(0, path.find_first_of(".["));
    path.remove_prefix(key.size());
    const auto found = std::find_if(node->members.begin(), node->members.end(),
                                    [key](const JsonMember& member) { return member.key == key; });
    if (found == node->members.end()) return nullptr;
    node = &found->value;
  }
  return node;
}

// The option table cannot tell an empty section from none.
void find_empty_health(const JsonNode& root, std::vector<Inert>& found) {
  const auto look = [&](const JsonNode& owner, const std::string& path) {
    const JsonNode* health = at_path(owner, "health");
    if (health && health->members.empty()) {
      found.push_back({path + ".health", "empty, so there are no checks: give interval"});
    }
  };
  if (const JsonNode* routes = at_path(root, "routes")) {
    for (std::size_t i = 0; i < routes->items.size(); ++i) {
      look(routes->items[i], "routes[" + std::to_string(i) + "]");
    }
  }
  const JsonNode* bases = at_path(root, "base_domains");
  for (std::size_t b = 0; bases && b < bases->items.size(); ++b) {
    const JsonNode* applications = at_path(bases->items[b], "applications");
    for (std::size_t a = 0; applications && a < applications->items.size(); ++a) {
      look(applications->items[a],
           "base_domains[" + std::to_string(b) + "].applications[" + std::to_string(a) + "]");
    }
  }
}

}  // namespace

std::vector<std::string> inert_settings_of(const GatewayConfig& config, unsigned workers,
                                           std::string_view text, const std::string& file) {
  std::vector<Inert> found = Finder(config, workers).find();
  const JsonDocument document = text.empty() ? JsonDocument{} : parse_json(text);
  find_empty_health(document.root, found);
  std::vector<std::string> lines;
  for (const Inert& inert : found) {
    if (lines.size() == kMaxConfigFaults) {
      lines.push_back(std::to_string(found.size() - lines.size()) +
                      " more settings have no effect");
      break;
    }
    std::string line = inert.path + ": " + inert.why;
    if (const JsonNode* node = at_path(document.root, inert.path)) {
      const JsonPosition place = locate(text, node->offset);
      line = printable(file) + ":" + std::to_string(place.line) + ":" +
             std::to_string(place.column) + ": " + line;
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

std::vector<std::string> inert_settings(const GatewayConfig& config, unsigned workers,
                                        const std::string& config_file) {
  const auto text =
      config_file.empty() ? Result<std::string>(std::string()) : read_config(config_file);
  return inert_settings_of(config, workers, text ? *text : std::string(), config_file);
}

}  // namespace causeway::gateway
