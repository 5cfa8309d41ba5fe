// SPDX-License-Identifier: Apache-2.0
#include "guest/gateway/upstream/health.hpp"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <utility>

#include "common/log.hpp"
#include "common/net/stream.hpp"

namespace causeway::gateway {

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// For a timeout or interval of `never`: a check that does not end is none.
constexpr milliseconds kLongest{60'000};

milliseconds span_of(const Duration& duration) {
  return duration.never ? kLongest : std::max(duration.value, milliseconds{1});
}

// As connect_stream(), from a target as the workers have it. The connection is closed at once.
asio::awaitable<Result<void>> try_target(Target target, milliseconds limit) {
  if (target.hvsock_port != 0) {
    // A target with a hvsock port is a unix socket.
    const auto& un = reinterpret_cast<const sockaddr_un&>(target.address.storage);
    const Address address{HybridVsockAddress{un.sun_path, target.hvsock_port}};
    const net::StreamOptions options;
    const auto stream = co_await net::connect_stream(address, options, limit);
    if (!stream) co_return stream.error();
    co_return Result<void>{};
  }
  UniqueFd fd(::socket(target.address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) co_return system_error("socket");
  if (::connect(fd.get(), target.address.get(), target.address.length) == 0) {
    co_return Result<void>{};
  }
  if (errno != EINPROGRESS) co_return system_error("connect");
  asio::posix::stream_descriptor descriptor(co_await asio::this_coro::executor);
  asio::error_code failed;
  descriptor.assign(fd.get(), failed);
  if (failed) co_return Error{"connect: " + failed.message(), failed.value()};
  (void)fd.release();  // the descriptor's now
  const auto wait_type = asio::posix::stream_descriptor::wait_write;
  const net::Ready ready = co_await net::wait_for(descriptor, wait_type, limit);
  if (ready == net::Ready::timed_out) co_return system_error("connect", ETIMEDOUT);
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(descriptor.native_handle(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) co_return system_error("connect", error);
  co_return Result<void>{};
}

// Up when one target is. Each gets its share of the time that is left.
asio::awaitable<Result<void>> try_targets(std::vector<Target> targets, milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  Result<void> outcome = Error{"no address"};
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    const auto share = left / static_cast<milliseconds::rep>(targets.size() - i);
    const milliseconds time = std::max(share, milliseconds{1});
    outcome = co_await try_target(targets[i], time);
    if (outcome) break;
  }
  co_return outcome;
}

// No fault of the upstream's.
bool is_our_lack(int code) {
  return code == EMFILE || code == ENFILE || code == ENOBUFS || code == ENOMEM || code == ENOSPC;
}

struct Entry {
  Entry(asio::io_context& context, HealthChecker::Check given)
      : check(std::move(given)), timer(context) {}
  HealthChecker::Check check;
  asio::steady_timer timer;  // to the next check
  std::uint32_t failures = 0;
  std::uint32_t successes = 0;
  bool removed = false;
};

}  // namespace

struct HealthChecker::Impl : std::enable_shared_from_this<HealthChecker::Impl> {
  using EntryPtr = std::shared_ptr<Entry>;

  explicit Impl(asio::io_context& given) : context(given), random(std::random_device{}()) {}

  void start_waiting() {
    while (running < kMaxAtOnce && !line.empty()) {
      const EntryPtr entry = line.front();
      line.pop_front();
      if (entry->removed) continue;
      if (entry->check.targets.empty()) {
        later(entry);
        continue;
      }
      ++running;
      asio::co_spawn(context, probe(shared_from_this(), entry), asio::detached);
    }
  }

  static asio::awaitable<void> probe(std::shared_ptr<Impl> self, EntryPtr entry) {
    const milliseconds limit = span_of(entry->check.settings.timeout);
    const auto outcome = co_await try_targets(entry->check.targets, limit);
    --self->running;
    if (self->stopped) co_return;
    if (!entry->removed) {
      note(*entry, outcome);
      self->later(entry);
    }
    self->start_waiting();
  }

  static void note(Entry& entry, const Result<void>& outcome) {
    if (!outcome && is_our_lack(outcome.error().code)) return;
    Upstream& upstream = *entry.check.upstream;
    const HealthCheck& settings = entry.check.settings;
    if (outcome) {
      entry.failures = 0;
      if (++entry.successes >= settings.rise && !upstream.checked_up()) {
        upstream.set_up(true);
        log::info("upstream {} is up again", upstream.key());
      }
    } else {
      entry.successes = 0;
      if (++entry.failures >= settings.fall && upstream.checked_up()) {
        upstream.set_up(false);
        log::warn("upstream {} is down: {}", upstream.key(), outcome.error().message);
      }
    }
  }

  void later(const EntryPtr& entry) {
    const milliseconds interval = span_of(entry->check.settings.interval);
    std::uniform_int_distribution<milliseconds::rep> jitter(-interval.count() / 10,
                                                            interval.count() / 10);
    entry->timer.expires_after(interval + milliseconds{jitter(random)});
    entry->timer.async_wait([weak = weak_from_this(), entry](const asio::error_code& cancelled) {
      const auto self = weak.lock();
      if (cancelled || !self || entry->removed) return;
      self->line.push_back(entry);
      self->start_waiting();
    });
  }

  void remove(const EntryPtr& entry) {
    entry->removed = true;
    entry->timer.cancel();
  }

  asio::io_context& context;
  std::minstd_rand random;
  std::map<Upstream*, EntryPtr> entries;
  std::deque<EntryPtr> line;  // due
  std::size_t running = 0;
  bool stopped = false;
};

HealthChecker::HealthChecker(asio::io_context& context) : impl_(std::make_shared<Impl>(context)) {}

HealthChecker::~HealthChecker() {
  impl_->stopped = true;
  impl_->line.clear();
  for (const auto& [upstream, entry] : impl_->entries)
    impl_->remove(entry);
}

void HealthChecker::update(std::vector<Check> checks) {
  std::map<Upstream*, Impl::EntryPtr> wanted;
  for (Check& check : checks) {
    Upstream* upstream = check.upstream.get();
    if (wanted.contains(upstream)) continue;
    const auto found = impl_->entries.find(upstream);
    if (found != impl_->entries.end() && found->second->check.settings == check.settings) {
      found->second->check.targets = std::move(check.targets);
      wanted.insert(impl_->entries.extract(found));
      continue;
    }
    auto entry = std::make_shared<Entry>(impl_->context, std::move(check));
    impl_->line.push_back(entry);
    wanted.emplace(upstream, std::move(entry));
  }
  for (const auto& [upstream, entry] : impl_->entries) {
    impl_->remove(entry);
    // New settings begin with the state of the old ones; without any it counts as up.
    if (!wanted.contains(upstream)) upstream->set_up(true);
  }
  impl_->entries = std::move(wanted);
  impl_->start_waiting();
}

std::size_t HealthChecker::running() const {
  return impl_->running;
}

}  // namespace causeway::gateway
