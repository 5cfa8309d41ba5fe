// SPDX-License-Identifier: Apache-2.0
// Theory of operation: the gateway's certificates.
//
// An Identity is a chain and its private key, read from PEM files and checked: the key belongs to
// the first certificate, which is valid now and may be a server's. A CertificateStore has all
// identities and finds those for a name; it is immutable and shared by all threads. A reload makes
// a new store, so a bad file leaves the old one in use, whole.
//
// For a name there may be several identities, ECDSA and RSA: all are offered to mbedTLS, ECDSA
// first, and it takes the first that the client can verify by its signature_algorithms (in TLS 1.2
// by its cipher suites and curves too).
//
// What mbedTLS changes while it signs (blinding values, under a lock of the key's) is not shared:
// each worker makes private keys of its own from the DER text, the first time it needs one
// (KeyRing).
//
// Sources: RFC 6125 6.4 (names), RFC 6066 3 (server_name), RFC 8446 4.4.2.2.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/result.hpp"
#include "guest/gateway/crypto/mbedtls.hpp"
#include "guest/gateway/tls/secret_file.hpp"

namespace causeway::gateway::tls {

using Digest = std::array<unsigned char, 32>;  // SHA-256

// A parsed chain; mbedTLS only reads it once it is made, so threads share it.
class Chain {
 public:
  Chain() { mbedtls_x509_crt_init(&first_); }
  ~Chain() { mbedtls_x509_crt_free(&first_); }
  Chain(const Chain&) = delete;
  Chain& operator=(const Chain&) = delete;
  [[nodiscard]] mbedtls_x509_crt& first() { return first_; }
  [[nodiscard]] const mbedtls_x509_crt& first() const { return first_; }
  // For mbedTLS's interfaces, which take no const.
  [[nodiscard]] mbedtls_x509_crt* get() const { return &first_; }

 private:
  mutable mbedtls_x509_crt first_;
};

// A private key of one thread.
class PrivateKey {
 public:
  PrivateKey() { mbedtls_pk_init(&key_); }
  ~PrivateKey() { mbedtls_pk_free(&key_); }
  PrivateKey(const PrivateKey&) = delete;
  PrivateKey& operator=(const PrivateKey&) = delete;
  [[nodiscard]] mbedtls_pk_context* get() { return &key_; }

 private:
  mbedtls_pk_context key_;
};

struct CertificateFiles {
  std::string chain;  // PEM: the certificate, then its issuers
  std::string key;    // PEM; the same file may hold both
  friend bool operator==(const CertificateFiles&, const CertificateFiles&) = default;
};

class Identity {
 public:
  using Clock = std::chrono::system_clock;
  enum class Purpose : std::uint8_t { server, client };
  // An error is one line: the path, what is wrong, what to do.
  static Result<std::shared_ptr<const Identity>> load(const CertificateFiles& files,
                                                      Clock::time_point now = Clock::now(),
                                                      Purpose purpose = Purpose::server);

  [[nodiscard]] const CertificateFiles& files() const { return files_; }
  // dNSNames of the subjectAltName, or the CN where there is no subjectAltName; lower case.
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }
  [[nodiscard]] bool is_ecdsa() const { return ecdsa_; }
  [[nodiscard]] Clock::time_point not_after() const { return not_after_; }
  [[nodiscard]] const std::string& subject() const { return subject_; }
  [[nodiscard]] const Chain& chain() const { return chain_; }
  [[nodiscard]] const Digest& public_key_digest() const { return public_key_digest_; }
  // A private key for the calling thread. mbedTLS's code when it fails, 0 otherwise.
  int make_key(PrivateKey& into) const;

 private:
  Identity() = default;
  Result<void> read_chain(Clock::time_point now, Purpose purpose);
  Result<void> read_key();
  Result<void> read_names();

  CertificateFiles files_;
  Chain chain_;
  Secret key_der_;
  std::vector<std::string> names_;
  std::string subject_;
  bool ecdsa_ = false;
  Clock::time_point not_after_;
  Digest public_key_digest_{};
};

class CertificateStore {
 public:
  // What is presented for a name: one at least, ECDSA before RSA.
  struct Choice {
    std::vector<std::uint32_t> identities;  // indices into identities()
    // Over the public keys of all of them: a ticket holds for one choice.
    Digest binding{};
  };

  // The first is the default's: it and those that share its first name are presented for whatever
  // name no other has. One bad entry, or none at all, is an error.
  static Result<std::shared_ptr<const CertificateStore>> load(
      std::span<const CertificateFiles> files,
      Identity::Clock::time_point now = Identity::Clock::now());
  static std::shared_ptr<const CertificateStore> make(
      std::vector<std::shared_ptr<const Identity>> identities);

  // `name` as the sniffer gives it: lower case, no trailing dot; empty: none was sent. Exact, then
  // a wildcard for its first label, then the default.
  [[nodiscard]] const Choice& choose(std::string_view name) const;
  [[nodiscard]] const std::vector<std::shared_ptr<const Identity>>& identities() const {
    return identities_;
  }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view name) const {
      return std::hash<std::string_view>{}(name);
    }
  };
  CertificateStore() = default;
  void finish(Choice& choice) const;

  std::vector<std::shared_ptr<const Identity>> identities_;
  std::unordered_map<std::string, Choice, Hash, std::equal_to<>> names_;  // "*.x" for wildcards
  Choice default_;
};

// A store as one worker uses it, with private keys of its own.
class KeyRing {
 public:
  explicit KeyRing(std::shared_ptr<const CertificateStore> store)
      : store_(std::move(store)), keys_(store_->identities().size()) {}
  [[nodiscard]] const CertificateStore& store() const { return *store_; }
  // Null when the key cannot be made: memory ran out.
  mbedtls_pk_context* key(std::uint32_t identity);

 private:
  std::shared_ptr<const CertificateStore> store_;
  std::vector<std::unique_ptr<PrivateKey>> keys_;
};

// Certificates of authorities, to verify clients or an upstream with.
class Authorities {
 public:
  // A PEM file. With `skip_unknown`, certificates of kinds that we cannot read are passed over, as
  // long as one can be read.
  static Result<std::shared_ptr<const Authorities>> load(const std::string& path,
                                                         bool skip_unknown = false);
  // The system's trust store, where one of the usual files exists.
  static Result<std::shared_ptr<const Authorities>> load_system();
  [[nodiscard]] const Chain& chain() const { return chain_; }
  [[nodiscard]] const Digest& digest() const { return digest_; }  // of all of them

 private:
  Authorities() = default;
  Chain chain_;
  Digest digest_{};
};

}  // namespace causeway::gateway::tls
