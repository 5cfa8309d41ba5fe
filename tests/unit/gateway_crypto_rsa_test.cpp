// SPDX-License-Identifier: Apache-2.0
#include <mbedtls/pk.h>
#include <mbedtls/rsa.h>
#include <mbedtls/sha256.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <thread>

#include "tests/unit/gateway_crypto.hpp"

namespace causeway::gateway::crypto::test {
namespace {

// Keys made for this test by `openssl genpkey`; nothing else uses them.
constexpr const char* kKeyA =
    "-----BEGIN RSA PRIVATE KEY-----\n"
    "MIIEpAIBAAKCAQEArBAKamD3xdGZWewNYo+rNXrUkw6mxvF5nixx0/fk50M8C65N\n"
    "DHBNRLuxT+pJHepv7byh7j3b53/Af0Az+4I99EqJik4q+3ymhKdQPvJcazo870aw\n"
    "sEuC7Pg4Z3Ydom6iFyj4Xm5kn5uplbheiLYoUpvJ6mXl/bAZIAxwAHki6yhj1wKG\n"
    "P0SnRZQWSy8x3BUSFSIx/yo/Kb+rpZZwHhuxu6s908cbfInV4+yFNp5pzI+5toyV\n"
    "ywCkWKsSWnZgmcgbLPUz9dpjn0YD63EEtd2nEdr6rOCCYOIUVE/gxDSnBA2cm162\n"
    "t6bHQpBGD8pUSyiZLiKLWMTpkOITVLBxxzNBjwIDAQABAoIBADTNd2TN/Tun5vfB\n"
    "iRoGHPR8jV/TzzqeQERaP1RdbtHJwFOVWe/HRu8g6nkr3ORhXZgHm2oRcbrJabmj\n"
    "alB0165wcWUQOACVcESlU+r9VX9SkACeIPr5MWSniCe4B8AhU3zoBdB08ExK6PAZ\n"
    "dGlf/V/cj0pvmvUPZaaAKp76jcy8R474CCXacA4GckA0f4dB4ubrEya00sZr841I\n"
    "bAGaC3iigL171Ps7GjRBGCJwDbUfv8CQdjLhTd+o4hG6r6szqZOYgZv/R9vy/0/1\n"
    "e/LkvgXtTUEIs8hLHVANTf1Tjya3xLI++DjzHHloReZCeVBCEvg9lzFJ0wowbstv\n"
    "59eLewECgYEA1m+NAgyTrVEIejXeBMFRq9Ew1aDQe40Wgdir0LplVrNjQSZoK4lS\n"
    "bVwB9vThULt7ftkzOIkMix/QqZCv9ZrYIhFbjG00i09U2GYwmIX9t6Ju5ztvzXMN\n"
    "BzibeDfLwrGHxsz5qCZghT1H61Shy8yY7o3C9MkOS29d8hiZNO+W5BcCgYEAzWno\n"
    "flGdWZFHyZ5LRgFJr3iDQaqfF2Bkz3Y1c3mhanny8RGdbezm5MV7My0QmLIAndbU\n"
    "Sd4Qmeww8U8Ces5sjUeQbGpKjnHQpRFO7zyyTcwlkbuzPfqtRChmboXfd2/3INRB\n"
    "FF9v8GXBvor89JpRTjzG2ciFewzm/nYmeGts4UkCgYEAqpJTRRUCB3SU3LmqoHey\n"
    "YozlXpksHYtuIt1aVo9eeuf5BOLrK+5w3cK5YVsLO2/W3WEiiE8j5irpjWglP6Xr\n"
    "VLYf74USrdnt8LDg6QJ0frU7qL2zwmZJL7xMlwUzFOyox29XC/VzA6lqYvyQMw/N\n"
    "erzTHmor779nqGL+w4ftrAMCgYAQlWtSv24PrB36lhAHr9TuGLGoHIlJjtu0sBty\n"
    "njA882l8supd1JFziMoAgLPlUAGivJRY/leixaHR6YoOthmnck6johUw2Nl6aiJQ\n"
    "SDsw8rlZwaif6VwRs51JcP9wmhZ+jQRQC8ByzRROONRhPxAvW9LGBF1aaNlBU/KZ\n"
    "KDsbGQKBgQCXEmP0cqp8YatvBsBLM/Vq9CoWBn6a8aZH8hRYqDThHkUkf0Qa/pJa\n"
    "THLUsZus9dhAGDLk6wAbyORg5V2PNFiDIEoiWO86kBWjSyy9THnneQJCDmtOpWQz\n"
    "A+J54GSE00rdf5nJFTQroqqXPjuxZGPd0BDOcBVmjzRtfiaBq8vjxg==\n"
    "-----END RSA PRIVATE KEY-----\n";
constexpr const char* kKeyB =
    "-----BEGIN RSA PRIVATE KEY-----\n"
    "MIIEogIBAAKCAQEAsJaqSW+PB50nKSxOQW42PcePgA6DcPzQ/ecovTTOK37rpFAV\n"
    "T4YuOg/uXKQyDNFZlbeeG+2ibVaWU8s1xTfGcyUqxHBh/lR2AT0hph2J8co1Ip11\n"
    "CSmBKbIcQ87ZgEoc9kjcNPNrccd8QWHi69XFDcm6ZXmRqVgatQYiAtvypE0Fs/DM\n"
    "ce8k7uez8jAejVYNJs/13Q5YoyrMjoZLXd2LETZcW9BPdwkmALo+uJYpBIn0ZCjx\n"
    "ehttH0TJ5NgrKqYsHY7ZxjwLhpxCLj+iAJSkJs0OeiA3gHbmi5SNwFd0MGrt1fr1\n"
    "Kj3rZf+lvMq5p1IGeyQ9yOIIfdu1IhrzdXNQOQIDAQABAoIBABRO73yMkOVuRF+u\n"
    "0b0ioKhQOAehI6qt2Jcqq3u/A+rqqMz3zMudgdl5lY8f7wWcWfIm8M8DcEekypsO\n"
    "Zruso20AnD+FMS/fpMaVsjX5dbDR8XRuqVQJaupRqoB93HOtklEcpf6M9BFcwMSA\n"
    "Lmmy5vuj9ITRC1hvYnrpHqY3h1svs4dCtFHhS3qwAMNAw8Ix4UI8AW2gNJvmTQT3\n"
    "bS9Yw9Vr+1Fq8E1j9+Ko1MMhJxYuShQO3PvXWx5MO9iyJCPqEfIKUI+wNKhW1jyb\n"
    "wDh8u5JPQv0KKLtYCa4+Un3HT1M3LlQXT1/qui7a1jCUB3iFJESGVmJ88KO5LJEL\n"
    "qNB2dVECgYEA24EDLKZBIJWoFQJTj2mCdOoVZ6HXV0WwfVRNVpFKW+6Sf9zEBZCx\n"
    "SbYk9ZIQ2HYQOD2G813AhmRJf82dlcNrPexcXvmXoqwIPJ3Cg7TyNullJjhosfZh\n"
    "m4bVL7FzhRCT9I3zZhwwmYfiYNfMMeLCt29yE3dFLlGNOtvgD5Qoq80CgYEAzfL/\n"
    "Ki+wJQY4RNneJ7curOsiTGsNFWbA5KI+luQ3gR9RVVU6OEtZJE+4u0+N5pJvzuNh\n"
    "7ofPrU5Y3Da/3u/vbeZT6mB4G0HrVAKdOMfZUDtOQMLiOXBhAHzzyR1mh2i2jUuB\n"
    "na+5wrdTIycEKsA5sDL5Su6Ot9hZeQKYtVfBQh0CgYAK7A95YEhrU6cKbJQ11Z0t\n"
    "LhykjHQHnqsagWBbx1z42BUoEZcbY8i+jzallYALFUzXT5BweaDDzyetGVEXC6NB\n"
    "cIpkG21FJeQ/B+aO4SkQPGrRDQuAl27h60KeXekOnPWPvKR41zw/13gXM4WwkcT4\n"
    "la4Kc+vYUyyA2kH65HdlnQKBgCh5qUxRMv0Ty9s8Njz382RokcUTBO8/0okcmdBt\n"
    "6bqmvQVYSqjlpg9M27F0YR7/iJnQdl66skYNL8mXuP3Hifa/XZ6idvhkbCuGl/+g\n"
    "x0TNYwO3SV6gh2/hHshXzt6t5bK/NCoZbxiljuFJubftL2lBm1zupX3cNzlhGUIK\n"
    "jSDBAoGAGibBpUqqrrs8PXlEhBdbjoky8OS/QBEIUfXHDOIfozVmQSiE0rcX1cdw\n"
    "gaXS4iee/U6azMeKkm22aRFeodyWUixvKphhuYdn7INRHoZaUvftj+cJYG38Bs48\n"
    "dgvGA9Ry3qrP14GnwXFL64SfIBo6AHZ+TmPk1PYFtulQ851XezQ=\n"
    "-----END RSA PRIVATE KEY-----\n";

// `printf causeway | openssl dgst -sha256 -sign A` (PKCS #1 v1.5, which is deterministic).
constexpr const char* kSignature =
    "40a4821e4df414ebffe2d202f40077b626edd34367907785c0dd401f46feec498aff77fa0d828748139badaf97391d"
    "a5"
    "1ee044fc05caef2402e8e18fe6fb88d3e2fe0a2ee7a8e8f21e63b944543727e070fe13162c02e8eb5f48a8e318c9d3"
    "f3"
    "a6450845024f6a536227d8140501e7caf720c0e01249017d15745378465cfd1474779a84589d18b6972d40e6432655"
    "3c"
    "8e0bb23eeb1a4ff39f674df1a1eb6de44298618cfdb8f825b4ade7c4b7cf8fbffd56e445ae4dad58a709f9ba6fcc46"
    "a7"
    "237632e4268c7b4a93d41b2f88853c36d2acb77d1d52913cca815e7247fe2f27442198000a1f83cd0eefa787eaa7f6"
    "ae"
    "3d3d7348d808fa9e584ccdff248f78b5";

class Key {
 public:
  explicit Key(const char* pem) {
    initialise();
    mbedtls_pk_init(&key_);
    load(pem);
  }
  ~Key() { mbedtls_pk_free(&key_); }
  Key(const Key&) = delete;
  Key& operator=(const Key&) = delete;

