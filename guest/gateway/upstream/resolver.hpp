// SPDX-License-Identifier: Apache-2.0
// Theory of operation: the addresses behind the names of upstreams, kept fresh.
//
// Each watched name is resolved at once, A and AAAA separately, and again when its answer's time to
// live is over (held between min_ttl and max_ttl). What is known is never lost to a failure: after
// a timeout, an error or a negative answer the last good addresses stay, and the name is asked
// again after first_retry, doubled up to max_retry, with jitter. Of the two families one may be
// empty; a family that fails while the other answers keeps what it had.
//
// /etc/hosts comes first, and `localhost` never leaves the machine (RFC 6761 6.3). An answer from
// DNS is not trusted with this machine's inside: loopback, link-local, unspecified and multicast
// addresses in it are dropped, counted, and logged once for each name.
//
// All of it runs on the control thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/counter.hpp"
#include "common/net/address.hpp"
#include "common/net/asio.hpp"
#include "common/result.hpp"

namespace causeway::gateway {

// The defaults are what the gateway runs with.
struct ResolverOptions {
  std::chrono::milliseconds min_ttl{1000};
  std::chrono::milliseconds max_ttl{300'000};
  std::chrono::milliseconds first_retry{1000};
  std::chrono::milliseconds max_retry{30'000};
  std::chrono::milliseconds hosts_ttl{10'000};   // when /etc/hosts is read again
  std::chrono::milliseconds timeout{2000};       // of a query's first try; the second waits longer
  std::string resolv_conf = "/etc/resolv.conf";  // read again when it changes
  std::uint16_t port = 53;                       // of the servers in it
};

// Any thread may read.
struct ResolverCounters {
  Counter rounds;             // a name asked for, both families
  Counter failed_rounds;      // without an address in the end
  Counter refused_addresses;  // that DNS may not give
};

// False for what an answer from DNS may not lead to. ::ffff:A.B.C.D counts as A.B.C.D.
bool may_come_from_dns(const IpAddress& ip);

class Resolver {
 public:
  static constexpr std::size_t kMaxAddresses =
      16;  // of a name; half for each family if both have more
  // `addresses` are sorted, IPv4 first, each once, at most kMaxAddresses, and never empty.
  using OnChange =
      std::function<void(const std::string& name, const std::vector<IpAddress>& addresses)>;

  // `context` outlives the resolver.
  explicit Resolver(asio::io_context& context, ResolverOptions options = {});
  ~Resolver();
  Resolver(const Resolver&) = delete;
  Resolver& operator=(const Resolver&) = delete;

  // Called from the event loop, never from within a function of this class; it may call any.
  void on_change(OnChange handler);

  // IP, IP:PORT, [IP] or [IP]:PORT each; none: the system's. All names are asked for again if this
  // is a change. On an error nothing has changed.
  Result<void> set_servers(const std::vector<std::string>& servers);

  // The names to keep resolved from now on; those of before that are not among them are forgotten.
  void watch(const std::vector<std::string>& names);

  // What is known; empty: nothing yet, or not watched.
  [[nodiscard]] std::vector<IpAddress> addresses(const std::string& name) const;

  // Whether each watched name has been resolved or has failed once.
  [[nodiscard]] bool ready() const;
  // Calls `then` once, from the event loop, as soon as ready(), or when `limit` is over.
  void when_ready(std::chrono::milliseconds limit, std::function<void()> then);

  [[nodiscard]] const ResolverCounters& counters() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

// One server as c-ares takes it, IP:PORT or [IP]:PORT.
Result<std::string> parse_dns_server(std::string_view text);

}  // namespace causeway::gateway
