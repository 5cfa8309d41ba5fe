// SPDX-License-Identifier: Apache-2.0
// What the gateway counts. Each worker has counters of its own, written by its thread alone; any
// thread may read. A connection that was accepted is counted exactly once more, under one reason of
// the fixed list below, when it is over.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "common/counter.hpp"
#include "guest/gateway/tls/faults.hpp"

namespace causeway::gateway {

// How a connection ended. Up to `own_fault` no relay had begun: it was refused.
enum class End : std::uint8_t {
  not_tls,              // the first bytes are no TLS handshake record
  malformed_hello,      // a length or a field of the ClientHello lies
  hello_too_long,       // more bytes than a ClientHello may have here
  no_name,              // no server_name, and no default route
  bad_name,             // a server_name that is no host name
  unknown_name,         // no route for it
  no_protocol,          // the route wants an ALPN that the client does not offer
  forbidden_port,       // a port that the application does not publish, or the gateway's own
  client_left,          // ended or reset before its ClientHello, or its handshake, was complete
  handshake_timeout,    // the ClientHello, or the handshake, was not there in time
  tls_failed,           // the handshake failed; tls_faults says why
  bad_proxy_header,     // a listener with PROXY protocol got something else
  proxy_timeout,        // the PROXY header did not come in time
  untrusted_proxy,      // from an address that may not send PROXY headers
  gateway_limit,        // max_connections of the gateway
  route_limit,          // max_connections of the route or application
  upstream_limit,       // every upstream of the route is at its max_connections
  no_descriptors,       // EMFILE, ENFILE, ENOBUFS, ENOMEM
  no_upstream,          // every upstream of the route is drained, down or unresolved
  connect_failed,       // refused or unreachable, after the last retry
  connect_timeout,      // no upstream answered in time
  upstream_tls,         // the TLS handshake with the upstream failed; upstream_tls_faults says why
  own_fault,            // a system call failed in a way that only our own error explains
  orderly,              // both directions ended, everything delivered
  client_reset,         // reset, or another error of the client's socket
  upstream_reset,       // the same of the upstream's
  tls_broken,           // a record or an alert ended TLS with the client; tls_faults says why
  upstream_tls_broken,  // the same with the upstream
  idle,                 // both directions silent for `idle`
  total,                // older than `total`
  drained,              // still there when `drain` was over
  count_
};
inline constexpr auto kEnds = static_cast<std::size_t>(End::count_);
std::string_view name(End end);

// One worker's. A cache line of their own keeps two workers apart.
struct alignas(64) WorkerCounters {
  Counter accepted;        // by this worker's listeners, those handed to another worker included
  Counter handed_over;     // to a less loaded worker
  Counter taken_over;      // from another worker
  Counter hand_over_full;  // kept, since the other worker's queue was full
  Counter accept_errors;   // accept() failed; the listener pauses when it is out of descriptors
  Counter relayed;         // connections whose relay began
  Counter spliced;         // connections that passed a splice gate
  Counter pipes_made;      // pipe2() calls
  Counter connect_attempts, connect_retries;
  Counter bytes_to_upstream, bytes_to_client;
  Counter loops;  // turns of the event loop
  // TLS that ended here.
  Counter handshakes_full, handshakes_resumed;
  Counter tls_1_2, tls_1_3;                             // handshakes of both kinds
  Counter aes_128_gcm, aes_256_gcm, chacha20_poly1305;  // the same by cipher
  Counter upstream_handshakes_full, upstream_handshakes_resumed;
  Counter truncated;           // clients that ended without a close_notify before their answer did
  Counter upstream_truncated;  // upstreams that did
  std::array<Counter, static_cast<std::size_t>(tls::Fault::count_)> tls_faults;
  std::array<Counter, static_cast<std::size_t>(tls::Fault::count_)> upstream_tls_faults;
  std::array<Counter, kEnds> ended;

  void end(End reason) { ended[static_cast<std::size_t>(reason)].add(); }
};

}  // namespace causeway::gateway
