// SPDX-License-Identifier: Apache-2.0
// What the rules say; that the kernel takes them and that packets obey is for the integration
// tests (test_host_network.py). CAUSEWAY_PRINT_RULES=1 prints the script of every set made here.
#include "host/network/rules.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace {

using namespace causeway;
using namespace causeway::host;

GuestRules guest(const std::string& name, const std::string& tap, unsigned number) {
  GuestRules out;
  const std::string n = std::to_string(number);
  out.name = name;
  out.tap = tap;
  out.host_addresses = {*parse_cidr("10.0." + n + ".1/24"), *parse_cidr("fd00:" + n + "::1/64")};
  out.guest_addresses = {*parse_cidr("10.0." + n + ".2/24"), *parse_cidr("fd00:" + n + "::2/64")};
  return out;
}

std::vector<Publish> publishes(const std::vector<std::string>& texts) {
  std::vector<Publish> out;
  for (const std::string& text : texts)
    out.push_back(*parse_publish(text));
  return out;
}

std::vector<EgressTerm> terms(const std::vector<std::string>& texts) {
  std::vector<EgressTerm> out;
  for (const std::string& text : texts)
    out.push_back(*parse_egress_term(text));
  return out;
}

std::string render(const std::vector<GuestRules>& guests) {
  const RuleSet set{table_name("t"), guests};
  const auto checked = check_rules(set);
  REQUIRE_MESSAGE(checked, checked.error().message);
  std::string out = render_rules(set);
  if (std::getenv("CAUSEWAY_PRINT_RULES") != nullptr) std::cout << out;
  return out;
}

// The lines of one chain, without indentation and without its braces.
std::vector<std::string> chain(const std::string& script, const std::string& name) {
  std::vector<std::string> out;
  std::istringstream lines(script);
  std::string line;
  bool inside = false;
  while (std::getline(lines, line)) {
    line.erase(0, line.find_first_not_of(' '));
    if (inside && line == "}") return out;
    if (inside) out.push_back(line);
    inside = inside || line == "chain " + name + " {";
  }
  return out;
}

bool has(const std::vector<std::string>& lines, const std::string& line) {
  return std::find(lines.begin(), lines.end(), line) != lines.end();
}

std::string fault(const std::vector<GuestRules>& guests) {
  const auto checked = check_rules({table_name("t"), guests});
  return checked ? "" : checked.error().message;
}

TEST_CASE("rules: one table, replaced as a whole") {
  CHECK(render_rules({table_name("t"), {}}) ==
        "add table inet causeway_t\ndelete table inet causeway_t\ntable inet causeway_t {\n}\n");
  CHECK(render_removal(table_name("t")) ==
        "add table inet causeway_t\ndelete table inet causeway_t\n");
  CHECK(table_name("a-b_9") == "causeway_a-b_9");
  CHECK(table_name("a;b c\n") == "causeway_a_b_c_");
}

TEST_CASE("rules: spoofed sources") {
  auto one = guest("a", "cw1", 1);
  auto lines = chain(render({one}), "raw_a");
  CHECK(has(lines, "ip saddr != { 10.0.1.2 } counter name spoofed_a drop"));
  CHECK(has(lines, "ip6 saddr != { fd00:1::2, ::, fe80::/10 } counter name spoofed_a drop"));
  CHECK(has(lines, "ip daddr 127.0.0.0/8 counter name abuse_a drop"));
  CHECK(has(lines, "ip6 daddr ::1 counter name abuse_a drop"));
  CHECK(has(lines, "icmpv6 type { nd-router-advert, nd-redirect } counter name abuse_a drop"));

  one.guest_addresses.pop_back();
  lines = chain(render({one}), "raw_a");
  CHECK(has(lines, "ip6 saddr != { ::, fe80::/10 } counter name spoofed_a drop"));

  one.guest_addresses = {*parse_cidr("fd00:1::2/64")};
  lines = chain(render({one}), "raw_a");
  CHECK(has(lines, "meta nfproto ipv4 counter name spoofed_a drop"));

  one.guest_addresses.clear();
  lines = chain(render({one}), "raw_a");
  CHECK(has(lines, "ip saddr { 10.0.1.1 } counter name spoofed_a drop"));
  CHECK(has(lines, "ip6 saddr { fd00:1::1 } counter name spoofed_a drop"));
  one.host_addresses.clear();
  lines = chain(render({one}), "raw_a");
  for (const std::string& line : lines)
    CHECK(line.find("spoofed") == std::string::npos);
}

