// SPDX-License-Identifier: Apache-2.0
// What we use of mbedTLS that is not in its public headers. The functions are in the static
// library; their declarations (library/ssl_misc.h) are C that C++ does not take. All of it is of
// the 3.6 line, which is in long-term support; whoever moves on has to look at each use.
#pragma once

#include "guest/gateway/crypto/mbedtls.hpp"

static_assert(MBEDTLS_VERSION_NUMBER >= 0x03060600 && MBEDTLS_VERSION_NUMBER < 0x03070000,
              "the TLS engine reaches into mbedTLS 3.6; check it against this version");
#if defined(MBEDTLS_SSL_RENEGOTIATION) || defined(MBEDTLS_SSL_PROTO_DTLS)
#error "the TLS engine is written for a configuration without renegotiation and DTLS"
#endif
#if defined(MBEDTLS_USE_PSA_CRYPTO)
#error "MBEDTLS_USE_PSA_CRYPTO would take a lock for each record"
#endif

extern "C" {
// Seals ssl->out_msg[0 .. out_msglen) of out_msgtype in place and writes the header in front of it:
// ssl->out_left grows by the record's size, ssl->out_hdr moves behind it. No output when `flush` is
// 0.
int mbedtls_ssl_write_record(mbedtls_ssl_context* ssl, int flush);
// Derives out_len, out_iv and out_msg from out_hdr.
void mbedtls_ssl_update_out_pointers(mbedtls_ssl_context* ssl, mbedtls_ssl_transform* transform);
// Frees ssl->handshake and what it owns; makes transform_negotiate the (TLS 1.2) transform.
void mbedtls_ssl_handshake_wrapup_free_hs_transform(mbedtls_ssl_context* ssl);
}
