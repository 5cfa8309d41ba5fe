// SPDX-License-Identifier: Apache-2.0
// The broker over its channel, in a network namespace of the test's own: what it opens, and that it
// opens nothing else.
#include "host/broker.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "host/broker_client.hpp"
#include "tests/unit/network_namespace.hpp"

namespace causeway::host {
namespace {

struct Directory {
  std::filesystem::path path;
  Directory() {
    std::string name = "/tmp/causeway-broker-XXXXXX";
    path = ::mkdtemp(name.data());
  }
  ~Directory() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

HostConfig config_in(const Directory& directory, const std::string& text) {
  ConfigParser parser;
  const auto outcome = parser.table().evaluate_text(text, "test.json");
  REQUIRE_MESSAGE(!outcome.exit_code, outcome.err);
  HostConfig config = std::move(parser).finish();
  config.state_directory = directory.path;
  return config;
}

// Runs `body` with a client of a broker that has `text` as its configuration.
template <class Body>
void with_broker(const std::string& text, Body&& body) {
  test::in_network_namespace([&] {
    const Directory directory;
    auto channel = Channel::pair();
    REQUIRE(channel);
    Broker broker(std::move(channel->second), config_in(directory, text), {});
    // Threads inherit the namespace.
    std::thread thread([&] { broker.run(); });
    {
      BrokerClient client(std::move(channel->first));
      body(client);
      client.goodbye();
    }
    thread.join();
  });
}

bool interface_exists(const std::string& name) {
  return ::if_nametoindex(name.c_str()) != 0;
}

constexpr const char* kUnknown = R"({
  "listen": "vsock:any:5000",
  "guests": [{"cid": 9, "tap": "named0"}],
  "accept_unknown": {"limit": 2, "tap_prefix": "u", "network4": "10.9.0.0/24",
                     "network6": "fd09::/64"}
})";

}  // namespace

TEST_CASE("the broker opens the guests of the configuration and no others" *
          doctest::skip(!test::can_make_networks())) {
  with_broker(R"({"guests": [{"name": "one", "tap": "one0", "listen": "unix:/tmp/x"}]})",
              [](BrokerClient& client) {
                const auto other = client.open("two");
                REQUIRE_FALSE(other);
                CHECK(other.error().message.find("'two'") != std::string::npos);
                CHECK_FALSE(client.open(""));
                CHECK_FALSE(client.listen());
                CHECK_FALSE(client.admin());
                CHECK_FALSE(client.open_unknown(20));
                CHECK_FALSE(client.publish("one", 0));
                CHECK_FALSE(interface_exists("one0"));
              });
}

TEST_CASE("unknown guests are numbered, and a number comes back" *
          doctest::skip(!test::can_make_networks())) {
  with_broker(kUnknown, [](BrokerClient& client) {
    auto first = client.open_unknown(20);
    REQUIRE_MESSAGE(first, (first ? "" : first.error().message));
    CHECK(first->number == 1);
    CHECK(first->tap.name() == "u1");
    auto second = client.open_unknown(21);
    REQUIRE(second);
    CHECK(second->number == 2);
    const auto third = client.open_unknown(22);
    REQUIRE_FALSE(third);
    CHECK(third.error().message.find("limit") != std::string::npos);
    client.release("u1");
    first->tap.close();
    CHECK_FALSE(interface_exists("u1"));
    const auto again = client.open_unknown(22);
    REQUIRE(again);
    CHECK(again->number == 1);
  });
}

TEST_CASE("a named guest is opened again in its own place" *
          doctest::skip(!test::can_make_networks())) {
  with_broker(kUnknown, [](BrokerClient& client) {
    for (int turn = 0; turn < 3; ++turn) {
      auto opened = client.open("named0");
      REQUIRE(opened);
      CHECK(interface_exists("named0"));
      CHECK(opened->number == 0);
      client.release("named0");
      opened->tap.close();
      CHECK_FALSE(interface_exists("named0"));
    }
  });
}

TEST_CASE("what is no request ends the broker") {
  for (const char* text : {"", "{", "[]", "null", "{\"op\": 5}", "{\"op\": \"nonsense\"}",
                           "{\"op\": \"open\", \"name\": 7}", "{\"op\": \"unknown\", \"cid\": -1}",
                           "{\"op\": \"publish\", \"name\": \"x\", \"index\": 1e99}"}) {
    const Directory directory;
    auto channel = Channel::pair();
    REQUIRE(channel);
    Broker broker(std::move(channel->second),
                  config_in(directory, R"({"listen": "unix:/tmp/x", "tap": "cwt0"})"), {});
    std::thread thread([&] { broker.run(); });
    (void)channel->first.send(text);
    if (const auto answer = channel->first.receive(std::chrono::seconds{5}); answer && *answer) {
      // Answered as an error, or not at all; never with a descriptor.
      CHECK((*answer)->text.find("error") != std::string::npos);
      CHECK((*answer)->fds.empty());
    }
    channel->first.close();
    thread.join();
  }
}

}  // namespace causeway::host
