// SPDX-License-Identifier: Apache-2.0
#include "guest/gateway/crypto/accelerate.hpp"

#include <algorithm>
#include <array>
#include <memory>

#include "guest/gateway/crypto/builtin_gcm.h"
#include "guest/gateway/crypto/cpu.hpp"
#include "guest/gateway/crypto/ipsec_mb.hpp"
#include "guest/gateway/crypto/openssl.hpp"

namespace causeway::gateway::crypto {
namespace {

// The two implementations agree on a text that is long enough for every width of the loops, and
// odd.
bool gcm_agrees(unsigned int key_bits) {
  constexpr std::size_t kSize = 3000 + 13;
  std::array<unsigned char, kSize> text;
  std::array<unsigned char, kSize> ours;
  std::array<unsigned char, kSize> theirs;
  std::array<unsigned char, 32> key;
  std::array<unsigned char, 12> nonce{1, 2, 3};
  std::array<unsigned char, 13> add{4, 5, 6};
  std::array<unsigned char, 16> our_tag{};
  std::array<unsigned char, 16> their_tag{};
  for (std::size_t at = 0; at < kSize; ++at)
    text[at] = static_cast<unsigned char>(at * 7);
  for (std::size_t at = 0; at < key.size(); ++at)
    key[at] = static_cast<unsigned char>(at + 1);

  const GcmFunctions& functions = gcm_functions(key_bits);
  const auto expanded = std::make_unique<gcm_key_data>();
  gcm_context_data work;
  functions.prepare(key.data(), expanded.get());
  functions.encrypt(expanded.get(), &work, ours.data(), text.data(), kSize, nonce.data(),
                    add.data(), add.size(), our_tag.data(), our_tag.size());

  causeway_builtin_gcm_context* builtin = causeway_builtin_gcm_new();
  if (builtin == nullptr) return false;
  bool same =
      causeway_builtin_gcm_setkey(builtin, MBEDTLS_CIPHER_ID_AES, key.data(), key_bits) == 0 &&
      causeway_builtin_gcm_crypt_and_tag(builtin, 1, kSize, nonce.data(), nonce.size(), add.data(),
                                         add.size(), text.data(), theirs.data(), their_tag.size(),
                                         their_tag.data()) == 0;
  causeway_builtin_gcm_delete(builtin);
  same = same && ours == theirs && our_tag == their_tag;
  functions.decrypt(expanded.get(), &work, ours.data(), ours.data(), kSize, nonce.data(),
                    add.data(), add.size(), our_tag.data(), our_tag.size());
  return same && ours == text && our_tag == their_tag;
}

}  // namespace

void accelerate() {
  Providers chosen;
  if (load_ipsec_mb()) {
    chosen.gcm = gcm_agrees(128) && gcm_agrees(192) && gcm_agrees(256);
    chosen.chacha = chacha_works();
  }
  if (start_openssl()) {
    chosen.sha2 = sha2_works();
    chosen.ecp = ecp_works();
    chosen.ecdsa = ecdsa_works();
    chosen.rsa = true;  // each key is tried when it is first used
  }
  detail::set_providers(chosen);
}

std::string accelerators() {
  const Providers& chosen = providers();
  std::string ipsec_mb;
  std::string openssl;
  std::string own;
  const auto add = [&](bool accelerated, std::string& provider, const char* name) {
    std::string& names = accelerated ? provider : own;
    if (!names.empty()) names += ", ";
    names += name;
  };
  add(chosen.gcm, ipsec_mb, "AES-GCM");
  add(chosen.chacha, ipsec_mb, "ChaCha20-Poly1305");
  add(chosen.ecp, openssl, "X25519 and P-256");
  add(chosen.ecdsa, openssl, "ECDSA");
  add(chosen.rsa, openssl, "RSA");
  add(chosen.sha2, openssl, "SHA-2");
  std::string text;
  const auto tell = [&](const std::string& names, const std::string& provider) {
    if (names.empty()) return;
    if (!text.empty()) text += "; ";
    text += names + ": " + provider;
  };
  tell(ipsec_mb, ipsec_mb_name());
  tell(openssl, openssl_name());
  tell(own, "its own");
  return text;
}

}  // namespace causeway::gateway::crypto
