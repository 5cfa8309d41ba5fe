// SPDX-License-Identifier: Apache-2.0
// Theory of operation: accepting, for ever.
//
// One coroutine on the control thread accepts and hands each stream over. What can go wrong:
//   - the machine is out of descriptors or memory: a pause, then on. What waits in the backlog
//     keeps waiting.
//   - the listening socket itself is broken: after a few failures in a row it is made anew.
//   - the socket looks well and takes nobody any more: kernels have leaked the count of waiting
//     vsock connections (CVE-2026-46214) until a listener refused everybody, which no system call
//     of the listener shows. So while the owner says that somebody is missed, a vsock listener is
//     made anew from time to time. A peer that connects in that instant is refused and tries again.
#pragma once

#include <chrono>
#include <functional>

#include "common/net/asio.hpp"
#include "common/net/stream.hpp"

namespace causeway::net {

struct AcceptorHandlers {
  std::function<void(UniqueFd stream)> take;              // non-blocking, close-on-exec
  std::function<void(const std::string& message)> fault;  // once for each failed accept()
  // Opens the listener again; absent: there is no second one (an inherited descriptor).
  std::function<Result<Listener>()> reopen;
  std::function<bool()> misses_somebody;  // absent: never
};

struct AcceptorTimes {
  std::chrono::milliseconds pause{100};       // after a failure
  unsigned failures = 10;                     // in a row, until the socket is made anew
  std::chrono::milliseconds renewal{30'000};  // of a vsock listener while somebody is missed
  bool renew_any = false;                     // of other kinds too, which need it not
};

class Acceptor {
 public:
  Acceptor(asio::io_context& context, Listener listener, AcceptorHandlers handlers,
           AcceptorTimes times = {});
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;
  ~Acceptor();  // from the context's thread: closes the listener; the coroutine ends by itself

  [[nodiscard]] std::uint64_t renewals() const;

 private:
  struct State;
  static asio::awaitable<void> run(std::shared_ptr<State> state);
  static asio::awaitable<void> renew(std::shared_ptr<State> state);
  static void reopen(State& state);
  std::shared_ptr<State> state_;
};

}  // namespace causeway::net
