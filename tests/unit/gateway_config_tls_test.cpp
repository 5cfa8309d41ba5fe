// SPDX-License-Identifier: Apache-2.0
// The configuration of TLS that ends here: what arrives, what is refused and where, what has no
// effect.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "guest/gateway/config_tls.hpp"
#include "tests/unit/gateway_configs.hpp"

namespace causeway::gateway {
namespace {

using namespace test;
using namespace std::chrono_literals;

const std::string kCert = R"("cert": "/c.pem", "key": "/k.pem")";
const std::string kNeedsOne =
    " ends TLS here, which needs a certificate: --cert PEM --key PEM, or certificates in the file";

// A file with a certificate and one terminating route, with `rest`, which begins with a comma.
std::string terminate(const std::string& rest, const std::string& upstream = "tcp:u:1") {
  return file(
      {kCert, R"("routes": [{"names": "a", "mode": "terminate", "upstreams": [{"address": ")" +
                  upstream + "\"}]" + rest + "}]"});
}

// `text` has an @ at the place that the message has to name; without one it names none.
void check_refused(std::string text, const std::string& expected) {
  CAPTURE(text);
  const std::string place = take_place(text);
  const std::string found = "\n" + refusal(text);
  CHECK_MESSAGE(found.find("\n" + place + expected) != std::string::npos, found);
  CHECK_MESSAGE(found.find('\n', 1) == found.size() - 1, found);  // and nothing else
}

std::string inert(const std::string& text) {
  std::string all;
  for (const std::string& line : inert_settings_of(accepted(text), 2, text, "f.json")) {
    all += line + "\n";
  }
  return all;
}

// As check_refused(), for the only remark.
void check_inert(std::string text, const std::string& expected) {
  CAPTURE(text);
  const std::string place = take_place(text);
  CHECK(inert(text) == place + expected + "\n");
}

ParseOutcome with_flags(Program& program, const Texts& args) {
  return program.table.evaluate(args);
}

}  // namespace

TEST_CASE("gateway config: a terminating route arrives from a file") {
  const GatewayConfig config = accepted(R"({
    "listen": "tcp:0.0.0.0:443", "cert": "c.pem", "key": "k.pem",
    "certificates": [{"cert": "/a.pem", "key": "/a.key"}, {"cert": "/both.pem"}],
    "tls": {"min_version": "1.3", "max_version": "1.3", "tickets": false, "ticket_keys": "/t",
            "watch": "never"},
    "terminate": ["b=tcp:u:1", "c=unix:/u", "B.=tcp:u:2"],
    "upstream": ["tcp:u:3", "vsock:3:80"],
    "passthrough": "d=tcp:u:4",
    "routes": [{
      "names": ["a"], "mode": "terminate", "alpn": ["h2", "x"], "protocols": ["h2", "http/1.1"],
      "client_certificates": "required", "client_ca": "/ca.pem",
      "upstream_tls": true, "upstream_name": "App.Internal.", "upstream_ca": "/uca.pem",
      "upstream_cert": "/u.pem", "upstream_key": "/u.key", "upstreams": [{"address": "unix:/v"}]}],
    "base_domains": [{"name": "apps.example", "applications": [{"id": "app", "hosts": "h"}]}]})");
  CHECK(config.all_certificates() == std::vector<CertificateConfig>{{"c.pem", "k.pem"},
                                                                    {"/a.pem", "/a.key"},
                                                                    {"/both.pem", ""}});
  CHECK(config.tls ==
        TlsConfig{TlsVersion::v1_3, TlsVersion::v1_3, false, "/t", Duration::forever()});
  const auto all = config.effective_routes();
  Texts labels;
  std::string modes;
  for (const RouteConfig& each : all) {
    labels.push_back(each.label);
    modes += each.application ? 'a' : each.mode == RouteMode::terminate ? 't' : 'p';
  }
  CHECK(labels == Texts{"a alpn h2,x", "d", "b", "c", "default", "app.apps.example"});
  CHECK(modes == "tpttta");
  CHECK(all[0].terminate == TerminateConfig{{"h2", "http/1.1"},
                                            ClientCertificates::required,
                                            "/ca.pem",
                                            true,
                                            "app.internal",
                                            "/uca.pem",
                                            "/u.pem",
                                            "/u.key"});
  CHECK(all[2].names == Texts{"b"});
  REQUIRE(all[2].upstreams.size() == 2);
  CHECK(to_string(all[2].upstreams[1].address) == "tcp:u:2");
  CHECK(all[2].terminate == TerminateConfig{});
  CHECK(all[4].names == Texts{"default"});
  REQUIRE(all[4].upstreams.size() == 2);
  CHECK(to_string(all[4].upstreams[1].address) == "vsock:3:80");
}

