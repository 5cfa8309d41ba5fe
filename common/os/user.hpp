// SPDX-License-Identifier: Apache-2.0
// The users of this machine, by name. Apart from privileges.hpp because the name service loads
// shared libraries: a static program must not link this.
#pragma once

#include <optional>
#include <string>

#include "common/os/privileges.hpp"
#include "common/result.hpp"

namespace causeway {

// The user `name` with its groups; without a name "causeway", and "nobody" where that is absent.
Result<Identity> find_user(const std::optional<std::string>& name);

// drop_privileges() to that user; it is only looked up when running as root.
Result<void> drop_privileges_to(const std::optional<std::string>& user);

}  // namespace causeway
