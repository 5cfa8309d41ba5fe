// SPDX-License-Identifier: Apache-2.0
#include "guest/gateway/sniff/client_hello.hpp"

#include <algorithm>
#include <bitset>
#include <cstring>

#include "proto/bytes.hpp"

namespace causeway::gateway {

namespace {

using Bytes = std::span<const std::byte>;

// RFC 8446 5.1 and B.1.
constexpr std::size_t kRecordHeader = 5;
constexpr std::size_t kMaxFragment = std::size_t{1} << 14;
constexpr std::uint8_t kFirstRecordType = 20;  // change_cipher_spec
constexpr std::uint8_t kAlertRecord = 21;
constexpr std::uint8_t kHandshakeRecord = 22;
constexpr std::uint8_t kLastRecordType = 24;  // heartbeat, RFC 6520
constexpr std::uint8_t kMajorVersion = 3;     // SSL 3.0 to TLS 1.3

// RFC 8446 4 and 4.1.2.
constexpr std::size_t kMessageHeader = 4;
constexpr std::uint8_t kClientHelloType = 1;
constexpr std::size_t kRandom = 32;
constexpr std::size_t kMaxSessionId = 32;
constexpr std::uint16_t kTls13 = 0x0304;

enum ExtensionType : std::uint16_t {
  kServerName = 0,          // RFC 6066
  kAlpn = 16,               // RFC 7301
  kSupportedVersions = 43,  // RFC 8446
};
constexpr std::uint8_t kHostName = 0;  // RFC 6066 NameType

// Reads fields in order; each read is false, and takes nothing, where the bytes do not suffice.
class Fields {
 public:
  explicit Fields(Bytes bytes) : rest_(bytes) {}
  [[nodiscard]] bool empty() const { return rest_.empty(); }

  bool take(std::size_t count, Bytes& out) {
    if (rest_.size() < count) return false;
    out = rest_.first(count);
    rest_ = rest_.subspan(count);
    return true;
  }
  bool u8(std::uint8_t& out) {
    Bytes field;
    if (!take(sizeof out, field)) return false;
    out = proto::load_u8(field, 0);
    return true;
  }
  bool u16(std::uint16_t& out) {
    Bytes field;
    if (!take(sizeof out, field)) return false;
    out = proto::load_be16(field, 0);
    return true;
  }
  // Vectors with a length of one or two bytes in front.
  bool vector8(Bytes& out) {
    std::uint8_t length = 0;
    return u8(length) && take(length, out);
  }
  bool vector16(Bytes& out) {
    std::uint16_t length = 0;
    return u16(length) && take(length, out);
  }