TEST_CASE("rules: masquerade what leaves by an interface that is not ours") {
  auto one = guest("a", "cw1", 1);
  auto two = guest("b", "cw2", 2);
  CHECK(chain(render({one, two}), "postrouting").empty());
  one.nat = true;
  auto lines = chain(render({one, two}), "postrouting");
  CHECK(lines == std::vector<std::string>{
                     "type nat hook postrouting priority srcnat + 5; policy accept;",
                     "ip saddr { 10.0.1.2 } oifname != { \"cw1\", \"cw2\" } masquerade",
                     "ip6 saddr { fd00:1::2 } oifname != { \"cw1\", \"cw2\" } masquerade"});
  one.guest_addresses.clear();
  lines = chain(render({one}), "postrouting");
  CHECK(has(lines, "iifname \"cw1\" oifname != { \"cw1\" } masquerade"));
}

TEST_CASE("rules: published ports") {
  auto one = guest("a", "cw1", 1);
  one.publish = publishes({"tcp:0.0.0.0:443=tcp:8443", "udp:[::]:53=udp:5353",
                           "tcp:203.0.113.7:80=tcp:80", "tcp:0.0.0.0:1000-1999=tcp:1000",
                           "udp:[2001:db8::7]:5000-5002=udp:6000", "tcp:0.0.0.0:22=vsock:22"});
  const std::string script = render({one});
  const auto lines = chain(script, "publish");
  CHECK(lines ==
        std::vector<std::string>{
            "meta nfproto ipv4 fib daddr type local tcp dport 443 dnat ip to 10.0.1.2:8443",
            "meta nfproto ipv6 fib daddr type local udp dport 53 dnat ip6 to [fd00:1::2]:5353",
            "ip daddr 203.0.113.7 tcp dport 80 dnat ip to 10.0.1.2",
            "meta nfproto ipv4 fib daddr type local tcp dport 1000-1999 dnat ip to 10.0.1.2",
            "ip6 daddr 2001:db8::7 udp dport 5000-5002 dnat ip6 to fd00:1::2 : udp dport map "
            "{ 5000 : 6000, 5001 : 6001, 5002 : 6002 }"});
  CHECK(chain(script, "prerouting") ==
        std::vector<std::string>{"type nat hook prerouting priority dstnat + 5; policy accept;",
                                 "ip daddr 127.0.0.0/8 accept", "ip6 daddr ::1 accept",
                                 "jump publish"});
  CHECK(chain(script, "output") ==
        std::vector<std::string>{"type nat hook output priority -95; policy accept;",
                                 "ip6 daddr ::1 accept", "jump publish"});
  const auto post = chain(script, "postrouting");
  CHECK(has(post, "ip saddr 127.0.0.0/8 oifname \"cw1\" masquerade"));
  CHECK(has(post, "ip saddr { 10.0.1.2 } oifname { \"cw1\" } ct status dnat masquerade"));

  one.publish = publishes({"tcp:0.0.0.0:65000-65535=tcp:65000"});
  CHECK(has(chain(render({one}), "publish"),
            "meta nfproto ipv4 fib daddr type local tcp dport 65000-65535 dnat ip to 10.0.1.2"));
  one.publish = publishes({"tcp:0.0.0.0:22=vsock:22"});
  CHECK(chain(render({one}), "publish").empty());
}

