// SPDX-License-Identifier: Apache-2.0
// Theory of operation: kernel switches that belong to the whole machine, borrowed and given back.
//
// Forwarding is one switch per address family for everybody. The instance that first needs it
// writes down what it found, then sets it; the last one that needs it puts the old value back, and
// only if we had set it and nobody has changed it since. What was found is kept in the state
// directory, one file per instance, written (to a new file, then renamed) before the kernel is
// touched, so that a crash at any point loses nothing: the next start of the instance, or another
// instance that ends later, reads it.
//
// A group is what is set and restored together:
//   ipv4      net.ipv4.ip_forward. Writing it makes the kernel overwrite the forwarding switch of
//             every interface and conf.all.accept_redirects; those are put back too
//   ipv6      net.ipv6.conf.all.forwarding, with the interfaces' switches as above. A router
//             ignores router advertisements unless accept_ra is 2, and drops the default routes
//             that it learned from them; so interfaces with accept_ra 1 (our TAPs and lo excepted)
//             get 2 before, and 1 again after. Interfaces that come later are not looked after
//   localnet  net.ipv4.conf.TAP.route_localnet, for each TAP that needs it
//
// INSTANCE.lock is locked for as long as the instance lives (state_lock.hpp): it keeps a second one
// with the name out, and tells whether an INSTANCE.state still counts. A state file of another boot
// or another network namespace is ignored.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/result.hpp"
#include "host/network/state_lock.hpp"

namespace causeway::host {

struct ForwardingNeeds {
  bool v4 = false;
  bool v6 = false;
  std::vector<std::string> route_localnet;  // TAPs
  std::vector<std::string> taps;            // all of ours: their accept_ra is left alone
};

class Forwarding {
 public:
  // `proc` is where procfs is mounted.
  Forwarding(std::string instance, std::filesystem::path directory,
             std::filesystem::path proc = "/proc");

  // Makes this the one living process of the instance, until destruction. One that is about to end
  // is waited for. Creates the directory.
  Result<void> lock(std::chrono::milliseconds patience = std::chrono::seconds{5});

  // Sets what is needed and not set, gives back what is no longer needed. After an error all is as
  // before. Locks if lock() was not called.
  Result<void> apply(const ForwardingNeeds& needs);

  // What is ours now by the state file, that is what apply() would have to be called with to change
  // nothing. `taps` is empty.
  Result<ForwardingNeeds> held();

  [[nodiscard]] bool has_state() const;

 private:
  struct Step {
    std::string key;    // "net/ipv4/ip_forward", below proc/sys
    std::string found;  // before us
    std::string ours;   // what we set; empty: the kernel changes it along with another
  };
  using Group = std::vector<Step>;              // in the order of setting
  using Groups = std::map<std::string, Group>;  // "ipv4", "ipv6", "localnet:TAP"

  Result<Group> look_up(const std::string& name, const std::vector<std::string>& taps) const;
  Result<Group> look_up_ipv4() const;
  Result<Group> look_up_ipv6(const std::vector<std::string>& taps) const;
  Result<void> set(const Group& group) const;
  Result<void> restore(const Group& group) const;
  struct Other {
    std::string instance;
    bool alive = false;
    Groups groups;
  };
  Result<void> set_all(const Groups& groups, const Groups& before) const;
  Result<void> give_back(const std::string& name, const Group& group,
                         std::vector<Other>& others) const;
  [[nodiscard]] std::vector<std::string> interfaces(const std::string& family) const;

  [[nodiscard]] std::string identity() const;  // of this boot and network namespace
  [[nodiscard]] std::filesystem::path state_path(const std::string& instance) const;
  Result<Groups> read_state(const std::string& instance) const;
  Result<void> write_state(const std::string& instance, const Groups& groups) const;
  Result<std::vector<Other>> others() const;

  Result<std::string> read(const std::string& key) const;
  Result<void> write(const std::string& key, const std::string& value) const;

  std::string instance_;
  std::filesystem::path directory_;
  std::filesystem::path proc_;
  std::optional<StateLock> lock_;
};

}  // namespace causeway::host
