// SPDX-License-Identifier: Apache-2.0
// The two libraries behind the replaced primitives; accelerate_builtin.cpp has the build without
// them.
#pragma once

#include <string>

namespace causeway::gateway::crypto {

// Chooses the providers (cpu.hpp) by the CPU and by known answers.
void accelerate();

// Who does what, for the log: "AES-GCM: intel-ipsec-mb 1.3.0 (AVX2); X25519, P-256:
// OpenSSL 3.0.19".
[[nodiscard]] std::string accelerators();

}  // namespace causeway::gateway::crypto
