// SPDX-License-Identifier: Apache-2.0
#include <ctime>
#include <nlohmann/json.hpp>

#include "common/admin/bridge_status.hpp"
#include "common/net/endpoints.hpp"
#include "guest/gateway/crypto/crypto.hpp"
#include "guest/gateway/gateway.hpp"

namespace causeway::gateway {

namespace {

using Json = nlohmann::ordered_json;

struct Named {
  const char* name;
  Counter WorkerCounters::*counter;
};
constexpr std::array kNamed = {
    Named{"accepted", &WorkerCounters::accepted},
    Named{"handed_over", &WorkerCounters::handed_over},
    Named{"taken_over", &WorkerCounters::taken_over},
    Named{"hand_over_full", &WorkerCounters::hand_over_full},
    Named{"accept_errors", &WorkerCounters::accept_errors},
    Named{"relayed", &WorkerCounters::relayed},
    Named{"spliced", &WorkerCounters::spliced},
    Named{"pipes_made", &WorkerCounters::pipes_made},
    Named{"connect_attempts", &WorkerCounters::connect_attempts},
    Named{"connect_retries", &WorkerCounters::connect_retries},
    Named{"bytes_to_upstream", &WorkerCounters::bytes_to_upstream},
    Named{"bytes_to_client", &WorkerCounters::bytes_to_client},
    Named{"loops", &WorkerCounters::loops},
    Named{"handshakes_full", &WorkerCounters::handshakes_full},
    Named{"handshakes_resumed", &WorkerCounters::handshakes_resumed},
    Named{"tls_1_2", &WorkerCounters::tls_1_2},
    Named{"tls_1_3", &WorkerCounters::tls_1_3},
    Named{"aes_128_gcm", &WorkerCounters::aes_128_gcm},
    Named{"aes_256_gcm", &WorkerCounters::aes_256_gcm},
    Named{"chacha20_poly1305", &WorkerCounters::chacha20_poly1305},
    Named{"upstream_handshakes_full", &WorkerCounters::upstream_handshakes_full},
    Named{"upstream_handshakes_resumed", &WorkerCounters::upstream_handshakes_resumed},
    Named{"truncated", &WorkerCounters::truncated},
    Named{"upstream_truncated", &WorkerCounters::upstream_truncated},
};

std::string splice_text(const GatewayConfig& config) {
  if (config.splice_after && config.splice_after->bytes == 0) return "at once";
  std::string text;
  if (config.splice_after) text = "after " + to_string(*config.splice_after);
  if (config.splice_after_time) {
    text += (text.empty() ? "after " : " or ") + to_string(*config.splice_after_time);
  }
  return text.empty() ? "off" : text;
}

const char* text_of(net::ProxyVersions versions) {
  switch (versions) {
    case net::ProxyVersions::v1:
      return "v1";
    case net::ProxyVersions::v2:
      return "v2";
    case net::ProxyVersions::any:
      break;
  }
  return "any";
}

std::string text_of(const Target& target) {
  if (const auto endpoint = net::endpoint_of(target.address)) {
    return to_string(Address{TcpAddress{to_string(endpoint->ip), endpoint->port}});
  }
  return target.address.family() == AF_UNIX ? "unix" : "vsock";
}

const char* text_of(TlsVersion version) {
  return version == TlsVersion::v1_2 ? "1.2" : "1.3";
}

std::string text_of(tls::Identity::Clock::time_point time) {
  const std::time_t seconds = tls::Identity::Clock::to_time_t(time);
  std::tm broken{};
  std::array<char, 32> text{};
  if (::gmtime_r(&seconds, &broken) == nullptr) return {};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &broken)};
}

Json describe_tls(const GatewayConfig& config, const TlsSnapshot& tls) {
  if (!tls.certificates) return nullptr;
  Json json = {{"crypto", crypto::description()}, {"certificates", Json::array()}};
  for (const auto& identity : tls.certificates->identities()) {
    json["certificates"].push_back({{"cert", identity->files().chain},
                                    {"names", identity->names()},
                                    {"key", identity->is_ecdsa() ? "ecdsa" : "rsa"},
                                    {"not_after", text_of(identity->not_after())}});
  }
  const char* const tickets = config.tls.ticket_keys.empty() ? "rotated" : "file";
  json["tickets"] = config.tls.tickets ? tickets : "off";
  json["min_version"] = text_of(config.tls.min_version);
  json["max_version"] = text_of(config.tls.max_version);
  return json;
}

using FaultCounters = std::array<Counter, static_cast<std::size_t>(tls::Fault::count_)>;

