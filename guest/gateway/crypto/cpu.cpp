// SPDX-License-Identifier: Apache-2.0
#include "guest/gateway/crypto/cpu.hpp"

namespace causeway::gateway::crypto {
namespace {

Providers chosen_providers;

}  // namespace

bool cpu_has_aes() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("aes") != 0 && __builtin_cpu_supports("pclmul") != 0;
#else
  return false;
#endif
}

const Providers& providers() {
  return chosen_providers;
}

namespace detail {
void set_providers(const Providers& chosen) {
  chosen_providers = chosen;
}
}  // namespace detail

}  // namespace causeway::gateway::crypto
