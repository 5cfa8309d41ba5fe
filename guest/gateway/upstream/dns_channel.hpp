// SPDX-License-Identifier: Apache-2.0
// Theory of operation: c-ares on the control thread's io_context.
//
// c-ares does the protocol (retries, several servers, TCP after a truncated answer, search
// domains, resolv.conf); it opens its sockets itself and says what it waits for on each. Here those
// waits, and its one timer, are Asio's: no thread, no blocking call except reading /etc/hosts.
//
// Only DNS is asked by query(). /etc/hosts is a question of its own, from_hosts(): what the
// machine's owner wrote is believed, what a server says is not believed blindly (resolver.hpp).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/net/address.hpp"
#include "common/net/asio.hpp"
#include "common/result.hpp"

namespace causeway::gateway {

struct DnsAnswer {
  enum class Outcome : std::uint8_t {
    answered,
    none,    // an answer: there is no such name, or it has no address of this family
    failed,  // no answer, or one that makes no sense
  };
  Outcome outcome = Outcome::failed;
  std::vector<IpAddress> addresses;  // of the family asked for, as they came
  std::chrono::seconds ttl{0};       // the least of all records, aliases included
  std::string error;                 // unless answered
};

struct DnsOptions {
  std::string servers;  // c-ares' list: IP:PORT,[IP]:PORT; empty: those of resolv_conf
  std::string resolv_conf = "/etc/resolv.conf";
  std::uint16_t port = 53;                  // of the servers in resolv_conf
  std::chrono::milliseconds timeout{2000};  // of the first try; the next ones wait longer
  int tries = 2;                            // of each server
};

class DnsChannel {
 public:
  using Handler = std::function<void(DnsAnswer)>;

  static Result<std::unique_ptr<DnsChannel>> open(asio::io_context& context,
                                                  const DnsOptions& options);
  // Handlers of queries that are under way are not called any more.
  ~DnsChannel();
  DnsChannel(const DnsChannel&) = delete;
  DnsChannel& operator=(const DnsChannel&) = delete;

  // `handler` is called once, from the event loop, never from within query().
  void query(const std::string& name, bool v6, Handler handler);

  // What /etc/hosts says; both families, nothing if the name is not there.
  [[nodiscard]] std::vector<IpAddress> from_hosts(const std::string& name);

 private:
  struct Impl;
  explicit DnsChannel(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace causeway::gateway
