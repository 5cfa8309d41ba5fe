// SPDX-License-Identifier: Apache-2.0
#include "guest/gateway/upstream/dns_channel.hpp"

#include <ares.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

namespace causeway::gateway {

namespace {

using std::chrono::milliseconds;

// One of c-ares' sockets. c-ares closes it; it is released here before.
struct Socket {
  explicit Socket(asio::io_context& context) : descriptor(context) {}
  asio::posix::stream_descriptor descriptor;
  bool want_read = false;
  bool want_write = false;
  bool reading = false;  // a wait is under way
  bool writing = false;
  bool open = true;
};

IpAddress to_ip(const void* bytes, bool v6) {
  IpAddress ip{.v6 = v6};
  std::memcpy(ip.bytes.data(), bytes, ip.size());
  return ip;
}

// Addresses of one family only, whatever else the server put into its answer.
void read_nodes(const ares_addrinfo& info, bool v6, DnsAnswer& answer) {
  int ttl = INT32_MAX;
  for (const auto* node = info.nodes; node != nullptr; node = node->ai_next) {
    if (node->ai_family != (v6 ? AF_INET6 : AF_INET)) continue;
    ttl = std::min(ttl, node->ai_ttl);
    // As the family says.
    if (v6) {
      const auto* in6 = reinterpret_cast<const sockaddr_in6*>(node->ai_addr);
      answer.addresses.push_back(to_ip(&in6->sin6_addr, true));
    } else {
      const auto* in4 = reinterpret_cast<const sockaddr_in*>(node->ai_addr);
      answer.addresses.push_back(to_ip(&in4->sin_addr, false));
    }
  }
  for (const auto* alias = info.cnames; alias != nullptr; alias = alias->next) {
    ttl = std::min(ttl, alias->ttl);
  }
  answer.ttl = std::chrono::seconds{std::max(ttl, 0)};
}

DnsAnswer to_answer(int status, const ares_addrinfo* info, bool v6) {
  using Outcome = DnsAnswer::Outcome;
  DnsAnswer answer;
  if (status == ARES_SUCCESS && info != nullptr) {
    read_nodes(*info, v6, answer);
    answer.outcome = answer.addresses.empty() ? Outcome::none : Outcome::answered;
    if (answer.addresses.empty()) answer.error = ares_strerror(ARES_ENODATA);
    return answer;
  }
  if (status == ARES_ENODATA || status == ARES_ENOTFOUND) answer.outcome = Outcome::none;
  answer.error = ares_strerror(status);
  return answer;
}

}  // namespace

struct DnsChannel::Impl : std::enable_shared_from_this<DnsChannel::Impl> {
  // A question under way; c-ares carries it to its callback, which owns it.
  struct Pending {
    Impl* impl;  // c-ares calls back before the channel is gone, and impl holds that
    bool v6;
    Handler handler;
  };

  explicit Impl(asio::io_context& given) : context(given), timer(given) {}

  static void on_socket(void* data, ares_socket_t fd, int readable, int writable) {
    auto& self = *static_cast<Impl*>(data);
    const auto found = self.sockets.find(fd);
    if (readable == 0 && writable == 0) {  // about to be closed
      if (found == self.sockets.end()) return;
      found->second->open = false;
      if (found->second->descriptor.is_open()) found->second->descriptor.release();
      self.sockets.erase(found);
      return;
    }
    auto socket = found != self.sockets.end() ? found->second : nullptr;
    if (!socket) {
      socket = std::make_shared<Socket>(self.context);
      asio::error_code failed;
      socket->descriptor.assign(fd, failed);
      if (failed) return;  // as if nothing ever came: the query times out
      self.sockets.emplace(fd, socket);
    }
    socket->want_read = readable != 0;
    socket->want_write = writable != 0;
  }

  static void on_result(void* data, int status, int /*timeouts*/, ares_addrinfo* info) {
    const std::unique_ptr<Pending> pending(static_cast<Pending*>(data));
    const std::unique_ptr<ares_addrinfo, decltype(&ares_freeaddrinfo)> owned(info,
                                                                             ares_freeaddrinfo);
    Impl& self = *pending->impl;
    if (self.closing) return;
    // Not called from here: a handler may destroy the channel, which c-ares does not allow now.
    asio::post(self.context, [weak = self.weak_from_this(), handler = std::move(pending->handler),
                              answer = to_answer(status, info, pending->v6)]() mutable {
      if (const auto alive = weak.lock(); alive && !alive->closing) handler(std::move(answer));
    });
  }

  void process(ares_socket_t readable, ares_socket_t writable) {
    ares_process_fd(channel, readable, writable);
    wait();
  }