TEST_CASE("gateway config: termination by default") {
  const GatewayConfig config = accepted(terminate(""));
  const RouteConfig& route = config.routes.front();
  CHECK(route.terminate.protocols.empty());
  CHECK(route.terminate.client_certificates == ClientCertificates::none);
  CHECK_FALSE(route.terminate.upstream_tls);
  CHECK(config.tls == TlsConfig{TlsVersion::v1_2, TlsVersion::v1_3, true, "", Duration{5s}});
  CHECK(accepted(routes({test::route(R"("a")")})).all_certificates().empty());
}

TEST_CASE("gateway config: termination by flags") {
  Program program;
  const auto outcome = with_flags(program, {"--listen=unix:/a",
                                            "--cert",
                                            "c.pem",
                                            "--key",
                                            "k.pem",
                                            "--terminate",
                                            "A.Example=tcp:u:1",
                                            "--terminate=b.example=unix:/b",
                                            "--terminate=a.example=tcp:u:2",
                                            "--upstream",
                                            "tcp:u:3",
                                            "--upstream",
                                            "tcp:u:4",
                                            "--passthrough=c=tcp:u:5",
                                            "--tls-min-version",
                                            "1.3",
                                            "--tls-max-version",
                                            "1.3",
                                            "--tls-tickets",
                                            "false",
                                            "--tls-ticket-keys",
                                            "/t",
                                            "--tls-watch",
                                            "200ms"});
  REQUIRE_MESSAGE(!outcome.exit_code, outcome.err);
  const GatewayConfig& config = program.config;
  CHECK(config.all_certificates() == std::vector<CertificateConfig>{{"c.pem", "k.pem"}});
  CHECK(config.tls == TlsConfig{TlsVersion::v1_3, TlsVersion::v1_3, false, "/t", Duration{200ms}});
  const auto all = config.effective_routes();
  REQUIRE(all.size() == 4);
  CHECK(all[0].mode == RouteMode::passthrough);
  CHECK(all[1].label == "a.example");
  CHECK(all[1].mode == RouteMode::terminate);
  CHECK(all[1].upstreams.size() == 2);
  CHECK(all[3].label == "default");
  CHECK(all[3].mode == RouteMode::terminate);
  CHECK(all[3].upstreams.size() == 2);

  const auto refused = [](const Texts& more) {
    Program other;
    Texts args{"--listen=unix:/a"};
    args.insert(args.end(), more.begin(), more.end());
    const auto result = with_flags(other, args);
    CHECK(result.exit_code == kExitUsage);
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
    return result.err.substr(0, result.err.find(" (causeway-gateway --help")) + "\n";
  };
  const std::string start = "causeway-gateway: ";
  CHECK(refused({}) == start +
                           "--passthrough: no route: --passthrough NAME=ADDR, --terminate "
                           "NAME=ADDR or --upstream ADDR, or routes or base_domains in the "
                           "file\n");
  CHECK(refused({"--terminate=a=unix:/b"}) == start + "--terminate: \"a\"" + kNeedsOne + "\n");
  CHECK(refused({"--upstream=unix:/b"}) == start + "--upstream: \"default\"" + kNeedsOne + "\n");
  CHECK(refused({"--upstream=unix:/b", "--key=k"}) ==
        start + "--key: a key without its certificate: --cert PEM, or cert in the file\n");
  CHECK(
      refused({"--cert=c", "--terminate=a"}).starts_with(start + "--terminate: \"a\": write NAME"));
  CHECK(refused({"--cert=c", "--upstream=fd:3"})
            .starts_with(start + "--upstream: an upstream cannot"));
  CHECK(refused({"--cert=c", "--upstream=unix:/a"}) ==
        start +
            "--upstream: the upstream unix:/a of \"default\" is this gateway's own listener "
            "unix:/a\n");
  CHECK(refused({"--cert=c", "--terminate=a=unix:/a"})
            .starts_with(start + "--terminate: the upstream unix:/a of \"a\" is this gateway's"));
  CHECK(refused({"--cert=c", "--terminate=a=unix:/b", "--passthrough=A=unix:/b"}) ==
        start + "--terminate: overlapping routes: passthrough has \"a\" already\n");
  CHECK(refused({"--cert=c", "--terminate=default=unix:/b", "--upstream=unix:/b"}) ==
        start + "--upstream: overlapping routes: terminate has \"default\" already\n");
  CHECK(refused({"--cert=c", "--passthrough=default=unix:/b", "--upstream=unix:/b"}) ==
        start + "--upstream: overlapping routes: passthrough has \"default\" already\n");
  CHECK(refused({"--cert=c", "--upstream=unix:/b", "--upstream=unix:/b"}) ==
        start + "--upstream: \"default\": unix:/b is there twice; a weight gives it more\n");
  CHECK(refused({"--cert=c", "--upstream=unix:/b", "--tls-tickets=no"})
            .starts_with(start + "--tls-tickets: \"no\" is neither true nor false"));
  CHECK(refused({"--cert=c", "--upstream=unix:/b", "--tls-min-version=1.1"})
            .starts_with(start + "--tls-min-version: \"1.1\" is not one of 1.2"));
  CHECK(refused(
            {"--cert=c", "--upstream=unix:/b", "--tls-max-version=1.2", "--tls-min-version=1.3"}) ==
        start + "--tls-min-version: 1.3 is above max_version, 1.2\n");
  CHECK(refused({"--cert=c", "--upstream=unix:/b", "--tls-watch=99ms"})
            .starts_with(start + "--tls-watch: \"99ms\" is out of range: at least 100ms"));

  Program on;
  CHECK_FALSE(with_flags(on, {"--listen=unix:/a", "--cert=c", "--upstream=unix:/b", "--tls-tickets",
                              "true", "--tls-watch=never"})
                  .exit_code);
  CHECK(on.config.tls.tickets);
  CHECK(on.config.tls.watch == Duration::forever());
}

