// SPDX-License-Identifier: Apache-2.0
#include "common/bridge/handshake.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "common/net/stream.hpp"
#include "proto/bytes.hpp"

namespace causeway::bridge {

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Stream = asio::posix::stream_descriptor;

constexpr std::size_t kReadPiece = 8192;

enum class ReadStatus : std::uint8_t { data, closed, failed, timed_out };

// Appends what the stream has, waiting for it until `deadline`.
asio::awaitable<ReadStatus> read_more(Stream& stream, std::vector<std::byte>& into,
                                      Clock::time_point deadline) {
  for (;;) {
    std::array<std::byte, kReadPiece> piece;
    const ssize_t got = ::recv(stream.native_handle(), piece.data(), piece.size(), MSG_DONTWAIT);
    if (got > 0) {
      into.insert(into.end(), piece.begin(), piece.begin() + got);
      co_return ReadStatus::data;
    }
    if (got == 0) {
      co_return ReadStatus::closed;
    }
    if (errno != EAGAIN && errno != EINTR) {
      co_return ReadStatus::failed;
    }
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    if (left <= milliseconds{0}) {
      co_return ReadStatus::timed_out;
    }
    const auto ready = co_await net::wait_for(stream, Stream::wait_read, left);
    if (ready == net::Ready::timed_out) {
      co_return ReadStatus::timed_out;
    }
    if (ready == net::Ready::failed) {
      co_return ReadStatus::failed;
    }
  }
}

// A preface is far smaller than an empty socket buffer, so it is taken whole or not at all.
bool send_preface(Stream& stream, const proto::Hello& hello) {
  const auto bytes = proto::encode_preface(hello);
  return !bytes.empty() &&
         ::send(stream.native_handle(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
             static_cast<ssize_t>(bytes.size());
}

struct Preface {
  std::optional<GreetingFailure> failure;
  proto::Hello hello;
  std::vector<std::byte> rest;
};

enum class OnError : std::uint8_t { refuse, close };

// Reads a whole preface of which `have` is the beginning. Only a listener refuses, and only where
// the end of the hello was found: behind a wrong magic or length nobody knows where it is.
asio::awaitable<Preface> read_preface(Stream& stream, std::vector<std::byte> have,
                                      Clock::time_point deadline, OnError on_error) {
  Preface result;
  proto::PrefaceReader reader;
  for (;;) {
    const auto fed = reader.feed(have);
    if (fed.status == proto::PrefaceStatus::done) {
      result.hello = reader.hello();
      result.rest.assign(have.begin() + static_cast<std::ptrdiff_t>(fed.consumed), have.end());
      co_return result;
    }
    if (fed.status == proto::PrefaceStatus::error) {
      const auto error = reader.error();
      if (on_error == OnError::refuse && error != proto::HelloError::bad_magic &&
          error != proto::HelloError::bad_length) {
        const bool version = error == proto::HelloError::bad_version;
        (void)send_preface(stream, proto::refusal(version ? proto::RefuseReason::version
                                                          : proto::RefuseReason::malformed));
      }
      result.failure = GreetingFailure{EndReason::handshake_malformed,
                                       "hello: " + std::string(to_string(error))};
      co_return result;
    }
    have.clear();
    const auto status = co_await read_more(stream, have, deadline);
    if (status != ReadStatus::data) {
      result.failure = status == ReadStatus::timed_out
                           ? GreetingFailure{EndReason::handshake_timeout, "hello: not complete"}
                           : GreetingFailure{EndReason::handshake_malformed, "hello: cut short"};
      co_return result;
    }
  }
}

// A first byte of a plain length is 0. Anything else is the beginning of a preface, or garbage.
bool may_be_plain(const std::vector<std::byte>& have) {
  return have.empty() || have.front() == std::byte{0};
}

Greeting agreed_greeting(Preface preface, const proto::Agreement& agreement) {
  Greeting greeting;
  greeting.wire = proto::Wire::native;
  greeting.theirs = std::move(preface.hello);
  greeting.agreement = agreement;
  greeting.rest = std::move(preface.rest);
  return greeting;
}

GreetingFailure refused(proto::RefuseReason reason, const char* by) {
  return {EndReason::handshake_refused, std::string(by) + ": " + std::string(to_string(reason))};
}

// What a stream that does not begin with "CWAY" is to a listener: a plain one, or garbage that must
// not replace a session that works.
GreetingResult judge_plain(std::vector<std::byte> have, WireChoice choice,
                           std::uint32_t max_frame) {
  if (choice == WireChoice::native) {
    return GreetingFailure{EndReason::handshake_refused, "the peer does not speak the native wire"};
  }
  if (have.size() >= proto::kRecordHeaderSize) {
    const auto length = proto::load_be32(have, 0);
    if (length < proto::kMinFrame) {
      return GreetingFailure{EndReason::record_too_short,
                             "first record of " + std::to_string(length) + " bytes"};
    }
    if (length > max_frame) {
      return GreetingFailure{EndReason::record_too_long,
                             "first record of " + std::to_string(length) + " bytes"};
    }
  }
  Greeting greeting;
  greeting.rest = std::move(have);
  return greeting;
}

}  // namespace

asio::awaitable<GreetingResult> greet_as_listener(Stream& stream, WireChoice choice,
                                                  proto::Hello limits,
                                                  std::function<bool()> occupied) {
  if (choice == WireChoice::plain) {
    co_return Greeting{};
  }
  const auto start = Clock::now();
  std::vector<std::byte> have;
  while (have.size() < proto::kPrefaceMagic.size()) {
    const bool patient = choice == WireChoice::native || occupied() || !may_be_plain(have);
    const auto now = Clock::now();
    if (now >= start + kHelloTime) {
      co_return GreetingFailure{EndReason::handshake_timeout, "no hello"};
    }
    if (!patient && now >= start + kDetectTime) {
      break;  // silent: plain
    }
    // In steps, because the session that is up may end in the meantime.
    const auto limit = now < start + kDetectTime ? start + kDetectTime : now + kDetectTime / 4;
    const auto status = co_await read_more(stream, have, std::min(limit, start + kHelloTime));
    if (status == ReadStatus::failed) {
      co_return GreetingFailure{EndReason::stream_error, "the stream failed before a record"};
    }
    if (status == ReadStatus::closed) {
      co_return GreetingFailure{have.empty() ? EndReason::peer_closed : EndReason::truncated,
                                "closed before a record"};
    }
  }
  if (have.size() < proto::kPrefaceMagic.size() ||
      proto::detect(std::span<const std::byte, 4>(have.data(), 4)) != proto::Detected::native) {
    co_return judge_plain(std::move(have), choice, limits.max_frame);
  }
  auto preface =
      co_await read_preface(stream, std::move(have), start + kHelloTime, OnError::refuse);
  if (preface.failure) {
    co_return *preface.failure;
  }
  const auto answer = proto::answer_to(limits, preface.hello);
  const auto agreed = proto::negotiate(answer, preface.hello);
  if (const auto* reason = std::get_if<proto::RefuseReason>(&agreed)) {
    (void)send_preface(stream, proto::refusal(*reason));
    co_return refused(*reason, "refused");
  }
  if (!send_preface(stream, answer)) {
    co_return GreetingFailure{end_reason_of(errno), "the answer was not taken"};
  }
  co_return agreed_greeting(std::move(preface), std::get<proto::Agreement>(agreed));
}

asio::awaitable<GreetingResult> greet_as_connector(Stream& stream, WireChoice choice,
                                                   proto::Hello ours) {
  if (choice == WireChoice::plain) {
    co_return Greeting{};
  }
  const auto start = Clock::now();
  const GreetingFailure not_native{choice == WireChoice::automatic ? EndReason::handshake_fallback
                                                                   : EndReason::handshake_refused,
                                   "the peer does not speak the native wire"};
  if (!send_preface(stream, ours)) {
    co_return GreetingFailure{end_reason_of(errno), "the hello was not taken"};
  }
  std::vector<std::byte> have;
  while (have.size() < proto::kPrefaceMagic.size()) {
    const auto status = co_await read_more(stream, have, start + kAnswerTime);
    if (status != ReadStatus::data) {
      co_return not_native;
    }
  }
  if (proto::detect(std::span<const std::byte, 4>(have.data(), 4)) != proto::Detected::native) {
    co_return not_native;
  }
  auto preface = co_await read_preface(stream, std::move(have), start + kHelloTime, OnError::close);
  if (preface.failure) {
    co_return *preface.failure;
  }
  if (preface.hello.refuse) {
    co_return refused(proto::refuse_reason(*preface.hello.refuse), "refused by the peer");
  }
  const auto agreed = proto::negotiate(ours, preface.hello);
  if (const auto* reason = std::get_if<proto::RefuseReason>(&agreed)) {
    co_return refused(*reason, "refused");
  }
  co_return agreed_greeting(std::move(preface), std::get<proto::Agreement>(agreed));
}

}  // namespace causeway::bridge
