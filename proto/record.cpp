// SPDX-License-Identifier: Apache-2.0
#include "proto/record.hpp"

#include <algorithm>
#include <cstring>

#include "proto/bytes.hpp"

namespace causeway::proto {

namespace {
// With less room than this behind the data, the tail of an incomplete record moves to the front.
constexpr std::size_t kMinReadRoom = std::size_t{64} * 1024;
}  // namespace

void store_offload_header(std::span<std::byte> out, const OffloadHeader& header) {
  store_u8(out, 0, header.flags);
  store_u8(out, 1, header.gso_type);
  store_be16(out, 2, header.gso_size);
  store_be16(out, 4, header.csum_start);
  store_be16(out, 6, header.csum_offset);
}

OffloadHeader load_offload_header(std::span<const std::byte> in) {
  return OffloadHeader{.flags = load_u8(in, 0),
                       .gso_type = load_u8(in, 1),
                       .gso_size = load_be16(in, 2),
                       .csum_start = load_be16(in, 4),
                       .csum_offset = load_be16(in, 6)};
}

RecordReader::RecordReader(std::span<std::byte> storage, Wire wire, std::uint32_t max_frame)
    : storage_(storage), max_frame_(max_frame), wire_(wire) {}

std::span<std::byte> RecordReader::writable() {
  if (begin_ == end_) {
    begin_ = end_ = 0;
  } else if (storage_.size() - end_ < std::min(kMinReadRoom, storage_.size() / 2)) {
    const auto rest = storage_.subspan(begin_, end_ - begin_);
    std::memmove(storage_.data(), rest.data(), rest.size());
    begin_ = 0;
    end_ = rest.size();
  }
  return storage_.subspan(end_);
}

void RecordReader::commit(std::size_t size) {
  if (skip_ > 0) {  // only ever with an empty buffer, so the skipped bytes are the first of these
    const std::size_t skipped = std::min(skip_, size);
    skip_ -= skipped;
    begin_ += skipped;
  }
  end_ += size;
}

RecordStatus RecordReader::judge(RecordType& type, std::uint32_t& length) const {
  type = RecordType::frame;
  length = last_header_;
  std::uint32_t lowest = kMinFrame;
  std::uint32_t highest = max_frame_;
  if (wire_ == Wire::native) {
    const std::uint32_t raw_type = last_header_ >> 24;
    length = last_header_ & 0xffffff;
    if (raw_type >= kFirstSkippableType) {
      lowest = 0;
      highest = 0xffffff;
    } else if (raw_type == static_cast<std::uint32_t>(RecordType::super_frame)) {
      lowest += kOffloadHeaderSize;
      highest += kOffloadHeaderSize;
    } else if (raw_type == static_cast<std::uint32_t>(RecordType::control)) {
      lowest = 1;
      highest = kMaxControl;
    } else if (raw_type != static_cast<std::uint32_t>(RecordType::frame)) {
      return RecordStatus::unknown_type;
    }
    type = static_cast<RecordType>(raw_type);
  }
  if (length < lowest) {
    return RecordStatus::too_short;
  }
  return length > highest ? RecordStatus::too_long : RecordStatus::ok;
}

RecordStatus RecordReader::next(Record& record) {
  while (end_ - begin_ >= kRecordHeaderSize) {
    last_header_ = load_be32(storage_, begin_);
    std::uint32_t length = 0;
    const RecordStatus status = judge(record.type, length);
    if (status != RecordStatus::ok) {
      return status;
    }
    const std::size_t available = end_ - begin_ - kRecordHeaderSize;
    if (static_cast<std::uint32_t>(record.type) >= kFirstSkippableType) {
      const std::size_t here = std::min<std::size_t>(available, length);
      begin_ += kRecordHeaderSize + here;
      skip_ = length - here;
      continue;
    }
    if (available < length) {
      return RecordStatus::need_more;
    }
    record.payload = storage_.subspan(begin_ + kRecordHeaderSize, length);
    begin_ += kRecordHeaderSize + length;
    if (record.type == RecordType::super_frame) {
      record.offload = load_offload_header(record.payload);
      record.payload = record.payload.subspan(kOffloadHeaderSize);
    }
    return RecordStatus::ok;
  }
  return RecordStatus::need_more;
}

RecordWriter::RecordWriter(std::span<std::byte> slab, Wire wire, bool offload)
    : slab_(slab),
      headroom_(offload ? kRecordHeaderSize + kOffloadHeaderSize : kRecordHeaderSize),
      wire_(wire) {}

std::span<std::byte> RecordWriter::frame_room() {
  return slab_.size() - end_ <= headroom_ ? std::span<std::byte>{}
                                          : slab_.subspan(end_ + headroom_);
}

void RecordWriter::put_header(RecordType type, std::size_t length) {
  const auto tag = wire_ == Wire::native ? static_cast<std::uint32_t>(type) << 24 : 0U;
  store_be32(slab_, end_, tag | static_cast<std::uint32_t>(length));
}

void RecordWriter::commit_frame(std::size_t size) {
  put_header(RecordType::frame, size);
  end_ += kRecordHeaderSize + size;
}

void RecordWriter::commit_super_frame(const OffloadHeader& header, std::size_t size) {
  put_header(RecordType::super_frame, kOffloadHeaderSize + size);
  store_offload_header(slab_.subspan(end_ + kRecordHeaderSize, kOffloadHeaderSize), header);
  end_ += kRecordHeaderSize + kOffloadHeaderSize + size;
}

bool RecordWriter::append_control(std::span<const std::byte> payload) {
  if (wire_ != Wire::native || payload.empty() || payload.size() > kMaxControl ||
      slab_.size() - end_ < kRecordHeaderSize + payload.size()) {
    return false;
  }
  put_header(RecordType::control, payload.size());
  const auto out = slab_.subspan(end_ + kRecordHeaderSize, payload.size());
  std::copy(payload.begin(), payload.end(), out.begin());
  end_ += kRecordHeaderSize + payload.size();
  return true;
}

void RecordWriter::consume(std::size_t size) {
  begin_ += size;
  if (begin_ == end_) {
    begin_ = end_ = 0;
  }
}

}  // namespace causeway::proto
