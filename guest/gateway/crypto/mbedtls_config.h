/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The configuration of mbedTLS that the gateway is built with (MBEDTLS_CONFIG_FILE): TLS 1.2
 * and 1.3, server and client, and of the primitives only what those need. What is not named here is
 * off, such as DTLS, renegotiation, CBC and every other cipher that is not an AEAD, finite-field
 * and static key exchange, 0-RTT and the debug output.
 *
 * Included by C and by C++; every translation unit that sees mbedTLS must see the same text, hence
 * the target causeway_mbedtls carries the definition.
 */

/* ---- the system ---- */
#define MBEDTLS_HAVE_ASM
#define MBEDTLS_HAVE_TIME
#define MBEDTLS_HAVE_TIME_DATE /* validity of certificates */
#define MBEDTLS_FS_IO
#define MBEDTLS_PLATFORM_C
#define MBEDTLS_THREADING_C /* PSA, for the handshakes of TLS 1.3 on several threads */
#define MBEDTLS_THREADING_PTHREAD
#define MBEDTLS_ERROR_C
#define MBEDTLS_VERSION_C

/* ---- TLS ---- */
#define MBEDTLS_SSL_TLS_C
#define MBEDTLS_SSL_SRV_C
#define MBEDTLS_SSL_CLI_C /* TLS to an upstream */
#define MBEDTLS_SSL_PROTO_TLS1_2
#define MBEDTLS_SSL_PROTO_TLS1_3
#define MBEDTLS_SSL_TLS1_3_COMPATIBILITY_MODE
#define MBEDTLS_SSL_TLS1_3_KEY_EXCHANGE_MODE_EPHEMERAL_ENABLED
#define MBEDTLS_SSL_TLS1_3_KEY_EXCHANGE_MODE_PSK_EPHEMERAL_ENABLED /* tickets, with a fresh secret \
                                                                    */
#define MBEDTLS_KEY_EXCHANGE_ECDHE_RSA_ENABLED
#define MBEDTLS_KEY_EXCHANGE_ECDHE_ECDSA_ENABLED
#define MBEDTLS_SSL_EXTENDED_MASTER_SECRET
#define MBEDTLS_SSL_SESSION_TICKETS
#define MBEDTLS_SSL_TICKET_C
#define MBEDTLS_SSL_ALPN
#define MBEDTLS_SSL_SERVER_NAME_INDICATION
#define MBEDTLS_SSL_MAX_FRAGMENT_LENGTH
#define MBEDTLS_SSL_RECORD_SIZE_LIMIT
#define MBEDTLS_SSL_VARIABLE_BUFFER_LENGTH /* the lengths of a context's buffers are variables */
#define MBEDTLS_SSL_KEEP_PEER_CERTIFICATE  /* the subject of a client's certificate */
#define MBEDTLS_SSL_ALL_ALERT_MESSAGES

/* ---- certificates and keys ---- */
#define MBEDTLS_X509_USE_C
#define MBEDTLS_X509_CRT_PARSE_C
#define MBEDTLS_X509_CRL_PARSE_C
#define MBEDTLS_X509_RSASSA_PSS_SUPPORT
#define MBEDTLS_PK_C
#define MBEDTLS_PK_PARSE_C
#define MBEDTLS_PK_WRITE_C
#define MBEDTLS_PEM_PARSE_C
#define MBEDTLS_BASE64_C
#define MBEDTLS_ASN1_PARSE_C
#define MBEDTLS_ASN1_WRITE_C
#define MBEDTLS_OID_C

/* ---- primitives ---- */
#define MBEDTLS_CIPHER_C
#define MBEDTLS_AES_C
#define MBEDTLS_AESNI_C
#define MBEDTLS_AESCE_C
#define MBEDTLS_GCM_C
#define MBEDTLS_CHACHA20_C
#define MBEDTLS_POLY1305_C
#define MBEDTLS_CHACHAPOLY_C
#define MBEDTLS_MD_C
#define MBEDTLS_SHA256_C
#define MBEDTLS_SHA384_C
#define MBEDTLS_SHA512_C
/*
 * Only so that old root certificates, which signed themselves with SHA-1, can be read from a
 * system's trust store: nobody checks the signature of a root. No signature in a chain or in a
 * handshake may use it: it is neither in the default profile for certificates nor among the
 * algorithms TLS offers.
 */
#define MBEDTLS_SHA1_C
#define MBEDTLS_HKDF_C
#define MBEDTLS_BIGNUM_C
#define MBEDTLS_ECP_C
#define MBEDTLS_ECDH_C
#define MBEDTLS_ECDSA_C
#define MBEDTLS_ECP_DP_SECP256R1_ENABLED
#define MBEDTLS_ECP_DP_SECP384R1_ENABLED
#define MBEDTLS_ECP_DP_CURVE25519_ENABLED
#define MBEDTLS_ECP_NIST_OPTIM
#define MBEDTLS_RSA_C
#define MBEDTLS_PKCS1_V15
#define MBEDTLS_PKCS1_V21
#define MBEDTLS_CTR_DRBG_C

/*
 * PSA: the handshakes of TLS 1.3 use it whatever is configured. Records do not as long as
 * MBEDTLS_USE_PSA_CRYPTO is off, and must not: it would take a lock of the whole process per
 * record. Its random numbers come from the thread's own generator (random.cpp), not from one behind
 * a lock.
 */
#define MBEDTLS_PSA_CRYPTO_C
#define MBEDTLS_PSA_CRYPTO_EXTERNAL_RNG
#define MBEDTLS_PSA_KEY_STORE_DYNAMIC /* without it 32 handshakes at once are the limit */

/* ---- replacements: CAUSEWAY_CRYPTO=accelerated ---- */
#if defined(CAUSEWAY_CRYPTO_ACCELERATED) && !defined(CAUSEWAY_BUILTIN_GCM)
#define MBEDTLS_GCM_ALT /* gcm_alt.cpp; builtin_gcm.c compiles mbedTLS's own beside it */
#endif
#if !defined(CAUSEWAY_CRYPTO_ACCELERATED)
/* Signatures whose nonce follows from the key and the message; libcrypto hedges its nonces itself.
 */
#define MBEDTLS_ECDSA_DETERMINISTIC
#define MBEDTLS_HMAC_DRBG_C
#endif
