// SPDX-License-Identifier: Apache-2.0
// Against the kernel, in a network namespace of the test's own.
#include "common/net/netlink.hpp"

#include <doctest/doctest.h>
#include <linux/sockios.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <vector>

#include "tests/unit/network_namespace.hpp"

namespace {

using namespace causeway;
using net::Netlink;

const bool kSkip = !test::can_make_networks();

Cidr cidr(const char* text) {
  return *parse_cidr(text);
}
IpAddress ip(const char* text) {
  return *parse_ip(text);
}

// The texts of the link's addresses, sorted, without the kernel's own link-local one.
std::vector<std::string> shown(Netlink& netlink, const std::string& link) {
  const auto found = netlink.addresses(link);
  REQUIRE(found);
  std::vector<std::string> texts;
  for (const Cidr& each : *found) {
    if (!cidr("fe80::/10").contains(each.address)) texts.push_back(to_string(each));
  }
  std::sort(texts.begin(), texts.end());
  return texts;
}

void with_tap(const std::function<void(Netlink&)>& body) {
  test::in_network_namespace([&] {
    const UniqueFd tap = test::make_tap("t0");
    const UniqueFd other = test::make_tap("t1");
    REQUIRE(tap.valid());
    auto netlink = Netlink::open();
    REQUIRE(netlink);
    net::LinkChange up;
    up.up = true;
    REQUIRE(netlink->change_link("t0", up));
    REQUIRE(netlink->change_link("t1", up));
    body(*netlink);
  });
}

using Texts = std::vector<std::string>;

TEST_CASE("netlink: addresses are added, listed and removed, and doing it twice is no error" *
          doctest::skip(kSkip)) {
  with_tap([](Netlink& netlink) {
    CHECK(shown(netlink, "t0").empty());
    for (int i = 0; i < 2; ++i) {
      CHECK(netlink.add_address("t0", cidr("10.0.0.2/24")));
      CHECK(netlink.add_address("t0", cidr("10.9.0.2/16")));
      CHECK(netlink.add_address("t0", cidr("fd00::2/64")));
    }
    CHECK(netlink.add_address("t1", cidr("10.0.1.2/24")));
    CHECK(shown(netlink, "t0") == Texts{"10.0.0.2/24", "10.9.0.2/16", "fd00::2/64"});
    for (int i = 0; i < 2; ++i) {
      CHECK(netlink.remove_address("t0", cidr("10.0.0.2/24")));
      CHECK(netlink.remove_address("t0", cidr("fd00::2/64")));
    }
    CHECK(netlink.remove_address("t0", cidr("10.9.0.2/15")));  // another prefix: not that one
    CHECK(shown(netlink, "t0") == Texts{"10.9.0.2/16"});
    CHECK(shown(netlink, "t1") == Texts{"10.0.1.2/24"});
  });
}

TEST_CASE("netlink: default routes are set, replaced, seen and removed" * doctest::skip(kSkip)) {
  with_tap([](Netlink& netlink) {
    REQUIRE(netlink.add_address("t0", cidr("10.0.0.2/24")));
    REQUIRE(netlink.add_address("t0", cidr("fd00::2/64")));
    const auto has = [&](const char* gateway, const char* link = "t0") {
      const auto found = netlink.has_default_route(link, ip(gateway));
      REQUIRE(found);
      return *found;
    };
    for (const auto& [first, second] :
         {std::pair{"10.0.0.1", "10.0.0.9"}, std::pair{"fd00::1", "fe80::9"}}) {
      CAPTURE(first);
      CHECK_FALSE(has(first));
      CHECK(netlink.set_default_route("t0", ip(first)));
      CHECK(netlink.set_default_route("t0", ip(first)));
      CHECK(has(first));
      CHECK_FALSE(has(first, "t1"));
      CHECK(netlink.set_default_route("t0", ip(second)));
      CHECK(has(second));
      CHECK_FALSE(has(first));
      CHECK(netlink.remove_default_route("t0", ip(first)));  // not there: that of `second` stays
      CHECK(has(second));
      CHECK(netlink.remove_default_route("t0", ip(second)));
      CHECK(netlink.remove_default_route("t0", ip(second)));
      CHECK_FALSE(has(second));
    }
  });
}

TEST_CASE("netlink: a gateway outside the subnet is reached by a route of its own" *
          doctest::skip(kSkip)) {
  with_tap([](Netlink& netlink) {
    REQUIRE(netlink.add_address("t0", cidr("10.0.0.2/32")));
    REQUIRE(netlink.add_address("t0", cidr("fd00::2/128")));
    for (const char* gateway : {"10.0.0.1", "fd00::1"}) {
      CAPTURE(gateway);
      CHECK_FALSE(netlink.set_default_route("t0", ip(gateway)));
      const Cidr alone{ip(gateway), static_cast<std::uint8_t>(ip(gateway).v6 ? 128 : 32)};
      CHECK(netlink.add_route("t0", alone));
      CHECK(netlink.add_route("t0", alone));
      CHECK(netlink.set_default_route("t0", ip(gateway)));
    }
    CHECK(netlink.add_route("t1", cidr("10.5.6.7/16")));  // host bits are cleared
  });
}

TEST_CASE("netlink: a link joins a bridge, and nothing else" * doctest::skip(kSkip)) {
  with_tap([](Netlink& netlink) {
    const UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    const auto none = netlink.set_master("t0", "br0");
    REQUIRE_FALSE(none);
    CHECK(none.error().message.find("br0") != std::string::npos);
    const auto tap = netlink.set_master("t0", "t1");
    REQUIRE_FALSE(tap);
    CHECK(tap.error().message.find("not a bridge") != std::string::npos);
    if (::ioctl(socket.get(), SIOCBRADDBR, "br0") != 0) {
      MESSAGE("not tried: this kernel makes no bridges");
      return;
    }
    CHECK(netlink.set_master("t0", "br0"));
    CHECK(netlink.set_master("t0", "br0"));
    ifreq request{};
    std::string("br0").copy(request.ifr_name, IFNAMSIZ - 1);
    request.ifr_ifindex = netlink.link("t0")->index;
    // It is a port: it cannot be added again, and can be taken out.
    CHECK(::ioctl(socket.get(), SIOCBRADDIF, &request) == -1);
    CHECK(errno == EBUSY);
    CHECK(::ioctl(socket.get(), SIOCBRDELIF, &request) == 0);
  });
}

TEST_CASE("netlink: errors name the interface in one line" * doctest::skip(kSkip)) {
  with_tap([](Netlink& netlink) {
    const auto says = [](const Error& error) {
      CAPTURE(error.message);
      CHECK(error.message.find("none0") != std::string::npos);
      CHECK(error.message.find('\n') == std::string::npos);
    };
    says(netlink.addresses("none0").error());
    says(netlink.add_address("none0", cidr("10.0.0.2/24")).error());
    says(netlink.remove_address("none0", cidr("10.0.0.2/24")).error());
    says(netlink.set_default_route("none0", ip("10.0.0.1")).error());
    says(netlink.remove_default_route("none0", ip("10.0.0.1")).error());
    says(netlink.has_default_route("none0", ip("10.0.0.1")).error());
    says(netlink.add_route("none0", cidr("10.0.0.0/24")).error());
    says(netlink.set_master("none0", "br0").error());
    // Nothing has an address in that subnet.
    const auto unreachable = netlink.set_default_route("t0", ip("10.7.0.1"));
    REQUIRE_FALSE(unreachable);
    CHECK(unreachable.error().message.find("10.7.0.1") != std::string::npos);
  });
}

}  // namespace
