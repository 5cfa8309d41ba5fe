// SPDX-License-Identifier: Apache-2.0
#include "proto/hello.hpp"

#include <doctest/doctest.h>

#include <random>
#include <set>

#include "tests/unit/vectors.hpp"

namespace causeway::proto {
namespace {

using test::ByteVector;
using test::Json;

Json to_json(const Offer& offer) {
  Json json = Json::object();
  const auto prefixed = [](const OfferAddress& address) {
    return address.address + "/" + std::to_string(address.prefix);
  };
  if (offer.address4) json["address4"] = prefixed(*offer.address4);
  if (offer.address6) json["address6"] = prefixed(*offer.address6);
  if (offer.gateway4) json["gateway4"] = *offer.gateway4;
  if (offer.gateway6) json["gateway6"] = *offer.gateway6;
  if (!offer.resolvers.empty()) json["resolvers"] = offer.resolvers;
  if (offer.mtu) json["mtu"] = *offer.mtu;
  return json;
}

Json to_json(Features features) {
  Json names = Json::array();
  if (features & kFeatureOffload) names.push_back("offload");
  if (features & kFeatureUso) names.push_back("uso");
  if (features & kFeatureKeepalive) names.push_back("keepalive");
  return names;
}

Json to_json(const Hello& hello) {
  Json json = {{"versions", {hello.version_min, hello.version_max}}};
  if (hello.refuse) {
    json["refuse"] = *hello.refuse;
    return json;
  }
  json["session"] = session_text(hello.session);
  json["lane"] = hello.lane;
  json["lanes"] = hello.lanes;
  json["features"] = to_json(hello.features);
  json["mtu"] = hello.mtu;
  json["max_frame"] = hello.max_frame;
  if (hello.offer) json["offer"] = to_json(*hello.offer);
  return json;
}

Hello hello_of(const Json& json) {
  auto decoded = decode_hello(test::bytes_of(json.dump()));
  REQUIRE(std::holds_alternative<Hello>(decoded));
  return std::get<Hello>(decoded);
}

struct Outcome {
  PrefaceStatus status = PrefaceStatus::need_more;
  std::size_t consumed = 0;
  PrefaceReader reader;
};

Outcome feed(std::span<const std::byte> bytes, std::size_t chunk) {
  Outcome outcome;
  while (outcome.consumed < bytes.size()) {
    const auto piece =
        bytes.subspan(outcome.consumed, std::min(chunk, bytes.size() - outcome.consumed));
    const auto fed = outcome.reader.feed(piece);
    outcome.status = fed.status;
    outcome.consumed += fed.consumed;
    if (fed.status != PrefaceStatus::need_more) break;
    REQUIRE(fed.consumed == piece.size());
  }
  return outcome;
}

TEST_CASE("hello: the vectors, whole, byte by byte and in pieces") {
  const auto vectors = test::load_vectors("hello");
  REQUIRE(vectors.size() > 100);
  for (const auto& vector : vectors) {
    CAPTURE(vector.at("name").get<std::string>());
    const ByteVector preface = test::unhex(vector.at("preface").get<std::string>());
    const std::size_t after = vector.value("after", std::string()).size() / 2;
    for (const std::size_t chunk : {std::size_t{100'000}, std::size_t{1}, std::size_t{13}}) {
      const Outcome outcome = feed(preface, chunk);
      if (vector.contains("error")) {
        REQUIRE(outcome.status == PrefaceStatus::error);
        CHECK(to_string(outcome.reader.error()) == vector.at("error").get<std::string>());
      } else if (vector.contains("need_more")) {
        CHECK(outcome.status == PrefaceStatus::need_more);
        CHECK(outcome.consumed == preface.size());
      } else {
        REQUIRE(outcome.status == PrefaceStatus::done);
        CHECK(outcome.consumed == preface.size() - after);
        CHECK(to_json(outcome.reader.hello()) == vector.at("hello"));
        if (vector.value("canonical", false)) {
          CHECK(encode_preface(outcome.reader.hello()) == preface);
        }
      }
    }
  }
}

TEST_CASE("hello: what the first four bytes of a stream mean") {
  for (const auto& vector : test::load_vectors("hello", "detect")) {
    const ByteVector first = test::unhex(vector.at("first").get<std::string>());
    const auto expected = vector.at("is") == "native"  ? Detected::native
                          : vector.at("is") == "plain" ? Detected::plain
                                                       : Detected::unknown;
    CAPTURE(test::hex(first));
    CHECK(detect(std::span(first).first<4>()) == expected);
  }
}

TEST_CASE("hello: negotiation, and the same result on both sides") {
  for (const auto& vector : test::load_vectors("hello", "negotiate")) {
    CAPTURE(vector.at("name").get<std::string>());
    const Hello ours = hello_of(vector.at("ours"));
    const Hello theirs = hello_of(vector.at("theirs"));
    const auto result = negotiate(ours, theirs);
    if (vector.contains("refused")) {
      REQUIRE(std::holds_alternative<RefuseReason>(result));
      CHECK(to_string(std::get<RefuseReason>(result)) == vector.at("refused").get<std::string>());
    } else {
      REQUIRE(std::holds_alternative<Agreement>(result));
      const auto agreed = std::get<Agreement>(result);
      CHECK(Json{{"version", agreed.version},
                 {"features", to_json(agreed.features)},
                 {"mtu", agreed.mtu},
                 {"max_frame", agreed.max_frame},
                 {"lanes", agreed.lanes}} == vector.at("agreed"));
    }
    if (!theirs.refuse) CHECK(negotiate(theirs, ours) == result);
  }
}

TEST_CASE("hello: an answer names the session and the lane of the question") {
  Hello theirs;
  theirs.session.fill(std::byte{7});
  theirs.lane = 1;
  theirs.lanes = 4;
  Hello limits;
  limits.lanes = 2;
  Hello answer = answer_to(limits, theirs);
  auto result = negotiate(answer, theirs);
  REQUIRE(std::holds_alternative<Agreement>(result));
  CHECK(std::get<Agreement>(result).lanes == 2);
  CHECK_FALSE(encode_preface(answer).empty());
  theirs.lane = 2;  // the first one above the limit
  answer = answer_to(limits, theirs);
  result = negotiate(answer, theirs);
  REQUIRE(std::holds_alternative<RefuseReason>(result));
  CHECK(std::get<RefuseReason>(result) == RefuseReason::lanes);
  CHECK(encode_preface(answer).empty());
}

TEST_CASE("hello: refusals survive the wire, every reason") {
  for (int i = 0; i <= static_cast<int>(RefuseReason::other); ++i) {
    const auto reason = static_cast<RefuseReason>(i);
    const auto preface = encode_preface(refusal(reason));
    const Outcome outcome = feed(preface, 5);
    REQUIRE(outcome.status == PrefaceStatus::done);
    const auto result = negotiate(Hello{}, outcome.reader.hello());
    REQUIRE(std::holds_alternative<RefuseReason>(result));
    CHECK(std::get<RefuseReason>(result) == reason);
  }
  CHECK(refuse_reason("no such reason") == RefuseReason::other);
}

TEST_CASE("hello: nothing is consumed after the end, whatever the end was") {
  auto preface = encode_preface(Hello{});
  Outcome outcome = feed(preface, 1000);
  REQUIRE(outcome.status == PrefaceStatus::done);
  auto fed = outcome.reader.feed(preface);
  CHECK(fed.status == PrefaceStatus::done);
  CHECK(fed.consumed == 0);

  preface[2] = std::byte{'X'};
  outcome = feed(preface, 1000);
  CHECK(outcome.status == PrefaceStatus::error);
  CHECK(outcome.consumed == 3);
  fed = outcome.reader.feed(preface);
  CHECK(fed.status == PrefaceStatus::error);
  CHECK(fed.consumed == 0);
}

TEST_CASE("hello: a preface of another version is consumed whole, so that it can be answered") {
  const auto preface = test::unhex(
      "435741590102000461626364"
      "ffff");
  const Outcome outcome = feed(preface, 3);
  REQUIRE(outcome.status == PrefaceStatus::error);
  CHECK(outcome.reader.error() == HelloError::bad_version);
  CHECK(outcome.reader.version() == 0x0102);
  CHECK(outcome.consumed == 12);
}

TEST_CASE("hello: what a peer would not take is not encoded") {
  const auto refused = [](auto change) {
    Hello hello;
    change(hello);
    return encode_preface(hello).empty();
  };
  CHECK_FALSE(refused([](Hello&) {}));
  CHECK(refused([](Hello& hello) { hello.lanes = 17; }));
  CHECK(refused([](Hello& hello) { hello.lane = 1; }));
  CHECK(refused([](Hello& hello) { hello.mtu = 100; }));
  CHECK(refused([](Hello& hello) { hello.max_frame = 0x1000000; }));
  CHECK(refused([](Hello& hello) { hello.version_min = 2; }));
  CHECK(refused([](Hello& hello) { hello.features = 1U << 20; }));
  CHECK(refused([](Hello& hello) { hello.refuse = "Not a reason"; }));
  CHECK(refused([](Hello& hello) { hello.refuse = "\xff"; }));
  CHECK(refused(
      [](Hello& hello) { hello.offer.emplace().resolvers.assign(kMaxResolvers + 1, "::1"); }));
  CHECK(refused([](Hello& hello) { hello.offer.emplace().address4 = {{"192.0.2.1", 33}}; }));
}

TEST_CASE("hello: the JSON of an offer alone") {
  for (const auto& vector : test::load_vectors("control", "offers")) {
    CAPTURE(vector.at("name").get<std::string>());
    const auto decoded = decode_offer(test::bytes_of(vector.at("json").get<std::string>()));
    if (vector.contains("error")) {
      REQUIRE(std::holds_alternative<HelloError>(decoded));
      CHECK(to_string(std::get<HelloError>(decoded)) == vector.at("error").get<std::string>());
      continue;
    }
    REQUIRE(std::holds_alternative<Offer>(decoded));
    const auto& offer = std::get<Offer>(decoded);
    CHECK(to_json(offer) == vector.at("offer"));
    CHECK(decode_offer(encode_offer(offer)) == std::variant<Offer, HelloError>(offer));
  }
}

TEST_CASE("hello: random changes of a good preface never do more than fail") {
  Hello hello;
  hello.offer.emplace().address4 = {{"192.0.2.2", 30}};
  hello.offer->resolvers = {"192.0.2.1", "::1"};
  const auto good = encode_preface(hello);
  std::mt19937 random(3);
  std::set<std::string> seen;
  for (int round = 0; round < 20'000; ++round) {
    auto preface = good;
    for (auto changes = 1 + random() % 3; changes > 0; --changes) {
      preface[random() % preface.size()] = static_cast<std::byte>(random() & 0xff);
    }
    const Outcome outcome = feed(preface, 1 + random() % 64);
    REQUIRE(outcome.consumed <= preface.size());
    if (outcome.status == PrefaceStatus::error) {
      seen.emplace(to_string(outcome.reader.error()));
    } else if (outcome.status == PrefaceStatus::done) {
      REQUIRE_FALSE(encode_preface(outcome.reader.hello()).empty());
    }
  }
  CHECK(seen.size() > 5);
}

TEST_CASE("hello: every name of an error is its own") {
  std::set<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(HelloError::missing); ++i) {
    names.insert(to_string(static_cast<HelloError>(i)));
  }
  CHECK(names.size() == static_cast<std::size_t>(HelloError::missing) + 1);
}

}  // namespace
}  // namespace causeway::proto
