// SPDX-License-Identifier: Apache-2.0
#include "common/os/channel.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <thread>

namespace {

using namespace causeway;
using std::chrono::milliseconds;

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

std::vector<UniqueFd> pipes(std::size_t count) {
  std::vector<UniqueFd> fds;
  while (fds.size() < count) {
    fds.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    REQUIRE(fds.back().valid());
  }
  return fds;
}

std::vector<int> numbers(const std::vector<UniqueFd>& fds) {
  std::vector<int> result;
  for (const auto& fd : fds) {
    result.push_back(fd.get());
  }
  return result;
}

// What send() refuses to send, sent all the same.
void send_raw(int socket, std::size_t bytes, const std::vector<int>& fds) {
  std::string text(bytes, 'x');
  iovec part{text.data(), text.size()};
  std::vector<char> control(CMSG_SPACE(fds.size() * sizeof(int)));
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(rights), fds.data(), fds.size() * sizeof(int));
  }
  REQUIRE(::sendmsg(socket, &header, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes));
}

TEST_CASE("channel: messages keep their borders, and descriptors come along") {
  auto pair = Channel::pair();
  REQUIRE(pair);
  auto& [a, b] = *pair;
  std::array<int, 2> pipe{};
  REQUIRE(::pipe2(pipe.data(), O_CLOEXEC) == 0);
  const UniqueFd reading(pipe[0]);
  UniqueFd writing(pipe[1]);
  REQUIRE(a.send("one"));
  REQUIRE(a.send(std::string("t\0o", 3), std::array{writing.get()}));
  REQUIRE(a.send(std::string(Channel::kMaxMessage, 'z')));
  auto first = b.receive();
  REQUIRE((first && *first));
  CHECK((*first)->text == "one");
  CHECK((*first)->fds.empty());
  auto second = b.receive();
  REQUIRE((second && *second));
  CHECK((*second)->text == std::string("t\0o", 3));
  REQUIRE((*second)->fds.size() == 1);
  const int got = (*second)->fds[0].get();
  CHECK((::fcntl(got, F_GETFD) & FD_CLOEXEC) != 0);
  CHECK(::write(got, "!", 1) == 1);
  char byte = 0;
  CHECK(::read(reading.get(), &byte, 1) == 1);
  CHECK(byte == '!');
  auto third = b.receive();
  REQUIRE((third && *third));
  CHECK((*third)->text == std::string(Channel::kMaxMessage, 'z'));
  REQUIRE(b.send("back"));
  auto answer = a.receive();
  REQUIRE((answer && *answer));
  CHECK((*answer)->text == "back");
}

TEST_CASE("channel: as many descriptors as are allowed, and not one more") {
  auto pair = Channel::pair();
  REQUIRE(pair);
  auto& [a, b] = *pair;
  const auto fds = pipes(Channel::kMaxFds + 1);
  const auto all = numbers(fds);
  const auto before = open_descriptors();
  REQUIRE(a.send("most", std::span(all).first(Channel::kMaxFds)));
  {
    auto message = b.receive();
    REQUIRE((message && *message));
    CHECK((*message)->fds.size() == Channel::kMaxFds);
  }
  const auto refused = a.send("more", all);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == EMSGSIZE);
  send_raw(a.fd(), 4, all);
  const auto truncated = b.receive();
  REQUIRE_FALSE(truncated);
  CHECK(truncated.error().code == EMFILE);
  CHECK(open_descriptors() == before);
  REQUIRE(a.send("still in step"));
  auto next = b.receive();
  REQUIRE((next && *next));
  CHECK((*next)->text == "still in step");
}

TEST_CASE("channel: a message that is too long is an error that leaks nothing") {
  auto pair = Channel::pair();
  REQUIRE(pair);
  auto& [a, b] = *pair;
  const auto fds = pipes(3);
  const auto before = open_descriptors();
  for (const std::size_t bytes : {std::size_t{0}, Channel::kMaxMessage + 1}) {
    const auto refused = a.send(std::string(bytes, 'x'));
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == EMSGSIZE);
  }
  send_raw(a.fd(), Channel::kMaxMessage + 1, numbers(fds));
  const auto received = b.receive();
  REQUIRE_FALSE(received);
  CHECK(received.error().code == EMSGSIZE);
  CHECK(open_descriptors() == before);
}

TEST_CASE("channel: a process that may open no more descriptors gets an error, not half of them") {
  const pid_t child = ::fork();  // the limit is the child's alone
  REQUIRE(child >= 0);
  if (child == 0) {
    auto pair = Channel::pair();
    const auto fds = pipes(8);
    bool good = pair && pair->first.send("many", numbers(fds));
    const auto before = open_descriptors();
    // Of the eight, some still fit.
    const auto most = static_cast<rlim_t>(fds.back().get()) + 4;
    const rlimit limit{most, most};
    good = good && ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
    const auto received = pair->second.receive(milliseconds{1000});
    good = good && !received && received.error().code == EMFILE && open_descriptors() == before;
    ::_exit(good ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

TEST_CASE("channel: the end is told from an error, and after all messages") {
  auto pair = Channel::pair();
  REQUIRE(pair);
  auto& [a, b] = *pair;
  REQUIRE(a.send("last"));
  a.close();
  auto last = b.receive();
  REQUIRE((last && *last));
  CHECK((*last)->text == "last");
  const auto end = b.receive();
  REQUIRE(end);
  CHECK_FALSE(end->has_value());
  const auto sent = b.send("nobody");
  REQUIRE_FALSE(sent);
  CHECK(sent.error().code == EPIPE);

  // Gone without having read what we sent: an end like any other.
  auto again = Channel::pair();
  REQUIRE(again);
  REQUIRE(again->first.send("unread"));
  again->second.close();
  const auto reset = again->first.receive();
  REQUIRE(reset);
  CHECK_FALSE(reset->has_value());
}

TEST_CASE("channel: timeouts, and a wait that a message ends") {
  auto pair = Channel::pair();
  REQUIRE(pair);
  auto& [a, b] = *pair;
  const auto nothing = b.receive(milliseconds{20});
  REQUIRE_FALSE(nothing);
  CHECK(nothing.error().code == ETIMEDOUT);
  CHECK_FALSE(b.receive(milliseconds{0}));

  // Nobody reads: sending blocks at some point, and then gives up.
  const std::string block(Channel::kMaxMessage, 'b');
  int sent = 0;
  Result<void> outcome;
  while ((outcome = a.send(block, {}, milliseconds{20}))) {
    REQUIRE(++sent < 1000);
  }
  CHECK(outcome.error().code == ETIMEDOUT);
  // All that was said to be sent arrives, whole.
  while (sent-- > 0) {
    auto message = b.receive(milliseconds{0});
    REQUIRE((message && *message));
    CHECK((*message)->text == block);
  }
  CHECK_FALSE(b.receive(milliseconds{0}));

  std::thread later([&a = a] { CHECK(a.send("now")); });
  auto message = b.receive();
  later.join();
  REQUIRE((message && *message));
  CHECK((*message)->text == "now");
}

}  // namespace
