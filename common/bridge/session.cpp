// SPDX-License-Identifier: Apache-2.0
#include "common/bridge/session.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/log.hpp"

namespace causeway::bridge {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kMinBackoff{50};
constexpr milliseconds kMaxBackoff{2000};
// After an accept() that the machine's limits made fail, and a listener that keeps failing.
constexpr milliseconds kAcceptPause{100};

}  // namespace

std::string_view name(WireChoice choice) {
  switch (choice) {
    case WireChoice::plain:
      return "plain";
    case WireChoice::native:
      return "native";
    case WireChoice::automatic:
      break;
  }
  return "auto";
}

std::string_view name(proto::Wire wire) {
  return wire == proto::Wire::plain ? "plain" : "native";
}

Session::Session(asio::io_context& control, Tap& tap, SessionOptions options)
    : control_(control),
      tap_(tap),
      options_(std::move(options)),
      lane_ended_(control, asio::steady_timer::time_point::max()) {
  for (unsigned i = 0; i < tap_.queue_count(); ++i) {
    lanes_.push_back(std::make_unique<Lane>(control_, tap_.queue(i),
                                            [this, i](LaneEnd end) { on_lane_end(i, end); }));
  }
  status_.lanes.resize(lanes_.size());
}

void Session::set_state(std::string state) {
  const std::lock_guard lock(status_mutex_);
  status_.state = std::move(state);
}

Session::Status Session::status() const {
  const std::lock_guard lock(status_mutex_);
  return status_;
}

Result<void> Session::attach(UniqueFd stream) {
  Lane& lane = *lanes_.front();
  const bool replaces = lane.running();
  LaneStatus lane_status;
  lane_status.up = true;
  lane_status.transport = net::describe_transport(stream.get());
  lane_status.peer = net::describe_peer(stream.get());
  lane_status.vsock_buffer = net::effective_vsock_buffer(stream.get());
  lane_status.max_write =
      options_.max_write != 0 ? options_.max_write : net::default_max_write(stream.get());
  PumpSettings settings;
  settings.max_frame = options_.max_frame;
  settings.max_write = lane_status.max_write;
  if (replaces) {
    log::info("a newer connection from {} replaces the one before", lane_status.peer);
    lane.stop(EndReason::replaced);
  }
  if (auto started = lane.start(std::move(stream), settings, {}); !started) {
    return started.error();
  }
  log::info("connected to {}: {} wire, frames up to {} bytes", lane_status.peer,
            name(settings.wire), settings.max_frame);
  const std::lock_guard lock(status_mutex_);
  status_.state = "up";
  status_.wire = settings.wire;
  status_.lanes.front() = std::move(lane_status);
  ++status_.connections_total;
  status_.replaced_total += replaces ? 1 : 0;
  return {};
}

void Session::on_lane_end(std::size_t index, LaneEnd end) {
  {
    const std::lock_guard lock(status_mutex_);
    ++status_.ended[static_cast<std::size_t>(end.reason)];
    if (!lanes_[index]->running()) {
      status_.lanes[index] = {};
      status_.wire.reset();
      status_.state = idle_state_;
    }
  }
  switch (end.reason) {
    case EndReason::record_too_short:
    case EndReason::record_too_long:
    case EndReason::unknown_record_type:
      log::warn("connection ended: {} (record header {:#010x}, frames are 14 to {} bytes)",
                name(end.reason), end.bad_header, options_.max_frame);
      break;
    case EndReason::tap_error:
      log::error("TAP '{}' cannot be read any more", tap_.name());
      tap_lost_ = true;
      stop();
      control_.stop();
      break;
    default:
      log::info("connection ended: {}", name(end.reason));
  }
  lane_ended_.cancel();
}

asio::awaitable<void> Session::listen(net::Listener listener) {
  idle_state_ = "listening";
  set_state(idle_state_);
  if (listener.is_connected_stream()) {
    if (auto attached = attach(listener.take()); !attached) {
      log::error("{}", attached.error().message);
    }
    co_return;
  }
  asio::posix::stream_descriptor acceptor(control_, ::dup(listener.fd()));
  while (!stopping_) {
    UniqueFd stream(::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (stream.valid()) {
      net::tune_stream(stream.get());
      if (auto attached = attach(std::move(stream)); !attached) {
        log::error("{}", attached.error().message);
      }
      continue;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      const auto [error] =
          co_await acceptor.async_wait(asio::posix::stream_descriptor::wait_read, net::as_result);
      if (error) {
        co_return;
      }
    } else if (errno != EINTR && errno != ECONNABORTED) {
      log::warn("accept: {}; trying again", system_error("failed").message);
      co_await net::sleep_for(kAcceptPause);
    }
  }
}

milliseconds Session::next_backoff() {
  backoff_ = std::clamp(backoff_ * 2, kMinBackoff, kMaxBackoff);
  // Between half and the whole: many guests of one host that went away do not come back at once.
  std::uniform_int_distribution<milliseconds::rep> pick(backoff_.count() / 2, backoff_.count());
  return milliseconds{pick(jitter_)};
}

asio::awaitable<void> Session::connect(Address address) {
  idle_state_ = "connecting";
  set_state(idle_state_);
  std::string last_message;
  while (!stopping_) {
    auto stream = co_await net::connect_stream(address, options_.stream, options_.connect_timeout);
    if (stopping_) {
      co_return;
    }
    const auto connected_at = std::chrono::steady_clock::now();
    Result<void> attached;
    if (stream) {
      attached = attach(std::move(*stream));
    } else {
      attached = stream.error();
    }
    if (attached) {
      last_message.clear();
      while (lanes_.front()->running()) {
        co_await lane_ended_.async_wait(net::as_result);
      }
      if (std::chrono::steady_clock::now() - connected_at >= kMaxBackoff) {
        backoff_ = milliseconds{0};
      }
    } else {
      if (attached.error().message != last_message) {  // once for each kind of failure
        last_message = attached.error().message;
        log::warn("{}; trying again", last_message);
      }
      const std::lock_guard lock(status_mutex_);
      ++status_.connect_failures_total;
      status_.last_error = last_message;
    }
    if (!stopping_) {
      const auto pause = next_backoff();
      co_await net::sleep_for(pause);
    }
  }
}

void Session::stop() {
  stopping_ = true;
  for (auto& lane : lanes_) {
    lane->stop(EndReason::stopped);
  }
  lane_ended_.cancel();
}

}  // namespace causeway::bridge
