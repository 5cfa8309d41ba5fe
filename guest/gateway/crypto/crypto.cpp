// SPDX-License-Identifier: Apache-2.0
#include "guest/gateway/crypto/crypto.hpp"

#include <psa/crypto.h>

#include <stdexcept>

#include "guest/gateway/crypto/accelerate.hpp"
#include "guest/gateway/crypto/cpu.hpp"

namespace causeway::gateway::crypto {
namespace {

bool initialised = false;

}  // namespace

void initialise() {
  if (initialised) return;
  accelerate();
  if (psa_crypto_init() != PSA_SUCCESS) throw std::runtime_error("mbedTLS: PSA does not start");
  initialised = true;
}

std::string description() {
  return "mbedTLS " MBEDTLS_VERSION_STRING "; " + accelerators();
}

bool prefers_aes_gcm() {
  // mbedTLS's own ChaCha20-Poly1305 is half as fast again as its AES-GCM, even with AES
  // instructions.
  return providers().gcm;
}

}  // namespace causeway::gateway::crypto
