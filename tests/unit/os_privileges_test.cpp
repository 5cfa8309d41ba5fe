// SPDX-License-Identifier: Apache-2.0
// Each case gives something up for good, so it runs in a child.
#include "common/os/privileges.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>

#include "common/os/user.hpp"

namespace {

using namespace causeway;

// Fields of /proc/self/status, as the kernel shows them.
std::map<std::string, std::string> process_status() {
  std::map<std::string, std::string> fields;
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(':');
    const auto value = line.find_first_not_of(" \t", colon + 1);
    fields[line.substr(0, colon)] = value == std::string::npos ? "" : line.substr(value);
  }
  return fields;
}

// The child says on stderr what did not hold: its doctest is not the parent's.
struct Child {
  bool good = true;
  void check(bool condition, const char* what) {
    if (!condition) {
      std::fprintf(stderr, "os_privileges_test: in the child: %s\n", what);
      good = false;
    }
  }
};

bool in_child(const std::function<void(Child&)>& body) {
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    Child child;
    body(child);
    ::_exit(child.good ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  return status == 0;
}

bool is_root() {
  if (::geteuid() != 0) {
    MESSAGE("SKIP: not root, so there is nothing to give up");
    return false;
  }
  return true;
}

constexpr const char* kNone = "0000000000000000";
constexpr auto kNetAdmin = std::array{CAP_NET_ADMIN};
const std::string kNetAdminBits = "0000000000001000";  // bit 12

Identity somebody() {
  return {"somebody", 12345, 12346, {12346, 12347}};
}

TEST_CASE("privileges: root becomes a user with no capability and no way back") {
  if (!is_root()) {
    return;
  }
  CHECK(in_child([](Child& child) {
    const auto outcome = drop_privileges(somebody());
    child.check(outcome.has_value(), outcome ? "" : outcome.error().message.c_str());
    // Undumpable, so /proc/self belongs to root; status can be read all the same.
    auto status = process_status();
    for (const char* set : {"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"}) {
      child.check(status[set] == kNone, set);
    }
    child.check(status["NoNewPrivs"] == "1", "no-new-privileges");
    child.check(status["Uid"] == "12345\t12345\t12345\t12345", "uid");
    child.check(status["Gid"] == "12346\t12346\t12346\t12346", "gid");
    child.check(status["Groups"].substr(0, 11) == "12346 12347", "groups");
    child.check(::prctl(PR_GET_DUMPABLE) == 0, "dumpable");
    child.check(::setuid(0) != 0 && ::seteuid(0) != 0 && ::setgid(0) != 0, "root is gone");
    child.check(::open("/etc/shadow", O_RDONLY) < 0, "root's files are closed");
    child.check(drop_privileges(std::nullopt).has_value(), "dropping twice is no error");
  }));
}

TEST_CASE("privileges: root has to say whom to become, and not root") {
  if (!is_root()) {
    return;
  }
  CHECK(in_child([](Child& child) {
    const auto nobody_named = drop_privileges(std::nullopt);
    child.check(!nobody_named && nobody_named.error().code == EINVAL, "no user");
  }));
  CHECK(in_child([](Child& child) {
    const auto root = drop_privileges(Identity{"root", 0, 0, {}});
    child.check(!root && root.error().message.find("user root") == 0, "root");
  }));
}

TEST_CASE("privileges: a user with capabilities loses them, and stays who it is") {
  if (!is_root()) {
    return;
  }
  CHECK(in_child([](Child& child) {
    // As systemd starts a unit with User= and AmbientCapabilities=.
    child.check(::prctl(PR_SET_KEEPCAPS, 1) == 0 && ::setresgid(12346, 12346, 12346) == 0 &&
                    ::setresuid(12345, 12345, 12345) == 0 && keep_only(kNetAdmin).has_value(),
                "set-up");
    child.check(process_status()["CapPrm"] == kNetAdminBits, "set-up");
    const auto outcome = drop_privileges(std::nullopt);
    child.check(outcome.has_value(), outcome ? "" : outcome.error().message.c_str());
    auto status = process_status();
    for (const char* set : {"CapInh", "CapPrm", "CapEff", "CapAmb"}) {
      child.check(status[set] == kNone, set);
    }
    child.check(status["NoNewPrivs"] == "1" && status["Uid"] == "12345\t12345\t12345\t12345",
                "no-new-privileges, uid");
  }));
}

TEST_CASE("privileges: root keeps some") {
  if (!is_root()) {
    return;
  }
  CHECK(in_child([](Child& child) {
    child.check(keep_only(kNetAdmin).has_value(), "keep_only");
    auto status = process_status();
    for (const char* set : {"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"}) {
      child.check(status[set] == kNetAdminBits, set);
    }
    child.check(status["NoNewPrivs"] == "1", "no-new-privileges");
    // Narrower than what is left is possible, wider is not.
    child.check(keep_only(std::array{CAP_NET_ADMIN, CAP_SYS_ADMIN}).has_value(), "again");
    child.check(process_status()["CapPrm"] == kNetAdminBits, "no capability comes back");
    // And a program that it runs has the same, as root too.
    const int code = std::system(  // NOLINT(cert-env33-c): a fixed command
        "test \"$(sed -n 's/^CapEff:[[:space:]]*//p' /proc/self/status)\" = 0000000000001000");
    child.check(code == 0, "a child program's capabilities");
  }));
}

TEST_CASE("privileges: a user's child program has what was kept") {
  if (!is_root()) {
    return;
  }
  CHECK(in_child([](Child& child) {
    child.check(::prctl(PR_SET_KEEPCAPS, 1) == 0 && ::setresuid(12345, 12345, 12345) == 0 &&
                    keep_only(kNetAdmin).has_value(),
                "set-up");
    const int code = std::system(  // NOLINT(cert-env33-c): a fixed command
        "test \"$(sed -n 's/^CapEff:[[:space:]]*//p' /proc/self/status)\" = 0000000000001000");
    child.check(code == 0, "a child program's capabilities");
  }));
}

TEST_CASE("privileges: a number that is no capability is an error, and changes nothing") {
  CHECK(in_child([](Child& child) {
    const auto before = process_status()["CapPrm"];
    child.check(!keep_only(std::array{64}) && !keep_only(std::array{-1}), "refused");
    child.check(process_status()["CapPrm"] == before, "unchanged");
  }));
}

TEST_CASE("users: found with their groups, by default causeway or nobody") {
  const auto nobody = find_user("nobody");
  REQUIRE(nobody);
  CHECK(nobody->uid != 0);
  CHECK(nobody->groups == std::vector<gid_t>{nobody->gid});
  const auto by_default = find_user(std::nullopt);
  REQUIRE(by_default);
  CHECK((by_default->name == "causeway" || by_default->name == "nobody"));
  const auto absent = find_user("no-such-user");
  REQUIRE_FALSE(absent);
  CHECK(absent.error().message == "no user named no-such-user");
  if (::geteuid() == 0) {
    CHECK(in_child([](Child& child) {
      child.check(drop_privileges_to(std::nullopt).has_value(), "to the default user");
      child.check(::getuid() != 0, "uid");
    }));
    CHECK(in_child(
        [](Child& child) { child.check(!drop_privileges_to("no-such-user"), "refused"); }));
  }
}

}  // namespace
