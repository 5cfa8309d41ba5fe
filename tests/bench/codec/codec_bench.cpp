// SPDX-License-Identifier: Apache-2.0
// Theory of operation: the cost of the record codec alone.
//
// encode: a slab is filled with records as a lane does it (frame_room, commit) and emptied again.
// decode: a reader's storage holds whole records; each pass hands all of them out. Decoding is in
// place and leaves the bytes as they were, so the storage is filled once, outside the timed loop.
// The payload is not copied in these two, because the lane does not copy it either: the kernel
// does. decode_fed adds that copy (256 KiB a "read", cut anywhere), for the cost as a lane sees it.
//
// Goals: 20 million 64 B records a second, 10 GB/s at 64 KiB, no allocation. Every run counts
// calls of operator new; one call in a timed loop fails the benchmark and the program.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "proto/record.hpp"
#include "tests/bench/codec/counting_new.hpp"

namespace causeway::proto {
namespace {

bool failed = false;  // any benchmark failed: the exit status

constexpr std::size_t kSlab = 256 * 1024;
constexpr std::size_t kRead = 256 * 1024;

// Counts over one benchmark's timed loop and tells the library about records and bytes.
class Meter {
 public:
  explicit Meter(benchmark::State& state) : state_(state), before_(bench::allocations_so_far()) {}

  void finish(std::uint64_t records, std::uint64_t bytes) {
    const std::uint64_t made = bench::allocations_so_far() - before_;
    state_.SetItemsProcessed(static_cast<std::int64_t>(records));
    state_.SetBytesProcessed(static_cast<std::int64_t>(bytes));
    state_.counters["allocations"] = static_cast<double>(made);
    if (made != 0) {
      failed = true;
      state_.SkipWithError("the codec allocated");
    }
  }

 private:
  benchmark::State& state_;
  std::uint64_t before_;
};

// Appends records of `size` bytes of payload until the next does not fit; returns how many.
std::uint64_t fill(RecordWriter& writer, std::size_t size, bool offload) {
  constexpr OffloadHeader kHeader{.flags = 1, .gso_type = 1, .gso_size = 1448};
  std::uint64_t records = 0;
  while (writer.frame_room().size() >= size) {
    if (offload) {
      writer.commit_super_frame(kHeader, size);
    } else {
      writer.commit_frame(size);
    }
    ++records;
  }
  return records;
}

void encode(benchmark::State& state, Wire wire, bool offload) {
  const auto size = static_cast<std::size_t>(state.range(0));
  std::vector<std::byte> slab(kSlab);
  RecordWriter writer(slab, wire, offload);
  std::uint64_t records = 0;
  Meter meter(state);
  for (auto _ : state) {
    records += fill(writer, size, offload);
    benchmark::DoNotOptimize(writer.pending().data());
    benchmark::ClobberMemory();
    writer.consume(writer.pending().size());
  }
  meter.finish(records, records * size);
}

// One stream of whole records.
std::vector<std::byte> make_stream(std::size_t size, Wire wire, bool offload, std::size_t room) {
  std::vector<std::byte> stream(room);
  RecordWriter writer(stream, wire, offload);
  fill(writer, size, offload);
  stream.resize(writer.pending().size());
  return stream;
}

// Hands out everything that is there; counts records, and reads a byte of each.
bool drain(RecordReader& reader, std::uint64_t& records, std::byte& mixed) {
  Record record;
  RecordStatus status;
  while ((status = reader.next(record)) == RecordStatus::ok) {
    mixed ^= record.payload.front();
    ++records;
  }
  return status == RecordStatus::need_more;
}

void decode(benchmark::State& state, Wire wire, bool offload) {
  const auto size = static_cast<std::size_t>(state.range(0));
  const auto stream = make_stream(size, wire, offload, kSlab);
  std::vector<std::byte> storage(kReaderStorage);
  RecordReader reader(storage, wire);
  std::copy(stream.begin(), stream.end(), reader.writable().begin());
  std::uint64_t records = 0;
  std::byte mixed{0};
  bool good = true;
  Meter meter(state);
  for (auto _ : state) {
    benchmark::DoNotOptimize(reader.writable().data());
    benchmark::ClobberMemory();
    reader.commit(stream.size());
    good = drain(reader, records, mixed) && good;
  }
  benchmark::DoNotOptimize(mixed);
  meter.finish(records, records * size);
  if (!good || !reader.between_records()) {
    failed = true;
    state.SkipWithError("the stream did not decode to its end");
  }
}

void decode_fed(benchmark::State& state, Wire wire, bool offload) {
  const auto size = static_cast<std::size_t>(state.range(0));
  const auto stream = make_stream(size, wire, offload, 8 * kSlab);
  std::vector<std::byte> storage(kReaderStorage);
  RecordReader reader(storage, wire);
  std::uint64_t records = 0;
  std::byte mixed{0};
  bool good = true;
  Meter meter(state);
  for (auto _ : state) {
    for (std::span<const std::byte> rest(stream); !rest.empty();) {
      const auto room = reader.writable();
      const std::size_t count = std::min({kRead, room.size(), rest.size()});
      std::memcpy(room.data(), rest.data(), count);
      reader.commit(count);
      rest = rest.subspan(count);
      good = drain(reader, records, mixed) && good;
    }
  }
  benchmark::DoNotOptimize(mixed);
  meter.finish(records, records * size);
  if (!good || !reader.between_records()) {
    failed = true;
    state.SkipWithError("the stream did not decode to its end");
  }
}

void sizes(benchmark::internal::Benchmark* bench) {
  bench->Arg(64)->Arg(1514)->Arg(64 * 1024);
}

BENCHMARK_CAPTURE(encode, plain, Wire::plain, false)->Apply(sizes);
BENCHMARK_CAPTURE(encode, native_super, Wire::native, true)->Apply(sizes);
BENCHMARK_CAPTURE(decode, plain, Wire::plain, false)->Apply(sizes);
BENCHMARK_CAPTURE(decode, native_super, Wire::native, true)->Apply(sizes);
BENCHMARK_CAPTURE(decode_fed, plain, Wire::plain, false)->Apply(sizes);
BENCHMARK_CAPTURE(decode_fed, native_super, Wire::native, true)->Apply(sizes);

}  // namespace
}  // namespace causeway::proto

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return causeway::proto::failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
