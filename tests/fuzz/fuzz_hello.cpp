// SPDX-License-Identifier: Apache-2.0
// The preface: the input is a stream, read whole and byte by byte. What is accepted is within its
// bounds, is encoded to a preface that reads back as the same hello, and is negotiated to the same
// agreement from both sides. The input as a bare hello and as a bare offer is tried as well.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "proto/hello.hpp"

namespace {

using namespace causeway::proto;

void require(bool holds) {
  if (!holds) std::abort();
}

void check_text(const std::string& text, std::size_t longest) {
  require(!text.empty() && text.size() <= longest);
  require(std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; }));
}

void check_offer(const Offer& offer) {
  if (offer.address4) check_text(offer.address4->address, kMaxAddressText);
  if (offer.address6) check_text(offer.address6->address, kMaxAddressText);
  require(!offer.address4 || offer.address4->prefix <= 32);
  require(!offer.address6 || offer.address6->prefix <= 128);
  if (offer.gateway4) check_text(*offer.gateway4, kMaxAddressText);
  if (offer.gateway6) check_text(*offer.gateway6, kMaxAddressText);
  require(offer.resolvers.size() <= kMaxResolvers);
  for (const auto& resolver : offer.resolvers) {
    check_text(resolver, kMaxAddressText);
  }
  require(!offer.mtu || (*offer.mtu >= kMinMtu && *offer.mtu <= kMaxMtu));
  const auto again = decode_offer(encode_offer(offer));
  require(std::holds_alternative<Offer>(again) && std::get<Offer>(again) == offer);
}

void check_hello(const Hello& hello) {
  require(hello.version_min >= 1 && hello.version_min <= hello.version_max);
  require(hello.lanes >= 1 && hello.lanes <= kMaxLanes && hello.lane < hello.lanes);
  require(hello.mtu >= kMinMtu && hello.mtu <= kMaxMtu);
  require(hello.max_frame >= kMinMaxFrame && hello.max_frame <= 0xffffff);
  if (hello.refuse) check_text(*hello.refuse, kMaxReason);
  if (hello.offer) check_offer(*hello.offer);

  const auto preface = encode_preface(hello);
  require(!preface.empty() && preface.size() <= kPrefaceHeaderSize + kMaxHello);
  PrefaceReader reader;
  const auto fed = reader.feed(preface);
  require(fed.status == PrefaceStatus::done && fed.consumed == preface.size());
  require(reader.hello() == hello);

  Hello ours;
  ours.version_max = 3;
  ours.lanes = 4;
  ours.features = kFeatureOffload | kFeatureKeepalive;
  const Hello answer = answer_to(ours, hello);
  const auto agreed = negotiate(answer, hello);
  if (hello.refuse) {
    require(std::holds_alternative<RefuseReason>(agreed));
  } else {
    require(negotiate(hello, answer) == agreed);
  }
  if (const auto* agreement = std::get_if<Agreement>(&agreed)) {
    require(!encode_preface(answer).empty());
    require(agreement->version >= 1 && agreement->version <= 3);
    require(hello.lane < agreement->lanes && agreement->lanes <= 4);
    require(agreement->max_frame <= kMaxFrame && agreement->mtu <= kDefaultMtu);
    require((agreement->features & kFeatureUso) == 0);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto input = std::as_bytes(std::span(data, size));
  PrefaceReader whole;
  const auto fed = whole.feed(input);
  require(fed.consumed <= size);
  require(fed.consumed == size || fed.status != PrefaceStatus::need_more);
  PrefaceReader bytewise;
  std::size_t consumed = 0;
  for (const std::byte byte : input) {
    consumed += bytewise.feed(std::span(&byte, 1)).consumed;
  }
  const auto end = bytewise.feed({});
  require(consumed == fed.consumed && end.status == fed.status && end.consumed == 0);
  if (fed.status == PrefaceStatus::error) {
    require(whole.error() == bytewise.error());
  } else if (fed.status == PrefaceStatus::done) {
    require(whole.hello() == bytewise.hello());
    check_hello(whole.hello());
  }

  const auto hello = decode_hello(input);
  if (std::holds_alternative<Hello>(hello)) check_hello(std::get<Hello>(hello));
  const auto offer = decode_offer(input);
  if (std::holds_alternative<Offer>(offer)) check_offer(std::get<Offer>(offer));
  return 0;
}
