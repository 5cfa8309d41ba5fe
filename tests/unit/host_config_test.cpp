// SPDX-License-Identifier: Apache-2.0
#include "host/config.hpp"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

namespace causeway::host {
namespace {

std::string refusal(const std::string& text) {
  ConfigParser parser;
  const auto outcome = parser.table().evaluate_text(text, "f.json");
  return outcome.exit_code ? outcome.err : std::string();
}

HostConfig accepted(const std::string& text) {
  ConfigParser parser;
  const auto outcome = parser.table().evaluate_text(text, "f.json");
  REQUIRE_MESSAGE(!outcome.exit_code, outcome.err);
  return std::move(parser).finish();
}

std::string guests(const std::string& list) {
  return R"({"listen": "vsock:any:5000", "guests": [)" + list + "]}";
}

}  // namespace

TEST_CASE("a wrong set of guests is refused with its place") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {guests(R"({"cid": 16})"), "tap is required"},
      {guests(R"({"tap": "a"})"), "needs a listen of its own, or a cid"},
      {guests(R"({"tap": "a", "cid": 16}, {"tap": "a", "cid": 17})"), "have the TAP 'a'"},
      {guests(R"({"tap": "a", "cid": 16}, {"tap": "b", "cid": 16})"), "have the cid 16"},
      {guests(R"({"tap": "a", "cid": 16, "name": "x"}, {"tap": "b", "cid": 17, "name": "x"})"),
       "have the name 'x'"},
      {guests(R"({"tap": "a", "listen": "unix:/x"}, {"tap": "b", "listen": "unix:/x"})"),
       "two guests listen on unix:/x"},
      {guests(R"({"tap": "a", "cid": 0})"), "guests[0].cid"},
      {guests(R"({"tap": "a", "cid": 16, "name": "Not a name"})"), "guests[0].name"},
      {guests(R"({"tap": "a", "cid": 16, "guest_address": ["10.0.0.2/24", "10.0.1.2/24"]})"),
       "several of IPv4"},
      {guests(R"({"tap": "a", "cid": 16, "address": ["10.0.0.1/24"],
                  "guest_address": ["10.0.0.1/24"]})"),
       "is the TAP's own address"},
      {guests(R"({"tap": "a", "cid": 16, "attach": true, "address": ["10.0.0.1/24"]})"), "attach"},
      {guests(R"({"tap": "a", "cid": 16, "publish": ["tcp:0.0.0.0:80=tcp:80"]})"),
       "needs a guest_address of that family"},
      {guests(R"({"tap": "a", "listen": "unix:/x", "publish": ["tcp:0.0.0.0:80=vsock:80"]})"),
       "needs the guest's cid"},
      {guests(R"({"tap": "a", "cid": 16, "bridge": "br0", "guest_address": ["10.0.0.2/24"],
                  "publish": ["tcp:0.0.0.0:80=tcp:80"]})"),
       "bridged"},
      {guests(
           R"({"tap": "a", "cid": 16, "resolvers": ["1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"]})"),
       "three at most"},
      {guests(R"({"tap": "a", "cid": 16, "publish": ["tcp:0.0.0.0:8000-8064=vsock:80"]})"),
       "64 ports at most"},
      {guests(R"({"tap": "a", "cid": 16,
                  "publish": ["tcp:0.0.0.0:80=vsock:80", "tcp:0.0.0.0:80=vsock:80"]})"),
       "is there twice"},
      {guests(R"({"tap": "a", "cid": 16, "guest_address": ["10.0.0.2/24"],
                  "publish": ["tcp:0.0.0.0:80=tcp:80"]},
                 {"tap": "b", "cid": 17, "guest_address": ["10.0.1.2/24"],
                  "publish": ["tcp:0.0.0.0:80=tcp:80"]})"),
       "guests: "},
      {R"({"listen": "unix:/x", "tap": "a", "guests": [{"tap": "b", "listen": "unix:/y"}]})",
       "cannot be together with tap"},
      {R"({"listen": "unix:/x", "guests": [{"tap": "b", "listen": "unix:/y"}]})",
       "is vsock:any:PORT"},
      {R"({"listen": "unix:/x", "tap": "a", "cid": 5})", "only connections on vsock"},
      {R"({"listen": "unix:/x", "accept_unknown": {"limit": 3}})", "vsock:any:PORT"},
      {R"({"listen": "vsock:any:5", "accept_unknown": {"limit": 300}})", "accept_unknown.limit"},
      {R"({"listen": "vsock:any:5", "accept_unknown": {"limit": 9, "network4": "10.0.0.0/28"}})",
       "no subnet for number 9"},
      {R"({})", "--listen"},
  };
  for (const auto& [text, words] : cases) {
    CAPTURE(text);
    CHECK_MESSAGE(refusal(text).find(words) != std::string::npos, refusal(text));
  }
}

