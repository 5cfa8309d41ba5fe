// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/config/json_tree.hpp"
#include "common/config/option_table.hpp"
#include "common/config/text.hpp"

namespace {

using namespace causeway;
using namespace std::chrono_literals;

enum class Wire { automatic, plain, native };

struct Guest {
  std::string name;
  std::uint32_t cid = 0;
  std::vector<Cidr> addresses;
};

struct Config {
  std::string tap = "cw0";
  std::uint16_t mtu = 1500;
  std::int32_t nice = -5;
  bool nat = false;
  bool sandbox = true;
  Wire wire = Wire::automatic;
  std::vector<Address> listen;
  std::optional<Address> admin;
  std::vector<Cidr> address;
  std::optional<IpAddress> gateway;
  Size buffer{65536};
  Duration idle{10min};
  std::optional<Size> splice_after;
  std::vector<std::string> search;
  std::vector<std::string> exec;
  std::vector<Guest> guests;
};

// A table over a configuration, as a program would have it.
struct Program {
  Config config;
  OptionTable table{"causeway-test", "Carries frames for a test.", "causeway-test 1.2.3"};

  Program() {
    table.add("tap", config.tap, {.value = "NAME", .doc = "The TAP device."})
        .add("mtu", config.mtu, {.doc = "The MTU.", .min = 68, .max = 65520})
        .add("nice", config.nice, {.doc = "Niceness.", .min = -20, .max = 19})
        .add("nat", config.nat, {.doc = "Translate addresses.", .reloadable = true})
        .add("sandbox", config.sandbox, {.doc = "Drop privileges."})
        .add_choice("wire", config.wire,
                    {{"auto", Wire::automatic}, {"plain", Wire::plain}, {"native", Wire::native}},
                    {.doc = "The wire's format."})
        .add("listen", config.listen, {.doc = "Where to listen."})
        .add("admin", config.admin, {.doc = "The admin socket."})
        .add("address", config.address, {.doc = "Addresses of the TAP."})
        .add("gateway", config.gateway, {.doc = "The default route."})
        .add("buffer_size", config.buffer,
             {.doc = "A relay's buffer.", .min = 4096, .max = 1 << 20})
        .add("idle", config.idle, {.doc = "The idle timeout.", .min = 1000})
        .add("search", config.search, {.doc = "Search domains."})
        .add_command("exec", config.exec, {.doc = "The program to run."});
    table.section("splice", "When a relay is spliced.")
        .add("after", config.splice_after,
             {.value = "SIZE|off", .doc = "The gate.", .unset_word = "off"});
    table.add_list<Guest>(
        "guests", config.guests,
        [](OptionGroup& group, Guest& guest) {
          group.add("name", guest.name, {.doc = "Its name.", .required = true})
              .add("cid", guest.cid, {.doc = "Its CID.", .min = 3})
              .add("address", guest.addresses, {.doc = "Its addresses."})
              .add_check("cid", [&guest]() -> Result<void> {
                if (guest.name == "seven" && guest.cid != 7) return Error{"seven has CID 7"};
                return {};
              });
        },
        "The guests.");
    table.add_check("mtu", [this]() -> Result<void> {
      if (config.nat && config.mtu < 576) return Error{"too small for --nat: at least 576"};
      return {};
    });
  }

