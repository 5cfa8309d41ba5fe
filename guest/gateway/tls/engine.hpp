// SPDX-License-Identifier: Apache-2.0
// Theory of operation: TLS over memory. The caller owns the sockets and nearly all of the buffers.
//
// Records are opened and sealed where they lie. mbedTLS works in buffers of its own, one for each
// direction, 17 KiB each: what is received is copied in, the plaintext out again and wiped, and the
// same on the other way. At several GB/s of AES-GCM each copy costs as much as the cipher. So after
// the handshake the engine takes those buffers away, and for each record points mbedTLS at the
// caller's memory: the record that was received becomes plaintext in place, and what is to be sent
// is sealed in the slab that goes to the socket. An idle connection has no buffer at all (mbedTLS's
// handshake data is freed too), and several records cost one system call.
//
// Only whole records are given to mbedTLS. A partial one stays in the caller's buffer, so what is
// in hand is always visible there: nothing received is ever inside of the engine, but for plaintext
// that was just handed out. That, and the sequence numbers, which the engine keeps beside
// mbedTLS's, is what a later handover to the kernel (kTLS) needs: it can take place between any two
// calls.
//
// What TLS itself has to say (handshake flights, alerts, close_notify) is collected in output(); it
// goes before any sealed data, which seal() sees to. After a failure the alert is in there already.
//
// Each failure has one Fault; details of mbedTLS's are in error_code() for the log.
//
// An engine belongs to its Context's thread.
//
// Sources: RFC 8446, RFC 5246; mbedTLS 3.6.6 ssl_msg.c for what is done between records.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "guest/gateway/crypto/mbedtls.hpp"
#include "guest/gateway/tls/faults.hpp"
#include "guest/gateway/tls/settings.hpp"

namespace causeway::gateway::tls {

enum class Status : std::uint8_t {
  done,        // what was asked for; of open(): no place for more pieces, go on with the rest
  need_read,   // more has to be received: what was given holds no further whole record
  need_write,  // output() has to be sent, or there is no room in the slab
  closed,      // the peer's close_notify came; nothing of what follows it is looked at
  truncated,   // the peer's end came without one
  error,       // see fault(); output() has the alert
};

// A session that a client was given, to resume with. Movable, wiped at its end.
class Session {
 public:
  Session() { mbedtls_ssl_session_init(&session_); }
  ~Session() { mbedtls_ssl_session_free(&session_); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  [[nodiscard]] mbedtls_ssl_session* get() { return &session_; }

 private:
  mbedtls_ssl_session session_;
};

class Engine {
 public:
  static constexpr std::size_t kHeader = 5;
  static constexpr std::size_t kMaxPlaintext = std::size_t{16} * 1024;
  // Of the largest record that is accepted: TLS 1.2 has 8 bytes of nonce and 16 of tag, TLS 1.3 a
  // byte for the type and 16. The caller's receive buffer has to hold one.
  static constexpr std::size_t kMaxRecord = kHeader + kMaxPlaintext + 24;
  // What a record of ours is larger than its plaintext at most.
  static constexpr std::size_t kMaxOverhead = kHeader + 8 + 16 + 16;

  // A server's side. `server_name` as the sniffer found it (lower case; may be empty): it decides
  // the certificates and what tickets hold for. Throws std::bad_alloc.
  Engine(Context& context, const std::shared_ptr<const Profile>& profile,
         std::string server_name = {});
  // A client's: `server_name` is sent (unless it is an IP address) and verified. `resume` may be
  // null.
  static std::unique_ptr<Engine> client(Context& context,
                                        const std::shared_ptr<const Profile>& profile,
                                        std::string server_name, Session* resume = nullptr);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // ---- the handshake ----
  struct Progress {
    Status status = Status::need_read;
    std::size_t consumed = 0;  // bytes of `received` that are done with; the rest comes again
  };
  // done once, when the handshake is over; what is left of `received` belongs to open().
  Progress handshake(std::span<const std::byte> received);
  [[nodiscard]] bool established() const { return state_ == State::open; }

  // ---- received data ----
  struct Opened {
    Status status = Status::need_read;
    std::size_t consumed = 0;  // bytes of `received` that are done with, once the pieces are
    std::size_t pieces = 0;    // entries of `pieces` that were set
    std::size_t bytes = 0;     // in them
  };
  // Opens as many records as are whole, in place: each piece is plaintext inside of `received`.
  // With a status other than done or need_read the pieces are there too, and are to be delivered
  // first.
  Opened open(std::span<std::byte> received, std::span<iovec> pieces);
  // The peer's end of the stream came (TCP's FIN): closed if a close_notify came before, and no
  // byte of a record after that; else truncated.
  [[nodiscard]] Status end_of_input() const {
    return read_closed_ ? Status::closed : Status::truncated;
  }

  // ---- data to send ----
  struct Sealed {
    Status status = Status::done;  // done: all was taken; need_write: the slab is full; error
    std::size_t consumed = 0;      // bytes of plaintext
    std::size_t bytes = 0;         // at the slab's begin, to be sent
  };
  // output() first, then as many records as fit. Without plaintext it only moves output().
  Sealed seal(std::span<const std::byte> plaintext, std::span<std::byte> slab);

  // The same without a copy: plan() says where in the slab plaintext has to be (for readv): up to
  // parts.size() places, full records but for the last. seal_planned() seals the first `size` bytes
  // of those; the slab and the engine's state have to be as they were. plan() gives none while
  // output() is not empty, or after close_notify().
  std::size_t plan(std::span<std::byte> slab, std::span<iovec> parts) const;
  Sealed seal_planned(std::span<std::byte> slab, std::size_t size);

