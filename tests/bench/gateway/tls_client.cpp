// SPDX-License-Identifier: Apache-2.0
// The load client for termination: OpenSSL over the sockets of load_client.hpp. What goes out is
// collected (BIO_f_buffer) and sent in one call, and bulk is read in large pieces (read-ahead), so
// that the proxy meets full socket buffers and not one record at a time.
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/bench/gateway/load_client.hpp"

namespace causeway::bench {
namespace {

constexpr std::uint64_t kBulk = std::uint64_t{1} << 20;  // from here on, with few connections
constexpr unsigned kFewConnections = 64;
constexpr std::size_t kBulkBuffer = std::size_t{256} * 1024;
constexpr int kReadsAtOnce = 64;

struct Free {
  void operator()(SSL_CTX* one) const { SSL_CTX_free(one); }
  void operator()(SSL* one) const { SSL_free(one); }
  void operator()(SSL_SESSION* one) const { SSL_SESSION_free(one); }
};
using Context = std::unique_ptr<SSL_CTX, Free>;
using Tls = std::unique_ptr<SSL, Free>;
using Session = std::unique_ptr<SSL_SESSION, Free>;

struct Suite {
  const char* tls12;
  const char* tls13;
};

// No other certificate than an ECDSA one is measured.
const Suite& suite(const std::string& cipher) {
  static const std::map<std::string, Suite> kSuites = {
      {"aes-128-gcm", {"ECDHE-ECDSA-AES128-GCM-SHA256", "TLS_AES_128_GCM_SHA256"}},
      {"aes-256-gcm", {"ECDHE-ECDSA-AES256-GCM-SHA384", "TLS_AES_256_GCM_SHA384"}},
      {"chacha20", {"ECDHE-ECDSA-CHACHA20-POLY1305", "TLS_CHACHA20_POLY1305_SHA256"}}};
  return kSuites.at(cipher);
}

// The oldest error that OpenSSL has noted, which is the cause of the others.
std::string tls_error() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  const char* reason = code != 0 ? ERR_reason_error_string(code) : nullptr;
  return reason != nullptr ? reason : "";
}

void require(bool good, const char* what) {
  if (!good) throw std::runtime_error(std::string(what) + ": " + tls_error());
}

class TlsClient : public LoadClient {
 public:
  explicit TlsClient(const TlsClientOptions& options)
      : LoadClient(options),
        options_(options),
        bulk_(std::max(options.request.payload, options.request.reply) >= kBulk &&
              options.connections <= kFewConnections),
        context_(make_context()),
        slots_(options.connections) {
    for (Slot& slot : slots_) {
      slot.client = this;
    }
    if (options_.resumes) first_ = full_handshake();
  }

 protected:
  void on_open(std::size_t index) override {
    slots_[index].tls = make_tls(at(index).fd, slots_[index]);
  }

  void on_close(std::size_t index, bool good) override {
    // After a failure OpenSSL forbids it, and forgets the session.
    if (good) SSL_shutdown(slots_[index].tls.get());
    slots_[index].tls.reset();
  }

  [[nodiscard]] nlohmann::json details() const override {
    return {{"handshakes", handshakes_}, {"resumed", resumed_}};
  }

  bool flush(std::size_t index) override {
    Connection& connection = at(index);
    if (connection.state == State::greeting) return handshake(index);
    if (connection.state != State::exchange) return true;
    SSL* tls = slots_[index].tls.get();
    if (connection.sent < request_size()) {
      // After SSL_ERROR_WANT_WRITE the same bytes are given again, as OpenSSL wants it.
      const std::span<const std::byte> bytes = request_from(connection.sent);
      std::size_t sent = 0;
      ERR_clear_error();
      errno = 0;
      if (SSL_write_ex(tls, bytes.data(), bytes.size(), &sent) == 1) {
        connection.sent += sent;
      } else if (SSL_get_error(tls, 0) != SSL_ERROR_WANT_WRITE) {
        return failed_tls(index, "write");
      }
    }
    const bool whole = connection.sent == request_size();
    bool waits = !whole;
    if (whole && BIO_flush(SSL_get_wbio(tls)) <= 0) {
      if (!BIO_should_retry(SSL_get_wbio(tls))) return failed_tls(index, "send");
      waits = true;
    }
    wait_for_room(index, waits);
    return true;
  }

