// SPDX-License-Identifier: Apache-2.0
#include "common/os/channel.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace causeway {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kControlSize = CMSG_SPACE(Channel::kMaxFds * sizeof(int));

// What sendmsg and recvmsg want beside the bytes, with the alignment that cmsghdr needs.
union Control {
  std::array<char, kControlSize> bytes;
  cmsghdr align;
};

class Deadline {
 public:
  explicit Deadline(const Channel::Timeout& timeout) {
    if (timeout) {
      end_ = Clock::now() + *timeout;
    }
  }

  // Until `fd` is ready for `events`, or broken (the call that follows says how).
  [[nodiscard]] Result<void> wait(int fd, short events) const {
    for (;;) {
      int milliseconds = -1;
      if (end_) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(*end_ - Clock::now());
        milliseconds = static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 3'600'000));
      }
      pollfd entry{.fd = fd, .events = events, .revents = 0};
      const int count = ::poll(&entry, 1, milliseconds);
      if (count > 0) {
        return {};
      }
      if (count == 0 && end_ && Clock::now() >= *end_) {
        return Error{"channel: no answer in time", ETIMEDOUT};
      }
      if (count < 0 && errno != EINTR) {
        return system_error("channel: poll");
      }
    }
  }

 private:
  std::optional<Clock::time_point> end_;
};

// Owns every descriptor that came with the message, wanted or not.
std::vector<UniqueFd> take_descriptors(msghdr& header) {
  std::vector<UniqueFd> fds;
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    std::array<int, Channel::kMaxFds> numbers{};
    const std::size_t used = std::min(count, numbers.size());  // the control buffer holds no more
    std::memcpy(numbers.data(), CMSG_DATA(part), used * sizeof(int));
    fds.reserve(used);
    for (const int number : std::span(numbers).first(used)) {
      fds.emplace_back(number);
    }
  }
  return fds;
}

}  // namespace

Result<std::pair<Channel, Channel>> Channel::pair() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return system_error("channel");
  }
  return std::pair{Channel(UniqueFd(ends[0])), Channel(UniqueFd(ends[1]))};
}

Result<void> Channel::send(std::string_view message, std::span<const int> fds, Timeout timeout) {
  if (message.empty() || message.size() > kMaxMessage) {
    return Error{"channel: a message of " + std::to_string(message.size()) + " bytes: 1 to " +
                     std::to_string(kMaxMessage) + " can be sent",
                 EMSGSIZE};
  }
  if (fds.size() > kMaxFds) {
    return Error{"channel: " + std::to_string(fds.size()) + " descriptors: at most " +
                     std::to_string(kMaxFds) + " can be sent",
                 EMSGSIZE};
  }
  iovec part{};
  part.iov_base = const_cast<char*>(message.data());  // iovec is for both directions
  part.iov_len = message.size();
  Control control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    header.msg_control = control.bytes.data();
    header.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(rights), fds.data(), fds.size_bytes());
  }
  const Deadline deadline(timeout);
  for (;;) {
    if (::sendmsg(fd(), &header, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) {
      return {};  // whole: SOCK_SEQPACKET
    }
    if (errno == EAGAIN) {
      if (auto ready = deadline.wait(fd(), POLLOUT); !ready) {
        return ready;
      }
    } else if (errno != EINTR) {
      return system_error("channel: send");
    }
  }
}

Result<std::optional<Channel::Message>> Channel::receive(Timeout timeout) {
  const Deadline deadline(timeout);
  std::string text(kMaxMessage, '\0');
  for (;;) {
    iovec part{.iov_base = text.data(), .iov_len = text.size()};
    Control control{};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.bytes.data();
    header.msg_controllen = control.bytes.size();
    const ssize_t got = ::recvmsg(fd(), &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got < 0) {
      if (errno == ECONNRESET) {  // gone, with messages of ours unread
        return std::optional<Message>{};
      }
      if (errno == EAGAIN) {
        if (auto ready = deadline.wait(fd(), POLLIN); !ready) {
          return ready.error();
        }
      } else if (errno != EINTR) {
        return system_error("channel: receive");
      }
      continue;
    }
    auto fds = take_descriptors(header);
    if (got == 0) {
      return std::optional<Message>{};
    }
    if ((header.msg_flags & MSG_TRUNC) != 0) {
      return Error{"channel: a message of more than " + std::to_string(kMaxMessage) + " bytes",
                   EMSGSIZE};
    }
    if ((header.msg_flags & MSG_CTRUNC) != 0) {
      return Error{"channel: more descriptors than can be taken", EMFILE};
    }
    text.resize(static_cast<std::size_t>(got));
    return std::optional<Message>(Message{std::move(text), std::move(fds)});
  }
}

}  // namespace causeway
