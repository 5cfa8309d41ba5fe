// SPDX-License-Identifier: Apache-2.0
// Theory of operation: the helper.
//
// The main process of causeway-host, without privileges. One control thread runs the sessions of
// all guests; each lane has its own thread, so a guest that is busy or hostile takes processor time
// from the others only as the scheduler allows it to any thread. Memory is bounded per guest: lanes
// and their buffers are made when the guest is opened, and so is the TAP's queue.
//
// A connection on the shared listener belongs to the guest that has the peer's CID, which the
// hypervisor vouches for. Nobody else is served, unless accept_unknown has a number left.
//
// A reload compares the new configuration with the running one. Guests that are gone are closed,
// new ones opened, and one whose TAP, listener or wire changed is closed and opened again. Rules,
// published ports and offers change without a guest noticing. A guest that cannot be opened is
// logged and shown; the others are not disturbed.
//
// The watchdog is fed from the data loop: each round asks every lane's thread to show that it runs,
// and the service manager is told only when all of them have.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/bridge/session.hpp"
#include "common/bridge/tap.hpp"
#include "common/log.hpp"
#include "common/net/acceptor.hpp"
#include "common/net/netlink.hpp"
#include "common/os/notify.hpp"
#include "host/broker_client.hpp"
#include "host/config.hpp"
#include "host/publish/publisher.hpp"

namespace causeway::host {

class Helper {
 public:
  Helper(asio::io_context& control, HostConfig config, BrokerClient& broker, Notifier& notifier,
         net::Netlink netlink);
  ~Helper();

  // Opens every guest; the first that cannot be is the error.
  Result<void> start();
  // SIGHUP. `args` are the program's.
  void reload(const std::vector<std::string>& args);
  void stop();
  // Stops, and has the program end with a failure.
  void fail();
  // Once the control thread has ended.
  [[nodiscard]] int exit_code() const { return exit_code_; }

  // From any thread.
  std::string status();
  [[nodiscard]] bool healthy() const;  // every named guest has its session up

 private:
  struct Guest;
  using Clock = std::chrono::steady_clock;

  Result<net::Listener> shared_listener();
  Result<void> open_guest(const GuestConfig& config);
  Result<void> adopt_guest(const GuestConfig& config, OpenedGuest opened);
  Result<net::Listener> own_listener(const GuestConfig& config, OpenedGuest& opened);
  void on_guest_failure(const std::string& name);
  // A `failure` is shown in the status until the next reload.
  void close_guest(const std::string& name, const std::string& failure);
  void take(UniqueFd stream);
  void refuse(std::uint64_t& counter, int stream, const char* why);
  Guest* guest_of(std::uint32_t cid);
  Guest* admit_unknown(std::uint32_t cid);
  void forget_unknown();
  static void log_rules(const Result<void>& applied);
  Result<void> publish();
  void change(const HostConfig& fresh);
  asio::awaitable<void> tick();
  void feed_watchdog();
  void bury();
  std::string status_line(Clock::duration since);

  asio::io_context& control_;
  HostConfig config_;
  BrokerClient& broker_;
  Notifier& notifier_;
  std::optional<net::Acceptor> shared_;
  StreamPublisher publisher_;
  std::set<std::string> published_;  // guest and specification of each stream entry that is served
  std::set<int> inherited_;          // descriptors of fd:N guests that were taken
  LogBudget peer_log_;
  bool stopping_ = false;
  bool proofs_wanted_ = false;
  int exit_code_ = 0;
  std::uint64_t bytes_before_ = 0;
  Clock::time_point line_at_ = Clock::now();

  mutable std::mutex mutex_;  // between the control thread and the admin threads' status()
  std::map<std::string, std::unique_ptr<Guest>> guests_;
  std::vector<std::unique_ptr<Guest>> closed_;  // their sessions are not finished yet
  std::map<std::string, std::string> failed_;   // guests that could not be opened, and why
  std::uint64_t refused_unknown_cid_ = 0;
  std::string last_reload_error_;
  net::Netlink netlink_;
  Clock::time_point started_ = Clock::now();
};

}  // namespace causeway::host
