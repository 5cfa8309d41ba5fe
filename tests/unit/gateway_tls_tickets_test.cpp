// SPDX-License-Identifier: Apache-2.0
#include "guest/gateway/tls/tickets.hpp"

#include <doctest/doctest.h>

#include <cstring>

#include "tests/unit/gateway_tls_peers.hpp"
#include "tests/unit/vectors.hpp"

namespace causeway::gateway::tls {
namespace {

using namespace test;
using namespace std::chrono_literals;
using Uchars = std::vector<unsigned char>;

Uchars uchars(std::string_view text) {
  return {text.begin(), text.end()};
}

Uchars from_hex(std::string_view hex) {
  Uchars out;
  for (const std::byte byte : causeway::test::unhex(hex)) {
    out.push_back(std::to_integer<unsigned char>(byte));
  }
  return out;
}

TEST_CASE("XAES-256-GCM: the vectors of c2sp.org/XAES-256-GCM") {
  crypto::initialise();
  struct Vector {
    unsigned char key;
    std::string additional;
    std::string sealed;
  };
  for (const Vector& vector :
       {Vector{0x01, "", "ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271"},
        Vector{0x03, "c2sp.org/XAES-256-GCM",
               "986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d"}}) {
    std::array<unsigned char, 32> key;
    key.fill(vector.key);
    const Uchars nonce = uchars("ABCDEFGHIJKLMNOPQRSTUVWX");
    const auto nonce_span = std::span(nonce).first<kTicketNonceBytes>();
    const Uchars additional = uchars(vector.additional);
    Uchars data = uchars("XAES-256-GCM");
    std::array<unsigned char, kTicketTagBytes> tag{};
    REQUIRE(xaes_seal(key, nonce_span, additional, data, tag) == 0);
    Uchars sealed = data;
    sealed.insert(sealed.end(), tag.begin(), tag.end());
    CHECK(sealed == from_hex(vector.sealed));
    CHECK(xaes_open(key, nonce_span, additional, data, tag) == 0);
    CHECK(data == uchars("XAES-256-GCM"));
    tag[0] ^= 1;
    CHECK(xaes_open(key, nonce_span, additional, data, tag) != 0);
  }
}

struct Ticket {
  Ticket() {
    crypto::initialise();
    mbedtls_ssl_session_init(&session);
    session.MBEDTLS_PRIVATE(tls_version) = MBEDTLS_SSL_VERSION_TLS1_2;
    session.MBEDTLS_PRIVATE(ciphersuite) = 0xc02b;
    session.MBEDTLS_PRIVATE(master)[5] = 42;
    state.issued = 1'700'000'000'123;
    state.authenticated = 1'600'000'000'000;
    state.certified = true;
    state.subject = "CN=somebody";
  }
  ~Ticket() { mbedtls_ssl_session_free(&session); }
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;

