// SPDX-License-Identifier: Apache-2.0
// The listening TCP sockets of a published port or range.
#pragma once

#include <vector>

#include "common/os/unique_fd.hpp"
#include "common/result.hpp"
#include "host/network/publish_spec.hpp"

namespace causeway::host {

// One per port from `first` to `last`, in order, listening and non-blocking; all of them or an
// error that names the address that failed. Called by the broker: ports below 1024 need
// CAP_NET_BIND_SERVICE. An IPv6 address takes IPv6 only, so that [::] and 0.0.0.0 can be published
// side by side.
Result<std::vector<UniqueFd>> open_publish_listeners(const Publish& publish);

}  // namespace causeway::host