  void receive(std::size_t index) override {
    Connection& connection = at(index);
    if (connection.state == State::greeting) {
      handshake(index);
      return;
    }
    SSL* tls = slots_[index].tls.get();
    const std::uint64_t expected = connection.state == State::exchange ? options_.request.reply : 0;
    // What OpenSSL has read ahead, epoll says nothing of.
    for (int reads = 0; reads < kReadsAtOnce || SSL_has_pending(tls) == 1; ++reads) {
      std::size_t got = 0;
      ERR_clear_error();
      errno = 0;
      if (SSL_read_ex(tls, buffer_.data(), buffer_.size(), &got) != 1) {
        const int error = SSL_get_error(tls, 0);
        if (error == SSL_ERROR_ZERO_RETURN) {
          failed(index, "the stream ended early");
        } else if (error != SSL_ERROR_WANT_READ) {
          failed_tls(index, "read");
        }
        return;
      }
      if (got > expected - connection.received || !is_filler(std::span(buffer_).first(got))) {
        failed(index, "bytes arrived that the origin did not send");
        return;
      }
      connection.received += got;
      if (connection.received == expected) {
        complete(index);
        return;
      }
    }
  }

 private:
  struct Slot {
    TlsClient* client = nullptr;
    Tls tls;
    std::vector<unsigned char> newest;  // session
  };

  // --- making ---

