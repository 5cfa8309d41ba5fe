// SPDX-License-Identifier: Apache-2.0
#include "host/network/network.hpp"

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

namespace causeway::host {

Network::Network(std::string instance, std::filesystem::path state_directory, NftOptions nft,
                 std::filesystem::path proc)
    : table_(table_name(instance)),
      nft_(std::move(nft)),
      forwarding_(std::move(instance), std::move(state_directory), std::move(proc)) {}

Result<void> Network::apply(RuleSet set, const ForwardingNeeds& needs) {
  set.table = table_;
  if (const auto checked = check_rules(set); !checked) return checked.error();
  if (const auto locked = forwarding_.lock(); !locked) return locked.error();

  // A TAP that is no longer ours loses route_localnet before it loses its rules.
  const auto before = forwarding_.held();
  if (!before) return before.error();
  ForwardingNeeds kept = *before;
  std::erase_if(kept.route_localnet, [&](const std::string& tap) {
    return std::find(needs.route_localnet.begin(), needs.route_localnet.end(), tap) ==
           needs.route_localnet.end();
  });
  if (const auto done = forwarding_.apply(kept); !done) return done.error();

  std::string script = render_rules(set);
  auto done = run_nft(script, nft_);
  if (done) {
    done = forwarding_.apply(needs);
    if (done) {
      loaded_ = std::move(script);
      return {};
    }
    // The rules before, or none. If that fails too, the rules that stay are stricter than none.
    const auto undone = run_nft(loaded_ ? *loaded_ : render_removal(table_), nft_);
    if (!undone) return Error{done.error().message + "; and then " + undone.error().message};
  }
  if (const auto undone = forwarding_.apply(*before); !undone) {
    return Error{done.error().message + "; and then " + undone.error().message};
  }
  return done;
}

Result<void> Network::remove() {
  if (const auto locked = forwarding_.lock(); !locked) return locked.error();
  const bool applied = loaded_.has_value() || forwarding_.has_state();
  auto restored = forwarding_.apply({});
  auto removed = run_nft(render_removal(table_), nft_);
  // Without the program there cannot be a table, unless we made one.
  if (!removed && removed.error().code == ENOENT && !applied) removed = {};
  if (removed) loaded_.reset();
  return restored ? removed : restored;
}

}  // namespace causeway::host