TEST_CASE("gateway config: certificates") {
  const auto certificates = [](const std::string& list, const std::string& more = "") {
    return file(
        {"\"certificates\": " + list + more, "\"routes\": [" + test::route(R"("a")") + "]"});
  };
  check_refused(certificates(R"([@{"key": "k"}])"), "certificates[0].cert: required but not given");
  check_refused(certificates(R"([{"cert": @""}])"), "certificates[0].cert: a path is needed");
  check_refused(certificates(R"([{"cert": "c", @"keys": "k"}])"),
                "certificates[0].keys: unknown key; did you mean \"key\"?");
  check_refused(certificates(R"([{"cert": @"a\u0000b"}])"),
                "certificates[0].cert: \"a\\x00b\" has a control character");
  check_refused(certificates(R"([{"cert": "c"}, {"cert": "d"}, {"cert": @"c", "key": "k"}])"),
                "certificates[2].cert: \"c\" is certificates[0] already");
  CHECK(refusal(certificates(R"([{"cert": "c"}, {"cert": "c"}, {"cert": "d"}, {"cert": "d"}])"))
            .find(": certificates[3].cert: \"d\" is certificates[2] already") != std::string::npos);
  check_refused(certificates(R"([{"cert": "c"}, {"cert": "d"}])", R"(, "cert": @"d")"),
                "cert: \"d\" is certificates[1] already");
  check_refused(certificates("[]", R"(, "key": @"k")"), "key: a key without its certificate");
  CHECK(refusal(certificates(R"([{"cert": "c", "key": "k"}, {"cert": "d", "key": "k"}])")).empty());
  std::string many = "[{\"cert\": \"0\"}";
  for (std::size_t i = 1; i < kMaxCertificates; ++i) {
    many += ", {\"cert\": \"" + std::to_string(i) + "\"}";
  }
  CHECK(refusal(certificates(many + "]")).empty());
  check_refused(certificates("@" + many + R"(, {"cert": "x"}])"),
                "certificates: 1025 certificates, the most is 1024");
}

