// SPDX-License-Identifier: Apache-2.0
#include "host/network/egress.hpp"

#include <algorithm>
#include <utility>

#include "common/config/text.hpp"

namespace causeway::host {
namespace {

constexpr std::string_view kForm =
    "write [tcp:|udp:]WHERE[:PORT[-PORT]], where WHERE is a network, any, private or metadata, as "
    "in tcp:10.0.0.0/8:443, [fd00::]/8 or private";

struct Place {
  std::string_view text;
  [[nodiscard]] Error fault(const std::string& what, std::size_t at) const {
    return Error{in_quotes(text) + ": " + what + " at column " + std::to_string(at + 1) + "; " +
                 std::string(kForm)};
  }
};

constexpr std::pair<std::string_view, EgressTerm::Where> kWords[] = {
    {"any", EgressTerm::Where::any},
    {"private", EgressTerm::Where::private_networks},
    {"metadata", EgressTerm::Where::metadata}};

std::string_view name(Transport transport) {
  return transport == Transport::tcp ? "tcp" : "udp";
}

Result<std::uint16_t> parse_port(const Place& place, std::string_view digits, std::size_t at) {
  if (digits.empty()) return place.fault("the port is missing", at);
  const auto port = parse_decimal(digits, 65535);
  if (port && *port > 0) return static_cast<std::uint16_t>(*port);
  return place.fault("port " + in_quotes(digits) + " is not a number from 1 to 65535", at);
}

// PORT[-PORT] from `at` to the end.
Result<void> parse_ports(const Place& place, std::size_t at, EgressTerm& out) {
  const std::string_view ports = place.text.substr(at);
  if (!out.transport) return place.fault("a port needs tcp: or udp: in front", at);
  const std::size_t dash = ports.find('-');
  const auto first = parse_port(place, ports.substr(0, dash), at);
  if (!first) return first.error();
  out.first = out.last = *first;
  if (dash == std::string_view::npos) return {};
  const auto last = parse_port(place, ports.substr(dash + 1), at + dash + 1);
  if (!last) return last.error();
  if (*last < *first) return place.fault("the range ends before it begins", at);
  out.last = *last;
  return {};
}

// ADDRESS[/PREFIX] or [ADDRESS][/PREFIX] at `at`; returns where it ends.
Result<std::size_t> parse_network(const Place& place, std::size_t at, EgressTerm& out) {
  const std::string_view text = place.text;
  const bool brackets = text.substr(at).starts_with('[');
  std::string_view host;
  std::size_t end = 0;  // behind the address
  if (brackets) {
    const std::size_t close = text.find(']', at);
    if (close == std::string_view::npos) return place.fault("the closing ] is missing", at);
    host = text.substr(at + 1, close - at - 1);
    end = close + 1;
  } else {
    end = std::min(text.find_first_of("/:", at), text.size());
    host = text.substr(at, end - at);
    // Two colons are no port: fd00::/8 instead of [fd00::]/8.
    if (end < text.size() && text[end] == ':' &&
        text.find(':', end + 1) != std::string_view::npos) {
      return place.fault("an IPv6 network needs brackets around the address", at);
    }
  }
  const auto ip = parse_ip(host);
  if (!ip || ip->v6 != brackets) {
    return place.fault(in_quotes(host) + " is neither an IP address nor any, private or metadata",
                       brackets ? at + 1 : at);
  }
  const std::uint8_t longest = ip->v6 ? 128 : 32;
  out.where = EgressTerm::Where::network;
  out.network = Cidr{*ip, longest};
  if (Cidr{*parse_ip("::ffff:0:0"), 96}.contains(*ip)) {
    return place.fault("an IPv4 network is written without ::ffff:", at + 1);
  }
  if (end < text.size() && text[end] == '/') {
    const std::size_t digits_at = end + 1;
    end = std::min(text.find(':', digits_at), text.size());
    const std::string_view digits = text.substr(digits_at, end - digits_at);
    const auto prefix = parse_decimal(digits, longest);
    if (!prefix) {
      return place.fault(
          "prefix " + in_quotes(digits) + " is not a number from 0 to " + std::to_string(longest),
          digits_at);
    }
    out.network.prefix = static_cast<std::uint8_t>(*prefix);
    if (out.network.network() != *ip) {
      return place.fault("the address has bits behind its prefix (the network is " +
                             causeway::to_string(Cidr{out.network.network(), out.network.prefix}) +
                             ")",
                         at);
    }
  }
  return end;
}

}  // namespace

Result<EgressTerm> parse_egress_term(std::string_view text) {
  const Place place{text};
  if (text.empty()) return Error{"empty egress term; " + std::string(kForm)};
  EgressTerm out;
  std::size_t at = 0;
  if (text.starts_with("tcp:")) out.transport = Transport::tcp;
  if (text.starts_with("udp:")) out.transport = Transport::udp;
  if (out.transport) at = 4;
  if (at == text.size()) return place.fault("the network is missing", at);

  const std::string_view word = text.substr(at, text.find(':', at) - at);
  const auto* found = std::find_if(std::begin(kWords), std::end(kWords),
                                   [&](const auto& entry) { return entry.first == word; });
  std::size_t end = at + word.size();
  if (found != std::end(kWords)) {
    out.where = found->second;
  } else {
    const auto network = parse_network(place, at, out);
    if (!network) return network.error();
    end = *network;
  }
  if (end == text.size()) return out;
  if (text[end] != ':') return place.fault("there is something behind the network", end);
  if (const auto done = parse_ports(place, end + 1, out); !done) return done.error();
  return out;
}

std::string to_string(const EgressTerm& term) {
  std::string out;
  if (term.transport) out = std::string(name(*term.transport)) + ":";
  if (term.where == EgressTerm::Where::network) {
    const IpAddress& ip = term.network.address;
    out += ip.v6 ? "[" + causeway::to_string(ip) + "]" : causeway::to_string(ip);
    if (term.network.prefix != (ip.v6 ? 128 : 32)) out += "/" + std::to_string(term.network.prefix);
  }
  for (const auto& [word, where] : kWords) {
    if (where == term.where) out += word;
  }
  if (term.first != 0) out += ":" + std::to_string(term.first);
  if (term.last != term.first) out += "-" + std::to_string(term.last);
  return out;
}

Codec<EgressTerm> egress_codec() {
  Codec<EgressTerm> codec;
  codec.type = "egress term";
  codec.value_name = "TERM";
  codec.pattern =
      "^((tcp|udp):)?(any|private|metadata|[0-9.]+(/[0-9]+)?|\\[[0-9A-Fa-f:.]+\\](/[0-9]+)?)"
      "(:[0-9]+(-[0-9]+)?)?$";
  codec.parse = parse_egress_term;
  codec.format = [](const EgressTerm& value) { return to_string(value); };
  return codec;
}

}  // namespace causeway::host
