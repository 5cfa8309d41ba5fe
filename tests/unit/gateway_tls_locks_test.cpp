// SPDX-License-Identifier: Apache-2.0
// That no record costs a lock: the program's pthread_mutex_lock() is one that counts. A sanitizer
// has its own in that place, so there is nothing to count there.
#include <doctest/doctest.h>

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#include <dlfcn.h>
#include <pthread.h>

#include <atomic>

#include "tests/unit/gateway_tls_peers.hpp"

namespace {

std::atomic<std::uint64_t> locks{0};

using Lock = int (*)(pthread_mutex_t*);
Lock real_lock() {
  // A function's address comes as that of an object: dlsym(3).
  static const Lock real = reinterpret_cast<Lock>(::dlsym(RTLD_NEXT, "pthread_mutex_lock"));
  return real;
}

}  // namespace

extern "C" int pthread_mutex_lock(pthread_mutex_t* mutex) {
  locks.fetch_add(1, std::memory_order_relaxed);
  return real_lock()(mutex);
}

namespace causeway::gateway::tls {
namespace {

using namespace test;

TEST_CASE("records take no lock; handshakes of TLS 1.3 do, which shows that locks are counted") {
  for (const Version version : {Version::tls12, Version::tls13}) {
    CAPTURE(version == Version::tls13);
    PairOptions options;
    options.server.max_version = version;
    Pair pair(std::move(options));
    const std::uint64_t before = locks;
    REQUIRE(pair.shake());
    if (version == Version::tls13) CHECK(locks > before);

    const std::string text = random_text(std::size_t{1} << 20);
    const std::uint64_t begin = locks;
    for (Peer* from : {&*pair.client, &*pair.server}) {
      Peer& to = from == &*pair.client ? *pair.server : *pair.client;
      to.plain.clear();
      from->write(text);
      run(*pair.client, *pair.server);
      CHECK(to.plain == text);
    }
    CHECK(locks - begin == 0);  // 128 records sealed, 128 opened
  }
}

}  // namespace
}  // namespace causeway::gateway::tls
#endif
