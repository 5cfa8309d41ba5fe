// SPDX-License-Identifier: Apache-2.0
// Theory of operation: what the rest of the gateway needs to know about mbedTLS's foundations.
//
// mbedTLS is built with our configuration (mbedtls_config.h). With CAUSEWAY_CRYPTO=accelerated its
// hot primitives go to intel-ipsec-mb (AES-GCM, ChaCha20-Poly1305) and libcrypto (X25519, P-256,
// ECDSA, RSA, SHA-2): functions of ours stand in the place of some of mbedTLS's, whose own are kept
// beside them under other names (CMakeLists.txt, causeway_replace_functions; MBEDTLS_GCM_ALT for
// AES-GCM). What the CPU cannot do, and CAUSEWAY_CRYPTO=builtin, run mbedTLS's own code. Nobody
// above this directory sees the difference, except in description().
#pragma once

#include <cstddef>
#include <string>

#include "guest/gateway/crypto/mbedtls.hpp"

namespace causeway::gateway::crypto {

// Once per process, before any other use of mbedTLS and before threads start: probes the CPU, tests
// the primitives against known answers, and starts PSA, which TLS 1.3 needs. Idempotent. Throws
// std::runtime_error when mbedTLS cannot start; a primitive that fails its test is only switched
// off.
void initialise();

// One line for the log and `status`: the library's version and who does what, such as
// "mbedTLS 3.6.6; AES-GCM: intel-ipsec-mb 1.3.0 (AVX2); X25519 and P-256, RSA: OpenSSL 3.0.19".
// Valid after initialise().
[[nodiscard]] std::string description();

// AES-GCM runs at several GB/s here, so it is the better first choice; else ChaCha20-Poly1305 is.
[[nodiscard]] bool prefers_aes_gcm();

// A random generator of one thread: CTR_DRBG over the kernel's getrandom, no lock. It reseeds
// itself every kReseedInterval requests; the state is wiped at the end. Not to be shared between
// threads.
class Random {
 public:
  static constexpr int kReseedInterval = 10'000;

  Random();  // throws std::runtime_error when the kernel gives no entropy
  ~Random();
  Random(const Random&) = delete;
  Random& operator=(const Random&) = delete;

  // For mbedtls_ssl_conf_rng and every other f_rng: `context` is the address of a Random.
  static int generate(void* context, unsigned char* output, std::size_t size);
  void* context() { return this; }

 private:
  mbedtls_ctr_drbg_context drbg_;
};

}  // namespace causeway::gateway::crypto
