// SPDX-License-Identifier: Apache-2.0
// The load client for passthrough: a recorded ClientHello, its greeting, then bytes without
// cryptography (wire.hpp). What it sends is the same for every unit and is laid out once. Large
// replies are discarded in the kernel (MSG_TRUNC), small ones are compared with what the origin
// sends.
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/bench/gateway/load_client.hpp"

namespace causeway::bench {
namespace {

std::vector<std::byte> read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  if (!in.good() || text.size() <= kRecordHeaderSize) {
    throw std::runtime_error("'" + path + "': no ClientHello in it");
  }
  std::vector<std::byte> out(text.size());
  std::transform(text.begin(), text.end(), out.begin(),
                 [](char c) { return static_cast<std::byte>(c); });
  return out;
}

class HelloClient : public LoadClient {
 public:
  explicit HelloClient(const ClientOptions& options)
      : LoadClient(options), options_(options), hello_(read_file(options.hello)) {}

 protected:
  void on_open(std::size_t /*index*/) override {}
  void on_close(std::size_t /*index*/, bool /*good*/) override {}
  [[nodiscard]] nlohmann::json details() const override { return nlohmann::json::object(); }

  bool flush(std::size_t index) override {
    Connection& connection = at(index);
    const bool greets = connection.state == State::greeting;
    const std::uint64_t whole = greets ? hello_.size() : request_size();
    const bool sends = greets || connection.state == State::exchange;
    if (sends && connection.sent < whole) {
      const std::span<const std::byte> bytes =
          greets ? std::span<const std::byte>(hello_).subspan(connection.sent)
                 : request_from(connection.sent);
      const ssize_t sent = send(connection.fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN && errno != EINTR) return failed(index, "send");
      if (sent > 0) connection.sent += static_cast<std::uint64_t>(sent);
    }
    wait_for_room(index, sends && connection.sent < whole);
    return true;
  }

  void receive(std::size_t index) override {
    Connection& connection = at(index);
    const std::uint64_t expected = connection.state == State::greeting   ? options_.greeting
                                   : connection.state == State::exchange ? options_.request.reply
                                                                         : 0;
    const std::uint64_t left = expected - connection.received;
    const bool discards = left > kReadSize;
    // One byte more than expected, so that a surplus does not go unseen.
    const ssize_t got = discards ? recv(connection.fd.get(), nullptr,
                                        std::min<std::uint64_t>(left, kDiscardSize), MSG_TRUNC)
                                 : recv(connection.fd.get(), buffer_.data(), left + 1, 0);
    if (got < 0) {
      if (errno != EAGAIN && errno != EINTR) failed(index, "recv");
      return;
    }
    if (got == 0) {
      if (connection.state == State::ending) {
        close(index);
      } else {
        errno = 0;
        failed(index, "the stream ended early");
      }
      return;
    }
    const auto size = static_cast<std::size_t>(got);
    if (!discards && (size > left || !is_filler(std::span(buffer_).first(size)))) {
      errno = 0;
      failed(index, "bytes arrived that the origin did not send");
      return;
    }
    connection.received += size;
    if (connection.received == expected) complete(index);
  }

 private:
  ClientOptions options_;
  std::vector<std::byte> hello_;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(kReadSize + 1);
};

}  // namespace

nlohmann::json run_client(const ClientOptions& options) {
  return HelloClient(options).run();
}

}  // namespace causeway::bench
