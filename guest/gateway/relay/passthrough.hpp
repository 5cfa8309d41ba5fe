// SPDX-License-Identifier: Apache-2.0
// Theory of operation: a connection that is relayed as it is, without a look inside.
//
// Two flows (common/relay/flow.hpp), one for each direction, driven by the edges that epoll reports
// for the two sockets. A flow is driven when the socket that it waits for has an edge; what it left
// undone after its turn is driven again from the worker's list.
//
// How it ends:
//   - Both directions ended and were passed on: orderly.
//   - A client that resets, or takes no more: at once, nobody is left to deliver to.
//   - An upstream that resets: once what it sent before is delivered.
//   - An upstream that takes no more but still sends (a server that answers and closes in the
//   middle of
//     an upload): once its answer is delivered. If its end came before, all is delivered: orderly.
// What ends otherwise than orderly is reset on both sides by the owner, never closed with a FIN
// that would make a cut stream look complete. A unix or vsock socket has no reset: there the peer
// sees an end, and TLS's own close_notify is what tells.
#pragma once

#include <cstdint>
#include <optional>

#include "common/relay/flow.hpp"
#include "guest/gateway/counters.hpp"

namespace causeway::gateway {

class Passthrough {
 public:
  struct Side {
    int fd = -1;
    bool tcp = false;
    bool splice = true;
    std::size_t max_write = 0;  // bytes
  };

  Passthrough(relay::RelayPool& pool, WorkerCounters& counters, relay::Gate gate, Side client,
              Side upstream);

  // The ClientHello and what else was read. See Flow::put_first().
  void put_first(relay::RelayBuffer buffer, std::size_t at, std::size_t size, std::size_t uncounted,
                 bool dry) {
    up_.put_first(std::move(buffer), at, size, uncounted, dry);
  }

  // Each gives the reason once the relay is over. `events` are epoll's.
  std::optional<End> start();
  std::optional<End> on_client(std::uint32_t events);
  std::optional<End> on_upstream(std::uint32_t events);
  std::optional<End> go_on();

  [[nodiscard]] bool wants_turn() const {
    return up_state_ == State::turn || down_state_ == State::turn;
  }
  // A side is watched for room only once it was full.
  [[nodiscard]] bool waits_for_client_room() const { return down_state_ == State::wait_write; }
  [[nodiscard]] bool waits_for_upstream_room() const { return up_state_ == State::wait_write; }
  // The client's end was read; the upstream's was passed on.
  [[nodiscard]] bool client_ended() const { return up_.ended(); }
  [[nodiscard]] bool answered() const { return down_state_ == State::over; }
  [[nodiscard]] std::uint64_t progress() const { return up_.progress() + down_.progress(); }

 private:
  enum class State : std::uint8_t { wait_read, wait_write, turn, over };
  std::optional<End> drive_up();
  std::optional<End> drive_down();
  void count_gate();

  WorkerCounters& counters_;
  relay::Gate gate_;
  relay::Flow up_;    // to the upstream
  relay::Flow down_;  // to the client
  State up_state_ = State::turn;
  State down_state_ = State::wait_read;  // its socket is new and watched: what comes has an edge
  bool upstream_broken_ = false;
  bool gate_counted_ = false;
};

}  // namespace causeway::gateway
