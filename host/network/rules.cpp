// SPDX-License-Identifier: Apache-2.0
#include "host/network/rules.hpp"

#include <algorithm>
#include <array>
#include <initializer_list>

namespace causeway::host {
namespace {

constexpr std::array<std::string_view, kDropReasons> kReasonNames{
    "spoofed", "abuse", "metadata", "egress", "peer", "unpublished"};

constexpr std::array<std::string_view, 2> kFamilies{"ip", "ip6"};  // nft's words, by IpAddress::v6
constexpr std::string_view kPrivate4 =
    "{ 10.0.0.0/8, 100.64.0.0/10, 127.0.0.0/8, 169.254.0.0/16, 172.16.0.0/12, 192.168.0.0/16 }";
constexpr std::string_view kPrivate6 = "{ ::1, fc00::/7, fe80::/10 }";
constexpr std::string_view kMetadata4 = "{ 169.254.169.254, 169.254.170.2 }";
constexpr std::string_view kMetadata6 = "{ fd00:ec2::254 }";
// A guest gets an answer rather than silence, so that its connections fail at once. Spoofed packets
// get none. "icmpx type" is also understood by nft before 1.0.
constexpr std::string_view kRefuse = "reject with icmpx type admin-prohibited";

std::string braces(const std::vector<std::string>& items) {
  std::string out = "{ ";
  for (const std::string& item : items)
    out += (&item == items.data() ? "" : ", ") + item;
  return out + " }";
}

std::string quoted(const std::string& name) {
  return "\"" + name + "\"";
}

std::vector<std::string> addresses_of(const std::vector<Cidr>& list, bool v6) {
  std::vector<std::string> out;
  for (const Cidr& cidr : list) {
    if (cidr.address.v6 == v6) out.push_back(to_string(cidr.address));
  }
  return out;
}

bool is_any(const IpAddress& ip) {
  return std::all_of(ip.bytes.begin(), ip.bytes.end(), [](std::uint8_t b) { return b == 0; });
}

// What earns an allow term a place before the refusal of metadata services.
bool names_metadata(const EgressTerm& term) {
  if (term.where == EgressTerm::Where::metadata) return true;
  if (term.where != EgressTerm::Where::network) return false;
  const Cidr& network = term.network;
  const auto within = [&](std::string_view text) {
    const auto outer = parse_cidr(text);
    return outer && outer->prefix <= network.prefix && outer->contains(network.address);
  };
  return within("169.254.0.0/16") || within("fe80::/10") || within("fd00:ec2::254/128");
}

// One line after the other, indented by how many blocks are open.
class Script {
 public:
  void line(std::initializer_list<std::string_view> parts) {
    text_.append(2 * depth_, ' ');
    for (const std::string_view part : parts)
      text_ += part;
    text_ += '\n';
  }
  void open(std::initializer_list<std::string_view> parts) {
    line(parts);
    ++depth_;
  }
  void close() {
    --depth_;
    line({"}"});
  }
  // A chain that the kernel calls: `hook` as in "filter hook input priority filter + 5".
  void base_chain(std::string_view chain, std::string_view hook) {
    open({"chain ", chain, " {"});
    line({"type ", hook, "; policy accept;"});
  }
  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  std::string text_;
  std::size_t depth_ = 0;
};

class Renderer {
 public:
  explicit Renderer(const RuleSet& set) : set_(set) {
    for (const GuestRules& guest : set.guests) {
      if (guest.bridge) continue;
      guests_.push_back(&guest);
      taps_.push_back(quoted(guest.tap));
      publishes_ = publishes_ || publishes_over_tap(guest);
    }
  }

  std::string render() {
    out_.line({"add table inet ", set_.table});
    out_.line({"delete table inet ", set_.table});
    out_.open({"table inet ", set_.table, " {"});
    if (!guests_.empty()) {
      counters();
      raw();
      if (publishes_) publish();
      egress();
      input();
      forward();
      postrouting();
    }
    out_.close();
    return out_.take();
  }

 private:
  static bool publishes_over_tap(const GuestRules& guest) {
    return std::any_of(guest.publish.begin(), guest.publish.end(),
                       [](const Publish& p) { return p.over_tap(); });
  }
  static std::string count(DropReason reason, const GuestRules& guest) {
    return "counter name " + counter_name(reason, guest.name);
  }

