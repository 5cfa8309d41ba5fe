// SPDX-License-Identifier: Apache-2.0
#include "common/admin/bridge_status.hpp"

#include <unistd.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "common/version.hpp"

namespace causeway::admin {

namespace {

using Json = nlohmann::ordered_json;
using bridge::LaneCounters;

struct NamedCounter {
  const char* name;
  Counter LaneCounters::*member;
};

constexpr std::array kCounters = {
    NamedCounter{"from_tap_frames", &LaneCounters::from_tap_frames},
    NamedCounter{"from_tap_bytes", &LaneCounters::from_tap_bytes},
    NamedCounter{"to_tap_frames", &LaneCounters::to_tap_frames},
    NamedCounter{"to_tap_bytes", &LaneCounters::to_tap_bytes},
    NamedCounter{"from_wire_records", &LaneCounters::from_wire_records},
    NamedCounter{"from_wire_bytes", &LaneCounters::from_wire_bytes},
    NamedCounter{"from_wire_reads", &LaneCounters::from_wire_reads},
    NamedCounter{"to_wire_records", &LaneCounters::to_wire_records},
    NamedCounter{"to_wire_bytes", &LaneCounters::to_wire_bytes},
    NamedCounter{"to_wire_writes", &LaneCounters::to_wire_writes},
    NamedCounter{"pings_sent", &LaneCounters::pings_sent},
    NamedCounter{"pongs_received", &LaneCounters::pongs_received},
    NamedCounter{"pings_received", &LaneCounters::pings_received},
    NamedCounter{"unknown_controls", &LaneCounters::unknown_controls},
};

Json render_tap(const bridge::Tap& tap, const bridge::Offloads& switched_on,
                net::Netlink& netlink) {
  Json json = {{"name", tap.name()}, {"queues", tap.queue_count()}};
  Json offloads = Json::array();
  if (switched_on.checksum_and_tso) {
    offloads = {"checksum", "tso4", "tso6"};
  }
  if (switched_on.uso) {
    offloads.push_back("uso");
  }
  json["offloads"] = std::move(offloads);
  json["backpressure"] = tap.backpressure();
  const auto link = netlink.link(tap.name());
  if (!link) {
    json["error"] = link.error().message;
    return json;
  }
  json["mtu"] = link->mtu;
  json["mac"] = net::to_string(link->mac);
  json["txqueuelen"] = link->txqueuelen;
  json["up"] = link->up;
  json["tx_dropped"] = link->tx_dropped;
  json["rx_dropped"] = link->rx_dropped;
  return json;
}

Json render_session(const bridge::Session::Status& status) {
  Json lanes = Json::array();
  for (std::size_t i = 0; i < status.lanes.size(); ++i) {
    const auto& lane = status.lanes[i];
    Json item = {{"index", i}, {"state", lane.up ? "up" : "down"}};
    if (lane.up) {
      item["transport"] = lane.transport;
      item["peer"] = lane.peer;
      item["max_write"] = lane.max_write;
      if (lane.vsock_buffer != 0) {
        item["vsock_buffer"] = lane.vsock_buffer;
      }
    }
    lanes.push_back(std::move(item));
  }
  Json json = {{"state", status.state},
               {"id", nullptr},
               {"features", Json::array()},
               {"lanes", std::move(lanes)},
               {"connections_total", status.connections_total},
               {"replaced_total", status.replaced_total},
               {"connect_failures_total", status.connect_failures_total},
               {"offers_ignored_total", status.offers_ignored_total}};
  if (!status.id.empty()) {
    json["id"] = status.id;
  }
  for (const auto& [bit, word] :
       {std::pair{proto::kFeatureOffload, "offload"}, std::pair{proto::kFeatureUso, "uso"},
        std::pair{proto::kFeatureKeepalive, "keepalive"}}) {
    if ((status.features & bit) != 0) {
      json["features"].push_back(word);
    }
  }
  if (status.wire) {
    json["mtu"] = status.mtu;
    json["max_frame"] = status.max_frame;
  }
  if (!status.last_error.empty()) {
    json["last_error"] = status.last_error;
  }
  return json;
}

}  // namespace

nlohmann::ordered_json describe_program(const std::string& program,
                                        std::chrono::steady_clock::time_point started) {
  const std::chrono::duration<double> uptime = std::chrono::steady_clock::now() - started;
  return {{"program", program},
          {"version", kVersion},
          {"commit", kCommit},
          {"pid", ::getpid()},
          {"uptime_seconds", uptime.count()}};
}

void describe_bridge(nlohmann::ordered_json& json, const bridge::Tap& tap,
                     const bridge::Session& session, net::Netlink& netlink) {
  const auto status = session.status();
  json["wire_requested"] = bridge::name(session.options().wire);
  json["wire"] = nullptr;
  if (status.wire) {
    json["wire"] = bridge::name(*status.wire);
  }
  json["tap"] = render_tap(tap, status.offloads, netlink);
  json["session"] = render_session(status);
  Json counters = Json::object();
  for (const auto& counter : kCounters) {
    std::uint64_t sum = 0;
    for (const auto& lane : session.lanes()) {
      sum += (lane->counters().*counter.member).get();
    }
    counters[counter.name] = sum;
  }
  json["counters"] = std::move(counters);
  Json dropped = Json::object();
  for (std::size_t i = 0; i < bridge::kDropReasons; ++i) {
    std::uint64_t sum = 0;
    for (const auto& lane : session.lanes()) {
      sum += lane->counters().dropped[i].get();
    }
    if (const auto reason = bridge::name(static_cast<bridge::DropReason>(i)); !reason.empty()) {
      dropped[std::string(reason)] = sum;
    }
  }
  json["dropped"] = std::move(dropped);
  Json ended = Json::object();
  for (std::size_t i = 0; i < bridge::kEndReasons; ++i) {
    ended[std::string(bridge::name(static_cast<bridge::EndReason>(i)))] = status.ended[i];
  }
  json["ended"] = std::move(ended);
}

}  // namespace causeway::admin
