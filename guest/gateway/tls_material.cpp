// SPDX-License-Identifier: Apache-2.0
#include "guest/gateway/tls_material.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace causeway::gateway {

namespace {

constexpr std::string_view kH2 = "h2";

tls::Version version_of(TlsVersion version) {
  return version == TlsVersion::v1_3 ? tls::Version::tls13 : tls::Version::tls12;
}

tls::ClientAuth client_auth_of(ClientCertificates wanted) {
  switch (wanted) {
    case ClientCertificates::none:
      return tls::ClientAuth::none;
    case ClientCertificates::optional:
      return tls::ClientAuth::optional;
    case ClientCertificates::required:
      break;
  }
  return tls::ClientAuth::required;
}

// A PEM file with both may stand for the key's too.
tls::CertificateFiles files_of(const std::string& cert, const std::string& key) {
  return {.chain = cert, .key = key.empty() ? cert : key};
}

// One load: what several routes name is read once.
class Loader {
 public:
  explicit Loader(const GatewayConfig& config) : config_(config) {}

  Result<std::shared_ptr<const TlsSnapshot>> load() {
    auto snapshot = std::make_shared<TlsSnapshot>();
    std::vector<tls::CertificateFiles> files;
    for (const CertificateConfig& one : config_.all_certificates()) {
      files.push_back(files_of(one.cert, one.key));
    }
    if (!files.empty()) {
      auto store = tls::CertificateStore::load(files);
      if (!store) return store.error();
      snapshot->certificates = *std::move(store);
    }
    for (const RouteConfig& route : config_.effective_routes()) {
      auto made = make(route, snapshot->certificates != nullptr);
      if (!made) return Error{route.label + ": " + made.error().message, made.error().code};
      snapshot->routes.push_back(*std::move(made));
    }
    return std::shared_ptr<const TlsSnapshot>(std::move(snapshot));
  }

 private:
  Result<RouteTls> make(const RouteConfig& route, bool certificates) {
    RouteTls made;
    if (route.application ? !certificates : route.mode != RouteMode::terminate) return made;
    const TerminateConfig& terms = route.terminate;
    std::vector<std::string> protocols = terms.protocols.empty() ? route.alpn : terms.protocols;
    auto client = server_profile(terms, protocols);
    if (!client) return client.error();
    made.client = *std::move(client);
    if (route.application) {
      auto h2 = server_profile(terms, {std::string(kH2)});
      if (!h2) return h2.error();
      made.client_h2 = *std::move(h2);
    }
    if (terms.upstream_tls) {
      if (auto good = add_upstream(made, terms, std::move(protocols)); !good) return good.error();
    }
    return made;
  }

  Result<void> add_upstream(RouteTls& made, const TerminateConfig& terms,
                            std::vector<std::string> protocols) {
    made.upstream_name = terms.upstream_name;
    made.upstream_protocols = std::move(protocols);
    for (const std::string& protocol : made.upstream_protocols) {
      auto profile = client_profile(terms, {protocol});
      if (!profile) return profile.error();
      made.upstream.push_back(*std::move(profile));
    }
    auto plain = client_profile(terms, {});
    if (!plain) return plain.error();
    made.upstream.push_back(*std::move(plain));
    return {};
  }

  Result<std::shared_ptr<const tls::Profile>> server_profile(const TerminateConfig& terms,
                                                             std::vector<std::string> alpn) {
    tls::ProfileOptions options;
    options.alpn = std::move(alpn);
    options.min_version = version_of(config_.tls.min_version);
    options.max_version = version_of(config_.tls.max_version);
    options.client_auth = client_auth_of(terms.client_certificates);
    options.tickets = config_.tls.tickets;
    if (options.client_auth != tls::ClientAuth::none) {
      auto authorities = this->authorities(terms.client_ca);
      if (!authorities) return authorities.error();
      options.authorities = *std::move(authorities);
    }
    return profile(std::move(options));
  }

  Result<std::shared_ptr<const tls::Profile>> client_profile(const TerminateConfig& terms,
                                                             std::vector<std::string> alpn) {
    tls::ProfileOptions options;
    options.role = tls::Role::client;
    options.alpn = std::move(alpn);
    auto authorities = this->authorities(terms.upstream_ca);
    if (!authorities) return authorities.error();
    options.authorities = *std::move(authorities);
    if (!terms.upstream_cert.empty()) {
      auto& identity = identities_[terms.upstream_cert + "\n" + terms.upstream_key];
      if (!identity) {
        auto loaded =
            tls::Identity::load(files_of(terms.upstream_cert, terms.upstream_key),
                                tls::Identity::Clock::now(), tls::Identity::Purpose::client);
        if (!loaded) return loaded.error();
        identity = *std::move(loaded);
      }
      options.identity = identity;
    }
    return profile(std::move(options));
  }

  // Of a PEM file; of the system without one.
  Result<std::shared_ptr<const tls::Authorities>> authorities(const std::string& path) {
    auto& known = authorities_[path];
    if (!known) {
      auto loaded = path.empty() ? tls::Authorities::load_system() : tls::Authorities::load(path);
      if (!loaded) return loaded.error();
      known = *std::move(loaded);
    }
    return known;
  }

  Result<std::shared_ptr<const tls::Profile>> profile(tls::ProfileOptions options) {
    const auto same = std::find_if(profiles_.begin(), profiles_.end(), [&](const auto& one) {
      const tls::ProfileOptions& other = one->options();
      return options.role == other.role && options.alpn == other.alpn &&
             options.client_auth == other.client_auth && options.authorities == other.authorities &&
             options.identity == other.identity;
    });
    if (same != profiles_.end()) return *same;
    auto made = tls::Profile::make(std::move(options));
    if (made) profiles_.push_back(*made);
    return made;
  }

  const GatewayConfig& config_;
  std::map<std::string, std::shared_ptr<const tls::Authorities>> authorities_;  // by path
  std::map<std::string, std::shared_ptr<const tls::Identity>> identities_;
  std::vector<std::shared_ptr<const tls::Profile>> profiles_;
};

}  // namespace

Result<std::shared_ptr<const TlsSnapshot>> load_tls(const GatewayConfig& config) {
  return Loader(config).load();
}

std::vector<std::string> tls_files(const GatewayConfig& config) {
  std::vector<std::string> paths;
  const auto add = [&paths](const std::string& path) {
    if (!path.empty()) paths.push_back(path);
  };
  for (const CertificateConfig& one : config.all_certificates()) {
    add(one.cert);
    add(one.key);
  }
  for (const RouteConfig& route : config.routes) {
    add(route.terminate.client_ca);
    add(route.terminate.upstream_ca);
    add(route.terminate.upstream_cert);
    add(route.terminate.upstream_key);
  }
  add(config.tls.ticket_keys);
  std::sort(paths.begin(), paths.end());
  paths.erase(std::unique(paths.begin(), paths.end()), paths.end());
  return paths;
}

FileWatch::State FileWatch::look(const std::string& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) return {};
  const auto ns = [](const timespec& time) {
    return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  };
  return {.there = true,
          .device = found.st_dev,
          .inode = found.st_ino,
          .size = found.st_size,
          .written = ns(found.st_mtim),
          .modified = ns(found.st_ctim)};
}

void FileWatch::watch(std::vector<std::string> paths) {
  files_.clear();
  for (std::string& path : paths) {
    State state = look(path);
    files_.push_back({std::move(path), state});
  }
}

bool FileWatch::changed() {
  bool any = false;
  for (File& file : files_) {
    const State now = look(file.path);
    any = any || now != file.state;
    file.state = now;
  }
  return any;
}

}  // namespace causeway::gateway
