// SPDX-License-Identifier: Apache-2.0
#include "common/bridge/pump.hpp"

#include <poll.h>
#include <sched.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "proto/vnet.hpp"

namespace causeway::bridge {

namespace {

constexpr EndReason kGoOn = EndReason::count_;
// One recv() is given at most this much, so that the other direction's turn comes soon.
constexpr std::size_t kMaxRead = std::size_t{256} * 1024;
constexpr int kLastReads = 4;             // of kMaxRead each; bounds how long an end may take
constexpr std::size_t kControlRoom = 64;  // a ping, pong or bye record fits

bool would_block(int code) {
  return code == EAGAIN || code == EWOULDBLOCK;
}

// One packet of the TAP: its vnet header and the frame's size. 0: dry; -1: the TAP is gone.
ssize_t read_tap(int tap, proto::VnetHeader& header, std::span<std::byte> room) {
  std::array<iovec, 2> parts{{{&header, sizeof header}, {room.data(), room.size()}}};
  for (;;) {
    const ssize_t got = ::readv(tap, parts.data(), parts.size());
    if (got >= 0) {
      return std::max<ssize_t>(got - static_cast<ssize_t>(sizeof header), 0);
    }
    if (errno != EINTR) {
      return would_block(errno) ? 0 : -1;
    }
  }
}

}  // namespace

// Uninitialised on purpose: pages that traffic never reaches stay out of resident memory.
PumpBuffers::PumpBuffers()
    : slab_(new std::byte[kSlab]),
      reader_(new std::byte[proto::kReaderStorage]),
      scratch_(new std::byte[kMaxTapFrame]) {}

Pump::Pump(int tap, int stream, const PumpSettings& settings, PumpBuffers& buffers,
           LaneCounters& counters, PumpControl& control)
    : tap_(tap),
      stream_(stream),
      settings_(settings),
      limits_{.mtu = settings.mtu, .offload = settings.offload, .uso = settings.uso},
      scratch_(buffers.scratch()),
      counters_(counters),
      control_(control),
      reader_(buffers.reader(), settings.wire, settings.max_frame),
      writer_(buffers.slab(), settings.wire, settings.offload),
      segmenter_(settings.max_frame),
      coalescer_(settings.uso) {}

void Pump::feed(std::span<const std::byte> bytes) {
  const auto room = reader_.writable().first(bytes.size());
  std::copy(bytes.begin(), bytes.end(), room.begin());
  reader_.commit(bytes.size());
  counters_.from_wire_bytes.add(bytes.size());
}

EndReason Pump::run() {
  enum : std::size_t { tap_slot, stream_slot, event_slot };
  std::array<pollfd, 3> waits{{{tap_, 0, 0}, {stream_, 0, 0}, {control_.event_fd(), POLLIN, 0}}};
  if (const EndReason end = decode_all(); end != kGoOn) {  // what feed() brought
    return end;
  }
  if (pong_wanted_) {  // and the answer to it
    if (const EndReason end = step_to_wire(); end != kGoOn) {
      return last_words(end);
    }
  }
  bool turns = false;         // the last two wake-ups were of different directions
  bool last_was_tap = false;  // what the last one was
  for (;;) {
    // Backpressure: while bytes, or segments of the frame in hand, wait for the stream, the TAP is
    // not asked.
    const bool blocked = !writer_.empty() || !segmenter_.done();
    waits[tap_slot].events = blocked ? 0 : POLLIN;
    waits[stream_slot].events = blocked ? POLLIN | POLLOUT : POLLIN;
    if (!wait(waits, turns)) {
      return end_reason_of(errno);
    }
    const bool wire_ready = (waits[stream_slot].revents & (POLLIN | POLLHUP | POLLERR)) != 0;
    const bool tap_ready = waits[tap_slot].revents != 0;
    turns = wire_ready == last_was_tap || (wire_ready && tap_ready);
    last_was_tap = tap_ready;
    if (waits[event_slot].revents != 0) {
      if (const EndReason end = handle_requests(); end != kGoOn) {
        return end;
      }
    }
    if (wire_ready) {
      if (const EndReason end = step_from_wire(); end != kGoOn) {
        return end;
      }
    }
    if ((waits[tap_slot].revents & (POLLERR | POLLNVAL)) != 0) {
      return EndReason::tap_error;  // the interface was deleted
    }
    const bool control_waits = ping_wanted_ || pong_wanted_ || !offer_wanted_.empty();
    if (tap_ready || (waits[stream_slot].revents & POLLOUT) != 0 || control_waits) {
      if (const EndReason end = step_to_wire(); end != kGoOn) {
        return last_words(end);
      }
    }
  }
}

// A peer that closed makes our send() fail, and what it sent before that is still to be read: its
// last frames, a bye, or the record that it left unfinished. Its own words tell more than EPIPE.
EndReason Pump::last_words(EndReason failed) {
  if (failed != EndReason::stream_broken && failed != EndReason::stream_reset) {
    return failed;
  }
  for (int turn = 0; turn < kLastReads; ++turn) {
    const auto before = counters_.from_wire_bytes.get();
    const EndReason end = step_from_wire();
    if (end != kGoOn) {
      return end == EndReason::stream_reset ? failed : end;
    }
    if (counters_.from_wire_bytes.get() == before) {
      break;
    }
  }
  return failed;
}

// Looks a few times more before it sleeps when an answer is likely to be on its way: waking a
// sleeping processor of a virtual machine costs tens of microseconds. An answer is likely after the
// directions took turns; a stream in one direction is better slept through, since what gathers
// meanwhile makes the next batch larger. Between two looks the processor is offered to whoever else
// wants it. False with errno on an error.
bool Pump::wait(std::span<pollfd> waits, bool answer_likely) const {
  const unsigned looks = answer_likely ? settings_.busy_poll : 0;
  for (unsigned look = 0; look < looks; ++look) {
    if (const int ready = ::poll(waits.data(), waits.size(), 0); ready != 0) {
      return ready > 0 || errno == EINTR;
    }
    ::sched_yield();
  }
  return ::poll(waits.data(), waits.size(), -1) >= 0 || errno == EINTR;
}

EndReason Pump::handle_requests() {
  auto requests = control_.take();
  ping_wanted_ = ping_wanted_ || requests.ping;
  if (requests.proof) {
    counters_.proofs.add();
  }
  if (!requests.offer.empty() && settings_.wire == proto::Wire::native) {
    offer_wanted_ = std::move(requests.offer);
  }
  if (requests.stop == EndReason::replaced) {
    say_bye(proto::ByeReason::replaced);
  } else if (requests.stop == EndReason::stopped || requests.stop == EndReason::renewed) {
    say_bye(proto::ByeReason::stopping);
  } else if (requests.stop == EndReason::keepalive_timeout) {
    say_bye(proto::ByeReason::keepalive);
  }
  return requests.stop;
}

// ---- towards the wire ----

EndReason Pump::step_to_wire() {
  if (const EndReason end = send_pending(); end != kGoOn) {
    return end;
  }
  // A slab that fills up says that more is waiting; one more turn, then the other direction's.
  for (int turn = 0; turn < 2 && writer_.empty(); ++turn) {
    queue_control();
    const Fill fill = settings_.offload ? fill_super_frames() : fill_segments();
    if (fill == Fill::failed) {
      return EndReason::tap_error;
    }
    if (const EndReason end = send_pending(); end != kGoOn || fill == Fill::dry) {
      return end;
    }
  }
  return kGoOn;
}

EndReason Pump::send_pending() {
  while (!writer_.empty()) {
    const auto bytes = writer_.pending();
    const ssize_t sent = ::send(stream_, bytes.data(), std::min(bytes.size(), settings_.max_write),
                                MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) {
        continue;
      }
      return would_block(errno) ? kGoOn : end_reason_of(errno);
    }
    counters_.to_wire_writes.add();
    counters_.to_wire_bytes.add(static_cast<std::uint64_t>(sent));
    writer_.consume(static_cast<std::size_t>(sent));
  }
  return kGoOn;
}

