// SPDX-License-Identifier: Apache-2.0
#include "proto/coalesce.hpp"

#include <doctest/doctest.h>

#include <deque>
#include <functional>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "proto/segment.hpp"
#include "tests/unit/packets.hpp"

namespace causeway::proto {
namespace {

using test::Bytes;
using test::Packet;
using test::SuperFrame;

struct Write {
  VnetHeader header;
  Bytes frame;
  std::size_t pieces = 0;  // of the frame
};

// A batch: frames that stay where they are, and the writes that came of them.
class Batch {
 public:
  explicit Batch(bool uso = false) : coalescer_(uso) {}

  void add(Bytes frame) {
    frames_.push_back(std::move(frame));
    coalescer_.add(frames_.back(), sink());
  }

  std::vector<Write> flush() {
    coalescer_.flush(sink());
    frames_.clear();
    return std::exchange(writes_, {});
  }

  [[nodiscard]] const std::vector<Write>& so_far() const { return writes_; }
  [[nodiscard]] const CoalesceCounters& counters() const { return coalescer_.counters(); }

 private:
  std::function<void(const VnetHeader&, std::span<const iovec>)> sink() {
    return [this](const VnetHeader& header, std::span<const iovec> pieces) {
      REQUIRE(pieces.size() >= 2);
      CHECK(pieces[0].iov_base == &header);
      CHECK(pieces[0].iov_len == 10);
      Write write{.header = header, .frame = {}, .pieces = pieces.size() - 1};
      for (const iovec& piece : pieces.subspan(1)) {
        CHECK(piece.iov_len > 0);
        const auto* bytes = static_cast<const std::byte*>(piece.iov_base);
        write.frame.insert(write.frame.end(), bytes, bytes + piece.iov_len);
      }
      writes_.push_back(std::move(write));
    };
  }

