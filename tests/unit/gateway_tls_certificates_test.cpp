// SPDX-License-Identifier: Apache-2.0
#include "guest/gateway/tls/certificates.hpp"

#include <doctest/doctest.h>

#include "tests/unit/gateway_tls_peers.hpp"

namespace causeway::gateway::tls {
namespace {

using namespace test;
using namespace std::chrono_literals;

const KeyDirectory& keys() {
  return KeyDirectory::shared();
}

// The message, or "" when it loads.
std::string complaint(const CertificateFiles& files,
                      Identity::Clock::time_point now = Identity::Clock::now()) {
  const auto identity = Identity::load(files, now);
  if (identity) return {};
  CHECK(identity.error().message.find('\n') == std::string::npos);
  return identity.error().message;
}

bool says(const std::string& message, const std::string& path, const std::string& what) {
  INFO(message);
  const bool both = message.rfind(path + ": ", 0) == 0 && message.find(what) != std::string::npos;
  CHECK(both);
  return both;
}

TEST_CASE("an identity: names, kind, chain") {
  const auto ecdsa = must(Identity::load(keys().pair("ecdsa")));
  CHECK(ecdsa->is_ecdsa());
  CHECK(ecdsa->names() == std::vector<std::string>{"*.wild.example", "a.example"});
  CHECK(ecdsa->subject() == "CN=a.example");
  CHECK(ecdsa->chain().first().next != nullptr);
  const auto rsa = must(Identity::load(keys().pair("rsa")));
  CHECK(!rsa->is_ecdsa());
  CHECK(rsa->public_key_digest() != ecdsa->public_key_digest());
  // The CN only where there is no subjectAltName, in lower case.
  const auto named = must(Identity::load(keys().pair("common_name", "other")));
  CHECK(named->names() == std::vector<std::string>{"named.example"});
  CHECK(must(Identity::load(keys().pair("p384")))->is_ecdsa());

  PrivateKey key;
  CHECK(rsa->make_key(key) == 0);
  CHECK(mbedtls_pk_get_bitlen(key.get()) == 2048);
}

TEST_CASE("certificates and keys that are refused, each with its path and a reason") {
  const auto path = [](const std::string& name) { return keys().file(name); };
  says(complaint(keys().pair("expired", "ecdsa")), path("expired.pem"), "expired on 2021-01-01");
  says(complaint(keys().pair("future", "ecdsa")), path("future.pem"), "not valid before 2098");
  says(complaint(keys().pair("ecdsa", "other")), path("other.key"),
       "does not belong to the certificate in " + path("ecdsa.pem"));
  says(complaint(keys().pair("ecdsa", "rsa")), path("rsa.key"), "does not belong");
  says(complaint(keys().pair("wrong_order", "ecdsa")), path("wrong_order.pem"),
       "belongs to certificate 2");
  says(complaint(keys().pair("not_for_servers", "ecdsa")), path("not_for_servers.pem"),
       "may not be used by a TLS server");
  says(complaint(keys().pair("ecdsa", "encrypted")), path("encrypted.key"), "");
  says(complaint(keys().pair("short", "short")), path("short.key"), "less than 2048 bits");
  says(complaint(keys().pair("missing", "ecdsa")), path("missing.pem"), "No such file");
  says(complaint({path("ecdsa.pem"), path("missing.key")}), path("missing.key"), "No such file");
  says(complaint({path("ecdsa.key"), path("ecdsa.key")}), path("ecdsa.key"), "no certificate");
  says(complaint({path("ecdsa.pem"), path("ecdsa.pem")}), path("ecdsa.pem"), "0600");
  says(complaint({path(""), path("ecdsa.key")}), path(""), "not a regular file");
  const std::string junk = keys().write("junk.pem", "not a certificate");
  says(complaint({junk, path("ecdsa.key")}), junk, "no certificate can be read");
  says(complaint({path("ecdsa.pem"), junk}), junk, "no private key can be read");
}

TEST_CASE("a certificate is judged at the time that it is loaded") {
  using Days = std::chrono::duration<int, std::ratio<86400>>;
  const auto at = [](int years) {
    return Identity::Clock::from_time_t(0) + Days(365 * years + 30);
  };
  CHECK(complaint(keys().pair("ecdsa"), at(51)).empty());
  says(complaint(keys().pair("ecdsa"), at(40)), keys().file("ecdsa.pem"), "not valid before");
  says(complaint(keys().pair("ecdsa"), at(140)), keys().file("ecdsa.pem"), "expired");
  CHECK(complaint(keys().pair("expired", "ecdsa"), at(50)).empty());
}

TEST_CASE("a key file that others may read is refused") {
  const std::string path = keys().write("modes.key", "");
  std::filesystem::copy_file(keys().file("ecdsa.key"), path,
                             std::filesystem::copy_options::overwrite_existing);
  for (const mode_t mode : {0640, 0604, 0620, 0660, 0644, 0601}) {
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    says(complaint({keys().file("ecdsa.pem"), path}), path, "chmod 0600");
  }
  for (const mode_t mode : {0600, 0400, 0700}) {
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    CHECK(complaint({keys().file("ecdsa.pem"), path}).empty());
  }
}

TEST_CASE("one file may hold the chain and the key") {
  std::ifstream chain(keys().file("ecdsa.pem"));
  std::ifstream key(keys().file("ecdsa.key"));
  const std::string both = std::string(std::istreambuf_iterator<char>(chain), {}) +
                           std::string(std::istreambuf_iterator<char>(key), {});
  const std::string path = keys().write("both.pem", both);
  CHECK(complaint({path, path}).empty());
}

TEST_CASE("what is presented for a name: exact, then wildcard, then the default") {
  const auto store = store_of({"ecdsa", "other", "rsa", "p384"});
  const auto chosen = [&](std::string_view name) { return store->choose(name).identities; };
  using List = std::vector<std::uint32_t>;
  CHECK(chosen("a.example") == List{0, 2});  // ECDSA, then RSA
  CHECK(chosen("b.example") == List{1});
  CHECK(chosen("c.example") == List{3});
  CHECK(chosen("y.wild.example") == List{0, 2});
  CHECK(chosen("x.wild.example") == List{1});          // exact before the wildcard
  CHECK(chosen("deep.y.wild.example") == List{0, 2});  // by the default: a wildcard is one label
  CHECK(chosen("") == List{0, 2});
  CHECK(chosen("unknown.example") == List{0, 2});
  CHECK(chosen(std::string(253, 'x') + ".wild.example") == List{0, 2});
  CHECK(chosen(".wild.example") == List{0, 2});

  const auto other_first = store_of({"other", "rsa", "ecdsa"});
  CHECK(other_first->choose("unknown.example").identities == List{0});
  CHECK(other_first->choose("deep.y.wild.example").identities == List{0});
  CHECK(other_first->choose("a.example").identities == List{2, 1});
  // A ticket's binding: of the keys, whatever the order of the files.
  CHECK(other_first->choose("a.example").binding == store->choose("a.example").binding);
  CHECK(store->choose("b.example").binding != store->choose("a.example").binding);
  CHECK(store_of({"ecdsa"})->choose("a.example").binding != store->choose("a.example").binding);
}

TEST_CASE("one bad entry refuses the whole store") {
  const std::vector<CertificateFiles> files{keys().pair("ecdsa"), keys().pair("expired", "ecdsa")};
  const auto store = CertificateStore::load(files);
  REQUIRE(!store);
  CHECK(store.error().message.find("expired.pem") != std::string::npos);
  CHECK(!CertificateStore::load({}));
}

TEST_CASE("authorities") {
  CHECK(must(Authorities::load(keys().file("root.pem")))->digest() !=
        must(Authorities::load(keys().file("client_root.pem")))->digest());
  CHECK(!Authorities::load(keys().file("missing.pem")));
  CHECK(!Authorities::load(keys().file("ecdsa.key")));
}

TEST_CASE("an IP address is verified by a certificate's addresses, and never sent as a name") {
  for (const Version version : {Version::tls12, Version::tls13}) {
    for (const auto& [name, good] : {std::pair{"10.0.0.1", true}, std::pair{"fd00::1", true},
                                     std::pair{"10.0.0.2", false}, std::pair{"fd00::2", false}}) {
      CAPTURE(name);
      PairOptions options;
      options.server.max_version = version;
      options.name = name;
      options.sniffed = "-";
      Pair pair(std::move(options));
      const std::vector<CertificateFiles> files{keys().pair("addresses", "other")};
      pair.own_context.use(must(CertificateStore::load(files)));
      pair.server.emplace(std::make_unique<Engine>(pair.own_context, pair.server_terms, "-"));
      pair.client->process();
      const Bytes hello = pair.client->take();
      CHECK(text_of(hello).find(name) == std::string::npos);
      pair.server->receive(hello);
      CHECK(pair.shake() == good);
      if (!good) CHECK(pair.client->engine->fault() == Fault::bad_certificate);
    }
  }
}

TEST_CASE("a chain that no Certificate message can hold is refused") {
  std::string text;
  for (const char* const name : {"ecdsa.pem", "root.pem"}) {
    const auto content = must(read_secret_file(keys().file(name), FileAccess::anyone));
    text += text_of(std::as_bytes(content.content()));
  }
  std::string many = text;
  while (many.size() < 30'000)
    many += text;
  says(complaint({keys().write("many.pem", many), keys().file("ecdsa.key")}),
       keys().file("many.pem"), "more than 16 KiB together");
}

}  // namespace
}  // namespace causeway::gateway::tls
