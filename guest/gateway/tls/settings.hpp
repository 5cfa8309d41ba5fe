// SPDX-License-Identifier: Apache-2.0
// Theory of operation: what a TLS connection is made with.
//
// A Profile is a route's terms: which protocols (ALPN), which versions, who has to certify himself.
// It is immutable, belongs to the configuration's snapshot and is shared by the workers.
//
// A Context is a worker's own: its random generator, its private keys (KeyRing), the ticket keys as
// it last saw them, and one mbedtls_ssl_config for each profile that it has met. No other thread
// touches it, so nothing in a handshake is behind a lock, but for PSA's key store, which TLS 1.3
// goes through. A configuration lives as long as a connection uses it; those of profiles that are
// gone are dropped when a new one is made.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/result.hpp"
#include "guest/gateway/crypto/crypto.hpp"
#include "guest/gateway/tls/certificates.hpp"
#include "guest/gateway/tls/tickets.hpp"

namespace causeway::gateway::tls {

enum class Version : std::uint8_t { tls12, tls13 };
enum class Role : std::uint8_t { server, client };
// optional: a client may have none, but one that it presents has to be good.
enum class ClientAuth : std::uint8_t { none, optional, required };

struct ProfileOptions {
  Role role = Role::server;
  // In our order of preference. A server with a list refuses a client whose list has none of them
  // (no_application_protocol); one without does not negotiate.
  std::vector<std::string> alpn;
  Version min_version = Version::tls12;
  Version max_version = Version::tls13;
  ClientAuth client_auth = ClientAuth::none;       // of a server
  std::shared_ptr<const Authorities> authorities;  // to verify the peer with; a client needs them
  std::shared_ptr<const Identity> identity;        // of a client: what it presents when it is asked
  // Of a server: issue and accept tickets. Of a client: keep the sessions that it is given.
  bool tickets = true;
};

class Profile {
 public:
  static Result<std::shared_ptr<const Profile>> make(ProfileOptions options);
  [[nodiscard]] const ProfileOptions& options() const { return options_; }
  [[nodiscard]] bool is_server() const { return options_.role == Role::server; }
  // Over everything that decides whether a session made under it may go on under another one.
  [[nodiscard]] const Digest& digest() const { return digest_; }
  // NULL-terminated, as mbedTLS wants it; null: no list.
  [[nodiscard]] const char** alpn_list() const {
    return alpn_pointers_.empty() ? nullptr : alpn_pointers_.data();
  }

 private:
  Profile() = default;
  ProfileOptions options_;
  Digest digest_{};
  mutable std::vector<const char*> alpn_pointers_;
};

// mbedTLS's configuration of one worker for one profile.
struct Config {
  explicit Config(std::shared_ptr<const Profile> of) : profile(std::move(of)) {
    mbedtls_ssl_config_init(&config);
  }
  ~Config() { mbedtls_ssl_config_free(&config); }
  Config(const Config&) = delete;
  Config& operator=(const Config&) = delete;
  std::shared_ptr<const Profile> profile;
  PrivateKey key;  // of the profile's identity
  mbedtls_ssl_config config;
};

// OpenSSL's name of a cipher suite that we offer; empty for any other.
std::string_view cipher_name(int suite);

class Engine;

class Context {
 public:
  // `keys` may be null: no tickets; else it outlives the context. To be used by the thread that
  // made it. Throws std::runtime_error when the kernel gives no entropy.
  explicit Context(const TicketKeys* keys = nullptr);
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // Certificates for the connections to come; null: none. Those at hand keep theirs.
  void use(std::shared_ptr<const CertificateStore> store);
  // Once per turn of the worker's loop: takes up new ticket keys. One load when there are none.
  void refresh() {
    if (keys_ != nullptr && keys_->generation() != generation_) take_keys();
  }

  // The same profile gives the same configuration. Null when memory ran out.
  std::shared_ptr<const Config> config(const std::shared_ptr<const Profile>& profile);

  [[nodiscard]] const std::shared_ptr<KeyRing>& key_ring() const { return key_ring_; }
  [[nodiscard]] const std::shared_ptr<const TicketKeySet>& ticket_keys() const { return set_; }
  [[nodiscard]] crypto::Random& random() { return random_; }
  [[nodiscard]] std::size_t configs() const { return configs_.size(); }

 private:
  friend class Engine;
  void take_keys();
  int fill(Config& config);

  template <class Work>
  static int guarded(Work work);
  // What mbedTLS calls; `current_` is the engine that called it.
  static int on_certificate(mbedtls_ssl_context* ssl);
  static int on_verify(void* context, mbedtls_x509_crt* certificate, int depth,
                       std::uint32_t* flags);
  static int on_ticket_write(void* context, const mbedtls_ssl_session* session,
                             unsigned char* start, const unsigned char* end, std::size_t* size,
                             std::uint32_t* lifetime);
  static int on_ticket_parse(void* context, mbedtls_ssl_session* session, unsigned char* ticket,
                             std::size_t size);

  crypto::Random random_;
  const TicketKeys* keys_;
  std::uint64_t generation_ = 0;
  std::shared_ptr<const TicketKeySet> set_;
  std::shared_ptr<KeyRing> key_ring_;
  std::unordered_map<const Profile*, std::shared_ptr<Config>> configs_;
  Engine* current_ = nullptr;
  std::array<unsigned char, 8> scratch_{};  // where mbedTLS writes a sequence number nobody reads
};

}  // namespace causeway::gateway::tls
