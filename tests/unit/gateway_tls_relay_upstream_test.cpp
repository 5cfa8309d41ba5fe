// SPDX-License-Identifier: Apache-2.0
// The relay that ends TLS and speaks it to the upstream as well.
#include "gateway_tls_relay_stage.hpp"

namespace causeway::gateway::tls {
namespace {

using namespace test;

StageOptions with_upstream(Version version = Version::tls13,
                           Version upstream_version = Version::tls13) {
  StageOptions options;
  options.version = version;
  options.upstream_tls = true;
  options.upstream_version = upstream_version;
  return options;
}

TEST_CASE("TLS on both sides: data both ways, and each end first") {
  for (const Version version : {Version::tls12, Version::tls13}) {
    for (const Version upstream : {Version::tls12, Version::tls13}) {
      for (const bool client_first : {true, false}) {
        for (const bool tcp : {true, false}) {
          CAPTURE(static_cast<int>(version));
          CAPTURE(static_cast<int>(upstream));
          CAPTURE(client_first);
          CAPTURE(tcp);
          StageOptions options = with_upstream(version, upstream);
          options.tcp = tcp;
          Stage it(std::move(options));
          it.open();
          CHECK(it.relay.upstream_engine()->version() == upstream);
          CHECK(it.origin.engine().server_name() == "a.example");
          it.client.say("question");
          it.settle();
          CHECK(it.origin.heard() == "question");
          it.origin.say("answer");
          it.settle();
          CHECK(it.client.heard() == "answer");
          CHECK(it.counters.bytes_to_upstream.get() == 8);
          CHECK(it.counters.bytes_to_client.get() == 6);
          CHECK(it.holds_nothing());

          Talker& first = client_first ? it.client : it.origin;
          Talker& second = client_first ? it.origin : it.client;
          first.finish();
          it.settle();
          CHECK(second.told());
          CHECK(second.eof);
          CHECK_FALSE(it.finish);
          second.say("last words");
          second.finish();
          it.settle();
          CHECK(it.finish == Finish::orderly);
          CHECK(first.heard() == (client_first ? "answerlast words" : "questionlast words"));
          CHECK(first.told());
          CHECK_FALSE(it.relay.truncated());
          CHECK_FALSE(it.relay.upstream_truncated());
          CHECK(it.holds_nothing());
        }
      }
    }
  }
}

TEST_CASE("what goes in front of TLS to the upstream goes in clear") {
  StageOptions options = with_upstream();
  options.proxy_header = "PROXY UNKNOWN\r\n";
  Stage it(std::move(options));
  it.origin.listens = false;
  it.start();
  it.settle();
  REQUIRE(it.phase == Stage::Phase::upstream_handshake);
  std::string header(15, '\0');
  REQUIRE(::recv(it.origin.fd(), header.data(), header.size(), MSG_DONTWAIT) == 15);
  CHECK(header == "PROXY UNKNOWN\r\n");
  it.origin.listens = true;
  it.settle();
  REQUIRE(it.phase == Stage::Phase::relay);
  it.client.say("hello");
  it.settle();
  CHECK(it.origin.heard() == "hello");
}

TEST_CASE("what both say before the relay begins is carried") {
  StageOptions options = with_upstream();
  options.upstream_version = Version::tls12;  // its server may speak as soon as it is through
  Stage it(std::move(options));
  it.holds = true;  // while the upstream is dialled
  it.start();
  it.settle();
  it.client.say("early");
  it.client.finish();
  it.settle();
  CHECK(it.last_shake == Shake::done);
  it.dialled();
  bool said = false;
  for (int i = 0; i < 20 && it.phase != Stage::Phase::relay; ++i) {
    it.origin.exchange();
    if (it.origin.engine().established() && !std::exchange(said, true)) {
      it.origin.say("welcome");
      it.origin.finish();
      it.origin.exchange();
    }
    it.turn();
  }
  it.settle();
  CHECK(it.origin.heard() == "early");
  CHECK(it.client.heard() == "welcome");
  CHECK(it.client.told());
  CHECK(it.finish == Finish::orderly);
}

TEST_CASE("an upstream whose handshake fails, and how") {
  SUBCASE("another name") {
    StageOptions options = with_upstream();
    options.upstream_name = "not-in-it.example";
    Stage it(std::move(options));
    it.start();
    it.settle();
    CHECK(it.last_upstream_shake == Shake::failed);
    CHECK(it.relay.upstream_engine()->fault() == Fault::bad_certificate);
    CHECK(it.origin.engine().fault() == Fault::alert_received);
    // The client is told inside of its own TLS, which is through.
    it.relay.refuse(MBEDTLS_SSL_ALERT_MSG_INTERNAL_ERROR);
    it.settle();
    CHECK(it.client.engine().fault() == Fault::alert_received);
    CHECK(it.client.engine().alert() == MBEDTLS_SSL_ALERT_MSG_INTERNAL_ERROR);
  }
  SUBCASE("no TLS at all") {
    Stage it(with_upstream());
    it.origin.listens = false;
    it.start();
    REQUIRE(::send(it.origin.fd(), "HTTP/1.1 400 Bad Request\r\n", 26, 0) == 26);
    it.settle();
    CHECK(it.last_upstream_shake == Shake::failed);
    CHECK(it.relay.upstream_engine()->fault() == Fault::not_tls);
  }
  SUBCASE("it leaves") {
    for (const bool resets : {false, true}) {
      CAPTURE(resets);
      StageOptions options = with_upstream();
      options.tcp = true;
      Stage it(std::move(options));
      it.origin.listens = false;
      it.start();
      if (resets) {
        it.origin.reset();
      } else {
        ::shutdown(it.origin.fd(), SHUT_WR);
      }
      it.settle();
      CHECK(it.last_upstream_shake == Shake::client_left);
    }
  }
  SUBCASE("it says why, and resets") {
    StageOptions options = with_upstream();
    options.tcp = true;
    Stage it(std::move(options));
    it.origin.listens = false;
    it.start();
    for (int i = 0; i < 20 && it.phase == Stage::Phase::handshake; ++i) {
      it.client.exchange();
      it.turn(5);
    }
    REQUIRE(it.phase == Stage::Phase::upstream_handshake);
    const Bytes alert{std::byte{21}, std::byte{3}, std::byte{3}, std::byte{0},
                      std::byte{2},  std::byte{2}, std::byte{40}};
    REQUIRE(::send(it.origin.fd(), alert.data(), alert.size(), 0) == 7);
    it.origin.reset();
    it.settle();
    CHECK(it.last_upstream_shake == Shake::failed);
    CHECK(it.relay.upstream_engine()->fault() == Fault::alert_received);
    CHECK(it.relay.upstream_engine()->alert() == 40);
  }
}

TEST_CASE("an upstream that ends without a close_notify is cut, not whole") {
  for (const bool within : {false, true}) {
    for (const bool half_closed : {false, true}) {
      CAPTURE(within);
      CAPTURE(half_closed);
      Stage it(with_upstream());
      it.open();
      if (half_closed) {
        it.client.finish();
        it.settle();
      }
      it.origin.say("half an answ");
      if (within) {
        it.settle();
        it.origin.say("er, and the rest");
        Bytes rest = it.origin.take();
        rest.pop_back();
        it.origin.say_raw(rest);
      }
      it.origin.cut();
      it.settle();
      CHECK(it.finish == Finish::upstream_reset);
      CHECK(it.relay.upstream_truncated());
      CHECK_FALSE(it.relay.answered());
      CHECK(it.client.heard() == "half an answ");
      CHECK_FALSE(it.client.told());
      CHECK_FALSE(it.client.eof);
    }
  }
}

TEST_CASE("an upstream that resets is not truncated") {
  StageOptions options = with_upstream();
  options.tcp = true;
  Stage it(std::move(options));
  it.open();
  it.origin.say("before");
  it.settle();
  it.origin.reset();
  it.settle();
  CHECK(it.finish == Finish::upstream_reset);
  CHECK_FALSE(it.relay.upstream_truncated());
  CHECK(it.client.heard() == "before");
  CHECK_FALSE(it.client.told());
}

TEST_CASE("a reset that a write meets first is none of TLS's ends") {
  StageOptions options = with_upstream();
  options.tcp = true;
  Stage it(std::move(options));
  it.open();
  it.origin.say("part");
  it.origin.exchange();
  it.origin.reset();
  it.client.say("more");
  it.client.exchange();
  CHECK_FALSE(it.relay.on_client(EPOLLIN));  // takes the socket's error
  const auto finish = it.relay.on_upstream(EPOLLIN | EPOLLRDHUP | EPOLLHUP);
  it.client.exchange();
  CHECK(finish == Finish::upstream_reset);
  CHECK_FALSE(it.relay.upstream_truncated());
  CHECK(it.client.heard() == "part");
}

TEST_CASE("a record of the upstream's that does not authenticate, after one that does") {
  for (const bool upload : {false, true}) {
    CAPTURE(upload);
    Stage it(with_upstream());
    it.open();
    it.origin.say("good");
    Bytes bytes = it.origin.take();
    it.origin.say("bad");
    Bytes broken = it.origin.take();
    broken.back() ^= std::byte{1};
    bytes.insert(bytes.end(), broken.begin(), broken.end());
    it.origin.say_raw(bytes);
    if (upload) it.client.say(random_text(100'000));
    it.settle();
    CHECK(it.finish == Finish::upstream_tls_failed);
    CHECK(it.relay.upstream_engine()->fault() == Fault::bad_mac);
    CHECK(it.client.heard() == "good");
    CHECK_FALSE(it.client.told());
    CHECK(it.origin.engine().fault() == Fault::alert_received);
    CHECK(it.origin.engine().alert() == MBEDTLS_SSL_ALERT_MSG_BAD_RECORD_MAC);
  }
}

TEST_CASE("a fault of the upstream's waits for a client that is slow to take what came before") {
  Stage it(with_upstream());
  it.open();
  it.client.listens = false;
  const std::string text = random_text(3'000'000);
  it.origin.say(text);
  it.settle();
  REQUIRE(it.relay.waits_for_client_room());
  it.origin.say_raw(Bytes(5, std::byte{99}));
  it.client.say("up");
  it.settle();
  it.client.listens = true;
  it.settle();
  CHECK(it.finish == Finish::upstream_tls_failed);
  CHECK((it.client.heard() == text));
}

TEST_CASE("an upstream hears at once what is wrong, whatever the client takes") {
  for (const bool after_good : {false, true}) {
    CAPTURE(after_good);
    Stage it(with_upstream());
    it.open();
    it.client.listens = false;
    const std::string junk(1'000, 'x');
    while (::send(it.client_link.ours.get(), junk.data(), junk.size(), MSG_DONTWAIT) > 0) {
    }
    if (after_good) it.origin.say("good");
    Bytes bytes = it.origin.take();
    bytes.insert(bytes.end(), 5, std::byte{99});
    it.origin.say_raw(bytes);
    it.settle();
    CHECK(it.finish.has_value() != after_good);
    CHECK(it.origin.engine().fault() == Fault::alert_received);
    CHECK(it.origin.engine().alert() == MBEDTLS_SSL_ALERT_MSG_DECODE_ERROR);
    if (after_good) {
      // What the client says now has nowhere to go, but what it is still to get is not given up.
      it.client.say("up");
      it.settle();
      CHECK_FALSE(it.finish);
    }
  }
}

TEST_CASE("an alert of the upstream's") {
  Stage it(with_upstream());
  it.open();
  it.origin.say("so far");
  it.origin.process();
  it.settle();
  it.origin.engine().refuse(MBEDTLS_SSL_ALERT_MSG_INTERNAL_ERROR);
  it.settle();
  CHECK(it.finish == Finish::upstream_tls_failed);
  CHECK(it.relay.upstream_engine()->fault() == Fault::alert_received);
  CHECK(it.client.heard() == "so far");
}

TEST_CASE("an upstream that answers and closes in the middle of an upload") {
  StageOptions options = with_upstream();
  options.tcp = true;
  options.buffer = 16'384;
  Stage it(std::move(options));
  it.open();
  it.origin.listens = false;
  it.client.say(random_text(2'000'000));
  it.settle();
  REQUIRE(it.relay.waits_for_upstream_room());
  it.origin.say("too large");
  it.origin.finish();
  it.origin.exchange();
  it.settle_until([&] { return it.client.told(); });
  // Its answer is there; then it takes no more.
  CHECK(it.client.heard() == "too large");
  CHECK(it.client.told());
  CHECK_FALSE(it.finish);
  it.origin.reset();
  it.settle();
  CHECK(it.finish == Finish::orderly);
}

TEST_CASE("a close_notify that the upstream no longer takes breaks nothing") {
  StageOptions options = with_upstream();
  options.tcp = true;
  Stage it(std::move(options));
  it.open();
  it.client.say("question");
  it.settle();
  REQUIRE(it.origin.heard() == "question");
  it.origin.say("answer");
  it.origin.close_notify();
  it.origin.exchange();
  it.origin.reset();  // with nothing unread: what it sent is there
  it.client.finish();
  it.client.exchange();
  // The client's end is seen first: the close_notify meets the reset.
  (void)it.relay.on_client(EPOLLIN | EPOLLRDHUP);
  const auto finish = it.relay.on_upstream(EPOLLIN | EPOLLRDHUP | EPOLLHUP);
  it.client.exchange();
  CHECK(it.client.heard() == "answer");
  CHECK(it.client.told());
  CHECK(finish == Finish::orderly);
}

TEST_CASE("an upload waits while the upstream takes nothing, and nothing of it is lost") {
  for (const bool tcp : {false, true}) {
    CAPTURE(tcp);
    StageOptions options = with_upstream(Version::tls12, Version::tls13);
    options.tcp = tcp;
    options.buffer = 20'000;
    options.max_write = 5'000;
    Stage it(std::move(options));
    it.open();
    it.origin.listens = false;
    const std::string text = random_text(2'000'000);
    it.client.say(text);
    it.client.finish();
    it.settle();
    CHECK(it.relay.waits_for_upstream_room());
    if (!tcp) {
      const std::uint64_t stands = it.relay.progress();
      it.settle();
      CHECK(it.relay.progress() == stands);
    }
    it.origin.listens = true;
    it.settle_until([&] { return it.origin.told(); });
    CHECK((it.origin.heard() == text));
    CHECK(it.origin.told());
    it.origin.finish();
    it.settle();
    CHECK(it.finish == Finish::orderly);
  }
}

TEST_CASE("a client's fault ends TLS with the upstream without a close_notify") {
  Stage it(with_upstream());
  it.open();
  it.client.say("good");
  it.settle();
  it.client.say_raw(Bytes(5, std::byte{99}));
  it.settle();
  CHECK(it.finish == Finish::tls_failed);
  CHECK(it.origin.heard() == "good");
  CHECK_FALSE(it.origin.told());
  CHECK_FALSE(it.origin.eof);
  CHECK(it.client.engine().fault() == Fault::alert_received);
}

}  // namespace
}  // namespace causeway::gateway::tls
