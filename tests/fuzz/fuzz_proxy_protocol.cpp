// SPDX-License-Identifier: Apache-2.0
// The PROXY protocol: the input's first byte chooses the versions that are accepted, the rest is a
// stream. Each prefix of it asks for more until one is a header or is refused, and the outcome
// stays whatever follows; a header that names somebody is written in both versions and read again.
#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "common/net/proxy_protocol.hpp"

namespace {

using namespace causeway::net;
using State = ProxyReader::State;

void require(bool holds) {
  if (!holds) std::abort();
}

void check_written_again(const ProxySource& source) {
  for (const bool v2 : {false, true}) {
    const ProxyHeader header =
        v2 ? encode_proxy_v2(source, {.authority = "a.b", .ssl = true}) : encode_proxy_v1(source);
    ProxyReader reader(v2 ? ProxyVersions::v2 : ProxyVersions::v1);
    require(reader.read(header.bytes()) == State::done && reader.size() == header.size);
    require(reader.source().client == source.client && reader.source().server == source.server);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto input = std::as_bytes(std::span(data, size)).subspan(1);
  const auto accepted = static_cast<ProxyVersions>(data[0] % 3);
  ProxyReader whole(accepted);
  const State state = whole.read(input);
  require(state != State::need_more || input.size() < kMaxProxyV2);

  ProxyReader bytewise(accepted);
  State last = State::need_more;
  std::size_t received = 0;
  while (last == State::need_more && received < input.size()) {
    last = bytewise.read(input.first(++received));
  }
  require(last == state && whole.size() == bytewise.size());
  if (state != State::done) {
    require(whole.size() == 0 && !whole.source().client && !whole.source().server);
    return 0;
  }
  require(whole.size() == received && received <= kMaxProxyV2);
  require(whole.source().client.has_value() == whole.source().server.has_value());
  check_written_again(whole.source());
  return 0;
}
