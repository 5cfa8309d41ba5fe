// SPDX-License-Identifier: Apache-2.0
#include <mbedtls/ecdh.h>
#include <mbedtls/ecdsa.h>
#include <mbedtls/ecp.h>
#include <psa/crypto.h>

#include <array>

#include "tests/unit/gateway_crypto.hpp"

namespace causeway::gateway::crypto::test {
namespace {

struct Number : mbedtls_mpi {
  Number() { mbedtls_mpi_init(this); }
  explicit Number(const Bytes& big_endian) : Number() {
    REQUIRE(mbedtls_mpi_read_binary(this, big_endian.data(), big_endian.size()) == 0);
  }
  ~Number() { mbedtls_mpi_free(this); }
  Number(const Number&) = delete;
  Number& operator=(const Number&) = delete;
  Bytes bytes() const {
    Bytes out(32);
    REQUIRE(mbedtls_mpi_write_binary(this, out.data(), out.size()) == 0);
    return out;
  }
};

struct Point : mbedtls_ecp_point {
  Point() { mbedtls_ecp_point_init(this); }
  ~Point() { mbedtls_ecp_point_free(this); }
  Point(const Point&) = delete;
  Point& operator=(const Point&) = delete;
};

struct Curve : mbedtls_ecp_group {
  explicit Curve(mbedtls_ecp_group_id name) {
    mbedtls_ecp_group_init(this);
    REQUIRE(mbedtls_ecp_group_load(this, name) == 0);
  }
  ~Curve() { mbedtls_ecp_group_free(this); }
  Curve(const Curve&) = delete;
  Curve& operator=(const Curve&) = delete;
  Bytes encode(const Point& point) const {
    Bytes out(65);
    std::size_t size = 0;
    REQUIRE(mbedtls_ecp_point_write_binary(this, &point, MBEDTLS_ECP_PF_UNCOMPRESSED, &size,
                                           out.data(), out.size()) == 0);
    out.resize(size);
    return out;
  }
  int decode(const Bytes& bytes, Point& point) const {
    return mbedtls_ecp_point_read_binary(this, &point, bytes.data(), bytes.size());
  }
};

// X25519 of RFC 7748 section 5, over the operation that TLS uses.
int x25519(const Bytes& scalar, const Bytes& peer, Bytes& result) {
  Random random;
  Curve curve{MBEDTLS_ECP_DP_CURVE25519};
  Bytes clamped = scalar;
  clamped[0] &= 248;
  clamped[31] = static_cast<unsigned char>((clamped[31] & 127) | 64);
  Number secret{Bytes{clamped.rbegin(), clamped.rend()}};
  Point point;
  Point product;
  if (const int failed = curve.decode(peer, point); failed != 0) return failed;
  const int failed = mbedtls_ecp_mul(&curve, &product, &secret, &point, Random::generate, &random);
  if (failed == 0) result = curve.encode(product);
  return failed;
}

TEST_CASE("crypto, X25519: the vectors of RFC 7748 5.2 and 6.1, on both arms") {
  for (const bool accelerated : {true, false}) {
    const Arm arm{accelerated};
    Bytes result;
    CHECK(x25519(hex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4"),
                 hex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c"),
                 result) == 0);
    CHECK(result == hex("c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"));
    // The top bit of this one is set, and is to be ignored.
    CHECK(x25519(hex("4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d"),
                 hex("e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493"),
                 result) == 0);
    CHECK(result == hex("95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957"));

    const Bytes alice = hex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a");
    const Bytes bob = hex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb");
    const Bytes base = hex("0900000000000000000000000000000000000000000000000000000000000000");
    Bytes alice_public;
    Bytes bob_public;
    CHECK(x25519(alice, base, alice_public) == 0);
    CHECK(alice_public == hex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"));
    CHECK(x25519(bob, base, bob_public) == 0);
    CHECK(bob_public == hex("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"));
    CHECK(x25519(alice, bob_public, result) == 0);
    CHECK(result == hex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"));
    CHECK(x25519(bob, alice_public, result) == 0);
    CHECK(result == hex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"));
  }
}

TEST_CASE("crypto, X25519: a thousand rounds, RFC 7748 5.2") {
  initialise();
  Bytes k = hex("0900000000000000000000000000000000000000000000000000000000000000");
  Bytes u = k;
  // With mbedTLS's own code the thousand would take two seconds.
  const int rounds = providers().ecp ? 1000 : 1;
  for (int round = 0; round < rounds; ++round) {
    Bytes result;
    REQUIRE(x25519(k, u, result) == 0);
    u = k;
    k = result;
  }
  CHECK(k == (rounds == 1000
                  ? hex("684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51")
                  : hex("422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079")));
}

TEST_CASE("crypto, X25519: points of low order are refused, on both arms") {
  for (const bool accelerated : {true, false}) {
    const Arm arm{accelerated};
    Dice dice;
    const Bytes scalar = dice.bytes(32);
    Bytes result;
    for (const char* low : {"0000000000000000000000000000000000000000000000000000000000000000",
                            "0100000000000000000000000000000000000000000000000000000000000000",
                            "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
                            "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
                            "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
                            "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
                            "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"}) {
      CHECK(x25519(scalar, hex(low), result) != 0);
    }
  }
}

TEST_CASE("crypto, P-256: key agreement, NIST CAVS 14.1 (ECC CDH), first vector, on both arms") {
  for (const bool accelerated : {true, false}) {
    const Arm arm{accelerated};
    Random random;
    Curve curve{MBEDTLS_ECP_DP_SECP256R1};
    Number secret{hex("7d7dc5f71eb29ddaf80d6214632eeae03d9058af1fb6d22ed80badb62bc1a534")};
    Point own;
    REQUIRE(mbedtls_ecp_mul(&curve, &own, &secret, &curve.G, Random::generate, &random) == 0);
    CHECK(curve.encode(own) ==
          hex("04ead218590119e8876b29146ff89ca61770c4edbbf97d38ce385ed281d8a6b230"
              "28af61281fd35e2fa7002523acc85a429cb06ee6648325389f59edfce1405141"));
    Point peer;
    REQUIRE(curve.decode(hex("04700c48f77f56584c5cc632ca65640db91b6bacce3a4df6b42ce7cc838833d287"
                             "db71e509e3fd9b060ddb20ba5c51dcc5948d46fbf640dfe0441782cab85fa4ac"),
                         peer) == 0);
    Number shared;
    REQUIRE(mbedtls_ecdh_compute_shared(&curve, &shared, &peer, &secret, Random::generate,
                                        &random) == 0);
    CHECK(shared.bytes() ==
          hex("46fc62106420ff012e54a434fbdd2d25ccc5852060561e68040dd7778997bd7b"));
  }
}

TEST_CASE("crypto, curves: the arms agree on random keys") {
  Random random;
  for (const auto id :
       {MBEDTLS_ECP_DP_SECP256R1, MBEDTLS_ECP_DP_CURVE25519, MBEDTLS_ECP_DP_SECP384R1}) {
    Curve curve{id};
    Curve other{id};
    for (int round = 0; round < 20; ++round) {
      Number a;
      Number b;
      Point a_public;
      Point b_public;
      Point b_public_again;
      Number shared;
      Number shared_again;
      {
        const Arm arm{true};
        REQUIRE(mbedtls_ecdh_gen_public(&curve, &a, &a_public, Random::generate, &random) == 0);
        REQUIRE(mbedtls_ecdh_gen_public(&curve, &b, &b_public, Random::generate, &random) == 0);
        REQUIRE(mbedtls_ecdh_compute_shared(&curve, &shared, &b_public, &a, Random::generate,
                                            &random) == 0);
      }
      const Arm arm{false};
      REQUIRE(mbedtls_ecp_mul(&other, &b_public_again, &b, &other.G, Random::generate, &random) ==
              0);
      CHECK(mbedtls_ecp_point_cmp(&b_public, &b_public_again) == 0);
      REQUIRE(mbedtls_ecdh_compute_shared(&other, &shared_again, &a_public, &b, Random::generate,
                                          &random) == 0);
      CHECK(mbedtls_mpi_cmp_mpi(&shared, &shared_again) == 0);
    }
  }
}

TEST_CASE("crypto, P-256: scalars at the ends of their range, and what is beyond") {
  for (const bool accelerated : {true, false}) {
    const Arm arm{accelerated};
    Random random;
    Curve curve{MBEDTLS_ECP_DP_SECP256R1};
    Point result;
    const auto times = [&](const Number& scalar, const mbedtls_ecp_point& point) {
      return mbedtls_ecp_mul(&curve, &result, &scalar, &point, Random::generate, &random);
    };
    Number scalar;
    CHECK(times(scalar, curve.G) == MBEDTLS_ERR_ECP_INVALID_KEY);  // 0
    REQUIRE(mbedtls_mpi_copy(&scalar, &curve.N) == 0);
    CHECK(times(scalar, curve.G) == MBEDTLS_ERR_ECP_INVALID_KEY);  // n
    REQUIRE(mbedtls_mpi_sub_int(&scalar, &curve.N, 1) == 0);
    CHECK(times(scalar, curve.G) == 0);  // n - 1: G's mirror
    CHECK(mbedtls_mpi_cmp_mpi(&result.private_X, &curve.G.private_X) == 0);
    CHECK(mbedtls_mpi_cmp_mpi(&result.private_Y, &curve.G.private_Y) != 0);
    REQUIRE(mbedtls_mpi_lset(&scalar, 1) == 0);
    CHECK(times(scalar, curve.G) == 0);
    CHECK(mbedtls_ecp_point_cmp(&result, &curve.G) == 0);

    // The result may be the operand.
    REQUIRE(mbedtls_mpi_lset(&scalar, 3) == 0);
    Point three;
    CHECK(mbedtls_ecp_mul(&curve, &three, &scalar, &result, Random::generate, &random) == 0);
    CHECK(times(scalar, result) == 0);
    CHECK(mbedtls_ecp_point_cmp(&result, &three) == 0);

    Point off;
    REQUIRE(mbedtls_ecp_copy(&off, &curve.G) == 0);
    REQUIRE(mbedtls_mpi_add_int(&off.private_Y, &off.private_Y, 1) == 0);
    CHECK(times(scalar, off) == MBEDTLS_ERR_ECP_INVALID_KEY);  // not on the curve
    REQUIRE(mbedtls_ecp_copy(&off, &three) == 0);
    REQUIRE(mbedtls_mpi_add_mpi(&off.private_X, &off.private_X, &curve.P) == 0);
    CHECK(times(scalar, off) == MBEDTLS_ERR_ECP_INVALID_KEY);  // not reduced
    REQUIRE(mbedtls_ecp_set_zero(&off) == 0);
    CHECK(times(scalar, off) == MBEDTLS_ERR_ECP_INVALID_KEY);  // at infinity
    CHECK(mbedtls_ecp_mul(&curve, &result, &scalar, &curve.G, nullptr, nullptr) ==
          MBEDTLS_ERR_ECP_BAD_INPUT_DATA);  // blinding is asked for, as ever
  }
}

TEST_CASE("crypto, ECDSA: RFC 6979 A.2.5 (P-256, SHA-256, \"sample\"), on both arms") {
  for (const bool accelerated : {true, false}) {
    const Arm arm{accelerated};
    Curve curve{MBEDTLS_ECP_DP_SECP256R1};
    Point key;
    REQUIRE(curve.decode(hex("0460fed4ba255a9d31c961eb74c6356d68c049b8923b61fa6ce669622e60f29fb6"
                             "7903fe1008b8bc99a41ae9e95628bc64f2f1b20c2d7e9f5177a3c294d4462299"),
                         key) == 0);
    const Number r{hex("efd48b2aacb6a8fd1140dd9cd45e81d69d2c877b56aaf991c34d0ea84eaf3716")};
    const Number s{hex("f7cb1c942d657c41d436c7a1b6e29f65f3e900dbb9aff4064dc4ab2f843acda8")};
    Bytes digest = hex("af2bdbe1aa9b6ec1e2ade1d694f41fc71a831d0268e9891562113d8a62add1bf");
    const auto verify = [&](const Number& first, const Number& second) {
      return mbedtls_ecdsa_verify(&curve, digest.data(), digest.size(), &key, &first, &second);
    };
    CHECK(verify(r, s) == 0);
    CHECK(verify(s, r) == MBEDTLS_ERR_ECP_VERIFY_FAILED);
    const Number zero;
    Number n;
    REQUIRE(mbedtls_mpi_copy(&n, &curve.N) == 0);
    for (const Number* bad : {&zero, static_cast<const Number*>(&n)}) {
      CHECK(verify(*bad, s) == MBEDTLS_ERR_ECP_VERIFY_FAILED);
      CHECK(verify(r, *bad) == MBEDTLS_ERR_ECP_VERIFY_FAILED);
    }
    // Not reduced, it is another name of the same signature, and no signature.
    Number beyond;
    REQUIRE(mbedtls_mpi_add_mpi(&beyond, &r, &curve.N) == 0);
    CHECK(verify(beyond, s) == MBEDTLS_ERR_ECP_VERIFY_FAILED);
    digest[0] ^= 1;
    CHECK(verify(r, s) == MBEDTLS_ERR_ECP_VERIFY_FAILED);
    digest[0] ^= 1;
    REQUIRE(mbedtls_mpi_add_mpi(&key.private_X, &key.private_X, &curve.P) == 0);
    CHECK(verify(r, s) != 0);
    REQUIRE(mbedtls_mpi_sub_mpi(&key.private_X, &key.private_X, &curve.P) == 0);
    REQUIRE(mbedtls_mpi_add_int(&key.private_Y, &key.private_Y, 1) == 0);
    CHECK(verify(r, s) != 0);
  }
}

TEST_CASE("crypto, ECDSA: what one arm signs, the other accepts; digests of every size") {
  Random random;
  for (const auto id : {MBEDTLS_ECP_DP_SECP256R1, MBEDTLS_ECP_DP_SECP384R1}) {
    Curve curve{id};
    Number secret;
    Point key;
    Dice dice;
    initialise();
    REQUIRE(mbedtls_ecp_gen_keypair(&curve, &secret, &key, Random::generate, &random) == 0);
    for (const std::size_t size : {1U, 20U, 28U, 31U, 32U, 33U, 48U, 64U}) {
      for (const bool accelerated : {true, false}) {
        const Bytes digest = dice.bytes(size);
        Number r;
        Number s;
        {
          const Arm arm{accelerated};
          REQUIRE(mbedtls_ecdsa_sign(&curve, &r, &s, &secret, digest.data(), size, Random::generate,
                                     &random) == 0);
        }
        const Arm arm{!accelerated};
        CHECK(mbedtls_ecdsa_verify(&curve, digest.data(), size, &key, &r, &s) == 0);
        REQUIRE(mbedtls_mpi_add_int(&s, &s, 1) == 0);
        CHECK(mbedtls_ecdsa_verify(&curve, digest.data(), size, &key, &r, &s) != 0);
      }
    }
  }
}

TEST_CASE("crypto, ECDSA: a private key out of its range signs nothing, on both arms") {
  for (const bool accelerated : {true, false}) {
    const Arm arm{accelerated};
    Random random;
    Curve curve{MBEDTLS_ECP_DP_SECP256R1};
    const Bytes digest(32, 1);
    Number r;
    Number s;
    Number secret;
    const auto sign = [&] {
      return mbedtls_ecdsa_sign(&curve, &r, &s, &secret, digest.data(), digest.size(),
                                Random::generate, &random);
    };
    CHECK(sign() == MBEDTLS_ERR_ECP_INVALID_KEY);
    REQUIRE(mbedtls_mpi_copy(&secret, &curve.N) == 0);
    CHECK(sign() == MBEDTLS_ERR_ECP_INVALID_KEY);
    REQUIRE(mbedtls_mpi_lset(&secret, -1) == 0);
    CHECK(sign() == MBEDTLS_ERR_ECP_INVALID_KEY);
  }
}

// What TLS 1.3 calls: PSA's entry points, which must reach the same code.
Bytes agree_by_psa(psa_ecc_family_t family, std::size_t bits, psa_key_id_t& key, Bytes& own,
                   const Bytes* peer) {
  psa_key_attributes_t attributes = PSA_KEY_ATTRIBUTES_INIT;
  psa_set_key_usage_flags(&attributes, PSA_KEY_USAGE_DERIVE);
  psa_set_key_algorithm(&attributes, PSA_ALG_ECDH);
  psa_set_key_type(&attributes, PSA_KEY_TYPE_ECC_KEY_PAIR(family));
  psa_set_key_bits(&attributes, bits);
  std::size_t size = 0;
  if (peer == nullptr) {
    REQUIRE(psa_generate_key(&attributes, &key) == PSA_SUCCESS);
    own.resize(80);
    REQUIRE(psa_export_public_key(key, own.data(), own.size(), &size) == PSA_SUCCESS);
    own.resize(size);
    return {};
  }
  Bytes shared(80);
  REQUIRE(psa_raw_key_agreement(PSA_ALG_ECDH, key, peer->data(), peer->size(), shared.data(),
                                shared.size(), &size) == PSA_SUCCESS);
  shared.resize(size);
  return shared;
}

TEST_CASE("crypto, PSA: key agreement as TLS 1.3 does it, one side on each arm") {
  for (const auto& [family, bits] : {std::pair{PSA_ECC_FAMILY_MONTGOMERY, std::size_t{255}},
                                     std::pair{PSA_ECC_FAMILY_SECP_R1, std::size_t{256}}}) {
    psa_key_id_t a = 0;
    psa_key_id_t b = 0;
    Bytes a_public;
    Bytes b_public;
    Bytes a_shared;
    Bytes b_shared;
    {
      const Arm arm{true};
      agree_by_psa(family, bits, a, a_public, nullptr);
    }
    {
      const Arm arm{false};
      agree_by_psa(family, bits, b, b_public, nullptr);
      b_shared = agree_by_psa(family, bits, b, b_public, &a_public);
    }
    const Arm arm{true};
    a_shared = agree_by_psa(family, bits, a, a_public, &b_public);
    CHECK(a_shared == b_shared);
    CHECK(a_shared.size() == 32);
    CHECK(psa_destroy_key(a) == PSA_SUCCESS);
    CHECK(psa_destroy_key(b) == PSA_SUCCESS);
  }
}

}  // namespace
}  // namespace causeway::gateway::crypto::test
