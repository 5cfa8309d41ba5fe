// SPDX-License-Identifier: Apache-2.0
#include "guest/framer/offer.hpp"

#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/guest_offers.hpp"

namespace {

using namespace causeway;
using namespace causeway::test;
using guest::OfferPolicy;
using guest::Plan;
using Texts = std::vector<std::string>;

template <class T>
std::string text(const std::optional<T>& value) {
  return value ? to_string(*value) : "none";
}

template <class T>
Texts texts(const std::vector<T>& values) {
  Texts out;
  for (const auto& value : values)
    out.push_back(to_string(value));
  return out;
}

// One refusal, which says `what` and `why`, in one line.
void check_refused(const Plan& planned, const std::string& what, const std::string& why) {
  REQUIRE(planned.refused.size() == 1);
  CAPTURE(planned.refused.front());
  CHECK(planned.refused.front().find(what) != std::string::npos);
  CHECK(planned.refused.front().find(why) != std::string::npos);
  CHECK(planned.refused.front().find('\n') == std::string::npos);
}

TEST_CASE("offer: everything good is planned") {
  const auto planned = guest::plan(automatic(), both());
  CHECK(planned.refused.empty());
  CHECK(text(planned.v4.address) == "10.0.0.2/24");
  CHECK(text(planned.v4.gateway) == "10.0.0.1");
  CHECK(text(planned.v6.address) == "fd00::2/64");
  CHECK(text(planned.v6.gateway) == "fd00::1");
  CHECK(texts(planned.resolvers) == Texts{"10.0.0.1", "fd00::53"});
  CHECK(planned.mtu == 9000U);

  const auto nothing = guest::plan(automatic(), {});
  CHECK(nothing.refused.empty());
  CHECK(text(nothing.v4.address) == "none");
  CHECK(text(nothing.v6.gateway) == "none");
  CHECK_FALSE(nothing.mtu);
}

TEST_CASE("offer: without automatic settings only the MTU is taken, and nothing is refused") {
  const auto planned = guest::plan({}, both());
  CHECK(planned.refused.empty());
  CHECK(text(planned.v4.address) == "none");
  CHECK(text(planned.v4.gateway) == "none");
  CHECK(text(planned.v6.address) == "none");
  CHECK(planned.resolvers.empty());
  CHECK(planned.mtu == 9000U);
}

TEST_CASE("offer: addresses that no guest can have") {
  const struct {
    const char* address;
    unsigned prefix;
    const char* why;
  } rows[] = {
      {"0.0.0.0", 24, "unspecified"},
      {"0.1.2.3", 8, "unspecified"},
      {"127.0.0.1", 8, "loopback"},
      {"224.0.0.1", 24, "multicast"},
      {"239.255.255.255", 24, "multicast"},
      {"240.0.0.1", 8, "reserved"},
      {"255.255.255.255", 32, "reserved"},
      {"169.254.0.2", 16, "link-local"},
      {"10.0.0.0", 24, "the subnet's own address"},
      {"10.0.0.255", 24, "broadcast"},
      {"10.0.1.255", 23, "broadcast"},
      {"10.0.0.3", 30, "broadcast"},
      {"10.0.0.2", 0, "prefix of 0"},
      {"10.0.0.2", 33, "prefix"},
      {"10.0.0", 24, "not an IP address"},
      {"10.0.0.2\nx", 24, "not an IP address"},
      {"fd00::2", 64, "offered as IPv4"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.address);
    const auto planned = guest::plan(automatic(), offer4(row.address, row.prefix));
    check_refused(planned, "address", row.why);
    CHECK(planned.v4.address_refused);
    CHECK_FALSE(planned.v4.address);
  }
  const struct {
    const char* address;
    unsigned prefix;
    const char* why;
  } rows6[] = {
      {"::", 64, "unspecified"},    {"::1", 64, "loopback"},
      {"ff02::1", 64, "multicast"}, {"::ffff:10.0.0.1", 96, "IPv4 address in IPv6"},
      {"fd00::", 64, "anycast"},    {"fd00::2", 0, "prefix of 0"},
      {"fd00::2", 129, "prefix"},   {"10.0.0.2", 24, "offered as IPv6"},
  };
  for (const auto& row : rows6) {
    CAPTURE(row.address);
    const auto planned = guest::plan(automatic(), offer6(row.address, row.prefix));
    check_refused(planned, "address", row.why);
    CHECK(planned.v6.address_refused);
    CHECK_FALSE(planned.v6.address);
  }
}

TEST_CASE("offer: addresses at the edge that are good") {
  for (const auto& [address, prefix] :
       {std::pair{"10.0.0.0", 31}, std::pair{"10.0.0.1", 31}, std::pair{"10.0.0.255", 32},
        std::pair{"10.0.0.255", 16}, std::pair{"1.0.0.1", 8}, std::pair{"223.255.255.254", 24},
        std::pair{"10.0.0.2", 1}, std::pair{"10.255.255.254", 8}}) {
    CAPTURE(address);
    const auto planned = guest::plan(automatic(), offer4(address, static_cast<unsigned>(prefix)));
    CHECK(planned.refused.empty());
    CHECK(text(planned.v4.address) == address + ("/" + std::to_string(prefix)));
  }
  for (const auto& [address, prefix] :
       {std::pair{"fd00::", 127}, std::pair{"fd00::", 128}, std::pair{"fe80::2", 64},
        std::pair{"fd00::ffff:ffff:ffff:ffff", 64}, std::pair{"2001:db8::1", 128}}) {
    CAPTURE(address);
    const auto planned = guest::plan(automatic(), offer6(address, static_cast<unsigned>(prefix)));
    CHECK(planned.refused.empty());
    CHECK(text(planned.v6.address) == address + ("/" + std::to_string(prefix)));
  }
}

TEST_CASE("offer: only subnets within what is accepted") {
  auto policy = automatic();
  policy.accept_within = {*parse_cidr("10.1.0.0/16"), *parse_cidr("169.254.8.0/24"),
                          *parse_cidr("fd00:1::/32")};
  for (const auto& good : {offer4("10.1.2.3", 24), offer4("10.1.2.3", 16), offer4("10.1.2.3", 32),
                           offer4("169.254.8.2", 24), offer6("fd00:1::2", 64)}) {
    const auto planned = guest::plan(policy, good);
    CHECK(planned.refused.empty());
    CHECK((planned.v4.address || planned.v6.address));
  }
  // The last but one has its address within, and would reach for far more.
  for (const auto& bad : {offer4("10.2.0.2", 24), offer4("169.254.9.2", 24), offer4("10.1.2.3", 15),
                          offer6("fd00:2::2", 64)}) {
    const auto planned = guest::plan(policy, bad);
    check_refused(planned, "address", "outside what is accepted");
    CHECK_FALSE(planned.v4.address);
    CHECK_FALSE(planned.v6.address);
  }
  // One family does not stand for the other.
  policy.accept_within = {*parse_cidr("10.0.0.0/8")};
  const auto planned = guest::plan(policy, offer6("fd00::2", 64));
  check_refused(planned, "address fd00::2/64", "outside");
}

TEST_CASE("offer: a refused address takes its family's gateway along, and nothing else") {
  auto offer = both();
  offer.address4->address = "127.0.0.2";
  const auto planned = guest::plan(automatic(), offer);
  REQUIRE(planned.refused.size() == 2);
  CHECK(planned.refused[1] == "gateway 10.0.0.1: there is no address of its family");
  CHECK(planned.v4.address_refused);
  CHECK(planned.v4.gateway_refused);
  CHECK_FALSE(planned.v4.gateway);
  CHECK(text(planned.v6.address) == "fd00::2/64");
  CHECK(text(planned.v6.gateway) == "fd00::1");
  CHECK(planned.resolvers.size() == 2);
  CHECK(planned.mtu == 9000U);
}

TEST_CASE("offer: gateways") {
  const struct {
    const char* gateway;
    const char* why;  // nullptr: good
  } rows[] = {
      {"10.0.0.1", nullptr},
      {"10.0.0.254", nullptr},
      {"10.0.0.2", "own address"},
      {"10.0.1.1", "not in the subnet 10.0.0.2/24"},
      {"10.0.0.0", "the subnet's own address"},
      {"10.0.0.255", "broadcast"},
      {"0.0.0.0", "unspecified"},
      {"127.0.0.1", "loopback"},
      {"224.0.0.1", "multicast"},
      {"fe80::1", "offered as IPv4"},
      {"gateway", "not an IP address"},
      {"", "empty"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.gateway);
    const auto planned = guest::plan(automatic(), offer4("10.0.0.2", 24, row.gateway));
    CHECK(text(planned.v4.address) == "10.0.0.2/24");
    if (row.why == nullptr) {
      CHECK(planned.refused.empty());
      CHECK(text(planned.v4.gateway) == row.gateway);
      continue;
    }
    check_refused(planned, "gateway", row.why);
    CHECK(planned.v4.gateway_refused);
    CHECK_FALSE(planned.v4.gateway);
  }
  for (const char* good : {"fd00::1", "fe80::1", "febf::1"}) {
    const auto planned = guest::plan(automatic(), offer6("fd00::2", 64, good));
    CHECK(planned.refused.empty());
    CHECK(text(planned.v6.gateway) == good);
  }
  for (const char* bad : {"fd00:0:0:1::1", "fec0::1", "ff02::2", "::1", "fd00::2", "fd00::"}) {
    CAPTURE(bad);
    const auto planned = guest::plan(automatic(), offer6("fd00::2", 64, bad));
    CHECK(planned.refused.size() == 1);
    CHECK_FALSE(planned.v6.gateway);
  }
}

TEST_CASE("offer: a gateway for a static address, and without any") {
  OfferPolicy policy;
  policy.automatic_gateway = true;
  policy.addresses = {*parse_cidr("10.0.0.7/24")};
  auto planned = guest::plan(policy, both());
  CHECK_FALSE(planned.v4.address);
  CHECK(text(planned.v4.gateway) == "10.0.0.1");
  CHECK_FALSE(planned.v6.gateway);
  check_refused(planned, "gateway fd00::1", "no address of its family");
  policy.addresses = {*parse_cidr("10.0.0.1/24")};
  planned = guest::plan(policy, offer4("10.0.0.2", 24, "10.0.0.1"));
  check_refused(planned, "gateway", "own address");
}

TEST_CASE("offer: a pinned gateway holds for its family") {
  auto policy = automatic();
  policy.gateway = *parse_ip("10.0.0.9");
  auto planned = guest::plan(policy, both());
  CHECK(text(planned.v4.gateway) == "10.0.0.9");
  CHECK(text(planned.v6.gateway) == "fd00::1");
  check_refused(planned, "gateway 10.0.0.1", "pinned to 10.0.0.9");
  CHECK_FALSE(planned.v4.gateway_refused);

  planned = guest::plan(policy, offer4("10.0.0.2", 24, "10.0.0.9"));
  CHECK(planned.refused.empty());
  planned = guest::plan(policy, offer4("10.0.0.2", 24));
  CHECK(text(planned.v4.gateway) == "10.0.0.9");
  planned = guest::plan(policy, offer6("fd00::2", 64));  // no address that could reach it
  CHECK_FALSE(planned.v4.gateway);
}

TEST_CASE("offer: MTUs") {
  const auto planned_mtu = [](const OfferPolicy& policy, std::uint32_t mtu, const char* refused) {
    CAPTURE(mtu);
    proto::Offer offer = offer4("10.0.0.2", 24);
    offer.mtu = mtu;
    const auto planned = guest::plan(policy, offer);
    if (refused != nullptr) {
      check_refused(planned, "MTU " + std::to_string(mtu), refused);
    } else {
      CHECK(planned.refused.empty());
    }
    return planned.mtu;
  };
  auto policy = automatic();
  CHECK(planned_mtu(policy, 576, nullptr) == 576U);
  CHECK(planned_mtu(policy, 65'521, nullptr) == 65'521U);
  CHECK_FALSE(planned_mtu(policy, 575, "not from 576 to 65521"));
  CHECK_FALSE(planned_mtu(policy, 65'522, "not from 576 to 65521"));
  CHECK_FALSE(planned_mtu(policy, 0, "not from"));
  policy.max_mtu = 1504;
  CHECK(planned_mtu(policy, 1504, nullptr) == 1504U);
  CHECK_FALSE(planned_mtu(policy, 1505, "room for 1504"));
  policy.mtu = 1400;
  CHECK(planned_mtu(policy, 1400, nullptr) == 1400U);
  CHECK(planned_mtu(policy, 1500, "pinned to 1400") == 1400U);
  CHECK(guest::plan(policy, {}).mtu == 1400U);
}

TEST_CASE("offer: no MTU that switches IPv6 off where it is used") {
  auto offer = both();
  offer.mtu = 1279;
  auto planned = guest::plan(automatic(), offer);
  check_refused(planned, "MTU 1279", "IPv6");
  CHECK(planned.mtu_refused);
  CHECK_FALSE(planned.mtu);
  CHECK(planned.v6.address);
  offer.mtu = 1280;
  CHECK(guest::plan(automatic(), offer).refused.empty());

  auto policy = automatic();
  policy.mtu = 1000;
  planned = guest::plan(policy, offer6("fd00::2", 64));
  check_refused(planned, "address fd00::2/64", "MTU");
  CHECK(planned.mtu == 1000U);

  OfferPolicy fixed;
  fixed.addresses = {*parse_cidr("fd00::7/64")};
  proto::Offer small;
  small.mtu = 1000;
  check_refused(guest::plan(fixed, small), "MTU 1000", "IPv6");
}

TEST_CASE("offer: resolvers") {
  proto::Offer offer;
  offer.resolvers = {"10.0.0.1", "0.0.0.0", "127.0.0.53",      "224.0.0.251", "169.254.169.253",
                     "10.0.0.1", "fe80::1", "ff02::fb",        "::1",         "::",
                     "name",     "fd00::1", "255.255.255.255", "10.0.0.4"};
  const auto planned = guest::plan(automatic(), offer);
  CHECK(texts(planned.resolvers) == Texts{"10.0.0.1", "169.254.169.253", "fd00::1"});
  REQUIRE(planned.refused.size() == 10);
  CHECK(planned.refused[0] == "resolver 0.0.0.0: an unspecified address (0.0.0.0/8)");
  CHECK(planned.refused[1] == "resolver 127.0.0.53: a loopback address");
  CHECK(planned.refused[9] == "resolver 10.0.0.4: more than 3");

  auto policy = automatic();
  policy.resolvers = {*parse_ip("127.0.0.53")};  // the operator may
  offer.resolvers = {"10.0.0.1", "127.0.0.53"};
  const auto pinned = guest::plan(policy, offer);
  CHECK(texts(pinned.resolvers) == Texts{"127.0.0.53"});
  check_refused(pinned, "resolver 10.0.0.1", "pinned");
  CHECK(texts(guest::plan(policy, {}).resolvers) == Texts{"127.0.0.53"});
}

}  // namespace
