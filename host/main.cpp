// SPDX-License-Identifier: Apache-2.0
// causeway-host: the helper. TAPs on the untrusted host to the wire, for any number of guests.
//
// main() reads the configuration, splits into the broker and the process that does the work
// (broker.hpp), and wires the latter's parts.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>

#include <linux/capability.h>
#include <linux/close_range.h>

#include "common/admin/server.hpp"
#include "common/os/activation.hpp"
#include "common/os/notify.hpp"
#include "common/os/privileges.hpp"
#include "common/os/user.hpp"
#include "host/broker.hpp"
#include "host/broker_client.hpp"
#include "host/helper.hpp"

namespace causeway::host {
namespace {

constexpr const char* kProgram = "causeway-host";

// ---- the broker's process ----

// It ends when its channel does, so that what the operator or the service manager sends to the
// whole group does not end it before the main process.
void ignore_signals() {
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGPIPE}) {
    std::signal(number, SIG_IGN);
  }
}

// Everything but stdio and the channel: an inherited stream that stayed open here would never end.
void close_others(int keep) {
  if (keep > 3) {
    (void)::close_range(3, static_cast<unsigned>(keep) - 1, 0);
  }
  (void)::close_range(static_cast<unsigned>(keep) + 1, ~0U, 0);
}

[[noreturn]] void run_broker(Channel channel, HostConfig config, std::vector<std::string> args) {
  ::prctl(PR_SET_NAME, "causeway-broker");
  ignore_signals();
  close_others(channel.fd());
  int code = bridge::kExitFailure;
  try {
    // Sockets below port 1024; files that another user owns, since a broker that runs as root made
    // the directories of sockets and state so.
    constexpr std::array kKept = {CAP_NET_ADMIN, CAP_NET_BIND_SERVICE, CAP_DAC_OVERRIDE};
    if (auto kept = keep_only(kKept); !kept) {
      bridge::fail(kProgram, kept.error());
    } else {
      const std::string state = config.state_directory;
      code = Broker(std::move(channel), std::move(config), std::move(args)).run();
      (void)::rmdir(state.c_str());  // of a network namespace that may be gone soon
    }
  } catch (const std::exception& error) {
    bridge::fail(kProgram, Error{std::string("broker: ") + error.what()});
  }
  std::fflush(nullptr);
  ::_exit(code);  // what the main process set up for its own exit is not ours to run
}

// ---- the main process ----

struct Inherited {
  Notifier notifier;
  std::optional<UniqueFd> admin;
};

Result<Inherited> inherited() {
  Inherited result;
  result.notifier = Notifier::from_environment();
  auto sockets = take_inherited_sockets();
  if (!sockets) {
    return sockets.error();
  }
  for (auto& socket : *sockets) {
    if (socket.name == "admin" || (sockets->size() == 1 && socket.name == "unknown")) {
      result.admin = std::move(socket.fd);
    }
  }
  return result;
}

// The admin endpoint's socket: the service manager's, or one that the broker makes.
Result<std::optional<UniqueFd>> admin_socket(const HostConfig& config, BrokerClient& broker,
                                             std::optional<UniqueFd> activated) {
  if (activated || !config.program.admin) {
    return activated;
  }
  auto socket = broker.admin();
  if (!socket) {
    return socket.error();
  }
  return std::optional<UniqueFd>(std::move(*socket));
}

// Each relayed connection takes two descriptors.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    (void)::setrlimit(RLIMIT_NOFILE, &limit);
  }
}

