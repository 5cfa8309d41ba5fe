// SPDX-License-Identifier: Apache-2.0
// What the two ends of a UDP measurement share. Beside the datagrams runs a TCP connection to the
// same address and port, one line a message:
//   sender: "trial ID SIZE"   sink: "ready"
//   sender: "end ID COUNT"    sink: "got RECEIVED REORDERED"
// Each datagram opens with u32 trial, u32 sequence, in host order: both ends are one machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/bench/pair/sockets.hpp"

namespace causeway::bench {

struct Stamp {
  std::uint32_t trial = 0;
  std::uint32_t sequence = 0;
};

inline constexpr std::size_t kMaxDatagram = 1472;
inline constexpr std::size_t kMaxTrialPackets = 8'000'000;

class LineChannel {
 public:
  explicit LineChannel(Fd fd) : fd_(std::move(fd)) {}
  [[nodiscard]] const Fd& fd() const { return fd_; }
  void write_line(const std::string& line);
  // Waits for a line; false at the end of the stream.
  bool read_line(std::string& line);

 private:
  Fd fd_;
  std::string pending_;
};

}  // namespace causeway::bench
