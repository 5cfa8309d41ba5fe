// SPDX-License-Identifier: Apache-2.0
// The ClientHello reader: the input's first byte chooses how the rest, a stream, is cut. Cut or
// whole, the outcome is the same; its cost is bounded by the bytes received; what is accepted keeps
// to its bounds and to the alphabet of host names, and lies in the reader.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "guest/gateway/sniff/client_hello.hpp"

namespace {

using namespace causeway::gateway;
using State = ClientHelloReader::State;

void require(bool holds) {
  if (!holds) std::abort();
}

void check_name(std::string_view name) {
  if (name.empty()) return;
  require(name.size() <= ClientHelloReader::kMaxServerName);
  require(name.front() != '.' && name.back() != '.' && name.find("..") == name.npos);
  require(std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
  }));
}

struct Outcome {
  State state = State::need_more;
  HelloFault fault = HelloFault::none;
  Alert alert = Alert::decode_error;
  std::string name;
  std::vector<std::string> alpn;
  bool tls13 = false;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

Outcome read(std::vector<std::byte> stream, std::size_t step) {
  ClientHelloReader reader;
  Outcome out;
  std::size_t size = 0;
  std::size_t calls = 0;
  do {
    size = std::min(stream.size(), size + step);
    out.state = reader.read(std::span(stream).first(size));
    ++calls;
    require(out.state != State::need_more || size < ClientHelloReader::kMaxHelloBytes);
  } while (out.state == State::need_more && size < stream.size());
  require(reader.read(stream) == out.state);
  require(reader.examined() <= 4 * size + 2 * calls + 16);

  std::fill(stream.begin(), stream.end(), std::byte{0xff});
  const ClientHello& hello = reader.hello();
  out.fault = reader.fault();
  out.alert = reader.alert();
  out.name = hello.server_name;
  out.alpn.assign(hello.alpn.begin(), hello.alpn.end());
  out.tls13 = hello.tls13;
  require((out.state == State::refused) == (out.fault != HelloFault::none));
  require(out.state == State::done || (out.name.empty() && out.alpn.empty() && !out.tls13));
  check_name(out.name);
  require(out.alpn.size() <= ClientHelloReader::kMaxAlpn);
  for (const std::string& protocol : out.alpn) {
    require(!protocol.empty() && protocol.size() <= 255 && hello.offers(protocol));
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto input = std::as_bytes(std::span(data, size)).subspan(1);
  const std::vector<std::byte> stream(input.begin(), input.end());
  const Outcome whole = read(stream, stream.size() + 1);
  require(read(stream, std::size_t{1} + data[0]) == whole);
  return 0;
}
