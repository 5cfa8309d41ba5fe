// SPDX-License-Identifier: Apache-2.0
#include "common/admin/server.hpp"

#include <httplib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>
#include <utility>

#include "common/net/stream.hpp"

namespace causeway::admin {

namespace {
// Two requests at a time: one slow reader does not keep the operator out.
constexpr std::size_t kThreads = 2;
// A client that says nothing holds up a stop of the program no longer than this.
constexpr auto kTimeout = std::chrono::milliseconds{500};
constexpr std::size_t kMaxPayload = 4096;
}  // namespace

struct Server::Impl {
  httplib::Server http;
  std::string path;
  std::thread thread;
  std::atomic<bool> ended{false};
};

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<Server>> Server::start(const Address& address, Handlers handlers) {
  const auto* local = std::get_if<UnixAddress>(&address.value);
  if (local == nullptr) {
    return Error{to_string(address) + ": the admin endpoint listens on unix:/PATH only", EINVAL};
  }
  if (auto cleared = net::clear_stale_socket(local->path); !cleared) {
    return cleared.error();
  }
  auto impl = std::make_unique<Impl>();
  impl->path = local->path;
  auto& http = impl->http;
  http.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };  // httplib owns it
  http.set_address_family(AF_UNIX);
  http.set_keep_alive_max_count(1);
  http.set_read_timeout(kTimeout);
  http.set_write_timeout(kTimeout);
  http.set_payload_max_length(kMaxPayload);
  http.Get("/status", [status = std::move(handlers.status)](const auto&, auto& response) {
    response.set_content(status(), "application/json");
  });
  http.Get("/healthz", [healthy = std::move(handlers.healthy)](const auto&, auto& response) {
    const bool good = healthy();
    response.status = good ? 200 : 503;
    response.set_content(good ? "ok\n" : "not ready\n", "text/plain");
  });
  // The socket is made with its final mode: nobody may connect in between.
  const mode_t before = ::umask(0117);
  const bool bound = http.bind_to_port(local->path, 1);  // the port means nothing here, but 0 does
  const int code = errno;
  ::umask(before);
  if (!bound) {
    return system_error(to_string(address), code);
  }
  // Signals belong to the control thread; httplib's threads inherit the mask of this moment.
  sigset_t all;
  sigset_t mask;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &mask);
  impl->thread = std::thread([server = impl.get()] {
    pthread_setname_np(pthread_self(), "admin");
    server->http.listen_after_bind();
    server->ended = true;
  });
  pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  while (!http.is_running() && !impl->ended) {  // stop() is lost on a server that does not run yet
    std::this_thread::yield();
  }
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

Server::~Server() {
  impl_->http.stop();
  impl_->thread.join();
  ::unlink(impl_->path.c_str());
}

}  // namespace causeway::admin
