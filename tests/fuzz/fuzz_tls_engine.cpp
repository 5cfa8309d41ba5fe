// SPDX-License-Identifier: Apache-2.0
// The TLS engine: as a server and as a client in the handshake, fed with the input as it is; and
// established, fed with records that the input makes up: in clear, or sealed as a peer with the
// keys would. Whatever comes, an error has a fault and its alert, sizes add up, plaintext lies
// inside of what was received, and an engine that failed stays so.
//
// The first byte chooses; the second how the stream is cut.
#include <cstdint>
#include <cstdlib>
#include <functional>

#include "guest/gateway/tls/mbedtls_internals.hpp"
#include "tests/unit/gateway_tls_peers.hpp"

namespace causeway::gateway::tls {

struct EngineProbe {
  static test::Bytes seal(Engine& engine, int type, std::span<const std::byte> content) {
    test::Bytes record(content.size() + Engine::kMaxOverhead);
    engine.lend_output(record);
    engine.ssl_.MBEDTLS_PRIVATE(out_msgtype) = type;
    engine.ssl_.MBEDTLS_PRIVATE(out_msglen) = content.size();
    std::copy(
        content.begin(), content.end(),
        std::as_writable_bytes(std::span(engine.ssl_.MBEDTLS_PRIVATE(out_msg), content.size()))
            .begin());
    if (mbedtls_ssl_write_record(&engine.ssl_, 0) != 0) std::abort();
    record.resize(engine.ssl_.MBEDTLS_PRIVATE(out_left));
    engine.take_back();
    return record;
  }
};

namespace {

using test::Bytes;

void require(bool holds) {
  if (!holds) std::abort();
}

// Both ends, established quickly by a ticket.
struct World {
  World() : server_context(&keys) {
    server_context.use(test::store_of({"ecdsa"}));
    server = test::server_profile();
    for (const Version version : {Version::tls12, Version::tls13}) {
      ProfileOptions options;
      options.min_version = version;
      options.max_version = version;
      clients[version == Version::tls13] = test::client_profile(options);
    }
  }
  struct Two {
    test::Peer server;
    test::Peer client;
  };
  Two make(bool tls13) {
    return {test::Peer(std::make_unique<Engine>(server_context, server, "a.example")),
            test::Peer(Engine::client(client_context, clients[tls13], "a.example",
                                      sessions[tls13].get()))};
  }
  Two established(bool tls13) {
    Two two = make(tls13);
    two.client.process();
    test::run(two.client, two.server);
    require(two.server.engine->established() && two.client.engine->established());
    if (auto session = two.client.engine->take_session()) sessions[tls13] = std::move(session);
    return two;
  }
  TicketKeys keys;
  Context server_context;
  Context client_context;
  std::shared_ptr<const Profile> server;
  std::shared_ptr<const Profile> clients[2];
  std::unique_ptr<Session> sessions[2];
};

void check(const test::Peer& peer) {
  const Engine& engine = *peer.engine;
  require((engine.fault() != Fault::none) == (peer.status == Status::error));
  if (peer.status == Status::error && engine.fault() != Fault::alert_received) {
    require(!engine.output().empty());
  }
}

void feed(test::Peer& peer, std::span<const std::byte> stream, std::size_t step) {
  while (!stream.empty() && peer.status != Status::closed) {
    const std::size_t part = std::min(step, stream.size());
    peer.receive(stream.first(part));
    stream = stream.subspan(part);
    check(peer);
    if (peer.status == Status::error) return;
    require(peer.received.size() <= Engine::kMaxRecord);
  }
}

// As in test::Peer::process(), with the places of the pieces looked at.
void feed_open(Engine& engine, Bytes record) {
  std::array<iovec, 2> pieces{};
  const auto opened = engine.open(record, pieces);
  require(opened.consumed <= record.size());
  std::size_t bytes = 0;
  for (const iovec& piece : std::span(pieces).first(opened.pieces)) {
    const auto* at = static_cast<const std::byte*>(piece.iov_base);
    require(std::greater_equal<>()(at, record.data()) &&
            std::less_equal<>()(at + piece.iov_len, record.data() + record.size()));
    bytes += piece.iov_len;
  }
  require(bytes == opened.bytes);
  require((opened.status == Status::error) == (engine.fault() != Fault::none));
}

}  // namespace
}  // namespace causeway::gateway::tls

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace causeway::gateway::tls;
  if (size < 2) return 0;
  causeway::gateway::crypto::initialise();
  static World world;
  const bool tls13 = (data[0] & 4U) != 0;
  const std::size_t step = std::size_t{1} + data[1] * std::size_t{8};
  auto input = std::as_bytes(std::span(data, size)).subspan(2);
  switch (data[0] & 3U) {
    case 0: {
      auto two = world.make(tls13);
      feed(two.server, input, step);
      break;
    }
    case 1: {
      auto two = world.make(tls13);
      two.client.process();
      two.client.take();
      feed(two.client, input, step);
      break;
    }
    case 2: {
      auto two = world.established(tls13);
      feed((data[0] & 8U) != 0 ? two.client : two.server, input, step);
      break;
    }
    default: {
      // type, two bytes of length, content; again.
      auto two = world.established(tls13);
      const bool to_client = (data[0] & 8U) != 0;
      Engine& from = *(to_client ? two.server : two.client).engine;
      Engine& to = *(to_client ? two.client : two.server).engine;
      while (input.size() > 3 && to.fault() == Fault::none && !to.read_closed()) {
        const int type = 20 + static_cast<int>(input[0]) % 4;
        const std::size_t length =
            (static_cast<std::size_t>(input[1]) << 8U | static_cast<std::size_t>(input[2])) % 2048;
        input = input.subspan(3);
        const auto content = input.first(std::min(length, input.size()));
        input = input.subspan(content.size());
        feed_open(to, EngineProbe::seal(from, type, content));
      }
      break;
    }
  }
  return 0;
}
