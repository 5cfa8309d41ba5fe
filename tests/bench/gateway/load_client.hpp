// SPDX-License-Identifier: Apache-2.0
// What the load clients have in common. Theory of operation: every connection is a small state
// machine (greeting, exchange, held, ending) driven by one level-triggered epoll; the base decides
// when a unit begins and counts it, the class derived from it moves the bytes. On a schedule
// (`rate`) latency counts from the time at which a unit was due, so that a stall is paid by every
// unit behind it.
#pragma once

#include <sys/epoll.h>
#include <time.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tests/bench/gateway/tls_load.hpp"
#include "tests/bench/pair/sockets.hpp"

namespace causeway::bench {

class LoadClient {
 public:
  explicit LoadClient(const LoadPlan& plan);
  LoadClient(const LoadClient&) = delete;
  LoadClient& operator=(const LoadClient&) = delete;
  virtual ~LoadClient() = default;

  nlohmann::json run();

 protected:
  enum class State { closed, greeting, exchange, held, ending };

  struct Connection {
    Fd fd;
    State state = State::closed;
    bool waits_for_room = false;
    std::uint64_t sent = 0, received = 0;  // in this state
    double began = 0;
  };

  // --- for the derived class to do ---

  // connect() is under way.
  virtual void on_open(std::size_t index) = 0;
  // Sends what the state has to send. False: the connection failed and is closed.
  virtual bool flush(std::size_t index) = 0;
  virtual void receive(std::size_t index) = 0;
  // The descriptor is closed next. `good`: not because of a failure.
  virtual void on_close(std::size_t index, bool good) = 0;
  // More for the report.
  [[nodiscard]] virtual nlohmann::json details() const = 0;

  // --- for it to call ---

  // The greeting, or the reply, is complete.
  void complete(std::size_t index);
  void close(std::size_t index) { close(index, true); }
  // Always false, so that callers can return it. Names errno, or else the socket's error.
  bool failed(std::size_t index, const std::string& what);
  void wait_for_room(std::size_t index, bool waits);
  [[nodiscard]] Connection& at(std::size_t index) { return connections_[index]; }
  [[nodiscard]] const SocketAddress& address() const { return address_; }
  // What is left of a request of which `sent` bytes are gone; a large one comes in pieces.
  [[nodiscard]] std::span<const std::byte> request_from(std::uint64_t sent) const;
  [[nodiscard]] std::uint64_t request_size() const { return kRequestSize + plan_.request.payload; }
  [[nodiscard]] bool is_filler(std::span<const std::byte> bytes) const;

 private:
  void watch(int operation, int fd, std::uint32_t interest, std::uint64_t tag);
  [[nodiscard]] bool may_begin() const;
  [[nodiscard]] bool idle() const;
  [[nodiscard]] bool waits_for_more() const;
  [[nodiscard]] bool wants_open() const;
  void open_some();
  void issue_due();
  [[nodiscard]] std::optional<timespec> patience() const;
  void open(std::size_t index);
  void begin_exchange(std::size_t index, double began);
  void on_event(std::size_t index, std::uint32_t events);
  void unit_done(const Connection& connection);
  void hold(std::size_t index);
  void close(std::size_t index, bool good);
  void handle_events();
  void on_stdin();
  nlohmann::json report();

  LoadPlan plan_;
  SocketAddress address_;
  std::vector<std::byte> request_;  // and the first of its payload
  Fd epoll_;
  std::vector<Connection> connections_;
  std::deque<std::size_t> free_;  // held ones, the longest idle first
  std::vector<epoll_event> events_ = std::vector<epoll_event>(256);
  std::vector<std::byte> filler_ = std::vector<std::byte>(kSendSize, kFiller);
  std::vector<float> latencies_;  // microseconds, one a unit

  std::size_t next_closed_ = 0;
  std::uint64_t opened_ = 0, begun_ = 0, done_ = 0, errors_ = 0;
  unsigned open_ = 0;     // not closed
  unsigned opening_ = 0;  // not greeted yet
  unsigned busy_ = 0;     // in an exchange, or ending
  bool ready_ = false, stopped_ = false, finished_ = false;
  double start_ = 0, first_due_ = 0, seconds_ = 0;
  std::string error_;
};

}  // namespace causeway::bench
