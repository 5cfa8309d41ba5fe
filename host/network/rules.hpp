// SPDX-License-Identifier: Apache-2.0
// Theory of operation: the nftables rules of one helper, as text for `nft -f -`.
//
// One table of our own, `inet causeway_INSTANCE`, holds everything. render_rules() makes a script
// that creates the table anew in one transaction: there is no moment without rules, and a script
// that the kernel refuses changes nothing. These functions are pure; nft.hpp runs the script.
//
// What a packet meets:
//   raw          from a TAP: loopback addresses, router advertisements and redirects are dropped;
//                the source has to be one of the guest's addresses, if they are known
//   publish      DNAT of published ports, for clients outside and for clients on this host
//   input        from a guest to this host's own services: egress
//   forward      from a guest: answers pass; another guest is reached through a published port
//                only; the rest is egress. To a guest behind NAT: answers and published ports only
//   postrouting  masquerade: behind the uplink's address what leaves through an interface that is
//                no TAP of ours, behind the TAP's what a guest or a local client sends to a
//                published port and could not be answered otherwise
//
// Local clients. A connection from this host to a published port keeps its source address, except
// one to 127.0.0.0/8: it leaves with the TAP's address, and the TAP needs route_localnet
// (forwarding.hpp). The kernel has no such switch for ::1, so ports published on [::] do not
// answer there; any other address of the host does.
//
// Other tables. Our chains come after those of the usual priorities (5 behind), so a NAT rule of
// another table decides first and keeps working. `accept` here ends only our own chain: a packet
// that another table drops, by a rule or by the policy of its forward chain (ufw, firewalld,
// Docker), stays dropped, and the operator has to let the TAP through there.
//
// Bridged guests have no rules: their packets do not come through the host's IP layer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/net/address.hpp"
#include "common/result.hpp"
#include "host/network/egress.hpp"
#include "host/network/forwarding.hpp"
#include "host/network/publish_spec.hpp"

namespace causeway::host {

struct GuestRules {
  std::string name;  // [a-z0-9_-]{1,32}, unique
  std::string tap;   // unique
  std::optional<std::string> bridge;
  std::vector<Cidr> host_addresses;   // of the TAP
  std::vector<Cidr> guest_addresses;  // empty: not known
  bool nat = false;
  std::vector<Publish> publish;  // those over streams count for overlaps only
  Egress egress;
};

struct RuleSet {
  std::string table;  // table_name()
  std::vector<GuestRules> guests;
};

// Why a packet of or to a guest was dropped; each has a named counter for each guest.
enum class DropReason : std::uint8_t {
  spoofed,      // a source address that is not the guest's
  abuse,        // loopback addresses, router advertisements, redirects
  metadata,     // a cloud's metadata service
  egress,       // the guest's egress terms
  peer,         // another guest, not through a published port
  unpublished,  // to a guest behind NAT, not through a published port
};
inline constexpr std::size_t kDropReasons = 6;
std::string_view name(DropReason reason);
std::string counter_name(DropReason reason, std::string_view guest);  // "spoofed_app1"

// [a-z0-9_-]{1,32} as it is; any other byte becomes '_'.
std::string table_name(std::string_view instance);

// What cannot work: bad or repeated names, a port published twice, publishing over the TAP, NAT or
// egress terms of a bridged guest, publishing over the TAP to an address family in which the
// guest's address is not known. Everything below is for a set that has passed.
Result<void> check_rules(const RuleSet& set);

// Whether the guest needs the table at all; one with a TAP and addresses alone does not.
bool needs_rules(const GuestRules& guest);

// What the kernel has to be told beside the rules. A guest with NAT and no known address gets IPv4.
ForwardingNeeds forwarding_needs(const RuleSet& set);

std::string render_rules(const RuleSet& set);
std::string render_removal(const std::string& table);  // no error if the table is not there

}  // namespace causeway::host
