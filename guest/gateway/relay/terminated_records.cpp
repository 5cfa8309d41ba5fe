// SPDX-License-Identifier: Apache-2.0
#include "guest/gateway/relay/terminated_records.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace causeway::gateway {

using tls::Engine;
using tls::Status;

// ---- in ----

void RecordsIn::put_first(relay::RelayBuffer buffer, std::size_t at, std::size_t size, bool dry) {
  buffer_ = std::move(buffer);
  at_ = at;
  end_ = at + size;
  want_more_ = size == 0;
  dry_ = dry;
}

std::span<const std::byte> RecordsIn::held() const {
  return std::span<const std::byte>(buffer_.bytes.get(), end_).subspan(at_);
}

void RecordsIn::settle() {
  at_ += std::exchange(opened_, 0);
  piece_ = pieces_end_ = 0;
}

void RecordsIn::move_to(relay::RelayPool& pool, relay::RelayBuffer buffer) {
  const auto bytes = held();
  if (!bytes.empty()) std::memcpy(buffer.bytes.get(), bytes.data(), bytes.size());
  if (buffer_.valid()) pool.give_back(std::move(buffer_));
  buffer_ = std::move(buffer);
  at_ = 0;
  end_ = bytes.size();
}

// For a whole record, from at_ on.
void RecordsIn::make_room(relay::RelayPool& pool) {
  const bool fits = buffer_.size >= Engine::kMaxRecord;
  // One that was filled is too small for what comes.
  if (!fits || (filled_ && buffer_.size < pool.large_buffer())) {
    relay::RelayBuffer larger = pool.take_buffer(true);
    if (larger.size > buffer_.size && larger.size >= Engine::kMaxRecord) {
      return move_to(pool, std::move(larger));
    }
    // The pool has no large one left.
    pool.give_back(std::move(larger));
    if (!fits) return move_to(pool, relay::RelayPool::make_buffer(Engine::kMaxRecord));
  }
  if (at_ == end_) {
    at_ = end_ = 0;
  } else if (buffer_.size - at_ < Engine::kMaxRecord) {
    const auto bytes = held();
    std::memmove(buffer_.bytes.get(), bytes.data(), bytes.size());
    end_ = bytes.size();
    at_ = 0;
  }
}

RecordsIn::Got RecordsIn::receive(relay::RelayPool& pool, const Passthrough::Side& from,
                                  std::uint64_t& progress) {
  settle();
  if (dry_ && !end_near_) return Got::dry;
  make_room(pool);
  const auto room = std::span(buffer_.bytes.get(), buffer_.size).subspan(end_);
  for (;;) {
    const ssize_t count = ::recv(from.fd, room.data(), room.size(), MSG_DONTWAIT);
    if (count > 0) {
      const auto size = static_cast<std::size_t>(count);
      end_ += size;
      progress += size;
      filled_ = size == room.size();
      dry_ = from.tcp && !filled_;
      want_more_ = false;
      return Got::some;
    }
    if (count == 0) {
      ended_ = true;
      return Got::end;
    }
    if (errno == EAGAIN) return Got::dry;
    if (errno != EINTR) return Got::failed;
  }
}

Status RecordsIn::open(Engine& engine) {
  settle();
  const auto bytes = std::span(buffer_.bytes.get(), end_).subspan(at_);
  const auto opened = engine.open(bytes, pieces_);
  opened_ = opened.consumed;
  pieces_end_ = static_cast<std::uint8_t>(opened.pieces);
  want_more_ = opened.status == Status::need_read;
  return opened.status;
}

void RecordsIn::delivered(std::size_t size) {
  while (size > 0) {
    iovec& piece = pieces_.at(piece_);
    const std::size_t part = std::min(size, piece.iov_len);
    const auto rest =
        std::span(static_cast<std::byte*>(piece.iov_base), piece.iov_len).subspan(part);
    piece = {rest.data(), rest.size()};
    size -= part;
    if (piece.iov_len == 0) ++piece_;
  }
}

void RecordsIn::rest(relay::RelayPool& pool) {
  if (has_pieces()) return;
  settle();
  if (at_ == end_) drop(pool);
}

void RecordsIn::drop(relay::RelayPool& pool) {
  if (buffer_.valid()) pool.give_back(std::exchange(buffer_, {}));
  at_ = end_ = opened_ = 0;
  piece_ = pieces_end_ = 0;
  filled_ = false;
}

void RecordsIn::shrink(relay::RelayPool& pool) {
  rest(pool);
  const std::size_t size = end_ - at_;
  if (has_pieces() || size == 0 || size > buffer_.size / 2) return;
  move_to(pool, relay::RelayPool::make_buffer(size));
  filled_ = false;
}

// ---- out ----

std::span<std::byte> RecordsOut::slab(relay::RelayPool& pool) {
  if (!slab_.valid()) slab_ = pool.take_buffer(true);
  return {slab_.bytes.get(), slab_.size};
}

void RecordsOut::filled(std::size_t size) {
  at_ = 0;
  end_ = size;
}

Engine::Sealed RecordsOut::seal(relay::RelayPool& pool, Engine& engine,
                                std::span<const iovec> pieces) {
  const auto all = slab(pool);
  Engine::Sealed out = engine.seal({}, all);
  for (const iovec& piece : pieces) {
    if (out.status != Status::done) break;
    const auto room = all.subspan(out.bytes);
    // One that would be cut short for want of room goes first the next time.
    if (out.bytes != 0 && room.size() < piece.iov_len + Engine::kMaxOverhead) break;
    const auto sealed =
        engine.seal({static_cast<const std::byte*>(piece.iov_base), piece.iov_len}, room);
    out.status = sealed.status;
    out.consumed += sealed.consumed;
    out.bytes += sealed.bytes;
  }
  filled(out.bytes);
  return out;
}

RecordsOut::Put RecordsOut::write(const Passthrough::Side& to, std::uint64_t& progress) {
  const auto left = std::span<const std::byte>(slab_.bytes.get(), end_).subspan(at_);
  const std::size_t size = std::min(left.size(), to.max_write);
  const ssize_t sent = ::send(to.fd, left.data(), size, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0) {
    if (errno == EINTR) return Put::some;
    if (errno == EAGAIN) return Put::full;
    return errno == ECONNRESET ? Put::reset : Put::broken;
  }
  const auto count = static_cast<std::size_t>(sent);
  at_ += count;
  progress += count;
  return to.tcp && count < size ? Put::full : Put::some;
}

bool RecordsOut::flush(const Passthrough::Side& to, Engine& engine, std::uint64_t& progress) {
  // A record that is out in part has to be completed before anything else.
  while (pending()) {
    const Put put = write(to, progress);
    if (put != Put::some) return put != Put::full;
  }
  while (!engine.output().empty()) {
    const auto output = engine.output();
    const ssize_t count = ::send(to.fd, output.data(), std::min(output.size(), to.max_write),
                                 MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count >= 0) {
      engine.sent(static_cast<std::size_t>(count));
      progress += static_cast<std::uint64_t>(count);
    } else if (errno != EINTR) {
      return errno != EAGAIN;
    }
  }
  return true;
}

void RecordsOut::rest(relay::RelayPool& pool) {
  if (!pending()) drop(pool);
}

void RecordsOut::drop(relay::RelayPool& pool) {
  if (slab_.valid()) pool.give_back(std::exchange(slab_, {}));
  at_ = end_ = 0;
}

}  // namespace causeway::gateway
