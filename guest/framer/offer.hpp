// SPDX-License-Identifier: Apache-2.0
// Theory of operation: the host's offer, and what the guest makes of it.
//
// The host proposes an address, a gateway, resolvers and an MTU for the guest's TAP (proto::Offer).
// The guest trusts none of it. plan() is pure: it parses each text, holds it against what the
// operator pinned, and sorts the offer into what is to be applied and what is refused, each with
// its reason. OfferApplier compares a plan with what the kernel has and makes the difference: a
// host that repeats its offer, at every reconnect, changes nothing, and one that changes it does so
// on a live interface. The new address is there before the old one goes.
//
// Only what an applier added is ever taken away again. Static addresses and those of others stay.
// An offer that no longer names resolvers leaves resolv.conf as it is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/net/address.hpp"
#include "common/net/netlink.hpp"
#include "common/result.hpp"
#include "proto/hello.hpp"

namespace causeway::guest {

// What the operator decided; an offer fills only what is left open.
struct OfferPolicy {
  bool automatic_address = false;          // --address auto
  std::vector<Cidr> addresses;             // static ones: an offered gateway may be reached by them
  std::vector<Cidr> accept_within;         // an offered subnet lies within one of them; empty: any
  std::optional<IpAddress> gateway;        // pinned by --gateway, for its family
  bool automatic_gateway = false;          // take the offered one, for a family without a pin
  std::optional<std::uint32_t> mtu;        // pinned by --mtu, bytes
  std::uint32_t max_mtu = proto::kMaxMtu;  // what --max-frame has room for
  std::vector<IpAddress> resolvers;        // pinned by --resolver
  std::optional<std::string> resolv_conf;  // where resolvers are written; none: nowhere
};

// What is to be the case. A refused item leaves what an earlier offer set as it is.
struct Plan {
  struct Family {
    std::optional<Cidr> address;
    std::optional<IpAddress> gateway;
    bool address_refused = false;
    bool gateway_refused = false;
  };
  Family v4, v6;
  std::vector<IpAddress> resolvers;  // at most kMaxPlannedResolvers, in order
  std::optional<std::uint32_t> mtu;
  bool mtu_refused = false;
  std::vector<std::string> refused;  // "gateway 10.0.1.1: not in the subnet 10.0.0.2/24"
};

// What resolv.conf(5) reads at most (MAXNS).
inline constexpr std::size_t kMaxPlannedResolvers = 3;

// A refused item refuses itself alone, but a gateway needs an address of its family. An empty offer
// plans what is pinned. The resolvers that go beyond the limit are the last ones.
Plan plan(const OfferPolicy& policy, const proto::Offer& offer);

// What one offer came to, as lines for the log.
struct Applied {
  std::vector<std::string> changes;
  std::vector<std::string> refused;  // by the plan; only when they differ from the last offer's
  std::vector<std::string> failed;   // by the kernel; tried again with the next offer
  // The link has an address: an offered one of either family, or it needs none of an offer.
  bool addressed = false;
  bool mtu_changed = false;
  std::uint32_t mtu = 0;  // of the link now, bytes
};

class OfferApplier {
 public:
  OfferApplier(std::string tap, OfferPolicy policy, net::Netlink netlink);

  // Synchronous, a few exchanges with the kernel. An error only when the link cannot be looked at;
  // then nothing was changed.
  Result<Applied> apply(const proto::Offer& offer);

 private:
  void apply_mtu(const Plan& plan, Applied& applied);
  void apply_family(const Plan::Family& wanted, bool v6, std::vector<Cidr>& present,
                    Applied& applied);
  // False when it could not be; the family keeps what it has then.
  bool add_address(const Cidr& wanted, std::vector<Cidr>& present, Applied& applied);
  // True when there was one to remove.
  bool remove_old_addresses(const Plan::Family& wanted, bool v6, Applied& applied);
  void apply_gateway(const Plan::Family& wanted, bool v6, Applied& applied);
  Result<void> set_gateway(const Plan::Family& wanted, bool v6);
  void apply_resolvers(const Plan& plan, Applied& applied);
  void note(const Result<void>& done, std::string change, Applied& applied);

  std::string tap_;
  OfferPolicy policy_;
  net::Netlink netlink_;
  std::vector<Cidr> ours_;                   // addresses that we added
  std::vector<IpAddress> routes_;            // gateways of default routes that we set
  std::optional<std::uint32_t> mtu_before_;  // the link's, before the first offer that set one
  std::vector<std::string> last_refused_;
};

}  // namespace causeway::guest