TEST_CASE("gateway config: what ends TLS needs a certificate") {
  const std::string route = R"([{"names": "a", "mode": "terminate",
                                 "upstreams": [{"address": "tcp:u:1"}]}])";
  check_refused(file({"\"routes\": @" + route}), "routes: \"a\"" + kNeedsOne);
  check_refused(file({R"("terminate": @["b=tcp:u:1"])"}), "terminate: \"b\"" + kNeedsOne);
  check_refused(file({R"("upstream": @"tcp:u:1")"}), "upstream: \"default\"" + kNeedsOne);
  for (const std::string one : {R"("cert": "c")", R"("certificates": [{"cert": "c"}])"}) {
    CHECK(refusal(file({"\"routes\": " + route, R"("upstream": "tcp:u:1")", one})).empty());
  }
  // Applications can do without: their names with `s` pass through.
  CHECK(refusal(applications(R"({"id": "app", "hosts": "h"})")).empty());
}

TEST_CASE("gateway config: routes that end TLS overlap as others do") {
  check_refused(
      file({kCert, R"("terminate": @"a=tcp:u:1")", "\"routes\": [" + test::route(R"("a")") + "]"}),
      "terminate: overlapping routes: routes[0] has \"a\" already");
  check_refused(file({kCert, R"("upstream": @"tcp:u:1")",
                      "\"routes\": [" + test::route(R"("b", "default")") + "]"}),
                "upstream: overlapping routes: routes[0] has \"default\" already");
  check_refused(file({kCert, R"("terminate": @"app-1s.x=tcp:u:1")",
                      R"("base_domains": [{"name": "x", "applications": [{"id": "app",
                         "hosts": "h"}]}])"}),
                "terminate: overlapping routes: \"app-1s.x\" is the application");
  // Which protocols a client offers may decide whether TLS ends here.
  CHECK(refusal(file({kCert, R"("terminate": "a=tcp:u:1")",
                      "\"routes\": [" + test::route(R"("a")", R"(, "alpn": "h2")") + "]"}))
            .empty());
  check_refused(terminate("", "tcp:127.0.0.1:443").insert(terminate("").find("[{"), "@"),
                "routes: the upstream tcp:127.0.0.1:443 of \"a\" is this gateway's own listener");
}

