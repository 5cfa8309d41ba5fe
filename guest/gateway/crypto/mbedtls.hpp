// SPDX-License-Identifier: Apache-2.0
// mbedTLS's headers, for C++ with warnings as errors: they are system headers to the compiler, so
// nothing of theirs is reported. The library's own configuration comes with the target
// causeway_mbedtls (MBEDTLS_CONFIG_FILE).
#pragma once

#include <mbedtls/ctr_drbg.h>
#include <mbedtls/error.h>
#include <mbedtls/pk.h>
#include <mbedtls/platform_util.h>
#include <mbedtls/ssl.h>
#include <mbedtls/version.h>
#include <mbedtls/x509_crt.h>
