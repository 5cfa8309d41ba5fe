// SPDX-License-Identifier: Apache-2.0
// What the tests of the primitives share.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <random>
#include <string_view>
#include <vector>

#include "guest/gateway/crypto/cpu.hpp"
#include "guest/gateway/crypto/crypto.hpp"

namespace causeway::gateway::crypto::test {

using Bytes = std::vector<unsigned char>;

inline Bytes hex(std::string_view text) {
  Bytes bytes;
  const auto digit = [](char c) { return c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10; };
  for (std::size_t at = 0; at + 1 < text.size(); at += 2) {
    bytes.push_back(static_cast<unsigned char>(digit(text[at]) << 4 | digit(text[at + 1])));
  }
  return bytes;
}

// Repeatable, so that a failure can be looked at again.
class Dice {
 public:
  std::size_t up_to(std::size_t most) {
    return std::uniform_int_distribution<std::size_t>{0, most}(engine_);
  }
  Bytes bytes(std::size_t size) {
    Bytes made(size);
    for (auto& byte : made)
      byte = static_cast<unsigned char>(engine_());
    return made;
  }

 private:
  std::mt19937 engine_{20'250'117};
};

// The providers that initialise() chose, or none of them (mbedTLS's own code), while it lives.
class Arm {
 public:
  explicit Arm(bool accelerated) : before_(chosen()) {
    if (!accelerated) detail::set_providers({});
  }
  ~Arm() { detail::set_providers(before_); }
  Arm(const Arm&) = delete;
  Arm& operator=(const Arm&) = delete;

 private:
  static const Providers& chosen() {
    initialise();
    return providers();
  }
  Providers before_;
};

}  // namespace causeway::gateway::crypto::test
