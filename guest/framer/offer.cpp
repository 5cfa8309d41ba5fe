// SPDX-License-Identifier: Apache-2.0
#include "guest/framer/offer.hpp"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <utility>

#include "guest/framer/resolv_conf.hpp"

namespace causeway::guest {

namespace {

constexpr std::uint32_t kMinMtuV6 = 1280;  // RFC 8200, section 5; below it Linux switches IPv6 off

bool starts_with(const IpAddress& ip, std::initializer_list<std::uint8_t> bytes) {
  return std::equal(bytes.begin(), bytes.end(), ip.bytes.begin());
}

bool is_link_local(const IpAddress& ip) {
  if (!ip.v6) return starts_with(ip, {169, 254});  // RFC 3927
  return ip.bytes[0] == 0xfe && (ip.bytes[1] & 0xc0) == 0x80;
}

// Why `ip` cannot be any one machine's address; nullptr when it can.
const char* unusable(const IpAddress& ip) {
  if (!ip.v6) {
    const std::uint8_t first = ip.bytes[0];
    if (first == 0) return "an unspecified address (0.0.0.0/8)";
    if (first == 127) return "a loopback address";
    if (first >= 240) return "a reserved address (240.0.0.0/4)";  // 255.255.255.255 is there
    return first >= 224 ? "a multicast address" : nullptr;
  }
  if (starts_with(ip, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff})) {
    return "an IPv4 address in IPv6 form";
  }
  if (starts_with(ip, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})) {
    if (ip.bytes[15] == 0) return "an unspecified address";
    if (ip.bytes[15] == 1) return "a loopback address";
  }
  return ip.bytes[0] == 0xff ? "a multicast address" : nullptr;
}

// Why `ip` is no host of `subnet`. RFC 3021 and 6164: two-address subnets are all hosts.
const char* no_host_of(const Cidr& subnet, const IpAddress& ip) {
  const unsigned bits = ip.v6 ? 128 : 32;
  if (subnet.prefix + 1U >= bits) return nullptr;
  if (subnet.network() == ip) {
    return ip.v6 ? "the subnet's anycast address" : "the subnet's own address";
  }
  if (ip.v6) return nullptr;
  for (unsigned bit = subnet.prefix; bit < bits; ++bit) {
    if ((ip.bytes[bit / 8] & (0x80U >> (bit % 8))) == 0) return nullptr;
  }
  return "the subnet's broadcast address";
}

bool lies_within(const std::vector<Cidr>& networks, const Cidr& subnet) {
  return std::any_of(networks.begin(), networks.end(), [&](const Cidr& network) {
    return subnet.prefix >= network.prefix && network.contains(subnet.address);
  });
}

template <class T>
bool has(const std::vector<T>& items, const T& item) {
  return std::find(items.begin(), items.end(), item) != items.end();
}

class Planner {
 public:
  Planner(const OfferPolicy& policy, const proto::Offer& offer) : policy_(policy), offer_(offer) {}

  Plan run() {
    take_address(offer_.address4, false);
    take_address(offer_.address6, true);
    take_gateway(offer_.gateway4, false);
    take_gateway(offer_.gateway6, true);
    take_mtu();
    take_resolvers();
    return std::move(plan_);
  }

 private:
  void refuse(std::string what, const std::string& why) {
    plan_.refused.push_back(std::move(what) + ": " + why);
  }

  // The static subnets of a family, and the planned one.
  [[nodiscard]] std::vector<Cidr> subnets(bool v6) const {
    std::vector<Cidr> found;
    const auto& planned = v6 ? plan_.v6.address : plan_.v4.address;
    if (planned) found.push_back(*planned);
    std::copy_if(policy_.addresses.begin(), policy_.addresses.end(), std::back_inserter(found),
                 [v6](const Cidr& subnet) { return subnet.address.v6 == v6; });
    return found;
  }

