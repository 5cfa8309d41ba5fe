// SPDX-License-Identifier: Apache-2.0
#include "proto/hello.hpp"

#include <algorithm>
#include <utility>

#include "proto/bytes.hpp"

namespace causeway::proto {

namespace {

constexpr std::array<std::pair<RefuseReason, std::string_view>, 8> kRefuseReasons = {{
    {RefuseReason::version, "version"},
    {RefuseReason::malformed, "malformed"},
    {RefuseReason::session, "session"},
    {RefuseReason::lanes, "lanes"},
    {RefuseReason::busy, "busy"},
    {RefuseReason::not_allowed, "not_allowed"},
    {RefuseReason::stopping, "stopping"},
    {RefuseReason::other, "other"},
}};

}  // namespace

Detected detect(std::span<const std::byte, 4> first) {
  if (std::equal(first.begin(), first.end(), kPrefaceMagic.begin())) {
    return Detected::native;
  }
  return first[0] == std::byte{0} ? Detected::plain : Detected::unknown;
}

std::string session_text(const SessionId& id) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : id) {
    text += kDigits[std::to_integer<std::size_t>(byte >> 4)];
    text += kDigits[std::to_integer<std::size_t>(byte & std::byte{0xf})];
  }
  return text;
}

std::string_view to_string(HelloError error) {
  switch (error) {
    case HelloError::bad_magic:
      return "bad_magic";
    case HelloError::bad_version:
      return "bad_version";
    case HelloError::bad_length:
      return "bad_length";
    case HelloError::syntax:
      return "syntax";
    case HelloError::not_an_object:
      return "not_an_object";
    case HelloError::too_deep:
      return "too_deep";
    case HelloError::duplicate_key:
      return "duplicate_key";
    case HelloError::overlong:
      return "overlong";
    case HelloError::wrong_type:
      return "wrong_type";
    case HelloError::out_of_range:
      return "out_of_range";
    case HelloError::bad_value:
      return "bad_value";
    case HelloError::missing:
      return "missing";
  }
  return "?";
}

PrefaceStatus PrefaceReader::fail(HelloError error) {
  error_ = error;
  return PrefaceStatus::error;
}

// Judges what is buffered: the magic byte by byte, the fixed part once, then the whole hello.
PrefaceStatus PrefaceReader::advance() {
  const std::size_t magic = std::min(buffer_.size(), kPrefaceMagic.size());
  if (!std::equal(kPrefaceMagic.begin(), kPrefaceMagic.begin() + static_cast<std::ptrdiff_t>(magic),
                  buffer_.begin())) {
    return fail(HelloError::bad_magic);
  }
  if (buffer_.size() == kPrefaceHeaderSize) {
    version_ = load_be16(buffer_, 4);
    const std::size_t length = load_be16(buffer_, 6);
    if (length < 2 || length > kMaxHello) {
      return fail(HelloError::bad_length);
    }
    wanted_ = kPrefaceHeaderSize + length;
  }
  if (buffer_.size() < wanted_) {
    return PrefaceStatus::need_more;
  }
  if (version_ != kPrefaceVersion) {
    return fail(HelloError::bad_version);
  }
  auto decoded = decode_hello(std::span<const std::byte>(buffer_).subspan(kPrefaceHeaderSize));
  if (const auto* error = std::get_if<HelloError>(&decoded)) {
    return fail(*error);
  }
  hello_ = std::get<Hello>(std::move(decoded));
  return PrefaceStatus::done;
}

PrefaceReader::Fed PrefaceReader::feed(std::span<const std::byte> bytes) {
  std::size_t consumed = 0;
  while (status_ == PrefaceStatus::need_more && consumed < bytes.size()) {
    // The magic goes in byte by byte, so that a wrong one is not waited on and takes nothing else.
    const std::size_t step = buffer_.size() < kPrefaceMagic.size() ? 1 : wanted_ - buffer_.size();
    const auto piece = bytes.subspan(consumed, std::min(step, bytes.size() - consumed));
    buffer_.insert(buffer_.end(), piece.begin(), piece.end());
    consumed += piece.size();
    status_ = advance();
  }
  return {status_, consumed};
}

std::string_view to_string(RefuseReason reason) {
  for (const auto& [known, text] : kRefuseReasons) {
    if (known == reason) return text;
  }
  return "other";
}

RefuseReason refuse_reason(std::string_view text) {
  for (const auto& [reason, known] : kRefuseReasons) {
    if (known == text) return reason;
  }
  return RefuseReason::other;
}

Hello refusal(RefuseReason reason) {
  Hello hello;
  hello.refuse = std::string(to_string(reason));
  return hello;
}

Hello answer_to(const Hello& limits, const Hello& theirs) {
  Hello answer = limits;
  answer.session = theirs.session;
  answer.lane = theirs.lane;
  return answer;
}

std::variant<Agreement, RefuseReason> negotiate(const Hello& ours, const Hello& theirs) {
  if (theirs.refuse) {
    return refuse_reason(*theirs.refuse);
  }
  const auto version = std::min(ours.version_max, theirs.version_max);
  if (version < std::max(ours.version_min, theirs.version_min)) {
    return RefuseReason::version;
  }
  if (ours.session != theirs.session || ours.lane != theirs.lane) {
    return RefuseReason::session;
  }
  Agreement agreed{.version = version,
                   .features = ours.features & theirs.features,
                   .mtu = std::min(ours.mtu, theirs.mtu),
                   .max_frame = std::min({ours.max_frame, theirs.max_frame, kMaxFrame}),
                   .lanes = std::min(ours.lanes, theirs.lanes)};
  if (ours.lane >= agreed.lanes) {
    return RefuseReason::lanes;
  }
  if ((agreed.features & kFeatureOffload) == 0) {
    agreed.features &= ~kFeatureUso;
  }
  return agreed;
}

}  // namespace causeway::proto
