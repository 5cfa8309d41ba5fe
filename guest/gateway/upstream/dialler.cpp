// SPDX-License-Identifier: Apache-2.0
#include "guest/gateway/upstream/dialler.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/net/endpoints.hpp"
#include "common/net/stream.hpp"

namespace causeway::gateway {

namespace {

net::SocketAddress with_port(net::SocketAddress address, std::uint16_t port) {
  // Both families have the port right behind the family (netinet/in.h).
  static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));
  if (port != 0 && (address.family() == AF_INET || address.family() == AF_INET6)) {
    sockaddr_in in4{};
    std::memcpy(&in4, &address.storage, sizeof in4);
    in4.sin_port = htons(port);
    std::memcpy(&address.storage, &in4, offsetof(sockaddr_in, sin_addr));
  }
  return address;
}

Result<Attempt> begin(const Target& target, std::uint16_t port) {
  const net::SocketAddress address = with_port(target.address, port);
  Attempt attempt;
  attempt.family = address.family();
  attempt.hvsock_port = target.hvsock_port;
  if (const auto endpoint = net::endpoint_of(address)) attempt.port = endpoint->port;
  attempt.fd.reset(::socket(attempt.family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!attempt.fd.valid()) return system_error("socket");
  if (attempt.family == AF_VSOCK) {
    net::raise_vsock_buffer(attempt.fd.get(), net::StreamOptions{});
  } else if (attempt.family != AF_UNIX) {
    const int on = 1;
    (void)::setsockopt(attempt.fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  if (::connect(attempt.fd.get(), address.get(), address.length) == 0) {
    attempt.connected = true;
  } else if (errno != EINPROGRESS) {  // on a unix socket EAGAIN means a full backlog
    return system_error("connect");
  }
  return attempt;
}

}  // namespace

End end_of_errno(int code) {
  switch (code) {
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
    case EADDRNOTAVAIL:  // no local port is left
    case ENOSPC:         // of epoll_ctl(2): max_user_watches
      return End::no_descriptors;
    case ETIMEDOUT:
      return End::connect_timeout;
    default:
      return End::connect_failed;
  }
}

std::optional<Attempt> Dialler::next(Clock::time_point now) {
  while (candidate_ < candidates_.count) {
    const UpstreamView& view = route_.upstreams[candidates_.index.at(candidate_)];
    if (target_ >= view.targets.size()) {
      step(true);
      continue;
    }
    UpstreamSlot slot(view);
    if (!slot.valid()) {  // others took the last place since it was chosen
      failure_ = End::upstream_limit;
      step(true);
      continue;
    }
    if (target_ == 0 || across_) first_ = slot->connected.load(std::memory_order_relaxed);
    auto attempt = begin(view.targets[(first_ + target_) % view.targets.size()], port_);
    const bool last_address = target_ + 1 >= view.targets.size();
    step(false);
    if (attempt) {
      attempt->last_address = last_address;
      attempt->slot = std::move(slot);
      attempt->upstream = candidates_.index.at(candidate_);
      return std::move(*attempt);
    }
    failure_ = end_of_errno(attempt.error().code);
    if (attempt.error().code == EAGAIN) {  // busy, not broken
      full_backlog_ = true;
      continue;
    }
    if (failure_ == End::no_descriptors) return std::nullopt;  // our own lack: no fault of theirs
    if (last_address) slot->note_failed(now);
  }
  return std::nullopt;
}

// To the next address; `leave`: this candidate has none to try.
void Dialler::step(bool leave) {
  if (across_) {
    if (++candidate_ < candidates_.count) return;
    // Another round, if any candidate has as many addresses.
    ++target_;
    const auto has_more = [this](std::uint16_t index) {
      return route_.upstreams[index].targets.size() > target_;
    };
    const auto end = candidates_.index.begin() + static_cast<std::ptrdiff_t>(candidates_.count);
    if (std::any_of(candidates_.index.begin(), end, has_more)) candidate_ = 0;
  } else if (leave) {
    ++candidate_;
    target_ = 0;
  } else {
    ++target_;
  }
}

bool Dialler::more() const {
  if (candidate_ >= candidates_.count) return false;
  for (std::size_t i = 0; i < candidates_.count; ++i) {
    const std::size_t size = route_.upstreams[candidates_.index.at(i)].targets.size();
    if (across_ ? size > target_ + (i < candidate_ ? 1 : 0)
                : i >= candidate_ && size > (i == candidate_ ? target_ : 0)) {
      return true;
    }
  }
  return false;
}

void Dialler::failed(Attempt& attempt, End why, Clock::time_point now) {
  failure_ = why;
  if (attempt.last_address) attempt.slot->note_failed(now);
}

}  // namespace causeway::gateway
