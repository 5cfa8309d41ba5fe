// SPDX-License-Identifier: Apache-2.0
// Theory of operation: RSA's two primitives over libcrypto, below mbedTLS's padding.
//
// Private: libcrypto keeps per key what does not change (Montgomery form, blinding), so a key
// object is made at the first use of a context and kept until mbedtls_rsa_free(), in a list with a
// lock that is held for a look at it, not during the operation. (mbedTLS's own code holds the
// context's lock all the time: several workers with one key would wait for each other.) An entry is
// used only while it has the same numbers as the context; a new one must first undo mbedTLS's own
// public operation.
//
// Public: stateless.
#include <mbedtls/platform_util.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <vector>

#include "guest/gateway/crypto/builtin.hpp"
#include "guest/gateway/crypto/constant_time.hpp"
#include "guest/gateway/crypto/cpu.hpp"
#include "guest/gateway/crypto/openssl.hpp"

namespace causeway::gateway::crypto {
namespace {

constexpr std::size_t kLargest = MBEDTLS_MPI_MAX_SIZE;

using SharedRsa = std::shared_ptr<RSA>;

class Keys {
 public:
  // Null when libcrypto does not do for this key.
  SharedRsa get(mbedtls_rsa_context& context) {
    {
      const std::lock_guard lock{mutex_};
      const auto found = find(context);
      if (found != entries_.end() && same(context, *found)) return found->key;
    }
    Entry made = make(context);
    const std::lock_guard lock{mutex_};
    if (const auto old = find(context); old != entries_.end()) entries_.erase(old);
    entries_.push_back(std::move(made));
    return entries_.back().key;
  }

  void drop(const mbedtls_rsa_context& context) {
    const std::lock_guard lock{mutex_};
    if (const auto old = find(context); old != entries_.end()) entries_.erase(old);
  }

 private:
  struct Entry {
    const mbedtls_rsa_context* context;
    BnPtr n;  // what it was made of
    BnPtr p;
    SharedRsa key;  // null: declined
  };

  std::vector<Entry>::iterator find(const mbedtls_rsa_context& context) {
    return std::find_if(entries_.begin(), entries_.end(),
                        [&](const Entry& entry) { return entry.context == &context; });
  }

  static bool equal(const mbedtls_mpi& number, const BIGNUM* other) {
    std::array<unsigned char, kLargest> a;
    std::array<unsigned char, kLargest> b;
    const std::size_t size = mbedtls_mpi_size(&number);
    if (size > a.size() || mbedtls_mpi_write_binary(&number, a.data(), size) != 0 ||
        BN_bn2binpad(other, b.data(), static_cast<int>(size)) != static_cast<int>(size)) {
      return false;
    }
    const bool same = mbedtls_ct_memcmp(a.data(), b.data(), size) == 0;
    mbedtls_platform_zeroize(a.data(), size);
    mbedtls_platform_zeroize(b.data(), size);
    return same;
  }

  static bool same(const mbedtls_rsa_context& context, const Entry& entry) {
    return entry.n && entry.p && equal(context.MBEDTLS_PRIVATE(N), entry.n.get()) &&
           equal(context.MBEDTLS_PRIVATE(P), entry.p.get());
  }

  static BnPtr number(const mbedtls_mpi& from) {
    BnPtr to{BN_new()};
    if (!to || mbedtls_mpi_cmp_int(&from, 0) <= 0 || !to_bn(from, to.get())) to.reset();
    return to;
  }

  static SharedRsa make_key(mbedtls_rsa_context& context) {
    SharedRsa key{RSA_new(), [](RSA* rsa) { RSA_free(rsa); }};
    BnPtr n = number(context.MBEDTLS_PRIVATE(N));
    BnPtr e = number(context.MBEDTLS_PRIVATE(E));
    BnPtr d = number(context.MBEDTLS_PRIVATE(D));
    BnPtr p = number(context.MBEDTLS_PRIVATE(P));
    BnPtr q = number(context.MBEDTLS_PRIVATE(Q));
    BnPtr dp = number(context.MBEDTLS_PRIVATE(DP));
    BnPtr dq = number(context.MBEDTLS_PRIVATE(DQ));
    BnPtr qp = number(context.MBEDTLS_PRIVATE(QP));
    if (!key || !n || !e || !d || !p || !q || !dp || !dq || !qp) return nullptr;
    // Each of the three takes ownership when it succeeds, and cannot fail with all numbers there.
    if (RSA_set0_key(key.get(), n.get(), e.get(), d.get()) != 1) return nullptr;
    static_cast<void>(n.release());
    static_cast<void>(e.release());
    static_cast<void>(d.release());
    if (RSA_set0_factors(key.get(), p.get(), q.get()) != 1) return nullptr;
    static_cast<void>(p.release());
    static_cast<void>(q.release());
    if (RSA_set0_crt_params(key.get(), dp.get(), dq.get(), qp.get()) != 1) return nullptr;
    static_cast<void>(dp.release());
    static_cast<void>(dq.release());
    static_cast<void>(qp.release());
    return works(context, key.get()) ? key : nullptr;
  }

