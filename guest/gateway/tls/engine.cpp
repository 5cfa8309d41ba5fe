// SPDX-License-Identifier: Apache-2.0
// The engine after its handshake: records, alerts and output. engine_handshake.cpp has the rest.
#include "guest/gateway/tls/engine.hpp"

#include <mbedtls/platform.h>

#include <algorithm>
#include <cstring>

#include "guest/gateway/tls/mbedtls_internals.hpp"

namespace causeway::gateway::tls {
namespace {

// What mbedTLS is told that lent memory has. Each use makes sure of what it really needs.
constexpr std::size_t kLent = std::size_t{1} << 20;
constexpr std::size_t kAlertRoom = 96;  // bytes that an alert's record takes at most, and more
constexpr unsigned kMaxIdleRecords = 32;
constexpr unsigned kMaxRenegotiations = 2;
constexpr int kMaxMessages = 16;  // of a handshake kind in one record
constexpr std::size_t kTag = 16;
constexpr std::size_t kPadding = MBEDTLS_SSL_CID_TLS1_3_PADDING_GRANULARITY;
constexpr unsigned char kKeyUpdate = 24;  // RFC 8446 4.6.3

// mbedTLS's interfaces are of unsigned char.
unsigned char* bytes_of(std::byte* at) {
  return reinterpret_cast<unsigned char*>(at);
}

}  // namespace

Engine::Header Engine::examine(std::span<const std::byte> bytes) const {
  const auto at = [&](std::size_t i) { return std::to_integer<unsigned>(bytes[i]); };
  const Fault wrong = first_record_ ? Fault::not_tls : Fault::bad_record;
  if (bytes.empty()) return {};
  if (at(0) < MBEDTLS_SSL_MSG_CHANGE_CIPHER_SPEC || at(0) > MBEDTLS_SSL_MSG_APPLICATION_DATA) {
    return {.fault = wrong};
  }
  if (bytes.size() >= 2 && at(1) != 3) return {.fault = wrong};
  if (bytes.size() < kHeader) return {};
  const std::size_t length = at(3) << 8U | at(4);
  if (length == 0) return {.fault = Fault::bad_record};
  if (length > kMaxRecord - kHeader) return {.fault = Fault::record_overflow};
  return {.whole = bytes.size() >= kHeader + length, .size = kHeader + length};
}

void Engine::lend_output(std::span<std::byte> memory) {
  ssl_.MBEDTLS_PRIVATE(out_buf) = bytes_of(memory.data());
  ssl_.MBEDTLS_PRIVATE(out_buf_len) = kLent;
  ssl_.MBEDTLS_PRIVATE(out_ctr) = context_.scratch_.data();
  ssl_.MBEDTLS_PRIVATE(out_hdr) = bytes_of(memory.data());
  ssl_.MBEDTLS_PRIVATE(out_left) = 0;
  mbedtls_ssl_update_out_pointers(&ssl_, ssl_.MBEDTLS_PRIVATE(transform_out));
}

void Engine::lend_input(std::span<std::byte> record) {
  unsigned char* const at = bytes_of(record.data());
  ssl_.MBEDTLS_PRIVATE(in_buf) = at;
  ssl_.MBEDTLS_PRIVATE(in_buf_len) = kLent;
  ssl_.MBEDTLS_PRIVATE(in_ctr) = sequence_in_.data();
  ssl_.MBEDTLS_PRIVATE(in_hdr) = at;
  ssl_.MBEDTLS_PRIVATE(in_len) = at + 3;
  ssl_.MBEDTLS_PRIVATE(in_iv) = at + kHeader;
  ssl_.MBEDTLS_PRIVATE(in_msg) = at + kHeader;
  ssl_.MBEDTLS_PRIVATE(in_left) = record.size();
}

// mbedtls_ssl_free() frees what it finds here.
void Engine::take_back() {
  ssl_.MBEDTLS_PRIVATE(in_buf) = nullptr;
  ssl_.MBEDTLS_PRIVATE(out_buf) = nullptr;
  ssl_.MBEDTLS_PRIVATE(in_buf_len) = 0;
  ssl_.MBEDTLS_PRIVATE(out_buf_len) = 0;
  ssl_.MBEDTLS_PRIVATE(in_left) = 0;
  ssl_.MBEDTLS_PRIVATE(out_left) = 0;
}

Engine::Opened Engine::open(std::span<std::byte> received, std::span<iovec> pieces) {
  Opened out;
  if (state_ != State::open) {
    out.status = Status::error;
    return out;
  }
  if (read_closed_) {
    out.status = Status::closed;
    return out;
  }
  std::array<std::byte, kAlertRoom> scratch;
  lend_output(scratch);
  while (true) {
    const auto rest = received.subspan(out.consumed);
    const Header header = examine(rest);
    if (header.fault != Fault::none) {
      out.status = fail(header.fault, 0);
      break;
    }
    if (!header.whole) {
      out.status = Status::need_read;
      break;
    }
    if (out.pieces == pieces.size()) {
      out.status = Status::done;
      break;
    }
    iovec piece{};
    out.status = open_record(rest.first(header.size), piece);
    out.consumed += header.size;
    if (piece.iov_len != 0) {
      pieces[out.pieces++] = piece;
      out.bytes += piece.iov_len;
    }
    if (out.status != Status::done) break;
  }
  take_back();
  mbedtls_platform_zeroize(scratch.data(), scratch.size());
  return out;
}

// done: go on with the next. Plaintext, if there was any, is in `piece`.
Status Engine::open_record(std::span<std::byte> record, iovec& piece) {
  lend_input(record);
  for (int messages = 0; messages < kMaxMessages; ++messages) {
    alerts_sent_ = 0;
    unsigned char none = 0;
    // With no room for data it decrypts a record in place and leaves the plaintext there.
    const int result = mbedtls_ssl_read(&ssl_, &none, 0);
    if (ssl_.MBEDTLS_PRIVATE(in_offt) != nullptr) {
      piece.iov_base = ssl_.MBEDTLS_PRIVATE(in_offt);
      piece.iov_len = ssl_.MBEDTLS_PRIVATE(in_msglen);
      ssl_.MBEDTLS_PRIVATE(in_offt) = nullptr;
      ssl_.MBEDTLS_PRIVATE(in_msglen) = 0;
      idle_records_ = 0;
      return Status::done;
    }
    const bool goes_on = result == MBEDTLS_ERR_SSL_WANT_READ ||
                         result == MBEDTLS_ERR_SSL_RECEIVED_NEW_SESSION_TICKET;
    // The only warning that it sends is no_renegotiation.
    if (goes_on || alerts_sent_ > 1) renegotiations_ += alerts_sent_;
    if (renegotiations_ > kMaxRenegotiations) {
      alerts_sent_ = 0;
      return fail(Fault::renegotiation, result);
    }
    if (!goes_on) return failed_read(result);
    if (result == MBEDTLS_ERR_SSL_RECEIVED_NEW_SESSION_TICKET) keep_session();
    // A handshake message that goes on in the next record: nothing that a peer has to say at this
    // point is that long, and the first part is not kept.
    if (ssl_.MBEDTLS_PRIVATE(badmac_seen_or_in_hsfraglen) != 0) {
      return fail(Fault::unexpected_message, result);
    }
    if (!in_handshake() && mbedtls_ssl_check_pending(&ssl_) == 0) {
      // A ChangeCipherSpec, a warning, a ticket, an empty record.
      if (++idle_records_ > kMaxIdleRecords) return fail(Fault::unexpected_message, result);
      return Status::done;
    }
  }
  return fail(Fault::unexpected_message, 0);
}

Status Engine::failed_read(int result) {
  if (result == MBEDTLS_ERR_SSL_PEER_CLOSE_NOTIFY) {
    read_closed_ = true;
    return Status::closed;
  }
  if (result == MBEDTLS_ERR_SSL_UNEXPECTED_MESSAGE && version_ == Version::tls13 &&
      ssl_.MBEDTLS_PRIVATE(in_msgtype) == MBEDTLS_SSL_MSG_HANDSHAKE &&
      ssl_.MBEDTLS_PRIVATE(in_msglen) > 0 && ssl_.MBEDTLS_PRIVATE(in_msg)[0] == kKeyUpdate) {
    return fail(Fault::key_update, result);
  }
  return fail_with(result);
}

std::size_t Engine::record_size(std::size_t plaintext) const {
  std::size_t size = kHeader + explicit_nonce_ + plaintext + kTag;
  if (version_ == Version::tls13) {
    // The content's type, and zeros up to a multiple.
    size += 1 + (kPadding - (plaintext + 1) % kPadding) % kPadding;
  }
  return size;
}

// The plaintext is in its place in `record`, which has room for all of it.
Status Engine::seal_record(std::span<std::byte> record, std::size_t size, std::size_t& sealed) {
  lend_output(record);
  ssl_.MBEDTLS_PRIVATE(out_msgtype) = MBEDTLS_SSL_MSG_APPLICATION_DATA;
  ssl_.MBEDTLS_PRIVATE(out_msglen) = size;
  const int result = mbedtls_ssl_write_record(&ssl_, 0);
  sealed = ssl_.MBEDTLS_PRIVATE(out_left);
  take_back();
  if (result != 0) return fail_with(result);
  return Status::done;
}

Engine::Sealed Engine::seal(std::span<const std::byte> plaintext, std::span<std::byte> slab) {
  Sealed out;
  const auto first = output();
  out.bytes = std::min(first.size(), slab.size());
  std::copy_n(first.begin(), out.bytes, slab.begin());
  sent(out.bytes);
  if (!output().empty()) {
    out.status = Status::need_write;
    return out;
  }
  if (plaintext.empty()) return out;
  if (state_ != State::open || write_closed_) {
    out.status = Status::error;
    return out;
  }
  while (out.consumed < plaintext.size()) {
    const auto room = slab.subspan(out.bytes);
    std::size_t size = std::min<std::size_t>(plaintext.size() - out.consumed, max_payload_);
    if (room.size() < record_size(size)) {
      // A shorter one only if it is the first, and the slab small.
      if (out.bytes != 0 || room.size() <= kMaxOverhead) {
        out.status = Status::need_write;
        return out;
      }
      size = room.size() - kMaxOverhead;
    }
    std::copy_n(plaintext.begin() + static_cast<std::ptrdiff_t>(out.consumed), size,
                room.begin() + static_cast<std::ptrdiff_t>(kHeader + explicit_nonce_));
    std::size_t sealed = 0;
    out.status = seal_record(room, size, sealed);
    if (out.status != Status::done) return out;
    out.consumed += size;
    out.bytes += sealed;
  }
  return out;
}

std::size_t Engine::plan(std::span<std::byte> slab, std::span<iovec> parts) const {
  if (state_ != State::open || write_closed_ || !output().empty()) return 0;
  const std::size_t head = kHeader + explicit_nonce_;
  std::size_t count = 0;
  for (std::size_t at = 0; count < parts.size() && slab.size() - at > kMaxOverhead;) {
    const std::size_t size = std::min<std::size_t>(max_payload_, slab.size() - at - kMaxOverhead);
    parts[count++] = {.iov_base = slab.data() + at + head, .iov_len = size};
    at += record_size(size);
    if (size < max_payload_) break;
  }
  return count;
}

Engine::Sealed Engine::seal_planned(std::span<std::byte> slab, std::size_t size) {
  Sealed out;
  if (size == 0) return out;
  if (state_ != State::open || write_closed_ || !output().empty()) {
    out.status = Status::error;
    return out;
  }
  while (out.consumed < size) {
    const auto room = slab.subspan(out.bytes);
    const std::size_t part = std::min<std::size_t>(size - out.consumed, max_payload_);
    if (room.size() < record_size(part)) {
      // More than plan() said.
      out.status = Status::need_write;
      return out;
    }
    std::size_t sealed = 0;
    out.status = seal_record(room, part, sealed);
    if (out.status != Status::done) return out;
    out.consumed += part;
    out.bytes += sealed;
  }
  return out;
}

void Engine::close_notify() {
  if (state_ != State::open || write_closed_) return;
  send_alert(MBEDTLS_SSL_ALERT_LEVEL_WARNING, MBEDTLS_SSL_ALERT_MSG_CLOSE_NOTIFY);
  write_closed_ = true;
}

void Engine::refuse(std::uint8_t alert, Fault why) {
  if (state_ == State::failed) return;
  fault_ = why;
  send_alert(MBEDTLS_SSL_ALERT_LEVEL_FATAL, alert);
  state_ = State::failed;
  write_closed_ = true;
}

// A failure to say it (memory ran out) changes nothing: the connection ends all the same.
void Engine::send_alert(unsigned char level, unsigned char number) {
  if (ssl_.MBEDTLS_PRIVATE(out_buf) != nullptr) {
    (void)mbedtls_ssl_send_alert_message(&ssl_, level, number);
    return;
  }
  std::array<std::byte, kAlertRoom> scratch;
  lend_output(scratch);
  (void)mbedtls_ssl_send_alert_message(&ssl_, level, number);
  take_back();
}

Status Engine::fail_with(int code) {
  Fault fault = fault_of(code);
  if (fault == Fault::alert_received && ssl_.MBEDTLS_PRIVATE(in_msglen) == 2) {
    alert_ = ssl_.MBEDTLS_PRIVATE(in_msg)[1];
  }
  if (fault == Fault::no_shared_cipher && state_ == State::handshake) {
    // mbedTLS has one code for this and for a signature or Finished that is wrong.
    switch (ssl_.MBEDTLS_PRIVATE(state)) {
      case MBEDTLS_SSL_CERTIFICATE_VERIFY:
      case MBEDTLS_SSL_CLIENT_CERTIFICATE_VERIFY:
      case MBEDTLS_SSL_CLIENT_FINISHED:
      case MBEDTLS_SSL_SERVER_FINISHED:
        fault = Fault::bad_signature;
        break;
      default:
        break;
    }
  }
  return fail(fault, code);
}

Status Engine::fail(Fault fault, int code) {
  if (state_ == State::failed) return Status::error;
  fault_ = fault;
  code_ = code;
  if (fault != Fault::alert_received && alerts_sent_ == 0 && !write_closed_) {
    send_alert(MBEDTLS_SSL_ALERT_LEVEL_FATAL, alert_of(fault));
  }
  state_ = State::failed;
  write_closed_ = true;
  return Status::error;
}

void Engine::sent(std::size_t size) {
  output_sent_ += size;
  if (output_sent_ < output_.size()) return;
  output_sent_ = 0;
  if (state_ == State::open) {
    std::vector<std::byte>().swap(output_);  // what an idle connection has no use for
  } else {
    output_.clear();
  }
}

int Engine::on_send(void* self, const unsigned char* bytes, std::size_t size) {
  auto& engine = *static_cast<Engine*>(self);
  // One record at a time comes here. An alert shows by its type, or in TLS 1.3, where the type is
  // sealed, by its length: no handshake message is as short as two bytes.
  constexpr std::size_t kSealedAlert = (2 + 1 + kPadding - 1) / kPadding * kPadding + kTag;
  if (size >= kHeader &&
      (bytes[0] == MBEDTLS_SSL_MSG_ALERT ||
       (bytes[0] == MBEDTLS_SSL_MSG_APPLICATION_DATA && size == kHeader + kSealedAlert))) {
    // A record may ask for more than a renegotiation; that is not answered with a flood.
    if (++engine.alerts_sent_ > kMaxRenegotiations + 1) return MBEDTLS_ERR_SSL_UNEXPECTED_MESSAGE;
  }
  try {
    const auto from = std::as_bytes(std::span(bytes, size));
    engine.output_.insert(engine.output_.end(), from.begin(), from.end());
  } catch (const std::bad_alloc&) {
    return MBEDTLS_ERR_SSL_ALLOC_FAILED;
  }
  return static_cast<int>(size);
}

}  // namespace causeway::gateway::tls