TEST_CASE("the guest of the flags is the first of the guests") {
  const auto config = accepted(R"({"listen": "unix:/x", "tap": "Cw.App1"})");
  REQUIRE(config.guests.size() == 1);
  CHECK(config.guests[0].name == "cw-app1");
  CHECK(config.instance == "cw-app1");
  CHECK(accepted(guests(R"({"tap": "a", "cid": 16})")).instance == "main");
}

TEST_CASE("what is offered") {
  const auto config = accepted(guests(R"(
      {"tap": "a", "cid": 16, "address": ["192.0.2.1/24", "10.0.0.1/24", "fd00::1/64"],
       "guest_address": ["10.0.0.2/24", "fd00::2/64"], "resolvers": ["10.0.0.53"], "mtu": 9000},
      {"tap": "b", "cid": 17, "address": ["10.1.0.1/24"]},
      {"tap": "c", "cid": 18, "bridge": "br0", "guest_address": ["10.2.0.5/24"],
       "guest_gateway": ["10.2.0.1"]})"));
  const auto offer = offer_of(config.guests[0]);
  REQUIRE(offer);
  CHECK(offer->address4 == proto::OfferAddress{"10.0.0.2", 24});
  CHECK(offer->address6 == proto::OfferAddress{"fd00::2", 64});
  CHECK(offer->gateway4 == "10.0.0.1");  // of the same network, not the first
  CHECK(offer->gateway6 == "fd00::1");
  CHECK(offer->resolvers == std::vector<std::string>{"10.0.0.53"});
  CHECK(offer->mtu == 9000);
  CHECK_FALSE(offer_of(config.guests[1]));
  REQUIRE(offer_of(config.guests[2]));
  CHECK(offer_of(config.guests[2])->gateway4 == "10.2.0.1");
}

TEST_CASE("the subnets of unknown guests") {
  const auto config = accepted(R"({"listen": "vsock:any:5", "accept_unknown": {
      "limit": 256, "tap_prefix": "u", "network4": "10.0.0.0/16", "network6": "fd00:1::/64"}})");
  const auto first = unknown_guest(config.unknown, 1, 20);
  REQUIRE(first);
  CHECK(first->tap() == "u1");
  CHECK(first->cid == 20);
  REQUIRE(first->link.addresses.size() == 2);
  CHECK(to_string(first->link.addresses[0]) == "10.0.0.5/30");
  CHECK(to_string(first->guest_addresses[0]) == "10.0.0.6/30");
  CHECK(to_string(first->link.addresses[1]) == "fd00:1::5/126");
  const auto last = unknown_guest(config.unknown, 256, 21);
  REQUIRE(last);
  CHECK(to_string(last->link.addresses[0]) == "10.0.4.1/30");
}

TEST_CASE("what changes live, and what needs another TAP") {
  const auto base = accepted(guests(R"({"tap": "a", "cid": 16, "address": ["10.0.0.1/24"]})"));
  const auto same = [&](const std::string& text) {
    return same_link(base.guests[0], accepted(guests(text)).guests[0]);
  };
  CHECK(same(R"({"tap": "a", "cid": 16, "address": ["10.0.0.1/24"], "nat": true,
                 "resolvers": ["10.0.0.1"], "egress": {"default": "deny"}})"));
  CHECK_FALSE(same(R"({"tap": "a", "cid": 17, "address": ["10.0.0.1/24"]})"));
  CHECK_FALSE(same(R"({"tap": "a", "cid": 16, "address": ["10.0.0.1/24"], "mtu": 9000})"));
  CHECK_FALSE(same(R"({"tap": "a", "cid": 16, "address": ["10.0.0.3/24"]})"));
  CHECK_FALSE(same(R"({"tap": "a", "cid": 16, "address": ["10.0.0.1/24"], "lanes": 2})"));
}

}  // namespace causeway::host
