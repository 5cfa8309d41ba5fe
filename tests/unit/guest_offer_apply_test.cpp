// SPDX-License-Identifier: Apache-2.0
// Offers applied to a real interface, in a network namespace of the test's own.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "guest/framer/offer.hpp"
#include "tests/unit/guest_offers.hpp"
#include "tests/unit/network_namespace.hpp"

namespace {

using namespace causeway;
using namespace causeway::test;
using guest::OfferPolicy;
using Texts = std::vector<std::string>;

const bool kSkip = !test::can_make_networks();

// A TAP that an applier works on, and a look at what it has come to.
struct Bench {
  Bench() : tap(test::make_tap("t0")) {
    REQUIRE(tap.valid());
    auto opened = net::Netlink::open();
    REQUIRE(opened);
    look.emplace(std::move(*opened));
    net::LinkChange change;
    change.up = true;
    change.mtu = 1500;
    REQUIRE(look->change_link("t0", change));
  }

  guest::OfferApplier applier(OfferPolicy policy) {
    auto opened = net::Netlink::open();
    REQUIRE(opened);
    return {"t0", std::move(policy), std::move(*opened)};
  }

  Texts addresses() {
    const auto found = look->addresses("t0");
    REQUIRE(found);
    Texts out;
    for (const Cidr& each : *found) {
      if (!parse_cidr("fe80::/64")->contains(each.address)) out.push_back(to_string(each));
    }
    std::sort(out.begin(), out.end());
    return out;
  }

  bool routed(const char* gateway) {
    const auto found = look->has_default_route("t0", *parse_ip(gateway));
    REQUIRE(found);
    return *found;
  }

