// SPDX-License-Identifier: Apache-2.0
// The connection's life up to its route, its refusal and its end; the rest is in
// connection_relay.cpp.
#include "guest/gateway/connection.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/log.hpp"
#include "common/net/endpoints.hpp"

namespace causeway::gateway {

namespace {

// Room in front of the ClientHello for the PROXY header that an upstream may want.
constexpr std::size_t kHeadroom = net::ProxyHeader::kMaxSize;
// The largest PROXY header and ClientHello together; the readers refuse more before it is full.
constexpr std::size_t kLargeHello =
    kHeadroom + net::kMaxProxyV2 + ClientHelloReader::kMaxHelloBytes + 1024;
// What a refused client may still send before we stop listening to it.
constexpr std::uint64_t kMaxDiscard = std::uint64_t{256} * 1024;

End end_of(HelloFault fault) {
  switch (fault) {
    case HelloFault::not_tls:
    case HelloFault::not_a_hello:
      return End::not_tls;
    case HelloFault::too_long:
      return End::hello_too_long;
    case HelloFault::bad_name:
      return End::bad_name;
    case HelloFault::none:
    case HelloFault::malformed:
      break;
  }
  return End::malformed_hello;
}

Alert alert_for(End reason) {
  switch (reason) {
    case End::no_name:
    case End::unknown_name:
    case End::forbidden_port:
      return Alert::unrecognized_name;
    case End::no_protocol:
      return Alert::no_application_protocol;
    case End::handshake_timeout:
      return Alert::handshake_failure;
    default:
      return Alert::internal_error;
  }
}

void reset_on_close(int fd) {
  const linger now{.l_onoff = 1, .l_linger = 0};
  (void)::setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
}

}  // namespace

Connection::Connection(WorkerContext& context, const ListenerInfo& listener, UniqueFd client,
                       ConnectionSlot slot)
    : context_(context),
      listener_(listener),
      epoch_(context.epoch),
      client_(std::move(client)),
      slot_(std::move(slot)) {
  ++epoch_->users;
  next_ = context_.first;
  if (next_ != nullptr) next_->previous_ = this;
  context_.first = this;
  context_.load.fetch_add(1, std::memory_order_relaxed);
}

Connection::~Connection() {
  TimerWheel::cancel(*this);
  context_.release(epoch_);
}

Upstream::Clock::time_point Connection::clock() const {
  // steady_clock is CLOCK_MONOTONIC, which the worker's milliseconds count.
  return Upstream::Clock::time_point(std::chrono::milliseconds(context_.now));
}

void Connection::start() {
  const Timeouts& timeouts = snapshot().timeouts;
  if (!timeouts.total.never) {
    total_deadline_ = context_.now + static_cast<std::uint64_t>(timeouts.total.value.count());
  }
  sniff_ = std::make_unique<Sniff>();
  if (listener_.proxy_protocol) {
    if (!is_trusted()) return end(End::untrusted_proxy);
    sniff_->proxy.emplace(*listener_.proxy_protocol);
    phase_ = Phase::proxy;
    set_deadline(timeouts.proxy_header);
  } else {
    set_deadline(timeouts.handshake);
  }
  read_hello();
  if (phase_ == Phase::over || client_watched_) return;
  if (!watch_client()) end(End::no_descriptors);
}

bool Connection::is_trusted() const {
  // Only tcp says where a client comes from; who reaches a unix or vsock listener is the operator's
  // to decide (config.hpp).
  if (!listener_.tcp) return true;
  const auto client = net::endpoints_of_socket(client_.get()).client;
  if (!client) return false;
  return std::any_of(listener_.trusted.begin(), listener_.trusted.end(),
                     [&](const Cidr& network) { return network.contains(client->ip); });
}

bool Connection::watch_client(std::uint32_t more_events) {
  const bool again = std::exchange(client_watched_, true);
  const std::uint32_t events = EPOLLIN | EPOLLPRI | EPOLLRDHUP | EPOLLET | more_events;
  return context_.watch(client_.get(), this, Ready::client, events, again);
}

void Connection::set_deadline(Duration limit) {
  deadline_ = limit.never ? TimerWheel::kNever
                          : context_.now + static_cast<std::uint64_t>(limit.value.count());
  arm();
}

void Connection::arm() {
  std::uint64_t next = std::min(deadline_, total_deadline_);
  if (phase_ == Phase::dial || phase_ == Phase::hvsock) next = std::min(next, attempt_deadline_);
  context_.wheel.arm(*this, next);
}

// ---- the ClientHello ----

bool Connection::make_room() {
  Sniff& sniff = *sniff_;
  if (!sniff.buffer.valid()) {
    sniff.buffer = context_.pool.take_buffer(false);
    sniff.begin = sniff.end = kHeadroom;
    return true;
  }
  if (sniff.end < sniff.buffer.size) return true;
  if (sniff.buffer.size >= kLargeHello) return false;
  relay::RelayBuffer larger = relay::RelayPool::make_buffer(kLargeHello);
  std::memcpy(larger.bytes.get(), sniff.buffer.bytes.get(), sniff.end);
  context_.pool.give_back(std::exchange(sniff.buffer, std::move(larger)));
  return true;
}

void Connection::read_hello() {
  while (phase_ == Phase::proxy || phase_ == Phase::hello) {
    Sniff& sniff = *sniff_;
    if (!make_room()) return refuse(End::hello_too_long, Alert::record_overflow);
    const auto room = std::span(sniff.buffer.bytes.get(), sniff.buffer.size).subspan(sniff.end);
    const ssize_t count = ::recv(client_.get(), room.data(), room.size(), MSG_DONTWAIT);
    if (count > 0) {
      sniff.end += static_cast<std::size_t>(count);
      // As in Flow: TCP that gave less than was asked for is empty.
      sniff.dry = listener_.tcp && static_cast<std::size_t>(count) < room.size();
      parse();
      if (sniff_ && sniff_->dry && !client_ended_) return;
    } else if (count < 0 && errno == EAGAIN) {
      sniff.dry = true;
      if (sniff.end == kHeadroom) context_.pool.give_back(std::exchange(sniff.buffer, {}));
      return;
    } else if (count == 0 || errno != EINTR) {
      return end(End::client_left);
    }
  }
}

void Connection::parse() {
  if (phase_ == Phase::proxy) parse_proxy();
  if (phase_ == Phase::hello) parse_hello();
}

void Connection::parse_proxy() {
  Sniff& sniff = *sniff_;
  switch (sniff.proxy->read(sniff.bytes())) {
    case net::ProxyReader::State::need_more:
      return;
    case net::ProxyReader::State::refused:
      return end(End::bad_proxy_header);
    case net::ProxyReader::State::done:
      break;
  }
  source_ = sniff.proxy->source();
  sniff.begin += sniff.proxy->size();
  phase_ = Phase::hello;
  set_deadline(snapshot().timeouts.handshake);
}

void Connection::parse_hello() {
  Sniff& sniff = *sniff_;
  if (sniff.bytes().empty()) return;
  switch (sniff.hello.read(sniff.bytes())) {
    case ClientHelloReader::State::need_more:
      return;
    case ClientHelloReader::State::refused: {
      const End reason = end_of(sniff.hello.fault());
      if (sniff.hello.fault() == HelloFault::not_tls) {
        const auto match = snapshot().table->find_non_tls();
        if (match) return take_route({match, reason}, Alert::internal_error);
      }
      return refuse(reason, sniff.hello.alert());
    }
    case ClientHelloReader::State::done:
      break;
  }
  const auto found = snapshot().table->find(sniff.hello.hello());
  take_route(found, alert_for(found.reason));
}

void Connection::take_route(const RouteTable::Found& found, Alert alert) {
  if (!found.match) return refuse(found.reason, alert);
  match_ = *found.match;
  RouteState& state = *route().state;
  if (!state.active.take(route().config.max_connections)) {
    return refuse(End::route_limit, Alert::internal_error);
  }
  route_state_ = &state;
  state.total.fetch_add(1, std::memory_order_relaxed);
  if (match_.mode == RouteMatch::Mode::passthrough) return dial();
  begin_tls();
}

// ---- refusal and end ----

void Connection::refuse(End reason, Alert alert) {
  context_.counters.end(reason);
  counted_ = true;
  log::debug("client refused: {}", name(reason));
  // What a client does wrong is no warning.
  const bool upstreams_fault = (reason >= End::upstream_limit && reason <= End::own_fault) ||
                               reason == End::upstream_tls_broken;
  if (route_state_ != nullptr && upstreams_fault && context_.log.take()) {
    log::warn("{}: clients are refused: {}{}", route().config.label, name(reason),
              context_.log.suppressed_text());
  }
  if (sniff_ && sniff_->buffer.valid()) context_.pool.give_back(std::move(sniff_->buffer));
  sniff_.reset();
  dialler_.reset();
  // What an upstream was sent so far must not look complete.
  if (upstream_.fd.valid() && phase_ == Phase::relay) reset_on_close(upstream_.fd.get());
  drop_upstreams();
  leave_route();
  // A client that never reads gets no more than this: its socket took it, or did not.
  if (tls_) {
    tls_->refuse(static_cast<std::uint8_t>(alert));
    tls_.reset();
  } else {
    const auto record = alert_record(alert);
    (void)::send(client_.get(), record.data(), record.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  (void)::shutdown(client_.get(), SHUT_WR);
  phase_ = Phase::refuse;
  may_discard_ = kMaxDiscard;
  set_deadline(snapshot().timeouts.shutdown);
  // Closed with bytes unread the socket would send a reset, which can overtake the alert.
  discard();
  if (phase_ != Phase::over && !client_watched_ && !watch_client()) end(reason);
}

void Connection::discard() {
  std::array<std::byte, 4096> scratch;
  for (;;) {
    const ssize_t count = ::recv(client_.get(), scratch.data(), scratch.size(), MSG_DONTWAIT);
    if (count > 0) {
      discarded_ += static_cast<std::uint64_t>(count);
      if (discarded_ > may_discard_) return end(End::client_left);
    } else if (count < 0 && errno == EAGAIN) {
      return;
    } else if (count == 0 || errno != EINTR) {
      return end(End::orderly);  // counted by refuse()
    }
  }
}

void Connection::leave_route() {
  if (route_state_ != nullptr) route_state_->active.give_back();
  route_state_ = nullptr;
}

void Connection::drop_upstreams() {
  upstream_ = {};
  for (const auto& racer : racers_) {  // kept: an event at hand may name one
    racer->over = true;
    racer->attempt = {};
  }
}

void Connection::end(End reason) {
  if (phase_ == Phase::over) return;
  if (!std::exchange(counted_, true)) {
    context_.counters.end(reason);
    log::debug("connection ended: {}", name(reason));
  }
  phase_ = Phase::over;
  TimerWheel::cancel(*this);
  relay_.reset();
  tls_.reset();
  if (sniff_ && sniff_->buffer.valid()) context_.pool.give_back(std::move(sniff_->buffer));
  sniff_.reset();
  if (reason != End::orderly) {
    if (client_.valid()) reset_on_close(client_.get());
    if (upstream_.fd.valid()) reset_on_close(upstream_.fd.get());
  }
  client_.reset();
  drop_upstreams();
  leave_route();
  slot_ = {};
  if (next_ != nullptr) next_->previous_ = previous_;
  (previous_ != nullptr ? previous_->next_ : context_.first) = next_;
  context_.load.fetch_sub(1, std::memory_order_relaxed);
  if (in_turns_) std::erase(context_.turns, this);
  context_.over.push_back(this);
}

}  // namespace causeway::gateway
