// SPDX-License-Identifier: Apache-2.0
#include "guest/gateway/counters.hpp"

namespace causeway::gateway {

namespace {

constexpr std::array<std::string_view, kEnds> kNames = {"not_tls",
                                                        "malformed_hello",
                                                        "hello_too_long",
                                                        "no_name",
                                                        "bad_name",
                                                        "unknown_name",
                                                        "no_protocol",
                                                        "forbidden_port",
                                                        "client_left",
                                                        "handshake_timeout",
                                                        "tls_failed",
                                                        "bad_proxy_header",
                                                        "proxy_timeout",
                                                        "untrusted_proxy",
                                                        "gateway_limit",
                                                        "route_limit",
                                                        "upstream_limit",
                                                        "no_descriptors",
                                                        "no_upstream",
                                                        "connect_failed",
                                                        "connect_timeout",
                                                        "upstream_tls",
                                                        "own_fault",
                                                        "orderly",
                                                        "client_reset",
                                                        "upstream_reset",
                                                        "tls_broken",
                                                        "upstream_tls_broken",
                                                        "idle",
                                                        "total",
                                                        "drained"};
static_assert(!kNames.back().empty());  // one for each reason, in order

}  // namespace

std::string_view name(End end) {
  return kNames.at(static_cast<std::size_t>(end));
}

}  // namespace causeway::gateway
