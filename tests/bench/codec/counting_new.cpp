// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/codec/counting_new.hpp"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<std::uint64_t> allocations{0};
}

namespace causeway::bench {
std::uint64_t allocations_so_far() {
  return allocations.load(std::memory_order_relaxed);
}
}  // namespace causeway::bench

// The other forms of new and delete in libstdc++ call these.
void* operator new(std::size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