TEST_CASE("gateway config: what a terminating route may not be") {
  const std::string first = "routes[0].";
  check_refused(
      file({kCert, "\"routes\": [" +
                       test::route(R"("default")", R"(, "mode": "terminate", "non_tls": @true)") +
                       "]"}),
      first + "non_tls: a route of mode terminate relays what comes inside TLS");
  check_refused(terminate(R"(, "protocols": ["h2", @""])"),
                first + "protocols[1]: a protocol's name has 1 to 255 bytes");
  check_refused(terminate(R"(, "protocols": @")" + std::string(256, 'x') + "\""),
                first + "protocols: a protocol's name has 1 to 255 bytes");
  check_refused(terminate(R"(, "protocols": [@"a\u0000b"])"),
                first + "protocols[0]: \"a\\x00b\" has a control character");
  check_refused(terminate(R"(, "protocols": @["h2", "x", "h2"])"),
                first + "protocols: \"h2\" is there twice");
  // 257 names of 254 bytes with their lengths are 65,535 bytes.
  const auto names = [](std::size_t last) {
    std::string list = "[\"" + std::string(last, 'y') + "\"";
    for (int i = 100; i < 356; ++i) {
      list += ", \"" + std::to_string(i) + std::string(251, 'x') + "\"";
    }
    return list + "]";
  };
  CHECK(refusal(terminate(R"(, "protocols": )" + names(254))).empty());
  check_refused(terminate(R"(, "protocols": @)" + names(255)),
                first + "protocols: the list has 65536 bytes, the most is 65535");
  CHECK(refusal(terminate(R"(, "alpn": )" + names(254))).empty());
  check_refused(terminate(R"(, "alpn": @)" + names(255)),
                first + "alpn: the list has 65536 bytes, the most is 65535");
  CHECK(refusal(routes({test::route(R"("a")", R"(, "alpn": )" + names(255))})).empty());

  check_refused(terminate(R"(, "client_certificates": @"maybe")"),
                first + "client_certificates: \"maybe\" is not one of none");
  for (const std::string how : {"optional", "required"}) {
    const std::string wanted = R"(, "client_certificates": ")" + how + "\"";
    check_refused(terminate(wanted + R"(, "client_ca": @"")"),
                  first + "client_ca: client_certificates needs the authorities");
    std::string text = terminate(wanted);
    check_refused(text.insert(text.find("{\"names"), "@"),
                  first + "client_ca: client_certificates needs the authorities");
    CHECK(refusal(terminate(wanted + R"(, "client_ca": "ca")")).empty());
  }
  check_refused(terminate(R"(, "upstream_tls": true, "upstream_cert": @"c")"),
                first + "upstream_cert: a certificate without its key");
  check_refused(terminate(R"(, "upstream_tls": true, "upstream_key": @"k")"),
                first + "upstream_key: a key without its certificate");
}

TEST_CASE("gateway config: what an upstream's certificate is verified by") {
  const auto tls = [](const std::string& upstream, const std::string& rest = "") {
    return terminate(R"(, "upstream_tls": true)" + rest, upstream);
  };
  for (const std::string named :
       {"tcp:app.internal:443", "tcp:my_app:443", "tcp:10.0.0.1:8443", "tcp:[fd00::1]:8443"}) {
    CAPTURE(named);
    CHECK(refusal(tls(named)).empty());
  }
  for (const std::string nameless :
       {"unix:/u", "vsock:3:443", "hvsock:/v:443", "tcp:[fe80::1%eth0]:443"}) {
    std::string text = tls(nameless);
    check_refused(text.insert(text.find("{\"names"), "@"),
                  "routes[0].upstream_name: " + nameless + " says no name that its certificate");
    CHECK(refusal(tls(nameless, R"(, "upstream_name": "app")")).empty());
    CHECK(refusal(terminate("", nameless)).empty());
  }
  const auto name = [&](const std::string& text) {
    return accepted(tls("unix:/u", R"(, "upstream_name": ")" + text + "\""))
        .routes.front()
        .terminate.upstream_name;
  };
  CHECK(name("App.Example.") == "app.example");
  CHECK(name("my_app") == "my_app");
  CHECK(name("10.0.0.1") == "10.0.0.1");
  CHECK(name("FD00:0::1") == "fd00::1");
  for (const std::string bad : {"a b", "*.example", "a:443", "[::1]", "fe80::1%eth0", ".", "-a"}) {
    check_refused(tls("unix:/u", R"(, "upstream_name": @")" + bad + "\""),
                  "routes[0].upstream_name: \"" + bad + "\" is neither a host name nor an IP");
  }
}

TEST_CASE("gateway config: the section tls") {
  const auto tls = [](const std::string& section) {
    return file({kCert, R"("upstream": "tcp:u:1")", "\"tls\": {" + section + "}"});
  };
  check_refused(tls(R"("min_version": @"1.1")"), "tls.min_version: \"1.1\" is not one of 1.2");
  check_refused(tls(R"("max_version": @1.3)"), "tls.max_version: takes a string");
  check_refused(tls(R"("max_version": "1.2", "min_version": @"1.3")"),
                "tls.min_version: 1.3 is above max_version, 1.2");
  check_refused(tls(R"("tickets": @"false")"), "tls.tickets: takes true or false");
  check_refused(tls(R"(@"tickets_flag": true)"), "tls.tickets_flag: unknown key");
  check_refused(tls(R"("watch": @"0s")"), "tls.watch: \"0s\" is out of range: at least 100ms");
  check_refused(tls(R"(@"versions": [])"), "tls.versions: unknown key");
  CHECK(accepted(tls(R"("max_version": "1.2")")).tls.max_version == TlsVersion::v1_2);
}

