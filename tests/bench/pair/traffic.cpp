// SPDX-License-Identifier: Apache-2.0
// causeway-traffic: measured and checked traffic for the benchmark and for the integration tests.
// One command is one role in one exchange; it prints one line of JSON on stdout and exits with 0
// when every check held, 1 when one did not or the network failed, 2 on bad usage, 3 when its
// --timeout is over. A listening role prints "listening IP:PORT" on stderr once it is ready.
#include <CLI/CLI.hpp>
#include <cstdlib>
#include <exception>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>

#include "tests/bench/pair/sockets.hpp"
#include "tests/bench/pair/traffic.hpp"

namespace causeway::bench {
namespace {

struct Options {
  std::string listen;
  std::string connect;
  unsigned timeout = 120;
  BulkOptions bulk;
  EchoOptions echo;
  UdpOptions udp;
  Place place;
};

enum class Side { listen, connect, either };

CLI::App* add_command(CLI::App& app, const char* name, const char* doc, Side side,
                      Options& options) {
  CLI::App* command = app.add_subcommand(name, doc);
  CLI::Option* listens = nullptr;
  CLI::Option* connects = nullptr;
  if (side != Side::connect) {
    listens = command->add_option("--listen", options.listen, "IP:PORT; port 0 takes a free one");
  }
  if (side != Side::listen) {
    connects = command->add_option("--connect", options.connect, "IP:PORT");
    command->add_option("--patience", options.place.patience,
                        "Seconds to retry a refused connection");
  }
  if (listens != nullptr && connects != nullptr) listens->excludes(connects);
  command->add_option("--timeout", options.timeout, "Seconds until the program gives up")
      ->check(CLI::Range(1, 86'400));
  return command;
}

void add_bulk(CLI::App& app, Options& options, const char* name, const char* doc, Side side,
              bool sends, bool receives, std::function<nlohmann::json()>& action) {
  CLI::App* command = add_command(app, name, doc, side, options);
  BulkOptions& bulk = options.bulk;
  command->add_option("--bytes", bulk.bytes, "Payload, in bytes")->required();
  command->add_flag("--streamed", bulk.streamed,
                    "Make and hash the payload on the way: little memory, slower");
  if (sends) command->add_option("--seed", bulk.seed, "Seed of the payload (default 1)");
  if (receives) {
    command->add_option("--peer-seed", bulk.peer_seed,
                        "Seed the peer used: its digest is compared");
  }
  command->callback([&options, &action, sends, receives] {
    options.bulk.sends = sends;
    options.bulk.receives = receives;
    action = [&options] {
      options.bulk.place = options.place;
      return run_bulk(options.bulk);
    };
  });
}

int run(int argc, char** argv) {
  CLI::App app("Measured and checked traffic", "causeway-traffic");
  app.require_subcommand(1);
  Options options;
  std::function<nlohmann::json()> action;

  add_bulk(app, options, "recv", "Receive a TCP payload to its end", Side::either, false, true,
           action);
  add_bulk(app, options, "send", "Send a TCP payload and wait for the peer's end", Side::either,
           true, false, action);
  add_bulk(app, options, "duplex", "Send and receive at once on one connection", Side::either, true,
           true, action);

  CLI::App* server =
      add_command(app, "echo-server", "Serve one echo connection", Side::listen, options);
  server->callback([&] { action = [&] { return run_echo_server(options.echo); }; });
  CLI::App* echo = add_command(app, "echo", "Time TCP round trips", Side::connect, options);
  echo->add_option("--count", options.echo.count, "Round trips")->check(CLI::PositiveNumber);
  echo->add_option("--warmup", options.echo.warmup, "Round trips before those");
  echo->add_option("--size", options.echo.size, "Bytes of a message")->check(CLI::Range(1, 65'536));
  echo->callback([&] { action = [&] { return run_echo(options.echo); }; });

  UdpOptions& udp = options.udp;
  CLI::App* sink = add_command(app, "udp-sink", "Count UDP datagrams", Side::listen, options);
  sink->add_flag("--gro", udp.gro, "Take several datagrams in one read (UDP_GRO)");
  sink->callback([&] { action = [&] { return run_udp_sink(udp); }; });
  CLI::App* send = add_command(app, "udp-send", "Send UDP at a rate, or search the highest rate",
                               Side::connect, options);
  send->add_option("--size", udp.size, "Bytes of a datagram");
  send->add_option("--rate", udp.rate, "Packets a second; where a search starts")
      ->check(CLI::PositiveNumber);
  send->add_option("--seconds", udp.seconds, "Length of one trial")->check(CLI::PositiveNumber);
  send->add_flag("--search", udp.search, "Search the highest rate without a loss");
  send->add_option("--max-rate", udp.max_rate, "Where a search ends");
  send->add_option("--bisections", udp.bisections,
                   "Steps between the last pass and the first loss");
  send->add_option("--attempts", udp.attempts, "Trials that a rate gets")
      ->check(CLI::PositiveNumber);
  send->add_option("--gso", udp.gso, "Datagrams in one UDP_SEGMENT send");
  send->callback([&] { action = [&] { return run_udp_send(udp); }; });

  try {
    app.parse(argc, argv);
    if (options.listen.empty() == options.connect.empty()) {
      throw CLI::RequiredError("--listen or --connect");
    }
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  options.place.listens = options.connect.empty();
  options.place.address = options.place.listens ? options.listen : options.connect;
  options.echo.place = options.udp.place = options.place;

  arm_deadline(options.timeout);
  const nlohmann::json result = action();
  std::cout << result.dump() << std::endl;
  return result.value("ok", false) ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace causeway::bench

int main(int argc, char** argv) {
  try {
    return causeway::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "causeway-traffic: " << error.what() << std::endl;
    return EXIT_FAILURE;
  }
}