  // After every call that may have changed what c-ares waits for.
  void wait() {
    for (const auto& [fd, socket] : sockets) {
      if (socket->want_read && !socket->reading) wait_for(fd, socket, false);
      if (socket->want_write && !socket->writing) wait_for(fd, socket, true);
    }
    timeval storage{};
    const timeval* next = ares_timeout(channel, nullptr, &storage);
    if (next == nullptr) {
      timer.cancel();
      return;
    }
    // One more: a timer that fires before c-ares' own clock agrees would spin.
    timer.expires_after(std::chrono::seconds{next->tv_sec} +
                        milliseconds{next->tv_usec / 1000 + 1});
    timer.async_wait([weak = weak_from_this()](const asio::error_code& stopped) {
      const auto self = weak.lock();
      if (stopped || !self || self->closing) return;
      self->process(ARES_SOCKET_BAD, ARES_SOCKET_BAD);
    });
  }

  void wait_for(ares_socket_t fd, const std::shared_ptr<Socket>& socket, bool write) {
    using Descriptor = asio::posix::stream_descriptor;
    (write ? socket->writing : socket->reading) = true;
    socket->descriptor.async_wait(
        write ? Descriptor::wait_write : Descriptor::wait_read,
        [weak = weak_from_this(), socket, fd, write](const asio::error_code& failed) {
          (write ? socket->writing : socket->reading) = false;
          const auto self = weak.lock();
          // A closed socket's number may be another's by now.
          if (failed || !socket->open || !self || self->closing) return;
          self->process(write ? ARES_SOCKET_BAD : fd, write ? fd : ARES_SOCKET_BAD);
        });
  }

  asio::io_context& context;
  asio::steady_timer timer;
  std::map<ares_socket_t, std::shared_ptr<Socket>> sockets;
  ares_channel channel = nullptr;
  bool closing = false;
};

DnsChannel::DnsChannel(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

DnsChannel::~DnsChannel() {
  impl_->closing = true;
  impl_->timer.cancel();
  if (impl_->channel != nullptr) ares_destroy(impl_->channel);  // calls back for what is pending
  ares_library_cleanup();
}

Result<std::unique_ptr<DnsChannel>> DnsChannel::open(asio::io_context& context,
                                                     const DnsOptions& options) {
  if (const int status = ares_library_init(ARES_LIB_INIT_ALL); status != ARES_SUCCESS) {
    return Error{std::string("c-ares: ") + ares_strerror(status)};
  }
  std::unique_ptr<DnsChannel> made(new DnsChannel(std::make_shared<Impl>(context)));
  std::string lookups = "b";  // DNS alone
  // With servers of our own the system's file has no say.
  std::string path = options.servers.empty() ? options.resolv_conf : "/dev/null";
  ares_options settings{};
  // No search domains then either; and no $HOSTALIASES in any case.
  settings.flags = ARES_FLAG_NOALIASES | (options.servers.empty() ? 0 : ARES_FLAG_NOSEARCH);
  settings.timeout = static_cast<int>(options.timeout.count());
  settings.tries = options.tries;
  settings.udp_port = options.port;
  settings.tcp_port = options.port;
  settings.lookups = lookups.data();
  settings.sock_state_cb = Impl::on_socket;
  settings.sock_state_cb_data = made->impl_.get();
  settings.resolvconf_path = path.data();
  const int mask = ARES_OPT_FLAGS | ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES | ARES_OPT_LOOKUPS |
                   ARES_OPT_SOCK_STATE_CB | ARES_OPT_RESOLVCONF | ARES_OPT_UDP_PORT |
                   ARES_OPT_TCP_PORT;
  int status = ares_init_options(&made->impl_->channel, &settings, mask);
  if (status != ARES_SUCCESS) {
    made->impl_->channel = nullptr;
    return Error{path + ": " + ares_strerror(status)};
  }
  if (!options.servers.empty()) {
    status = ares_set_servers_ports_csv(made->impl_->channel, options.servers.c_str());
    if (status != ARES_SUCCESS) {
      return Error{"DNS servers " + options.servers + ": " + ares_strerror(status)};
    }
  }
  return made;
}

void DnsChannel::query(const std::string& name, bool v6, Handler handler) {
  auto pending =
      std::make_unique<Impl::Pending>(Impl::Pending{impl_.get(), v6, std::move(handler)});
  ares_addrinfo_hints hints{};
  hints.ai_family = v6 ? AF_INET6 : AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = ARES_AI_NOSORT;  // sorting would open a socket to each address
  ares_getaddrinfo(impl_->channel, name.c_str(), nullptr, &hints, Impl::on_result,
                   pending.release());
  impl_->wait();
}

std::vector<IpAddress> DnsChannel::from_hosts(const std::string& name) {
  std::string without_dot = name;
  if (without_dot.ends_with('.')) without_dot.pop_back();
  std::vector<IpAddress> found;
  for (const int family : {AF_INET, AF_INET6}) {
    hostent* host = nullptr;
    if (ares_gethostbyname_file(impl_->channel, without_dot.c_str(), family, &host) !=
        ARES_SUCCESS) {
      continue;
    }
    const std::unique_ptr<hostent, decltype(&ares_free_hostent)> owned(host, ares_free_hostent);
    if (host->h_addrtype != family) continue;
    for (char** at = host->h_addr_list; *at != nullptr; ++at) {
      found.push_back(to_ip(*at, family == AF_INET6));
    }
  }
  return found;
}

}  // namespace causeway::gateway
