// SPDX-License-Identifier: Apache-2.0
// Terminated's relay. terminated_handshake.cpp has what comes before it, terminated_upstream.cpp
// the steps for TLS to the upstream.
#include "guest/gateway/relay/terminated.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace causeway::gateway {

namespace {

using tls::Engine;
using tls::Status;

constexpr std::uint32_t kEnding = EPOLLRDHUP | EPOLLHUP | EPOLLERR | EPOLLPRI;
constexpr std::uint32_t kReadable = EPOLLIN | kEnding;
constexpr std::uint32_t kWritable = EPOLLOUT | EPOLLHUP | EPOLLERR;

}  // namespace

Terminated::Terminated(relay::RelayPool& pool, WorkerCounters& counters,
                       std::unique_ptr<Engine> engine, Side client)
    : pool_(pool), counters_(counters), engine_(std::move(engine)), client_(client) {}

Terminated::~Terminated() {
  in_.drop(pool_);
  out_.drop(pool_);
  if (upstream_tls_) {
    upstream_tls_->in.drop(pool_);
    upstream_tls_->out.drop(pool_);
  }
}

void Terminated::shrink() {
  in_.shrink(pool_);
  if (upstream_tls_) upstream_tls_->in.shrink(pool_);
}

// ---- what drives it ----

std::optional<Terminated::Finish> Terminated::relay(Side upstream,
                                                    std::span<const std::byte> first) {
  upstream_ = upstream;
  up_ = down_ = State::wait_read;
  if (!first.empty() && ::send(upstream_.fd, first.data(), first.size(),
                               MSG_DONTWAIT | MSG_NOSIGNAL) != static_cast<ssize_t>(first.size())) {
    return Finish::upstream_reset;
  }
  if (auto end = drive_up()) return end;
  // What the handshakes left: an alert or a ticket that did not fit; an upstream's first records,
  // whose edge is gone.
  if (down_ == State::wait_read && (upstream_tls_ || !engine_->output().empty())) {
    return drive_down();
  }
  return std::nullopt;
}

std::optional<Terminated::Finish> Terminated::on_client(std::uint32_t events) {
  if ((events & EPOLLERR) != 0) return Finish::client_reset;
  if ((events & kEnding) != 0) in_.note_end();
  if ((events & kReadable) != 0) {
    in_.note_more();
    if (up_ == State::wait_read) {
      if (auto end = drive_up()) return end;
    }
  }
  if ((events & kWritable) != 0 && down_ == State::wait_write) return drive_down();
  return std::nullopt;
}

