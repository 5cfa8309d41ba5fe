// SPDX-License-Identifier: Apache-2.0
#include "host/publish/publisher.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_set>
#include <utility>

#include "common/log.hpp"
#include "common/net/asio.hpp"
#include "common/net/endpoints.hpp"
#include "common/net/socket_address.hpp"
#include "common/os/blocked_signals.hpp"

namespace causeway::host {

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Descriptor = asio::posix::stream_descriptor;

constexpr milliseconds kPause{100};  // after an accept that failed for lack of something
constexpr int kAcceptsInARow = 64;   // then others have a turn
constexpr milliseconds kShortestTick{10};
constexpr milliseconds kLongestTick{1000};

// Who connected, and to which of our addresses. None: the client has gone already.
std::optional<net::ProxySource> source_of(int fd) {
  auto source = net::endpoints_of_socket(fd);
  if (!source.client) return std::nullopt;
  return source;
}

Address target_of(const PublishedStream& stream, std::size_t index) {
  if (const auto* vsock = std::get_if<VsockTarget>(&stream.publish.target)) {
    return Address{VsockAddress{stream.cid, vsock->port + static_cast<std::uint32_t>(index)}};
  }
  if (const auto* hybrid = std::get_if<HybridVsockAddress>(&stream.publish.target)) {
    return Address{*hybrid};
  }
  if (const auto* local = std::get_if<UnixAddress>(&stream.publish.target)) {
    return Address{*local};
  }
  return Address{UnixAddress{}};  // over_tap(): never reached, and no such path
}

// Lives as long as a coroutine or a connection of it does.
struct Entry {
  Entry(PublishedStream from, std::string name) : stream(std::move(from)), text(std::move(name)) {}
  [[nodiscard]] bool same(const PublishedStream& other) const {
    return stream.guest == other.guest && stream.cid == other.cid &&
           text == to_string(other.publish);
  }
  PublishedStream stream;  // its listeners have moved to `listeners`
  std::string text;        // to_string(stream.publish)
  PublishCounters counters;
  std::vector<Descriptor> listeners;
  std::unordered_set<Connection*> connections;
  bool removed = false;
};

using EntryPtr = std::shared_ptr<Entry>;

void ended_badly(const std::exception_ptr& error) {
  if (!error) return;
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& what) {
    log::error("publishing: {}", what.what());
  }
}

}  // namespace

struct StreamPublisher::Impl {
  // The context goes last: what it still holds refers to the rest.
  RelayContext context;
  UniqueFd spare;  // given up to take a connection and reset it when descriptors have run out
  std::vector<EntryPtr> entries;
  asio::io_context io{1};
  asio::steady_timer tick{io};
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work;
  std::thread thread;
  std::mutex mutex;  // one caller at a time, and none while the thread starts or ends

  void run(std::function<void()> part);
  void keep_spare() { spare.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }
  void add(PublishedStream stream, std::vector<EntryPtr>& to);
  void remove(Entry& entry);
  void take(const EntryPtr& entry, std::size_t index, UniqueFd client);
  void shed(Entry& entry, int listener);
  void close_idle();
  [[nodiscard]] milliseconds tick_time() const;
  asio::awaitable<void> accept_from(EntryPtr entry, std::size_t index);
  asio::awaitable<void> serve(EntryPtr entry, std::shared_ptr<Connection> connection,
                              Address target, std::optional<net::ProxySource> proxy);
  asio::awaitable<void> keep_ticking();
};

// Runs `part` on the thread and waits for it; without a thread, here. With `mutex` held.
void StreamPublisher::Impl::run(std::function<void()> part) {
  if (!thread.joinable()) {
    part();
    return;
  }
  std::packaged_task<void()> task(std::move(part));
  auto done = task.get_future();
  asio::post(io, std::move(task));
  done.get();
}