int run_main(const HostConfig& config, BrokerClient& broker, Inherited inherited,
             const std::vector<std::string>& args) {
  raise_descriptor_limit();
  if (auto dropped = drop_privileges_to(config.user); !dropped) {
    return bridge::fail(kProgram, dropped.error());
  }
  auto netlink = net::Netlink::open();
  if (!netlink) {
    return bridge::fail(kProgram, netlink.error());
  }
  // What can be taken by somebody else comes first: it must not leave TAPs flashing up and down.
  auto socket = admin_socket(config, broker, std::move(inherited.admin));
  if (!socket) {
    return bridge::fail(kProgram, socket.error());
  }
  asio::io_context control{1};
  asio::signal_set signals(control, SIGTERM, SIGINT, SIGHUP);
  Helper helper(control, config, broker, inherited.notifier, std::move(*netlink));
  if (auto started = helper.start(); !started) {
    helper.stop();
    return bridge::fail(kProgram, started.error());
  }
  std::unique_ptr<admin::Server> admin;
  if (*socket) {
    admin::Handlers handlers;
    handlers.status = [&helper] { return helper.status(); };
    handlers.healthy = [&helper] { return helper.healthy(); };
    auto started = admin::Server::start_inherited(std::move(**socket), std::move(handlers));
    if (!started) {
      helper.stop();
      return bridge::fail(kProgram, started.error());
    }
    admin = std::move(*started);
  }
  std::function<void(const asio::error_code&, int)> on_signal = [&](const asio::error_code& error,
                                                                    int number) {
    if (error) {
      return;
    }
    if (number == SIGHUP) {
      helper.reload(args);
      signals.async_wait(on_signal);
      return;
    }
    log::info("stopping on signal {}", number);
    helper.stop();
    control.stop();
  };
  signals.async_wait(on_signal);
  asio::posix::stream_descriptor broker_end(control, ::dup(broker.fd()));
  broker_end.async_wait(asio::posix::stream_descriptor::wait_error,
                        [&](const asio::error_code& error) {
                          if (!error) {
                            // Its rules may be gone: nobody is served without them.
                            log::error("the broker has ended, stopping");
                            helper.fail();
                            control.stop();
                          }
                        });
  inherited.notifier.ready();
  control.run();
  helper.stop();
  return helper.exit_code();
}

int clean_up(const HostConfig& config) {
  Result<void> removed;
  {
    Network network(config.instance, config.state_directory);
    removed = network.remove();
  }
  (void)::rmdir(config.state_directory.c_str());
  return removed ? 0 : bridge::fail(kProgram, removed.error());
}

int print_rules(const HostConfig& config) {
  std::vector<const GuestConfig*> guests;
  for (const auto& guest : config.guests) {
    guests.push_back(&guest);
  }
  const auto rules = rule_set(config.instance, guests);
  std::fputs(rules.guests.empty() ? "" : render_rules(rules).c_str(), stdout);
  return 0;
}

int run(const std::vector<std::string>& args, HostConfig config, const Commands& commands) {
  if (commands.print_rules) {
    return print_rules(config);
  }
  log::init(kProgram, config.program.log_level);
  std::signal(SIGPIPE, SIG_IGN);
  config.state_directory = state_directory(config);
  if (commands.cleanup) {
    return clean_up(config);
  }
  auto channel = Channel::pair();
  if (!channel) {
    return bridge::fail(kProgram, channel.error());
  }
  // Before threads, and before the notifier's socket: the broker has nothing to say there.
  const pid_t child = ::fork();
  if (child < 0) {
    return bridge::fail(kProgram, system_error("fork"));
  }
  if (child == 0) {
    channel->first.close();
    run_broker(std::move(channel->second), std::move(config), args);
  }
  channel->second.close();
  BrokerClient broker(std::move(channel->first));
  int code = bridge::kExitFailure;
  if (auto from_manager = inherited(); from_manager) {
    code = run_main(config, broker, std::move(*from_manager), args);
  } else {
    bridge::fail(kProgram, from_manager.error());
  }
  broker.goodbye();
  return code;
}

}  // namespace
}  // namespace causeway::host

int main(int argc, char** argv) {
  using namespace causeway;
  try {
    host::ConfigParser parser;
    const auto outcome = parser.table().parse(argc, argv);
    if (outcome.exit_code) {
      return *outcome.exit_code;
    }
    const host::Commands commands = parser.commands();
    const std::vector<std::string> args(argv + 1, argv + argc);
    return host::run(args, std::move(parser).finish(), commands);
  } catch (const std::exception& error) {
    return bridge::fail("causeway-host", Error{error.what()});
  }
}
