// SPDX-License-Identifier: Apache-2.0
#include "host/publish/relay_pool.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <utility>

namespace causeway::host {

RelayBuffer RelayPool::take_buffer(bool large) {
  const bool from_large = large && (!large_.empty() || large_total_ < kMaxLargeBuffers);
  auto& idle = from_large ? large_ : small_;
  if (!idle.empty()) {
    RelayBuffer buffer = std::move(idle.back());
    idle.pop_back();
    return buffer;
  }
  const std::size_t size = from_large ? kLargeBuffer : kSmallBuffer;
  // Uninitialised on purpose: only what was received is ever read from it.
  RelayBuffer buffer{std::unique_ptr<std::byte[]>(new std::byte[size]), size};
  large_total_ += from_large ? 1 : 0;
  return buffer;
}

void RelayPool::give_back(RelayBuffer buffer) {
  const bool large = buffer.size == kLargeBuffer;
  auto& idle = large ? large_ : small_;
  if (idle.size() < (large ? kIdleLargeBuffers : kIdleSmallBuffers)) {
    idle.push_back(std::move(buffer));
  } else if (large) {
    --large_total_;
  }
}

std::optional<RelayPipe> RelayPool::take_pipe() {
  if (!idle_pipes_.empty()) {
    RelayPipe pipe = std::move(idle_pipes_.back());
    idle_pipes_.pop_back();
    return pipe;
  }
  if (pipes_ >= kMaxPipes) return std::nullopt;
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) return std::nullopt;
  RelayPipe pipe{UniqueFd(ends[0]), UniqueFd(ends[1]), 0};
  // Fails above fs.pipe-user-pages-soft; then the default, or even less (pipe(7)), is what we have.
  (void)::fcntl(ends[1], F_SETPIPE_SZ, static_cast<int>(kPipeSize));
  const int size = ::fcntl(ends[1], F_GETPIPE_SZ);
  if (size < static_cast<int>(kSmallestPipe)) return std::nullopt;
  pipe.capacity = static_cast<std::size_t>(size);
  ++pipes_;
  return pipe;
}

void RelayPool::give_back(RelayPipe pipe, bool empty) {
  if (empty && idle_pipes_.size() < kIdlePipes) {
    idle_pipes_.push_back(std::move(pipe));
  } else {
    --pipes_;
  }
}

}  // namespace causeway::host
