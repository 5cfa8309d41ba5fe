// SPDX-License-Identifier: Apache-2.0
// Replaces the global operator new with one that counts. Any *_bench.cpp of this folder may read
// the count before and after its timed loop.
#pragma once

#include <cstdint>

namespace causeway::bench {

std::uint64_t allocations_so_far();

}  // namespace causeway::bench
