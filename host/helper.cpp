// SPDX-License-Identifier: Apache-2.0
#include "host/helper.hpp"

#include <sys/socket.h>

#include <linux/vm_sockets.h>

#include <algorithm>
#include <set>
#include <utility>

#include "common/net/stream.hpp"
#include "host/guest.hpp"

namespace causeway::host {

namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kRound = 1s;
constexpr std::chrono::milliseconds kShortestRound = 20ms;
constexpr auto kLineInterval = 5s;  // between two status lines for the service manager

// The CID at the other end; none on another kind of socket.
std::optional<std::uint32_t> peer_cid(int stream) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  // sockaddr_storage is made to be looked at as the sockaddr of its family.
  if (::getpeername(stream, reinterpret_cast<sockaddr*>(&storage), &length) != 0 ||
      storage.ss_family != AF_VSOCK) {
    return std::nullopt;
  }
  return reinterpret_cast<const sockaddr_vm*>(&storage)->svm_cid;
}

// What the publisher tells its entries apart by.
std::string stream_key(const GuestConfig& config, const Publish& spec) {
  return config.name + ' ' + std::to_string(config.cid.value_or(0)) + ' ' + to_string(spec);
}

}  // namespace

Helper::Helper(asio::io_context& control, HostConfig config, BrokerClient& broker,
               Notifier& notifier, net::Netlink netlink)
    : control_(control),
      config_(std::move(config)),
      broker_(broker),
      notifier_(notifier),
      netlink_(std::move(netlink)) {}

Helper::~Helper() = default;

Result<void> Helper::start() {
  if (auto started = publisher_.start(); !started) {
    return started;
  }
  // The listener first: a path or port that is taken must not leave TAPs flashing up and down.
  std::optional<net::Listener> shared;
  if (config_.listen) {
    auto opened = shared_listener();
    if (!opened) {
      return opened.error();
    }
    shared = std::move(*opened);
  }
  for (const auto& config : config_.guests) {
    if (auto opened = open_guest(config); !opened) {
      return opened;
    }
  }
  if (auto applied = broker_.rules(); !applied) {
    return applied;
  }
  if (auto published = publish(); !published) {
    return published;
  }
  if (shared) {
    log::info("listening on {}", to_string(*config_.listen));
    if (shared->is_connected_stream()) {
      guests_.begin()->second->session.listen(std::move(*shared), nullptr);
    } else {
      net::AcceptorHandlers handlers;
      handlers.take = [this](UniqueFd stream) { take(std::move(stream)); };
      handlers.fault = [](const std::string& message) { log::warn("{}", message); };
      if (!std::holds_alternative<FdAddress>(config_.listen->value)) {
        handlers.reopen = [this] { return shared_listener(); };
      }
      handlers.misses_somebody = [this] { return !healthy(); };
      shared_.emplace(control_, std::move(*shared), std::move(handlers));
    }
  }
  asio::co_spawn(control_, tick(), asio::detached);
  return {};
}

Result<net::Listener> Helper::shared_listener() {
  if (std::holds_alternative<FdAddress>(config_.listen->value)) {
    return net::Listener::open(*config_.listen, {});
  }
  auto fd = broker_.listen();
  return fd ? adopt_listener(std::move(*fd)) : Result<net::Listener>(fd.error());
}

Result<void> Helper::open_guest(const GuestConfig& config) {
  auto opened = broker_.open(config.name);
  if (!opened) {
    return opened.error();
  }
  auto adopted = adopt_guest(config, std::move(*opened));
  if (!adopted) {
    broker_.release(config.name);
  }
  return adopted;
}

Result<void> Helper::adopt_guest(const GuestConfig& config, OpenedGuest opened) {
  const std::string& name = config.name;
  // Before there is a session, whose coroutines would have to be waited for.
  std::optional<net::Listener> listener;
  if (config.listen) {
    auto own = own_listener(config, opened);
    if (!own) {
      return own.error();
    }
    listener = std::move(*own);
  }
  auto guest = std::make_unique<Guest>(control_, config, std::move(opened.tap), opened.number);
  guest->session.on_failure([this, name] { on_guest_failure(name); });
  log::info("guest '{}': TAP '{}' is up, MTU {}", name, guest->tap.name(), guest->tap.mtu());
  if (listener) {
    log::info("guest '{}': listening on {}", name, to_string(*config.listen));
    guest->session.listen(std::move(*listener), nullptr);
  } else {
    guest->session.wait_for_streams();
  }
  const std::lock_guard lock(mutex_);
  failed_.erase(name);
  guests_[name] = std::move(guest);
  return {};
}

