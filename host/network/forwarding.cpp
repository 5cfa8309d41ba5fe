// SPDX-License-Identifier: Apache-2.0
#include "host/network/forwarding.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <sstream>
#include <string_view>
#include <utility>

#include "common/os/unique_fd.hpp"

namespace causeway::host {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIpv4 = "ipv4";
constexpr std::string_view kIpv6 = "ipv6";
constexpr std::string_view kLocalnet = "localnet:";
constexpr std::string_view kStateSuffix = ".state";
constexpr std::string_view kNoValue = "-";

// What this file ever sets. The state may be written by a process of the same user that a guest has
// taken over, so that nothing else is taken from it.
bool is_ours_to_set(std::string_view key) {
  constexpr std::array<std::string_view, 4> kSwitches = {"forwarding", "accept_redirects",
                                                         "accept_ra", "route_localnet"};
  if (key == "net/ipv4/ip_forward") return true;
  if (!key.starts_with("net/ipv4/conf/") && !key.starts_with("net/ipv6/conf/")) return false;
  const std::string_view rest = key.substr(std::string_view("net/ipv4/conf/").size());
  const auto slash = rest.find('/');
  if (slash == std::string_view::npos || slash == 0 || rest.substr(0, slash).starts_with('.')) {
    return false;
  }
  return std::find(kSwitches.begin(), kSwitches.end(), rest.substr(slash + 1)) != kSwitches.end();
}

bool is_switch_value(std::string_view text) {
  return text == "0" || text == "1" || text == "2" || text == kNoValue;
}
constexpr std::size_t kMaxState = 1 << 20;  // bytes of a state file
// Other instances hold the lock on the switches for a few file accesses only.
constexpr std::chrono::milliseconds kShort{5000};

std::string dotted(std::string key) {
  std::replace(key.begin(), key.end(), '/', '.');
  return key;
}

Result<std::string> read_file(const fs::path& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return system_error("cannot read " + path.string());
  std::string text;
  std::array<char, 4096> part{};
  while (text.size() <= kMaxState) {
    const ssize_t size = ::read(fd.get(), part.data(), part.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return system_error("cannot read " + path.string());
    if (size == 0) return text;
    text.append(part.data(), static_cast<std::size_t>(size));
  }
  return Error{path.string() + " is too large", EFBIG};
}

// One write(), as a sysctl wants it. `flags` beside O_WRONLY.
Result<void> write_file(const fs::path& path, const std::string& text, int flags) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC | flags, 0644));
  if (!fd.valid()) return system_error("cannot write " + path.string());
  const ssize_t size = ::write(fd.get(), text.data(), text.size());
  if (size < 0) return system_error("cannot write " + path.string());
  if (static_cast<std::size_t>(size) != text.size()) {
    return Error{"cannot write " + path.string() + " whole", EIO};
  }
  return {};
}

}  // namespace

Forwarding::Forwarding(std::string instance, fs::path directory, fs::path proc)
    : instance_(std::move(instance)), directory_(std::move(directory)), proc_(std::move(proc)) {}

Result<void> Forwarding::lock(std::chrono::milliseconds patience) {
  if (lock_) return {};
  if (instance_.empty() || instance_.find('/') != std::string::npos) {
    return Error{"the instance's name cannot be a file's name"};
  }
  std::error_code failed;
  fs::create_directories(directory_, failed);
  if (failed) return Error{"cannot make " + directory_.string() + ": " + failed.message()};
  auto taken = StateLock::take(directory_ / (instance_ + ".lock"), patience);
  if (!taken) return taken.error();
  lock_.emplace(*std::move(taken));
  return {};
}

Result<ForwardingNeeds> Forwarding::held() {
  if (const auto locked = lock(); !locked) return locked.error();
  const auto groups = read_state(instance_);
  if (!groups) return groups.error();
  ForwardingNeeds out;
  for (const auto& [group, steps] : *groups) {
    if (group == kIpv4) out.v4 = true;
    if (group == kIpv6) out.v6 = true;
    if (group.starts_with(kLocalnet)) out.route_localnet.push_back(group.substr(kLocalnet.size()));
  }
  return out;
}

bool Forwarding::has_state() const {
  std::error_code failed;
  return fs::exists(state_path(instance_), failed);
}

