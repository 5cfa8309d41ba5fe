// SPDX-License-Identifier: Apache-2.0
// The load client. Theory of operation: every connection is a small state machine (hello, exchange,
// held, ending) driven by one level-triggered epoll; what it sends is the same for every unit and
// is laid out once. Large replies are discarded in the kernel (MSG_TRUNC), small ones are compared
// with what the origin sends. On a schedule (`rate`) latency counts from the time at which a unit
// was due, so that a stall is paid by every unit behind it.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/bench/gateway/tls_load.hpp"
#include "tests/bench/pair/sockets.hpp"

namespace causeway::bench {
namespace {

constexpr unsigned kOpeningAtOnce = 256;
constexpr std::uint64_t kMaxErrors = 100;
constexpr std::uint64_t kStdin = ~std::uint64_t{0};  // epoll tag; connections have their index

std::vector<std::byte> read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  if (!in.good() || text.size() <= kRecordHeaderSize) {
    throw std::runtime_error("'" + path + "': no ClientHello in it");
  }
  std::vector<std::byte> out(text.size());
  std::transform(text.begin(), text.end(), out.begin(),
                 [](char c) { return static_cast<std::byte>(c); });
  return out;
}

class Client {
 public:
  explicit Client(const ClientOptions& options)
      : options_(options),
        address_(parse_ip_port(options.connect)),
        hello_(read_file(options.hello)),
        request_(kRequestSize + std::min<std::uint64_t>(options.request.payload, kReadSize),
                 kFiller),
        epoll_(epoll_create1(EPOLL_CLOEXEC)),
        connections_(options.connections) {
    if (epoll_.get() < 0) fail("epoll_create1");
    const RequestBytes head = encode(options.request);
    std::copy(head.begin(), head.end(), request_.begin());
  }

  nlohmann::json run() {
    start_ = now_seconds();
    if (options_.holds) watch(EPOLL_CTL_ADD, STDIN_FILENO, EPOLLIN, kStdin);
    while (!finished_) {
      open_some();
      if (options_.rate > 0) issue_due();
      if (idle() && !waits_for_more()) break;
      handle_events();
    }
    seconds_ = now_seconds() - start_;
    return report();
  }

 private:
  enum class State { closed, hello, exchange, held, ending };

  struct Connection {
    Fd fd;
    State state = State::closed;
    bool waits_for_room = false;
    std::uint64_t sent = 0, received = 0;  // in this state
    double began = 0;
  };

  void watch(int operation, int fd, std::uint32_t interest, std::uint64_t tag) {
    epoll_event event{};
    event.events = interest;
    event.data.u64 = tag;
    if (epoll_ctl(epoll_.get(), operation, fd, &event) != 0) fail("epoll_ctl");
  }

  // --- when a unit may begin ---

  [[nodiscard]] bool may_begin() const {
    if (stopped_ || (options_.units > 0 && begun_ >= options_.units)) return false;
    return options_.seconds <= 0 || now_seconds() - start_ < options_.seconds;
  }

  [[nodiscard]] bool idle() const { return opening_ == 0 && busy_ == 0 && !wants_open(); }

  // Held connections get their units from stdin or from the schedule.
  [[nodiscard]] bool waits_for_more() const {
    return (options_.holds || options_.rate > 0) && !stopped_ && open_ > 0;
  }

  // A unit that is a connection is begun by opening; others need each connection once.
  [[nodiscard]] bool wants_open() const {
    if (finished_) return false;
    if (options_.reopens) return open_ < options_.connections && may_begin();
    return !stopped_ && opened_ < options_.connections;
  }

  void open_some() {
    while (wants_open() && opening_ < kOpeningAtOnce) {
      while (connections_[next_closed_].state != State::closed)
        advance_closed();
      open(next_closed_);
    }
    if (options_.holds && !ready_ && opening_ == 0 && busy_ == 0 && !wants_open()) {
      std::cout << "ready" << std::endl;
      ready_ = true;
    }
  }

  void advance_closed() { next_closed_ = (next_closed_ + 1) % connections_.size(); }

  void issue_due() {
    const double now = now_seconds();
    if (first_due_ == 0) {
      if (opening_ > 0 || opened_ < options_.connections) return;
      start_ = first_due_ = now;
    }
    while (!free_.empty() && may_begin()) {
      const double due = first_due_ + static_cast<double>(begun_) / options_.rate;
      if (due > now) return;
      const std::size_t index = free_.front();
      free_.pop_front();
      begin_exchange(index, due);
    }
  }

