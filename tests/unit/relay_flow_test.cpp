// SPDX-License-Identifier: Apache-2.0
// One direction of a relay, over socket pairs and driven by hand.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <array>
#include <csignal>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "common/os/unique_fd.hpp"
#include "common/relay/flow.hpp"

namespace {

using namespace causeway;
using namespace causeway::relay;
using Step = Flow::Step;

constexpr std::uint64_t kSpliceAfter = 64 * 1024;

struct Pair {
  explicit Pair(int type = SOCK_STREAM) {
    std::array<int, 2> ends{};
    REQUIRE(::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends.data()) == 0);
    near = UniqueFd(ends[0]);
    far = UniqueFd(ends[1]);
    REQUIRE(::fcntl(near.get(), F_SETFL, O_NONBLOCK) == 0);
    const timeval limit{.tv_sec = 20, .tv_usec = 0};
    REQUIRE(::setsockopt(far.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
    REQUIRE(::setsockopt(far.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0);
  }
  UniqueFd near;  // the flow's
  UniqueFd far;
};

// Each byte says where in the stream it is.
std::vector<std::byte> pattern(std::size_t size) {
  std::vector<std::byte> bytes(size);
  std::uint32_t state = 12345;
  for (std::byte& byte : bytes) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<std::byte>(state >> 24);
  }
  return bytes;
}

void send_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;  // the receiver's check fails
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
}

std::vector<std::byte> receive_all(int fd) {
  std::vector<std::byte> all;
  std::vector<std::byte> part(std::size_t{100'000});
  for (;;) {
    const ssize_t got = ::recv(fd, part.data(), part.size(), 0);
    if (got <= 0) return all;
    all.insert(all.end(), part.begin(), part.begin() + got);
  }
}

struct Driven {
  Step last = Step::yield;
  bool held_a_pipe = false;
};

Driven drive(Flow& flow, const RelayPool& pool, int from, int to) {
  Driven driven;
  for (;;) {
    driven.last = flow.advance();
    driven.held_a_pipe = driven.held_a_pipe || pool.pipes() > 0;
    if (driven.last == Step::yield) continue;
    if (driven.last != Step::wait_read && driven.last != Step::wait_write) return driven;
    const bool reads = driven.last == Step::wait_read;
    pollfd wait{reads ? from : to, static_cast<short>(reads ? POLLIN : POLLOUT), 0};
    if (::poll(&wait, 1, 20'000) != 1) return driven;
  }
}

void transfer(std::size_t size, FlowOptions options, bool splices) {
  std::signal(SIGPIPE, SIG_IGN);
  const Pair source;
  const Pair sink;
  RelayPool pool;
  Gate gate{.after = kSpliceAfter};
  Driven driven;
  const auto sent = pattern(size);
  std::vector<std::byte> got;
  std::thread sender([&] {
    send_all(source.far.get(), sent);
    ::shutdown(source.far.get(), SHUT_WR);
  });
  std::thread receiver([&] { got = receive_all(sink.far.get()); });
  {
    Flow flow(pool, gate, source.near.get(), sink.near.get(), options);
    driven = drive(flow, pool, source.near.get(), sink.near.get());
    CHECK(flow.progress() == 2 * size);
    CHECK(flow.take_written() == size);
  }
  sender.join();
  receiver.join();
  CHECK(driven.last == Step::finished);
  CHECK(driven.held_a_pipe == splices);
  CHECK(pool.pipes() == pool.idle_pipes());
  CHECK(got == sent);  // no CHECK on vectors' contents one by one: they are large
}

TEST_CASE("a flow carries every byte and then the end, copied") {
  transfer(0, {}, false);
  transfer(1, {}, false);
  transfer(60'000, {}, false);
  transfer(5'000'000, {.splice = false}, false);
  transfer(300'000, {.max_write = 777, .splice = false}, false);
}

TEST_CASE("a flow carries every byte and then the end, spliced") {
  transfer(5'000'000, {}, true);
}

TEST_CASE("a flow writes at most max_write at a time") {
  const Pair source;
  const Pair sink(SOCK_SEQPACKET);  // keeps the borders of writes
  RelayPool pool;
  Gate gate{.after = kSpliceAfter};
  send_all(source.far.get(), pattern(10'000));
  ::shutdown(source.far.get(), SHUT_WR);
  const FlowOptions options{.max_write = 3000, .splice = false};
  Flow flow(pool, gate, source.near.get(), sink.near.get(), options);
  CHECK(flow.advance() == Step::finished);
  std::vector<std::byte> part(std::size_t{20'000});
  for (const ssize_t expected : {3000, 3000, 3000, 1000, 0}) {
    CHECK(::recv(sink.far.get(), part.data(), part.size(), 0) == expected);
  }
}

TEST_CASE("a dry flow holds neither buffer nor pipe, a full one waits") {
  const Pair source;
  const Pair sink;
  RelayPool pool;
  Gate gate{.after = kSpliceAfter};
  Flow flow(pool, gate, source.near.get(), sink.near.get(), {});
  CHECK(flow.advance() == Step::wait_read);

  // Until sink and flow are full.
  const auto block = pattern(50'000);
  Step step = Step::wait_read;
  while (step != Step::wait_write) {
    REQUIRE(::send(source.far.get(), block.data(), block.size(), MSG_DONTWAIT) > 0);
    step = flow.advance();
  }
  CHECK(pool.pipes() == 1);
  CHECK(pool.idle_pipes() == 0);
  const std::uint64_t before = flow.progress();
  CHECK(flow.advance() == Step::wait_write);
  CHECK(flow.progress() == before);

  std::vector<std::byte> part(std::size_t{4} << 20);
  for (int i = 0; step != Step::wait_read && i < 10'000; ++i) {
    CHECK(::recv(sink.far.get(), part.data(), part.size(), MSG_DONTWAIT) > 0);
    step = flow.advance();
  }
  CHECK(step == Step::wait_read);
  CHECK(pool.idle_pipes() == 1);
}

TEST_CASE("what is put first goes first and is not counted") {
  const Pair source;
  const Pair sink;
  RelayPool pool;
  Gate gate{.after = kSpliceAfter};
  const auto first = pattern(52);
  Flow flow(pool, gate, source.near.get(), sink.near.get(), {});
  flow.put_first(first);
  send_all(source.far.get(), pattern(1000));
  ::shutdown(source.far.get(), SHUT_WR);
  CHECK(flow.advance() == Step::finished);
  CHECK(flow.take_written() == 1000);
  auto expected = first;
  const auto rest = pattern(1000);
  expected.insert(expected.end(), rest.begin(), rest.end());
  CHECK(receive_all(sink.far.get()) == expected);
}

TEST_CASE("a sink that is gone breaks the flow, a reset source fails it") {
  std::signal(SIGPIPE, SIG_IGN);
  RelayPool pool;
  Gate gate{.after = kSpliceAfter};
  for (const std::size_t size : {std::size_t{10}, std::size_t{150'000}}) {  // copied, spliced
    CAPTURE(size);
    const Pair source;
    Pair sink;
    Flow flow(pool, gate, source.near.get(), sink.near.get(), {});
    if (size > kSpliceAfter) {
      send_all(source.far.get(), pattern(size));
      CHECK(flow.advance() == Step::wait_read);
      CHECK(pool.pipes() == 1);
    }
    sink.far.reset();
    send_all(source.far.get(), pattern(10));
    CHECK(flow.advance() == Step::broken);
  }
  CHECK(pool.pipes() == 0);  // the pipe still had bytes in it: not kept

  Pair source;
  const Pair sink;
  Flow flow(pool, gate, source.near.get(), sink.near.get(), {});
  send_all(source.near.get(), pattern(10));
  source.far.reset();  // with bytes unread: what a unix socket has for a reset
  CHECK(flow.advance() == Step::source_failed);
}

TEST_CASE("a flow with much to do gives others a turn") {
  const Pair source;
  const Pair sink;
  const int size = 8 << 20;
  for (const int fd : {source.far.get(), sink.near.get()}) {
    REQUIRE(::setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof size) == 0);
  }
  send_all(source.far.get(), pattern(2 * Flow::kTurn));
  RelayPool pool;
  Gate gate{.after = kSpliceAfter};
  Flow flow(pool, gate, source.near.get(), sink.near.get(), {});
  CHECK(flow.advance() == Step::yield);
  const std::uint64_t written = flow.take_written();
  CHECK(written >= Flow::kTurn);
  CHECK(written < 2 * Flow::kTurn);
}

TEST_CASE("the pool bounds pipes and large buffers") {
  RelayPool pool;
  std::vector<RelayPipe> pipes;
  while (auto pipe = pool.take_pipe()) {
    CHECK(pipe->capacity >= RelayPool::kSmallestPipe);
    pipes.push_back(std::move(*pipe));
    REQUIRE(pipes.size() <= RelayPool::kMaxPipes);
  }
  CHECK(pool.pipes() == pipes.size());
  const std::size_t most = pipes.size();
  for (RelayPipe& pipe : pipes)
    pool.give_back(std::move(pipe), true);
  CHECK(pool.idle_pipes() == std::min(most, RelayPool::kIdlePipes));
  CHECK(pool.pipes() == pool.idle_pipes());

  std::vector<RelayBuffer> buffers;
  for (std::size_t i = 0; i < RelayPool::kMaxLargeBuffers; ++i) {
    buffers.push_back(pool.take_buffer(true));
    CHECK(buffers.back().size == RelayPool::kLargeBuffer);
  }
  CHECK(pool.take_buffer(true).size == RelayPool::kSmallBuffer);
  for (RelayBuffer& buffer : buffers)
    pool.give_back(std::move(buffer));
  CHECK(pool.take_buffer(true).size == RelayPool::kLargeBuffer);
}

TEST_CASE("a pipe that the system refuses is not asked for again at once") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const UniqueFd highest(::dup(0));
  RelayPool pool;
  const rlimit none{static_cast<rlim_t>(highest.get()) + 1, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  const bool refused = !pool.take_pipe();
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(refused);
  CHECK_FALSE(pool.take_pipe());  // though there would be one now
  CHECK(pool.pipes_made() == 0);
  bool given = false;
  for (int i = 0; i < 10'000 && !given; ++i)
    given = pool.take_pipe().has_value();
  CHECK(given);
  CHECK(pool.pipes_made() == 1);
}

}  // namespace
