// SPDX-License-Identifier: Apache-2.0
// The relay that ends TLS: handshakes in pieces, refusals, and ends of every kind. Each with an
// upstream in clear and one with TLS, where that may differ.
#include "gateway_tls_relay_stage.hpp"

namespace causeway::gateway::tls {
namespace {

using namespace test;

StageOptions with(bool upstream_tls, bool tcp = false, int buffer = 0) {
  StageOptions options;
  options.upstream_tls = upstream_tls;
  options.tcp = tcp;
  options.buffer = buffer;
  return options;
}

// ---- the handshake ----

TEST_CASE("a flight that does not fit into the client's socket waits for room") {
  for (const Version version : {Version::tls12, Version::tls13}) {
    CAPTURE(static_cast<int>(version));
    StageOptions options = with(false);
    options.version = version;
    options.certificate = "rsa";
    Stage it(std::move(options));
    const std::string junk(1'000, 'x');
    std::size_t full = 0;
    while (::send(it.client_link.ours.get(), junk.data(), junk.size(), MSG_DONTWAIT) > 0)
      full += junk.size();
    it.client.listens = false;
    it.start();
    it.settle();
    CHECK(it.last_shake == Shake::wait);
    CHECK(it.relay.waits_for_client_room());
    std::string got(full, '\0');
    for (std::size_t at = 0; at < full;) {
      const auto rest = std::span(got).subspan(at);
      const ssize_t count = ::recv(it.client.fd(), rest.data(), rest.size(), 0);
      REQUIRE(count > 0);
      at += static_cast<std::size_t>(count);
    }
    it.client.listens = true;
    it.settle();
    REQUIRE(it.phase == Stage::Phase::relay);
    it.client.say("through");
    it.settle();
    CHECK(it.origin.heard() == "through");
  }
}

TEST_CASE("a handshake a byte at a time, with its buffer shrunk in between") {
  for (const Version version : {Version::tls12, Version::tls13}) {
    StageOptions options = with(true);
    options.version = options.upstream_version = version;
    options.sniffed = 7;
    Stage it(std::move(options));
    it.start();
    for (int i = 0; i < 60'000 && it.phase != Stage::Phase::relay; ++i) {
      it.client.exchange(1);
      it.origin.exchange(1);
      it.turn();
      it.relay.shrink();
    }
    REQUIRE(it.phase == Stage::Phase::relay);
    it.settle();
    CHECK(it.holds_nothing());
  }
}

TEST_CASE("a client that says in its handshake what is wrong, and resets") {
  StageOptions options = with(false, true);
  Stage it(std::move(options));
  it.client.listens = false;
  it.start();
  it.client.exchange();
  const Bytes alert{std::byte{21}, std::byte{3}, std::byte{3}, std::byte{0},
                    std::byte{2},  std::byte{2}, std::byte{48}};
  // Read all there is, so that the close is by our choice a reset.
  std::string flight(100'000, '\0');
  for (int i = 0; i < 10 && it.turn(5); ++i) {
  }
  (void)::recv(it.client.fd(), flight.data(), flight.size(), MSG_DONTWAIT);
  REQUIRE(::send(it.client.fd(), alert.data(), alert.size(), 0) == 7);
  it.client.reset();
  it.settle();
  CHECK(it.phase == Stage::Phase::over);
  CHECK(it.last_shake == Shake::failed);
  CHECK(it.relay.engine().fault() == Fault::alert_received);
  CHECK(it.relay.engine().alert() == 48);
}

TEST_CASE("a handshake that never ends does not keep the worker") {
  Stage it(with(false));
  it.client.listens = false;
  it.start();
  it.turn();
  for (const int fd : {it.client_link.ours.get(), it.client.fd()}) {
    const int size = 8 << 20;
    if (::setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof size) != 0) {
      MESSAGE("skipped: socket buffers of this size need CAP_NET_ADMIN");
      return;
    }
  }
  // ChangeCipherSpec, which TLS 1.3 ignores.
  Bytes flood;
  for (int i = 0; i < 400'000; ++i) {
    for (const unsigned byte : {20U, 3U, 3U, 0U, 1U, 1U})
      flood.push_back(static_cast<std::byte>(byte));
  }
  it.client.say_raw(flood);
  it.client.exchange();
  const std::uint64_t before = it.relay.progress();
  it.turn();
  CHECK(it.last_shake == Shake::failed);
  CHECK(it.relay.progress() - before < 1'000'000);
}

TEST_CASE("a client that leaves in its handshake") {
  for (const bool resets : {false, true}) {
    CAPTURE(resets);
    Stage it(with(false, true));
    it.client.listens = false;
    it.start();
    if (resets) {
      it.client.reset();
    } else {
      it.client.cut();
    }
    it.settle();
    CHECK(it.last_shake == Shake::client_left);
  }
}

TEST_CASE("a refusal: in clear before there are keys, sealed after, behind what is being sent") {
  SUBCASE("before") {
    Stage it(with(false));
    it.holds = true;
    it.start();
    it.relay.refuse(MBEDTLS_SSL_ALERT_MSG_HANDSHAKE_FAILURE);
    CHECK_FALSE(it.relay.waits_for_client_room());
    it.client.exchange();
    CHECK(it.client.engine().fault() == Fault::alert_received);
    CHECK(it.client.engine().alert() == MBEDTLS_SSL_ALERT_MSG_HANDSHAKE_FAILURE);
  }
  SUBCASE("after the handshake") {
    Stage it(with(false));
    it.holds = true;
    it.start();
    it.settle();
    REQUIRE(it.last_shake == Shake::done);
    it.relay.refuse(MBEDTLS_SSL_ALERT_MSG_INTERNAL_ERROR);
    it.client.exchange();
    CHECK(it.client.engine().fault() == Fault::alert_received);
    CHECK(it.client.engine().alert() == MBEDTLS_SSL_ALERT_MSG_INTERNAL_ERROR);
  }
  for (const bool by_fault : {false, true}) {
    // A record is out in part: the alert must not stand in the middle of it.
    Stage it(with(false));
    it.open();
    it.client.listens = false;
    const std::string text = random_text(2'000'000);
    it.origin.say(text);
    it.settle();
    REQUIRE(it.relay.waits_for_client_room());
    if (by_fault) {
      it.client.say_raw(Bytes(5, std::byte{99}));
      it.client.exchange();
      CHECK(it.relay.on_client(EPOLLIN) == Finish::tls_failed);
    }
    it.client.listens = true;
    bool more = true;
    for (int i = 0; i < 1'000 && (more || it.client.exchange()); ++i) {
      it.relay.refuse(MBEDTLS_SSL_ALERT_MSG_INTERNAL_ERROR);
      more = it.relay.waits_for_client_room();
      it.client.exchange();
    }
    CHECK(it.client.engine().fault() == Fault::alert_received);
    CHECK(it.client.engine().alert() ==
          (by_fault ? MBEDTLS_SSL_ALERT_MSG_DECODE_ERROR : MBEDTLS_SSL_ALERT_MSG_INTERNAL_ERROR));
    CHECK_FALSE(it.client.heard().empty());
    CHECK((text.compare(0, it.client.heard().size(), it.client.heard()) == 0));
  }
}

// ---- ends ----

TEST_CASE("a client that says close_notify but sends no FIN still gets its answer, and an end") {
  for (const bool upstream_tls : {false, true}) {
    CAPTURE(upstream_tls);
    Stage it(with(upstream_tls, true));
    it.open();
    it.client.say("all I have");
    it.client.close_notify();
    it.settle();
    CHECK(it.origin.heard() == "all I have");
    CHECK(it.origin.told());
    // What follows is not looked at.
    it.client.say_raw(Bytes(300'000, std::byte{23}));
    it.settle();
    CHECK_FALSE(it.finish);
    it.origin.say("answer");
    it.origin.finish();
    it.settle();
    CHECK(it.finish == Finish::orderly);
    CHECK(it.client.heard() == "answer");
    CHECK(it.client.told());
    CHECK(it.client.eof);  // though the owner has not closed it
    CHECK_FALSE(it.relay.truncated());
    CHECK_FALSE(it.relay.client_ended());
    CHECK(it.relay.answered());
  }
}

TEST_CASE("an upstream that ends first, and a client that never says close_notify") {
  for (const bool upstream_tls : {false, true}) {
    for (const bool resets : {false, true}) {
      CAPTURE(upstream_tls);
      CAPTURE(resets);
      Stage it(with(upstream_tls, true));
      it.open();
      it.origin.say("answer");
      it.origin.finish();
      it.settle();
      CHECK(it.client.heard() == "answer");
      CHECK(it.client.told());
      CHECK(it.client.eof);
      CHECK_FALSE(it.finish);
      CHECK(it.holds_nothing());
      if (resets) {
        it.client.reset();
      } else {
        it.client.cut();
      }
      it.settle();
      CHECK(it.finish == (resets ? Finish::client_reset : Finish::orderly));
      CHECK_FALSE(it.relay.truncated());  // nothing was cut: the answer was whole
    }
  }
}

TEST_CASE("a FIN without close_notify between records is an end, within one it is a reset") {
  for (const bool upstream_tls : {false, true}) {
    for (const bool within : {false, true}) {
      CAPTURE(upstream_tls);
      CAPTURE(within);
      Stage it(with(upstream_tls));
      it.open();
      it.client.say("first");
      it.settle();
      if (within) {
        it.client.say("second");
        Bytes bytes = it.client.take();
        bytes.pop_back();
        it.client.say_raw(bytes);
      }
      it.client.cut();
      it.settle();
      CHECK(it.origin.heard() == "first");
      CHECK(it.relay.truncated());
      if (within) {
        CHECK(it.finish == Finish::client_reset);
        CHECK_FALSE(it.origin.told());
        CHECK_FALSE(it.origin.eof);
      } else {
        CHECK_FALSE(it.finish);
        CHECK(it.origin.told());
        it.origin.say("answer");
        it.origin.finish();
        it.settle();
        CHECK(it.finish == Finish::orderly);
        CHECK(it.client.heard() == "answer");
      }
    }
  }
}

TEST_CASE("a reset of either side while the other is slow") {
  for (const bool upstream_tls : {false, true}) {
    for (const bool of_client : {false, true}) {
      CAPTURE(upstream_tls);
      CAPTURE(of_client);
      Stage it(with(upstream_tls, true, 20'000));
      it.open();
      Talker& gone = of_client ? it.client : it.origin;
      Talker& slow = of_client ? it.origin : it.client;
      slow.listens = false;
      gone.say(random_text(1'000'000));
      slow.say("other way");
      it.settle();
      REQUIRE((of_client ? it.relay.waits_for_upstream_room() : it.relay.waits_for_client_room()));
      gone.reset();
      it.settle();
      slow.listens = true;
      it.settle_until([&] { return it.finish.has_value(); });
      CHECK(it.finish == (of_client ? Finish::client_reset : Finish::upstream_reset));
      CHECK_FALSE(slow.told());
    }
  }
}

TEST_CASE("an alert of the client's, and a flood of records that say nothing") {
  for (const bool upstream_tls : {false, true}) {
    Stage alert(with(upstream_tls));
    alert.open();
    alert.client.say("so far");
    alert.settle();
    alert.client.engine().refuse(MBEDTLS_SSL_ALERT_MSG_INTERNAL_ERROR);
    alert.settle();
    CHECK(alert.finish == Finish::tls_failed);
    CHECK(alert.relay.engine().fault() == Fault::alert_received);
    CHECK(alert.origin.heard() == "so far");
    CHECK_FALSE(alert.origin.told());

    Stage flood(with(upstream_tls));
    flood.open();
    Bytes nothing;
    for (int i = 0; i < 200; ++i) {
      for (const unsigned byte : {20U, 3U, 3U, 0U, 1U, 1U})
        nothing.push_back(static_cast<std::byte>(byte));
    }
    flood.client.say_raw(nothing);
    flood.settle();
    CHECK(flood.finish == Finish::tls_failed);
    CHECK(flood.relay.engine().fault() == Fault::unexpected_message);
  }
  Stage flood(with(true));
  flood.open();
  Bytes nothing;
  for (int i = 0; i < 200; ++i) {
    for (const unsigned byte : {20U, 3U, 3U, 0U, 1U, 1U})
      nothing.push_back(static_cast<std::byte>(byte));
  }
  flood.origin.say_raw(nothing);
  flood.settle();
  CHECK(flood.finish == Finish::upstream_tls_failed);
}

TEST_CASE("a client's fault while the upstream takes nothing: what came before still goes first") {
  for (const bool upstream_tls : {false, true}) {
    CAPTURE(upstream_tls);
    Stage it(with(upstream_tls, false, 20'000));
    it.open();
    it.origin.listens = false;
    const std::string text = random_text(600'000);
    it.client.say(text);
    it.client.say_raw(Bytes(5, std::byte{99}));
    it.settle();
    it.origin.say("meanwhile");  // reaches nobody: TLS with the client is over
    it.settle();
    CHECK_FALSE(it.finish);
    CHECK_FALSE(it.client.eof);
    it.origin.listens = true;
    it.settle();
    CHECK(it.finish == Finish::tls_failed);
    CHECK((it.origin.heard() == text));
    CHECK_FALSE(it.origin.told());
  }
}

}  // namespace
}  // namespace causeway::gateway::tls
