// SPDX-License-Identifier: Apache-2.0
// Theory of operation: active health checks. Every `interval`, give or take a tenth, a connection
// to the upstream is made and closed again. An upstream with several addresses is up when one of
// them takes it. After `fall` failures in a row it is down, after `rise` successes up again; both
// are logged. One that nobody checks (any more) is up.
//
// At most kMaxAtOnce connections are being made at a time; the others wait in line. All of it runs
// on the control thread.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "common/net/asio.hpp"
#include "guest/gateway/upstream/upstream.hpp"

namespace causeway::gateway {

class HealthChecker {
 public:
  static constexpr std::size_t kMaxAtOnce = 16;

  struct Check {
    std::shared_ptr<Upstream> upstream;
    HealthCheck settings;
    std::vector<Target> targets;  // empty (not resolved): not checked, its state stays
  };

  // `context` outlives the checker.
  explicit HealthChecker(asio::io_context& context);
  ~HealthChecker();
  HealthChecker(const HealthChecker&) = delete;
  HealthChecker& operator=(const HealthChecker&) = delete;

  // What is checked from now on, each upstream once. One that was checked before with the same
  // settings goes on where it was, whatever its targets are now; a new one is checked at once.
  void update(std::vector<Check> checks);

  // Connections being made at the moment.
  [[nodiscard]] std::size_t running() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace causeway::gateway
