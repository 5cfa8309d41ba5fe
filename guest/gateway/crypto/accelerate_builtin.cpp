// SPDX-License-Identifier: Apache-2.0
#include "guest/gateway/crypto/accelerate.hpp"

namespace causeway::gateway::crypto {

void accelerate() {}

std::string accelerators() {
  return "its own primitives";
}

}  // namespace causeway::gateway::crypto
