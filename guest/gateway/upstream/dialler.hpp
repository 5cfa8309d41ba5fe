// SPDX-License-Identifier: Apache-2.0
// Theory of operation: reaching one of a route's upstreams.
//
// The dialler walks over the candidates, best first, and over the addresses of each, beginning with
// another one each time. An upstream has failed once all of its addresses have. next() starts one
// attempt; its owner waits for the socket and asks for another when it fails. In a race the
// owner starts several at once. An attempt counts against its upstream's limit for as long as it,
// or the connection that it became, lives.
#pragma once

#include <optional>

#include "common/os/unique_fd.hpp"
#include "guest/gateway/counters.hpp"
#include "guest/gateway/snapshot.hpp"
#include "guest/gateway/upstream/upstream.hpp"

namespace causeway::gateway {

// Counts against an upstream's limit. The snapshot that has the upstream outlives it.
class UpstreamSlot {
 public:
  UpstreamSlot() = default;
  // None is valid() when the limit is reached.
  explicit UpstreamSlot(const UpstreamView& view) {
    if (view.state->active.take(view.config.max_connections)) state_ = view.state.get();
  }
  UpstreamSlot(UpstreamSlot&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
  UpstreamSlot& operator=(UpstreamSlot&& other) noexcept {
    std::swap(state_, other.state_);
    return *this;
  }
  ~UpstreamSlot() {
    if (state_ != nullptr) state_->active.give_back();
  }
  [[nodiscard]] bool valid() const { return state_ != nullptr; }
  [[nodiscard]] Upstream* operator->() const { return state_; }

 private:
  Upstream* state_ = nullptr;
};

struct Attempt {
  UniqueFd fd;  // non-blocking; connected, or connecting
  UpstreamSlot slot;
  bool connected = false;
  bool last_address = false;   // of its upstream
  std::uint16_t upstream = 0;  // of the route
  int family = 0;
  std::uint16_t port = 0;         // of tcp
  std::uint32_t hvsock_port = 0;  // != 0: the VMM wants to hear CONNECT first
};

class Dialler {
 public:
  using Clock = Upstream::Clock;

  // `route` outlives the dialler. `port` != 0 replaces that of the upstreams' addresses. `across`:
  // one address of each candidate before the second of any, for a race.
  Dialler(const Route& route, std::uint16_t port, const Candidates& candidates, bool across)
      : route_(route), port_(port), candidates_(candidates), across_(across) {}

  // None: all have been tried; failure() says what became of the last.
  std::optional<Attempt> next(Clock::time_point now);
  // Whether next() has somewhere left to go.
  [[nodiscard]] bool more() const;
  // An attempt came to nothing: noted with the upstream.
  void failed(Attempt& attempt, End why, Clock::time_point now);
  [[nodiscard]] End failure() const { return failure_; }
  // A unix socket's backlog was full: worth another round.
  [[nodiscard]] bool met_full_backlog() const { return full_backlog_; }

 private:
  const Route& route_;
  const std::uint16_t port_;
  const Candidates candidates_;
  const bool across_;
  bool full_backlog_ = false;
  std::size_t candidate_ = 0;
  std::size_t target_ = 0;  // how many of its addresses were tried
  std::size_t first_ = 0;   // which of them came first
  void step(bool leave);
  End failure_ = End::no_upstream;
};

// What a failed socket call means for the connection that wanted it.
End end_of_errno(int code);

}  // namespace causeway::gateway
