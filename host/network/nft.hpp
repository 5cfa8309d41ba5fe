// SPDX-License-Identifier: Apache-2.0
// Runs `nft -f -`: one script, one transaction of the kernel. The program is called rather than
// libnftables, so that the helper starts, and works without rules, on a machine that has neither.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "common/result.hpp"

namespace causeway::host {

struct NftOptions {
  // Where the program is looked for: never in $PATH.
  std::vector<std::string> directories{"/usr/sbin", "/sbin", "/usr/bin"};
  std::chrono::milliseconds limit{10'000};  // then it is killed
};

// ENOENT is the code of the error that says that there is no nft on this machine; what nft itself
// complains about has code 0. In both cases the rules are as before. After a timeout (ETIMEDOUT)
// they are either as before or as in the script.
Result<void> run_nft(const std::string& script, const NftOptions& options = {});

}  // namespace causeway::host
