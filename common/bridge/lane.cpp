// SPDX-License-Identifier: Apache-2.0
#include "common/bridge/lane.hpp"

#include <pthread.h>

#include <csignal>
#include <system_error>
#include <utility>

namespace causeway::bridge {

Lane::Lane(asio::io_context& control, int tap_queue, std::function<void(LaneEnd)> on_end)
    : control_(control), tap_queue_(tap_queue), on_end_(std::move(on_end)) {}

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
  // Signals belong to the control thread; the new thread inherits the mask of this moment.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  Result<void> result;
  try {
    thread_ = std::thread(&Lane::thread_main, this, ++generation_, settings, std::move(prefill));
    running_ = true;
  } catch (const std::system_error& error) {
    stream_.reset();
    result = Error{"lane thread: " + std::string(error.what()), error.code().value()};
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return result;
}

void Lane::thread_main(std::uint64_t generation, PumpSettings settings,
                       std::vector<std::byte> prefill) {
  pthread_setname_np(pthread_self(), "lane");
  Pump pump(tap_queue_, stream_.get(), settings, buffers_, counters_, *pump_control_);
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
