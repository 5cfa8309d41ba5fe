// SPDX-License-Identifier: Apache-2.0
// Theory of operation: mbedTLS's AES-GCM over intel-ipsec-mb (MBEDTLS_GCM_ALT).
//
// TLS seals and opens a record with one call, a nonce of 12 bytes: that goes to ipsec-mb's direct
// functions, which interleave blocks and use the widest vectors that the CPU has. The rest of the
// interface (other nonces, data in parts) is nobody's hot path and goes to mbedTLS's own code,
// whose context is made when it is first needed. The same code serves CPUs that ipsec-mb has
// nothing for.
//
// A context is used by one thread at a time, as always in mbedTLS; the functions keep no state.
#include <intel-ipsec-mb.h>
#include <mbedtls/error.h>
#include <mbedtls/gcm.h>
#include <mbedtls/platform_util.h>

#include <algorithm>
#include <array>
#include <memory>
#include <new>

#include "guest/gateway/crypto/builtin_gcm.h"
#include "guest/gateway/crypto/constant_time.hpp"
#include "guest/gateway/crypto/cpu.hpp"
#include "guest/gateway/crypto/ipsec_mb.hpp"

using causeway::gateway::crypto::gcm_functions;
using causeway::gateway::crypto::GcmFunctions;

namespace {

struct FreeBuiltin {
  void operator()(causeway_builtin_gcm_context* context) const {
    causeway_builtin_gcm_delete(context);
  }
};

constexpr std::uint64_t kMaxLength = (std::uint64_t{1} << 36) - 32;  // NIST SP 800-38D 5.2.1.1
constexpr std::size_t kNonce = 12;
constexpr std::size_t kTag = 16;

}  // namespace

// Aligned as gcm_key_data wants it, which is more than malloc gives.
struct causeway_gcm_state {
  gcm_key_data expanded;
  GcmFunctions functions;  // none: ipsec-mb does not serve this key
  std::array<unsigned char, 32> key;
  unsigned int key_bits = 0;
  std::unique_ptr<causeway_builtin_gcm_context, FreeBuiltin> builtin;

  causeway_gcm_state() = default;
  causeway_gcm_state(const causeway_gcm_state&) = delete;
  causeway_gcm_state& operator=(const causeway_gcm_state&) = delete;
  ~causeway_gcm_state() {
    mbedtls_platform_zeroize(&expanded, sizeof expanded);
    mbedtls_platform_zeroize(key.data(), key.size());
  }

  // mbedTLS's own context with the same key; 0 or an error.
  int make_builtin() {
    if (builtin) return 0;
    builtin.reset(causeway_builtin_gcm_new());
    if (!builtin) return MBEDTLS_ERR_CIPHER_ALLOC_FAILED;
    const int failed =
        causeway_builtin_gcm_setkey(builtin.get(), MBEDTLS_CIPHER_ID_AES, key.data(), key_bits);
    if (failed != 0) builtin.reset();
    return failed;
  }
};

namespace {

// ipsec-mb takes no null pointers, mbedTLS allows them for what is empty.
const unsigned char kNothing = 0;
const unsigned char* or_nothing(const unsigned char* bytes) {
  return bytes != nullptr ? bytes : &kNothing;
}

bool served(const mbedtls_gcm_context& context, std::size_t length, std::size_t nonce) {
  return context.state->functions && nonce == kNonce && length <= kMaxLength;
}

// The result without the comparison of the tag: all its 16 bytes.
void crypt(const causeway_gcm_state& state, bool encrypt, std::size_t length,
           const unsigned char* nonce, const unsigned char* add, std::size_t add_size,
           const unsigned char* input, unsigned char* output, unsigned char* tag) {
  gcm_context_data work;  // the functions fill it
  unsigned char nowhere = 0;
  const auto function = encrypt ? state.functions.encrypt : state.functions.decrypt;
  function(&state.expanded, &work, output != nullptr ? output : &nowhere, or_nothing(input), length,
           nonce, or_nothing(add), add_size, tag, kTag);
  mbedtls_platform_zeroize(&work, sizeof work);
}

}  // namespace