std::optional<Terminated::Finish> Terminated::on_upstream(std::uint32_t events) {
  if ((events & EPOLLERR) != 0 && down_ == State::over) return Finish::orderly;
  if ((events & kReadable) != 0) {
    if (upstream_tls_) {
      upstream_tls_->in.note_more();
      if ((events & kEnding) != 0) upstream_tls_->in.note_end();
    } else {
      upstream_dry_ = false;
      if ((events & kEnding) != 0) upstream_end_near_ = true;
    }
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

Terminated::Step Terminated::fail(Finish why) {
  failure_ = why;
  return Step::failed;
}

// The alert goes out as far as the peer takes it.
std::optional<Terminated::Finish> Terminated::failed() {
  if (failure_ == Finish::tls_failed) {
    (void)out_.flush(client_, *engine_, progress_);
  } else if (failure_ == Finish::upstream_tls_failed && up_ != State::over) {
    (void)upstream_tls_->out.flush(upstream_, *upstream_tls_->engine, progress_);
  }
  return failure_;
}

// ---- up ----

std::optional<Terminated::Finish> Terminated::drive_up() {
  const std::uint64_t begin = progress_;
  up_ = State::turn;
  while (progress_ - begin < kTurn) {
    switch (step_up()) {
      case Step::moved:
        break;
      case Step::wait_read:
        in_.rest(pool_);
        if (upstream_tls_) upstream_tls_->out.rest(pool_);
        up_ = State::wait_read;
        return std::nullopt;
      case Step::wait_write:
        up_ = State::wait_write;
        return std::nullopt;
      case Step::over:
        up_ = State::over;
        in_.drop(pool_);
        if (upstream_tls_) upstream_tls_->out.drop(pool_);
        if (down_ == State::over) return Finish::orderly;
        return std::nullopt;
      case Step::failed:
        return failed();
    }
  }
  return std::nullopt;
}

Terminated::Step Terminated::step_up() {
  if (upstream_tls_) {
    UpstreamTls& tls = *upstream_tls_;
    if (tls.out.pending() || !tls.engine->output().empty()) return write_sealed_up(tls);
    if (in_.has_pieces()) return seal_up(tls);
  } else if (in_.has_pieces()) {
    return write_pieces();
  }
  if (up_ends_) return end_up();
  return in_.may_open() ? open_up() : receive_up();
}

Terminated::Step Terminated::receive_up() {
  switch (in_.receive(pool_, client_, progress_)) {
    case RecordsIn::Got::some:
      return Step::moved;
    case RecordsIn::Got::dry:
      return Step::wait_read;
    case RecordsIn::Got::failed:
      return fail(Finish::client_reset);
    case RecordsIn::Got::end:
      break;
  }
  // A close_notify would have ended it before. Behind the whole answer a FIN alone is what many
  // clients do, and cuts nothing.
  truncated_ = down_ != State::over;
  if (in_.in_record()) return fail(Finish::client_reset);
  up_ends_ = true;
  return Step::moved;
}

Terminated::Step Terminated::open_up() {
  switch (in_.open(*engine_)) {
    case Status::done:
    case Status::need_read:
      break;
    case Status::closed:
      up_ends_ = true;
      break;
    case Status::need_write:
    case Status::truncated:
    case Status::error:
      // What came before the fault is delivered first; it shows again.
      if (!in_.has_pieces()) return fail(Finish::tls_failed);
      break;
  }
  // TLS may have something to say now; it goes with the next records unless there are none.
  if (!engine_->output().empty() && down_ == State::wait_read) {
    if (auto end = drive_down()) return fail(*end);
  }
  return Step::moved;
}

Terminated::Step Terminated::write_pieces() {
  std::array<iovec, RecordsIn::kPieces> parts;
  std::size_t count = 0;
  std::size_t size = 0;
  for (iovec part : in_.pieces()) {
    if (size == upstream_.max_write) break;
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
    return broken_up(errno == ECONNRESET);
  }
  const auto moved = static_cast<std::size_t>(sent);
  progress_ += moved;
  counters_.bytes_to_upstream.add(moved);
  in_.delivered(moved);
  return upstream_.tcp && moved < size ? Step::wait_write : Step::moved;
}

// As in Flow and Passthrough: its answer may be on its way.
Terminated::Step Terminated::broken_up(bool reset) {
  upstream_cut_ = upstream_cut_ || reset;
  upstream_broken_ = true;
  return Step::over;
}

Terminated::Step Terminated::end_up() {
  if (upstream_tls_ && !upstream_tls_->engine->write_closed()) {
    upstream_tls_->engine->close_notify();
    return Step::moved;
  }
  if (down_ != State::over) (void)::shutdown(upstream_.fd, SHUT_WR);
  return Step::over;
}

// ---- down ----

std::optional<Terminated::Finish> Terminated::drive_down() {
  const std::uint64_t begin = progress_;
  down_ = State::turn;
  while (progress_ - begin < kTurn) {
    switch (step_down()) {
      case Step::moved:
        break;
      case Step::wait_read:
        out_.rest(pool_);
        if (upstream_tls_) upstream_tls_->in.rest(pool_);
        down_ = State::wait_read;
        return std::nullopt;
      case Step::wait_write:
        down_ = State::wait_write;
        return std::nullopt;
      case Step::over:
        down_ = State::over;
        out_.drop(pool_);
        if (upstream_tls_) upstream_tls_->in.drop(pool_);
        if (upstream_broken_) return Finish::upstream_reset;
        if (up_ == State::over) return Finish::orderly;
        return std::nullopt;
      case Step::failed:
        return failed();
    }
  }
  return std::nullopt;
}

Terminated::Step Terminated::step_down() {
  if (out_.pending()) return write_down();
  if (!engine_->output().empty()) {
    (void)out_.seal(pool_, *engine_, {});
    return Step::moved;
  }
  // It failed: the other direction ends the connection, once what came before is delivered.
  if (!engine_->established()) return Step::wait_read;
  if (upstream_tls_) return step_down_tls(*upstream_tls_);
  if (upstream_ended_) return end_down();
  return fill_slab();
}

Terminated::Step Terminated::write_down() {
  switch (out_.write(client_, progress_)) {
    case RecordsOut::Put::some:
      return Step::moved;
    case RecordsOut::Put::full:
      return Step::wait_write;
    case RecordsOut::Put::reset:
    case RecordsOut::Put::broken:
      break;
  }
  return fail(Finish::client_reset);
}

Terminated::Step Terminated::fill_slab() {
  if (upstream_dry_ && !upstream_end_near_) return Step::wait_read;
  const auto slab = out_.slab(pool_);
  std::array<iovec, RecordsIn::kPieces> parts;
  const std::size_t count = engine_->plan(slab, parts);
  if (count == 0) return fail(Finish::tls_failed);  // readv() would read it as an end
  std::size_t room = 0;
  for (std::size_t i = 0; i < count; ++i)
    room += parts.at(i).iov_len;
  const ssize_t got = ::readv(upstream_.fd, parts.data(), static_cast<int>(count));
  if (got > 0) {
    const auto size = static_cast<std::size_t>(got);
    const auto sealed = engine_->seal_planned(slab, size);
    out_.filled(sealed.bytes);
    if (sealed.status == Status::error || sealed.consumed != size) return fail(Finish::tls_failed);
    progress_ += size;
    counters_.bytes_to_client.add(size);
    upstream_dry_ = upstream_.tcp && size < room;
    return Step::moved;
  }
  if (got == 0) {
    if (upstream_cut_) return fail(Finish::upstream_reset);
    upstream_ended_ = true;
    return Step::moved;
  }
  if (errno == EAGAIN) return Step::wait_read;
  if (errno == EINTR) return Step::moved;
  return fail(Finish::upstream_reset);
}

// close_notify, then FIN; the client's own is still read, by the other direction.
Terminated::Step Terminated::end_down() {
  if (!engine_->write_closed()) {
    engine_->close_notify();
    return Step::moved;
  }
  // Where the client has ended too, the owner's close says it.
  if (up_ != State::over || !in_.ended()) (void)::shutdown(client_.fd, SHUT_WR);
  return Step::over;
}

}  // namespace causeway::gateway
