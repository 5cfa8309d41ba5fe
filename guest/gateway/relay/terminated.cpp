// SPDX-License-Identifier: Apache-2.0
#include "guest/gateway/relay/terminated.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace causeway::gateway {

namespace {

using tls::Engine;
using tls::Status;

constexpr std::uint32_t kEnding = EPOLLRDHUP | EPOLLHUP | EPOLLERR | EPOLLPRI;
constexpr std::uint32_t kReadable = EPOLLIN | kEnding;
constexpr std::uint32_t kWritable = EPOLLOUT | EPOLLHUP | EPOLLERR;

std::span<std::byte> all_of(const relay::RelayBuffer& buffer) {
  return {buffer.bytes.get(), buffer.size};
}

}  // namespace

Terminated::Terminated(relay::RelayPool& pool, WorkerCounters& counters,
                       std::unique_ptr<tls::Engine> engine, Side client)
    : pool_(pool), counters_(counters), engine_(std::move(engine)), client_(client) {}

Terminated::~Terminated() {
  give_back_input();
  if (slab_.valid()) pool_.give_back(std::move(slab_));
}

// ---- buffers ----

void Terminated::give_back_input() {
  if (input_.valid()) pool_.give_back(std::exchange(input_, {}));
  input_at_ = input_end_ = 0;
}

// Room for `least` bytes from input_at_ on, and for a whole record at least.
void Terminated::take_input(std::size_t least) {
  least = std::max(least, Engine::kMaxRecord);
  if (!input_.valid()) {
    input_ = pool_.take_buffer(true);
    if (input_.size < least) {  // the pool had no large one left
      pool_.give_back(std::exchange(input_, relay::RelayPool::make_buffer(least)));
    }
    input_at_ = input_end_ = 0;
    return;
  }
  if (input_at_ == input_end_) {
    input_at_ = input_end_ = 0;
  } else if (input_.size - input_at_ < least) {
    const auto held = all_of(input_).subspan(input_at_, input_end_ - input_at_);
    if (input_.size >= least) {
      std::memmove(input_.bytes.get(), held.data(), held.size());
    } else {
      relay::RelayBuffer larger = relay::RelayPool::make_buffer(least);
      std::memcpy(larger.bytes.get(), held.data(), held.size());
      pool_.give_back(std::exchange(input_, std::move(larger)));
    }
    input_end_ -= std::exchange(input_at_, 0);
  }
}

void Terminated::shrink() {
  const std::size_t held = input_end_ - input_at_;
  if (!input_.valid() || input_.size <= Engine::kMaxRecord || piece_ < pieces_end_ ||
      held > Engine::kMaxRecord) {
    return;
  }
  relay::RelayBuffer smaller = relay::RelayPool::make_buffer(Engine::kMaxRecord);
  std::memcpy(smaller.bytes.get(), all_of(input_).subspan(input_at_, held).data(), held);
  pool_.give_back(std::exchange(input_, std::move(smaller)));
  input_at_ = 0;
  input_end_ = held;
}

// ---- the handshake ----

Terminated::Shake Terminated::start(relay::RelayBuffer buffer, std::size_t at, std::size_t size,
                                    bool dry) {
  input_ = std::move(buffer);
  input_at_ = at;
  input_end_ = at + size;
  client_dry_ = dry;
  return handshake();
}

Terminated::Shake Terminated::shake(std::uint32_t events) {
  if ((events & EPOLLERR) != 0) return Shake::client_left;
  if ((events & kEnding) != 0) client_end_near_ = true;
  if ((events & kReadable) != 0) client_dry_ = false;
  return handshake();
}

Terminated::Shake Terminated::handshake() {
  for (;;) {
    const auto held = all_of(input_).subspan(input_at_, input_end_ - input_at_);
    const auto progress = engine_->handshake(held);
    input_at_ += progress.consumed;
    if (!flush() && progress.status != Status::error) return Shake::wait;
    switch (progress.status) {
      case Status::done:
        want_more_ = input_at_ == input_end_;
        if (want_more_) give_back_input();
        return Shake::done;
      case Status::need_write:
        continue;
      case Status::need_read:
        break;
      case Status::closed:
      case Status::truncated:
        return Shake::client_left;
      case Status::error:
        return Shake::failed;
    }
    switch (receive()) {
      case Step::moved:
        break;
      case Step::wait_read:
        if (input_at_ == input_end_) give_back_input();
        return Shake::wait;
      default:
        return Shake::client_left;
    }
    if (client_ended_) return Shake::client_left;
  }
}

// Sends what TLS itself has to say. False: the client takes no more for now.
bool Terminated::flush() {
  while (!engine_->output().empty()) {
    const auto output = engine_->output();
    const ssize_t count =
        ::send(client_.fd, output.data(), std::min(output.size(), client_.max_write),
               MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count > 0) {
      engine_->sent(static_cast<std::size_t>(count));
      progress_ += static_cast<std::uint64_t>(count);
    } else if (errno != EINTR) {
      return errno != EAGAIN;  // a broken socket shows itself when it is read
    }
  }
  return true;
}

