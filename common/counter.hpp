// SPDX-License-Identifier: Apache-2.0
// A number that one thread counts up and any thread reads: a plain load, add and store, no locked
// instruction.
#pragma once

#include <atomic>
#include <cstdint>

namespace causeway {

class Counter {
 public:
  void add(std::uint64_t amount = 1) {
    value_.store(value_.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

}  // namespace causeway