  // For epoll_pwait2: until the next unit is due. Nothing: as long as it takes.
  [[nodiscard]] std::optional<timespec> patience() const {
    if (options_.rate <= 0 || first_due_ == 0 || free_.empty()) return std::nullopt;
    const double left =
        std::max(0.0, first_due_ + static_cast<double>(begun_) / options_.rate - now_seconds());
    const auto whole = static_cast<time_t>(left);
    return timespec{whole, static_cast<long>((left - static_cast<double>(whole)) * 1e9)};
  }

  // --- the state machine ---

  void open(std::size_t index) {
    Connection& connection = connections_[index];
    connection.began = now_seconds();
    connection.fd =
        Fd(socket(address_.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (connection.fd.get() < 0) fail("socket");
    set_option(connection.fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY");
    ++opened_, ++open_, ++opening_;
    if (options_.reopens) ++begun_;
    if (connect(connection.fd.get(), address_.get(), address_.size) != 0 && errno != EINPROGRESS) {
      fail("connect");
    }
    enter(connection, State::hello);
    connection.waits_for_room = false;
    watch(EPOLL_CTL_ADD, connection.fd.get(), EPOLLIN, index);
    flush(index);  // over loopback the connection is up already
  }

  static void enter(Connection& connection, State state) {
    connection.state = state;
    connection.sent = connection.received = 0;
  }

  void begin_exchange(std::size_t index, double began) {
    Connection& connection = connections_[index];
    connection.began = began;
    if (!options_.reopens) ++begun_;
    ++busy_;
    enter(connection, State::exchange);
    flush(index);
  }

  void on_event(std::size_t index, std::uint32_t events) {
    Connection& connection = connections_[index];
    if (connection.state == State::closed) return;  // closed earlier in the same batch
    if ((events & EPOLLOUT) != 0 && !flush(index)) return;
    if ((events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0) receive(index);
  }

  // False: the connection failed and is closed.
  bool flush(std::size_t index) {
    Connection& connection = connections_[index];
    const bool says_hello = connection.state == State::hello;
    const std::vector<std::byte>& head = says_hello ? hello_ : request_;
    const std::uint64_t whole = says_hello ? head.size() : kRequestSize + options_.request.payload;
    const bool sends = says_hello || connection.state == State::exchange;
    if (sends && connection.sent < whole) {
      // Behind the head there is only filler.
      const std::span<const std::byte> bytes =
          connection.sent < head.size() ? std::span(head).subspan(connection.sent)
                                        : std::span(filler_).first(std::min<std::uint64_t>(
                                              filler_.size(), whole - connection.sent));
      const ssize_t sent = send(connection.fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN && errno != EINTR) return failed(index, "send");
      if (sent > 0) connection.sent += static_cast<std::uint64_t>(sent);
    }
    const bool waits = sends && connection.sent < whole;
    if (waits != connection.waits_for_room) {
      connection.waits_for_room = waits;
      watch(EPOLL_CTL_MOD, connection.fd.get(), waits ? EPOLLIN | EPOLLOUT : EPOLLIN, index);
    }
    return true;
  }

  void receive(std::size_t index) {
    Connection& connection = connections_[index];
    const bool greeted = connection.state != State::hello;
    const std::uint64_t expected = !greeted                              ? options_.greeting
                                   : connection.state == State::exchange ? options_.request.reply
                                                                         : 0;
    const std::uint64_t left = expected - connection.received;
    const bool discards = left > kReadSize;
    // One byte more than expected, so that a surplus does not go unseen.
    const ssize_t got = discards ? recv(connection.fd.get(), nullptr,
                                        std::min<std::uint64_t>(left, kDiscardSize), MSG_TRUNC)
                                 : recv(connection.fd.get(), buffer_.data(), left + 1, 0);
    if (got < 0) {
      if (errno != EAGAIN && errno != EINTR) failed(index, "recv");
      return;
    }
    if (got == 0) {
      if (connection.state == State::ending) {
        close(index);
      } else {
        errno = 0;
        failed(index, "the stream ended early");
      }
      return;
    }
    if (!discards && !is_filler(static_cast<std::size_t>(got), left)) {
      errno = 0;
      failed(index, "bytes arrived that the origin did not send");
      return;
    }
    connection.received += static_cast<std::uint64_t>(got);
    if (connection.received == expected) complete(index);
  }

  [[nodiscard]] bool is_filler(std::size_t size, std::uint64_t most) const {
    const auto bytes = std::span(buffer_).first(size);
    return size <= most &&
           std::all_of(bytes.begin(), bytes.end(), [](std::byte one) { return one == kFiller; });
  }

  void complete(std::size_t index) {
    Connection& connection = connections_[index];
    if (connection.state == State::hello) {
      --opening_;
      if (options_.exchanges && !options_.holds && options_.rate <= 0) {
        if (options_.reopens || may_begin()) {
          begin_exchange(index, options_.reopens ? connection.began : now_seconds());
        } else {
          close(index);
        }
        return;
      }
      if (options_.holds || options_.rate > 0) {
        hold(index);
        return;
      }
      ++busy_;
    }
    unit_done(connection);
    --busy_;
    if (options_.holds || options_.rate > 0) {
      hold(index);
    } else if (!options_.reopens && may_begin()) {
      begin_exchange(index, now_seconds());
    } else if (options_.peer_closes) {
      ++busy_;
      enter(connection, State::ending);
    } else {
      close(index);
    }
  }

  void unit_done(const Connection& connection) {
    ++done_;
    const double microseconds = (now_seconds() - connection.began) * 1e6;
    latencies_.push_back(static_cast<float>(microseconds));
  }

  void hold(std::size_t index) {
    enter(connections_[index], State::held);
    free_.push_back(index);
  }

  void close(std::size_t index) {
    Connection& connection = connections_[index];
    if (connection.state == State::ending) --busy_;
    connection.fd.reset();
    connection.state = State::closed;
    --open_;
  }

  // Always false, so that callers can return it.
  bool failed(std::size_t index, const std::string& what) {
    Connection& connection = connections_[index];
    if (errors_++ == 0) {
      int error = errno;
      if (error == 0) {
        socklen_t size = sizeof error;
        getsockopt(connection.fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      }
      error_ = what + (error != 0 ? std::string(": ") + std::strerror(error) : std::string());
    }
    if (connection.state == State::hello) --opening_;
    if (connection.state == State::exchange) --busy_;
    if (connection.state == State::held) std::erase(free_, index);
    close(index);
    if (errors_ >= kMaxErrors) finished_ = true;
    return false;
  }

  // --- events ---

  void handle_events() {
    const std::optional<timespec> limit = patience();
    // On a schedule the clock decides too; 10 ms is how late a run may notice its end.
    const timespec tick{0, 10'000'000};
    const timespec* timeout = limit ? &*limit : options_.rate > 0 ? &tick : nullptr;
    const int count = epoll_pwait2(epoll_.get(), events_.data(), static_cast<int>(events_.size()),
                                   timeout, nullptr);
    if (count < 0 && errno != EINTR) fail("epoll_pwait2");
    for (const epoll_event& event : std::span(events_).first(count > 0 ? std::size_t(count) : 0)) {
      if (event.data.u64 == kStdin) {
        on_stdin();
      } else {
        on_event(event.data.u64, event.events);
      }
    }
    if (options_.rate > 0 && first_due_ > 0 && !may_begin()) stopped_ = true;
  }

  // One line: one exchange on each held connection. Its end: the end of the run.
  void on_stdin() {
    char text[64];
    const ssize_t got = read(STDIN_FILENO, text, sizeof text);
    if (got <= 0) {
      stopped_ = finished_ = true;
      return;
    }
    ready_ = false;
    const std::deque<std::size_t> held = std::exchange(free_, {});
    for (const std::size_t index : held) {
      begin_exchange(index, now_seconds());
    }
  }

  nlohmann::json report() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
    };
    std::sort(latencies_.begin(), latencies_.end());
    const auto percentile = [this](double share) -> nlohmann::json {
      if (latencies_.empty()) return nullptr;
      const auto last = static_cast<double>(latencies_.size() - 1);
      return latencies_[static_cast<std::size_t>(share * last)];
    };
    return {
        {"ok", errors_ == 0 && (done_ > 0 || options_.holds)},
        {"units", done_},
        {"errors", errors_},
        {"error", error_},
        {"held", free_.size()},
        {"seconds", seconds_},
        {"bytes_up", options_.exchanges ? done_ * (kRequestSize + options_.request.payload) : 0},
        {"bytes_down", options_.exchanges ? done_ * options_.request.reply : 0},
        {"p50_us", percentile(0.5)},
        {"p99_us", percentile(0.99)},
        {"max_us", percentile(1)},
        {"cpu_seconds", seconds(usage.ru_utime) + seconds(usage.ru_stime)}};
  }

  ClientOptions options_;
  SocketAddress address_;
  std::vector<std::byte> hello_;
  std::vector<std::byte> request_;  // and the first of its payload
  Fd epoll_;
  std::vector<Connection> connections_;
  std::deque<std::size_t> free_;  // held ones, the longest idle first
  std::vector<epoll_event> events_ = std::vector<epoll_event>(256);
  std::vector<std::byte> buffer_ = std::vector<std::byte>(kReadSize + 1);
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

}  // namespace

nlohmann::json run_client(const ClientOptions& options) {
  return Client(options).run();
}

}  // namespace causeway::bench
