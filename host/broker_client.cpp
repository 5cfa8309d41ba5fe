// SPDX-License-Identifier: Apache-2.0
#include "host/broker_client.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "common/config/option_table.hpp"

namespace causeway::host {

namespace {

using Json = nlohmann::ordered_json;
using namespace std::chrono_literals;

constexpr auto kPatience = 30s;  // nft on a busy machine; longer means that the broker hangs

Error broker_error(const std::string& text) {
  return Error{"broker: " + text, EPROTO};
}

Json request_of(const char* op) {
  Json request = Json::object();
  request["op"] = op;
  return request;
}

Json request_of(const char* op, const char* key, const Json& value) {
  Json request = request_of(op);
  request[key] = value;
  return request;
}

}  // namespace

struct BrokerClient::Reply {
  Json data;
  std::vector<UniqueFd> fds;
};

Result<BrokerClient::Reply> BrokerClient::call(const Json& request) {
  if (auto sent = channel_.send(request.dump(), {}, kPatience); !sent) {
    return broker_error(sent.error().message);
  }
  auto received = channel_.receive(kPatience);
  if (!received) {
    // A late answer would be taken for the next request's.
    channel_.close();
    return broker_error(received.error().message);
  }
  if (!*received) {
    return broker_error("has ended");
  }
  Reply reply{Json::parse((*received)->text, nullptr, false), std::move((*received)->fds)};
  if (!reply.data.is_object()) {
    return broker_error("an answer that is no JSON object");
  }
  if (const auto error = reply.data.find("error"); error != reply.data.end()) {
    return Error{error->get<std::string>(), reply.data.value("code", 0)};
  }
  return reply;
}

Result<UniqueFd> BrokerClient::admin() {
  auto reply = call(request_of("admin"));
  if (!reply) {
    return reply.error();
  }
  return reply->fds.size() == 1 ? Result<UniqueFd>(std::move(reply->fds.front()))
                                : Result<UniqueFd>(broker_error("no descriptor"));
}

Result<UniqueFd> BrokerClient::listen() {
  auto reply = call(request_of("listen"));
  if (!reply) {
    return reply.error();
  }
  return reply->fds.size() == 1 ? Result<UniqueFd>(std::move(reply->fds.front()))
                                : Result<UniqueFd>(broker_error("no descriptor"));
}

Result<OpenedGuest> BrokerClient::opened(Result<Reply> reply) {
  if (!reply) {
    return reply.error();
  }
  const auto queues = reply->data.value("queues", std::size_t{0});
  const bool listens = reply->data.value("listener", false);
  if (queues == 0 || reply->fds.size() != queues + (listens ? 1 : 0)) {
    return broker_error("another number of descriptors than was said");
  }
  bridge::Tap::Parts parts;
  parts.name = reply->data.value("name", "");
  parts.mtu = reply->data.value("mtu", 0U);
  parts.uso_possible = reply->data.value("uso_possible", false);
  parts.backpressure = reply->data.value("backpressure", false);
  std::optional<UniqueFd> listener;
  if (listens) {
    listener = std::move(reply->fds.back());
    reply->fds.pop_back();
  }
  parts.queues = std::move(reply->fds);
  return OpenedGuest{bridge::Tap::adopt(std::move(parts)), std::move(listener),
                     reply->data.value("number", 0U)};
}

Result<OpenedGuest> BrokerClient::open(const std::string& name) {
  return opened(call(request_of("open", "name", name)));
}

Result<OpenedGuest> BrokerClient::open_unknown(std::uint32_t cid) {
  return opened(call(request_of("unknown", "cid", cid)));
}

Result<std::vector<UniqueFd>> BrokerClient::publish(const std::string& name, std::size_t index) {
  Json request = request_of("publish", "name", name);
  request["index"] = index;
  auto reply = call(request);
  if (!reply) {
    return reply.error();
  }
  return std::move(reply->fds);
}

void BrokerClient::release(const std::string& name) {
  (void)call(request_of("release", "name", name));
}

Result<void> BrokerClient::rules() {
  auto reply = call(request_of("rules"));
  return reply ? Result<void>{} : Result<void>{reply.error()};
}

Result<std::string> BrokerClient::reload() {
  auto reply = call(request_of("reload"));
  if (!reply) {
    return reply.error();
  }
  if (reply->fds.size() != 1) {
    return broker_error("no descriptor");
  }
  struct stat info {};
  if (::fstat(reply->fds.front().get(), &info) != 0 || info.st_size < 0 ||
      static_cast<std::uint64_t>(info.st_size) > kMaxConfigSize) {
    return broker_error("a configuration of no possible size");
  }
  std::string text(static_cast<std::size_t>(info.st_size), '\0');
  if (::pread(reply->fds.front().get(), text.data(), text.size(), 0) != info.st_size) {
    return broker_error("the configuration was cut short");
  }
  return text;
}

void BrokerClient::goodbye() {
  (void)call(request_of("goodbye"));
}

}  // namespace causeway::host