Result<void> Forwarding::apply(const ForwardingNeeds& needs) {
  if (const auto locked = lock(); !locked) return locked.error();
  const auto switches = StateLock::take(directory_ / "switches.lock", kShort);
  if (!switches) return switches.error();
  const auto before = read_state(instance_);
  if (!before) return before.error();
  auto around = others();
  if (!around) return around.error();

  std::vector<std::string> wanted;
  if (needs.v4) wanted.emplace_back(kIpv4);
  if (needs.v6) wanted.emplace_back(kIpv6);
  for (const std::string& tap : needs.route_localnet)
    wanted.push_back(std::string(kLocalnet) + tap);

  Groups after;
  for (const std::string& group : wanted) {
    if (const auto own = before->find(group); own != before->end()) {
      after.insert(*own);
      continue;
    }
    auto found = look_up(group, needs.taps);
    for (const Other& other : *around) {
      const auto theirs = other.groups.find(group);
      if (theirs != other.groups.end()) found = theirs->second;
    }
    if (!found) return found.error();
    if (!found->empty()) after.emplace(group, *found);
  }

  Groups all = after;  // until it is done, what was before has to be known as well
  all.insert(before->begin(), before->end());
  if (const auto done = write_state(instance_, all); !done) return done.error();
  if (const auto done = set_all(after, *before); !done) {
    for (const auto& [group, steps] : after) {
      if (!before->contains(group) && !give_back(group, steps, *around)) continue;
    }
    if (!write_state(instance_, *before)) return done.error();
    return done.error();
  }
  Result<void> result;
  for (const auto& [group, steps] : *before) {
    if (after.contains(group)) continue;
    if (const auto done = give_back(group, steps, *around); !done) result = done;
  }
  if (const auto done = write_state(instance_, after); !done) return done.error();
  return result;
}

Result<void> Forwarding::set_all(const Groups& groups, const Groups& before) const {
  for (const auto& [name, group] : groups) {
    auto done = set(group);
    // What was ours before need not be there any more: a TAP of a process that crashed.
    if (!done && !(before.contains(name) && done.error().code == ENOENT)) return done;
  }
  return {};
}

// Puts a group back unless another living instance needs it; those that crashed have no claim.
Result<void> Forwarding::give_back(const std::string& name, const Group& group,
                                   std::vector<Other>& others) const {
  const auto needed = std::find_if(others.begin(), others.end(), [&](const Other& other) {
    return other.alive && other.groups.contains(name);
  });
  if (needed != others.end()) return {};
  auto result = restore(group);
  for (Other& other : others) {
    if (other.groups.erase(name) == 0) continue;
    if (const auto done = write_state(other.instance, other.groups); !done) result = done;
  }
  return result;
}

Result<Forwarding::Group> Forwarding::look_up(const std::string& name,
                                              const std::vector<std::string>& taps) const {
  if (name == kIpv4) return look_up_ipv4();
  if (name == kIpv6) return look_up_ipv6(taps);
  const std::string key = "net/ipv4/conf/" + name.substr(kLocalnet.size()) + "/route_localnet";
  const auto found = read(key);
  if (!found) return found.error();
  if (*found == "1") return Group{};
  return Group{{key, *found, "1"}};
}

Result<Forwarding::Group> Forwarding::look_up_ipv4() const {
  const std::string key = "net/ipv4/ip_forward";
  const auto found = read(key);
  if (!found) return found.error();
  Group out;
  if (*found == "1") return out;
  out.push_back({key, *found, "1"});
  std::vector<std::string> along{"net/ipv4/conf/all/accept_redirects"};
  for (const std::string& interface : interfaces("ipv4")) {
    along.push_back("net/ipv4/conf/" + interface + "/forwarding");
  }
  for (const std::string& other : along) {
    if (const auto value = read(other)) out.push_back({other, *value, ""});
  }
  return out;
}

Result<Forwarding::Group> Forwarding::look_up_ipv6(const std::vector<std::string>& taps) const {
  const std::string key = "net/ipv6/conf/all/forwarding";
  const auto found = read(key);
  if (!found) return found.error();
  Group out;
  if (*found == "1") return out;
  Group along;
  for (const std::string& interface : interfaces("ipv6")) {
    const std::string base = "net/ipv6/conf/" + interface;
    if (const auto value = read(base + "/forwarding")) {
      along.push_back({base + "/forwarding", *value, ""});
    }
    const bool ours = std::find(taps.begin(), taps.end(), interface) != taps.end();
    if (ours || interface == "lo" || interface == "default") continue;
    const auto accept = read(base + "/accept_ra");
    if (accept && *accept == "1") out.push_back({base + "/accept_ra", "1", "2"});
  }
  out.push_back({key, *found, "1"});
  out.insert(out.end(), along.begin(), along.end());
  return out;
}

Result<void> Forwarding::set(const Group& group) const {
  for (const Step& step : group) {
    if (step.ours.empty()) continue;
    const auto now = read(step.key);
    const bool may_be_gone = step.key.ends_with("/accept_ra");
    if (!now && now.error().code == ENOENT && may_be_gone) continue;
    if (!now) return now.error();
    if (*now != step.found) continue;  // set already, or by now the operator's
    if (auto done = write(step.key, step.ours); !done) return done;
  }
  return {};
}