TEST_CASE("rules: egress in the order of egress.hpp") {
  auto one = guest("a", "cw1", 1);
  const std::string denied = "counter name egress_a reject with icmpx type admin-prohibited";
  const std::string metadata = "counter name metadata_a reject with icmpx type admin-prohibited";
  CHECK(chain(render({one}), "egress_a") ==
        std::vector<std::string>{"ip daddr { 169.254.169.254, 169.254.170.2 } " + metadata,
                                 "ip6 daddr { fd00:ec2::254 } " + metadata, "accept"});

  one.egress.allow_by_default = false;
  one.egress.allow = terms({"tcp:10.1.0.0/16:443", "169.254.0.0/16", "udp:any:53",
                            "tcp:metadata:80", "[fd00:ec2::254]"});
  one.egress.deny = terms({"private", "tcp:any", "tcp:[2001:db8::]/32:1-9"});
  CHECK(chain(render({one}), "egress_a") ==
        std::vector<std::string>{
            "ip daddr 169.254.0.0/16 accept",
            "ip daddr { 169.254.169.254, 169.254.170.2 } tcp dport 80 accept",
            "ip6 daddr { fd00:ec2::254 } tcp dport 80 accept", "ip6 daddr fd00:ec2::254/128 accept",
            "ip daddr { 169.254.169.254, 169.254.170.2 } " + metadata,
            "ip6 daddr { fd00:ec2::254 } " + metadata, "ip daddr 10.1.0.0/16 tcp dport 443 accept",
            "udp dport 53 accept",
            "ip daddr { 10.0.0.0/8, 100.64.0.0/10, 127.0.0.0/8, 169.254.0.0/16, 172.16.0.0/12, "
            "192.168.0.0/16 } " +
                denied,
            "ip6 daddr { ::1, fc00::/7, fe80::/10 } " + denied, "meta l4proto tcp " + denied,
            "ip6 daddr 2001:db8::/32 tcp dport 1-9 " + denied, denied});
}

TEST_CASE("rules: a published port is judged by what the guest dialed") {
  auto one = guest("a", "cw1", 1);
  auto two = guest("b", "cw2", 2);
  const std::string refused = "counter name peer_a reject with icmpx type admin-prohibited";
  CHECK(chain(render({one, two}), "forward_a") ==
        std::vector<std::string>{"ct state established,related accept",
                                 "oifname { \"cw1\", \"cw2\" } " + refused, "goto egress_a"});
  two.publish = publishes({"tcp:0.0.0.0:443=tcp:443"});
  one.egress.deny = terms({"tcp:192.0.2.0/24:443"});
  const std::string script = render({one, two});
  CHECK(chain(script, "forward_a") ==
        std::vector<std::string>{"ct state established,related accept",
                                 "oifname { \"cw1\", \"cw2\" } ct status dnat goto dialed_a",
                                 "oifname { \"cw1\", \"cw2\" } " + refused, "goto egress_a"});
  CHECK(has(chain(script, "dialed_a"),
            "ct original ip daddr 192.0.2.0/24 meta l4proto tcp ct original proto-dst 443 "
            "counter name egress_a reject with icmpx type admin-prohibited"));
}

TEST_CASE("rules: a guest behind NAT is reached by answers and published ports only") {
  auto one = guest("a", "cw1", 1);
  auto two = guest("b", "cw2", 2);
  two.nat = true;
  const std::string script = render({one, two});
  CHECK(chain(script, "to_a").empty());
  CHECK(chain(script, "to_b") == std::vector<std::string>{"ct state established,related accept",
                                                          "ct status dnat accept",
                                                          "counter name unpublished_b drop"});
  CHECK(chain(script, "forward") ==
        std::vector<std::string>{
            "type filter hook forward priority filter + 5; policy accept;",
            "iifname vmap { \"cw1\" : goto forward_a, \"cw2\" : goto forward_b }",
            "oifname vmap { \"cw2\" : goto to_b }"});
}

TEST_CASE("rules: a bridged guest has none") {
  auto one = guest("a", "cw1", 1);
  one.bridge = "br0";
  CHECK(render({one}) == render({}));
  CHECK_FALSE(needs_rules(one));
  const auto needs = forwarding_needs({"t", {one}});
  CHECK_FALSE(needs.v4);
  CHECK(needs.taps == std::vector<std::string>{"cw1"});
}

