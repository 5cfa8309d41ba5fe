// SPDX-License-Identifier: Apache-2.0
// Theory of operation: a worker, one thread with everything that its connections need.
//
// The loop waits in epoll, reads the clock once, serves what is ready, goes on with connections
// that had a full turn, fires timers and frees what ended. Sockets are registered once,
// edge-triggered: a relay makes system calls for its bytes and for nothing else. That is why it is
// not Asio's loop: Asio re-arms a descriptor with a system call for each wait, and a wait costs it
// an operation object, two mutexes and a queue besides.
//
// Listeners are level-triggered. A listener of a worker's own (SO_REUSEPORT) spreads by the
// kernel's hash, which is uneven with few connections; one that all share wakes one of them
// (EPOLLEXCLUSIVE). Either way a worker that has clearly more connections than the least loaded one
// hands a new one over, as a bare descriptor that was never in its epoll set: if mine >= least + 1
// + least/4. The other's queue is bounded; full, the connection stays.
//
// When descriptors run out, a spare one is given up to accept and reset who is waiting, so that
// nobody hangs in the backlog, and accepting pauses.
//
// Other threads speak to a worker through its mailbox: a lock held for a few stores, and an
// eventfd.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "common/log.hpp"
#include "guest/gateway/connection.hpp"
#include "guest/gateway/worker_context.hpp"

namespace causeway::gateway {

class Worker;

// What the workers share. Filled before the first of them runs.
struct WorkerGroup {
  std::vector<Worker*> workers;
  LimitedCount connections;
  bool rebalance = false;
  const tls::TicketKeys* tickets = nullptr;  // null: none
  std::vector<net::Endpoint> own;            // the tcp listeners' addresses
  std::function<void()> on_swept;            // by each worker's thread, once it accepts no more
};

// A listening socket of a worker, its own or one that all have.
struct WorkerListener {
  ListenerInfo info;
  int fd = -1;  // borrowed
  bool shared = false;
};

class Worker {
 public:
  static constexpr std::size_t kQueue = 1024;  // connections handed over and not yet taken

  // `snapshot` is the first. Throws std::system_error when epoll or eventfd are not to be had.
  Worker(WorkerGroup& group, std::shared_ptr<const Snapshot> snapshot,
         const std::vector<WorkerListener>& listeners);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // The thread's work, until it was drained or stopped.
  void run();

  // From any thread.
  void publish(std::shared_ptr<const Snapshot> snapshot);
  // Accepts what waits, then no more; run() returns when the last connection ends, and resets those
  // that are left after `limit`.
  void drain(Duration limit);
  void stop();  // resets everything at once
  void wake();  // the loop turns once

  [[nodiscard]] bool ended() const { return ended_.load(std::memory_order_relaxed); }  // run() has
  [[nodiscard]] std::uint32_t load() const { return context_.load.load(std::memory_order_relaxed); }
  [[nodiscard]] const WorkerCounters& counters() const { return context_.counters; }
  [[nodiscard]] std::size_t pipes_idle() const {
    return pipes_idle_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::size_t pipes_in_use() const {
    return pipes_in_use_.load(std::memory_order_relaxed);
  }

 private:
  struct alignas(8) Listening : TimerWheel::Timer {
    WorkerListener of;
    unsigned burst = 1;           // accepts in the next turn
    std::uint64_t last_turn = 0;  // in which it was ready
    bool paused = false;
  };
  struct HandedOver {
    UniqueFd fd;
    std::uint32_t listener = 0;
    ConnectionSlot slot;
  };
  struct Mailbox {
    std::mutex mutex;
    std::deque<HandedOver> handed_over;
    std::shared_ptr<const Snapshot> snapshot;
    std::optional<Duration> drain;
    bool stop = false;
    bool closed = false;  // takes no more connections
  };

  void turn();
  void use_certificates();
  void dispatch(std::uint64_t data, std::uint32_t events);
  void fire(TimerWheel::Timer& timer);
  void read_mailbox();
  bool offer(HandedOver& connection);

  void accept_from(Listening& listening);
  bool accept_one(Listening& listening);
  void admit(Listening& listening, UniqueFd fd);
  void begin(std::uint32_t listener, UniqueFd fd, ConnectionSlot slot);
  void out_of_descriptors(Listening& listening);
  void pause(Listening& listening);
  void resume(Listening& listening);
  void stop_accepting();
  void end_all(End reason);
  void free_ended();

  WorkerGroup& group_;
  WorkerContext context_;
  UniqueFd event_;
  UniqueFd spare_;  // given up when descriptors run out
  Mailbox mailbox_;
  std::vector<std::unique_ptr<Listening>> listeners_;
  std::vector<Connection*> going_on_;
  LogBudget accept_log_;
  std::uint64_t turns_ = 0;
  bool accepting_ = true;
  bool stopped_ = false;
  std::uint64_t drain_deadline_ = TimerWheel::kNever;
  struct alignas(8) DrainTimer : TimerWheel::Timer {
  } drain_timer_;
  std::atomic<bool> ended_{false};
  std::atomic<std::size_t> pipes_idle_{0};
  std::atomic<std::size_t> pipes_in_use_{0};
};

}  // namespace causeway::gateway
