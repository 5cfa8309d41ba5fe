// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "common/admin/server.hpp"
#include "common/net/socket_address.hpp"

namespace {

using namespace causeway;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

std::string path() {
  return "/tmp/causeway-admin-" + std::to_string(::getpid());
}

UniqueFd connect_to(const std::string& where) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto address = net::unix_socket_address(where);
  return ::connect(fd.get(), address.get(), address.length) == 0 ? std::move(fd) : UniqueFd();
}

void say(const UniqueFd& fd, const std::string& text) {
  (void)!::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL);
}

// All until the server closes.
std::string hear(const UniqueFd& fd) {
  std::string all;
  std::array<char, 4096> buffer{};
  for (;;) {
    const ssize_t got = ::recv(fd.get(), buffer.data(), buffer.size(), 0);
    if (got <= 0) {
      return all;
    }
    all.append(buffer.data(), static_cast<std::size_t>(got));
  }
}

std::string ask(const std::string& request) {
  const UniqueFd fd = connect_to(path());
  REQUIRE(fd.valid());
  say(fd, request);
  return hear(fd);
}

std::string get(const std::string& target) {
  return ask("GET " + target + " HTTP/1.1\r\n\r\n");
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

admin::Handlers handlers() {
  return {[] { return std::string("{\"a\": 1}\n"); }, [] { return true; }};
}

Address address() {
  return {UnixAddress{path()}};
}

// As systemd holds the socket of a unit, whoever serves it.
UniqueFd listening(int type = SOCK_STREAM) {
  ::unlink(path().c_str());
  UniqueFd fd(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  const auto where = net::unix_socket_address(path());
  REQUIRE(::bind(fd.get(), where.get(), where.length) == 0);
  REQUIRE(::listen(fd.get(), 16) == 0);
  return fd;
}

TEST_CASE("admin: requests and answers on a socket of its own") {
  auto server = admin::Server::start(address(), handlers());
  REQUIRE(server);
  struct stat info {};
  REQUIRE(::stat(path().c_str(), &info) == 0);
  CHECK((info.st_mode & 0777U) == 0660);
  const std::string status = get("/status");
  CHECK(has(status, "HTTP/1.1 200 OK"));
  CHECK(has(status, "Content-Type: application/json"));
  CHECK(has(status, "\r\n\r\n{\"a\": 1}\n"));
  CHECK(has(get("/healthz"), "\r\n\r\nok\n"));
  CHECK(has(get("/absent"), "404"));
  CHECK(has(ask("POST /reload HTTP/1.1\r\nContent-Length: 0\r\n\r\n"), "404"));
  CHECK(has(ask("nonsense\r\n\r\n"), "400"));
  // In pieces, and longer than one read.
  const UniqueFd slow = connect_to(path());
  for (const std::string& piece : {std::string("GET /sta"), std::string("tus HTTP/1.1\r\nX: "),
                                   std::string(6000, 'x'), std::string("\r\n\r\n")}) {
    say(slow, piece);
  }
  CHECK(has(hear(slow), "200 OK"));
  CHECK_FALSE(admin::Server::start(address(), handlers()));  // in use
  server = Error{"gone"};
  CHECK(::stat(path().c_str(), &info) != 0);
}

TEST_CASE("admin: only unix paths") {
  CHECK_FALSE(admin::Server::start({TcpAddress{"127.0.0.1", 1}}, handlers()));
  CHECK_FALSE(admin::Server::start({UnixAddress{"/nonexistent/a"}}, handlers()));
}

TEST_CASE("admin: a reload is asked for and answered") {
  auto all = handlers();
  std::atomic<int> calls = 0;
  all.reload = [&calls]() -> Result<std::string> {
    if (++calls == 1) {
      return std::string("1 guest added");
    }
    return Error{"host.json:3:1: no"};
  };
  auto server = admin::Server::start(address(), all);
  REQUIRE(server);
  const std::string request = "POST /reload HTTP/1.1\r\nContent-Length: 0\r\n\r\n";
  const std::string good = ask(request);
  CHECK(has(good, "200 OK"));
  CHECK(has(good, "\r\n\r\n1 guest added\n"));
  const std::string bad = ask(request);
  CHECK(has(bad, "409"));
  CHECK(has(bad, "\r\n\r\nhost.json:3:1: no\n"));
  CHECK(has(get("/reload"), "404"));  // a GET changes nothing
  CHECK(calls == 2);
}

TEST_CASE("admin: an inherited socket outlives the server that served it") {
  const UniqueFd systemd = listening();
  for (int start = 0; start < 2; ++start) {
    auto server = admin::Server::start_inherited(
        UniqueFd(::fcntl(systemd.get(), F_DUPFD_CLOEXEC, 0)), handlers());
    REQUIRE(server);
    CHECK(has(get("/status"), "200 OK"));
    server = Error{"gone"};
    // Still there and listening, with nothing in its queue that would start the service again.
    pollfd entry{systemd.get(), POLLIN, 0};
    CHECK(::poll(&entry, 1, 0) == 0);
  }
  // Whoever comes while nobody serves waits for the next start.
  const UniqueFd early = connect_to(path());
  REQUIRE(early.valid());
  say(early, "GET /status HTTP/1.1\r\n\r\n");
  auto server = admin::Server::start_inherited(UniqueFd(::dup(systemd.get())), handlers());
  REQUIRE(server);
  CHECK(has(hear(early), "200 OK"));
  ::unlink(path().c_str());
}

TEST_CASE("admin: what is inherited has to be a listening unix stream socket") {
  const auto refused = [](UniqueFd fd) {
    return !admin::Server::start_inherited(std::move(fd), handlers());
  };
  CHECK(refused(UniqueFd()));
  CHECK(refused(UniqueFd(::open("/dev/null", O_RDONLY))));
  CHECK(refused(UniqueFd(::socket(AF_UNIX, SOCK_STREAM, 0))));  // does not listen
  CHECK(refused(listening(SOCK_SEQPACKET)));
  ::unlink(path().c_str());
  UniqueFd tcp(::socket(AF_INET, SOCK_STREAM, 0));
  REQUIRE(::listen(tcp.get(), 1) == 0);
  CHECK(refused(std::move(tcp)));
}

TEST_CASE("admin: a stop waits for no client") {
  auto server = admin::Server::start(address(), handlers());
  REQUIRE(server);
  const UniqueFd silent = connect_to(path());
  const UniqueFd halfway = connect_to(path());
  say(halfway, "GET /sta");
  std::vector<UniqueFd> more;
  for (int i = 0; i < 8; ++i) {
    more.push_back(connect_to(path()));
  }
  const auto begin = Clock::now();
  server = Error{"gone"};
  CHECK(Clock::now() - begin < milliseconds{400});
}

TEST_CASE("admin: a stop waits for no client that goes on talking") {
  auto server = admin::Server::start(address(), handlers());
  REQUIRE(server);
  const UniqueFd talker = connect_to(path());
  std::string request = "GET /status HTTP/1.1\r\nX: ";
  say(talker, request);
  std::atomic<bool> enough = false;
  std::thread talking([&] {
    while (!enough) {
      say(talker, "x");
      std::this_thread::sleep_for(milliseconds{1});
    }
  });
  const auto begin = Clock::now();
  server = Error{"gone"};
  CHECK(Clock::now() - begin < milliseconds{1000});
  enough = true;
  talking.join();
}

TEST_CASE("admin: a client that only ever says a little more is left after a while") {
  auto server = admin::Server::start(address(), handlers());
  REQUIRE(server);
  const UniqueFd slow = connect_to(path());
  const auto begin = Clock::now();
  std::string request = "GET /status HTTP/1.1\r\nX: ";
  say(slow, request);
  pollfd entry{slow.get(), POLLIN, 0};
  while (::poll(&entry, 1, 100) == 0) {
    say(slow, "x");
    REQUIRE(Clock::now() - begin < std::chrono::seconds{30});
  }
  CHECK(Clock::now() - begin > milliseconds{1000});  // longer than silence would have been borne
  CHECK_FALSE(has(hear(slow), "200 OK"));
}

TEST_CASE("admin: more connections than are served do not keep the next one out for ever") {
  auto server = admin::Server::start(address(), handlers());
  REQUIRE(server);
  std::vector<UniqueFd> many;
  for (int i = 0; i < 100; ++i) {
    many.push_back(connect_to(path()));
  }
  // Those beyond the bound are closed unheard.
  int closed = 0;
  for (const auto& fd : many) {
    pollfd entry{fd.get(), POLLIN, 0};
    closed += ::poll(&entry, 1, 0) > 0 ? 1 : 0;
  }
  many.clear();
  CHECK(closed > 0);
  const auto begin = Clock::now();
  while (!has(get("/status"), "200 OK")) {
    REQUIRE(Clock::now() - begin < std::chrono::seconds{30});
  }
}

}  // namespace
