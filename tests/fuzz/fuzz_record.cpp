// SPDX-License-Identifier: Apache-2.0
// The record reader: the first byte chooses wire, bounds and size of the pieces, the rest is the
// stream. Read in pieces and read whole must give the same records and the same end; every record
// is within its bounds; writing the records again and reading them gives the same records.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "proto/control.hpp"
#include "proto/record.hpp"

namespace {

using namespace causeway::proto;
using ByteVector = std::vector<std::byte>;

void require(bool holds) {
  if (!holds) std::abort();
}

struct Item {
  RecordType type;
  OffloadHeader offload;
  ByteVector payload;
  friend bool operator==(const Item&, const Item&) = default;
};

struct Result {
  std::vector<Item> items;
  RecordStatus status = RecordStatus::need_more;
  bool clean = false;
  friend bool operator==(const Result&, const Result&) = default;
};

Result read(std::span<const std::byte> stream, Wire wire, std::uint32_t max_frame,
            std::size_t chunk) {
  // The smallest storage that the reader allows, so that data moves often.
  ByteVector storage(2 *
                     (std::max(max_frame, kMaxControl) + kOffloadHeaderSize + kRecordHeaderSize));
  RecordReader reader(storage, wire, max_frame);
  Result result;
  for (;;) {
    Record record;
    while ((result.status = reader.next(record)) == RecordStatus::ok) {
      const bool super_frame = record.type == RecordType::super_frame;
      const bool control = record.type == RecordType::control;
      require(wire == Wire::native || record.type == RecordType::frame);
      require(record.payload.size() >= (control ? 1U : kMinFrame));
      require(record.payload.size() <= (control ? kMaxControl : max_frame));
      result.items.push_back({record.type,
                              super_frame ? record.offload : OffloadHeader{},
                              {record.payload.begin(), record.payload.end()}});
    }
    if (result.status != RecordStatus::need_more || stream.empty()) {
      result.clean = reader.between_records();
      return result;
    }
    const auto room = reader.writable();
    require(!room.empty());
    const auto piece = stream.first(std::min({chunk, room.size(), stream.size()}));
    std::copy(piece.begin(), piece.end(), room.begin());
    reader.commit(piece.size());
    stream = stream.subspan(piece.size());
  }
}

void check_written_again(const Result& result, Wire wire, std::uint32_t max_frame) {
  ByteVector stream;
  for (const Item& item : result.items) {
    ByteVector slab(item.payload.size() + kRecordHeaderSize + kOffloadHeaderSize);
    RecordWriter writer(slab, wire, item.type == RecordType::super_frame);
    if (item.type == RecordType::control) {
      require(writer.append_control(item.payload));
    } else {
      const auto room = writer.frame_room();
      require(room.size() >= item.payload.size());
      std::copy(item.payload.begin(), item.payload.end(), room.begin());
      if (item.type == RecordType::super_frame) {
        writer.commit_super_frame(item.offload, item.payload.size());
      } else {
        writer.commit_frame(item.payload.size());
      }
    }
    stream.insert(stream.end(), writer.pending().begin(), writer.pending().end());
  }
  const Result again = read(stream, wire, max_frame, stream.size() + 1);
  require(again.items == result.items && again.clean);
}

void check_control(std::span<const std::byte> payload) {
  Control control;
  if (decode_control(payload, control) != ControlStatus::ok) return;
  ByteVector out(payload.size());
  const std::size_t size = encode_control(control, out);
  require(size > 0 && size <= payload.size());
  require(
      std::equal(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(size), payload.begin()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto input = std::as_bytes(std::span(data, size));
  const Wire wire = (data[0] & 1) != 0 ? Wire::native : Wire::plain;
  const std::uint32_t max_frame = (data[0] & 2) != 0 ? 590 : kMaxFrame;
  const std::size_t chunk = std::size_t{1} << (data[0] >> 2 & 15);
  const Result whole = read(input.subspan(1), wire, max_frame, size);
  require(read(input.subspan(1), wire, max_frame, chunk) == whole);
  check_written_again(whole, wire, max_frame);
  for (const Item& item : whole.items) {
    if (item.type == RecordType::control) check_control(item.payload);
  }
  return 0;
}
