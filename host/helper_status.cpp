// SPDX-License-Identifier: Apache-2.0
// What the helper says of itself: GET /status, and the service manager's status line.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "common/admin/bridge_status.hpp"
#include "host/guest.hpp"

namespace causeway::host {

namespace {

using Json = nlohmann::ordered_json;
constexpr double kGiga = 1e9;
constexpr double kBits = 8;

Json describe_published(const StreamPublisher& publisher) {
  Json list = Json::array();
  for (const auto& entry : publisher.status()) {
    const auto& counters = entry.counters;
    list.push_back({{"guest", entry.guest},
                    {"publish", entry.publish},
                    {"active", counters.active},
                    {"accepted", counters.accepted},
                    {"refused_limit", counters.refused_limit},
                    {"connect_failed", counters.connect_failed},
                    {"idle_closed", counters.idle_closed},
                    {"reset", counters.reset},
                    {"bytes_to_guest", counters.bytes_to_guest},
                    {"bytes_to_client", counters.bytes_to_client}});
  }
  return list;
}

}  // namespace

// A helper with one guest shows it at the top level too: what is true of the pair is where the
// framer's status has it.
std::string Helper::status() {
  const std::lock_guard lock(mutex_);
  Json json = admin::describe_program("causeway-host", started_);
  json["instance"] = config_.instance;
  Json guests = Json::array();
  for (const auto& [name, guest] : guests_) {
    Json item = {{"name", name}, {"cid", nullptr}};
    if (guest->config.cid) {
      item["cid"] = *guest->config.cid;
    }
    admin::describe_bridge(item, guest->tap, guest->session, netlink_);
    guests.push_back(std::move(item));
  }
  if (guests.size() == 1) {
    for (const auto& [key, value] : guests.front().items()) {
      if (key != "name" && key != "cid") {
        json[key] = value;
      }
    }
  }
  json["guests"] = std::move(guests);
  json["failed"] = failed_;
  json["published"] = describe_published(publisher_);
  json["refused"] = {{"unknown_cid", refused_unknown_cid_}};
  json["reload_error"] = nullptr;
  if (!last_reload_error_.empty()) {
    json["reload_error"] = last_reload_error_;
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string Helper::status_line(Clock::duration since) {
  std::size_t up = 0;
  std::uint64_t bytes = 0;
  for (const auto& [name, guest] : guests_) {
    up += guest->session.status().state == "up" ? 1 : 0;
    for (const auto& lane : guest->session.lanes()) {
      bytes += lane->counters().from_wire_bytes.get() + lane->counters().to_wire_bytes.get();
    }
  }
  const double seconds = std::chrono::duration<double>(since).count();
  const double rate = static_cast<double>(bytes - std::min(bytes_before_, bytes)) * kBits / seconds;
  bytes_before_ = bytes;
  return fmt::format("{} guests, {} up, {:.2f} Gbit/s{}", guests_.size(), up, rate / kGiga,
                     failed_.empty() ? "" : fmt::format(", {} failed", failed_.size()));
}

}  // namespace causeway::host
