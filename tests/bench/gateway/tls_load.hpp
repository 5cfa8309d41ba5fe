// SPDX-License-Identifier: Apache-2.0
// What the roles of causeway-tls-load offer to its command line: each is one thread and one epoll
// instance, made to cost little beside the proxy that stands between them.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tests/bench/gateway/wire.hpp"

namespace causeway::bench {

struct OriginOptions {
  std::string listen;  // IP:PORT
  std::uint64_t greeting = kDefaultGreeting;
  bool plain = false;   // no hello and no greeting: requests from the first byte
  bool closes = false;  // ends each connection behind its greeting, as `Connection: close` would
};
// Serves until the process is ended.
[[noreturn]] void run_origin(const OriginOptions& options);

// A unit is one exchange, or one whole connection when there are no exchanges.
struct LoadPlan {
  std::string connect;  // IP:PORT
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

struct ClientOptions : LoadPlan {
  std::string hello;  // a file with one recorded ClientHello
  std::uint64_t greeting = kDefaultGreeting;
};
// {"ok", "units", "errors", "error", "held", "seconds", "bytes_up", "bytes_down", "p50_us",
//  "p99_us", "max_us", "cpu_seconds"}; bytes do not count hellos and greetings.
nlohmann::json run_client(const ClientOptions& options);

// Real TLS, of one version, with one cipher and X25519; the handshake stands for the greeting. A
// connection is ended by close_notify and FIN at once.
struct TlsClientOptions : LoadPlan {
  std::string name;                    // asked for (SNI)
  std::string version = "1.3";         // "1.2" or "1.3"
  std::string cipher = "aes-128-gcm";  // or "aes-256-gcm", "chacha20"
  // Resumes a session each time: the one of a full handshake ahead of all units, then the newest
  // that the same slot has been given. What is not resumed is an error.
  bool resumes = false;
};
// As run_client(), and {"handshakes", "resumed"}: those of the units, so not the one ahead of them.
nlohmann::json run_tls_client(const TlsClientOptions& options);

}  // namespace causeway::bench
