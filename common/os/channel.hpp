// SPDX-License-Identifier: Apache-2.0
// Channel: whole messages with descriptors, between two processes of one program that trust each
// other differently (helper and broker).
//
// A SOCK_SEQPACKET pair keeps messages apart, so there is no framing to get wrong, and says when
// the other side is gone, however it went. Either side bounds what it takes: a message that is too
// long or carries too many descriptors is an error, and nothing of it stays open.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/os/unique_fd.hpp"
#include "common/result.hpp"

namespace causeway {

class Channel {
 public:
  static constexpr std::size_t kMaxMessage = std::size_t{64} * 1024;  // bytes
  static constexpr std::size_t kMaxFds = 64;

  struct Message {
    std::string text;
    std::vector<UniqueFd> fds;  // close-on-exec
  };
  using Timeout = std::optional<std::chrono::milliseconds>;  // none: waits for ever

  Channel() = default;
  explicit Channel(UniqueFd socket) : socket_(std::move(socket)) {}  // one end of a pair()

  // Two connected ends, close-on-exec: one for each side of a fork().
  static Result<std::pair<Channel, Channel>> pair();

  // 1 to kMaxMessage bytes (an empty message looks like the end of the channel) and at most kMaxFds
  // descriptors, which are duplicated and stay the caller's. All is sent or nothing. EPIPE: the
  // other side is gone; ETIMEDOUT.
  Result<void> send(std::string_view message, std::span<const int> fds = {},
                    Timeout timeout = std::nullopt);

  // The next message; none when the other side is gone. Errors: ETIMEDOUT, EMSGSIZE (longer than
  // kMaxMessage), EMFILE (more descriptors than kMaxFds, or than this process may have open). After
  // one of them the message is lost and the channel is still in step.
  Result<std::optional<Message>> receive(Timeout timeout = std::nullopt);

  // For waiting until receive() has something, and for closing the end that is not ours.
  [[nodiscard]] int fd() const { return socket_.get(); }
  void close() { socket_.reset(); }

 private:
  UniqueFd socket_;
};

}  // namespace causeway
