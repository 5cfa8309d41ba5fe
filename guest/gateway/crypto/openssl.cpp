// SPDX-License-Identifier: Apache-2.0
#include "guest/gateway/crypto/openssl.hpp"

#include <mbedtls/platform_util.h>
#include <openssl/crypto.h>

#include <array>

namespace causeway::gateway::crypto {
namespace {

constexpr std::size_t kLargest = MBEDTLS_MPI_MAX_SIZE;

}  // namespace

bool to_bn(const mbedtls_mpi& from, BIGNUM* to) {
  std::array<unsigned char, kLargest> bytes;
  // All limbs, so that the time does not depend on the value.
  const std::size_t size = from.MBEDTLS_PRIVATE(n) * sizeof(mbedtls_mpi_uint);
  if (size > bytes.size() || mbedtls_mpi_write_binary(&from, bytes.data(), size) != 0) return false;
  const bool done = BN_bin2bn(bytes.data(), static_cast<int>(size), to) != nullptr;
  mbedtls_platform_zeroize(bytes.data(), size);
  return done;
}

int from_bn(const BIGNUM* from, mbedtls_mpi* to) {
  std::array<unsigned char, kLargest> bytes;
  const int size = BN_num_bytes(from);
  if (static_cast<std::size_t>(size) > bytes.size()) return MBEDTLS_ERR_MPI_BUFFER_TOO_SMALL;
  BN_bn2bin(from, bytes.data());
  const int failed = mbedtls_mpi_read_binary(to, bytes.data(), static_cast<std::size_t>(size));
  mbedtls_platform_zeroize(bytes.data(), static_cast<std::size_t>(size));
  return failed;
}

bool start_openssl() {
  return OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG, nullptr) == 1;
}

std::string openssl_name() {
  return std::string{"OpenSSL "} + OpenSSL_version(OPENSSL_VERSION_STRING);
}

}  // namespace causeway::gateway::crypto
