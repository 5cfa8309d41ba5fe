// SPDX-License-Identifier: Apache-2.0
#include "proto/control.hpp"

#include <doctest/doctest.h>

#include <array>

#include "tests/unit/vectors.hpp"

namespace causeway::proto {
namespace {

using test::ByteVector;
using test::Json;

const char* kind_name(ControlKind kind) {
  constexpr std::array<const char*, 5> kNames = {"", "ping", "pong", "bye", "offer_changed"};
  return kNames.at(static_cast<std::size_t>(kind));
}

Json to_json(const Control& control) {
  Json json = {{"kind", kind_name(control.kind)}};
  if (control.kind == ControlKind::bye) {
    json["reason"] = static_cast<unsigned>(control.reason);
  } else if (control.kind == ControlKind::offer_changed) {
    json["offer"] = test::hex(control.offer);
  } else {
    json["token"] = control.token;
  }
  return json;
}

TEST_CASE("control: the vectors") {
  const auto vectors = test::load_vectors("control");
  REQUIRE(vectors.size() > 10);
  for (const auto& vector : vectors) {
    CAPTURE(vector.at("name").get<std::string>());
    const ByteVector payload = test::join(vector.at("payload"));
    Control control;
    const ControlStatus status = decode_control(payload, control);
    if (vector.contains("error")) {
      CHECK(status == (vector.at("error") == "malformed" ? ControlStatus::malformed
                                                         : ControlStatus::unknown_kind));
      continue;
    }
    REQUIRE(status == ControlStatus::ok);
    CHECK(to_json(control) == vector.at("control"));
    if (vector.value("canonical", false)) {
      ByteVector out(payload.size());
      REQUIRE(encode_control(control, out) == payload.size());
      CHECK(out == payload);
      CHECK(encode_control(control, std::span(out).first(payload.size() - 1)) == 0);
    }
  }
}

TEST_CASE("control: every kind that is not defined is unknown, and is not encoded") {
  for (unsigned kind = 0; kind < 256; ++kind) {
    if (kind >= 1 && kind <= 4) continue;
    const ByteVector payload(16, static_cast<std::byte>(kind));
    Control control;
    CHECK(decode_control(payload, control) == ControlStatus::unknown_kind);
    ByteVector out(16);
    CHECK(encode_control(control, out) == 0);
  }
}

TEST_CASE("control: an offer that no record can hold is not encoded") {
  ByteVector out(8192);
  const ByteVector longest(kMaxOfferBody);
  const ByteVector too_long(kMaxOfferBody + 1);
  Control control{.kind = ControlKind::offer_changed, .token = 0, .reason = {}, .offer = longest};
  CHECK(encode_control(control, out) == kMaxControl);
  control.offer = too_long;
  CHECK(encode_control(control, out) == 0);
  control.offer = {};
  CHECK(encode_control(control, out) == 0);
}

TEST_CASE("control: names of the reasons") {
  CHECK(to_string(ByeReason::replaced) == "replaced");
  CHECK(to_string(static_cast<ByeReason>(200)) == "unspecified");
}

}  // namespace
}  // namespace causeway::proto
