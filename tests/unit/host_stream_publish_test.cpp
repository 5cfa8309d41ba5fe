// SPDX-License-Identifier: Apache-2.0
// The publisher between TCP clients on the loopback interface and a unix socket server.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "common/net/proxy_protocol.hpp"
#include "common/net/socket_address.hpp"
#include "host/publish/listeners.hpp"
#include "host/publish/publisher.hpp"

namespace {

using namespace causeway;
using namespace causeway::host;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr int kPatience = 20'000;  // ms; only a failing test waits this long

void set_timeouts(int fd) {
  const timeval limit{.tv_sec = kPatience / 1000, .tv_usec = 0};
  REQUIRE(::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
  REQUIRE(::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0);
}

void put(const UniqueFd& fd, const std::string& bytes) {
  std::size_t at = 0;
  while (at < bytes.size()) {
    const ssize_t sent = ::send(fd.get(), bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
    if (sent <= 0) return;  // the other side's check fails
    at += static_cast<std::size_t>(sent);
  }
}

// Up to `size` bytes, less at the end of the stream.
std::string get(const UniqueFd& fd, std::size_t size) {
  std::string bytes(size, '\0');
  std::size_t at = 0;
  while (at < size) {
    const ssize_t got = ::recv(fd.get(), bytes.data() + at, size - at, 0);
    if (got <= 0) break;
    at += static_cast<std::size_t>(got);
  }
  bytes.resize(at);
  return bytes;
}

// How the stream goes on: "data", "end", "reset", or another error's text.
std::string next(const UniqueFd& fd) {
  char byte = 0;
  const ssize_t got = ::recv(fd.get(), &byte, 1, 0);
  if (got > 0) return "data";
  if (got == 0) return "end";
  return errno == ECONNRESET ? "reset" : std::strerror(errno);
}

bool quiet(const UniqueFd& fd, int time) {
  pollfd wait{fd.get(), POLLIN, 0};
  return ::poll(&wait, 1, time) == 0;
}

bool eventually(const std::function<bool()>& condition) {
  const auto deadline = Clock::now() + milliseconds{kPatience};
  while (!condition()) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(milliseconds{2});
  }
  return true;
}

std::string pattern(std::size_t size, std::uint32_t state) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<char>(state >> 24);
  }
  return bytes;
}

