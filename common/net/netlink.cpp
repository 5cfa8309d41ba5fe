// SPDX-License-Identifier: Apache-2.0
#include "common/net/netlink.hpp"

#include <linux/if_addr.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netlink/addr.h>
#include <netlink/cache.h>
#include <netlink/errno.h>
#include <netlink/netlink.h>
#include <netlink/route/addr.h>
#include <netlink/route/link.h>
#include <netlink/route/nexthop.h>
#include <netlink/route/route.h>
#include <sys/socket.h>

#include <charconv>
#include <cstdio>
#include <cstring>
#include <string_view>

namespace causeway::net {

namespace {

template <class T, void (*free_function)(T*)>
struct Deleter {
  void operator()(T* object) const { free_function(object); }
};
using LinkPtr = std::unique_ptr<rtnl_link, Deleter<rtnl_link, rtnl_link_put>>;
using AddressPtr = std::unique_ptr<rtnl_addr, Deleter<rtnl_addr, rtnl_addr_put>>;
using RoutePtr = std::unique_ptr<rtnl_route, Deleter<rtnl_route, rtnl_route_put>>;
using NlAddrPtr = std::unique_ptr<nl_addr, Deleter<nl_addr, nl_addr_put>>;
using CachePtr = std::unique_ptr<nl_cache, Deleter<nl_cache, nl_cache_free>>;

// libnl has its own error numbers; the few that callers tell apart become errnos again.
Error netlink_error(const std::string& what, int code) {
  int number = EIO;
  switch (-code) {
    case NLE_PERM:
    case NLE_NOACCESS:
      return {what + ": permission denied: this needs CAP_NET_ADMIN (run as root)", EPERM};
    case NLE_EXIST:
      number = EEXIST;
      break;
    case NLE_NODEV:
    case NLE_OBJ_NOTFOUND:
      number = ENODEV;
      break;
    case NLE_INVAL:
    case NLE_RANGE:
      number = EINVAL;
      break;
    default:
      break;
  }
  return {what + ": " + nl_geterror(code), number};
}

NlAddrPtr make_address(const IpAddress& ip, unsigned prefix) {
  NlAddrPtr address(nl_addr_build(ip.v6 ? AF_INET6 : AF_INET, ip.bytes.data(), ip.size()));
  nl_addr_set_prefixlen(address.get(), static_cast<int>(prefix));
  return address;
}

// Empty when it is of another family.
std::optional<IpAddress> read_address(nl_addr* address) {
  if (address == nullptr) {
    return std::nullopt;
  }
  IpAddress ip{.v6 = nl_addr_get_family(address) == AF_INET6};
  if ((!ip.v6 && nl_addr_get_family(address) != AF_INET) || nl_addr_get_len(address) != ip.size()) {
    return std::nullopt;
  }
  std::memcpy(ip.bytes.data(), nl_addr_get_binary_addr(address), ip.size());
  return ip;
}

AddressPtr address_request(const LinkInfo& link, const Cidr& address) {
  AddressPtr request(rtnl_addr_alloc());
  const NlAddrPtr local = make_address(address.address, address.prefix);
  rtnl_addr_set_ifindex(request.get(), link.index);
  rtnl_addr_set_local(request.get(), local.get());
  return request;
}

// A route to `network` on `link`, by way of `gateway` where there is one.
RoutePtr route_request(const LinkInfo& link, const Cidr& network, const IpAddress* gateway) {
  RoutePtr route(rtnl_route_alloc());
  const NlAddrPtr destination = make_address(network.network(), network.prefix);
  rtnl_route_set_family(route.get(), network.address.v6 ? AF_INET6 : AF_INET);
  rtnl_route_set_dst(route.get(), destination.get());
  rtnl_route_set_scope(route.get(), gateway != nullptr ? RT_SCOPE_UNIVERSE : RT_SCOPE_LINK);
  rtnl_nexthop* hop = rtnl_route_nh_alloc();
  if (gateway != nullptr) {
    const NlAddrPtr via = make_address(*gateway, gateway->v6 ? 128 : 32);
    rtnl_route_nh_set_gateway(hop, via.get());
  }
  rtnl_route_nh_set_ifindex(hop, link.index);
  rtnl_route_add_nexthop(route.get(), hop);  // the route owns it now
  return route;
}

Cidr everything(bool v6) {
  return Cidr{IpAddress{.v6 = v6}, 0};
}

// The objects of a cache, one after the other.
template <class F>
void for_each(nl_cache* cache, F&& f) {
  for (nl_object* object = nl_cache_get_first(cache); object != nullptr;
       object = nl_cache_get_next(object)) {
    f(object);
  }
}

}  // namespace

std::string to_string(const Mac& mac) {
  std::array<char, 18> text{};
  std::snprintf(text.data(), text.size(), "%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2],
                mac[3], mac[4], mac[5]);
  return text.data();
}

Result<Mac> parse_mac(std::string_view text) {
  std::string message(text.substr(0, 32));
  message += ": not a unicast MAC: six pairs of hexadecimal digits, as 02:00:00:00:00:01";
  const Error bad{std::move(message), EINVAL};
  Mac mac{};
  if (text.size() != 3 * mac.size() - 1) {
    return bad;
  }
  for (std::size_t i = 0; i < mac.size(); ++i) {
    const auto pair = text.substr(3 * i, 2);
    const auto [end, error] = std::from_chars(pair.data(), pair.data() + pair.size(), mac[i], 16);
    const bool colon = i + 1 == mac.size() || text[3 * i + 2] == ':';
    if (error != std::errc{} || end != pair.data() + pair.size() || !colon) {
      return bad;
    }
  }
  if ((mac[0] & 1) != 0 || mac == Mac{}) {
    return bad;
  }
  return mac;
}

void Netlink::Free::operator()(nl_sock* sock) const {
  nl_socket_free(sock);
}

Result<Netlink> Netlink::open() {
  Netlink netlink(nl_socket_alloc());
  if (netlink.sock_ == nullptr) {
    return Error{"netlink: out of memory", ENOMEM};
  }
  if (const int code = nl_connect(netlink.sock_.get(), NETLINK_ROUTE); code < 0) {
    return netlink_error("netlink", code);
  }
  return netlink;
}

Result<LinkInfo> Netlink::link(const std::string& name) {
  rtnl_link* raw = nullptr;
  if (const int code = rtnl_link_get_kernel(sock_.get(), 0, name.c_str(), &raw); code < 0) {
    return netlink_error("interface '" + name + "'", code);
  }
  const LinkPtr link(raw);
  LinkInfo info;
  info.index = rtnl_link_get_ifindex(raw);
  info.mtu = rtnl_link_get_mtu(raw);
  info.txqueuelen = rtnl_link_get_txqlen(raw);
  info.up = (rtnl_link_get_flags(raw) & IFF_UP) != 0;
  info.tx_dropped = rtnl_link_get_stat(raw, RTNL_LINK_TX_DROPPED);
  info.rx_dropped = rtnl_link_get_stat(raw, RTNL_LINK_RX_DROPPED);
  if (nl_addr* address = rtnl_link_get_addr(raw);
      address != nullptr && nl_addr_get_len(address) == info.mac.size()) {
    std::memcpy(info.mac.data(), nl_addr_get_binary_addr(address), info.mac.size());
  }
  return info;
}

Result<void> Netlink::change_link(const std::string& name, const LinkChange& change) {
  rtnl_link* raw = nullptr;
  if (const int code = rtnl_link_get_kernel(sock_.get(), 0, name.c_str(), &raw); code < 0) {
    return netlink_error("interface '" + name + "'", code);
  }
  const LinkPtr original(raw);
  const LinkPtr wanted(rtnl_link_alloc());
  if (change.mtu) {
    rtnl_link_set_mtu(wanted.get(), *change.mtu);
  }
  if (change.txqueuelen) {
    rtnl_link_set_txqlen(wanted.get(), *change.txqueuelen);
  }
  if (change.mac) {
    const NlAddrPtr mac(nl_addr_build(AF_LLC, change.mac->data(), change.mac->size()));
    rtnl_link_set_addr(wanted.get(), mac.get());
  }
  if (change.up) {
    rtnl_link_set_flags(wanted.get(), IFF_UP);
  }
  const int code = rtnl_link_change(sock_.get(), original.get(), wanted.get(), 0);
  if (code < 0) {
    return netlink_error("interface '" + name + "': cannot set MTU, queue length, MAC or state",
                         code);
  }
  return {};
}

Result<void> Netlink::add_address(const std::string& link, const Cidr& address) {
  const std::string what = "interface '" + link + "': address " + causeway::to_string(address);
  const auto info = this->link(link);
  if (!info) {
    return info.error();
  }
  const AddressPtr request = address_request(*info, address);
  if (address.address.v6) {
    // Both ends of the wire are ours and an address is named by the operator: duplicate address
    // detection would only keep it unusable for a second.
    rtnl_addr_set_flags(request.get(), IFA_F_NODAD);
  }
  const int code = rtnl_addr_add(sock_.get(), request.get(), 0);
  if (-code == NLE_NOACCESS && address.address.v6) {  // EACCES; a missing capability is EPERM
    return Error{what + ": IPv6 is switched off on the interface (sysctl disable_ipv6)", EACCES};
  }
  if (code < 0 && -code != NLE_EXIST) {
    return netlink_error(what, code);
  }
  return {};
}

Result<void> Netlink::remove_address(const std::string& link, const Cidr& address) {
  const auto info = this->link(link);
  if (!info) {
    return info.error();
  }
  const AddressPtr request = address_request(*info, address);
  const int code = rtnl_addr_delete(sock_.get(), request.get(), 0);
  if (code < 0 && -code != NLE_NOADDR) {
    return netlink_error(
        "interface '" + link + "': removing address " + causeway::to_string(address), code);
  }
  return {};
}

Result<std::vector<Cidr>> Netlink::addresses(const std::string& link) {
  const auto info = this->link(link);
  if (!info) {
    return info.error();
  }
  nl_cache* raw = nullptr;
  if (const int code = rtnl_addr_alloc_cache(sock_.get(), &raw); code < 0) {
    return netlink_error("interface '" + link + "': reading its addresses", code);
  }
  const CachePtr cache(raw);
  std::vector<Cidr> found;
  for_each(raw, [&](nl_object* object) {
    // A cache of addresses holds nothing else; libnl's objects begin with their nl_object.
    auto* address = reinterpret_cast<rtnl_addr*>(object);
    const auto ip = read_address(rtnl_addr_get_local(address));
    if (ip && rtnl_addr_get_ifindex(address) == info->index) {
      found.push_back({*ip, static_cast<std::uint8_t>(rtnl_addr_get_prefixlen(address))});
    }
  });
  return found;
}

Result<void> Netlink::set_default_route(const std::string& link, const IpAddress& gateway) {
  const auto info = this->link(link);
  if (!info) {
    return info.error();
  }
  const RoutePtr route = route_request(*info, everything(gateway.v6), &gateway);
  if (const int code = rtnl_route_add(sock_.get(), route.get(), NLM_F_REPLACE); code < 0) {
    return netlink_error(
        "default route through " + causeway::to_string(gateway) + " on '" + link + "'", code);
  }
  return {};
}

Result<void> Netlink::remove_default_route(const std::string& link, const IpAddress& gateway) {
  const auto info = this->link(link);
  if (!info) {
    return info.error();
  }
  const RoutePtr route = route_request(*info, everything(gateway.v6), &gateway);
  const int code = rtnl_route_delete(sock_.get(), route.get(), 0);
  if (code < 0 && -code != NLE_OBJ_NOTFOUND) {  // ESRCH
    return netlink_error(
        "removing the default route through " + causeway::to_string(gateway) + " on '" + link + "'",
        code);
  }
  return {};
}

Result<bool> Netlink::has_default_route(const std::string& link, const IpAddress& gateway) {
  const auto info = this->link(link);
  if (!info) {
    return info.error();
  }
  nl_cache* raw = nullptr;
  if (const int code =
          rtnl_route_alloc_cache(sock_.get(), gateway.v6 ? AF_INET6 : AF_INET, 0, &raw);
      code < 0) {
    return netlink_error("reading the routes", code);
  }
  const CachePtr cache(raw);
  bool found = false;
  for_each(raw, [&](nl_object* object) {
    auto* route = reinterpret_cast<rtnl_route*>(object);  // as in addresses()
    nl_addr* destination = rtnl_route_get_dst(route);
    rtnl_nexthop* hop =
        rtnl_route_get_nnexthops(route) == 1 ? rtnl_route_nexthop_n(route, 0) : nullptr;
    found = found || (rtnl_route_get_table(route) == RT_TABLE_MAIN && hop != nullptr &&
                      (destination == nullptr || nl_addr_get_prefixlen(destination) == 0) &&
                      rtnl_route_nh_get_ifindex(hop) == info->index &&
                      read_address(rtnl_route_nh_get_gateway(hop)) == gateway);
  });
  return found;
}

Result<void> Netlink::add_route(const std::string& link, const Cidr& network) {
  const auto info = this->link(link);
  if (!info) {
    return info.error();
  }
  const RoutePtr route = route_request(*info, network, nullptr);
  const int code = rtnl_route_add(sock_.get(), route.get(), 0);
  if (code < 0 && -code != NLE_EXIST) {
    return netlink_error("route to " + causeway::to_string(network) + " on '" + link + "'", code);
  }
  return {};
}

Result<void> Netlink::set_master(const std::string& link, const std::string& bridge) {
  const auto port = this->link(link);
  if (!port) {
    return port.error();
  }
  rtnl_link* raw = nullptr;
  if (const int code = rtnl_link_get_kernel(sock_.get(), 0, bridge.c_str(), &raw); code < 0) {
    return netlink_error("bridge '" + bridge + "'", code);
  }
  const LinkPtr master(raw);
  const char* type = rtnl_link_get_type(raw);
  if (type == nullptr || std::string_view(type) != "bridge") {
    return Error{"interface '" + bridge + "': is not a bridge", EINVAL};
  }
  const int code = rtnl_link_enslave_ifindex(sock_.get(), rtnl_link_get_ifindex(raw), port->index);
  if (code < 0) {
    return netlink_error("interface '" + link + "': joining bridge '" + bridge + "'", code);
  }
  return {};
}

}  // namespace causeway::net
