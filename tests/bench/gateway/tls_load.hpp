// SPDX-License-Identifier: Apache-2.0
// What the two roles of causeway-tls-load offer to its command line: each is one thread and one
// epoll instance, made to cost little beside the proxy that stands between them.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tests/bench/gateway/wire.hpp"

namespace causeway::bench {

struct OriginOptions {
  std::string listen;  // IP:PORT
  std::uint64_t greeting = kDefaultGreeting;
  bool closes = false;  // ends each connection behind its greeting, as `Connection: close` would
};
// Serves until the process is ended.
[[noreturn]] void run_origin(const OriginOptions& options);

// A unit is one exchange, or one whole connection when there are no exchanges.
struct ClientOptions {
  std::string connect;  // IP:PORT
  std::string hello;    // a file with one recorded ClientHello
  std::uint64_t greeting = kDefaultGreeting;
  unsigned connections = 1;
  bool exchanges = false;  // `request` behind the greeting; otherwise the greeting is all
  Request request;
  bool reopens = false;      // a new connection for each unit
  bool peer_closes = false;  // waits for the origin's end of stream before it closes
  bool holds = false;        // opens all, then one exchange on each for every line on stdin
  double seconds = 0;        // begins no unit after that; 0: no such bound
  std::uint64_t units = 0;   // begins no more than these; 0: no such bound
  double rate = 0;  // units a second on a schedule, over held connections; 0: as fast as it goes
};
// {"ok", "units", "errors", "error", "seconds", "bytes_up", "bytes_down", "p50_us", "p99_us",
//  "max_us", "cpu_seconds"}; bytes do not count hellos and greetings.
nlohmann::json run_client(const ClientOptions& options);

}  // namespace causeway::bench
