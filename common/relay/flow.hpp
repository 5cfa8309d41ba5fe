// SPDX-License-Identifier: Apache-2.0
// Theory of operation: one direction of a relayed connection, from one socket to another.
//
// advance() moves bytes until it would have to wait, and says for what; whoever drives it (an event
// loop, a coroutine, a test with poll) waits and calls again. The system call comes first, so a
// socket that has more costs no wait. The flow never holds more than one buffer or one pipe, and
// gives it back as soon as the source is dry.
//
// Until the connection's gate opens, bytes are copied through a buffer, which is quicker for short
// exchanges. Past it they go by splice(2) through a pipe, without being copied on tcp and unix
// sockets, but only while they come in bulk: as long as what arrives at once fits into a small
// buffer, copying stays cheaper than the third system call that splicing needs to find the source
// dry. vsock has no splice of its own, the kernel would copy through fresh pages: there a large
// buffer stays, and no write is larger than `max_write` (wire.md, "Writing to vsock").
//
// A read from TCP that fills less than was asked for has emptied the socket, and a write that took
// less has filled it (epoll(7), "Questions and answers", 9): the next call, which would only say
// EAGAIN, is left out. Not so once the end was seen coming (note_end()): then reading goes on to
// it.
//
// The end of the source is passed on as a half-close once everything before it was written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "common/relay/relay_pool.hpp"

namespace causeway::relay {

// When a connection's flows begin to splice: after so many bytes in both directions together, or
// from a point in time on, whichever comes first. Tested only while nothing is buffered. Once open
// it stays open.
struct Gate {
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};
  std::uint64_t after = kNever;        // bytes
  std::uint64_t at = kNever;           // as *now counts
  const std::uint64_t* now = nullptr;  // the driver's clock; absent: no gate by time
  std::uint64_t moved = 0;             // bytes read so far
  bool open = false;

  bool test() {
    if (!open) open = moved >= after || (now != nullptr && *now >= at);
    return open;
  }
};

struct FlowOptions {
  std::size_t max_write = RelayPool::kLargeBuffer;  // bytes
  bool splice = true;
  // The source, the sink is TCP: what a short count means is known.
  bool short_read_is_dry = false;
  bool short_write_is_full = false;
};

class Flow {
 public:
  enum class Step : std::uint8_t {
    wait_read,      // the source is dry
    wait_write,     // the sink is full
    yield,          // more could be done, but others have a turn first
    finished,       // the source ended, and the sink was told
    broken,         // the sink takes no more (EPIPE): its end came before, its bytes may follow
    sink_reset,     // the sink was reset (ECONNRESET): what it sent before may still be read, its
                    // end is none (see cut())
    source_failed,  // reset, or another error of the source
    sink_failed,    // an error of the sink that is none of the above
  };

  static constexpr std::size_t kTurn = std::size_t{1} << 20;  // bytes before a yield

  // Both are non-blocking stream sockets; the caller owns them, and the gate, which the
  // connection's two flows share. splice() has no MSG_NOSIGNAL: SIGPIPE has to be blocked or
  // ignored.
  Flow(RelayPool& pool, Gate& gate, int from, int to, FlowOptions options);
  ~Flow();
  Flow(const Flow&) = delete;
  Flow& operator=(const Flow&) = delete;

  // Bytes that go first, before the first advance(): `size` of them at `at` in `buffer`, a buffer
  // of the pool or of make_buffer(). The first `uncounted` are ours, not the source's. `dry`: the
  // source had no more, and no event has come for it since.
  void put_first(RelayBuffer buffer, std::size_t at, std::size_t size, std::size_t uncounted,
                 bool dry);
  // The same for bytes to be copied, none of them the source's: RelayPool::kSmallBuffer at most.
  void put_first(std::span<const std::byte> bytes);

  Step advance();

  // The driver was told that the source's end is there or on its way (EPOLLRDHUP).
  void note_end() { end_near_ = true; }
  // The owner will close the sink as soon as the source ends: that says it too, without a
  // half-close.
  void close_follows() { close_follows_ = true; }
  // The source is known to be reset, by a write to it: that took the socket's error, so that
  // reading shows an end where there is none. It then counts as source_failed.
  void cut() { cut_ = true; }
  [[nodiscard]] bool ended() const { return ended_; }  // the source's end was read

  // Grows with every byte read or written: a flow whose progress stands still is idle.
  [[nodiscard]] std::uint64_t progress() const { return progress_; }
  // The source's bytes that were written since the last call.
  std::uint64_t take_written() { return std::exchange(written_, 0); }

 private:
  enum class Read : std::uint8_t { some, dry, end, failed };
  Read read_some();
  [[nodiscard]] ssize_t write_some();
  bool wrote(std::size_t count);
  void give_back();

  RelayPool& pool_;
  Gate& gate_;
  const int from_;
  const int to_;
  FlowOptions options_;
  bool ended_ = false;
  bool end_near_ = false;
  bool cut_ = false;
  bool close_follows_ = false;
  bool starts_dry_ = false;
  bool dry_ = false;   // the last read emptied the source
  bool bulk_ = false;  // more than a small buffer came at once
  std::uint64_t progress_ = 0;
  std::uint64_t written_ = 0;
  std::size_t uncounted_ = 0;  // of put_first(), not written yet
  std::size_t burst_ = 0;      // bytes since the source was dry
  RelayBuffer buffer_;
  std::size_t at_ = 0;  // of the buffer's first byte that was not written
  std::optional<RelayPipe> pipe_;
  std::size_t held_ = 0;  // bytes in the buffer or in the pipe
};

}  // namespace causeway::relay
