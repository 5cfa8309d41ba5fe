// SPDX-License-Identifier: Apache-2.0
#include <mbedtls/x509_crt.h>
#include <psa/crypto.h>

#include <algorithm>
#include <set>
#include <thread>

#include "guest/gateway/crypto/mbedtls.hpp"
#include "tests/unit/gateway_crypto.hpp"

namespace causeway::gateway::crypto::test {
namespace {

Bytes draw(Random& random, std::size_t size) {
  Bytes bytes(size);
  REQUIRE(Random::generate(random.context(), bytes.data(), size) == 0);
  return bytes;
}

TEST_CASE("crypto, random: no two draws are alike, in one generator, two, or two threads") {
  std::set<Bytes> seen;
  Random a;
  Random b;
  for (int round = 0; round < 500; ++round) {
    CHECK(seen.insert(draw(a, 32)).second);
    CHECK(seen.insert(draw(b, 32)).second);
  }
  std::vector<Bytes> elsewhere;
  std::thread thread{[&] {
    Random c;
    for (int round = 0; round < 500; ++round) {
      Bytes bytes(32);
      if (Random::generate(&c, bytes.data(), bytes.size()) == 0) elsewhere.push_back(bytes);
    }
  }};
  thread.join();
  CHECK(elsewhere.size() == 500);
  for (const Bytes& bytes : elsewhere)
    CHECK(seen.insert(bytes).second);
}

TEST_CASE("crypto, random: every size, and past the interval of reseeding") {
  Random random;
  CHECK(draw(random, 0).empty());
  for (const std::size_t size : {1U, 15U, 1023U, 1024U, 1025U, 5000U}) {
    const Bytes bytes = draw(random, size);
    // Half of the bits are set, within what 5000 bytes and chance allow.
    if (size == 5000) {
      std::size_t ones = 0;
      for (const unsigned char byte : bytes) {
        ones += static_cast<std::size_t>(__builtin_popcount(byte));
      }
      CHECK(ones > 19'000);
      CHECK(ones < 21'000);
      CHECK(
          std::any_of(bytes.end() - 64, bytes.end(), [](unsigned char byte) { return byte != 0; }));
    }
  }
  Bytes last;
  for (int round = 0; round < Random::kReseedInterval + 10; ++round) {
    const Bytes next = draw(random, 16);
    REQUIRE(next != last);
    last = next;
  }
}

TEST_CASE("crypto: starts more than once, says who does what, and PSA draws") {
  initialise();
  initialise();
  CHECK(description().find("mbedTLS " MBEDTLS_VERSION_STRING) == 0);
  Bytes a(32);
  Bytes b(32);
  CHECK(psa_generate_random(a.data(), a.size()) == PSA_SUCCESS);
  CHECK(psa_generate_random(b.data(), b.size()) == PSA_SUCCESS);
  CHECK(a != b);
#if defined(CAUSEWAY_CRYPTO_ACCELERATED)
  MESSAGE(description());
  CHECK(providers().ecp);
  CHECK(providers().ecdsa);
  CHECK(providers().rsa);
  CHECK(providers().gcm == cpu_has_aes());
  CHECK(prefers_aes_gcm() == providers().gcm);
#else
  CHECK_FALSE(prefers_aes_gcm());
#endif
}

TEST_CASE("crypto: a system's trust store can be read whole, and no chain may use SHA-1") {
  initialise();
  CHECK((mbedtls_x509_crt_profile_default.allowed_mds & MBEDTLS_X509_ID_FLAG(MBEDTLS_MD_SHA1)) ==
        0);
  CHECK((mbedtls_x509_crt_profile_default.allowed_mds & MBEDTLS_X509_ID_FLAG(MBEDTLS_MD_SHA256)) !=
        0);
  mbedtls_x509_crt store;
  mbedtls_x509_crt_init(&store);
  const int unreadable = mbedtls_x509_crt_parse_file(&store, "/etc/ssl/certs/ca-certificates.crt");
  if (unreadable < 0) {
    MESSAGE("SKIP: no /etc/ssl/certs/ca-certificates.crt");
  } else {
    CHECK(unreadable == 0);
  }
  mbedtls_x509_crt_free(&store);
}

}  // namespace
}  // namespace causeway::gateway::crypto::test
