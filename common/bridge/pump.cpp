// SPDX-License-Identifier: Apache-2.0
#include "common/bridge/pump.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "proto/vnet.hpp"

namespace causeway::bridge {

namespace {

constexpr EndReason kGoOn = EndReason::count_;
// One recv() is given at most this much, so that the other direction's turn comes soon.
constexpr std::size_t kMaxRead = 256 * 1024;

bool would_block(int code) {
  return code == EAGAIN || code == EWOULDBLOCK;
}

}  // namespace

Result<std::unique_ptr<PumpControl>> PumpControl::create() {
  UniqueFd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event.valid()) {
    return system_error("eventfd");
  }
  return std::unique_ptr<PumpControl>(new PumpControl(std::move(event)));
}

void PumpControl::stop(EndReason reason) {
  EndReason none = EndReason::count_;
  reason_.compare_exchange_strong(none, reason);
  const std::uint64_t one = 1;
  // Fails only when the counter is full, and then the event is set already.
  [[maybe_unused]] const auto written = ::write(event_.get(), &one, sizeof one);
}

EndReason PumpControl::take() {
  std::uint64_t ignored = 0;
  [[maybe_unused]] const auto got = ::read(event_.get(), &ignored, sizeof ignored);
  return reason_.load();
}

void PumpControl::reset() {
  reason_.store(EndReason::count_);
  take();
}

// Uninitialised on purpose: pages that traffic never reaches stay out of resident memory.
PumpBuffers::PumpBuffers()
    : slab_(new std::byte[kSlab]), reader_(new std::byte[proto::kReaderStorage]) {}

Pump::Pump(int tap, int stream, const PumpSettings& settings, PumpBuffers& buffers,
           LaneCounters& counters, PumpControl& control)
    : tap_(tap),
      stream_(stream),
      settings_(settings),
      counters_(counters),
      control_(control),
      reader_(buffers.reader(), settings.wire, settings.max_frame),
      writer_(buffers.slab(), settings.wire, false) {}

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
  for (;;) {
    // Backpressure: while sent bytes wait for the stream, the TAP is not asked.
    const bool blocked = !writer_.empty();
    waits[tap_slot].events = blocked ? 0 : POLLIN;
    waits[stream_slot].events = blocked ? POLLIN | POLLOUT : POLLIN;
    if (::poll(waits.data(), waits.size(), -1) < 0 && errno != EINTR) {
      return EndReason::stream_error;
    }
    if (waits[event_slot].revents != 0) {
      if (const EndReason end = control_.take(); end != kGoOn) {
        return end;
      }
    }
    if ((waits[stream_slot].revents & (POLLIN | POLLHUP | POLLERR)) != 0) {
      if (const EndReason end = step_from_wire(); end != kGoOn) {
        return end;
      }
    }
    if (((waits[tap_slot].revents) | (waits[stream_slot].revents & POLLOUT)) != 0) {
      if (const EndReason end = step_to_wire(); end != kGoOn) {
        return end;
      }
    }
  }
}

bool Pump::fill_from_tap(EndReason& end) {
  proto::VnetHeader header;
  for (;;) {
    const auto room = writer_.frame_room();
    if (room.size() < settings_.max_frame) {
      return true;  // full: send first
    }
    std::array<iovec, 2> parts{{{&header, sizeof header}, {room.data(), room.size()}}};
    const ssize_t got = ::readv(tap_, parts.data(), parts.size());
    if (got < 0) {
      if (errno == EINTR) {
        continue;
      }
      if (!would_block(errno) && errno != EIO) {  // EIO: the link is down; poll() tells when not
        end = EndReason::tap_error;
      }
      return false;
    }
    const auto size = static_cast<std::size_t>(got) - sizeof header;
    if (static_cast<std::size_t>(got) < sizeof header + proto::kMinFrame) {
      counters_.drop(DropReason::frame_too_short);
      continue;
    }
    counters_.from_tap_frames.add();
    counters_.from_tap_bytes.add(size);
    if (size > settings_.max_frame) {
      counters_.drop(DropReason::frame_too_long);
      continue;
    }
    writer_.commit_frame(size);
    counters_.to_wire_records.add();
  }
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
      return would_block(errno) ? kGoOn : EndReason::stream_error;
    }
    counters_.to_wire_writes.add();
    counters_.to_wire_bytes.add(static_cast<std::uint64_t>(sent));
    writer_.consume(static_cast<std::size_t>(sent));
  }
  return kGoOn;
}

EndReason Pump::step_to_wire() {
  if (const EndReason end = send_pending(); end != kGoOn) {
    return end;
  }
  EndReason end = kGoOn;
  // A slab that fills up says that more is waiting; one more turn, then the other direction's.
  for (int turn = 0; turn < 2 && writer_.empty(); ++turn) {
    const bool more = fill_from_tap(end);
    if (end != kGoOn) {
      return end;
    }
    if (const EndReason sent = send_pending(); sent != kGoOn) {
      return sent;
    }
    if (!more) {
      break;
    }
  }
  return kGoOn;
}

void Pump::write_tap(const proto::Record& record) {
  proto::VnetHeader header{};
  std::array<iovec, 2> parts{
      {{&header, sizeof header}, {record.payload.data(), record.payload.size()}}};
  ssize_t written = 0;
  do {
    written = ::writev(tap_, parts.data(), parts.size());
  } while (written < 0 && errno == EINTR);
  if (written >= 0) {
    counters_.to_tap_frames.add();
    counters_.to_tap_bytes.add(record.payload.size());
  } else if (errno == EINVAL) {
    counters_.drop(DropReason::tap_write_invalid);
  } else if (errno == EIO) {
    counters_.drop(DropReason::tap_write_down);
  } else {
    counters_.drop(DropReason::tap_write_error);
  }
}

EndReason Pump::decode_all() {
  proto::Record record;
  for (;;) {
    switch (reader_.next(record)) {
      case proto::RecordStatus::ok:
        counters_.from_wire_records.add();
        write_tap(record);
        break;
      case proto::RecordStatus::need_more:
        return kGoOn;
      case proto::RecordStatus::too_short:
        return EndReason::record_too_short;
      case proto::RecordStatus::too_long:
        return EndReason::record_too_long;
      case proto::RecordStatus::unknown_type:
        return EndReason::unknown_record_type;
    }
  }
}

EndReason Pump::step_from_wire() {
  const auto room = reader_.writable();
  const auto part = room.first(std::min(room.size(), kMaxRead));
  const ssize_t got = ::recv(stream_, part.data(), part.size(), MSG_DONTWAIT);
  if (got < 0) {
    return errno == EINTR || would_block(errno) ? kGoOn : EndReason::stream_error;
  }
  if (got == 0) {
    return reader_.between_records() ? EndReason::peer_closed : EndReason::truncated;
  }
  counters_.from_wire_reads.add();
  counters_.from_wire_bytes.add(static_cast<std::uint64_t>(got));
  reader_.commit(static_cast<std::size_t>(got));
  return decode_all();
}

}  // namespace causeway::bridge
