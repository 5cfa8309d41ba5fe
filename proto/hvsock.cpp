// SPDX-License-Identifier: Apache-2.0
#include "proto/hvsock.hpp"

#include <algorithm>

namespace causeway::proto {

std::string hvsock_request(std::uint32_t port) {
  return "CONNECT " + std::to_string(port) + "\n";
}

HvsockReply::State HvsockReply::add(std::byte next) {
  const auto letter = static_cast<char>(next);
  if (letter != '\n') {
    line_ += letter;
    return line_.size() > kMaxLine ? State::malformed : State::need_more;
  }
  const bool digits = line_.size() > 3 && std::all_of(line_.begin() + 3, line_.end(),
                                                      [](char c) { return c >= '0' && c <= '9'; });
  return line_.compare(0, 3, "OK ") == 0 && digits ? State::accepted : State::malformed;
}

}  // namespace causeway::proto
