// SPDX-License-Identifier: Apache-2.0
#include <mbedtls/cipher.h>
#include <mbedtls/gcm.h>

#include <algorithm>
#include <array>

#include "tests/unit/gateway_crypto.hpp"
#if defined(CAUSEWAY_CRYPTO_ACCELERATED)
#include "guest/gateway/crypto/builtin_gcm.h"
#endif

namespace causeway::gateway::crypto::test {
namespace {

class Gcm {
 public:
  Gcm() { mbedtls_gcm_init(&context_); }
  explicit Gcm(const Bytes& key) : Gcm() { REQUIRE(set_key(key) == 0); }
  ~Gcm() { mbedtls_gcm_free(&context_); }
  Gcm(const Gcm&) = delete;
  Gcm& operator=(const Gcm&) = delete;

  int set_key(const Bytes& key) {
    return mbedtls_gcm_setkey(&context_, MBEDTLS_CIPHER_ID_AES, key.data(),
                              static_cast<unsigned int>(key.size() * 8));
  }
  mbedtls_gcm_context* get() { return &context_; }

  // The text sealed, and its tag behind it.
  Bytes seal(const Bytes& nonce, const Bytes& add, const Bytes& text, std::size_t tag = 16) {
    Bytes out(text.size() + tag);
    REQUIRE(mbedtls_gcm_crypt_and_tag(&context_, MBEDTLS_GCM_ENCRYPT, text.size(), nonce.data(),
                                      nonce.size(), add.data(), add.size(), text.data(), out.data(),
                                      tag, out.data() + text.size()) == 0);
    return out;
  }
  int open(const Bytes& nonce, const Bytes& add, const Bytes& sealed, Bytes& text,
           std::size_t tag = 16) {
    const std::size_t size = sealed.size() - tag;
    text.assign(size, 0xee);
    return mbedtls_gcm_auth_decrypt(&context_, size, nonce.data(), nonce.size(), add.data(),
                                    add.size(), sealed.data() + size, tag, sealed.data(),
                                    text.data());
  }

