// SPDX-License-Identifier: Apache-2.0
// The part of the configuration that concerns TLS which ends here, for config.cpp alone: its
// options and its rules. Files are not looked at: whether they exist and hold what they should is
// found when they are loaded.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "common/config/option_table.hpp"
#include "common/result.hpp"
#include "guest/gateway/config.hpp"

namespace causeway::gateway {

inline constexpr std::size_t kMaxCertificates = 1024;  // in the file's list

// What an upstream's certificate is verified by: a host name, as a tcp address may have it, in
// lower case without a trailing dot; or an IP address. Empty stays empty.
Result<std::string> parse_upstream_name(std::string_view text);

// Of a route: protocols, client_..., upstream_... with their rules, which hold with mode terminate.
void describe_terminate(OptionGroup& group, RouteConfig& route);

// cert, key and certificates.
void add_certificates(OptionTable& table, GatewayConfig& config);
// The section tls.
void add_tls(OptionTable& table, GatewayConfig& config);

// Every one of `routes` that terminates has a certificate to present.
Result<void> check_has_certificate(const std::vector<RouteConfig>& routes,
                                   const GatewayConfig& config);

}  // namespace causeway::gateway
