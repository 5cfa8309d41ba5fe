// SPDX-License-Identifier: Apache-2.0
// Any frame behind any vnet header. Input: vnet header (10 bytes), u8 max_frame choice, u8 slab
// choice, frame. What must hold of an accepted frame:
//  - the same bytes come out of one large slab and out of one that is just large enough;
//  - every record is a frame within the bounds of the plain wire;
//  - a super-frame's payload comes out whole and in order, and the checksums of every segment
//    verify (by the simple sum of tests/unit/packets.hpp);
//  - a frame that is not a super-frame comes out as it was, but for its checksum.
#include <cstdlib>
#include <cstring>

#include "proto/segment.hpp"
#include "tests/unit/packets.hpp"

namespace {

using causeway::proto::Headers;
using causeway::proto::HeaderStatus;
using causeway::proto::Segmenter;
using causeway::proto::SegmentStatus;
using causeway::proto::VnetHeader;
using causeway::test::Bytes;
using causeway::test::get16;
using causeway::test::get32;

void require(bool condition) {
  if (!condition) {
    std::abort();
  }
}

Bytes records_of(std::span<const std::byte> frame, const VnetHeader& header,
                 std::uint32_t max_frame, Bytes& slab) {
  Segmenter segmenter(max_frame);
  Bytes all;
  require(segmenter.begin(frame, header) == SegmentStatus::ok);
  while (!segmenter.done()) {
    const Segmenter::Filled filled = segmenter.fill(slab);
    require(filled.records > 0);
    all.insert(all.end(), slab.begin(), slab.begin() + static_cast<std::ptrdiff_t>(filled.bytes));
  }
  return all;
}

void check_segment(std::span<const std::byte> segment, Bytes& payload) {
  Headers at;
  require(parse_headers(segment, at) == HeaderStatus::ok);
  require(at.end == segment.size());
  if (!at.ipv6) {
    require(causeway::test::slow_sum(segment.subspan(at.l3, std::size_t{at.l4} - at.l3)) == 0xffff);
  }
  Bytes pseudo;
  causeway::test::put32(pseudo, static_cast<std::uint32_t>(segment.size() - at.l4));
  causeway::test::put32(pseudo, at.protocol);
  const unsigned sum = causeway::test::slow_sum(
      segment.subspan(at.l4),
      causeway::test::slow_sum(address_pair(segment, at), causeway::test::slow_sum(pseudo)));
  require(sum == 0xffff);
  const auto data = segment.subspan(at.payload);
  payload.insert(payload.end(), data.begin(), data.end());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 12) {
    return 0;
  }
  VnetHeader header;
  std::memcpy(&header, data, sizeof header);
  const std::uint32_t max_frame = data[10] % 2 != 0 ? 1518 : causeway::proto::kMaxFrame;
  const std::size_t spare = data[11] * std::size_t{16};
  const auto frame = std::as_bytes(std::span{data, size}.subspan(12));

  Segmenter segmenter(max_frame);
  if (segmenter.begin(frame, header) != SegmentStatus::ok) {
    require(segmenter.done());
    return 0;
  }
  static Bytes large(256 * 1024);
  Bytes tight(4 + max_frame + spare);
  const Bytes records = records_of(frame, header, max_frame, large);
  require(records == records_of(frame, header, max_frame, tight));

  const bool super = header.gso_type != causeway::proto::kGsoNone;
  Bytes payload;
  std::size_t count = 0;
  for (std::size_t at = 0; at < records.size(); ++count) {
    const std::size_t length = get32(records, at);
    require(length >= 14 && length <= max_frame && length <= records.size() - at - 4);
    const auto out = std::span{records}.subspan(at + 4, length);
    at += 4 + length;
    if (super) {
      check_segment(out, payload);
      continue;
    }
    require(length == frame.size());
    const std::size_t place = std::size_t{header.csum_start} + header.csum_offset;
    const bool filled = (header.flags & causeway::proto::kVnetNeedsCsum) != 0;
    for (std::size_t i = 0; i < length; ++i) {
      require(out[i] == frame[i] || (filled && (i == place || i == place + 1)));
    }
  }
  if (!super) {
    require(count == 1);
    return 0;
  }
  Headers at;
  require(parse_headers(frame, at) == HeaderStatus::ok);
  const auto whole = frame.subspan(at.payload);
  require(payload.size() == whole.size() &&
          std::equal(whole.begin(), whole.end(), payload.begin()));
  require(count ==
          std::max<std::size_t>(1, (whole.size() + header.gso_size - 1) / header.gso_size));
  return 0;
}
