// SPDX-License-Identifier: Apache-2.0
#include "common/net/address.hpp"

#include <arpa/inet.h>
#include <sys/un.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "common/config/text.hpp"

namespace causeway {
namespace {

static_assert(kMaxUnixPath + 1 == sizeof(sockaddr_un::sun_path));

constexpr std::string_view kTcpForm =
    "write tcp:HOST:PORT, as in tcp:127.0.0.1:443 or tcp:[::1]:443";
constexpr std::string_view kUnixForm = "write unix:/PATH, as in unix:/run/causeway/wire.sock";
constexpr std::string_view kVsockForm =
    "write vsock:CID:PORT, as in vsock:3:1024 or vsock:any:1024";
constexpr std::string_view kHybridForm =
    "write hvsock:/PATH:PORT, as in hvsock:/run/vm1/vsock:1024";
constexpr std::string_view kFdForm = "write fd:NUMBER, as in fd:3";
constexpr std::string_view kKinds =
    "an address is tcp:HOST:PORT, unix:/PATH, vsock:CID:PORT, hvsock:/PATH:PORT or fd:NUMBER, as "
    "in tcp:127.0.0.1:443";
constexpr std::string_view kIpForm = "write an IPv4 or IPv6 address, as in 10.0.0.1 or fd00::1";
constexpr std::string_view kCidrForm = "write ADDRESS/PREFIX, as in 10.0.0.1/24 or fd00::1/64";

constexpr std::uint64_t kMaxU32 = std::numeric_limits<std::uint32_t>::max();

// What is being parsed, and the form to show when it is wrong. Columns are absolute in `text`.
struct Place {
  std::string_view text;
  std::string_view form;
  [[nodiscard]] Error fault(const std::string& what, std::size_t at) const {
    return Error{in_quotes(text) + ": " + what + " at column " + std::to_string(at + 1) + "; " +
                 std::string(form)};
  }
};

bool is_alnum(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool is_v4(const std::string& text) {
  in_addr out{};
  return inet_pton(AF_INET, text.c_str(), &out) == 1;
}

bool is_v6(const std::string& text) {
  in6_addr out{};
  return inet_pton(AF_INET6, text.c_str(), &out) == 1;
}

// A host name: labels of letters, digits, '-' and '_', 1 to 63 bytes each, 253 in all, with or
// without the root's dot (RFC 1123 section 2.1; '_' because service names of containers have it).
// A last label of digits alone is refused: it is a mistyped IPv4 address, such as 256.0.0.1.
bool is_host_name(std::string_view name) {
  if (name.ends_with('.')) name.remove_suffix(1);
  if (name.empty() || name.size() > 253) return false;
  std::string_view label;
  while (true) {
    const std::size_t dot = name.find('.');
    label = name.substr(0, dot);
    if (label.empty() || label.size() > 63 || label.front() == '-' || label.back() == '-') {
      return false;
    }
    for (const char c : label) {
      if (!is_alnum(c) && c != '-' && c != '_') return false;
    }
    if (dot == std::string_view::npos) break;
    name.remove_prefix(dot + 1);
  }
  return label.find_first_not_of("0123456789") != std::string_view::npos;
}

// The zone of a link-local address: an interface's name (IFNAMSIZ is 16 with its NUL).
bool is_zone(std::string_view zone) {
  return !zone.empty() && zone.size() <= 15 && std::all_of(zone.begin(), zone.end(), [](char c) {
    return is_alnum(c) || c == '.' || c == '-' || c == '_';
  });
}

Result<std::uint64_t> parse_number(const Place& place, std::size_t at, std::size_t count,
                                   const std::string& what, std::uint64_t max) {
  const std::string_view digits = place.text.substr(at, count);
  if (digits.empty()) return place.fault("the " + what + " is missing", at);
  if (const auto number = parse_decimal(digits, max)) return *number;
  return place.fault(
      what + " " + in_quotes(digits) + " is not a number from 0 to " + std::to_string(max), at);
}

Result<Address> parse_tcp(const Place& place, std::size_t at) {
  const std::string_view rest = place.text.substr(at);
  TcpAddress tcp;
  std::size_t colon = 0;  // of the port, in `text`
  if (rest.starts_with('[')) {
    const std::size_t close = rest.find(']');
    if (close == std::string_view::npos) return place.fault("the closing ] is missing", at);
    tcp.host = rest.substr(1, close - 1);
    const std::size_t percent = tcp.host.find('%');
    const bool zone_ok = percent == std::string::npos || is_zone(tcp.host.substr(percent + 1));
    if (tcp.host.find('\0') != std::string::npos || !is_v6(tcp.host.substr(0, percent)) ||
        !zone_ok) {
      return place.fault(in_quotes(tcp.host) + " is not an IPv6 address", at + 1);
    }
    colon = at + close + 1;
    if (colon >= place.text.size() || place.text[colon] != ':') {
      return place.fault("the port is missing", colon);
    }
  } else {
    const std::size_t last = rest.rfind(':');
    if (last == std::string_view::npos) {
      const bool only_port = parse_decimal(rest, 65535).has_value();
      return only_port ? place.fault("the host is missing", at)
                       : place.fault("the port is missing", place.text.size());
    }
    tcp.host = rest.substr(0, last);
    colon = at + last;
    if (tcp.host.empty()) {
      return place.fault("the host is missing (to listen on every address, write 0.0.0.0 or [::])",
                         at);
    }
    if (tcp.host.find(':') != std::string::npos) {
      return place.fault("an IPv6 address needs brackets", at);
    }
    if (!is_host_name(tcp.host) && (tcp.host.find('\0') != std::string::npos || !is_v4(tcp.host))) {
      return place.fault(in_quotes(tcp.host) + " is not a host name or an IPv4 address", at);
    }
  }
  const auto port = parse_number(place, colon + 1, std::string_view::npos, "port", 65535);
  if (!port) return port.error();
  tcp.port = static_cast<std::uint16_t>(*port);
  return Address{std::move(tcp)};
}

// The path at text[at, at + count); `extra` bytes more have to fit behind it.
Result<std::string> parse_path(const Place& place, std::size_t at, std::size_t count,
                               std::size_t extra) {
  const std::string path(place.text.substr(at, count));
  if (path.empty()) return place.fault("the path is missing", at);
  if (path.front() == '@') {
    return place.fault("abstract sockets are not supported: they have no permissions", at);
  }
  if (path.front() != '/') return place.fault("the path is not absolute", at);
  for (std::size_t i = 0; i < path.size(); ++i) {
    const auto byte = static_cast<unsigned char>(path[i]);
    if (byte < 0x20 || byte == 0x7f) {
      return place.fault("the path has a control character", at + i);
    }
  }
  if (path.back() == '/') return place.fault("the path names a directory", at + path.size() - 1);
  if (path.size() + extra > kMaxUnixPath) {
    return place.fault("the path has " + std::to_string(path.size()) + " bytes, the most is " +
                           std::to_string(kMaxUnixPath - extra),
                       at);
  }
  return path;
}

Result<Address> parse_unix(const Place& place, std::size_t at) {
  auto path = parse_path(place, at, std::string_view::npos, 0);
  if (!path) return path.error();
  return Address{UnixAddress{*std::move(path)}};
}

Result<Address> parse_vsock(const Place& place, std::size_t at) {
  const std::size_t colon = place.text.find(':', at);
  if (colon == std::string_view::npos) {
    return place.fault("the port is missing", place.text.size());
  }
  VsockAddress vsock;
  if (place.text.substr(at, colon - at) != "any") {
    const auto cid = parse_number(place, at, colon - at, "CID", kMaxU32);
    if (!cid) return cid.error();
    vsock.cid = static_cast<std::uint32_t>(*cid);
  }
  const auto port = parse_number(place, colon + 1, std::string_view::npos, "port", kMaxU32);
  if (!port) return port.error();
  vsock.port = static_cast<std::uint32_t>(*port);
  return Address{vsock};
}

Result<Address> parse_hybrid(const Place& place, std::size_t at) {
  const std::size_t colon = place.text.rfind(':');  // a path may itself contain colons
  if (colon < at) return place.fault("the port is missing", place.text.size());
  const auto port = parse_number(place, colon + 1, std::string_view::npos, "port", kMaxU32);
  if (!port) return port.error();
  const std::size_t suffix = 1 + std::to_string(*port).size();  // _PORT
  auto path = parse_path(place, at, colon - at, suffix);
  if (!path) return path.error();
  return Address{HybridVsockAddress{*std::move(path), static_cast<std::uint32_t>(*port)}};
}

Result<Address> parse_fd(const Place& place, std::size_t at) {
  const auto fd = parse_number(place, at, std::string_view::npos, "descriptor",
                               static_cast<std::uint64_t>(std::numeric_limits<int>::max()));
  if (!fd) return fd.error();
  return Address{FdAddress{static_cast<int>(*fd)}};
}

struct Kind {
  std::string_view name;
  std::string_view form;
  Result<Address> (*parse)(const Place&, std::size_t);
};

constexpr Kind kAddressKinds[] = {{"tcp", kTcpForm, parse_tcp},
                                  {"unix", kUnixForm, parse_unix},
                                  {"vsock", kVsockForm, parse_vsock},
                                  {"hvsock", kHybridForm, parse_hybrid},
                                  {"fd", kFdForm, parse_fd}};

std::optional<IpAddress> read_ip(const std::string& text) {
  if (text.find('\0') != std::string::npos) return std::nullopt;
  IpAddress ip;
  if (inet_pton(AF_INET, text.c_str(), ip.bytes.data()) == 1) return ip;
  ip.v6 = true;
  if (inet_pton(AF_INET6, text.c_str(), ip.bytes.data()) == 1) return ip;
  return std::nullopt;
}

struct Writer {
  std::string operator()(const TcpAddress& a) const {
    const bool v6 = a.host.find(':') != std::string::npos;
    return "tcp:" + (v6 ? "[" + a.host + "]" : a.host) + ":" + std::to_string(a.port);
  }
  std::string operator()(const UnixAddress& a) const { return "unix:" + a.path; }
  std::string operator()(const VsockAddress& a) const {
    return "vsock:" + (a.cid == kVsockCidAny ? "any" : std::to_string(a.cid)) + ":" +
           std::to_string(a.port);
  }
  std::string operator()(const HybridVsockAddress& a) const {
    return "hvsock:" + a.path + ":" + std::to_string(a.port);
  }
  std::string operator()(const FdAddress& a) const { return "fd:" + std::to_string(a.fd); }
};

}  // namespace

Result<Address> parse_address(std::string_view text) {
  if (text.empty()) return Error{"empty address; " + std::string(kKinds)};
  const std::size_t colon = text.find(':');
  for (const Kind& kind : kAddressKinds) {
    if (colon != std::string_view::npos && text.substr(0, colon) == kind.name) {
      return kind.parse(Place{text, kind.form}, colon + 1);
    }
  }
  return Place{text, kKinds}.fault("unknown kind of address " + in_quotes(text.substr(0, colon)),
                                   0);
}

Result<IpAddress> parse_ip(std::string_view text) {
  if (text.empty()) return Error{"empty IP address; " + std::string(kIpForm)};
  if (const auto ip = read_ip(std::string(text))) return *ip;
  return Error{in_quotes(text) + ": not an IP address; " + std::string(kIpForm)};
}

Result<Cidr> parse_cidr(std::string_view text) {
  const Place place{text, kCidrForm};
  if (text.empty()) return Error{"empty network address; " + std::string(kCidrForm)};
  const std::size_t slash = text.find('/');
  const std::string_view address = text.substr(0, slash);
  const auto ip = read_ip(std::string(address));
  if (!ip) return place.fault(in_quotes(address) + " is not an IP address", 0);
  if (slash == std::string_view::npos) return place.fault("the /PREFIX is missing", text.size());
  const auto prefix =
      parse_number(place, slash + 1, std::string_view::npos, "prefix", ip->v6 ? 128 : 32);
  if (!prefix) return prefix.error();
  return Cidr{*ip, static_cast<std::uint8_t>(*prefix)};
}

IpAddress Cidr::network() const {
  IpAddress out = address;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::size_t kept = prefix > i * 8 ? std::min<std::size_t>(8, prefix - i * 8) : 0;
    out.bytes[i] = static_cast<std::uint8_t>(out.bytes[i] & (0xff00U >> kept));
  }
  return out;
}

bool Cidr::contains(const IpAddress& ip) const {
  return ip.v6 == address.v6 && Cidr{ip, prefix}.network() == network();
}

std::string to_string(const Address& address) {
  return std::visit(Writer{}, address.value);
}

std::string to_string(const IpAddress& ip) {
  char text[INET6_ADDRSTRLEN] = {};
  inet_ntop(ip.v6 ? AF_INET6 : AF_INET, ip.bytes.data(), text, sizeof text);
  return text;
}

std::string to_string(const Cidr& cidr) {
  return to_string(cidr.address) + "/" + std::to_string(cidr.prefix);
}

}  // namespace causeway
