// SPDX-License-Identifier: Apache-2.0
// Theory of operation: the broker.
//
// causeway-host is two processes. The one that the operator started handles what guests and clients
// send, and has no privilege at all. The broker, forked from it before anything else happened,
// keeps CAP_NET_ADMIN (root, if that is what it was started as) and does a fixed list of
// operations:
//
//   admin            the admin endpoint's socket
//   listen           the shared listener's socket
//   open NAME        a configured guest's TAP and own listener
//   unknown CID      the same for the next numbered guest of accept_unknown
//   publish NAME I   the listening sockets of its Ith published stream
//   release NAME     the guest is gone: its listener's file goes with it
//   rules            nftables and forwarding for the guests that are open
//   reload           the configuration file is read again; its text is the answer
//   goodbye          the main process ends by itself
//
// It takes names and numbers, and looks all else up in its own copy of the configuration: a main
// process that was taken over by a guest can ask for what the operator allowed, and for nothing
// else. Requests and answers are JSON over a SOCK_SEQPACKET pair, descriptors with SCM_RIGHTS.
//
// When the main process is gone, by whatever way, the broker sees the end of the channel, removes
// the rules, restores what it had set, and ends. If both are killed, the next start with the same
// instance name does that first (or `causeway-host --cleanup`). A lock keeps two helpers of one
// instance apart, the dying one included.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/bridge/tap.hpp"
#include "common/net/netlink.hpp"
#include "common/net/stream.hpp"
#include "common/os/channel.hpp"
#include "host/config.hpp"
#include "host/network/network.hpp"

namespace causeway::host {

class Broker {
 public:
  // `args` are the program's, to read the configuration again with.
  Broker(Channel channel, HostConfig config, std::vector<std::string> args);
  // Serves until the channel ends. The exit code of the process.
  int run();

 private:
  using Json = nlohmann::ordered_json;
  struct Answer;
  struct Open {
    GuestConfig config;
    std::optional<net::Listener> listener;
  };

  Answer handle_all(const Json& request);
  Answer handle(const Json& request);
  Result<void> send(Answer& answer);
  Answer open_admin();
  Answer open_shared();
  Answer open_named(const std::string& name);
  Answer open_unknown(std::uint32_t cid);
  Answer open_guest(const GuestConfig& config);
  Answer open_publish(const std::string& name, std::size_t index);
  Answer reload();
  Result<void> apply_rules();
  void clean_up(bool goodbye);

  Channel channel_;
  HostConfig config_;
  std::vector<std::string> args_;
  bool locked_ = false;
  std::optional<net::Netlink> netlink_;
  Network network_;
  bool rules_applied_ = false;
  std::optional<net::Listener> shared_;
  std::optional<net::Listener> admin_;
  std::map<std::string, Open> open_;
};

// Where the state of this network namespace is, below the configured directory: instances of two
// namespaces are strangers.
std::string state_directory(const HostConfig& config);

// The rules of these guests, and what forwarding they need.
RuleSet rule_set(const std::string& instance, const std::vector<const GuestConfig*>& guests);

}  // namespace causeway::host