// Reads ciphertext behind what is held. moved: some, or the end (client_ended_).
Terminated::Step Terminated::receive() {
  if (client_dry_ && !client_end_near_) return Step::wait_read;
  take_input(0);
  const auto room = all_of(input_).subspan(input_end_);
  for (;;) {
    const ssize_t count = ::recv(client_.fd, room.data(), room.size(), MSG_DONTWAIT);
    if (count > 0) {
      const auto size = static_cast<std::size_t>(count);
      input_end_ += size;
      progress_ += size;
      client_dry_ = client_.tcp && size < room.size();
      want_more_ = false;
      return Step::moved;
    }
    if (count == 0) {
      client_ended_ = true;
      return Step::moved;
    }
    if (errno == EAGAIN) return Step::wait_read;
    if (errno != EINTR) {
      failure_ = Finish::client_reset;
      return Step::failed;
    }
  }
}

// ---- the relay ----

std::optional<Terminated::Finish> Terminated::relay(Side upstream,
                                                    std::span<const std::byte> first) {
  upstream_ = upstream;
  if (!first.empty() && ::send(upstream_.fd, first.data(), first.size(),
                               MSG_DONTWAIT | MSG_NOSIGNAL) != static_cast<ssize_t>(first.size())) {
    return Finish::upstream_reset;
  }
  // What TLS had to say and could not be sent goes with the first records, or by itself now.
  if (!engine_->output().empty()) {
    if (auto end = drive_down()) return end;
  }
  return drive_up();
}

std::optional<Terminated::Finish> Terminated::on_client(std::uint32_t events) {
  if ((events & EPOLLERR) != 0) return Finish::client_reset;
  if ((events & kEnding) != 0) client_end_near_ = true;
  if ((events & kReadable) != 0) {
    client_dry_ = false;
    if (up_ == State::wait_read) {
      if (auto end = drive_up()) return end;
    }
  }
  if ((events & kWritable) != 0 && down_ == State::wait_write) return drive_down();
  return std::nullopt;
}

std::optional<Terminated::Finish> Terminated::on_upstream(std::uint32_t events) {
  if ((events & kEnding) != 0) upstream_end_near_ = true;
  if ((events & EPOLLERR) != 0 && down_ == State::over) return Finish::orderly;
  if ((events & kReadable) != 0) {
    upstream_dry_ = false;
    if (down_ == State::wait_read) {
      if (auto end = drive_down()) return end;
    }
  }
  if ((events & kWritable) != 0 && up_ == State::wait_write) return drive_up();
  return std::nullopt;
}

std::optional<Terminated::Finish> Terminated::go_on() {
  if (up_ == State::turn) {
    if (auto end = drive_up()) return end;
  }
  if (down_ == State::turn) return drive_down();
  return std::nullopt;
}

std::optional<Terminated::Finish> Terminated::tls_failed() {
  (void)flush();  // the alert, as far as the client takes it
  return Finish::tls_failed;
}

std::optional<Terminated::Finish> Terminated::drive_up() {
  const std::uint64_t begin = progress_;
  up_ = State::turn;
  while (progress_ - begin < kTurn) {
    switch (step_up()) {
      case Step::moved:
        break;
      case Step::wait_read:
        if (input_at_ == input_end_) give_back_input();
        up_ = State::wait_read;
        return std::nullopt;
      case Step::wait_write:
        up_ = State::wait_write;
        return std::nullopt;
      case Step::over:
        up_ = State::over;
        give_back_input();
        if (down_ == State::over) return Finish::orderly;
        return std::nullopt;
      case Step::failed:
        if (failure_ == Finish::tls_failed) return tls_failed();
        return failure_;
    }
  }
  return std::nullopt;
}

Terminated::Step Terminated::step_up() {
  if (piece_ < pieces_end_) return write_pieces();
  input_at_ += std::exchange(opened_, 0);
  if (up_ends_) return end_up();
  if (!want_more_) {
    const auto held = all_of(input_).subspan(input_at_, input_end_ - input_at_);
    const auto opened = engine_->open(held, pieces_);
    opened_ = opened.consumed;
    piece_ = 0;
    pieces_end_ = opened.pieces;
    switch (opened.status) {
      case Status::done:
        break;
      case Status::need_read:
        want_more_ = true;
        break;
      case Status::closed:
        up_ends_ = true;
        break;
      case Status::need_write:
      case Status::truncated:
      case Status::error:
        if (pieces_end_ == 0) {
          failure_ = Finish::tls_failed;
          return Step::failed;
        }
        break;  // what came before the fault is delivered first; it shows again
    }
    // TLS may have something to say now; it goes with the next records unless there are none.
    if (!engine_->output().empty() && down_ == State::wait_read) {
      if (auto end = drive_down()) {
        failure_ = *end;
        return Step::failed;
      }
    }
    return Step::moved;
  }
  if (client_ended_) {
    truncated_ = engine_->end_of_input() == Status::truncated;
    up_ends_ = true;
    return Step::moved;
  }
  return receive();
}

