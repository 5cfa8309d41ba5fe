// SPDX-License-Identifier: Apache-2.0
#include "common/net/acceptor.hpp"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

namespace causeway::net {

namespace {

bool is_vsock(int fd) {
  int domain = 0;
  socklen_t length = sizeof domain;
  return ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 && domain == AF_VSOCK;
}

int duplicate(int fd) {
  return ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
}

// The machine's trouble, not the socket's: a new socket would not help.
bool out_of_resources(int code) {
  return code == EMFILE || code == ENFILE || code == ENOMEM || code == ENOBUFS;
}

}  // namespace

struct Acceptor::State {
  State(asio::io_context& context, Listener first, AcceptorHandlers taken, AcceptorTimes given)
      : listener(std::move(first)),
        descriptor(context, duplicate(listener->fd())),
        timer(context),
        handlers(std::move(taken)),
        times(given) {}
  std::optional<Listener> listener;
  asio::posix::stream_descriptor descriptor;  // a duplicate, for Asio to wait on
  asio::steady_timer timer;
  AcceptorHandlers handlers;
  AcceptorTimes times;
  std::uint64_t renewals = 0;
  bool ended = false;
};

Acceptor::Acceptor(asio::io_context& context, Listener listener, AcceptorHandlers handlers,
                   AcceptorTimes times)
    : state_(std::make_shared<State>(context, std::move(listener), std::move(handlers), times)) {
  asio::co_spawn(context, run(state_), asio::detached);
  if ((times.renew_any || is_vsock(state_->listener->fd())) && state_->handlers.reopen &&
      state_->handlers.misses_somebody) {
    asio::co_spawn(context, renew(state_), asio::detached);
  }
}

Acceptor::~Acceptor() {
  state_->ended = true;
  state_->handlers = {};
  state_->listener.reset();
  asio::error_code ignored;
  state_->descriptor.close(ignored);
  state_->timer.cancel();
}

std::uint64_t Acceptor::renewals() const {
  return state_->renewals;
}

void Acceptor::reopen(State& state) {
  if (!state.handlers.reopen) {
    return;
  }
  // The old one goes first, its duplicate too: two sockets cannot have one address. Closing wakes
  // run(), which looks again.
  asio::error_code ignored;
  state.listener.reset();
  state.descriptor.close(ignored);
  auto opened = state.handlers.reopen();
  if (!opened) {
    state.handlers.fault(opened.error().message);
    return;
  }
  state.listener = std::move(*opened);
  state.descriptor.assign(duplicate(state.listener->fd()), ignored);
  ++state.renewals;
}

asio::awaitable<void> Acceptor::run(std::shared_ptr<State> state) {
  unsigned failures = 0;
  while (!state->ended) {
    if (!state->listener) {  // the last attempt to make another failed
      state->timer.expires_after(state->times.pause);
      co_await state->timer.async_wait(as_result);
      if (!state->ended) {
        reopen(*state);
      }
      continue;
    }
    UniqueFd stream(
        ::accept4(state->listener->fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (stream.valid()) {
      failures = 0;
      tune_stream(stream.get());
      state->handlers.take(std::move(stream));
      // A flood of connections leaves the control thread its other work.
      co_await asio::post(state->descriptor.get_executor(), asio::use_awaitable);
      continue;
    }
    const int code = errno;
    if (code == EAGAIN || code == EWOULDBLOCK) {
      const auto [error] = co_await state->descriptor.async_wait(
          asio::posix::stream_descriptor::wait_read, as_result);
      if (error && error != asio::error::operation_aborted) {
        ++failures;
      }
      continue;
    }
    if (code == EINTR || code == ECONNABORTED) {
      continue;
    }
    state->handlers.fault(system_error("accept", code).message);
    if (!out_of_resources(code) && ++failures >= state->times.failures) {
      failures = 0;
      reopen(*state);
    }
    state->timer.expires_after(state->times.pause);
    co_await state->timer.async_wait(as_result);
  }
}

asio::awaitable<void> Acceptor::renew(std::shared_ptr<State> state) {
  asio::steady_timer timer(state->descriptor.get_executor());
  while (!state->ended) {
    timer.expires_after(state->times.renewal);
    co_await timer.async_wait(as_result);
    if (!state->ended && state->handlers.misses_somebody()) {
      reopen(*state);
    }
  }
}

}  // namespace causeway::net
