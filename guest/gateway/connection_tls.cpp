// SPDX-License-Identifier: Apache-2.0
// The connection whose TLS ends here: its handshake, that with the upstream where the route wants
// one, and what the relay's ends mean.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <new>

#include "common/net/stream.hpp"
#include "guest/gateway/connection.hpp"
#include "guest/gateway/tls/secret_file.hpp"

namespace causeway::gateway {

namespace {

// The engine's own text for the log: the fault, and what mbedTLS says of it.
std::string describe(const tls::Engine& engine) {
  std::string text(tls::name(engine.fault()));
  if (engine.fault() == tls::Fault::alert_received) text += " " + std::to_string(engine.alert());
  if (engine.error_code() != 0) text += " (" + tls::mbedtls_text(engine.error_code()) + ")";
  return text;
}

void count(std::array<Counter, static_cast<std::size_t>(tls::Fault::count_)>& faults,
           const tls::Engine& engine) {
  faults.at(static_cast<std::size_t>(engine.fault())).add();
}

}  // namespace

void Connection::begin_tls() {
  const RouteTls& terms = snapshot().tls->routes[match_.route];
  const bool h2 = match_.mode == RouteMatch::Mode::terminate_h2;
  const auto& profile = h2 ? terms.client_h2 : terms.client;
  // A route terminates only where there are certificates; they may be gone since this snapshot.
  if (!context_.tls || !profile) return refuse(End::own_fault, Alert::internal_error);
  Sniff& sniff = *sniff_;
  phase_ = Phase::handshake;
  try {
    auto engine = std::make_unique<tls::Engine>(*context_.tls, profile,
                                                std::string(sniff.hello.hello().server_name));
    const Terminated::Side side{client_.get(), listener_.tcp, false,
                                net::default_max_write_of(listener_.vsock)};
    tls_ = std::make_unique<Terminated>(context_.pool, context_.counters, std::move(engine), side);
  } catch (const std::bad_alloc&) {
    return refuse(End::no_descriptors, Alert::internal_error);
  }
  const std::size_t size =
      join_records(std::span(sniff.buffer.bytes.get(), sniff.end).subspan(sniff.begin));
  // Where the end was seen already, its edge is gone: it has to be read for.
  const bool dry = sniff.dry && !client_ended_;
  const auto shake = tls_->start(std::move(sniff.buffer), sniff.begin, size, dry);
  sniff_.reset();
  shaken(shake);
}

void Connection::shaken(Terminated::Shake shake) {
  switch (shake) {
    case Terminated::Shake::wait:
      if (tls_->waits_for_client_room() && !watch_for_room()) return end(End::own_fault);
      return;
    case Terminated::Shake::done:
      count_handshake();
      return dial();
    case Terminated::Shake::client_left:
      return end(End::client_left);
    case Terminated::Shake::failed:
      count(context_.counters.tls_faults, tls_->engine());
      log::debug("TLS with the client failed: {}", describe(tls_->engine()));
      return refuse(End::tls_failed, Alert::internal_error);
  }
}

void Connection::count_handshake() {
  const tls::Engine& engine = tls_->engine();
  WorkerCounters& counters = context_.counters;
  (engine.resumed() ? counters.handshakes_resumed : counters.handshakes_full).add();
  (engine.version() == tls::Version::tls13 ? counters.tls_1_3 : counters.tls_1_2).add();
  const std::string_view cipher = engine.cipher();
  if (cipher.find("CHACHA20") != std::string_view::npos) {
    counters.chacha20_poly1305.add();
  } else if (cipher.find("AES_128") != std::string_view::npos ||
             cipher.find("AES128") != std::string_view::npos) {
    counters.aes_128_gcm.add();
  } else {
    counters.aes_256_gcm.add();
  }
}

Terminated::Side Connection::upstream_side() const {
  const bool tcp = upstream_.family == AF_INET || upstream_.family == AF_INET6;
  return {upstream_.fd.get(), tcp, false, net::default_max_write_of(upstream_.family == AF_VSOCK)};
}

void Connection::start_tls_relay(std::uint32_t events) {
  if (upstream_.family == AF_UNIX) net::tune_stream(upstream_.fd.get());
  dialler_.reset();
  if (route().config.proxy_protocol == ProxyOut::off) return begin_upstream_tls({}, events);
  const net::ProxyHeader header = proxy_header();
  begin_upstream_tls(header.bytes(), events);
}

// The upstream is offered what the client has agreed to, and nothing else.
const std::shared_ptr<const tls::Profile>& Connection::upstream_profile() const {
  const RouteTls& terms = snapshot().tls->routes[match_.route];
  const auto protocol = std::find(terms.upstream_protocols.begin(), terms.upstream_protocols.end(),
                                  tls_->engine().alpn());
  return terms.upstream.at(static_cast<std::size_t>(protocol - terms.upstream_protocols.begin()));
}

// TLS 1.2's is there with the handshake, TLS 1.3's comes as a ticket behind it.
void Connection::keep_upstream_session() {
  if (tls_->upstream_engine() == nullptr) return;
  context_.upstream_sessions.keep(upstream_.slot->key(), upstream_profile(),
                                  tls_->take_upstream_session());
}

void Connection::begin_upstream_tls(std::span<const std::byte> first, std::uint32_t events) {
  const RouteTls& terms = snapshot().tls->routes[match_.route];
  if (terms.upstream.empty()) return run_tls_relay(first, events);
  std::string name = terms.upstream_name;
  if (name.empty()) {
    const Address& address = route().upstreams[upstream_.upstream].config.address;
    if (const auto* tcp = std::get_if<TcpAddress>(&address.value)) name = tcp->host;
    if (name.ends_with('.')) name.pop_back();  // of DNS, not of the name
  }
  phase_ = Phase::upstream_handshake;
  Terminated::Shake shake = Terminated::Shake::failed;
  try {
    const auto& profile = upstream_profile();
    const auto session = context_.upstream_sessions.take(upstream_.slot->key(), profile.get());
    shake = tls_->start_upstream(
        upstream_side(),
        tls::Engine::client(*context_.tls, profile, std::move(name), session.get()), first);
  } catch (const std::bad_alloc&) {
    return refuse(End::no_descriptors, Alert::internal_error);
  }
  arm();
  upstream_shaken(shake, events);
}

void Connection::upstream_shaken(Terminated::Shake shake, std::uint32_t events) {
  switch (shake) {
    case Terminated::Shake::wait:
      return;
    case Terminated::Shake::done: {
      const bool resumed = tls_->upstream_engine()->resumed();
      WorkerCounters& counters = context_.counters;
      (resumed ? counters.upstream_handshakes_resumed : counters.upstream_handshakes_full).add();
      keep_upstream_session();
      return run_tls_relay({}, events);
    }
    case Terminated::Shake::client_left:
      return refuse(End::upstream_tls, Alert::internal_error);
    case Terminated::Shake::failed:
      break;
  }
  const tls::Engine& engine = *tls_->upstream_engine();
  count(context_.counters.upstream_tls_faults, engine);
  if (context_.log.take()) {
    log::warn("{}: TLS with the upstream failed: {}{}", route().config.label, describe(engine),
              context_.log.suppressed_text());
  }
  refuse(End::upstream_tls, Alert::internal_error);
}

void Connection::run_tls_relay(std::span<const std::byte> first, std::uint32_t events) {
  context_.counters.relayed.add();
  phase_ = Phase::relay;
  moved_at_ = context_.now;
  set_idle_deadline();
  auto outcome = tls_->relay(upstream_side(), first);
  if (!outcome && client_events_ != 0) outcome = tls_->on_client(client_events_);
  // What came together with the connect has had its edge.
  const std::uint32_t readable = events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR);
  if (!outcome && readable != 0) outcome = tls_->on_upstream(readable);
  after_tls(outcome);
}

