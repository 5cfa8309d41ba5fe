// SPDX-License-Identifier: Apache-2.0
#include "proto/checksum.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// Both paths add 64-bit words into `all`, which wraps, and the upper halves into `high`, which
// cannot wrap below 32 GiB of data. The sum of the lower halves is then all - (high << 32), exact
// modulo 2^64: three operations a word, and no carry to carry along.

namespace causeway::proto {

namespace {

// Below this the set-up of the wide path costs more than it saves.
constexpr std::size_t kWideFrom = 64;

Sum join(std::uint64_t all, std::uint64_t high) {
  return (all - (high << 32)) + high;
}

// The rest of an input, of any size. Pointers, not spans, inside this file: the loops are the
// hottest of the program and their bounds are the two checks at the top of the public functions.
template <bool kCopy>
Sum sum_words(std::byte* out, const std::byte* in, std::size_t size) {
  std::uint64_t all[4] = {};
  std::uint64_t high[4] = {};
  std::size_t at = 0;
  for (; at + 32 <= size; at += 32) {
    std::uint64_t block[4];
    std::memcpy(block, in + at, sizeof block);
    if constexpr (kCopy) {
      std::memcpy(out + at, block, sizeof block);
    }
    for (int lane = 0; lane < 4; ++lane) {
      all[lane] += block[lane];
      high[lane] += block[lane] >> 32;
    }
  }
  Sum sum = join(all[0] + all[1] + all[2] + all[3], high[0] + high[1] + high[2] + high[3]);
  for (; at + 4 <= size; at += 4) {
    std::uint32_t four;
    std::memcpy(&four, in + at, sizeof four);
    if constexpr (kCopy) {
      std::memcpy(out + at, &four, sizeof four);
    }
    sum += four;
  }
  if (at < size) {
    std::uint32_t last = 0;
    std::memcpy(&last, in + at, size - at);
    if constexpr (kCopy) {
      std::memcpy(out + at, in + at, size - at);
    }
    sum += last;
  }
  return sum;
}

// `size` may be any; a Sum handed out stays below 2^34 whatever was summed.
Sum shorten(Sum sum) {
  return (sum & 0xffffffff) + (sum >> 32);
}

#if defined(__x86_64__)
template <bool kCopy>
__attribute__((target("avx2"))) Sum sum_wide(std::byte* out, const std::byte* in,
                                             std::size_t size) {
  __m256i all0 = _mm256_setzero_si256();
  __m256i all1 = all0;
  __m256i high0 = all0;
  __m256i high1 = all0;
  std::size_t at = 0;
  for (; at + 64 <= size; at += 64) {
    // The casts are what the unaligned load and store intrinsics take; both may alias anything.
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + at));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + at + 32));
    if constexpr (kCopy) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + at), a);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + at + 32), b);
    }
    all0 = _mm256_add_epi64(all0, a);
    all1 = _mm256_add_epi64(all1, b);
    high0 = _mm256_add_epi64(high0, _mm256_srli_epi64(a, 32));
    high1 = _mm256_add_epi64(high1, _mm256_srli_epi64(b, 32));
  }
  alignas(32) std::uint64_t all[4];
  alignas(32) std::uint64_t high[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(all), _mm256_add_epi64(all0, all1));
  _mm256_store_si256(reinterpret_cast<__m256i*>(high), _mm256_add_epi64(high0, high1));
  const Sum blocks = join(all[0] + all[1] + all[2] + all[3], high[0] + high[1] + high[2] + high[3]);
  return blocks + sum_words<kCopy>(kCopy ? out + at : nullptr, in + at, size - at);
}
#endif

}  // namespace

namespace detail {

Sum portable_sum(std::span<const std::byte> bytes) {
  return shorten(sum_words<false>(nullptr, bytes.data(), bytes.size()));
}

Sum portable_copy_and_sum(std::span<std::byte> out, std::span<const std::byte> in) {
  out = out.first(in.size());  // the bound of the stores
  return shorten(sum_words<true>(out.data(), in.data(), in.size()));
}

#if defined(__x86_64__)
bool has_wide_sum() {
  return __builtin_cpu_supports("avx2") != 0;
}

Sum wide_sum(std::span<const std::byte> bytes) {
  return shorten(sum_wide<false>(nullptr, bytes.data(), bytes.size()));
}

Sum wide_copy_and_sum(std::span<std::byte> out, std::span<const std::byte> in) {
  out = out.first(in.size());
  return shorten(sum_wide<true>(out.data(), in.data(), in.size()));
}
#else
bool has_wide_sum() {
  return false;
}

Sum wide_sum(std::span<const std::byte> bytes) {
  return portable_sum(bytes);
}

Sum wide_copy_and_sum(std::span<std::byte> out, std::span<const std::byte> in) {
  return portable_copy_and_sum(out, in);
}
#endif

}  // namespace detail

Sum sum_bytes(std::span<const std::byte> bytes) {
  return bytes.size() >= kWideFrom && detail::has_wide_sum() ? detail::wide_sum(bytes)
                                                             : detail::portable_sum(bytes);
}

Sum copy_and_sum(std::span<std::byte> out, std::span<const std::byte> in) {
  return in.size() >= kWideFrom && detail::has_wide_sum() ? detail::wide_copy_and_sum(out, in)
                                                          : detail::portable_copy_and_sum(out, in);
}

}  // namespace causeway::proto
