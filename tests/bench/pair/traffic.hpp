// SPDX-License-Identifier: Apache-2.0
// What the parts of causeway-traffic offer to its command line. Each returns the JSON object that
// the program prints; a failed check is {"ok": false, ...} and makes the exit status 1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

namespace causeway::bench {

struct Place {
  std::string address;  // IP:PORT
  bool listens = false;
  double patience = 10;  // seconds during which a refused connection is tried again
};

struct BulkOptions {
  Place place;
  std::uint64_t bytes = 0;
  std::optional<std::uint64_t> seed;       // of what is sent
  std::optional<std::uint64_t> peer_seed;  // of what must arrive; without it the digest is printed
  bool sends = false;
  bool receives = false;
  bool streamed = false;  // make and hash the payload on the way instead of holding it whole
};
nlohmann::json run_bulk(const BulkOptions& options);

struct EchoOptions {
  Place place;
  std::size_t size = 64;
  std::size_t count = 10'000;
  std::size_t warmup = 200;
};
nlohmann::json run_echo_server(const EchoOptions& options);
nlohmann::json run_echo(const EchoOptions& options);

struct UdpOptions {
  Place place;
  std::size_t size = 1200;
  double rate = 10'000;  // packets a second: the rate, or where the search starts
  double seconds = 0.5;  // of one trial
  bool search = false;
  double max_rate = 2'000'000;
  std::size_t bisections = 4;
  std::size_t attempts = 2;  // a rate has passed when one of these trials lost nothing
  std::size_t gso = 1;       // datagrams handed to the kernel per UDP_SEGMENT send
  bool gro = false;          // sink: let the kernel hand over several datagrams at once
};
nlohmann::json run_udp_sink(const UdpOptions& options);
nlohmann::json run_udp_send(const UdpOptions& options);

}  // namespace causeway::bench
