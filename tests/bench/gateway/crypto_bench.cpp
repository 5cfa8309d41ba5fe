// SPDX-License-Identifier: Apache-2.0
// Theory of operation: what the primitives of TLS cost through mbedTLS's interface, with the
// providers that the CPU allows ("fast") and with mbedTLS's own code ("own"); a build with
// CAUSEWAY_CRYPTO=builtin has the latter only. "handshake" is both sides of a whole TLS handshake
// over memory, so about twice a server's share.
#include <benchmark/benchmark.h>
#include <mbedtls/cipher.h>
#include <mbedtls/ecdh.h>
#include <mbedtls/ecdsa.h>
#include <mbedtls/gcm.h>
#include <mbedtls/sha256.h>
#include <mbedtls/sha512.h>
#include <psa/crypto.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "guest/gateway/crypto/cpu.hpp"
#include "guest/gateway/crypto/crypto.hpp"
#include "tests/bench/gateway/crypto_keys.hpp"

namespace causeway::gateway::crypto {
namespace {

void must(int result, const char* what) {
  if (result == 0) return;
  std::fprintf(stderr, "causeway-crypto-bench: %s: -0x%x\n", what, static_cast<unsigned>(-result));
  std::exit(1);
}

// The chosen arm while a benchmark runs.
class Arm {
 public:
  explicit Arm(bool fast) : before_(providers()) {
    if (!fast) detail::set_providers({});
  }
  ~Arm() { detail::set_providers(before_); }
  Arm(const Arm&) = delete;
  Arm& operator=(const Arm&) = delete;

