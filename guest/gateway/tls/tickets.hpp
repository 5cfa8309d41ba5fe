// SPDX-License-Identifier: Apache-2.0
// Theory of operation: session tickets, for TLS 1.2 (RFC 5077) and TLS 1.3 (RFC 8446 4.6.1) alike.
//
// A ticket is the session itself, sealed under a key of ours, so a gateway keeps nothing per client
// and whoever has the keys resumes: every worker, the gateway after a restart, its siblings in a
// fleet.
//
// Keys are in an immutable TicketKeySet. TicketKeys, of the control thread, makes a new set at a
// rotation or a reload and bumps its generation; a worker looks at the generation once per turn,
// and only when it has changed takes the lock to get the new set. No ticket costs a lock.
//
// A ticket:  name of the key (16) | nonce (24) | sealed state | tag (16)
// sealed with XAES-256-GCM (c2sp.org/XAES-256-GCM): AES-256-GCM under a key derived for each nonce,
// so random nonces do not run out however many tickets a fleet makes under one key.
//
// The additional data is the key's name and a *binding*: a digest over the public keys of the
// certificates that are presented for the name, the name, and the route's terms (ALPN list, whether
// and by whom clients are certified). What was made under another binding does not even
// authenticate: a ticket is worth nothing at another certificate's names, or where clients need
// certificates.
//
// The state is  version (1) | issued (8) | authenticated (8) | whether the client has a certificate
// (1) | its subject's length (2) | subject | mbedTLS's session. `issued`: when, in ms of the system
// clock, which a fleet has in common (mbedTLS writes its own machine's uptime). `authenticated`:
// when the full handshake was.
//
// Keys are rotated every 6 h and accepted until they are 12 h old. With a key file the first key
// seals, all open, and rotation is whoever writes the file.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/result.hpp"
#include "guest/gateway/crypto/crypto.hpp"
#include "guest/gateway/tls/certificates.hpp"
#include "guest/gateway/tls/secret_file.hpp"

namespace causeway::gateway::tls {

inline constexpr std::size_t kTicketNameBytes = 16;
inline constexpr std::size_t kTicketNonceBytes = 24;
inline constexpr std::size_t kTicketTagBytes = 16;
inline constexpr std::size_t kTicketKeyBytes = 32;

// One key; wiped at its end.
struct TicketKey {
  std::array<unsigned char, kTicketNameBytes> name{};
  std::array<unsigned char, kTicketKeyBytes> secret{};
  std::chrono::steady_clock::time_point made;  // not of keys from a file
  TicketKey() = default;
  TicketKey(const TicketKey&) = default;
  TicketKey& operator=(const TicketKey&) = default;
  ~TicketKey() { mbedtls_platform_zeroize(secret.data(), secret.size()); }
};

// The state inside of a ticket that is ours, beside mbedTLS's session.
struct TicketState {
  std::int64_t issued = 0;         // ms since 1970
  std::int64_t authenticated = 0;  // ms since 1970
  bool certified = false;          // the client has a certificate, of
  std::string subject;             // this; at most kMaxSubject bytes are kept
  static constexpr std::size_t kMaxSubject = 512;
};

class TicketKeySet {
 public:
  explicit TicketKeySet(std::vector<TicketKey> keys) : keys_(std::move(keys)) {}
  // The first seals.
  [[nodiscard]] std::span<const TicketKey> keys() const { return keys_; }

  // Each: an mbedTLS error code, 0 for success. seal(): a ticket into `out`, its size into
  // `written`.
  int seal(const mbedtls_ssl_session& session, const TicketState& state, const Digest& binding,
           crypto::Random& random, std::span<unsigned char> out, std::size_t& written) const;
  // `ticket` is overwritten. MBEDTLS_ERR_SSL_INVALID_MAC: not ours, of another binding, or of a key
  // that we have no more.
  int open(std::span<unsigned char> ticket, const Digest& binding, mbedtls_ssl_session& session,
           TicketState& state) const;

 private:
  std::vector<TicketKey> keys_;
};

class TicketKeys {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::hours kRotation{6};
  static constexpr std::chrono::hours kAccepted{12};
  static constexpr std::size_t kMaxKeys = 64;  // in a file

  // Random keys.
  explicit TicketKeys(Clock::time_point now = Clock::now());

  // Keys of a file from now on: either exactly 48 or 80 bytes (one key), or text with one key per
  // line as 96 or 160 hexadecimal digits; empty lines and lines that start with '#' are passed
  // over. The first 16 bytes name the key, a 256-bit key is derived from the rest. Mode 0600, or
  // the file is refused. After an error everything is as before.
  Result<void> load_file(const std::string& path);
  // Random keys again, after a file's.
  void forget_file(Clock::time_point now = Clock::now());

  // To be called now and then: makes a new key when the present one is older than kRotation. True
  // when it did. Does nothing with a key file.
  bool rotate(Clock::time_point now = Clock::now());

  // From any thread.
  [[nodiscard]] std::uint64_t generation() const {
    return generation_.load(std::memory_order_acquire);
  }
  [[nodiscard]] std::shared_ptr<const TicketKeySet> current() const;
  // What clients are told: how long a ticket that is made now will be good for.
  [[nodiscard]] static constexpr std::chrono::seconds lifetime() { return kRotation; }

 private:
  void publish(std::vector<TicketKey> keys);

  mutable std::mutex mutex_;
  std::shared_ptr<const TicketKeySet> current_;
  std::atomic<std::uint64_t> generation_{0};
  bool from_file_ = false;
};

// Of a key file's content.
Result<std::vector<TicketKey>> parse_ticket_keys(std::span<const unsigned char> content,
                                                 const std::string& path);

// The AEAD, in place: `data` grows by the tag when sealed (tag apart). Nonzero: mbedTLS's code.
int xaes_seal(std::span<const unsigned char, kTicketKeyBytes> key,
              std::span<const unsigned char, kTicketNonceBytes> nonce,
              std::span<const unsigned char> additional, std::span<unsigned char> data,
              std::span<unsigned char, kTicketTagBytes> tag);
int xaes_open(std::span<const unsigned char, kTicketKeyBytes> key,
              std::span<const unsigned char, kTicketNonceBytes> nonce,
              std::span<const unsigned char> additional, std::span<unsigned char> data,
              std::span<const unsigned char, kTicketTagBytes> tag);

}  // namespace causeway::gateway::tls