TEST_CASE("gateway config: settings of termination without effect") {
  CHECK(inert(terminate("")).empty());
  CHECK(inert(terminate(R"(, "protocols": "h2", "client_certificates": "optional",
      "client_ca": "ca", "upstream_tls": true, "upstream_name": "n", "upstream_ca": "ca",
      "upstream_cert": "c", "upstream_key": "k")"))
            .empty());
  for (const std::string key : {"protocols", "client_ca", "upstream_name", "upstream_ca",
                                "upstream_cert", "upstream_key"}) {
    check_inert(routes({test::route(R"("z")"), test::route(R"("a")", ", \"" + key + "\": @\"x\"")}),
                "routes[1]." + key + ": mode is passthrough");
    const std::string text = terminate(", \"" + key + "\": @\"x\"");
    if (key == "client_ca") {
      check_inert(text, "routes[0].client_ca: client_certificates is none");
    } else if (key == "upstream_name" || key == "upstream_ca") {
      check_inert(text, "routes[0]." + key + ": upstream_tls is false");
    }
  }
  check_inert(routes({test::route(R"("a")", R"(, "client_certificates": @"required")")}),
              "routes[0].client_certificates: mode is passthrough");
  check_inert(routes({test::route(R"("a")", R"(, "upstream_tls": @true)")}),
              "routes[0].upstream_tls: mode is passthrough");
  CHECK(inert(terminate(R"(, "upstream_cert": "c", "upstream_key": "k")"))
            .find(": routes[0].upstream_key: upstream_tls is false\n") != std::string::npos);

  const std::string pass = "\"routes\": [" + test::route(R"("a")") + "]";
  const std::string none = ": no route ends TLS here";
  check_inert(file({pass, R"("cert": @"c")"}), "cert" + none);
  check_inert(file({pass, R"("certificates": @[{"cert": "c"}])"}), "certificates" + none);
  CHECK(inert(file({pass, kCert})).find(": key" + none) != std::string::npos);
  const std::string app = R"("base_domains": [{"name": "x", "applications": [{"id": "app",
                             "hosts": "h"}]}])";
  for (const std::string setting :
       {R"("min_version": @"1.3")", R"("max_version": @"1.2")", R"("tickets": @false)",
        R"("ticket_keys": @"/t")", R"("watch": @"1s")"}) {
    const std::string tls = "\"tls\": {" + setting + "}";
    const std::string key = setting.substr(1, setting.find('"', 1) - 1);
    check_inert(file({pass, tls}), "tls." + key + none);
    check_inert(file({app, tls}),
                "tls." + key + ": without a certificate no application's TLS ends here");
    std::string text = file({kCert, app, tls});
    take_place(text);
    CHECK(inert(text).empty());
  }
  CHECK(inert(file({pass, R"("tls": {"min_version": "1.2", "watch": "5s", "tickets": true})"}))
            .empty());
  check_inert(file({kCert, R"("upstream": "tcp:u:1")",
                    R"("tls": {"tickets": false, "ticket_keys": @"/t"})"}),
              "tls.ticket_keys: tls.tickets is false");

  const std::string spliced = ": every route ends TLS here, so no relay is spliced";
  for (const std::string setting : {R"("after": @"1MiB")", R"("after": @"0B")",
                                    R"("after": @"off")", R"("after_time": @"1s")"}) {
    const std::string splice = "\"splice\": {" + setting + "}";
    const std::string key = setting.substr(1, setting.find('"', 1) - 1);
    check_inert(file({kCert, R"("terminate": "a=tcp:u:1")", splice}), "splice." + key + spliced);
    for (const std::string other : {R"("passthrough": "b=tcp:u:1")", app.c_str()}) {
      std::string text = file({kCert, R"("terminate": "a=tcp:u:1")", other, splice});
      take_place(text);
      CHECK(inert(text).empty());
    }
  }
}

}  // namespace causeway::gateway
