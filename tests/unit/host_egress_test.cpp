// SPDX-License-Identifier: Apache-2.0
#include "host/network/egress.hpp"

#include <doctest/doctest.h>

#include <regex>
#include <string>

namespace {

using namespace causeway;
using namespace causeway::host;
using Where = EgressTerm::Where;

TEST_CASE("egress terms: what is written is what is meant, and prints as written") {
  const auto read = [](const std::string& text, const EgressTerm& expected) {
    CAPTURE(text);
    const auto term = parse_egress_term(text);
    REQUIRE_MESSAGE(term, term.error().message);
    CHECK(*term == expected);
    CHECK(to_string(*term) == text);
    CHECK(std::regex_search(text, std::regex(egress_codec().pattern)));
  };
  const auto network = [](const char* text) { return *parse_cidr(text); };
  read("any", {Where::any, {}, {}, 0, 0});
  read("private", {Where::private_networks, {}, {}, 0, 0});
  read("metadata", {Where::metadata, {}, {}, 0, 0});
  read("tcp:any", {Where::any, {}, Transport::tcp, 0, 0});
  read("tcp:any:25", {Where::any, {}, Transport::tcp, 25, 25});
  read("udp:private:1-65535", {Where::private_networks, {}, Transport::udp, 1, 65535});
  read("tcp:metadata:80", {Where::metadata, {}, Transport::tcp, 80, 80});
  read("10.0.0.0/8", {Where::network, network("10.0.0.0/8"), {}, 0, 0});
  read("0.0.0.0/0", {Where::network, network("0.0.0.0/0"), {}, 0, 0});
  read("192.0.2.7", {Where::network, network("192.0.2.7/32"), {}, 0, 0});
  read("[fd00::]/8", {Where::network, network("fd00::/8"), {}, 0, 0});
  read("[2001:db8::1]", {Where::network, network("2001:db8::1/128"), {}, 0, 0});
  read("tcp:10.0.0.0/8:443", {Where::network, network("10.0.0.0/8"), Transport::tcp, 443, 443});
  read("udp:[fd00::]/8:53", {Where::network, network("fd00::/8"), Transport::udp, 53, 53});
  read("tcp:[::1]:8000-8010", {Where::network, network("::1/128"), Transport::tcp, 8000, 8010});
  CHECK(to_string(*parse_egress_term("tcp:192.0.2.7/32:5-5")) == "tcp:192.0.2.7:5");
}

TEST_CASE("egress terms: bad input says what, where and how it should look") {
  const struct {
    std::string text;
    std::string says;
  } rows[] = {
      {"", "empty egress term"},
      {"tcp:", "the network is missing at column 5"},
      {"privat", "\"privat\" is neither an IP address nor any, private or metadata at column 1"},
      {"ANY", "\"ANY\" is neither"},
      {"icmp:any", "\"icmp\" is neither"},
      {"example.org", "\"example.org\" is neither"},
      {"any:443", "a port needs tcp: or udp: in front at column 5"},
      {"10.0.0.0/8:443", "a port needs tcp: or udp: in front at column 12"},
      {"tcp:any:", "the port is missing at column 9"},
      {"tcp:any:0", "port \"0\" is not a number from 1 to 65535"},
      {"tcp:any:65536", "port \"65536\""},
      {"tcp:any:9-8", "the range ends before it begins at column 9"},
      {"tcp:any:9-", "the port is missing at column 11"},
      {"tcp:any/8", "\"any\" is neither"},
      {"tcp:udp:any", "\"udp\" is neither"},
      {"10.0.0.1/8", "the address has bits behind its prefix (the network is 10.0.0.0/8)"},
      {"[fd00::1]/8", "the network is fd00::/8"},
      {"10.0.0.0/33", "prefix \"33\" is not a number from 0 to 32 at column 10"},
      {"[fd00::]/129", "prefix \"129\" is not a number from 0 to 128"},
      {"10.0.0.0/", "prefix \"\""},
      {"10.0.0/8", "\"10.0.0\" is neither"},
      {"fd00::/8", "an IPv6 network needs brackets around the address at column 1"},
      {"tcp:fd00::/8:443", "needs brackets around the address at column 5"},
      {"[fd00::/8]", "\"fd00::/8\" is neither"},
      {"[fd00::", "the closing ] is missing at column 1"},
      {"[fd00::]8", "there is something behind the network at column 9"},
      {"[10.0.0.0]/8", "\"10.0.0.0\" is neither"},
      {"[::ffff:10.0.0.0]/104", "without ::ffff:"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.text);
    const auto term = parse_egress_term(row.text);
    REQUIRE_FALSE(term);
    const std::string& message = term.error().message;
    CHECK_MESSAGE(message.find(row.says) != std::string::npos, message);
    CHECK_MESSAGE(message.find("as in tcp:10.0.0.0/8:443") != std::string::npos, message);
    CHECK(message.find('\n') == std::string::npos);
  }
}

}  // namespace
