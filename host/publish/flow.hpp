// SPDX-License-Identifier: Apache-2.0
// Theory of operation: one direction of a relayed connection, from one socket to another.
//
// advance() moves bytes until it would have to wait, and says for what; whoever drives it (a
// coroutine, a test with poll) waits and calls again. The system call comes first, so a socket that
// has more costs no wait. The flow never holds more than one buffer or one pipe, and gives it back
// as soon as the source is dry.
//
// The first kSpliceAfter bytes are copied through a buffer: that is quicker for short exchanges.
// Then they go by splice(2) through a pipe, without being copied on tcp and unix sockets. vsock has
// no splice of its own, the kernel would copy through fresh pages: there a large buffer stays, and
// no write is larger than `max_write` (wire.md, "Writing to vsock").
//
// The end of the source is passed on as a half-close once everything before it was written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "host/publish/relay_pool.hpp"

namespace causeway::host {

struct FlowOptions {
  std::size_t max_write = RelayPool::kLargeBuffer;  // bytes
  bool splice = true;
};

class Flow {
 public:
  enum class Step : std::uint8_t {
    wait_read,   // the source is dry
    wait_write,  // the sink is full
    yield,       // more could be done, but others have a turn first
    finished,    // the source ended, and the sink was told
    broken,      // the sink takes no more (EPIPE); its own bytes may still be on their way
    failed,      // reset, or another error
  };

  static constexpr std::uint64_t kSpliceAfter = std::uint64_t{64} * 1024;  // bytes
  static constexpr std::size_t kTurn = std::size_t{1} << 20;               // bytes before a yield

  // Both are non-blocking stream sockets; the caller owns them. Bytes written are added to
  // `written`. splice() has no MSG_NOSIGNAL: SIGPIPE has to be blocked or ignored.
  Flow(RelayPool& pool, int from, int to, FlowOptions options, std::uint64_t& written);
  ~Flow();
  Flow(const Flow&) = delete;
  Flow& operator=(const Flow&) = delete;

  // Puts bytes of our own in front, before the first advance(): at most RelayPool::kSmallBuffer.
  // They are not counted.
  void put_first(std::span<const std::byte> bytes);

  Step advance();

  // Grows with every byte read or written: a flow whose progress stands still is idle.
  [[nodiscard]] std::uint64_t progress() const { return progress_; }

 private:
  ssize_t read_some();
  ssize_t write_some();
  void took(std::size_t count);
  void wrote(std::size_t count);
  void give_back();

  RelayPool& pool_;
  const int from_;
  const int to_;
  FlowOptions options_;
  std::uint64_t& written_;
  std::uint64_t progress_ = 0;
  std::uint64_t received_ = 0;
  std::size_t uncounted_ = 0;  // of put_first(), not written yet
  RelayBuffer buffer_;
  std::size_t at_ = 0;  // of the buffer's first byte that was not written
  std::optional<RelayPipe> pipe_;
  std::size_t held_ = 0;  // bytes in the buffer or in the pipe
  bool ended_ = false;
};

}  // namespace causeway::host
