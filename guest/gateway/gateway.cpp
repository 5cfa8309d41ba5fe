// SPDX-License-Identifier: Apache-2.0
#include "guest/gateway/gateway.hpp"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>

#include "common/net/endpoints.hpp"
#include "common/os/blocked_signals.hpp"

namespace causeway::gateway {

namespace {

constexpr std::chrono::milliseconds kNamesAtStart{2000};
// Descriptors that are not connections': listeners, DNS, health checks, the admin socket.
constexpr std::uint64_t kOtherDescriptors = 128;
constexpr std::uint32_t kFew = 1000;  // connections: worth a warning
constexpr std::uint64_t kPipeDescriptors = 2 * relay::RelayPool::kMaxPipes;  // of a worker

unsigned processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1U, static_cast<unsigned>(CPU_COUNT(&set)));
}

}  // namespace

unsigned worker_count(const GatewayConfig& config) {
  return config.threads != 0 ? config.threads : processors();
}

namespace {

// Two descriptors for each connection, and what the rest needs.
std::uint32_t connections_allowed(unsigned workers) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return 1U << 20;
  // A relay that gets no pipe copies: pipes need not have all they could use.
  const std::uint64_t pipes = std::min(kPipeDescriptors * workers, limit.rlim_cur / 4);
  const std::uint64_t other = kOtherDescriptors + pipes;
  const std::uint64_t room = limit.rlim_cur > other + 32 ? limit.rlim_cur - other : 32;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(room / 2, 1U << 24));
}

}  // namespace

Gateway::Gateway(asio::io_context& control, const GatewayConfig& config, std::string config_file,
                 std::vector<std::string> args, Notifier& notifier)
    : control_(control),
      config_(config),
      config_file_(std::move(config_file)),
      args_(std::move(args)),
      notifier_(notifier),
      resolver_(control),
      health_(control),
      directory_(control, resolver_, health_) {}

Gateway::~Gateway() {
  for (const auto& worker : workers_)
    worker->stop();
  for (auto& thread : threads_)
    thread.join();
}

Result<void> Gateway::open() {
  worker_count_ = worker_count(config_);
  auto tls = read_tls(config_);
  if (!tls) return tls.error();
  tls_ = *std::move(tls);
  auto opened =
      open_listeners(config_.all_listeners(), worker_count_, config_.threads_model, warnings_);
  if (!opened) return opened.error();
  listeners_ = std::move(*opened);
  for (const auto& listener : listeners_) {
    if (const auto own = net::own_endpoint(listener.sockets.front().fd()))
      group_.own.push_back(*own);
  }
  const std::uint32_t allowed = connections_allowed(worker_count_);
  if (config_.max_connections > allowed || (config_.max_connections == 0 && allowed < kFew)) {
    warnings_.push_back("max_connections: descriptors (RLIMIT_NOFILE) allow " +
                        std::to_string(allowed));
  }
  start_warnings_ = warnings_.size();
  const auto inert = inert_settings(config_, worker_count_, config_file_);
  warnings_.insert(warnings_.end(), inert.begin(), inert.end());
  for (const auto& warning : warnings_)
    log::warn("{}", warning);
  if (auto set = resolver_.set_servers(config_.dns_servers); !set) return set.error();
  return {};
}

