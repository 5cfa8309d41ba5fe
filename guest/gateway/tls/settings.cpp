// SPDX-License-Identifier: Apache-2.0
#include "guest/gateway/tls/settings.hpp"

#include <mbedtls/sha256.h>
#include <mbedtls/ssl_ciphersuites.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "guest/gateway/tls/engine.hpp"

namespace causeway::gateway::tls {
namespace {

// In TLS 1.2 ours decides, in 1.3 mbedTLS takes the client's first that is in the list.
constexpr std::array kGcmFirst{
    MBEDTLS_TLS1_3_AES_128_GCM_SHA256,
    MBEDTLS_TLS1_3_AES_256_GCM_SHA384,
    MBEDTLS_TLS1_3_CHACHA20_POLY1305_SHA256,
    MBEDTLS_TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    MBEDTLS_TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    MBEDTLS_TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    MBEDTLS_TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    MBEDTLS_TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    MBEDTLS_TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    0,
};
constexpr std::array kChaChaFirst{
    MBEDTLS_TLS1_3_CHACHA20_POLY1305_SHA256,
    MBEDTLS_TLS1_3_AES_128_GCM_SHA256,
    MBEDTLS_TLS1_3_AES_256_GCM_SHA384,
    MBEDTLS_TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    MBEDTLS_TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    MBEDTLS_TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    MBEDTLS_TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    MBEDTLS_TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    MBEDTLS_TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    0,
};

constexpr std::array<std::uint16_t, 4> kGroups{
    MBEDTLS_SSL_IANA_TLS_GROUP_X25519, MBEDTLS_SSL_IANA_TLS_GROUP_SECP256R1,
    MBEDTLS_SSL_IANA_TLS_GROUP_SECP384R1, MBEDTLS_SSL_IANA_TLS_GROUP_NONE};

constexpr std::array<std::uint16_t, 9> kSignatures{MBEDTLS_TLS1_3_SIG_ECDSA_SECP256R1_SHA256,
                                                   MBEDTLS_TLS1_3_SIG_ECDSA_SECP384R1_SHA384,
                                                   MBEDTLS_TLS1_3_SIG_RSA_PSS_RSAE_SHA256,
                                                   MBEDTLS_TLS1_3_SIG_RSA_PSS_RSAE_SHA384,
                                                   MBEDTLS_TLS1_3_SIG_RSA_PSS_RSAE_SHA512,
                                                   MBEDTLS_TLS1_3_SIG_RSA_PKCS1_SHA256,
                                                   MBEDTLS_TLS1_3_SIG_RSA_PKCS1_SHA384,
                                                   MBEDTLS_TLS1_3_SIG_RSA_PKCS1_SHA512,
                                                   MBEDTLS_TLS1_3_SIG_NONE};

mbedtls_ssl_protocol_version version_of(Version version) {
  return version == Version::tls13 ? MBEDTLS_SSL_VERSION_TLS1_3 : MBEDTLS_SSL_VERSION_TLS1_2;
}

int authmode_of(const ProfileOptions& options) {
  if (options.role == Role::client) return MBEDTLS_SSL_VERIFY_REQUIRED;
  switch (options.client_auth) {
    case ClientAuth::none:
      return MBEDTLS_SSL_VERIFY_NONE;
    case ClientAuth::optional:
      return MBEDTLS_SSL_VERIFY_OPTIONAL;
    case ClientAuth::required:
      break;
  }
  return MBEDTLS_SSL_VERIFY_REQUIRED;
}

}  // namespace

std::string_view cipher_name(int suite) {
  switch (suite) {
    case MBEDTLS_TLS1_3_AES_128_GCM_SHA256:
      return "TLS_AES_128_GCM_SHA256";
    case MBEDTLS_TLS1_3_AES_256_GCM_SHA384:
      return "TLS_AES_256_GCM_SHA384";
    case MBEDTLS_TLS1_3_CHACHA20_POLY1305_SHA256:
      return "TLS_CHACHA20_POLY1305_SHA256";
    case MBEDTLS_TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256:
      return "ECDHE-ECDSA-AES128-GCM-SHA256";
    case MBEDTLS_TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256:
      return "ECDHE-RSA-AES128-GCM-SHA256";
    case MBEDTLS_TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384:
      return "ECDHE-ECDSA-AES256-GCM-SHA384";
    case MBEDTLS_TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384:
      return "ECDHE-RSA-AES256-GCM-SHA384";
    case MBEDTLS_TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256:
      return "ECDHE-ECDSA-CHACHA20-POLY1305";
    case MBEDTLS_TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256:
      return "ECDHE-RSA-CHACHA20-POLY1305";
    default:
      return {};
  }
}

Result<std::shared_ptr<const Profile>> Profile::make(ProfileOptions options) {
  const auto bad = [](const char* what) { return Error{what, EINVAL}; };
  if (options.min_version > options.max_version) {
    return bad("the lowest TLS version is above the highest");
  }
  const bool verifies = options.role == Role::client || options.client_auth != ClientAuth::none;
  if (verifies && options.authorities == nullptr) {
    return bad(options.role == Role::client
                   ? "no authorities to verify the upstream's certificate with; name a CA file"
                   : "no authorities to verify clients' certificates with; name a CA file");
  }
  if (!verifies) options.authorities = nullptr;
  std::size_t list = 0;
  for (const std::string& protocol : options.alpn) {
    if (protocol.empty() || protocol.size() > 255 || protocol.find('\0') != std::string::npos) {
      return bad("an ALPN protocol is 1 to 255 bytes long, none of them NUL");
    }
    list += protocol.size() + 1;
  }
  if (list > 65535) return bad("the ALPN list is longer than TLS allows");

  std::shared_ptr<Profile> self(new Profile);
  self->options_ = std::move(options);
  std::vector<unsigned char> all{static_cast<unsigned char>(self->options_.role),
                                 static_cast<unsigned char>(self->options_.client_auth)};
  if (self->options_.authorities) {
    const Digest& digest = self->options_.authorities->digest();
    all.insert(all.end(), digest.begin(), digest.end());
  }
  for (const std::string& protocol : self->options_.alpn) {
    self->alpn_pointers_.push_back(protocol.c_str());
    all.push_back(static_cast<unsigned char>(protocol.size()));
    all.insert(all.end(), protocol.begin(), protocol.end());
  }
  if (!self->alpn_pointers_.empty()) self->alpn_pointers_.push_back(nullptr);
  if (mbedtls_sha256(all.data(), all.size(), self->digest_.data(), 0) != 0) {
    return bad("a digest cannot be taken");
  }
  return std::shared_ptr<const Profile>(std::move(self));
}

Context::Context(const TicketKeys* keys) : keys_(keys) {
  if (keys_ != nullptr) take_keys();
}

void Context::use(std::shared_ptr<const CertificateStore> store) {
  key_ring_ = store ? std::make_shared<KeyRing>(std::move(store)) : nullptr;
}

void Context::take_keys() {
  // In this order: a set that comes in between is taken again, which does no harm.
  generation_ = keys_->generation();
  set_ = keys_->current();
}

std::shared_ptr<const Config> Context::config(const std::shared_ptr<const Profile>& profile) {
  if (const auto found = configs_.find(profile.get()); found != configs_.end()) {
    return found->second;
  }
  // A profile that only its configuration has is of a snapshot that is gone.
  std::erase_if(configs_, [](const auto& entry) {
    return entry.second.use_count() == 1 && entry.second->profile.use_count() == 1;
  });
  auto config = std::make_shared<Config>(profile);
  if (fill(*config) != 0) return nullptr;
  configs_.emplace(profile.get(), config);
  return config;
}

int Context::fill(Config& config) {
  mbedtls_ssl_config* const conf = &config.config;
  const ProfileOptions& options = config.profile->options();
  const bool server = options.role == Role::server;
  if (const int failed =
          mbedtls_ssl_config_defaults(conf, server ? MBEDTLS_SSL_IS_SERVER : MBEDTLS_SSL_IS_CLIENT,
                                      MBEDTLS_SSL_TRANSPORT_STREAM, MBEDTLS_SSL_PRESET_DEFAULT);
      failed != 0) {
    return failed;
  }
  mbedtls_ssl_conf_rng(conf, crypto::Random::generate, random_.context());
  mbedtls_ssl_conf_min_tls_version(conf, version_of(options.min_version));
  mbedtls_ssl_conf_max_tls_version(conf, version_of(options.max_version));
  mbedtls_ssl_conf_ciphersuites(conf,
                                crypto::prefers_aes_gcm() ? kGcmFirst.data() : kChaChaFirst.data());
  mbedtls_ssl_conf_groups(conf, kGroups.data());
  mbedtls_ssl_conf_sig_algs(conf, kSignatures.data());
  mbedtls_ssl_conf_authmode(conf, authmode_of(options));
  if (options.authorities) {
    mbedtls_ssl_conf_ca_chain(conf, options.authorities->chain().get(), nullptr);
  }
  if (const char** list = config.profile->alpn_list(); list != nullptr) {
    if (const int failed = mbedtls_ssl_conf_alpn_protocols(conf, list); failed != 0) return failed;
  }
  if (!server) {
    if (const Identity* identity = options.identity.get(); identity != nullptr) {
      if (const int failed = identity->make_key(config.key); failed != 0) return failed;
      const int failed = mbedtls_ssl_conf_own_cert(conf, identity->chain().get(), config.key.get());
      if (failed != 0) return failed;
    }
    mbedtls_ssl_conf_verify(conf, on_verify, this);
    mbedtls_ssl_conf_session_tickets(conf, options.tickets ? 1 : 0);
    mbedtls_ssl_conf_tls13_enable_signal_new_session_tickets(conf, options.tickets ? 1 : 0);
    return 0;
  }
  mbedtls_ssl_conf_cert_cb(conf, on_certificate);
  if (options.client_auth != ClientAuth::none) mbedtls_ssl_conf_verify(conf, on_verify, this);
  if (options.tickets && keys_ != nullptr) {
    mbedtls_ssl_conf_session_tickets_cb(conf, on_ticket_write, on_ticket_parse, this);
    mbedtls_ssl_conf_new_session_tickets(conf, 1);
  }
  return 0;
}

// C code is between the engine and these: nothing may be thrown through it.
template <class Work>
int Context::guarded(Work work) {
  try {
    return work();
  } catch (...) {
    return MBEDTLS_ERR_SSL_ALLOC_FAILED;
  }
}

int Context::on_certificate(mbedtls_ssl_context* ssl) {
  return guarded(
      [&] { return static_cast<Engine*>(mbedtls_ssl_get_user_data_p(ssl))->choose_certificate(); });
}

int Context::on_verify(void* context, mbedtls_x509_crt* certificate, int depth,
                       std::uint32_t* flags) {
  return guarded([&] {
    return static_cast<Context*>(context)->current_->verify(*certificate, depth, *flags);
  });
}

int Context::on_ticket_write(void* context, const mbedtls_ssl_session* session,
                             unsigned char* start, const unsigned char* end, std::size_t* size,
                             std::uint32_t* lifetime) {
  return guarded([&] {
    return static_cast<Context*>(context)->current_->write_ticket(
        *session, {start, static_cast<std::size_t>(end - start)}, *size, *lifetime);
  });
}

int Context::on_ticket_parse(void* context, mbedtls_ssl_session* session, unsigned char* ticket,
                             std::size_t size) {
  return guarded([&] {
    return static_cast<Context*>(context)->current_->parse_ticket(*session, {ticket, size});
  });
}

}  // namespace causeway::gateway::tls