  Context make_context() {
    Context context(SSL_CTX_new(TLS_client_method()));
    require(context != nullptr, "SSL_CTX_new");
    SSL_CTX* raw = context.get();
    const int version = options_.version == "1.2" ? TLS1_2_VERSION : TLS1_3_VERSION;
    require(SSL_CTX_set_min_proto_version(raw, version) == 1 &&
                SSL_CTX_set_max_proto_version(raw, version) == 1,
            "versions");
    const Suite& one = suite(options_.cipher);
    require(SSL_CTX_set_ciphersuites(raw, one.tls13) == 1 &&
                SSL_CTX_set_cipher_list(raw, one.tls12) == 1,
            "ciphers");
    // P-256 is for the certificate: TLS 1.2 has one list for both. is_x25519() looks.
    require(SSL_CTX_set1_groups_list(raw, "X25519:P-256") == 1, "groups");
    // The proxy's signature is checked all the same; its chain would only cost the load.
    SSL_CTX_set_verify(raw, SSL_VERIFY_NONE, nullptr);
    SSL_CTX_set_mode(raw, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_read_ahead(raw, 1);
    if (bulk_) SSL_CTX_set_default_read_buffer_len(raw, kBulkBuffer);
    // Thousands of idle connections would keep their buffers.
    if (options_.connections > kFewConnections) SSL_CTX_set_mode(raw, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_session_cache_mode(raw, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL_STORE);
    SSL_CTX_sess_set_new_cb(raw, &TlsClient::on_session);
    return context;
  }

  Tls make_tls(const Fd& fd, Slot& slot) {
    Tls tls(SSL_new(context_.get()));
    require(tls != nullptr, "SSL_new");
    BIO* in = BIO_new_socket(fd.get(), BIO_NOCLOSE);
    BIO* out = BIO_new_socket(fd.get(), BIO_NOCLOSE);
    BIO* collect = BIO_new(BIO_f_buffer());
    require(in != nullptr && out != nullptr && collect != nullptr, "BIO_new");
    if (bulk_) {
      require(BIO_set_write_buffer_size(collect, static_cast<long>(kBulkBuffer)) == 1, "BIO");
    }
    SSL_set_bio(tls.get(), in, BIO_push(collect, out));
    SSL_set_app_data(tls.get(), &slot);
    require(SSL_set_tlsext_host_name(tls.get(), options_.name.c_str()) == 1, "name");
    SSL_set_connect_state(tls.get());
    const std::vector<unsigned char>& saved = slot.newest.empty() ? first_ : slot.newest;
    if (!saved.empty()) {
      const unsigned char* bytes = saved.data();
      const Session session(d2i_SSL_SESSION(nullptr, &bytes, static_cast<long>(saved.size())));
      require(session && SSL_set_session(tls.get(), session.get()) == 1, "session");
    }
    return tls;
  }

  // --- sessions ---

  // Kept as bytes: OpenSSL marks the session that a TLS 1.3 connection resumes as used up, and
  // hands the mark down to the sessions that the same connection is given, which would never be
  // offered.
  static int on_session(SSL* tls, SSL_SESSION* session) {
    auto* slot = static_cast<Slot*>(SSL_get_app_data(tls));
    if (!slot->client->options_.resumes) return 0;
    slot->newest.resize(static_cast<std::size_t>(i2d_SSL_SESSION(session, nullptr)));
    unsigned char* bytes = slot->newest.data();
    i2d_SSL_SESSION(session, &bytes);
    return 0;  // the object stays OpenSSL's
  }

  // One connection with one exchange, behind which even the tickets of TLS 1.3 are there.
  std::vector<unsigned char> full_handshake() {
    Slot slot;
    slot.client = this;
    const Fd fd = connect_to(address(), SOCK_STREAM, std::chrono::seconds(1));
    slot.tls = make_tls(fd, slot);
    SSL* tls = slot.tls.get();
    require(SSL_connect(tls) == 1, "handshake");
    for (std::uint64_t sent = 0; sent < request_size();) {
      const std::span<const std::byte> bytes = request_from(sent);
      std::size_t size = 0;
      require(SSL_write_ex(tls, bytes.data(), bytes.size(), &size) == 1, "write");
      sent += size;
    }
    require(BIO_flush(SSL_get_wbio(tls)) == 1, "send");
    for (std::uint64_t got = 0; got < options_.request.reply;) {
      std::size_t size = 0;
      require(SSL_read_ex(tls, buffer_.data(), buffer_.size(), &size) == 1, "read");
      got += size;
    }
    SSL_shutdown(tls);
    if (slot.newest.empty()) throw std::runtime_error("the proxy gave no ticket");
    return std::move(slot.newest);
  }

  // --- handshakes ---

  // False: the connection failed and is closed.
  bool handshake(std::size_t index) {
    SSL* tls = slots_[index].tls.get();
    ERR_clear_error();
    errno = 0;
    const int done = SSL_do_handshake(tls);
    if (done != 1) {
      const int error = SSL_get_error(tls, done);
      if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) {
        return failed_tls(index, "handshake");
      }
      wait_for_room(index, error == SSL_ERROR_WANT_WRITE);
      return true;
    }
    ++handshakes_;
    if (SSL_session_reused(tls) == 1) {
      ++resumed_;
    } else if (options_.resumes) {
      return failed(index, "the session was not resumed");
    }
    if (!is_x25519(tls)) return failed(index, "the keys were not exchanged over X25519");
    wait_for_room(index, false);
    complete(index);
    return at(index).state != State::closed;
  }

  // What resumes in TLS 1.2 exchanges no keys.
  static bool is_x25519(SSL* tls) {
    EVP_PKEY* key = nullptr;
    if (SSL_get_peer_tmp_key(tls, &key) != 1) return SSL_session_reused(tls) == 1;
    const bool good = EVP_PKEY_is_a(key, "X25519") == 1;
    EVP_PKEY_free(key);
    return good;
  }

  bool failed_tls(std::size_t index, const char* what) {
    const int error = errno;
    const std::string reason = tls_error();
    errno = error;
    return failed(index, reason.empty() ? what : std::string(what) + ": " + reason);
  }

  TlsClientOptions options_;
  bool bulk_;
  Context context_;
  std::vector<Slot> slots_;
  std::vector<unsigned char> first_;  // session
  std::vector<std::byte> buffer_ = std::vector<std::byte>(kReadSize);
  std::uint64_t handshakes_ = 0, resumed_ = 0;
};

}  // namespace

nlohmann::json run_tls_client(const TlsClientOptions& options) {
  std::signal(SIGPIPE, SIG_IGN);  // OpenSSL's sockets have no MSG_NOSIGNAL
  return TlsClient(options).run();
}

}  // namespace causeway::bench
