// SPDX-License-Identifier: Apache-2.0
// The helper's configuration: one guest described by flags, or any number in the file's `guests`.
//
// A guest is what is matched when a connection comes in (its CID, or a listener of its own), the
// TAP that it alone reaches, what it is offered, what is published to it and where it may go. The
// privileged process (host/broker.hpp) reads the same configuration for itself and does nothing
// that is not in it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/bridge/program.hpp"
#include "common/config/option_table.hpp"
#include "common/net/address.hpp"
#include "host/network/egress.hpp"
#include "host/network/publish_spec.hpp"

namespace causeway::host {

struct GuestConfig {
  std::string name;                       // [a-z0-9_-]{1,32}; by default the TAP's
  std::optional<std::uint32_t> cid;       // of the connections that are this guest's
  std::optional<Address> listen;          // a listener of its own: whoever connects is this guest
  bridge::LinkConfig link;                // TAP, addresses of our side, MTU, lanes, wire
  bool attach = false;                    // the TAP and its addresses are someone else's
  std::optional<std::string> bridge;      // the TAP joins this bridge
  std::vector<Cidr> guest_addresses;      // offered: at most one IPv4 and one IPv6
  std::vector<IpAddress> guest_gateways;  // offered; by default our address of the same network
  std::vector<IpAddress> resolvers;       // offered
  bool nat = false;                       // masquerade what leaves through another interface
  std::vector<Publish> publish;
  Egress egress;
  std::uint32_t max_handshakes = 32;  // connections that may be in their greeting at once

  [[nodiscard]] const std::string& tap() const { return *link.tap; }
};

// Guests that nobody named: an unknown CID gets the lowest free number N (1, 2, ...), the TAP
// `tap_prefix`N, and the Nth subnet of each network: its first address for us, its second for the
// guest.
struct UnknownGuests {
  std::uint32_t limit = 0;  // how many at once; 0: unknown CIDs are refused
  std::string tap_prefix = "cw-u";
  std::optional<Cidr> network4;              // cut into /30 subnets
  std::optional<Cidr> network6;              // cut into /126 subnets
  Duration forget{std::chrono::minutes{1}};  // after so long without a connection
  GuestConfig guest;                         // everything else
};

struct HostConfig {
  std::optional<Address> listen;  // the shared listener: guests are told apart by their CID
  std::vector<GuestConfig> guests;
  UnknownGuests unknown;
  std::string instance;             // names our nftables table and state file
  std::optional<std::string> user;  // what the process that touches guest bytes runs as
  std::string state_directory = "/run/causeway";
  bridge::ProgramConfig program;  // admin, log level
};

inline constexpr std::uint32_t kFirstGuestCid = 3;  // below: hypervisor, local, host

// What the command line asks for beside running.
struct Commands {
  bool cleanup = false;      // remove what a killed helper of this instance left, and end
  bool print_rules = false;  // print the nftables script, and end
};

// A table whose parse() fills `config` and `commands`; both outlive it. Call finish() after it.
class ConfigParser {
 public:
  ConfigParser();
  OptionTable& table() { return table_; }
  // Once parsed without an exit code: the one guest of the flags becomes the first of `guests`, and
  // names that were left out are filled in.
  HostConfig finish() &&;
  [[nodiscard]] const Commands& commands() const { return commands_; }

 private:
  [[nodiscard]] Result<void> check() const;
  HostConfig config_;
  Commands commands_;
  GuestConfig single_;
  std::optional<std::string> instance_;
  OptionTable table_;
};

// What the guest is told to use; none when the configuration names nothing for it.
std::optional<proto::Offer> offer_of(const GuestConfig& guest);

// The guest of an unknown CID with number `number`; an error when the networks have no such subnet.
Result<GuestConfig> unknown_guest(const UnknownGuests& unknown, std::uint32_t number,
                                  std::uint32_t cid);

// True when `b` needs no other TAP, listener or session than `a`: the rest is changed live.
bool same_link(const GuestConfig& a, const GuestConfig& b);

// True when nothing at all differs.
bool same_guest(const GuestConfig& a, const GuestConfig& b);

}  // namespace causeway::host
