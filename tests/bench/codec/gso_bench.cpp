// SPDX-License-Identifier: Apache-2.0
// The user-space segmentation of the fast plain wire: what a checksum, a super-frame and a batch of
// frames cost. Bytes per second count frame bytes, items are frames of 1,514 bytes.
#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

#include "proto/checksum.hpp"
#include "proto/coalesce.hpp"
#include "proto/segment.hpp"
#include "tests/unit/packets.hpp"

namespace {

using namespace causeway::proto;  // NOLINT(google-build-using-namespace)
using causeway::test::Bytes;
using causeway::test::Packet;
using causeway::test::SuperFrame;

void count_bytes(benchmark::State& state, std::size_t size) {
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(size));
}

template <Sum (*kSum)(std::span<const std::byte>)>
void sum(benchmark::State& state) {
  const Bytes data = causeway::test::pattern(static_cast<std::size_t>(state.range(0)));
  for (auto _ : state) {
    benchmark::DoNotOptimize(kSum(data));
  }
  count_bytes(state, data.size());
}
BENCHMARK(sum<sum_bytes>)->Arg(20)->Arg(40)->Arg(1500)->Arg(65'536);
BENCHMARK(sum<detail::portable_sum>)->Arg(1500)->Arg(65'536);

template <Sum (*kSum)(std::span<std::byte>, std::span<const std::byte>)>
void copy_sum(benchmark::State& state) {
  const Bytes data = causeway::test::pattern(static_cast<std::size_t>(state.range(0)));
  Bytes out(data.size());
  for (auto _ : state) {
    benchmark::DoNotOptimize(kSum(out, data));
    benchmark::ClobberMemory();
  }
  count_bytes(state, data.size());
}

// What the fused loop has to beat.
Sum copy_then_sum(std::span<std::byte> out, std::span<const std::byte> in) {
  std::memcpy(out.data(), in.data(), in.size());
  return sum_bytes(out.first(in.size()));
}
BENCHMARK(copy_sum<copy_and_sum>)->Arg(1460)->Arg(65'536);
BENCHMARK(copy_sum<detail::portable_copy_and_sum>)->Arg(1460)->Arg(65'536);
BENCHMARK(copy_sum<copy_then_sum>)->Arg(1460)->Arg(65'536);

Packet bulk_packet(bool ipv6, bool tcp) {
  Packet packet;
  packet.ipv6 = ipv6;
  packet.tcp = tcp;
  packet.tcp_options = Bytes(12, std::byte{1});
  return packet;
}

// Payload of one 1,514-byte frame.
std::uint16_t segment_size(const Packet& packet) {
  return static_cast<std::uint16_t>(1514 - packet.headers());
}

void segment(benchmark::State& state, bool ipv6, bool tcp) {
  Packet packet = bulk_packet(ipv6, tcp);
  packet.payload = causeway::test::pattern(std::size_t{44} * segment_size(packet));
  const SuperFrame super = causeway::test::super_frame(packet, segment_size(packet));
  Bytes slab(128 * 1024);
  Segmenter segmenter;
  for (auto _ : state) {
    benchmark::DoNotOptimize(segmenter.begin(super.frame, super.header));
    benchmark::DoNotOptimize(segmenter.fill(slab));
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * 44);
  count_bytes(state, std::size_t{44} * 1514);
}
BENCHMARK_CAPTURE(segment, tcp4, false, true);
BENCHMARK_CAPTURE(segment, tcp6, true, true);
BENCHMARK_CAPTURE(segment, udp4, false, false);

// One frame that needs its checksum and one that needs nothing: small ones, as ACKs and echoes.
void single(benchmark::State& state, bool needs_checksum) {
  Packet packet = bulk_packet(false, true);
  packet.payload = causeway::test::pattern(64);
  SuperFrame super = causeway::test::super_frame(packet, 0);
  super.header.gso_type = kGsoNone;
  super.header.flags = needs_checksum ? kVnetNeedsCsum : 0;
  Bytes slab(2048);
  Segmenter segmenter;
  for (auto _ : state) {
    benchmark::DoNotOptimize(segmenter.begin(super.frame, super.header));
    benchmark::DoNotOptimize(segmenter.fill(slab));
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK_CAPTURE(single, checksum, true);
BENCHMARK_CAPTURE(single, copy, false);

// 256 KiB as one read of the stream gives it: `flows` flows that take turns.
void coalesce(benchmark::State& state, bool ipv6, std::size_t flows) {
  constexpr std::size_t kFrames = 172;
  std::vector<Bytes> original;
  for (std::size_t i = 0; i < kFrames; ++i) {
    Packet packet = bulk_packet(ipv6, true);
    packet.payload = causeway::test::pattern(segment_size(packet), i);
    packet.source_port = static_cast<std::uint16_t>(1000 + i % flows);
    packet.id = static_cast<std::uint16_t>(i / flows);
    packet.sequence = static_cast<std::uint32_t>(i / flows * segment_size(packet));
    original.push_back(causeway::test::build(packet));
  }
  Bytes storage;
  for (const Bytes& frame : original) {
    causeway::test::put(storage, frame);
  }
  Coalescer coalescer(false);
  std::size_t pieces = 0;
  const auto sink = [&](const VnetHeader&, std::span<const iovec> write) {
    pieces += write.size();
  };
  for (auto _ : state) {
    // Merging edits the headers of the heads: put them back. A few per cent.
    for (std::size_t i = 0; i < kFrames; ++i) {
      std::memcpy(storage.data() + i * 1514, original[i].data(), 96);
    }
    for (std::size_t i = 0; i < kFrames; ++i) {
      coalescer.add(std::span{storage}.subspan(i * 1514, 1514), sink);
    }
    coalescer.flush(sink);
  }
  benchmark::DoNotOptimize(pieces);
  state.counters["frames_per_write"] = static_cast<double>(coalescer.counters().frames) /
                                       static_cast<double>(coalescer.counters().writes);
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(kFrames));
  count_bytes(state, kFrames * 1514);
}
BENCHMARK_CAPTURE(coalesce, tcp4_1_flow, false, 1);
BENCHMARK_CAPTURE(coalesce, tcp6_1_flow, true, 1);
BENCHMARK_CAPTURE(coalesce, tcp4_8_flows, false, 8);
BENCHMARK_CAPTURE(coalesce, tcp4_16_flows, false, 16);

void coalesce_acks(benchmark::State& state) {
  Packet packet = bulk_packet(false, true);
  Bytes ack = causeway::test::build(packet);
  Coalescer coalescer(false);
  std::size_t writes = 0;
  const auto sink = [&](const VnetHeader&, std::span<const iovec>) { ++writes; };
  for (auto _ : state) {
    coalescer.add(ack, sink);
  }
  benchmark::DoNotOptimize(writes);
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(coalesce_acks);

}  // namespace

BENCHMARK_MAIN();
