// SPDX-License-Identifier: Apache-2.0
// The receiving end of the UDP measurement: counts the datagrams of each trial and tells them on
// the TCP connection beside it.
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "tests/bench/pair/sockets.hpp"
#include "tests/bench/pair/traffic.hpp"
#include "tests/bench/pair/udp.hpp"

namespace causeway::bench {

namespace {

constexpr std::size_t kBatch = 64;
constexpr int kSinkBuffer = 64 * 1024 * 1024;
constexpr int kQuietMs = 200;  // with nothing arriving for so long, the rest of a trial is lost

class Sink {
 public:
  Sink(const Fd& fd, std::size_t slot) : fd_(fd), slot_(slot), storage_(kBatch * slot) {}

  void begin(std::uint32_t trial, std::size_t size) {
    trial_ = trial;
    size_ = size;
    received_ = reordered_ = next_ = 0;
  }

  // Takes what is there without waiting; true when anything was.
  bool drain() {
    bool any = false;
    for (;;) {
      std::array<mmsghdr, kBatch> messages{};
      std::array<iovec, kBatch> pieces{};
      for (std::size_t i = 0; i < kBatch; ++i) {
        pieces[i] = {.iov_base = std::span(storage_).subspan(i * slot_).data(), .iov_len = slot_};
        messages[i].msg_hdr.msg_iov = &pieces[i];
        messages[i].msg_hdr.msg_iovlen = 1;
      }
      const int count = recvmmsg(fd_.get(), messages.data(), kBatch, MSG_DONTWAIT, nullptr);
      if (count < 0) {
        if (errno == EAGAIN || errno == EINTR) return any;
        fail("recvmmsg");
      }
      any = true;
      for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
        take(std::span(storage_).subspan(i * slot_, messages[i].msg_len));
      }
      if (static_cast<std::size_t>(count) < kBatch) return any;
    }
  }

  [[nodiscard]] std::uint64_t received() const { return received_; }
  [[nodiscard]] std::uint64_t reordered() const { return reordered_; }

 private:
  // With UDP_GRO one read can carry several datagrams of equal size, the last one maybe shorter;
  // ours all have the trial's size.
  void take(std::span<const std::byte> bytes) {
    if (size_ == 0) return;
    for (; bytes.size() >= size_; bytes = bytes.subspan(size_)) {
      Stamp stamp;
      std::memcpy(&stamp, bytes.data(), sizeof stamp);
      if (stamp.trial != trial_) continue;  // late, from the trial before
      ++received_;
      if (stamp.sequence < next_) ++reordered_;
      next_ = stamp.sequence + 1;
    }
  }

  const Fd& fd_;
  std::size_t slot_;
  std::vector<std::byte> storage_;
  std::uint32_t trial_ = 0;
  std::size_t size_ = 0;
  std::uint64_t received_ = 0;
  std::uint64_t reordered_ = 0;
  std::uint64_t next_ = 0;
};

bool wait_readable(const Fd& fd, int timeout_ms) {
  pollfd entry{.fd = fd.get(), .events = POLLIN, .revents = 0};
  return poll(&entry, 1, timeout_ms) > 0;
}

}  // namespace

void LineChannel::write_line(const std::string& line) {
  const std::string text = line + "\n";
  send_all(fd_, std::as_bytes(std::span(text)));
}

bool LineChannel::read_line(std::string& line) {
  for (;;) {
    if (const auto end = pending_.find('\n'); end != std::string::npos) {
      line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      return true;
    }
    std::array<char, 256> buffer;
    const std::size_t got = receive_some(fd_, std::as_writable_bytes(std::span(buffer)));
    if (got == 0) return false;
    pending_.append(buffer.data(), got);
  }
}

nlohmann::json run_udp_sink(const UdpOptions& options) {
  const SocketAddress address = parse_ip_port(options.place.address);
  const Fd listener = listen_on(address, SOCK_STREAM);
  const Fd udp = listen_on(address, SOCK_DGRAM);
  // What is lost must be lost on the way, not in this socket.
  set_option(udp, SOL_SOCKET, SO_RCVBUFFORCE, kSinkBuffer, "SO_RCVBUFFORCE");
  if (options.gro) set_option(udp, SOL_UDP, UDP_GRO, 1, "UDP_GRO");
  announce(listener);
  LineChannel control(accept_one(listener));

  Sink sink(udp, options.gro ? 65'536 : 2048);
  std::uint64_t trials = 0;
  std::uint64_t total = 0;
  for (;;) {
    std::array<pollfd, 2> entries{pollfd{.fd = udp.get(), .events = POLLIN, .revents = 0},
                                  pollfd{.fd = control.fd().get(), .events = POLLIN, .revents = 0}};
    if (poll(entries.data(), entries.size(), -1) < 0 && errno != EINTR) fail("poll");
    if (entries[0].revents != 0) sink.drain();
    if (entries[1].revents == 0) continue;

    std::string line;
    if (!control.read_line(line)) break;
    std::istringstream words(line);
    std::string verb;
    std::uint32_t trial = 0;
    std::uint64_t number = 0;
    if (!(words >> verb >> trial >> number)) throw std::runtime_error("bad line: " + line);
    if (verb == "trial") {
      if (number < sizeof(Stamp) || number > kMaxDatagram) throw std::runtime_error("bad size");
      sink.drain();
      sink.begin(trial, number);
      ++trials;
      control.write_line("ready");
    } else {
      sink.drain();
      while (sink.received() < number && wait_readable(udp, kQuietMs))
        sink.drain();
      total += sink.received();
      control.write_line("got " + std::to_string(sink.received()) + " " +
                         std::to_string(sink.reordered()));
    }
  }
  return {{"ok", true}, {"trials", trials}, {"packets", total}};
}

}  // namespace causeway::bench
