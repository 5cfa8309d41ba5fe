// SPDX-License-Identifier: Apache-2.0
#include "common/relay/relay_pool.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <utility>

namespace causeway::relay {

RelayBuffer RelayPool::make_buffer(std::size_t size) {
  // Uninitialised on purpose: only what was received is ever read from it.
  RelayBuffer buffer;
  buffer.bytes = std::make_unique_for_overwrite<std::byte[]>(size);
  buffer.size = size;
  return buffer;
}

RelayBuffer RelayPool::take_buffer(bool large) {
  const bool from_large = large && (!large_.empty() || large_total_ < kMaxLargeBuffers);
  auto& idle = from_large ? large_ : small_;
  if (!idle.empty()) {
    RelayBuffer buffer = std::move(idle.back());
    idle.pop_back();
    return buffer;
  }
  large_total_ += from_large ? 1 : 0;
  RelayBuffer buffer = make_buffer(from_large ? large_buffer_ : kSmallBuffer);
  return buffer;
}

void RelayPool::give_back(RelayBuffer buffer) {
  if (buffer.size == kSmallBuffer) {
    if (small_.size() < kIdleSmallBuffers) small_.push_back(std::move(buffer));
  } else if (buffer.size == large_buffer_ && large_.size() < kIdleLargeBuffers) {
    large_.push_back(std::move(buffer));
  } else if (buffer.size == large_buffer_) {
    --large_total_;
  }
}

void RelayPool::set_large_buffer(std::size_t size) {
  if (size == large_buffer_) return;
  large_.clear();
  large_total_ = 0;  // those that are out are no longer this pool's
  large_buffer_ = size;
}

std::optional<RelayPipe> RelayPool::take_pipe() {
  if (!idle_pipes_.empty()) {
    RelayPipe pipe = std::move(idle_pipes_.back());
    idle_pipes_.pop_back();
    return pipe;
  }
  if (pipes_ >= kMaxPipes) return std::nullopt;
  if (not_before_ > 0) {
    --not_before_;
    return std::nullopt;
  }
  not_before_ = kRefusals;  // unless it works
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) return std::nullopt;
  RelayPipe pipe{UniqueFd(ends[0]), UniqueFd(ends[1]), 0};
  // Fails above fs.pipe-user-pages-soft; then the default, or even less (pipe(7)), is what we have.
  (void)::fcntl(ends[1], F_SETPIPE_SZ, static_cast<int>(kPipeSize));
  const int size = ::fcntl(ends[1], F_GETPIPE_SZ);
  if (size < static_cast<int>(kSmallestPipe)) return std::nullopt;
  pipe.capacity = static_cast<std::size_t>(size);
  ++pipes_;
  ++pipes_made_;
  not_before_ = 0;
  return pipe;
}

void RelayPool::give_back(RelayPipe pipe, bool empty) {
  not_before_ = 0;
  if (empty && idle_pipes_.size() < kIdlePipes) {
    idle_pipes_.push_back(std::move(pipe));
  } else {
    --pipes_;
  }
}

}  // namespace causeway::relay
