// SPDX-License-Identifier: Apache-2.0
// Theory of operation: the preface and the hello of the native wire (PROTOCOL.md, "Preface").
//
// A native stream starts, in each direction, with "CWAY" | u16be version | u16be length | hello,
// the hello being a JSON object of at most 4096 bytes. The connecting side sends first; the
// listener answers with its own hello or with a refusal. Everything here is sans I/O: PrefaceReader
// is fed the bytes as they come and never takes one byte of the records that follow.
//
// The hello comes from a peer that is not trusted. It is parsed by a SAX handler (hello_json.cpp)
// that keeps only the fields it knows, bounds each of them, and refuses duplicate keys, wrong types
// and deep nesting; no exception leaves these functions. Set-up path: allocation is fine here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "proto/record.hpp"

namespace causeway::proto {

inline constexpr std::array<std::byte, 4> kPrefaceMagic = {std::byte{'C'}, std::byte{'W'},
                                                           std::byte{'A'}, std::byte{'Y'}};
inline constexpr std::uint16_t kPrefaceVersion = 1;  // layout of preface and hello
inline constexpr std::uint16_t kWireVersion = 1;     // records and their meaning
inline constexpr std::size_t kPrefaceHeaderSize = 8;
inline constexpr std::size_t kMaxHello = 4096;
inline constexpr std::size_t kMaxHelloDepth = 8;    // nested objects and arrays, the hello included
inline constexpr std::size_t kMaxKey = 64;          // bytes of any key
inline constexpr std::size_t kMaxAddressText = 64;  // bytes of any address, with its prefix
inline constexpr std::size_t kMaxReason = 64;
inline constexpr std::size_t kMaxResolvers = 8;
inline constexpr unsigned kMaxLanes = 16;
inline constexpr std::uint32_t kMinMtu = 576;        // RFC 791: what every IPv4 host takes
inline constexpr std::uint32_t kMaxMtu = 65'521;     // a TAP's highest
inline constexpr std::uint32_t kMinMaxFrame = 590;   // kMinMtu and an Ethernet header
inline constexpr std::uint32_t kDefaultMtu = 1'500;  // of a hello that names none

// What a stream speaks, from its first four bytes: "CWAY" is native; a first byte of 0 is a plain
// length below 16 MiB, which RecordReader then judges; anything else is neither.
enum class Detected : std::uint8_t { native, plain, unknown };
Detected detect(std::span<const std::byte, 4> first);

// Features, as bits. `uso` (UDP segmentation) means nothing without `offload`.
using Features = std::uint32_t;
inline constexpr Features kFeatureOffload = 1U << 0;
inline constexpr Features kFeatureUso = 1U << 1;
inline constexpr Features kFeatureKeepalive = 1U << 2;

struct OfferAddress {
  std::string address;      // only characters that an address can have; not parsed any further here
  std::uint8_t prefix = 0;  // 0-32 or 0-128
  friend bool operator==(const OfferAddress&, const OfferAddress&) = default;
};

// What the listener proposes for the guest's interface. Its texts are for the caller to validate.
struct Offer {
  std::optional<OfferAddress> address4;
  std::optional<OfferAddress> address6;
  std::optional<std::string> gateway4;
  std::optional<std::string> gateway6;
  std::vector<std::string> resolvers;  // IPv4 or IPv6
  std::optional<std::uint32_t> mtu;    // bytes, kMinMtu-kMaxMtu
  friend bool operator==(const Offer&, const Offer&) = default;
};

using SessionId = std::array<std::byte, 16>;
std::string session_text(const SessionId& id);  // 32 lower-case hex digits

struct Hello {
  std::uint16_t version_min = kWireVersion;
  std::uint16_t version_max = kWireVersion;
  SessionId session{};
  unsigned lane = 0;   // index of this stream, below `lanes`
  unsigned lanes = 1;  // wanted by the connecting side, allowed by the listener; 1-16
  Features features = 0;
  std::uint32_t mtu = kDefaultMtu;      // of the sender's TAP, bytes
  std::uint32_t max_frame = kMaxFrame;  // longest frame that the sender takes, bytes
  std::optional<Offer> offer;           // listener only
  std::optional<std::string> refuse;    // listener only: [a-z0-9_-], the stream ends here
  friend bool operator==(const Hello&, const Hello&) = default;
};

enum class HelloError : std::uint8_t {
  bad_magic,      // not "CWAY"
  bad_version,    // the preface's version is not 1: the hello was skipped
  bad_length,     // hello shorter than "{}" or longer than 4096 bytes
  syntax,         // not one JSON value in UTF-8 without a byte order mark
  not_an_object,  // one JSON value, but no object
  too_deep,
  duplicate_key,
  overlong,      // a key or a known text above its bound
  wrong_type,    // a known field of another JSON type (a fraction or an exponent included)
  out_of_range,  // a number outside its bounds, or more list entries than allowed
  bad_value,     // a known text with a character or form that it cannot have
  missing,       // no "versions" or no "session", in a hello that is not a refusal
};
std::string_view to_string(HelloError error);

// The JSON alone, as the hello of a preface and as the body of an offer_changed record.
std::variant<Hello, HelloError> decode_hello(std::span<const std::byte> json);
std::variant<Offer, HelloError> decode_offer(std::span<const std::byte> json);

// A whole preface; keys sorted, no white space. Empty when a peer would not accept this hello
// (a field out of its bounds). encode_offer: the same for the JSON of an offer.
std::vector<std::byte> encode_preface(const Hello& hello);
std::vector<std::byte> encode_offer(const Offer& offer);

enum class PrefaceStatus : std::uint8_t { need_more, done, error };

// Decodes one preface from a stream in pieces of any size.
class PrefaceReader {
 public:
  struct Fed {
    PrefaceStatus status;
    std::size_t consumed;  // of the bytes fed; the rest belongs to the records
  };
  // After done or error further bytes are not consumed. Errors in the first 8 bytes come with the
  // byte that shows them; all others once the whole hello is there, so that the stream can be
  // answered with a refusal and nothing unread is left behind it.
  Fed feed(std::span<const std::byte> bytes);