  void load(const char* pem) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(pem);  // text, to a C interface
    REQUIRE(mbedtls_pk_parse_key(&key_, bytes, std::strlen(pem) + 1, nullptr, 0, Random::generate,
                                 &random_) == 0);
  }
  void free() { mbedtls_pk_free(&key_); }
  mbedtls_rsa_context* rsa() { return mbedtls_pk_rsa(key_); }

  Bytes sign(mbedtls_pk_type_t type, const Bytes& digest) {
    Bytes signature(512);
    std::size_t size = 0;
    REQUIRE(mbedtls_pk_sign_ext(type, &key_, MBEDTLS_MD_SHA256, digest.data(), digest.size(),
                                signature.data(), signature.size(), &size, Random::generate,
                                &random_) == 0);
    signature.resize(size);
    return signature;
  }
  int verify(mbedtls_pk_type_t type, const Bytes& digest, const Bytes& signature) {
    const mbedtls_pk_rsassa_pss_options options{MBEDTLS_MD_SHA256, MBEDTLS_RSA_SALT_LEN_ANY};
    return mbedtls_pk_verify_ext(type, type == MBEDTLS_PK_RSASSA_PSS ? &options : nullptr, &key_,
                                 MBEDTLS_MD_SHA256, digest.data(), digest.size(), signature.data(),
                                 signature.size());
  }
  int private_operation(const Bytes& input, Bytes& output) {
    output.resize(256);
    return mbedtls_rsa_private(rsa(), Random::generate, &random_, input.data(), output.data());
  }
  int public_operation(const Bytes& input, Bytes& output) {
    output.resize(256);
    return mbedtls_rsa_public(rsa(), input.data(), output.data());
  }