Result<net::Listener> Helper::own_listener(const GuestConfig& config, OpenedGuest& opened) {
  if (const auto* inherited = std::get_if<FdAddress>(&config.listen->value)) {
    // Once only: the number may be another descriptor's by the time the guest is opened again.
    if (!inherited_.insert(inherited->fd).second) {
      return Error{to_string(*config.listen) + ": was inherited, and is used up", EBADF};
    }
    return net::Listener::open(*config.listen, {});
  }
  if (!opened.listener) {
    return Error{"guest '" + config.name + "': no listener", EPROTO};
  }
  return adopt_listener(std::move(*opened.listener));
}

// One of several guests takes nobody along; the only one has nothing to go on for.
void Helper::on_guest_failure(const std::string& name) {
  if (stopping_) {
    return;
  }
  const bool only = config_.guests.size() <= 1 && config_.unknown.limit == 0;
  close_guest(name, "the session failed");
  if (only) {
    exit_code_ = bridge::kExitFailure;
    stop();
    control_.stop();
    return;
  }
  log_rules(broker_.rules());
}

void Helper::close_guest(const std::string& name, const std::string& failure) {
  const auto found = guests_.find(name);
  if (found == guests_.end()) {
    return;
  }
  std::unique_ptr<Guest> guest;
  {
    // status() sees it no more before its TAP is closed.
    const std::lock_guard lock(mutex_);
    guest = std::move(found->second);
    guests_.erase(found);
    if (!failure.empty()) {
      failed_[name] = failure;
    }
  }
  guest->session.stop();
  guest->tap.close();
  broker_.release(name);
  const std::lock_guard lock(mutex_);
  closed_.push_back(std::move(guest));
}

// ---- who may connect ----

void Helper::take(UniqueFd stream) {
  const auto cid = peer_cid(stream.get());
  if (!cid) {
    // Only a lone guest without a CID shares its listener with streams that have none.
    Guest* only = guests_.size() == 1 ? guests_.begin()->second.get() : nullptr;
    if (only != nullptr && !only->config.cid && !only->config.listen) {
      only->session.serve(std::move(stream));
    } else {
      refuse(refused_unknown_cid_, stream.get(), "it has no CID");
    }
    return;
  }
  Guest* guest = guest_of(*cid);
  if (guest == nullptr) {
    guest = admit_unknown(*cid);
  }
  if (guest == nullptr) {
    refuse(refused_unknown_cid_, stream.get(), "no guest has that CID");
    return;
  }
  guest->session.serve(std::move(stream));
}

void Helper::refuse(std::uint64_t& counter, int stream, const char* why) {
  {
    const std::lock_guard lock(mutex_);
    ++counter;
  }
  if (peer_log_.take()) {
    log::warn("connection from {} refused: {}{}", net::describe_peer(stream), why,
              peer_log_.suppressed_text());
  }
}

Helper::Guest* Helper::guest_of(std::uint32_t cid) {
  for (const auto& [name, guest] : guests_) {
    if (guest->config.cid == cid) {
      return guest.get();
    }
  }
  // A lone guest that names no CID takes any: what the flags alone describe.
  if (guests_.size() == 1 && config_.unknown.limit == 0) {
    Guest& only = *guests_.begin()->second;
    return only.config.cid || only.config.listen ? nullptr : &only;
  }
  return nullptr;
}

Helper::Guest* Helper::admit_unknown(std::uint32_t cid) {
  const auto numbered = std::count_if(guests_.begin(), guests_.end(),
                                      [](const auto& each) { return each.second->number != 0; });
  if (config_.unknown.limit == 0 || cid < kFirstGuestCid || numbered >= config_.unknown.limit) {
    return nullptr;
  }
  auto opened = broker_.open_unknown(cid);
  if (!opened) {
    if (peer_log_.take()) {
      log::warn("CID {}: {}{}", cid, opened.error().message, peer_log_.suppressed_text());
    }
    return nullptr;
  }
  const auto config = unknown_guest(config_.unknown, opened->number, cid);
  if (!config) {
    return nullptr;
  }
  if (auto adopted = adopt_guest(*config, std::move(*opened)); !adopted) {
    log::error("{}", adopted.error().message);
    broker_.release(config->name);
    return nullptr;
  }
  if (auto applied = broker_.rules(); !applied) {
    log_rules(applied);
    close_guest(config->name, {});  // nobody is served without his rules
    return nullptr;
  }
  return guests_.at(config->name).get();
}