 private:
  Providers before_;
};

Random& random_source() {
  static Random random;
  return random;
}

// Records as TLS seals and opens them, in place. `open` pays for sealing's copy as well.
void aead(benchmark::State& state, bool fast, mbedtls_cipher_type_t type, bool open) {
  const Arm arm{fast};
  const auto size = static_cast<std::size_t>(state.range(0));
  mbedtls_cipher_context_t cipher;
  mbedtls_cipher_init(&cipher);
  must(mbedtls_cipher_setup(&cipher, mbedtls_cipher_info_from_type(type)), "cipher");
  const std::array<unsigned char, 32> key{1};
  const std::array<unsigned char, 12> nonce{2};
  const std::array<unsigned char, 13> add{3};
  const int bits = type == MBEDTLS_CIPHER_AES_128_GCM ? 128 : 256;
  must(mbedtls_cipher_setkey(&cipher, key.data(), bits, MBEDTLS_ENCRYPT), "key");
  std::vector<unsigned char> record(size + 16);
  std::size_t length = 0;
  const auto seal = [&] {
    must(mbedtls_cipher_auth_encrypt_ext(&cipher, nonce.data(), 12, add.data(), 13, record.data(),
                                         size, record.data(), size + 16, &length, 16),
         "seal");
  };
  std::vector<unsigned char> sealed;
  if (open) {
    seal();
    sealed = record;
    must(mbedtls_cipher_setkey(&cipher, key.data(), bits, MBEDTLS_DECRYPT), "key");
  }
  for (auto _ : state) {
    if (open) {
      std::memcpy(record.data(), sealed.data(), sealed.size());
      must(mbedtls_cipher_auth_decrypt_ext(&cipher, nonce.data(), 12, add.data(), 13, record.data(),
                                           size + 16, record.data(), size, &length, 16),
           "open");
    } else {
      seal();
    }
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
  mbedtls_cipher_free(&cipher);
}

void gcm_setkey(benchmark::State& state, bool fast) {
  const Arm arm{fast};
  const std::array<unsigned char, 16> key{1};
  for (auto _ : state) {
    mbedtls_gcm_context context;
    mbedtls_gcm_init(&context);
    must(mbedtls_gcm_setkey(&context, MBEDTLS_CIPHER_ID_AES, key.data(), 128), "key");
    mbedtls_gcm_free(&context);
  }
}

void signature(benchmark::State& state, bool fast, mbedtls_pk_type_t type, const char* pem,
               bool verify) {
  const Arm arm{fast};
  mbedtls_pk_context key;
  mbedtls_pk_init(&key);
  must(mbedtls_pk_parse_key(&key, reinterpret_cast<const unsigned char*>(pem), std::strlen(pem) + 1,
                            nullptr, 0, Random::generate, &random_source()),
       "key");
  const std::array<unsigned char, 32> digest{4};
  std::array<unsigned char, 512> out;
  std::size_t size = 0;
  const auto sign = [&] {
    must(mbedtls_pk_sign_ext(type, &key, MBEDTLS_MD_SHA256, digest.data(), digest.size(),
                             out.data(), out.size(), &size, Random::generate, &random_source()),
         "sign");
  };
  sign();
  const mbedtls_pk_rsassa_pss_options options{MBEDTLS_MD_SHA256, MBEDTLS_RSA_SALT_LEN_ANY};
  for (auto _ : state) {
    if (verify) {
      must(mbedtls_pk_verify_ext(type, type == MBEDTLS_PK_RSASSA_PSS ? &options : nullptr, &key,
                                 MBEDTLS_MD_SHA256, digest.data(), digest.size(), out.data(), size),
           "verify");
    } else {
      sign();
    }
  }
  state.SetItemsProcessed(state.iterations());
  mbedtls_pk_free(&key);
}

// A fresh key and an agreement, as TLS 1.2 does it.
void ecdh(benchmark::State& state, bool fast, mbedtls_ecp_group_id id) {
  const Arm arm{fast};
  mbedtls_ecp_group group;
  mbedtls_ecp_point own;
  mbedtls_ecp_point peer;
  mbedtls_mpi secret;
  mbedtls_mpi shared;
  mbedtls_ecp_group_init(&group);
  mbedtls_ecp_point_init(&own);
  mbedtls_ecp_point_init(&peer);
  mbedtls_mpi_init(&secret);
  mbedtls_mpi_init(&shared);
  must(mbedtls_ecp_group_load(&group, id), "curve");
  must(mbedtls_ecp_gen_keypair(&group, &secret, &peer, Random::generate, &random_source()), "key");
  for (auto _ : state) {
    must(mbedtls_ecdh_gen_public(&group, &secret, &own, Random::generate, &random_source()), "key");
    must(mbedtls_ecdh_compute_shared(&group, &shared, &peer, &secret, Random::generate,
                                     &random_source()),
         "agree");
  }
  state.SetItemsProcessed(state.iterations());
  mbedtls_mpi_free(&shared);
  mbedtls_mpi_free(&secret);
  mbedtls_ecp_point_free(&peer);
  mbedtls_ecp_point_free(&own);
  mbedtls_ecp_group_free(&group);
}

// The same by PSA, as TLS 1.3 does it.
void ecdh_psa(benchmark::State& state, bool fast, psa_ecc_family_t family, std::size_t bits) {
  const Arm arm{fast};
  psa_key_attributes_t attributes = PSA_KEY_ATTRIBUTES_INIT;
  psa_set_key_usage_flags(&attributes, PSA_KEY_USAGE_DERIVE);
  psa_set_key_algorithm(&attributes, PSA_ALG_ECDH);
  psa_set_key_type(&attributes, PSA_KEY_TYPE_ECC_KEY_PAIR(family));
  psa_set_key_bits(&attributes, bits);
  std::array<unsigned char, 80> own;
  std::array<unsigned char, 80> shared;
  std::size_t size = 0;
  std::size_t shared_size = 0;
  for (auto _ : state) {
    psa_key_id_t key = 0;
    must(psa_generate_key(&attributes, &key), "key");
    must(psa_export_public_key(key, own.data(), own.size(), &size), "export");
    must(psa_raw_key_agreement(PSA_ALG_ECDH, key, own.data(), size, shared.data(), shared.size(),
                               &shared_size),
         "agree");
    must(psa_destroy_key(key), "destroy");
  }
  state.SetItemsProcessed(state.iterations());
}

template <int (*kDigest)(const unsigned char*, std::size_t, unsigned char*, int)>
void digest(benchmark::State& state) {
  const auto size = static_cast<std::size_t>(state.range(0));
  const std::vector<unsigned char> text(size);
  std::array<unsigned char, 64> out;
  for (auto _ : state) {
    must(kDigest(text.data(), size, out.data(), 0), "digest");
    benchmark::DoNotOptimize(out);
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(digest<mbedtls_sha256>)->Arg(64)->Arg(1024)->Arg(16'384);
BENCHMARK(digest<mbedtls_sha512>)->Arg(64)->Arg(1024)->Arg(16'384);

void random_bytes(benchmark::State& state) {
  std::vector<unsigned char> out(static_cast<std::size_t>(state.range(0)));
  for (auto _ : state) {
    must(Random::generate(&random_source(), out.data(), out.size()), "random");
  }
}
BENCHMARK(random_bytes)->Arg(32)->Arg(1024);

// ---- handshakes ----

using Pipe = std::deque<unsigned char>;

struct Side {
  mbedtls_ssl_context ssl;
  Pipe* in = nullptr;
  Pipe* out = nullptr;
};

int send_bytes(void* context, const unsigned char* bytes, std::size_t size) {
  auto& side = *static_cast<Side*>(context);
  side.out->insert(side.out->end(), bytes, bytes + size);
  return static_cast<int>(size);
}

int receive_bytes(void* context, unsigned char* bytes, std::size_t size) {
  auto& side = *static_cast<Side*>(context);
  if (side.in->empty()) return MBEDTLS_ERR_SSL_WANT_READ;
  const std::size_t part = std::min(size, side.in->size());
  std::copy_n(side.in->begin(), part, bytes);
  side.in->erase(side.in->begin(), side.in->begin() + static_cast<std::ptrdiff_t>(part));
  return static_cast<int>(part);
}

void handshake(benchmark::State& state, bool fast, mbedtls_ssl_protocol_version version,
               const char* key_pem, const char* certificate_pem) {
  const Arm arm{fast};
  mbedtls_ssl_config server;
  mbedtls_ssl_config client;
  mbedtls_x509_crt certificate;
  mbedtls_pk_context key;
  mbedtls_ssl_config_init(&server);
  mbedtls_ssl_config_init(&client);
  mbedtls_x509_crt_init(&certificate);
  mbedtls_pk_init(&key);
  const auto pem = [](const char* text) { return reinterpret_cast<const unsigned char*>(text); };
  must(mbedtls_x509_crt_parse(&certificate, pem(certificate_pem), std::strlen(certificate_pem) + 1),
       "certificate");
  must(mbedtls_pk_parse_key(&key, pem(key_pem), std::strlen(key_pem) + 1, nullptr, 0,
                            Random::generate, &random_source()),
       "key");
  for (auto* config : {&server, &client}) {
    must(mbedtls_ssl_config_defaults(
             config, config == &server ? MBEDTLS_SSL_IS_SERVER : MBEDTLS_SSL_IS_CLIENT,
             MBEDTLS_SSL_TRANSPORT_STREAM, MBEDTLS_SSL_PRESET_DEFAULT),
         "defaults");
    mbedtls_ssl_conf_rng(config, Random::generate, &random_source());
    mbedtls_ssl_conf_min_tls_version(config, version);
    mbedtls_ssl_conf_max_tls_version(config, version);
  }
  must(mbedtls_ssl_conf_own_cert(&server, &certificate, &key), "own certificate");
  mbedtls_ssl_conf_authmode(&client, MBEDTLS_SSL_VERIFY_NONE);
  for (auto _ : state) {
    Pipe to_server;
    Pipe to_client;
    std::array<Side, 2> sides{{{{}, &to_server, &to_client}, {{}, &to_client, &to_server}}};
    for (std::size_t at = 0; at < 2; ++at) {
      mbedtls_ssl_init(&sides[at].ssl);
      must(mbedtls_ssl_setup(&sides[at].ssl, at == 0 ? &server : &client), "setup");
      mbedtls_ssl_set_bio(&sides[at].ssl, &sides[at], send_bytes, receive_bytes, nullptr);
    }
    must(mbedtls_ssl_set_hostname(&sides[1].ssl, "bench.example"), "name");
    while (mbedtls_ssl_is_handshake_over(&sides[0].ssl) == 0 ||
           mbedtls_ssl_is_handshake_over(&sides[1].ssl) == 0) {
      for (auto& side : sides) {
        const int result = mbedtls_ssl_handshake(&side.ssl);
        if (result != 0 && result != MBEDTLS_ERR_SSL_WANT_READ) must(result, "handshake");
      }
    }
    for (auto& side : sides)
      mbedtls_ssl_free(&side.ssl);
  }
  state.SetItemsProcessed(state.iterations());
  mbedtls_pk_free(&key);
  mbedtls_x509_crt_free(&certificate);
  mbedtls_ssl_config_free(&client);
  mbedtls_ssl_config_free(&server);
}

template <class Function, class... Arguments>
benchmark::internal::Benchmark* add(const std::string& name, bool fast, Function function,
                                    Arguments... arguments) {
  return benchmark::RegisterBenchmark(
      (name + (fast ? "/fast" : "/own")).c_str(),
      [=](benchmark::State& state) { function(state, fast, arguments...); });
}

void register_all(bool fast) {
  for (const bool open : {false, true}) {
    const char* what = open ? "open" : "seal";
    const std::array<std::pair<const char*, mbedtls_cipher_type_t>, 3> ciphers{
        {{"aes_128_gcm/", MBEDTLS_CIPHER_AES_128_GCM},
         {"aes_256_gcm/", MBEDTLS_CIPHER_AES_256_GCM},
         {"chacha20_poly1305/", MBEDTLS_CIPHER_CHACHA20_POLY1305}}};
    for (const auto& [name, type] : ciphers) {
      if (!fast && open) continue;
      add(std::string{name} + what, fast, aead, type, open)
          ->Arg(256)
          ->Arg(1024)
          ->Arg(4096)
          ->Arg(16'384);
    }
  }
  add("aes_128_gcm/setkey", fast, gcm_setkey);
  for (const bool verify : {false, true}) {
    const std::string what = verify ? "verify" : "sign";
    add("ecdsa_p256/" + what, fast, signature, MBEDTLS_PK_ECDSA, bench::kEcKey, verify);
    add("ecdsa_p384/" + what, fast, signature, MBEDTLS_PK_ECDSA, bench::kEc384Key, verify);
    add("rsa_2048_pss/" + what, fast, signature, MBEDTLS_PK_RSASSA_PSS, bench::kRsaKey, verify);
  }
  add("ecdh_x25519", fast, ecdh, MBEDTLS_ECP_DP_CURVE25519);
  add("ecdh_p256", fast, ecdh, MBEDTLS_ECP_DP_SECP256R1);
  add("ecdh_psa_x25519", fast, ecdh_psa, PSA_ECC_FAMILY_MONTGOMERY, std::size_t{255});
  add("ecdh_psa_p256", fast, ecdh_psa, PSA_ECC_FAMILY_SECP_R1, std::size_t{256});
  for (const auto version : {MBEDTLS_SSL_VERSION_TLS1_2, MBEDTLS_SSL_VERSION_TLS1_3}) {
    const std::string name = version == MBEDTLS_SSL_VERSION_TLS1_2 ? "1.2" : "1.3";
    add("handshake_ecdsa/" + name, fast, handshake, version, bench::kEcKey, bench::kEcCertificate);
    add("handshake_rsa/" + name, fast, handshake, version, bench::kRsaKey, bench::kRsaCertificate);
  }
}

}  // namespace
}  // namespace causeway::gateway::crypto

int main(int argc, char** argv) {
  namespace crypto = causeway::gateway::crypto;
  crypto::initialise();
  benchmark::AddCustomContext("crypto", crypto::description());
#if defined(CAUSEWAY_CRYPTO_ACCELERATED)
  crypto::register_all(true);
#endif
  crypto::register_all(false);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
