// SPDX-License-Identifier: Apache-2.0
// TCP ping-pong: one small message in flight, TCP_NODELAY on both ends, each round trip timed.
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <vector>

#include "tests/bench/pair/sockets.hpp"
#include "tests/bench/pair/traffic.hpp"

namespace causeway::bench {

// Serves one connection until it ends.
nlohmann::json run_echo_server(const EchoOptions& options) {
  const Fd listener = listen_on(parse_ip_port(options.place.address), SOCK_STREAM);
  announce(listener);
  const Fd fd = accept_one(listener);
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY");
  std::vector<std::byte> buffer(64 * 1024);
  std::uint64_t bytes = 0;
  while (const std::size_t got = receive_some(fd, buffer)) {
    send_all(fd, std::span(buffer).first(got));
    bytes += got;
  }
  return {{"ok", true}, {"bytes", bytes}};
}

nlohmann::json run_echo(const EchoOptions& options) {
  const Fd fd = connect_to(
      parse_ip_port(options.place.address), SOCK_STREAM,
      std::chrono::milliseconds(static_cast<std::int64_t>(options.place.patience * 1000)));
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY");
  std::vector<std::byte> message(options.size);
  std::vector<std::byte> answer(options.size);
  std::vector<double> microseconds;
  microseconds.reserve(options.count);
  for (std::size_t turn = 0; turn < options.count + options.warmup; ++turn) {
    std::fill(message.begin(), message.end(), static_cast<std::byte>(turn));
    const double start = now_seconds();
    send_all(fd, message);
    std::size_t have = 0;
    while (have < answer.size()) {
      const std::size_t got = receive_some(fd, std::span(answer).subspan(have));
      if (got == 0) throw std::runtime_error("the echo server closed the connection");
      have += got;
    }
    const double took = now_seconds() - start;
    if (answer != message) throw std::runtime_error("the echo differs from what was sent");
    if (turn >= options.warmup) microseconds.push_back(took * 1e6);
  }
  std::sort(microseconds.begin(), microseconds.end());
  // Nearest rank on the sorted round trips.
  const auto percentile = [&](double share) {
    const auto last = static_cast<double>(microseconds.size() - 1);
    return microseconds[static_cast<std::size_t>(share * last + 0.5)];
  };
  return {{"ok", true},
          {"count", microseconds.size()},
          {"size", options.size},
          {"p50_us", percentile(0.5)},
          {"p90_us", percentile(0.9)},
          {"p99_us", percentile(0.99)},
          {"max_us", microseconds.back()}};
}

}  // namespace causeway::bench
