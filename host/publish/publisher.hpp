// SPDX-License-Identifier: Apache-2.0
// Theory of operation: publishing over streams. TCP connections to published ports are accepted
// here and relayed to a vsock, hybrid vsock or unix socket in the guest, past the TAP: the guest's
// TCP stack and ours, and TCP within the bridge's stream, are left out.
//
// One thread with one io_context, whatever the number of ports and connections; all signals are
// blocked in it. Its state is its own: the public functions run their part on it and wait. It
// opens no listener (listeners.hpp; the broker does) and needs no privilege. It touches what
// clients and guests send, but only carries it.
//
// Nothing that a client or a guest does grows this process without bound: each entry has a limit on
// its connections, one of those costs two descriptors and some hundred bytes, and buffers and
// pipes are bounded in number (relay_pool.hpp). When descriptors run out, waiting connections are
// reset, ten a second, rather than left hanging.
//
// RLIMIT_NOFILE has to allow two descriptors per connection and two per pipe
// (RelayPool::kMaxPipes).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/os/unique_fd.hpp"
#include "common/result.hpp"
#include "host/network/publish_spec.hpp"
#include "host/publish/connection.hpp"

namespace causeway::host {

// One published port or range of a guest.
struct PublishedStream {
  std::string guest;
  Publish publish;                  // not over_tap()
  std::uint32_t cid = 0;            // where a vsock target is
  std::vector<UniqueFd> listeners;  // one per port, in order (open_publish_listeners())
};

class StreamPublisher {
 public:
  struct Status {
    std::string guest;
    std::string publish;  // as to_string(Publish)
    std::uint32_t cid = 0;
    PublishCounters counters;
  };

  StreamPublisher();
  ~StreamPublisher();
  StreamPublisher(const StreamPublisher&) = delete;
  StreamPublisher& operator=(const StreamPublisher&) = delete;

  // Starts the thread; once.
  Result<void> start();

  // What is published from now on. An entry whose guest, publish and cid were there before keeps
  // its listeners, connections and counters, and the listeners given with it (none are needed) are
  // closed. One that is left out stops to accept and its connections are reset. On return the old
  // listeners are closed and the new ones serve. Any thread but the publisher's.
  void replace(std::vector<PublishedStream> streams);

  // Resets every connection, closes every listener and ends the thread.
  void stop();

  // Of every entry, in the order of replace(). Any thread.
  [[nodiscard]] std::vector<Status> status() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace causeway::host
