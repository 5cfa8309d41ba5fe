// SPDX-License-Identifier: Apache-2.0
#include "common/bridge/program.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "common/version.hpp"

namespace causeway::bridge {

Result<void> check_interface_name(std::string_view text) {
  const auto bad = [](char c) { return c == '/' || c == ':' || c <= ' ' || c > '~'; };
  if (text.empty() || text.size() > 15 || text == "." || text == ".." ||
      std::any_of(text.begin(), text.end(), bad)) {
    return Error{"not an interface name: 1 to 15 printable ASCII characters without / : and space",
                 EINVAL};
  }
  return {};
}

namespace {

// A rule over two options.
Result<void> check_link(const LinkConfig& config) {
  if (config.max_frame < config.frame_mtu() + proto::kMinFrame) {
    return Error{std::to_string(config.max_frame) + " bytes are too short for the frames of mtu " +
                     std::to_string(config.frame_mtu()) + ", " +
                     std::to_string(config.frame_mtu() + proto::kMinFrame) + " bytes",
                 EINVAL};
  }
  return {};
}

}  // namespace

void add_link_options(OptionGroup& group, LinkConfig& config) {
  group.add("tap", config.tap,
            {.value = "NAME",
             .doc = "The TAP: created, or attached to when it exists.",
             .check = check_interface_name});
  group.add("mac", config.mac,
            {.value = "MAC",
             .doc = "The TAP's MAC; by default derived from its name and addresses, so that it is "
                    "the same after a restart.",
             .check = [](std::string_view text) -> Result<void> {
               const auto mac = net::parse_mac(text);
               return mac ? Result<void>{} : Result<void>{mac.error()};
             }});
  group.add("mtu", config.mtu,
            {.doc = "The TAP's MTU, bytes; by default 1500, or what is offered.",
             .min = 576,
             .max = 65521});
  group.add("txqueuelen", config.txqueuelen,
            {.value = "PACKETS",
             .doc = "Packets that may wait for the program in the TAP's queue.",
             .min = 16,
             .max = 65536});
  group.add("max_frame", config.max_frame,
            {.value = "BYTES",
             .doc = "The longest frame on the wire; 1518 suits a peer that ends on longer ones.",
             .min = 1514,
             .max = proto::kMaxFrame});
  group.add("max_write", config.max_write,
            {.doc = "The most that one write to the stream carries; by default 31000B on vsock and "
                    "256KiB elsewhere.",
             .min = 4096,
             .max = 1024 * 1024});
  group.add("vsock_buffer", config.vsock_buffer,
            {.doc = "The buffer of a vsock stream on this side.",
             .min = 64 * 1024,
             .max = 64 * 1024 * 1024});
  group.add_choice("wire", config.wire,
                   {{"auto", WireChoice::automatic},
                    {"plain", WireChoice::plain},
                    {"native", WireChoice::native}},
                   {.doc = "The format on the stream. auto takes the native wire with a peer that "
                           "speaks it and the plain wire with any other."});
  group.add("lanes", config.lanes,
            {.doc = "Streams of one session, each with a TAP queue and a thread. Both sides' lower "
                    "number counts; the plain wire has one.",
             .min = 1,
             .max = proto::kMaxLanes});
  group.add("offload", config.offload,
            {.doc = "Let super-frames of up to 64 KiB cross a native wire whole."});
  group.add("busy_poll", config.busy_poll,
            {.value = "LOOKS",
             .doc = "How often a lane looks for more work before it sleeps. Each takes about a "
                    "microsecond and is offered to other processes; 0 saves that on a machine that "
                    "is mostly idle, and costs latency.",
             .max = 10'000});
  group.add("keepalive", config.keepalive,
            {.doc = "On a native wire: silence after which the peer is pinged. Three of them end "
                    "the connection.",
             .min = 100,
             .max = 3'600'000});
  group.add_check("max_frame", [&config] { return check_link(config); });
}

void add_program_options(OptionTable& table, ProgramConfig& config) {
  table.add("admin", config.admin,
            {.doc = "Where GET /status and GET /healthz are served: unix:/PATH."});
  table.add_choice("log_level", config.log_level,
                   {{"debug", log::Level::debug},
                    {"info", log::Level::info},
                    {"warning", log::Level::warning},
                    {"error", log::Level::error}},
                   {.doc = "The least severe messages to log."});
}

TapOptions tap_options(const LinkConfig& config, const std::string& role) {
  TapOptions options;
  options.name = config.tap.value_or("");
  options.role = role;
  options.addresses = config.addresses;
  if (config.mac) {
    options.mac = *net::parse_mac(*config.mac);  // checked by the option table
  }
  options.queues = config.lanes;
  options.mtu = config.frame_mtu();
  options.txqueuelen = config.txqueuelen;
  return options;
}

SessionOptions session_options(const LinkConfig& config) {
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

std::string version_text(const std::string& program) {
  return program + " " + kVersion + " (commit " + kCommit + ")";
}

int fail(const std::string& program, const Error& error) {
  std::fprintf(stderr, "%s: %s\n", program.c_str(), error.message.c_str());
  return kExitFailure;
}

}  // namespace causeway::bridge