  // Puts a close_notify into output(). Nothing can be sealed afterwards. Reading goes on.
  void close_notify();
  // Puts a fatal alert into output() and fails: for what the caller finds out, such as a route that
  // is not there. In a handshake it is in clear, if the peer has no keys yet.
  void refuse(std::uint8_t alert, Fault why = Fault::none);

  [[nodiscard]] std::span<const std::byte> output() const {
    return std::span<const std::byte>(output_).subspan(output_sent_);
  }
  void sent(std::size_t size);  // of output()

  // ---- facts; after the handshake ----
  [[nodiscard]] Fault fault() const { return fault_; }
  [[nodiscard]] int error_code() const { return code_; }       // mbedTLS's, 0 if none
  [[nodiscard]] std::uint8_t alert() const { return alert_; }  // received, with alert_received
  [[nodiscard]] Version version() const { return version_; }
  // As OpenSSL names it, which PROXY's receivers know: "TLS_AES_128_GCM_SHA256",
  // "ECDHE-RSA-AES128-GCM-SHA256".
  [[nodiscard]] std::string_view cipher() const { return cipher_; }
  [[nodiscard]] std::string_view alpn() const { return alpn_; }  // empty: none; the profile's
  [[nodiscard]] std::string_view server_name() const { return server_name_; }
  [[nodiscard]] bool resumed() const { return resumed_; }
  [[nodiscard]] bool had_client_certificate() const { return subject_ != nullptr; }
  [[nodiscard]] std::string_view client_subject() const {
    return subject_ ? std::string_view(*subject_) : std::string_view();
  }
  [[nodiscard]] bool read_closed() const { return read_closed_; }
  [[nodiscard]] bool write_closed() const { return write_closed_; }
  // A client's: the newest session that it was given, once; null if there is none.
  std::unique_ptr<Session> take_session();

 private:
  friend class Context;
  friend struct EngineProbe;  // of the tests: a peer that says what no engine would
  enum class State : std::uint8_t { handshake, open, failed };
  struct Header {
    Fault fault = Fault::none;
    bool whole = false;    // the record is
    std::size_t size = 0;  // of the record, its header included
  };
  // Needed until the handshake is over.
  struct Start {
    std::shared_ptr<KeyRing> keys;
    Digest binding{};
    std::optional<TicketState> ticket;    // one that was opened; if it was used shows later
    bool certified = false;               // the client presented a certificate, of
    std::string subject;                  // this
    bool full = false;                    // certificates were exchanged: nothing was resumed
    std::span<const std::byte> received;  // whole records, what mbedTLS has not taken yet
  };

  Engine(Context& context, const std::shared_ptr<const Profile>& profile, std::string server_name,
         Session* resume);
  void bind_tickets();
  [[nodiscard]] Header examine(std::span<const std::byte> bytes) const;
  [[nodiscard]] bool in_handshake() const;
  Status run_handshake();
  [[nodiscard]] bool certificate_is_bad() const;
  void use_application_keys();
  void note_plain_alert(std::span<const std::byte> records);
  Status established_now();
  Status fail(Fault fault, int code);
  Status fail_with(int code);
  void send_alert(unsigned char level, unsigned char number);
  void lend_output(std::span<std::byte> memory);
  void lend_input(std::span<std::byte> record);
  void take_back();
  Status open_record(std::span<std::byte> record, iovec& piece);
  Status failed_read(int result);
  Status seal_record(std::span<std::byte> record, std::size_t size, std::size_t& sealed);
  [[nodiscard]] std::size_t record_size(std::size_t plaintext) const;
  void keep_session();
  void copy_facts();

  static int on_send(void* self, const unsigned char* bytes, std::size_t size);
  static int on_receive(void* self, unsigned char* bytes, std::size_t size);
  int choose_certificate();
  int verify(mbedtls_x509_crt& certificate, int depth, std::uint32_t& flags);
  int write_ticket(const mbedtls_ssl_session& session, std::span<unsigned char> out,
                   std::size_t& size, std::uint32_t& lifetime);
  int parse_ticket(mbedtls_ssl_session& session, std::span<unsigned char> ticket);

  Context& context_;
  std::shared_ptr<const Config> config_;
  std::unique_ptr<Start> start_;
  mbedtls_ssl_context ssl_;
  std::array<unsigned char, 8> sequence_in_{};  // of the next record, while mbedTLS has no buffer
  State state_ = State::handshake;
  Fault fault_ = Fault::none;
  Version version_ = Version::tls12;
  std::uint8_t alert_ = 0;
  bool resumed_ = false;
  bool read_closed_ = false;
  bool write_closed_ = false;
  bool first_record_ = true;
  std::uint8_t alerts_sent_ = 0;     // in the present call, by mbedTLS
  std::uint8_t idle_records_ = 0;    // without data, one after the other
  std::uint8_t renegotiations_ = 0;  // refused
  std::uint8_t explicit_nonce_ = 0;  // bytes of it in each record
  std::uint16_t max_payload_ = 0;    // of a record that we send
  int code_ = 0;
  std::string_view cipher_;
  std::string_view alpn_;
  std::string server_name_;
  std::unique_ptr<std::string> subject_;
  std::unique_ptr<Session> session_;
  std::vector<std::byte> output_;
  std::size_t output_sent_ = 0;
};

}  // namespace causeway::gateway::tls
