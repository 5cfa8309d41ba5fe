// SPDX-License-Identifier: Apache-2.0
#include "guest/framer/framer.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/admin/bridge_status.hpp"
#include "common/admin/server.hpp"
#include "common/net/asio.hpp"
#include "guest/framer/offer.hpp"
#include "guest/framer/supervise.hpp"

namespace causeway::guest {

namespace {

constexpr const char* kProgram = "causeway-guest";

Codec<AddressChoice> address_choice_codec() {
  const auto cidr = cidr_codec();
  Codec<AddressChoice> codec;
  codec.type = "address";
  codec.value_name = "CIDR|auto";
  codec.parse = [cidr](std::string_view text) -> Result<AddressChoice> {
    if (text == "auto") {
      return AddressChoice{};
    }
    auto fixed = cidr.parse(text);
    if (!fixed) {
      return Error{fixed.error().message + ", or auto", EINVAL};
    }
    return AddressChoice{*fixed};
  };
  codec.format = [](const AddressChoice& choice) {
    return choice.fixed ? to_string(*choice.fixed) : std::string("auto");
  };
  return codec;
}

// What can never be connected to is an error at once, not an attempt for ever.
Result<void> check_connect(const Address& address) {
  const auto* vsock = std::get_if<VsockAddress>(&address.value);
  if (std::holds_alternative<FdAddress>(address.value) ||
      (vsock != nullptr && vsock->cid == kVsockCidAny)) {
    return Error{to_string(address) + ": cannot be connected to", EINVAL};
  }
  const auto* tcp = std::get_if<TcpAddress>(&address.value);
  if (tcp != nullptr && !parse_ip(tcp->host)) {
    return Error{to_string(address) + ": host names are not resolved: give an IP address", EINVAL};
  }
  return {};
}

OfferPolicy policy_of(const FramerConfig& config) {
  OfferPolicy policy;
  for (const auto& choice : config.addresses) {
    if (choice.fixed) {
      policy.addresses.push_back(*choice.fixed);
    } else {
      policy.automatic_address = true;
    }
  }
  policy.accept_within = config.accept_within;
  policy.gateway = config.gateway;
  policy.automatic_gateway = policy.automatic_address;
  policy.mtu = policy.automatic_address ? config.link.mtu
                                        : std::optional<std::uint32_t>(config.link.frame_mtu());
  policy.max_mtu = config.link.max_frame - proto::kMinFrame;
  policy.resolvers = config.resolvers;
  policy.resolv_conf = config.resolv_conf;
  return policy;
}

// The parts of a running framer. One thread uses it, but for status().
class Framer {
 public:
  Framer(const FramerConfig& config, bridge::Tap tap, OfferApplier applier, net::Netlink netlink)
      : config_(config),
        tap_(std::move(tap)),
        session_(control_, tap_, bridge::session_options(config.link)),
        applier_(std::move(applier)),
        netlink_(std::move(netlink)),
        signals_(control_) {
    const auto is_auto = [](const AddressChoice& choice) { return !choice.fixed; };
    waits_for_offer_ = std::any_of(config.addresses.begin(), config.addresses.end(), is_auto);
    session_.on_offer([this](const proto::Offer& offer) { take_offer(offer); });
    session_.on_failure([this] { fail(); });
    session_.on_up([this] { on_up(); });
    if (!config.exec.empty()) {
      supervisor_.emplace(control_, config.exec, [this](int code) {
        log::info("the application has ended, exit code {}", code);
        end(code);
      });
      supervisor_->take_signals();
    } else {
      signals_.add(SIGTERM);
      signals_.add(SIGINT);
      signals_.async_wait([this](const asio::error_code& error, int number) {
        if (!error) {
          log::info("stopping on signal {}", number);
          end(0);
        }
      });
    }
  }

  int run() {
    log::info("TAP '{}' is up, MTU {}", tap_.name(), tap_.mtu());
    log::info("connecting to {}", to_string(*config_.connect));
    session_.connect(*config_.connect);
    control_.run();
    session_.stop();
    return exit_code_;
  }

  std::string status() {
    const std::lock_guard lock(status_mutex_);  // two admin threads, one netlink socket
    auto json = admin::describe_program(kProgram, started_);
    admin::describe_bridge(json, tap_, session_, netlink_);
    return json.dump(2) + "\n";
  }
  [[nodiscard]] bool healthy() const { return session_.status().state == "up"; }

  // Pins that need no offer: resolvers, and a gateway beside fixed addresses.
  void apply_pins() { apply(proto::Offer{}); }

 private:
  // The changes, logged. Nothing when the link could not be looked at.
  std::optional<Applied> apply(const proto::Offer& offer) {
    auto applied = applier_.apply(offer);
    if (!applied) {
      log::error("offer not applied: {}", applied.error().message);
      return std::nullopt;
    }
    // A host that offers something else again and again does not fill the log.
    if (offer_log_.take()) {
      for (const auto& text : applied->changes) {
        log::info("network: {}", text);
      }
      for (const auto& text : applied->refused) {
        log::warn("offer refused: {}", text);
      }
      for (const auto& text : applied->failed) {
        log::error("offer not applied: {}", text);
      }
    }
    if (applied->mtu_changed) {
      tap_.note_mtu(applied->mtu);
    }
    return std::move(*applied);
  }

