// SPDX-License-Identifier: Apache-2.0
// What a set of rules has to fulfil before it is written out. Names go into the script as they are,
// so this is also what keeps a name from being more than a name.
#include <algorithm>
#include <set>

#include "common/config/text.hpp"
#include "host/network/rules.hpp"

namespace causeway::host {
namespace {

bool is_guest_name(std::string_view name) {
  return !name.empty() && name.size() <= 32 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  });
}

// An interface's name has 15 bytes at most (IFNAMSIZ). The kernel allows more characters; but '*'
// at the end would mean every TAP that begins so.
bool is_tap_name(std::string_view name) {
  return !name.empty() && name.size() <= 15 && name != "." && name != ".." &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '-' || c == '_' || c == '.';
         });
}

bool is_any(const IpAddress& ip) {
  return ip == IpAddress{ip.v6, {}};
}

bool overlap(const Publish& a, const Publish& b) {
  return a.transport == b.transport && a.address.v6 == b.address.v6 &&
         (a.address == b.address || is_any(a.address) || is_any(b.address)) && a.first <= b.last &&
         b.first <= a.last;
}

bool same_everywhere(const IpAddress& ip) {
  return ip == *parse_ip("::1");
}

Result<void> check_guest(const GuestRules& guest) {
  const std::string who = "guest " + in_quotes(guest.name) + ": ";
  if (!is_guest_name(guest.name)) {
    return Error{who + "a name has 1 to 32 of a-z, 0-9, - and _, as in app-1"};
  }
  if (!is_tap_name(guest.tap)) {
    return Error{who + "the TAP's name " + in_quotes(guest.tap) +
                 " has not 1 to 15 of letters, digits, -, _ and ."};
  }
  const auto has_address = [&](bool v6) {
    return std::any_of(guest.guest_addresses.begin(), guest.guest_addresses.end(),
                       [&](const Cidr& cidr) { return cidr.address.v6 == v6; });
  };
  const Egress& egress = guest.egress;
  if (guest.bridge && guest.nat) {
    return Error{who + "NAT does not go with a bridge, whose network does its own"};
  }
  if (guest.bridge && (!egress.allow_by_default || !egress.allow.empty() || !egress.deny.empty())) {
    return Error{who + "egress terms cannot be kept on a bridge: its packets are not routed here"};
  }
  for (const Publish& one : guest.publish) {
    if (!one.over_tap()) continue;
    const std::string what = who + to_string(one) + ": ";
    if (guest.bridge) {
      return Error{what +
                   "a bridged guest has its ports on its own address; publish over a stream"};
    }
    if (!has_address(one.address.v6)) {
      return Error{what + "publishing over the TAP needs the guest's " +
                   (one.address.v6 ? "IPv6" : "IPv4") + " address; set guest_address"};
    }
    if (same_everywhere(one.address)) {
      return Error{what + "the kernel does not route ::1; publish on 127.0.0.1 or over a stream"};
    }
  }
  return {};
}

}  // namespace

Result<void> check_rules(const RuleSet& set) {
  std::set<std::string> names;
  std::set<std::string> taps;
  struct Published {
    const GuestRules* guest;
    const Publish* publish;
  };
  std::vector<Published> published;
  for (const GuestRules& guest : set.guests) {
    if (auto checked = check_guest(guest); !checked) return checked;
    if (!names.insert(guest.name).second) {
      return Error{"two guests have the name " + in_quotes(guest.name)};
    }
    if (!taps.insert(guest.tap).second) {
      return Error{"guest " + in_quotes(guest.name) + ": the TAP " + in_quotes(guest.tap) +
                   " is another guest's"};
    }
    for (const Publish& one : guest.publish) {
      for (const Published& other : published) {
        if (!overlap(one, *other.publish)) continue;
        return Error{"guest " + in_quotes(guest.name) + ": " + to_string(one) +
                     " takes ports that guest " + in_quotes(other.guest->name) + " has by " +
                     to_string(*other.publish)};
      }
      published.push_back({&guest, &one});
    }
  }
  return {};
}

}  // namespace causeway::host
