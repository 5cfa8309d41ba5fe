// SPDX-License-Identifier: Apache-2.0
// The connection from its route on: dialling, the relay, and what its events mean in each phase.
#include <linux/sockios.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/net/endpoints.hpp"
#include "common/net/stream.hpp"
#include "guest/gateway/connection.hpp"

namespace causeway::gateway {

namespace {

constexpr std::uint32_t kUpstreamEvents = EPOLLIN | EPOLLPRI | EPOLLOUT | EPOLLRDHUP | EPOLLET;

int error_of(int fd) {
  int error = 0;
  socklen_t length = sizeof error;
  return ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

// Bytes that the peer's kernel has not taken; 0 where the socket cannot say.
std::uint64_t unsent_of(int fd) {
  int bytes = 0;
  return ::ioctl(fd, SIOCOUTQ, &bytes) == 0 && bytes > 0 ? static_cast<std::uint64_t>(bytes) : 0;
}

// What a client may still send while it reads the end of its answer.
constexpr std::uint64_t kMaxLinger = std::uint64_t{64} << 20;

}  // namespace

// ---- dialling ----

void Connection::dial() {
  const Route& to = route();
  auto& turn = epoch_->turns[match_.route];
  const Candidates candidates = choose(to.config.choice, to.upstreams, turn, clock());
  if (candidates.count == 0) {
    const bool full = candidates.reason == Candidates::None::upstream_limit;
    return refuse(full ? End::upstream_limit : End::no_upstream, Alert::internal_error);
  }
  phase_ = Phase::dial;
  // A VMM's socket always connects: it would win before the guest is asked. Those are dialled in
  // turn.
  const bool races = to.config.choice == Choice::race && candidates.count > 1 &&
                     std::none_of(to.upstreams.begin(), to.upstreams.end(), [](const auto& view) {
                       return !view.targets.empty() && view.targets.front().hvsock_port != 0;
                     });
  const bool again = dialler_.has_value();  // after a full backlog: the time goes on
  dialler_.emplace(to, match_.port, candidates, races);
  if (!again) set_deadline(snapshot().timeouts.connect);
  if (races) {
    race_width_ = std::max(2U, to.config.race);
    race();
  } else {
    dial_next();
  }
}

void Connection::dial_next() {
  for (;;) {
    auto attempt = dialler_->next(clock());
    if (!attempt) return nothing_left();
    context_.counters.connect_attempts.add();
    upstream_ = std::move(*attempt);
    if (!context_.watch(upstream_.fd.get(), this, Ready::upstream, kUpstreamEvents)) {
      return refuse(End::no_descriptors, Alert::internal_error);
    }
    // While there is somewhere else to go, no attempt takes all the time that is left.
    attempt_deadline_ = TimerWheel::kNever;
    if (dialler_->more() && deadline_ != TimerWheel::kNever && deadline_ > context_.now) {
      attempt_deadline_ = context_.now + (deadline_ - context_.now) / 2;
    }
    arm();
    if (upstream_.connected) connected(0);
    return;
  }
}

void Connection::race() {
  while (phase_ == Phase::dial && !upstream_.fd.valid()) {
    const auto running = static_cast<std::size_t>(std::count_if(
        racers_.begin(), racers_.end(), [](const auto& racer) { return !racer->over; }));
    if (running >= race_width_) break;
    auto attempt = dialler_->next(clock());
    if (!attempt) {
      if (running == 0) return nothing_left();
      break;
    }
    context_.counters.connect_attempts.add();
    auto racer = std::make_unique<Racer>();
    racer->owner = this;
    racer->attempt = std::move(*attempt);
    if (!context_.watch(racer->attempt.fd.get(), racer.get(), Ready::attempt, kUpstreamEvents)) {
      if (running == 0) refuse(End::no_descriptors, Alert::internal_error);
      return;
    }
    racers_.push_back(std::move(racer));
    if (racers_.back()->attempt.connected) return on_attempt(*racers_.back(), EPOLLOUT);
  }
  // Those that are silent must not keep the others from being tried.
  attempt_deadline_ = TimerWheel::kNever;
  if (dialler_->more() && deadline_ != TimerWheel::kNever && deadline_ > context_.now) {
    attempt_deadline_ = context_.now + (deadline_ - context_.now) / 2;
  }
  arm();
}

// Every upstream has failed. One that was only busy is asked again, for as long as there is time.
void Connection::nothing_left() {
  if (!dialler_->met_full_backlog() || context_.now >= deadline_) {
    return refuse(dialler_->failure(), Alert::internal_error);
  }
  attempt_deadline_ = context_.now + 1;  // with the wheel's next tick
  arm();
}

void Connection::on_attempt(Racer& racer, std::uint32_t events) {
  if (racer.over || phase_ != Phase::dial) return;
  if ((events & (EPOLLERR | EPOLLHUP)) != 0) {
    if (const int code = error_of(racer.attempt.fd.get()); code != 0) {
      dialler_->failed(racer.attempt, end_of_errno(code), clock());
      racer.over = true;
      racer.attempt = {};
      context_.counters.connect_retries.add(dialler_->more() ? 1 : 0);
      return race();
    }
  } else if ((events & EPOLLOUT) == 0) {
    return;
  }
  racer.over = true;
  upstream_ = std::move(racer.attempt);
  for (const auto& loser : racers_) {
    loser->over = true;
    loser->attempt = {};  // closed: nothing was sent to it
  }
  if (!context_.watch(upstream_.fd.get(), this, Ready::upstream, kUpstreamEvents, true)) {
    return refuse(End::no_descriptors, Alert::internal_error);
  }
  connected(0);  // modifying its entry reports again what is ready
}

void Connection::attempt_failed(int code) {
  dialler_->failed(upstream_, end_of_errno(code), clock());
  upstream_ = {};
  phase_ = Phase::dial;
  if (!dialler_->more()) return nothing_left();
  context_.counters.connect_retries.add();
  dial_next();
}

// Whether the upstream is one of our own listeners, by whatever name or address it was reached.
bool Connection::leads_to_us() const {
  const auto listens = [this](const net::Endpoint& peer) {
    return std::any_of(context_.own->begin(), context_.own->end(), [&](const net::Endpoint& own) {
      const bool any = std::all_of(own.ip.bytes.begin(), own.ip.bytes.end(),
                                   [](std::uint8_t byte) { return byte == 0; });
      // [::] takes IPv4 too.
      const bool covers = any && (own.ip.v6 || !peer.ip.v6);
      return own.port == peer.port && (covers || own.ip == peer.ip);
    });
  };
  const bool port_is_ours =
      std::any_of(context_.own->begin(), context_.own->end(),
                  [this](const net::Endpoint& own) { return own.port == upstream_.port; });
  if (!port_is_ours) return false;
  const auto ends = net::endpoints_of_socket(upstream_.fd.get());
  if (!ends.client || !listens(*ends.client)) return false;
  // On this machine: its own address, or loopback (127.0.0.0/8 is reached from 127.0.0.1).
  const bool loopback = !ends.client->ip.v6 && ends.client->ip.bytes[0] == 127;
  return loopback || ends.client->ip == ends.server->ip;
}

void Connection::connected(std::uint32_t events) {
  if (upstream_.port != 0 && leads_to_us()) {
    return refuse(End::forbidden_port, Alert::internal_error);
  }
  if (upstream_.hvsock_port != 0) return say_connect();
  upstream_.slot->note_connected();
  if (tls_) return start_tls_relay(events);
  start_relay(events);
}

// Hybrid vsock: the VMM is asked for the guest's port first.
void Connection::say_connect() {
  phase_ = Phase::hvsock;
  hvsock_ = {};
  const std::string request = proto::hvsock_request(upstream_.hvsock_port);
  const ssize_t sent =
      ::send(upstream_.fd.get(), request.data(), request.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  // A fresh socket takes 20 bytes.
  if (sent != static_cast<ssize_t>(request.size())) return attempt_failed(ECONNREFUSED);
  arm();
  read_hvsock_reply();
}

void Connection::read_hvsock_reply() {
  for (;;) {
    // One byte at a time: what follows the line is the guest's.
    std::byte next{};
    const ssize_t count = ::recv(upstream_.fd.get(), &next, 1, MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return;
    if (count <= 0) return attempt_failed(ECONNREFUSED);
    switch (hvsock_.add(next)) {
      case proto::HvsockReply::State::need_more:
        break;
      case proto::HvsockReply::State::malformed:
        return attempt_failed(ECONNREFUSED);
      case proto::HvsockReply::State::accepted:
        upstream_.slot->note_connected();
        // The guest's first bytes may have come with the line: their edge is gone.
        return tls_ ? start_tls_relay(EPOLLIN) : start_relay(EPOLLIN);
    }
  }
}

// ---- the relay ----

void Connection::start_relay(std::uint32_t events) {
  const int upstream = upstream_.fd.get();
  const bool upstream_tcp = upstream_.family == AF_INET || upstream_.family == AF_INET6;
  if (upstream_.family == AF_UNIX) net::tune_stream(upstream);

  const Snapshot& settings = snapshot();
  relay::Gate gate;
  gate.after = settings.splice_after.value_or(relay::Gate::kNever);
  if (settings.splice_after_time) {
    gate.now = &context_.now;
    gate.at = context_.now + static_cast<std::uint64_t>(settings.splice_after_time->count());
  }
  const bool splice = settings.splice_after || settings.splice_after_time;
  const bool upstream_vsock = upstream_.family == AF_VSOCK;
  const Passthrough::Side client_side{client_.get(), listener_.tcp, splice && !listener_.vsock,
                                      net::default_max_write_of(listener_.vsock)};
  const Passthrough::Side upstream_side{upstream, upstream_tcp, splice && !upstream_vsock,
                                        net::default_max_write_of(upstream_vsock)};

  Sniff& sniff = *sniff_;
  std::size_t ours = 0;
  const ProxyOut proxy = route().config.proxy_protocol;
  if (proxy != ProxyOut::off) {
    const auto header = proxy_header();
    ours = header.size;
    const auto room = std::span(sniff.buffer.bytes.get(), sniff.begin).last(ours);
    std::memcpy(room.data(), header.bytes().data(), ours);
  }
  context_.counters.relayed.add();
  relay_.emplace(context_.pool, context_.counters, gate, client_side, upstream_side);
  relay_->put_first(std::move(sniff.buffer), sniff.begin - ours, sniff.end - sniff.begin + ours,
                    ours, sniff.dry);
  sniff_.reset();
  dialler_.reset();
  phase_ = Phase::relay;
  moved_at_ = context_.now;
  set_idle_deadline();
  auto outcome = relay_->start();
  if (!outcome && client_ended_) outcome = relay_->on_client(EPOLLRDHUP);
  // What came together with the connect has had its edge.
  const std::uint32_t readable = events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR);
  if (!outcome && readable != 0) outcome = relay_->on_upstream(readable);
  after(outcome);
}

// What tells the upstream who the client is, where the route wants that.
net::ProxyHeader Connection::proxy_header() {
  if (!source_.client && !listener_.proxy_protocol) {
    source_ = net::endpoints_of_socket(client_.get());
  }
  if (route().config.proxy_protocol == ProxyOut::v1) return net::encode_proxy_v1(source_);
  net::ProxyTlvs tlvs;
  if (tls_) {
    const tls::Engine& engine = tls_->engine();
    tlvs.alpn = engine.alpn();
    tlvs.authority = engine.server_name();
    tlvs.ssl = true;
    tlvs.tls_version = engine.version() == tls::Version::tls13 ? "TLSv1.3" : "TLSv1.2";
    tlvs.cipher = engine.cipher();
  } else {
    tlvs.authority = sniff_->hello.hello().server_name;
  }
  return net::encode_proxy_v2(source_, tlvs);
}

void Connection::after(const std::optional<End>& outcome) {
  if (outcome) {
    const bool unread = *outcome == End::orderly && !relay_->client_ended();
    if (unread || *outcome == End::upstream_reset) return linger(*outcome, relay_->answered());
    return end(*outcome);
  }
  if (relay_->waits_for_client_room() && !watch_for_room()) return end(End::own_fault);
  if (relay_->wants_turn() && !std::exchange(in_turns_, true)) context_.turns.push_back(this);
}

// The upstream is done with, in order or not, and the client is not. Closed or reset at once, its
// socket would throw away what the client's kernel has not taken yet: the end of the answer.
void Connection::linger(End reason, bool answered) {
  cut_ = !answered;
  const bool nothing_on_its_way = unsent_of(client_.get()) == 0;
  if (reason != End::orderly && nothing_on_its_way) return end(reason);
  context_.counters.end(reason);
  counted_ = true;
  relay_.reset();
  tls_.reset();
  drop_upstreams();
  leave_route();
  phase_ = Phase::linger;
  may_discard_ = kMaxLinger;
  set_deadline(snapshot().timeouts.shutdown);
  linger_until_ = deadline_;
  check_linger();
}

void Connection::check_linger() {
  if (unsent_of(client_.get()) == 0 && cut_) return end(End::upstream_reset);
  if (context_.now >= linger_until_) return end(cut_ ? End::upstream_reset : End::orderly);
  if (!cut_) discard();  // until the client's own end
  if (phase_ != Phase::linger) return;
  deadline_ = std::min(linger_until_, context_.now + 2 * TimerWheel::kTick);
  arm();
}

bool Connection::watch_for_room() {
  return std::exchange(client_for_room_, true) || watch_client(EPOLLOUT);
}

void Connection::go_on() {
  in_turns_ = false;
  if (phase_ != Phase::relay) return;
  if (tls_) return after_tls(tls_->go_on());
  after(relay_->go_on());
}

void Connection::on_client(std::uint32_t events) {
  switch (phase_) {
    case Phase::relay:
      if (tls_) return after_tls(tls_->on_client(events));
      return after(relay_->on_client(events));
    case Phase::handshake:
      return shaken(tls_->shake(events));
    case Phase::proxy:
    case Phase::hello:
      if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) client_ended_ = true;
      return read_hello();
    case Phase::dial:
    case Phase::hvsock:
    case Phase::upstream_handshake:
      if ((events & EPOLLERR) != 0) return end(End::client_reset);
      if (tls_) {
        client_events_ |= events;
        return;
      }
      if ((events & EPOLLIN) != 0) sniff_->dry = false;
      if ((events & (EPOLLRDHUP | EPOLLHUP)) != 0) client_ended_ = true;
      return;
    case Phase::refuse:
      return discard();
    case Phase::linger:
      if ((events & EPOLLERR) != 0) return end(End::client_reset);
      return check_linger();
    case Phase::over:
      return;
  }
}

void Connection::on_upstream(std::uint32_t events) {
  switch (phase_) {
    case Phase::relay:
      if (tls_) return after_tls(tls_->on_upstream(events));
      return after(relay_->on_upstream(events));
    case Phase::upstream_handshake:
      return upstream_shaken(tls_->shake_upstream(events), events);
    case Phase::dial:
      if ((events & (EPOLLERR | EPOLLHUP)) != 0) {
        if (const int code = error_of(upstream_.fd.get()); code != 0) return attempt_failed(code);
      } else if ((events & EPOLLOUT) == 0) {
        return;
      }
      return connected(events);
    case Phase::hvsock:
      return read_hvsock_reply();
    case Phase::proxy:
    case Phase::hello:
    case Phase::handshake:
    case Phase::linger:
    case Phase::refuse:
    case Phase::over:
      return;
  }
}

// ---- time ----

void Connection::set_idle_deadline() {
  const Duration idle = snapshot().timeouts.idle;
  const auto limit = static_cast<std::uint64_t>(idle.value.count());
  // A fifth of `idle` late at most, and two ticks of the wheel.
  deadline_ =
      idle.never ? TimerWheel::kNever : std::min(context_.now + limit / 5, moved_at_ + limit);
  arm();
}

void Connection::check_idle() {
  const std::uint64_t progress = tls_ ? tls_->progress() : relay_->progress();
  // What was written may lie in a send buffer for long, and is then only seen to move there.
  const std::uint64_t unsent = unsent_of(client_.get()) + unsent_of(upstream_.fd.get());
  if (progress != progress_ || unsent != unsent_) {
    progress_ = progress;
    unsent_ = unsent;
    moved_at_ = context_.now;
  } else if (tls_) {
    tls_->shrink();
  }
  const Duration idle = snapshot().timeouts.idle;
  if (!idle.never && context_.now - moved_at_ >= static_cast<std::uint64_t>(idle.value.count())) {
    return end(End::idle);
  }
  set_idle_deadline();
}

void Connection::on_timer() {
  const bool counted = phase_ == Phase::refuse || phase_ == Phase::linger;
  if (context_.now >= total_deadline_ && !counted) return end(End::total);
  switch (phase_) {
    case Phase::proxy:
      return end(End::proxy_timeout);
    case Phase::hello:
    case Phase::handshake:
      return refuse(End::handshake_timeout, Alert::handshake_failure);
    case Phase::upstream_handshake:
      return refuse(End::connect_timeout, Alert::internal_error);
    case Phase::dial:
    case Phase::hvsock:
      if (context_.now < deadline_) {
        if (std::any_of(racers_.begin(), racers_.end(),
                        [](const auto& one) { return !one->over; })) {
          ++race_width_;
          return race();
        }
        if (!upstream_.fd.valid()) return dial();  // after a full backlog
        return attempt_failed(ETIMEDOUT);
      }
      if (upstream_.fd.valid()) dialler_->failed(upstream_, End::connect_timeout, clock());
      for (const auto& racer : racers_) {
        if (!racer->over) dialler_->failed(racer->attempt, End::connect_timeout, clock());
      }
      return refuse(End::connect_timeout, Alert::internal_error);
    case Phase::relay:
      return check_idle();
    case Phase::linger:
      return check_linger();
    case Phase::refuse:
      return end(End::orderly);  // counted by refuse()
    case Phase::over:
      return;
  }
}

}  // namespace causeway::gateway
