// SPDX-License-Identifier: Apache-2.0
// A DNS server on 127.0.0.1, UDP and TCP on one port of its own, for the gateway's tests: it says
// what it is told to, or says nothing, or nonsense. RFC 1035 section 4.
#pragma once

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/net/address.hpp"
#include "common/net/asio.hpp"
#include "common/net/socket_address.hpp"
#include "common/os/unique_fd.hpp"

namespace causeway::test {

inline constexpr std::chrono::seconds kPatience{30};  // only a failing test waits this long

// Runs `context` until `condition` holds; false when patience is over.
template <class Condition>
bool run_until(asio::io_context& context, Condition&& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    context.restart();
    context.run_one_for(std::chrono::milliseconds{20});
  }
  return true;
}

// Of one name and family.
struct DnsRecords {
  enum class Way : std::uint8_t {
    answer,     // with no address: an empty answer
    no_name,    // NXDOMAIN
    fault,      // SERVFAIL
    silent,     // nothing at all
    garbage,    // the right id, then nonsense
    truncated,  // TC over UDP, all over TCP
    cut,        // TC over UDP, and TCP ends without an answer
  };
  std::vector<std::string> addresses;
  std::uint32_t ttl = 3600;  // seconds
  Way way = Way::answer;
  std::uint32_t alias_ttl = 0;  // != 0: the addresses are behind an alias
};

class DnsServer {
 public:
  using Way = DnsRecords::Way;

  DnsServer() {
    for (int attempt = 0; attempt < 50 && !tcp_.valid(); ++attempt)
      open();
    REQUIRE(tcp_.valid());
    stop_.reset(::eventfd(0, EFD_CLOEXEC));
    thread_ = std::thread([this] { serve(); });
  }
  ~DnsServer() {
    const std::uint64_t one = 1;
    (void)!::write(stop_.get(), &one, sizeof one);
    thread_.join();
  }
  DnsServer(const DnsServer&) = delete;
  DnsServer& operator=(const DnsServer&) = delete;

  [[nodiscard]] std::uint16_t port() const { return port_; }
  [[nodiscard]] std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  void set4(const std::string& name, DnsRecords records) { set(name, 1, std::move(records)); }
  void set6(const std::string& name, DnsRecords records) { set(name, 28, std::move(records)); }
  void set(const std::string& name, DnsRecords::Way way) {
    set4(name, {.addresses = {}, .way = way});
    set6(name, {.addresses = {}, .way = way});
  }
  // Questions for A records of `name` so far, when each came.
  [[nodiscard]] std::vector<std::chrono::steady_clock::time_point> asked(
      const std::string& name) const {
    const std::lock_guard lock(mutex_);
    const auto found = asked_.find(name);
    return found == asked_.end() ? std::vector<std::chrono::steady_clock::time_point>{}
                                 : found->second;
  }
  [[nodiscard]] std::size_t over_tcp() const {
    const std::lock_guard lock(mutex_);
    return over_tcp_;
  }

 private:
  using Bytes = std::vector<std::uint8_t>;

  void set(const std::string& name, std::uint16_t type, DnsRecords records) {
    const std::lock_guard lock(mutex_);
    records_[{name, type}] = std::move(records);
  }

