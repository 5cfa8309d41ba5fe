// SPDX-License-Identifier: Apache-2.0
#include "guest/gateway/upstream/resolver.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <utility>

#include "common/config/text.hpp"
#include "common/log.hpp"
#include "guest/gateway/upstream/dns_channel.hpp"

namespace causeway::gateway {

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Outcome = DnsAnswer::Outcome;

constexpr milliseconds kConfCheck{1000};  // how often resolv.conf is looked at, at most
constexpr std::size_t kFamilies = 2;      // IPv4, IPv6: sorted that way

Cidr cidr(const char* text) {
  return *parse_cidr(text);
}

// ::ffff:A.B.C.D reaches A.B.C.D (RFC 4291 2.5.5.2, and Linux' dual-stack sockets).
IpAddress without_mapping(const IpAddress& ip) {
  static const Cidr mapped = cidr("::ffff:0:0/96");
  if (!mapped.contains(ip)) return ip;
  IpAddress plain;
  std::copy_n(ip.bytes.begin() + 12, 4, plain.bytes.begin());
  return plain;
}

bool is_localhost(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  if (name.ends_with('.')) name.pop_back();
  return name == "localhost" || name.ends_with(".localhost");
}

void sort_unique(std::vector<IpAddress>& addresses) {
  std::sort(addresses.begin(), addresses.end());
  addresses.erase(std::unique(addresses.begin(), addresses.end()), addresses.end());
}

// What tells one version of a file from the next; {} when there is none.
struct FileVersion {
  dev_t device = 0;
  ino_t inode = 0;
  off_t size = 0;
  std::int64_t seconds = 0;
  std::int64_t nanoseconds = 0;
  friend bool operator==(const FileVersion&, const FileVersion&) = default;
};

FileVersion version_of(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return {};
  return {info.st_dev, info.st_ino, info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec};
}

struct Entry {
  Entry(asio::io_context& context, std::string given) : name(std::move(given)), timer(context) {}
  const std::string name;
  asio::steady_timer timer;  // to the next round
  unsigned waiting = 0;      // families that have not answered in this round
  bool settled = false;      // resolved, or failed once
  struct Family {
    std::vector<IpAddress> addresses;  // sorted; the last good ones
    Outcome outcome = Outcome::failed;
  };
  std::array<Family, kFamilies> families;
  milliseconds ttl{0};  // of this round
  std::string error;    // of this round
  unsigned failures = 0;
  bool told_refused = false;
  std::vector<IpAddress> reported;
  bool telling = false;  // a call of on_change is on its way

  [[nodiscard]] std::vector<IpAddress> merged() const {
    constexpr std::size_t half = Resolver::kMaxAddresses / 2;
    const auto& [v4, v6] = families;
    const std::size_t size4 = v4.addresses.size();
    const std::size_t size6 = v6.addresses.size();
    const std::size_t take4 = std::min(size4, Resolver::kMaxAddresses - std::min(half, size6));
    const std::size_t take6 = std::min(size6, Resolver::kMaxAddresses - take4);
    std::vector<IpAddress> all;
    all.reserve(take4 + take6);
    std::copy_n(v4.addresses.begin(), take4, std::back_inserter(all));
    std::copy_n(v6.addresses.begin(), take6, std::back_inserter(all));
    return all;
  }
};

}  // namespace

bool may_come_from_dns(const IpAddress& ip) {
  static const std::array refused{
      cidr("0.0.0.0/8"),           // "this host"; Linux connects 0.0.0.0 to itself
      cidr("127.0.0.0/8"),         // loopback
      cidr("169.254.0.0/16"),      // link-local, where clouds keep their metadata
      cidr("224.0.0.0/4"),         // multicast
      cidr("255.255.255.255/32"),  // broadcast
      cidr("::/96"),               // unspecified, loopback, and the IPv4-compatible ones
      cidr("fe80::/10"),           // link-local
      cidr("ff00::/8"),            // multicast
  };
  const IpAddress plain = without_mapping(ip);
  return std::none_of(refused.begin(), refused.end(),
                      [&](const Cidr& network) { return network.contains(plain); });
}

