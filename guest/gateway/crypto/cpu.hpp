// SPDX-License-Identifier: Apache-2.0
// Which primitive is done by whom, decided once by crypto::initialise() and only read afterwards.
//
// Before that, and for whatever the CPU lacks or a known-answer test refuses, mbedTLS's own code
// runs. Tests switch providers to compare them (not while other threads use mbedTLS).
#pragma once

#include <string>

namespace causeway::gateway::crypto {

struct Providers {
  bool gcm = false;  // intel-ipsec-mb
  bool chacha = false;
  bool ecp = false;  // libcrypto, as those below: k * P on P-256, and X25519
  bool ecdsa = false;
  bool rsa = false;
  bool sha2 = false;
};

// True when the CPU multiplies and encrypts in hardware what AES-GCM needs: then mbedTLS's own
// AES-GCM uses it as well.
[[nodiscard]] bool cpu_has_aes();

[[nodiscard]] const Providers& providers();

namespace detail {
void set_providers(const Providers& chosen);
}

}  // namespace causeway::gateway::crypto