  void open() {
    auto where = *net::to_socket_address(Address{TcpAddress{"127.0.0.1", 0}});
    udp_.reset(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    REQUIRE(::bind(udp_.get(), where.get(), where.length) == 0);
    sockaddr_in bound{};
    socklen_t length = sizeof bound;
    // sockaddr_in is what an AF_INET socket's name is.
    REQUIRE(::getsockname(udp_.get(), reinterpret_cast<sockaddr*>(&bound), &length) == 0);
    port_ = ntohs(bound.sin_port);
    where = *net::to_socket_address(Address{TcpAddress{"127.0.0.1", port_}});
    tcp_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = 1;
    REQUIRE(::setsockopt(tcp_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
    if (::bind(tcp_.get(), where.get(), where.length) != 0 || ::listen(tcp_.get(), 16) != 0) {
      tcp_.reset();  // somebody's: another port then
    }
  }

  void serve() {
    for (;;) {
      pollfd wait[3] = {{stop_.get(), POLLIN, 0}, {udp_.get(), POLLIN, 0}, {tcp_.get(), POLLIN, 0}};
      ::poll(wait, 3, -1);
      if (wait[0].revents != 0) return;
      if (wait[1].revents != 0) serve_udp();
      if (wait[2].revents != 0) serve_tcp();
    }
  }

  void serve_udp() {
    Bytes query(4096);
    sockaddr_in from{};
    socklen_t length = sizeof from;
    const ssize_t got = ::recvfrom(udp_.get(), query.data(), query.size(), 0,
                                   reinterpret_cast<sockaddr*>(&from), &length);
    if (got <= 0) return;
    query.resize(static_cast<std::size_t>(got));
    const Bytes reply = answer(query, false);
    if (reply.empty()) return;
    (void)::sendto(udp_.get(), reply.data(), reply.size(), 0,
                   reinterpret_cast<const sockaddr*>(&from), length);
  }

  void serve_tcp() {
    const UniqueFd stream(::accept4(tcp_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const timeval limit{.tv_sec = 5, .tv_usec = 0};
    ::setsockopt(stream.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    for (;;) {
      std::uint8_t head[2] = {};
      if (::recv(stream.get(), head, 2, MSG_WAITALL) != 2) return;
      Bytes query(static_cast<std::size_t>(head[0]) << 8 | head[1]);
      if (::recv(stream.get(), query.data(), query.size(), MSG_WAITALL) !=
          static_cast<ssize_t>(query.size())) {
        return;
      }
      const Bytes reply = answer(query, true);
      if (reply.empty()) return;
      Bytes framed;
      put16(framed, static_cast<std::uint32_t>(reply.size()));
      framed.insert(framed.end(), reply.begin(), reply.end());
      (void)::send(stream.get(), framed.data(), framed.size(), MSG_NOSIGNAL);
    }
  }

  static void put16(Bytes& out, std::uint32_t value) {
    out.push_back(static_cast<std::uint8_t>(value >> 8));
    out.push_back(static_cast<std::uint8_t>(value));
  }
  static void put32(Bytes& out, std::uint32_t value) {
    put16(out, value >> 16);
    put16(out, value);
  }

  // Empty: nothing is said.
  Bytes answer(const Bytes& query, bool tcp) {
    std::string name;
    std::size_t at = 12;
    while (at < query.size() && query[at] != 0) {
      if (!name.empty()) name += '.';
      name.append(query.begin() + static_cast<std::ptrdiff_t>(at) + 1,
                  query.begin() + static_cast<std::ptrdiff_t>(at) + 1 + query[at]);
      at += 1U + query[at];
    }
    const std::size_t end = at + 5;  // root, type, class
    if (end > query.size()) return {};
    const auto type = static_cast<std::uint16_t>(query[at + 1] << 8 | query[at + 2]);
    DnsRecords records{.addresses = {}, .way = Way::no_name};
    {
      const std::lock_guard lock(mutex_);
      if (type == 1) asked_[name].push_back(std::chrono::steady_clock::now());
      if (tcp) ++over_tcp_;
      if (const auto found = records_.find({name, type}); found != records_.end()) {
        records = found->second;
      }
    }
    const bool short_one = !tcp && (records.way == Way::truncated || records.way == Way::cut);
    if (records.way == Way::silent || (tcp && records.way == Way::cut)) return {};
    Bytes reply(query.begin(), query.begin() + 2);
    if (records.way == Way::garbage) {
      reply.insert(reply.end(), {0x81, 0x80, 0, 1, 0, 9, 0xff, 0xff, 0, 0, 0xc0, 0xff, 1});
      return reply;
    }
    const unsigned code = records.way == Way::no_name ? 3 : records.way == Way::fault ? 2 : 0;
    put16(reply, 0x8180U | code | (short_one ? 0x0200U : 0U));
    const bool alias = records.alias_ttl != 0;
    const std::size_t count = short_one ? 0 : records.addresses.size() + (alias ? 1 : 0);
    put16(reply, 1);
    put16(reply, static_cast<std::uint32_t>(count));
    put32(reply, 0);
    reply.insert(reply.end(), query.begin() + 12, query.begin() + static_cast<std::ptrdiff_t>(end));
    if (count == 0) return reply;
    std::uint32_t owner = 0xc00c;  // a pointer to the question's name
    if (alias) {
      const Bytes target{4, 'r', 'e', 'a', 'l', 4, 't', 'e', 's', 't', 0};
      put16(reply, owner);
      put16(reply, 5);
      put16(reply, 1);
      put32(reply, records.alias_ttl);
      put16(reply, static_cast<std::uint32_t>(target.size()));
      owner = 0xc000U | static_cast<std::uint32_t>(reply.size());
      reply.insert(reply.end(), target.begin(), target.end());
    }
    for (const std::string& text : records.addresses) {
      const IpAddress ip = *parse_ip(text);
      put16(reply, owner);
      put16(reply, type);
      put16(reply, 1);
      put32(reply, records.ttl);
      put16(reply, static_cast<std::uint32_t>(ip.size()));
      reply.insert(reply.end(), ip.bytes.begin(),
                   ip.bytes.begin() + static_cast<std::ptrdiff_t>(ip.size()));
    }
    return reply;
  }

  UniqueFd udp_;
  UniqueFd tcp_;
  UniqueFd stop_;
  std::uint16_t port_ = 0;
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, std::uint16_t>, DnsRecords> records_;
  std::map<std::string, std::vector<std::chrono::steady_clock::time_point>> asked_;
  std::size_t over_tcp_ = 0;
  std::thread thread_;
};

}  // namespace causeway::test
