// SPDX-License-Identifier: Apache-2.0
// The hybrid-vsock handshake, sans I/O: how a process on the host asks a VMM's unix socket for a
// port in the guest. The host says "CONNECT <port>\n"; the VMM answers "OK <host port>\n" and the
// stream begins, or closes. Source: Firecracker's public description of its vsock device, which
// Cloud Hypervisor and Kata follow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace causeway::proto {

std::string hvsock_request(std::uint32_t port);

// Takes the answer one byte at a time, since what follows the line belongs to the stream.
class HvsockReply {
 public:
  enum class State : std::uint8_t { need_more, accepted, malformed };
  State add(std::byte next);

 private:
  static constexpr std::size_t kMaxLine = 32;  // "OK 4294967295\n" has 14
  std::string line_;
};

}  // namespace causeway::proto