Result<void> Forwarding::restore(const Group& group) const {
  Result<void> result;
  bool turned_off = false;  // the kernel has just overwritten what goes along
  const auto put_back = [&](const Step& step) {
    const auto done = write(step.key, step.found);
    if (!done && done.error().code != ENOENT) result = done;
  };
  for (auto step = group.rbegin(); step != group.rend(); ++step) {
    if (step->ours.empty()) continue;
    const auto now = read(step->key);
    if (!now || *now != step->ours) continue;  // gone with its interface, or not ours any more
    put_back(*step);
    turned_off = turned_off || !step->key.ends_with("/accept_ra");
  }
  for (const Step& step : group) {
    if (!turned_off || !step.ours.empty()) continue;
    const auto now = read(step.key);
    if (now && *now != step.found) put_back(step);
  }
  return result;
}

// Their names, and "default" for those to come, but not "all".
std::vector<std::string> Forwarding::interfaces(const std::string& family) const {
  std::vector<std::string> out;
  std::error_code failed;
  for (fs::directory_iterator entry(proc_ / "sys/net" / family / "conf", failed), end;
       !failed && entry != end; entry.increment(failed)) {
    const std::string name = entry->path().filename();
    if (name != "all") out.push_back(name);
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::string Forwarding::identity() const {
  std::string boot = read_file(proc_ / "sys/kernel/random/boot_id").has_value()
                         ? *read_file(proc_ / "sys/kernel/random/boot_id")
                         : "unknown";
  boot.erase(std::find_if(boot.begin(), boot.end(), [](char c) { return c <= ' '; }), boot.end());
  struct stat netns {};
  const bool known = ::stat((proc_ / "self/ns/net").c_str(), &netns) == 0;
  return boot + " " + std::to_string(known ? netns.st_ino : 0);
}

fs::path Forwarding::state_path(const std::string& instance) const {
  return directory_ / (instance + std::string(kStateSuffix));
}

// The first line is "causeway-host 1 BOOT NETNS"; each of the others "GROUP KEY FOUND OURS".
Result<Forwarding::Groups> Forwarding::read_state(const std::string& instance) const {
  const auto text = read_file(state_path(instance));
  if (!text && text.error().code == ENOENT) return Groups{};
  if (!text) return text.error();
  std::istringstream lines(*text);
  std::string line;
  if (!std::getline(lines, line) || line != "causeway-host 1 " + identity()) return Groups{};
  Groups out;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string group;
    Step step;
    if (!(words >> group >> step.key >> step.found >> step.ours) || !is_ours_to_set(step.key) ||
        !is_switch_value(step.found) || !is_switch_value(step.ours)) {
      return Error{state_path(instance).string() + ": cannot make sense of " + line};
    }
    if (step.ours == kNoValue) step.ours.clear();
    out[group].push_back(std::move(step));
  }
  return out;
}

Result<void> Forwarding::write_state(const std::string& instance, const Groups& groups) const {
  const fs::path path = state_path(instance);
  if (groups.empty()) {
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
      return system_error("cannot remove " + path.string());
    }
    return {};
  }
  std::string text = "causeway-host 1 " + identity() + "\n";
  for (const auto& [name, group] : groups) {
    for (const Step& step : group) {
      text.append(name).append(" ").append(step.key).append(" ").append(step.found).append(" ");
      text.append(step.ours.empty() ? kNoValue : std::string_view(step.ours)).append("\n");
    }
  }
  const fs::path fresh = path.string() + ".new";
  if (auto done = write_file(fresh, text, O_CREAT | O_TRUNC | O_NOFOLLOW); !done) return done;
  if (::rename(fresh.c_str(), path.c_str()) != 0) {
    return system_error("cannot rename " + fresh.string());
  }
  return {};
}

Result<std::vector<Forwarding::Other>> Forwarding::others() const {
  std::vector<Other> out;
  std::error_code failed;
  for (fs::directory_iterator entry(directory_, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    const fs::path& path = entry->path();
    const std::string instance = path.stem();
    if (path.extension() != kStateSuffix || instance == instance_) continue;
    auto groups = read_state(instance);
    if (!groups) return groups.error();
    out.push_back(
        {instance, StateLock::held(directory_ / (instance + ".lock")), *std::move(groups)});
  }
  return out;
}

Result<std::string> Forwarding::read(const std::string& key) const {
  auto text = read_file(proc_ / "sys" / key);
  if (!text)
    return Error{"cannot read " + dotted(key) + ": " + std::strerror(text.error().code),
                 text.error().code};
  while (!text->empty() && text->back() <= ' ')
    text->pop_back();
  return text;
}

Result<void> Forwarding::write(const std::string& key, const std::string& value) const {
  const auto done = write_file(proc_ / "sys" / key, value + "\n", O_TRUNC);
  if (done) return {};
  return Error{
      "cannot set " + dotted(key) + " to " + value + ": " + std::strerror(done.error().code),
      done.error().code};
}

}  // namespace causeway::host