 private:
  mbedtls_gcm_context context_;
};

struct Vector {
  const char* key;
  const char* nonce;
  const char* add;
  const char* text;
  const char* sealed;
};

constexpr const char* kText4 =
    "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
    "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39";
constexpr const char* kText3 =
    "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
    "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255";
constexpr const char* kAdd = "feedfacedeadbeeffeedfacedeadbeefabaddad2";
constexpr const char* kKey128 = "feffe9928665731c6d6a8f9467308308";
constexpr const char* kKey256 = "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308";
constexpr const char* kZero128 = "00000000000000000000000000000000";
constexpr const char* kZero256 = "0000000000000000000000000000000000000000000000000000000000000000";
constexpr const char* kZeroNonce = "000000000000000000000000";

// McGrew and Viega, "The Galois/Counter Mode of Operation" (submitted to NIST), appendix B: cases 1
// to 5, 13 to 16. Case 5 has a nonce of 8 bytes.
const std::array<Vector, 9> kVectors{{
    {kZero128, kZeroNonce, "", "", "58e2fccefa7e3061367f1d57a4e7455a"},
    {kZero128, kZeroNonce, "", kZero128,
     "0388dace60b6a392f328c2b971b2fe78ab6e47d42cec13bdf53a67b21257bddf"},
    {kKey128, "cafebabefacedbaddecaf888", "", kText3,
     "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e"
     "21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e091473f5985"
     "4d5c2af327cd64a62cf35abd2ba6fab4"},
    {kKey128, "cafebabefacedbaddecaf888", kAdd, kText4,
     "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e"
     "21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e091"
     "5bc94fbc3221a5db94fae95ae7121a47"},
    {kKey128, "cafebabefacedbad", kAdd, kText4,
     "61353b4c2806934a777ff51fa22a4755699b2a714fcdc6f83766e5f97b6c7423"
     "73806900e49f24b22b097544d4896b424989b5e1ebac0f07c23f4598"
     "3612d2e79e3b0785561be14aaca2fccb"},
    {kZero256, kZeroNonce, "", "", "530f8afbc74536b9a963b4f1c4cb738b"},
    {kZero256, kZeroNonce, "", kZero128,
     "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919"},
    {kKey256, "cafebabefacedbaddecaf888", "", kText3,
     "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
     "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662898015ad"
     "b094dac5d93471bdec1a502270e3cc6c"},
    {kKey256, "cafebabefacedbaddecaf888", kAdd, kText4,
     "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
     "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662"
     "76fc6ece0f4e1768cddf8853bb2d551b"},
}};

TEST_CASE("crypto, AES-GCM: the vectors of its submission to NIST, on both arms") {
  for (const bool accelerated : {true, false}) {
    const Arm arm{accelerated};
    for (const Vector& vector : kVectors) {
      Gcm gcm{hex(vector.key)};
      const Bytes sealed = gcm.seal(hex(vector.nonce), hex(vector.add), hex(vector.text));
      CHECK(sealed == hex(vector.sealed));
      Bytes text;
      CHECK(gcm.open(hex(vector.nonce), hex(vector.add), sealed, text) == 0);
      CHECK(text == hex(vector.text));
    }
  }
}

TEST_CASE("crypto, AES-GCM: the arms agree on random sizes, keys, additional data and tags") {
  Dice dice;
  for (int round = 0; round < 600; ++round) {
    const std::size_t key_size = std::array<std::size_t, 3>{16, 24, 32}.at(dice.up_to(2));
    const std::size_t size = round < 300 ? static_cast<std::size_t>(round) : dice.up_to(17'000);
    const Bytes key = dice.bytes(key_size);
    const Bytes nonce = dice.bytes(dice.up_to(9) == 0 ? 1 + dice.up_to(40) : 12);
    const Bytes add = dice.bytes(static_cast<std::size_t>(round) % 65);
    const Bytes text = dice.bytes(size);
    const std::size_t tag = dice.up_to(1) == 0 ? 16 : 4 + dice.up_to(12);
    Bytes sealed;
    {
      const Arm arm{true};
      sealed = Gcm{key}.seal(nonce, add, text, tag);
    }
    const Arm arm{false};
    Gcm builtin{key};
    REQUIRE(builtin.seal(nonce, add, text, tag) == sealed);
    Bytes opened;
    REQUIRE(builtin.open(nonce, add, sealed, opened, tag) == 0);
    REQUIRE(opened == text);
  }
}

TEST_CASE("crypto, AES-GCM: in place, at every alignment and a little behind its input") {
  initialise();
  Dice dice;
  const Bytes key = dice.bytes(16);
  const Bytes nonce = dice.bytes(12);
  const Bytes add = dice.bytes(13);
  Gcm gcm{key};
  for (const std::size_t size : {0U, 1U, 15U, 16U, 17U, 127U, 128U, 129U, 1000U, 4103U, 16'384U}) {
    const Bytes text = dice.bytes(size);
    const Bytes expected = gcm.seal(nonce, add, text);
    for (std::size_t at = 0; at < 33; ++at) {
      for (const std::size_t behind : {0U, 8U, 9U, 16U, 40U}) {
        Bytes room(size + 33 + 40 + 16, 0x5a);
        unsigned char* const to = room.data() + at;
        unsigned char* const from = to + behind;
        std::copy(text.begin(), text.end(), from);
        std::array<unsigned char, 16> tag;
        REQUIRE(mbedtls_gcm_crypt_and_tag(gcm.get(), MBEDTLS_GCM_ENCRYPT, size, nonce.data(), 12,
                                          add.data(), add.size(), from, to, 16, tag.data()) == 0);
        REQUIRE(std::equal(to, to + size, expected.begin()));
        REQUIRE(std::equal(tag.begin(), tag.end(), expected.end() - 16));
        if (behind == 0) {
          REQUIRE(std::all_of(to + size, room.data() + room.size(),
                              [](unsigned char byte) { return byte == 0x5a; }));
        }
        REQUIRE(std::all_of(room.data(), to, [](unsigned char byte) { return byte == 0x5a; }));
        REQUIRE(mbedtls_gcm_auth_decrypt(gcm.get(), size, nonce.data(), 12, add.data(), add.size(),
                                         tag.data(), 16, to, to) == 0);
        REQUIRE(std::equal(to, to + size, text.begin()));
      }
    }
  }
}

TEST_CASE("crypto, AES-GCM: a record that was touched is refused and nothing of it is given out") {
  for (const bool accelerated : {true, false}) {
    const Arm arm{accelerated};
    Dice dice;
    Gcm gcm{dice.bytes(32)};
    const Bytes nonce = dice.bytes(12);
    const Bytes add = dice.bytes(13);
    const Bytes sealed = gcm.seal(nonce, add, dice.bytes(100));
    Bytes text;
    for (std::size_t bit = 0; bit < sealed.size() * 8; bit += 7) {
      Bytes touched = sealed;
      touched[bit / 8] = static_cast<unsigned char>(touched[bit / 8] ^ (1 << bit % 8));
      REQUIRE(gcm.open(nonce, add, touched, text) == MBEDTLS_ERR_GCM_AUTH_FAILED);
      REQUIRE(text == Bytes(100));
    }
    Bytes other = add;
    other[12] ^= 1;
    CHECK(gcm.open(nonce, other, sealed, text) == MBEDTLS_ERR_GCM_AUTH_FAILED);
    other = nonce;
    other[0] ^= 1;
    CHECK(gcm.open(other, add, sealed, text) == MBEDTLS_ERR_GCM_AUTH_FAILED);
  }
}

TEST_CASE("crypto, AES-GCM: misuse is an error") {
  for (const bool accelerated : {true, false}) {
    const Arm arm{accelerated};
    Dice dice;
    const Bytes nonce = dice.bytes(12);
    Bytes text(16);
    std::array<unsigned char, 20> tag;
    Gcm gcm;
    CHECK(gcm.set_key(dice.bytes(15)) != 0);
    CHECK(mbedtls_gcm_setkey(gcm.get(), MBEDTLS_CIPHER_ID_CAMELLIA, text.data(), 128) != 0);
    REQUIRE(gcm.set_key(dice.bytes(16)) == 0);
    const auto seal = [&](const Bytes& iv, std::size_t tag_size) {
      return mbedtls_gcm_crypt_and_tag(gcm.get(), MBEDTLS_GCM_ENCRYPT, text.size(), iv.data(),
                                       iv.size(), nullptr, 0, text.data(), text.data(), tag_size,
                                       tag.data());
    };
    CHECK(seal(nonce, 16) == 0);
    CHECK(seal(nonce, 3) == MBEDTLS_ERR_GCM_BAD_INPUT);
    CHECK(seal(nonce, 17) == MBEDTLS_ERR_GCM_BAD_INPUT);
    CHECK(seal({}, 16) == MBEDTLS_ERR_GCM_BAD_INPUT);
    CHECK(mbedtls_gcm_auth_decrypt(gcm.get(), 16, nonce.data(), 12, nullptr, 0, tag.data(), 17,
                                   text.data(), text.data()) == MBEDTLS_ERR_GCM_BAD_INPUT);
    mbedtls_gcm_free(gcm.get());
    mbedtls_gcm_free(gcm.get());
    mbedtls_gcm_free(nullptr);
  }
}

#if defined(CAUSEWAY_CRYPTO_ACCELERATED)
TEST_CASE("crypto, AES-GCM: a context without a key, and parts out of order, are errors") {
  initialise();
  Gcm gcm;
  std::array<unsigned char, 16> bytes{};
  std::size_t size = 0;
  CHECK(mbedtls_gcm_crypt_and_tag(gcm.get(), MBEDTLS_GCM_ENCRYPT, 16, bytes.data(), 12, nullptr, 0,
                                  bytes.data(), bytes.data(), 16, bytes.data()) != 0);
  CHECK(mbedtls_gcm_starts(gcm.get(), MBEDTLS_GCM_ENCRYPT, bytes.data(), 12) != 0);
  REQUIRE(gcm.set_key(Bytes(16)) == 0);
  CHECK(mbedtls_gcm_update_ad(gcm.get(), bytes.data(), 1) != 0);
  CHECK(mbedtls_gcm_update(gcm.get(), bytes.data(), 1, bytes.data(), 1, &size) != 0);
  CHECK(mbedtls_gcm_finish(gcm.get(), nullptr, 0, &size, bytes.data(), 16) != 0);
}
#endif

TEST_CASE("crypto, AES-GCM: data in parts gives what one call gives") {
  for (const bool accelerated : {true, false}) {
    const Arm arm{accelerated};
    Dice dice;
    Gcm gcm{dice.bytes(16)};
    const Bytes nonce = dice.bytes(12);
    for (int round = 0; round < 50; ++round) {
      const Bytes add = dice.bytes(dice.up_to(60));
      const Bytes text = dice.bytes(1 + dice.up_to(500));
      const Bytes expected = gcm.seal(nonce, add, text);
      Bytes out(text.size() + 16);
      std::size_t written = 0;
      REQUIRE(mbedtls_gcm_starts(gcm.get(), MBEDTLS_GCM_ENCRYPT, nonce.data(), 12) == 0);
      const std::size_t cut = dice.up_to(add.size());
      REQUIRE(mbedtls_gcm_update_ad(gcm.get(), add.data(), cut) == 0);
      REQUIRE(mbedtls_gcm_update_ad(gcm.get(), add.data() + cut, add.size() - cut) == 0);
      for (std::size_t at = 0; at < text.size();) {
        const std::size_t part = 1 + dice.up_to(text.size() - at - 1);
        REQUIRE(mbedtls_gcm_update(gcm.get(), text.data() + at, part, out.data() + at, part,
                                   &written) == 0);
        REQUIRE(written == part);
        at += part;
      }
      REQUIRE(mbedtls_gcm_finish(gcm.get(), nullptr, 0, &written, out.data() + text.size(), 16) ==
              0);
      REQUIRE(out == expected);
    }
  }
}

TEST_CASE("crypto, AES-GCM: by way of mbedTLS's ciphers, as a TLS record goes") {
  for (const bool accelerated : {true, false}) {
    const Arm arm{accelerated};
    mbedtls_cipher_context_t cipher;
    mbedtls_cipher_init(&cipher);
    REQUIRE(mbedtls_cipher_setup(&cipher,
                                 mbedtls_cipher_info_from_type(MBEDTLS_CIPHER_AES_128_GCM)) == 0);
    REQUIRE(mbedtls_cipher_setkey(&cipher, hex(kKey128).data(), 128, MBEDTLS_ENCRYPT) == 0);
    const Bytes nonce = hex("cafebabefacedbaddecaf888");
    const Bytes add = hex(kAdd);
    Bytes record = hex(kText4);
    const std::size_t size = record.size();
    record.resize(size + 16);
    std::size_t length = 0;
    CHECK(mbedtls_cipher_auth_encrypt_ext(&cipher, nonce.data(), 12, add.data(), add.size(),
                                          record.data(), size, record.data(), record.size(),
                                          &length, 16) == 0);
    CHECK(length == size + 16);
    CHECK(record == hex(kVectors[3].sealed));
    REQUIRE(mbedtls_cipher_setkey(&cipher, hex(kKey128).data(), 128, MBEDTLS_DECRYPT) == 0);
    CHECK(mbedtls_cipher_auth_decrypt_ext(&cipher, nonce.data(), 12, add.data(), add.size(),
                                          record.data(), record.size(), record.data(), size,
                                          &length, 16) == 0);
    record.resize(size);
    CHECK(record == hex(kText4));
    mbedtls_cipher_free(&cipher);
  }
}

}  // namespace
}  // namespace causeway::gateway::crypto::test
