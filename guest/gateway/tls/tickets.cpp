// SPDX-License-Identifier: Apache-2.0
#include "guest/gateway/tls/tickets.hpp"

#include <mbedtls/hkdf.h>
#include <mbedtls/md.h>

#include <algorithm>
#include <stdexcept>
#include <string_view>

#include "guest/gateway/crypto/crypto.hpp"

namespace causeway::gateway::tls {
namespace {

constexpr unsigned char kVersion = 1;
constexpr std::size_t kFixedState = 1 + 8 + 8 + 1 + 2;  // in front of the subject and the session
constexpr std::size_t kOverhead = kTicketNameBytes + kTicketNonceBytes + kTicketTagBytes;

void store64(unsigned char* at, std::int64_t value) {
  for (int i = 7; i >= 0; --i, ++at) {
    *at = static_cast<unsigned char>(static_cast<std::uint64_t>(value) >> (8 * i));
  }
}

std::int64_t load64(std::span<const unsigned char, 8> from) {
  std::uint64_t value = 0;
  for (const unsigned char byte : from)
    value = (value << 8U) | byte;
  return static_cast<std::int64_t>(value);
}

using Additional = std::array<unsigned char, kTicketNameBytes + sizeof(Digest)>;
Additional additional_data(const TicketKey& key, const Digest& binding) {
  Additional out;
  std::copy(key.name.begin(), key.name.end(), out.begin());
  std::copy(binding.begin(), binding.end(), out.begin() + kTicketNameBytes);
  return out;
}

void fill(std::span<unsigned char> bytes) {
  crypto::Random random;
  if (crypto::Random::generate(random.context(), bytes.data(), bytes.size()) != 0) {
    throw std::runtime_error("no random numbers for session ticket keys");
  }
}

TicketKey random_key(TicketKeys::Clock::time_point now) {
  TicketKey key;
  fill(key.name);
  fill(key.secret);
  key.made = now;
  return key;
}

bool derive_key(std::span<const unsigned char> material, TicketKey& key) {
  static constexpr std::string_view kInfo = "causeway session ticket key";
  std::copy_n(material.begin(), kTicketNameBytes, key.name.begin());
  const auto secret = material.subspan(kTicketNameBytes);
  return mbedtls_hkdf(mbedtls_md_info_from_type(MBEDTLS_MD_SHA256), key.name.data(),
                      key.name.size(), secret.data(), secret.size(),
                      // Characters as bytes.
                      reinterpret_cast<const unsigned char*>(kInfo.data()), kInfo.size(),
                      key.secret.data(), key.secret.size()) == 0;
}

int hex_digit(unsigned char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

constexpr bool is_key_size(std::size_t size) {
  return size == 48 || size == 80;
}

}  // namespace

int TicketKeySet::seal(const mbedtls_ssl_session& session, const TicketState& state,
                       const Digest& binding, crypto::Random& random, std::span<unsigned char> out,
                       std::size_t& written) const {
  const TicketKey& key = keys_.front();
  const std::size_t subject_size = std::min(state.subject.size(), TicketState::kMaxSubject);
  if (out.size() < kOverhead + kFixedState + subject_size) return MBEDTLS_ERR_SSL_BUFFER_TOO_SMALL;
  std::copy(key.name.begin(), key.name.end(), out.begin());
  const auto nonce = out.subspan<kTicketNameBytes, kTicketNonceBytes>();
  if (const int failed = crypto::Random::generate(random.context(), nonce.data(), nonce.size());
      failed != 0) {
    return failed;
  }

  const auto room = out.subspan(kTicketNameBytes + kTicketNonceBytes);
  unsigned char* at = room.data();
  *at = kVersion;
  store64(at + 1, state.issued);
  store64(at + 9, state.authenticated);
  at[17] = state.certified ? 1 : 0;
  at[18] = static_cast<unsigned char>(subject_size >> 8U);
  at[19] = static_cast<unsigned char>(subject_size & 0xffU);
  std::copy_n(state.subject.begin(), subject_size, at + kFixedState);
  const auto session_room = room.subspan(kFixedState + subject_size);
  std::size_t session_size = 0;
  int failed = mbedtls_ssl_session_save(&session, session_room.data(),
                                        session_room.size() - kTicketTagBytes, &session_size);
  const std::size_t size = kFixedState + subject_size + session_size;
  if (failed == 0) {
    const auto additional = additional_data(key, binding);
    failed = xaes_seal(key.secret, nonce, additional, room.first(size),
                       room.subspan(size).first<kTicketTagBytes>());
  }
  if (failed != 0) {
    mbedtls_platform_zeroize(room.data(), room.size());
    return failed;
  }
  written = kOverhead + size;
  return 0;
}

int TicketKeySet::open(std::span<unsigned char> ticket, const Digest& binding,
                       mbedtls_ssl_session& session, TicketState& state) const {
  if (ticket.size() < kOverhead + kFixedState) return MBEDTLS_ERR_SSL_INVALID_MAC;
  const auto name = ticket.first<kTicketNameBytes>();
  const auto key = std::find_if(keys_.begin(), keys_.end(), [&](const TicketKey& one) {
    return std::equal(name.begin(), name.end(), one.name.begin());  // names are no secret
  });
  if (key == keys_.end()) return MBEDTLS_ERR_SSL_INVALID_MAC;
  const auto nonce = ticket.subspan<kTicketNameBytes, kTicketNonceBytes>();
  const auto body = ticket.subspan(kTicketNameBytes + kTicketNonceBytes);
  const auto data = body.first(body.size() - kTicketTagBytes);
  const auto additional = additional_data(*key, binding);
  if (xaes_open(key->secret, nonce, additional, data, body.last<kTicketTagBytes>()) != 0) {
    return MBEDTLS_ERR_SSL_INVALID_MAC;
  }
  // Authentic from here on, but maybe of a later version of ours.
  const std::size_t subject_size = static_cast<std::size_t>(data[18]) << 8U | data[19];
  int failed = MBEDTLS_ERR_SSL_INVALID_MAC;
  if (data[0] == kVersion && data.size() >= kFixedState + subject_size) {
    state.issued = load64(data.subspan<1, 8>());
    state.authenticated = load64(data.subspan<9, 8>());
    state.certified = data[17] != 0;
    const auto subject = data.subspan(kFixedState, subject_size);
    state.subject.assign(subject.begin(), subject.end());
    const auto saved = data.subspan(kFixedState + subject_size);
    failed = mbedtls_ssl_session_load(&session, saved.data(), saved.size());
  }
  mbedtls_platform_zeroize(data.data(), data.size());
  return failed;
}

TicketKeys::TicketKeys(Clock::time_point now) {
  publish({random_key(now)});
}

Result<void> TicketKeys::load_file(const std::string& path) {
  auto content = read_secret_file(path, FileAccess::owner_only);
  if (!content) return content.error();
  auto keys = parse_ticket_keys(content->content(), path);
  if (!keys) return keys.error();
  from_file_ = true;
  publish(*std::move(keys));
  return {};
}

void TicketKeys::forget_file(Clock::time_point now) {
  if (!from_file_) return;
  from_file_ = false;
  publish({random_key(now)});
}

bool TicketKeys::rotate(Clock::time_point now) {
  if (from_file_) return false;
  const auto set = current();
  if (now - set->keys().front().made < kRotation) return false;
  std::vector<TicketKey> keys;
  keys.push_back(random_key(now));
  for (const TicketKey& key : set->keys()) {
    if (now - key.made < kAccepted) keys.push_back(key);
  }
  publish(std::move(keys));
  return true;
}

std::shared_ptr<const TicketKeySet> TicketKeys::current() const {
  const std::lock_guard lock(mutex_);
  return current_;
}

void TicketKeys::publish(std::vector<TicketKey> keys) {
  auto set = std::make_shared<const TicketKeySet>(std::move(keys));
  const std::lock_guard lock(mutex_);
  current_.swap(set);
  generation_.fetch_add(1, std::memory_order_release);
}

Result<std::vector<TicketKey>> parse_ticket_keys(std::span<const unsigned char> content,
                                                 const std::string& path) {
  const auto bad = [&](const std::string& what) { return Error{path + ": " + what, EINVAL}; };
  std::vector<TicketKey> keys;
  keys.reserve(TicketKeys::kMaxKeys);  // copies made by growing are wiped too, but why make them
  const bool text = std::all_of(content.begin(), content.end(), [](unsigned char c) {
    return c == '\n' || c == '\r' || c == '\t' || (c >= ' ' && c < 0x7f);
  });
  if (!text && is_key_size(content.size())) {
    keys.emplace_back();
    if (!derive_key(content, keys.back())) return bad("the key cannot be derived");
    return keys;
  }

  std::size_t line_number = 0;
  while (!content.empty()) {
    ++line_number;
    const auto end = std::find(content.begin(), content.end(), '\n');
    auto line = content.first(static_cast<std::size_t>(end - content.begin()));
    content = content.subspan(line.size() + (end != content.end() ? 1 : 0));
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ' || line.back() == '\t')) {
      line = line.first(line.size() - 1);
    }
    if (line.empty() || line.front() == '#') continue;
    const std::string where = "line " + std::to_string(line_number);
    if (line.size() % 2 != 0 || !is_key_size(line.size() / 2)) {
      return bad(where +
                 " is no ticket key: 96 or 160 hexadecimal digits are; make one with "
                 "`openssl rand -hex 80`");
    }
    if (keys.size() == TicketKeys::kMaxKeys) return bad("more than 64 keys; remove old ones");
    Secret material(line.size() / 2);
    for (std::size_t i = 0; i < material.size(); ++i) {
      const int high = hex_digit(line[2 * i]);
      const int low = hex_digit(line[2 * i + 1]);
      if (high < 0 || low < 0) return bad(where + " has characters that are no hexadecimal digits");
      material.bytes()[i] = static_cast<unsigned char>(high * 16 + low);
    }
    keys.emplace_back();
    if (!derive_key(material.bytes(), keys.back())) return bad("the key cannot be derived");
    const auto same_name = [&](const TicketKey& one) { return one.name == keys.back().name; };
    if (std::count_if(keys.begin(), keys.end(), same_name) > 1) {
      return bad(where + " has the name (the first 16 bytes) of a key before it");
    }
  }
  if (keys.empty()) {
    return bad("no ticket key in it; make one with `openssl rand -hex 80`");
  }
  return keys;
}

}  // namespace causeway::gateway::tls
