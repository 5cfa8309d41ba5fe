// SPDX-License-Identifier: Apache-2.0
// Theory of operation: ChaCha20-Poly1305 of a whole record over intel-ipsec-mb, in the place of
// mbedTLS's two one-call functions. Data in parts stays mbedTLS's own. The key is taken from where
// mbedTLS keeps it: words 4 to 11 of ChaCha20's state, RFC 8439 2.3.
#include <mbedtls/chachapoly.h>
#include <mbedtls/platform_util.h>

#include <array>
#include <cstring>

#include "guest/gateway/crypto/builtin.hpp"
#include "guest/gateway/crypto/constant_time.hpp"
#include "guest/gateway/crypto/cpu.hpp"
#include "guest/gateway/crypto/ipsec_mb.hpp"

namespace causeway::gateway::crypto {
namespace {

constexpr std::size_t kTag = 16;
constexpr std::uint64_t kMaxLength = (std::uint64_t{1} << 32) * 64 - 64;  // RFC 8439 2.8
const unsigned char kNothing = 0;

const unsigned char* or_nothing(const unsigned char* bytes) {
  return bytes != nullptr ? bytes : &kNothing;
}

void crypt(const mbedtls_chachapoly_context& context, bool encrypt, std::size_t length,
           const unsigned char* nonce, const unsigned char* add, std::size_t add_size,
           const unsigned char* input, unsigned char* output, unsigned char* tag) {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the words are the key's bytes");
  std::array<unsigned char, 32> key;
  std::memcpy(key.data(), &context.MBEDTLS_PRIVATE(chacha20_ctx).MBEDTLS_PRIVATE(state)[4],
              key.size());
  const ChachaFunctions& functions = chacha_functions();
  chacha20_poly1305_context_data work;
  unsigned char nowhere = 0;
  functions.start(key.data(), &work, nonce, or_nothing(add), add_size);
  const auto update = encrypt ? functions.encrypt : functions.decrypt;
  update(key.data(), &work, output != nullptr ? output : &nowhere, or_nothing(input), length);
  functions.finish(&work, tag, kTag);
  mbedtls_platform_zeroize(&work, sizeof work);
  mbedtls_platform_zeroize(key.data(), key.size());
}

}  // namespace

bool chacha_works() {
  // Both implementations, on a text that is long enough for every width of the loops, and odd.
  constexpr std::size_t kSize = 3000 + 13;
  std::array<unsigned char, kSize> text;
  std::array<unsigned char, kSize> ours;
  std::array<unsigned char, kSize> theirs;
  std::array<unsigned char, kTag> our_tag{};
  std::array<unsigned char, kTag> their_tag{};
  std::array<unsigned char, 32> key;
  const std::array<unsigned char, 12> nonce{1, 2, 3};
  const std::array<unsigned char, 13> add{4, 5, 6};
  for (std::size_t at = 0; at < kSize; ++at)
    text[at] = static_cast<unsigned char>(at * 7);
  for (std::size_t at = 0; at < key.size(); ++at)
    key[at] = static_cast<unsigned char>(at + 1);
  mbedtls_chachapoly_context context;
  mbedtls_chachapoly_init(&context);
  bool same = mbedtls_chachapoly_setkey(&context, key.data()) == 0;
  crypt(context, true, kSize, nonce.data(), add.data(), add.size(), text.data(), ours.data(),
        our_tag.data());
  same = same &&
         causeway_builtin_mbedtls_chachapoly_encrypt_and_tag(
             &context, kSize, nonce.data(), add.data(), add.size(), text.data(), theirs.data(),
             their_tag.data()) == 0 &&
         ours == theirs && our_tag == their_tag;
  crypt(context, false, kSize, nonce.data(), add.data(), add.size(), ours.data(), ours.data(),
        our_tag.data());
  mbedtls_chachapoly_free(&context);
  return same && ours == text && our_tag == their_tag;
}

}  // namespace causeway::gateway::crypto

extern "C" int mbedtls_chachapoly_encrypt_and_tag(mbedtls_chachapoly_context* ctx, size_t length,
                                                  const unsigned char nonce[12],
                                                  const unsigned char* aad, size_t aad_len,
                                                  const unsigned char* input, unsigned char* output,
                                                  unsigned char tag[16]) {
  using namespace causeway::gateway::crypto;  // NOLINT(google-build-using-namespace)
  if (!providers().chacha || length > kMaxLength) {
    return causeway_builtin_mbedtls_chachapoly_encrypt_and_tag(ctx, length, nonce, aad, aad_len,
                                                               input, output, tag);
  }
  crypt(*ctx, true, length, nonce, aad, aad_len, input, output, tag);
  return 0;
}

extern "C" int mbedtls_chachapoly_auth_decrypt(mbedtls_chachapoly_context* ctx, size_t length,
                                               const unsigned char nonce[12],
                                               const unsigned char* aad, size_t aad_len,
                                               const unsigned char tag[16],
                                               const unsigned char* input, unsigned char* output) {
  using namespace causeway::gateway::crypto;  // NOLINT(google-build-using-namespace)
  if (!providers().chacha || length > kMaxLength) {
    return causeway_builtin_mbedtls_chachapoly_auth_decrypt(ctx, length, nonce, aad, aad_len, tag,
                                                            input, output);
  }
  std::array<unsigned char, kTag> expected;
  crypt(*ctx, false, length, nonce, aad, aad_len, input, output, expected.data());
  const int different = mbedtls_ct_memcmp(tag, expected.data(), kTag);
  mbedtls_platform_zeroize(expected.data(), kTag);
  if (different == 0) return 0;
  if (length > 0) mbedtls_platform_zeroize(output, length);
  return MBEDTLS_ERR_CHACHAPOLY_AUTH_FAILED;
}
