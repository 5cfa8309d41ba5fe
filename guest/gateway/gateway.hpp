// SPDX-License-Identifier: Apache-2.0
// Theory of operation: the gateway around its workers.
//
// The control thread resolves names, checks health, takes signals and makes the snapshots that the
// workers see: a new one on a reload and whenever a name leads elsewhere. It never touches a
// connection.
//
//   SIGHUP        reads the configuration again, and the certificates and keys that it names. What
//   is
//                 wrong with any is logged and shown, and all that was there stays. Connections
//                 keep the snapshot that they were routed by.
//   a file of TLS is another one: those files are read again, and the same holds.
//   SIGTERM       drains: no more connections, those that are there may finish within `drain`.
//   a second one  ends at once.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/net/asio.hpp"
#include "common/os/notify.hpp"
#include "guest/gateway/listen/listeners.hpp"
#include "guest/gateway/snapshot.hpp"
#include "guest/gateway/tls/tickets.hpp"
#include "guest/gateway/tls_material.hpp"
#include "guest/gateway/upstream/directory.hpp"
#include "guest/gateway/worker.hpp"

namespace causeway::gateway {

// How many workers a configuration means on this machine.
unsigned worker_count(const GatewayConfig& config);

class Gateway {
 public:
  // `args` are the program's, for a reload. `config` came from them.
  Gateway(asio::io_context& control, const GatewayConfig& config, std::string config_file,
          std::vector<std::string> args, Notifier& notifier);
  ~Gateway();  // ends the workers
  Gateway(const Gateway&) = delete;
  Gateway& operator=(const Gateway&) = delete;

  // Reads the files of TLS and binds everything. Names are not waited for here.
  Result<void> open();
  // Waits a little for names, then starts the workers. Runs the control thread's loop on the way.
  void start();
  Result<std::string> reload();  // a line of what was done
  // The control loop ends when the last worker has.
  void drain();
  void stop();

  // From any thread.
  std::string status();
  [[nodiscard]] bool healthy() const;

 private:
  std::shared_ptr<const Snapshot> make_snapshot() const;
  Result<std::shared_ptr<const TlsSnapshot>> read_tls(const GatewayConfig& config);
  void reload_tls();
  void refuse_reload(const std::string& what);
  void publish();
  void worker_ended();
  void worker_swept();
  asio::awaitable<void> feed_watchdog(std::chrono::microseconds interval);
  asio::awaitable<void> watch_files();
  asio::awaitable<void> rotate_ticket_keys();

  asio::io_context& control_;
  GatewayConfig config_;
  std::string config_file_;
  std::vector<std::string> args_;
  Notifier& notifier_;
  Resolver resolver_;
  HealthChecker health_;
  Directory directory_;
  std::shared_ptr<const RouteTable> table_;
  tls::TicketKeys ticket_keys_;
  FileWatch files_;
  bool tls_error_ = false;  // the last reload's error is of a file that has changed since
  std::vector<OpenListener> listeners_;
  WorkerGroup group_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::thread> threads_;
  std::size_t running_ = 0;   // workers
  std::size_t sweeping_ = 0;  // workers that still accept
  unsigned worker_count_ = 1;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();

  mutable std::mutex mutex_;  // between the control thread and the admin threads' status()
  std::shared_ptr<const Snapshot> snapshot_;
  std::shared_ptr<const TlsSnapshot> tls_;
  std::vector<std::string> warnings_;
  std::size_t start_warnings_ = 0;  // of them, the first: a reload does not change those
  std::string last_reload_error_;
  bool draining_ = false;
};

}  // namespace causeway::gateway
