// SPDX-License-Identifier: Apache-2.0
#include "common/bridge/lane.hpp"

#include <pthread.h>

#include <system_error>
#include <utility>

#include "common/os/blocked_signals.hpp"

namespace causeway::bridge {

Lane::Lane(asio::io_context& control, int tap_queue, std::function<void(LaneEnd)> on_end,
           std::function<void(std::span<const std::byte>)> on_offer)
    : control_(control),
      tap_queue_(tap_queue),
      on_end_(std::move(on_end)),
      on_offer_(std::move(on_offer)) {}

Lane::~Lane() {
  stop(EndReason::stopped);
}

Result<void> Lane::start(UniqueFd stream, const PumpSettings& settings,
                         std::vector<std::byte> prefill) {
  auto pump_control = PumpControl::create();
  if (!pump_control) {
    return pump_control.error();
  }
  pump_control_ = std::move(*pump_control);
  stream_ = std::move(stream);
  const BlockedSignals blocked;
  Result<void> result;
  try {
    thread_ = std::thread(&Lane::thread_main, this, ++generation_, settings, std::move(prefill));
    running_ = true;
  } catch (const std::system_error& error) {
    stream_.reset();
    result = Error{"lane thread: " + std::string(error.what()), error.code().value()};
  }
  return result;
}

void Lane::thread_main(std::uint64_t generation, PumpSettings settings,
                       std::vector<std::byte> prefill) {
  pthread_setname_np(pthread_self(), "lane");
  Pump pump(tap_queue_, stream_.get(), settings, buffers_, counters_, *pump_control_);
  pump.on_offer([this](std::span<const std::byte> json) { keep_offer(json); });
  pump.feed(prefill);
  const EndReason reason = pump.run();
  const LaneEnd end{reason, pump.bad_header()};
  asio::post(control_, [this, generation, end] {
    if (running_ && generation == generation_) {
      stop(end.reason);
    }
    on_end_(end);
  });
}

void Lane::request_ping() {
  if (running_) {
    pump_control_->request_ping();
  }
}

// The latest offer is the only one that counts, so a peer that sends many costs no more memory and
// no more of the control thread's time than it takes to look at one after another.
void Lane::keep_offer(std::span<const std::byte> json) {
  const std::lock_guard lock(offer_mutex_);
  offer_.assign(json.begin(), json.end());
  if (std::exchange(offer_posted_, true)) {
    return;
  }
  asio::post(control_, [this] {
    std::vector<std::byte> body;
    {
      const std::lock_guard inner(offer_mutex_);
      body.swap(offer_);
      offer_posted_ = false;
    }
    on_offer_(body);
  });
}

void Lane::request_proof() {
  if (running_) {
    pump_control_->request_proof();
  }
}

void Lane::send_offer(std::vector<std::byte> json) {
  if (running_) {
    pump_control_->send_offer(std::move(json));
  }
}

void Lane::stop(EndReason reason) {
  if (!running_) {
    return;
  }
  pump_control_->stop(reason);
  thread_.join();
  stream_.reset();
  running_ = false;
}

}  // namespace causeway::bridge