Result<std::string> parse_dns_server(std::string_view text) {
  const Error wrong{in_quotes(text) +
                    ": not a DNS server; write IP, IP:PORT or [IP]:PORT, as in 10.0.0.53 or "
                    "[fd00::53]:5353"};
  std::string_view host = text;
  std::optional<std::string_view> port;
  bool brackets = false;
  if (const bool bare_v6 = parse_ip(text).has_value(); !bare_v6) {
    if (const std::size_t close = text.find(']'); text.starts_with('[')) {
      if (close == std::string_view::npos) return wrong;
      brackets = true;
      host = text.substr(1, close - 1);
      const std::string_view rest = text.substr(close + 1);
      if (rest.starts_with(':')) port = rest.substr(1);
      if (!port && !rest.empty()) return wrong;
    } else if (const std::size_t colon = text.rfind(':'); colon != std::string_view::npos) {
      host = text.substr(0, colon);
      port = text.substr(colon + 1);
    }
  }
  const auto ip = parse_ip(host);
  if (!ip || (brackets && !ip->v6) || (port && ip->v6 && !brackets)) return wrong;
  const auto number = port ? parse_decimal(*port, 65535) : std::optional<std::uint64_t>(53);
  if (!number || *number == 0) return wrong;
  return (ip->v6 ? '[' + to_string(*ip) + ']' : to_string(*ip)) + ':' + std::to_string(*number);
}

struct Resolver::Impl : std::enable_shared_from_this<Resolver::Impl> {
  using EntryPtr = std::shared_ptr<Entry>;

  Impl(asio::io_context& given, ResolverOptions chosen)
      : context(given), options(std::move(chosen)), random(std::random_device{}()) {}

  // A channel that reads the present resolv.conf. After a change of that file the old one is gone,
  // and with it the questions under way: they are asked again.
  Result<void> refresh_channel() {
    const auto now = Clock::now();
    if (channel && (!servers.empty() || now < conf_checked + kConfCheck)) return {};
    const FileVersion found = version_of(options.resolv_conf);
    conf_checked = now;
    if (channel && found == conf) return {};
    DnsOptions wanted;
    wanted.servers = servers;
    wanted.resolv_conf = options.resolv_conf;
    wanted.port = options.port;
    wanted.timeout = options.timeout;
    auto opened = DnsChannel::open(context, wanted);
    // With an old channel an unreadable file is no reason to have none; it is looked at again.
    if (!opened) return channel ? Result<void>{} : Result<void>{opened.error()};
    const bool replaced = channel != nullptr;
    channel = *std::move(opened);
    conf = found;
    if (replaced) restart(true);
    return {};
  }

  // After the channel of the questions under way is gone: nobody answers those.
  void restart(bool only_waiting) {
    for (const auto& [name, entry] : entries) {
      if (only_waiting && entry->waiting == 0) continue;
      entry->waiting = 0;
      later(entry, milliseconds{0});
    }
  }

  void later(const EntryPtr& entry, milliseconds time) {
    entry->timer.expires_after(time);
    entry->timer.async_wait([weak = weak_from_this(), weak_entry = std::weak_ptr<Entry>(entry)](
                                const asio::error_code& stopped) {
      const auto self = weak.lock();
      const auto found = weak_entry.lock();
      if (!stopped && self && found) self->ask(found);
    });
  }