 private:
  Bytes rest_;
};

// What a hello says, still where it lies.
struct Parsed {
  Bytes host_name;
  Bytes protocols;  // the checked ALPN list, without its length
  bool tls13 = false;
};

enum class Verdict : std::uint8_t {
  good,
  lies,   // a length, or a vector with fewer elements than it must have
  twice,  // well formed, but what may be there once is there twice
};

Verdict parse_server_name(Bytes data, Parsed& out) {
  Fields extension(data);
  Bytes list;
  if (!extension.vector16(list) || !extension.empty() || list.empty()) return Verdict::lies;
  std::bitset<256> seen;
  Fields names(list);
  while (!names.empty()) {
    std::uint8_t type = 0;
    Bytes name;
    // Names of every type begin with a length of 16 bits, also those that do not exist yet.
    if (!names.u8(type) || !names.vector16(name)) return Verdict::lies;
    if (seen.test(type)) return Verdict::twice;
    seen.set(type);
    if (type != kHostName) continue;
    if (name.empty()) return Verdict::lies;
    out.host_name = name;
  }
  return Verdict::good;
}

Verdict parse_alpn(Bytes data, Parsed& out) {
  Fields extension(data);
  Bytes list;
  if (!extension.vector16(list) || !extension.empty() || list.empty()) return Verdict::lies;
  Fields protocols(list);
  while (!protocols.empty()) {
    Bytes protocol;
    if (!protocols.vector8(protocol) || protocol.empty()) return Verdict::lies;
  }
  out.protocols = list;
  return Verdict::good;
}

Verdict parse_supported_versions(Bytes data, Parsed& out) {
  Fields extension(data);
  Bytes list;
  if (!extension.vector8(list) || !extension.empty() || list.empty()) return Verdict::lies;
  Fields versions(list);
  while (!versions.empty()) {
    std::uint16_t version = 0;
    if (!versions.u16(version)) return Verdict::lies;
    out.tls13 = out.tls13 || version == kTls13;
  }
  return Verdict::good;
}

Verdict parse_extension(std::uint16_t type, Bytes data, Parsed& out) {
  switch (type) {
    case kServerName:
      return parse_server_name(data, out);
    case kAlpn:
      return parse_alpn(data, out);
    case kSupportedVersions:
      return parse_supported_versions(data, out);
    default:
      return Verdict::good;
  }
}

Verdict parse_body(Bytes body, Parsed& out) {
  Fields hello(body);
  std::uint16_t version = 0;
  Bytes random;
  Bytes session;
  Bytes ciphers;
  Bytes compressions;
  if (!hello.u16(version) || !hello.take(kRandom, random) || !hello.vector8(session) ||
      !hello.vector16(ciphers) || !hello.vector8(compressions)) {
    return Verdict::lies;
  }
  if (session.size() > kMaxSessionId || ciphers.empty() || ciphers.size() % 2 != 0 ||
      compressions.empty()) {
    return Verdict::lies;
  }
  if (hello.empty()) return Verdict::good;  // TLS 1.2 and before know hellos without extensions
  Bytes list;
  if (!hello.vector16(list) || !hello.empty()) return Verdict::lies;

  // There may be four thousand extensions in 16 KiB: comparing each with all others takes too long.
  std::bitset<65536> seen;
  Fields extensions(list);
  while (!extensions.empty()) {
    std::uint16_t type = 0;
    Bytes data;
    if (!extensions.u16(type) || !extensions.vector16(data)) return Verdict::lies;
    if (seen.test(type)) return Verdict::twice;
    seen.set(type);
    const Verdict verdict = parse_extension(type, data, out);
    if (verdict != Verdict::good) return verdict;
  }
  return Verdict::good;
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

}  // namespace

std::array<std::byte, 7> alert_record(Alert alert) {
  constexpr std::uint8_t kWarning = 1;
  constexpr std::uint8_t kFatal = 2;
  const bool warning = alert == Alert::close_notify || alert == Alert::user_canceled;
  std::array<std::byte, 7> record{};
  proto::store_u8(record, 0, kAlertRecord);
  proto::store_be16(record, 1, 0x0303);
  proto::store_be16(record, 3, 2);
  proto::store_u8(record, 5, warning ? kWarning : kFatal);
  proto::store_u8(record, 6, static_cast<std::uint8_t>(alert));
  return record;
}

bool ClientHello::offers(std::string_view protocol) const {
  return std::find(alpn.begin(), alpn.end(), protocol) != alpn.end();
}

std::size_t join_records(std::span<std::byte> bytes) {
  std::size_t out = kRecordHeader;  // behind what is joined
  std::size_t at = 0;
  std::size_t wanted = kMessageHeader;
  while (out - kRecordHeader < wanted) {
    if (bytes.size() - at < kRecordHeader) return bytes.size();
    const std::size_t length = proto::load_be16(bytes, at + 3);
    if (bytes.size() - at - kRecordHeader < length) return bytes.size();
    std::memmove(bytes.subspan(out).data(), bytes.subspan(at + kRecordHeader).data(), length);
    out += length;
    at += kRecordHeader + length;
    if (wanted == kMessageHeader && out - kRecordHeader >= kMessageHeader) {
      wanted += proto::load_be32(bytes, kRecordHeader) & 0xff'ffffU;
    }
  }
  // More than the hello in its last record is for TLS to refuse; so is a length that does not fit.
  proto::store_be16(bytes, 3,
                    static_cast<std::uint16_t>(std::min<std::size_t>(out - kRecordHeader, 0xffff)));
  const std::size_t rest = bytes.size() - at;
  std::memmove(bytes.subspan(out).data(), bytes.subspan(at).data(), rest);
  return out + rest;
}

ClientHelloReader::State ClientHelloReader::read(Bytes bytes) {
  bool goes_on = state_ == State::need_more;
  while (goes_on) {
    ++examined_;
    goes_on = record_left_ == 0 ? take_record_header(bytes) : take_payload(bytes);
  }
  if (state_ != State::need_more) std::vector<std::byte>().swap(parts_);
  return state_;
}

// Faults are found at the first byte that shows them: a client that is no TLS waits for no timeout.
bool ClientHelloReader::take_record_header(Bytes bytes) {
  const bool first = at_ == 0;
  if (at_ + kRecordHeader >= kMaxHelloBytes) {
    return refuse(HelloFault::too_long, Alert::illegal_parameter);
  }
  const Bytes header = bytes.subspan(at_);
  if (header.empty()) return false;
  const std::uint8_t type = proto::load_u8(header, 0);
  if (first && (type < kFirstRecordType || type > kLastRecordType)) {
    return refuse(HelloFault::not_tls, Alert::unexpected_message);
  }
  if (header.size() < 2) return false;
  // The minor version says nothing (RFC 8446 5.1).
  if (proto::load_u8(header, 1) != kMajorVersion) {
    return first ? refuse(HelloFault::not_tls, Alert::unexpected_message)
                 : refuse(HelloFault::malformed, Alert::decode_error);
  }
  if (type != kHandshakeRecord) {  // nothing may come between a message's records (RFC 8446 5.1)
    return refuse(first ? HelloFault::not_a_hello : HelloFault::malformed,
                  Alert::unexpected_message);
  }
  if (header.size() < kRecordHeader) return false;
  const std::uint16_t length = proto::load_be16(header, 3);
  if (length == 0) return refuse(HelloFault::malformed, Alert::decode_error);
  if (length > kMaxFragment) return refuse(HelloFault::too_long, Alert::record_overflow);
  examined_ += kRecordHeader;
  at_ += kRecordHeader;
  record_left_ = length;
  return true;
}

bool ClientHelloReader::take_payload(Bytes bytes) {
  const std::size_t wanted = (message_ != 0 ? message_ : kMessageHeader) - parts_.size();
  const std::size_t here = std::min(wanted, record_left_);
  if (at_ + here > kMaxHelloBytes) {
    return refuse(HelloFault::too_long, Alert::illegal_parameter);
  }
  const Bytes rest = bytes.subspan(at_);
  const Bytes piece = rest.first(std::min(here, rest.size()));
  if (piece.empty()) return false;
  if (message_ == 0 && parts_.empty() && proto::load_u8(piece, 0) != kClientHelloType) {
    return refuse(HelloFault::not_a_hello, Alert::unexpected_message);
  }

  if (parts_.empty() && here == wanted) {  // it lies in one piece in this record
    if (piece.size() < wanted) return false;
    if (message_ == 0) return measure(piece);
    parse(piece);
    return false;
  }
  parts_.insert(parts_.end(), piece.begin(), piece.end());
  examined_ += piece.size();
  at_ += piece.size();
  record_left_ -= piece.size();
  if (piece.size() < wanted) return true;
  if (message_ == 0) return measure(parts_);
  parse(parts_);
  return false;
}

// From the message's first four bytes.
bool ClientHelloReader::measure(Bytes message) {
  examined_ += kMessageHeader;
  message_ = kMessageHeader + (proto::load_be32(message, 0) & 0xff'ffffU);
  if (message_ > kMaxHello) return refuse(HelloFault::too_long, Alert::illegal_parameter);
  // A message without a body ends here; parse() says what is wrong with it.
  if (message_ > kMessageHeader) return true;
  parse(message);
  return false;
}

void ClientHelloReader::parse(Bytes message) {
  examined_ += message.size();
  Parsed parsed;
  switch (parse_body(message.subspan(kMessageHeader), parsed)) {
    case Verdict::lies:
      refuse(HelloFault::malformed, Alert::decode_error);
      break;
    case Verdict::twice:
      refuse(HelloFault::malformed, Alert::illegal_parameter);
      break;
    case Verdict::good:
      if (!parsed.host_name.empty() && !keep_name(parsed.host_name)) {
        refuse(HelloFault::bad_name, Alert::unrecognized_name);
        break;
      }
      keep_protocols(parsed.protocols);
      hello_.tls13 = parsed.tls13;
      state_ = State::done;
      break;
  }
}

// False: no host name.
bool ClientHelloReader::keep_name(Bytes name) {
  if (proto::load_u8(name, name.size() - 1) == '.') name = name.first(name.size() - 1);
  if (name.empty() || name.size() > kMaxServerName) return false;
  constexpr std::size_t kMaxLabel = 63;
  std::size_t label = 0;  // bytes of the label so far
  bool digits = true;     // and nothing else in it
  char before = '.';
  for (std::size_t i = 0; i < name.size(); ++i) {
    const char c = lower(static_cast<char>(proto::load_u8(name, i)));
    if (c == '.') {
      if (label == 0 || before == '-') return false;
      label = 0;
      digits = true;
    } else {
      const bool letter = c >= 'a' && c <= 'z';
      const bool inner = c == '-' && label > 0;
      if ((!letter && !is_digit(c) && !inner && c != '_') || ++label > kMaxLabel) return false;
      digits = digits && is_digit(c);
    }
    name_[i] = before = c;
  }
  if (label == 0 || before == '-' || digits) return false;
  hello_.server_name = std::string_view(name_.data(), name.size());
  return true;
}

void ClientHelloReader::keep_protocols(Bytes list) {
  Fields protocols(list);
  Bytes protocol;
  std::size_t count = 0;
  std::span<char> room(protocols_);
  while (count < kMaxAlpn && protocols.vector8(protocol)) {
    if (protocol.size() > room.size()) continue;
    std::memcpy(room.data(), protocol.data(), protocol.size());
    alpn_[count++] = std::string_view(room.data(), protocol.size());
    room = room.subspan(protocol.size());
  }
  hello_.alpn = std::span(alpn_).first(count);
}

bool ClientHelloReader::refuse(HelloFault fault, Alert alert) {
  state_ = State::refused;
  fault_ = fault;
  alert_ = alert;
  return false;
}

}  // namespace causeway::gateway