 private:
  mbedtls_pk_context key_;
  Random random_;
};

Bytes digest_of(std::string_view text) {
  const Bytes bytes{text.begin(), text.end()};
  Bytes digest(32);
  REQUIRE(mbedtls_sha256(bytes.data(), bytes.size(), digest.data(), 0) == 0);
  return digest;
}

TEST_CASE("crypto, RSA: signs what openssl signs, on both arms") {
  for (const bool accelerated : {true, false}) {
    const Arm arm{accelerated};
    Key key{kKeyA};
    const Bytes digest = digest_of("causeway");
    CHECK(key.sign(MBEDTLS_PK_RSA, digest) == hex(kSignature));
    CHECK(key.verify(MBEDTLS_PK_RSA, digest, hex(kSignature)) == 0);
    CHECK(key.verify(MBEDTLS_PK_RSA, digest_of("other"), hex(kSignature)) != 0);
  }
}

TEST_CASE("crypto, RSA: what one arm signs, the other accepts") {
  Key key{kKeyA};
  Dice dice;
  for (const auto type : {MBEDTLS_PK_RSA, MBEDTLS_PK_RSASSA_PSS}) {
    for (const bool accelerated : {true, false}) {
      const Bytes digest = dice.bytes(32);
      Bytes signature;
      {
        const Arm arm{accelerated};
        signature = key.sign(type, digest);
      }
      const Arm arm{!accelerated};
      CHECK(key.verify(type, digest, signature) == 0);
      signature[dice.up_to(255)] ^= 1;
      CHECK(key.verify(type, digest, signature) != 0);
    }
  }
}

TEST_CASE("crypto, RSA: the arms agree on random numbers, small ones and the largest") {
  Key key{kKeyA};
  Dice dice;
  Bytes modulus(256);
  REQUIRE(mbedtls_rsa_export_raw(key.rsa(), modulus.data(), 256, nullptr, 0, nullptr, 0, nullptr, 0,
                                 nullptr, 0) == 0);
  std::vector<Bytes> inputs{Bytes(256), Bytes(256), modulus};
  inputs[1][255] = 1;
  inputs[2][255] -= 1;  // n is odd: n - 1
  for (int round = 0; round < 8; ++round) {
    inputs.push_back(dice.bytes(256));
    inputs.back()[0] = 0;
  }
  for (const Bytes& input : inputs) {
    Bytes ours;
    Bytes theirs;
    Bytes back;
    {
      const Arm arm{true};
      REQUIRE(key.private_operation(input, ours) == 0);
      REQUIRE(key.public_operation(ours, back) == 0);
      CHECK(back == input);
    }
    const Arm arm{false};
    REQUIRE(key.private_operation(input, theirs) == 0);
    CHECK(ours == theirs);
    REQUIRE(key.public_operation(ours, back) == 0);
    CHECK(back == input);
  }
}

TEST_CASE("crypto, RSA: a number that is not below the modulus is refused, on both arms") {
  for (const bool accelerated : {true, false}) {
    const Arm arm{accelerated};
    Key key{kKeyA};
    Bytes input(256);
    Bytes output;
    REQUIRE(mbedtls_rsa_export_raw(key.rsa(), input.data(), 256, nullptr, 0, nullptr, 0, nullptr, 0,
                                   nullptr, 0) == 0);
    CHECK(key.private_operation(input, output) != 0);
    CHECK(key.public_operation(input, output) != 0);
    input.assign(256, 0xff);
    CHECK(key.private_operation(input, output) != 0);
    CHECK(key.public_operation(input, output) != 0);
    CHECK(mbedtls_rsa_private(key.rsa(), nullptr, nullptr, input.data(), output.data()) != 0);
  }
}

TEST_CASE("crypto, RSA: another key in the same place signs with itself") {
  const Arm arm{true};
  const Bytes digest = digest_of("causeway");
  Key key{kKeyA};
  Key other{kKeyB};
  const Bytes b_signature = other.sign(MBEDTLS_PK_RSA, digest);
  for (int round = 0; round < 3; ++round) {
    CHECK(key.sign(MBEDTLS_PK_RSA, digest) == hex(kSignature));
    key.free();
    key.load(kKeyB);
    CHECK(key.sign(MBEDTLS_PK_RSA, digest) == b_signature);
    key.free();
    key.load(kKeyA);
  }
  // Without a free in between, too: the context is written over.
  mbedtls_rsa_context* const context = key.rsa();
  std::array<Bytes, 5> numbers;  // n, p, q, d, e
  numbers.fill(Bytes(256));
  REQUIRE(mbedtls_rsa_export_raw(other.rsa(), numbers[0].data(), 256, numbers[1].data(), 256,
                                 numbers[2].data(), 256, numbers[3].data(), 256, numbers[4].data(),
                                 256) == 0);
  for (auto* number : {&context->private_DP, &context->private_DQ, &context->private_QP}) {
    mbedtls_mpi_free(number);
  }
  for (auto* number : {&context->private_Vi, &context->private_Vf, &context->private_RN,
                       &context->private_RP, &context->private_RQ}) {
    mbedtls_mpi_free(number);
  }
  REQUIRE(mbedtls_rsa_import_raw(context, numbers[0].data(), 256, numbers[1].data(), 256,
                                 numbers[2].data(), 256, numbers[3].data(), 256, numbers[4].data(),
                                 256) == 0);
  REQUIRE(mbedtls_rsa_complete(context) == 0);
  CHECK(key.sign(MBEDTLS_PK_RSA, digest) == b_signature);
}

TEST_CASE("crypto, RSA: a key that has a fault never gives a wrong signature") {
  for (const bool accelerated : {true, false}) {
    const Arm arm{accelerated};
    Key key{kKeyA};
    const Bytes digest = digest_of("causeway");
    if (accelerated) CHECK(key.sign(MBEDTLS_PK_RSA, digest) == hex(kSignature));
    auto& fault = key.rsa()->private_DP;
    REQUIRE(mbedtls_mpi_add_int(&fault, &fault, 2) == 0);
    Bytes output;
    Bytes input(256, 0x11);
    input[0] = 0;
    const int failed = key.private_operation(input, output);
    if (failed == 0) {
      // The key object was made before the fault: it is right then.
      Bytes back;
      REQUIRE(key.public_operation(output, back) == 0);
      CHECK(back == input);
    }
    Key fresh{kKeyA};
    auto& early = fresh.rsa()->private_DQ;
    REQUIRE(mbedtls_mpi_add_int(&early, &early, 2) == 0);
    if (fresh.private_operation(input, output) == 0) {
      Bytes back;
      REQUIRE(fresh.public_operation(output, back) == 0);
      CHECK(back == input);
    } else {
      CHECK_FALSE(providers().rsa);
    }
  }
}

TEST_CASE("crypto, RSA: threads share a key") {
  const Arm arm{true};
  Key key{kKeyA};
  const Bytes expected = hex(kSignature);
  Bytes padded;
  REQUIRE(key.public_operation(expected, padded) == 0);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int index = 0; index < 4; ++index) {
    threads.emplace_back([&] {
      Random random;
      Bytes out(256);
      for (int round = 0; round < 20; ++round) {
        if (mbedtls_rsa_private(key.rsa(), Random::generate, &random, padded.data(), out.data()) !=
                0 ||
            out != expected) {
          ++wrong;
        }
      }
    });
  }
  for (auto& thread : threads)
    thread.join();
  CHECK(wrong == 0);
}

}  // namespace
}  // namespace causeway::gateway::crypto::test
