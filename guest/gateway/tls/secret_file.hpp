// SPDX-License-Identifier: Apache-2.0
// Bytes that are wiped when they are no longer needed, and the files that they come from.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/result.hpp"
#include "guest/gateway/crypto/mbedtls.hpp"

namespace causeway::gateway::tls {

// Of a size that is fixed once it has content: a vector that grew would leave copies behind.
class Secret {
 public:
  Secret() = default;
  explicit Secret(std::size_t size) : bytes_(size) {}
  explicit Secret(std::span<const unsigned char> bytes) : bytes_(bytes.begin(), bytes.end()) {}
  Secret(Secret&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  Secret& operator=(Secret&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  Secret(const Secret&) = delete;
  Secret& operator=(const Secret&) = delete;
  ~Secret() { mbedtls_platform_zeroize(bytes_.data(), bytes_.size()); }

  [[nodiscard]] std::size_t size() const { return bytes_.size(); }
  [[nodiscard]] std::span<unsigned char> bytes() { return bytes_; }
  [[nodiscard]] std::span<const unsigned char> bytes() const { return bytes_; }

 private:
  std::vector<unsigned char> bytes_;
};

enum class FileAccess : bool { anyone, owner_only };

// The whole of a regular file of at most kMaxSecretFile bytes, with a NUL behind it that PEM
// parsers want (not counted by `size` below). With owner_only a file that its group or others may
// touch is refused. Errors are one line with the path and what to do.
inline constexpr std::size_t kMaxSecretFile = std::size_t{4} << 20;
struct FileContent {
  Secret bytes;          // the content and the NUL
  std::size_t size = 0;  // of the content
  [[nodiscard]] std::span<const unsigned char> content() const { return bytes.bytes().first(size); }
};
Result<FileContent> read_secret_file(const std::string& path, FileAccess access);

// mbedTLS's own words for an error code, for the operator.
std::string mbedtls_text(int code);

}  // namespace causeway::gateway::tls
