// SPDX-License-Identifier: Apache-2.0
// One guest of the helper: its TAP, and the session of its connections.
#pragma once

#include <chrono>
#include <utility>

#include "common/bridge/program.hpp"
#include "common/bridge/session.hpp"
#include "common/bridge/tap.hpp"
#include "host/config.hpp"
#include "host/helper.hpp"

namespace causeway::host {

struct Helper::Guest {
  Guest(asio::io_context& control, const GuestConfig& given, bridge::Tap opened,
        std::uint32_t its_number)
      : config(given),
        number(its_number),
        tap(std::move(opened)),
        session(control, tap, options_of(given)) {
    session.set_offer(offer_of(config));
  }

  static bridge::SessionOptions options_of(const GuestConfig& config) {
    auto options = bridge::session_options(config.link);
    options.max_handshakes = config.max_handshakes;
    return options;
  }

  GuestConfig config;
  const std::uint32_t number;  // of accept_unknown; 0: named
  bridge::Tap tap;
  bridge::Session session;
  Clock::time_point seen = Clock::now();  // when it last had a connection
};

// A listening socket that the broker opened; its file is the broker's to remove.
inline Result<net::Listener> adopt_listener(UniqueFd fd) {
  return net::Listener::open(Address{FdAddress{fd.release()}}, {});
}

}  // namespace causeway::host
