// SPDX-License-Identifier: Apache-2.0
// Terminated before its relay: the handshakes, and refusals.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <utility>

#include "guest/gateway/relay/terminated.hpp"

namespace causeway::gateway {

namespace {

using tls::Engine;
using tls::Status;

constexpr std::uint32_t kEnding = EPOLLRDHUP | EPOLLHUP | EPOLLERR | EPOLLPRI;
constexpr std::uint32_t kReadable = EPOLLIN | kEnding;

// Bytes at once that no handshake has: a flood of what TLS 1.3 ignores must not keep the worker.
constexpr std::uint64_t kTooMuch = std::uint64_t{512} * 1024;

}  // namespace

Terminated::Shake Terminated::start(relay::RelayBuffer buffer, std::size_t at, std::size_t size,
                                    bool dry) {
  in_.put_first(std::move(buffer), at, size, dry);
  return handshake(*engine_, client_, in_, out_, down_);
}

Terminated::Shake Terminated::shake(std::uint32_t events) {
  return shake_with(events, *engine_, client_, in_, out_, down_);
}

Terminated::Shake Terminated::start_upstream(Side upstream, std::unique_ptr<Engine> engine,
                                             std::span<const std::byte> first) {
  upstream_ = upstream;
  upstream_tls_ = std::make_unique<UpstreamTls>();
  UpstreamTls& tls = *upstream_tls_;
  tls.engine = std::move(engine);
  if (!first.empty() && ::send(upstream_.fd, first.data(), first.size(),
                               MSG_DONTWAIT | MSG_NOSIGNAL) != static_cast<ssize_t>(first.size())) {
    return Shake::client_left;
  }
  return handshake(*tls.engine, upstream_, tls.in, tls.out, up_);
}

Terminated::Shake Terminated::shake_upstream(std::uint32_t events) {
  UpstreamTls& tls = *upstream_tls_;
  return shake_with(events, *tls.engine, upstream_, tls.in, tls.out, up_);
}

Terminated::Shake Terminated::shake_with(std::uint32_t events, Engine& engine, const Side& side,
                                         RecordsIn& in, RecordsOut& out, State& writing) {
  if ((events & kEnding) != 0) in.note_end();
  if ((events & kReadable) != 0) in.note_more();
  const Shake shake = handshake(engine, side, in, out, writing);
  // A peer that resets may have said why before.
  return (events & EPOLLERR) != 0 && shake != Shake::failed ? Shake::client_left : shake;
}

// `writing` becomes wait_write while what TLS has to say does not fit.
Terminated::Shake Terminated::handshake(Engine& engine, const Side& side, RecordsIn& in,
                                        RecordsOut& out, State& writing) {
  for (const std::uint64_t begin = progress_;;) {
    if (progress_ - begin > kTooMuch) {
      engine.refuse(MBEDTLS_SSL_ALERT_MSG_UNEXPECTED_MESSAGE, tls::Fault::unexpected_message);
    }
    const auto step = engine.handshake(in.held());
    in.taken(step.consumed);
    const bool flushed = out.flush(side, engine, progress_);
    writing = flushed ? State::wait_read : State::wait_write;
    switch (step.status) {
      case Status::done:
        // What did not fit goes with the relay.
        in.rest(pool_);
        return Shake::done;
      case Status::need_read:
      case Status::need_write:
        break;
      case Status::closed:
      case Status::truncated:
        return Shake::client_left;
      case Status::error:
        return Shake::failed;
    }
    if (!flushed) return Shake::wait;
    switch (in.receive(pool_, side, progress_)) {
      case RecordsIn::Got::some:
        break;
      case RecordsIn::Got::dry:
        in.rest(pool_);
        return Shake::wait;
      case RecordsIn::Got::end:
      case RecordsIn::Got::failed:
        return Shake::client_left;
    }
  }
}

void Terminated::refuse(std::uint8_t alert) {
  engine_->refuse(alert);
  down_ = out_.flush(client_, *engine_, progress_) ? State::wait_read : State::wait_write;
}

}  // namespace causeway::gateway
