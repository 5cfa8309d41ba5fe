// SPDX-License-Identifier: Apache-2.0
// Theory of operation: from single frames to super-frames.
//
// A plain peer sends frames of at most its MTU, and so does any sender of datagrams, and every
// write to a TAP walks the whole receive path of the kernel. So the frames of one batch (one read
// of the stream) that are consecutive pieces of one flow become one write: the first frame with its
// headers edited in place, then the payloads of the others where they lie in the receive buffer, as
// an iovec. No byte of payload is copied. This is what the kernel's GRO does for a network card
// (net/ipv4/tcp_offload.c and udp_offload.c), and the rules of what may be merged are its rules.
//
// A *group* is an open run of one flow; there are kGroups at most, and the oldest one is written
// when a ninth is needed. A frame joins the group of its flow when
//  - Ethernet header and tag, all of the IPv4 or IPv6 header that routers and sockets look at (TOS
//    or traffic class with ECN, TTL or hop limit, DF, flow label) and the ports are equal, and IPv4
//    has neither options nor fragments; IPv4 identifications count up, or stay the same under DF;
//  - TCP: it continues the sequence; acknowledgement, window, options and flags are equal, but for
//    FIN and PSH, which it may bring and which end the group; SYN, RST, URG and CWR never merge;
//  - UDP, when the TAP takes USO: it has a checksum;
//  - its payload is not empty and not above that of the first frame; a shorter one ends the group;
//  - the result stays within 65,535 bytes of IP and kMaxSegments (UDP: 64) frames;
//  - its checksums, and those of the first frame, are right. They are verified here because the
//    merged frame is marked as needing a checksum, which the kernel takes as good. A frame with a
//    wrong one goes alone and as it was, so that the kernel drops and counts it.
// Anything else goes through alone as received, behind the vnet header it came with. A frame that
// cannot join closes the group of its flow first, so the order within a flow never changes; a frame
// whose flow cannot be told (a fragment, extension headers, a broken header) closes all groups.
//
// flush() at the end of each batch: nothing waits for a later one, and the groups point into the
// receive buffer. No timer, no allocation.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>

#include "proto/headers.hpp"
#include "proto/vnet.hpp"

namespace causeway::proto {

// A reference to the caller's function for one TAP write, valid for the call it is passed to:
// void(const VnetHeader&, std::span<const iovec>). The first iovec is that header itself, so a
// writev of the whole span is the write. None is empty, and what they point to is only borrowed.
class WriteSink {
 public:
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, WriteSink>)
      WriteSink(F&& function)  // NOLINT(bugprone-forwarding-reference-overload): excluded above
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(function)))),
        call_([](void* object, const VnetHeader& header, std::span<const iovec> pieces) {
          (*static_cast<std::remove_reference_t<F>*>(object))(header, pieces);
        }) {}

  void operator()(const VnetHeader& header, std::span<const iovec> pieces) const {
    call_(object_, header, pieces);
  }

 private:
  void* object_;
  void (*call_)(void*, const VnetHeader&, std::span<const iovec>);
};

struct CoalesceCounters {
  std::uint64_t frames = 0;        // added
  std::uint64_t writes = 0;        // handed to the sink
  std::uint64_t bad_checksum = 0;  // met while merging, and passed on alone
};

class Coalescer {
 public:
  static constexpr std::size_t kGroups = 8;
  static constexpr std::size_t kMaxSegments = 128;    // one iovec each: far below IOV_MAX
  static constexpr std::size_t kMaxUdpSegments = 64;  // UDP_MAX_SEGMENTS of kernels before 6.9

  // `uso`: the TAP takes UDP segmentation (TUN_F_USO4 and TUN_F_USO6).
  explicit Coalescer(bool uso) : uso_(uso) {}

  // Takes the next frame of the batch, not empty. It must stay where it is until flush(), and its
  // headers may be edited. Calls `sink` for everything that became ready: never, once or more
  // often.
  void add(std::span<std::byte> frame, WriteSink sink) { add(frame, VnetHeader{}, sink); }
  // The same for a frame that came with a vnet header, rebuilt from it (rebuild_offload). One whose
  // checksum is still to be filled in merges without being summed; a super-frame goes through
  // alone, after all that came before it.
  void add(std::span<std::byte> frame, const VnetHeader& vnet, WriteSink sink);
  // Writes every open group, the oldest first. Call it at the end of each batch, before the memory
  // of the frames is used again.
  void flush(WriteSink sink);

  [[nodiscard]] const CoalesceCounters& counters() const { return counters_; }

 private:
  // Which flow a frame is of; frames with different keys have no order between them.
  struct Key {
    std::uint64_t ports = 0;  // ports, protocol, IP version
    std::array<std::uint64_t, 4> addresses{};
    friend bool operator==(const Key&, const Key&) = default;
  };

  struct Frame {
    std::span<std::byte> bytes;
    Headers at;
    Key key;
    VnetHeader vnet;
  };

  struct Group {
    Frame head;
    VnetHeader vnet;
    std::uint16_t gso_size = 0;
    std::uint16_t id = 0;    // IPv4 identification of the last frame
    std::uint8_t flags = 0;  // FIN and PSH of the last frame
    bool fixed_id = false;
    bool verified = false;  // the head's checksums
    std::size_t payload = 0;
    std::size_t frames = 0;
    std::array<iovec, 1 + kMaxSegments> pieces;  // vnet header, head, payloads
  };

  enum class Joined : std::uint8_t { no, bad_frame, open, complete };

  Joined join(Group& group, const Frame& frame);
  void open(const Frame& frame, WriteSink sink);
  void close(std::size_t position, WriteSink sink);
  void pass(std::span<std::byte> frame, VnetHeader vnet, WriteSink sink);

  CoalesceCounters counters_;
  bool uso_;
  std::size_t open_ = 0;
  // Indices of groups_: the open ones by age, the oldest first, then the free ones.
  std::array<std::uint8_t, kGroups> order_{0, 1, 2, 3, 4, 5, 6, 7};
  std::array<Group, kGroups> groups_;
};

}  // namespace causeway::proto
