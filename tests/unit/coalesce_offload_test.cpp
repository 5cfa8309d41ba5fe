// SPDX-License-Identifier: Apache-2.0
// The coalescer with frames of a native wire, which come with a vnet header: a checksum that is
// still to be filled in, or a super-frame that the sender's kernel made.
#include <doctest/doctest.h>

#include <utility>
#include <vector>

#include "proto/coalesce.hpp"
#include "proto/headers.hpp"
#include "tests/unit/packets.hpp"

namespace causeway::proto {
namespace {

using test::Bytes;
using test::Packet;

struct Write {
  VnetHeader header;
  Bytes frame;
};

struct Sent {
  Bytes frame;
  VnetHeader header;
};

std::vector<Write> coalesce(std::vector<Sent> frames) {
  std::vector<Write> writes;
  const auto sink = [&writes](const VnetHeader& header, std::span<const iovec> pieces) {
    Write write{.header = header, .frame = {}};
    for (const iovec& piece : pieces.subspan(1)) {
      const auto* bytes = static_cast<const std::byte*>(piece.iov_base);
      write.frame.insert(write.frame.end(), bytes, bytes + piece.iov_len);
    }
    writes.push_back(std::move(write));
  };
  Coalescer coalescer(true);
  for (Sent& sent : frames) {
    coalescer.add(sent.frame, sent.header, sink);
  }
  coalescer.flush(sink);
  return writes;
}

// The n-th datagram or segment of a flow, with its checksum left to fill in when `partial`.
Sent nth(unsigned n, bool tcp, bool ipv6, bool partial) {
  Packet packet;
  packet.tcp = tcp;
  packet.ipv6 = ipv6;
  packet.payload = test::pattern(1000, n + 1);
  packet.sequence += 1000 * n;
  packet.id = static_cast<std::uint16_t>(packet.id + n);
  Sent sent{.frame = test::build(packet), .header = {}};
  if (partial) {
    Headers at;
    REQUIRE(parse_headers(sent.frame, at) == HeaderStatus::ok);
    const auto offset = tcp ? kTcpChecksumAt : kUdpChecksumAt;
    sent.header = {.flags = kVnetNeedsCsum, .csum_start = at.l4, .csum_offset = offset};
    test::set16(sent.frame, at.l4 + offset, 0x1234);  // whatever the sender's kernel left there
  }
  return sent;
}

}  // namespace

TEST_CASE("coalesce: checksums still to be filled in do not keep frames apart") {
  for (const bool tcp : {true, false}) {
    for (const bool ipv6 : {false, true}) {
      for (const unsigned partial : {0U, 1U, 2U, 3U}) {  // a bit for each of the two frames
        CAPTURE(tcp);
        CAPTURE(ipv6);
        CAPTURE(partial);
        const auto one = coalesce(
            {nth(0, tcp, ipv6, (partial & 1) != 0), nth(1, tcp, ipv6, (partial & 2) != 0)});
        const auto whole = coalesce({nth(0, tcp, ipv6, false), nth(1, tcp, ipv6, false)});
        REQUIRE(one.size() == 1);
        REQUIRE(whole.size() == 1);
        CHECK(one[0].frame == whole[0].frame);
        CHECK(one[0].header == whole[0].header);
      }
    }
  }
}

TEST_CASE("coalesce: a lone frame keeps its vnet header and its bytes") {
  const Sent sent = nth(0, false, false, true);
  const auto writes = coalesce({sent});
  REQUIRE(writes.size() == 1);
  CHECK(writes[0].header == sent.header);
  CHECK(writes[0].frame == sent.frame);
}

TEST_CASE("coalesce: a wrong IPv4 header checksum still keeps a frame apart") {
  Sent second = nth(1, true, false, true);
  test::set16(second.frame, 14 + 10, test::get16(second.frame, 14 + 10) ^ 1U);
  const auto writes = coalesce({nth(0, true, false, true), second});
  REQUIRE(writes.size() == 2);
  CHECK(writes[1].frame == second.frame);
  CHECK(writes[1].header == second.header);
}

TEST_CASE("coalesce: a super-frame goes alone and after what came before it") {
  Sent large = nth(2, true, false, true);
  large.header.gso_type = kGsoTcp4;
  large.header.gso_size = 500;
  const auto writes = coalesce(
      {nth(0, true, false, true), nth(1, true, false, true), large, nth(3, true, false, true)});
  REQUIRE(writes.size() == 3);
  CHECK(writes[0].header.gso_size == 1000);  // the first two
  CHECK(writes[1].frame == large.frame);
  CHECK(writes[1].header == large.header);
  CHECK(writes[2].header.gso_type == kGsoNone);
}

}  // namespace causeway::proto