  Coalescer coalescer_;
  std::deque<Bytes> frames_;
  std::vector<Write> writes_;
};

std::vector<Write> coalesce(const std::vector<Bytes>& frames, bool uso = false) {
  Batch batch(uso);
  for (const Bytes& frame : frames) {
    batch.add(frame);
  }
  return batch.flush();
}

// Two packets of one flow, the second right behind the first.
struct Pair {
  Packet first;
  Packet second;
};

Pair pair_of(bool ipv6 = false, bool tcp = true) {
  Pair pair;
  pair.first.ipv6 = ipv6;
  pair.first.tcp = tcp;
  pair.first.tcp_options = test::pattern(12, 3);
  pair.first.payload = test::pattern(1000, 1);
  pair.second = pair.first;
  pair.second.payload = test::pattern(1000, 2);
  pair.second.sequence += 1000;
  pair.second.id = static_cast<std::uint16_t>(pair.second.id + 1);
  return pair;
}

// How many writes become of the pair after `change`.
std::size_t writes_after(const std::function<void(Pair&)>& change, bool ipv6 = false,
                         bool tcp = true) {
  Pair pair = pair_of(ipv6, tcp);
  change(pair);
  const std::vector<Bytes> frames = {test::build(pair.first), test::build(pair.second)};
  const std::vector<Write> writes = coalesce(frames, true);
  if (writes.size() == 2) {  // then both are as they were, in their order
    for (std::size_t i = 0; i < 2; ++i) {
      CHECK(writes[i].frame == frames[i]);
      CHECK(writes[i].header == VnetHeader{});
    }
  }
  return writes.size();
}

TEST_CASE("coalesce: what the segmenter cut becomes the same super-frame again") {
  std::mt19937 random(51);
  for (int round = 0; round < 300; ++round) {
    Packet packet;
    packet.ipv6 = random() % 2 != 0;
    packet.tcp = random() % 4 != 0;
    packet.vlan = random() % 2 != 0;
    packet.dont_fragment = random() % 2 != 0;
    packet.id = static_cast<std::uint16_t>(random());
    packet.sequence = static_cast<std::uint32_t>(random());
    packet.flags = random() % 2 != 0 ? 0x19 : 0x10;
    packet.tcp_options = test::pattern(random() % 11 * 4, random());
    const auto gso_size = static_cast<std::uint16_t>(600 + random() % 900);
    const std::size_t most = packet.tcp ? 64'000 : std::size_t{gso_size} * 64;
    packet.payload = test::pattern(gso_size + 1 + random() % (most - gso_size - 1), random());
    const SuperFrame super = test::super_frame(packet, gso_size);
    if (super.frame.size() > 65'535) {
      continue;
    }
    Segmenter segmenter;
    REQUIRE(segmenter.begin(super.frame, super.header) == SegmentStatus::ok);
    Bytes slab(100'000);
    const auto filled = segmenter.fill(slab);
    REQUIRE(segmenter.done());
    Batch batch(true);
    for (std::size_t at = 0; at < filled.bytes; at += 4 + test::get32(slab, at)) {
      const auto frame = std::span{slab}.subspan(at + 4, test::get32(slab, at));
      batch.add(Bytes(frame.begin(), frame.end()));
    }
    const std::vector<Write> writes = batch.flush();
    REQUIRE(writes.size() == 1);
    CHECK(writes[0].frame == [&] {
      Bytes expected = super.frame;
      if (!packet.ipv6) {  // as build() left it: right for the whole packet
        REQUIRE(test::slow_sum(std::span{expected}.subspan(packet.l3(), 20)) == 0xffff);
      }
      return expected;
    }());
    CHECK(writes[0].header == super.header);
    CHECK(writes[0].pieces == filled.records);
  }
}

TEST_CASE("coalesce: rules that both IP versions share") {
  for (const bool ipv6 : {false, true}) {
    CAPTURE(ipv6);
    const auto writes = [&](const std::function<void(Pair&)>& change) {
      return writes_after(change, ipv6);
    };
    CHECK(writes([](Pair&) {}) == 1);
    CHECK(writes([](Pair& p) { p.second.payload.resize(1); }) == 1);
    CHECK(writes([](Pair& p) { p.second.payload.resize(1001); }) == 2);
    CHECK(writes([](Pair& p) { p.second.payload.clear(); }) == 2);
    CHECK(writes([](Pair& p) { p.first.payload.clear(); }) == 2);
    CHECK(writes([](Pair& p) { ++p.second.sequence; }) == 2);
    CHECK(writes([](Pair& p) { --p.second.sequence; }) == 2);
    CHECK(writes([](Pair& p) { ++p.second.acknowledgement; }) == 2);
    CHECK(writes([](Pair& p) { ++p.second.window; }) == 2);
    CHECK(writes([](Pair& p) { p.second.tcp_options[11] ^= std::byte{1}; }) == 2);
    CHECK(writes([](Pair& p) { p.second.tcp_options.resize(8); }) == 2);
    CHECK(writes([](Pair& p) { ++p.second.ttl; }) == 2);
    CHECK(writes([](Pair& p) { p.second.tos = 3; }) == 2);
    CHECK(writes([](Pair& p) { p.second.tos = 0x40; }) == 2);
    CHECK(writes([](Pair& p) { p.second.vlan = true; }) == 2);
    CHECK(writes([](Pair& p) { p.first.vlan = p.second.vlan = true; }) == 1);
    CHECK(writes([](Pair& p) { ++p.second.source_port; }) == 2);
    CHECK(writes([](Pair& p) { ++p.second.destination_port; }) == 2);
    CHECK(writes([](Pair& p) { ++p.second.last_address_byte; }) == 2);
    CHECK(writes([](Pair& p) { p.second.tcp = false; }) == 2);
  }
  CHECK(writes_after([](Pair& p) { p.second.ipv6 = true; }) == 2);
}

TEST_CASE("coalesce: which flags the first and the second frame may have") {
  for (unsigned first = 0; first < 256; ++first) {
    // Equal ones, and those with one or two bits of difference.
    for (unsigned bits = 0; bits < 65; ++bits) {
      const unsigned second = first ^ (bits == 64 ? 0U : 1U << bits / 8 | 1U << bits % 8);
      // The first brings none of FIN, SYN, RST, PSH, URG and CWR, the second none but FIN and PSH
      // of them; ACK and ECE are equal.
      const bool merges = (first & 0xaf) == 0 && ((first ^ second) & 0xf6) == 0;
      const std::size_t writes = writes_after([&](Pair& p) {
        p.first.flags = static_cast<std::uint8_t>(first);
        p.second.flags = static_cast<std::uint8_t>(second);
        p.first.payload.resize(32);
        p.second.payload.resize(32);
        p.second.sequence = p.first.sequence + 32;
      });
      REQUIRE(writes == (merges ? 1 : 2));
    }
  }
}

TEST_CASE("coalesce: FIN and PSH reach the super-frame and end it") {
  Pair pair = pair_of();
  pair.second.flags = 0x19;
  Batch batch;
  batch.add(test::build(pair.first));
  batch.add(test::build(pair.second));
  REQUIRE(batch.so_far().size() == 1);  // without a flush
  CHECK(test::get8(batch.so_far()[0].frame, pair.first.l4() + 13) == 0x19);
}

TEST_CASE("coalesce: IPv4 identifications") {
  const auto writes = [](bool dont_fragment, std::vector<unsigned> ids) {
    Packet packet = pair_of().first;
    packet.dont_fragment = dont_fragment;
    std::vector<Bytes> frames;
    for (const unsigned id : ids) {
      packet.id = static_cast<std::uint16_t>(id);
      frames.push_back(test::build(packet));
      packet.sequence += 1000;
    }
    return coalesce(frames).size();
  };
  CHECK(writes(false, {9, 10, 11}) == 1);
  CHECK(writes(true, {9, 10, 11}) == 1);
  CHECK(writes(true, {0xffff, 0, 1}) == 1);
  CHECK(writes(true, {0, 0, 0}) == 1);
  CHECK(writes(false, {0, 0, 0}) == 3);
  CHECK(writes(true, {0, 0, 1}) == 2);
  CHECK(writes(true, {0, 1, 1}) == 2);
  CHECK(writes(true, {5, 4, 3}) == 3);
}

TEST_CASE("coalesce: IPv4 options, differing DF and fragments do not merge") {
  CHECK(writes_after([](Pair& p) {
          p.first.ip_options = p.second.ip_options = Bytes(4);  // add nothing to the sum
        }) == 2);
  CHECK(writes_after([](Pair& p) { p.second.dont_fragment = false; }) == 2);
  Pair pair = pair_of();
  for (const unsigned bits : {0x2000U, 0x0001U, 0x6000U}) {
    Bytes second = test::build(pair.second);
    test::set16(second, 20, bits);
    CHECK(coalesce({test::build(pair.first), second}).size() == 2);
  }
}

TEST_CASE("coalesce: MAC addresses and flow labels are compared") {
  for (std::size_t at = 0; at < 12; ++at) {
    const Pair pair = pair_of();
    Bytes second = test::build(pair.second);
    second[at] ^= std::byte{1};
    CHECK(coalesce({test::build(pair.first), second}).size() == 2);
  }
  const Pair pair = pair_of(true);
  Bytes second = test::build(pair.second);
  second[17] ^= std::byte{1};
  CHECK(coalesce({test::build(pair.first), second}).size() == 2);
}

TEST_CASE("coalesce: one flipped bit anywhere in either frame and nothing merges") {
  for (const bool ipv6 : {false, true}) {
    Pair pair = pair_of(ipv6);
    pair.first.payload.resize(70);
    pair.second.payload.resize(70);
    pair.second.sequence = pair.first.sequence + 70;
    const std::vector<Bytes> good = {test::build(pair.first), test::build(pair.second)};
    REQUIRE(coalesce(good).size() == 1);
    for (std::size_t which = 0; which < 2; ++which) {
      for (std::size_t bit = 0; bit < good[0].size() * 8; ++bit) {
        std::vector<Bytes> frames = good;
        frames[which][bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
        const std::vector<Write> writes = coalesce(frames);
        REQUIRE(writes.size() == 2);
        REQUIRE(writes[0].header == VnetHeader{});
        REQUIRE(writes[1].header == VnetHeader{});
        // A flip in an address or a port makes two flows of them, without an order between them.
        const std::size_t first = writes[0].frame == frames[0] ? 0 : 1;
        REQUIRE(writes[first].frame == frames[0]);
        REQUIRE(writes[1 - first].frame == frames[1]);
      }
    }
  }
}

TEST_CASE("coalesce: a wrong checksum is counted and passed on in its place") {
  Packet packet = pair_of().first;
  Batch batch;
  std::vector<Bytes> frames;
  for (int i = 0; i < 5; ++i) {
    Bytes frame = test::build(packet);
    if (i == 2) {
      frame.back() ^= std::byte{1};
    }
    frames.push_back(frame);
    batch.add(frame);
    packet.sequence += 1000;
    ++packet.id;
  }
  const std::vector<Write> writes = batch.flush();
  REQUIRE(writes.size() == 3);
  CHECK(writes[0].pieces == 2);
  CHECK(writes[1].frame == frames[2]);
  CHECK(writes[2].pieces == 2);
  CHECK(batch.counters().bad_checksum == 1);
  CHECK(batch.counters().frames == 5);
  CHECK(batch.counters().writes == 3);
}

TEST_CASE("coalesce: UDP merges only where the TAP takes it, and only with a checksum") {
  for (const bool ipv6 : {false, true}) {
    Pair pair = pair_of(ipv6, false);
    const std::vector<Bytes> frames = {test::build(pair.first), test::build(pair.second)};
    CHECK(coalesce(frames, false).size() == 2);
    CHECK(coalesce(frames, true).size() == 1);
    std::vector<Bytes> without = frames;
    for (Bytes& frame : without) {
      test::set16(frame, pair.first.checksum_at(), 0);
    }
    CHECK(coalesce(without, true).size() == 2);
    // And a frame without one whose sum happens to be right without it.
    Pair lucky = pair;
    test::set16(lucky.first.payload, 0, 0);
    const unsigned word = test::get16(test::build(lucky.first), lucky.first.checksum_at());
    test::set16(lucky.first.payload, 0, word);
    lucky.second.payload = lucky.first.payload;
    std::vector<Bytes> zero = {test::build(lucky.first), test::build(lucky.second)};
    CHECK(coalesce(zero, true).size() == 1);
    for (Bytes& frame : zero) {
      REQUIRE(test::get16(frame, lucky.first.checksum_at()) == 0xffff);
      test::set16(frame, lucky.first.checksum_at(), 0);
    }
    CHECK(coalesce(zero, true).size() == 2);
    CHECK(writes_after([](Pair& p) { p.second.payload.resize(999); }, ipv6, false) == 1);
    CHECK(writes_after([](Pair& p) { p.second.payload.resize(1001); }, ipv6, false) == 2);
    CHECK(writes_after([](Pair& p) { p.second.payload.clear(); }, ipv6, false) == 2);
  }
}

TEST_CASE("coalesce: a shorter frame ends its group, and so do the limits") {
  const auto count = [](bool tcp, std::size_t size, std::size_t frames) {
    Packet packet;
    packet.tcp = tcp;
    packet.payload = test::pattern(size);
    std::vector<Bytes> all;
    for (std::size_t i = 0; i < frames; ++i) {
      all.push_back(test::build(packet));
      packet.sequence += static_cast<std::uint32_t>(size);
      ++packet.id;
    }
    std::vector<std::size_t> pieces;
    for (const Write& write : coalesce(all, true)) {
      pieces.push_back(write.pieces);
      CHECK(write.frame.size() <= 14 + 65'535);
    }
    return pieces;
  };
  using Sizes = std::vector<std::size_t>;
  CHECK(count(true, 100, 300) == Sizes{128, 128, 44});
  CHECK(count(false, 100, 150) == Sizes{64, 64, 22});
  CHECK(count(true, 1460, 50) == Sizes{44, 6});
  CHECK(count(true, 32'747, 3) == Sizes{2, 1});  // 40 + 2 * 32,747 = 65,534
  CHECK(count(true, 32'748, 3) == Sizes{1, 1, 1});
  Pair pair = pair_of();
  pair.second.payload.resize(500);
  Packet third = pair.second;
  third.sequence += 500;
  ++third.id;
  const auto writes =
      coalesce({test::build(pair.first), test::build(pair.second), test::build(third)});
  CHECK(writes.size() == 2);
}

TEST_CASE("coalesce: interleaved flows, and the oldest goes when there are too many") {
  Batch batch;
  const auto frame = [](unsigned flow, unsigned round) {
    Packet packet = pair_of().first;
    packet.source_port = static_cast<std::uint16_t>(1000 + flow);
    packet.sequence += round * 1000;
    packet.id = static_cast<std::uint16_t>(round);
    return test::build(packet);
  };
  for (unsigned round = 0; round < 5; ++round) {
    for (unsigned flow = 0; flow < Coalescer::kGroups; ++flow) {
      batch.add(frame(flow, round));
    }
  }
  CHECK(batch.so_far().empty());
  batch.add(frame(100, 0));
  REQUIRE(batch.so_far().size() == 1);
  CHECK(test::get16(batch.so_far()[0].frame, 34) == 1000);
  const std::vector<Write> writes = batch.flush();
  REQUIRE(writes.size() == 9);
  for (unsigned i = 0; i < 8; ++i) {
    CHECK(test::get16(writes[i].frame, 34) == 1000 + i);
    CHECK(writes[i].pieces == 5);
  }
  CHECK(writes[8].header == VnetHeader{});
  CHECK(batch.flush().empty());
}

TEST_CASE("coalesce: other protocols pass at once, a frame of an unknown flow closes all groups") {
  Batch batch;
  batch.add(test::build(pair_of().first));
  Bytes arp = test::pattern(42);
  test::set16(arp, 12, 0x0806);
  batch.add(arp);
  CHECK(batch.so_far().size() == 1);
  Bytes icmp = test::build(pair_of().second);
  icmp[23] = std::byte{1};
  batch.add(icmp);
  CHECK(batch.so_far().size() == 2);
  CHECK(batch.so_far()[1].frame == icmp);
  Bytes fragment = test::build(pair_of().second);
  test::set16(fragment, 20, 0x00b9);
  batch.add(fragment);
  REQUIRE(batch.so_far().size() == 4);
  CHECK(batch.so_far()[2].frame == test::build(pair_of().first));
  CHECK(batch.so_far()[3].frame == fragment);
}

TEST_CASE("coalesce: frames cut and frames padded anywhere pass unchanged") {
  for (const bool ipv6 : {false, true}) {
    const Pair pair = pair_of(ipv6);
    const Bytes whole = test::build(pair.second);
    for (std::size_t size = 1; size < whole.size(); ++size) {
      Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
      const auto writes = coalesce({test::build(pair.first), cut});
      REQUIRE(writes.size() == 2);
      REQUIRE((writes[0].frame == cut || writes[1].frame == cut));
    }
    Bytes padded = whole;
    padded.emplace_back();
    const auto writes = coalesce({test::build(pair.first), padded});
    REQUIRE(writes.size() == 2);
    CHECK(writes[1].frame == padded);
  }
}

// Any mixture of flows, with every kind of disturbance: cut again by the segmenter, what came out
// is what went in, flow by flow and in order.
TEST_CASE("coalesce: random traffic keeps every byte and the order of each flow") {
  std::mt19937 random(52);
  const auto one_in = [&](unsigned n) { return random() % n == 0; };
  std::size_t merged = 0;
  Bytes slab(200'000);
  for (int round = 0; round < 60; ++round) {
    std::vector<Packet> flows(12);
    for (std::size_t i = 0; i < flows.size(); ++i) {
      flows[i].ipv6 = i % 2 != 0;
      flows[i].tcp = i % 3 != 0;
      flows[i].vlan = i % 5 == 0;
      flows[i].source_port = static_cast<std::uint16_t>(5000 + i);
      flows[i].tcp_options = test::pattern(i % 4 * 4, i);
      flows[i].dont_fragment = i % 4 != 0;
    }
    std::map<unsigned, std::vector<Bytes>> sent;
    std::map<unsigned, std::vector<Bytes>> received;
    Batch batch(true);
    for (int i = 0; i < 200; ++i) {
      Packet& flow = flows[random() % (1 + random() % flows.size())];
      flow.payload = test::pattern(one_in(8) ? random() % 600 : 600, random());
      flow.flags = one_in(10) ? static_cast<std::uint8_t>(random()) : 0x10;
      flow.sequence += one_in(20) ? static_cast<std::uint32_t>(random()) : 0;
      flow.acknowledgement += one_in(15) ? 1 : 0;
      flow.ttl = one_in(30) ? 3 : 64;
      Bytes frame = test::build(flow);
      if (one_in(20)) {
        frame[flow.l4() + 4 + random() % (frame.size() - flow.l4() - 4)] ^= std::byte{4};
      }
      sent[flow.source_port].push_back(frame);
      batch.add(frame);
      flow.sequence += static_cast<std::uint32_t>(flow.payload.size());
      ++flow.id;
    }
    for (const Write& write : batch.flush()) {
      const unsigned l3 = test::get16(write.frame, 12) == 0x8100 ? 18 : 14;
      const unsigned l4 = l3 + (test::get8(write.frame, l3) >> 4 == 6 ? 40 : 20);
      std::vector<Bytes>& out = received[test::get16(write.frame, l4)];
      if (write.header == VnetHeader{}) {
        out.push_back(write.frame);
        continue;
      }
      ++merged;
      Segmenter segmenter;
      REQUIRE(segmenter.begin(write.frame, write.header) == SegmentStatus::ok);
      const auto filled = segmenter.fill(slab);
      REQUIRE(segmenter.done());
      CHECK(filled.records == write.pieces);
      for (std::size_t at = 0; at < filled.bytes; at += 4 + test::get32(slab, at)) {
        const auto frame = std::span{slab}.subspan(at + 4, test::get32(slab, at));
        out.emplace_back(frame.begin(), frame.end());
      }
    }
    REQUIRE(sent == received);
  }
  CHECK(merged > 500);
}

}  // namespace
}  // namespace causeway::proto
