// SPDX-License-Identifier: Apache-2.0
#include "host/broker.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/bridge/program.hpp"
#include "common/log.hpp"
#include "host/publish/listeners.hpp"

namespace causeway::host {

namespace {

using Json = nlohmann::ordered_json;
using namespace std::chrono_literals;

constexpr auto kLockPatience = 3s;    // a helper that ends needs some milliseconds
constexpr mode_t kAdminUmask = 0117;  // the admin socket: owner and group only

Result<UniqueFd> as_memory_file(const std::string& text) {
  UniqueFd file(::memfd_create("configuration", MFD_CLOEXEC));
  if (!file.valid() ||
      ::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return system_error("memfd");
  }
  return file;
}

// value() throws on another type than the default's; a request comes from the main process, which
// nobody should have to believe.
std::string text_of(const Json& request, const char* key) {
  const auto found = request.find(key);
  return found != request.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace

std::string state_directory(const HostConfig& config) {
  struct stat own {};
  const bool known = ::stat("/proc/self/ns/net", &own) == 0;
  return config.state_directory + "/netns-" + std::to_string(known ? own.st_ino : 0);
}

RuleSet rule_set(const std::string& instance, const std::vector<const GuestConfig*>& guests) {
  RuleSet rules;
  rules.table = table_name(instance);
  for (const auto* guest : guests) {
    const bool publishes = std::any_of(guest->publish.begin(), guest->publish.end(),
                                       [](const Publish& each) { return each.over_tap(); });
    const bool managed = guest->nat || publishes || !guest->guest_addresses.empty() ||
                         !guest->egress.allow_by_default || !guest->egress.allow.empty() ||
                         !guest->egress.deny.empty();
    if (!managed) {
      continue;  // a bare TAP: its network is the operator's own work
    }
    GuestRules entry;
    entry.name = guest->name;
    entry.tap = guest->tap();
    entry.bridge = guest->bridge;
    entry.host_addresses = guest->link.addresses;
    entry.guest_addresses = guest->guest_addresses;
    entry.nat = guest->nat;
    entry.publish = guest->publish;
    entry.egress = guest->egress;
    rules.guests.push_back(std::move(entry));
  }
  return rules;
}

struct Broker::Answer {
  std::string error;  // empty: all went well
  int code = 0;
  Json data = Json::object();
  std::vector<int> fds;         // borrowed
  std::vector<UniqueFd> owned;  // to be closed once they were sent
  static Answer failed(const Error& error) { return {error.message, error.code, {}, {}, {}}; }
};

Broker::Broker(Channel channel, HostConfig config, std::vector<std::string> args)
    : channel_(std::move(channel)),
      config_(std::move(config)),
      args_(std::move(args)),
      network_(config_.instance, config_.state_directory) {}

int Broker::run() {
  for (;;) {
    auto received = channel_.receive();
    if (!received) {
      log::error("broker: {}", received.error().message);
      break;
    }
    if (!*received) {
      break;  // the main process is gone
    }
    const auto request = Json::parse((*received)->text, nullptr, false);
    if (request.is_discarded() || !request.is_object()) {
      log::error("broker: a request that is no JSON object");
      break;
    }
    if (text_of(request, "op") == "goodbye") {
      clean_up(true);
      (void)channel_.send("{}");
      return 0;
    }
    auto answer = handle_all(request);
    auto sent = send(answer);
    if (!sent && sent.error().code != EPIPE) {
      answer = Answer::failed(sent.error());  // too much to hand over: the request failed, not we
      sent = send(answer);
    }
    if (!sent) {
      break;
    }
  }
  channel_.close();
  clean_up(false);
  return 0;
}

Result<void> Broker::send(Answer& answer) {
  if (!answer.error.empty()) {
    answer.data = {{"error", answer.error}, {"code", answer.code}};
    answer.fds.clear();
  }
  return channel_.send(answer.data.dump(-1, ' ', false, Json::error_handler_t::replace),
                       answer.fds);
}

// Whatever goes wrong in one request, the broker stays: it is what takes the rules away again.
Broker::Answer Broker::handle_all(const Json& request) {
  try {
    return handle(request);
  } catch (const std::exception& error) {
    return Answer::failed(Error{std::string("broker: ") + error.what(), EIO});
  }
}

Broker::Answer Broker::handle(const Json& request) {
  const auto text = [&](const char* key) { return text_of(request, key); };
  const auto number = [&](const char* key) -> std::uint32_t {
    const auto found = request.find(key);
    return found != request.end() && found->is_number_unsigned() &&
                   found->get<std::uint64_t>() <= 0xffff'ffffU
               ? found->get<std::uint32_t>()
               : 0;
  };
  if (!locked_) {
    const auto taken = network_.lock(kLockPatience);
    if (!taken && taken.error().code == EWOULDBLOCK) {
      return Answer::failed(Error{"instance '" + config_.instance + "': " + taken.error().message +
                                      ": stop that one, or choose another --instance and --tap",
                                  EBUSY});
    }
    locked_ = true;  // without a state directory there is nothing to keep: rules say so when needed
  }
  if (!netlink_) {
    auto opened = net::Netlink::open();
    if (!opened) {
      return Answer::failed(opened.error());
    }
    netlink_ = std::move(*opened);
  }
  const std::string op = text("op");
  if (op == "admin") {
    return open_admin();
  }
  if (op == "listen") {
    return open_shared();
  }
  if (op == "open") {
    return open_named(text("name"));
  }
  if (op == "unknown") {
    return open_unknown(number("cid"));
  }
  if (op == "publish") {
    return open_publish(text("name"), number("index"));
  }
  if (op == "release") {
    open_.erase(text("name"));
    return {};
  }
  if (op == "rules") {
    auto applied = apply_rules();
    return applied ? Answer{} : Answer::failed(applied.error());
  }
  if (op == "reload") {
    return reload();
  }
  return Answer::failed(Error{"broker: unknown request", EINVAL});
}

Broker::Answer Broker::open_admin() {
  if (!config_.program.admin ||
      !std::holds_alternative<UnixAddress>(config_.program.admin->value)) {
    return Answer::failed(Error{"the admin endpoint listens on unix:/PATH only", EINVAL});
  }
  const mode_t before = ::umask(kAdminUmask);
  auto listener = net::Listener::open(*config_.program.admin, {});
  ::umask(before);
  if (!listener) {
    return Answer::failed(listener.error());
  }
  admin_ = std::move(*listener);
  Answer answer;
  answer.fds.push_back(admin_->fd());
  return answer;
}

Broker::Answer Broker::open_shared() {
  shared_.reset();  // the old one first: two sockets cannot have one address
  if (!config_.listen) {
    return Answer::failed(Error{"no listen for all guests", EINVAL});
  }
  net::StreamOptions options;
  if (!config_.guests.empty()) {
    options.vsock_buffer = config_.guests.front().link.vsock_buffer.bytes;
  }
  auto listener = net::Listener::open(*config_.listen, options);
  if (!listener) {
    return Answer::failed(listener.error());
  }
  shared_ = std::move(*listener);
  Answer answer;
  answer.fds.push_back(shared_->fd());
  return answer;
}

Broker::Answer Broker::open_named(const std::string& name) {
  const auto found = std::find_if(config_.guests.begin(), config_.guests.end(),
                                  [&](const GuestConfig& each) { return each.name == name; });
  if (found == config_.guests.end()) {
    return Answer::failed(Error{"no guest '" + name + "' in the configuration", ENOENT});
  }
  return open_guest(*found);
}

Broker::Answer Broker::open_unknown(std::uint32_t cid) {
  for (std::uint32_t number = 1; number <= config_.unknown.limit; ++number) {
    auto config = unknown_guest(config_.unknown, number, cid);
    if (!config) {
      return Answer::failed(config.error());
    }
    if (open_.count(config->name) == 0) {
      auto answer = open_guest(*config);
      answer.data["number"] = number;
      return answer;
    }
  }
  return Answer::failed(Error{"accept_unknown: the limit is reached", EBUSY});
}

Broker::Answer Broker::open_guest(const GuestConfig& config) {
  open_.erase(config.name);
  Open open{config, std::nullopt};
  if (config.listen && !std::holds_alternative<FdAddress>(config.listen->value)) {
    net::StreamOptions options;
    options.vsock_buffer = config.link.vsock_buffer.bytes;
    auto listener = net::Listener::open(*config.listen, options);
    if (!listener) {
      return Answer::failed(listener.error());
    }
    open.listener = std::move(*listener);
  }
  auto options = bridge::tap_options(config.link, "host");
  options.attach = config.attach;
  auto tap = bridge::Tap::open(options, *netlink_);
  if (!tap) {
    return Answer::failed(tap.error());
  }
  if (config.bridge) {
    if (auto joined = netlink_->set_master(config.tap(), *config.bridge); !joined) {
      return Answer::failed(joined.error());
    }
  }
  auto parts = std::move(*tap).release();
  Answer answer;
  answer.data = {{"name", parts.name},
                 {"mtu", parts.mtu},
                 {"uso_possible", parts.uso_possible},
                 {"backpressure", parts.backpressure},
                 {"queues", parts.queues.size()},
                 {"listener", open.listener.has_value()}};
  for (auto& queue : parts.queues) {
    answer.fds.push_back(queue.get());
    answer.owned.push_back(std::move(queue));
  }
  if (open.listener) {
    answer.fds.push_back(open.listener->fd());
  }
  open_.emplace(config.name, std::move(open));
  return answer;
}

Broker::Answer Broker::open_publish(const std::string& name, std::size_t index) {
  const auto found = open_.find(name);
  if (found == open_.end() || index >= found->second.config.publish.size() ||
      found->second.config.publish[index].over_tap()) {
    return Answer::failed(Error{"no such published stream", ENOENT});
  }
  auto listeners = open_publish_listeners(found->second.config.publish[index]);
  if (!listeners) {
    return Answer::failed(listeners.error());
  }
  Answer answer;
  for (auto& listener : *listeners) {
    answer.fds.push_back(listener.get());
    answer.owned.push_back(std::move(listener));
  }
  return answer;
}

Broker::Answer Broker::reload() {
  std::string text;
  ConfigParser parser;
  parser.table().read_config_with([&text](const std::string& path) {
    auto read = read_config(path);
    if (read) {
      text = *read;
    }
    return read;
  });
  const auto outcome = parser.table().evaluate(args_);
  if (outcome.exit_code) {
    const std::string first = outcome.err.substr(0, outcome.err.find('\n'));
    return Answer::failed(Error{first.empty() ? "the configuration was refused" : first, EINVAL});
  }
  HostConfig fresh = std::move(parser).finish();  // its rules have been checked with it
  // What cannot change while we run stays what it was.
  fresh.listen = config_.listen;
  fresh.instance = config_.instance;
  fresh.state_directory = config_.state_directory;
  fresh.user = config_.user;
  fresh.program = config_.program;
  auto file = as_memory_file(text);
  if (!file) {
    return Answer::failed(file.error());
  }
  config_ = std::move(fresh);
  // The guests that stay open follow what is changed live: rules and offers.
  for (auto& [name, open] : open_) {
    for (const auto& guest : config_.guests) {
      if (guest.name == name && same_link(guest, open.config)) {
        open.config = guest;
      }
    }
  }
  Answer answer;
  answer.fds.push_back(file->get());
  answer.owned.push_back(std::move(*file));
  return answer;
}

Result<void> Broker::apply_rules() {
  std::vector<const GuestConfig*> guests;
  for (const auto& [name, open] : open_) {
    guests.push_back(&open.config);
  }
  const RuleSet rules = rule_set(config_.instance, guests);
  if (rules.guests.empty()) {
    // Nothing of ours has to be there. What a helper that was killed left behind goes too, where we
    // are allowed to look for it.
    const auto removed = network_.remove();
    return std::exchange(rules_applied_, false) ? removed : Result<void>{};
  }
  auto applied = network_.apply(rules);
  rules_applied_ = rules_applied_ || applied.has_value();
  return applied;
}

void Broker::clean_up(bool goodbye) {
  if (rules_applied_) {
    if (auto removed = network_.remove(); !removed) {
      log::error("cannot remove the rules: {}", removed.error().message);
    }
  }
  if (!goodbye) {
    log::warn("broker: the main process is gone, cleaned up");
  }
  open_.clear();
  shared_.reset();
  admin_.reset();
}

}  // namespace causeway::host
