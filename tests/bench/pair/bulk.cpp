// SPDX-License-Identifier: Apache-2.0
// Bulk TCP with checked payloads. Both buffers exist and are faulted in before the connection is
// made, the digests are computed after it is over: the timed section holds socket calls only.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/evp.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <thread>

#include "tests/bench/pair/sockets.hpp"
#include "tests/bench/pair/traffic.hpp"

namespace causeway::bench {

namespace {

constexpr std::size_t kChunk = 256 * 1024;  // of one send or receive call

class Payload {
 public:
  explicit Payload(std::size_t size) : size_(size) {
    void* mapped = mmap(nullptr, std::max<std::size_t>(size, 1), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) fail("mmap of the payload");
    data_ = static_cast<std::byte*>(mapped);
    madvise(data_, size, MADV_HUGEPAGE);
    for (std::size_t at = 0; at < size; at += 4096)
      data_[at] = std::byte{1};
  }
  Payload(const Payload&) = delete;
  Payload& operator=(const Payload&) = delete;
  ~Payload() { munmap(data_, std::max<std::size_t>(size_, 1)); }

  [[nodiscard]] std::span<std::byte> bytes() const { return {data_, size_}; }

  // SplitMix64 (Steele, Lea, Flood 2014): incompressible, and any place can be computed from the
  // seed.
  void fill(std::uint64_t seed) {
    std::uint64_t state = seed;
    for (std::size_t at = 0; at < size_; at += sizeof state) {
      state += 0x9e3779b97f4a7c15;
      std::uint64_t z = state;
      z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
      z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
      z ^= z >> 31;
      std::memcpy(data_ + at, &z, std::min(sizeof z, size_ - at));
    }
  }

  [[nodiscard]] std::string sha256() const {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned length = 0;
    if (EVP_Digest(data_, size_, digest, &length, EVP_sha256(), nullptr) != 1) {
      throw std::runtime_error("SHA-256 failed");
    }
    static constexpr char kHex[] = "0123456789abcdef";
    std::string text;
    for (const unsigned char byte : std::span(digest).first(length)) {
      text += kHex[byte >> 4];
      text += kHex[byte & 15];
    }
    return text;
  }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_;
};

void send_payload(const Fd& fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::size_t size = std::min(kChunk, bytes.size());
    send_all(fd, bytes.first(size));
    bytes = bytes.subspan(size);
  }
  if (shutdown(fd.get(), SHUT_WR) != 0) fail("shutdown");
}

struct Received {
  std::size_t bytes = 0;
  bool eof = false;  // the stream ended exactly behind the last byte that was expected
};

Received receive_payload(const Fd& fd, std::span<std::byte> out) {
  Received received;
  while (received.bytes < out.size()) {
    const auto room = out.subspan(received.bytes);
    const std::size_t got = receive_some(fd, room.first(std::min(kChunk, room.size())));
    if (got == 0) return received;
    received.bytes += got;
  }
  std::byte extra;
  received.eof = receive_some(fd, {&extra, 1}) == 0;
  return received;
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

unsigned retransmits(const Fd& fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(fd.get(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return 0;
  return info.tcpi_total_retrans;
}

std::string expected_digest(std::uint64_t seed, std::size_t size) {
  Payload expected(size);
  expected.fill(seed);
  return expected.sha256();
}

}  // namespace

nlohmann::json run_bulk(const BulkOptions& options) {
  const std::size_t size = options.bytes;
  Payload outgoing(options.sends ? size : 0);
  Payload incoming(options.receives ? size : 0);
  if (options.sends) outgoing.fill(options.seed.value_or(1));

  Fd connection;
  const SocketAddress address = parse_ip_port(options.place.address);
  if (options.place.listens) {
    const Fd listener = listen_on(address, SOCK_STREAM);
    announce(listener);
    connection = accept_one(listener);
  } else {
    connection = connect_to(
        address, SOCK_STREAM,
        std::chrono::milliseconds(static_cast<std::int64_t>(options.place.patience * 1000)));
  }

  const double cpu_before = cpu_seconds();
  const double start = now_seconds();
  Received received;
  std::exception_ptr sender_error;
  if (options.sends && options.receives) {
    std::thread sender([&] {
      try {
        send_payload(connection, outgoing.bytes());
      } catch (...) {
        sender_error = std::current_exception();
        shutdown(connection.get(), SHUT_RDWR);  // or the receiver would wait for its deadline
      }
    });
    try {
      received = receive_payload(connection, incoming.bytes());
    } catch (...) {
      shutdown(connection.get(), SHUT_RDWR);
      sender.join();
      throw;
    }
    sender.join();
    if (sender_error) std::rethrow_exception(sender_error);
  } else if (options.sends) {
    send_payload(connection, outgoing.bytes());
    received = receive_payload(connection, {});  // the peer closes once it has seen our end
  } else {
    received = receive_payload(connection, incoming.bytes());
  }
  const double seconds = now_seconds() - start;
  const double cpu = cpu_seconds() - cpu_before;
  const unsigned retransmitted = retransmits(connection);
  connection.reset();

  const double mib = static_cast<double>(size) / (1024.0 * 1024.0);
  nlohmann::json out = {{"bytes", size},
                        {"seconds", seconds},
                        {"mib_per_second", mib / seconds},
                        {"cpu_seconds", cpu},
                        {"eof", received.eof}};
  bool ok = received.eof;
  if (options.sends) {
    out["sent_sha256"] = outgoing.sha256();
    out["retransmits"] = retransmitted;
  }
  if (options.receives) {
    out["received_bytes"] = received.bytes;
    out["received_sha256"] = incoming.sha256();
    if (options.peer_seed) {
      out["digest_ok"] = out["received_sha256"] == expected_digest(*options.peer_seed, size);
      ok = ok && out["digest_ok"].get<bool>();
    }
  }
  out["ok"] = ok;
  return out;
}

}  // namespace causeway::bench
