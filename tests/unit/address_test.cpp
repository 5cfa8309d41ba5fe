// SPDX-License-Identifier: Apache-2.0
#include "common/net/address.hpp"

#include <doctest/doctest.h>

#include <string>

namespace {

using namespace causeway;

TEST_CASE("addresses parse to what they say and print as written") {
  const auto same = [](const std::string& text, const Address& expected) {
    CAPTURE(text);
    const auto address = parse_address(text);
    REQUIRE(address);
    CHECK(*address == expected);
    CHECK(to_string(*address) == text);
  };
  same("tcp:127.0.0.1:443", {TcpAddress{"127.0.0.1", 443}});
  same("tcp:localhost:0", {TcpAddress{"localhost", 0}});
  same("tcp:a-b.example_1.org.:65535", {TcpAddress{"a-b.example_1.org.", 65535}});
  same("tcp:1and1.com:80", {TcpAddress{"1and1.com", 80}});
  same("tcp:[::1]:443", {TcpAddress{"::1", 443}});
  same("tcp:[fe80::1%eth0]:443", {TcpAddress{"fe80::1%eth0", 443}});
  same("tcp:[::ffff:10.0.0.1]:1", {TcpAddress{"::ffff:10.0.0.1", 1}});
  same("unix:/run/cw.sock", {UnixAddress{"/run/cw.sock"}});
  same("unix:/run/with:colon and space", {UnixAddress{"/run/with:colon and space"}});
  same("unix:/" + std::string(106, 'x'), {UnixAddress{"/" + std::string(106, 'x')}});
  same("vsock:3:1024", {VsockAddress{3, 1024}});
  same("vsock:any:4294967295", {VsockAddress{kVsockCidAny, 4294967295U}});
  same("vsock:0:0", {VsockAddress{0, 0}});
  same("hvsock:/run/vm1/v.sock:1024", {HybridVsockAddress{"/run/vm1/v.sock", 1024}});
  same("hvsock:/run/a:b:7", {HybridVsockAddress{"/run/a:b", 7}});
  same("hvsock:/" + std::string(104, 'x') + ":7",
       {HybridVsockAddress{"/" + std::string(104, 'x'), 7}});
  same("fd:0", {FdAddress{0}});
  same("fd:2147483647", {FdAddress{2147483647}});

  CHECK(to_string(*parse_address("vsock:4294967295:5")) == "vsock:any:5");
}

TEST_CASE("addresses: bad input says what, where and how it should look") {
  const struct {
    std::string text;
    std::string says;
    std::string form;
  } rows[] = {
      {"", "empty address", "tcp:HOST:PORT"},
      {"tcp", "unknown kind of address \"tcp\" at column 1", "unix:/PATH"},
      {"10.0.0.1:80", "unknown kind of address \"10.0.0.1\" at column 1", "as in tcp:"},
      {"/run/x", "unknown kind of address \"/run/x\" at column 1", "unix:/PATH"},
      {"TCP:localhost:1", "unknown kind of address \"TCP\"", "tcp:HOST:PORT"},
      {" tcp:localhost:1", "unknown kind of address \" tcp\"", "tcp:HOST:PORT"},
      {"vscok:3:1", "unknown kind of address \"vscok\"", "vsock:CID:PORT"},
      {"tap:cw0", "unknown kind of address \"tap\"", "fd:NUMBER"},
      {"tcp:", "the port is missing at column 5", "tcp:HOST:PORT"},
      {"tcp:443", "the host is missing at column 5", "tcp:HOST:PORT"},
      {"tcp:localhost", "the port is missing at column 14", "tcp:HOST:PORT"},
      {"tcp:localhost:", "the port is missing at column 15", "tcp:HOST:PORT"},
      {"tcp::443", "the host is missing", "0.0.0.0 or [::]"},
      {"tcp:localhost:65536", "port \"65536\" is not a number from 0 to 65535 at column 15",
       "tcp:"},
      {"tcp:localhost:-1", "port \"-1\"", "tcp:"},
      {"tcp:localhost:+1", "port \"+1\"", "tcp:"},
      {"tcp:localhost: 1", "port \" 1\"", "tcp:"},
      {"tcp:localhost:http", "port \"http\"", "tcp:"},
      {"tcp:localhost:99999999999999999999999", "port", "tcp:"},
      {"tcp:256.0.0.1:1", "not a host name or an IPv4 address at column 5", "tcp:"},
      {"tcp:1.2.3:1", "not a host name or an IPv4 address", "tcp:"},
      {"tcp:-a:1", "not a host name", "tcp:"},
      {"tcp:a-:1", "not a host name", "tcp:"},
      {"tcp:a..b:1", "not a host name", "tcp:"},
      {"tcp:.:1", "not a host name", "tcp:"},
      {"tcp:a b:1", "not a host name", "tcp:"},
      {"tcp:b\xc3\xbc"
       "cher:1",
       "\"b\\xc3\\xbccher\" is not a host name", "tcp:"},
      {"tcp:*:1", "not a host name", "tcp:"},
      {"tcp:" + std::string(64, 'a') + ":1", "not a host name", "tcp:"},
      {"tcp:" + std::string("a\0b", 3) + ":1", "not a host name", "tcp:"},
      {"tcp:" + std::string("1.2.3.4\0", 8) + ":1", "not a host name", "tcp:"},
      {"tcp:::1:443", "an IPv6 address needs brackets at column 5", "[::1]"},
      {"tcp:[::1]", "the port is missing at column 10", "[::1]"},
      {"tcp:[::1]443", "the port is missing at column 10", "[::1]"},
      {"tcp:[::1:443", "the closing ] is missing at column 5", "[::1]"},
      {"tcp:[]:443", "\"\" is not an IPv6 address at column 6", "[::1]"},
      {"tcp:[127.0.0.1]:443", "not an IPv6 address", "[::1]"},
      {"tcp:[fe80::1%]:443", "not an IPv6 address", "[::1]"},
      {"tcp:[fe80::1%a/b]:443", "not an IPv6 address", "[::1]"},
      {"tcp:[" + std::string("::1\0", 4) + "]:443", "not an IPv6 address", "[::1]"},
      {"unix:", "the path is missing at column 6", "unix:/PATH"},
      {"unix:run/x", "the path is not absolute at column 6", "unix:/PATH"},
      {"unix:@name", "abstract sockets are not supported", "unix:/PATH"},
      {"unix:/run/", "names a directory", "unix:/PATH"},
      {"unix:/run/a\nb", "a control character at column 12", "unix:/PATH"},
      {"unix:/" + std::string("a\0b", 3), "a control character at column 8", "unix:/PATH"},
      {"unix:/" + std::string(107, 'x'), "the path has 108 bytes, the most is 107", "unix:/PATH"},
      {"vsock:3", "the port is missing at column 8", "vsock:any:1024"},
      {"vsock:3:", "the port is missing at column 9", "vsock:any:1024"},
      {"vsock::1", "the CID is missing at column 7", "vsock:any:1024"},
      {"vsock:host:1", "CID \"host\" is not a number from 0 to 4294967295", "vsock:any:1024"},
      {"vsock:4294967296:1", "CID \"4294967296\"", "vsock:any:1024"},
      {"vsock:3:4294967296", "port \"4294967296\"", "vsock:any:1024"},
      {"vsock:3:1:2", "port \"1:2\"", "vsock:any:1024"},
      {"hvsock:/run/x", "the port is missing at column 14", "hvsock:/PATH:PORT"},
      {"hvsock:/run/x:", "the port is missing at column 15", "hvsock:/PATH:PORT"},
      {"hvsock::5", "the path is missing at column 8", "hvsock:/PATH:PORT"},
      {"hvsock:x:5", "not absolute", "hvsock:/PATH:PORT"},
      {"hvsock:/" + std::string(105, 'x') + ":7", "the path has 106 bytes, the most is 105", "hv"},
      {"fd:", "the descriptor is missing at column 4", "fd:3"},
      {"fd:-1", "descriptor \"-1\"", "fd:3"},
      {"fd:2147483648", "descriptor \"2147483648\"", "fd:3"},
      {"fd:3x", "descriptor \"3x\"", "fd:3"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.text);
    const auto address = parse_address(row.text);
    REQUIRE_FALSE(address);
    const std::string& message = address.error().message;
    CAPTURE(message);
    CHECK(message.find(row.says) != std::string::npos);
    CHECK(message.find(row.form) != std::string::npos);
    CHECK(message.find('\n') == std::string::npos);
  }
}

TEST_CASE("IP literals") {
  for (const char* text : {"0.0.0.0", "10.1.2.3", "255.255.255.255", "::", "::1", "fd00::1:2",
                           "::ffff:10.0.0.1", "2001:db8::8:800:200c:417a"}) {
    CAPTURE(text);
    const auto ip = parse_ip(text);
    REQUIRE(ip);
    CHECK(to_string(*ip) == text);
    CHECK(ip->v6 == (std::string_view(text).find(':') != std::string_view::npos));
  }
  CHECK(parse_ip("10.1.2.3")->bytes[3] == 3);
  for (const std::string& text :
       {std::string(), std::string("10.0.0"), std::string("10.0.0.256"), std::string("010.0.0.1"),
        std::string("0x7f.1"), std::string(" ::1"), std::string("::1%lo"), std::string("[::1]"),
        std::string("10.0.0.1/24"), std::string("localhost"), std::string("1::2::3"),
        std::string("10.0.0.1\0", 9)}) {
    CAPTURE(text);
    const auto ip = parse_ip(text);
    REQUIRE_FALSE(ip);
    CHECK(ip.error().message.find("10.0.0.1 or fd00::1") != std::string::npos);
  }
}

TEST_CASE("networks") {
  const struct {
    std::string text;
    std::string network;
    std::string inside;
    std::string outside;
  } rows[] = {
      {"10.0.0.1/24", "10.0.0.0", "10.0.0.255", "10.0.1.0"},
      {"10.0.0.129/25", "10.0.0.128", "10.0.0.200", "10.0.0.127"},
      {"10.255.3.4/9", "10.128.0.0", "10.128.0.1", "10.127.255.255"},
      {"192.168.1.7/32", "192.168.1.7", "192.168.1.7", "192.168.1.6"},
      {"1.2.3.4/0", "0.0.0.0", "255.1.1.1", "::1"},
      {"fd00:1::5/64", "fd00:1::", "fd00:1::ffff:1", "fd00:1:0:1::"},
      {"fd00::1/128", "fd00::1", "fd00::1", "fd00::2"},
      {"fd00::1/0", "::", "2001:db8::1", "10.0.0.1"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.text);
    const auto cidr = parse_cidr(row.text);
    REQUIRE(cidr);
    CHECK(to_string(*cidr) == row.text);
    CHECK(to_string(cidr->network()) == row.network);
    CHECK(cidr->contains(*parse_ip(row.inside)));
    CHECK_FALSE(cidr->contains(*parse_ip(row.outside)));
  }
  const struct {
    std::string text;
    std::string says;
  } bad[] = {
      {"", "empty network address"},
      {"10.0.0.1", "the /PREFIX is missing at column 9"},
      {"10.0.0.1/", "the prefix is missing at column 10"},
      {"10.0.0.1/33", "prefix \"33\" is not a number from 0 to 32 at column 10"},
      {"10.0.0.1/-1", "prefix \"-1\""},
      {"10.0.0.1/ 24", "prefix \" 24\""},
      {"10.0.0.1/24/8", "prefix \"24/8\""},
      {"10.0.0.1/255.255.255.0", "prefix \"255.255.255.0\""},
      {"fd00::1/129", "prefix \"129\" is not a number from 0 to 128"},
      {"/24", "\"\" is not an IP address at column 1"},
      {"10.0.0/24", "\"10.0.0\" is not an IP address"},
      {"host/24", "\"host\" is not an IP address"},
  };
  for (const auto& row : bad) {
    CAPTURE(row.text);
    const auto cidr = parse_cidr(row.text);
    REQUIRE_FALSE(cidr);
    CAPTURE(cidr.error().message);
    CHECK(cidr.error().message.find(row.says) != std::string::npos);
    CHECK(cidr.error().message.find("10.0.0.1/24 or fd00::1/64") != std::string::npos);
  }
}

}  // namespace