  // { "tap1" : goto PREFIX_guest1, ... }
  std::string to_chains(std::string_view prefix, bool nat_only = false) const {
    std::vector<std::string> items;
    for (const GuestRules* guest : guests_) {
      if (nat_only && !guest->nat) continue;
      items.push_back(quoted(guest->tap) + " : goto " + std::string(prefix) + "_" + guest->name);
    }
    return items.empty() ? "" : braces(items);
  }

  void counters() {
    for (const GuestRules* guest : guests_) {
      for (std::size_t i = 0; i < kDropReasons; ++i) {
        out_.line({"counter ", counter_name(static_cast<DropReason>(i), guest->name), " { }"});
      }
    }
  }

  void raw() {
    for (const GuestRules* guest : guests_) {
      const std::string abuse = count(DropReason::abuse, *guest) + " drop";
      const std::string spoofed = count(DropReason::spoofed, *guest) + " drop";
      out_.open({"chain raw_", guest->name, " {"});
      out_.line({"ip daddr 127.0.0.0/8 ", abuse});
      out_.line({"ip saddr 127.0.0.0/8 ", abuse});
      out_.line({"ip6 daddr ::1 ", abuse});
      out_.line({"ip6 saddr ::1 ", abuse});
      out_.line({"icmp type redirect ", abuse});
      out_.line({"icmpv6 type { nd-router-advert, nd-redirect } ", abuse});
      for (const bool v6 : {false, true}) {
        const std::string_view family = kFamilies[v6 ? 1 : 0];
        auto sources = addresses_of(guest->guest_addresses, v6);
        if (guest->guest_addresses.empty()) {
          const auto ours = addresses_of(guest->host_addresses, v6);
          if (!ours.empty()) out_.line({family, " saddr ", braces(ours), " ", spoofed});
        } else if (v6) {
          // Neighbour discovery needs the link-local address, its duplicate detection ::.
          sources.emplace_back("::");
          sources.emplace_back("fe80::/10");
          out_.line({"ip6 saddr != ", braces(sources), " ", spoofed});
        } else {
          // A guest that asks for its address has none yet.
          out_.line({"ip saddr 0.0.0.0 ip daddr 255.255.255.255 udp sport 68 udp dport 67 accept"});
          if (sources.empty()) {
            out_.line({"meta nfproto ipv4 ", spoofed});
          } else {
            out_.line({"ip saddr != ", braces(sources), " ", spoofed});
          }
        }
      }
      out_.close();
    }
    out_.base_chain("raw", "filter hook prerouting priority raw + 5");
    out_.line({"iifname vmap ", to_chains("raw")});
    out_.close();
  }

  void publish() {
    out_.open({"chain publish {"});
    for (const GuestRules* guest : guests_) {
      for (const Publish& one : guest->publish) {
        if (one.over_tap()) publish_one(*guest, one);
      }
    }
    out_.close();
    // From outside nothing may get to a port by a loopback address: DNAT comes before the check
    // that refuses those.
    out_.base_chain("prerouting", "nat hook prerouting priority dstnat + 5");
    out_.line({"ip daddr 127.0.0.0/8 accept"});
    out_.line({"ip6 daddr ::1 accept"});
    out_.line({"jump publish"});
    out_.close();
    // dstnat has no name in this hook.
    out_.base_chain("output", "nat hook output priority -95");
    out_.line({"ip6 daddr ::1 accept"});
    out_.line({"jump publish"});
    out_.close();
  }

  void publish_one(const GuestRules& guest, const Publish& one) {
    const bool v6 = one.address.v6;
    const std::string_view family = kFamilies[v6 ? 1 : 0];
    const auto targets = addresses_of(guest.guest_addresses, v6);
    if (targets.empty()) return;  // check_rules() has refused it
    const std::string transport = one.transport == Transport::tcp ? "tcp" : "udp";
    const std::string where =
        is_any(one.address)
            ? std::string("meta nfproto ") + (v6 ? "ipv6" : "ipv4") + " fib daddr type local "
            : std::string(family) + " daddr " + to_string(one.address) + " ";
    std::string ports = std::to_string(one.first);
    if (one.last != one.first) ports += "-" + std::to_string(one.last);

    const std::uint16_t target = std::get<TapTarget>(one.target).port;
    std::string to = targets.front();
    if (target == one.first) {
      // Without a port in the rule, each port stays as it is.
    } else if (one.last == one.first) {
      to = (v6 ? "[" + to + "]:" : to + ":") + std::to_string(target);
    } else {
      // A range as the target would let the kernel choose any port of it.
      std::vector<std::string> pairs;
      for (unsigned port = one.first; port <= one.last; ++port) {
        pairs.push_back(std::to_string(port) + " : " + std::to_string(port - one.first + target));
      }
      to += " : " + transport + " dport map " + braces(pairs);
    }
    out_.line({where, transport, " dport ", ports, " dnat ", family, " to ", to});
  }