// The application in the guest.
class Server {
 public:
  explicit Server(const std::string& path) {
    const auto where = net::unix_socket_address(path);
    fd_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(::bind(fd_.get(), where.get(), where.length) == 0);
    REQUIRE(::listen(fd_.get(), 64) == 0);
    set_timeouts(fd_.get());
  }
  [[nodiscard]] UniqueFd accept() const {
    UniqueFd stream(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    REQUIRE(stream.valid());
    set_timeouts(stream.get());
    return stream;
  }

 private:
  UniqueFd fd_;
};

// A publisher of one port, with the files of its target.
struct Bench {
  explicit Bench(const std::function<void(Publish&)>& change = {}, const char* ip = "127.0.0.1") {
    std::string name = "/tmp/causeway-publish-XXXXXX";
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    directory = name;
    publish.address = *parse_ip(ip);
    publish.target = UnixAddress{path()};
    if (change) change(publish);
    REQUIRE(publisher.start());
    publisher.replace(streams(true));
  }
  ~Bench() {
    publisher.stop();
    ::unlink(path().c_str());
    ::rmdir(directory.c_str());
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  [[nodiscard]] std::string path() const { return directory + "/app.sock"; }

  std::vector<PublishedStream> streams(bool with_listener) {
    std::vector<PublishedStream> all;
    all.push_back({"one", publish, 0, {}});
    if (with_listener) all.back().listeners = listen();
    return all;
  }

  std::vector<UniqueFd> listen() {
    auto opened = open_publish_listeners(publish);
    REQUIRE(opened);
    net::SocketAddress where;
    where.length = sizeof where.storage;
    REQUIRE(::getsockname(opened->front().get(), reinterpret_cast<sockaddr*>(&where.storage),
                          &where.length) == 0);
    const auto& in4 = reinterpret_cast<const sockaddr_in&>(where.storage);  // port: as in IPv6
    port = ntohs(in4.sin_port);
    return std::move(*opened);
  }

  [[nodiscard]] UniqueFd try_connect() const {
    const auto where =
        net::to_socket_address(Address{TcpAddress{to_string(publish.address), port}});
    UniqueFd fd(::socket(where->family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    set_timeouts(fd.get());
    if (::connect(fd.get(), where->get(), where->length) != 0) return UniqueFd();
    return fd;
  }
  [[nodiscard]] UniqueFd connect() const {
    UniqueFd fd = try_connect();
    REQUIRE(fd.valid());
    return fd;
  }

  [[nodiscard]] PublishCounters counters() const {
    const auto all = publisher.status();
    REQUIRE(all.size() == 1);
    return all.front().counters;
  }

  std::string directory;
  Publish publish;
  std::uint16_t port = 0;
  StreamPublisher publisher;
};

void reset(UniqueFd& fd) {
  reset_on_close(fd.get());
  fd.reset();
}

TEST_CASE("publish: both directions at once arrive whole, v4 and v6") {
  for (const char* ip : {"127.0.0.1", "::1"}) {
    CAPTURE(ip);
    Bench bench({}, ip);
    const Server server(bench.path());
    const UniqueFd client = bench.connect();
    const UniqueFd guest = server.accept();
    const std::string up = pattern(6'000'000, 1);
    const std::string down = pattern(5'000'000, 2);
    std::string got_up;
    std::string got_down;
    std::vector<std::thread> threads;
    threads.emplace_back([&] {
      put(client, up);
      ::shutdown(client.get(), SHUT_WR);
    });
    threads.emplace_back([&] {
      put(guest, down);
      ::shutdown(guest.get(), SHUT_WR);
    });
    threads.emplace_back([&] { got_up = get(guest, up.size() + 1); });
    threads.emplace_back([&] { got_down = get(client, down.size() + 1); });
    for (std::thread& thread : threads)
      thread.join();
    CHECK((got_up == up));
    CHECK((got_down == down));
    CHECK(eventually([&] { return bench.counters().active == 0; }));
    const PublishCounters counters = bench.counters();
    CHECK(counters.accepted == 1);
    CHECK(counters.bytes_to_guest == up.size());
    CHECK(counters.bytes_to_client == down.size());
    CHECK(counters.reset + counters.idle_closed + counters.connect_failed == 0);
  }
}

TEST_CASE("publish: a half-close leaves the other direction open") {
  Bench bench;
  const Server server(bench.path());
  for (const bool client_first : {true, false}) {
    CAPTURE(client_first);
    const UniqueFd client = bench.connect();
    const UniqueFd guest = server.accept();
    const UniqueFd& first = client_first ? client : guest;
    const UniqueFd& second = client_first ? guest : client;
    put(first, "question");
    ::shutdown(first.get(), SHUT_WR);
    CHECK(get(second, 100) == "question");
    CHECK(quiet(first, 50));
    put(second, "answer");
    CHECK(get(first, 6) == "answer");
    ::shutdown(second.get(), SHUT_WR);
    CHECK(next(first) == "end");
  }
  CHECK(eventually([&] { return bench.counters().active == 0; }));
  CHECK(bench.counters().reset == 0);
}

TEST_CASE("publish: a client's reset ends the guest's side, in every phase") {
  Bench bench;
  const Server server(bench.path());
  enum class Phase { fresh, half_closed, guest_stalled };
  std::uint64_t resets = 0;
  for (const Phase phase : {Phase::fresh, Phase::half_closed, Phase::guest_stalled}) {
    CAPTURE(static_cast<int>(phase));
    UniqueFd client = bench.connect();
    const UniqueFd guest = server.accept();
    if (phase == Phase::half_closed) {
      ::shutdown(client.get(), SHUT_WR);
      CHECK(next(guest) == "end");
    } else if (phase == Phase::guest_stalled) {
      REQUIRE(::fcntl(client.get(), F_SETFL, O_NONBLOCK) == 0);
      const std::string block(std::size_t{1} << 20, 'x');
      while (true) {
        pollfd wait{client.get(), POLLOUT, 0};
        if (::poll(&wait, 1, 300) == 0) break;  // everything on the way is full
        (void)::send(client.get(), block.data(), block.size(), MSG_NOSIGNAL);
      }
    } else {
      put(client, "x");
      CHECK(get(guest, 1) == "x");
    }
    CHECK(bench.counters().active == 1);
    reset(client);
    CHECK(eventually([&] { return bench.counters().active == 0; }));
    CHECK(bench.counters().reset == ++resets);
    std::string how = "data";
    while (how == "data") {
      get(guest, 1 << 16);
      how = next(guest);
    }
    CHECK(how == "end");
  }
}

TEST_CASE("publish: the guest's reset is the client's") {
  Bench bench;
  const Server server(bench.path());
  {
    const UniqueFd client = bench.connect();
    UniqueFd guest = server.accept();
    put(client, "unread");
    CHECK(eventually([&] { return bench.counters().bytes_to_guest == 6; }));
    guest.reset();  // with bytes unread: what a unix socket has for a reset
    CHECK(next(client) == "reset");
  }
  CHECK(eventually([&] { return bench.counters().active == 0; }));
  CHECK(bench.counters().reset == 1);
}

TEST_CASE("publish: a server that answers and closes during an upload is heard") {
  Bench bench;
  const Server server(bench.path());
  const UniqueFd client = bench.connect();
  UniqueFd guest = server.accept();
  put(guest, "no");
  guest.reset();
  CHECK(get(client, 2) == "no");
  CHECK(next(client) == "end");
  CHECK(bench.counters().active == 1);  // the client has not ended
  put(client, "upload");
  CHECK(eventually([&] { return bench.counters().active == 0; }));
  CHECK(bench.counters().reset == 1);
}

TEST_CASE("publish: above the limit a connection is reset, and a place becomes free again") {
  Bench bench([](Publish& publish) { publish.limit = 2; });
  const Server server(bench.path());
  UniqueFd first = bench.connect();
  const UniqueFd second = bench.connect();
  const UniqueFd first_guest = server.accept();
  const UniqueFd second_guest = server.accept();
  const UniqueFd third = bench.try_connect();  // the reset may come before connect() returns
  CHECK((!third.valid() || next(third) == "reset"));
  CHECK(bench.counters().refused_limit == 1);
  CHECK(bench.counters().active == 2);
  reset(first);
  CHECK(eventually([&] { return bench.counters().active == 1; }));
  const UniqueFd fourth = bench.connect();
  const UniqueFd fourth_guest = server.accept();
  put(fourth, "x");
  CHECK(get(fourth_guest, 1) == "x");
  CHECK(bench.counters().accepted == 4);
}

TEST_CASE("publish: a silent connection is reset after its idle time, a moving one is not") {
  constexpr milliseconds kIdle{400};
  Bench bench([&](Publish& publish) { publish.idle = kIdle; });
  const Server server(bench.path());
  const UniqueFd moving = bench.connect();
  const UniqueFd moving_guest = server.accept();
  const auto start = Clock::now();
  const UniqueFd silent = bench.connect();
  const UniqueFd silent_guest = server.accept();
  std::thread mover([&] {
    while (Clock::now() - start < 3 * kIdle) {
      put(moving_guest, "x");
      std::this_thread::sleep_for(kIdle / 10);
    }
  });
  CHECK(next(silent) == "reset");
  const auto took = Clock::now() - start;
  CHECK(took >= kIdle);
  CHECK(took < 3 * kIdle);  // 1.25 of it, on a machine that has time
  CHECK(next(silent_guest) == "end");
  mover.join();
  CHECK(bench.counters().idle_closed == 1);
  CHECK(bench.counters().active == 1);
}

TEST_CASE("publish: a guest that listens late gets the connection with its first bytes") {
  Bench bench;
  const UniqueFd client = bench.connect();
  put(client, "early");
  CHECK(quiet(client, 300));
  const Server server(bench.path());
  const UniqueFd guest = server.accept();
  CHECK(get(guest, 5) == "early");
}

TEST_CASE("publish: a guest that never listens costs the client a reset") {
  Bench bench;
  const UniqueFd client = bench.connect();
  CHECK(next(client) == "reset");
  CHECK(bench.counters().connect_failed == 1);
  CHECK(eventually([&] { return bench.counters().active == 0; }));
}

TEST_CASE("publish: PROXY v2 names the client and the address it connected to") {
  for (const char* ip : {"127.0.0.1", "::1"}) {
    CAPTURE(ip);
    Bench bench([](Publish& publish) { publish.proxy_v2 = true; }, ip);
    const Server server(bench.path());
    const UniqueFd client = bench.connect();
    net::SocketAddress own;
    own.length = sizeof own.storage;
    REQUIRE(::getsockname(client.get(), reinterpret_cast<sockaddr*>(&own.storage), &own.length) ==
            0);
    const auto own_port = ntohs(reinterpret_cast<const sockaddr_in&>(own.storage).sin_port);
    put(client, "hello");
    const UniqueFd guest = server.accept();
    const IpAddress address = *parse_ip(ip);
    const auto header = net::encode_proxy_v2(
        {net::Endpoint{address, own_port}, net::Endpoint{address, bench.port}});
    std::string expected;
    for (const std::byte byte : header.bytes())
      expected += static_cast<char>(byte);
    CHECK((get(guest, header.size + 5) == expected + "hello"));
    CHECK(eventually([&] { return bench.counters().bytes_to_guest == 5; }));
  }
}

TEST_CASE("publish: replace keeps what stays, connections included, and ends the rest") {
  Bench bench;
  const Server server(bench.path());
  const UniqueFd client = bench.connect();
  const UniqueFd guest = server.accept();

  bench.publisher.replace(bench.streams(false));
  put(client, "still here");
  CHECK(get(guest, 10) == "still here");
  CHECK(bench.counters().accepted == 1);
  const UniqueFd another = bench.connect();
  const UniqueFd another_guest = server.accept();
  CHECK(bench.counters().accepted == 2);

  const std::uint16_t old_port = bench.port;
  bench.publish.proxy_v2 = true;  // another entry now
  bench.publisher.replace(bench.streams(true));
  CHECK(next(client) == "reset");
  CHECK(next(guest) == "end");
  CHECK(next(another) == "reset");
  CHECK(bench.counters().accepted == 0);
  const UniqueFd served = bench.connect();
  const UniqueFd served_guest = server.accept();
  bench.port = old_port;
  CHECK(!bench.try_connect().valid());

  bench.publisher.replace({});
  CHECK(next(served) == "reset");
  CHECK(bench.publisher.status().empty());
}

TEST_CASE("publish: stop ends connections that still look for their target") {
  Bench bench;
  const UniqueFd client = bench.connect();
  CHECK(eventually([&] { return bench.counters().active == 1; }));
  const auto start = Clock::now();
  bench.publisher.stop();
  CHECK(Clock::now() - start < milliseconds{3000});  // not the time that a target gets
  CHECK(next(client) == "reset");
}

TEST_CASE("publish: the listeners of a range are all or none") {
  Publish publish;
  publish.address = *parse_ip("127.0.0.1");
  auto one = open_publish_listeners(publish);
  REQUIRE(one);
  sockaddr_in where{};
  socklen_t length = sizeof where;
  REQUIRE(::getsockname(one->front().get(), reinterpret_cast<sockaddr*>(&where), &length) == 0);
  const std::uint16_t taken = ntohs(where.sin_port);
  publish.first = static_cast<std::uint16_t>(taken - 1);
  publish.last = taken;
  const auto refused = open_publish_listeners(publish);
  REQUIRE(!refused);
  CHECK(refused.error().code == EADDRINUSE);
  CHECK(refused.error().message.find("tcp:127.0.0.1:") != std::string::npos);
}

}  // namespace
