// SPDX-License-Identifier: Apache-2.0
#include "guest/gateway/tls/certificates.hpp"

#include <mbedtls/asn1.h>
#include <mbedtls/oid.h>
#include <mbedtls/sha256.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <set>

#include "guest/gateway/crypto/crypto.hpp"

namespace causeway::gateway::tls {
namespace {

using Clock = Identity::Clock;

Error of_file(const std::string& path, const std::string& what) {
  return Error{path + ": " + what, EINVAL};
}

Clock::time_point time_of(const mbedtls_x509_time& time) {
  std::tm parts{};
  parts.tm_year = time.year - 1900;
  parts.tm_mon = time.mon - 1;
  parts.tm_mday = time.day;
  parts.tm_hour = time.hour;
  parts.tm_min = time.min;
  parts.tm_sec = time.sec;
  return Clock::from_time_t(::timegm(&parts));
}

std::string date(Clock::time_point at) {
  const std::time_t seconds = Clock::to_time_t(at);
  std::tm parts{};
  std::array<char, 32> text{};
  if (::gmtime_r(&seconds, &parts) == nullptr ||
      std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &parts) == 0) {
    return "an unknown date";
  }
  return text.data();
}

std::string lower(std::span<const unsigned char> text) {
  std::string out(text.begin(), text.end());
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  if (!out.empty() && out.back() == '.') out.pop_back();
  return out;
}

// A NUL inside a name would be cut off by whatever handles it as a C string.
bool plausible(std::string_view name) {
  return !name.empty() && name.size() <= 253 &&
         std::all_of(name.begin(), name.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

std::span<const unsigned char> bytes_of(const mbedtls_x509_buf& buf) {
  return {buf.p, buf.len};
}

// Two keys are the same when their public halves are.
bool is_pair(const mbedtls_x509_crt& certificate, PrivateKey& key, crypto::Random& random) {
  return mbedtls_pk_check_pair(&certificate.pk, key.get(), crypto::Random::generate,
                               random.context()) == 0;
}

}  // namespace

Result<std::shared_ptr<const Identity>> Identity::load(const CertificateFiles& files,
                                                       Clock::time_point now, Purpose purpose) {
  std::shared_ptr<Identity> self(new Identity);
  self->files_ = files;
  if (auto read = self->read_chain(now, purpose); !read) return read.error();
  if (auto read = self->read_key(); !read) return read.error();
  if (auto read = self->read_names(); !read) return read.error();
  return std::shared_ptr<const Identity>(std::move(self));
}

Result<void> Identity::read_chain(Clock::time_point now, Purpose purpose) {
  const std::string& path = files_.chain;
  auto content = read_secret_file(path, FileAccess::anyone);
  if (!content) return content.error();
  const auto bytes = content->bytes.bytes().first(content->size + 1);
  const int failed = mbedtls_x509_crt_parse(&chain_.first(), bytes.data(), bytes.size());
  if (failed < 0) {
    return of_file(path, "no certificate can be read from it (" + mbedtls_text(failed) +
                             "); it takes a PEM file, the certificate first");
  }
  if (failed > 0) {
    return of_file(path, std::to_string(failed) +
                             " of its certificates cannot be read; remove or replace them");
  }

  const mbedtls_x509_crt& leaf = chain_.first();
  // As TLS 1.3 writes them: a length before and extensions behind each (RFC 8446 4.4.2).
  std::size_t message = 8;
  for (const mbedtls_x509_crt* one = &leaf; one != nullptr; one = one->next)
    message += 3 + one->raw.len + 2;
  if (message > MBEDTLS_SSL_OUT_CONTENT_LEN) {
    return of_file(
        path,
        "its certificates have more than 16 KiB together, which no handshake takes; keep "
        "the server's own and its issuers");
  }
  const auto from = time_of(leaf.valid_from);
  not_after_ = time_of(leaf.valid_to);
  if (now < from) {
    return of_file(
        path, "the certificate is not valid before " + date(from) + "; check the clock, or wait");
  }
  if (now > not_after_) {
    return of_file(path, "the certificate expired on " + date(not_after_) + "; renew it");
  }
  const bool server = purpose == Purpose::server;
  // Both identifiers have the same length.
  if (mbedtls_x509_crt_check_extended_key_usage(
          &leaf, server ? MBEDTLS_OID_SERVER_AUTH : MBEDTLS_OID_CLIENT_AUTH,
          MBEDTLS_OID_SIZE(MBEDTLS_OID_SERVER_AUTH)) != 0 ||
      mbedtls_x509_crt_check_key_usage(&leaf, MBEDTLS_X509_KU_DIGITAL_SIGNATURE) != 0) {
    const std::string who = server ? "server" : "client";
    return of_file(path, "the certificate may not be used by a TLS " + who +
                             " (its key usage says so); get one for " + who + "s");
  }
  std::array<char, 512> subject{};
  if (mbedtls_x509_dn_gets(subject.data(), subject.size(), &leaf.subject) > 0) {
    subject_ = subject.data();
  }
  if (mbedtls_sha256(leaf.pk_raw.p, leaf.pk_raw.len, public_key_digest_.data(), 0) != 0) {
    return of_file(path, "its digest cannot be taken");
  }
  return {};
}

Result<void> Identity::read_key() {
  const std::string& path = files_.key;
  auto content = read_secret_file(path, FileAccess::owner_only);
  if (!content) return content.error();
  const auto bytes = content->bytes.bytes().first(content->size + 1);
  crypto::Random random;
  PrivateKey key;
  const int failed = mbedtls_pk_parse_key(key.get(), bytes.data(), bytes.size(), nullptr, 0,
                                          crypto::Random::generate, random.context());
  if (failed == MBEDTLS_ERR_PK_PASSWORD_REQUIRED || failed == MBEDTLS_ERR_PK_PASSWORD_MISMATCH) {
    return of_file(path, "the private key is encrypted; give one without a password");
  }
  if (failed != 0) {
    return of_file(path, "no private key can be read from it (" + mbedtls_text(failed) +
                             "); it takes an EC (P-256, P-384) or RSA key as PEM");
  }
  if (!is_pair(chain_.first(), key, random)) {
    std::size_t index = 2;
    for (const mbedtls_x509_crt* other = chain_.first().next; other != nullptr;
         other = other->next, ++index) {
      if (is_pair(*other, key, random)) {
        return of_file(files_.chain, "the key in " + path + " belongs to certificate " +
                                         std::to_string(index) +
                                         " of this file; the server's own has to be the first");
      }
    }
    return of_file(path, "the private key does not belong to the certificate in " + files_.chain +
                             "; give the two that were made together");
  }
  ecdsa_ = mbedtls_pk_can_do(key.get(), MBEDTLS_PK_ECDSA) != 0;
  if (!ecdsa_ && mbedtls_pk_can_do(key.get(), MBEDTLS_PK_RSA) == 0) {
    return of_file(path, "a kind of key that a TLS server cannot sign with; make an EC or RSA key");
  }
  if (!ecdsa_ && mbedtls_pk_get_bitlen(key.get()) < 2048) {
    return of_file(path, "an RSA key of less than 2048 bits; make a longer one");
  }

  // Written at the end of the buffer. RSA-8192 needs 4.7 KiB.
  Secret der(std::size_t{16} * 1024);
  const int size = mbedtls_pk_write_key_der(key.get(), der.bytes().data(), der.size());
  if (size <= 0) return of_file(path, "the private key cannot be kept: " + mbedtls_text(size));
  key_der_ = Secret(der.bytes().last(static_cast<std::size_t>(size)));
  return {};
}

Result<void> Identity::read_names() {
  const mbedtls_x509_crt& leaf = chain_.first();
  std::set<std::string> names;
  if (mbedtls_x509_crt_has_ext_type(&leaf, MBEDTLS_X509_EXT_SUBJECT_ALT_NAME) != 0) {
    for (const mbedtls_x509_sequence* at = &leaf.subject_alt_names; at != nullptr; at = at->next) {
      if (at->buf.p == nullptr ||
          at->buf.tag != (MBEDTLS_ASN1_CONTEXT_SPECIFIC | MBEDTLS_X509_SAN_DNS_NAME)) {
        continue;
      }
      std::string name = lower(bytes_of(at->buf));
      if (plausible(name)) names.insert(std::move(name));
    }
  } else {
    for (const mbedtls_x509_name* at = &leaf.subject; at != nullptr; at = at->next) {
      if (MBEDTLS_OID_CMP(MBEDTLS_OID_AT_CN, &at->oid) != 0) continue;
      std::string name = lower(bytes_of(at->val));
      if (plausible(name)) names.insert(std::move(name));
    }
  }
  names_.assign(names.begin(), names.end());
  return {};
}

int Identity::make_key(PrivateKey& into) const {
  crypto::Random random;
  return mbedtls_pk_parse_key(into.get(), key_der_.bytes().data(), key_der_.size(), nullptr, 0,
                              crypto::Random::generate, random.context());
}

Result<std::shared_ptr<const CertificateStore>> CertificateStore::load(
    std::span<const CertificateFiles> files, Clock::time_point now) {
  if (files.empty()) return Error{"no certificate is configured; TLS cannot be terminated", EINVAL};
  std::vector<std::shared_ptr<const Identity>> identities;
  for (const CertificateFiles& one : files) {
    auto identity = Identity::load(one, now);
    if (!identity) return identity.error();
    identities.push_back(*std::move(identity));
  }
  return make(std::move(identities));
}

std::shared_ptr<const CertificateStore> CertificateStore::make(
    std::vector<std::shared_ptr<const Identity>> identities) {
  std::shared_ptr<CertificateStore> self(new CertificateStore);
  self->identities_ = std::move(identities);
  for (std::uint32_t i = 0; i < self->identities_.size(); ++i) {
    for (const std::string& name : self->identities_[i]->names()) {
      self->names_[name].identities.push_back(i);
    }
  }
  for (auto& [name, choice] : self->names_)
    self->finish(choice);
  const auto& names = self->identities_.front()->names();
  if (names.empty()) {
    self->default_.identities.push_back(0);
    self->finish(self->default_);
  } else {
    self->default_ = self->names_.find(names.front())->second;
  }
  return self;
}

void CertificateStore::finish(Choice& choice) const {
  std::stable_sort(choice.identities.begin(), choice.identities.end(),
                   [this](std::uint32_t a, std::uint32_t b) {
                     return identities_[a]->is_ecdsa() && !identities_[b]->is_ecdsa();
                   });
  std::vector<unsigned char> all;
  for (const std::uint32_t i : choice.identities) {
    const Digest& digest = identities_[i]->public_key_digest();
    all.insert(all.end(), digest.begin(), digest.end());
  }
  // Fails only for want of a digest context, of which SHA-256 needs none.
  if (mbedtls_sha256(all.data(), all.size(), choice.binding.data(), 0) != 0) std::abort();
}

const CertificateStore::Choice& CertificateStore::choose(std::string_view name) const {
  if (name.empty()) return default_;
  if (const auto found = names_.find(name); found != names_.end()) return found->second;
  const std::size_t dot = name.find('.');
  if (dot == std::string_view::npos || dot == 0) return default_;
  // Names are 253 bytes at most, and what stands for the label is one byte.
  std::array<char, 256> wildcard{};
  const std::string_view rest = name.substr(dot);
  if (rest.size() + 1 > wildcard.size()) return default_;
  wildcard[0] = '*';
  std::copy(rest.begin(), rest.end(), wildcard.begin() + 1);
  const auto found = names_.find(std::string_view(wildcard.data(), rest.size() + 1));
  return found != names_.end() ? found->second : default_;
}

mbedtls_pk_context* KeyRing::key(std::uint32_t identity) {
  auto& key = keys_[identity];
  if (!key) {
    auto made = std::make_unique<PrivateKey>();
    if (store_->identities()[identity]->make_key(*made) != 0) return nullptr;
    key = std::move(made);
  }
  return key->get();
}

Result<std::shared_ptr<const Authorities>> Authorities::load(const std::string& path,
                                                             bool skip_unknown) {
  auto content = read_secret_file(path, FileAccess::anyone);
  if (!content) return content.error();
  std::shared_ptr<Authorities> self(new Authorities);
  const auto bytes = content->bytes.bytes().first(content->size + 1);
  const int failed = mbedtls_x509_crt_parse(&self->chain_.first(), bytes.data(), bytes.size());
  if (failed < 0 || self->chain_.first().version == 0) {
    return of_file(path, "no certificate can be read from it (" + mbedtls_text(failed) +
                             "); it takes certificates of authorities as PEM");
  }
  if (failed > 0 && !skip_unknown) {
    return of_file(path, std::to_string(failed) +
                             " of its certificates cannot be read; remove or replace them");
  }
  std::vector<unsigned char> all;
  for (const mbedtls_x509_crt* at = &self->chain_.first(); at != nullptr; at = at->next) {
    all.insert(all.end(), at->raw.p, at->raw.p + at->raw.len);
  }
  if (mbedtls_sha256(all.data(), all.size(), self->digest_.data(), 0) != 0) {
    return of_file(path, "its digest cannot be taken");
  }
  return std::shared_ptr<const Authorities>(std::move(self));
}

Result<std::shared_ptr<const Authorities>> Authorities::load_system() {
  static constexpr std::array kPaths{
      "/etc/ssl/certs/ca-certificates.crt",  // Debian, Alpine, Arch
      "/etc/pki/tls/certs/ca-bundle.crt",    // Fedora, RHEL
      "/etc/ssl/ca-bundle.pem",              // openSUSE
  };
  for (const char* path : kPaths) {
    if (::access(path, R_OK) == 0) return load(path, true);
  }
  return Error{"no trust store of the system was found; install ca-certificates, or name a file",
               ENOENT};
}

}  // namespace causeway::gateway::tls
