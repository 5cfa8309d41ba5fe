// SPDX-License-Identifier: Apache-2.0
// Any batch of frames. Input: u8 options (bit 0: USO), then frames: u8 control, u16be size, bytes.
// Control bit 0 gives the frame right checksums, without which the fuzzer would hardly ever see a
// merge; bit 1 makes the bytes the payload of a successor of the frame before; bit 2 flushes first.
// What must hold: whatever the sink got, cut by the segmenter where it is a super-frame, is what
// was added, flow by flow and in order: nothing lost, doubled, changed or reordered.
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>

#include "proto/coalesce.hpp"
#include "proto/segment.hpp"
#include "tests/unit/packets.hpp"

namespace {

using causeway::proto::Coalescer;
using causeway::proto::Headers;
using causeway::proto::HeaderStatus;
using causeway::proto::Segmenter;
using causeway::proto::SegmentStatus;
using causeway::proto::VnetHeader;
using causeway::test::Bytes;
using causeway::test::get16;
using causeway::test::get32;
using causeway::test::get8;
using causeway::test::set16;

// Frames by flow; those without a readable flow are one flow of their own.
using Flows = std::map<Bytes, std::vector<Bytes>>;

void require(bool condition) {
  if (!condition) {
    std::abort();
  }
}

bool readable(const Bytes& frame, Headers& at) {
  return parse_headers(frame, at) == HeaderStatus::ok;
}

void fix_checksums(Bytes& frame) {
  Headers at;
  if (!readable(frame, at)) {
    return;
  }
  if (!at.ipv6) {
    set16(frame, at.l3 + 10U, 0);
    const auto header = std::span{frame}.subspan(at.l3, std::size_t{at.l4} - at.l3);
    set16(frame, at.l3 + 10U, ~causeway::test::slow_sum(header) & 0xffff);
  }
  const std::size_t place = at.l4 + (at.protocol == 6 ? 16U : 6U);
  set16(frame, place, 0);
  Bytes pseudo;
  causeway::test::put32(pseudo, at.end - at.l4);
  causeway::test::put32(pseudo, at.protocol);
  const unsigned sum = causeway::test::slow_sum(
      std::span{frame}.subspan(at.l4, std::size_t{at.end} - at.l4),
      causeway::test::slow_sum(address_pair(frame, at), causeway::test::slow_sum(pseudo)));
  const unsigned checksum = ~sum & 0xffff;
  set16(frame, place, checksum == 0 && at.protocol == 17 ? 0xffff : checksum);
}

// The frame behind `last` in its flow, with `payload`; empty when `last` cannot be read.
Bytes successor(const Bytes& last, std::span<const std::byte> payload) {
  Headers at;
  if (!readable(last, at) || at.end != last.size() || at.payload + payload.size() > 65'000) {
    return {};
  }
  Bytes frame(last.begin(), last.begin() + at.payload);
  frame.insert(frame.end(), payload.begin(), payload.end());
  if (at.ipv6) {
    set16(frame, at.l3 + 4U, static_cast<unsigned>(frame.size() - at.l4));
  } else {
    set16(frame, at.l3 + 2U, static_cast<unsigned>(frame.size() - at.l3));
    set16(frame, at.l3 + 4U, get16(last, at.l3 + 4U) + 1);
  }
  if (at.protocol == 17) {
    set16(frame, at.l4 + 4U, static_cast<unsigned>(frame.size() - at.l4));
  } else {
    const std::uint32_t next =
        get32(last, at.l4 + 4U) + static_cast<std::uint32_t>(at.payload_size());
    set16(frame, at.l4 + 4U, next >> 16);
    set16(frame, at.l4 + 6U, next & 0xffff);
  }
  return frame;
}

// Two things a merge may change, and no receiver can tell: the identification of a packet that
// must not be fragmented anyhow (RFC 6864), and which of its two zeros a checksum is.
void note(Flows& flows, Bytes frame) {
  Headers at;
  Bytes flow;
  if (readable(frame, at)) {
    flow.push_back(static_cast<std::byte>(at.protocol));
    const auto addresses = address_pair(frame, at);
    flow.insert(flow.end(), addresses.begin(), addresses.end());
    flow.insert(flow.end(), frame.begin() + at.l4, frame.begin() + at.l4 + 4);
    const auto one_zero = [&](std::size_t place) {
      if (get16(frame, place) == 0xffff) {
        set16(frame, place, 0);
      }
    };
    if (at.protocol == 6) {
      one_zero(at.l4 + 16U);
    }
    if (!at.ipv6) {
      one_zero(at.l3 + 10U);
      if ((get16(frame, at.l3 + 6U) & 0x4000) != 0) {
        // The checksum without the identification, so that a wrong one still differs.
        const unsigned without = causeway::test::slow_sum(std::span{frame}.subspan(at.l3 + 4U, 2),
                                                          get16(frame, at.l3 + 10U));
        set16(frame, at.l3 + 4U, 0);
        set16(frame, at.l3 + 10U, without == 0xffff ? 0 : without);
      }
    }
  }
  flows[flow].push_back(std::move(frame));
}

class Sink {
 public:
  void operator()(const VnetHeader& header, std::span<const iovec> pieces) {
    require(pieces.size() >= 2 && pieces.size() <= 1 + Coalescer::kMaxSegments);
    require(pieces[0].iov_base == &header && pieces[0].iov_len == sizeof header);
    Bytes frame;
    for (const iovec& piece : pieces.subspan(1)) {
      const auto* bytes = static_cast<const std::byte*>(piece.iov_base);
      frame.insert(frame.end(), bytes, bytes + piece.iov_len);
    }
    if (header == VnetHeader{}) {
      require(pieces.size() == 2);
      note(flows, std::move(frame));
      return;
    }
    require(frame.size() <= causeway::proto::kMaxFrame);
    Segmenter segmenter;
    require(segmenter.begin(frame, header) == SegmentStatus::ok);
    static Bytes slab(256 * 1024);
    const Segmenter::Filled filled = segmenter.fill(slab);
    require(segmenter.done() && filled.records == pieces.size() - 1);
    for (std::size_t at = 0; at < filled.bytes; at += 4 + get32(slab, at)) {
      const auto segment = std::span{slab}.subspan(at + 4, get32(slab, at));
      note(flows, Bytes(segment.begin(), segment.end()));
    }
  }

  Flows flows;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) {
    return 0;
  }
  const auto input = std::as_bytes(std::span{data, size});
  Coalescer coalescer(get8(input, 0) % 2 != 0);
  std::deque<Bytes> frames;  // stays where it is
  Flows added;
  Sink sink;
  Bytes last;
  for (std::size_t at = 1; input.size() - at > 3;) {
    const unsigned control = get8(input, at);
    const std::size_t length = std::min<std::size_t>(get16(input, at + 1), input.size() - at - 3);
    const auto bytes = input.subspan(at + 3, length);
    at += 3 + length;
    Bytes frame(bytes.begin(), bytes.end());
    if ((control & 2) != 0) {
      frame = successor(last, bytes);
    }
    if ((control & 1) != 0) {
      fix_checksums(frame);
    }
    if ((control & 4) != 0) {
      coalescer.flush(sink);
    }
    if (frame.size() < 14) {
      continue;
    }
    last = frame;
    note(added, frame);
    frames.push_back(std::move(frame));
    coalescer.add(frames.back(), sink);
  }
  coalescer.flush(sink);
  require(coalescer.counters().frames == frames.size());
  require(added == sink.flows);
  return 0;
}