void StreamPublisher::Impl::add(PublishedStream stream, std::vector<EntryPtr>& to) {
  std::vector<UniqueFd> listeners = std::exchange(stream.listeners, {});
  std::string text = to_string(stream.publish);
  auto entry = std::make_shared<Entry>(std::move(stream), std::move(text));
  to.push_back(entry);
  if (listeners.empty()) {
    log::error("publishing {} of {}: no listener", entry->text, entry->stream.guest);
  }
  entry->listeners.reserve(listeners.size());
  for (UniqueFd& fd : listeners) {
    std::error_code failed;
    entry->listeners.emplace_back(io).assign(fd.get(), failed);
    if (failed) {
      log::error("publishing {} of {}: {}", entry->text, entry->stream.guest, failed.message());
      continue;
    }
    (void)fd.release();
    asio::co_spawn(io, accept_from(entry, entry->listeners.size() - 1), ended_badly);
  }
}

void StreamPublisher::Impl::remove(Entry& entry) {
  entry.removed = true;
  std::error_code ignored;
  for (Descriptor& listener : entry.listeners)
    listener.close(ignored);
  for (Connection* connection : entry.connections)
    connection->end(Connection::Ended::removed);
}

asio::awaitable<void> StreamPublisher::Impl::accept_from(EntryPtr entry, std::size_t index) {
  Descriptor& listener = entry->listeners[index];
  int in_a_row = 0;
  while (!entry->removed) {
    UniqueFd client(
        ::accept4(listener.native_handle(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (client.valid()) {
      take(entry, index, std::move(client));
      if (++in_a_row < kAcceptsInARow) continue;
      in_a_row = 0;
      co_await asio::post(asio::use_awaitable);
    } else if (errno == EAGAIN) {
      in_a_row = 0;
      co_await listener.async_wait(Descriptor::wait_read, net::as_result);
    } else if (errno != ECONNABORTED && errno != EINTR) {
      const int code = errno;
      if (code == EMFILE || code == ENFILE) shed(*entry, listener.native_handle());
      if (context.log.take()) {
        log::warn("publishing {}: accept: {}{}", entry->text, std::strerror(code),
                  context.log.suppressed_text());
      }
      co_await net::sleep_for(kPause);
    }
  }
}

void StreamPublisher::Impl::take(const EntryPtr& entry, std::size_t index, UniqueFd client) {
  PublishCounters& counters = entry->counters;
  ++counters.accepted;
  if (counters.active >= entry->stream.publish.limit) {
    ++counters.refused_limit;
    if (context.log.take()) {
      log::warn("publishing {} of {}: limit={} reached, a connection is refused{}", entry->text,
                entry->stream.guest, entry->stream.publish.limit, context.log.suppressed_text());
    }
    reset_on_close(client.get());
    return;
  }
  std::optional<net::ProxySource> proxy;
  if (entry->stream.publish.proxy_v2) {
    proxy = source_of(client.get());
    if (!proxy) {
      ++counters.reset;
      return;
    }
  }
  auto connection = std::make_shared<Connection>(
      io, context, counters, "publishing " + entry->text + " of " + entry->stream.guest,
      std::move(client));
  ++counters.active;
  entry->connections.insert(connection.get());
  asio::co_spawn(io, serve(entry, std::move(connection), target_of(entry->stream, index), proxy),
                 ended_badly);
}

asio::awaitable<void> StreamPublisher::Impl::serve(EntryPtr entry,
                                                   std::shared_ptr<Connection> connection,
                                                   Address target,
                                                   std::optional<net::ProxySource> proxy) {
  // Also where run() throws.
  struct Gone {
    Entry& entry;
    Connection* connection;
    ~Gone() {
      entry.connections.erase(connection);
      --entry.counters.active;
    }
  };
  const Gone gone{*entry, connection.get()};
  co_await connection->run(std::move(target), proxy);
}

// Without this the client would hang in the backlog until descriptors are free again.
void StreamPublisher::Impl::shed(Entry& entry, int listener) {
  spare.reset();
  UniqueFd client(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (client.valid()) {
    ++entry.counters.accepted;
    ++entry.counters.refused_limit;
    reset_on_close(client.get());
    client.reset();
  }
  keep_spare();
}

milliseconds StreamPublisher::Impl::tick_time() const {
  milliseconds shortest = kLongestTick * 8;
  for (const EntryPtr& entry : entries) {
    const Duration idle = entry->stream.publish.idle;
    if (!idle.never) shortest = std::min(shortest, idle.value);
  }
  // Movement is seen at one tick and its absence at another: an eighth keeps both within a quarter.
  return std::clamp(shortest / 8, kShortestTick, kLongestTick);
}

asio::awaitable<void> StreamPublisher::Impl::keep_ticking() {
  while (work) {
    tick.expires_after(tick_time());
    co_await tick.async_wait(net::as_result);  // cancelled when the entries change
    close_idle();
  }
}

void StreamPublisher::Impl::close_idle() {
  const auto now = Clock::now();
  for (const EntryPtr& entry : entries) {
    const Duration limit = entry->stream.publish.idle;
    if (limit.never) continue;
    for (Connection* connection : entry->connections) {
      if (connection->idle(now, limit.value)) connection->end(Connection::Ended::idle);
    }
  }
}

StreamPublisher::StreamPublisher() : impl_(std::make_unique<Impl>()) {}

StreamPublisher::~StreamPublisher() {
  stop();
}

Result<void> StreamPublisher::start() {
  Impl& impl = *impl_;
  const std::lock_guard lock(impl.mutex);
  if (impl.thread.joinable()) return Error{"publishing runs already"};
  impl.keep_spare();
  if (!impl.spare.valid()) return system_error("/dev/null");
  impl.work.emplace(impl.io.get_executor());
  asio::co_spawn(impl.io, impl.keep_ticking(), ended_badly);
  const BlockedSignals blocked;  // SIGPIPE too: splice() cannot be told not to raise it
  Result<void> result;
  try {
    impl.thread = std::thread([&impl] {
      pthread_setname_np(pthread_self(), "publish");
      impl.io.run();
    });
  } catch (const std::system_error& error) {
    result = Error{std::string("publishing: no thread: ") + error.what(), error.code().value()};
  }
  return result;
}

void StreamPublisher::replace(std::vector<PublishedStream> streams) {
  Impl& impl = *impl_;
  const std::lock_guard lock(impl.mutex);
  impl.run([&impl, &streams] {
    std::vector<EntryPtr> next;
    for (PublishedStream& stream : streams) {
      const auto same = std::find_if(impl.entries.begin(), impl.entries.end(),
                                     [&stream](const EntryPtr& e) { return e && e->same(stream); });
      if (same == impl.entries.end()) {
        impl.add(std::move(stream), next);
      } else {
        next.push_back(std::exchange(*same, nullptr));
      }
    }
    for (const EntryPtr& left_out : impl.entries) {
      if (left_out) impl.remove(*left_out);
    }
    impl.entries = std::move(next);
    impl.tick.cancel();
  });
}

void StreamPublisher::stop() {
  Impl& impl = *impl_;
  const std::lock_guard lock(impl.mutex);
  impl.run([&impl] {
    for (const EntryPtr& entry : impl.entries)
      impl.remove(*entry);
    impl.entries.clear();
    impl.work.reset();
    impl.tick.cancel();
  });
  if (impl.thread.joinable()) impl.thread.join();
}

std::vector<StreamPublisher::Status> StreamPublisher::status() const {
  std::vector<Status> all;
  const std::lock_guard lock(impl_->mutex);
  impl_->run([this, &all] {
    for (const EntryPtr& entry : impl_->entries) {
      all.push_back({entry->stream.guest, entry->text, entry->stream.cid, entry->counters});
    }
  });
  return all;
}

}  // namespace causeway::host
