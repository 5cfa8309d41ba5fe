// SPDX-License-Identifier: Apache-2.0
#include "guest/gateway/sniff/client_hello.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>

#include "tests/unit/client_hellos.hpp"
#include "tests/unit/vectors.hpp"

namespace causeway::gateway {
namespace {

using namespace test::tls;
using test::bytes_of;
using State = ClientHelloReader::State;
using Fault = HelloFault;

struct Outcome {
  State state = State::need_more;
  Fault fault = Fault::none;
  Alert alert = Alert::decode_error;
  std::string name;
  std::vector<std::string> alpn;
  bool tls13 = false;
  std::size_t received = 0;  // bytes in hand when the outcome was known
  std::size_t examined = 0;

  [[nodiscard]] bool same(const Outcome& other) const {
    return state == other.state && fault == other.fault && alert == other.alert &&
           name == other.name && alpn == other.alpn && tls13 == other.tls13;
  }
};

// As it comes from a socket, `step` bytes more each time.
Outcome read_cut(const std::string& stream, std::size_t step) {
  const auto bytes = bytes_of(stream);
  ClientHelloReader reader;
  Outcome out;
  while (out.state == State::need_more && out.received < bytes.size()) {
    out.received = std::min(bytes.size(), out.received + step);
    out.state = reader.read(std::span(bytes).first(out.received));
    if (out.state == State::need_more && out.received >= ClientHelloReader::kMaxHelloBytes) {
      FAIL("more is needed than the bound allows");
    }
  }
  REQUIRE(reader.read(bytes) == out.state);  // and says so again
  out.fault = reader.fault();
  out.alert = reader.alert();
  out.name = reader.hello().server_name;
  out.alpn.assign(reader.hello().alpn.begin(), reader.hello().alpn.end());
  out.tls13 = reader.hello().tls13;
  out.examined = reader.examined();
  return out;
}

// The outcome of the whole, which must not depend on how it is cut.
Outcome read(const std::string& stream) {
  const Outcome whole = read_cut(stream, stream.size() + 1);
  for (const std::size_t step : {1, 2, 7, 536}) {
    CAPTURE(step);
    REQUIRE(read_cut(stream, step).same(whole));
  }
  return whole;
}

void check_done(const std::string& stream, const std::string& name) {
  const Outcome out = read(stream);
  CHECK(out.state == State::done);
  CHECK(out.fault == Fault::none);
  CHECK(out.name == name);
}

void check_refused(const std::string& stream, Fault fault, Alert alert) {
  const Outcome out = read(stream);
  CHECK(out.state == State::refused);
  CHECK(out.fault == fault);
  CHECK(out.alert == alert);
  CHECK(out.name.empty());
}

void check_lies(const std::string& stream) {
  check_refused(stream, Fault::malformed, Alert::decode_error);
}

test::Json recorded() {
  std::ifstream file(CAUSEWAY_SOURCE_DIR "/tests/unit/data/client_hellos.json");
  return test::Json::parse(file).at("cases");
}

std::string recorded_stream(const test::Json& client) {
  const auto bytes = test::unhex(client.at("bytes").get<std::string>());
  std::string stream;
  std::transform(bytes.begin(), bytes.end(), std::back_inserter(stream),
                 [](std::byte byte) { return std::to_integer<char>(byte); });
  return stream;
}

TEST_CASE("ClientHello: what real clients sent") {
  for (const test::Json& client : recorded()) {
    CAPTURE(client.at("client").get<std::string>());
    const Outcome out = read(recorded_stream(client));
    CHECK(out.state == State::done);
    CHECK(out.name == client.at("server_name").get<std::string>());
    CHECK(out.alpn == client.at("alpn").get<std::vector<std::string>>());
    CHECK(out.tls13 == client.at("tls13").get<bool>());
  }
}

TEST_CASE("ClientHello: a browser's, of more than one segment") {
  const std::string stream = record(browser_message("app.example.org"));
  CHECK(stream.size() > 1500);
  const Outcome out = read(stream + "what follows is not looked at");
  CHECK(out.state == State::done);
  CHECK(out.name == "app.example.org");
  CHECK(out.alpn == std::vector<std::string>{"h2", "http/1.1"});
  CHECK(out.tls13);
}

TEST_CASE("ClientHello: until its last byte is there, more is needed") {
  std::vector<std::string> streams = {record(browser_message("app.example.org")),
                                      records(browser_message("app.example.org"), 100),
                                      records(hello_message(sni("a.b")), 1)};
  for (const test::Json& client : recorded())
    streams.push_back(recorded_stream(client));
  for (const std::string& stream : streams) {
    const auto bytes = bytes_of(stream);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      CAPTURE(size);
      ClientHelloReader reader;
      REQUIRE(reader.read(std::span(bytes).first(size)) == State::need_more);
      REQUIRE(reader.alert() == Alert::decode_error);
    }
    CHECK(read_cut(stream, 1).received == bytes.size());
  }
}

TEST_CASE("ClientHello: the rest of its record and other messages behind it do not matter") {
  check_done(record(hello_message(sni("a.b")) + "another message"), "a.b");
  const std::string whole = hello_message(sni("a.b"));
  check_done(record(whole.substr(0, 20)) + record(whole.substr(20) + "more"), "a.b");
  const auto cut = bytes_of(record(whole + std::string(100, 'm')).substr(0, 5 + whole.size()));
  CHECK(ClientHelloReader().read(cut) == State::done);
}

TEST_CASE("ClientHello: over several records, cut anywhere") {
  const std::string whole = hello_message(sni("a.example") + alpn({"h2"}));
  for (std::size_t each = 1; each <= whole.size(); ++each) {
    CAPTURE(each);
    const Outcome out = read_cut(records(whole, each), std::string::npos);
    REQUIRE(out.state == State::done);
    REQUIRE(out.name == "a.example");
    REQUIRE(out.alpn == std::vector<std::string>{"h2"});
  }
  check_done(records(whole, 1), "a.example");
  // 16 KiB in records of 1 KiB: the header of each is its own.
  check_done(records(padded_message(sni("a.b"), ClientHelloReader::kMaxHello), 1024), "a.b");
}

TEST_CASE("ClientHello: records of one byte are bounded") {
  constexpr std::size_t kMost = ClientHelloReader::kMaxHelloBytes / 6;
  check_done(records(padded_message(sni("a.b"), kMost), 1), "a.b");
  const std::string more = records(padded_message(sni("a.b"), kMost + 1), 1);
  check_refused(more, Fault::too_long, Alert::illegal_parameter);
  CHECK(read_cut(more, 1).received <= ClientHelloReader::kMaxHelloBytes);
  // To the byte: the last record ends where the limit is, or one behind it.
  constexpr std::size_t kSingle = 3000;
  constexpr std::size_t kLast = ClientHelloReader::kMaxHelloBytes - 6 * kSingle - 5;
  for (const std::size_t excess : {0, 1}) {
    const std::string whole = padded_message(sni("a.b"), kSingle + kLast + excess);
    const std::string stream = records(whole.substr(0, kSingle), 1) + record(whole.substr(kSingle));
    REQUIRE(stream.size() == ClientHelloReader::kMaxHelloBytes + excess);
    CHECK((read(stream).state == State::done) == (excess == 0));
  }
}

TEST_CASE("ClientHello: exactly as long as it may be, and one byte more") {
  const std::string most = padded_message(sni("a.b"), ClientHelloReader::kMaxHello);
  REQUIRE(most.size() == 16384);
  check_done(record(most), "a.b");
  check_done(records(most, 16383), "a.b");
  const std::string more = padded_message(sni("a.b"), ClientHelloReader::kMaxHello + 1);
  check_refused(records(more, 10000), Fault::too_long, Alert::illegal_parameter);
  CHECK(read_cut(records(more, 10000), 1).received == 9);  // known from its header
  check_refused(record(u8(1) + u24(0xffffff)), Fault::too_long, Alert::illegal_parameter);
}

TEST_CASE("ClientHello: a client that sends a byte at a time costs O(n)") {
  const std::string most = padded_message(sni("a.b"), ClientHelloReader::kMaxHello);
  for (const std::string& stream :
       {record(most), records(most, 8192), records(most, 25), records(most.substr(0, 3000), 1)}) {
    CAPTURE(stream.size());
    const std::size_t whole = read_cut(stream, stream.size()).examined;
    CHECK(whole >= most.size() / 6);
    CHECK(whole <= 4 * stream.size());
    CHECK(read_cut(stream, 1).examined <= whole + 2 * stream.size());
  }
}

TEST_CASE("ClientHello: host names") {
  const std::string label63(63, 'a');
  const std::string name253 = label63 + "." + label63 + "." + label63 + "." + std::string(61, 'b');
  REQUIRE(name253.size() == 253);
  const std::vector<std::pair<std::string, std::string>> good = {
      {"example.org", "example.org"},
      {"EXAMPLE.Org", "example.org"},
      {"example.org.", "example.org"},
      {"localhost", "localhost"},
      {"a", "a"},
      {"web_1.internal", "web_1.internal"},
      {"_acme.example", "_acme.example"},
      {"xn--bcher-kva.example", "xn--bcher-kva.example"},
      {"a--b.c-d", "a--b.c-d"},
      {"1.2.3.4.example", "1.2.3.4.example"},
      {"256.0.0.0x1", "256.0.0.0x1"},
      {label63 + ".b", label63 + ".b"},
      {name253, name253},
      {name253 + ".", name253}};
  for (const auto& [sent, name] : good) {
    CAPTURE(sent);
    check_done(hello(sni(sent)), name);
  }
  std::istringstream words(
      ". .. .example a..b example.. -a.example a-.example a.- - a.example- a/b *.example a:443 "
      "10.0.0.1 10.0.0.1. a.b.12 256.256.256.256 4294967295 ::1 [::1] fe80::1%eth0");
  std::vector<std::string> bad{std::istream_iterator<std::string>(words), {}};
  for (const std::string& sent :
       {std::string("a b"), std::string("a\nb"), std::string("a\0b", 3), std::string("a.b\0", 4),
        std::string(1, '\0'), std::string("b\303\274cher.example"),  // IDNA is sent as xn--
        std::string("a\303"), std::string("a\377.b"), std::string("a\200"),
        std::string(64, 'a') + ".b", "a." + std::string(64, 'a'), name253 + "b", name253 + "..",
        std::string(12000, 'a')}) {
    bad.push_back(sent);
  }
  for (const std::string& sent : bad) {
    CAPTURE(sent);
    check_refused(hello(sni(sent)), Fault::bad_name, Alert::unrecognized_name);
  }
}

TEST_CASE("ClientHello: the list of names") {
  check_done(hello(""), "");
  check_done(record(message(Body{}.text())), "");  // no extensions at all
  check_done(hello(alpn({"h2"}) + supported_versions({0x0304})), "");
  // Names of other types are skipped, wherever they stand.
  const std::string other = name_entry("\x01\x02", 7);
  check_done(hello(extension(0, vec16(other))), "");
  check_done(hello(extension(0, vec16(other + name_entry("a.b")))), "a.b");
  check_done(hello(extension(0, vec16(name_entry("a.b") + other + name_entry("", 8)))), "a.b");
  // One of a type (RFC 6066 3).
  const Alert twice = Alert::illegal_parameter;
  check_refused(hello(extension(0, vec16(name_entry("a.b") + name_entry("c.d")))), Fault::malformed,
                twice);
  check_refused(hello(extension(0, vec16(name_entry("a.b") + name_entry("a.b")))), Fault::malformed,
                twice);
  check_refused(hello(extension(0, vec16(other + other))), Fault::malformed, twice);
  check_lies(hello(sni("")));
  check_lies(hello(extension(0, vec16(""))));
  check_lies(hello(extension(0, "")));
  check_lies(hello(extension(0, u8(0))));
  check_lies(hello(extension(0, vec16(name_entry("a.b")) + "x")));
  check_lies(hello(extension(0, vec16(name_entry("a.b") + "x"))));
  check_lies(hello(extension(0, u16(5) + name_entry("a.b"))));
  check_lies(hello(extension(0, u16(7) + name_entry("a.b"))));
  check_lies(hello(extension(0, vec16(u8(0) + u16(4) + "a.b"))));
  check_lies(hello(extension(0, vec16(u8(0) + u16(2) + "a.b"))));
}

TEST_CASE("ClientHello: ALPN") {
  CHECK(read(hello(alpn({"h2"}))).alpn == std::vector<std::string>{"h2"});
  const std::string longest(255, 'p');
  CHECK(read(hello(alpn({longest, std::string("\0\n", 2), "h2"}))).alpn ==
        std::vector<std::string>{longest, std::string("\0\n", 2), "h2"});
  check_lies(hello(alpn({})));
  check_lies(hello(alpn({""})));
  check_lies(hello(alpn({"h2", ""})));
  check_lies(hello(extension(16, "")));
  check_lies(hello(extension(16, u8(0))));
  check_lies(hello(extension(16, vec16(vec8("h2")) + "x")));
  check_lies(hello(extension(16, u16(2) + vec8("h2"))));
  check_lies(hello(extension(16, u16(4) + vec8("h2"))));
  check_lies(hello(extension(16, vec16(u8(3) + "h2"))));
  check_lies(hello(extension(16, vec16(u8(1) + "h2"))));

  std::vector<std::string> many;
  for (int i = 0; i < 200; ++i)
    many.push_back("p" + std::to_string(i));
  std::vector<std::string> kept(many.begin(), many.begin() + ClientHelloReader::kMaxAlpn);
  CHECK(read(hello(alpn(many))).alpn == kept);
  // 510 of 512 bytes are taken: the next long one is passed over, a short one still fits.
  CHECK(read(hello(alpn({longest, longest, "h2c", "h2", "x"}))).alpn ==
        std::vector<std::string>{longest, longest, "h2"});
  CHECK(read(hello(alpn({std::string(255, 'a'), std::string(255, 'b'), "abc"}))).alpn.size() == 2);

  const auto stream = bytes_of(hello(alpn({"h2", "http/1.1"})));
  ClientHelloReader reader;
  CHECK_FALSE(reader.hello().offers("h2"));
  REQUIRE(reader.read(stream) == State::done);
  CHECK(reader.hello().offers("h2"));
  CHECK(reader.hello().offers("http/1.1"));
  CHECK_FALSE(reader.hello().offers("http/1"));
  CHECK_FALSE(reader.hello().offers(""));
}

TEST_CASE("ClientHello: supported versions") {
  CHECK(read(hello(supported_versions({0x0304}))).tls13);
  CHECK(read(hello(supported_versions({0x5a5a, 0x0303, 0x0304}))).tls13);
  CHECK_FALSE(read(hello(supported_versions({0x0303, 0x0403, 0x0305}))).tls13);
  CHECK_FALSE(read(hello("")).tls13);
  check_lies(hello(supported_versions({})));
  check_lies(hello(extension(43, "")));
  check_lies(hello(extension(43, vec8(u16(0x0304) + u8(3)))));
  check_lies(hello(extension(43, vec8(u8(3)))));
  check_lies(hello(extension(43, vec8(u16(0x0304)) + "x")));
  check_lies(hello(extension(43, u8(4) + u16(0x0304))));
}

TEST_CASE("ClientHello: extensions") {
  const Alert twice = Alert::illegal_parameter;
  check_refused(hello(sni("a.b") + sni("a.b")), Fault::malformed, twice);
  check_refused(hello(alpn({"h2"}) + sni("a.b") + alpn({"h2"})), Fault::malformed, twice);
  check_refused(hello(extension(0x0a0a, "") + extension(0x0a0a, "")), Fault::malformed, twice);
  check_refused(hello(extension(0xffff, "") + extension(0xffff, "x")), Fault::malformed, twice);
  check_done(hello(extension(0x0a0a, "") + sni("a.b") + extension(0x1a1a, u8(0))), "a.b");

  const std::string list = sni("a.b");
  const auto with = [](const std::string& extensions) {
    Body body;
    body.extensions = extensions;
    return record(message(body.text()));
  };
  check_done(with(vec16(list)), "a.b");
  check_lies(with(u16(list.size() - 1) + list));
  check_lies(with(u16(list.size() + 1) + list));
  check_lies(with(vec16(list) + "x"));
  check_lies(with(u8(0)));
  check_lies(with(vec16(list + "x")));
  check_lies(with(vec16(list + u16(21))));
  check_lies(with(vec16(list + u16(21) + u8(0))));
  check_lies(with(vec16(list + u16(21) + u16(1))));
  check_lies(with(vec16(u16(0) + u16(list.size() - 3) + list.substr(4))));
  check_lies(with(vec16(u16(21) + u16(0xffff) + list)));

  std::string many;  // as many as there is room for
  for (std::size_t type = 100; many.size() < 16000; ++type)
    many += extension(type, "");
  check_done(hello(many + sni("a.b")), "a.b");
  check_refused(hello(many + sni("a.b") + extension(100, "")), Fault::malformed, twice);
}

TEST_CASE("ClientHello: the fields in front of the extensions") {
  const auto with = [](auto change) {
    Body body;
    body.extensions = vec16(sni("a.b"));
    change(body);
    return record(message(body.text()));
  };
  for (const std::size_t size : {0, 1, 31, 32}) {
    check_done(with([&](Body& b) { b.session = vec8(std::string(size, 's')); }), "a.b");
  }
  check_lies(with([](Body& b) { b.session = vec8(std::string(33, 's')); }));
  check_lies(with([](Body& b) { b.session = vec8(std::string(255, 's')); }));
  check_lies(with([](Body& b) { b.ciphers = vec16(""); }));
  check_lies(with([](Body& b) { b.ciphers = vec16("x"); }));
  check_lies(with([](Body& b) { b.ciphers = vec16(u16(0x1301) + u8(0x13)); }));
  check_lies(with([](Body& b) { b.ciphers = u16(0xfffe) + u16(0x1301); }));
  check_done(with([](Body& b) { b.ciphers = vec16(u16(0x1301)); }), "a.b");
  check_lies(with([](Body& b) { b.compressions = vec8(""); }));
  check_lies(with([](Body& b) { b.compressions = u8(0xff) + u8(0); }));
  check_done(with([](Body& b) { b.compressions = vec8(std::string("\1\0", 2)); }), "a.b");
  // The version is the server's business.
  for (const std::size_t version : {0x0300, 0x0301, 0x0303, 0x0304, 0x7f1c}) {
    check_done(with([&](Body& b) { b.version = u16(version); }), "a.b");
  }

  // A message that ends too early, at every byte of it; only without extensions is it whole.
  Body body;
  const std::size_t bare = body.text().size();
  body.extensions = vec16(sni("a.b") + alpn({"h2"}));
  const std::string text = body.text();
  for (std::size_t size = 0; size < text.size(); ++size) {
    CAPTURE(size);
    const std::string stream = record(message(text.substr(0, size)));
    if (size == bare) {
      check_done(stream, "");
    } else {
      check_lies(stream);
      check_lies(records(message(text.substr(0, size)), 1));
    }
  }
}

TEST_CASE("ClientHello: what is no TLS is seen at once") {
  const auto refused_at = [](const std::string& stream, std::size_t received, Fault fault) {
    CAPTURE(stream);
    check_refused(stream, fault, Alert::unexpected_message);
    CHECK(read_cut(stream, 1).received == received);
  };
  refused_at("GET / HTTP/1.1\r\nHost: a.b\r\n\r\n", 1, Fault::not_tls);
  refused_at("SSH-2.0-OpenSSH_9.2\r\n", 1, Fault::not_tls);
  refused_at("PROXY TCP4 ", 1, Fault::not_tls);
  refused_at(u16(0x802e) + u8(1) + u16(0x0301) + u16(0x15), 1, Fault::not_tls);  // SSL 2.0
  refused_at(std::string(5, '\0'), 1, Fault::not_tls);
  refused_at(std::string(5, '\xff'), 1, Fault::not_tls);
  refused_at(u8(19) + u16(0x0301), 1, Fault::not_tls);
  refused_at(u8(25) + u16(0x0301), 1, Fault::not_tls);
  refused_at(record(hello_message(""), 22, 0x0200), 2, Fault::not_tls);
  refused_at(record(hello_message(""), 22, 0xfeff), 2, Fault::not_tls);  // DTLS
  refused_at(u16(0x1516), 2, Fault::not_tls);
  // TLS, but not what a connection begins with.
  refused_at(record(u16(0x0100), 21), 2, Fault::not_a_hello);
  refused_at(record(u8(1), 20), 2, Fault::not_a_hello);
  refused_at(record("data", 23), 2, Fault::not_a_hello);
  refused_at(record("beat", 24), 2, Fault::not_a_hello);
  refused_at(record(message(Body{}.text(), 2)), 6, Fault::not_a_hello);
  refused_at(record(message("", 0)), 6, Fault::not_a_hello);
  refused_at(records(message(Body{}.text(), 11), 1), 6, Fault::not_a_hello);
  for (const std::size_t version : {0x0300, 0x0301, 0x0303, 0x0304, 0x03ff}) {
    check_done(record(hello_message(sni("a.b")), 22, version), "a.b");
  }
}

TEST_CASE("ClientHello: records that lie, and what may not come between them") {
  check_lies(record("") + hello(sni("a.b")));
  const std::string whole = hello_message(sni("a.b"));
  const std::string front = record(whole.substr(0, 30));
  check_done(front + record(whole.substr(30), 22, 0x0303), "a.b");
  check_lies(front + record("") + record(whole.substr(30)));
  check_lies(front + record(whole.substr(30), 22, 0x0203));
  const Alert unexpected = Alert::unexpected_message;
  check_refused(front + record(u16(0x0100), 21) + record(whole.substr(30)), Fault::malformed,
                unexpected);
  check_refused(front + "GET / HTTP/1.1\r\n", Fault::malformed, Alert::decode_error);
  check_refused(u8(22) + u16(0x0301) + u16(16385), Fault::too_long, Alert::record_overflow);
  check_refused(front + u8(22) + u16(0x0301) + u16(0xffff), Fault::too_long,
                Alert::record_overflow);
}

TEST_CASE("ClientHello: every change of one byte has an outcome, the same however it is cut") {
  const std::string stream = recorded_stream(recorded().at(0));
  std::size_t refused = 0;
  for (std::size_t at = 0; at < stream.size(); ++at) {
    for (int change = 1; change < 256; ++change) {
      std::string changed = stream;
      changed[at] = static_cast<char>(changed[at] ^ change);
      const Outcome out = read_cut(changed, changed.size());
      refused += out.state == State::refused ? 1 : 0;
      if (change % 16 == 1) REQUIRE(read_cut(changed, 1).same(out));
    }
  }
  CHECK(refused > 1000);
}

TEST_CASE("ClientHello: more bytes and more calls change no answer") {
  for (const std::string& stream : {hello(sni("a.b")), hello(sni("")), std::string("GET")}) {
    auto bytes = bytes_of(stream);
    ClientHelloReader reader;
    const State state = reader.read(bytes);
    REQUIRE(state != State::need_more);
    const std::string name(reader.hello().server_name);
    const Fault fault = reader.fault();
    bytes.resize(bytes.size() + 100);
    CHECK(reader.read(bytes) == state);
    CHECK(reader.fault() == fault);
    CHECK(reader.hello().server_name == name);
  }
}

TEST_CASE("ClientHello: what is kept does not lie in the caller's buffer") {
  for (const std::size_t each : {10000, 50}) {
    auto bytes = bytes_of(records(hello_message(sni("a.b") + alpn({"h2"})), each));
    const auto reader = std::make_unique<ClientHelloReader>();
    REQUIRE(reader->read(bytes) == State::done);
    std::fill(bytes.begin(), bytes.end(), std::byte{0});
    CHECK(reader->hello().server_name == "a.b");
    CHECK(reader->hello().offers("h2"));
  }
}

TEST_CASE("TLS alerts as a client reads them") {
  const auto hex = [](Alert alert) { return test::hex(alert_record(alert)); };
  CHECK(hex(Alert::unrecognized_name) == "15030300020270");
  CHECK(hex(Alert::decode_error) == "15030300020232");
  CHECK(hex(Alert::unexpected_message) == "1503030002020a");
  CHECK(hex(Alert::no_application_protocol) == "15030300020278");
  CHECK(hex(Alert::close_notify) == "15030300020100");
  CHECK(hex(Alert::user_canceled) == "1503030002015a");
}

TEST_CASE("a hello of several records is joined into one, and what follows stays behind it") {
  const std::string whole = browser_message("app.example.org");
  const std::string after = "\x14\x03\x03";  // the begin of something else
  for (const std::size_t each : {std::size_t{1}, std::size_t{3}, std::size_t{100}, whole.size()}) {
    CAPTURE(each);
    auto bytes = bytes_of(records(whole, each) + after);
    const std::size_t size = join_records(bytes);
    const auto joined = bytes_of(records(whole, whole.size()) + after);
    REQUIRE(size == joined.size());
    CHECK(std::equal(joined.begin(), joined.end(), bytes.begin()));
  }
  // A second message in the last record comes along; what is cut short is left as it is.
  auto two = bytes_of(record(whole.substr(0, 50)) + record(whole.substr(50) + "more"));
  CHECK(join_records(two) == 5 + whole.size() + 4);
  auto cut = bytes_of(records(whole, 100).substr(0, 150));
  CHECK(join_records(cut) == 150);
}

}  // namespace
}  // namespace causeway::gateway
