// SPDX-License-Identifier: Apache-2.0
// In the place of server.cpp where cpp-httplib cannot be linked (CAUSEWAY_STATIC): the programs
// work, and say what they lack when it is asked for.
#include "common/admin/server.hpp"

#include <cerrno>

namespace causeway::admin {

struct Server::Impl {};

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

Result<std::unique_ptr<Server>> Server::start(
    const Address& address,
    Handlers /*handlers*/) {  // NOLINT(performance-unnecessary-value-param): server.cpp keeps them
  return Error{to_string(address) + ": this static build has no admin endpoint: leave --admin out",
               ENOSYS};
}

Result<std::unique_ptr<Server>> Server::start_inherited(
    UniqueFd /*listener*/,
    Handlers /*handlers*/) {  // NOLINT(performance-unnecessary-value-param): as above
  return Error{"this static build has no admin endpoint", ENOSYS};
}

}  // namespace causeway::admin
