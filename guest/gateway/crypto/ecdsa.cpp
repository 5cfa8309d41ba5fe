// SPDX-License-Identifier: Apache-2.0
// Theory of operation: ECDSA over libcrypto (P-256; P-384 only to verify: libcrypto signs with that
// at half the speed of mbedTLS), for mbedtls_ecdsa_sign_restartable and its counterpart, where all
// of mbedTLS's ways to sign and verify meet.
//
// A thread keeps one key object and puts the key of the call into it, so nothing is parsed per
// signature, no key has to be looked up, and none stays behind. The nonce comes from libcrypto's
// generator, which mixes the key and the message in, instead of from f_rng.
#include <array>

#include "guest/gateway/crypto/builtin.hpp"
#include "guest/gateway/crypto/cpu.hpp"
#include "guest/gateway/crypto/openssl.hpp"

namespace causeway::gateway::crypto {
namespace {

struct Signer {
  EcKeyPtr key;
  BnPtr secret{BN_new()};
  BnCtxPtr context{BN_CTX_new()};
  EcPointPtr point;
  BnPtr x{BN_new()};
  BnPtr y{BN_new()};
  explicit Signer(int curve)
      : key(EC_KEY_new_by_curve_name(curve)),
        point(key ? EC_POINT_new(EC_KEY_get0_group(key.get())) : nullptr) {
    if (secret) BN_set_flags(secret.get(), BN_FLG_CONSTTIME);
  }
  explicit operator bool() const { return key && secret && context && point && x && y; }
};

Signer& signer(const mbedtls_ecp_group& curve) {
  thread_local Signer p256{NID_X9_62_prime256v1};
  if (curve.id == MBEDTLS_ECP_DP_SECP256R1) return p256;
  thread_local Signer p384{NID_secp384r1};
  return p384;
}

bool in_range(const mbedtls_mpi& number, const mbedtls_ecp_group& group) {
  return mbedtls_mpi_cmp_int(&number, 1) >= 0 && mbedtls_mpi_cmp_mpi(&number, &group.N) < 0;
}

// False: mbedTLS's own shall do it. `secret` is in range.
bool sign(const mbedtls_ecp_group& curve, mbedtls_mpi* r, mbedtls_mpi* s, const mbedtls_mpi& secret,
          const unsigned char* digest, std::size_t size) {
  Signer& mine = signer(curve);
  if (!mine || !to_bn(secret, mine.secret.get())) return false;
  EcdsaSigPtr signature;
  if (EC_KEY_set_private_key(mine.key.get(), mine.secret.get()) == 1) {
    signature.reset(ECDSA_do_sign(digest, static_cast<int>(size), mine.key.get()));
  }
  BN_clear(mine.secret.get());
  EC_KEY_set_private_key(mine.key.get(), nullptr);  // wipes it
  return signature && from_bn(ECDSA_SIG_get0_r(signature.get()), r) == 0 &&
         from_bn(ECDSA_SIG_get0_s(signature.get()), s) == 0;
}

// 1 it fits, 0 it does not, -1 mbedTLS's own shall find out. `r` and `s` are in range.
int verify(const mbedtls_ecp_group& curve, const mbedtls_ecp_point& point, const mbedtls_mpi& r,
           const mbedtls_mpi& s, const unsigned char* digest, std::size_t size) {
  Signer& mine = signer(curve);
  if (!mine || mbedtls_mpi_cmp_int(&point.MBEDTLS_PRIVATE(Z), 1) != 0) return -1;
  // libcrypto would reduce a coordinate that is too large; mbedTLS refuses it.
  for (const auto* number : {&point.MBEDTLS_PRIVATE(X), &point.MBEDTLS_PRIVATE(Y)}) {
    if (mbedtls_mpi_cmp_int(number, 0) < 0 || mbedtls_mpi_cmp_mpi(number, &curve.P) >= 0) return -1;
  }
  const EC_GROUP* group = EC_KEY_get0_group(mine.key.get());
  BnPtr br{BN_new()};
  BnPtr bs{BN_new()};
  const EcdsaSigPtr signature{ECDSA_SIG_new()};
  if (!br || !bs || !signature || !to_bn(r, br.get()) || !to_bn(s, bs.get()) ||
      !to_bn(point.MBEDTLS_PRIVATE(X), mine.x.get()) ||
      !to_bn(point.MBEDTLS_PRIVATE(Y), mine.y.get()) ||
      EC_POINT_set_affine_coordinates(group, mine.point.get(), mine.x.get(), mine.y.get(),
                                      mine.context.get()) != 1 ||
      EC_KEY_set_public_key(mine.key.get(), mine.point.get()) != 1 ||
      ECDSA_SIG_set0(signature.get(), br.get(), bs.get()) != 1) {
    return -1;
  }
  static_cast<void>(br.release());  // the signature's now
  static_cast<void>(bs.release());
  return ECDSA_do_verify(digest, static_cast<int>(size), signature.get(), mine.key.get());
}

}  // namespace

bool ecdsa_works() {
  // RFC 6979 A.2.5, SHA-256 of "sample": verified, then with a bit of the digest flipped; and a
  // signature of ours verified by mbedTLS's own code.
  std::array<unsigned char, 32> digest{0xaf, 0x2b, 0xdb, 0xe1, 0xaa, 0x9b, 0x6e, 0xc1,
                                       0xe2, 0xad, 0xe1, 0xd6, 0x94, 0xf4, 0x1f, 0xc7,
                                       0x1a, 0x83, 0x1d, 0x02, 0x68, 0xe9, 0x89, 0x15,
                                       0x62, 0x11, 0x3d, 0x8a, 0x62, 0xad, 0xd1, 0xbf};
  mbedtls_ecp_group group;
  mbedtls_ecp_point point;
  mbedtls_mpi secret;
  mbedtls_mpi r;
  mbedtls_mpi s;
  mbedtls_ecp_group_init(&group);
  mbedtls_ecp_point_init(&point);
  mbedtls_mpi_init(&secret);
  mbedtls_mpi_init(&r);
  mbedtls_mpi_init(&s);
  bool ok =
      mbedtls_ecp_group_load(&group, MBEDTLS_ECP_DP_SECP256R1) == 0 &&
      mbedtls_mpi_read_string(
          &secret, 16, "C9AFA9D845BA75166B5C215767B1D6934E50C3DB36E89B127B8A622B120F6721") == 0 &&
      mbedtls_ecp_point_read_string(
          &point, 16, "60FED4BA255A9D31C961EB74C6356D68C049B8923B61FA6CE669622E60F29FB6",
          "7903FE1008B8BC99A41AE9E95628BC64F2F1B20C2D7E9F5177A3C294D4462299") == 0 &&
      mbedtls_mpi_read_string(
          &r, 16, "EFD48B2AACB6A8FD1140DD9CD45E81D69D2C877B56AAF991C34D0EA84EAF3716") == 0 &&
      mbedtls_mpi_read_string(
          &s, 16, "F7CB1C942D657C41D436C7A1B6E29F65F3E900DBB9AFF4064DC4AB2F843ACDA8") == 0 &&
      verify(group, point, r, s, digest.data(), digest.size()) == 1;
  digest[31] ^= 1;
  ok = ok && verify(group, point, r, s, digest.data(), digest.size()) == 0 &&
       sign(group, &r, &s, secret, digest.data(), digest.size()) &&
       causeway_builtin_mbedtls_ecdsa_verify_restartable(&group, digest.data(), digest.size(),
                                                         &point, &r, &s, nullptr) == 0;
  ERR_clear_error();
  mbedtls_mpi_free(&s);
  mbedtls_mpi_free(&r);
  mbedtls_mpi_free(&secret);
  mbedtls_ecp_point_free(&point);
  mbedtls_ecp_group_free(&group);
  return ok;
}

}  // namespace causeway::gateway::crypto