Terminated::Step Terminated::write_pieces() {
  std::array<iovec, kPieces> parts;
  std::size_t count = 0;
  std::size_t size = 0;
  for (std::size_t i = piece_; i < pieces_end_ && size < upstream_.max_write; ++i) {
    iovec part = pieces_.at(i);
    part.iov_len = std::min(part.iov_len, upstream_.max_write - size);
    size += part.iov_len;
    parts.at(count++) = part;
  }
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = count;
  const ssize_t sent = ::sendmsg(upstream_.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0) {
    if (errno == EINTR) return Step::moved;
    if (errno == EAGAIN) return Step::wait_write;
    // As in Flow and Passthrough: its answer may be on its way.
    upstream_cut_ = errno == ECONNRESET;
    upstream_broken_ = true;
    return Step::over;
  }
  auto left = static_cast<std::size_t>(sent);
  progress_ += left;
  counters_.bytes_to_upstream.add(left);
  const bool full = upstream_.tcp && left < size;
  while (left > 0) {
    iovec& piece = pieces_.at(piece_);
    const std::size_t part = std::min(left, piece.iov_len);
    const auto rest =
        std::span(static_cast<std::byte*>(piece.iov_base), piece.iov_len).subspan(part);
    piece = {rest.data(), rest.size()};
    left -= part;
    if (piece.iov_len == 0) ++piece_;
  }
  return full ? Step::wait_write : Step::moved;
}

Terminated::Step Terminated::end_up() {
  if (down_ != State::over) (void)::shutdown(upstream_.fd, SHUT_WR);
  return Step::over;
}

std::optional<Terminated::Finish> Terminated::drive_down() {
  const std::uint64_t begin = progress_;
  down_ = State::turn;
  while (progress_ - begin < kTurn) {
    switch (step_down()) {
      case Step::moved:
        break;
      case Step::wait_read:
        if (slab_.valid()) pool_.give_back(std::exchange(slab_, {}));
        down_ = State::wait_read;
        return std::nullopt;
      case Step::wait_write:
        down_ = State::wait_write;
        return std::nullopt;
      case Step::over:
        down_ = State::over;
        if (slab_.valid()) pool_.give_back(std::exchange(slab_, {}));
        if (upstream_broken_) return Finish::upstream_reset;
        if (up_ == State::over) return Finish::orderly;
        return std::nullopt;
      case Step::failed:
        if (failure_ == Finish::tls_failed) return tls_failed();
        return failure_;
    }
  }
  return std::nullopt;
}

Terminated::Step Terminated::step_down() {
  if (slab_at_ < slab_end_) return write_slab();
  if (!engine_->output().empty()) {
    if (!slab_.valid()) slab_ = pool_.take_buffer(true);
    const auto sealed = engine_->seal({}, all_of(slab_));
    slab_at_ = 0;
    slab_end_ = sealed.bytes;
    return Step::moved;
  }
  if (upstream_ended_) {
    // close_notify has gone out; the client's own is still read, by the other direction.
    if (up_ != State::over) (void)::shutdown(client_.fd, SHUT_WR);
    return Step::over;
  }
  return fill_slab();
}

Terminated::Step Terminated::write_slab() {
  const auto left = all_of(slab_).subspan(slab_at_, slab_end_ - slab_at_);
  const std::size_t size = std::min(left.size(), client_.max_write);
  const ssize_t sent = ::send(client_.fd, left.data(), size, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0) {
    if (errno == EINTR) return Step::moved;
    if (errno == EAGAIN) return Step::wait_write;
    failure_ = Finish::client_reset;
    return Step::failed;
  }
  const auto count = static_cast<std::size_t>(sent);
  slab_at_ += count;
  progress_ += count;
  return client_.tcp && count < size ? Step::wait_write : Step::moved;
}

Terminated::Step Terminated::fill_slab() {
  if (upstream_dry_ && !upstream_end_near_) return Step::wait_read;
  if (!slab_.valid()) slab_ = pool_.take_buffer(true);
  std::array<iovec, kPieces> parts;
  const std::size_t count = engine_->plan(all_of(slab_), parts);
  std::size_t room = 0;
  for (std::size_t i = 0; i < count; ++i)
    room += parts.at(i).iov_len;
  const ssize_t got = ::readv(upstream_.fd, parts.data(), static_cast<int>(count));
  if (got > 0) {
    const auto size = static_cast<std::size_t>(got);
    const auto sealed = engine_->seal_planned(all_of(slab_), size);
    if (sealed.status == Status::error || sealed.consumed != size) {
      failure_ = Finish::tls_failed;
      return Step::failed;
    }
    slab_at_ = 0;
    slab_end_ = sealed.bytes;
    progress_ += size;
    counters_.bytes_to_client.add(size);
    upstream_dry_ = upstream_.tcp && size < room;
    return Step::moved;
  }
  if (got == 0) {
    if (upstream_cut_) {
      failure_ = Finish::upstream_reset;
      return Step::failed;
    }
    upstream_ended_ = true;
    engine_->close_notify();
    return Step::moved;
  }
  if (errno == EAGAIN) return Step::wait_read;
  if (errno == EINTR) return Step::moved;
  failure_ = Finish::upstream_reset;
  return Step::failed;
}

}  // namespace causeway::gateway
