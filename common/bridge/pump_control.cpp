// SPDX-License-Identifier: Apache-2.0
#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

#include "common/bridge/pump.hpp"

namespace causeway::bridge {

Result<std::unique_ptr<PumpControl>> PumpControl::create() {
  UniqueFd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event.valid()) {
    return system_error("eventfd");
  }
  return std::unique_ptr<PumpControl>(new PumpControl(std::move(event)));
}

void PumpControl::signal() {
  const std::uint64_t one = 1;
  // Fails only when the counter is full, and then the event is set already.
  [[maybe_unused]] const auto written = ::write(event_.get(), &one, sizeof one);
}

void PumpControl::stop(EndReason reason) {
  EndReason none = EndReason::count_;
  reason_.compare_exchange_strong(none, reason);
  signal();
}

void PumpControl::request_ping() {
  ping_.store(true);
  signal();
}

void PumpControl::request_proof() {
  proof_.store(true);
  signal();
}

void PumpControl::send_offer(std::vector<std::byte> json) {
  {
    const std::lock_guard lock(offer_mutex_);
    offer_ = std::move(json);
  }
  signal();
}

PumpControl::Requests PumpControl::take() {
  std::uint64_t ignored = 0;
  [[maybe_unused]] const auto got = ::read(event_.get(), &ignored, sizeof ignored);
  Requests requests{reason_.load(), ping_.exchange(false), proof_.exchange(false), {}};
  const std::lock_guard lock(offer_mutex_);
  requests.offer = std::exchange(offer_, {});
  return requests;
}

}  // namespace causeway::bridge