  void take_offer(const proto::Offer& offer) {
    const auto applied = apply(offer);
    if (!applied || !applied->failed.empty()) {
      session_.forget_offer();  // tried again with the next connection
    }
    if (applied && applied->mtu_changed) {
      session_.renew();  // both sides agree on the new MTU
    }
    if (applied && applied->addressed && std::exchange(waits_for_offer_, false)) {
      start_application();
    }
  }

  void on_up() {
    if (!waits_for_offer_) {
      start_application();
    } else if (!session_.has_offer() && !std::exchange(warned_, true)) {
      log::warn("--address auto: the helper offers no address; waiting for one");
    }
  }

  void start_application() {
    if (!supervisor_ || std::exchange(application_started_, true)) {
      return;
    }
    if (auto started = supervisor_->start(); !started) {
      bridge::fail(kProgram, started.error());
      end(Supervisor::start_exit_code(started.error()));
    }
  }

  // Without its network the application is ended too, and waited for.
  void fail() {
    if (supervisor_ && supervisor_->running()) {
      failed_ = true;
      supervisor_->terminate();
    } else {
      end(bridge::kExitFailure);
    }
  }

  void end(int code) {
    exit_code_ = failed_ ? bridge::kExitFailure : code;
    session_.stop();
    control_.stop();
  }

  const FramerConfig& config_;
  asio::io_context control_{1};
  bridge::Tap tap_;
  bridge::Session session_;
  OfferApplier applier_;
  net::Netlink netlink_;
  asio::signal_set signals_;
  std::optional<Supervisor> supervisor_;
  std::mutex status_mutex_;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  LogBudget offer_log_;
  bool waits_for_offer_ = false;
  bool application_started_ = false;
  bool warned_ = false;
  bool failed_ = false;
  int exit_code_ = 0;
};

}  // namespace

void add_framer_options(OptionTable& table, FramerConfig& config) {
  table.add("connect", config.connect,
            {.doc = "Where the helper listens: vsock:CID:PORT, unix:/PATH, tcp:IP:PORT or "
                    "hvsock:/PATH:PORT.",
             .required = true});
  table.add_with("address", config.addresses, address_choice_codec(),
                 {.doc = "An address of the TAP with its prefix, as 10.0.0.1/24 or fd00::1/64; "
                         "auto takes what the helper offers."});
  bridge::add_link_options(table, config.link);
  table.add("gateway", config.gateway,
            {.doc = "The default route's next hop, through the TAP; pins an offered one."});
  table.add("accept_address_within", config.accept_within,
            {.doc = "With --address auto: refuse an address outside of these networks."});
  table.add(
      "resolvers", config.resolvers,
      {.doc = "A DNS resolver for --resolv-conf, instead of offered ones.", .flag = "--resolver"});
  table.add("resolv_conf", config.resolv_conf,
            {.value = "PATH", .doc = "Where resolvers are written, as /etc/resolv.conf."});
  table.add_command("exec", config.exec,
                    {.doc = "Run this once the network is there; the framer ends with it and "
                            "passes its exit code on."});
  bridge::add_program_options(table, config.program);
  table.add_check("tap", [&config]() -> Result<void> {
    return config.link.tap ? Result<void>{} : Result<void>{Error{"--tap is required", EINVAL}};
  });
}

int run_framer(const FramerConfig& config) {
  if (auto good = check_connect(*config.connect); !good) {
    return bridge::fail(kProgram, good.error());
  }
  auto netlink = net::Netlink::open();
  auto for_offers = net::Netlink::open();
  if (!netlink || !for_offers) {
    return bridge::fail(kProgram, (netlink ? for_offers : netlink).error());
  }
  const OfferPolicy policy = policy_of(config);
  auto options = bridge::tap_options(config.link, "guest");
  options.addresses = policy.addresses;
  auto tap = bridge::Tap::open(options, *netlink);
  if (!tap) {
    return bridge::fail(kProgram, tap.error());
  }
  if (config.gateway && !policy.automatic_address) {
    if (auto routed = netlink->set_default_route(options.name, *config.gateway); !routed) {
      return bridge::fail(kProgram, routed.error());
    }
  }
  Framer framer(config, std::move(*tap), OfferApplier(options.name, policy, std::move(*for_offers)),
                std::move(*netlink));
  if (policy.resolv_conf && !policy.resolvers.empty()) {
    framer.apply_pins();
  }
  std::unique_ptr<admin::Server> admin_server;
  if (config.program.admin) {
    admin::Handlers handlers;
    handlers.status = [&framer] { return framer.status(); };
    handlers.healthy = [&framer] { return framer.healthy(); };
    auto started = admin::Server::start(*config.program.admin, std::move(handlers));
    if (!started) {
      return bridge::fail(kProgram, started.error());
    }
    admin_server = std::move(*started);
  }
  return framer.run();
}

}  // namespace causeway::guest