  // "" when the address is good.
  [[nodiscard]] std::string fault(const Cidr& address, bool v6) const {
    if (address.address.v6 != v6) return v6 ? "offered as IPv6" : "offered as IPv4";
    if (address.prefix == 0) return "a prefix of 0 is everything";
    if (const char* why = unusable(address.address)) return why;
    if (const char* why = no_host_of(address, address.address)) return why;
    if (!policy_.accept_within.empty() && !lies_within(policy_.accept_within, address)) {
      return "its subnet lies outside what is accepted";
    }
    if (!v6 && is_link_local(address.address) && policy_.accept_within.empty()) {
      return "a link-local address, which nothing here accepts by name";
    }
    if (v6 && policy_.mtu && *policy_.mtu < kMinMtuV6) return "IPv6 needs an MTU of 1280";
    return {};
  }

  void take_address(const std::optional<proto::OfferAddress>& offered, bool v6) {
    if (!offered || !policy_.automatic_address) return;
    auto& family = v6 ? plan_.v6 : plan_.v4;
    const auto parsed = parse_cidr(offered->address + "/" + std::to_string(offered->prefix));
    const std::string why = parsed ? fault(*parsed, v6) : parsed.error().message;
    if (why.empty()) {
      family.address = *parsed;
    } else {
      family.address_refused = true;
      refuse(parsed ? "address " + to_string(*parsed) : "address", why);
    }
  }

  [[nodiscard]] std::string fault(const IpAddress& gateway, bool v6) const {
    if (gateway.v6 != v6) return v6 ? "offered as IPv6" : "offered as IPv4";
    if (const char* why = unusable(gateway)) return why;
    const auto nets = subnets(v6);
    if (nets.empty()) return "there is no address of its family";
    for (const Cidr& subnet : nets) {
      if (subnet.address == gateway) return "the guest's own address";
    }
    const auto subnet = std::find_if(nets.begin(), nets.end(),
                                     [&](const Cidr& each) { return each.contains(gateway); });
    if (subnet == nets.end()) {
      if (v6 && is_link_local(gateway)) return {};  // on every link
      return "not in the subnet " + to_string(nets.front());
    }
    const char* why = no_host_of(*subnet, gateway);
    return why != nullptr ? why : "";
  }

  void take_gateway(const std::optional<std::string>& offered, bool v6) {
    auto& family = v6 ? plan_.v6 : plan_.v4;
    const bool pinned = policy_.gateway && policy_.gateway->v6 == v6;
    if (pinned && !subnets(v6).empty()) family.gateway = policy_.gateway;
    if (!offered || (!pinned && !policy_.automatic_gateway)) return;

    const auto ip = parse_ip(*offered);
    if (pinned && ip && *ip == *policy_.gateway) return;
    const std::string why = !ip      ? ip.error().message
                            : pinned ? "pinned to " + to_string(*policy_.gateway)
                                     : fault(*ip, v6);
    if (why.empty()) {
      family.gateway = *ip;
    } else {
      family.gateway_refused = !pinned;
      refuse(ip ? "gateway " + to_string(*ip) : "gateway", why);
    }
  }

  [[nodiscard]] std::string mtu_fault(std::uint32_t mtu) const {
    if (policy_.mtu) return "pinned to " + std::to_string(*policy_.mtu);
    if (mtu < proto::kMinMtu || mtu > proto::kMaxMtu) {
      return "not from " + std::to_string(proto::kMinMtu) + " to " + std::to_string(proto::kMaxMtu);
    }
    if (mtu > policy_.max_mtu) {
      return "the longest frame has room for " + std::to_string(policy_.max_mtu);
    }
    if (mtu < kMinMtuV6 && !subnets(true).empty()) return "IPv6 needs 1280";
    return {};
  }

  void take_mtu() {
    plan_.mtu = policy_.mtu;
    if (!offer_.mtu || offer_.mtu == policy_.mtu) return;
    const std::string why = mtu_fault(*offer_.mtu);
    if (why.empty()) {
      plan_.mtu = offer_.mtu;
    } else {
      plan_.mtu_refused = !policy_.mtu;
      refuse("MTU " + std::to_string(*offer_.mtu), why);
    }
  }