// Writes records of the frame in hand until it is done; false when the slab is full before that.
bool Pump::drain_segmenter() {
  const auto filled = segmenter_.fill(writer_.raw_room());
  writer_.commit_raw(filled.bytes);
  counters_.to_wire_records.add(filled.records);
  return segmenter_.done();
}

Pump::Fill Pump::fill_segments() {
  for (;;) {
    if (!segmenter_.done() && !drain_segmenter()) {
      return Fill::slab_full;
    }
    if (writer_.raw_room().size() < proto::kRecordHeaderSize + settings_.max_frame) {
      return Fill::slab_full;
    }
    proto::VnetHeader header;
    const ssize_t got = read_tap(tap_, header, scratch_);
    if (got <= 0) {
      return got == 0 ? Fill::dry : Fill::failed;
    }
    const auto size = static_cast<std::size_t>(got);
    counters_.from_tap_frames.add();
    counters_.from_tap_bytes.add(size);
    const auto status = segmenter_.begin(scratch_.first(std::min(size, scratch_.size())), header);
    if (status != proto::SegmentStatus::ok) {
      counters_.drop(drop_reason(status));
    }
  }
}

Pump::Fill Pump::fill_super_frames() {
  for (;;) {
    if (!segmenter_.done() && !drain_segmenter()) {
      return Fill::slab_full;
    }
    const auto room = writer_.frame_room();
    if (room.size() < kMaxTapFrame) {
      return Fill::slab_full;
    }
    proto::VnetHeader header;
    const ssize_t got = read_tap(tap_, header, room);
    if (got <= 0) {
      return got == 0 ? Fill::dry : Fill::failed;
    }
    const auto size = static_cast<std::size_t>(got);
    counters_.from_tap_frames.add();
    counters_.from_tap_bytes.add(size);
    proto::OffloadHeader offload;
    const auto frame = room.first(std::min(size, room.size()));
    if (size >= proto::kMinFrame && size <= settings_.max_frame &&
        proto::prepare_offload(header, frame, limits_, offload) == proto::OffloadDrop::none) {
      writer_.commit_super_frame(offload, size);
      counters_.to_wire_records.add();
      continue;
    }
    // Rare: a super-frame that the peer's rules exclude goes as the frames it stands for.
    const auto copy = scratch_.first(std::min(frame.size(), scratch_.size()));
    std::copy_n(frame.begin(), copy.size(), copy.begin());
    const auto status = segmenter_.begin(copy, header);
    if (status != proto::SegmentStatus::ok) {
      counters_.drop(drop_reason(status));
    }
  }
}

