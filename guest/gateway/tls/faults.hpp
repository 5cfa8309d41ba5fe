// SPDX-License-Identifier: Apache-2.0
// Why a TLS connection failed: one of a fixed list, whatever mbedTLS calls it.
#pragma once

#include <cstdint>
#include <string_view>

namespace causeway::gateway::tls {

enum class Fault : std::uint8_t {
  none,
  not_tls,             // the very first bytes are no TLS record
  bad_record,          // a record's header is wrong, later
  record_overflow,     // a record longer than TLS allows
  bad_mac,             // a record does not authenticate (0-RTT data that was not asked for too)
  unexpected_message,  // a message out of turn, or one that TLS does not have
  renegotiation,       // a client that insists on it
  key_update,          // TLS 1.3's KeyUpdate, which mbedTLS does not have
  decode_error,        // a length or a field of a handshake message lies
  illegal_parameter,   // a value that makes no sense, a bad key share among them
  bad_signature,       // of the peer, or its Finished
  no_shared_version,
  no_shared_cipher,             // no cipher, group, or signature algorithm in common
  no_application_protocol,      // ALPN
  unknown_name,                 // server_name
  no_certificate,               // we have none for this
  bad_certificate,              // the peer's does not verify
  client_certificate_required,  // and the client presented none
  alert_received,               // a fatal alert; Engine::alert() has its number
  out_of_memory,
  internal,
  count_
};
std::string_view name(Fault fault);

// Of an mbedTLS error code.
Fault fault_of(int code);
// What the peer hears when mbedTLS itself has not told it.
std::uint8_t alert_of(Fault fault);

}  // namespace causeway::gateway::tls
