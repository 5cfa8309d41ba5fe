// SPDX-License-Identifier: Apache-2.0
// Theory of operation: a connection whose TLS ends here.
//
// The handshake first, driven by the client's edges; then two directions with the upstream in
// clear:
//   up    recv() ciphertext -> the engine opens whole records in place -> one sendmsg() for all of
//   them down  readv() plaintext to where the records will be -> sealed in place -> one send() for
//   all
// So each byte is copied by the kernel alone, and a system call carries as many records as are
// there. A direction holds a buffer only while there is something in it; a record that came in part
// keeps its buffer, shrunk to the size of one record when the watchdog finds that nothing moves
// (shrink()).
//
// How directions end:
//   - The client's close_notify, or its FIN without one (seen by truncated()), half-closes the
//     upstream once what came before is written.
//   - The upstream's end becomes close_notify, then FIN; what the client still sends, its own
//     close_notify at last, is read.
//   - A TLS failure ends the connection; the alert is sent first.
//   - Resets and broken sockets: as in passthrough.hpp.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "common/relay/relay_pool.hpp"
#include "guest/gateway/counters.hpp"
#include "guest/gateway/relay/passthrough.hpp"
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
  enum class Shake : std::uint8_t { wait, done, client_left, failed };
  // Takes the bytes that were received already: `size` of them at `at` in `buffer`. `dry`: as in
  // Flow::put_first().
  Shake start(relay::RelayBuffer buffer, std::size_t at, std::size_t size, bool dry);
  Shake shake(std::uint32_t events);
  [[nodiscard]] const tls::Engine& engine() const { return *engine_; }
  // The client's end came without a close_notify.
  [[nodiscard]] bool truncated() const { return truncated_; }

  // ---- the relay, as in Passthrough ----
  enum class Finish : std::uint8_t { orderly, client_reset, upstream_reset, tls_failed };
  // `first` goes to the upstream before all else: a PROXY header, which a fresh socket takes whole.
  std::optional<Finish> relay(Side upstream, std::span<const std::byte> first);
  std::optional<Finish> on_client(std::uint32_t events);
  std::optional<Finish> on_upstream(std::uint32_t events);
  std::optional<Finish> go_on();
  [[nodiscard]] bool wants_turn() const { return up_ == State::turn || down_ == State::turn; }
  [[nodiscard]] bool waits_for_client_room() const { return down_ == State::wait_write; }
  [[nodiscard]] bool waits_for_upstream_room() const { return up_ == State::wait_write; }
  [[nodiscard]] std::uint64_t progress() const { return progress_; }
  void shrink();

 private:
  enum class State : std::uint8_t { wait_read, wait_write, turn, over };
  enum class Step : std::uint8_t { moved, wait_read, wait_write, over, failed };
  static constexpr std::size_t kTurn = std::size_t{1} << 20;  // bytes before a yield
  static constexpr std::size_t kPieces = 8;

  Shake handshake();
  bool flush();
  Step receive();
  std::optional<Finish> drive_up();
  std::optional<Finish> drive_down();
  Step step_up();
  Step write_pieces();
  Step end_up();
  Step step_down();
  Step write_slab();
  Step fill_slab();
  std::optional<Finish> tls_failed();
  void take_input(std::size_t least);
  void give_back_input();

  relay::RelayPool& pool_;
  WorkerCounters& counters_;
  std::unique_ptr<tls::Engine> engine_;
  Side client_;
  Side upstream_;
  State up_ = State::wait_read;
  State down_ = State::wait_read;
  Finish failure_ = Finish::tls_failed;  // with Step::failed
  std::uint64_t progress_ = 0;

  // From the client: ciphertext, and once opened the pieces of plaintext in it.
  relay::RelayBuffer input_;
  std::size_t input_at_ = 0;
  std::size_t input_end_ = 0;
  std::array<iovec, kPieces> pieces_{};
  std::size_t piece_ = 0;  // the first that is not written
  std::size_t pieces_end_ = 0;
  std::size_t opened_ = 0;     // bytes of input that the pieces are of
  bool want_more_ = true;      // no whole record is in the input
  bool client_ended_ = false;  // FIN
  bool client_end_near_ = false;
  bool up_ends_ = false;  // close_notify or FIN: half-close the upstream
  bool client_dry_ = false;
  bool truncated_ = false;
  bool upstream_broken_ = false;

  // To the client: sealed records.
  relay::RelayBuffer slab_;
  std::size_t slab_at_ = 0;
  std::size_t slab_end_ = 0;
  bool upstream_ended_ = false;
  bool upstream_end_near_ = false;
  bool upstream_cut_ = false;
  bool upstream_dry_ = false;
};

}  // namespace causeway::gateway