void Helper::forget_unknown() {
  std::vector<std::string> gone;
  for (auto& [name, guest] : guests_) {
    if (guest->session.status().state == "up") {
      guest->seen = Clock::now();
    } else if (guest->number != 0 && !config_.unknown.forget.never &&
               Clock::now() - guest->seen > config_.unknown.forget.value) {
      gone.push_back(name);
    }
  }
  for (const auto& name : gone) {
    log::info("guest '{}' is gone", name);
    close_guest(name, {});
  }
  if (!gone.empty()) {
    log_rules(broker_.rules());
  }
}

// ---- publishing ----

void Helper::log_rules(const Result<void>& applied) {
  if (!applied) {
    log::error("rules not applied, the previous ones stay: {}", applied.error().message);
  }
}

Result<void> Helper::publish() {
  std::set<std::string> wanted;
  std::vector<PublishedStream> kept;
  std::vector<std::pair<std::string, std::size_t>> fresh;
  for (const auto& [name, guest] : guests_) {
    for (std::size_t i = 0; i < guest->config.publish.size(); ++i) {
      const Publish& spec = guest->config.publish[i];
      if (spec.over_tap()) {
        continue;
      }
      const std::string key = stream_key(guest->config, spec);
      wanted.insert(key);
      if (published_.count(key) != 0) {
        kept.push_back(PublishedStream{name, spec, guest->config.cid.value_or(0), {}});
      } else {
        fresh.emplace_back(name, i);
      }
    }
  }
  if (fresh.empty() && wanted == published_) {
    return {};
  }
  // What is dropped first: a port may move from one entry to another.
  const auto again = [&kept] {
    std::vector<PublishedStream> copy;
    for (const auto& each : kept) {
      copy.push_back(PublishedStream{each.guest, each.publish, each.cid, {}});
    }
    return copy;
  };
  publisher_.replace(again());
  Result<void> result;
  auto all = again();
  for (const auto& [name, index] : fresh) {
    const auto& config = guests_.at(name)->config;
    auto listeners = broker_.publish(name, index);
    if (!listeners) {
      wanted.erase(stream_key(config, config.publish[index]));
      result = listeners.error();
      continue;
    }
    all.push_back(PublishedStream{name, config.publish[index], config.cid.value_or(0),
                                  std::move(*listeners)});
  }
  publisher_.replace(std::move(all));
  published_ = std::move(wanted);
  return result;
}

// ---- once a second ----

asio::awaitable<void> Helper::tick() {
  // A round asks and the next one tells, so a short watchdog needs short rounds.
  std::chrono::milliseconds round = kRound;
  if (const auto interval = notifier_.watchdog_interval()) {
    round = std::min(round, std::chrono::duration_cast<std::chrono::milliseconds>(*interval) / 2);
  }
  while (!stopping_) {
    co_await net::sleep_for(std::max(round, kShortestRound));
    if (stopping_) {
      co_return;
    }
    bury();
    forget_unknown();
    feed_watchdog();
    if (const auto since = Clock::now() - line_at_; notifier_.active() && since >= kLineInterval) {
      notifier_.status(status_line(since));
      line_at_ = Clock::now();
    }
  }
}

// Sessions that were stopped, once nothing on the control thread refers to them any more.
void Helper::bury() {
  const std::lock_guard lock(mutex_);
  closed_.erase(std::remove_if(closed_.begin(), closed_.end(),
                               [](const auto& guest) { return guest->session.finished(); }),
                closed_.end());
}

void Helper::feed_watchdog() {
  if (!notifier_.watchdog_interval()) {
    return;
  }
  if (proofs_wanted_) {
    for (const auto& [name, guest] : guests_) {
      if (!guest->session.proven()) {
        return;  // not this time; the manager's patience is several rounds long
      }
    }
    notifier_.watchdog();
  }
  for (const auto& [name, guest] : guests_) {
    guest->session.request_proofs();
  }
  proofs_wanted_ = true;
}

void Helper::fail() {
  exit_code_ = bridge::kExitFailure;
  stop();
}

void Helper::stop() {
  if (std::exchange(stopping_, true)) {
    return;
  }
  notifier_.stopping();
  shared_.reset();
  publisher_.stop();
  for (auto& [name, guest] : guests_) {
    guest->session.stop();
  }
}

bool Helper::healthy() const {
  const std::lock_guard lock(mutex_);
  return std::all_of(config_.guests.begin(), config_.guests.end(), [this](const auto& config) {
    const auto found = guests_.find(config.name);
    return found != guests_.end() && found->second->session.status().state == "up";
  });
}

}  // namespace causeway::host
