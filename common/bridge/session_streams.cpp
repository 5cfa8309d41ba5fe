// SPDX-License-Identifier: Apache-2.0
// How a session comes by its streams: the accept loop and the connect loops.
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/bridge/session.hpp"
#include "common/log.hpp"

namespace causeway::bridge {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kMinBackoff{50};
constexpr milliseconds kMaxBackoff{2000};
// A peer that spoke native before is not taken for a plain one until it failed this often in a row:
// a helper that is restarted or slow looks the same at first.
constexpr unsigned kDoubts = 3;

}  // namespace

// ---- listening side ----

void Session::listen(net::Listener listener, std::function<Result<net::Listener>()> reopen) {
  idle_state_ = "listening";
  set_idle();
  if (listener.is_connected_stream()) {
    single_stream_ = true;
    asio::co_spawn(control_, greet_accepted(listener.take()), on_coroutine_end());
    return;
  }
  net::AcceptorHandlers handlers;
  handlers.take = [this](UniqueFd stream) { serve(std::move(stream)); };
  handlers.fault = [this](const std::string& message) { note_failure(message); };
  handlers.reopen = std::move(reopen);
  handlers.misses_somebody = [this] { return !any_running(); };
  acceptor_.emplace(control_, std::move(listener), std::move(handlers));
}

void Session::wait_for_streams() {
  idle_state_ = "listening";
  set_idle();
}

void Session::serve(UniqueFd stream) {
  if (greeting_ >= options_.max_handshakes) {
    count_end(EndReason::too_many_handshakes);
    return;
  }
  asio::co_spawn(control_, greet_accepted(std::move(stream)), on_coroutine_end());
}

asio::awaitable<void> Session::greet_accepted(UniqueFd stream) {
  asio::posix::stream_descriptor descriptor(control_, stream.release());
  const proto::Hello limits = hello(0);
  const std::function<bool()> occupied = [this] { return any_running(); };
  ++greeting_;
  auto result = co_await greet_as_listener(descriptor, options_.wire, limits, occupied);
  --greeting_;
  if (stopping_) {
    co_return;
  }
  if (const auto* failure = std::get_if<GreetingFailure>(&result)) {
    count_end(failure->reason);
    if (peer_log_.take()) {
      log::warn("connection from {} not taken: {} ({}){}",
                net::describe_peer(descriptor.native_handle()), name(failure->reason),
                failure->detail, peer_log_.suppressed_text());
    }
    co_return;
  }
  auto& greeting = std::get<Greeting>(result);
  const unsigned lane = greeting.wire == proto::Wire::native ? greeting.theirs.lane : 0;
  auto attached = attach(lane, UniqueFd(descriptor.release()), std::move(greeting));
  if (!attached) {
    log::error("{}", attached.error().message);
  }
}

// ---- connecting side ----

void Session::connect(const Address& address) {
  idle_state_ = "connecting";
  set_idle();
  if (::getrandom(id_.data(), id_.size(), 0) != static_cast<ssize_t>(id_.size())) {
    std::random_device random;  // an old kernel without getrandom()
    std::generate(id_.begin(), id_.end(), [&random] { return std::byte(random() & 0xff); });
  }
  for (unsigned lane = 0; lane < lanes_.size(); ++lane) {
    asio::co_spawn(control_, connect_loop(address, lane), on_coroutine_end());
  }
}

milliseconds Session::next_backoff(unsigned lane) {
  auto& backoff = memory_[lane].backoff;
  backoff = std::clamp(backoff * 2, kMinBackoff, kMaxBackoff);
  // Between half and the whole: many guests of one host that went away do not come back at once.
  std::uniform_int_distribution<milliseconds::rep> pick(backoff.count() / 2, backoff.count());
  return milliseconds{pick(jitter_)};
}

void Session::note_failure(const std::string& message) {
  if (message != last_message_) {  // once for each kind of failure
    last_message_ = message;
    log::warn("{}; trying again", message);
  }
  const std::lock_guard lock(status_mutex_);
  ++status_.connect_failures_total;
  status_.last_error = message;
}

asio::awaitable<void> Session::connect_loop(Address address, unsigned lane) {
  while (!stopping_) {
    // The lanes behind the first wait for the agreement that it brings.
    while (lane > 0 && !stopping_ &&
           (wire_ != proto::Wire::native || lane >= agreed_lanes_ || !any_running())) {
      co_await changed_.async_wait(net::as_result);
    }
    if (stopping_) {
      co_return;
    }
    const bool was_plain_next = plain_next_;
    const bool worked = co_await connect_once(address, lane);
    if (std::exchange(memory_[lane].displaced, false)) {
      memory_[lane].backoff = kMaxBackoff;
    } else if (worked) {
      memory_[lane].backoff = milliseconds{0};
    }
    if (stopping_) {
      co_return;
    }
    if (!was_plain_next && plain_next_) {
      continue;  // the peer answered, only not in our words: speak plain at once
    }
    const auto pause = next_backoff(lane);
    co_await net::sleep_for(pause);
  }
}

asio::awaitable<bool> Session::connect_once(Address address, unsigned lane) {
  const bool plain =
      options_.wire == WireChoice::plain || (options_.wire == WireChoice::automatic && plain_next_);
  plain_next_ = false;
  auto connected = co_await net::connect_stream(address, options_.stream, options_.connect_timeout);
  if (!connected) {
    note_failure(connected.error().message);
    co_return false;
  }
  asio::posix::stream_descriptor descriptor(control_, connected->release());
  const auto choice = plain ? WireChoice::plain : options_.wire;
  const proto::Hello ours = hello(lane);
  auto result = co_await greet_as_connector(descriptor, choice, ours);
  if (stopping_) {
    co_return false;
  }
  if (const auto* failure = std::get_if<GreetingFailure>(&result)) {
    count_end(failure->reason);
    if (failure->reason == EndReason::handshake_fallback && lane == 0 && !any_running() &&
        ++not_native_ >= (native_seen_ ? kDoubts : 1U)) {
      log::info("{}: the peer does not speak the native wire, using the plain wire",
                to_string(address));
      plain_next_ = true;
    } else {
      note_failure(to_string(address) + ": " + failure->detail);
    }
    co_return false;
  }
  auto& greeting = std::get<Greeting>(result);
  if (greeting.wire == proto::Wire::native) {
    not_native_ = 0;
    native_seen_ = true;
  }
  greeting.theirs.session = id_;
  const std::optional<proto::Offer> offer = greeting.theirs.offer;
  const auto& heard = lanes_[lane]->counters().from_wire_bytes;
  const auto before = heard.get();
  auto attached = attach(lane, UniqueFd(descriptor.release()), std::move(greeting));
  if (!attached) {
    note_failure(attached.error().message);
    co_return false;
  }
  last_message_.clear();
  if (offer) {
    take_offer(*offer);
  }
  if (on_up_ != nullptr) {
    on_up_();
  }
  while (lanes_[lane]->running()) {
    co_await changed_.async_wait(net::as_result);
  }
  co_return heard.get() != before;
}

}  // namespace causeway::bridge
