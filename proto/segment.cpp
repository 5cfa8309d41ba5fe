// SPDX-License-Identifier: Apache-2.0
#include "proto/segment.hpp"

#include <algorithm>
#include <cstring>

#include "proto/bytes.hpp"

namespace causeway::proto {

namespace {

constexpr std::uint8_t kFin = 0x01;
constexpr std::uint8_t kPsh = 0x08;
constexpr std::uint8_t kCwr = 0x80;

SegmentStatus as_segment_status(HeaderStatus status) {
  switch (status) {
    case HeaderStatus::ok:
      return SegmentStatus::ok;
    case HeaderStatus::ethernet:
      return SegmentStatus::frame_too_short;
    case HeaderStatus::vlan_depth:
      return SegmentStatus::vlan_depth;
    case HeaderStatus::ethertype:
      return SegmentStatus::ethertype;
    case HeaderStatus::ip_header:
      return SegmentStatus::ip_header;
    case HeaderStatus::ip_length:
      return SegmentStatus::ip_length;
    case HeaderStatus::fragment:
      return SegmentStatus::fragment;
    case HeaderStatus::extension_header:
      return SegmentStatus::extension_header;
    case HeaderStatus::protocol:
      return SegmentStatus::protocol;
    case HeaderStatus::transport_header:
      break;
  }
  return SegmentStatus::transport_header;
}

void copy(std::span<std::byte> out, std::span<const std::byte> in) {
  std::memcpy(out.first(in.size()).data(), in.data(), in.size());
}

}  // namespace

const char* segment_status_name(SegmentStatus status) {
  static constexpr std::array<const char*, kSegmentStatusCount> kNames = {
      "ok",
      "frame_too_short",
      "frame_too_long",
      "segment_gso_type",
      "segment_gso_size",
      "segment_checksum_place",
      "segment_ethertype",
      "segment_vlan_depth",
      "segment_ip_header",
      "segment_ip_length",
      "segment_fragment",
      "segment_extension_header",
      "segment_protocol",
      "segment_transport_header",
  };
  return kNames.at(static_cast<std::size_t>(status));
}

SegmentStatus Segmenter::begin(std::span<const std::byte> frame, const VnetHeader& header) {
  done_ = true;
  if (frame.size() < kMinFrame) {
    return SegmentStatus::frame_too_short;
  }
  frame_ = frame;
  offset_ = 0;
  if (header.gso_type != kGsoNone) {
    const SegmentStatus status = begin_gso(header);
    done_ = status != SegmentStatus::ok;
    return status;
  }
  if (frame.size() > max_frame_) {
    return SegmentStatus::frame_too_long;
  }
  kind_ = Kind::copy;
  step_ = frame.size();
  if ((header.flags & kVnetNeedsCsum) != 0) {
    // An odd offset would put the checksum across two words of the sum.
    if (header.csum_offset % 2 != 0 ||
        std::size_t{header.csum_start} + header.csum_offset + 2 > frame.size()) {
      return SegmentStatus::checksum_place;
    }
    kind_ = Kind::checksum;
    checksum_start_ = header.csum_start;
    checksum_at_ = static_cast<std::uint16_t>(header.csum_start + header.csum_offset);
  }
  done_ = false;
  return SegmentStatus::ok;
}

SegmentStatus Segmenter::begin_gso(const VnetHeader& header) {
  const std::uint8_t type = header.gso_type & static_cast<std::uint8_t>(~kGsoEcn);
  const bool tcp = type == kGsoTcp4 || type == kGsoTcp6;
  if (!tcp && header.gso_type != kGsoUdpL4) {
    return SegmentStatus::gso_type;
  }
  if (header.gso_size == 0) {
    return SegmentStatus::gso_size;
  }
  const HeaderStatus status = parse_headers(frame_, at_);
  if (status != HeaderStatus::ok) {
    return as_segment_status(status);
  }
  if (tcp && at_.ipv6 != (type == kGsoTcp6)) {
    return SegmentStatus::ethertype;
  }
  if (at_.protocol != (tcp ? kProtocolTcp : kProtocolUdp)) {
    return SegmentStatus::protocol;
  }
  if (at_.end != frame_.size()) {
    return SegmentStatus::ip_length;
  }
  step_ = header.gso_size;
  if (at_.payload + std::min(step_, at_.payload_size()) > max_frame_) {
    return SegmentStatus::frame_too_long;
  }
  kind_ = tcp ? Kind::tcp : Kind::udp;
  prepare_headers();
  return SegmentStatus::ok;
}

// Fields that differ from record to record are zero in prefix_, so that its sums leave them out.
void Segmenter::prepare_headers() {
  const std::span<std::byte> headers = std::span{prefix_}.subspan(kRecordHeaderSize, at_.payload);
  copy(headers, frame_.first(at_.payload));
  const std::size_t l3 = at_.l3;
  const std::size_t l4 = at_.l4;
  if (at_.ipv6) {
    store_be16(headers, l3 + 4, 0);
  } else {
    id_ = load_be16(headers, l3 + 4);
    store_be32(headers, l3 + 2, 0);  // total length and identification
    store_be16(headers, l3 + 10, 0);
    ip_sum_ = sum_bytes(headers.subspan(l3, l4 - l3));
  }
  if (kind_ == Kind::tcp) {
    sequence_ = load_be32(headers, l4 + 4);
    tcp_flags_ = load_u8(headers, l4 + 13);
    store_be32(headers, l4 + 4, 0);
    store_u8(headers, l4 + 13, 0);
    store_be16(headers, l4 + kTcpChecksumAt, 0);
  } else {
    store_be32(headers, l4 + 4, 0);  // length and checksum
  }
  l4_sum_ = pseudo_header_sum(address_pair(headers, at_), at_.protocol, 0) +
            sum_bytes(headers.subspan(l4));
}

Segmenter::Filled Segmenter::fill(std::span<std::byte> slab) {
  Filled filled;
  while (!done_) {
    const std::size_t size = write_record(slab.subspan(filled.bytes));
    if (size == 0) {
      break;
    }
    filled.bytes += size;
    ++filled.records;
  }
  return filled;
}

// The size of the record, or 0 when there is no room for it.
std::size_t Segmenter::write_record(std::span<std::byte> slab) {
  const bool whole = kind_ == Kind::copy || kind_ == Kind::checksum;
  const std::span<const std::byte> payload = whole ? frame_ : frame_.subspan(at_.payload + offset_);
  const std::size_t slice = std::min(step_, payload.size());
  const std::size_t size = kRecordHeaderSize + (whole ? slice : at_.payload + slice);
  if (slab.size() < size) {
    return 0;
  }
  const std::span<std::byte> record = slab.first(size);
  if (whole) {
    const std::span<std::byte> out = record.subspan(kRecordHeaderSize);
    if (kind_ == Kind::copy) {
      copy(out, frame_);
    } else {
      copy(out, frame_.first(checksum_start_));
      // The field holds the sum of the pseudo-header, so it takes part as it is.
      const Sum sum = copy_and_sum(out.subspan(checksum_start_), frame_.subspan(checksum_start_));
      store_folded(out, checksum_at_, checksum_not_zero(sum));
    }
    done_ = true;
  } else {
    done_ = slice == payload.size();
    write_segment(record, payload.first(slice));
    offset_ += slice;
  }
  store_be32(record, 0, static_cast<std::uint32_t>(size - kRecordHeaderSize));
  return size;
}

void Segmenter::write_segment(std::span<std::byte> record, std::span<const std::byte> payload) {
  copy(record, std::span{prefix_}.first(kRecordHeaderSize + at_.payload));
  const std::span<std::byte> out = record.subspan(kRecordHeaderSize);
  const std::size_t l3 = at_.l3;
  const std::size_t l4 = at_.l4;
  if (at_.ipv6) {
    store_be16(out, l3 + 4, static_cast<std::uint16_t>(out.size() - l4));
  } else {
    const auto length = static_cast<std::uint16_t>(out.size() - l3);
    store_be16(out, l3 + 2, length);
    store_be16(out, l3 + 4, id_);
    store_folded(out, l3 + 10, checksum(ip_sum_ + word(length) + word(id_)));
    ++id_;
  }
  // The length is in the pseudo-header, and for UDP a second time in the header.
  const auto l4_length = static_cast<std::uint16_t>(out.size() - l4);
  Sum sum = l4_sum_ + word(l4_length) + copy_and_sum(out.subspan(at_.payload), payload);
  if (kind_ == Kind::udp) {
    store_be16(out, l4 + 4, l4_length);
    store_folded(out, l4 + kUdpChecksumAt, checksum_not_zero(sum + word(l4_length)));
    return;
  }
  unsigned flags = tcp_flags_;
  flags &= ~(done_ ? 0U : unsigned{kFin | kPsh});
  flags &= ~(offset_ == 0 ? 0U : unsigned{kCwr});
  store_be32(out, l4 + 4, sequence_);
  store_u8(out, l4 + 13, static_cast<std::uint8_t>(flags));
  sum += word(static_cast<std::uint16_t>(sequence_ >> 16));
  sum += word(static_cast<std::uint16_t>(sequence_));
  sum += word(static_cast<std::uint16_t>(flags));
  store_folded(out, l4 + kTcpChecksumAt, checksum(sum));
  sequence_ += static_cast<std::uint32_t>(payload.size());
}

}  // namespace causeway::proto