  ParseOutcome run(const std::vector<std::string>& args) { return table.evaluate(args); }
  ParseOutcome text(std::string_view json) { return table.evaluate_text(json, "f.json"); }
};

class TempFile {
 public:
  explicit TempFile(const std::string& content) {
    const int fd = mkstemp(path_.data());
    REQUIRE(fd >= 0);
    close(fd);
    std::ofstream(path_, std::ios::binary) << content;
  }
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;
  ~TempFile() { unlink(path_.c_str()); }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/causeway-config-XXXXXX";
};

std::size_t lines(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

TEST_CASE("flags set every type") {
  Program p;
  const auto outcome = p.run({"--tap",
                              "cw1",
                              "--mtu=9000",
                              "--nice=-20",
                              "--nat",
                              "--sandbox=false",
                              "--wire",
                              "native",
                              "--listen",
                              "unix:/run/a",
                              "--listen",
                              "vsock:any:5",
                              "--admin=unix:/run/b",
                              "--address",
                              "10.0.0.1/24",
                              "--address=fd00::1/64",
                              "--gateway",
                              "10.0.0.254",
                              "--buffer-size",
                              "4KiB",
                              "--idle",
                              "never",
                              "--splice-after",
                              "1MiB",
                              "--search",
                              "[a,b]",
                              "--search=",
                              "--exec",
                              "--",
                              "/bin/app",
                              "--mtu",
                              "--",
                              "x"});
  CHECK(outcome.err == "");
  REQUIRE_FALSE(outcome.exit_code);
  CHECK(p.config.tap == "cw1");
  CHECK(p.config.mtu == 9000);
  CHECK(p.config.nice == -20);
  CHECK(p.config.nat);
  CHECK_FALSE(p.config.sandbox);
  CHECK(p.config.wire == Wire::native);
  CHECK(p.config.listen ==
        std::vector{*parse_address("unix:/run/a"), *parse_address("vsock:any:5")});
  CHECK(p.config.admin == *parse_address("unix:/run/b"));
  CHECK(p.config.address == std::vector{*parse_cidr("10.0.0.1/24"), *parse_cidr("fd00::1/64")});
  CHECK(p.config.gateway == *parse_ip("10.0.0.254"));
  CHECK(p.config.buffer == Size{4096});
  CHECK(p.config.idle.never);
  CHECK(p.config.splice_after == Size{1 << 20});
  CHECK(p.config.search == std::vector<std::string>{"[a,b]", ""});
  CHECK(p.config.exec == std::vector<std::string>{"/bin/app", "--mtu", "--", "x"});
}

TEST_CASE("no flags leave the defaults") {
  Program p;
  REQUIRE_FALSE(p.run({}).exit_code);
  CHECK(p.config.tap == "cw0");
  CHECK(p.config.mtu == 1500);
  CHECK(p.config.listen.empty());
  CHECK_FALSE(p.config.splice_after);
}

TEST_CASE("usage errors: one line, exit code 2") {
  const struct {
    std::vector<std::string> args;
    std::string says;
  } rows[] = {
      {{"--tpa", "x"}, "unknown flag --tpa; did you mean --tap?"},
      {{"--listne=unix:/x"}, "unknown flag --listne; did you mean --listen?"},
      {{"--quite-unlike-any"}, "unknown flag --quite-unlike-any (causeway-test --help"},
      {{"--quite\nunlike"}, "unknown flag --quite\\x0aunlike"},
      {{"-x"}, "unknown flag -x"},
      {{"--check-confg"}, "did you mean --check-config?"},
      {{"--guests", "x"}, "unknown flag --guests"},
      {{"stray"}, "unexpected argument \"stray\""},
      {{"--nat", "true"}, "unexpected argument \"true\""},
      {{"--tap"}, "--tap needs a value: --tap NAME"},
      {{"--mtu", "--nat"}, "--mtu: \"--nat\" is not a whole number"},
      {{"-c"}, "--config needs a value: --config FILE"},
      {{"--tap", "a", "--tap", "b"}, "--tap is given more than once"},
      {{"--mtu", ""}, "--mtu: \"\" is not a whole number; it takes 68 to 65520"},
      {{"--mtu="}, "--mtu: \"\" is not a whole number"},
      {{"--mtu", "67"}, "--mtu: \"67\" is out of range: 68 to 65520"},
      {{"--mtu", "65521"}, "--mtu: \"65521\" is out of range: 68 to 65520"},
      {{"--mtu", "99999999999999999999"}, "is out of range"},
      {{"--mtu", "1500x"}, "\"1500x\" is not a whole number"},
      {{"--mtu", "0x500"}, "\"0x500\" is not a whole number"},
      {{"--nice=+5"}, "\"+5\" is not a whole number"},
      {{"--nice=-21"}, "\"-21\" is out of range: -20 to 19"},
      {{"--nat="}, "--nat takes no empty value"},
      {{"--tpa="}, "unknown flag --tpa; did you mean --tap?"},
      {{"--mtu"}, "--mtu needs a value: --mtu N"},
      {{"--nat=maybe"}, "--nat: \"maybe\" is neither true nor false"},
      {{"--wire", "plian"}, "is not one of auto, plain or native; did you mean \"plain\"?"},
      {{"--wire", "x"}, "--wire: \"x\" is not one of auto, plain or native"},
      {{"--listen", "unix:/a", "--listen", "b"}, "--listen: \"b\": unknown kind of address"},
      {{"--address", "10.0.0.1"}, "--address: \"10.0.0.1\": the /PREFIX is missing"},
      {{"--gateway", "10.0.0"}, "--gateway: \"10.0.0\": not an IP address"},
      {{"--buffer-size", "64"}, "--buffer-size: \"64\": the unit is missing at column 3"},
      {{"--buffer-size", "1B"}, "\"1B\" is out of range: 4KiB to 1MiB"},
      {{"--idle", "1ms"}, "\"1ms\" is out of range: at least 1s"},
      {{"--splice-after", "of"}, "as in 64KiB, or off"},
      {{"--tap", "a\nb"}, "--tap: \"a\\x0ab\" has a control character"},
      {{"--exec"}, "--exec needs a command: --exec -- CMD ARGS..."},
      {{"--exec", "--"}, "--exec needs a command"},
      {{"--exec", "x"}, "unexpected argument \"x\""},
      {{"--", "x"}, "-- has to follow --exec"},
      {{"--nat", "--mtu", "100"}, "--mtu: too small for --nat"},
      {{"--nat=false", "--nat"}, "--nat is given more than once"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.says);
    Program p;
    const auto outcome = p.run(row.args);
    REQUIRE(outcome.exit_code);
    CHECK(*outcome.exit_code == 2);
    CAPTURE(outcome.err);
    CHECK(outcome.err.starts_with("causeway-test: "));
    CHECK(outcome.err.find(row.says) != std::string::npos);
    CHECK(lines(outcome.err) == 1);
    CHECK(outcome.out == "");
  }
}

TEST_CASE("a required option that is missing is a usage error without a file") {
  std::vector<Address> listen;
  OptionTable table("p", "");
  table.add("listen", listen, {.doc = "", .required = true});
  const std::vector<std::string> none;
  const auto outcome = table.evaluate(none);
  CHECK(outcome.exit_code == 2);
  CHECK(outcome.err ==
        "p: --listen: required but not given: --listen ADDR (p --help lists the flags)\n");
  const std::vector<std::string> given{"--listen", "fd:3"};
  CHECK_FALSE(table.evaluate(given).exit_code);

  const auto file = table.evaluate_text("{}", "f");
  CHECK_FALSE(file.exit_code);  // given before
  std::vector<Address> other;
  OptionTable fresh("p", "");
  fresh.add("listen", other, {.doc = "", .required = true});
  const auto missing = fresh.evaluate_text("\n {\"listen\": []}", "f");
  CHECK(missing.exit_code == 1);
  CHECK(missing.err == "f:2:2: listen: required but not given, here or as --listen ADDR\n");
}

TEST_CASE("positional arguments, and a program without a configuration file") {
  enum class Verb { status, top };
  const auto make = [](Verb& verb, bool& json) {
    auto table = std::make_unique<OptionTable>("ctl", "");
    table->without_config_file();
    table->add_choice("command", verb, {{"status", Verb::status}, {"top", Verb::top}},
                      {.value = "COMMAND", .required = true, .positional = true});
    table->add("json", json);
    return table;
  };
  const struct {
    std::vector<std::string> args;
    std::string error;
  } rows[] = {
      {{"top", "--json"}, ""},
      {{"--json", "top"}, ""},
      {{}, "command: required but not given"},
      {{"stauts"}, "did you mean \"status\"?"},
      {{"top", "extra"}, "unexpected argument \"extra\""},
      {{"top", "--config", "x"}, "unknown flag --config"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.error);
    Verb verb = Verb::status;
    bool json = false;
    const auto outcome = make(verb, json)->evaluate(row.args);
    CAPTURE(outcome.err);
    if (row.error.empty()) {
      CHECK_FALSE(outcome.exit_code);
      CHECK(verb == Verb::top);
      CHECK(json);
    } else {
      CHECK(outcome.exit_code == 2);
      CHECK(outcome.err.find(row.error) != std::string::npos);
    }
  }
}

constexpr const char* kFullFile = R"(// a comment
{
  "$schema": "urn:x", /* another
  one */
  "tap": "cw9", "mtu": 1400, "nice": -1, "nat": true, "sandbox": false, "wire": "plain",
  "listen": ["unix:/run/a", "vsock:3:5"],
  "admin": "unix:/run/b",
  "address": "10.0.0.1/24", // one needs no brackets
  "gateway": null,
  "buffer_size": "8KiB", "idle": "5s", "search": [], "exec": ["a", "b"],
  "splice": {"after": "off"},
  "guests": [{"name": "one", "cid": 3, "address": ["10.0.0.2/24"]}, {"name": "seven", "cid": 7}]
}
)";

TEST_CASE("a file sets every type") {
  Program p;
  p.config.gateway = *parse_ip("::1");
  p.config.splice_after = Size{1};
  const auto outcome = p.text(kFullFile);
  CHECK(outcome.err == "");
  REQUIRE_FALSE(outcome.exit_code);
  CHECK(p.config.tap == "cw9");
  CHECK(p.config.mtu == 1400);
  CHECK(p.config.nice == -1);
  CHECK(p.config.nat);
  CHECK_FALSE(p.config.sandbox);
  CHECK(p.config.wire == Wire::plain);
  CHECK(p.config.listen.size() == 2);
  CHECK(p.config.address == std::vector{*parse_cidr("10.0.0.1/24")});
  CHECK_FALSE(p.config.gateway);
  CHECK_FALSE(p.config.splice_after);
  CHECK(p.config.buffer == Size{8192});
  CHECK(p.config.idle == Duration{5s});
  CHECK(p.config.exec == std::vector<std::string>{"a", "b"});
  REQUIRE(p.config.guests.size() == 2);
  CHECK(p.config.guests[0].addresses.size() == 1);
  CHECK(p.config.guests[1].cid == 7);
}

TEST_CASE("flags win over the file, which is checked all the same") {
  TempFile file(kFullFile);
  Program p;
  REQUIRE_FALSE(p.run({"--mtu", "600", "-c", file.path(), "--listen", "fd:3"}).exit_code);
  CHECK(p.config.mtu == 600);
  CHECK(p.config.tap == "cw9");
  CHECK(p.config.listen == std::vector{*parse_address("fd:3")});

  TempFile bad(R"({"mtu": 1})");
  Program q;
  const auto outcome = q.run({"--mtu", "600", "--config=" + bad.path()});
  CHECK(outcome.exit_code == 1);
  CHECK(outcome.err == bad.path() + ":1:9: mtu: \"1\" is out of range: 68 to 65520\n");
}

TEST_CASE("faults of a file stand at their exact place") {
  const struct {
    std::string text;
    std::string error;
  } rows[] = {
      // Syntax: alone, whatever else is wrong.
      {"", "f.json:1:1: syntax: unexpected end of input"},
      {"  \n ", "f.json:2:2: syntax: unexpected end of input"},
      {"{\"tpa\": 1,\n \"mtu\" 5}", "f.json:2:8: syntax: unexpected number literal; expected ':'"},
      {"{\"mtu\": 5,}", "f.json:1:11: syntax: unexpected '}'; expected string literal"},
      {"{\"mtu\":: 5}", "f.json:1:8: syntax: unexpected ':'"},
      {"{\"mtu\": 05}", "f.json:1:10: syntax: unexpected number literal"},
      {"{\"mtu\": +5}", "f.json:1:9: syntax: invalid literal"},
      {"{\"mtu\": nul}", "f.json:1:12: syntax: invalid literal"},
      {"{\"tap\": 'x'}", "f.json:1:9: syntax: invalid literal"},
      {"{\"tap\": \"x\ny\"}", "f.json:1:11: syntax: invalid string: control character"},
      {"{\"tap\": \"\\q\"}", "f.json:1:11: syntax: invalid string"},
      {"{\"tap\": \"\\ud800\"}", "f.json:1:16: syntax: invalid string: surrogate"},
      {"{\"tap\": \"x", "f.json:1:11: syntax: invalid string: missing closing quote"},
      {"{\"mtu\": 1e999}", "f.json:1:9: syntax: number overflow parsing '1e999'"},
      {"{} {}", "f.json:1:4: syntax: unexpected '{'; expected end of input"},
      {"{} // c\n x", "f.json:2:2: syntax: invalid literal"},
      {"{ /* x", "f.json:1:7: syntax: invalid comment; missing closing '*/'"},
      {"{ / }", "f.json:1:4: syntax: invalid comment"},
      {"# c\n{}", "f.json:1:1: syntax: invalid literal"},
      {"{\"mtu\": 5", "f.json:1:10: syntax: unexpected end of input"},
      {"{\"tap\": \"a\xff\"}", "f.json:1:11: syntax: not valid UTF-8"},
      {"{ // \xc0\x80\n}", "f.json:1:6: syntax: not valid UTF-8"},
      {"{ // \xed\xa0\x80\n}", "f.json:1:6: syntax: not valid UTF-8"},
      {"{ // \xf4\x90\x80\x80\n}", "f.json:1:6: syntax: not valid UTF-8"},
      {"{ // \xe2\x82", "f.json:1:6: syntax: not valid UTF-8"},
      // Meaning.
      {"[]", "f.json:1:1: configuration: takes an object, not a list"},
      {" 5", "f.json:1:2: configuration: takes an object, not a number"},
      {"{\"tpa\": 1}", "f.json:1:2: tpa: unknown key; did you mean \"tap\"?"},
      {"{\"buffer-size\": 1}",
       "f.json:1:2: buffer-size: unknown key; did you mean \"buffer_size\"?"},
      {"{\"zzzzzz\": {}}",
       "f.json:1:2: zzzzzz: unknown key; --print-default-config lists the keys"},
      {"{\"a\\nb\": 1}", "f.json:1:2: a\\x0ab: unknown key"},
      {"{\"\": 1}", "f.json:1:2: \"\": unknown key"},
      {"{\n\t\"tap\": \"a\",\n\t\"tap\": \"b\"}", "f.json:3:2: tap: duplicate key"},
      {"{\"tap\": \"a\", \"t\\u0061p\": \"b\"}", "f.json:1:14: tap: duplicate key"},
      {"{\"tap\": 5}", "f.json:1:9: tap: takes a string, not a number"},
      {"{\"tap\": null}", "f.json:1:9: tap: takes a string, not null"},
      {"{\"tap\": [\"a\"]}", "f.json:1:9: tap: takes a string, not a list"},
      {"{\"tap\": \"a\\u0000b\"}", "f.json:1:9: tap: \"a\\x00b\" has a control character"},
      {"{\"mtu\": \"1500\"}", "f.json:1:9: mtu: takes a whole number, not a string"},
      {"{\"mtu\": 1500.0}", "f.json:1:9: mtu: takes a whole number, not a number with a fraction"},
      {"{\"mtu\": 1e3}", "f.json:1:9: mtu: takes a whole number"},
      {"{\"mtu\": -1}", "f.json:1:9: mtu: \"-1\" is out of range: 68 to 65520"},
      {"{\"mtu\": 18446744073709551615}", "f.json:1:9: mtu: \"18446744073709551615\" is out of"},
      {"{\"mtu\": 99999999999999999999999}", "f.json:1:9: mtu: takes a whole number"},
      {"{\"mtu\": true}", "f.json:1:9: mtu: takes a whole number, not a boolean"},
      {"{\"nat\": 1}", "f.json:1:9: nat: takes true or false, not a number"},
      {"{\"nat\": \"true\"}", "f.json:1:9: nat: takes true or false, not a string"},
      {"{\"wire\": \"nativ\"}", "f.json:1:10: wire: \"nativ\" is not one of auto, plain or native"},
      {"{\"listen\": [\"fd:3\", /*\n*/ \"x\"]}", "f.json:2:4: listen[1]: \"x\": unknown kind"},
      {"{\"listen\": [[\"fd:3\"]]}", "f.json:1:13: listen[0]: takes a string, not a list"},
      {"{\"gateway\": \"x\"}", "f.json:1:13: gateway: \"x\": not an IP address"},
      {"{\"idle\": 5}", "f.json:1:10: idle: takes a string, not a number"},
      {"{\"idle\": \"5\"}", "f.json:1:10: idle: \"5\": the unit is missing at column 2"},
      {"{\"exec\": \"a b\"}", "f.json:1:10: exec: takes a list of strings, not a string"},
      {"{\"splice\": 5}", "f.json:1:12: splice: takes an object, not a number"},
      {"{\"splice\": {\"aftr\": 5}}",
       "f.json:1:13: splice.aftr: unknown key; did you mean \"after\""},
      {"{\"splice\": {\"after\": \"1X\"}}", "f.json:1:22: splice.after: \"1X\": unknown unit"},
      {"{\"guests\": {}}", "f.json:1:12: guests: takes a list of objects, not an object"},
      {"{\"guests\": [5]}", "f.json:1:13: guests[0]: takes an object, not a number"},
      {"{\"guests\": [{\"name\": \"a\"}, {\"cid\": 3}]}",
       "f.json:1:28: guests[1].name: required but not given\n"},
      {"{\"guests\": [{\"name\": \"a\", \"cid\": 2}]}",
       "f.json:1:34: guests[0].cid: \"2\" is out of"},
      {"{\"guests\": [{\"name\": \"seven\", \"cid\": 8}]}",
       "f.json:1:38: guests[0].cid: seven has CID 7"},
      {"{\"guests\": [{\"name\": \"seven\"}]}", "f.json:1:13: guests[0].cid: seven has CID 7"},
      {"{\"guests\": [{\"name\": 5}]}",
       "f.json:1:22: guests[0].name: takes a string, not a number\n"},
      {"{\"nat\": true,\n \"mtu\": 100}", "f.json:2:9: mtu: too small for --nat"},
      {"{\"$schema\": 5}", "f.json:1:13: $schema: takes a string, not a number"},
      {"{\"splice\": {\"$schema\": \"x\"}}", "f.json:1:13: splice.$schema: unknown key"},
      // Columns count characters; a byte order mark has none.
      {"{ /* \xc3\xbc\xe2\x82\xac\xf0\x9f\x98\x80 */ \"tpa\": 1}", "f.json:1:13: tpa: unknown"},
      {"\xef\xbb\xbf{\"tpa\": 1}", "f.json:1:2: tpa: unknown"},
      {"{\r\n\"tpa\": 1}", "f.json:2:1: tpa: unknown"},
      {"{\"tap\": \"a\\\"b\\\\\",\"tpa\": \"\"}", "f.json:1:18: tpa: unknown"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.text);
    Program p;
    const auto outcome = p.text(row.text);
    REQUIRE(outcome.exit_code);
    CHECK(*outcome.exit_code == 1);
    CAPTURE(outcome.err);
    CHECK(outcome.err.starts_with(row.error));
    CHECK(lines(outcome.err) == 1);
  }
}

TEST_CASE("every fault of a file is reported, in the order of the text") {
  Program p;
  const auto outcome = p.text(
      "{\"mtu\": 1, \"tpa\": 5,\n \"listen\": [\"x\", \"fd:3\", 7],\n"
      " \"guests\": [{\"cid\": 1}],\n \"nat\": 0}");
  CHECK(outcome.exit_code == 1);
  const std::string starts[] = {
      "f.json:1:9: mtu: ",        "f.json:1:12: tpa: ",          "f.json:2:13: listen[0]: ",
      "f.json:2:26: listen[2]: ", "f.json:3:13: guests[0].name", "f.json:3:21: guests[0].cid",
      "f.json:4:9: nat: "};
  std::size_t at = 0;
  for (const std::string& start : starts) {
    CAPTURE(start);
    CAPTURE(outcome.err);
    CHECK(outcome.err.substr(at).starts_with(start));
    at = outcome.err.find('\n', at) + 1;
  }
  CHECK(lines(outcome.err) == std::size(starts));
}

TEST_CASE("depth and number of faults are bounded") {
  Program p;
  const std::string deep(100'000, '[');
  auto outcome = p.text("{\"x\": " + deep);
  CHECK(outcome.exit_code == 1);
  CHECK(outcome.err == "f.json:1:22: syntax: nested too deeply, the most is 16\n");

  std::string many = "{";
  for (int i = 0; i < 5000; ++i)
    many += "\"tap" + std::to_string(i) + "\": 1,\n";
  outcome = p.text(many + "\"z\": 1}");
  CHECK(outcome.exit_code == 1);
  CHECK(lines(outcome.err) == kMaxConfigFaults + 1);
  CHECK(outcome.err.ends_with("f.json: 4901 more errors\n"));
}

TEST_CASE("files that cannot be used") {
  Program p;
  auto outcome = p.run({"-c", "/nonexistent/x.json"});
  CHECK(outcome.exit_code == 1);
  CHECK(outcome.err == "/nonexistent/x.json: cannot be opened: No such file or directory\n");

  outcome = p.run({"-c", "/tmp"});
  CHECK(outcome.exit_code == 1);
  CHECK(outcome.err == "/tmp: is a directory, not a configuration file\n");

  outcome = p.run({"-c", ""});
  CHECK(outcome.exit_code == 1);
  CHECK(lines(outcome.err) == 1);

  TempFile full("{}" + std::string(kMaxConfigSize - 2, ' '));
  CHECK_FALSE(p.run({"-c", full.path()}).exit_code);
  TempFile large("{}" + std::string(kMaxConfigSize - 1, ' '));
  outcome = p.run({"-c", large.path()});
  CHECK(outcome.exit_code == 1);
  CHECK(outcome.err == large.path() + ": is too large: the most is 1048576 bytes\n");
  CHECK(p.run({"-c", "/dev/zero"}).exit_code == 1);
}

TEST_CASE("--check-config, --version, --help") {
  TempFile good(kFullFile);
  auto outcome = Program().run({"--config", good.path(), "--check-config"});
  CHECK(outcome.exit_code == 0);
  CHECK(outcome.out == "configuration ok\n");
  CHECK(outcome.err == "");
  CHECK(Program().run({"--check-config"}).exit_code == 0);
  CHECK(Program().run({"--check-config", "--mtu", "1"}).exit_code == 2);
  TempFile bad("{\"mtu\": 1}");
  outcome = Program().run({"--config", bad.path(), "--check-config"});
  CHECK(outcome.exit_code == 1);
  CHECK(outcome.out == "");

  outcome = Program().run({"--version"});
  CHECK(outcome.exit_code == 0);
  CHECK(outcome.out == "causeway-test 1.2.3\n");

  outcome = Program().run({"-h"});
  CHECK(outcome.exit_code == 0);
  for (const std::string& part : std::vector<std::string>{
           "Usage: causeway-test [FLAG]... [--exec -- CMD ARGS...]\n",
           "Carries frames for a test.\n",
           "  --tap NAME                The TAP device. (default cw0)\n",
           "  --mtu N                   The MTU. (68 to 65520, default 1500)\n",
           "  --nat                     Translate addresses. (reloadable)\n",
           "  --listen ADDR             Where to listen. (may be repeated)\n",
           "  --splice-after SIZE|off   The gate. (default off)\n", "-c, --config FILE"}) {
    CAPTURE(part);
    CHECK(outcome.out.find(part) != std::string::npos);
  }
}

TEST_CASE("the default configuration reads back as the defaults") {
  Program p;
  p.config.listen = {};
  const std::string printed = p.run({"--print-default-config"}).out;
  CAPTURE(printed);
  CHECK(printed.find("// The MTU. (68 to 65520)\n  \"mtu\": 1500,\n") != std::string::npos);
  CHECK(printed.find("  \"splice\": {\n    // The gate.\n    \"after\": \"off\"\n  }") !=
        std::string::npos);
  Program q;
  q.config.tap = "changed";
  q.config.mtu = 1;
  q.config.gateway = *parse_ip("::1");
  q.config.wire = Wire::native;
  const auto outcome = q.text(printed);
  CHECK(outcome.err == "");
  CHECK(q.table.values() == p.table.values());
}

TEST_CASE("the schema describes every key") {
  const auto schema = nlohmann::json::parse(Program().run({"--print-schema"}).out);
  CHECK(schema["$schema"] == "https://json-schema.org/draft/2020-12/schema");
  CHECK(schema["$id"] == "urn:causeway:schema:causeway-test:1");
  CHECK(schema["additionalProperties"] == false);
  const auto& properties = schema["properties"];
  CHECK(properties["mtu"]["type"] == "integer");
  CHECK(properties["mtu"]["minimum"] == 68);
  CHECK(properties["mtu"]["maximum"] == 65520);
  CHECK(properties["mtu"]["default"] == 1500);
  CHECK(properties["wire"]["enum"] == nlohmann::json{"auto", "plain", "native"});
  CHECK(properties["nat"]["x-reloadable"] == true);
  CHECK(properties["listen"]["anyOf"][0]["type"] == "array");
  CHECK(properties["admin"]["anyOf"][1]["type"] == "null");
  CHECK(properties["splice"]["properties"]["after"]["anyOf"][2]["const"] == "off");
  const auto& guest = properties["guests"]["items"];
  CHECK(guest["required"] == nlohmann::json{"name"});
  CHECK(guest["properties"]["cid"]["minimum"] == 3);
  CHECK(guest["additionalProperties"] == false);
}

TEST_CASE("options can be listed, for the manual page") {
  Program p;
  const auto options = p.table.options();
  const auto find = [&](const std::string& path) {
    for (const OptionInfo& info : options) {
      if (info.path == path) return info;
    }
    FAIL("no option " << path);
    return OptionInfo();
  };
  CHECK(find("mtu").flag == "--mtu");
  CHECK(find("buffer_size").flag == "--buffer-size");
  CHECK(find("splice.after").flag == "--splice-after");
  CHECK(find("guests[].cid").flag == "");
  CHECK(find("nat").reloadable);
  CHECK(find("idle").defaults == std::vector<std::string>{"10m"});
  CHECK(options.front().path == "tap");
  int x = 0;
  CHECK_THROWS(p.table.add("mtu", x));
}

TEST_CASE("a check of one value's text") {
  std::string name;
  OptionTable table("p", "");
  table.add("name", name, {.check = [](std::string_view text) -> Result<void> {
              if (text.size() > 15) return Error{"longer than 15 bytes"};
              return {};
            }});
  CHECK_FALSE(table.evaluate_text("{\"name\": \"short\"}", "f").exit_code);
  CHECK(table.evaluate_text("{\"name\": \"0123456789abcdef\"}", "f").err ==
        "f:1:10: name: longer than 15 bytes\n");
}

TEST_CASE("nearest") {
  const std::vector<std::string> words{"tap", "mtu", "listen", "log_level"};
  CHECK(nearest("tpa", words) == "tap");
  CHECK(nearest("ta", words) == "tap");
  CHECK(nearest("lisen", words) == "listen");
  CHECK(nearest("loglevel", words) == "log_level");
  CHECK(nearest("x", words) == "");
  CHECK(nearest("", words) == "");
  CHECK(nearest("unrelated", words) == "");
  CHECK(nearest(std::string(100'000, 't'), words) == "");
}

TEST_CASE("JSON text survives a round trip through the tree") {
  const std::string text =
      R"({"a": [1, -2, true, null, "\u00fc\"\\\n"], "b": {"c": [{}, []]}, "d": 1.5})";
  const auto document = parse_json(text);
  REQUIRE(document.faults.empty());
  CHECK(nlohmann::json::parse(to_json(document.root)) == nlohmann::json::parse(text));
  CHECK(document.root.members[1].offset == text.find("\"b\""));
  CHECK(document.root.members[2].value.offset == text.find("1.5"));
  CHECK(document.root.members[1].value.members[0].value.items[1].offset == text.find("[]"));
}

}  // namespace
