// SPDX-License-Identifier: Apache-2.0
#include "guest/gateway/crypto/ipsec_mb.hpp"

#include <array>

#include "guest/gateway/crypto/cpu.hpp"

namespace causeway::gateway::crypto {
namespace {

std::array<GcmFunctions, 3> functions;
ChachaFunctions chacha;
IMB_ARCH arch = IMB_ARCH_NONE;

std::size_t index(unsigned int key_bits) {
  return key_bits == 128 ? 0 : key_bits == 192 ? 1 : 2;
}

const char* arch_name() {
  switch (arch) {
    case IMB_ARCH_SSE:
      return "SSE";
    case IMB_ARCH_AVX:
      return "AVX";
    case IMB_ARCH_AVX2:
      return "AVX2";
    case IMB_ARCH_AVX512:
      return "AVX-512";
    default:
      return "other";
  }
}

}  // namespace

bool load_ipsec_mb() {
  // Without AES instructions the library emulates them with tables, in time that depends on the
  // data.
  if (!cpu_has_aes()) return false;
  IMB_MGR* manager = alloc_mb_mgr(0);
  if (manager == nullptr) return false;
  init_mb_mgr_auto(manager, &arch);
  const bool usable = imb_get_errno(manager) == 0 && arch >= IMB_ARCH_SSE;
  if (usable) {
    functions[0] = {manager->gcm128_enc, manager->gcm128_dec, manager->gcm128_pre};
    functions[1] = {manager->gcm192_enc, manager->gcm192_dec, manager->gcm192_pre};
    functions[2] = {manager->gcm256_enc, manager->gcm256_dec, manager->gcm256_pre};
    chacha = {manager->chacha20_poly1305_init, manager->chacha20_poly1305_enc_update,
              manager->chacha20_poly1305_dec_update, manager->chacha20_poly1305_finalize};
  }
  free_mb_mgr(manager);  // the functions are the library's, the manager only names them
  return usable;
}

const GcmFunctions& gcm_functions(unsigned int key_bits) {
  return functions.at(index(key_bits));
}

const ChachaFunctions& chacha_functions() {
  return chacha;
}

std::string ipsec_mb_name() {
  return std::string{"intel-ipsec-mb "} + imb_get_version_str() + " (" + arch_name() + ")";
}

}  // namespace causeway::gateway::crypto
