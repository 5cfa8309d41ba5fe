# SPDX-License-Identifier: Apache-2.0
# One interface target, causeway_flags, carries what every target of ours compiles and links with:
# warnings as errors, hardening, the sanitizer of the preset, reproducible paths.
add_library(causeway_flags INTERFACE)
target_include_directories(causeway_flags INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(causeway_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wvla -Wnon-virtual-dtor -Werror
  -ffile-prefix-map=${CMAKE_SOURCE_DIR}=.
  -fstack-protector-strong)
target_compile_definitions(causeway_flags INTERFACE _GLIBCXX_ASSERTIONS)
target_link_options(causeway_flags INTERFACE -Wl,-z,relro,-z,now -Wl,--build-id=sha1)

if(CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
  target_compile_options(causeway_flags INTERFACE -fcf-protection)
endif()

if(CAUSEWAY_SANITIZE STREQUAL "address")
  # Asio recycles coroutine frames, which hides a use after free from the sanitizer.
  target_compile_definitions(causeway_flags INTERFACE ASIO_DISABLE_AWAITABLE_FRAME_RECYCLING)
  # Without vptr: it asks through a pipe whether an object's memory can be read, and takes any object
  # for a wrong one once a test has used up the descriptors.
  target_compile_options(causeway_flags INTERFACE -fsanitize=address,undefined -fno-sanitize=vptr
    -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  target_link_options(causeway_flags INTERFACE -fsanitize=address,undefined)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # With a sanitizer g++ warns of what it then does not see through (std::regex); the release build
    # keeps the warning.
    target_compile_options(causeway_flags INTERFACE -Wno-maybe-uninitialized)
  endif()
elseif(CAUSEWAY_SANITIZE STREQUAL "thread")
  # -Wno-tsan: spdlog and Asio use fences that the thread sanitizer does not model.
  target_compile_options(causeway_flags INTERFACE -fsanitize=thread -fno-omit-frame-pointer)
  target_link_options(causeway_flags INTERFACE -fsanitize=thread)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(causeway_flags INTERFACE -Wno-tsan)
  endif()
elseif(NOT CAUSEWAY_SANITIZE STREQUAL "")
  message(FATAL_ERROR "CAUSEWAY_SANITIZE is '${CAUSEWAY_SANITIZE}'; it takes address or thread")
elseif(CMAKE_BUILD_TYPE MATCHES "Rel" AND NOT CAUSEWAY_FUZZ)
  target_compile_definitions(causeway_flags INTERFACE _FORTIFY_SOURCE=2)
endif()

if(CAUSEWAY_FUZZ)
  # The library under test is instrumented too; the targets add the fuzzer's main().
  target_compile_options(causeway_flags INTERFACE
    -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined)
  target_link_options(causeway_flags INTERFACE -fsanitize=address,undefined)
endif()

# The programs name the commit they were built from; a tarball without git says "unknown".
execute_process(COMMAND git -C ${CMAKE_SOURCE_DIR} rev-parse --short=12 HEAD
  OUTPUT_VARIABLE CAUSEWAY_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT CAUSEWAY_COMMIT)
  set(CAUSEWAY_COMMIT unknown)
endif()