  [[nodiscard]] const Hello& hello() const { return hello_; }       // after done
  [[nodiscard]] HelloError error() const { return error_; }         // after error
  [[nodiscard]] std::uint16_t version() const { return version_; }  // with bad_version: theirs

 private:
  PrefaceStatus fail(HelloError error);
  PrefaceStatus advance();

  std::vector<std::byte> buffer_;  // never above kPrefaceHeaderSize + kMaxHello
  std::size_t wanted_ = kPrefaceHeaderSize;
  PrefaceStatus status_ = PrefaceStatus::need_more;
  HelloError error_ = HelloError::bad_magic;
  std::uint16_t version_ = 0;
  Hello hello_;
};

// Why a hello is refused: sent as "refuse", and what a received "refuse" means. Texts that are not
// in this list read as `other`.
enum class RefuseReason : std::uint8_t {
  version,      // no wire version in common
  malformed,    // the hello did not parse
  session,      // the answer names another session or lane than was asked for
  lanes,        // lane index outside what the listener allows
  busy,         // a limit of the listener is reached
  not_allowed,  // this guest is not served here
  stopping,     // the listener is going away
  other,
};
std::string_view to_string(RefuseReason reason);
RefuseReason refuse_reason(std::string_view text);

// A refusal to send; it carries our version range and nothing else.
Hello refusal(RefuseReason reason);

// The listener's answer: `limits` with the session and lane of the hello it answers. Send it only
// after negotiate(answer, theirs) agreed: with a lane that `limits` does not allow it is no valid
// hello and encode_preface() gives nothing.
Hello answer_to(const Hello& limits, const Hello& theirs);

struct Agreement {
  std::uint16_t version = 0;
  Features features = 0;
  std::uint32_t mtu = 0;        // both sides' GSO bound: the lower of the two
  std::uint32_t max_frame = 0;  // the lower of the two, at most kMaxFrame
  unsigned lanes = 0;           // the lower of the two
  friend bool operator==(const Agreement&, const Agreement&) = default;
};

// Both sides call this with their own hello first and come to the same agreement. A hello that
// refuses gives its reason back.
std::variant<Agreement, RefuseReason> negotiate(const Hello& ours, const Hello& theirs);

}  // namespace causeway::proto
