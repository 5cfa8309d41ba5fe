// SPDX-License-Identifier: Apache-2.0
// The admin endpoint: HTTP/1.1 over a unix socket, on threads of its own. It reads, and asks for a
// reload; handlers return what the control thread published and what the lanes count.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/net/address.hpp"
#include "common/os/unique_fd.hpp"
#include "common/result.hpp"

namespace causeway::admin {

// Called on the admin threads, two at a time at most.
struct Handlers {
  std::function<std::string()> status;  // GET /status: a JSON document
  std::function<bool()> healthy;        // GET /healthz: 200 "ok" or 503 "not ready"
  // POST /reload: 200 with the text, or 409 with the error's line. Without it: 404. One at a time.
  std::function<Result<std::string>()> reload = {};
};

class Server {
 public:
  // Listens on unix:PATH, mode 0660, and serves until destroyed. A stale socket is taken over.
  static Result<std::unique_ptr<Server>> start(const Address& address, Handlers handlers);
  // The same on a listening unix stream socket that someone else made and keeps (socket
  // activation): it stays usable, and its path in place, when this server ends.
  static Result<std::unique_ptr<Server>> start_inherited(UniqueFd listener, Handlers handlers);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace causeway::admin
