// SPDX-License-Identifier: Apache-2.0
// Theory of operation: a connection whose TLS ends here.
//
// The handshake first, driven by the client's edges; then, where the route wants it, one as a
// client of the upstream; then two directions:
//   up    recv() ciphertext -> the engine opens whole records in place -> one sendmsg() for all of
//         them
//   down  readv() plaintext to where the records will be -> sealed in place -> one send() for all
// So each byte is copied by the kernel alone, and a system call carries as many records as are
// there. With TLS to the upstream the plaintext of each direction is copied once, from the record
// it came in to the one it leaves in; all else is the same, half-closes and turns included.
//
// A direction holds a buffer only while there is something in it; a record that came in part keeps
// its buffer, cut to its size when the watchdog finds that nothing moves (shrink()).
//
// How directions end:
//   - The client's close_notify, or its FIN without one (seen by truncated()), half-closes the
//     upstream once what came before is written, with a close_notify if TLS is spoken to it. What
//     follows a close_notify is not read. A FIN in the middle of a record is no end: it counts as a
//     reset, since what the upstream got is cut.
//   - The upstream's end becomes close_notify, then FIN; what the client still sends, its own
//     close_notify at last, is read. With TLS to the upstream its close_notify is its end, and a
//     FIN without one counts as a reset (upstream_truncated()): the client must not take for whole
//     what somebody on the way may have cut.
//   - A TLS failure ends the connection, once what came before it is delivered; the peer that
//     caused it is sent the alert.
//   - Resets and broken sockets: as in passthrough.hpp.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "common/relay/relay_pool.hpp"
#include "guest/gateway/counters.hpp"
#include "guest/gateway/relay/passthrough.hpp"
#include "guest/gateway/relay/terminated_records.hpp"
#include "guest/gateway/tls/engine.hpp"

namespace causeway::gateway {

class Terminated {
 public:
  using Side = Passthrough::Side;

  Terminated(relay::RelayPool& pool, WorkerCounters& counters, std::unique_ptr<tls::Engine> engine,
             Side client);
  ~Terminated();
  Terminated(const Terminated&) = delete;
  Terminated& operator=(const Terminated&) = delete;

  // ---- the handshake ----
  // client_left: of an upstream's handshake, that the upstream did.
  enum class Shake : std::uint8_t { wait, done, client_left, failed };
  // Takes the bytes that were received already: `size` of them at `at` in `buffer`. `dry`: as in
  // Flow::put_first(). While it waits, waits_for_client_room() may hold.
  Shake start(relay::RelayBuffer buffer, std::size_t at, std::size_t size, bool dry);
  Shake shake(std::uint32_t events);
  [[nodiscard]] const tls::Engine& engine() const { return *engine_; }
  // The client's end came without a close_notify.
  [[nodiscard]] bool truncated() const { return truncated_; }
  // Ends TLS with the client by a fatal alert, in its handshake or after it, sent as far as the
  // socket takes it. Another call sends more of it.
  void refuse(std::uint8_t alert);

  // ---- TLS to the upstream, between `done` and relay() ----
  // `engine` is a client's. `first` goes in front of TLS, in clear: a PROXY header, which a fresh
  // socket takes whole. The client's edges that come meanwhile belong to on_client(), after
  // relay().
  Shake start_upstream(Side upstream, std::unique_ptr<tls::Engine> engine,
                       std::span<const std::byte> first);
  Shake shake_upstream(std::uint32_t events);
  // Null: the upstream is spoken to in clear.
  [[nodiscard]] const tls::Engine* upstream_engine() const {
    return upstream_tls_ ? upstream_tls_->engine.get() : nullptr;
  }
  // The newest session that the upstream gave, to resume with; null: none.
  std::unique_ptr<tls::Session> take_upstream_session() {
    return upstream_tls_ ? upstream_tls_->engine->take_session() : nullptr;
  }
  // Its end came without a close_notify.
  [[nodiscard]] bool upstream_truncated() const {
    return upstream_tls_ && upstream_tls_->truncated;
  }

  // ---- the relay, as in Passthrough ----
  enum class Finish : std::uint8_t {
    orderly,
    client_reset,
    upstream_reset,
    tls_failed,           // with the client
    upstream_tls_failed,  // with the upstream
  };
  // `first` goes to the upstream before all else: a PROXY header, which a fresh socket takes whole.
  // Empty after start_upstream().
  std::optional<Finish> relay(Side upstream, std::span<const std::byte> first);
  std::optional<Finish> on_client(std::uint32_t events);
  std::optional<Finish> on_upstream(std::uint32_t events);
  std::optional<Finish> go_on();
  [[nodiscard]] bool wants_turn() const { return up_ == State::turn || down_ == State::turn; }
  [[nodiscard]] bool waits_for_client_room() const { return down_ == State::wait_write; }
  [[nodiscard]] bool waits_for_upstream_room() const { return up_ == State::wait_write; }
  [[nodiscard]] std::uint64_t progress() const { return progress_; }
  void shrink();
  // The client's FIN was read; the upstream's end was passed on.
  [[nodiscard]] bool client_ended() const { return in_.ended(); }
  [[nodiscard]] bool answered() const { return down_ == State::over; }

 private:
  enum class State : std::uint8_t { wait_read, wait_write, turn, over };
  enum class Step : std::uint8_t { moved, wait_read, wait_write, over, failed };
  static constexpr std::size_t kTurn = std::size_t{1} << 20;  // bytes before a yield

  // What TLS to the upstream needs beyond the rest.
  struct UpstreamTls {
    std::unique_ptr<tls::Engine> engine;
    RecordsIn in;
    RecordsOut out;
    bool truncated = false;
  };

  Shake handshake(tls::Engine& engine, const Side& side, RecordsIn& in, RecordsOut& out,
                  State& writing);
  Shake shake_with(std::uint32_t events, tls::Engine& engine, const Side& side, RecordsIn& in,
                   RecordsOut& out, State& writing);
  Step fail(Finish why);
  std::optional<Finish> failed();
  std::optional<Finish> drive_up();
  std::optional<Finish> drive_down();
  Step step_up();
  Step receive_up();
  Step open_up();
  Step write_pieces();
  Step end_up();
  Step broken_up(bool reset);
  Step step_down();
  Step write_down();
  Step fill_slab();
  Step end_down();
  // With TLS to the upstream.
  Step write_sealed_up(UpstreamTls& tls);
  Step seal_up(UpstreamTls& tls);
  Step step_down_tls(UpstreamTls& tls);
  Step open_down(UpstreamTls& tls);
  Step seal_down(UpstreamTls& tls);

  relay::RelayPool& pool_;
  WorkerCounters& counters_;
  std::unique_ptr<tls::Engine> engine_;
  std::unique_ptr<UpstreamTls> upstream_tls_;
  Side client_;
  Side upstream_;
  State up_ = State::wait_read;
  State down_ = State::wait_read;
  Finish failure_ = Finish::tls_failed;  // with Step::failed
  bool up_ends_ = false;                 // close_notify or FIN: half-close the upstream
  bool truncated_ = false;
  bool upstream_broken_ = false;    // it took no more, and not all was written
  bool upstream_cut_ = false;       // a write met its reset: what reads as its end is none
  bool upstream_ended_ = false;     // its FIN; with TLS its close_notify
  bool upstream_end_near_ = false;  // these two of an upstream in clear
  bool upstream_dry_ = false;
  std::uint64_t progress_ = 0;
  RecordsIn in_;    // from the client
  RecordsOut out_;  // to the client
};

}  // namespace causeway::gateway
