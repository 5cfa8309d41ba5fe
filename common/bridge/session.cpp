// SPDX-License-Identifier: Apache-2.0
#include "common/bridge/session.hpp"

#include <algorithm>
#include <utility>

#include "common/log.hpp"

namespace causeway::bridge {

namespace {

std::string feature_names(proto::Features features) {
  std::string text;
  for (const auto& [bit, word] :
       {std::pair{proto::kFeatureOffload, " offload"}, std::pair{proto::kFeatureUso, " uso"},
        std::pair{proto::kFeatureKeepalive, " keepalive"}}) {
    text += (features & bit) != 0 ? word : "";
  }
  return text;
}

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
      memory_(tap.queue_count()),
      changed_(control, asio::steady_timer::time_point::max()) {
  for (unsigned i = 0; i < tap_.queue_count(); ++i) {
    lanes_.push_back(std::make_unique<Lane>(
        control_, tap_.queue(i), [this, i](LaneEnd end) { on_lane_end(i, end); },
        [this](std::span<const std::byte> json) { take_offer(json); }));
  }
  status_.lanes.resize(lanes_.size());
  status_.offloads = tap_.offloads();
  use_queues();
  asio::co_spawn(control_, keep_alive(), on_coroutine_end());
}

Session::Status Session::status() const {
  const std::lock_guard lock(status_mutex_);
  return status_;
}

bool Session::any_running() const {
  return std::any_of(lanes_.begin(), lanes_.end(),
                     [](const auto& lane) { return lane->running(); });
}

proto::Hello Session::hello(unsigned lane) const {
  proto::Hello hello;
  hello.session = id_;
  hello.lane = lane;
  hello.lanes = tap_.queue_count();
  hello.features = options_.offload ? proto::kFeatureOffload : 0;
  if (options_.offload && tap_.uso_possible()) {
    hello.features |= proto::kFeatureUso;
  }
  if (!options_.keepalive.never) {
    hello.features |= proto::kFeatureKeepalive;
  }
  hello.mtu = tap_.mtu();
  hello.max_frame = options_.max_frame;
  if (offered_ == nullptr) {  // ours to make; a connecting side keeps there what it got
    hello.offer = offer_;
  }
  return hello;
}

// A queue is in use while its lane is up. With no lane up one queue keeps what the kernel sends in
// the meantime, so that a short gap costs no retransmission.
void Session::use_queues() {
  if (stopping_) {
    return;  // the TAP may be closed by now
  }
  const bool any = any_running();
  for (unsigned pass = 0; pass < 2; ++pass) {  // those that come into use first: never none
    for (unsigned i = 0; i < lanes_.size(); ++i) {
      const bool wanted = any ? lanes_[i]->running() : i == 0;
      if (wanted == (pass == 0)) {
        if (auto used = tap_.use_queue(i, wanted); !used) {
          log::warn("{}", used.error().message);
        }
      }
    }
  }
}

// Ends what a new stream takes the place of.
Result<void> Session::make_room(unsigned index, const Greeting& greeting) {
  const bool same_session = greeting.wire == proto::Wire::native && wire_ == proto::Wire::native &&
                            greeting.theirs.session == id_;
  for (unsigned i = 0; i < lanes_.size(); ++i) {
    if (lanes_[i]->running() && (!same_session || i == index)) {
      lanes_[i]->stop(EndReason::replaced);
    }
  }
  wire_ = greeting.wire;
  agreed_lanes_ = greeting.wire == proto::Wire::native ? greeting.agreement.lanes : 1;
  if (greeting.wire == proto::Wire::native) {
    id_ = greeting.theirs.session;
  }
  // Only the software path may use what the peer does not know of.
  const bool software = greeting.wire == proto::Wire::plain ||
                        (greeting.agreement.features & proto::kFeatureOffload) == 0;
  const bool uso =
      software ? tap_.uso_possible() : (greeting.agreement.features & proto::kFeatureUso) != 0;
  const Offloads offloads{.checksum_and_tso = true, .uso = uso};
  return offloads == tap_.offloads() ? Result<void>{} : tap_.set_offloads(offloads);
}

Result<void> Session::attach(unsigned index, UniqueFd stream, Greeting greeting) {
  if (auto room = make_room(index, greeting); !room) {
    return room.error();
  }
  LaneStatus lane_status;
  lane_status.up = true;
  lane_status.transport = net::describe_transport(stream.get());
  lane_status.peer = net::describe_peer(stream.get());
  lane_status.vsock_buffer = net::effective_vsock_buffer(stream.get());
  lane_status.max_write =
      options_.max_write != 0 ? options_.max_write : net::default_max_write(stream.get());
  const bool native = greeting.wire == proto::Wire::native;
  const auto features = native ? greeting.agreement.features : 0;
  PumpSettings settings;
  settings.wire = greeting.wire;
  settings.offload = (features & proto::kFeatureOffload) != 0;
  settings.uso = tap_.offloads().uso;
  settings.mtu = native ? greeting.agreement.mtu : tap_.mtu();
  settings.max_frame = native ? greeting.agreement.max_frame : options_.max_frame;
  settings.max_write = lane_status.max_write;
  settings.busy_poll = options_.busy_poll;
  auto& memory = memory_[index];
  memory.keepalive = (features & proto::kFeatureKeepalive) != 0;
  memory.heard_at = std::chrono::steady_clock::now();
  memory.pinged = false;
  memory.proof_wanted = false;
  if (auto used = tap_.use_queue(index, true); !used) {
    return used.error();
  }
  if (auto started = lanes_[index]->start(std::move(stream), settings, std::move(greeting.rest));
      !started) {
    use_queues();
    return started.error();
  }
  ++ends_expected_;
  use_queues();
  if (peer_log_.take()) {
    log::info("lane {} connected to {}: {} wire{}, frames up to {} bytes{}", index,
              lane_status.peer, name(greeting.wire), feature_names(features), settings.max_frame,
              peer_log_.suppressed_text());
    if (settings.max_frame < tap_.mtu() + proto::kMinFrame) {
      log::warn("the peer takes frames up to {} bytes only: an MTU of {} loses the larger ones",
                settings.max_frame, tap_.mtu());
    }
  }
  const std::lock_guard lock(status_mutex_);
  status_.state = "up";
  status_.wire = greeting.wire;
  status_.offloads = tap_.offloads();
  status_.id = native ? proto::session_text(id_) : std::string();
  status_.features = features;
  status_.mtu = settings.mtu;
  status_.max_frame = settings.max_frame;
  status_.lanes[index] = std::move(lane_status);
  ++status_.connections_total;
  changed_.cancel();
  return {};
}

void Session::count_end(EndReason reason) {
  const std::lock_guard lock(status_mutex_);
  ++status_.ended[static_cast<std::size_t>(reason)];
}

void Session::set_idle() {
  const std::lock_guard lock(status_mutex_);
  status_.wire.reset();
  status_.id.clear();
  status_.features = 0;
  status_.state = idle_state_;
}

void Session::on_lane_end(unsigned index, LaneEnd end) {
  --ends_expected_;
  count_end(end.reason);
  if (end.reason == EndReason::replaced) {
    const std::lock_guard lock(status_mutex_);
    ++status_.replaced_total;
  }
  if (!lanes_[index]->running()) {
    {
      const std::lock_guard lock(status_mutex_);
      status_.lanes[index] = {};
    }
    use_queues();
    if (!any_running()) {
      set_idle();
    }
  }
  switch (end.reason) {
    case EndReason::record_too_short:
    case EndReason::record_too_long:
    case EndReason::unknown_record_type:
      if (peer_log_.take()) {
        log::warn("lane {} ended: {} (record header {:#010x}){}", index, name(end.reason),
                  end.bad_header, peer_log_.suppressed_text());
      }
      break;
    case EndReason::bye_replaced:
      log::warn("lane {} ended: another session of this guest took over", index);
      memory_[index].displaced = true;
      break;
    case EndReason::tap_error:
      log::error("TAP '{}' cannot be read any more: was it deleted?", tap_.name());
      give_up();
      break;
    default:
      if (peer_log_.take()) {
        log::info("lane {} ended: {}{}", index, name(end.reason), peer_log_.suppressed_text());
      }
  }
  if (single_stream_ && !stopping_) {
    log::error("the inherited stream has ended and there is no other");
    give_up();
  }
  changed_.cancel();
}

asio::awaitable<void> Session::keep_alive() {
  if (options_.keepalive.never) {
    co_return;
  }
  const auto interval = options_.keepalive.value;
  const auto tick = std::max(interval / 5, std::chrono::milliseconds{20});
  while (!stopping_) {
    co_await net::sleep_for(tick);
    const auto now = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      auto& memory = memory_[i];
      if (!lanes_[i]->running() || !memory.keepalive) {
        continue;
      }
      const auto heard = lanes_[i]->counters().from_wire_bytes.get();
      if (heard != memory.heard_bytes) {
        memory.heard_bytes = heard;
        memory.heard_at = now;
        memory.pinged = false;
      } else if (now - memory.heard_at >= 3 * interval) {
        lanes_[i]->stop(EndReason::keepalive_timeout);
      } else if (now - memory.heard_at >= interval && !memory.pinged) {
        lanes_[i]->request_ping();
        memory.pinged = true;
      }
    }
  }
}

void Session::set_offer(std::optional<proto::Offer> offer) {
  if (offer == offer_) {
    return;
  }
  offer_ = std::move(offer);
  if (wire_ != proto::Wire::native || !offer_) {
    return;
  }
  // Over one lane: the guest has one address, whatever the number of its streams.
  const auto lane =
      std::find_if(lanes_.begin(), lanes_.end(), [](const auto& each) { return each->running(); });
  if (lane != lanes_.end()) {
    (*lane)->send_offer(proto::encode_offer(*offer_));
  }
}

void Session::take_offer(std::span<const std::byte> json) {
  const auto ignore = [this] {
    const std::lock_guard lock(status_mutex_);
    ++status_.offers_ignored_total;
  };
  if (offered_ == nullptr) {
    ignore();  // a listening side takes none
    return;
  }
  const auto decoded = proto::decode_offer(json);
  if (const auto* offer = std::get_if<proto::Offer>(&decoded)) {
    take_offer(*offer);
    return;
  }
  ignore();
  if (peer_log_.take()) {
    log::warn("an offer from the helper is not valid ({}), ignoring it{}",
              to_string(std::get<proto::HelloError>(decoded)), peer_log_.suppressed_text());
  }
}

void Session::take_offer(const proto::Offer& offer) {
  if (offered_ != nullptr && offer_ != offer) {
    offer_ = offer;
    offered_(offer);
  }
}

void Session::renew() {
  for (auto& lane : lanes_) {
    lane->stop(EndReason::renewed);
  }
}

void Session::give_up() {
  stop();
  if (!std::exchange(failed_, true) && on_failure_ != nullptr) {
    asio::post(control_, on_failure_);
  }
}

std::function<void(std::exception_ptr)> Session::on_coroutine_end() {
  ++coroutines_;
  return [this](const std::exception_ptr& error) {
    --coroutines_;
    if (error == nullptr) {
      return;
    }
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& fault) {
      log::error("control thread: {}", fault.what());
    }
    give_up();
  };
}

void Session::request_proofs() {
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    memory_[i].proof_wanted = lanes_[i]->running();
    memory_[i].proofs_before = lanes_[i]->counters().proofs.get();
    lanes_[i]->request_proof();
  }
}

bool Session::proven() const {
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    if (memory_[i].proof_wanted && lanes_[i]->running() &&
        lanes_[i]->counters().proofs.get() == memory_[i].proofs_before) {
      return false;
    }
  }
  return true;
}

void Session::stop() {
  stopping_ = true;
  acceptor_.reset();
  for (auto& lane : lanes_) {
    lane->stop(EndReason::stopped);
  }
  changed_.cancel();
}

}  // namespace causeway::bridge
