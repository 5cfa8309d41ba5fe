// SPDX-License-Identifier: Apache-2.0
// The offload header: two bytes of limits, the 8-byte header, then the frame. What is accepted has
// every property that the rules promise, read here straight from the frame; what is accepted from
// the TAP is accepted by the peer with the same result.
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "proto/offload.hpp"

namespace {

using namespace causeway::proto;

void require(bool holds) {
  if (!holds) std::abort();
}

using Frame = std::span<const std::byte>;

std::size_t at8(Frame frame, std::size_t at) {
  require(at < frame.size());
  return std::to_integer<std::size_t>(frame[at]);
}

std::size_t at16(Frame frame, std::size_t at) {
  return at8(frame, at) << 8 | at8(frame, at + 1);
}

void check_accepted(const OffloadHeader& asked, Frame frame, const OffloadLimits& limits,
                    const VnetHeader& out) {
  require((out.flags & ~kVnetNeedsCsum) == 0);
  if (out.flags == 0) {
    require(out == VnetHeader{});
    return;
  }
  require(limits.offload);
  const bool tagged = at16(frame, 12) == 0x8100 || at16(frame, 12) == 0x88a8;
  const std::size_t l3 = tagged ? 18 : 14;
  const std::size_t ethertype = at16(frame, l3 - 2);
  require(ethertype == 0x0800 || ethertype == 0x86dd);
  const bool ipv6 = ethertype == 0x86dd;
  const std::size_t l4 = l3 + (ipv6 ? 40 : 4 * (at8(frame, l3) & 15));
  require(at8(frame, l3) >> 4 == (ipv6 ? 6U : 4U));
  require((ipv6 ? l4 + at16(frame, l3 + 4) : l3 + at16(frame, l3 + 2)) == frame.size());
  require(ipv6 || (at16(frame, l3 + 6) & 0x3fff) == 0);
  const std::size_t protocol = at8(frame, l3 + (ipv6 ? 6 : 9));
  require(protocol == 6 || protocol == 17);
  const bool udp = protocol == 17;
  require(out.csum_start == l4 && out.csum_offset == (udp ? 6 : 16));
  require(l4 + out.csum_offset + 2 <= frame.size());
  const std::size_t payload = l4 + (udp ? 8 : 4 * (at8(frame, l4 + 12) >> 4));
  require(payload <= frame.size() && payload >= l4 + (udp ? 8U : 20U));
  require(!udp || at16(frame, l4 + 4) == frame.size() - l4);
  if (out.gso_type == kGsoNone) {
    require(out.gso_size == 0 && out.hdr_len == 0);
    return;
  }
  require(out.gso_type == asked.gso_type && out.gso_size == asked.gso_size);
  require(out.gso_type == (udp ? kGsoUdpL4 : ipv6 ? kGsoTcp6 : kGsoTcp4));
  require(!udp || limits.uso);
  require(out.hdr_len == payload);
  const std::size_t data = frame.size() - payload;
  require(out.gso_size >= kMinGsoSize && data > out.gso_size);
  require(payload - l3 + out.gso_size <= limits.mtu);
  require((data + out.gso_size - 1) / out.gso_size <= kMaxGsoSegments);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kPrefix = 2 + kOffloadHeaderSize;
  if (size < kPrefix + kMinFrame) return 0;
  const auto input = std::as_bytes(std::span(data, size));
  const OffloadLimits limits{
      .mtu = 576U + 256U * data[1], .offload = (data[0] & 1) == 0, .uso = (data[0] & 2) == 0};
  const OffloadHeader asked = load_offload_header(input.subspan(2, kOffloadHeaderSize));
  // A copy of exactly this size, so that the sanitizer sees a read behind the frame. With bits 2-5
  // the frame is extended with zeros, which makes super-frames from small inputs.
  std::vector<std::byte> frame(input.begin() + kPrefix, input.end());
  frame.resize(frame.size() + std::size_t{data[0] >> 2 & 15U} * 4096);

  VnetHeader out;
  const OffloadDrop drop = rebuild_offload(asked, frame, limits, out);
  if (drop == OffloadDrop::none) {
    check_accepted(asked, frame, limits, out);
  } else {
    require(out == VnetHeader{});
  }
  require(to_string(drop).starts_with("offload_"));

  const VnetHeader from_tap{.flags = asked.flags,
                            .gso_type = asked.gso_type,
                            .hdr_len = 0,
                            .gso_size = asked.gso_size,
                            .csum_start = asked.csum_start,
                            .csum_offset = asked.csum_offset};
  OffloadHeader sent;
  if (prepare_offload(from_tap, frame, limits, sent) == OffloadDrop::none) {
    VnetHeader received;
    require(rebuild_offload(sent, frame, limits, received) == OffloadDrop::none);
    require(received.gso_type == sent.gso_type && received.flags == sent.flags);
    if (drop == OffloadDrop::none) require(received == out);
  }
  return 0;
}
