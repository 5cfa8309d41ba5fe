// SPDX-License-Identifier: Apache-2.0
// XAES-256-GCM, c2sp.org/XAES-256-GCM: the key of a message is derived from the first half of its
// nonce by CMAC as a KDF in counter mode (NIST SP 800-108), the second half is the nonce of
// AES-GCM.
#include <mbedtls/aes.h>
#include <mbedtls/gcm.h>

#include <algorithm>

#include "guest/gateway/tls/tickets.hpp"

namespace causeway::gateway::tls {
namespace {

using Block = std::array<unsigned char, 16>;
constexpr std::size_t kHalfNonce = 12;

struct Aes {
  Aes() { mbedtls_aes_init(&context); }
  ~Aes() { mbedtls_aes_free(&context); }
  Aes(const Aes&) = delete;
  Aes& operator=(const Aes&) = delete;
  int encrypt(Block& block) {
    return mbedtls_aes_crypt_ecb(&context, MBEDTLS_AES_ENCRYPT, block.data(), block.data());
  }
  mbedtls_aes_context context;
};

struct Gcm {
  Gcm() { mbedtls_gcm_init(&context); }
  ~Gcm() { mbedtls_gcm_free(&context); }
  Gcm(const Gcm&) = delete;
  Gcm& operator=(const Gcm&) = delete;
  mbedtls_gcm_context context;
};

// L * x in GF(2^128), without a branch on the secret.
Block doubled(const Block& block) {
  Block out{};
  for (std::size_t i = 0; i < block.size(); ++i) {
    const unsigned next = i + 1 < block.size() ? block[i + 1] : 0U;
    out[i] = static_cast<unsigned char>((static_cast<unsigned>(block[i]) << 1U) | (next >> 7U));
  }
  const unsigned carry = static_cast<unsigned>(block[0]) >> 7U;
  out.back() = static_cast<unsigned char>(out.back() ^ (0x87U & (0U - carry)));
  return out;
}

int derive(std::span<const unsigned char, kTicketKeyBytes> key,
           std::span<const unsigned char, kTicketNonceBytes> nonce, Gcm& gcm) {
  Aes aes;
  Block first{};  // L, then K1
  std::array<unsigned char, kTicketKeyBytes> derived{};
  int failed = mbedtls_aes_setkey_enc(&aes.context, key.data(), kTicketKeyBytes * 8);
  if (failed == 0) failed = aes.encrypt(first);
  first = doubled(first);
  for (unsigned char half = 0; half < 2 && failed == 0; ++half) {
    Block block{0, static_cast<unsigned char>(half + 1), 'X', 0};
    std::copy_n(nonce.begin(), kHalfNonce, block.begin() + 4);
    for (std::size_t i = 0; i < block.size(); ++i) {
      block[i] = static_cast<unsigned char>(block[i] ^ first[i]);
    }
    failed = aes.encrypt(block);
    std::copy(block.begin(), block.end(), derived.begin() + std::ptrdiff_t{16} * half);
    mbedtls_platform_zeroize(block.data(), block.size());
  }
  if (failed == 0) {
    failed = mbedtls_gcm_setkey(&gcm.context, MBEDTLS_CIPHER_ID_AES, derived.data(),
                                kTicketKeyBytes * 8);
  }
  mbedtls_platform_zeroize(first.data(), first.size());
  mbedtls_platform_zeroize(derived.data(), derived.size());
  return failed;
}

}  // namespace

int xaes_seal(std::span<const unsigned char, kTicketKeyBytes> key,
              std::span<const unsigned char, kTicketNonceBytes> nonce,
              std::span<const unsigned char> additional, std::span<unsigned char> data,
              std::span<unsigned char, kTicketTagBytes> tag) {
  Gcm gcm;
  if (const int failed = derive(key, nonce, gcm); failed != 0) return failed;
  return mbedtls_gcm_crypt_and_tag(
      &gcm.context, MBEDTLS_GCM_ENCRYPT, data.size(), nonce.data() + kHalfNonce, kHalfNonce,
      additional.data(), additional.size(), data.data(), data.data(), tag.size(), tag.data());
}

int xaes_open(std::span<const unsigned char, kTicketKeyBytes> key,
              std::span<const unsigned char, kTicketNonceBytes> nonce,
              std::span<const unsigned char> additional, std::span<unsigned char> data,
              std::span<const unsigned char, kTicketTagBytes> tag) {
  Gcm gcm;
  if (const int failed = derive(key, nonce, gcm); failed != 0) return failed;
  return mbedtls_gcm_auth_decrypt(&gcm.context, data.size(), nonce.data() + kHalfNonce, kHalfNonce,
                                  additional.data(), additional.size(), tag.data(), tag.size(),
                                  data.data(), data.data());
}

}  // namespace causeway::gateway::tls
