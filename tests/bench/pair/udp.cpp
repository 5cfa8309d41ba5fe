// SPDX-License-Identifier: Apache-2.0
// The sending end of the UDP measurement. Packets leave on a schedule of short ticks, a few in one
// sendmmsg(2), so that the sender does not burn a core that the pair under test needs. A sender
// that was held up drops the deficit instead of bursting it out: a burst would measure the depth
// of a queue. The figure is the rate that was really sent in a trial without a single loss.
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>
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

constexpr std::size_t kMaxBatch = 64;   // datagrams in one sendmmsg
constexpr std::size_t kMaxBurst = 256;  // datagrams in one tick
constexpr double kTick = 200e-6;        // seconds
constexpr double kReached = 0.9;        // below this share of the offered rate the sender limits

struct Trial {
  double offered = 0;
  double achieved = 0;
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  std::uint64_t reordered = 0;
  [[nodiscard]] bool lossless() const { return sent > 0 && received == sent; }
  [[nodiscard]] bool sender_limited() const { return achieved < kReached * offered; }
};

void to_json(nlohmann::json& out, const Trial& trial) {
  out = {{"offered", trial.offered},
         {"achieved", trial.achieved},
         {"sent", trial.sent},
         {"received", trial.received},
         {"reordered", trial.reordered}};
}

class Sender {
 public:
  Sender(const UdpOptions& options, LineChannel& control, const Fd& udp)
      : options_(options), control_(control), udp_(udp), storage_(kMaxBatch * options.size) {}

  Trial run(double rate) {
    const std::uint32_t id = ++trial_;
    control_.write_line("trial " + std::to_string(id) + " " + std::to_string(options_.size));
    expect("ready");
    Trial trial{.offered = rate};
    double start = now_seconds();
    const double real_start = start;
    const double stop = start + options_.seconds;
    for (double now = start; now < stop && trial.sent < kMaxTrialPackets; now = now_seconds()) {
      auto due = static_cast<std::int64_t>((now - start) * rate) - scheduled_;
      if (due > static_cast<std::int64_t>(kMaxBurst)) {  // held up: forget the deficit
        start += (static_cast<double>(due) - static_cast<double>(kMaxBurst)) / rate;
        due = static_cast<std::int64_t>(kMaxBurst);
      }
      // Whole UDP_SEGMENT sends only, or a low rate would turn them into single datagrams.
      due -= due % static_cast<std::int64_t>(options_.gso);
      if (due > 0) {
        send_packets(static_cast<std::size_t>(due), static_cast<std::uint32_t>(trial.sent));
        trial.sent += static_cast<std::uint64_t>(due);
        scheduled_ += due;
      }
      const double left = kTick - (now_seconds() - now);
      if (left > 5e-6) {
        const timespec pause{.tv_sec = 0, .tv_nsec = static_cast<long>(left * 1e9)};
        clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, nullptr);
      }
    }
    scheduled_ = 0;
    trial.achieved = static_cast<double>(trial.sent) / (now_seconds() - real_start);
    control_.write_line("end " + std::to_string(id) + " " + std::to_string(trial.sent));
    std::istringstream numbers(expect("got"));
    numbers >> trial.received >> trial.reordered;
    return trial;
  }

 private:
  std::string expect(const std::string& verb) {
    std::string line;
    if (!control_.read_line(line) || !line.starts_with(verb)) {
      throw std::runtime_error("the sink answered '" + line + "' instead of '" + verb + "'");
    }
    return line.substr(verb.size());
  }

  void send_packets(std::size_t count, std::uint32_t sequence) {
    const std::size_t size = options_.size;
    while (count > 0) {
      const std::size_t batch = std::min(count, kMaxBatch / options_.gso * options_.gso);
      for (std::size_t i = 0; i < batch; ++i) {
        const Stamp stamp{.trial = trial_, .sequence = sequence++};
        std::memcpy(std::span(storage_).subspan(i * size).data(), &stamp, sizeof stamp);
      }
      std::array<mmsghdr, kMaxBatch> messages{};
      std::array<iovec, kMaxBatch> pieces{};
      const std::size_t sends = batch / options_.gso;
      for (std::size_t i = 0; i < sends; ++i) {
        const std::size_t length = options_.gso * size;
        pieces[i] = {.iov_base = std::span(storage_).subspan(i * length).data(), .iov_len = length};
        messages[i].msg_hdr.msg_iov = &pieces[i];
        messages[i].msg_hdr.msg_iovlen = 1;
      }
      for (std::size_t done = 0; done < sends;) {
        const int sent = sendmmsg(udp_.get(), std::span(messages).subspan(done).data(),
                                  static_cast<unsigned>(sends - done), 0);
        if (sent > 0) {
          done += static_cast<std::size_t>(sent);
        } else if (errno == ENOBUFS) {
          ++done;  // the device refused it: a loss like any other, which the sink will tell
        } else if (errno != EINTR) {
          fail("sendmmsg");
        }
      }
      count -= batch;
    }
  }

  const UdpOptions& options_;
  LineChannel& control_;
  const Fd& udp_;
  std::vector<std::byte> storage_;
  std::uint32_t trial_ = 0;
  std::int64_t scheduled_ = 0;
};

}  // namespace

