// SPDX-License-Identifier: Apache-2.0
#include <mbedtls/chachapoly.h>

#include <algorithm>
#include <array>

#include "tests/unit/gateway_crypto.hpp"

namespace causeway::gateway::crypto::test {
namespace {

class Chacha {
 public:
  explicit Chacha(const Bytes& key) {
    mbedtls_chachapoly_init(&context_);
    REQUIRE(mbedtls_chachapoly_setkey(&context_, key.data()) == 0);
  }
  ~Chacha() { mbedtls_chachapoly_free(&context_); }
  Chacha(const Chacha&) = delete;
  Chacha& operator=(const Chacha&) = delete;
  mbedtls_chachapoly_context* get() { return &context_; }

  // The text sealed, and its tag behind it.
  Bytes seal(const Bytes& nonce, const Bytes& add, const Bytes& text) {
    Bytes out(text.size() + 16);
    REQUIRE(mbedtls_chachapoly_encrypt_and_tag(&context_, text.size(), nonce.data(), add.data(),
                                               add.size(), text.data(), out.data(),
                                               out.data() + text.size()) == 0);
    return out;
  }
  int open(const Bytes& nonce, const Bytes& add, const Bytes& sealed, Bytes& text) {
    const std::size_t size = sealed.size() - 16;
    text.assign(size, 0xee);
    return mbedtls_chachapoly_auth_decrypt(&context_, size, nonce.data(), add.data(), add.size(),
                                           sealed.data() + size, sealed.data(), text.data());
  }

 private:
  mbedtls_chachapoly_context context_;
};

TEST_CASE("crypto, ChaCha20-Poly1305: the example of RFC 8439 2.8.2, on both arms") {
  for (const bool accelerated : {true, false}) {
    const Arm arm{accelerated};
    Chacha chacha{hex("808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f")};
    const Bytes nonce = hex("070000004041424344454647");
    const Bytes add = hex("50515253c0c1c2c3c4c5c6c7");
    constexpr std::string_view kText =
        "Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the "
        "future, "
        "sunscreen would be it.";
    const Bytes expected =
        hex("d31a8d34648e60db7b86afbc53ef7ec2a4aded51296e08fea9e2b5a736ee62d6"
            "3dbea45e8ca9671282fafb69da92728b1a71de0a9e060b2905d6a5b67ecd3b36"
            "92ddbd7f2d778b8c9803aee328091b58fab324e4fad675945585808b4831d7bc"
            "3ff4def08e4b7a9de576d26586cec64b61161ae10b594f09e26a7e902ecbd0600691");
    const Bytes text{kText.begin(), kText.end()};
    CHECK(chacha.seal(nonce, add, text) == expected);
    Bytes opened;
    CHECK(chacha.open(nonce, add, expected, opened) == 0);
    CHECK(opened == text);
  }
}

TEST_CASE("crypto, ChaCha20-Poly1305: the arms agree on random sizes, in place and unaligned") {
  Dice dice;
  for (int round = 0; round < 1200; ++round) {
    const std::size_t size = round < 1000 ? static_cast<std::size_t>(round) : dice.up_to(17'000);
    const Bytes key = dice.bytes(32);
    const Bytes nonce = dice.bytes(12);
    const Bytes add = dice.bytes(static_cast<std::size_t>(round) % 65);
    const Bytes text = dice.bytes(size);
    Bytes expected;
    {
      const Arm arm{false};
      expected = Chacha{key}.seal(nonce, add, text);
    }
    const Arm arm{true};
    Chacha chacha{key};
    REQUIRE(chacha.seal(nonce, add, text) == expected);
    Bytes room(size + 64, 0x5a);
    const std::size_t at = dice.up_to(32);
    unsigned char* const place = room.data() + at;
    std::copy(text.begin(), text.end(), place);
    std::array<unsigned char, 16> tag;
    REQUIRE(mbedtls_chachapoly_encrypt_and_tag(chacha.get(), size, nonce.data(), add.data(),
                                               add.size(), place, place, tag.data()) == 0);
    REQUIRE(std::equal(place, place + size, expected.begin()));
    REQUIRE(std::equal(tag.begin(), tag.end(), expected.end() - 16));
    REQUIRE(mbedtls_chachapoly_auth_decrypt(chacha.get(), size, nonce.data(), add.data(),
                                            add.size(), tag.data(), place, place) == 0);
    REQUIRE(std::equal(place, place + size, text.begin()));
    const auto untouched = [](unsigned char byte) { return byte == 0x5a; };
    REQUIRE(std::all_of(room.data(), place, untouched));
    REQUIRE(std::all_of(place + size, room.data() + room.size(), untouched));
  }
}

TEST_CASE(
    "crypto, ChaCha20-Poly1305: a record that was touched is refused and given out in no part") {
  for (const bool accelerated : {true, false}) {
    const Arm arm{accelerated};
    Dice dice;
    Chacha chacha{dice.bytes(32)};
    const Bytes nonce = dice.bytes(12);
    const Bytes add = dice.bytes(13);
    const Bytes sealed = chacha.seal(nonce, add, dice.bytes(100));
    Bytes text;
    for (std::size_t bit = 0; bit < sealed.size() * 8; bit += 7) {
      Bytes touched = sealed;
      touched[bit / 8] = static_cast<unsigned char>(touched[bit / 8] ^ (1 << bit % 8));
      REQUIRE(chacha.open(nonce, add, touched, text) == MBEDTLS_ERR_CHACHAPOLY_AUTH_FAILED);
      REQUIRE(text == Bytes(100));
    }
    CHECK(chacha.open(nonce, dice.bytes(13), sealed, text) == MBEDTLS_ERR_CHACHAPOLY_AUTH_FAILED);
  }
}

}  // namespace
}  // namespace causeway::gateway::crypto::test
