// SPDX-License-Identifier: Apache-2.0
// Theory of operation: cpp-httplib parses requests, routes them and writes answers. Accepting and
// waiting are ours, for its own loop cannot serve a socket that systemd made:
//  - Debian's version (0.11) has no way to adopt a listener, and its stop() shuts the listener
//    down. That reaches through to systemd's copy of the same socket, which is dead from then on;
//    systemd fails the socket unit when it sees that.
//  - Waking its accept() by a connection of our own instead would leave that connection in the
//    queue when nobody accepts any more, and systemd would start the service that is just ending.
// A loop of our own, over the listener and an eventfd, touches neither. It also ends no endpoint
// for a failed accept(), bounds the connections that wait, and bounds each of them in time, so that
// a slow client can hold up neither the operator nor the end of the program.
#include "common/admin/server.hpp"

#include <fcntl.h>
#include <httplib.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <mutex>
#include <thread>
#include <utility>

#include "common/net/socket_address.hpp"
#include "common/net/stream.hpp"
#include "common/os/blocked_signals.hpp"

namespace causeway::admin {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Two requests at a time: one slow reader does not keep the operator out.
constexpr std::size_t kThreads = 2;
constexpr int kBacklog = 16;
// Connections that are served or wait for it; the next ones are closed unheard.
constexpr int kMaxConnections = 32;
constexpr milliseconds kSilence{500};   // a client that says or takes nothing
constexpr milliseconds kWhole{3000};    // a connection from its first byte to its last
constexpr milliseconds kShortage{100};  // a rest, when there are no descriptors left
constexpr std::size_t kMaxPayload = 4096;

// A connection as cpp-httplib wants to see it. Nothing is waited for once the server stops.
class Connection final : public httplib::Stream {
 public:
  Connection(UniqueFd fd, int stop) : fd_(std::move(fd)), stop_(stop) {}

  [[nodiscard]] bool is_readable() const override { return used_ < filled_ || wait(POLLIN); }
  [[nodiscard]] bool is_writable() const override { return wait(POLLOUT); }

  ssize_t read(char* out, size_t size) override {
    // cpp-httplib reads lines byte by byte.
    if (used_ == filled_) {
      const ssize_t got =
          wait(POLLIN) ? ::recv(fd_.get(), buffer_.data(), buffer_.size(), MSG_DONTWAIT) : -1;
      if (got <= 0) {
        return got;
      }
      used_ = 0;
      filled_ = static_cast<std::size_t>(got);
    }
    const std::size_t count = std::min(size, filled_ - used_);
    std::copy_n(buffer_.begin() + static_cast<std::ptrdiff_t>(used_), count, out);
    used_ += count;
    return static_cast<ssize_t>(count);
  }

  ssize_t write(const char* data, size_t size) override {
    return wait(POLLOUT) ? ::send(fd_.get(), data, size, MSG_NOSIGNAL | MSG_DONTWAIT) : -1;
  }

  // A unix socket's peer has neither.
  void get_remote_ip_and_port(std::string& /*ip*/, int& port) const override { port = 0; }
  void get_local_ip_and_port(std::string& /*ip*/, int& port) const override { port = 0; }
  [[nodiscard]] int socket() const override { return fd_.get(); }

 private:
  [[nodiscard]] bool wait(short events) const {
    const auto limit = std::min(end_, Clock::now() + kSilence);
    for (;;) {
      std::array<pollfd, 2> entries{pollfd{fd_.get(), events, 0}, pollfd{stop_, POLLIN, 0}};
      const auto left = std::chrono::ceil<milliseconds>(limit - Clock::now());
      if (left.count() <= 0) {
        return false;
      }
      const int count = ::poll(entries.data(), entries.size(), static_cast<int>(left.count()));
      if (count < 0 && errno != EINTR) {
        return false;
      }
      if (count > 0) {
        return entries[0].revents != 0;  // when stopping, nothing is waited for any more
      }
    }
  }

  UniqueFd fd_;
  int stop_;
  Clock::time_point end_ = Clock::now() + kWhole;
  std::array<char, 4096> buffer_{};
  std::size_t used_ = 0;
  std::size_t filled_ = 0;
};

class Http final : public httplib::Server {
 public:
  void serve(Connection& connection) {
    bool closed = false;
    process_request(connection, true, closed, nullptr);
  }
};

void add_handlers(httplib::Server& http, Handlers handlers) {
  http.set_payload_max_length(kMaxPayload);
  http.Get("/status", [status = std::move(handlers.status)](const auto&, auto& response) {
    response.set_content(status(), "application/json");
  });
  http.Get("/healthz", [healthy = std::move(handlers.healthy)](const auto&, auto& response) {
    const bool good = healthy();
    response.status = good ? 200 : 503;
    response.set_content(good ? "ok\n" : "not ready\n", "text/plain");
  });
  if (handlers.reload) {
    auto mutex = std::make_shared<std::mutex>();
    http.Post("/reload", [reload = std::move(handlers.reload), mutex](const auto&, auto& response) {
      const std::lock_guard lock(*mutex);
      const auto outcome = reload();
      response.status = outcome ? 200 : 409;
      response.set_content((outcome ? *outcome : outcome.error().message) + "\n", "text/plain");
    });
  }
}

// A listening unix stream socket and nothing else.
Result<void> check_listener(int fd) {
  const auto option = [fd](int name) {
    int value = -1;
    socklen_t length = sizeof value;
    return ::getsockopt(fd, SOL_SOCKET, name, &value, &length) == 0 ? value : -1;
  };
  if (option(SO_DOMAIN) != AF_UNIX || option(SO_TYPE) != SOCK_STREAM ||
      option(SO_ACCEPTCONN) != 1) {
    return Error{"the inherited admin socket is not a listening unix stream socket", EINVAL};
  }
  return {};
}

}  // namespace

