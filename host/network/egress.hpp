// SPDX-License-Identifier: Apache-2.0
// Where a guest may go. A term is `[tcp:|udp:]WHERE[:PORT[-PORT]]`; WHERE is a network
// (10.0.0.0/8, [fd00::]/8 or a single address), or one of these words:
//   any        everything
//   private    RFC 1918, 6598 (shared), 3927 (link-local), fc00::/7, fe80::/10, loopback
//   metadata   the clouds' metadata services: 169.254.169.254, 169.254.170.2, fd00:ec2::254
//
// The first that matches decides: an allow term that names `metadata`, one of its addresses, or a
// network within the link-local ones; then metadata is denied; then allow terms; then deny terms;
// then the default. Answers to connections that came in are always let through.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/config/option.hpp"
#include "common/net/address.hpp"
#include "common/result.hpp"
#include "host/network/publish_spec.hpp"

namespace causeway::host {

struct EgressTerm {
  enum class Where : std::uint8_t { network, any, private_networks, metadata };
  Where where = Where::any;
  Cidr network;                        // Where::network
  std::optional<Transport> transport;  // none: any protocol
  std::uint16_t first = 0;             // ports, inclusive; 0: any port. Need a transport
  std::uint16_t last = 0;
  friend bool operator==(const EgressTerm&, const EgressTerm&) = default;
};

struct Egress {
  bool allow_by_default = true;
  std::vector<EgressTerm> allow;
  std::vector<EgressTerm> deny;
};

Result<EgressTerm> parse_egress_term(std::string_view text);
std::string to_string(const EgressTerm& term);
Codec<EgressTerm> egress_codec();

}  // namespace causeway::host
