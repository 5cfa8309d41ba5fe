// SPDX-License-Identifier: Apache-2.0
// mbedTLS's own functions in the place of which ours stand (CMakeLists.txt renames them). Same
// contract as those of the same name without the prefix.
#pragma once

#include <mbedtls/chachapoly.h>
#include <mbedtls/ecdsa.h>
#include <mbedtls/ecp.h>
#include <mbedtls/rsa.h>
#include <mbedtls/sha256.h>
#include <mbedtls/sha512.h>

extern "C" {

using causeway_f_rng = int(void*, unsigned char*, std::size_t);

int causeway_builtin_mbedtls_chachapoly_encrypt_and_tag(
    mbedtls_chachapoly_context* ctx, std::size_t length, const unsigned char* nonce,
    const unsigned char* aad, std::size_t aad_len, const unsigned char* input,
    unsigned char* output, unsigned char* tag);
int causeway_builtin_mbedtls_chachapoly_auth_decrypt(mbedtls_chachapoly_context* ctx,
                                                     std::size_t length, const unsigned char* nonce,
                                                     const unsigned char* aad, std::size_t aad_len,
                                                     const unsigned char* tag,
                                                     const unsigned char* input,
                                                     unsigned char* output);

int causeway_builtin_mbedtls_ecp_mul_restartable(mbedtls_ecp_group* grp, mbedtls_ecp_point* R,
                                                 const mbedtls_mpi* m, const mbedtls_ecp_point* P,
                                                 causeway_f_rng* f_rng, void* p_rng,
                                                 mbedtls_ecp_restart_ctx* rs_ctx);

int causeway_builtin_mbedtls_ecdsa_sign_restartable(mbedtls_ecp_group* grp, mbedtls_mpi* r,
                                                    mbedtls_mpi* s, const mbedtls_mpi* d,
                                                    const unsigned char* buf, std::size_t blen,
                                                    causeway_f_rng* f_rng, void* p_rng,
                                                    causeway_f_rng* f_rng_blind, void* p_rng_blind,
                                                    mbedtls_ecdsa_restart_ctx* rs_ctx);

int causeway_builtin_mbedtls_ecdsa_verify_restartable(mbedtls_ecp_group* grp,
                                                      const unsigned char* buf, std::size_t blen,
                                                      const mbedtls_ecp_point* Q,
                                                      const mbedtls_mpi* r, const mbedtls_mpi* s,
                                                      mbedtls_ecdsa_restart_ctx* rs_ctx);

int causeway_builtin_mbedtls_rsa_public(mbedtls_rsa_context* ctx, const unsigned char* input,
                                        unsigned char* output);
int causeway_builtin_mbedtls_rsa_private(mbedtls_rsa_context* ctx, causeway_f_rng* f_rng,
                                         void* p_rng, const unsigned char* input,
                                         unsigned char* output);
void causeway_builtin_mbedtls_rsa_free(mbedtls_rsa_context* ctx);

int causeway_builtin_mbedtls_internal_sha256_process_c(mbedtls_sha256_context* ctx,
                                                       const unsigned char* data);
int causeway_builtin_mbedtls_internal_sha512_process_c(mbedtls_sha512_context* ctx,
                                                       const unsigned char* data);

}  // extern "C"
