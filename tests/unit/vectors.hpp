// SPDX-License-Identifier: Apache-2.0
// Reads proto/vectors/*.json, which tests/integration/wire_codec.py is held against as well.
#pragma once

#include <cstddef>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace causeway::test {

using Json = nlohmann::json;
using ByteVector = std::vector<std::byte>;

// One section of a file, by value: a range-for may run over the call itself.
inline Json load_vectors(const std::string& name, const char* section = "cases") {
  std::ifstream file(std::string(CAUSEWAY_SOURCE_DIR "/proto/vectors/") + name + ".json");
  if (!file) throw std::runtime_error("no vectors named " + name);
  return Json::parse(file).at(section);
}

inline ByteVector unhex(std::string_view hex) {
  if (hex.size() % 2 != 0) throw std::runtime_error("odd number of hex digits");
  ByteVector bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}

inline std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    text += "0123456789abcdef"[std::to_integer<unsigned>(byte >> 4)];
    text += "0123456789abcdef"[std::to_integer<unsigned>(byte & std::byte{15})];
  }
  return text;
}

// A byte string of the vectors: a list of hex digits and {"fill": "hh", "count": n}.
inline ByteVector join(const Json& parts) {
  ByteVector bytes;
  for (const Json& part : parts) {
    if (part.is_string()) {
      const ByteVector piece = unhex(part.get<std::string>());
      bytes.insert(bytes.end(), piece.begin(), piece.end());
    } else {
      bytes.resize(bytes.size() + part.at("count").get<std::size_t>(),
                   unhex(part.at("fill").get<std::string>()).at(0));
    }
  }
  return bytes;
}

inline ByteVector bytes_of(std::string_view text) {
  ByteVector bytes;
  for (const char character : text) {
    bytes.push_back(static_cast<std::byte>(character));
  }
  return bytes;
}

inline ByteVector random_bytes(std::mt19937& random, std::size_t size) {
  ByteVector bytes(size);
  for (std::byte& byte : bytes) {
    byte = static_cast<std::byte>(random() & 0xff);
  }
  return bytes;
}

// Evenly from lowest to highest, both included.
template <class T>
T pick(std::mt19937& random, T lowest, T highest) {
  return std::uniform_int_distribution<T>(lowest, highest)(random);
}

}  // namespace causeway::test
