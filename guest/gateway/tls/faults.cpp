// SPDX-License-Identifier: Apache-2.0
#include "guest/gateway/tls/faults.hpp"

#include <mbedtls/ecp.h>
#include <psa/crypto.h>

#include <array>

#include "guest/gateway/crypto/mbedtls.hpp"

namespace causeway::gateway::tls {

std::string_view name(Fault fault) {
  static constexpr std::array<std::string_view, static_cast<std::size_t>(Fault::count_)> kNames{
      "none",
      "not_tls",
      "bad_record",
      "record_overflow",
      "bad_mac",
      "unexpected_message",
      "renegotiation",
      "key_update",
      "decode_error",
      "illegal_parameter",
      "bad_signature",
      "no_shared_version",
      "no_shared_cipher",
      "no_application_protocol",
      "unknown_name",
      "no_certificate",
      "bad_certificate",
      "client_certificate_required",
      "alert_received",
      "out_of_memory",
      "internal",
  };
  return kNames[static_cast<std::size_t>(fault)];
}

Fault fault_of(int code) {
  switch (code) {
    case 0:
      return Fault::none;
    case MBEDTLS_ERR_SSL_INVALID_MAC:
      return Fault::bad_mac;
    case MBEDTLS_ERR_SSL_INVALID_RECORD:
      return Fault::bad_record;
    case MBEDTLS_ERR_SSL_UNEXPECTED_MESSAGE:
    case MBEDTLS_ERR_SSL_UNEXPECTED_RECORD:
      return Fault::unexpected_message;
    case MBEDTLS_ERR_SSL_DECODE_ERROR:
    case MBEDTLS_ERR_SSL_BUFFER_TOO_SMALL:  // a message that is longer than its buffer may be
      return Fault::decode_error;
    case MBEDTLS_ERR_SSL_ILLEGAL_PARAMETER:
    case MBEDTLS_ERR_SSL_UNSUPPORTED_EXTENSION:
    case MBEDTLS_ERR_ECP_INVALID_KEY:
    case MBEDTLS_ERR_ECP_BAD_INPUT_DATA:
    case PSA_ERROR_INVALID_ARGUMENT:
      return Fault::illegal_parameter;
    case MBEDTLS_ERR_PK_SIG_LEN_MISMATCH:
    case MBEDTLS_ERR_ECP_VERIFY_FAILED:
    case MBEDTLS_ERR_RSA_VERIFY_FAILED:
    case MBEDTLS_ERR_RSA_INVALID_PADDING:
      return Fault::bad_signature;
    case MBEDTLS_ERR_SSL_BAD_PROTOCOL_VERSION:
      return Fault::no_shared_version;
    case MBEDTLS_ERR_SSL_HANDSHAKE_FAILURE:
      return Fault::no_shared_cipher;
    case MBEDTLS_ERR_SSL_NO_APPLICATION_PROTOCOL:
      return Fault::no_application_protocol;
    case MBEDTLS_ERR_SSL_UNRECOGNIZED_NAME:
      return Fault::unknown_name;
    case MBEDTLS_ERR_SSL_PRIVATE_KEY_REQUIRED:
      return Fault::no_certificate;
    case MBEDTLS_ERR_SSL_BAD_CERTIFICATE:
    case MBEDTLS_ERR_X509_CERT_VERIFY_FAILED:
    case MBEDTLS_ERR_X509_FATAL_ERROR:
      return Fault::bad_certificate;
    case MBEDTLS_ERR_SSL_NO_CLIENT_CERTIFICATE:
      return Fault::client_certificate_required;
    case MBEDTLS_ERR_SSL_FATAL_ALERT_MESSAGE:
      return Fault::alert_received;
    case MBEDTLS_ERR_SSL_ALLOC_FAILED:
    case MBEDTLS_ERR_MPI_ALLOC_FAILED:
    case MBEDTLS_ERR_ECP_ALLOC_FAILED:
    case MBEDTLS_ERR_PK_ALLOC_FAILED:
    case MBEDTLS_ERR_X509_ALLOC_FAILED:
    case MBEDTLS_ERR_MD_ALLOC_FAILED:
    case MBEDTLS_ERR_CIPHER_ALLOC_FAILED:
    case PSA_ERROR_INSUFFICIENT_MEMORY:
      return Fault::out_of_memory;
    default:
      break;
  }
  // X.509's and ASN.1's: -0x2000 to -0x2fff, with a low-level code added or not; ASN.1's own: -0x60
  // to -0x6c. A certificate of the peer's that does not parse.
  const int high = -code & 0xff80;
  if (high >= 0x2000 && high <= 0x2f80) return Fault::bad_certificate;
  return Fault::internal;
}

std::uint8_t alert_of(Fault fault) {
  switch (fault) {
    case Fault::not_tls:
    case Fault::unexpected_message:
    case Fault::key_update:
      return MBEDTLS_SSL_ALERT_MSG_UNEXPECTED_MESSAGE;
    case Fault::record_overflow:
      return MBEDTLS_SSL_ALERT_MSG_RECORD_OVERFLOW;
    case Fault::bad_mac:
      return MBEDTLS_SSL_ALERT_MSG_BAD_RECORD_MAC;
    case Fault::renegotiation:
      return MBEDTLS_SSL_ALERT_MSG_NO_RENEGOTIATION;
    case Fault::bad_record:
    case Fault::decode_error:
      return MBEDTLS_SSL_ALERT_MSG_DECODE_ERROR;
    case Fault::illegal_parameter:
      return MBEDTLS_SSL_ALERT_MSG_ILLEGAL_PARAMETER;
    case Fault::bad_signature:
      return MBEDTLS_SSL_ALERT_MSG_DECRYPT_ERROR;
    case Fault::no_shared_version:
      return MBEDTLS_SSL_ALERT_MSG_PROTOCOL_VERSION;
    case Fault::no_shared_cipher:
    case Fault::no_certificate:
    case Fault::client_certificate_required:  // TLS 1.2's; in 1.3 mbedTLS says it itself
      return MBEDTLS_SSL_ALERT_MSG_HANDSHAKE_FAILURE;
    case Fault::no_application_protocol:
      return MBEDTLS_SSL_ALERT_MSG_NO_APPLICATION_PROTOCOL;
    case Fault::unknown_name:
      return MBEDTLS_SSL_ALERT_MSG_UNRECOGNIZED_NAME;
    case Fault::bad_certificate:
      return MBEDTLS_SSL_ALERT_MSG_BAD_CERT;
    default:
      return MBEDTLS_SSL_ALERT_MSG_INTERNAL_ERROR;
  }
}

}  // namespace causeway::gateway::tls
