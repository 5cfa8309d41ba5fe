// SPDX-License-Identifier: Apache-2.0
#include "guest/gateway/worker.hpp"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <system_error>

#include "common/net/stream.hpp"

namespace causeway::gateway {

namespace {

constexpr int kEvents = 256;           // in one turn
constexpr unsigned kMaxBurst = 64;     // accepts of one listener in one turn
constexpr unsigned kSweep = 4096;      // accepts of one listener before it is closed: its backlog
constexpr std::uint64_t kPause = 100;  // milliseconds without accepting

std::uint64_t clock_now() {
  timespec now{};
  (void)::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1000 +
         static_cast<std::uint64_t>(now.tv_nsec) / 1'000'000;
}

UniqueFd open_spare() {
  return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

void reset_now(UniqueFd fd) {
  const linger now{.l_onoff = 1, .l_linger = 0};
  (void)::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
}

}  // namespace

Worker::Worker(WorkerGroup& group, std::shared_ptr<const Snapshot> snapshot,
               const std::vector<WorkerListener>& listeners)
    : group_(group), context_(clock_now(), snapshot->buffer_size) {
  context_.own = &group.own;
  context_.epoch = new Epoch(std::move(snapshot), group.workers.size());
  context_.epoll.reset(::epoll_create1(EPOLL_CLOEXEC));
  event_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  spare_ = open_spare();
  if (!context_.epoll.valid() || !event_.valid() ||
      !context_.watch(event_.get(), this, Ready::mailbox, EPOLLIN)) {
    throw std::system_error(errno, std::generic_category(), "epoll");
  }
  for (const WorkerListener& listener : listeners) {
    auto listening = std::make_unique<Listening>();
    listening->of = listener;
    listeners_.push_back(std::move(listening));
    resume(*listeners_.back());
  }
}

Worker::~Worker() {
  end_all(End::drained);
  free_ended();
  context_.release(context_.epoch);
}

void Worker::run() {
  use_certificates();
  while (!stopped_ && (accepting_ || context_.first != nullptr))
    turn();
  end_all(End::drained);
  ended_.store(true, std::memory_order_relaxed);
}

// The context is made by the thread that uses it, once there is something to terminate with.
void Worker::use_certificates() {
  const auto& certificates = context_.epoch->snapshot->tls->certificates;
  if (certificates && !context_.tls) context_.tls.emplace(group_.tickets);
  const tls::KeyRing* const ring = context_.tls ? context_.tls->key_ring().get() : nullptr;
  if (context_.tls && (ring == nullptr || &ring->store() != certificates.get())) {
    context_.tls->use(certificates);
  }
}

void Worker::turn() {
  std::array<epoll_event, kEvents> events;
  const int limit = context_.turns.empty() ? context_.wheel.wait(context_.now) : 0;
  const int count = ::epoll_wait(context_.epoll.get(), events.data(), kEvents, limit);
  context_.now = clock_now();
  ++turns_;
  context_.counters.loops.add();
  if (context_.tls) context_.tls->refresh();
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    dispatch(event.data.u64, event.events);
  }
  if (!context_.turns.empty()) {
    going_on_.swap(context_.turns);
    for (Connection* connection : going_on_)
      connection->go_on();
    going_on_.clear();
  }
  context_.wheel.expire(context_.now, [this](TimerWheel::Timer& timer) { fire(timer); });
  free_ended();
  const std::size_t idle = context_.pool.idle_pipes();
  pipes_idle_.store(idle, std::memory_order_relaxed);
  pipes_in_use_.store(context_.pool.pipes() - idle, std::memory_order_relaxed);
  auto& made = context_.counters.pipes_made;
  made.add(context_.pool.pipes_made() - made.get());
}

void Worker::dispatch(std::uint64_t data, std::uint32_t events) {
  // The reverse of WorkerContext::watch(): the address of an object of the kind that the bits name.
  // It still lives: connections are freed after the turn in which they end, attempts with them.
  const std::uintptr_t address = data & ~kReadyMask;
  switch (static_cast<Ready>(data & kReadyMask)) {
    case Ready::mailbox:
      return read_mailbox();
    case Ready::listener:
      return accept_from(*reinterpret_cast<Listening*>(address));
    case Ready::client:
      return reinterpret_cast<Connection*>(address)->on_client(events);
    case Ready::upstream:
      return reinterpret_cast<Connection*>(address)->on_upstream(events);
    case Ready::attempt: {
      auto& racer = *reinterpret_cast<Connection::Racer*>(address);
      return racer.owner->on_attempt(racer, events);
    }
  }
}

void Worker::fire(TimerWheel::Timer& timer) {
  if (&timer == &drain_timer_) return end_all(End::drained);
  for (const auto& listening : listeners_) {
    if (&timer == listening.get()) return resume(*listening);
  }
  Connection::of_timer(timer).on_timer();
}

void Worker::free_ended() {
  for (Connection* connection : context_.over)
    delete connection;
  context_.over.clear();
}

void Worker::end_all(End reason) {
  while (context_.first != nullptr)
    context_.first->end(reason);
}

// ---- the mailbox ----

void Worker::wake() {
  const std::uint64_t one = 1;
  (void)!::write(event_.get(), &one, sizeof one);  // fails only when it is awake already
}

void Worker::publish(std::shared_ptr<const Snapshot> snapshot) {
  {
    const std::lock_guard lock(mailbox_.mutex);
    mailbox_.snapshot = std::move(snapshot);
  }
  wake();
}

void Worker::drain(Duration limit) {
  {
    const std::lock_guard lock(mailbox_.mutex);
    mailbox_.drain = limit;
    mailbox_.closed = true;
  }
  wake();
}

void Worker::stop() {
  {
    const std::lock_guard lock(mailbox_.mutex);
    mailbox_.stop = mailbox_.closed = true;
  }
  wake();
}

bool Worker::offer(HandedOver& connection) {
  bool first = false;
  {
    const std::lock_guard lock(mailbox_.mutex);
    if (mailbox_.handed_over.size() >= kQueue || mailbox_.closed) return false;
    first = mailbox_.handed_over.empty();
    mailbox_.handed_over.push_back(std::move(connection));
    // Counted at once, so that others see it before it is taken.
    context_.load.fetch_add(1, std::memory_order_relaxed);
  }
  if (first) wake();
  return true;
}

void Worker::read_mailbox() {
  std::uint64_t ignored = 0;
  (void)!::read(event_.get(), &ignored, sizeof ignored);
  std::deque<HandedOver> handed_over;
  std::shared_ptr<const Snapshot> snapshot;
  std::optional<Duration> drain;
  {
    const std::lock_guard lock(mailbox_.mutex);
    handed_over.swap(mailbox_.handed_over);
    snapshot.swap(mailbox_.snapshot);
    drain.swap(mailbox_.drain);
    stopped_ = mailbox_.stop;
    context_.load.fetch_sub(static_cast<std::uint32_t>(handed_over.size()),
                            std::memory_order_relaxed);
  }
  if (snapshot) {
    context_.pool.set_large_buffer(snapshot->buffer_size);
    const std::uint64_t turn = context_.counters.relayed.get();
    context_.release(std::exchange(context_.epoch, new Epoch(std::move(snapshot), turn)));
    use_certificates();
  }
  for (HandedOver& connection : handed_over) {
    context_.counters.taken_over.add();
    begin(connection.listener, std::move(connection.fd), std::move(connection.slot));
  }
  if (drain) {
    stop_accepting();
    if (!drain->never) {
      context_.wheel.arm(drain_timer_,
                         context_.now + static_cast<std::uint64_t>(drain->value.count()));
    }
  }
}

// ---- accepting ----

void Worker::accept_from(Listening& listening) {
  // One at a time while they come singly; a listener that was ready in the turn before too gets
  // twice as many. So the accept() that would only say EAGAIN is rare.
  listening.burst =
      listening.last_turn + 1 == turns_ ? std::min(listening.burst * 2, kMaxBurst) : 1;
  listening.last_turn = turns_;
  for (unsigned i = 0; i < listening.burst && accepting_ && !listening.paused; ++i) {
    if (!accept_one(listening)) return;
  }
}

bool Worker::accept_one(Listening& listening) {
  UniqueFd fd(::accept4(listening.of.fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (fd.valid()) {
    admit(listening, std::move(fd));
    return true;
  }
  switch (errno) {
    case EAGAIN:
      return false;
    case EMFILE:
    case ENFILE:
      context_.counters.accept_errors.add();
      out_of_descriptors(listening);
      return false;
    case ENOBUFS:
    case ENOMEM:
      context_.counters.accept_errors.add();
      pause(listening);
      return false;
    case ECONNABORTED:  // the client left before it was accepted
    case EINTR:
      return true;
    default:
      context_.counters.accept_errors.add();
      pause(listening);
      return false;
  }
}

void Worker::admit(Listening& listening, UniqueFd fd) {
  context_.counters.accepted.add();
  if (!group_.connections.take(context_.epoch->snapshot->max_connections)) {
    context_.counters.end(End::gateway_limit);
    return reset_now(std::move(fd));
  }
  ConnectionSlot slot(group_.connections);
  if (group_.rebalance) {
    Worker* least = this;
    for (Worker* other : group_.workers) {
      if (other->load() < least->load()) least = other;
    }
    const std::uint32_t other = least->load();
    if (least != this && load() >= other + 1 + other / 4) {
      HandedOver connection{std::move(fd), listening.of.info.index, std::move(slot)};
      if (least->offer(connection)) return context_.counters.handed_over.add();
      context_.counters.hand_over_full.add();
      fd = std::move(connection.fd);
      slot = std::move(connection.slot);
    }
  }
  begin(listening.of.info.index, std::move(fd), std::move(slot));
}

void Worker::begin(std::uint32_t listener, UniqueFd fd, ConnectionSlot slot) {
  const ListenerInfo& info = listeners_[listener]->of.info;
  // Freed by free_ended(), after its end() put it on the list.
  (new Connection(context_, info, std::move(fd), std::move(slot)))->start();
}

void Worker::out_of_descriptors(Listening& listening) {
  spare_.reset();
  for (unsigned i = 0; i < kMaxBurst; ++i) {
    UniqueFd fd(::accept4(listening.of.fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) break;
    context_.counters.accepted.add();
    context_.counters.end(End::no_descriptors);
    reset_now(std::move(fd));
  }
  spare_ = open_spare();
  if (accept_log_.take()) {
    log::warn("out of descriptors: new connections are reset{}", accept_log_.suppressed_text());
  }
  pause(listening);
}

void Worker::pause(Listening& listening) {
  if (std::exchange(listening.paused, true)) return;
  (void)::epoll_ctl(context_.epoll.get(), EPOLL_CTL_DEL, listening.of.fd, nullptr);
  context_.wheel.arm(listening, context_.now + kPause);
}

void Worker::resume(Listening& listening) {
  if (!accepting_) return;
  listening.paused = false;
  const std::uint32_t exclusive = listening.of.shared ? std::uint32_t{EPOLLEXCLUSIVE} : 0;
  if (!context_.watch(listening.of.fd, &listening, Ready::listener, EPOLLIN | exclusive)) {
    pause(listening);  // tried again
  }
}

void Worker::stop_accepting() {
  if (!accepting_) return;
  for (const auto& listening : listeners_) {
    // Who has connected already is served: a closed listener would reset them.
    for (unsigned i = 0; i < kSweep; ++i) {
      if (!accept_one(*listening)) break;
    }
    if (!listening->paused) {
      (void)::epoll_ctl(context_.epoll.get(), EPOLL_CTL_DEL, listening->of.fd, nullptr);
    }
    TimerWheel::cancel(*listening);
  }
  accepting_ = false;
  if (group_.on_swept) group_.on_swept();
}

}  // namespace causeway::gateway
