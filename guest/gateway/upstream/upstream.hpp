// SPDX-License-Identifier: Apache-2.0
// Theory of operation: an upstream is one address that a route relays to, and what is known of it.
//
// The object lives as long as some configuration names it: a reload that keeps an upstream keeps
// its counts and its health. Workers and the control thread share it; everything in it that changes
// is an atomic. There is no lock: a worker reads, picks and counts.
//
// Where an upstream is at the moment (its socket addresses) is not here: names are resolved on the
// control thread, and the result reaches the workers inside the next snapshot (snapshot.hpp).
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/net/address.hpp"
#include "common/net/socket_address.hpp"
#include "common/units.hpp"

namespace causeway::gateway {

// Active health checks: a connection is made and closed again. Absent: passive only.
struct HealthCheck {
  Duration interval{std::chrono::seconds{5}};
  Duration timeout{std::chrono::seconds{2}};
  std::uint32_t fall = 3;  // failures in a row until it is down
  std::uint32_t rise = 2;  // successes in a row until it is up again
  friend bool operator==(const HealthCheck&, const HealthCheck&) = default;
};

enum class ProxyOut : std::uint8_t { off, v1, v2 };

struct UpstreamConfig {
  Address address;
  std::uint32_t weight = 1;           // 1..256
  bool drain = false;                 // takes no new connections
  std::uint32_t max_connections = 0;  // 0: no limit
  friend bool operator==(const UpstreamConfig&, const UpstreamConfig&) = default;
};

// Where to connect: one resolved address of an upstream.
struct Target {
  net::SocketAddress address;
  std::uint32_t hvsock_port = 0;  // != 0: `address` is the VMM's unix socket; CONNECT goes first
};

// A count with a limit, exact under concurrency.
class LimitedCount {
 public:
  // False, and nothing counted, when `limit` (0: none) is reached.
  bool take(std::uint32_t limit) {
    std::uint32_t now = count_.load(std::memory_order_relaxed);
    do {
      if (limit != 0 && now >= limit) return false;
    } while (!count_.compare_exchange_weak(now, now + 1, std::memory_order_relaxed));
    return true;
  }
  void give_back() { count_.fetch_sub(1, std::memory_order_relaxed); }
  [[nodiscard]] std::uint32_t get() const { return count_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint32_t> count_{0};
};

class Upstream {
 public:
  using Clock = std::chrono::steady_clock;
  // Passive health: after kPassiveFall failed connects in a row it is passed over for
  // kPassivePause, unless nothing else is left. A failure after a pause doubles the next one, up to
  // kPassiveMaxPause; failures during a pause (connects that had begun before) do not.
  static constexpr std::uint32_t kPassiveFall = 3;
  static constexpr std::chrono::milliseconds kPassivePause{1000};
  static constexpr std::chrono::milliseconds kPassiveMaxPause{30'000};

  explicit Upstream(std::string key) : key_(std::move(key)) {}
  [[nodiscard]] const std::string& key() const { return key_; }  // route and address, for people

  LimitedCount active;                      // connections, those being dialled included
  std::atomic<std::uint64_t> connected{0};  // since the start
  std::atomic<std::uint64_t> failed{0};     // connects that failed or timed out

  void note_connected();
  void note_failed(Clock::time_point now);
  // By the active checks.
  void set_up(bool up) { checked_up_.store(up, std::memory_order_relaxed); }
  [[nodiscard]] bool checked_up() const { return checked_up_.load(std::memory_order_relaxed); }
  // Down by checks, or paused after failures.
  [[nodiscard]] bool available(Clock::time_point now) const;

 private:
  const std::string key_;
  std::atomic<bool> checked_up_{true};
  std::atomic<std::uint32_t> failures_{0};  // in a row
  std::atomic<Clock::rep> paused_until_{0};
};

// One upstream as a snapshot has it.
struct UpstreamView {
  UpstreamConfig config;
  std::shared_ptr<Upstream> state;
  std::vector<Target> targets;  // empty: not resolved. Dialled in order, v6 and v4 interleaved.
};

enum class Choice : std::uint8_t { race, round_robin, least_connections };

// The state of round robin: one per route and worker. Workers that start at different turns do not
// all send their first connection to the same upstream.
struct RoundRobin {
  std::uint64_t turn = 0;
};

// A bounded list of indices into a route's upstreams, the best first; what could be dialled in
// turn. Skips drained ones, ones at their limit and ones without targets; unavailable ones come
// last. `race`: the healthy with the fewest connections for their weight first. Weighted in every
// choice. No allocation, no lock. Of more than kMax upstreams a window that moves with each turn is
// looked at. Why nothing is left is in `reason`.
struct Candidates {
  static constexpr std::size_t kMax = 16;
  std::array<std::uint16_t, kMax> index{};
  std::size_t count = 0;
  enum class None : std::uint8_t { no_upstream, upstream_limit } reason = None::no_upstream;
};
Candidates choose(Choice choice, std::span<const UpstreamView> upstreams, RoundRobin& turn,
                  Upstream::Clock::time_point now);

}  // namespace causeway::gateway
