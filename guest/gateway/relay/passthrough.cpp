// SPDX-License-Identifier: Apache-2.0
#include "guest/gateway/relay/passthrough.hpp"

#include <sys/epoll.h>

namespace causeway::gateway {

namespace {

using Step = relay::Flow::Step;

// EPOLLPRI: recv() stops at an urgent byte, so that a short read does not mean an empty socket.
constexpr std::uint32_t kEnding = EPOLLRDHUP | EPOLLHUP | EPOLLERR | EPOLLPRI;
constexpr std::uint32_t kReadable = EPOLLIN | kEnding;
constexpr std::uint32_t kWritable = EPOLLOUT | EPOLLHUP | EPOLLERR;

relay::FlowOptions options(const Passthrough::Side& from, const Passthrough::Side& to) {
  return {.max_write = to.max_write,
          .splice = from.splice && to.splice,
          .short_read_is_dry = from.tcp,
          .short_write_is_full = to.tcp};
}

}  // namespace

Passthrough::Passthrough(relay::RelayPool& pool, WorkerCounters& counters, relay::Gate gate,
                         Side client, Side upstream)
    : counters_(counters),
      gate_(gate),
      up_(pool, gate_, client.fd, upstream.fd, options(client, upstream)),
      down_(pool, gate_, upstream.fd, client.fd, options(upstream, client)) {}

std::optional<End> Passthrough::start() {
  return drive_up();
}

std::optional<End> Passthrough::on_client(std::uint32_t events) {
  if ((events & kEnding) != 0) up_.note_end();
  if ((events & EPOLLERR) != 0) return End::client_reset;
  if ((events & kReadable) != 0 && up_state_ == State::wait_read) {
    if (auto end = drive_up()) return end;
  }
  if ((events & kWritable) != 0 && down_state_ == State::wait_write) return drive_down();
  return std::nullopt;
}

std::optional<End> Passthrough::on_upstream(std::uint32_t events) {
  if ((events & kEnding) != 0) down_.note_end();
  if ((events & EPOLLERR) != 0 && down_state_ == State::over) return End::orderly;
  if ((events & kReadable) != 0 && down_state_ == State::wait_read) {
    if (auto end = drive_down()) return end;
  }
  if ((events & kWritable) != 0 && up_state_ == State::wait_write) return drive_up();
  return std::nullopt;
}

std::optional<End> Passthrough::go_on() {
  if (up_state_ == State::turn) {
    if (auto end = drive_up()) return end;
  }
  if (down_state_ == State::turn) return drive_down();
  return std::nullopt;
}

std::optional<End> Passthrough::drive_up() {
  const Step step = up_.advance();
  counters_.bytes_to_upstream.add(up_.take_written());
  count_gate();
  switch (step) {
    case Step::wait_read:
      up_state_ = State::wait_read;
      return std::nullopt;
    case Step::wait_write:
      up_state_ = State::wait_write;
      return std::nullopt;
    case Step::yield:
      up_state_ = State::turn;
      return std::nullopt;
    case Step::finished:
      up_state_ = State::over;
      if (down_state_ == State::over) return End::orderly;
      down_.close_follows();
      return std::nullopt;
    case Step::source_failed:
      return End::client_reset;
    case Step::sink_reset:
    case Step::sink_failed:
      down_.cut();
      break;
    case Step::broken:
      break;
  }
  up_state_ = State::over;
  upstream_broken_ = true;
  if (down_state_ == State::over) return End::orderly;
  return std::nullopt;
}

std::optional<End> Passthrough::drive_down() {
  const Step step = down_.advance();
  counters_.bytes_to_client.add(down_.take_written());
  count_gate();
  switch (step) {
    case Step::wait_read:
      down_state_ = State::wait_read;
      return std::nullopt;
    case Step::wait_write:
      down_state_ = State::wait_write;
      return std::nullopt;
    case Step::yield:
      down_state_ = State::turn;
      return std::nullopt;
    case Step::finished:
      down_state_ = State::over;
      if (upstream_broken_) return End::upstream_reset;
      if (up_state_ == State::over) return End::orderly;
      up_.close_follows();
      return std::nullopt;
    case Step::source_failed:
      return End::upstream_reset;
    case Step::broken:
    case Step::sink_reset:
    case Step::sink_failed:
      break;
  }
  return End::client_reset;
}

void Passthrough::count_gate() {
  if (gate_.open && !gate_counted_) {
    gate_counted_ = true;
    counters_.spliced.add();
  }
}

}  // namespace causeway::gateway
