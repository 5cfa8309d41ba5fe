// SPDX-License-Identifier: Apache-2.0
// Theory of operation: R = m * P, the one operation behind key generation and key agreement in both
// TLS 1.2 (mbedtls_ecdh_*) and 1.3 (PSA's entry points), over libcrypto for P-256 and X25519.
//
// libcrypto's P-256 and X25519 take the same time whatever the scalar is, without the random
// blinding that mbedTLS's code asks f_rng for. What it cannot do, or fails to do, mbedTLS's own
// code does.
#include <mbedtls/platform_util.h>

#include <array>
#include <utility>

#include "guest/gateway/crypto/builtin.hpp"
#include "guest/gateway/crypto/cpu.hpp"
#include "guest/gateway/crypto/openssl.hpp"

namespace causeway::gateway::crypto {
namespace {

constexpr std::size_t kBytes = 32;  // of a scalar or coordinate, on either curve
using Bytes = std::array<unsigned char, kBytes>;

// Whether ours was done; not: mbedTLS's own shall do it.
enum class Outcome { done, declined, invalid_key };

// A thread's objects; made at its first use.
struct P256 {
  EcGroupPtr group{EC_GROUP_new_by_curve_name(NID_X9_62_prime256v1)};
  BnCtxPtr context{BN_CTX_new()};
  BnPtr scalar{BN_new()};
  BnPtr x{BN_new()};
  BnPtr y{BN_new()};
  EcPointPtr point{group ? EC_POINT_new(group.get()) : nullptr};
  EcPointPtr result{group ? EC_POINT_new(group.get()) : nullptr};
  P256() {
    if (scalar) BN_set_flags(scalar.get(), BN_FLG_CONSTTIME);
  }
  explicit operator bool() const { return context && scalar && x && y && point && result; }
};

bool is_one(const mbedtls_mpi& number) {
  return mbedtls_mpi_cmp_int(&number, 1) == 0;
}

bool is_coordinate(const mbedtls_mpi& number, const mbedtls_ecp_group& group) {
  return mbedtls_mpi_cmp_int(&number, 0) >= 0 && mbedtls_mpi_cmp_mpi(&number, &group.P) < 0;
}

bool same_point(const mbedtls_ecp_point& a, const mbedtls_ecp_point& b) {
  return &a == &b || (mbedtls_mpi_cmp_mpi(&a.MBEDTLS_PRIVATE(X), &b.MBEDTLS_PRIVATE(X)) == 0 &&
                      mbedtls_mpi_cmp_mpi(&a.MBEDTLS_PRIVATE(Y), &b.MBEDTLS_PRIVATE(Y)) == 0);
}

Outcome multiply_p256(const mbedtls_ecp_group& group, mbedtls_ecp_point* result,
                      const mbedtls_mpi& scalar, const mbedtls_ecp_point& point) {
  thread_local P256 mine;
  if (!mine || !to_bn(scalar, mine.scalar.get())) return Outcome::declined;
  const auto& x = point.MBEDTLS_PRIVATE(X);
  const auto& y = point.MBEDTLS_PRIVATE(Y);
  EC_GROUP* const curve = mine.group.get();
  int ok = 0;
  if (same_point(point, group.G)) {
    ok = EC_POINT_mul(curve, mine.result.get(), mine.scalar.get(), nullptr, nullptr,
                      mine.context.get());
  } else {
    if (!is_one(point.MBEDTLS_PRIVATE(Z)) || !is_coordinate(x, group) || !is_coordinate(y, group)) {
      BN_clear(mine.scalar.get());
      return Outcome::invalid_key;
    }
    // Setting it tests that the point is on the curve.
    if (!to_bn(x, mine.x.get()) || !to_bn(y, mine.y.get())) return Outcome::declined;
    if (EC_POINT_set_affine_coordinates(curve, mine.point.get(), mine.x.get(), mine.y.get(),
                                        mine.context.get()) != 1) {
      BN_clear(mine.scalar.get());
      return Outcome::invalid_key;
    }
    ok = EC_POINT_mul(curve, mine.result.get(), nullptr, mine.point.get(), mine.scalar.get(),
                      mine.context.get());
  }
  BN_clear(mine.scalar.get());
  if (ok != 1 || EC_POINT_get_affine_coordinates(curve, mine.result.get(), mine.x.get(),
                                                 mine.y.get(), mine.context.get()) != 1) {
    return Outcome::declined;
  }
  const bool read = from_bn(mine.x.get(), &result->MBEDTLS_PRIVATE(X)) == 0 &&
                    from_bn(mine.y.get(), &result->MBEDTLS_PRIVATE(Y)) == 0 &&
                    mbedtls_mpi_lset(&result->MBEDTLS_PRIVATE(Z), 1) == 0;
  BN_clear(mine.x.get());  // a shared secret, perhaps
  BN_clear(mine.y.get());
  return read ? Outcome::done : Outcome::declined;
}

// libcrypto's key from its bytes; with a private one come zeroes in the place of the public one,
// which agreeing on a secret does not look at, so that it need not be computed.
PkeyPtr key_x25519(Bytes* secret, Bytes& open) {
  thread_local const PkeyCtxPtr maker = [] {
    PkeyCtxPtr made{EVP_PKEY_CTX_new_from_name(nullptr, "X25519", nullptr)};
    if (made && EVP_PKEY_fromdata_init(made.get()) != 1) made.reset();
    return made;
  }();
  std::array<OSSL_PARAM, 3> parameters{
      OSSL_PARAM_construct_octet_string("pub", open.data(), open.size()),
      OSSL_PARAM_construct_end(), OSSL_PARAM_construct_end()};
  if (secret != nullptr) {
    parameters[1] = OSSL_PARAM_construct_octet_string("priv", secret->data(), secret->size());
  }
  EVP_PKEY* key = nullptr;
  if (!maker || EVP_PKEY_fromdata(maker.get(), &key,
                                  secret != nullptr ? EVP_PKEY_KEYPAIR : EVP_PKEY_PUBLIC_KEY,
                                  parameters.data()) != 1) {
    return nullptr;
  }
  return PkeyPtr{key};
}

// The public key goes this way too, with the base point as the peer: libcrypto's own way to it is a
// third slower, for want of assembler.
bool agree_x25519(Bytes& secret, Bytes& peer, Bytes& result) {
  Bytes unused{};
  const PkeyPtr mine = key_x25519(&secret, unused);
  const PkeyPtr theirs = key_x25519(nullptr, peer);
  if (!mine || !theirs) return false;
  const PkeyCtxPtr context{EVP_PKEY_CTX_new(mine.get(), nullptr)};
  std::size_t size = result.size();
  return context && EVP_PKEY_derive_init(context.get()) == 1 &&
         EVP_PKEY_derive_set_peer_ex(context.get(), theirs.get(), 0) == 1 &&
         EVP_PKEY_derive(context.get(), result.data(), &size) == 1 && size == kBytes;
}

Outcome multiply_x25519(const mbedtls_ecp_group& group, mbedtls_ecp_point* result,
                        const mbedtls_mpi& scalar, const mbedtls_ecp_point& point) {
  const auto& x = point.MBEDTLS_PRIVATE(X);
  // The low-order points, which would give everybody the same secret, among others.
  if (mbedtls_ecp_check_pubkey(&group, &point) != 0) return Outcome::invalid_key;
  Bytes secret;
  Bytes peer;
  Bytes product;
  if (mbedtls_mpi_bitlen(&x) > 255 ||  // RFC 7748 wants the top bit ignored
      mbedtls_mpi_write_binary_le(&x, peer.data(), kBytes) != 0 ||
      mbedtls_mpi_write_binary_le(&scalar, secret.data(), kBytes) != 0) {
    return Outcome::declined;
  }
  const bool ok =
      agree_x25519(secret, peer, product) &&
      mbedtls_mpi_read_binary_le(&result->MBEDTLS_PRIVATE(X), product.data(), kBytes) == 0 &&
      mbedtls_mpi_lset(&result->MBEDTLS_PRIVATE(Z), 1) == 0;
  if (ok) mbedtls_mpi_free(&result->MBEDTLS_PRIVATE(Y));  // this curve has none
  mbedtls_platform_zeroize(secret.data(), kBytes);
  mbedtls_platform_zeroize(product.data(), kBytes);
  return ok ? Outcome::done : Outcome::declined;
}

}  // namespace

bool ecp_works() {
  // RFC 7748 6.1: what Alice's private key and Bob's public key give; NIST's P-256: 2 * G.
  mbedtls_ecp_group group;
  mbedtls_ecp_point point;
  mbedtls_ecp_point result;
  mbedtls_mpi scalar;
  mbedtls_mpi expected;
  mbedtls_ecp_group_init(&group);
  mbedtls_ecp_point_init(&point);
  mbedtls_ecp_point_init(&result);
  mbedtls_mpi_init(&scalar);
  mbedtls_mpi_init(&expected);
  // Numbers, not the little-endian strings of the RFC; the scalar is clamped as 5. there says.
  bool ok =
      mbedtls_ecp_group_load(&group, MBEDTLS_ECP_DP_CURVE25519) == 0 &&
      mbedtls_mpi_read_string(
          &scalar, 16, "6A2CB91DA5FB77B12A99C0EB872F4CDF4566B25172C1163C7DA518730A6D0770") == 0 &&
      mbedtls_mpi_read_string(&point.MBEDTLS_PRIVATE(X), 16,
                              "4F2B886F147EFCAD4D67785BC843833F3735E4ECC2615BD3B4C17D7B7DDB9EDE") ==
          0 &&
      mbedtls_mpi_lset(&point.MBEDTLS_PRIVATE(Z), 1) == 0 &&
      mbedtls_mpi_read_string(
          &expected, 16, "4217161E3C9BF076339ED147C9217EE0250F3580F43B8E72E12DCEA45B9D5D4A") == 0 &&
      multiply_x25519(group, &result, scalar, point) == Outcome::done &&
      mbedtls_mpi_cmp_mpi(&result.MBEDTLS_PRIVATE(X), &expected) == 0;
  ok =
      ok && mbedtls_ecp_group_load(&group, MBEDTLS_ECP_DP_SECP256R1) == 0 &&
      mbedtls_mpi_lset(&scalar, 2) == 0 &&
      mbedtls_mpi_read_string(
          &expected, 16, "7CF27B188D034F7E8A52380304B51AC3C08969E277F21B35A60B48FC47669978") == 0 &&
      multiply_p256(group, &result, scalar, group.G) == Outcome::done &&
      mbedtls_mpi_cmp_mpi(&result.MBEDTLS_PRIVATE(X), &expected) == 0;
  mbedtls_mpi_free(&expected);
  mbedtls_mpi_free(&scalar);
  mbedtls_ecp_point_free(&result);
  mbedtls_ecp_point_free(&point);
  mbedtls_ecp_group_free(&group);
  return ok;
}

}  // namespace causeway::gateway::crypto