void Gateway::start() {
  table_ = std::make_shared<const RouteTable>(config_);
  directory_.update(config_.effective_routes());
  bool ready = false;
  directory_.when_ready(kNamesAtStart, [&ready] { ready = true; });
  while (!ready && control_.run_one() > 0) {
  }
  control_.restart();
  snapshot_ = make_snapshot();
  directory_.on_change([this] { publish(); });
  group_.tickets = &ticket_keys_;
  group_.rebalance = config_.rebalance.value_or(true) && worker_count_ > 1;
  for (unsigned i = 0; i < worker_count_; ++i) {
    std::vector<WorkerListener> mine;
    for (const auto& listener : listeners_)
      mine.push_back(listener.of_worker(i));
    workers_.push_back(std::make_unique<Worker>(group_, snapshot_, mine));
    group_.workers.push_back(workers_.back().get());
  }
  group_.on_swept = [this] { asio::post(control_, [this] { worker_swept(); }); };
  const BlockedSignals blocked;
  running_ = sweeping_ = workers_.size();
  for (const auto& worker : workers_) {
    threads_.emplace_back([this, &worker = *worker] {
      worker.run();
      asio::post(control_, [this] { worker_ended(); });
    });
  }
  if (const auto interval = notifier_.watchdog_interval()) {
    asio::co_spawn(control_, feed_watchdog(*interval), asio::detached);
  }
  asio::co_spawn(control_, watch_files(), asio::detached);
  asio::co_spawn(control_, rotate_ticket_keys(), asio::detached);
}

std::shared_ptr<const Snapshot> Gateway::make_snapshot() const {
  auto snapshot = std::make_shared<Snapshot>();
  snapshot->table = table_;
  snapshot->routes = directory_.routes();
  snapshot->tls = tls_;
  snapshot->timeouts = config_.timeouts;
  snapshot->buffer_size = static_cast<std::size_t>(config_.buffer_size.bytes);
  if (config_.splice_after) snapshot->splice_after = config_.splice_after->bytes;
  if (config_.splice_after_time && !config_.splice_after_time->never) {
    snapshot->splice_after_time = config_.splice_after_time->value;
  }
  const std::uint32_t allowed = connections_allowed(worker_count_);
  snapshot->max_connections =
      config_.max_connections == 0 ? allowed : std::min(config_.max_connections, allowed);
  return snapshot;
}

void Gateway::publish() {
  auto snapshot = make_snapshot();
  for (const auto& worker : workers_)
    worker->publish(snapshot);
  const std::lock_guard lock(mutex_);
  snapshot_ = std::move(snapshot);
}

// All of it or nothing: after an error ticket keys too are as before.
Result<std::shared_ptr<const TlsSnapshot>> Gateway::read_tls(const GatewayConfig& config) {
  // Noted first: what changes while it is read is read again.
  files_.watch(tls_files(config));
  auto tls = load_tls(config);
  if (!tls) return tls;
  if (config.tls.ticket_keys.empty()) {
    ticket_keys_.forget_file();
  } else if (auto loaded = ticket_keys_.load_file(config.tls.ticket_keys); !loaded) {
    return loaded.error();
  }
  return tls;
}

// Files have changed; the configuration is the same.
void Gateway::reload_tls() {
  auto tls = read_tls(config_);
  if (!tls) {
    refuse_reload(tls.error().message);
    tls_error_ = true;
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    tls_ = *std::move(tls);
    // A configuration that was refused is still the operator's to mend.
    if (std::exchange(tls_error_, false)) last_reload_error_.clear();
  }
  publish();
  log::info("certificates and keys read again: a file has changed");
}

void Gateway::refuse_reload(const std::string& what) {
  log::error("reload refused, all stays as it was: {}", what);
  const std::lock_guard lock(mutex_);
  last_reload_error_ = what;
}