  void take_resolvers() {
    plan_.resolvers = policy_.resolvers;
    if (!policy_.resolv_conf) return;  // there is no use for them
    for (const std::string& text : offer_.resolvers) {
      const auto ip = parse_ip(text);
      if (!ip) {
        refuse("resolver", ip.error().message);
        continue;
      }
      const std::string what = "resolver " + to_string(*ip);
      if (has(plan_.resolvers, *ip)) continue;
      if (!policy_.resolvers.empty()) {
        refuse(what, "resolvers are pinned");
      } else if (const char* why = unusable(*ip)) {
        refuse(what, why);
      } else if (ip->v6 && is_link_local(*ip)) {
        refuse(what, "a link-local address names no interface");
      } else if (plan_.resolvers.size() == kMaxPlannedResolvers) {
        refuse(what, "more than " + std::to_string(kMaxPlannedResolvers));
      } else {
        plan_.resolvers.push_back(*ip);
      }
    }
  }

  const OfferPolicy& policy_;
  const proto::Offer& offer_;
  Plan plan_;
};

}  // namespace

Plan plan(const OfferPolicy& policy, const proto::Offer& offer) {
  return Planner(policy, offer).run();
}

OfferApplier::OfferApplier(std::string tap, OfferPolicy policy, net::Netlink netlink)
    : tap_(std::move(tap)), policy_(std::move(policy)), netlink_(std::move(netlink)) {}

Result<Applied> OfferApplier::apply(const proto::Offer& offer) {
  const Plan planned = plan(policy_, offer);
  const auto link = netlink_.link(tap_);
  if (!link) return link.error();
  auto present = netlink_.addresses(tap_);
  if (!present) return present.error();

  Applied applied;
  applied.mtu = link->mtu;
  if (planned.refused != last_refused_) applied.refused = planned.refused;
  last_refused_ = planned.refused;
  // First, because IPv6 addresses need an MTU that carries IPv6.
  apply_mtu(planned, applied);
  apply_family(planned.v4, false, *present, applied);
  apply_family(planned.v6, true, *present, applied);
  apply_resolvers(planned, applied);
  const auto there = [&](const std::optional<Cidr>& address) {
    return address && has(*present, *address);
  };
  applied.addressed = !policy_.automatic_address || !policy_.addresses.empty() || !ours_.empty() ||
                      there(planned.v4.address) || there(planned.v6.address);
  return applied;
}

void OfferApplier::note(const Result<void>& done, std::string change, Applied& applied) {
  if (done) {
    applied.changes.push_back(std::move(change));
  } else {
    applied.failed.push_back(done.error().message);
  }
}

void OfferApplier::apply_mtu(const Plan& plan, Applied& applied) {
  const std::uint32_t before = applied.mtu;
  const auto wanted = plan.mtu ? plan.mtu : mtu_before_;
  if (plan.mtu_refused || !wanted || *wanted == before) return;
  net::LinkChange change;
  change.mtu = wanted;
  const auto changed = netlink_.change_link(tap_, change);
  note(changed, "MTU " + std::to_string(*wanted) + ", was " + std::to_string(before), applied);
  if (!changed) return;
  applied.mtu = *wanted;
  applied.mtu_changed = true;
  if (!mtu_before_) mtu_before_ = before;
}

void OfferApplier::apply_family(const Plan::Family& wanted, bool v6, std::vector<Cidr>& present,
                                Applied& applied) {
  if (wanted.address_refused) return;
  if (wanted.address && !add_address(*wanted.address, present, applied)) return;
  apply_gateway(wanted, v6, applied);
  if (!remove_old_addresses(wanted, v6, applied)) return;
  // An IPv4 address takes the younger ones of its subnet with it (netlink.hpp), and routes go with
  // their last address.
  if (wanted.address) {
    if (const auto again = netlink_.add_address(tap_, *wanted.address); !again) {
      applied.failed.push_back(again.error().message);
      std::erase(ours_, *wanted.address);
    }
  }
  apply_gateway(wanted, v6, applied);
}

