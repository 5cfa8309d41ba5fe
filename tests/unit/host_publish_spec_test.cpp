// SPDX-License-Identifier: Apache-2.0
#include "host/network/publish_spec.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <regex>
#include <string>

namespace {

using namespace causeway;
using namespace causeway::host;

TEST_CASE("publish: what is written is what is meant, and prints as written") {
  const auto read = [](const std::string& text) {
    CAPTURE(text);
    const auto publish = parse_publish(text);
    REQUIRE_MESSAGE(publish, publish.error().message);
    CHECK(to_string(*publish) == text);
    CHECK(std::regex_search(text, std::regex(publish_codec().pattern)));
    return *publish;
  };
  auto one = read("tcp:0.0.0.0:443=tcp:8443");
  CHECK(one.transport == Transport::tcp);
  CHECK(one.address == *parse_ip("0.0.0.0"));
  CHECK(one.first == 443);
  CHECK(one.last == 443);
  CHECK(std::get<TapTarget>(one.target) == TapTarget{8443});
  CHECK(one.over_tap());
  CHECK(one.idle == Duration{std::chrono::minutes{10}});
  CHECK(one.limit == 1024);
  CHECK_FALSE(one.proxy_v2);

  one = read("udp:[::]:5000-5010=udp:6000");
  CHECK(one.transport == Transport::udp);
  CHECK(one.address == *parse_ip("::"));
  CHECK(one.first == 5000);
  CHECK(one.last == 5010);
  CHECK(std::get<TapTarget>(one.target).port == 6000);

  one = read("tcp:203.0.113.7:1-65535=tcp:1");
  CHECK(one.last == 65535);
  one = read("tcp:[2001:db8::7]:443=vsock:4294967294");
  CHECK(std::get<VsockTarget>(one.target) == VsockTarget{4294967294U});
  CHECK_FALSE(one.over_tap());
  one = read("tcp:0.0.0.0:80-89=vsock:1080,proxy-v2,idle=90s,limit=5");
  CHECK(one.proxy_v2);
  CHECK(one.idle == Duration{std::chrono::seconds{90}});
  CHECK(one.limit == 5);
  one = read("tcp:127.0.0.1:443=hvsock:/run/a=b:c/v.sock:443,idle=never");
  CHECK(std::get<HybridVsockAddress>(one.target) == HybridVsockAddress{"/run/a=b:c/v.sock", 443});
  CHECK(one.idle.never);
  one = read("tcp:0.0.0.0:443=unix:/run/app.sock,limit=1000000");
  CHECK(std::get<UnixAddress>(one.target) == UnixAddress{"/run/app.sock"});
}

TEST_CASE("publish: the shortest form is printed") {
  CHECK(to_string(*parse_publish("tcp:0.0.0.0:7-7=vsock:7,limit=1024,idle=600s")) ==
        "tcp:0.0.0.0:7=vsock:7");
  CHECK(to_string(*parse_publish("tcp:[0::0]:7=vsock:7,limit=2,proxy-v2")) ==
        "tcp:[::]:7=vsock:7,proxy-v2,limit=2");
}

TEST_CASE("publish: bad input says what, where and how it should look") {
  const struct {
    std::string text;
    std::string says;
  } rows[] = {
      {"", "nothing to publish"},
      {"tcp:0.0.0.0:443", "=TO is missing at column 16"},
      {"443=tcp:443", "a listener begins with tcp: or udp: at column 1"},
      {"sctp:0.0.0.0:1=tcp:1", "a listener begins with tcp: or udp: at column 1"},
      {"TCP:0.0.0.0:1=tcp:1", "a listener begins with"},
      {"tcp:443=tcp:443", "the address is missing (every address is 0.0.0.0 or [::]) at column 5"},
      {"tcp::443=tcp:443", "the address is missing"},
      {"tcp:0.0.0.0=tcp:443", "the port is missing at column 12"},
      {"tcp:0.0.0.0:=tcp:443", "the port is missing at column 13"},
      {"tcp:[::]=tcp:443", "the port is missing at column 9"},
      {"tcp:[::=tcp:443", "the closing ] is missing at column 5"},
      {"tcp::::443=tcp:443", "an IPv6 address needs brackets at column 5"},
      {"tcp:[0.0.0.0]:443=tcp:443", "\"0.0.0.0\" is not an IP address at column 6"},
      {"tcp:[fe80::1%eth0]:443=tcp:443", "is not an IP address"},
      {"tcp:localhost:443=tcp:443", "\"localhost\" is not an IP address at column 5"},
      {"tcp:[::ffff:10.0.0.1]:443=tcp:443", "without ::ffff:"},
      {"tcp:224.0.0.1:443=tcp:443", "cannot be listened on"},
      {"udp:255.255.255.255:443=udp:443", "cannot be listened on"},
      {"udp:[ff02::1]:443=udp:443", "cannot be listened on"},
      {"tcp:0.0.0.0:0=tcp:443", "port \"0\" is not a number from 1 to 65535 at column 13"},
      {"tcp:0.0.0.0:65536=tcp:443", "port \"65536\""},
      {"tcp:0.0.0.0:-1=tcp:443", "the port is missing"},
      {"tcp:0.0.0.0:+1=tcp:443", "port \"+1\""},
      {"tcp:0.0.0.0:1-=tcp:443", "the port is missing at column 15"},
      {"tcp:0.0.0.0:9-8=tcp:443", "the range ends before it begins at column 13"},
      {"tcp:0.0.0.0:1-2-3=tcp:443", "port \"2-3\""},
      {"tcp:0.0.0.0:1=", "the target is missing at column 15"},
      {"tcp:0.0.0.0:1=443", "the target has no kind at column 15"},
      {"tcp:0.0.0.0:1=tcp:", "the port is missing at column 19"},
      {"tcp:0.0.0.0:1=tcp:0", "port \"0\""},
      {"tcp:0.0.0.0:1=tcp:10.0.0.2:443", "port \"10.0.0.2:443\""},
      {"tcp:0.0.0.0:1=udp:1", "the target of a tcp listener is not udp at column 15"},
      {"udp:0.0.0.0:1=tcp:1", "the target of a udp listener is not tcp"},
      {"udp:0.0.0.0:1=vsock:1", "udp goes over the TAP only"},
      {"udp:0.0.0.0:1=unix:/a", "udp goes over the TAP only"},
      {"tcp:0.0.0.0:1=fd:3", "unknown kind of target \"fd\" at column 15"},
      {"tcp:0.0.0.0:10-20=tcp:65530", "the range would end at port 65540, the last is 65535"},
      {"tcp:0.0.0.0:1-2=vsock:4294967294", "the range would end at port 4294967295"},
      {"tcp:0.0.0.0:1=vsock:4294967295", "port \"4294967295\""},
      {"tcp:0.0.0.0:1-2=unix:/a", "a range cannot go to unix"},
      {"tcp:0.0.0.0:1-2=hvsock:/a:1", "a range cannot go to hvsock"},
      {"tcp:0.0.0.0:1=unix:a", "the path is not absolute"},
      {"tcp:0.0.0.0:1=hvsock:/a", "the port is missing"},
      {"tcp:0.0.0.0:1=hvsock:/a:0", "the port is not a number from 1"},
      {"tcp:0.0.0.0:1=tcp:1,proxy-v2", "\"proxy-v2\" is for streams, not for the TAP at column 21"},
      {"tcp:0.0.0.0:1=tcp:1,idle=5s", "is for streams"},
      {"tcp:0.0.0.0:1=vsock:1,", "unknown option \"\" at column 23"},
      {"tcp:0.0.0.0:1=vsock:1,proxy-v1", "unknown option \"proxy-v1\""},
      {"tcp:0.0.0.0:1=unix:/a,b", "unknown option \"b\""},
      {"tcp:0.0.0.0:1=vsock:1,proxy-v2=1", "proxy-v2 takes no value"},
      {"tcp:0.0.0.0:1=vsock:1,proxy-v2,proxy-v2", "option \"proxy-v2\" is given twice"},
      {"tcp:0.0.0.0:1=vsock:1,limit=1,limit=2", "option \"limit\" is given twice"},
      {"tcp:0.0.0.0:1=vsock:1,idle", "\"idle\" needs a value"},
      {"tcp:0.0.0.0:1=vsock:1,idle=5", "idle at column 23"},
      {"tcp:0.0.0.0:1=vsock:1,idle=0s", "idle=0 would end"},
      {"tcp:0.0.0.0:1=vsock:1,limit=0", "limit \"0\" is not a number from 1 to 1000000"},
      {"tcp:0.0.0.0:1=vsock:1,limit=1000001", "limit \"1000001\""},
      {std::string("tcp:0.0.0.0\0:1=tcp:1", 20), "is not an IP address"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.text);
    const auto publish = parse_publish(row.text);
    REQUIRE_FALSE(publish);
    const std::string& message = publish.error().message;
    CHECK_MESSAGE(message.find(row.says) != std::string::npos, message);
    const bool shows_form = message.find(" as in ") != std::string::npos ||
                            message.find("ms, s, m") != std::string::npos;
    CHECK_MESSAGE(shows_form, message);
    CHECK(message.find('\n') == std::string::npos);
  }
}

}  // namespace
