// SPDX-License-Identifier: Apache-2.0
// One published port, or a range of them: `LISTEN=TO[,OPTION]...`.
//
//   tcp:0.0.0.0:443=tcp:443           over the TAP (nftables DNAT; the client's address is kept)
//   udp:[::]:5000-5010=udp:5000       a range; the target names its first port
//   tcp:203.0.113.7:443=vsock:443     over a stream of its own to the guest's CID, port 443
//   tcp:0.0.0.0:443=hvsock:/PATH:443  the same through a hybrid vsock device's socket
//   tcp:0.0.0.0:443=unix:/PATH        the same to a unix socket on this host
// Options of streams: proxy-v2 (send a PROXY v2 header), idle=DURATION (default 10m), limit=N
// (connections at once, default 1024). A range works with TAP and vsock targets.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "common/config/option.hpp"
#include "common/net/address.hpp"
#include "common/result.hpp"
#include "common/units.hpp"

namespace causeway::host {

enum class Transport : std::uint8_t { tcp, udp };

struct TapTarget {
  std::uint16_t port = 0;  // the first of a range; same transport as the listener
  friend bool operator==(const TapTarget&, const TapTarget&) = default;
};
struct VsockTarget {
  std::uint32_t port = 0;  // the first of a range; on the guest's CID
  friend bool operator==(const VsockTarget&, const VsockTarget&) = default;
};

struct Publish {
  Transport transport = Transport::tcp;
  IpAddress address;        // 0.0.0.0 and [::]: every address of that family
  std::uint16_t first = 0;  // the ports `first` to `last`
  std::uint16_t last = 0;
  std::variant<TapTarget, VsockTarget, HybridVsockAddress, UnixAddress> target;
  bool proxy_v2 = false;
  Duration idle{std::chrono::minutes{10}};
  std::uint32_t limit = 1024;
  [[nodiscard]] bool over_tap() const { return std::holds_alternative<TapTarget>(target); }
};

Result<Publish> parse_publish(std::string_view text);
std::string to_string(const Publish& publish);
Codec<Publish> publish_codec();

}  // namespace causeway::host