void Pump::queue_control() {
  std::array<std::byte, kControlRoom> payload{};
  if (pong_wanted_) {
    proto::Control pong;
    pong.kind = proto::ControlKind::pong;
    pong.token = *pong_wanted_;
    if (writer_.append_control(std::span(payload).first(encode_control(pong, payload)))) {
      counters_.to_wire_records.add();
      pong_wanted_.reset();
    }
  }
  if (ping_wanted_) {
    proto::Control ping;
    ping.token = counters_.pings_sent.get();
    if (writer_.append_control(std::span(payload).first(encode_control(ping, payload)))) {
      counters_.to_wire_records.add();
      ping_wanted_ = false;
      counters_.pings_sent.add();
    }
  }
  if (!offer_wanted_.empty()) {
    queue_offer();
  }
}

// An offer is rare and large, so it has a buffer of its own for the moment.
void Pump::queue_offer() {
  proto::Control offer;
  offer.kind = proto::ControlKind::offer_changed;
  offer.offer = offer_wanted_;
  std::vector<std::byte> payload(proto::kMaxControl);
  payload.resize(encode_control(offer, payload));
  if (payload.empty() || writer_.append_control(payload)) {  // empty: longer than a record can be
    counters_.to_wire_records.add(payload.empty() ? 0 : 1);
    offer_wanted_.clear();
  }
}

// A last word, if the stream takes it at once; nobody waits for it.
void Pump::say_bye(proto::ByeReason reason) {
  if (settings_.wire != proto::Wire::native) {
    return;
  }
  std::array<std::byte, kControlRoom> payload{};
  proto::Control bye;
  bye.kind = proto::ControlKind::bye;
  bye.reason = reason;
  if (writer_.append_control(std::span(payload).first(encode_control(bye, payload)))) {
    counters_.to_wire_records.add();
    (void)send_pending();
  }
}

