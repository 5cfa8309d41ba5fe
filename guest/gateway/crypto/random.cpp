// SPDX-License-Identifier: Apache-2.0
#include <psa/crypto.h>
#include <sys/random.h>

#include <cerrno>
#include <stdexcept>

#include "guest/gateway/crypto/crypto.hpp"

namespace causeway::gateway::crypto {
namespace {

// Blocks only before the kernel's pool is ready, once per boot; complete up to 256 bytes by
// contract.
int entropy(void* /*context*/, unsigned char* output, std::size_t size) {
  while (size > 0) {
    const ssize_t got = ::getrandom(output, size, 0);
    if (got < 0) {
      if (errno == EINTR) continue;
      return MBEDTLS_ERR_CTR_DRBG_ENTROPY_SOURCE_FAILED;
    }
    output += got;
    size -= static_cast<std::size_t>(got);
  }
  return 0;
}

}  // namespace

Random::Random() {
  mbedtls_ctr_drbg_init(&drbg_);
  mbedtls_ctr_drbg_set_reseed_interval(&drbg_, kReseedInterval);
  if (mbedtls_ctr_drbg_seed(&drbg_, entropy, nullptr, nullptr, 0) != 0) {
    mbedtls_ctr_drbg_free(&drbg_);
    throw std::runtime_error("the kernel gives no entropy (getrandom failed)");
  }
}

Random::~Random() {
  mbedtls_ctr_drbg_free(&drbg_);
}

int Random::generate(void* context, unsigned char* output, std::size_t size) {
  auto& self = *static_cast<Random*>(context);
  while (size > 0) {
    const std::size_t part =
        size < MBEDTLS_CTR_DRBG_MAX_REQUEST ? size : MBEDTLS_CTR_DRBG_MAX_REQUEST;
    if (const int failed = mbedtls_ctr_drbg_random(&self.drbg_, output, part); failed != 0) {
      return failed;
    }
    output += part;
    size -= part;
  }
  return 0;
}

}  // namespace causeway::gateway::crypto

// What PSA draws from (MBEDTLS_PSA_CRYPTO_EXTERNAL_RNG): the calling thread's generator. PSA's own
// would be one for the process, behind a lock.
extern "C" psa_status_t mbedtls_psa_external_get_random(
    mbedtls_psa_external_random_context_t* /*context*/, uint8_t* output, size_t size,
    size_t* length) {
  *length = 0;
  try {
    thread_local causeway::gateway::crypto::Random random;
    if (causeway::gateway::crypto::Random::generate(&random, output, size) != 0) {
      return PSA_ERROR_INSUFFICIENT_ENTROPY;
    }
  } catch (const std::exception&) {
    return PSA_ERROR_INSUFFICIENT_ENTROPY;
  }
  *length = size;
  return PSA_SUCCESS;
}
