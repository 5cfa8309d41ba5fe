// SPDX-License-Identifier: Apache-2.0
// Link, address and route operations over rtnetlink (libnl-route). Each call is one synchronous
// exchange with the kernel; this is for set-up and for status, never for the data path.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/net/address.hpp"
#include "common/result.hpp"

struct nl_sock;

namespace causeway::net {

using Mac = std::array<std::uint8_t, 6>;
std::string to_string(const Mac& mac);
// Six pairs of hexadecimal digits with colons; a unicast address.
Result<Mac> parse_mac(std::string_view text);

// What to change on a link; an absent member stays as it is.
struct LinkChange {
  std::optional<std::uint32_t> mtu;
  std::optional<std::uint32_t> txqueuelen;  // packets
  std::optional<Mac> mac;
  bool up = false;
};

struct LinkInfo {
  int index = 0;
  std::uint32_t mtu = 0;
  std::uint32_t txqueuelen = 0;
  Mac mac{};
  bool up = false;
  std::uint64_t tx_dropped = 0;  // packets the kernel dropped on the way to the TAP's reader
  std::uint64_t rx_dropped = 0;
};

class Netlink {
 public:
  static Result<Netlink> open();

  Result<LinkInfo> link(const std::string& name);
  Result<void> change_link(const std::string& name, const LinkChange& change);
  // An address that is there already is no error.
  Result<void> add_address(const std::string& link, const Cidr& address);
  // An address that is not there is no error. Removing the oldest IPv4 address of a subnet takes
  // the younger ones of that subnet with it where promote_secondaries is off (the kernel's
  // default).
  Result<void> remove_address(const std::string& link, const Cidr& address);
  // IPv4 and IPv6, the kernel's own link-local ones included.
  Result<std::vector<Cidr>> addresses(const std::string& link);
  // Default route through `gateway` on `link`, in the place of any other of the same metric.
  Result<void> set_default_route(const std::string& link, const IpAddress& gateway);
  // A route that is not there is no error.
  Result<void> remove_default_route(const std::string& link, const IpAddress& gateway);
  // Whether exactly that route is in the main table. Reads the whole table: not for a router's.
  Result<bool> has_default_route(const std::string& link, const IpAddress& gateway);
  // `network` is on the link itself, as a gateway outside the link's subnet is; host bits are
  // cleared. A route that is there already is no error.
  Result<void> add_route(const std::string& link, const Cidr& network);
  // `link` becomes a port of `bridge`, and leaves any other. The bridge must be there.
  Result<void> set_master(const std::string& link, const std::string& bridge);

 private:
  struct Free {
    void operator()(nl_sock* sock) const;
  };
  explicit Netlink(nl_sock* sock) : sock_(sock) {}
  std::unique_ptr<nl_sock, Free> sock_;
};

}  // namespace causeway::net
