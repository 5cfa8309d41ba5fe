// SPDX-License-Identifier: Apache-2.0
// Theory of operation: the parser walks the text once from the left, and every fault names the
// column where it stands, as the parser of addresses does. The listener never contains '=', so the
// first one splits the two sides; options begin at the first comma behind it, so that a path with
// a comma cannot be published.
#include "host/network/publish_spec.hpp"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "common/config/text.hpp"

namespace causeway::host {
namespace {

constexpr std::string_view kForm =
    "write LISTEN=TO[,OPTION]..., as in tcp:0.0.0.0:443=tcp:443 or udp:[::]:5000-5010=udp:5000";
constexpr std::string_view kTargetForm =
    "write tcp:PORT, udp:PORT, vsock:PORT, hvsock:/PATH:PORT or unix:/PATH, as in "
    "tcp:0.0.0.0:443=vsock:443";
constexpr std::string_view kOptionForm =
    "the options of streams are proxy-v2, idle=TIME and limit=N, as in "
    "tcp:0.0.0.0:443=vsock:443,proxy-v2,idle=5m";

constexpr std::uint64_t kMaxPort = 65535;
constexpr std::uint64_t kMaxVsockPort = 0xffff'fffeU;  // above is VMADDR_PORT_ANY
constexpr std::uint64_t kMaxLimit = 1'000'000;

struct Place {
  std::string_view text;
  [[nodiscard]] Error fault(const std::string& what, std::size_t at,
                            std::string_view form = kForm) const {
    return Error{in_quotes(text) + ": " + what + " at column " + std::to_string(at + 1) + "; " +
                 std::string(form)};
  }
};

std::string_view name(Transport transport) {
  return transport == Transport::tcp ? "tcp" : "udp";
}

Result<std::uint64_t> parse_port(const Place& place, std::string_view digits, std::size_t at,
                                 std::uint64_t max, std::string_view form = kForm) {
  if (digits.empty()) return place.fault("the port is missing", at, form);
  const auto port = parse_decimal(digits, max);
  if (port && *port > 0) return *port;
  return place.fault(
      "port " + in_quotes(digits) + " is not a number from 1 to " + std::to_string(max), at, form);
}

bool is_mapped(const IpAddress& ip) {
  if (!ip.v6) return false;
  for (std::size_t i = 0; i < 12; ++i) {
    if (ip.bytes[i] != (i < 10 ? 0 : 0xff)) return false;
  }
  return true;
}

bool is_multicast(const IpAddress& ip) {
  return ip.v6 ? ip.bytes[0] == 0xff : ip.bytes[0] >= 224;  // 240/4 and broadcast included
}

// tcp:0.0.0.0:443, udp:[::]:5000-5010; `text[0, end)`.
Result<void> parse_listener(const Place& place, std::size_t end, Publish& out) {
  const std::string_view listen = place.text.substr(0, end);
  if (listen.starts_with("tcp:")) {
    out.transport = Transport::tcp;
  } else if (listen.starts_with("udp:")) {
    out.transport = Transport::udp;
  } else {
    return place.fault("a listener begins with tcp: or udp:", 0);
  }
  std::size_t at = 4;
  std::string_view host;
  std::size_t colon = 0;  // before the ports
  if (listen.substr(at).starts_with('[')) {
    const std::size_t close = listen.find(']');
    if (close == std::string_view::npos) return place.fault("the closing ] is missing", at);
    ++at;
    host = listen.substr(at, close - at);
    colon = close + 1;
    if (colon >= end || listen[colon] != ':') return place.fault("the port is missing", colon);
  } else {
    colon = listen.rfind(':');
    if (colon < at) {
      const bool only_port = parse_decimal(listen.substr(at), kMaxPort).has_value();
      return place.fault(only_port ? "the address is missing (every address is 0.0.0.0 or [::])"
                                   : "the port is missing",
                         only_port ? at : end);
    }
    host = listen.substr(at, colon - at);
    if (host.empty()) {
      return place.fault("the address is missing (every address is 0.0.0.0 or [::])", at);
    }
    if (host.find(':') != std::string_view::npos) {
      return place.fault("an IPv6 address needs brackets", at);
    }
  }
  const auto ip = parse_ip(host);
  if (!ip || ip->v6 != (at == 5)) {
    return place.fault(in_quotes(host) + " is not an IP address", at);
  }
  if (is_mapped(*ip)) return place.fault("an IPv4 address is written without ::ffff:", at);
  if (is_multicast(*ip)) return place.fault(in_quotes(host) + " cannot be listened on", at);
  out.address = *ip;

  const std::string_view ports = listen.substr(colon + 1);
  const std::size_t dash = ports.find('-');
  const auto first = parse_port(place, ports.substr(0, dash), colon + 1, kMaxPort);
  if (!first) return first.error();
  out.first = out.last = static_cast<std::uint16_t>(*first);
  if (dash == std::string_view::npos) return {};
  const auto last = parse_port(place, ports.substr(dash + 1), colon + 2 + dash, kMaxPort);
  if (!last) return last.error();
  if (*last < *first) return place.fault("the range ends before it begins", colon + 1);
  out.last = static_cast<std::uint16_t>(*last);
  return {};
}

// The target at text[at, end).
Result<void> parse_target(const Place& place, std::size_t at, std::size_t end, Publish& out) {
  const std::string_view target = place.text.substr(at, end - at);
  const std::size_t colon = target.find(':');
  const std::string_view kind = target.substr(0, colon);
  if (target.empty()) return place.fault("the target is missing", at, kTargetForm);
  if (colon == std::string_view::npos) {
    return place.fault("the target has no kind", at, kTargetForm);
  }
  const std::uint64_t extra = out.last - out.first;  // ports behind the first
  const bool tap = kind == "tcp" || kind == "udp";
  if (tap || kind == "vsock") {
    if (tap && kind != name(out.transport)) {
      return place.fault("the target of a " + std::string(name(out.transport)) +
                             " listener is not " + std::string(kind),
                         at, kTargetForm);
    }
    const std::size_t digits_at = at + colon + 1;
    const std::uint64_t max = tap ? kMaxPort : kMaxVsockPort;
    const auto port = parse_port(place, target.substr(colon + 1), digits_at, max, kTargetForm);
    if (!port) return port.error();
    if (*port + extra > max) {
      return place.fault("the range would end at port " + std::to_string(*port + extra) +
                             ", the last is " + std::to_string(max),
                         digits_at, kTargetForm);
    }
    if (tap) {
      out.target = TapTarget{static_cast<std::uint16_t>(*port)};
    } else {
      out.target = VsockTarget{static_cast<std::uint32_t>(*port)};
    }
  } else if (kind == "unix" || kind == "hvsock") {
    auto address = parse_address(target);
    if (!address) {
      return Error{in_quotes(place.text) + ": target at column " + std::to_string(at + 1) + ": " +
                   address.error().message};
    }
    if (extra > 0) {
      return place.fault(
          "a range cannot go to " + std::string(kind) + ", which has one place to connect to", at,
          kTargetForm);
    }
    if (auto* path = std::get_if<UnixAddress>(&address->value)) {
      out.target = std::move(*path);
    } else if (auto* hybrid = std::get_if<HybridVsockAddress>(&address->value)) {
      if (hybrid->port == 0 || hybrid->port > kMaxVsockPort) {
        return place.fault("the port is not a number from 1 to " + std::to_string(kMaxVsockPort),
                           at, kTargetForm);
      }
      out.target = std::move(*hybrid);
    }
  } else {
    return place.fault("unknown kind of target " + in_quotes(kind), at, kTargetForm);
  }
  if (!out.over_tap() && out.transport == Transport::udp) {
    return place.fault("udp goes over the TAP only", at, kTargetForm);
  }
  return {};
}

Result<void> parse_option(const Place& place, std::string_view option, std::size_t at,
                          Publish& out) {
  const std::size_t equals = option.find('=');
  const std::string_view key = option.substr(0, equals);
  const bool has_value = equals != std::string_view::npos;
  const std::string_view value = has_value ? option.substr(equals + 1) : std::string_view{};
  if (key != "proxy-v2" && key != "idle" && key != "limit") {
    return place.fault("unknown option " + in_quotes(key), at, kOptionForm);
  }
  if (out.over_tap()) {
    return place.fault("option " + in_quotes(key) + " is for streams, not for the TAP", at,
                       kOptionForm);
  }
  if (key == "proxy-v2") {
    if (has_value) return place.fault("proxy-v2 takes no value", at, kOptionForm);
    out.proxy_v2 = true;
    return {};
  }
  if (value.empty()) return place.fault(in_quotes(key) + " needs a value", at, kOptionForm);
  if (key == "idle") {
    const auto idle = parse_duration(value);
    if (!idle) {
      return Error{in_quotes(place.text) + ": idle at column " + std::to_string(at + 1) + ": " +
                   idle.error().message};
    }
    if (*idle == Duration{}) {
      return place.fault("idle=0 would end every connection at once", at, kOptionForm);
    }
    out.idle = *idle;
    return {};
  }
  const auto limit = parse_decimal(value, kMaxLimit);
  if (!limit || *limit == 0) {
    return place.fault(
        "limit " + in_quotes(value) + " is not a number from 1 to " + std::to_string(kMaxLimit), at,
        kOptionForm);
  }
  out.limit = static_cast<std::uint32_t>(*limit);
  return {};
}

struct TargetWriter {
  Transport transport;
  std::string operator()(const TapTarget& t) const {
    return std::string(name(transport)) + ":" + std::to_string(t.port);
  }
  std::string operator()(const VsockTarget& t) const { return "vsock:" + std::to_string(t.port); }
  std::string operator()(const HybridVsockAddress& t) const {
    return causeway::to_string(Address{t});
  }
  std::string operator()(const UnixAddress& t) const { return causeway::to_string(Address{t}); }
};

}  // namespace

Result<Publish> parse_publish(std::string_view text) {
  const Place place{text};
  if (text.empty()) return Error{"nothing to publish; " + std::string(kForm)};
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos) {
    return place.fault("=TO is missing", text.size());
  }
  // Built in place: g++ 12 mistakes the copy into a Result for a use of uninitialized memory.
  Result<Publish> result{Publish{}};
  Publish& out = *result;
  if (const auto done = parse_listener(place, equals, out); !done) return done.error();
  std::size_t comma = std::min(text.find(',', equals), text.size());
  if (const auto done = parse_target(place, equals + 1, comma, out); !done) return done.error();
  std::vector<std::string_view> seen;
  while (comma < text.size()) {
    const std::size_t begin = comma + 1;
    comma = std::min(text.find(',', begin), text.size());
    const std::string_view option = text.substr(begin, comma - begin);
    const std::string_view key = option.substr(0, option.find('='));
    if (std::find(seen.begin(), seen.end(), key) != seen.end()) {
      return place.fault("option " + in_quotes(key) + " is given twice", begin, kOptionForm);
    }
    seen.push_back(key);
    if (const auto done = parse_option(place, option, begin, out); !done) return done.error();
  }
  return result;
}

