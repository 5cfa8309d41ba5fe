// SPDX-License-Identifier: Apache-2.0
// The records of one TLS peer, between its socket and its engine: what both of Terminated's sides
// are made of.
//
// Each way holds a buffer only while there is something in it. What comes in is opened where it
// lies; a record that came in part stays, and moves to the buffer's begin at most once.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <span>

#include "common/relay/relay_pool.hpp"
#include "guest/gateway/relay/passthrough.hpp"
#include "guest/gateway/tls/engine.hpp"

namespace causeway::gateway {

// Ciphertext from a peer, and once opened the pieces of plaintext in it.
class RecordsIn {
 public:
  static constexpr std::size_t kPieces = 8;
  enum class Got : std::uint8_t { some, end, dry, failed };

  // Bytes that were received already. `dry`: as in Flow::put_first().
  void put_first(relay::RelayBuffer buffer, std::size_t at, std::size_t size, bool dry);
  // Of epoll's edges: there is more; the end is there or near.
  void note_more() { dry_ = false; }
  void note_end() { end_near_ = true; }

  // Reads behind what is held. Not while there are pieces.
  Got receive(relay::RelayPool& pool, const Passthrough::Side& from, std::uint64_t& progress);
  // Opens what is held, up to kPieces records. Not while there are pieces.
  tls::Status open(tls::Engine& engine);
  // A whole record may be held: open() before receive().
  [[nodiscard]] bool may_open() const { return !want_more_; }
  // For a handshake: what is held, and how much of it is done with.
  [[nodiscard]] std::span<const std::byte> held() const;
  void taken(std::size_t size) {
    at_ += size;
    want_more_ = at_ == end_;
  }

  [[nodiscard]] bool has_pieces() const { return piece_ < pieces_end_; }
  [[nodiscard]] std::span<const iovec> pieces() const {
    return std::span(pieces_).subspan(piece_, pieces_end_ - piece_);
  }
  void delivered(std::size_t size);  // of the pieces, in their order

  [[nodiscard]] bool ended() const { return ended_; }          // FIN was read
  [[nodiscard]] bool in_record() const { return at_ < end_; }  // with part of a record in hand

  void rest(relay::RelayPool& pool);    // nothing to do: only a record in part keeps its buffer
  void drop(relay::RelayPool& pool);    // nothing of it is wanted any more
  void shrink(relay::RelayPool& pool);  // to the bytes of the record in part

 private:
  void make_room(relay::RelayPool& pool);
  void move_to(relay::RelayPool& pool, relay::RelayBuffer buffer);
  void settle();

  relay::RelayBuffer buffer_;
  std::size_t at_ = 0;  // of the first byte that is not done with
  std::size_t end_ = 0;
  std::size_t opened_ = 0;  // bytes from at_ on that the pieces are of
  std::array<iovec, kPieces> pieces_{};
  std::uint8_t piece_ = 0;  // the first that is not delivered
  std::uint8_t pieces_end_ = 0;
  bool want_more_ = true;  // no whole record is held
  bool filled_ = false;    // the last read took all the room
  bool dry_ = false;
  bool end_near_ = false;
  bool ended_ = false;
};

// Sealed records on their way to a peer.
class RecordsOut {
 public:
  enum class Put : std::uint8_t { some, full, reset, broken };

  [[nodiscard]] bool pending() const { return at_ < end_; }
  // What TLS itself has to say, then as much of the pieces as fits. Not while something is pending.
  tls::Engine::Sealed seal(relay::RelayPool& pool, tls::Engine& engine,
                           std::span<const iovec> pieces);
  // The slab to seal into by other means, and how much of it is to be sent.
  std::span<std::byte> slab(relay::RelayPool& pool);
  void filled(std::size_t size);

  // One send() of what is pending.
  Put write(const Passthrough::Side& to, std::uint64_t& progress);
  // What is pending, then what the engine has to say. False: the peer takes no more for now. A
  // broken socket shows when it is read.
  bool flush(const Passthrough::Side& to, tls::Engine& engine, std::uint64_t& progress);
  void rest(relay::RelayPool& pool);
  void drop(relay::RelayPool& pool);

 private:
  relay::RelayBuffer slab_;
  std::size_t at_ = 0;
  std::size_t end_ = 0;
};

}  // namespace causeway::gateway
