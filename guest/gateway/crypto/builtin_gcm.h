/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mbedTLS's own AES-GCM under other names, for CPUs and uses that the replacement does not serve
 * and for comparing the two. The functions are those of mbedtls/gcm.h; the context is opaque
 * because its type here differs from the one that the replacement has given the other translation
 * units.
 */
#pragma once

#include <mbedtls/cipher.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct causeway_builtin_gcm_context causeway_builtin_gcm_context;

/* NULL without memory. */
causeway_builtin_gcm_context* causeway_builtin_gcm_new(void);
void causeway_builtin_gcm_delete(causeway_builtin_gcm_context* ctx); /* NULL is fine */

int causeway_builtin_gcm_setkey(causeway_builtin_gcm_context* ctx, mbedtls_cipher_id_t cipher,
                                const unsigned char* key, unsigned int keybits);
int causeway_builtin_gcm_crypt_and_tag(causeway_builtin_gcm_context* ctx, int mode, size_t length,
                                       const unsigned char* iv, size_t iv_len,
                                       const unsigned char* add, size_t add_len,
                                       const unsigned char* input, unsigned char* output,
                                       size_t tag_len, unsigned char* tag);
int causeway_builtin_gcm_auth_decrypt(causeway_builtin_gcm_context* ctx, size_t length,
                                      const unsigned char* iv, size_t iv_len,
                                      const unsigned char* add, size_t add_len,
                                      const unsigned char* tag, size_t tag_len,
                                      const unsigned char* input, unsigned char* output);
int causeway_builtin_gcm_starts(causeway_builtin_gcm_context* ctx, int mode,
                                const unsigned char* iv, size_t iv_len);
int causeway_builtin_gcm_update_ad(causeway_builtin_gcm_context* ctx, const unsigned char* add,
                                   size_t add_len);
int causeway_builtin_gcm_update(causeway_builtin_gcm_context* ctx, const unsigned char* input,
                                size_t input_length, unsigned char* output, size_t output_size,
                                size_t* output_length);
int causeway_builtin_gcm_finish(causeway_builtin_gcm_context* ctx, unsigned char* output,
                                size_t output_size, size_t* output_length, unsigned char* tag,
                                size_t tag_len);

#ifdef __cplusplus
}
#endif