  static bool works(mbedtls_rsa_context& context, RSA* key) {
    const std::size_t size = mbedtls_rsa_get_len(&context);
    std::array<unsigned char, kLargest> clear{};
    std::array<unsigned char, kLargest> other{};
    if (size == 0 || size > kLargest) return false;
    for (std::size_t at = 1; at < size; ++at)
      clear[at] = static_cast<unsigned char>(at);
    return RSA_private_encrypt(static_cast<int>(size), clear.data(), other.data(), key,
                               RSA_NO_PADDING) == static_cast<int>(size) &&
           causeway_builtin_mbedtls_rsa_public(&context, other.data(), other.data()) == 0 &&
           other == clear;
  }

  static Entry make(mbedtls_rsa_context& context) {
    Entry made{&context, number(context.MBEDTLS_PRIVATE(N)), number(context.MBEDTLS_PRIVATE(P)),
               nullptr};
    if (made.n && made.p) made.key = make_key(context);
    return made;
  }

  std::mutex mutex_;
  std::vector<Entry> entries_;
};

// Never destroyed: keys in static storage may be freed after it would be.
Keys& keys() {
  static Keys& all = *new Keys;
  return all;
}

// False: mbedTLS's own shall do it.
bool private_operation(mbedtls_rsa_context& context, const unsigned char* input,
                       unsigned char* output) {
  const SharedRsa key = keys().get(context);
  const auto size = static_cast<int>(mbedtls_rsa_get_len(&context));
  return key && RSA_private_encrypt(size, input, output, key.get(), RSA_NO_PADDING) == size;
}

bool public_operation(const mbedtls_rsa_context& context, const unsigned char* input,
                      unsigned char* output) {
  struct Mine {
    BnCtxPtr context{BN_CTX_new()};
    BnPtr n{BN_new()};
    BnPtr e{BN_new()};
    BnPtr number{BN_new()};
    explicit operator bool() const { return context && n && e && number; }
  };
  thread_local Mine mine;
  const auto size = static_cast<int>(mbedtls_rsa_get_len(&context));
  return mine && size > 0 && to_bn(context.MBEDTLS_PRIVATE(N), mine.n.get()) &&
         to_bn(context.MBEDTLS_PRIVATE(E), mine.e.get()) && BN_is_odd(mine.n.get()) == 1 &&
         BN_bin2bn(input, size, mine.number.get()) != nullptr &&
         BN_cmp(mine.number.get(), mine.n.get()) < 0 &&
         BN_mod_exp_mont(mine.number.get(), mine.number.get(), mine.e.get(), mine.n.get(),
                         mine.context.get(), nullptr) == 1 &&
         BN_bn2binpad(mine.number.get(), output, size) == size;
}

}  // namespace
}  // namespace causeway::gateway::crypto

extern "C" int mbedtls_rsa_private(mbedtls_rsa_context* ctx, causeway_f_rng* f_rng, void* p_rng,
                                   const unsigned char* input, unsigned char* output) {
  using namespace causeway::gateway::crypto;  // NOLINT(google-build-using-namespace)
  if (providers().rsa && f_rng != nullptr) {
    if (private_operation(*ctx, input, output)) return 0;
    ERR_clear_error();
  }
  return causeway_builtin_mbedtls_rsa_private(ctx, f_rng, p_rng, input, output);
}

extern "C" int mbedtls_rsa_public(mbedtls_rsa_context* ctx, const unsigned char* input,
                                  unsigned char* output) {
  using namespace causeway::gateway::crypto;  // NOLINT(google-build-using-namespace)
  if (providers().rsa) {
    if (public_operation(*ctx, input, output)) return 0;
    ERR_clear_error();
  }
  return causeway_builtin_mbedtls_rsa_public(ctx, input, output);
}

extern "C" void mbedtls_rsa_free(mbedtls_rsa_context* ctx) {
  if (ctx != nullptr) causeway::gateway::crypto::keys().drop(*ctx);
  causeway_builtin_mbedtls_rsa_free(ctx);
}
