// SPDX-License-Identifier: Apache-2.0
// The admin endpoint: HTTP/1.1 over a unix socket, on threads of its own (cpp-httplib). It only
// reads; handlers return what the control thread published and what the lanes count.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/net/address.hpp"
#include "common/result.hpp"

namespace causeway::admin {

struct Handlers {
  std::function<std::string()> status;  // GET /status: a JSON document
  std::function<bool()> healthy;        // GET /healthz: 200 "ok" or 503 "not ready"
};

class Server {
 public:
  // Listens on unix:PATH, mode 0660, and serves until destroyed. A stale socket is taken over.
  static Result<std::unique_ptr<Server>> start(const Address& address, Handlers handlers);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace causeway::admin