// ---- from the wire ----

// Where the coalescer's TAP writes go.
struct Pump::TapSink {
  Pump& pump;
  void operator()(const proto::VnetHeader& /*in the first piece*/,
                  std::span<const iovec> pieces) const {
    pump.write_tap(pieces);
  }
};

EndReason Pump::step_from_wire() {
  const auto room = reader_.writable();
  const auto part = room.first(std::min(room.size(), kMaxRead));
  const ssize_t got = ::recv(stream_, part.data(), part.size(), MSG_DONTWAIT);
  if (got < 0) {
    return errno == EINTR || would_block(errno) ? kGoOn : end_reason_of(errno);
  }
  if (got == 0) {
    return reader_.between_records() ? EndReason::peer_closed : EndReason::truncated;
  }
  counters_.from_wire_reads.add();
  counters_.from_wire_bytes.add(static_cast<std::uint64_t>(got));
  reader_.commit(static_cast<std::size_t>(got));
  return decode_all();
}

EndReason Pump::decode_all() {
  EndReason end = kGoOn;
  std::uint64_t records = 0;
  for (proto::Record record; end == kGoOn;) {
    const auto status = reader_.next(record);
    if (status == proto::RecordStatus::need_more) {
      break;
    }
    if (status == proto::RecordStatus::ok) {
      ++records;
      if (record.type == proto::RecordType::control) {
        end = take_control_record(record.payload);
      } else {
        take_frame(record);
      }
    } else {
      end = status == proto::RecordStatus::too_short  ? EndReason::record_too_short
            : status == proto::RecordStatus::too_long ? EndReason::record_too_long
                                                      : EndReason::unknown_record_type;
    }
  }
  counters_.from_wire_records.add(records);
  coalescer_.flush(TapSink{*this});
  return end;
}

void Pump::take_frame(const proto::Record& record) {
  proto::VnetHeader header{};
  if (record.type == proto::RecordType::super_frame) {
    const auto drop = rebuild_offload(record.offload, record.payload, limits_, header);
    if (drop != proto::OffloadDrop::none) {
      counters_.drop(drop_reason(drop));
      return;
    }
  }
  coalescer_.add(record.payload, header, TapSink{*this});
}

void Pump::write_tap(std::span<const iovec> pieces) {
  ssize_t written = 0;
  do {
    written = ::writev(tap_, pieces.data(), static_cast<int>(pieces.size()));
  } while (written < 0 && errno == EINTR);
  if (written >= 0) {
    counters_.to_tap_frames.add();
    counters_.to_tap_bytes.add(static_cast<std::uint64_t>(written) - sizeof(proto::VnetHeader));
  } else if (errno == EINVAL) {
    counters_.drop(DropReason::tap_write_invalid);
  } else if (errno == EIO) {
    counters_.drop(DropReason::tap_write_down);
  } else {
    counters_.drop(DropReason::tap_write_error);
  }
}

EndReason Pump::take_control_record(std::span<const std::byte> payload) {
  proto::Control control;
  switch (decode_control(payload, control)) {
    case proto::ControlStatus::malformed:
      return EndReason::control_malformed;
    case proto::ControlStatus::unknown_kind:
      counters_.unknown_controls.add();
      return kGoOn;
    case proto::ControlStatus::ok:
      break;
  }
  switch (control.kind) {
    case proto::ControlKind::ping:
      counters_.pings_received.add();
      pong_wanted_ = control.token;  // many pings in one batch are worth one pong
      break;
    case proto::ControlKind::pong:
      counters_.pongs_received.add();
      break;
    case proto::ControlKind::bye:
      return control.reason == proto::ByeReason::replaced ? EndReason::bye_replaced
                                                          : EndReason::bye;
    case proto::ControlKind::offer_changed:
      on_offer_(control.offer);
      break;
  }
  return kGoOn;
}

}  // namespace causeway::bridge
