// SPDX-License-Identifier: Apache-2.0
// causeway-tls-load: load clients and origin of the gateway benchmark, see wire.hpp. The origin
// says "listening IP:PORT" on stderr once it is ready and serves until it is ended. A client prints
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

void add_plan(CLI::App& command, LoadPlan& plan) {
  command.add_option("--connect", plan.connect, "IP:PORT")->required();
  command.add_option("--connections", plan.connections, "At once")->check(CLI::Range(1, 60'000));
  command.add_option("--payload", plan.request.payload, "Bytes of a request");
  command.add_option("--reply", plan.request.reply, "Bytes of its reply (default 0)");
  CLI::Option* reopen =
      command.add_flag("--reopen", plan.reopens, "A new connection for each unit");
  CLI::Option* hold = command.add_flag(
      "--hold", plan.holds, "Open all, say 'ready', exchange once for each line on stdin");
  command.add_option("--seconds", plan.seconds, "Begin no unit after that");
  command.add_option("--units", plan.units, "Begin no more units than these");
  command.add_option("--rate", plan.rate, "Units a second over connections that stay")
      ->excludes(reopen)
      ->excludes(hold);
  hold->excludes(reopen);
}

void check_plan(const CLI::App& command, LoadPlan& plan) {
  plan.exchanges = command.count("--payload") > 0 || command.count("--reply") > 0;
  if (plan.exchanges && plan.request.reply == 0) {
    throw CLI::ValidationError("--reply", "an exchange ends with a reply: want at least 1 byte");
  }
  if (!plan.holds && plan.seconds <= 0 && plan.units == 0) {
    throw CLI::RequiredError("--seconds, --units or --hold");
  }
  if (!plan.exchanges && (plan.holds || plan.rate > 0)) {
    throw CLI::RequiredError("--reply with --hold or --rate");
  }
  if (!plan.exchanges && !plan.reopens) {
    throw CLI::RequiredError("--reopen without an exchange");
  }
}

int run(int argc, char** argv) {
  CLI::App app("Load for a TLS proxy: without TLS of its own, or with", "causeway-tls-load");
  app.require_subcommand(1);
  unsigned timeout = 60;
  OriginOptions origin;
  ClientOptions client;
  TlsClientOptions tls;

  CLI::App* serve = app.add_subcommand("origin", "Answer hellos and requests");
  serve->add_option("--listen", origin.listen, "IP:PORT; port 0 takes a free one")->required();
  serve->add_option("--greeting", origin.greeting, "Bytes that answer a hello")
      ->check(CLI::PositiveNumber);
  CLI::Option* plain = serve->add_flag("--plain", origin.plain, "Requests only, without a hello");
  serve->add_flag("--close", origin.closes, "End each connection behind the greeting")
      ->excludes(plain);

  CLI::App* load = app.add_subcommand("client", "Make connections and requests, without TLS");
  add_plan(*load, client);
  load->add_option("--hello", client.hello, "A file with a recorded ClientHello")->required();
  load->add_option("--greeting", client.greeting, "As the origin's")->check(CLI::PositiveNumber);
  load->add_flag("--peer-closes", client.peer_closes, "Wait for the origin's end, then close");

  CLI::App* secure = app.add_subcommand("tls", "Make connections and requests, with TLS");
  add_plan(*secure, tls);
  secure->add_option("--name", tls.name, "Host name to ask for")->required();
  secure->add_option("--version", tls.version)->check(CLI::IsMember({"1.2", "1.3"}));
  secure->add_option("--cipher", tls.cipher)
      ->check(CLI::IsMember({"aes-128-gcm", "aes-256-gcm", "chacha20"}));
  secure->add_flag("--resume", tls.resumes, "Resume a session with each connection");
  for (CLI::App* command : {serve, load, secure}) {
    command->add_option("--timeout", timeout, "Seconds until the program gives up")
        ->check(CLI::Range(1, 86'400));
  }

  try {
    app.parse(argc, argv);
    if (load->parsed()) check_plan(*load, client);
    if (secure->parsed()) {
      check_plan(*secure, tls);
      if (!tls.exchanges) throw CLI::RequiredError("--reply");  // tickets may come behind it
    }
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }

  arm_deadline(timeout);
  if (serve->parsed()) run_origin(origin);
  const nlohmann::json result = secure->parsed() ? run_tls_client(tls) : run_client(client);
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
