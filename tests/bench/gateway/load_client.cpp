// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/gateway/load_client.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iostream>
#include <utility>

namespace causeway::bench {
namespace {

constexpr unsigned kOpeningAtOnce = 256;
constexpr std::uint64_t kMaxErrors = 100;
constexpr std::uint64_t kStdin = ~std::uint64_t{0};  // epoll tag; connections have their index

}  // namespace

LoadClient::LoadClient(const LoadPlan& plan)
    : plan_(plan),
      address_(parse_ip_port(plan.connect)),
      request_(kRequestSize + std::min<std::uint64_t>(plan.request.payload, kReadSize), kFiller),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      connections_(plan.connections) {
  if (epoll_.get() < 0) fail("epoll_create1");
  const RequestBytes head = encode(plan.request);
  std::copy(head.begin(), head.end(), request_.begin());
}

nlohmann::json LoadClient::run() {
  start_ = now_seconds();
  if (plan_.holds) watch(EPOLL_CTL_ADD, STDIN_FILENO, EPOLLIN, kStdin);
  while (!finished_) {
    open_some();
    if (plan_.rate > 0) issue_due();
    if (idle() && !waits_for_more()) break;
    handle_events();
  }
  seconds_ = now_seconds() - start_;
  return report();
}

std::span<const std::byte> LoadClient::request_from(std::uint64_t sent) const {
  // Behind the head there is only filler.
  if (sent < request_.size()) return std::span(request_).subspan(sent);
  return std::span(filler_).first(std::min<std::uint64_t>(filler_.size(), request_size() - sent));
}

bool LoadClient::is_filler(std::span<const std::byte> bytes) const {
  return bytes.size() <= filler_.size() &&
         std::memcmp(bytes.data(), filler_.data(), bytes.size()) == 0;
}

void LoadClient::watch(int operation, int fd, std::uint32_t interest, std::uint64_t tag) {
  epoll_event event{};
  event.events = interest;
  event.data.u64 = tag;
  if (epoll_ctl(epoll_.get(), operation, fd, &event) != 0) fail("epoll_ctl");
}

void LoadClient::wait_for_room(std::size_t index, bool waits) {
  Connection& connection = connections_[index];
  if (waits == connection.waits_for_room) return;
  connection.waits_for_room = waits;
  watch(EPOLL_CTL_MOD, connection.fd.get(), waits ? EPOLLIN | EPOLLOUT : EPOLLIN, index);
}

// --- when a unit may begin ---

bool LoadClient::may_begin() const {
  if (stopped_ || (plan_.units > 0 && begun_ >= plan_.units)) return false;
  return plan_.seconds <= 0 || now_seconds() - start_ < plan_.seconds;
}

bool LoadClient::idle() const {
  return opening_ == 0 && busy_ == 0 && !wants_open();
}

// Held connections get their units from stdin or from the schedule.
bool LoadClient::waits_for_more() const {
  return (plan_.holds || plan_.rate > 0) && !stopped_ && open_ > 0;
}

// A unit that is a connection is begun by opening; others need each connection once.
bool LoadClient::wants_open() const {
  if (finished_) return false;
  if (plan_.reopens) return open_ < plan_.connections && may_begin();
  return !stopped_ && opened_ < plan_.connections;
}

void LoadClient::open_some() {
  while (wants_open() && opening_ < kOpeningAtOnce) {
    while (connections_[next_closed_].state != State::closed) {
      next_closed_ = (next_closed_ + 1) % connections_.size();
    }
    open(next_closed_);
  }
  if (plan_.holds && !ready_ && opening_ == 0 && busy_ == 0 && !wants_open()) {
    std::cout << "ready" << std::endl;
    ready_ = true;
  }
}

void LoadClient::issue_due() {
  const double now = now_seconds();
  if (first_due_ == 0) {
    if (opening_ > 0 || opened_ < plan_.connections) return;
    start_ = first_due_ = now;
  }
  while (!free_.empty() && may_begin()) {
    const double due = first_due_ + static_cast<double>(begun_) / plan_.rate;
    if (due > now) return;
    const std::size_t index = free_.front();
    free_.pop_front();
    begin_exchange(index, due);
  }
}

// For epoll_pwait2: until the next unit is due. Nothing: as long as it takes.
std::optional<timespec> LoadClient::patience() const {
  if (plan_.rate <= 0 || first_due_ == 0 || free_.empty()) return std::nullopt;
  const double left =
      std::max(0.0, first_due_ + static_cast<double>(begun_) / plan_.rate - now_seconds());
  const auto whole = static_cast<time_t>(left);
  return timespec{whole, static_cast<long>((left - static_cast<double>(whole)) * 1e9)};
}

// --- the state machine ---

void LoadClient::open(std::size_t index) {
  Connection& connection = connections_[index];
  connection.began = now_seconds();
  connection.fd =
      Fd(socket(address_.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (connection.fd.get() < 0) fail("socket");
  set_option(connection.fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY");
  ++opened_, ++open_, ++opening_;
  if (plan_.reopens) ++begun_;
  if (connect(connection.fd.get(), address_.get(), address_.size) != 0 && errno != EINPROGRESS) {
    fail("connect");
  }
  connection.state = State::greeting;
  connection.sent = connection.received = 0;
  connection.waits_for_room = false;
  watch(EPOLL_CTL_ADD, connection.fd.get(), EPOLLIN, index);
  on_open(index);
  flush(index);  // over loopback the connection is up already
}

void LoadClient::begin_exchange(std::size_t index, double began) {
  Connection& connection = connections_[index];
  connection.began = began;
  if (!plan_.reopens) ++begun_;
  ++busy_;
  connection.state = State::exchange;
  connection.sent = connection.received = 0;
  flush(index);
}

void LoadClient::on_event(std::size_t index, std::uint32_t events) {
  const Connection& connection = connections_[index];
  if (connection.state == State::closed) return;  // closed earlier in the same batch
  if ((events & EPOLLOUT) != 0 && !flush(index)) return;
  if ((events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0 && connection.state != State::closed) {
    receive(index);
  }
}

void LoadClient::complete(std::size_t index) {
  Connection& connection = connections_[index];
  if (connection.state == State::greeting) {
    --opening_;
    if (plan_.exchanges && !plan_.holds && plan_.rate <= 0) {
      if (plan_.reopens || may_begin()) {
        begin_exchange(index, plan_.reopens ? connection.began : now_seconds());
      } else {
        close(index);
      }
      return;
    }
    if (plan_.holds || plan_.rate > 0) {
      hold(index);
      return;
    }
    ++busy_;
  }
  unit_done(connection);
  --busy_;
  if (plan_.holds || plan_.rate > 0) {
    hold(index);
  } else if (!plan_.reopens && may_begin()) {
    begin_exchange(index, now_seconds());
  } else if (plan_.peer_closes) {
    ++busy_;
    connection.state = State::ending;
    connection.sent = connection.received = 0;
  } else {
    close(index);
  }
}

void LoadClient::unit_done(const Connection& connection) {
  ++done_;
  const double microseconds = (now_seconds() - connection.began) * 1e6;
  latencies_.push_back(static_cast<float>(microseconds));
}

void LoadClient::hold(std::size_t index) {
  connections_[index].state = State::held;
  connections_[index].sent = connections_[index].received = 0;
  free_.push_back(index);
}

void LoadClient::close(std::size_t index, bool good) {
  Connection& connection = connections_[index];
  if (connection.state == State::ending) --busy_;
  on_close(index, good);
  connection.fd.reset();
  connection.state = State::closed;
  --open_;
}

bool LoadClient::failed(std::size_t index, const std::string& what) {
  const Connection& connection = connections_[index];
  if (errors_++ == 0) {
    int error = errno;
    if (error == 0) {
      socklen_t size = sizeof error;
      getsockopt(connection.fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    }
    error_ = what + (error != 0 ? std::string(": ") + std::strerror(error) : std::string());
  }
  if (connection.state == State::greeting) --opening_;
  if (connection.state == State::exchange) --busy_;
  if (connection.state == State::held) std::erase(free_, index);
  close(index, false);
  if (errors_ >= kMaxErrors) finished_ = true;
  return false;
}

// --- events ---

void LoadClient::handle_events() {
  const std::optional<timespec> limit = patience();
  // On a schedule the clock decides too; 10 ms is how late a run may notice its end.
  const timespec tick{0, 10'000'000};
  const timespec* timeout = limit ? &*limit : plan_.rate > 0 ? &tick : nullptr;
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
  if (plan_.rate > 0 && first_due_ > 0 && !may_begin()) stopped_ = true;
}

// One line: one exchange on each held connection. Its end: the end of the run.
void LoadClient::on_stdin() {
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

nlohmann::json LoadClient::report() {
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
  nlohmann::json out = {{"ok", errors_ == 0 && (done_ > 0 || plan_.holds)},
                        {"units", done_},
                        {"errors", errors_},
                        {"error", error_},
                        {"held", free_.size()},
                        {"seconds", seconds_},
                        {"bytes_up", plan_.exchanges ? done_ * request_size() : 0},
                        {"bytes_down", plan_.exchanges ? done_ * plan_.request.reply : 0},
                        {"p50_us", percentile(0.5)},
                        {"p99_us", percentile(0.99)},
                        {"max_us", percentile(1)},
                        {"cpu_seconds", seconds(usage.ru_utime) + seconds(usage.ru_stime)}};
  out.update(details());
  return out;
}

}  // namespace causeway::bench
