// SPDX-License-Identifier: Apache-2.0
// What one instance of the helper changes in the host's network beside its TAPs: its nftables table
// and the kernel's forwarding switches. Belongs to the privileged process; make it after the last
// fork(), because the instance's lock goes with the process (state_lock.hpp).
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "common/result.hpp"
#include "host/network/forwarding.hpp"
#include "host/network/nft.hpp"
#include "host/network/rules.hpp"

namespace causeway::host {

class Network {
 public:
  Network(std::string instance, std::filesystem::path state_directory, NftOptions nft = {},
          std::filesystem::path proc = "/proc");

  // Makes this the one living helper of the instance until destruction; one that is about to end is
  // waited for. apply() and remove() do it otherwise.
  Result<void> lock(std::chrono::milliseconds patience) { return forwarding_.lock(patience); }

  // Replaces what is there, also what a process that crashed has left. `set.table` is ignored: the
  // table is the instance's. After an error rules and switches are as before. Waits up to 5 s for
  // another process of this instance to end.
  Result<void> apply(RuleSet set, const ForwardingNeeds& needs);
  Result<void> apply(const RuleSet& set) { return apply(set, forwarding_needs(set)); }

  // Takes everything away again. Repeating it, and calling it where nothing was applied, is no
  // error; also what a process that crashed has left goes. The switches go first, as
  // route_localnet must not outlive the rules that make it harmless.
  Result<void> remove();

 private:
  std::string table_;
  NftOptions nft_;
  Forwarding forwarding_;
  std::optional<std::string> loaded_;  // the script in force, once this object has loaded one
};

}  // namespace causeway::host