extern "C" int mbedtls_ecp_mul_restartable(mbedtls_ecp_group* grp, mbedtls_ecp_point* R,
                                           const mbedtls_mpi* m, const mbedtls_ecp_point* P,
                                           causeway_f_rng* f_rng, void* p_rng,
                                           mbedtls_ecp_restart_ctx* rs_ctx) {
  using namespace causeway::gateway::crypto;  // NOLINT(google-build-using-namespace)
  const bool p256 = grp->id == MBEDTLS_ECP_DP_SECP256R1;
  if (providers().ecp && f_rng != nullptr && (p256 || grp->id == MBEDTLS_ECP_DP_CURVE25519)) {
    if (const int failed = mbedtls_ecp_check_privkey(grp, m); failed != 0) return failed;
    switch (p256 ? multiply_p256(*grp, R, *m, *P) : multiply_x25519(*grp, R, *m, *P)) {
      case Outcome::done:
        return 0;
      case Outcome::invalid_key:
        ERR_clear_error();
        return MBEDTLS_ERR_ECP_INVALID_KEY;
      case Outcome::declined:
        ERR_clear_error();
        break;
    }
  }
  return causeway_builtin_mbedtls_ecp_mul_restartable(grp, R, m, P, f_rng, p_rng, rs_ctx);
}
