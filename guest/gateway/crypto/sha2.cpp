// SPDX-License-Identifier: Apache-2.0
// Theory of operation: the compression functions of SHA-256 and SHA-384/512 over libcrypto, which
// has them with the CPU's SHA instructions or wide vectors. Everything around them, and so every
// context, copy and export, stays mbedTLS's. A handshake of TLS 1.3 takes some hundred of them.
#ifndef OPENSSL_SUPPRESS_DEPRECATED
#define OPENSSL_SUPPRESS_DEPRECATED
#endif
#include <mbedtls/platform_util.h>
#include <openssl/sha.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "guest/gateway/crypto/builtin.hpp"
#include "guest/gateway/crypto/cpu.hpp"
#include "guest/gateway/crypto/openssl.hpp"

namespace causeway::gateway::crypto {
namespace {

// Both libraries keep the state as eight words in the machine's order.
template <class State, class Words, class Transform>
void compress(Words& words, const unsigned char* block, Transform transform) {
  State state;
  std::copy(std::begin(words), std::end(words), std::begin(state.h));
  transform(&state, block);
  std::copy(std::begin(state.h), std::end(state.h), std::begin(words));
  mbedtls_platform_zeroize(state.h, sizeof state.h);  // of an HMAC, perhaps
}

}  // namespace

bool sha2_works() {
  // One compression of one block, by both.
  std::array<unsigned char, 128> block;
  for (std::size_t at = 0; at < block.size(); ++at)
    block[at] = static_cast<unsigned char>(at * 3);
  mbedtls_sha256_context a;
  mbedtls_sha512_context b;
  mbedtls_sha256_init(&a);
  mbedtls_sha512_init(&b);
  bool same = mbedtls_sha256_starts(&a, 0) == 0 && mbedtls_sha512_starts(&b, 0) == 0;
  mbedtls_sha256_context a_own = a;
  mbedtls_sha512_context b_own = b;
  compress<SHA256_CTX>(a.MBEDTLS_PRIVATE(state), block.data(), SHA256_Transform);
  compress<SHA512_CTX>(b.MBEDTLS_PRIVATE(state), block.data(), SHA512_Transform);
  same = same && causeway_builtin_mbedtls_internal_sha256_process_c(&a_own, block.data()) == 0 &&
         causeway_builtin_mbedtls_internal_sha512_process_c(&b_own, block.data()) == 0 &&
         std::equal(std::begin(a.MBEDTLS_PRIVATE(state)), std::end(a.MBEDTLS_PRIVATE(state)),
                    std::begin(a_own.MBEDTLS_PRIVATE(state))) &&
         std::equal(std::begin(b.MBEDTLS_PRIVATE(state)), std::end(b.MBEDTLS_PRIVATE(state)),
                    std::begin(b_own.MBEDTLS_PRIVATE(state)));
  mbedtls_sha256_free(&a);
  mbedtls_sha512_free(&b);
  return same;
}

}  // namespace causeway::gateway::crypto

extern "C" int mbedtls_internal_sha256_process(mbedtls_sha256_context* ctx,
                                               const unsigned char data[64]) {
  using namespace causeway::gateway::crypto;  // NOLINT(google-build-using-namespace)
  if (!providers().sha2) return causeway_builtin_mbedtls_internal_sha256_process_c(ctx, data);
  compress<SHA256_CTX>(ctx->MBEDTLS_PRIVATE(state), data, SHA256_Transform);
  return 0;
}

extern "C" int mbedtls_internal_sha512_process(mbedtls_sha512_context* ctx,
                                               const unsigned char data[128]) {
  using namespace causeway::gateway::crypto;  // NOLINT(google-build-using-namespace)
  if (!providers().sha2) return causeway_builtin_mbedtls_internal_sha512_process_c(ctx, data);
  compress<SHA512_CTX>(ctx->MBEDTLS_PRIVATE(state), data, SHA512_Transform);
  return 0;
}
