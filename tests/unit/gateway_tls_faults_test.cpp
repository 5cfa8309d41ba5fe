// SPDX-License-Identifier: Apache-2.0
// What a peer can do wrong: each has its fault, and its alert.
#include <doctest/doctest.h>

#include <set>

#include "guest/gateway/tls/mbedtls_internals.hpp"
#include "tests/unit/gateway_tls_peers.hpp"

namespace causeway::gateway::tls {

// Seals a record of any type.
struct EngineProbe {
  static test::Bytes seal(Engine& engine, int type, const test::Bytes& content) {
    test::Bytes record(content.size() + Engine::kMaxOverhead);
    engine.lend_output(record);
    engine.ssl_.MBEDTLS_PRIVATE(out_msgtype) = type;
    engine.ssl_.MBEDTLS_PRIVATE(out_msglen) = content.size();
    for (std::size_t i = 0; i < content.size(); ++i) {
      engine.ssl_.MBEDTLS_PRIVATE(out_msg)[i] = std::to_integer<unsigned char>(content[i]);
    }
    REQUIRE(mbedtls_ssl_write_record(&engine.ssl_, 0) == 0);
    record.resize(engine.ssl_.MBEDTLS_PRIVATE(out_left));
    engine.take_back();
    return record;
  }
};

namespace {

using namespace test;

constexpr std::array kVersions{Version::tls12, Version::tls13};

PairOptions of(Version version) {
  PairOptions options;
  options.client.min_version = version;
  options.client.max_version = version;
  return options;
}

Bytes record(std::uint8_t type, const Bytes& body, std::uint8_t minor = 3) {
  Bytes out{std::byte{type}, std::byte{3}, std::byte{minor},
            static_cast<std::byte>(body.size() >> 8U), static_cast<std::byte>(body.size() & 0xffU)};
  out.insert(out.end(), body.begin(), body.end());
  return out;
}

// The number of the last alert in clear, 0 if there is none.
unsigned plain_alert(const Bytes& output) {
  if (output.size() < 7 || output[output.size() - 7] != std::byte{21}) return 0;
  return std::to_integer<unsigned>(output.back());
}

TEST_CASE("every fault has a name of its own") {
  std::set<std::string_view> names;
  for (int i = 0; i < static_cast<int>(Fault::count_); ++i) {
    CHECK(!name(static_cast<Fault>(i)).empty());
    names.insert(name(static_cast<Fault>(i)));
  }
  CHECK(names.size() == static_cast<std::size_t>(Fault::count_));
}

TEST_CASE("what is no TLS is known by its first bytes") {
  for (const std::string text : {"GET / HTTP/1.1\r\n\r\n", "G", "\x80\x2e\x01\x03\x01", "SSH-2.0-x",
                                 "\x16\x01", "\x16\x04\x01\x00\x05"}) {
    Pair pair;
    pair.server->receive(bytes_of(text));
    CHECK(pair.server->status == Status::error);
    CHECK(pair.server->engine->fault() == Fault::not_tls);
    CHECK(plain_alert(pair.server->take()) == 10);
    // And stays so.
    pair.server->receive(bytes_of("more"));
    CHECK(pair.server->status == Status::error);
    CHECK(pair.server->take().empty());
  }
}

TEST_CASE("records in the handshake that are wrong") {
  struct Case {
    Bytes bytes;
    Fault fault;
    unsigned alert;
  };
  const std::vector<Case> cases{
      {bytes_of(std::string("\x16\x03\x01\x00\x00", 5)), Fault::bad_record, 50},
      {bytes_of(std::string("\x16\x03\x01\x40\x19", 5)), Fault::record_overflow, 22},
      {bytes_of(std::string("\x16\x03\x01\xff\xff", 5)), Fault::record_overflow, 22},
      {record(22, Bytes(10)), Fault::unexpected_message, 10},  // a HelloRequest, of all things
      {record(23, bytes_of("early")), Fault::unexpected_message, 10},  // data before keys
      {record(21, bytes_of(std::string("\x02\x28", 2))), Fault::alert_received, 0},
      {record(21, bytes_of(std::string("\x02\x28\x00", 3))), Fault::bad_record, 50},
      {record(22, bytes_of(std::string("\x01\x00\x00\x04\x03\x03\x00\x00", 8))),
       Fault::decode_error, 50},
  };
  for (const Case& one : cases) {
    CAPTURE(hex_of(one.bytes));
    Pair pair;
    pair.server->receive(one.bytes);
    CHECK(pair.server->status == Status::error);
    CHECK(name(pair.server->engine->fault()) == name(one.fault));
    CHECK(plain_alert(pair.server->take()) == one.alert);
  }
}

TEST_CASE("a close_notify in the middle of a handshake") {
  Pair pair;
  pair.client->process();
  pair.server->receive(pair.client->take());
  pair.server->take();
  pair.server->receive(record(21, bytes_of(std::string("\x01\x00", 2))));
  CHECK(pair.server->status ==
        (pair.server->engine->fault() == Fault::none ? Status::closed : Status::error));
  CHECK(!pair.server->engine->established());
}

TEST_CASE("an established connection: damage of every kind") {
  for (const Version version : kVersions) {
    const auto with = [&](const auto& damage, Fault fault) {
      Pair pair(of(version));
      REQUIRE(pair.shake());
      pair.client->write("before");
      run(*pair.client, *pair.server);
      pair.client->write("a message that is damaged");
      Bytes bytes = pair.client->take();
      damage(bytes);
      pair.server->receive(bytes);
      CHECK(pair.server->plain == "before");
      CHECK(pair.server->status == Status::error);
      CHECK(name(pair.server->engine->fault()) == name(fault));
      // The alert is there, sealed; the client understands it.
      const Bytes alert = pair.server->take();
      REQUIRE(!alert.empty());
      pair.client->receive(alert);
      CHECK(pair.client->engine->fault() == Fault::alert_received);
      CHECK(pair.client->engine->alert() == alert_of(fault));
      Bytes slab(100);
      CHECK(pair.server->engine->seal(bytes_of("x"), slab).status == Status::error);
      std::array<iovec, 1> pieces;
      CHECK(pair.server->engine->open(slab, pieces).status == Status::error);
    };
    with([](Bytes& b) { b.back() ^= std::byte{1}; }, Fault::bad_mac);
    with([](Bytes& b) { b[20] ^= std::byte{0x80}; }, Fault::bad_mac);
    with([](Bytes& b) { b[0] = std::byte{99}; }, Fault::bad_record);
    with([](Bytes& b) { b[1] = std::byte{9}; }, Fault::bad_record);
    with([](Bytes& b) { b[3] = std::byte{0x41}; }, Fault::record_overflow);
    with([](Bytes& b) { b[3] = b[4] = std::byte{0}; }, Fault::bad_record);
    // The same record twice; one too short to have a tag.
    with([](Bytes& b) { b = record(23, Bytes(30)); }, Fault::bad_mac);
    with([](Bytes& b) { b = record(23, Bytes(3)); }, Fault::bad_mac);
    // An alert in clear is no alert.
    with([](Bytes& b) { b = record(21, bytes_of(std::string("\x02\x28", 2))); }, Fault::bad_mac);
    if (version == Version::tls12) {
      with([](Bytes& b) { b[0] = std::byte{22}; }, Fault::bad_mac);
    }
  }
}

TEST_CASE("records that repeat or are left out do not authenticate") {
  for (const Version version : kVersions) {
    Pair pair(of(version));
    REQUIRE(pair.shake());
    pair.client->write("one");
    const Bytes one = pair.client->take();
    pair.server->receive(one);
    pair.server->receive(one);
    CHECK(pair.server->plain == "one");
    CHECK(pair.server->engine->fault() == Fault::bad_mac);
    Pair other(of(version));
    REQUIRE(other.shake());
    other.client->write("lost");
    other.client->take();
    other.client->write("found");
    run(*other.client, *other.server);
    CHECK(other.server->plain.empty());
    CHECK(other.server->engine->fault() == Fault::bad_mac);
  }
}

TEST_CASE("what was received before the damage is delivered") {
  Pair pair;
  REQUIRE(pair.shake());
  pair.client->write("good");
  Bytes bytes = pair.client->take();
  const Bytes bad = record(23, Bytes(40));
  bytes.insert(bytes.end(), bad.begin(), bad.end());
  std::array<iovec, 4> pieces;
  const auto opened = pair.server->engine->open(bytes, pieces);
  CHECK(opened.status == Status::error);
  CHECK(opened.pieces == 1);
  CHECK(opened.bytes == 4);
}

// An established pair whose client says something odd; the server's fault.
Fault odd(Version version, int type, const Bytes& content, int times = 1) {
  Pair pair(of(version));
  REQUIRE(pair.shake());
  for (int i = 0; i < times; ++i) {
    pair.server->receive(EngineProbe::seal(*pair.client->engine, type, content));
  }
  if (pair.server->engine->fault() == Fault::none) {
    pair.client->write("still here");
    run(*pair.client, *pair.server);
    CHECK(pair.server->plain == "still here");
  } else if (pair.server->engine->fault() != Fault::alert_received) {
    CHECK(!pair.server->take().empty());
  }
  return pair.server->engine->fault();
}

TEST_CASE("messages out of turn, sealed as they should be") {
  const auto handshake = [](unsigned char type, std::size_t size, std::size_t there) {
    Bytes out(4 + there);
    out[0] = std::byte{type};
    out[2] = static_cast<std::byte>(size >> 8U);
    out[3] = static_cast<std::byte>(size & 0xffU);
    return out;
  };
  const auto alert = [](unsigned char level, unsigned char number) {
    return Bytes{std::byte{level}, std::byte{number}};
  };
  for (const Version version : kVersions) {
    CAPTURE(static_cast<int>(version));
    const bool tls13 = version == Version::tls13;
    CHECK(odd(version, 21, alert(2, 40)) == Fault::alert_received);
    CHECK(odd(version, 21, alert(1, 90)) == Fault::none);  // user_canceled: a warning
    CHECK(odd(version, 21, alert(1, 90), 40) == Fault::unexpected_message);
    CHECK(odd(version, 21, Bytes(3)) == Fault::bad_record);
    CHECK(odd(version, 22, handshake(0, 0, 0)) == Fault::unexpected_message);     // HelloRequest
    CHECK(odd(version, 22, handshake(20, 12, 12)) == Fault::unexpected_message);  // Finished
    CHECK(odd(version, 22, Bytes(2)) == Fault::bad_record);
    CHECK(odd(version, 22, handshake(24, 1, 1)) ==
          (tls13 ? Fault::key_update : Fault::unexpected_message));
    // A renegotiation is refused twice, then it ends; in TLS 1.3 there is none.
    CHECK(odd(version, 22, handshake(1, 60, 60)) ==
          (tls13 ? Fault::unexpected_message : Fault::none));
    CHECK(odd(version, 22, handshake(1, 60, 60), 2) ==
          (tls13 ? Fault::unexpected_message : Fault::none));
    CHECK(odd(version, 22, handshake(1, 60, 60), 3) ==
          (tls13 ? Fault::unexpected_message : Fault::renegotiation));
    // A message that goes on in the next record; many in one.
    CHECK(odd(version, 22, handshake(1, 6000, 60)) == Fault::unexpected_message);
    Bytes many;
    for (int i = 0; i < 30; ++i) {
      const Bytes one = handshake(1, 4, 4);
      many.insert(many.end(), one.begin(), one.end());
    }
    CHECK(odd(version, 22, many) == (tls13 ? Fault::unexpected_message : Fault::renegotiation));
    // Empty records, and the longest of all.
    CHECK(odd(version, 23, {}) == Fault::none);
    CHECK(odd(version, 23, {}, 3) == Fault::none);
    CHECK(odd(version, 23, {}, 4) == Fault::bad_mac);  // mbedTLS's measure against a flood of them
    Pair pair(of(version));
    REQUIRE(pair.shake());
    const std::size_t longest = tls13 ? 16383 : 16384;  // mbedTLS's; OpenSSL's have 16384
    pair.server->receive(EngineProbe::seal(*pair.client->engine, 23, Bytes(longest)));
    CHECK(pair.server->plain.size() == longest);
  }
  CHECK(odd(Version::tls12, 20, Bytes{std::byte{1}}) == Fault::unexpected_message);
}

TEST_CASE("a flood of records that say nothing") {
  Pair pair(of(Version::tls13));
  REQUIRE(pair.shake());
  Bytes flood;
  for (int i = 0; i < 200; ++i) {
    const Bytes one = record(20, Bytes{std::byte{1}});
    flood.insert(flood.end(), one.begin(), one.end());
  }
  pair.server->receive(flood);
  CHECK(pair.server->engine->fault() == Fault::unexpected_message);
}

TEST_CASE("a handshake with one bit wrong anywhere ends, and with a fault") {
  for (const Version version : kVersions) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    constexpr unsigned kSeeds = 40;
#else
    constexpr unsigned kSeeds = 250;
#endif
    for (unsigned seed = 0; seed < kSeeds; ++seed) {
      Pair pair(of(version));
      std::mt19937 random(seed);
      pair.client->process();
      bool client_turn = true;
      const unsigned flight = random() % 4;
      for (unsigned i = 0; i < 6; ++i, client_turn = !client_turn) {
        Peer& from = client_turn ? *pair.client : *pair.server;
        Peer& to = client_turn ? *pair.server : *pair.client;
        Bytes bytes = from.take();
        if (i == flight && !bytes.empty()) {
          bytes[random() % bytes.size()] ^= static_cast<std::byte>(1U << (random() % 8));
        }
        if (!bytes.empty()) to.receive(bytes);
      }
      for (const Peer* peer : {&*pair.client, &*pair.server}) {
        const bool failed = peer->status == Status::error;
        CHECK(failed == (peer->engine->fault() != Fault::none));
        CHECK(name(peer->engine->fault()) != "out_of_memory");
      }
    }
  }
}

TEST_CASE("random bytes behind a record's header") {
  std::mt19937 random(11);
  for (int i = 0; i < 2000; ++i) {
    Bytes body(1 + random() % 600);
    for (std::byte& byte : body)
      byte = static_cast<std::byte>(random());
    if (i % 2 == 0) {  // as far as a ClientHello's length
      const std::size_t size = body.size() > 4 ? body.size() - 4 : 0;
      body.resize(size + 4);
      body[0] = std::byte{1};
      body[1] = std::byte{0};
      body[2] = static_cast<std::byte>(size >> 8U);
      body[3] = static_cast<std::byte>(size & 0xffU);
    }
    Pair pair;
    pair.server->receive(record(static_cast<std::uint8_t>(20 + random() % 4), body));
    if (pair.server->status == Status::error) {
      CHECK(pair.server->engine->fault() != Fault::none);
      CHECK(name(pair.server->engine->fault()) != "internal");
    }
  }
}

}  // namespace
}  // namespace causeway::gateway::tls
