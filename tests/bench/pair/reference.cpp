// SPDX-License-Identifier: Apache-2.0
// Theory of operation: the reference arm of the pair benchmark.
//
// This is the design that causeway is measured against, written for the benchmark only: one
// process a side, two blocking threads, one direction each, a TAP without a virtio-net header, and
// `u32 big-endian length | Ethernet frame` on a stream, 14 to 1518 bytes a frame. Each frame is
// read, sent and written on its own; nothing is ever gathered.
//
//  - as is:  header and frame leave in one write from one buffer; the stream is read through an
//            8 KiB buffer that is refilled only when it has been used up.
//  - --base: header and frame are two writes, and two reads come back for each record.
//
// A frame out of bounds, a failing TAP, or the end of either direction ends the process, as in that
// design. It serves one connection and then exits; addresses and routes are the harness's business.
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <stdexcept>
#include <thread>

#include "proto/bytes.hpp"
#include "tests/bench/pair/sockets.hpp"

namespace causeway::bench {
namespace {

constexpr std::size_t kHeader = 4;
constexpr std::size_t kMinFrame = 14;
constexpr std::size_t kMaxFrame = 1518;  // 1500 + Ethernet header + one 802.1Q tag
constexpr std::size_t kReadBuffer = 8 * 1024;

Fd open_tap(const std::string& name) {
  ifreq request{};
  if (name.empty() || name.size() >= IFNAMSIZ) throw std::invalid_argument("bad TAP name");
  std::memcpy(request.ifr_name, name.c_str(), name.size() + 1);
  request.ifr_flags = IFF_TAP | IFF_NO_PI;
  Fd tap(open("/dev/net/tun", O_RDWR | O_CLOEXEC));
  if (tap.get() < 0) fail("/dev/net/tun");
  if (ioctl(tap.get(), TUNSETIFF, &request) != 0) fail("TUNSETIFF " + name);

  const Fd control(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (control.get() < 0) fail("socket");
  if (ioctl(control.get(), SIOCGIFFLAGS, &request) != 0) fail("SIOCGIFFLAGS " + name);
  request.ifr_flags = static_cast<short>(request.ifr_flags | IFF_UP);
  if (ioctl(control.get(), SIOCSIFFLAGS, &request) != 0) fail("SIOCSIFFLAGS " + name);
  return tap;
}

void check_length(std::size_t length, const char* where) {
  if (length < kMinFrame || length > kMaxFrame) {
    throw std::runtime_error(std::string(where) + ": frame of " + std::to_string(length) +
                             " bytes is out of bounds");
  }
}

void tap_to_stream(const Fd& tap, const Fd& stream, bool base) {
  std::array<std::byte, kHeader + kMaxFrame + 1> buffer;  // one more, to notice a longer frame
  const std::span<std::byte> all(buffer);
  for (;;) {
    const auto room = all.subspan(kHeader);
    const ssize_t got = read(tap.get(), room.data(), room.size());
    if (got < 0) {
      if (errno == EINTR) continue;
      fail("read from the TAP");
    }
    const auto length = static_cast<std::size_t>(got);
    check_length(length, "TAP");
    proto::store_be32(all, 0, static_cast<std::uint32_t>(length));
    if (base) {
      send_all(stream, all.first(kHeader));
      send_all(stream, all.subspan(kHeader, length));
    } else {
      send_all(stream, all.first(kHeader + length));
    }
  }
}

// Reads whole pieces off the stream, through a buffer or straight.
class StreamReader {
 public:
  StreamReader(const Fd& stream, bool buffered) : stream_(stream), buffered_(buffered) {}

  // False on an end of stream before the first byte.
  bool read_exactly(std::span<std::byte> out) {
    const std::size_t wanted = out.size();
    while (!out.empty()) {
      const std::size_t got = buffered_ ? from_buffer(out) : receive_some(stream_, out);
      if (got == 0) {
        if (out.size() == wanted) return false;
        throw std::runtime_error("the stream ended inside a record");
      }
      out = out.subspan(got);
    }
    return true;
  }

 private:
  std::size_t from_buffer(std::span<std::byte> out) {
    if (begin_ == end_) {
      begin_ = 0;
      end_ = receive_some(stream_, buffer_);
    }
    const std::size_t count = std::min(out.size(), end_ - begin_);
    std::memcpy(out.data(), std::span(buffer_).subspan(begin_, count).data(), count);
    begin_ += count;
    return count;
  }

  const Fd& stream_;
  bool buffered_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::array<std::byte, kReadBuffer> buffer_{};
};

void stream_to_tap(const Fd& stream, const Fd& tap, bool base) {
  StreamReader reader(stream, !base);
  std::array<std::byte, kMaxFrame> buffer;
  std::array<std::byte, kHeader> header;
  while (reader.read_exactly(header)) {
    const std::size_t length = proto::load_be32(header, 0);
    check_length(length, "stream");
    const auto frame = std::span(buffer).first(length);
    if (!reader.read_exactly(frame)) throw std::runtime_error("the stream ended inside a record");
    ssize_t written = 0;
    do {
      written = write(tap.get(), frame.data(), frame.size());
    } while (written < 0 && errno == EINTR);
    if (written < 0) fail("write to the TAP");
    if (static_cast<std::size_t>(written) != length) throw std::runtime_error("short TAP write");
  }
}

// The first direction to end takes the process with it; the other thread is in a blocking call
// that nothing else would end.
template <typename Direction>
void run_to_the_end(Direction direction) {
  int status = EXIT_SUCCESS;
  try {
    direction();
  } catch (const std::exception& error) {
    std::cerr << "causeway-reference: " << error.what() << std::endl;
    status = EXIT_FAILURE;
  }
  std::_Exit(status);
}

int run(int argc, char** argv) {
  CLI::App app("The reference arm of the pair benchmark", "causeway-reference");
  bool base = false;
  std::string tap_name;
  std::string listen_address;
  std::string connect_address;
  app.add_flag("--base", base, "Two writes a record and unbuffered reads");
  app.add_option("--tap", tap_name, "Name of the TAP to create")->required();
  auto* listen_option = app.add_option("--listen", listen_address, "unix:PATH or vsock:any:PORT");
  auto* connect_option =
      app.add_option("--connect", connect_address, "unix:PATH or vsock:CID:PORT");
  listen_option->excludes(connect_option);
  try {
    app.parse(argc, argv);
    if (listen_address.empty() == connect_address.empty()) {
      throw CLI::RequiredError("--listen or --connect");
    }
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }

  const Fd tap = open_tap(tap_name);
  Fd stream;
  if (!listen_address.empty()) {
    const Fd listener = listen_on(parse_stream_address(listen_address), SOCK_STREAM);
    announce(listener);
    stream = accept_one(listener);
  } else {
    stream =
        connect_to(parse_stream_address(connect_address), SOCK_STREAM, std::chrono::seconds(10));
  }
  std::thread up([&] { run_to_the_end([&] { tap_to_stream(tap, stream, base); }); });
  run_to_the_end([&] { stream_to_tap(stream, tap, base); });
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace causeway::bench

int main(int argc, char** argv) {
  try {
    return causeway::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "causeway-reference: " << error.what() << std::endl;
    return EXIT_FAILURE;
  }
}
