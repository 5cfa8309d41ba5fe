// SPDX-License-Identifier: Apache-2.0
#include "host/publish/connection.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace causeway::host {

namespace {

using std::chrono::milliseconds;
using Wait = asio::posix::stream_descriptor;

constexpr milliseconds kFirstPause{20};
constexpr milliseconds kLongestPause{500};
// Per stream, and there may be `limit` of them: much smaller than the bridge's own.
constexpr std::uint64_t kVsockBuffer = std::uint64_t{512} * 1024;
constexpr int kUnixBuffer = 1024 * 1024;

int family_of(int fd) {
  int domain = AF_UNSPEC;
  socklen_t length = sizeof domain;
  (void)::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length);
  return domain;
}

// False when epoll takes no more; then the socket is closed.
bool adopt(Wait& descriptor, UniqueFd fd) {
  std::error_code failed;
  descriptor.assign(fd.get(), failed);
  if (!failed) (void)fd.release();
  return !failed;
}

}  // namespace

void reset_on_close(int fd) {
  const linger now{.l_onoff = 1, .l_linger = 0};
  (void)::setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
}

Connection::Connection(asio::io_context& io, RelayContext& context, PublishCounters& counters,
                       std::string what, UniqueFd client)
    : context_(context),
      counters_(counters),
      what_(std::move(what)),
      client_(io),
      target_(io),
      ending_(io, Clock::time_point::max()) {
  net::tune_stream(client.get());
  adopt(client_, std::move(client));
}

asio::awaitable<void> Connection::run(Address target, std::optional<net::ProxySource> proxy) {
  using namespace asio::experimental::awaitable_operators;
  if (!client_.is_open()) {
    end(Ended::reset);
    co_return;
  }
  watch_client();
  auto outcome = co_await (reach(std::move(target)) || ending_.async_wait(net::as_result));
  auto* reached = std::get_if<0>(&outcome);
  if (reached != nullptr && ended_ == Ended::no) {
    if (!*reached) {
      if (context_.log.take()) {
        log::warn("{}: {}{}", what_, reached->error().message, context_.log.suppressed_text());
      }
      end(Ended::unreachable);
    } else if (!start_relay(*std::move(*reached), proxy)) {
      end(Ended::reset);
    } else {
      co_await relay();
      end(broken_ ? Ended::reset : Ended::orderly);
    }
  }
  close();
}

asio::awaitable<Result<UniqueFd>> Connection::reach(Address target) {
  const auto deadline = Clock::now() + kReach;
  const net::StreamOptions options{.vsock_buffer = kVsockBuffer};
  try {
    for (milliseconds pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
      const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
      const milliseconds limit = std::clamp(left, milliseconds{1}, kAttempt);
      auto fd = co_await net::connect_stream(target, options, limit);
      if (fd || Clock::now() + pause >= deadline) co_return fd;
      co_await net::sleep_for(pause);
    }
  } catch (const std::exception& error) {
    // Asio throws where epoll takes no more descriptors, and when end() cancelled us: run() would
    // wait for the other branch if this one threw.
    co_return Error{to_string(target) + ": " + error.what()};
  }
}

bool Connection::start_relay(UniqueFd target, const std::optional<net::ProxySource>& proxy) {
  const int fd = target.get();
  const int family = family_of(fd);
  if (family == AF_UNIX) {
    (void)::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kUnixBuffer, sizeof kUnixBuffer);
  }
  if (!adopt(target_, std::move(target))) return false;
  const int client = client_.native_handle();
  const bool splice = family != AF_VSOCK;
  const relay::FlowOptions to_guest{.max_write = net::default_max_write(fd), .splice = splice};
  const relay::FlowOptions to_client{.splice = splice};
  up_.emplace(context_.pool, gate_, client, fd, to_guest);
  down_.emplace(context_.pool, gate_, fd, client, to_client);
  if (proxy) up_->put_first(net::encode_proxy_v2(*proxy).bytes());
  moved_ = Clock::now();
  return true;
}

asio::awaitable<void> Connection::relay() {
  using namespace asio::experimental::awaitable_operators;
  co_await (carry(*up_, client_, target_, true) && carry(*down_, target_, client_, false));
}

asio::awaitable<void> Connection::carry(relay::Flow& flow, Descriptor& from, Descriptor& to,
                                        bool to_target) {
  while (ended_ == Ended::no) {
    const auto step = flow.advance();
    (to_target ? counters_.bytes_to_guest : counters_.bytes_to_client) += flow.take_written();
    switch (step) {
      case relay::Flow::Step::wait_read:
        co_await from.async_wait(Wait::wait_read, net::as_result);
        break;
      case relay::Flow::Step::wait_write:
        co_await to.async_wait(Wait::wait_write, net::as_result);
        break;
      case relay::Flow::Step::yield:
        co_await asio::post(asio::use_awaitable);
        break;
      case relay::Flow::Step::finished:
        co_return;
      case relay::Flow::Step::sink_reset:
        if (to_target) down_->cut();
        [[fallthrough]];
      case relay::Flow::Step::broken:
        broken_ = true;
        if (!to_target) end(Ended::reset);
        co_return;
      case relay::Flow::Step::source_failed:
      case relay::Flow::Step::sink_failed:
        end(Ended::reset);
        co_return;
    }
  }
}

void Connection::watch_client() {
  // Once: what is left after an event that is no error would be reported again and again.
  client_.async_wait(Wait::wait_error, [self = shared_from_this()](std::error_code cancelled) {
    if (cancelled || self->ended_ != Ended::no) return;
    int error = 0;
    socklen_t length = sizeof error;
    (void)::getsockopt(self->client_.native_handle(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) self->end(Ended::reset);
  });
}

void Connection::end(Ended reason) {
  if (ended_ != Ended::no) return;
  ended_ = reason;
  counters_.reset += reason == Ended::reset ? 1 : 0;
  counters_.idle_closed += reason == Ended::idle ? 1 : 0;
  counters_.connect_failed += reason == Ended::unreachable ? 1 : 0;
  ending_.expires_at(Clock::time_point::min());  // also for a wait that starts later
  client_.cancel();
  if (target_.is_open()) target_.cancel();
}

bool Connection::idle(Clock::time_point now, milliseconds limit) {
  // Before the target is reached, kReach is the bound.
  if (!up_) return false;
  const std::uint64_t progress = up_->progress() + down_->progress();
  if (progress != seen_) {
    seen_ = progress;
    moved_ = now;
  }
  return now - moved_ >= limit;
}

void Connection::close() {
  if (ended_ != Ended::orderly) {
    reset_on_close(client_.native_handle());
    if (target_.is_open()) reset_on_close(target_.native_handle());
  }
  std::error_code ignored;
  up_.reset();
  down_.reset();
  client_.close(ignored);
  target_.close(ignored);
}

}  // namespace causeway::host
