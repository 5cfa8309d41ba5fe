/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mbedTLS's gcm.h includes this in place of its own context (MBEDTLS_GCM_ALT). Zeroes are a context
 * without a key, as they are in mbedTLS's own.
 */
#pragma once

typedef struct mbedtls_gcm_context {
  struct causeway_gcm_state* state; /* gcm_alt.cpp */
} mbedtls_gcm_context;