  UniqueFd tap;
  std::optional<net::Netlink> look;
};

void on_bench(const std::function<void(Bench&)>& body) {
  test::in_network_namespace([&] {
    Bench bench;
    body(bench);
  });
}

// Applies, and expects the kernel to have taken everything.
guest::Applied good(guest::OfferApplier& applier, const proto::Offer& offer) {
  const auto applied = applier.apply(offer);
  REQUIRE(applied);
  CAPTURE(applied->failed.empty() ? std::string() : applied->failed.front());
  CHECK(applied->failed.empty());
  return *applied;
}

TEST_CASE("offer applied: once, and the same again changes nothing" * doctest::skip(kSkip)) {
  on_bench([](Bench& bench) {
    auto policy = automatic();
    const auto directory =
        std::filesystem::temp_directory_path() / ("cw-offer-" + std::to_string(::getpid()));
    std::filesystem::create_directory(directory);
    policy.resolv_conf = (directory / "resolv.conf").string();
    auto applier = bench.applier(policy);
    auto applied = good(applier, both());
    CHECK(applied.changes == Texts{"MTU 9000, was 1500", "address 10.0.0.2/24 added",
                                   "default route through 10.0.0.1", "address fd00::2/64 added",
                                   "default route through fd00::1",
                                   *policy.resolv_conf + ": resolvers 10.0.0.1 fd00::53"});
    CHECK(applied.addressed);
    CHECK(applied.mtu_changed);
    CHECK(applied.mtu == 9000);
    CHECK(bench.addresses() == Texts{"10.0.0.2/24", "fd00::2/64"});
    CHECK(bench.routed("10.0.0.1"));
    CHECK(bench.routed("fd00::1"));
    CHECK(bench.look->link("t0")->mtu == 9000);
    std::ifstream file(*policy.resolv_conf);
    const std::string content{std::istreambuf_iterator<char>(file), {}};
    CHECK(content.find("nameserver 10.0.0.1\nnameserver fd00::53\n") != std::string::npos);

    applied = good(applier, both());
    CHECK(applied.changes.empty());
    CHECK_FALSE(applied.mtu_changed);
    CHECK(applied.mtu == 9000);
    // A framer that was restarted on a TAP that stayed finds all of it in place.
    auto second = bench.applier(policy);
    applied = good(second, both());
    CHECK(applied.changes.empty());
    CHECK(applied.addressed);
    std::filesystem::remove_all(directory);
  });
}

TEST_CASE("offer applied: a changed offer replaces what the last one set" * doctest::skip(kSkip)) {
  on_bench([](Bench& bench) {
    auto policy = automatic();
    policy.resolv_conf.reset();
    auto applier = bench.applier(policy);
    good(applier, both());
    // In the same subnet: the old address takes the younger with it in the kernel.
    auto offer = offer4("10.0.0.3", 24, "10.0.0.1");
    auto applied = good(applier, offer);
    CHECK(bench.addresses() == Texts{"10.0.0.3/24"});
    CHECK(bench.routed("10.0.0.1"));
    CHECK_FALSE(bench.routed("fd00::1"));
    CHECK(applied.mtu == 1500);  // as it was before any offer
    CHECK(applied.mtu_changed);
    CHECK(good(applier, offer).changes.empty());

    offer = offer4("10.8.0.3", 16, "10.8.0.1");
    good(applier, offer);
    CHECK(bench.addresses() == Texts{"10.8.0.3/16"});
    CHECK(bench.routed("10.8.0.1"));
    CHECK_FALSE(bench.routed("10.0.0.1"));

    offer = offer4("10.8.0.3", 24);  // the same address, another prefix; no gateway
    good(applier, offer);
    CHECK(bench.addresses() == Texts{"10.8.0.3/24"});
    CHECK_FALSE(bench.routed("10.8.0.1"));

    good(applier, offer6("fd00::2", 64, "fe80::1"));
    CHECK(bench.addresses() == Texts{"fd00::2/64"});
    CHECK(bench.routed("fe80::1"));
    good(applier, offer6("fd00::2", 80, "fd00::1"));
    CHECK(bench.addresses() == Texts{"fd00::2/80"});
    CHECK(bench.routed("fd00::1"));
    CHECK_FALSE(bench.routed("fe80::1"));
    good(applier, {});
    CHECK(bench.addresses().empty());
    CHECK_FALSE(bench.routed("fd00::1"));
  });
}

TEST_CASE("offer applied: what is lost comes back, and what is not ours stays" *
          doctest::skip(kSkip)) {
  on_bench([](Bench& bench) {
    REQUIRE(bench.look->add_address("t0", *parse_cidr("192.168.5.5/24")));
    REQUIRE(bench.look->add_address("t0", *parse_cidr("fd00::2/64")));
    auto policy = automatic();
    policy.resolv_conf.reset();
    auto applier = bench.applier(policy);
    good(applier, both());
    REQUIRE(bench.look->remove_address("t0", *parse_cidr("10.0.0.2/24")));
    REQUIRE(bench.look->remove_default_route("t0", *parse_ip("fd00::1")));
    // The address that is not ours kept the IPv4 route alive.
    CHECK(good(applier, both()).changes ==
          Texts{"address 10.0.0.2/24 added", "default route through fd00::1"});
    good(applier, {});
    CHECK(bench.addresses() == Texts{"192.168.5.5/24", "fd00::2/64"});
    // The same address with another prefix cannot be had beside the one that is there.
    const auto applied = applier.apply(offer6("fd00::2", 80));
    REQUIRE(applied);
    REQUIRE(applied->failed.size() == 1);
    CHECK(applied->failed.front().find("fd00::2/64 already") != std::string::npos);
    CHECK(bench.addresses() == Texts{"192.168.5.5/24", "fd00::2/64"});
  });
}

TEST_CASE("offer applied: a refused item leaves what is there, and is named once" *
          doctest::skip(kSkip)) {
  on_bench([](Bench& bench) {
    auto policy = automatic();
    policy.resolv_conf.reset();
    policy.accept_within = {*parse_cidr("10.0.0.0/24"), *parse_cidr("fd00::/64")};
    auto applier = bench.applier(policy);
    CHECK_FALSE(good(applier, offer4("10.9.0.2", 24)).addressed);
    CHECK(good(applier, both()).addressed);
    auto outside = both();
    outside.address4->address = "10.9.0.2";
    outside.gateway4 = "10.9.0.1";
    outside.gateway6 = "fd09::1";
    outside.mtu = 1000;
    const auto applied = good(applier, outside);
    CHECK(applied.refused.size() == 4);
    CHECK(applied.changes.empty());
    CHECK(applied.addressed);
    CHECK(applied.mtu == 9000);
    CHECK(bench.addresses() == Texts{"10.0.0.2/24", "fd00::2/64"});
    CHECK(bench.routed("10.0.0.1"));
    CHECK(bench.routed("fd00::1"));
    CHECK(good(applier, outside).refused.empty());
    CHECK(good(applier, both()).refused.empty());
    CHECK(good(applier, outside).refused.size() == 4);
  });
}

TEST_CASE("offer applied: what the kernel refuses is reported, and tried again" *
          doctest::skip(kSkip)) {
  on_bench([](Bench& bench) {
    auto policy = automatic();  // its resolv.conf is nowhere
    auto applier = bench.applier(policy);
    auto applied = applier.apply(both());
    REQUIRE(applied);
    REQUIRE(applied->failed.size() == 1);
    CHECK(applied->failed.front().find("/nowhere/resolv.conf") != std::string::npos);
    CHECK(applied->changes.size() == 5);
    applied = applier.apply(both());
    REQUIRE(applied);
    CHECK(applied->failed.size() == 1);
    CHECK(applied->changes.empty());

    bench.tap.reset();
    CHECK_FALSE(applier.apply(both()));
  });
}

TEST_CASE("offer applied: a pinned gateway outside the subnet gets a route of its own" *
          doctest::skip(kSkip)) {
  on_bench([](Bench& bench) {
    auto policy = automatic();
    policy.resolv_conf.reset();
    policy.gateway = *parse_ip("10.0.0.1");
    auto applier = bench.applier(policy);
    good(applier, offer4("10.0.7.2", 32));
    CHECK(bench.addresses() == Texts{"10.0.7.2/32"});
    CHECK(bench.routed("10.0.0.1"));
  });
}

}  // namespace
