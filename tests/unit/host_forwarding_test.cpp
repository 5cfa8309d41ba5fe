// SPDX-License-Identifier: Apache-2.0
// The switches against a directory that looks like /proc. The kernel's side effects are played by
// the test where they matter.
#include "host/network/forwarding.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "host/network/network.hpp"
#include "host/network/nft.hpp"

namespace {

using namespace causeway;
using namespace causeway::host;
namespace fs = std::filesystem;

constexpr const char* kIpForward = "net/ipv4/ip_forward";
constexpr const char* kV6Forward = "net/ipv6/conf/all/forwarding";

// A machine with an uplink and a TAP.
struct Machine {
  Machine() {
    std::string name = (fs::temp_directory_path() / "cwtest-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    root = name;
    fs::create_directories(root / "proc/self/ns");
    std::ofstream(root / "proc/self/ns/net") << "";
    set("kernel/random/boot_id", "boot-1");
    set(kIpForward, "0");
    set(kV6Forward, "0");
    set("net/ipv4/conf/all/accept_redirects", "0");
    for (const char* interface : {"default", "lo", "eth0", "cw0"}) {
      const std::string base = std::string("/conf/") + interface + "/";
      set("net/ipv4" + base + "forwarding", "0");
      set("net/ipv4" + base + "route_localnet", "0");
      set("net/ipv6" + base + "forwarding", "0");
      set("net/ipv6" + base + "accept_ra", "1");
    }
  }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  ~Machine() {
    std::error_code ignored;
    fs::remove_all(root, ignored);
  }
  void set(const std::string& key, const std::string& value) const {
    const fs::path path = root / "proc/sys" / key;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << value << "\n";
  }
  [[nodiscard]] std::string get(const std::string& key) const {
    std::ifstream in(root / "proc/sys" / key);
    std::string value;
    in >> value;
    return value;
  }
  [[nodiscard]] fs::path state() const { return root / "run/causeway"; }
  [[nodiscard]] Forwarding instance(const std::string& name) const {
    return Forwarding(name, state(), root / "proc");
  }
  [[nodiscard]] bool clean() const { return !fs::exists(state()) || fs::is_empty(state()); }

  fs::path root;
};

const ForwardingNeeds kV4{true, false, {}, {"cw0"}};
const ForwardingNeeds kBoth{true, true, {"cw0"}, {"cw0"}};
const ForwardingNeeds kNothing{};

TEST_CASE("forwarding: set what is needed, and put it back") {
  const Machine machine;
  {
    auto one = machine.instance("one");
    REQUIRE(one.apply(kBoth));
    CHECK(machine.get(kIpForward) == "1");
    CHECK(machine.get(kV6Forward) == "1");
    CHECK(machine.get("net/ipv4/conf/cw0/route_localnet") == "1");
    CHECK(machine.get("net/ipv4/conf/eth0/route_localnet") == "0");
    CHECK(machine.get("net/ipv6/conf/eth0/accept_ra") == "2");
    CHECK(machine.get("net/ipv6/conf/cw0/accept_ra") == "1");
    CHECK(machine.get("net/ipv6/conf/lo/accept_ra") == "1");
    CHECK(machine.get("net/ipv6/conf/default/accept_ra") == "1");
    CHECK(one.has_state());
    REQUIRE(one.held());
    CHECK(one.held()->v4);
    CHECK(one.held()->v6);
    CHECK(one.held()->route_localnet == std::vector<std::string>{"cw0"});

    // Less is needed.
    REQUIRE(one.apply(kV4));
    CHECK(machine.get(kIpForward) == "1");
    CHECK(machine.get(kV6Forward) == "0");
    CHECK(machine.get("net/ipv4/conf/cw0/route_localnet") == "0");
    CHECK(machine.get("net/ipv6/conf/eth0/accept_ra") == "1");

    REQUIRE(one.apply(kNothing));
    CHECK(machine.get(kIpForward) == "0");
    CHECK_FALSE(one.has_state());
    REQUIRE(one.apply(kNothing));
  }
  CHECK(machine.clean());
}

TEST_CASE("forwarding: what the kernel overwrites along with it is put back") {
  const Machine machine;
  machine.set("net/ipv4/conf/eth0/forwarding", "1");
  machine.set("net/ipv6/conf/eth0/forwarding", "1");
  auto one = machine.instance("one");
  REQUIRE(one.apply(kBoth));
  // As inet_forward_change() does: accept_redirects becomes the opposite.
  machine.set("net/ipv4/conf/all/accept_redirects", "1");
  machine.set("net/ipv4/conf/eth0/forwarding", "0");
  machine.set("net/ipv6/conf/eth0/forwarding", "0");
  REQUIRE(one.apply(kNothing));
  CHECK(machine.get("net/ipv4/conf/all/accept_redirects") == "0");
  CHECK(machine.get("net/ipv4/conf/eth0/forwarding") == "1");
  CHECK(machine.get("net/ipv6/conf/eth0/forwarding") == "1");
}

TEST_CASE("forwarding: what somebody else has set is not ours") {
  const Machine machine;
  machine.set(kIpForward, "1");
  machine.set(kV6Forward, "1");
  auto one = machine.instance("one");
  REQUIRE(one.apply(kBoth));
  CHECK(machine.get("net/ipv6/conf/eth0/accept_ra") == "1");  // the operator's arrangement
  REQUIRE(one.apply(kNothing));
  CHECK(machine.get(kIpForward) == "1");
  CHECK(machine.get(kV6Forward) == "1");
}

TEST_CASE("forwarding: a value that was changed since stays") {
  const Machine machine;
  auto one = machine.instance("one");
  REQUIRE(one.apply(kBoth));
  machine.set("net/ipv6/conf/eth0/accept_ra", "0");
  machine.set(kIpForward, "0");
  machine.set("net/ipv4/conf/eth0/forwarding", "1");
  REQUIRE(one.apply(kNothing));
  CHECK(machine.get("net/ipv6/conf/eth0/accept_ra") == "0");
  CHECK(machine.get(kIpForward) == "0");
  CHECK(machine.get("net/ipv4/conf/eth0/forwarding") == "1");
}

TEST_CASE("forwarding: the last instance puts it back, in whichever order they end") {
  for (const bool first_ends_first : {true, false}) {
    const Machine machine;
    {
      auto one = machine.instance("one");
      auto two = machine.instance("two");
      REQUIRE(one.apply(kV4));
      REQUIRE(two.apply(kV4));
      REQUIRE((first_ends_first ? one : two).apply(kNothing));
      CHECK(machine.get(kIpForward) == "1");
      REQUIRE((first_ends_first ? two : one).apply(kNothing));
      CHECK(machine.get(kIpForward) == "0");
    }
    CHECK(machine.clean());
  }
}

TEST_CASE("forwarding: after a crash the next start knows what was found") {
  const Machine machine;
  {
    auto one = machine.instance("one");
    REQUIRE(one.apply(kBoth));
  }  // gone without a word: the lock is free, the state stays
  CHECK(machine.get(kIpForward) == "1");
  {
    auto one = machine.instance("one");
    REQUIRE(one.apply(kBoth));
    REQUIRE(one.apply(kNothing));
  }
  CHECK(machine.get(kIpForward) == "0");
  CHECK(machine.get("net/ipv6/conf/eth0/accept_ra") == "1");
  CHECK(machine.clean());
}

TEST_CASE("forwarding: an instance that crashed has no claim, and does not set the value later") {
  const Machine machine;
  {
    auto one = machine.instance("one");
    auto two = machine.instance("two");
    REQUIRE(one.apply(kV4));
    REQUIRE(two.apply(kV4));
  }
  {
    auto two = machine.instance("two");
    REQUIRE(two.apply(kNothing));
    CHECK(machine.get(kIpForward) == "0");
    // The operator wants it from now on.
    machine.set(kIpForward, "1");
  }
  {
    auto one = machine.instance("one");
    REQUIRE(one.apply(kV4));
    REQUIRE(one.apply(kNothing));
  }
  CHECK(machine.get(kIpForward) == "1");
  CHECK(machine.clean());
}

TEST_CASE("forwarding: after a crash the TAP is a new one, or none") {
  const Machine machine;
  {
    auto one = machine.instance("one");
    REQUIRE(one.apply(kBoth));
  }
  SUBCASE("a new one") {
    machine.set("net/ipv4/conf/cw0/route_localnet", "0");
    auto one = machine.instance("one");
    REQUIRE(one.apply(kBoth));
    CHECK(machine.get("net/ipv4/conf/cw0/route_localnet") == "1");
  }
  SUBCASE("none") {
    fs::remove_all(machine.root / "proc/sys/net/ipv4/conf/cw0");
    auto one = machine.instance("one");
    REQUIRE(one.apply(kNothing));
    CHECK(machine.get(kIpForward) == "0");
  }
}

TEST_CASE("forwarding: a state file of another boot or namespace is no news") {
  const Machine machine;
  {
    auto one = machine.instance("one");
    REQUIRE(one.apply(kV4));
  }
  machine.set("kernel/random/boot_id", "boot-2");
  auto one = machine.instance("one");
  REQUIRE(one.apply(kV4));
  REQUIRE(one.apply(kNothing));
  CHECK(machine.get(kIpForward) == "1");  // as found in this boot
}

TEST_CASE("forwarding: after an error all is as before") {
  const Machine machine;
  auto one = machine.instance("one");
  REQUIRE(one.apply(kV4));
  ForwardingNeeds bad = kBoth;
  bad.route_localnet = {"cw0", "cw9"};
  const auto done = one.apply(bad);
  REQUIRE_FALSE(done);
  CHECK(done.error().message ==
        "cannot read net.ipv4.conf.cw9.route_localnet: No such file or directory");
  CHECK(machine.get(kIpForward) == "1");
  CHECK(machine.get(kV6Forward) == "0");
  CHECK(machine.get("net/ipv4/conf/cw0/route_localnet") == "0");
  CHECK(machine.get("net/ipv6/conf/eth0/accept_ra") == "1");
  REQUIRE(one.apply(kNothing));
  CHECK(machine.get(kIpForward) == "0");

  // A file that is not of this boot and namespace is nobody's, whatever it says.
  std::ofstream(machine.state() / "one.state") << "nonsense\n";
  REQUIRE(one.apply(kNothing));
  std::ofstream(machine.state() / "one.state")
      << "causeway-host 1 boot-1 0\nipv4 ../../etc/passwd 0 1\n";
  CHECK(one.apply(kNothing));

  // Of this boot, but with a switch or a value that is none of ours: nothing is taken from it.
  for (const char* line :
       {"ipv4 net/ipv4/conf/all/rp_filter 1 0", "ipv4 net/ipv4/ip_forward 7 1",
        "ipv4 net/ipv4/conf/../../ip_forward 0 1", "ipv4 net/ipv6/conf/all/seg6_enabled 1 0"}) {
    CAPTURE(line);
    REQUIRE(one.apply(ForwardingNeeds{.v4 = true, .v6 = false, .route_localnet = {}, .taps = {}}));
    { std::ofstream(machine.state() / "one.state", std::ios::app) << line << "\n"; }
    CHECK_FALSE(one.apply(kNothing));
    std::filesystem::remove(machine.state() / "one.state");
    machine.set(kIpForward, "0");
  }
}

TEST_CASE("forwarding: one living process an instance") {
  const Machine machine;
  auto first = std::optional<Forwarding>(machine.instance("one"));
  REQUIRE(first->lock());
  REQUIRE(first->lock());
  auto second = machine.instance("one");
  const auto locked = second.lock(std::chrono::milliseconds{50});
  REQUIRE_FALSE(locked);
  CHECK(locked.error().message == (machine.state() / "one.lock").string() +
                                      " is in use by process " + std::to_string(::getpid()));
  first.reset();
  CHECK(second.lock(std::chrono::milliseconds{50}));
  auto other = machine.instance("../two");
  CHECK_FALSE(other.lock());
}

// Stands in for nft: a script that keeps what it is given.
struct FakeNft {
  explicit FakeNft(const fs::path& directory, const std::string& body) {
    fs::create_directories(directory);
    std::ofstream(directory / "nft") << "#!/bin/sh\n" << body << "\n";
    ::chmod((directory / "nft").c_str(), 0755);
    options.directories = {directory.string() + "/none", directory.string()};
  }
  NftOptions options;
};

TEST_CASE("nft: the script goes in by stdin, the complaint comes back as one line") {
  const Machine machine;
  const fs::path bin = machine.root / "bin";
  const std::string kept = (machine.root / "kept").string();
  {
    const FakeNft nft(bin, "[ \"$*\" = '-f -' ] && /bin/cat > " + kept);
    const std::string script(200'000, 'x');
    REQUIRE(run_nft(script, nft.options));
    CHECK(fs::file_size(kept) == script.size());
  }
  {
    const FakeNft nft(bin,
                      "echo '/dev/stdin:3:1-4: Error: syntax error, unexpected x' >&2\n"
                      "echo 'the line' >&2; exit 1");
    const auto done = run_nft("x", nft.options);
    REQUIRE_FALSE(done);
    CHECK(done.error().message == bin.string() + "/nft: syntax error, unexpected x");
  }
  {
    const FakeNft nft(bin, "exit 3");
    CHECK(run_nft("", nft.options).error().message == bin.string() + "/nft: ended with code 3");
  }
  {
    const FakeNft nft(bin, "kill -9 $$");
    CHECK(run_nft("", nft.options).error().message == bin.string() + "/nft: ended by signal 9");
  }
  {
    FakeNft nft(bin, "exec /bin/sleep 60");
    nft.options.limit = std::chrono::milliseconds{100};
    const auto done = run_nft("", nft.options);
    REQUIRE_FALSE(done);
    CHECK(done.error().code == ETIMEDOUT);
  }
  fs::remove(bin / "nft");
  const auto done = run_nft("", {.directories = {bin.string()}});
  REQUIRE_FALSE(done);
  CHECK(done.error().code == ENOENT);
  CHECK(done.error().message.find("need the package nftables") != std::string::npos);
}

RuleSet one_guest() {
  GuestRules guest;
  guest.name = "app";
  guest.tap = "cw0";
  guest.guest_addresses = {*parse_cidr("10.0.0.2/24")};
  guest.nat = true;
  guest.publish = {*parse_publish("tcp:0.0.0.0:80=tcp:80")};
  return {"", {guest}};
}

TEST_CASE("network: rules first, then switches; the other way round at the end") {
  const Machine machine;
  const std::string kept = (machine.root / "kept").string();
  const std::string local = (machine.root / "proc/sys/net/ipv4/conf/cw0/route_localnet").string();
  const FakeNft nft(machine.root / "bin",
                    "/bin/cat " + local + " >> " + kept + ".local; /bin/cat > " + kept);
  {
    Network network("one", machine.state(), nft.options, machine.root / "proc");
    REQUIRE(network.apply(one_guest()));
    CHECK(machine.get(kIpForward) == "1");
    CHECK(machine.get("net/ipv4/conf/cw0/route_localnet") == "1");
    REQUIRE(network.remove());
    REQUIRE(network.remove());
  }
  std::ifstream script(kept);
  std::string line;
  std::getline(script, line);
  CHECK(line == "add table inet causeway_one");
  std::getline(script, line);
  CHECK(line == "delete table inet causeway_one");
  CHECK_FALSE(std::getline(script, line));
  std::ifstream values(kept + ".local");
  std::string all;
  while (values >> line)
    all += line;
  CHECK(all == "000");
  CHECK(machine.get(kIpForward) == "0");
  CHECK(machine.clean());
}

TEST_CASE("network: an error leaves the switches and brings the rules before back") {
  const Machine machine;
  const fs::path bin = machine.root / "bin";
  const std::string kept = (machine.root / "kept").string();
  const FakeNft good(bin, "/bin/cat > " + kept);
  Network network("one", machine.state(), good.options, machine.root / "proc");
  RuleSet set = one_guest();
  REQUIRE(network.apply(set));
  const auto size = fs::file_size(kept);

  set.guests[0].nat = false;
  set.guests[0].publish.clear();
  {
    const FakeNft bad(bin, "echo 'Error: Operation not permitted' >&2; exit 1");
    const auto done = network.apply(set);
    REQUIRE_FALSE(done);
    CHECK(done.error().message ==
          bin.string() + "/nft: Operation not permitted (rules need CAP_NET_ADMIN)");
  }
  CHECK(machine.get(kIpForward) == "1");
  CHECK(machine.get("net/ipv4/conf/cw0/route_localnet") == "1");

  const FakeNft again(bin, "/bin/cat > " + kept);
  const auto done = network.apply(set, {true, false, {"cw9"}, {}});
  REQUIRE_FALSE(done);
  CHECK(fs::file_size(kept) == size);  // the script before, loaded once more
  CHECK(machine.get("net/ipv4/conf/cw0/route_localnet") == "1");
  REQUIRE(network.remove());
  CHECK(machine.get(kIpForward) == "0");

  // A set that cannot work never gets as far as nft.
  set.guests[0].name = "no; such";
  fs::remove(kept);
  CHECK_FALSE(network.apply(set));
  CHECK_FALSE(fs::exists(kept));
}

TEST_CASE("network: without nft, what was never applied is removed without a word") {
  const Machine machine;
  Network network("one", machine.state(), {.directories = {machine.root.string()}},
                  machine.root / "proc");
  CHECK(network.remove());
  const auto done = network.apply(one_guest());
  REQUIRE_FALSE(done);
  CHECK(done.error().code == ENOENT);
  CHECK(machine.get(kIpForward) == "0");
  CHECK(network.remove());
}

}  // namespace