bool OfferApplier::add_address(const Cidr& wanted, std::vector<Cidr>& present, Applied& applied) {
  if (has(present, wanted)) return true;
  std::erase(ours_, wanted);  // someone took it away
  // The kernel keeps an IPv6 address once, with one prefix.
  const auto same = std::find_if(present.begin(), present.end(), [&](const Cidr& each) {
    return each.address.v6 && each.address == wanted.address;
  });
  if (same != present.end()) {
    if (!has(ours_, *same)) {
      applied.failed.push_back("address " + to_string(wanted) + ": the interface has it as " +
                               to_string(*same) + " already");
      return false;
    }
    const auto removed = netlink_.remove_address(tap_, *same);
    note(removed, "address " + to_string(*same) + " removed", applied);
    if (!removed) return false;
    std::erase(ours_, *same);
  }
  const auto added = netlink_.add_address(tap_, wanted);
  note(added, "address " + to_string(wanted) + " added", applied);
  if (added) ours_.push_back(wanted);
  return added.has_value();
}

bool OfferApplier::remove_old_addresses(const Plan::Family& wanted, bool v6, Applied& applied) {
  bool any = false;
  const std::vector<Cidr> before = ours_;
  for (const Cidr& old : before) {
    if (old.address.v6 != v6 || old == wanted.address) continue;
    const auto removed = netlink_.remove_address(tap_, old);
    note(removed, "address " + to_string(old) + " removed", applied);
    if (!removed) continue;
    std::erase(ours_, old);
    any = true;
  }
  return any;
}

void OfferApplier::apply_gateway(const Plan::Family& wanted, bool v6, Applied& applied) {
  if (wanted.gateway_refused) return;
  if (wanted.gateway) {
    const auto there = netlink_.has_default_route(tap_, *wanted.gateway);
    // One that is there is the operator's, or ours from before.
    if (!there || !*there) {
      const auto done = set_gateway(wanted, v6);
      note(done, "default route through " + to_string(*wanted.gateway), applied);
      if (!done) return;
      if (!has(routes_, *wanted.gateway)) routes_.push_back(*wanted.gateway);
    }
  }
  const std::vector<IpAddress> before = routes_;
  for (const IpAddress& old : before) {
    if (old.v6 != v6 || old == wanted.gateway) continue;
    const auto removed = netlink_.remove_default_route(tap_, old);
    note(removed, "default route through " + to_string(old) + " removed", applied);
    if (removed) std::erase(routes_, old);
  }
}

Result<void> OfferApplier::set_gateway(const Plan::Family& wanted, bool v6) {
  const IpAddress& gateway = *wanted.gateway;
  const auto reaches = [&](const Cidr& subnet) { return subnet.contains(gateway); };
  const bool on_link = (v6 && is_link_local(gateway)) ||
                       (wanted.address && reaches(*wanted.address)) ||
                       std::any_of(policy_.addresses.begin(), policy_.addresses.end(), reaches);
  if (!on_link) {  // only a pinned one may be
    const Cidr alone{gateway, static_cast<std::uint8_t>(v6 ? 128 : 32)};
    if (auto routed = netlink_.add_route(tap_, alone); !routed) return routed;
  }
  return netlink_.set_default_route(tap_, gateway);
}

void OfferApplier::apply_resolvers(const Plan& plan, Applied& applied) {
  if (!policy_.resolv_conf || plan.resolvers.empty()) return;
  const auto written = write_resolv_conf(*policy_.resolv_conf, plan.resolvers);
  if (!written) {
    applied.failed.push_back(written.error().message);
    return;
  }
  if (!*written) return;
  std::string line = *policy_.resolv_conf + ": resolvers";
  for (const IpAddress& resolver : plan.resolvers) {
    line += " " + to_string(resolver);
  }
  applied.changes.push_back(std::move(line));
}

}  // namespace causeway::guest
