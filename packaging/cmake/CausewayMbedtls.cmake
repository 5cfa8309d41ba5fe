# SPDX-License-Identifier: Apache-2.0
# mbedTLS's sources and how they are compiled. guest/gateway/crypto/CMakeLists.txt makes the target
# causeway_mbedtls of what this file defines. Include it at the top directory: it enables C.
#
# CAUSEWAY_MBEDTLS_SOURCE  a tree of mbedTLS, 3.6.6 or a later 3.6 (empty: Debian's, fetched once by
#                          packaging/deps/mbedtls into build/deps, where every preset finds it)
# CAUSEWAY_CRYPTO          accelerated (intel-ipsec-mb and libcrypto where they are faster) or builtin
set(CAUSEWAY_MBEDTLS_SOURCE "" CACHE PATH
  "Tree of mbedTLS (3.6.6 or a later 3.6); empty: fetch Debian's")
if(CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
  set(CAUSEWAY_CRYPTO accelerated CACHE STRING "Primitives of TLS: accelerated or builtin")
else()
  # intel-ipsec-mb exists for x86-64 only.
  set(CAUSEWAY_CRYPTO builtin CACHE STRING "Primitives of TLS: accelerated or builtin")
endif()
set_property(CACHE CAUSEWAY_CRYPTO PROPERTY STRINGS accelerated builtin)
if(NOT CAUSEWAY_CRYPTO MATCHES "^(accelerated|builtin)$")
  message(FATAL_ERROR
    "CAUSEWAY_CRYPTO is '${CAUSEWAY_CRYPTO}'; it takes accelerated or builtin")
endif()

# The flags that our targets carry (sanitizers, fuzzer) must be ones that the C compiler knows.
if(NOT CMAKE_C_COMPILER AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  string(REGEX REPLACE "clang\\+\\+" "clang" causeway_clang "${CMAKE_CXX_COMPILER}")
  set(CMAKE_C_COMPILER ${causeway_clang})
endif()
enable_language(C)

if(CAUSEWAY_MBEDTLS_SOURCE)
  set(causeway_mbedtls_tree ${CAUSEWAY_MBEDTLS_SOURCE})
else()
  set(causeway_mbedtls_tree ${CMAKE_SOURCE_DIR}/build/deps/mbedtls)
  if(NOT EXISTS ${causeway_mbedtls_tree}/.causeway-source)
    message(STATUS "mbedTLS: fetching Debian's source into build/deps (once; or set CAUSEWAY_MBEDTLS_SOURCE)")
    execute_process(
      COMMAND ${CMAKE_SOURCE_DIR}/packaging/deps/mbedtls ${CMAKE_SOURCE_DIR}/build/deps
      RESULT_VARIABLE result ERROR_VARIABLE message OUTPUT_QUIET ERROR_STRIP_TRAILING_WHITESPACE)
    if(NOT result EQUAL 0)
      message(FATAL_ERROR "${message}")
    endif()
  endif()
endif()

if(NOT EXISTS ${causeway_mbedtls_tree}/include/mbedtls/build_info.h)
  message(FATAL_ERROR "${causeway_mbedtls_tree} is not a tree of mbedTLS")
endif()
file(STRINGS ${causeway_mbedtls_tree}/include/mbedtls/build_info.h version
  REGEX "define MBEDTLS_VERSION_STRING ")
string(REGEX REPLACE ".*\"([0-9.]+)\".*" "\\1" causeway_mbedtls_version "${version}")
if(causeway_mbedtls_version VERSION_LESS 3.6.6 OR causeway_mbedtls_version VERSION_GREATER_EQUAL 3.7)
  message(FATAL_ERROR "${causeway_mbedtls_tree} is mbedTLS ${causeway_mbedtls_version}; "
    "3.6.6 or a later 3.6 is needed")
endif()
if(NOT EXISTS ${causeway_mbedtls_tree}/library/psa_crypto_driver_wrappers.h)
  message(FATAL_ERROR "${causeway_mbedtls_tree} lacks the generated files of a release: "
    "take a release tarball, or run `make generated_files` there")
endif()
message(STATUS "mbedTLS ${causeway_mbedtls_version} (${CAUSEWAY_CRYPTO}): ${causeway_mbedtls_tree}")

# Copies library/FILE into the build with the definitions of the named functions renamed to
# causeway_builtin_NAME, and puts the copy in place of FILE in the list variable SOURCES. Every call of
# such a function, those in the same file too, then goes to ours, and ours can still call theirs.
# (The linker's --wrap does not reach calls within a file, and each program would have to pass it.)
function(causeway_replace_functions sources file)
  set(path ${causeway_mbedtls_tree}/library/${file})
  file(READ ${path} text)
  foreach(name ${ARGN})
    string(REGEX MATCHALL "\n(int|void) ${name}\\(" found "${text}")
    list(LENGTH found count)
    if(NOT count EQUAL 1)
      message(FATAL_ERROR "${path}: ${count} definitions of ${name}, where one is expected; "
        "mbedTLS ${causeway_mbedtls_version} is not known to work with CAUSEWAY_CRYPTO=accelerated")
    endif()
    string(REGEX REPLACE "\n(int|void) ${name}\\(" "\n\\1 causeway_builtin_${name}(" text "${text}")
  endforeach()
  set(copy ${CMAKE_CURRENT_BINARY_DIR}/replaced/${file})
  file(CONFIGURE OUTPUT ${copy} CONTENT "${text}" @ONLY)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
  list(TRANSFORM ${sources} REPLACE "^.*/library/${file}$" ${copy})
  set(${sources} ${${sources}} PARENT_SCOPE)
endfunction()

# Our hardening and sanitizers without our warnings: the code is not ours to change. It is optimised in
# every preset but the debug one; MinSizeRel would cost the primitives a multiple.
function(causeway_mbedtls_flags target)
  get_target_property(options causeway_flags INTERFACE_COMPILE_OPTIONS)
  list(FILTER options EXCLUDE REGEX "^-W|non-virtual-dtor")
  # It compares nothing with nothing by memcmp(NULL, x, 0), which the fuzzer found (names without a type).
  target_compile_options(${target} PRIVATE ${options} $<$<NOT:$<CONFIG:Debug>>:-O2> -w
    -fno-sanitize=nonnull-attribute)
  get_target_property(definitions causeway_flags INTERFACE_COMPILE_DEFINITIONS)
  if("_FORTIFY_SOURCE=2" IN_LIST definitions)
    target_compile_definitions(${target} PRIVATE _FORTIFY_SOURCE=2)
  endif()
endfunction()
