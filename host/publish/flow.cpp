// SPDX-License-Identifier: Apache-2.0
#include "host/publish/flow.hpp"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace causeway::host {

Flow::Flow(RelayPool& pool, int from, int to, FlowOptions options, std::uint64_t& written)
    : pool_(pool), from_(from), to_(to), options_(options), written_(written) {}

Flow::~Flow() {
  give_back();
}

void Flow::put_first(std::span<const std::byte> bytes) {
  buffer_ = pool_.take_buffer(false);
  held_ = uncounted_ = std::min(bytes.size(), buffer_.size);
  std::copy_n(bytes.begin(), held_, buffer_.bytes.get());
}

Flow::Step Flow::advance() {
  std::size_t budget = kTurn;
  while (budget > 0) {
    if (held_ > 0) {
      const ssize_t count = write_some();
      if (count > 0) {
        wrote(static_cast<std::size_t>(count));
        budget -= std::min(budget, static_cast<std::size_t>(count));
      } else if (count == 0) {  // cannot be: neither call was asked to move nothing
        return Step::failed;
      } else if (errno == EAGAIN) {
        return Step::wait_write;
      } else if (errno != EINTR) {
        return errno == EPIPE ? Step::broken : Step::failed;
      }
      continue;
    }
    if (ended_) {
      (void)::shutdown(to_, SHUT_WR);  // fails only where the sink is gone already
      return Step::finished;
    }
    const ssize_t count = read_some();
    if (count > 0) {
      took(static_cast<std::size_t>(count));
    } else if (count == 0) {
      ended_ = true;
      give_back();
    } else if (errno == EAGAIN) {
      give_back();
      return Step::wait_read;
    } else if (errno == EINVAL && pipe_) {
      options_.splice = false;  // a socket that cannot splice; the pipe is empty
      give_back();
    } else if (errno != EINTR) {
      return Step::failed;
    }
  }
  return Step::yield;
}

ssize_t Flow::read_some() {
  const bool bulk = received_ >= kSpliceAfter;
  if (bulk && !pipe_ && buffer_.size != RelayPool::kLargeBuffer) {
    give_back();
    if (options_.splice) pipe_ = pool_.take_pipe();
  }
  if (pipe_) {
    return ::splice(from_, nullptr, pipe_->writer.get(), nullptr, pipe_->capacity,
                    SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
  }
  if (!buffer_.valid()) buffer_ = pool_.take_buffer(bulk);
  return ::recv(from_, buffer_.bytes.get(), buffer_.size, MSG_DONTWAIT);
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

void Flow::took(std::size_t count) {
  received_ += count;
  progress_ += count;
  held_ = count;
  at_ = 0;
}

void Flow::wrote(std::size_t count) {
  progress_ += count;
  held_ -= count;
  at_ += count;
  const std::size_t ours = std::min(uncounted_, count);
  uncounted_ -= ours;
  written_ += count - ours;
}

void Flow::give_back() {
  if (pipe_) pool_.give_back(*std::exchange(pipe_, std::nullopt), held_ == 0);
  if (buffer_.valid()) pool_.give_back(std::exchange(buffer_, {}));
}

}  // namespace causeway::host