  void ask(const EntryPtr& entry) {
    counters.rounds.add();
    entry->waiting = 0;
    entry->error.clear();
    entry->ttl = options.max_ttl;
    for (auto& family : entry->families)
      family.outcome = Outcome::failed;
    const auto fresh = refresh_channel();
    if (!fresh) entry->error = fresh.error().message;
    std::vector<IpAddress> own;
    if (channel) own = channel->from_hosts(entry->name);
    if (own.empty() && is_localhost(entry->name)) own = {*parse_ip("127.0.0.1"), *parse_ip("::1")};
    if (!own.empty()) {
      entry->ttl = options.hosts_ttl;
      for (std::size_t i = 0; i < kFamilies; ++i) {
        auto& family = entry->families[i];
        family.addresses.clear();
        std::copy_if(own.begin(), own.end(), std::back_inserter(family.addresses),
                     [&](const IpAddress& ip) { return ip.v6 == (i == 1); });
        sort_unique(family.addresses);
        family.outcome = family.addresses.empty() ? Outcome::none : Outcome::answered;
      }
    }
    if (!own.empty() || !channel) {
      finish(entry);
      return;
    }
    entry->waiting = kFamilies;
    for (const bool v6 : {false, true}) {
      channel->query(entry->name, v6,
                     [weak = weak_from_this(), weak_entry = std::weak_ptr<Entry>(entry),
                      v6](DnsAnswer answer) {
                       const auto self = weak.lock();
                       const auto found = weak_entry.lock();
                       if (!self || !found) return;
                       self->hear(found, v6, std::move(answer));
                     });
    }
  }

  void hear(const EntryPtr& entry, bool v6, DnsAnswer answer) {
    auto& family = entry->families[v6 ? 1 : 0];
    if (answer.outcome == Outcome::answered) refuse_own(*entry, answer);
    family.outcome = answer.outcome;
    if (answer.outcome == Outcome::answered) {
      sort_unique(answer.addresses);
      family.addresses = std::move(answer.addresses);
      entry->ttl = std::min(entry->ttl, milliseconds(answer.ttl));
      if (entry->reported.empty()) {  // do not wait for the other family
        report(entry);
        settle(*entry);
      }
    } else if (entry->error.empty() || answer.outcome == Outcome::failed) {
      entry->error = answer.error;
    }
    if (--entry->waiting == 0) finish(entry);
  }

  // Takes out what DNS may not give.
  void refuse_own(Entry& entry, DnsAnswer& answer) {
    auto& addresses = answer.addresses;
    for (IpAddress& ip : addresses)
      ip = without_mapping(ip);
    const auto bad = std::find_if_not(addresses.begin(), addresses.end(), may_come_from_dns);
    if (bad == addresses.end()) return;
    if (!entry.told_refused) {
      entry.told_refused = true;
      log::warn("{}: DNS answers {}, but DNS may not lead to the gateway itself; ignoring it",
                entry.name, to_string(*bad));
    }
    const auto removed =
        std::erase_if(addresses, [](const IpAddress& ip) { return !may_come_from_dns(ip); });
    counters.refused_addresses.add(removed);
    if (addresses.empty()) {
      answer.outcome = Outcome::failed;
      answer.error = "DNS answers nothing but addresses that it may not give";
    }
  }

  // Each family has answered, or failed.
  void finish(const EntryPtr& entry) {
    entry->waiting = 0;
    auto& families = entry->families;
    const bool answered = std::any_of(families.begin(), families.end(), [](const auto& family) {
      return family.outcome == Outcome::answered;
    });
    if (answered) {
      for (auto& family : families) {
        if (family.outcome == Outcome::none) family.addresses.clear();
      }
      if (entry->failures > 0) log::info("{}: resolved again", entry->name);
      entry->failures = 0;
      report(entry);
      later(entry, std::clamp(entry->ttl, options.min_ttl, options.max_ttl));
    } else {
      counters.failed_rounds.add();
      if (entry->failures++ == 0) {
        log::warn("{}: not resolved: {}; {}", entry->name, entry->error,
                  entry->reported.empty() ? "trying again" : "keeping the last addresses");
      }
      later(entry, retry_time(entry->failures));
    }
    settle(*entry);
  }

  milliseconds retry_time(unsigned failures) {
    const unsigned doublings = std::min(failures - 1, 16U);
    const auto time = std::min(options.first_retry * (1U << doublings), options.max_retry);
    std::uniform_int_distribution<milliseconds::rep> jitter(-time.count() / 5, time.count() / 5);
    return time + milliseconds{jitter(random)};
  }