Result<std::string> Gateway::reload() {
  notifier_.reloading();
  GatewayConfig fresh;
  OptionTable table("causeway-gateway", "");
  add_gateway_options(table, fresh);
  const ParseOutcome outcome = table.evaluate(args_);
  auto set = outcome.exit_code ? Result<void>(Error{outcome.err}) : Result<void>();
  std::shared_ptr<const TlsSnapshot> tls;
  // After a refusal what has changed since the last good look is still to be read.
  const FileWatch files = files_;
  tls_error_ = false;
  if (set) {
    if (auto read = read_tls(fresh)) {
      tls = *std::move(read);
    } else {
      set = read.error();
    }
  }
  if (set) set = resolver_.set_servers(fresh.dns_servers);
  if (!set) {
    std::string text = set.error().message;
    while (!text.empty() && text.back() == '\n')
      text.pop_back();
    refuse_reload(text);
    files_ = files;
    notifier_.ready();
    return Error{text};
  }
  std::string note;
  if (fresh.all_listeners() != config_.all_listeners()) note += " listeners";
  if (fresh.threads != config_.threads || fresh.threads_model != config_.threads_model) {
    note += " threads";
  }
  if (fresh.rebalance != config_.rebalance) note += " rebalance";
  if (fresh.admin != config_.admin) note += " admin";
  if (fresh.log_level != config_.log_level) note += " log_level";
  if (!note.empty()) log::warn("reload: needs a restart to take effect:{}", note);
  {
    const std::lock_guard lock(mutex_);
    // What cannot change stays as it is.
    fresh.listen = config_.listen;
    fresh.listeners = config_.listeners;
    fresh.threads = config_.threads;
    fresh.threads_model = config_.threads_model;
    fresh.rebalance = config_.rebalance;
    config_ = std::move(fresh);
    tls_ = std::move(tls);
    last_reload_error_.clear();
    warnings_.resize(std::min(warnings_.size(), start_warnings_));
    for (auto& warning : inert_settings(config_, worker_count_, config_file_)) {
      if (std::find(warnings_.begin(), warnings_.end(), warning) == warnings_.end()) {
        log::warn("{}", warning);
        warnings_.push_back(std::move(warning));
      }
    }
  }
  table_ = std::make_shared<const RouteTable>(config_);
  directory_.update(config_.effective_routes());
  publish();
  log::info("reloaded, {} routes", directory_.routes().size());
  notifier_.ready();
  return "reloaded" + (note.empty() ? note : "; needs a restart:" + note);
}

void Gateway::drain() {
  {
    const std::lock_guard lock(mutex_);
    draining_ = true;
  }
  for (const auto& worker : workers_)
    worker->drain(config_.drain);
}

void Gateway::stop() {
  for (const auto& worker : workers_)
    worker->stop();
}

// Closed only when all have taken who waited: the sockets may be shared, and a closed one resets
// those that wait in it. Who comes from now on is refused, and can go elsewhere.
void Gateway::worker_swept() {
  if (--sweeping_ != 0) return;
  for (auto& listener : listeners_)
    listener.sockets.clear();
}

void Gateway::worker_ended() {
  if (--running_ == 0) control_.stop();
}

// The service manager hears of life only when every worker's loop has turned since it was last
// woken.
asio::awaitable<void> Gateway::feed_watchdog(std::chrono::microseconds interval) {
  std::vector<std::uint64_t> before(workers_.size(), 0);
  const auto pause = std::chrono::duration_cast<std::chrono::milliseconds>(interval / 2);
  for (;;) {
    bool all = true;
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      const std::uint64_t loops = workers_[i]->counters().loops.get();
      all = all && (loops != before[i] || workers_[i]->ended());
      before[i] = loops;
      workers_[i]->wake();
    }
    if (all) notifier_.watchdog();
    co_await net::sleep_for(pause);
  }
}

asio::awaitable<void> Gateway::watch_files() {
  constexpr std::chrono::seconds kAsleep{1};  // while it is off: a reload may turn it on
  for (;;) {
    const Duration pause = config_.tls.watch;
    const std::chrono::milliseconds time = pause.never ? kAsleep : pause.value;
    co_await net::sleep_for(time);
    if (!pause.never && files_.changed()) reload_tls();
  }
}

asio::awaitable<void> Gateway::rotate_ticket_keys() {
  for (;;) {
    co_await net::sleep_for(std::chrono::minutes(1));
    if (ticket_keys_.rotate()) log::debug("a new ticket key");
  }
}

bool Gateway::healthy() const {
  const std::lock_guard lock(mutex_);
  return snapshot_ != nullptr && !draining_;
}

}  // namespace causeway::gateway