TEST_CASE("rules: what cannot work is refused") {
  const auto one = guest("a", "cw1", 1);
  const auto two = guest("b", "cw2", 2);
  CHECK(fault({one, two}).empty());
  auto bad = one;
  for (const char* wrong : {"", "A", "a b", "a;b", "a\n", "123456789012345678901234567890123"}) {
    bad.name = wrong;
    CHECK(fault({bad}).find("a name has 1 to 32") != std::string::npos);
  }
  bad = one;
  for (const char* wrong : {"", "cw*", "c w", "c\"w", "a/b", "..", "1234567890123456"}) {
    bad.tap = wrong;
    CHECK(fault({bad}).find("the TAP's name") != std::string::npos);
  }
  bad = two;
  bad.name = "a";
  CHECK(fault({one, bad}) == "two guests have the name \"a\"");
  bad = two;
  bad.tap = "cw1";
  CHECK(fault({one, bad}) == "guest \"b\": the TAP \"cw1\" is another guest's");

  bad = one;
  bad.bridge = "br0";
  bad.nat = true;
  CHECK(fault({bad}).find("NAT does not go with a bridge") != std::string::npos);
  bad.nat = false;
  bad.publish = publishes({"tcp:0.0.0.0:1=tcp:1"});
  CHECK(fault({bad}) ==
        "guest \"a\": tcp:0.0.0.0:1=tcp:1: a bridged guest has its ports on its own address; "
        "publish over a stream");
  bad.publish = publishes({"tcp:0.0.0.0:1=vsock:1"});
  CHECK(fault({bad}).empty());
  bad.egress.deny = terms({"private"});
  CHECK(fault({bad}).find("cannot be kept on a bridge") != std::string::npos);

  bad = one;
  bad.guest_addresses.pop_back();
  bad.publish = publishes({"tcp:[::]:1=tcp:1"});
  CHECK(fault({bad}).find("needs the guest's IPv6 address") != std::string::npos);
  bad = one;
  bad.publish = publishes({"tcp:[::1]:1=tcp:1"});
  CHECK(fault({bad}).find("the kernel does not route ::1") != std::string::npos);
}

TEST_CASE("rules: a port is published once") {
  auto one = guest("a", "cw1", 1);
  auto two = guest("b", "cw2", 2);
  const auto both = [&](const std::string& first, const std::string& second) {
    one.publish = publishes({first});
    two.publish = publishes({second});
    return fault({one, two});
  };
  CHECK(both("tcp:0.0.0.0:5-9=tcp:5", "tcp:0.0.0.0:9=tcp:1") ==
        "guest \"b\": tcp:0.0.0.0:9=tcp:1 takes ports that guest \"a\" has by "
        "tcp:0.0.0.0:5-9=tcp:5");
  CHECK_FALSE(both("tcp:0.0.0.0:9=tcp:1", "tcp:192.0.2.1:5-9=tcp:5").empty());
  CHECK_FALSE(both("tcp:0.0.0.0:9=tcp:1", "tcp:127.0.0.1:9=vsock:5").empty());
  CHECK(both("tcp:0.0.0.0:9=tcp:1", "udp:0.0.0.0:9=udp:1").empty());
  CHECK(both("tcp:0.0.0.0:9=tcp:1", "tcp:[::]:9=tcp:1").empty());
  CHECK(both("tcp:0.0.0.0:9=tcp:1", "tcp:0.0.0.0:10=tcp:1").empty());
  CHECK(both("tcp:192.0.2.1:9=tcp:1", "tcp:192.0.2.2:9=tcp:1").empty());
  one.publish = publishes({"tcp:0.0.0.0:9=tcp:1", "tcp:0.0.0.0:9=tcp:2"});
  CHECK_FALSE(fault({one}).empty());
}

TEST_CASE("rules: what they need of the kernel") {
  auto one = guest("a", "cw1", 1);
  auto needs = forwarding_needs({"t", {one}});
  CHECK_FALSE(needs.v4);
  CHECK_FALSE(needs.v6);
  one.nat = true;
  needs = forwarding_needs({"t", {one}});
  CHECK(needs.v4);
  CHECK(needs.v6);
  CHECK(needs.route_localnet.empty());
  one.host_addresses.clear();
  one.guest_addresses.clear();
  needs = forwarding_needs({"t", {one}});
  CHECK(needs.v4);
  CHECK_FALSE(needs.v6);

  one = guest("a", "cw1", 1);
  one.publish = publishes({"tcp:[::]:1=tcp:1"});
  needs = forwarding_needs({"t", {one}});
  CHECK_FALSE(needs.v4);
  CHECK(needs.v6);
  CHECK(needs.route_localnet.empty());
  for (const auto& [text, local] :
       {std::pair{"tcp:0.0.0.0:1=tcp:1", true}, std::pair{"udp:127.0.0.5:1=udp:1", true},
        std::pair{"tcp:192.0.2.1:1=tcp:1", false}, std::pair{"tcp:0.0.0.0:1=vsock:1", false}}) {
    one.publish = publishes({text});
    CHECK(forwarding_needs({"t", {one}}).route_localnet.empty() != local);
  }

  one = guest("a", "cw1", 1);
  one.guest_addresses.clear();
  CHECK_FALSE(needs_rules(one));
  one.egress.deny = terms({"private"});
  CHECK(needs_rules(one));
}

}  // namespace