  Uchars seal(const TicketKeySet& set, const Digest& binding, std::size_t room = 2048) {
    crypto::Random random;
    Uchars out(room);
    std::size_t size = 0;
    const int failed = set.seal(session, state, binding, random, out, size);
    out.resize(failed == 0 ? size : 0);
    return out;
  }
  static int open(const TicketKeySet& set, const Digest& binding, Uchars ticket,
                  TicketState* state = nullptr, unsigned char* secret = nullptr) {
    mbedtls_ssl_session into;
    mbedtls_ssl_session_init(&into);
    TicketState ignored;
    const int failed = set.open(ticket, binding, into, state != nullptr ? *state : ignored);
    if (secret != nullptr) *secret = into.MBEDTLS_PRIVATE(master)[5];
    mbedtls_ssl_session_free(&into);
    return failed;
  }
  mbedtls_ssl_session session;
  TicketState state;
};

TEST_CASE("a ticket comes back whole, and only under its key and binding") {
  Ticket ticket;
  const TicketKeys keys;
  const auto set = keys.current();
  const Digest binding{1, 2, 3};
  const Uchars sealed = ticket.seal(*set, binding);
  REQUIRE(!sealed.empty());
  TicketState state;
  unsigned char secret = 0;
  REQUIRE(Ticket::open(*set, binding, sealed, &state, &secret) == 0);
  CHECK(secret == 42);
  CHECK(state.issued == ticket.state.issued);
  CHECK(state.authenticated == ticket.state.authenticated);
  CHECK(state.certified);
  CHECK(state.subject == "CN=somebody");

  CHECK(Ticket::open(*set, Digest{1, 2, 4}, sealed) == MBEDTLS_ERR_SSL_INVALID_MAC);
  CHECK(Ticket::open(*TicketKeys().current(), binding, sealed) == MBEDTLS_ERR_SSL_INVALID_MAC);
  // Every byte is authenticated, and every length is looked at.
  for (std::size_t i = 0; i < sealed.size(); ++i) {
    Uchars changed = sealed;
    changed[i] ^= 0x40;
    REQUIRE(Ticket::open(*set, binding, changed) != 0);
    REQUIRE(Ticket::open(*set, binding,
                         Uchars(sealed.begin(), sealed.begin() + static_cast<std::ptrdiff_t>(i))) !=
            0);
  }
  // Two of the same session are different, and a place that is too small is an error.
  CHECK(ticket.seal(*set, binding) != sealed);
  for (const std::size_t room : {0UL, 20UL, 60UL, 90UL, sealed.size() - 1}) {
    CHECK(ticket.seal(*set, binding, room).empty());
  }
  CHECK(ticket.seal(*set, binding, sealed.size()).size() == sealed.size());
  // A long subject is cut, not refused.
  ticket.state.subject = std::string(5000, 'x');
  REQUIRE(Ticket::open(*set, binding, ticket.seal(*set, binding), &state) == 0);
  CHECK(state.subject.size() == TicketState::kMaxSubject);
}

TEST_CASE("keys rotate after 6 h and are accepted for 12 h") {
  Ticket ticket;
  const Digest binding{7};
  auto now = TicketKeys::Clock::time_point{} + 1000h;
  TicketKeys keys(now);
  const auto generation = keys.generation();
  const auto first = keys.current();
  const Uchars old = ticket.seal(*first, binding);
  CHECK(!keys.rotate(now + 5h + 59min));
  CHECK(keys.generation() == generation);
  CHECK(keys.rotate(now + 6h));
  CHECK(keys.generation() != generation);
  const auto second = keys.current();
  CHECK(second->keys().size() == 2);
  CHECK(Ticket::open(*second, binding, old) == 0);
  const Uchars young = ticket.seal(*second, binding);
  CHECK(Ticket::open(*first, binding, young) != 0);
  CHECK(keys.rotate(now + 12h));
  const auto third = keys.current();
  CHECK(Ticket::open(*third, binding, old) != 0);
  CHECK(Ticket::open(*third, binding, young) == 0);
  CHECK(Ticket::open(*first, binding, old) == 0);  // who still holds a set is not disturbed
  // A long pause leaves none of the old.
  CHECK(keys.rotate(now + 100h));
  CHECK(keys.current()->keys().size() == 1);
}

TEST_CASE("key files: what they may hold") {
  const auto& directory = KeyDirectory::shared();
  const std::string line_a = std::string(32, 'a') + std::string(128, '1');
  const std::string line_b = std::string(32, 'B') + std::string(64, '2');
  const auto parse = [](std::string_view text) { return parse_ticket_keys(uchars(text), "keys"); };
  const auto keys = parse("# a comment\n" + line_a + "\r\n\n  " + "\n" + line_b);
  REQUIRE(keys);
  REQUIRE(keys->size() == 2);
  CHECK((*keys)[0].name[0] == 0xaa);
  CHECK((*keys)[1].name[0] == 0xbb);
  CHECK((*keys)[0].secret != (*keys)[1].secret);
  // Binary: the same key as its hexadecimal form.
  std::string binary(80, '\x11');
  std::fill_n(binary.begin(), 16, '\xaa');
  const auto same = parse(binary);
  REQUIRE(same);
  CHECK((*same)[0].secret == (*keys)[0].secret);
  CHECK(parse(std::string(48, '\x01')));

  for (const std::string& bad :
       {std::string(), std::string("\n# nothing\n"), std::string(79, '\x01'), line_a + "0",
        line_a + "00", std::string(160, 'g'), line_a + "\n" + line_a, std::string(64, 'a')}) {
    INFO(bad);
    const auto refused = parse(bad);
    REQUIRE(!refused);
    CHECK(refused.error().message.rfind("keys: ", 0) == 0);
    CHECK(refused.error().message.find('\n') == std::string::npos);
    CHECK(refused.error().message.find(line_a) == std::string::npos);  // no secret in a message
  }

  TicketKeys holder;
  const auto before = holder.current();
  const std::string open_to_all = directory.write("tickets_open", line_a, 0644);
  CHECK(!holder.load_file(open_to_all));
  CHECK(!holder.load_file(directory.file("missing")));
  CHECK(holder.current() == before);
  REQUIRE(holder.load_file(directory.write("tickets", line_a)));
  CHECK(holder.current() != before);
  CHECK(!holder.rotate(TicketKeys::Clock::now() + 100h));
  // Whoever has the file opens what another sealed; the first key seals, all open.
  Ticket ticket;
  const Uchars sealed = ticket.seal(*holder.current(), Digest{});
  TicketKeys sibling;
  REQUIRE(sibling.load_file(directory.write("tickets_2", line_b + "\n" + line_a)));
  CHECK(Ticket::open(*sibling.current(), Digest{}, sealed) == 0);
  CHECK(Ticket::open(*holder.current(), Digest{}, ticket.seal(*sibling.current(), Digest{})) != 0);
  REQUIRE(sibling.load_file(directory.write("tickets_3", line_b)));
  CHECK(Ticket::open(*sibling.current(), Digest{}, sealed) != 0);
  holder.forget_file();
  CHECK(Ticket::open(*holder.current(), Digest{}, sealed) != 0);
}

}  // namespace
}  // namespace causeway::gateway::tls