extern "C" {

void mbedtls_gcm_init(mbedtls_gcm_context* context) {
  context->state = nullptr;
}

void mbedtls_gcm_free(mbedtls_gcm_context* context) {
  if (context == nullptr) return;
  delete context->state;
  context->state = nullptr;
}

int mbedtls_gcm_setkey(mbedtls_gcm_context* context, mbedtls_cipher_id_t cipher,
                       const unsigned char* key, unsigned int key_bits) {
  if (cipher != MBEDTLS_CIPHER_ID_AES || (key_bits != 128 && key_bits != 192 && key_bits != 256)) {
    return MBEDTLS_ERR_GCM_BAD_INPUT;
  }
  std::unique_ptr<causeway_gcm_state> state{new (std::nothrow) causeway_gcm_state};
  if (!state) return MBEDTLS_ERR_CIPHER_ALLOC_FAILED;
  std::copy_n(key, key_bits / 8, state->key.begin());
  state->key_bits = key_bits;
  if (causeway::gateway::crypto::providers().gcm) {
    state->functions = gcm_functions(key_bits);
    state->functions.prepare(state->key.data(), &state->expanded);
  } else if (const int failed = state->make_builtin(); failed != 0) {
    return failed;
  }
  mbedtls_gcm_free(context);
  context->state = state.release();
  return 0;
}

int mbedtls_gcm_crypt_and_tag(mbedtls_gcm_context* context, int mode, std::size_t length,
                              const unsigned char* iv, std::size_t iv_len, const unsigned char* add,
                              std::size_t add_len, const unsigned char* input,
                              unsigned char* output, std::size_t tag_len, unsigned char* tag) {
  if (context->state == nullptr) return MBEDTLS_ERR_GCM_BAD_INPUT;
  causeway_gcm_state& state = *context->state;
  if (!served(*context, length, iv_len)) {
    if (const int failed = state.make_builtin(); failed != 0) return failed;
    return causeway_builtin_gcm_crypt_and_tag(state.builtin.get(), mode, length, iv, iv_len, add,
                                              add_len, input, output, tag_len, tag);
  }
  if (tag_len < 4 || tag_len > kTag) return MBEDTLS_ERR_GCM_BAD_INPUT;
  std::array<unsigned char, kTag> whole;
  crypt(state, mode == MBEDTLS_GCM_ENCRYPT, length, iv, add, add_len, input, output, whole.data());
  std::copy_n(whole.begin(), tag_len, tag);
  mbedtls_platform_zeroize(whole.data(), whole.size());
  return 0;
}

int mbedtls_gcm_auth_decrypt(mbedtls_gcm_context* context, std::size_t length,
                             const unsigned char* iv, std::size_t iv_len, const unsigned char* add,
                             std::size_t add_len, const unsigned char* tag, std::size_t tag_len,
                             const unsigned char* input, unsigned char* output) {
  std::array<unsigned char, kTag> expected;
  const int failed =
      mbedtls_gcm_crypt_and_tag(context, MBEDTLS_GCM_DECRYPT, length, iv, iv_len, add, add_len,
                                input, output, tag_len, expected.data());
  if (failed != 0) return failed;
  const int different = mbedtls_ct_memcmp(tag, expected.data(), tag_len);
  mbedtls_platform_zeroize(expected.data(), expected.size());
  if (different != 0) {
    if (length > 0) mbedtls_platform_zeroize(output, length);
    return MBEDTLS_ERR_GCM_AUTH_FAILED;
  }
  return 0;
}

// Data in parts.

int mbedtls_gcm_starts(mbedtls_gcm_context* context, int mode, const unsigned char* iv,
                       std::size_t iv_len) {
  if (context->state == nullptr) return MBEDTLS_ERR_GCM_BAD_INPUT;
  if (const int failed = context->state->make_builtin(); failed != 0) return failed;
  return causeway_builtin_gcm_starts(context->state->builtin.get(), mode, iv, iv_len);
}

int mbedtls_gcm_update_ad(mbedtls_gcm_context* context, const unsigned char* add,
                          std::size_t add_len) {
  if (context->state == nullptr || !context->state->builtin) return MBEDTLS_ERR_GCM_BAD_INPUT;
  return causeway_builtin_gcm_update_ad(context->state->builtin.get(), add, add_len);
}

int mbedtls_gcm_update(mbedtls_gcm_context* context, const unsigned char* input,
                       std::size_t input_length, unsigned char* output, std::size_t output_size,
                       std::size_t* output_length) {
  if (context->state == nullptr || !context->state->builtin) return MBEDTLS_ERR_GCM_BAD_INPUT;
  return causeway_builtin_gcm_update(context->state->builtin.get(), input, input_length, output,
                                     output_size, output_length);
}

int mbedtls_gcm_finish(mbedtls_gcm_context* context, unsigned char* output, std::size_t output_size,
                       std::size_t* output_length, unsigned char* tag, std::size_t tag_len) {
  if (context->state == nullptr || !context->state->builtin) return MBEDTLS_ERR_GCM_BAD_INPUT;
  return causeway_builtin_gcm_finish(context->state->builtin.get(), output, output_size,
                                     output_length, tag, tag_len);
}

}  // extern "C"
