// SPDX-License-Identifier: Apache-2.0
// The direct functions of intel-ipsec-mb that fit the CPU.
#pragma once

#include <intel-ipsec-mb.h>

#include <string>

namespace causeway::gateway::crypto {

struct GcmFunctions {
  aes_gcm_enc_dec_t encrypt = nullptr;  // both write all of the tag they are asked for
  aes_gcm_enc_dec_t decrypt = nullptr;
  aes_gcm_pre_t prepare = nullptr;  // key, expanded key
  explicit operator bool() const { return encrypt != nullptr; }
};

struct ChachaFunctions {
  chacha_poly_init_t start = nullptr;  // key, work, nonce of 12 bytes, additional data
  chacha_poly_enc_dec_update_t encrypt = nullptr;
  chacha_poly_enc_dec_update_t decrypt = nullptr;
  chacha_poly_finalize_t finish = nullptr;
};

// Asks the library for what it has for this CPU; false when that is nothing. Not thread-safe.
bool load_ipsec_mb();

// For keys of 128, 192 or 256 bits, after load_ipsec_mb() returned true.
[[nodiscard]] const GcmFunctions& gcm_functions(unsigned int key_bits);

[[nodiscard]] const ChachaFunctions& chacha_functions();  // likewise

// A known answer.
[[nodiscard]] bool chacha_works();

// "intel-ipsec-mb 1.3.0 (AVX2)".
[[nodiscard]] std::string ipsec_mb_name();

}  // namespace causeway::gateway::crypto
