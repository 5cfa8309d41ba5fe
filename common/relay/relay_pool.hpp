// SPDX-License-Identifier: Apache-2.0
// What the relays of one thread share: buffers and pipes.
//
// A flow holds one only while it has bytes in it, so what is in use follows the connections whose
// reader is slow, and idle connections hold nothing. Pipes and large buffers are bounded in number,
// whatever clients and guests do; a flow that gets none does with a small buffer. The pool keeps
// some of what comes back, so that in the steady state nothing is allocated and no pipe is made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "common/os/unique_fd.hpp"

namespace causeway::relay {

struct RelayBuffer {
  std::unique_ptr<std::byte[]> bytes;
  std::size_t size = 0;
  [[nodiscard]] bool valid() const { return size != 0; }
};

struct RelayPipe {
  UniqueFd reader;
  UniqueFd writer;
  std::size_t capacity = 0;  // bytes
};

class RelayPool {
 public:
  static constexpr std::size_t kSmallBuffer = std::size_t{16} * 1024;
  static constexpr std::size_t kLargeBuffer = std::size_t{256} * 1024;
  static constexpr std::size_t kMaxLargeBuffers = 64;  // 16 MiB at kLargeBuffer
  static constexpr std::size_t kMaxPipes = 128;        // in use and idle
  static constexpr std::size_t kIdlePipes = 64;
  static constexpr std::size_t kPipeSize = std::size_t{512} * 1024;
  static constexpr std::size_t kSmallestPipe = std::size_t{64} * 1024;
  static constexpr std::size_t kPage = 4096;  // a pipe of N bytes has N / kPage slots

  // `large_buffer`: bytes of a large buffer, more than kSmallBuffer.
  explicit RelayPool(std::size_t large_buffer = kLargeBuffer) : large_buffer_(large_buffer) {}

  // A large one only if there is one left.
  RelayBuffer take_buffer(bool large);
  // One of a size of its own, not kept when it comes back.
  static RelayBuffer make_buffer(std::size_t size);
  void give_back(RelayBuffer buffer);

  // None: there are enough already, or the system grants none of a useful size.
  std::optional<RelayPipe> take_pipe();
  // Keeps the pipe only if it is empty.
  void give_back(RelayPipe pipe, bool empty);

  [[nodiscard]] std::size_t large_buffer() const { return large_buffer_; }
  // Of large buffers to come; those that are out keep their size and are not kept afterwards.
  void set_large_buffer(std::size_t size);
  [[nodiscard]] std::size_t pipes() const { return pipes_; }
  [[nodiscard]] std::size_t idle_pipes() const { return idle_pipes_.size(); }
  [[nodiscard]] std::uint64_t pipes_made() const { return pipes_made_; }  // since the start

 private:
  static constexpr std::size_t kIdleSmallBuffers = 64;
  static constexpr std::size_t kIdleLargeBuffers = 8;
  static constexpr unsigned kRefusals = 4096;
  std::size_t large_buffer_;
  std::vector<RelayBuffer> small_;
  std::vector<RelayBuffer> large_;
  std::size_t large_total_ = 0;
  std::vector<RelayPipe> idle_pipes_;
  std::size_t pipes_ = 0;
  std::uint64_t pipes_made_ = 0;
  // How many more calls go without a pipe, since the system refused one: asking costs five calls.
  unsigned not_before_ = 0;
};

}  // namespace causeway::relay
