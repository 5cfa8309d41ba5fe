// SPDX-License-Identifier: Apache-2.0
#include "common/bridge/tap.hpp"

#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <sys/ioctl.h>

#include <cstring>

#include "proto/vnet.hpp"

namespace causeway::bridge {

namespace {

// Names that Debian 12's headers do not have yet (linux/if_tun.h of 6.2 and of 7.3).
constexpr unsigned kTunUso4 = 0x20;
constexpr unsigned kTunUso6 = 0x40;
constexpr unsigned kIffBackpressure = 0x0080;

Error explain_open(int code) {
  switch (code) {
    case ENOENT:
    case ENODEV:
    case ENXIO:
      return {
          "/dev/net/tun is missing: load the tun module (modprobe tun), or run on a kernel with "
          "CONFIG_TUN",
          code};
    case EACCES:
    case EPERM:
      return {"/dev/net/tun: permission denied: run as root, or as a user that may open it", code};
    default:
      return system_error("/dev/net/tun", code);
  }
}

Error explain_attach(const TapOptions& options, int code) {
  const std::string tap = "TAP '" + options.name + "'";
  switch (code) {
    case EPERM:
    case EACCES:
      return {tap +
                  ": permission denied: give CAP_NET_ADMIN (run as root), or make the TAP before "
                  "for this user (ip tuntap add mode tap user USER)",
              code};
    case EBUSY:
      return {tap + " is in use by another process: stop that one, or choose another --tap name",
              code};
    case EINVAL:
    case E2BIG:
      return {tap + " cannot be attached: an interface of that name exists and is not a TAP with " +
                  (options.queues > 1 ? "several queues" : "one queue") +
                  ": choose another --tap name, or fit --lanes to it",
              code};
    default:
      return system_error(tap, code);
  }
}

}  // namespace

net::Mac derive_mac(const std::string& role, const std::string& name,
                    const std::vector<Cidr>& addresses) {
  std::string seed = role + '/' + name;
  for (const auto& address : addresses) {
    seed += '/' + to_string(address);
  }
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a, 64 bits
  for (const char c : seed) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  net::Mac mac{0x02, 0, 0, 0, 0, 0};  // locally administered, unicast
  for (std::size_t i = 1; i < mac.size(); ++i) {
    mac[i] = static_cast<std::uint8_t>(hash >> (8 * i));
  }
  return mac;
}

Result<void> Tap::open_queues(const TapOptions& options) {
  for (unsigned i = 0; i < options.queues; ++i) {
    UniqueFd fd(::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC));
    if (!fd.valid()) {
      return explain_open(errno);
    }
    unsigned features = 0;
    if (::ioctl(fd.get(), TUNGETFEATURES, &features) != 0) {
      return system_error("/dev/net/tun: TUNGETFEATURES");
    }
    unsigned flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
    if (options.queues > 1) {
      flags |= IFF_MULTI_QUEUE;
    }
    backpressure_ = (features & kIffBackpressure) != 0;
    if (backpressure_) {
      flags |= kIffBackpressure;
    }
    ifreq request{};
    std::memcpy(request.ifr_name, options.name.c_str(), options.name.size());
    request.ifr_flags = static_cast<short>(flags);
    if (::ioctl(fd.get(), TUNSETIFF, &request) != 0) {
      return explain_attach(options, errno);
    }
    int header_size = sizeof(proto::VnetHeader);
    int little_endian = 1;
    if (::ioctl(fd.get(), TUNSETVNETHDRSZ, &header_size) != 0 ||
        ::ioctl(fd.get(), TUNSETVNETLE, &little_endian) != 0) {
      return system_error("TAP '" + options.name + "': virtio-net header");
    }
    queues_.push_back(std::move(fd));
    in_use_.push_back(true);
  }
  return {};
}

Tap Tap::adopt(Parts parts) {
  Tap tap;
  tap.name_ = std::move(parts.name);
  tap.mtu_ = parts.mtu;
  tap.uso_possible_ = parts.uso_possible;
  tap.backpressure_ = parts.backpressure;
  tap.offloads_ = {.checksum_and_tso = true, .uso = parts.uso_possible};  // as open() leaves it
  tap.in_use_.assign(parts.queues.size(), true);
  tap.queues_ = std::move(parts.queues);
  return tap;
}

Tap::Parts Tap::release() && {
  return {name_, mtu_, uso_possible_, backpressure_, std::move(queues_)};
}

Result<void> Tap::set_offloads(const Offloads& wanted) {
  unsigned flags = 0;
  if (wanted.checksum_and_tso) {
    flags |= TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6;
    if (wanted.uso) {
      flags |= kTunUso4 | kTunUso6;
    }
  }
  if (::ioctl(queues_.front().get(), TUNSETOFFLOAD, flags) != 0) {
    return system_error("TAP '" + name_ + "': TUNSETOFFLOAD");
  }
  offloads_ = wanted;
  return {};
}

Result<void> Tap::use_queue(unsigned index, bool in_use) {
  if (queues_.size() <= 1 || in_use_.at(index) == in_use) {
    return {};
  }
  ifreq request{};
  request.ifr_flags = static_cast<short>(in_use ? IFF_ATTACH_QUEUE : IFF_DETACH_QUEUE);
  if (::ioctl(queues_[index].get(), TUNSETQUEUE, &request) != 0) {
    return system_error("TAP '" + name_ + "': TUNSETQUEUE");
  }
  in_use_[index] = in_use;
  return {};
}

Result<Tap> Tap::open(const TapOptions& options, net::Netlink& netlink) {
  if (options.name.empty() || options.name.size() >= IFNAMSIZ) {
    return Error{"TAP name '" + options.name + "' must have 1 to 15 bytes", EINVAL};
  }
  if (options.attach && !netlink.link(options.name)) {
    return Error{"TAP '" + options.name + "' does not exist: make it before (ip tuntap add mode " +
                     "tap), or let it be created (without attach)",
                 ENODEV};
  }
  Tap tap;
  tap.name_ = options.name;
  if (auto opened = tap.open_queues(options); !opened) {
    return opened.error();
  }
  // An unknown bit fails the whole call, so USO is asked for first and left out if refused.
  tap.uso_possible_ = tap.set_offloads({.checksum_and_tso = true, .uso = true}).has_value();
  const Offloads start{.checksum_and_tso = true, .uso = tap.uso_possible_};
  if (auto set = tap.set_offloads(start); !set) {
    return set.error();
  }
  if (auto configured = options.attach ? Result<void>{} : configure(options, netlink);
      !configured) {
    return configured.error();
  }
  const auto info = netlink.link(options.name);
  if (!info) {
    return info.error();
  }
  tap.mtu_ = info->mtu;
  return tap;
}

Result<void> Tap::configure(const TapOptions& options, net::Netlink& netlink) {
  net::LinkChange change;
  change.mtu = options.mtu;
  change.txqueuelen = options.txqueuelen;
  change.mac =
      options.mac ? *options.mac : derive_mac(options.role, options.name, options.addresses);
  change.up = true;
  // A TAP that somebody else made may be set up already; without CAP_NET_ADMIN that has to do.
  if (auto changed = netlink.change_link(options.name, change); !changed) {
    const auto info = netlink.link(options.name);
    if (!info || !info->up || changed.error().code != EPERM) {
      return changed.error();
    }
  }
  for (const auto& address : options.addresses) {
    if (auto added = netlink.add_address(options.name, address); !added) {
      return added.error();
    }
  }
  return {};
}

}  // namespace causeway::bridge