  void report(const EntryPtr& entry) {
    auto now = entry->merged();
    if (now == entry->reported) return;
    entry->reported = std::move(now);
    if (entry->telling) return;
    entry->telling = true;
    asio::post(context, [weak = weak_from_this(), weak_entry = std::weak_ptr<Entry>(entry)] {
      const auto self = weak.lock();
      const auto found = weak_entry.lock();
      if (!self || !found) return;
      found->telling = false;
      const OnChange call = self->changed;  // it may be replaced by what it does
      if (call) call(found->name, found->reported);
    });
  }

  [[nodiscard]] bool ready() const {
    return std::all_of(entries.begin(), entries.end(),
                       [](const auto& item) { return item.second->settled; });
  }

  struct Waiter {
    Waiter(asio::io_context& given, std::function<void()> call)
        : timer(given), then(std::move(call)) {}
    asio::steady_timer timer;
    std::function<void()> then;
  };

  void settle(Entry& entry) {
    entry.settled = true;
    wake_if_ready();
  }

  void wake_if_ready() {
    if (waiters.empty() || !ready()) return;
    for (const auto& waiter : waiters)
      waiter->timer.expires_after(milliseconds{0});
    for (const auto& waiter : waiters)
      arm(waiter);
  }

  void arm(const std::shared_ptr<Waiter>& waiter) {
    waiter->timer.async_wait([weak = weak_from_this(), waiter](const asio::error_code& stopped) {
      const auto self = weak.lock();
      if (stopped || !self || !waiter->then) return;
      std::erase(self->waiters, waiter);
      std::exchange(waiter->then, nullptr)();
    });
  }

  asio::io_context& context;
  ResolverOptions options;
  std::minstd_rand random;
  ResolverCounters counters;
  OnChange changed;
  std::string servers;  // c-ares' list; empty: the system's
  std::unique_ptr<DnsChannel> channel;
  FileVersion conf;
  Clock::time_point conf_checked{};
  std::map<std::string, EntryPtr> entries;
  std::vector<std::shared_ptr<Waiter>> waiters;
};

Resolver::Resolver(asio::io_context& context, ResolverOptions options)
    : impl_(std::make_shared<Impl>(context, std::move(options))) {}

// Handlers under way hold the parts weakly, except waiters, whose timers go with the context.
Resolver::~Resolver() {
  for (const auto& waiter : impl_->waiters)
    waiter->timer.cancel();
}

void Resolver::on_change(OnChange handler) {
  impl_->changed = std::move(handler);
}

Result<void> Resolver::set_servers(const std::vector<std::string>& servers) {
  std::string list;
  for (const std::string& text : servers) {
    const auto server = parse_dns_server(text);
    if (!server) return server.error();
    list += (list.empty() ? "" : ",") + *server;
  }
  if (list == impl_->servers) return {};
  impl_->servers = std::move(list);
  impl_->channel.reset();
  impl_->restart(false);
  return {};
}

void Resolver::watch(const std::vector<std::string>& names) {
  const std::set<std::string> wanted(names.begin(), names.end());
  std::erase_if(impl_->entries, [&](const auto& item) { return !wanted.contains(item.first); });
  std::vector<Impl::EntryPtr> fresh;
  for (const std::string& name : wanted) {
    auto& entry = impl_->entries[name];
    if (entry) continue;
    entry = std::make_shared<Entry>(impl_->context, name);
    fresh.push_back(entry);
  }
  for (const auto& entry : fresh)
    impl_->ask(entry);
  impl_->wake_if_ready();
}

std::vector<IpAddress> Resolver::addresses(const std::string& name) const {
  const auto found = impl_->entries.find(name);
  return found == impl_->entries.end() ? std::vector<IpAddress>{} : found->second->reported;
}

bool Resolver::ready() const {
  return impl_->ready();
}

void Resolver::when_ready(milliseconds limit, std::function<void()> then) {
  auto waiter = std::make_shared<Impl::Waiter>(impl_->context, std::move(then));
  waiter->timer.expires_after(ready() ? milliseconds{0} : limit);
  impl_->waiters.push_back(waiter);
  impl_->arm(waiter);
}

const ResolverCounters& Resolver::counters() const {
  return impl_->counters;
}

}  // namespace causeway::gateway
