// SPDX-License-Identifier: Apache-2.0
// The relay that ends TLS: what it holds, records in pieces, turns, and peers that are slow.
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

// ---- buffers ----

TEST_CASE("a record that dribbles in arrives whole, and holds no more than its bytes for long") {
  for (const bool upstream_tls : {false, true}) {
    CAPTURE(upstream_tls);
    Stage it(with(upstream_tls));
    it.open();
    CHECK(it.holds_nothing());
    const std::string text = random_text(Engine::kMaxPlaintext);
    it.client.say(text + "and more");
    it.origin.say(text + "and more");
    const Bytes up = it.client.take();
    const Bytes down = upstream_tls ? it.origin.take() : Bytes();
    for (std::size_t i = 0; i < std::max(up.size(), down.size()); ++i) {
      if (i < up.size()) it.client.say_raw({up[i]});
      if (i < down.size()) it.origin.say_raw({down[i]});
      it.client.exchange();
      it.origin.exchange();
      it.turn();
      if (i % 1'000 == 7) {
        it.relay.shrink();
        CHECK(it.holds_nothing());  // of the pool's
      }
    }
    it.settle();
    CHECK((it.origin.heard() == text + "and more"));
    CHECK((it.client.heard() == text + "and more"));
    CHECK(it.holds_nothing());
  }
}

