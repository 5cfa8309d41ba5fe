// SPDX-License-Identifier: Apache-2.0
// causeway-tls-load: load client and origin of the gateway benchmark, see wire.hpp. The origin says
// "listening IP:PORT" on stderr once it is ready and serves until it is ended. The client prints
// one line of JSON and exits with 0, with 1 when a connection failed, with 2 on bad usage, with 3
// when its --timeout is over.
#include <CLI/CLI.hpp>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>

#include "tests/bench/gateway/tls_load.hpp"
#include "tests/bench/pair/sockets.hpp"

namespace causeway::bench {
namespace {

int run(int argc, char** argv) {
  CLI::App app("Load for a TLS passthrough proxy, without TLS", "causeway-tls-load");
  app.require_subcommand(1);
  unsigned timeout = 60;
  OriginOptions origin;
  ClientOptions client;

  CLI::App* serve = app.add_subcommand("origin", "Answer hellos and requests");
  serve->add_option("--listen", origin.listen, "IP:PORT; port 0 takes a free one")->required();
  serve->add_option("--greeting", origin.greeting, "Bytes that answer a hello")
      ->check(CLI::PositiveNumber);
  serve->add_flag("--close", origin.closes, "End each connection behind the greeting");

  CLI::App* load = app.add_subcommand("client", "Make connections and requests");
  load->add_option("--connect", client.connect, "IP:PORT")->required();
  load->add_option("--hello", client.hello, "A file with a recorded ClientHello")->required();
  load->add_option("--greeting", client.greeting, "As the origin's")->check(CLI::PositiveNumber);
  load->add_option("--connections", client.connections, "At once")->check(CLI::Range(1, 60'000));
  const CLI::Option* payload =
      load->add_option("--payload", client.request.payload, "Bytes of a request");
  const CLI::Option* reply =
      load->add_option("--reply", client.request.reply, "Bytes of its reply (default 0)");
  CLI::Option* reopen =
      load->add_flag("--reopen", client.reopens, "A new connection for each unit");
  load->add_flag("--peer-closes", client.peer_closes, "Wait for the origin's end, then close");
  CLI::Option* hold = load->add_flag("--hold", client.holds,
                                     "Open all, say 'ready', exchange once for each line on stdin");
  load->add_option("--seconds", client.seconds, "Begin no unit after that");
  load->add_option("--units", client.units, "Begin no more units than these");
  load->add_option("--rate", client.rate, "Units a second over connections that stay")
      ->excludes(reopen)
      ->excludes(hold);
  hold->excludes(reopen);
  for (CLI::App* command : {serve, load}) {
    command->add_option("--timeout", timeout, "Seconds until the program gives up")
        ->check(CLI::Range(1, 86'400));
  }

  try {
    app.parse(argc, argv);
    client.exchanges = payload->count() > 0 || reply->count() > 0;
    if (load->parsed() && client.exchanges && client.request.reply == 0) {
      throw CLI::ValidationError("--reply", "an exchange ends with a reply: want at least 1 byte");
    }
    if (load->parsed() && !client.holds && client.seconds <= 0 && client.units == 0) {
      throw CLI::RequiredError("--seconds, --units or --hold");
    }
    if (load->parsed() && !client.exchanges && (client.holds || client.rate > 0)) {
      throw CLI::RequiredError("--reply with --hold or --rate");
    }
    if (load->parsed() && !client.exchanges && !client.reopens) {
      throw CLI::RequiredError("--reopen without an exchange");
    }
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }

  arm_deadline(timeout);
  if (serve->parsed()) run_origin(origin);
  const nlohmann::json result = run_client(client);
  std::cout << result.dump() << std::endl;
  return result.value("ok", false) ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace causeway::bench

int main(int argc, char** argv) {
  try {
    return causeway::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "causeway-tls-load: " << error.what() << std::endl;
    return EXIT_FAILURE;
  }
}