std::string to_string(const Publish& publish) {
  const std::string ip = causeway::to_string(publish.address);
  std::string out(name(publish.transport));
  out += publish.address.v6 ? ":[" + ip + "]:" : ":" + ip + ":";
  out += std::to_string(publish.first);
  if (publish.last != publish.first) out += "-" + std::to_string(publish.last);
  out += "=" + std::visit(TargetWriter{publish.transport}, publish.target);
  const Publish defaults;
  if (publish.proxy_v2) out += ",proxy-v2";
  if (publish.idle != defaults.idle) out += ",idle=" + causeway::to_string(publish.idle);
  if (publish.limit != defaults.limit) out += ",limit=" + std::to_string(publish.limit);
  return out;
}

Codec<Publish> publish_codec() {
  Codec<Publish> codec;
  codec.type = "published port";
  codec.value_name = "LISTEN=TO";
  codec.pattern =
      "^(tcp|udp):([0-9.]+|\\[[0-9A-Fa-f:.]+\\]):[0-9]+(-[0-9]+)?="
      "((tcp|udp|vsock):[0-9]+|hvsock:/[^,]+:[0-9]+|unix:/[^,]+)"
      "(,(proxy-v2|idle=[0-9a-z]+|limit=[0-9]+))*$";
  codec.parse = parse_publish;
  codec.format = [](const Publish& value) { return to_string(value); };
  return codec;
}

}  // namespace causeway::host