TEST_CASE("what was shrunk grows again when more comes") {
  for (const bool upstream_tls : {false, true}) {
    CAPTURE(upstream_tls);
    Stage it(with(upstream_tls));
    it.open();
    const std::string text = random_text(1'000'000);
    it.client.say(text);
    const Bytes bytes = it.client.take();
    it.client.say_raw(Bytes(bytes.begin(), bytes.begin() + 12'000));
    it.settle();
    CHECK(it.large_buffers_left() == relay::RelayPool::kMaxLargeBuffers - 1);
    it.relay.shrink();
    CHECK(it.holds_nothing());
    // Another connection's worth of memory is not kept from a bulk transfer: with all of the rest
    // at hand and the upstream slow, it holds a large one.
    it.origin.listens = false;
    it.client.say_raw(Bytes(bytes.begin() + 12'000, bytes.end()));
    it.settle();
    CHECK_FALSE(it.holds_nothing());
    it.origin.listens = true;
    it.settle();
    CHECK((it.origin.heard() == text));
    CHECK(it.holds_nothing());
  }
}

TEST_CASE("with no large buffer left it goes on with small ones") {
  for (const bool upstream_tls : {false, true}) {
    CAPTURE(upstream_tls);
    Stage it(with(upstream_tls));
    it.open();
    std::vector<relay::RelayBuffer> all;
    do {
      all.push_back(it.pool.take_buffer(true));
    } while (all.back().size == it.pool.large_buffer());
    const std::string text = random_text(900'000);
    it.client.say(text);
    it.origin.say(text);
    it.settle();
    CHECK((it.origin.heard() == text));
    CHECK((it.client.heard() == text));
    // In the middle of a transfer it takes a large one as soon as there is one again.
    it.origin.listens = false;
    it.client.say(text);
    it.settle();
    for (auto& buffer : all)
      it.pool.give_back(std::move(buffer));
    CHECK(it.holds_nothing());
    it.origin.listens = true;
    it.origin.exchange();
    it.origin.listens = false;
    it.settle();
    CHECK_FALSE(it.holds_nothing());
    it.origin.listens = true;
    it.settle();
    CHECK(it.origin.heard().size() == 2 * text.size());
    CHECK(it.holds_nothing());
  }
}

// ---- turns ----

TEST_CASE("a direction that could go on for long lets others have a turn") {
  for (const bool upstream_tls : {false, true}) {
    for (const bool up : {false, true}) {
      CAPTURE(upstream_tls);
      CAPTURE(up);
      Stage it(with(upstream_tls));
      for (const int fd : {it.client_link.ours.get(), it.client.fd(), it.upstream_link.ours.get(),
                           it.origin.fd()}) {
        const int size = 8 << 20;
        for (const int which : {SO_SNDBUFFORCE, SO_RCVBUFFORCE}) {
          if (::setsockopt(fd, SOL_SOCKET, which, &size, sizeof size) != 0) {
            MESSAGE("skipped: socket buffers of this size need CAP_NET_ADMIN");
            return;
          }
        }
      }
      it.open();
      const std::string text = random_text(4'000'000);
      Talker& from = up ? it.client : it.origin;
      from.say(text);
      from.exchange();
      REQUIRE(from.unsent() == 0);
      const std::uint64_t begin = it.relay.progress();
      CHECK_FALSE((up ? it.relay.on_client(EPOLLIN) : it.relay.on_upstream(EPOLLIN)).has_value());
      CHECK(it.relay.wants_turn());
      const std::uint64_t moved = it.relay.progress() - begin;
      CHECK(moved >= std::size_t{1} << 20);
      CHECK(moved < std::size_t{2} << 20);
      it.settle();
      CHECK(it.turns > 2);
      CHECK(((up ? it.origin : it.client).heard() == text));
    }
  }
}

TEST_CASE("both directions at once, each peer slow by turns, over TCP with small buffers") {
  for (const bool upstream_tls : {false, true}) {
    for (unsigned seed = 1; seed <= 4; ++seed) {
      CAPTURE(upstream_tls);
      CAPTURE(seed);
      StageOptions options = with(upstream_tls, true, seed % 2 == 0 ? 9'000 : 60'000);
      options.version = seed % 2 == 0 ? Version::tls12 : Version::tls13;
      options.upstream_version = seed < 3 ? Version::tls12 : Version::tls13;
      options.certificate = seed < 3 ? "rsa" : "ecdsa";
      options.max_write = seed == 4 ? 3'000 : 256'000;
      Stage it(std::move(options));
      it.open();
      std::mt19937 random(seed);
      const std::string up = random_text(1'500'000, seed);
      const std::string down = random_text(1'700'000, seed + 100);
      std::size_t up_at = 0;
      std::size_t down_at = 0;
      for (int i = 0; i < 4'000 && !it.finish; ++i) {
        const auto part = [&](Talker& talker, const std::string& text, std::size_t& at) {
          if (at == text.size() || talker.unsent() > 100'000) return;
          const std::size_t size = std::min<std::size_t>(random() % 40'000, text.size() - at);
          if (size > 0) talker.say(text.substr(at, size));
          at += size;
          if (at == text.size()) talker.finish();
        };
        part(it.client, up, up_at);
        part(it.origin, down, down_at);
        if (random() % 8 == 0) it.client.listens = !it.client.listens;
        if (random() % 8 == 0) it.origin.listens = !it.origin.listens;
        if (random() % 2 == 0) it.client.exchange(1 + random() % 50'000);
        if (random() % 2 == 0) it.origin.exchange(1 + random() % 50'000);
        if (random() % 3 != 0) it.turn();
        if (random() % 16 == 0) it.relay.shrink();
      }
      it.client.listens = it.origin.listens = true;
      if (up_at < up.size()) it.client.say(up.substr(up_at));
      if (up_at < up.size()) it.client.finish();
      if (down_at < down.size()) it.origin.say(down.substr(down_at));
      if (down_at < down.size()) it.origin.finish();
      it.settle_until([&] {
        return it.finish && it.client.told() && it.origin.heard().size() == up.size() &&
               (!upstream_tls || it.origin.told());
      });
      CHECK((it.origin.heard() == up));
      CHECK((it.client.heard() == down));
      CHECK(it.client.told());
      if (upstream_tls) CHECK(it.origin.told());  // in clear the owner's close may be what tells
      CHECK(it.finish == Finish::orderly);
      CHECK(it.holds_nothing());
    }
  }
}

}  // namespace
}  // namespace causeway::gateway::tls
