// SPDX-License-Identifier: Apache-2.0
#include "common/bridge/program.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <utility>

#include "common/admin/bridge_status.hpp"
#include "common/admin/server.hpp"
#include "common/net/asio.hpp"
#include "common/version.hpp"

namespace causeway::bridge {

namespace {

constexpr int kExitFailure = 1;

int fail(const std::string& program, const Error& error) {
  std::fprintf(stderr, "%s: %s\n", program.c_str(), error.message.c_str());
  return kExitFailure;
}

SessionOptions session_options(const ProgramConfig& config) {
  SessionOptions options;
  options.wire = config.wire;
  options.max_frame = config.max_frame;
  options.offload = config.offload;
  options.busy_poll = config.busy_poll;
  options.keepalive = config.keepalive;
  options.max_write = config.max_write ? config.max_write->bytes : 0;
  options.stream.vsock_buffer = config.vsock_buffer.bytes;
  return options;
}

// As the kernel's dev_valid_name() has it.
Result<void> check_interface_name(std::string_view text) {
  const auto bad = [](char c) { return c == '/' || c == ':' || c <= ' ' || c > '~'; };
  if (text.empty() || text.size() > 15 || text == "." || text == ".." ||
      std::any_of(text.begin(), text.end(), bad)) {
    return Error{"not an interface name: 1 to 15 printable ASCII characters without / : and space",
                 EINVAL};
  }
  return {};
}

}  // namespace

void add_program_options(OptionTable& table, ProgramConfig& config) {
  table.add("tap", config.tap,
            {.value = "NAME",
             .doc = "The TAP: created, or attached to when it exists.",
             .required = true,
             .check = check_interface_name});
  table.add("address", config.addresses,
            {.doc = "An address of the TAP with its prefix, as 10.0.0.1/24 or fd00::1/64."});
  table.add("mac", config.mac,
            {.value = "MAC",
             .doc = "The TAP's MAC; by default derived from its name and addresses, so that it is "
                    "the same after a restart.",
             .check = [](std::string_view text) -> Result<void> {
               const auto mac = net::parse_mac(text);
               return mac ? Result<void>{} : Result<void>{mac.error()};
             }});
  table.add("mtu", config.mtu, {.doc = "The TAP's MTU, bytes.", .min = 576, .max = 65521});
  table.add("txqueuelen", config.txqueuelen,
            {.value = "PACKETS",
             .doc = "Packets that may wait for the program in the TAP's queue.",
             .min = 16,
             .max = 65536});
  table.add("max_frame", config.max_frame,
            {.value = "BYTES",
             .doc = "The longest frame on the wire; 1518 suits a peer that ends on longer ones.",
             .min = 1514,
             .max = proto::kMaxFrame});
  table.add("max_write", config.max_write,
            {.doc = "The most that one write to the stream carries; by default 31000B on vsock and "
                    "256KiB elsewhere.",
             .min = 4096,
             .max = 1024 * 1024});
  table.add("vsock_buffer", config.vsock_buffer,
            {.doc = "The buffer of a vsock stream on this side.",
             .min = 64 * 1024,
             .max = 64 * 1024 * 1024});
  table.add_choice("wire", config.wire,
                   {{"auto", WireChoice::automatic},
                    {"plain", WireChoice::plain},
                    {"native", WireChoice::native}},
                   {.doc = "The format on the stream. auto takes the native wire with a peer that "
                           "speaks it and the plain wire with any other."});
  table.add("lanes", config.lanes,
            {.doc = "Streams of one session, each with a TAP queue and a thread. Both sides' lower "
                    "number counts; the plain wire has one.",
             .min = 1,
             .max = proto::kMaxLanes});
  table.add("offload", config.offload,
            {.doc = "Let super-frames of up to 64 KiB cross a native wire whole."});
  table.add("busy_poll", config.busy_poll,
            {.value = "LOOKS",
             .doc = "How often a lane looks for more work before it sleeps. Each takes about a "
                    "microsecond and is offered to other processes; 0 saves that on a machine that "
                    "is mostly idle, and costs latency.",
             .max = 10'000});
  table.add("keepalive", config.keepalive,
            {.doc = "On a native wire: silence after which the peer is pinged. Three of them end "
                    "the connection.",
             .min = 100,
             .max = 3'600'000});
  table.add("admin", config.admin,
            {.doc = "Where GET /status and GET /healthz are served: unix:/PATH."});
  table.add_choice("log_level", config.log_level,
                   {{"debug", log::Level::debug},
                    {"info", log::Level::info},
                    {"warning", log::Level::warning},
                    {"error", log::Level::error}},
                   {.doc = "The least severe messages to log."});
}

std::string version_text(const std::string& program) {
  return program + " " + kVersion + " (commit " + kCommit + ")";
}

namespace {

// What can be known to be wrong before anything is made.
Result<void> check(const Role& role, const ProgramConfig& config) {
  if (config.max_frame < config.mtu + proto::kMinFrame) {
    return Error{"--max-frame " + std::to_string(config.max_frame) +
                     ": too short for the frames of --mtu " + std::to_string(config.mtu) + ", " +
                     std::to_string(config.mtu + proto::kMinFrame) + " bytes",
                 EINVAL};
  }
  if (role.connect) {
    const auto* vsock = std::get_if<VsockAddress>(&role.connect->value);
    if (std::holds_alternative<FdAddress>(role.connect->value) ||
        (vsock != nullptr && vsock->cid == kVsockCidAny)) {
      return Error{to_string(*role.connect) + ": cannot be connected to", EINVAL};
    }
    const auto* tcp = std::get_if<TcpAddress>(&role.connect->value);
    if (tcp != nullptr && !parse_ip(tcp->host)) {
      return Error{to_string(*role.connect) + ": host names are not resolved: give an IP address",
                   EINVAL};
    }
  }
  return {};
}

int run_checked(const Role& role, const ProgramConfig& config) {
  log::init(role.program.c_str(), config.log_level);
  std::signal(SIGPIPE, SIG_IGN);

  if (auto good = check(role, config); !good) {
    return fail(role.program, good.error());
  }
  auto netlink = net::Netlink::open();
  if (!netlink) {
    return fail(role.program, netlink.error());
  }
  TapOptions tap_options;
  tap_options.name = *config.tap;
  tap_options.role = role.role;
  tap_options.addresses = config.addresses;
  if (config.mac) {
    tap_options.mac = *net::parse_mac(*config.mac);  // checked by the option table
  }
  tap_options.queues = config.lanes;
  tap_options.mtu = config.mtu;
  tap_options.txqueuelen = config.txqueuelen;

  const SessionOptions options = session_options(config);
  // The listener first: a path or port that is taken must not leave a TAP flashing up and down.
  std::optional<net::Listener> listener;
  if (role.listen) {
    auto opened = net::Listener::open(*role.listen, options.stream);
    if (!opened) {
      return fail(role.program, opened.error());
    }
    listener = std::move(*opened);
  }
  auto tap = Tap::open(tap_options, *netlink);
  if (!tap) {
    return fail(role.program, tap.error());
  }
  if (role.gateway) {
    if (auto routed = netlink->set_default_route(*config.tap, *role.gateway); !routed) {
      return fail(role.program, routed.error());
    }
  }

  asio::io_context control{1};
  Session session(control, *tap, options);
  asio::signal_set signals(control, SIGTERM, SIGINT);
  signals.async_wait([&](const asio::error_code& error, int number) {
    if (!error) {
      log::info("stopping on signal {}", number);
      session.stop();
      control.stop();
    }
  });

  admin::BridgeStatus status(role.program, *tap, session, std::move(*netlink));
  std::unique_ptr<admin::Server> admin_server;
  if (config.admin) {
    auto started = admin::Server::start(*config.admin,
                                        {[&status] { return status.render(); },
                                         [&session] { return session.status().state == "up"; }});
    if (!started) {
      return fail(role.program, started.error());
    }
    admin_server = std::move(*started);
  }

  log::info("TAP '{}' is up, MTU {}", tap->name(), tap->mtu());
  if (listener) {
    log::info("listening on {}", to_string(*role.listen));
    session.listen(std::move(*listener));
  } else {
    log::info("connecting to {}", to_string(*role.connect));
    session.connect(*role.connect);
  }
  control.run();
  session.stop();
  return session.failed() ? kExitFailure : 0;
}

}  // namespace

int run_program(const Role& role, const ProgramConfig& config) {
  try {
    return run_checked(role, config);
  } catch (const std::exception& error) {
    return fail(role.program, Error{error.what()});
  }
}

}  // namespace causeway::bridge
