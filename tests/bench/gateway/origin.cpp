// SPDX-License-Identifier: Apache-2.0
// The origin behind the proxy: level-triggered, one receive and one send an event, so that no
// connection keeps another from its turn.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <vector>

#include "tests/bench/gateway/tls_load.hpp"
#include "tests/bench/pair/sockets.hpp"

namespace causeway::bench {
namespace {

class Origin {
 public:
  explicit Origin(const OriginOptions& options)
      : options_(options),
        listener_(listen_on(parse_ip_port(options.listen), SOCK_STREAM, 4096)),
        epoll_(epoll_create1(EPOLL_CLOEXEC)) {
    if (epoll_.get() < 0) fail("epoll_create1");
    if (fcntl(listener_.get(), F_SETFL, O_NONBLOCK) != 0) fail("fcntl");
    control(EPOLL_CTL_ADD, listener_.get(), EPOLLIN);
  }

  [[noreturn]] void run() {
    announce(listener_);
    std::array<epoll_event, 256> events{};
    for (;;) {
      const int count = epoll_wait(epoll_.get(), events.data(), events.size(), -1);
      if (count < 0 && errno != EINTR) fail("epoll_wait");
      for (const epoll_event& event : std::span(events).first(count > 0 ? std::size_t(count) : 0)) {
        if (event.data.fd == listener_.get()) {
          accept_some();
        } else {
          serve(at(event.data.fd), event.events);
        }
      }
    }
  }

 private:
  enum class Stage { record_header, record, request, payload };

  struct Connection {
    Fd fd;
    Stage stage = Stage::record_header;
    std::uint64_t left = kRecordHeaderSize;  // bytes that the stage still wants
    RequestBytes head{};                     // of a record or a request
    std::size_t have = 0;
    Request request;
    std::uint64_t owed = 0;  // bytes to send
    bool waits_for_room = false;
  };

  void control(int operation, int fd, std::uint32_t interest) {
    epoll_event event{};
    event.events = interest;
    event.data.fd = fd;
    if (epoll_ctl(epoll_.get(), operation, fd, &event) != 0) fail("epoll_ctl");
  }

  Connection& at(int fd) { return connections_[static_cast<std::size_t>(fd)]; }

  void accept_some() {
    for (int i = 0; i < 64; ++i) {
      const int fd = accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd < 0) {
        if (errno == EAGAIN || errno == ECONNABORTED || errno == EINTR) return;
        fail("accept");
      }
      const auto index = static_cast<std::size_t>(fd);
      if (index >= connections_.size()) connections_.resize(index + 1);
      connections_[index] = Connection{};
      connections_[index].fd = Fd(fd);
      if (options_.plain) await_request(connections_[index]);
      set_option(connections_[index].fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY");
      control(EPOLL_CTL_ADD, fd, EPOLLIN);
    }
  }

  void serve(Connection& connection, std::uint32_t events) {
    // An event of a descriptor that was closed earlier in the same batch.
    if (connection.fd.get() < 0) return;
    bool open = true;
    if ((events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0) open = receive(connection);
    if (open && connection.owed > 0) open = send_owed(connection);
    if (!open) connection.fd.reset();
  }

  // False: the connection is over.
  bool receive(Connection& connection) {
    const bool discards = connection.stage == Stage::payload && connection.left > kReadSize;
    const ssize_t got =
        discards ? recv(connection.fd.get(), nullptr,
                        std::min<std::uint64_t>(connection.left, kDiscardSize), MSG_TRUNC)
                 : recv(connection.fd.get(), buffer_.data(), buffer_.size(), 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    if (discards) {
      connection.left -= static_cast<std::uint64_t>(got);
      return connection.left > 0 || advance(connection);
    }
    std::span<const std::byte> bytes(buffer_.data(), static_cast<std::size_t>(got));
    while (!bytes.empty()) {
      const std::size_t taken = std::min<std::uint64_t>(bytes.size(), connection.left);
      if (connection.stage == Stage::record_header || connection.stage == Stage::request) {
        std::copy_n(bytes.begin(), taken,
                    connection.head.begin() + static_cast<std::ptrdiff_t>(connection.have));
        connection.have += taken;
      }
      connection.left -= taken;
      bytes = bytes.subspan(taken);
      if (connection.left == 0 && !advance(connection)) return false;
    }
    return true;
  }

  // The stage is complete. False: nonsense arrived.
  bool advance(Connection& connection) {
    switch (connection.stage) {
      case Stage::record_header:
        if (connection.head[0] != std::byte{22}) return false;
        connection.left = std::to_integer<std::uint64_t>(connection.head[3]) << 8 |
                          std::to_integer<std::uint64_t>(connection.head[4]);
        connection.stage = Stage::record;
        return connection.left > 0;
      case Stage::record:
        connection.owed += options_.greeting;
        await_request(connection);
        return true;
      case Stage::request:
        connection.request = decode(connection.head);
        if (connection.request.payload > kMaxBytes || connection.request.reply > kMaxBytes) {
          return false;
        }
        connection.stage = Stage::payload;
        connection.left = connection.request.payload;
        return connection.left > 0 || advance(connection);
      case Stage::payload:
        connection.owed += connection.request.reply;
        await_request(connection);
        return true;
    }
    return false;
  }

  static void await_request(Connection& connection) {
    connection.stage = Stage::request;
    connection.left = kRequestSize;
    connection.have = 0;
  }

  // False: the connection is over.
  bool send_owed(Connection& connection) {
    const std::size_t size = std::min<std::uint64_t>(connection.owed, filler_.size());
    const ssize_t sent = send(connection.fd.get(), filler_.data(), size, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return false;
    if (sent > 0) connection.owed -= static_cast<std::uint64_t>(sent);
    if (connection.owed == 0 && options_.closes) return false;
    const bool waits = connection.owed > 0;
    if (waits != connection.waits_for_room) {
      connection.waits_for_room = waits;
      control(EPOLL_CTL_MOD, connection.fd.get(), waits ? EPOLLIN | EPOLLOUT : EPOLLIN);
    }
    return true;
  }

  OriginOptions options_;
  Fd listener_;
  Fd epoll_;
  std::vector<Connection> connections_;  // by descriptor
  std::vector<std::byte> buffer_ = std::vector<std::byte>(kReadSize);
  std::vector<std::byte> filler_ = std::vector<std::byte>(kSendSize, kFiller);
};

}  // namespace

void run_origin(const OriginOptions& options) {
  Origin(options).run();
}

}  // namespace causeway::bench