  // The conditions of a term, one rule each. `dialed`: by what the guest asked for rather than by
  // where DNAT has sent it.
  static std::vector<std::string> conditions(const EgressTerm& term, bool dialed) {
    std::string ports;
    if (term.transport) {
      const std::string transport = *term.transport == Transport::tcp ? "tcp" : "udp";
      std::string range = std::to_string(term.first);
      if (term.last != term.first) range += "-" + std::to_string(term.last);
      if (term.first == 0) {
        ports = "meta l4proto " + transport + " ";
      } else if (dialed) {
        ports = "meta l4proto " + transport + " ct original proto-dst " + range + " ";
      } else {
        ports = transport + " dport " + range + " ";
      }
    }
    const std::string v4 = dialed ? "ct original ip daddr " : "ip daddr ";
    const std::string v6 = dialed ? "ct original ip6 daddr " : "ip6 daddr ";
    const auto both = [&](std::string_view four, std::string_view six) {
      return std::vector<std::string>{v4 + std::string(four) + " " + ports,
                                      v6 + std::string(six) + " " + ports};
    };
    switch (term.where) {
      case EgressTerm::Where::any:
        return {ports};
      case EgressTerm::Where::private_networks:
        return both(kPrivate4, kPrivate6);
      case EgressTerm::Where::metadata:
        return both(kMetadata4, kMetadata6);
      case EgressTerm::Where::network:
        break;
    }
    return {(term.network.address.v6 ? v6 : v4) + to_string(term.network) + " " + ports};
  }

  void egress() {
    for (const GuestRules* guest : guests_) {
      egress_chain("egress", *guest, false);
      if (publishes_) egress_chain("dialed", *guest, true);
    }
  }

  void egress_chain(std::string_view prefix, const GuestRules& guest, bool dialed) {
    const auto terms = [&](const std::vector<EgressTerm>& list, std::string_view verdict,
                           std::optional<bool> metadata) {
      for (const EgressTerm& term : list) {
        if (metadata && *metadata != names_metadata(term)) continue;
        for (const std::string& condition : conditions(term, dialed)) {
          out_.line({condition, verdict});
        }
      }
    };
    const std::string refuse = count(DropReason::egress, guest) + " " + std::string(kRefuse);
    out_.open({"chain ", prefix, "_", guest.name, " {"});
    terms(guest.egress.allow, "accept", true);
    EgressTerm metadata;
    metadata.where = EgressTerm::Where::metadata;
    for (const std::string& condition : conditions(metadata, dialed)) {
      out_.line({condition, count(DropReason::metadata, guest), " ", kRefuse});
    }
    terms(guest.egress.allow, "accept", false);
    terms(guest.egress.deny, refuse, std::nullopt);
    out_.line({guest.egress.allow_by_default ? std::string_view("accept") : refuse});
    out_.close();
  }

  void input() {
    for (const GuestRules* guest : guests_) {
      out_.open({"chain input_", guest->name, " {"});
      out_.line({"ct state established,related accept"});
      // Without these there is no IPv6 on the TAP at all.
      out_.line(
          {"icmpv6 type { nd-router-solicit, nd-neighbor-solicit, nd-neighbor-advert, "
           "mld-listener-report, mld-listener-done, mld2-listener-report } accept"});
      out_.line({"goto egress_", guest->name});
      out_.close();
    }
    out_.base_chain("input", "filter hook input priority filter + 5");
    out_.line({"iifname vmap ", to_chains("input")});
    out_.close();
  }

