// SPDX-License-Identifier: Apache-2.0
// causeway-gateway: takes TLS connections in the guest and relays each to the upstream that its
// server name asks for.
#include <sys/resource.h>

#include <csignal>
#include <exception>
#include <functional>
#include <future>

#include "common/admin/server.hpp"
#include "common/bridge/program.hpp"
#include "common/os/privileges.hpp"
#include "guest/gateway/crypto/crypto.hpp"
#include "guest/gateway/gateway.hpp"
#include "guest/gateway/tls_material.hpp"

namespace causeway::gateway {
namespace {

constexpr const char* kProgram = "causeway-gateway";

void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    (void)::setrlimit(RLIMIT_NOFILE, &limit);
  }
}

Result<std::unique_ptr<admin::Server>> serve_admin(const GatewayConfig& config,
                                                   asio::io_context& control, Gateway& gateway) {
  if (!config.admin) return std::unique_ptr<admin::Server>();
  admin::Handlers handlers;
  handlers.status = [&gateway] { return gateway.status(); };
  handlers.healthy = [&gateway] { return gateway.healthy(); };
  handlers.reload = [&control, &gateway]() -> Result<std::string> {
    auto done = std::make_shared<std::promise<Result<std::string>>>();
    auto result = done->get_future();
    asio::post(control, [done, &gateway] { done->set_value(gateway.reload()); });
    // The control thread may be on its way out and never come to it.
    if (result.wait_for(std::chrono::seconds(10)) != std::future_status::ready) {
      return Error{"no answer from the control thread"};
    }
    return result.get();
  };
  return admin::Server::start(*config.admin, std::move(handlers));
}

int run(const GatewayConfig& config, const std::string& config_file,
        const std::vector<std::string>& args) {
  raise_descriptor_limit();
  crypto::initialise();
  Notifier notifier = Notifier::from_environment();
  asio::io_context control{1};
  asio::signal_set signals(control, SIGTERM, SIGINT, SIGHUP);
  Gateway gateway(control, config, config_file, args, notifier);
  if (auto opened = gateway.open(); !opened) return bridge::fail(kProgram, opened.error());
  // Ports are bound. Nothing else here needs a capability.
  if (auto dropped = keep_only({}); !dropped) return bridge::fail(kProgram, dropped.error());
  bool stopping = false;
  std::function<void(const asio::error_code&, int)> on_signal = [&](const asio::error_code& error,
                                                                    int number) {
    if (error) return;
    if (number == SIGHUP) {
      (void)gateway.reload();
    } else if (!std::exchange(stopping, true)) {
      log::info("draining on signal {}", number);
      notifier.stopping();
      gateway.drain();
    } else {
      log::info("stopping on signal {}", number);
      gateway.stop();
    }
    signals.async_wait(on_signal);
  };
  gateway.start();
  signals.async_wait(on_signal);
  auto admin = serve_admin(config, control, gateway);
  if (!admin) return bridge::fail(kProgram, admin.error());
  log::info("serving");
  log::debug("{}", crypto::description());
  notifier.ready();
  control.run();
  return 0;
}

}  // namespace
}  // namespace causeway::gateway

int main(int argc, char** argv) {
  using namespace causeway;
  try {
    gateway::GatewayConfig config;
    OptionTable table("causeway-gateway",
                      "Takes TLS connections, ends TLS or leaves it as it is, and relays each to "
                      "the upstream that "
                      "its name asks for.",
                      bridge::version_text("causeway-gateway"));
    gateway::add_gateway_options(table, config);
    table.remark_with([&config](std::string_view text, const std::string& file) {
      return gateway::inert_settings_of(config, gateway::worker_count(config), text, file);
    });
    table.check_files_with([&config]() -> Result<void> {
      gateway::crypto::initialise();
      auto loaded = gateway::load_tls(config);
      if (!loaded) return loaded.error();
      if (config.tls.ticket_keys.empty()) return {};
      return gateway::tls::TicketKeys().load_file(config.tls.ticket_keys);
    });
    const auto outcome = table.parse(argc, argv);
    if (outcome.exit_code) return *outcome.exit_code;
    log::init("causeway-gateway", config.log_level);
    std::signal(SIGPIPE, SIG_IGN);
    return gateway::run(config, outcome.config_file, {argv + 1, argv + argc});
  } catch (const std::exception& error) {
    return bridge::fail("causeway-gateway", Error{error.what()});
  }
}
