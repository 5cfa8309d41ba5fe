// SPDX-License-Identifier: Apache-2.0
// mbedTLS's comparison in constant time, whose header forgets to say that it is C.
#pragma once

extern "C" {
#include <mbedtls/constant_time.h>
}
