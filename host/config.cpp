// SPDX-License-Identifier: Apache-2.0
#include "host/config.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "host/broker.hpp"

namespace causeway::host {

namespace {

constexpr std::size_t kMaxName = 32;
constexpr std::size_t kMaxResolvers = 3;  // what resolv.conf(5) takes
constexpr std::uint32_t kMaxUnknown = 256;
constexpr int kMaxStreamPorts = 64;  // what the broker hands over at once (Channel::kMaxFds)

Result<void> check_name(std::string_view text) {
  const auto good = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  };
  if (text.empty() || text.size() > kMaxName || !std::all_of(text.begin(), text.end(), good)) {
    return Error{"not a name: 1 to 32 of a-z, 0-9, _ and -", EINVAL};
  }
  return {};
}

// A TAP's name as a name of ours; what is not allowed there becomes '-'.
std::string name_of(const std::string& tap) {
  std::string name = tap;
  for (char& c : name) {
    if (c >= 'A' && c <= 'Z') {
      c = static_cast<char>(c - 'A' + 'a');
    } else if (!check_name(std::string_view(&c, 1))) {
      c = '-';
    }
  }
  return name;
}

void describe_network(OptionGroup& group, GuestConfig& guest) {
  bridge::add_link_options(group, guest.link);
  group.add("attach", guest.attach,
            {.doc = "Use a TAP that is there already and leave its addresses, MTU and queue "
                    "length alone; needs no capability."});
  group.add("bridge", guest.bridge,
            {.value = "NAME",
             .doc = "The bridge that the TAP joins.",
             .check = bridge::check_interface_name});
  group.add("guest_address", guest.guest_addresses,
            {.doc = "The address that the guest is offered, with its prefix; one IPv4, one IPv6.",
             .reloadable = true});
  group.add("guest_gateway", guest.guest_gateways,
            {.doc = "The gateway that the guest is offered; by default the TAP's own address.",
             .reloadable = true});
  group.add("resolvers", guest.resolvers,
            {.doc = "A DNS resolver that the guest is offered; three at most.",
             .flag = "--resolver",
             .reloadable = true});
  group.add(
      "nat", guest.nat,
      {.doc = "Masquerade what the guest sends through any other interface.", .reloadable = true});
  group.add_with("publish", guest.publish, publish_codec(),
                 {.doc = "A port of this host that leads to the guest: "
                         "tcp:0.0.0.0:443=tcp:443 over the TAP, tcp:0.0.0.0:443=vsock:443 over a "
                         "stream of its own.",
                  .reloadable = true});
  group.add("max_handshakes", guest.max_handshakes,
            {.doc = "Connections of this guest that may be in their greeting at once.",
             .min = 1,
             .max = 1024});
  auto& egress = group.section("egress",
                               "Where the guest may go. The first match decides: allowed "
                               "metadata, denied metadata, allow, deny, default.");
  egress.add_choice("default", guest.egress.allow_by_default, {{"allow", true}, {"deny", false}},
                    {.doc = "What happens to the rest.", .reloadable = true});
  egress.add_with("allow", guest.egress.allow, egress_codec(),
                  {.doc = "any, private, metadata or a network, with tcp: or udp: in front and "
                          "ports behind if wanted: tcp:192.0.2.0/24:443.",
                   .reloadable = true});
  egress.add_with("deny", guest.egress.deny, egress_codec(),
                  {.doc = "The same, denied.", .reloadable = true});
}

OptionSpec cid_spec() {
  return {.value = "CID",
          .doc = "The vsock CID whose connections are this guest's; others are refused.",
          .min = 1,
          .max = 0xffff'fffe};
}

OptionSpec address_spec() {
  return {.doc = "An address of the TAP with its prefix, as 10.0.0.1/24 or fd00::1/64."};
}

void describe_guest(OptionGroup& group, GuestConfig& guest) {
  group.add(
      "name", guest.name,
      {.value = "NAME", .doc = "In logs and status; by default the TAP's.", .check = check_name});
  group.add("cid", guest.cid, cid_spec());
  group.add("listen", guest.listen,
            {.doc = "A listener of this guest's own, as unix:/PATH or hvsock:/PATH:PORT."});
  group.add("address", guest.link.addresses, address_spec());
  describe_network(group, guest);
}

bool is_vsock(const std::optional<Address>& address) {
  return address && std::holds_alternative<VsockAddress>(address->value);
}

const Cidr* address_of(const std::vector<Cidr>& list, bool v6) {
  const auto found = std::find_if(list.begin(), list.end(),
                                  [v6](const Cidr& each) { return each.address.v6 == v6; });
  return found == list.end() ? nullptr : &*found;
}

Result<void> check_guest(const GuestConfig& guest) {
  const auto wrong = [&](const std::string& message) {
    return Error{"guest '" + (guest.name.empty() ? guest.link.tap.value_or("") : guest.name) +
                     "': " + message,
                 EINVAL};
  };
  for (const bool v6 : {false, true}) {
    const auto same = [v6](const Cidr& each) { return each.address.v6 == v6; };
    if (std::count_if(guest.guest_addresses.begin(), guest.guest_addresses.end(), same) > 1) {
      return wrong(std::string("guest_address: one of each family at most, found several of ") +
                   (v6 ? "IPv6" : "IPv4"));
    }
  }
  for (const auto& offered : guest.guest_addresses) {
    const auto& own = guest.link.addresses;
    if (std::any_of(own.begin(), own.end(),
                    [&](const Cidr& each) { return each.address == offered.address; })) {
      return wrong("guest_address: " + to_string(offered) + " is the TAP's own address");
    }
  }
  if (guest.resolvers.size() > kMaxResolvers) {
    return wrong("resolvers: three at most");
  }
  if (guest.attach && !guest.link.addresses.empty()) {
    return wrong("attach: the TAP's addresses are someone else's, address has to go");
  }
  std::set<std::string> published;
  for (const auto& publish : guest.publish) {
    if (!published.insert(to_string(publish)).second) {
      return wrong("publish: " + to_string(publish) + " is there twice");
    }
    if (!publish.over_tap() && publish.last - publish.first >= kMaxStreamPorts) {
      return wrong("publish: " + to_string(publish) + ": a range of a stream has 64 ports at most");
    }
    if (publish.over_tap()) {
      if (guest.bridge) {
        return wrong("publish: " + to_string(publish) +
                     ": a bridged guest is published by the bridge's network, not by us");
      }
      if (address_of(guest.guest_addresses, publish.address.v6) == nullptr) {
        return wrong("publish: " + to_string(publish) + ": needs a guest_address of that family");
      }
    }
    if (std::holds_alternative<VsockTarget>(publish.target) && !guest.cid) {
      return wrong("publish: " + to_string(publish) + ": needs the guest's cid");
    }
  }
  return {};
}

// What nftables would be asked for has to make sense: check_rules() looks over all guests at once.
Result<void> check_all_rules(const std::vector<const GuestConfig*>& guests) {
  std::vector<GuestConfig> named;
  for (const auto* guest : guests) {
    named.push_back(*guest);
    if (named.back().name.empty()) {
      named.back().name = name_of(guest->tap());
    }
  }
  std::vector<const GuestConfig*> all;
  for (const auto& guest : named) {
    all.push_back(&guest);
  }
  return check_rules(rule_set("check", all));
}

// The Nth subnet of `network` with two addresses in it; none when it does not fit.
std::optional<std::pair<Cidr, Cidr>> subnet(const Cidr& network, std::uint32_t number) {
  const unsigned bits = network.address.v6 ? 128 : 32;
  const unsigned inside = bits - network.prefix;  // bits that are ours to number
  if (inside < 2 || (inside - 2 < 32 && (number >> (inside - 2)) != 0)) {
    return std::nullopt;
  }
  IpAddress base = network.network();
  const std::size_t last = base.size() - 1;
  std::uint64_t carry = static_cast<std::uint64_t>(number) * 4;
  for (std::size_t i = 0; i <= last && carry != 0; ++i) {
    carry += base.bytes[last - i];
    base.bytes[last - i] = static_cast<std::uint8_t>(carry & 0xff);
    carry >>= 8;
  }
  const auto prefix = static_cast<std::uint8_t>(bits - 2);
  Cidr ours{base, prefix};
  ours.address.bytes[last] |= 1;
  Cidr theirs{base, prefix};
  theirs.address.bytes[last] |= 2;
  return std::pair{ours, theirs};
}

template <class T>
std::vector<std::string> texts(const std::vector<T>& list) {
  std::vector<std::string> result;
  std::transform(list.begin(), list.end(), std::back_inserter(result),
                 [](const T& each) { return to_string(each); });
  return result;
}

}  // namespace

ConfigParser::ConfigParser()
    : table_("causeway-host",
             "Carries Ethernet frames between TAPs on the host and the framers of its guests.",
             bridge::version_text("causeway-host")) {
  table_.add("listen", config_.listen,
             {.doc = "Where the framers connect: vsock:any:PORT, unix:/PATH, tcp:IP:PORT, "
                     "hvsock:/PATH:PORT or fd:N."});
  table_.add("cid", single_.cid, cid_spec());
  table_.add("address", single_.link.addresses, address_spec());
  describe_network(table_, single_);
  table_.add_list<GuestConfig>("guests", config_.guests, describe_guest,
                               "The guests of this helper, instead of the one that the options "
                               "beside it describe.");
  auto& unknown = table_.section("accept_unknown",
                                 "What to do with connections from a CID that no guest names.");
  auto& template_of = config_.unknown;
  unknown.add("limit", template_of.limit,
              {.doc = "How many of them at once; 0 refuses them.",
               .max = kMaxUnknown,
               .reloadable = true,
               .file_only = true});
  unknown.add("tap_prefix", template_of.tap_prefix,
              {.value = "NAME",
               .doc = "The TAP of number N is this name and N.",
               .file_only = true,
               .check = [](std::string_view text) -> Result<void> {
                 if (text.size() > 12) {
                   return Error{"12 bytes at most: a number of three digits comes behind", EINVAL};
                 }
                 return bridge::check_interface_name(text);
               }});
  unknown.add("network4", template_of.network4,
              {.doc = "Number N has its Nth /30.", .file_only = true});
  unknown.add("network6", template_of.network6,
              {.doc = "Number N has its Nth /126.", .file_only = true});
  unknown.add("forget", template_of.forget,
              {.doc = "A guest that was gone for so long gives its number back.",
               .min = 1000,
               .file_only = true});
  auto& nat = template_of.guest;
  unknown.add("nat", nat.nat, {.doc = "As a guest's.", .file_only = true});
  unknown.add("resolvers", nat.resolvers, {.doc = "As a guest's.", .file_only = true});
  unknown.add("mtu", nat.link.mtu,
              {.doc = "As a guest's.", .min = 576, .max = 65521, .file_only = true});
  unknown.add("lanes", nat.link.lanes,
              {.doc = "As a guest's.", .min = 1, .max = proto::kMaxLanes, .file_only = true});
  auto& egress = unknown.section("egress", "As a guest's.");
  egress.add_choice("default", nat.egress.allow_by_default, {{"allow", true}, {"deny", false}},
                    {.doc = "As a guest's.", .file_only = true});
  egress.add_with("allow", nat.egress.allow, egress_codec(),
                  {.doc = "As a guest's.", .file_only = true});
  egress.add_with("deny", nat.egress.deny, egress_codec(),
                  {.doc = "As a guest's.", .file_only = true});
  table_.add("instance", instance_,
             {.value = "NAME",
              .doc = "Names the nftables table and the state of this helper; by default the TAP's "
                     "name, or \"main\" with guests.",
              .check = check_name});
  table_.add("user", config_.user,
             {.value = "NAME",
              .doc = "Started as root: the user that the process which handles the guests' bytes "
                     "becomes; by default \"causeway\" where it exists, else \"nobody\"."});
  table_.add("state_directory", config_.state_directory,
             {.value = "PATH", .doc = "Where what has to be undone after a crash is kept."});
  bridge::add_program_options(table_, config_.program);
  table_.add("cleanup", commands_.cleanup,
             {.doc = "Remove the nftables table and restore the settings that a killed helper of "
                     "this instance left, and end.",
              .flag_only = true});
  table_.add(
      "print_rules", commands_.print_rules,
      {.doc = "Print the nftables script of this configuration, and end.", .flag_only = true});
  table_.add_check("guests", [this] { return check(); });
}

Result<void> ConfigParser::check() const {
  std::vector<const GuestConfig*> all;
  for (const auto& guest : config_.guests) {
    all.push_back(&guest);
  }
  const bool shared_vsock = is_vsock(config_.listen);
  if (all.empty() && config_.unknown.limit == 0) {
    if (!single_.link.tap || !config_.listen) {
      return Error{
          "none, and no --listen with --tap: one guest needs these two, several are "
          "described in the configuration file",
          EINVAL};
    }
    if (single_.cid && !shared_vsock) {
      return Error{"cid: only connections on vsock have a CID", EINVAL};
    }
    auto good = check_guest(single_);
    return good ? check_all_rules({&single_}) : good;
  }
  if (single_.link.tap) {
    return Error{"cannot be together with tap: each guest has its own", EINVAL};
  }
  std::set<std::string> names;
  std::set<std::string> taps;
  std::set<std::uint32_t> cids;
  std::set<std::string> listeners;
  for (const auto* guest : all) {
    if (!guest->link.tap) {
      return Error{"guest '" + guest->name + "': tap is required", EINVAL};
    }
    const std::string name = guest->name.empty() ? name_of(guest->tap()) : guest->name;
    if (!taps.insert(guest->tap()).second) {
      return Error{"two guests have the TAP '" + guest->tap() + "'", EINVAL};
    }
    if (!names.insert(name).second) {
      return Error{"two guests have the name '" + name + "'", EINVAL};
    }
    if (guest->cid && !cids.insert(*guest->cid).second) {
      return Error{"two guests have the cid " + std::to_string(*guest->cid), EINVAL};
    }
    if (guest->listen && !listeners.insert(to_string(*guest->listen)).second) {
      return Error{"two guests listen on " + to_string(*guest->listen), EINVAL};
    }
    if (!guest->listen && !(guest->cid && shared_vsock)) {
      return Error{"guest '" + name +
                       "': needs a listen of its own, or a cid and a listen of vsock:any:PORT "
                       "for all",
                   EINVAL};
    }
    if (auto good = check_guest(*guest); !good) {
      return good;
    }
  }
  if (config_.listen && !shared_vsock) {
    return Error{"guests are told apart by their CID: a listen for all of them is vsock:any:PORT",
                 EINVAL};
  }
  if (config_.unknown.limit > 0) {
    if (!shared_vsock) {
      return Error{"accept_unknown: needs a listen of vsock:any:PORT", EINVAL};
    }
    if (auto last = unknown_guest(config_.unknown, config_.unknown.limit, kFirstGuestCid); !last) {
      return last.error();
    }
  }
  return check_all_rules(all);
}

HostConfig ConfigParser::finish() && {
  const bool single = config_.guests.empty() && config_.unknown.limit == 0;
  if (single) {
    config_.guests.push_back(std::move(single_));
  }
  for (auto& guest : config_.guests) {
    if (guest.name.empty()) {
      guest.name = name_of(guest.tap());
    }
  }
  config_.instance = instance_.value_or(single ? config_.guests.front().name : "main");
  return std::move(config_);
}

std::optional<proto::Offer> offer_of(const GuestConfig& guest) {
  if (guest.guest_addresses.empty() && guest.guest_gateways.empty() && guest.resolvers.empty()) {
    return std::nullopt;
  }
  proto::Offer offer;
  for (const auto& address : guest.guest_addresses) {
    auto& place = address.address.v6 ? offer.address6 : offer.address4;
    place = proto::OfferAddress{to_string(address.address), address.prefix};
    const auto& own = guest.link.addresses;
    const auto gateway = std::find_if(own.begin(), own.end(), [&](const Cidr& each) {
      return each.contains(address.address) && address.contains(each.address);
    });
    if (gateway != own.end() && !guest.bridge) {
      (address.address.v6 ? offer.gateway6 : offer.gateway4) = to_string(gateway->address);
    }
  }
  for (const auto& gateway : guest.guest_gateways) {
    (gateway.v6 ? offer.gateway6 : offer.gateway4) = to_string(gateway);
  }
  offer.resolvers = texts(guest.resolvers);
  offer.mtu = guest.link.frame_mtu();
  return offer;
}

Result<GuestConfig> unknown_guest(const UnknownGuests& unknown, std::uint32_t number,
                                  std::uint32_t cid) {
  GuestConfig guest = unknown.guest;
  guest.link.tap = unknown.tap_prefix + std::to_string(number);
  guest.name = name_of(guest.tap());
  guest.cid = cid;
  for (const auto& network : {unknown.network4, unknown.network6}) {
    if (!network) {
      continue;
    }
    const auto pair = subnet(*network, number);
    if (!pair) {
      return Error{"accept_unknown: " + to_string(*network) + " has no subnet for number " +
                       std::to_string(number),
                   EINVAL};
    }
    guest.link.addresses.push_back(pair->first);
    guest.guest_addresses.push_back(pair->second);
  }
  return guest;
}

bool same_link(const GuestConfig& a, const GuestConfig& b) {
  return a.name == b.name && a.cid == b.cid && a.listen == b.listen && a.link == b.link &&
         a.attach == b.attach && a.bridge == b.bridge && a.max_handshakes == b.max_handshakes;
}

bool same_guest(const GuestConfig& a, const GuestConfig& b) {
  return same_link(a, b) && a.guest_addresses == b.guest_addresses &&
         a.guest_gateways == b.guest_gateways && a.resolvers == b.resolvers && a.nat == b.nat &&
         texts(a.publish) == texts(b.publish) &&
         a.egress.allow_by_default == b.egress.allow_by_default &&
         texts(a.egress.allow) == texts(b.egress.allow) &&
         texts(a.egress.deny) == texts(b.egress.deny);
}

}  // namespace causeway::host
