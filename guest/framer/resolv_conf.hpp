// SPDX-License-Identifier: Apache-2.0
// The file that names the resolvers (resolv.conf(5)): ours as a whole once we write it.
#pragma once

#include <span>
#include <string>

#include "common/net/address.hpp"
#include "common/result.hpp"

namespace causeway::guest {

// The content: a comment that names us, then a `nameserver` line for each resolver.
std::string resolv_conf_text(std::span<const IpAddress> resolvers);

// Writes that content to `path`, or to the end of the symbolic links that `path` is. Readers see
// the old file or the new one, mode 0644; where the directory does not let the file be replaced (it
// is a mount of its own, or the directory is read-only) the content is written into the file that
// is there. True when something was written, false when the content was there already.
Result<bool> write_resolv_conf(const std::string& path, std::span<const IpAddress> resolvers);

}  // namespace causeway::guest