extern "C" int mbedtls_ecdsa_sign_restartable(mbedtls_ecp_group* grp, mbedtls_mpi* r,
                                              mbedtls_mpi* s, const mbedtls_mpi* d,
                                              const unsigned char* buf, std::size_t blen,
                                              causeway_f_rng* f_rng, void* p_rng,
                                              causeway_f_rng* f_rng_blind, void* p_rng_blind,
                                              mbedtls_ecdsa_restart_ctx* rs_ctx) {
  using namespace causeway::gateway::crypto;  // NOLINT(google-build-using-namespace)
  if (providers().ecdsa && grp->id == MBEDTLS_ECP_DP_SECP256R1) {
    if (!in_range(*d, *grp)) return MBEDTLS_ERR_ECP_INVALID_KEY;
    if (sign(*grp, r, s, *d, buf, blen)) return 0;
    ERR_clear_error();
  }
  return causeway_builtin_mbedtls_ecdsa_sign_restartable(grp, r, s, d, buf, blen, f_rng, p_rng,
                                                         f_rng_blind, p_rng_blind, rs_ctx);
}

extern "C" int mbedtls_ecdsa_verify_restartable(mbedtls_ecp_group* grp, const unsigned char* buf,
                                                std::size_t blen, const mbedtls_ecp_point* Q,
                                                const mbedtls_mpi* r, const mbedtls_mpi* s,
                                                mbedtls_ecdsa_restart_ctx* rs_ctx) {
  using namespace causeway::gateway::crypto;  // NOLINT(google-build-using-namespace)
  if (providers().ecdsa &&
      (grp->id == MBEDTLS_ECP_DP_SECP256R1 || grp->id == MBEDTLS_ECP_DP_SECP384R1)) {
    if (!in_range(*r, *grp) || !in_range(*s, *grp)) return MBEDTLS_ERR_ECP_VERIFY_FAILED;
    const int fits = verify(*grp, *Q, *r, *s, buf, blen);
    ERR_clear_error();
    if (fits == 1) return 0;
    if (fits == 0) return MBEDTLS_ERR_ECP_VERIFY_FAILED;
  }
  return causeway_builtin_mbedtls_ecdsa_verify_restartable(grp, buf, blen, Q, r, s, rs_ctx);
}
