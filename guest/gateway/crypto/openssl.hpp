// SPDX-License-Identifier: Apache-2.0
// What the replacements over libcrypto share: owners of its objects, and numbers to and fro.
//
// EC_KEY and RSA are deprecated since OpenSSL 3.0 in favour of EVP, which costs several allocations
// and look-ups under a lock per operation; both are in every 3.x.
#pragma once

#ifndef OPENSSL_SUPPRESS_DEPRECATED
#define OPENSSL_SUPPRESS_DEPRECATED
#endif

#include <mbedtls/bignum.h>
#include <openssl/bn.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/rsa.h>

#include <memory>
#include <string>

namespace causeway::gateway::crypto {

template <auto kFree>
struct OpensslFree {
  template <class T>
  void operator()(T* object) const {
    kFree(object);
  }
};

using BnPtr = std::unique_ptr<BIGNUM, OpensslFree<BN_clear_free>>;
using BnCtxPtr = std::unique_ptr<BN_CTX, OpensslFree<BN_CTX_free>>;
using EcGroupPtr = std::unique_ptr<EC_GROUP, OpensslFree<EC_GROUP_free>>;
using EcPointPtr = std::unique_ptr<EC_POINT, OpensslFree<EC_POINT_clear_free>>;
using EcKeyPtr = std::unique_ptr<EC_KEY, OpensslFree<EC_KEY_free>>;
using EcdsaSigPtr = std::unique_ptr<ECDSA_SIG, OpensslFree<ECDSA_SIG_free>>;
using PkeyPtr = std::unique_ptr<EVP_PKEY, OpensslFree<EVP_PKEY_free>>;
using PkeyCtxPtr = std::unique_ptr<EVP_PKEY_CTX, OpensslFree<EVP_PKEY_CTX_free>>;
using RsaPtr = std::unique_ptr<RSA, OpensslFree<RSA_free>>;

// The value of an mbedTLS number, which is not negative; false without memory.
[[nodiscard]] bool to_bn(const mbedtls_mpi& from, BIGNUM* to);

// The reverse; 0 or mbedTLS's error.
[[nodiscard]] int from_bn(const BIGNUM* from, mbedtls_mpi* to);

// Starts libcrypto without its configuration file, which could put anything in place of its own
// code.
[[nodiscard]] bool start_openssl();

[[nodiscard]] std::string openssl_name();  // "OpenSSL 3.0.19"

// Known answers.
[[nodiscard]] bool ecp_works();
[[nodiscard]] bool ecdsa_works();
[[nodiscard]] bool sha2_works();

}  // namespace causeway::gateway::crypto
