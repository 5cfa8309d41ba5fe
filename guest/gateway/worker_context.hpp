// SPDX-License-Identifier: Apache-2.0
// What a worker's connections work with: its epoll set, clock, timers, pools and counters. One
// thread uses it; nothing in it is locked.
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/log.hpp"
#include "common/net/proxy_protocol.hpp"
#include "common/os/unique_fd.hpp"
#include "common/relay/relay_pool.hpp"
#include "guest/gateway/counters.hpp"
#include "guest/gateway/snapshot.hpp"
#include "guest/gateway/sniff/client_hello.hpp"
#include "guest/gateway/timer_wheel.hpp"
#include "guest/gateway/tls/engine.hpp"
#include "guest/gateway/tls/settings.hpp"

namespace causeway::gateway {

class Connection;

// A snapshot as one worker uses it. It counts its connections itself, so that no connection touches
// a reference count that the workers share.
struct Epoch {
  // `turn`: where round robin begins, so that not every new snapshot begins with the first
  // upstream.
  Epoch(std::shared_ptr<const Snapshot> of, std::uint64_t turn)
      : snapshot(std::move(of)), turns(snapshot->routes.size(), RoundRobin{turn}) {}
  std::shared_ptr<const Snapshot> snapshot;
  std::vector<RoundRobin> turns;  // by route
  std::size_t users = 1;          // connections, and the worker while it is the present one
};

// What epoll hands back: an object, and in the low bits what it is.
enum class Ready : std::uint8_t { mailbox, listener, client, upstream, attempt };
inline constexpr std::uint64_t kReadyMask = 7;

// TLS sessions to resume with, one for each upstream: its newest. Each is used once, as RFC 8446
// C.4 asks for. One that was made under other terms (a reload) is not used.
class UpstreamSessions {
 public:
  static constexpr std::size_t kMax = 1024;
  std::unique_ptr<tls::Session> take(const std::string& upstream, const tls::Profile* terms) {
    const auto found = kept_.find(upstream);
    if (found == kept_.end() || found->second.terms.get() != terms) return nullptr;
    return std::move(found->second.session);
  }
  void keep(const std::string& upstream, const std::shared_ptr<const tls::Profile>& terms,
            std::unique_ptr<tls::Session> session) {
    if (!session) return;
    if (kept_.size() >= kMax && !kept_.contains(upstream)) kept_.clear();
    kept_[upstream] = {terms, std::move(session)};
  }

 private:
  struct Kept {
    std::shared_ptr<const tls::Profile> terms;
    std::unique_ptr<tls::Session> session;
  };
  std::unordered_map<std::string, Kept> kept_;
};

// Counts a connection against all workers' limit for as long as it lives.
class ConnectionSlot {
 public:
  ConnectionSlot() = default;
  explicit ConnectionSlot(LimitedCount& count) : count_(&count) {}
  ConnectionSlot(ConnectionSlot&& other) noexcept : count_(std::exchange(other.count_, nullptr)) {}
  ConnectionSlot& operator=(ConnectionSlot&& other) noexcept {
    std::swap(count_, other.count_);
    return *this;
  }
  ~ConnectionSlot() {
    if (count_ != nullptr) count_->give_back();
  }

 private:
  LimitedCount* count_ = nullptr;
};

struct WorkerContext {
  explicit WorkerContext(std::uint64_t start, std::size_t large_buffer)
      : now(start), wheel(start), pool(large_buffer) {}

  WorkerCounters counters;  // first: it has cache lines of its own
  UniqueFd epoll;
  std::uint64_t now;  // milliseconds of CLOCK_MONOTONIC, read once in each turn of the loop
  TimerWheel wheel;
  relay::RelayPool pool;
  Epoch* epoch = nullptr;
  std::vector<Connection*> turns;  // have more to do than one turn allowed
  std::vector<Connection*> over;   // ended in this turn; freed when its events are through
  Connection* first = nullptr;     // of all connections
  LogBudget log;                   // for upstreams that cannot be reached
  // The worker's own. Before its thread runs, and where nothing terminates, there is none.
  std::optional<tls::Context> tls;
  UpstreamSessions upstream_sessions;
  // Connections, those handed over to this worker and not yet taken included: others add those.
  std::atomic<std::uint32_t> load{0};
  // Where the gateway itself listens on tcp: a connection to there would come back for ever.
  const std::vector<net::Endpoint>* own = nullptr;

  // `what` is 8-byte aligned. False: the kernel takes no more.
  [[nodiscard]] bool watch(int fd, const void* what, Ready kind, std::uint32_t events,
                           bool again = false) const {
    epoll_event event{};
    event.events = events;
    // An address and three bits: what epoll_data_t is for.
    event.data.u64 = reinterpret_cast<std::uintptr_t>(what) | static_cast<std::uint64_t>(kind);
    return ::epoll_ctl(epoll.get(), again ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event) == 0;
  }
  void release(Epoch* of) const {
    if (--of->users == 0) delete of;
  }
};

}  // namespace causeway::gateway
