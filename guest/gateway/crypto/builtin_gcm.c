/* SPDX-License-Identifier: Apache-2.0 */
/* mbedTLS's gcm.c as if MBEDTLS_GCM_ALT were not set, under the names of builtin_gcm.h. */
#define CAUSEWAY_BUILTIN_GCM

#define mbedtls_gcm_context causeway_builtin_gcm_context
#define mbedtls_gcm_init causeway_builtin_gcm_init
#define mbedtls_gcm_free causeway_builtin_gcm_free
#define mbedtls_gcm_setkey causeway_builtin_gcm_setkey
#define mbedtls_gcm_crypt_and_tag causeway_builtin_gcm_crypt_and_tag
#define mbedtls_gcm_auth_decrypt causeway_builtin_gcm_auth_decrypt
#define mbedtls_gcm_starts causeway_builtin_gcm_starts
#define mbedtls_gcm_update_ad causeway_builtin_gcm_update_ad
#define mbedtls_gcm_update causeway_builtin_gcm_update
#define mbedtls_gcm_finish causeway_builtin_gcm_finish

/* NOLINTNEXTLINE(bugprone-suspicious-include): that is what this file is for. */
#include "gcm.c"

#include <stdlib.h>

causeway_builtin_gcm_context* causeway_builtin_gcm_new(void) {
  causeway_builtin_gcm_context* ctx = malloc(sizeof *ctx);
  if (ctx != NULL) mbedtls_gcm_init(ctx);
  return ctx;
}

void causeway_builtin_gcm_delete(causeway_builtin_gcm_context* ctx) {
  mbedtls_gcm_free(ctx); /* wipes it */
  free(ctx);
}
