// SPDX-License-Identifier: Apache-2.0
#include "proto/record.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "proto/bytes.hpp"
#include "tests/unit/vectors.hpp"

namespace causeway::proto {
namespace {

using test::ByteVector;

struct Decoded {
  struct Item {
    RecordType type;
    OffloadHeader offload;
    ByteVector payload;
    friend bool operator==(const Item&, const Item&) = default;
  };
  std::vector<Item> records;
  std::string end;
  friend bool operator==(const Decoded&, const Decoded&) = default;
};

const char* name_of(RecordStatus status) {
  switch (status) {
    case RecordStatus::too_short:
      return "too_short";
    case RecordStatus::too_long:
      return "too_long";
    case RecordStatus::unknown_type:
      return "unknown_type";
    default:
      return "?";
  }
}

// Reads a whole stream; `chunk` gives the size of the next piece.
Decoded read_all(std::span<const std::byte> stream, Wire wire, std::uint32_t max_frame,
                 const std::function<std::size_t()>& chunk, std::size_t storage_size = 0) {
  ByteVector storage(storage_size != 0 ? storage_size : 2 * (std::size_t{max_frame} + 5000));
  RecordReader reader(storage, wire, max_frame);
  Decoded decoded;
  std::size_t at = 0;
  for (;;) {
    Record record;
    RecordStatus status = RecordStatus::ok;
    while ((status = reader.next(record)) == RecordStatus::ok) {
      decoded.records.push_back(
          {record.type, record.type == RecordType::super_frame ? record.offload : OffloadHeader{},
           ByteVector(record.payload.begin(), record.payload.end())});
    }
    if (status != RecordStatus::need_more) {
      decoded.end = name_of(status);
      return decoded;
    }
    if (at == stream.size()) {
      decoded.end = reader.between_records() ? "clean" : "truncated";
      return decoded;
    }
    const auto room = reader.writable();
    REQUIRE_FALSE(room.empty());
    const std::size_t size = std::min({chunk(), room.size(), stream.size() - at});
    std::copy_n(stream.begin() + static_cast<std::ptrdiff_t>(at), size, room.begin());
    reader.commit(size);
    at += size;
  }
}

constexpr std::size_t kAll = 1 << 30;

Decoded read_all(std::span<const std::byte> stream, Wire wire,
                 std::uint32_t max_frame = kMaxFrame) {
  return read_all(stream, wire, max_frame, [] { return kAll; });
}

RecordType type_of(const std::string& name) {
  return name == "frame"         ? RecordType::frame
         : name == "super_frame" ? RecordType::super_frame
                                 : RecordType::control;
}

void check_vectors(const char* file, Wire wire) {
  const auto vectors = test::load_vectors(file);
  REQUIRE(vectors.size() > 10);
  std::mt19937 random(7);
  for (const auto& vector : vectors) {
    CAPTURE(vector.at("name").get<std::string>());
    const ByteVector stream = test::join(vector.at("stream"));
    const auto max_frame = vector.value("max_frame", kMaxFrame);
    Decoded expected{.records = {}, .end = vector.at("end")};
    for (const auto& record : vector.at("records")) {
      OffloadHeader offload;
      if (record.contains("offload")) {
        const auto& o = record.at("offload");
        offload = {o.at("flags"), o.at("gso_type"), o.at("gso_size"), o.at("csum_start"),
                   o.at("csum_offset")};
      }
      expected.records.push_back(
          {type_of(record.at("type")), offload, test::join(record.at("payload"))});
    }
    CHECK(read_all(stream, wire, max_frame) == expected);
    CHECK(read_all(stream, wire, max_frame, [] { return 1; }) == expected);
    for (int round = 0; round < 3; ++round) {
      CHECK(read_all(stream, wire, max_frame,
                     [&random] { return test::pick<std::size_t>(random, 1, 5000); }) == expected);
    }
  }
}

ByteVector header(std::uint32_t value) {
  ByteVector bytes(kRecordHeaderSize);
  store_be32(bytes, 0, value);
  return bytes;
}

TEST_CASE("record: the vectors of the plain wire, whole, byte by byte and in random pieces") {
  check_vectors("plain", Wire::plain);
}

TEST_CASE("record: the vectors of the native wire, whole, byte by byte and in random pieces") {
  check_vectors("native", Wire::native);
}

TEST_CASE("record: plain, every length around the bounds is judged by its header alone") {
  for (const std::uint32_t max_frame : {590U, 1518U, 1522U, 65'550U}) {
    for (const std::uint32_t length :
         {0U, 1U, 13U, 14U, 15U, max_frame - 1, max_frame, max_frame + 1, 0x10000U, 0xffffffU,
          0x1000000U, 0x7fffffffU, 0x80000000U, 0xffffffffU}) {
      CAPTURE(max_frame);
      CAPTURE(length);
      const auto decoded = read_all(header(length), Wire::plain, max_frame);
      CHECK(decoded.end == (length < 14          ? "too_short"
                            : length > max_frame ? "too_long"
                                                 : "truncated"));
    }
  }
}

TEST_CASE("record: native, every type with every length around its bounds") {
  for (std::uint32_t type = 0; type < 256; ++type) {
    const bool super_frame = type == 1;
    const bool control = type == 2;
    const bool skipped = type >= 0x80;
    const std::uint32_t lowest = skipped ? 0 : control ? 1 : super_frame ? 22 : 14;
    const std::uint32_t highest = skipped       ? 0xffffff
                                  : control     ? 4096
                                  : super_frame ? kMaxFrame + 8
                                                : kMaxFrame;
    for (const std::uint32_t length : {0U, 1U, 13U, 14U, 21U, 22U, 4096U, 4097U, 65'550U, 65'551U,
                                       65'558U, 65'559U, 0xffffffU}) {
      CAPTURE(type);
      CAPTURE(length);
      const auto decoded = read_all(header(type << 24 | length), Wire::native);
      if (type > 2 && !skipped) {
        CHECK(decoded.end == "unknown_type");
      } else if (length < lowest) {
        CHECK(decoded.end == "too_short");
      } else if (length > highest) {
        CHECK(decoded.end == "too_long");
      } else {
        CHECK(decoded.end == (skipped && length == 0 ? "clean" : "truncated"));
      }
      CHECK(decoded.records.empty());
    }
  }
}

TEST_CASE("record: a stream cut at any byte ends clean between records only") {
  ByteVector stream;
  std::vector<std::size_t> boundaries = {0};
  for (const std::uint32_t record : {14U, 0x01000020U, 0x02000001U, 0x80000005U, 60U}) {
    const auto head = header(record);
    stream.insert(stream.end(), head.begin(), head.end());
    stream.resize(stream.size() + (record & 0xffffff), std::byte{0x11});
    boundaries.push_back(stream.size());
  }
  for (std::size_t cut = 0; cut <= stream.size(); ++cut) {
    const bool clean = std::find(boundaries.begin(), boundaries.end(), cut) != boundaries.end();
    for (const std::size_t chunk : {std::size_t{1}, std::size_t{7}, kAll}) {
      CAPTURE(cut);
      const auto decoded = read_all(std::span(stream).first(cut), Wire::native, kMaxFrame,
                                    [chunk] { return chunk; });
      CHECK(decoded.end == (clean ? "clean" : "truncated"));
    }
  }
}

TEST_CASE("record: a final status stays, and names the header for the log") {
  ByteVector storage(4096);
  RecordReader reader(storage, Wire::plain, 1518);
  const auto bad = header(0xdeadbeef);
  std::copy(bad.begin(), bad.end(), reader.writable().begin());
  reader.commit(bad.size());
  Record record;
  CHECK(reader.next(record) == RecordStatus::too_long);
  CHECK(reader.last_header() == 0xdeadbeef);
  CHECK(reader.next(record) == RecordStatus::too_long);
  CHECK_FALSE(reader.between_records());
}

TEST_CASE("record: skipped records of 16 MiB pass through a small storage") {
  ByteVector storage(2 * (590 + 12));
  RecordReader reader(storage, Wire::native, 590);
  Record record;
  for (int round = 0; round < 2; ++round) {
    std::size_t left = kRecordHeaderSize + 0xffffff;
    auto head = header(0xffffffff);
    while (left > 0) {
      const auto room = reader.writable();
      REQUIRE_FALSE(room.empty());
      const std::size_t size = std::min(room.size(), left);
      std::fill_n(room.begin(), size, std::byte{0x55});
      std::copy(head.begin(), head.end(), room.begin());
      head.clear();
      reader.commit(size);
      left -= size;
      REQUIRE(reader.next(record) == RecordStatus::need_more);
      REQUIRE(reader.between_records() == (left == 0));
    }
  }
  const auto room = reader.writable();
  const auto head = header(14);
  std::copy(head.begin(), head.end(), room.begin());
  std::fill_n(room.begin() + 4, 14, std::byte{0x77});
  reader.commit(18);
  REQUIRE(reader.next(record) == RecordStatus::ok);
  CHECK(record.payload.size() == 14);
  CHECK(record.payload[13] == std::byte{0x77});
}

TEST_CASE("record: the reader never leaves its storage and never runs out of room in it") {
  // Guard bytes on both sides of the smallest allowed storage, and records of the longest size.
  constexpr std::uint32_t kMax = 1518;
  constexpr std::size_t kSize = 2 * (kMax + kRecordHeaderSize + kOffloadHeaderSize);
  ByteVector guarded(kSize + 32, std::byte{0xa5});
  const auto storage = std::span<std::byte>(guarded).subspan(16, kSize);
  RecordReader reader(storage, Wire::native, kMax);
  std::mt19937 random(11);
  ByteVector stream;
  for (int i = 0; i < 300; ++i) {
    const bool longest = random() % 2 == 0;
    const auto length = longest ? kMax + 8U : test::pick<std::uint32_t>(random, 22, kMax);
    const auto head = header(0x01000000U | length);
    stream.insert(stream.end(), head.begin(), head.end());
    stream.resize(stream.size() + length, std::byte{0x42});
  }
  std::size_t at = 0;
  std::size_t records = 0;
  Record record;
  while (at < stream.size()) {
    const auto room = reader.writable();
    REQUIRE_FALSE(room.empty());
    REQUIRE(room.data() >= guarded.data() + 16);
    REQUIRE(room.data() + room.size() <= guarded.data() + 16 + kSize);
    const std::size_t size =
        std::min({room.size(), stream.size() - at, test::pick<std::size_t>(random, 1, 4000)});
    std::copy_n(stream.begin() + static_cast<std::ptrdiff_t>(at), size, room.begin());
    reader.commit(size);
    at += size;
    while (reader.next(record) == RecordStatus::ok) {
      ++records;
    }
  }
  CHECK(records == 300);
  CHECK(reader.between_records());
  CHECK(std::all_of(guarded.begin(), guarded.begin() + 16,
                    [](std::byte byte) { return byte == std::byte{0xa5}; }));
  CHECK(std::all_of(guarded.end() - 16, guarded.end(),
                    [](std::byte byte) { return byte == std::byte{0xa5}; }));
}

TEST_CASE("record: the offload header, field by field") {
  ByteVector bytes(kOffloadHeaderSize);
  const OffloadHeader header_in{1, 4, 0x0102, 0x0304, 0x0506};
  store_offload_header(bytes, header_in);
  CHECK(test::hex(bytes) == "0104010203040506");
  CHECK(load_offload_header(bytes) == header_in);
}

TEST_CASE("record: the writer's slab, up to its last byte") {
  ByteVector slab(kRecordHeaderSize + 20);
  RecordWriter writer(slab, Wire::plain, false);
  CHECK(writer.empty());
  REQUIRE(writer.frame_room().size() == 20);
  writer.commit_frame(20);
  CHECK(writer.pending().size() == slab.size());
  CHECK(writer.frame_room().empty());
  writer.consume(23);
  CHECK_FALSE(writer.empty());
  CHECK(writer.frame_room().empty());
  writer.consume(1);
  CHECK(writer.empty());
  CHECK(writer.frame_room().size() == 20);

  // Room for a header and nothing behind it is no room.
  ByteVector tight(kRecordHeaderSize);
  CHECK(RecordWriter(tight, Wire::plain, false).frame_room().empty());
  ByteVector headers(kRecordHeaderSize + kOffloadHeaderSize);
  CHECK(RecordWriter(headers, Wire::native, true).frame_room().empty());
  headers.push_back(std::byte{0});
  CHECK(RecordWriter(headers, Wire::native, true).frame_room().size() == 1);
  CHECK(RecordWriter({}, Wire::plain, false).frame_room().empty());
}

TEST_CASE("record: a control record goes in whole or not at all") {
  ByteVector slab(kRecordHeaderSize + 9);
  RecordWriter writer(slab, Wire::native, true);
  CHECK_FALSE(writer.append_control(ByteVector(10)));
  CHECK(writer.empty());
  CHECK(writer.append_control(ByteVector(9, std::byte{0x31})));
  CHECK(test::hex(writer.pending()) == "02000009313131313131313131");
  CHECK_FALSE(writer.append_control(ByteVector(1)));
  CHECK(writer.pending().size() == 13);

  ByteVector large(8192);
  RecordWriter bounded(large, Wire::native, false);
  CHECK_FALSE(bounded.append_control(ByteVector(kMaxControl + 1)));
  CHECK(bounded.append_control(ByteVector(kMaxControl)));
}

TEST_CASE("record: what a reader would refuse is not written as a control record") {
  ByteVector slab(64);
  RecordWriter plain(slab, Wire::plain, false);
  CHECK_FALSE(plain.append_control(ByteVector(9)));
  CHECK(plain.empty());
  RecordWriter native(slab, Wire::native, false);
  CHECK_FALSE(native.append_control({}));
  CHECK(native.empty());
}

TEST_CASE("record: writer to reader, random records, slabs, sends and receives") {
  for (unsigned seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const Wire wire = seed % 3 == 0 ? Wire::plain : Wire::native;
    const bool offload = seed % 3 == 2;
    ByteVector slab(test::pick<std::size_t>(random, 70'000, 300'000));
    RecordWriter writer(slab, wire, offload);
    Decoded expected{.records = {}, .end = "clean"};
    ByteVector stream;
    const auto send = [&] {
      const auto piece =
          writer.pending().first(test::pick<std::size_t>(random, 0, writer.pending().size()));
      stream.insert(stream.end(), piece.begin(), piece.end());
      writer.consume(piece.size());
    };
    while (expected.records.size() < 200) {
      const bool large = random() % 8 == 0;
      const auto size = test::pick<std::size_t>(random, kMinFrame, large ? kMaxFrame : 1600);
      const ByteVector payload = test::random_bytes(random, size);
      if (wire == Wire::native && random() % 4 == 0) {
        const auto control = std::span(payload).first(std::min<std::size_t>(size, kMaxControl));
        if (!writer.append_control(control)) {
          send();
          continue;
        }
        expected.records.push_back({RecordType::control, {}, {control.begin(), control.end()}});
        continue;
      }
      const auto room = writer.frame_room();
      if (room.size() < size) {
        send();
        continue;
      }
      std::copy(payload.begin(), payload.end(), room.begin());
      if (offload) {
        const OffloadHeader head{
            static_cast<std::uint8_t>(random()), static_cast<std::uint8_t>(random()),
            static_cast<std::uint16_t>(random()), static_cast<std::uint16_t>(random()),
            static_cast<std::uint16_t>(random())};
        writer.commit_super_frame(head, size);
        expected.records.push_back({RecordType::super_frame, head, payload});
      } else {
        writer.commit_frame(size);
        expected.records.push_back({RecordType::frame, {}, payload});
      }
    }
    while (!writer.empty()) {
      send();
    }
    CHECK(read_all(stream, wire, kMaxFrame,
                   [&random] { return test::pick<std::size_t>(random, 1, 100'000); }) == expected);
    CHECK(read_all(
              stream, wire, kMaxFrame, [] { return kAll; }, kReaderStorage) == expected);
  }
}

}  // namespace
}  // namespace causeway::proto
