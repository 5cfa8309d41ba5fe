// SPDX-License-Identifier: Apache-2.0
// The engine's handshake: certificates, tickets, and what is left when it is over.
#include <mbedtls/platform.h>
#include <mbedtls/platform_time.h>
#include <mbedtls/sha256.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>

#include "common/net/address.hpp"
#include "guest/gateway/tls/engine.hpp"
#include "guest/gateway/tls/mbedtls_internals.hpp"

#if !defined(MBEDTLS_SSL_VARIABLE_BUFFER_LENGTH)
#error "the TLS engine needs MBEDTLS_SSL_VARIABLE_BUFFER_LENGTH: it frees mbedTLS's buffers"
#endif

namespace causeway::gateway::tls {
namespace {

// A resumed session goes on being resumed; after this the client has to show who it is again.
constexpr std::int64_t kMaxAuthenticated = std::int64_t{7} * 24 * 3600 * 1000;  // ms
constexpr std::int64_t kClockSkew = 60'000;  // ms that a fleet's clocks may differ by
constexpr std::int64_t kMaxAge =
    std::chrono::duration_cast<std::chrono::milliseconds>(TicketKeys::kAccepted).count();

std::int64_t system_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Whether an iPAddress of the subjectAltName is this one (RFC 5280 4.2.1.6).
bool is_for(const mbedtls_x509_crt& certificate, const IpAddress& ip) {
  const auto wanted = std::span(ip.bytes).first(ip.size());
  for (const mbedtls_x509_sequence* name = &certificate.subject_alt_names; name != nullptr;
       name = name->next) {
    if ((name->buf.tag & MBEDTLS_ASN1_TAG_VALUE_MASK) != MBEDTLS_X509_SAN_IP_ADDRESS) continue;
    const std::span<const unsigned char> has(name->buf.p, name->buf.len);
    if (std::equal(has.begin(), has.end(), wanted.begin(), wanted.end())) return true;
  }
  return false;
}

void free_buffer(unsigned char*& buffer, std::size_t size) {
  if (buffer != nullptr) mbedtls_platform_zeroize(buffer, size);
  mbedtls_free(buffer);
  buffer = nullptr;
}

}  // namespace

Engine::Engine(Context& context, const std::shared_ptr<const Profile>& profile,
               std::string server_name)
    : Engine(context, profile, std::move(server_name), nullptr) {}

std::unique_ptr<Engine> Engine::client(Context& context,
                                       const std::shared_ptr<const Profile>& profile,
                                       std::string server_name, Session* resume) {
  return std::unique_ptr<Engine>(new Engine(context, profile, std::move(server_name), resume));
}

Engine::Engine(Context& context, const std::shared_ptr<const Profile>& profile,
               std::string server_name, Session* resume)
    : context_(context),
      config_(context.config(profile)),
      start_(std::make_unique<Start>()),
      server_name_(std::move(server_name)) {
  mbedtls_ssl_init(&ssl_);
  bool made = config_ != nullptr && mbedtls_ssl_setup(&ssl_, &config_->config) == 0;
  if (made && profile->is_server()) {
    start_->keys = context.key_ring();
    bind_tickets();
  } else if (made) {
    // A session that does not fit (of another version, say) is no reason to fail.
    // mbedTLS would send an IP address as a name, which RFC 6066 3 forbids; verify() compares it.
    const char* const name = parse_ip(server_name_) ? nullptr : server_name_.c_str();
    made = mbedtls_ssl_set_hostname(&ssl_, name) == 0;
    if (made && resume != nullptr) (void)mbedtls_ssl_set_session(&ssl_, resume->get());
  }
  if (!made) {
    mbedtls_ssl_free(&ssl_);
    throw std::bad_alloc();
  }
  mbedtls_ssl_set_user_data_p(&ssl_, this);
  mbedtls_ssl_set_bio(&ssl_, this, on_send, on_receive, nullptr);
}

Engine::~Engine() {
  mbedtls_ssl_free(&ssl_);
}

void Engine::bind_tickets() {
  if (!start_->keys || !config_->profile->options().tickets) return;
  static constexpr std::string_view kLabel = "causeway session ticket, version 1";
  std::vector<unsigned char> all(kLabel.begin(), kLabel.end());
  const auto add = [&all](const Digest& digest) {
    all.insert(all.end(), digest.begin(), digest.end());
  };
  add(start_->keys->store().choose(server_name_).binding);
  add(config_->profile->digest());
  all.insert(all.end(), server_name_.begin(), server_name_.end());
  if (mbedtls_sha256(all.data(), all.size(), start_->binding.data(), 0) != 0)
    throw std::bad_alloc();
}

Engine::Progress Engine::handshake(std::span<const std::byte> received) {
  Progress out;
  if (state_ != State::handshake) {
    out.status = state_ == State::open ? Status::done : Status::error;
    return out;
  }
  if (read_closed_) {
    out.status = Status::closed;
    return out;
  }
  // Whole records only: what mbedTLS takes, it takes to its end.
  std::size_t whole = 0;
  Header header;
  while (true) {
    header = examine(received.subspan(whole));
    if (header.fault != Fault::none || !header.whole) break;
    whole += header.size;
  }
  start_->received = received.first(whole);
  out.status = run_handshake();
  out.consumed = whole - start_->received.size();
  if (out.consumed != 0) first_record_ = false;
  if (fault_ == Fault::bad_mac) note_plain_alert(received.first(out.consumed));
  if (out.status == Status::need_read && header.fault != Fault::none) {
    out.status = fail(header.fault, 0);
  } else if (out.status == Status::done) {
    out.status = established_now();
  }
  if (out.status != Status::need_read) start_.reset();
  return out;
}

// Not mbedtls_ssl_is_handshake_over(): that is true before TLS 1.3's ticket is written or read.
bool Engine::in_handshake() const {
  return ssl_.MBEDTLS_PRIVATE(state) != MBEDTLS_SSL_HANDSHAKE_OVER;
}

Status Engine::run_handshake() {
  context_.current_ = this;
  Status status = Status::done;
  while (in_handshake()) {
    if (ssl_.MBEDTLS_PRIVATE(state) == MBEDTLS_SSL_SERVER_CERTIFICATE) start_->full = true;
    alerts_sent_ = 0;
    const int result = mbedtls_ssl_handshake_step(&ssl_);
    if (result == 0) use_application_keys();
    if (result == 0 && !certificate_is_bad()) continue;
    if (result == 0) {
      status = fail(Fault::bad_certificate, MBEDTLS_ERR_X509_CERT_VERIFY_FAILED);
    } else if (result == MBEDTLS_ERR_SSL_WANT_READ) {
      status = Status::need_read;
    } else if (result == MBEDTLS_ERR_SSL_PEER_CLOSE_NOTIFY) {
      read_closed_ = true;
      status = Status::closed;
    } else {
      status = fail_with(result);
    }
    break;
  }
  context_.current_ = nullptr;
  return status;
}

// Behind its Finished a server of TLS 1.3 sends under the application's keys (RFC 8446 7.1, A.2),
// but mbedTLS only switches when the client's Finished has come: an alert about the client's
// certificate would not be understood. Nothing else is sent in between, so the counter is 0 when
// mbedTLS switches.
void Engine::use_application_keys() {
  const int state = ssl_.MBEDTLS_PRIVATE(state);
  mbedtls_ssl_transform* const keys = ssl_.MBEDTLS_PRIVATE(transform_application);
  if (keys == nullptr || !config_->profile->is_server() ||
      ssl_.MBEDTLS_PRIVATE(transform_out) == keys ||
      (state != MBEDTLS_SSL_CLIENT_CERTIFICATE && state != MBEDTLS_SSL_CLIENT_FINISHED)) {
    return;
  }
  ssl_.MBEDTLS_PRIVATE(transform_out) = keys;
  std::memset(ssl_.MBEDTLS_PRIVATE(cur_out_ctr), 0, sizeof ssl_.MBEDTLS_PRIVATE(cur_out_ctr));
}

// Some clients of TLS 1.3 (mbedTLS's too) say in clear what they do not like about our certificate,
// when mbedTLS expects it sealed. It fails either way; this tells why. `records` are whole.
void Engine::note_plain_alert(std::span<const std::byte> records) {
  Header header;
  while ((header = examine(records)).whole && header.size < records.size()) {
    records = records.subspan(header.size);
  }
  if (!header.whole || header.size != kHeader + 2 ||
      records.front() != std::byte{MBEDTLS_SSL_MSG_ALERT}) {
    return;
  }
  fault_ = Fault::alert_received;
  alert_ = std::to_integer<std::uint8_t>(records[kHeader + 1]);
}

// mbedTLS lets an optional certificate pass whatever it is worth.
bool Engine::certificate_is_bad() const {
  if (config_->profile->options().client_auth != ClientAuth::optional ||
      !config_->profile->is_server()) {
    return false;
  }
  const std::uint32_t flags = mbedtls_ssl_get_verify_result(&ssl_);
  if (flags == ~std::uint32_t{0}) return start_->certified;  // not judged yet, or not to be judged
  return (flags &
          ~std::uint32_t{MBEDTLS_X509_BADCERT_MISSING | MBEDTLS_X509_BADCERT_SKIP_VERIFY}) != 0;
}

Status Engine::established_now() {
  // The keys changed behind the last message; whatever shares its record was sent under the old
  // ones.
  if (mbedtls_ssl_check_pending(&ssl_) != 0 ||
      ssl_.MBEDTLS_PRIVATE(badmac_seen_or_in_hsfraglen) != 0) {
    return fail(Fault::unexpected_message, 0);
  }
  copy_facts();
  const int payload = mbedtls_ssl_get_max_out_record_payload(&ssl_);
  mbedtls_ssl_update_out_pointers(&ssl_, ssl_.MBEDTLS_PRIVATE(transform_out));
  const std::ptrdiff_t nonce = ssl_.MBEDTLS_PRIVATE(out_msg) - ssl_.MBEDTLS_PRIVATE(out_iv);
  const int expansion = mbedtls_ssl_get_record_expansion(&ssl_);
  if (payload <= 0 || nonce < 0 || nonce > 8 || expansion < 0 ||
      static_cast<std::size_t>(expansion) > kMaxOverhead) {
    return fail(Fault::internal, MBEDTLS_ERR_SSL_INTERNAL_ERROR);
  }
  max_payload_ = static_cast<std::uint16_t>(
      std::min<std::size_t>(static_cast<std::size_t>(payload), kMaxPlaintext));
  explicit_nonce_ = static_cast<std::uint8_t>(nonce);

  // From here on the caller's memory is lent (engine.hpp).
  std::memcpy(sequence_in_.data(), ssl_.MBEDTLS_PRIVATE(in_ctr), sequence_in_.size());
  free_buffer(ssl_.MBEDTLS_PRIVATE(in_buf), ssl_.MBEDTLS_PRIVATE(in_buf_len));
  free_buffer(ssl_.MBEDTLS_PRIVATE(out_buf), ssl_.MBEDTLS_PRIVATE(out_buf_len));
  take_back();
  ssl_.MBEDTLS_PRIVATE(in_hslen) = 0;
  ssl_.MBEDTLS_PRIVATE(in_msglen) = 0;

  // In TLS 1.3 mbedTLS keeps what its handshake needed. A client reads new tickets with it.
  const bool keeps = !config_->profile->is_server() && config_->profile->options().tickets;
  if (!keeps) {
    if (ssl_.MBEDTLS_PRIVATE(handshake) != nullptr) {
      mbedtls_ssl_handshake_wrapup_free_hs_transform(&ssl_);
      // Once more for the transform that TLS 1.2 would have had.
      mbedtls_ssl_handshake_wrapup_free_hs_transform(&ssl_);
    }
    if (mbedtls_ssl_session* session = ssl_.MBEDTLS_PRIVATE(session); session != nullptr) {
      mbedtls_ssl_session_free(session);
      mbedtls_free(session);
    }
    ssl_.MBEDTLS_PRIVATE(session) = nullptr;
    ssl_.MBEDTLS_PRIVATE(session_in) = nullptr;
    ssl_.MBEDTLS_PRIVATE(session_out) = nullptr;
  }
  state_ = State::open;
  if (output().empty()) sent(0);
  return Status::done;
}

void Engine::copy_facts() {
  version_ = mbedtls_ssl_get_version_number(&ssl_) == MBEDTLS_SSL_VERSION_TLS1_3 ? Version::tls13
                                                                                 : Version::tls12;
  cipher_ = cipher_name(mbedtls_ssl_get_ciphersuite_id_from_ssl(&ssl_));
  if (const char* text = mbedtls_ssl_get_alpn_protocol(&ssl_); text != nullptr) alpn_ = text;
  resumed_ = !start_->full;
  if (resumed_ && start_->ticket) {
    start_->certified = start_->ticket->certified;
    start_->subject = std::move(start_->ticket->subject);
  }
  if (start_->certified) subject_ = std::make_unique<std::string>(std::move(start_->subject));
  if (!config_->profile->is_server() && version_ == Version::tls12) keep_session();
}

void Engine::keep_session() {
  if (!config_->profile->options().tickets) return;
  auto session = std::make_unique<Session>();
  if (mbedtls_ssl_get_session(&ssl_, session->get()) == 0) session_ = std::move(session);
}

std::unique_ptr<Session> Engine::take_session() {
  return std::move(session_);
}

int Engine::on_receive(void* self, unsigned char* bytes, std::size_t size) {
  auto& engine = *static_cast<Engine*>(self);
  // After the handshake mbedTLS has its record already, and is given no second one.
  if (!engine.start_ || engine.start_->received.empty()) return MBEDTLS_ERR_SSL_WANT_READ;
  auto& from = engine.start_->received;
  const std::size_t part = std::min(size, from.size());
  std::memcpy(bytes, from.data(), part);
  from = from.subspan(part);
  return static_cast<int>(part);
}

int Engine::choose_certificate() {
  if (!start_->keys) return MBEDTLS_ERR_SSL_PRIVATE_KEY_REQUIRED;
  KeyRing& keys = *start_->keys;
  // After a HelloRetryRequest this is called again.
  if (const int failed = mbedtls_ssl_set_hs_own_cert(&ssl_, nullptr, nullptr); failed != 0) {
    return failed;
  }
  for (const std::uint32_t i : keys.store().choose(server_name_).identities) {
    mbedtls_pk_context* const key = keys.key(i);
    if (key == nullptr) return MBEDTLS_ERR_SSL_ALLOC_FAILED;
    const int failed =
        mbedtls_ssl_set_hs_own_cert(&ssl_, keys.store().identities()[i]->chain().get(), key);
    if (failed != 0) return failed;
  }
  return 0;
}

int Engine::verify(mbedtls_x509_crt& certificate, int depth, std::uint32_t& flags) {
  if (depth != 0) return 0;
  if (!config_->profile->is_server()) {
    const auto ip = parse_ip(server_name_);
    if (ip && !is_for(certificate, *ip)) flags |= MBEDTLS_X509_BADCERT_CN_MISMATCH;
    return 0;
  }
  std::array<char, TicketState::kMaxSubject> subject{};
  const int size = mbedtls_x509_dn_gets(subject.data(), subject.size(), &certificate.subject);
  start_->certified = true;
  // One that does not fit stays unnamed rather than cut.
  start_->subject.assign(subject.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
  return 0;
}

int Engine::write_ticket(const mbedtls_ssl_session& session, std::span<unsigned char> out,
                         std::size_t& size, std::uint32_t& lifetime) {
  TicketState state;
  state.issued = system_ms();
  if (start_->full || !start_->ticket) {
    state.authenticated = state.issued;
    state.certified = start_->certified;
    state.subject = start_->subject;
  } else {
    state.authenticated = start_->ticket->authenticated;
    state.certified = start_->ticket->certified;
    state.subject = start_->ticket->subject;
  }
  lifetime = static_cast<std::uint32_t>(TicketKeys::lifetime().count());
  return context_.ticket_keys()->seal(session, state, start_->binding, context_.random(), out,
                                      size);
}

int Engine::parse_ticket(mbedtls_ssl_session& session, std::span<unsigned char> ticket) {
  TicketState state;
  const int failed = context_.ticket_keys()->open(ticket, start_->binding, session, state);
  if (failed != 0) return MBEDTLS_ERR_SSL_INVALID_MAC;
  const std::int64_t now = system_ms();
  const std::int64_t age = now - state.issued;
  if (age < -kClockSkew || age > kMaxAge || now - state.authenticated > kMaxAuthenticated) {
    return MBEDTLS_ERR_SSL_SESSION_TICKET_EXPIRED;
  }
  // A ticket of one version is no session of the other.
  if (session.MBEDTLS_PRIVATE(tls_version) != mbedtls_ssl_get_version_number(&ssl_)) {
    return MBEDTLS_ERR_SSL_INVALID_MAC;
  }
  // mbedTLS judges the age by its own clock, the uptime of the machine that made the ticket.
  session.MBEDTLS_PRIVATE(ticket_creation_time) =
      mbedtls_ms_time() - std::max<std::int64_t>(age, 0);
  start_->ticket = std::move(state);
  return 0;
}

}  // namespace causeway::gateway::tls