nlohmann::json run_udp_send(const UdpOptions& options) {
  if (options.size < sizeof(Stamp) || options.size > kMaxDatagram) {
    throw std::invalid_argument("--size must be 8 to 1472");
  }
  if (options.gso < 1 || options.gso * options.size > 65'000 || options.gso > kMaxBatch) {
    throw std::invalid_argument("--gso: at most 64 datagrams and 65,000 bytes in one send");
  }
  // Ticks are shorter than the default timer slack of 50 us would keep apart.
  prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
  const SocketAddress address = parse_ip_port(options.place.address);
  const auto patience =
      std::chrono::milliseconds(static_cast<std::int64_t>(options.place.patience * 1000));
  LineChannel control(connect_to(address, SOCK_STREAM, patience));
  const Fd udp = connect_to(address, SOCK_DGRAM, patience);
  if (options.gso > 1) {
    set_option(udp, SOL_UDP, UDP_SEGMENT, static_cast<int>(options.size), "UDP_SEGMENT");
  }
  Sender sender(options, control, udp);

  nlohmann::json trials = nlohmann::json::array();
  if (!options.search) {
    const Trial trial = sender.run(options.rate);
    return {{"ok", trial.lossless()}, {"packets_per_second", trial.achieved}, {"trial", trial}};
  }

  double best = 0;
  bool limited = false;
  // One rate has passed when one of its trials lost nothing: what a busy machine does to the
  // others says nothing about the path.
  const auto passes = [&](double rate) {
    for (std::size_t attempt = 0; attempt < options.attempts; ++attempt) {
      const Trial trial = sender.run(rate);
      trials.push_back(trial);
      if (trial.lossless()) {
        best = std::max(best, trial.achieved);
        limited = trial.sender_limited();
        return true;
      }
    }
    return false;
  };
  double low = options.rate;
  double high = 0;
  while (low >= 100 && !passes(low)) {
    high = low;
    low /= 2;
  }
  while (high == 0 && !limited && low * 1.6 <= options.max_rate) {
    if (passes(low * 1.6)) {
      low *= 1.6;
    } else {
      high = low * 1.6;
    }
  }
  for (std::size_t step = 0; high > 0 && best > 0 && step < options.bisections; ++step) {
    const double middle = std::sqrt(low * high);
    (passes(middle) ? low : high) = middle;
  }
  return {{"ok", best > 0},
          {"packets_per_second", best},
          {"sender_limited", limited && high == 0},
          {"size", options.size},
          {"gso", options.gso},
          {"trials", trials}};
}

}  // namespace causeway::bench