Json sum_faults(const std::vector<std::unique_ptr<Worker>>& workers,
                FaultCounters WorkerCounters::*faults) {
  Json json = Json::object();
  for (std::size_t i = 1; i < std::tuple_size_v<FaultCounters>; ++i) {  // 0 is no fault
    std::uint64_t sum = 0;
    for (const auto& worker : workers)
      sum += (worker->counters().*faults)[i].get();
    json[std::string(tls::name(static_cast<tls::Fault>(i)))] = sum;
  }
  return json;
}

Json describe_route(const Route& route, Upstream::Clock::time_point now) {
  Json json;
  json["label"] = route.config.label;
  json["names"] = route.config.names;
  const bool ends = route.config.mode == RouteMode::terminate;
  json["mode"] = route.config.application ? "application" : ends ? "terminate" : "passthrough";
  json["active"] = route.state->active.get();
  json["total"] = route.state->total.load(std::memory_order_relaxed);
  json["max_connections"] = route.config.max_connections;
  json["upstreams"] = Json::array();
  for (const UpstreamView& view : route.upstreams) {
    Json targets = Json::array();
    for (const Target& target : view.targets)
      targets.push_back(text_of(target));
    json["upstreams"].push_back({
        {"address", to_string(view.config.address)},
        {"weight", view.config.weight},
        {"active", view.state->active.get()},
        {"connected", view.state->connected.load(std::memory_order_relaxed)},
        {"failed", view.state->failed.load(std::memory_order_relaxed)},
        {"available", view.state->available(now)},
        {"drain", view.config.drain},
        {"targets", std::move(targets)},
    });
  }
  return json;
}

}  // namespace

std::string Gateway::status() {
  const std::lock_guard lock(mutex_);
  Json json = admin::describe_program("causeway-gateway", started_);
  json["threads_model"] = config_.threads_model == ThreadsModel::per_core ? "per_core" : "shared";
  json["rebalance"] = group_.rebalance;
  json["splice"] = splice_text(config_);
  json["draining"] = draining_;

  std::array<std::uint64_t, kNamed.size()> sums{};
  std::array<std::uint64_t, kEnds> ends{};
  std::uint64_t active = 0;
  std::size_t idle = 0;
  std::size_t in_use = 0;
  json["workers"] = Json::array();
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const Worker& worker = *workers_[i];
    Json counters;
    for (std::size_t k = 0; k < kNamed.size(); ++k) {
      const std::uint64_t value = (worker.counters().*kNamed[k].counter).get();
      counters[kNamed[k].name] = value;
      sums[k] += value;
    }
    for (std::size_t k = 0; k < kEnds; ++k)
      ends[k] += worker.counters().ended[k].get();
    active += worker.load();
    idle += worker.pipes_idle();
    in_use += worker.pipes_in_use();
    json["workers"].push_back(
        {{"index", i},
         {"connections", worker.load()},
         {"pipes", {{"idle", worker.pipes_idle()}, {"in_use", worker.pipes_in_use()}}},
         {"counters", std::move(counters)}});
  }
  Json counters;
  for (std::size_t k = 0; k < kNamed.size(); ++k)
    counters[kNamed[k].name] = sums[k];
  json["connections"] = {{"active", active},
                         {"accepted", counters["accepted"]},
                         {"relayed", counters["relayed"]},
                         {"spliced", counters["spliced"]}};
  json["counters"] = std::move(counters);
  json["ended"] = Json::object();
  for (std::size_t k = 0; k < kEnds; ++k) {
    json["ended"][std::string(name(static_cast<End>(k)))] = ends[k];
  }
  json["pipes"] = {{"idle", idle}, {"in_use", in_use}};
  json["tls"] = tls_ ? describe_tls(config_, *tls_) : Json(nullptr);
  json["tls_faults"] = sum_faults(workers_, &WorkerCounters::tls_faults);
  json["upstream_tls_faults"] = sum_faults(workers_, &WorkerCounters::upstream_tls_faults);

  json["listeners"] = Json::array();
  for (const OpenListener& listener : listeners_) {
    Json entry = {{"address", to_string(listener.config.address)},
                  {"proxy_protocol", nullptr},
                  {"shared", listener.shared}};
    if (listener.config.proxy_protocol) {
      entry["proxy_protocol"] = text_of(*listener.config.proxy_protocol);
    }
    json["listeners"].push_back(std::move(entry));
  }
  json["routes"] = Json::array();
  const auto now = Upstream::Clock::now();
  if (snapshot_) {
    for (const auto& route : snapshot_->routes) {
      json["routes"].push_back(describe_route(*route, now));
    }
  }
  json["dns"] = {{"rounds", resolver_.counters().rounds.get()},
                 {"failed_rounds", resolver_.counters().failed_rounds.get()},
                 {"refused_addresses", resolver_.counters().refused_addresses.get()}};
  json["warnings"] = warnings_;
  json["last_reload_error"] = last_reload_error_;
  return json.dump(2) + "\n";
}

}  // namespace causeway::gateway
