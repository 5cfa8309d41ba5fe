// SPDX-License-Identifier: Apache-2.0
#include "guest/gateway/config_tls.hpp"

#include <algorithm>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "common/config/text.hpp"
#include "guest/gateway/config_check.hpp"

namespace causeway::gateway {

namespace {

// A ProtocolNameList is at most so long, each name with a byte for its length (RFC 7301 3.1).
constexpr std::size_t kMaxProtocols = 65535;

Error wrong(std::string message) {
  return Error{std::move(message), EINVAL};
}

// The files of `certificates`, with their indices, as items are read.
using Files = std::unordered_map<std::string, std::size_t>;

OptionSpec path_spec(std::string doc) {
  return {.value = "PEM", .doc = std::move(doc), .reloadable = true};
}

Result<void> check_list_size(const std::vector<std::string>& protocols) {
  std::size_t size = 0;
  for (const std::string& protocol : protocols) {
    size += protocol.size() + 1;
  }
  if (size <= kMaxProtocols) return {};
  return wrong("the list has " + std::to_string(size) + " bytes, the most is " +
               std::to_string(kMaxProtocols) + " (RFC 7301 3.1)");
}

Result<void> check_protocols(const std::vector<std::string>& protocols) {
  std::unordered_set<std::string_view> seen;
  for (const std::string& protocol : protocols) {
    if (!seen.insert(protocol).second) return wrong(in_quotes(protocol) + " is there twice");
  }
  return check_list_size(protocols);
}

// Whether the address itself says what name an upstream's certificate has to have.
bool has_name(const Address& address) {
  const auto* tcp = std::get_if<TcpAddress>(&address.value);
  return tcp != nullptr && tcp->host.find('%') == std::string::npos;  // no certificate has a zone
}

Result<void> check_upstream_name(const RouteConfig& route) {
  if (!route.terminate.upstream_tls || !route.terminate.upstream_name.empty()) return {};
  for (const UpstreamConfig& upstream : route.upstreams) {
    if (has_name(upstream.address)) continue;
    return wrong(to_string(upstream.address) +
                 " says no name that its certificate could be verified by: give it here");
  }
  return {};
}

Result<void> check_client_ca(const TerminateConfig& terminate) {
  if (terminate.client_certificates == ClientCertificates::none || !terminate.client_ca.empty()) {
    return {};
  }
  return wrong(
      "client_certificates needs the authorities to verify them with: the path of a PEM file");
}

void describe_client(OptionGroup& group, TerminateConfig& terminate) {
  group.add_choice("client_certificates", terminate.client_certificates,
                   {{"none", ClientCertificates::none},
                    {"optional", ClientCertificates::optional},
                    {"required", ClientCertificates::required}},
                   {.doc = "With mode terminate: whether clients have to certify themselves, to "
                           "an authority of client_ca. With optional a client may have no "
                           "certificate, but one that it presents has to verify.",
                    .reloadable = true});
  group.add("client_ca", terminate.client_ca,
            path_spec("A PEM file with the authorities that clients' certificates are verified "
                      "with."));
}

void describe_upstream_tls(OptionGroup& group, TerminateConfig& terminate) {
  group.add("upstream_tls", terminate.upstream_tls,
            {.doc = "With mode terminate: TLS to the upstreams as well, whose certificates are "
                    "verified.",
             .reloadable = true});
  Codec<std::string> name = string_codec();
  name.type = "host name or IP address";
  name.parse = parse_upstream_name;
  group.add_with("upstream_name", terminate.upstream_name, std::move(name),
                 {.value = "NAME",
                  .doc = "The name that upstreams are asked for and their certificates are "
                         "verified by; by default the host of each one's address.",
                  .reloadable = true});
  group.add("upstream_ca", terminate.upstream_ca,
            path_spec("A PEM file with the authorities that upstreams' certificates are verified "
                      "with; by default the system's."));
  group.add("upstream_cert", terminate.upstream_cert,
            path_spec("A PEM file with the certificate, and its issuers, that is presented to "
                      "upstreams that ask for one."));
  group.add("upstream_key", terminate.upstream_key,
            path_spec("A PEM file with the private key of upstream_cert, which may be the same "
                      "file; not readable by group or others."));
}

Result<void> is_there(const Files::value_type& file) {
  return wrong(in_quotes(file.first) + " is certificates[" + std::to_string(file.second) +
               "] already");
}

void describe_certificate(OptionGroup& group, CertificateConfig& certificate,
                          const GatewayConfig& config, const std::shared_ptr<Files>& files) {
  OptionSpec cert = path_spec("A PEM file: the certificate, then its issuers.");
  cert.required = true;
  group.add("cert", certificate.cert, cert);
  group.add("key", certificate.key,
            path_spec("A PEM file with its private key, not readable by group or others; by "
                      "default it is in the file of cert."));
  group.add_check("cert", [&certificate, &config, files]() -> Result<void> {
    if (certificate.cert.empty()) return wrong("a path is needed, as in /etc/causeway/site.pem");
    const auto [first, fresh] = files->emplace(certificate.cert, config.certificates.size());
    return fresh ? Result<void>() : is_there(*first);
  });
}

void add_certificate_checks(OptionTable& table, GatewayConfig& config,
                            const std::shared_ptr<Files>& files) {
  table.add_check("certificates", [&config]() -> Result<void> {
    if (config.certificates.size() <= kMaxCertificates) return {};
    return wrong(std::to_string(config.certificates.size()) + " certificates, the most is " +
                 std::to_string(kMaxCertificates));
  });
  table.add_check("key", [&config]() -> Result<void> {
    if (config.key.empty() || !config.cert.empty()) return {};
    return wrong("a key without its certificate: --cert PEM, or cert in the file");
  });
  table.add_check("cert", [&config, files]() -> Result<void> {
    const auto twin = files->find(config.cert);
    return twin == files->end() ? Result<void>() : is_there(*twin);
  });
}

}  // namespace

Result<std::string> parse_upstream_name(std::string_view text) {
  if (text.empty()) return std::string();
  if (const auto ip = parse_ip(text)) return to_string(*ip);
  if (!check_application_host(text) || text.find(':') != std::string_view::npos) {
    return wrong(in_quotes(text) + " is neither a host name nor an IP address");
  }
  std::string name(text);
  if (name.ends_with('.')) name.pop_back();
  std::transform(name.begin(), name.end(), name.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return name;
}

void describe_terminate(OptionGroup& group, RouteConfig& route) {
  TerminateConfig& terminate = route.terminate;
  group.add("protocols", terminate.protocols,
            {.value = "PROTOCOL",
             .doc = "With mode terminate: the protocols to agree on by ALPN, the best first. A "
                    "client that offers none of them is refused, one without ALPN is not. By "
                    "default those of alpn; without any, none is agreed on.",
             .reloadable = true,
             .check = check_alpn});
  describe_client(group, terminate);
  describe_upstream_tls(group, terminate);
  // A rule at `key` that holds where TLS ends here; elsewhere the keys have no effect at all.
  const auto add_rule = [&](const char* key, std::function<Result<void>()> rule) {
    group.add_check(key, [&route, rule = std::move(rule)]() -> Result<void> {
      return route.mode == RouteMode::terminate ? rule() : Result<void>();
    });
  };
  group.add_check("protocols", [&terminate] { return check_protocols(terminate.protocols); });
  add_rule("alpn", [&route] { return check_list_size(route.alpn); });
  add_rule("client_ca", [&terminate] { return check_client_ca(terminate); });
  add_rule("upstream_name", [&route] { return check_upstream_name(route); });
  add_rule("upstream_cert", [&terminate]() -> Result<void> {
    if (terminate.upstream_cert.empty() || !terminate.upstream_key.empty()) return {};
    return wrong("a certificate without its key: upstream_key, which may be the same file");
  });
  add_rule("upstream_key", [&terminate]() -> Result<void> {
    if (terminate.upstream_key.empty() || !terminate.upstream_cert.empty()) return {};
    return wrong("a key without its certificate: upstream_cert");
  });
}

void add_certificates(OptionTable& table, GatewayConfig& config) {
  table.add(
      "cert", config.cert,
      path_spec("A PEM file with the certificate to present where TLS ends here, then its "
                "issuers. With others it is the one for names that none of them has. A relative "
                "path is taken from the working directory."));
  table.add("key", config.key,
            path_spec("A PEM file with the private key of cert, not readable by group or others; "
                      "by default it is in the file of cert."));
  const auto files = std::make_shared<Files>();
  table.add_list<CertificateConfig>(
      "certificates", config.certificates,
      [&config, files](OptionGroup& group, CertificateConfig& certificate) {
        describe_certificate(group, certificate, config, files);
      },
      "More certificates, chosen by the name that the client asks for and by what it can verify: "
      "a name may have an ECDSA and an RSA one. Where none has the name, the first is presented.");
  add_certificate_checks(table, config, files);
}

void add_tls(OptionTable& table, GatewayConfig& config) {
  TlsConfig& tls = config.tls;
  const std::vector<std::pair<std::string, TlsVersion>> versions{{"1.2", TlsVersion::v1_2},
                                                                 {"1.3", TlsVersion::v1_3}};
  auto& section = table.section("tls", "TLS that ends here.");
  section.add_choice(
      "min_version", tls.min_version, versions,
      {.doc = "The lowest version of TLS that clients may come with.", .reloadable = true});
  section.add_choice(
      "max_version", tls.max_version, versions,
      {.doc = "The highest version of TLS that clients may come with.", .reloadable = true});
  const std::string tickets =
      "Give clients tickets to resume their sessions with, which saves them and us most of the "
      "next handshake.";
  section.add("tickets", tls.tickets, {.doc = tickets, .reloadable = true, .file_only = true});
  // As a flag it takes a value, so that --tls-tickets false can be said.
  const auto flag = std::make_shared<std::optional<bool>>();
  Codec<bool> words = bool_codec();
  words.json = JsonType::string;
  section.add_with("tickets_flag", *flag, std::move(words),
                   {.doc = tickets + " On by default.",
                    .flag = "--tls-tickets",
                    .reloadable = true,
                    .flag_only = true});
  section.add("ticket_keys", tls.ticket_keys,
              {.value = "FILE",
               .doc = "A file of ticket keys, each on a line of its own as 160 hexadecimal digits "
                      "(openssl rand -hex 80): the first seals, all open, so that gateways with "
                      "the same file resume each other's sessions. Not readable by group or "
                      "others. By default random keys, replaced every 6h and accepted for 12h.",
               .reloadable = true});
  section.add("watch", tls.watch,
              {.doc = "How often the files of certificates, keys and authorities are looked at "
                      "for a change; never: only at SIGHUP.",
               .min = 100,
               .reloadable = true});
  section.add_check("tickets", [&tls, flag]() -> Result<void> {
    if (*flag) tls.tickets = **flag;
    return {};
  });
  section.add_check("min_version", [&tls]() -> Result<void> {
    if (tls.min_version <= tls.max_version) return {};
    return wrong("1.3 is above max_version, 1.2");
  });
}

Result<void> check_has_certificate(const std::vector<RouteConfig>& routes,
                                   const GatewayConfig& config) {
  if (!config.cert.empty() || !config.certificates.empty()) return {};
  for (const RouteConfig& route : routes) {
    if (route.mode != RouteMode::terminate) continue;
    return wrong("\"" + route.names.front() +
                 "\" ends TLS here, which needs a certificate: --cert PEM --key PEM, or "
                 "certificates in the file");
  }
  return {};
}

}  // namespace causeway::gateway
