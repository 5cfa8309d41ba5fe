// SPDX-License-Identifier: Apache-2.0
#include <mbedtls/md.h>
#include <mbedtls/sha256.h>
#include <mbedtls/sha512.h>

#include <array>

#include "tests/unit/gateway_crypto.hpp"

namespace causeway::gateway::crypto::test {
namespace {

Bytes digest(mbedtls_md_type_t type, const Bytes& text) {
  const auto* info = mbedtls_md_info_from_type(type);
  Bytes out(mbedtls_md_get_size(info));
  REQUIRE(mbedtls_md(info, text.data(), text.size(), out.data()) == 0);
  return out;
}

Bytes bytes(std::string_view text) {
  return {text.begin(), text.end()};
}

constexpr std::string_view kTwoBlocks =
    "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopq"
    "rs"
    "mnopqrstnopqrstu";

TEST_CASE("crypto, SHA-2: the examples of NIST (FIPS 180-4), on both arms") {
  for (const bool accelerated : {true, false}) {
    const Arm arm{accelerated};
    CHECK(digest(MBEDTLS_MD_SHA256, bytes("abc")) ==
          hex("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"));
    CHECK(digest(MBEDTLS_MD_SHA256,
                 bytes("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")) ==
          hex("248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"));
    CHECK(digest(MBEDTLS_MD_SHA256, {}) ==
          hex("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"));
    CHECK(digest(MBEDTLS_MD_SHA384, bytes("abc")) ==
          hex("cb00753f45a35e8bb5a03d699ac65007272c32ab0eded1631a8b605a43ff5bed"
              "8086072ba1e7cc2358baeca134c825a7"));
    CHECK(digest(MBEDTLS_MD_SHA384, bytes(kTwoBlocks)) ==
          hex("09330c33f71147e83d192fc782cd1b4753111b173b3b05d22fa08086e3b0f712"
              "fcc7c71a557e2db966c3e9fa91746039"));
    CHECK(digest(MBEDTLS_MD_SHA512, bytes("abc")) ==
          hex("ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a"
              "2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f"));
  }
}

TEST_CASE("crypto, SHA-2: HMAC, RFC 4231 test case 2, on both arms") {
  for (const bool accelerated : {true, false}) {
    const Arm arm{accelerated};
    const Bytes key = bytes("Jefe");
    const Bytes text = bytes("what do ya want for nothing?");
    Bytes out(32);
    REQUIRE(mbedtls_md_hmac(mbedtls_md_info_from_type(MBEDTLS_MD_SHA256), key.data(), key.size(),
                            text.data(), text.size(), out.data()) == 0);
    CHECK(out == hex("5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"));
  }
}

TEST_CASE(
    "crypto, SHA-2: the arms agree on every small size, cut anywhere, and go on from a copy") {
  Dice dice;
  for (const auto type : {MBEDTLS_MD_SHA256, MBEDTLS_MD_SHA384, MBEDTLS_MD_SHA512}) {
    const auto* info = mbedtls_md_info_from_type(type);
    for (std::size_t size = 0; size < 400; ++size) {
      const Bytes text = dice.bytes(size < 390 ? size : 4000 + size);
      Bytes expected;
      {
        const Arm arm{false};
        expected = digest(type, text);
      }
      const Arm arm{true};
      REQUIRE(digest(type, text) == expected);
      std::array<mbedtls_md_context_t, 2> contexts;
      for (auto& context : contexts) {
        mbedtls_md_init(&context);
        REQUIRE(mbedtls_md_setup(&context, info, 0) == 0);
      }
      const std::size_t cut = dice.up_to(text.size());
      REQUIRE(mbedtls_md_starts(&contexts[0]) == 0);
      REQUIRE(mbedtls_md_update(&contexts[0], text.data(), cut) == 0);
      REQUIRE(mbedtls_md_clone(&contexts[1], &contexts[0]) == 0);
      for (auto& context : contexts) {
        Bytes out(expected.size());
        REQUIRE(mbedtls_md_update(&context, text.data() + cut, text.size() - cut) == 0);
        REQUIRE(mbedtls_md_finish(&context, out.data()) == 0);
        REQUIRE(out == expected);
        mbedtls_md_free(&context);
      }
    }
  }
}

}  // namespace
}  // namespace causeway::gateway::crypto::test
