// SPDX-License-Identifier: Apache-2.0
// Theory of operation: the record codec.
//
// The wire is a byte stream of records, each behind a u32 big-endian header. On the *plain* wire
// the header is the frame's length. On the *native* wire its top byte is the record's type and its
// low 24 bits are the length (PROTOCOL.md). Nothing here knows a file descriptor and nothing
// allocates: both classes work in storage that the caller owns for the life of a lane.
//
// RecordWriter fills a slab. The TAP's read goes straight to frame_room(), behind room for the
// headers; commit_*() then writes the headers in front of it. The slab is sent from pending() in
// pieces of any size. With super-frames there is no copy beyond the two that the kernel makes, out
// of the TAP and into the stream; for a plain peer the segmenter's copy, which also sums, is the
// third.
//
// RecordReader decodes in place. recv() goes straight to writable(); next() hands out spans into
// the storage, valid until the next call of writable(). A header is judged as soon as its four
// bytes are there, so a record out of bounds is refused before any of its payload is waited for.
// Only the tail of an incomplete record is ever moved, and only when the room behind it runs out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace causeway::proto {

enum class Wire : std::uint8_t { plain, native };

// Types 0x80-0xff are skipped by a receiver that does not know them; other unknown ones are
// refused.
enum class RecordType : std::uint8_t { frame = 0, super_frame = 1, control = 2 };

inline constexpr std::size_t kRecordHeaderSize = 4;
inline constexpr std::size_t kOffloadHeaderSize = 8;
inline constexpr std::uint32_t kMinFrame = 14;      // an Ethernet header
inline constexpr std::uint32_t kMaxFrame = 65'550;  // 65,535 + Ethernet header, rounded: wire.md
inline constexpr std::uint32_t kMaxControl = 4096;
inline constexpr std::uint32_t kFirstSkippableType = 0x80;

// The 8-byte header of a super-frame, in host order here and big-endian on the wire. `flags` and
// `gso_type` take the values of the kernel's virtio_net_hdr (linux/virtio_net.h).
struct OffloadHeader {
  std::uint8_t flags = 0;
  std::uint8_t gso_type = 0;
  std::uint16_t gso_size = 0;
  std::uint16_t csum_start = 0;
  std::uint16_t csum_offset = 0;
  friend bool operator==(const OffloadHeader&, const OffloadHeader&) = default;
};

void store_offload_header(std::span<std::byte> out, const OffloadHeader& header);
OffloadHeader load_offload_header(std::span<const std::byte> in);

struct Record {
  RecordType type = RecordType::frame;
  // frame: the Ethernet frame; super_frame: the frame behind `offload`; control: the payload.
  std::span<std::byte> payload;
  OffloadHeader offload;  // super_frame only, as received: nothing of it is validated yet
};

enum class RecordStatus : std::uint8_t {
  ok,
  need_more,
  too_short,     // below 14 bytes of frame, or a super-frame below 8 + 14
  too_long,      // above max_frame (+ 8 for a super-frame), or a control record above 4096
  unknown_type,  // native: types 3-0x7f
};

class RecordReader {
 public:
  // `storage` must hold at least two of the longest records; see kReaderStorage for a good size.
  RecordReader(std::span<std::byte> storage, Wire wire, std::uint32_t max_frame = kMaxFrame);

  // Where the next bytes of the stream go: never empty. Invalidates spans handed out by next().
  std::span<std::byte> writable();
  // `size` bytes of writable() were filled.
  void commit(std::size_t size);
  // The next complete record, in place. Any status but ok and need_more is final: the stream has
  // lost its frame boundaries and must be closed.
  RecordStatus next(Record& record);

  // True when an end of stream now is a clean end, false when it cuts a record.
  [[nodiscard]] bool between_records() const { return begin_ == end_ && skip_ == 0; }
  // The header behind the last status that was not ok, for the log.
  [[nodiscard]] std::uint32_t last_header() const { return last_header_; }

 private:
  RecordStatus judge(RecordType& type, std::uint32_t& length) const;

  std::span<std::byte> storage_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::size_t skip_ = 0;  // bytes of a skippable record that are still to come
  std::uint32_t max_frame_;
  std::uint32_t last_header_ = 0;
  Wire wire_;
};

inline constexpr std::size_t kReaderStorage = std::size_t{512} * 1024;

class RecordWriter {
 public:
  // With `offload`, frames go out as super-frames and frame_room() leaves room for both headers.
  RecordWriter(std::span<std::byte> slab, Wire wire, bool offload);

  // Where the next frame goes; empty when less than a whole header would be left.
  std::span<std::byte> frame_room();
  // The first `size` bytes of frame_room() are a frame (offload off).
  void commit_frame(std::size_t size);
  // The same with its offload header (offload on).
  void commit_super_frame(const OffloadHeader& header, std::size_t size);
  // Where whole records that were made elsewhere go (proto/segment.hpp), and how many bytes of them
  // were put there.
  std::span<std::byte> raw_room() { return slab_.subspan(end_); }
  void commit_raw(std::size_t size) { end_ += size; }
  // Copies a whole control record in; false when it does not fit. Native wire only.
  bool append_control(std::span<const std::byte> payload);

  [[nodiscard]] std::span<const std::byte> pending() const {
    return slab_.subspan(begin_, end_ - begin_);
  }
  // `size` bytes of pending() were sent. An emptied slab starts over at its front.
  void consume(std::size_t size);
  [[nodiscard]] bool empty() const { return begin_ == end_; }

 private:
  void put_header(RecordType type, std::size_t length);

  std::span<std::byte> slab_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::size_t headroom_;
  Wire wire_;
};

}  // namespace causeway::proto