  void forward() {
    for (const GuestRules* guest : guests_) {
      out_.open({"chain forward_", guest->name, " {"});
      out_.line({"ct state established,related accept"});
      if (publishes_) {
        out_.line({"oifname ", braces(taps_), " ct status dnat goto dialed_", guest->name});
      }
      out_.line({"oifname ", braces(taps_), " ", count(DropReason::peer, *guest), " ", kRefuse});
      out_.line({"goto egress_", guest->name});
      out_.close();
      if (!guest->nat) continue;
      out_.open({"chain to_", guest->name, " {"});
      out_.line({"ct state established,related accept"});
      out_.line({"ct status dnat accept"});
      out_.line({count(DropReason::unpublished, *guest), " drop"});
      out_.close();
    }
    out_.base_chain("forward", "filter hook forward priority filter + 5");
    out_.line({"iifname vmap ", to_chains("forward")});
    const std::string hidden = to_chains("to", true);
    if (!hidden.empty()) out_.line({"oifname vmap ", hidden});
    out_.close();
  }

  void postrouting() {
    std::vector<std::string> rules;
    for (const GuestRules* guest : guests_) {
      // By address where it is known: iifname does not match in this hook before Linux 5.7.
      std::vector<std::string> sources;
      for (const bool v6 : {false, true}) {
        const auto known = addresses_of(guest->guest_addresses, v6);
        if (!known.empty()) {
          sources.push_back(std::string(kFamilies[v6 ? 1 : 0]) + " saddr " + braces(known));
        }
      }
      if (sources.empty()) sources.push_back("iifname " + quoted(guest->tap));
      for (const std::string& source : sources) {
        if (publishes_) {
          rules.push_back(source + " oifname " + braces(taps_) + " ct status dnat masquerade");
        }
        if (guest->nat) rules.push_back(source + " oifname != " + braces(taps_) + " masquerade");
      }
      if (publishes_over_tap(*guest)) {
        rules.push_back("ip saddr 127.0.0.0/8 oifname " + quoted(guest->tap) + " masquerade");
      }
    }
    if (rules.empty()) return;
    out_.base_chain("postrouting", "nat hook postrouting priority srcnat + 5");
    for (const std::string& rule : rules)
      out_.line({rule});
    out_.close();
  }

  const RuleSet& set_;
  std::vector<const GuestRules*> guests_;  // those that are not bridged
  std::vector<std::string> taps_;          // theirs, quoted
  bool publishes_ = false;                 // any of them, over its TAP
  Script out_;
};

}  // namespace

std::string_view name(DropReason reason) {
  return kReasonNames[static_cast<std::size_t>(reason)];
}

std::string counter_name(DropReason reason, std::string_view guest) {
  return std::string(name(reason)) + "_" + std::string(guest);
}

std::string table_name(std::string_view instance) {
  std::string out = "causeway_";
  for (const char c : instance) {
    const bool fine = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
    out += fine ? c : '_';
  }
  return out;
}

bool needs_rules(const GuestRules& guest) {
  if (guest.bridge) return false;
  const bool published = std::any_of(guest.publish.begin(), guest.publish.end(),
                                     [](const Publish& p) { return p.over_tap(); });
  const Egress& egress = guest.egress;
  return guest.nat || published || !guest.guest_addresses.empty() || !egress.allow_by_default ||
         !egress.allow.empty() || !egress.deny.empty();
}

ForwardingNeeds forwarding_needs(const RuleSet& set) {
  ForwardingNeeds out;
  for (const GuestRules& guest : set.guests) {
    out.taps.push_back(guest.tap);
    if (guest.bridge) continue;
    if (guest.nat) {
      const auto has = [&](bool v6) {
        return !addresses_of(guest.guest_addresses, v6).empty() ||
               !addresses_of(guest.host_addresses, v6).empty();
      };
      out.v6 = out.v6 || has(true);
      out.v4 = out.v4 || has(false) || !has(true);
    }
    bool local = false;  // published on 127.0.0.0/8
    for (const Publish& one : guest.publish) {
      if (!one.over_tap()) continue;
      (one.address.v6 ? out.v6 : out.v4) = true;
      local = local || (!one.address.v6 && (is_any(one.address) || one.address.bytes[0] == 127));
    }
    if (local) out.route_localnet.push_back(guest.tap);
  }
  return out;
}

std::string render_rules(const RuleSet& set) {
  return Renderer(set).render();
}

std::string render_removal(const std::string& table) {
  return "add table inet " + table + "\ndelete table inet " + table + "\n";
}

}  // namespace causeway::host