struct Server::Impl {
  explicit Impl(Handlers handlers) { add_handlers(http, std::move(handlers)); }

  Result<void> run(UniqueFd fd);
  void accept_loop();
  void accept_one();
  void stop();

  Http http;
  UniqueFd listener;
  UniqueFd stopping;
  std::string path;  // ours to unlink
  std::atomic<int> connections{0};
  std::unique_ptr<httplib::ThreadPool> pool;
  std::thread thread;
};

Result<void> Server::Impl::run(UniqueFd fd) {
  listener = std::move(fd);
  stopping.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stopping.valid()) {
    return system_error("admin endpoint: eventfd");
  }
  const BlockedSignals blocked;
  pool = std::make_unique<httplib::ThreadPool>(kThreads);
  thread = std::thread([this] {
    pthread_setname_np(pthread_self(), "admin");
    accept_loop();
  });
  return {};
}

void Server::Impl::accept_loop() {
  for (;;) {
    std::array<pollfd, 2> entries{pollfd{listener.get(), POLLIN, 0},
                                  pollfd{stopping.get(), POLLIN, 0}};
    if (::poll(entries.data(), entries.size(), -1) < 0) {
      continue;  // EINTR at most
    }
    if (entries[1].revents != 0) {
      return;
    }
    accept_one();
  }
}

void Server::Impl::accept_one() {
  UniqueFd fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd.valid()) {
    if (errno != EINTR && errno != EAGAIN && errno != ECONNABORTED) {
      pollfd stop{stopping.get(), POLLIN, 0};
      (void)::poll(&stop, 1, static_cast<int>(kShortage.count()));
    }
    return;
  }
  if (connections >= kMaxConnections) {
    return;
  }
  ++connections;
  pool->enqueue([this, connection = std::make_shared<Connection>(std::move(fd), stopping.get())] {
    http.serve(*connection);
    --connections;
  });
}

void Server::Impl::stop() {
  if (thread.joinable()) {
    const std::uint64_t one = 1;
    (void)!::write(stopping.get(), &one, sizeof one);  // to an eventfd of 0: always taken
    thread.join();
    pool->shutdown();
  }
  if (!path.empty()) {
    ::unlink(path.c_str());
  }
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Server::~Server() {
  impl_->stop();
}

Result<std::unique_ptr<Server>> Server::start(const Address& address, Handlers handlers) {
  const auto* local = std::get_if<UnixAddress>(&address.value);
  if (local == nullptr) {
    return Error{to_string(address) + ": the admin endpoint listens on unix:/PATH only", EINVAL};
  }
  if (auto cleared = net::clear_stale_socket(local->path); !cleared) {
    return cleared.error();
  }
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) {
    return system_error(to_string(address));
  }
  const auto where = net::unix_socket_address(local->path);
  // The socket is made with its final mode: nobody may connect in between.
  const mode_t before = ::umask(0117);
  const bool bound = ::bind(fd.get(), where.get(), where.length) == 0;
  const int code = errno;
  ::umask(before);
  if (!bound) {
    return system_error(to_string(address), code);
  }
  auto server = std::unique_ptr<Server>(new Server(std::make_unique<Impl>(std::move(handlers))));
  server->impl_->path = local->path;  // from here on it is unlinked on every way out
  if (::listen(fd.get(), kBacklog) != 0) {
    return system_error(to_string(address));
  }
  if (auto running = server->impl_->run(std::move(fd)); !running) {
    return running.error();
  }
  return server;
}

Result<std::unique_ptr<Server>> Server::start_inherited(UniqueFd listener, Handlers handlers) {
  if (auto good = check_listener(listener.get()); !good) {
    return good.error();
  }
  // Another process with this socket may be faster than our accept(). The flag is shared with that
  // process; systemd sets it anew for each process that it starts.
  const int flags = ::fcntl(listener.get(), F_GETFL);
  if (flags < 0 || ::fcntl(listener.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
    return system_error("the inherited admin socket");
  }
  auto server = std::unique_ptr<Server>(new Server(std::make_unique<Impl>(std::move(handlers))));
  if (auto running = server->impl_->run(std::move(listener)); !running) {
    return running.error();
  }
  return server;
}

}  // namespace causeway::admin
