// SPDX-License-Identifier: Apache-2.0
// Theory of operation: the TAP.
//
// One Tap is one network interface with one or more queues; each queue is a file descriptor that
// one lane reads and writes, one packet a system call. The interface is created here, or attached
// to when somebody made it before (then it outlives us, and creating needs no capability). It
// always carries a 10-byte virtio-net header in front of each packet (IFF_VNET_HDR): with offloads
// switched on the kernel hands over super-frames of up to 64 KiB with their checksum still to be
// filled in; with offloads off the header is there and empty. The descriptors are non-blocking,
// which is also what the kernel's fast write path asks for (drivers/net/tun.c, tun_can_build_skb).
//
// The MAC is derived from what the operator named, so that a program that was killed and started
// again is the same neighbour as before, and no ARP entry of the other side goes stale.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/net/address.hpp"
#include "common/net/netlink.hpp"
#include "common/os/unique_fd.hpp"
#include "common/result.hpp"

namespace causeway::bridge {

struct TapOptions {
  std::string name;  // 1 to 15 bytes
  std::string role;  // "host" or "guest": goes into the derived MAC
  std::vector<Cidr> addresses;
  std::optional<net::Mac> mac;      // instead of the derived one
  std::uint32_t mtu = 1500;         // bytes, 576 to 65,521
  std::uint32_t txqueuelen = 4096;  // packets: a whole TCP window at MTU 1500 fits (kernel.md 2.3)
  unsigned queues = 1;
  bool attach = false;  // the TAP has to be there, and stays as it is
};

// What TUNSETOFFLOAD switches on: what the reader of the TAP is ready to take.
struct Offloads {
  bool checksum_and_tso = false;
  bool uso = false;  // needs Linux 6.2
  friend bool operator==(const Offloads&, const Offloads&) = default;
};

class Tap {
 public:
  // Creates it, or attaches to one that is there, sets MTU, MAC, queue length and addresses, and
  // brings the link up.
  static Result<Tap> open(const TapOptions& options, net::Netlink& netlink);

  // What Tap::open() of another process gave: see release().
  struct Parts {
    std::string name;
    std::uint32_t mtu = 0;
    bool uso_possible = false;
    bool backpressure = false;
    std::vector<UniqueFd> queues;
  };
  static Tap adopt(Parts parts);
  // The TAP's descriptors and what is known of it, to hand to another process.
  [[nodiscard]] Parts release() &&;
  // Closes the queues: a TAP that we created goes away. Not while a lane runs.
  void close() {
    queues_.clear();
    in_use_.clear();
  }

  [[nodiscard]] int queue(unsigned index) const { return queues_.at(index).get(); }
  [[nodiscard]] unsigned queue_count() const { return static_cast<unsigned>(queues_.size()); }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::uint32_t mtu() const { return mtu_; }
  [[nodiscard]] const Offloads& offloads() const { return offloads_; }
  [[nodiscard]] bool backpressure() const { return backpressure_; }
  // True when this kernel takes UDP segmentation on a TAP.
  [[nodiscard]] bool uso_possible() const { return uso_possible_; }

  // Takes a queue out of use, or back: the kernel spreads flows over the queues that are in use. Of
  // no effect on a TAP with one queue.
  Result<void> use_queue(unsigned index, bool in_use);

  // The link's MTU was changed, bytes.
  void note_mtu(std::uint32_t mtu) { mtu_ = mtu; }

  // Applies to the whole interface, at once, whatever is in its queues.
  Result<void> set_offloads(const Offloads& wanted);

 private:
  Tap() = default;
  static Result<void> configure(const TapOptions& options, net::Netlink& netlink);
  Result<void> open_queues(const TapOptions& options);

  std::vector<UniqueFd> queues_;
  std::vector<bool> in_use_;
  std::string name_;
  std::uint32_t mtu_ = 0;
  Offloads offloads_;
  bool uso_possible_ = false;
  bool backpressure_ = false;
};

// A locally administered unicast MAC that depends on the arguments alone.
net::Mac derive_mac(const std::string& role, const std::string& name,
                    const std::vector<Cidr>& addresses);

}  // namespace causeway::bridge
