// SPDX-License-Identifier: Apache-2.0
// Theory of operation: one published connection, from its accept to its end.
//
// run() reaches the target, trying again while the guest is not listening yet, then relays: one
// coroutine per direction drives a Flow (common/relay/flow.hpp). end() ends it from outside, at any
// time.
//
//   - An end of the stream on one side becomes a half-close on the other; once both directions are
//     through, both sockets are closed in the ordinary way.
//   - Everything else resets both: a reset from either side, idle, removed, stopped. Never a FIN
//     that would make a cut stream look complete. (A unix socket has no reset: there the guest's
//     server sees the end.)
//   - A target that takes no more but still has bytes for us (a server that answers and closes in
//     the middle of an upload) delivers them first; then the client is reset, as by that server.
//   - The client is watched for a reset even while nobody waits to read from it, so that one that
//     left does not hold its place until the idle timeout.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "common/log.hpp"
#include "common/net/address.hpp"
#include "common/net/asio.hpp"
#include "common/net/proxy_protocol.hpp"
#include "common/net/stream.hpp"
#include "common/os/unique_fd.hpp"
#include "common/relay/flow.hpp"
#include "common/relay/relay_pool.hpp"
#include "common/result.hpp"

namespace causeway::host {

struct PublishCounters {
  std::uint64_t accepted = 0;        // connections taken, those above the limit included
  std::uint64_t active = 0;          // now
  std::uint64_t refused_limit = 0;   // reset: `limit` were there already, or no descriptor was left
  std::uint64_t connect_failed = 0;  // the target could not be reached in time
  std::uint64_t idle_closed = 0;
  std::uint64_t reset = 0;  // by either side, or an error
  std::uint64_t bytes_to_guest = 0;
  std::uint64_t bytes_to_client = 0;
};

// What connections of one publisher share. One thread.
struct RelayContext {
  relay::RelayPool pool;
  LogBudget log;
};

// The next close() of this socket sends a reset instead of a FIN.
void reset_on_close(int fd);

// Owned by a shared_ptr: a wait that has completed may outlive run().
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Ended : std::uint8_t { no, orderly, reset, idle, unreachable, removed };

  // How long the guest may take to start listening, and one attempt.
  static constexpr std::chrono::milliseconds kReach{5000};
  static constexpr std::chrono::milliseconds kAttempt{2000};
  static constexpr std::uint64_t kSpliceAfter = std::uint64_t{64} * 1024;  // bytes

  // `what` names the published port in log lines. The counters outlive the connection.
  Connection(asio::io_context& io, RelayContext& context, PublishCounters& counters,
             std::string what, UniqueFd client);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // The connection's whole life. Nothing else closes the sockets. `proxy`: named to the target in a
  // PROXY v2 header.
  asio::awaitable<void> run(Address target, std::optional<net::ProxySource> proxy);

  // run() comes to its end as soon as the loop turns. Only the first reason counts.
  void end(Ended reason);

  // True when no byte moved for `limit`. To be called now and then: the resolution is the caller's.
  bool idle(Clock::time_point now, std::chrono::milliseconds limit);

 private:
  using Descriptor = asio::posix::stream_descriptor;

  asio::awaitable<Result<UniqueFd>> reach(Address target);
  asio::awaitable<void> relay();
  bool start_relay(UniqueFd target, const std::optional<net::ProxySource>& proxy);
  asio::awaitable<void> carry(relay::Flow& flow, Descriptor& from, Descriptor& to, bool to_target);
  void watch_client();
  void close();

  RelayContext& context_;
  PublishCounters& counters_;
  const std::string what_;
  Descriptor client_;
  Descriptor target_;
  asio::steady_timer ending_;  // by end() alone: for run() while it has no target
  relay::Gate gate_{.after = kSpliceAfter};
  std::optional<relay::Flow> up_;    // to the guest
  std::optional<relay::Flow> down_;  // to the client
  Ended ended_ = Ended::no;
  bool broken_ = false;  // the target takes no more
  std::uint64_t seen_ = 0;
  Clock::time_point moved_ = Clock::now();
};

}  // namespace causeway::host