void Connection::after_tls(const std::optional<Terminated::Finish>& outcome) {
  if (!outcome) {
    if (tls_->waits_for_client_room() && !watch_for_room()) return end(End::own_fault);
    if (tls_->wants_turn() && !std::exchange(in_turns_, true)) context_.turns.push_back(this);
    return;
  }
  keep_upstream_session();
  if (tls_->truncated()) context_.counters.truncated.add();
  if (tls_->upstream_truncated()) context_.counters.upstream_truncated.add();
  switch (*outcome) {
    case Terminated::Finish::orderly:
      if (tls_->client_ended()) return end(End::orderly);
      // It said close_notify; its FIN is on its way, or waits for ours.
      (void)::shutdown(client_.get(), SHUT_WR);
      return linger(End::orderly, true);
    case Terminated::Finish::client_reset:
      return end(End::client_reset);
    case Terminated::Finish::upstream_reset:
      return linger(End::upstream_reset, tls_->answered());
    case Terminated::Finish::tls_failed:
    case Terminated::Finish::upstream_tls_failed:
      return tls_broke(*outcome);
  }
}

// The alert is on its way to the client; what the upstream was sent is cut off.
void Connection::tls_broke(Terminated::Finish outcome) {
  if (outcome == Terminated::Finish::tls_failed) {
    count(context_.counters.tls_faults, tls_->engine());
    log::debug("TLS with the client broke: {}", describe(tls_->engine()));
    return refuse(End::tls_broken, Alert::internal_error);
  }
  count(context_.counters.upstream_tls_faults, *tls_->upstream_engine());
  log::debug("TLS with the upstream broke: {}", describe(*tls_->upstream_engine()));
  refuse(End::upstream_tls_broken, Alert::internal_error);
}

}  // namespace causeway::gateway
