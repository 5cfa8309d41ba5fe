// SPDX-License-Identifier: Apache-2.0
// Theory of operation: reading a ClientHello, sans I/O.
//
// The caller collects what the client sends in one buffer and calls read() with all of it after
// each read. The walk over record headers goes on where it stopped; the message is parsed once,
// when it is complete, so a client that sends a byte at a time costs no more than one that sends it
// all. A message that spans several records is put together in scratch memory of the reader's; one
// that came in a single record (nearly all do) is parsed where it lies.
//
// Every length is checked against what encloses it, extensions against their list, and what must
// not be there twice (RFC 8446 4.2) is refused. Bytes behind the ClientHello are not looked at.
// What does not matter to a relay (versions, ciphers, unknown extensions) is left to the server to
// judge.
//
// need_more is only ever said with fewer than kMaxHelloBytes in hand, so a buffer of that size is
// enough.
//
// Sources: RFC 8446 (5.1 records, 4.1.2 ClientHello), RFC 5246, RFC 6066 3 (server_name),
// RFC 7301 (ALPN), RFC 8701 (GREASE: unknown values are skipped).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace causeway::gateway {

// TLS alert descriptions (RFC 8446 6.2), those that a relay has use for.
enum class Alert : std::uint8_t {
  close_notify = 0,
  unexpected_message = 10,
  record_overflow = 22,
  handshake_failure = 40,
  illegal_parameter = 47,
  decode_error = 50,
  protocol_version = 70,
  internal_error = 80,
  user_canceled = 90,
  unrecognized_name = 112,
  no_application_protocol = 120,
};

// An alert record as an unencrypted peer understands it: 7 bytes, level fatal (warning for
// close_notify and user_canceled), record version 0x0303.
std::array<std::byte, 7> alert_record(Alert alert);

enum class HelloFault : std::uint8_t {
  none,
  not_tls,      // not a handshake record of TLS
  not_a_hello,  // a TLS record, but another message than ClientHello
  malformed,    // a length or field that lies
  too_long,     // more than kMaxHello bytes of handshake, or kMaxHelloBytes with the records
  bad_name,     // server_name is no host name
};

// What is read of it. Views point into the reader.
struct ClientHello {
  // Lower case, no trailing dot, <= 253 bytes; or empty. Labels of letters, digits, '-' and '_'
  // (which service names of containers have, as in common/net/address.hpp), the last not of digits
  // alone: that would be an IPv4 address, which RFC 6066 3 keeps out.
  std::string_view server_name;
  bool tls13 = false;                      // supported_versions lists 1.3
  std::span<const std::string_view> alpn;  // in the client's order; kMaxAlpn at most are kept
  [[nodiscard]] bool offers(std::string_view protocol) const;
};

// Puts a ClientHello that spans records into one, in place: `bytes` begin with it, whole, as a
// reader has found. Returns how many bytes there are then. mbedTLS refuses a message whose first
// record has less than its header of four bytes; a transcript is over messages, not records
// (RFC 8446 4.4.1), so the client cannot tell.
std::size_t join_records(std::span<std::byte> bytes);

class ClientHelloReader {
 public:
  // Bytes of the message, its header included, and of all its records, theirs included.
  static constexpr std::size_t kMaxHello = std::size_t{16} * 1024;
  static constexpr std::size_t kMaxHelloBytes = std::size_t{20} * 1024;
  // Of the ALPN list the first kMaxAlpn are kept, of kMaxAlpnBytes in all; one that does not fit is
  // passed over.
  static constexpr std::size_t kMaxAlpn = 16;
  static constexpr std::size_t kMaxAlpnBytes = 512;
  static constexpr std::size_t kMaxServerName = 253;

  enum class State : std::uint8_t { need_more, done, refused };

  ClientHelloReader() = default;
  ClientHelloReader(const ClientHelloReader&) = delete;  // hello() has views into it
  ClientHelloReader& operator=(const ClientHelloReader&) = delete;

  // `bytes`: everything received from the start of the TLS stream on; what was passed before must
  // still be there, unchanged. After done or refused it answers the same again.
  State read(std::span<const std::byte> bytes);

  [[nodiscard]] const ClientHello& hello() const { return hello_; }  // after done
  [[nodiscard]] HelloFault fault() const { return fault_; }          // after refused
  // What the client should hear, after refused. decode_error before: the message was cut short.
  [[nodiscard]] Alert alert() const { return alert_; }
  // Steps of all reads so far, as bytes looked at: O(bytes received), however they were cut.
  [[nodiscard]] std::size_t examined() const { return examined_; }

 private:
  using Bytes = std::span<const std::byte>;

  // Each: true when the walk goes on.
  bool take_record_header(Bytes bytes);
  bool take_payload(Bytes bytes);
  bool measure(Bytes message);
  void parse(Bytes message);
  bool keep_name(Bytes name);
  void keep_protocols(Bytes list);
  bool refuse(HelloFault fault, Alert alert);

  State state_ = State::need_more;
  HelloFault fault_ = HelloFault::none;
  Alert alert_ = Alert::decode_error;
  std::size_t at_ = 0;            // the walk's place in `bytes`
  std::size_t record_left_ = 0;   // payload bytes of the record from there on; 0: a header is next
  std::size_t message_ = 0;       // bytes of the message with its header; 0: not known yet
  std::vector<std::byte> parts_;  // the message so far, once it is known to span records
  std::size_t examined_ = 0;

  ClientHello hello_;
  std::array<char, kMaxServerName> name_;  // what hello_ views; uninitialised beyond that
  std::array<char, kMaxAlpnBytes> protocols_;
  std::array<std::string_view, kMaxAlpn> alpn_;
};

}  // namespace causeway::gateway
