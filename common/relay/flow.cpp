// SPDX-License-Identifier: Apache-2.0
#include "common/relay/flow.hpp"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace causeway::relay {

Flow::Flow(RelayPool& pool, Gate& gate, int from, int to, FlowOptions options)
    : pool_(pool), gate_(gate), from_(from), to_(to), options_(options) {
  // A gate that is open from the start is somebody's wish to splice from the first byte.
  bulk_ = gate_.test();
}

Flow::~Flow() {
  give_back();
}

void Flow::put_first(RelayBuffer buffer, std::size_t at, std::size_t size, std::size_t uncounted,
                     bool dry) {
  buffer_ = std::move(buffer);
  at_ = at;
  held_ = size;
  uncounted_ = uncounted;
  gate_.moved += size - uncounted;
  starts_dry_ = dry;
}

void Flow::put_first(std::span<const std::byte> bytes) {
  RelayBuffer buffer = pool_.take_buffer(false);
  const std::size_t size = std::min(bytes.size(), buffer.size);
  std::copy_n(bytes.begin(), size, buffer.bytes.get());
  put_first(std::move(buffer), 0, size, size, false);
}

Flow::Step Flow::advance() {
  std::size_t budget = kTurn;
  dry_ = std::exchange(starts_dry_, false);  // of an earlier call it would be stale
  while (budget > 0) {
    if (held_ > 0) {
      const ssize_t count = write_some();
      if (count > 0) {
        const auto moved = static_cast<std::size_t>(count);
        budget -= std::min(budget, moved);
        if (!wrote(moved) && options_.short_write_is_full && !pipe_ && held_ > 0) {
          return Step::wait_write;
        }
      } else if (count == 0) {  // cannot be: neither call was asked to move nothing
        return Step::sink_failed;
      } else if (errno == EAGAIN) {
        return Step::wait_write;
      } else if (errno != EINTR) {
        if (errno == ECONNRESET) return Step::sink_reset;
        return errno == EPIPE ? Step::broken : Step::sink_failed;
      }
      continue;
    }
    if (ended_) {
      if (!close_follows_) (void)::shutdown(to_, SHUT_WR);  // fails where the sink is gone already
      return Step::finished;
    }
    switch (dry_ && !end_near_ ? Read::dry : read_some()) {
      case Read::some:
        break;
      case Read::end:
        if (cut_) return Step::source_failed;
        ended_ = true;
        give_back();
        break;
      case Read::dry:
        bulk_ = burst_ > RelayPool::kSmallBuffer;
        burst_ = 0;
        give_back();
        return Step::wait_read;
      case Read::failed:
        return Step::source_failed;
    }
  }
  return Step::yield;
}

Flow::Read Flow::read_some() {
  if (bulk_ && !pipe_ && options_.splice && gate_.test()) {
    give_back();
    pipe_ = pool_.take_pipe();
  }
  for (;;) {
    ssize_t count = 0;
    if (pipe_) {
      count = ::splice(from_, nullptr, pipe_->writer.get(), nullptr, pipe_->capacity,
                       SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
    } else {
      if (bulk_ && buffer_.size == RelayPool::kSmallBuffer) give_back();
      if (!buffer_.valid()) buffer_ = pool_.take_buffer(bulk_);
      count = ::recv(from_, buffer_.bytes.get(), buffer_.size, MSG_DONTWAIT);
    }
    if (count > 0) {
      held_ = static_cast<std::size_t>(count);
      at_ = 0;
      progress_ += held_;
      gate_.moved += held_;
      burst_ += held_;
      if (options_.short_read_is_dry) {
        // A pipe has a slot for each piece, however short: with fewer bytes than slots it was not
        // the pipe that ended the call.
        dry_ = held_ < (pipe_ ? pipe_->capacity / RelayPool::kPage : buffer_.size);
      }
      bulk_ = bulk_ || burst_ >= RelayPool::kSmallBuffer;
      return Read::some;
    }
    if (count == 0) return Read::end;
    if (errno == EAGAIN) return Read::dry;
    if (errno == EINVAL && pipe_) {
      options_.splice = false;  // a socket that cannot splice; the pipe is empty
      give_back();
    } else if (errno != EINTR) {
      return Read::failed;
    }
  }
}

ssize_t Flow::write_some() {
  if (pipe_) {
    return ::splice(pipe_->reader.get(), nullptr, to_, nullptr, held_,
                    SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
  }
  const auto left = std::span(buffer_.bytes.get(), buffer_.size).subspan(at_, held_);
  return ::send(to_, left.data(), std::min(left.size(), options_.max_write),
                MSG_DONTWAIT | MSG_NOSIGNAL);
}

// False: less than was asked for.
bool Flow::wrote(std::size_t count) {
  const bool all = count >= std::min(held_, options_.max_write);
  progress_ += count;
  held_ -= count;
  at_ += count;
  const std::size_t ours = std::min(uncounted_, count);
  uncounted_ -= ours;
  written_ += count - ours;
  return all;
}

void Flow::give_back() {
  if (pipe_) pool_.give_back(*std::exchange(pipe_, std::nullopt), held_ == 0);
  if (buffer_.valid()) pool_.give_back(std::exchange(buffer_, {}));
}

}  // namespace causeway::relay
