// SPDX-License-Identifier: Apache-2.0
// ClientHellos for tests: built field by field, so that each length and each field can lie.
#pragma once

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <vector>

namespace causeway::test::tls {

// Byte strings. Numbers are big-endian; too large ones lose their upper bits.
inline std::string u8(std::size_t value) {
  return std::string(1, static_cast<char>(value & 0xff));
}
inline std::string u16(std::size_t value) {
  return u8(value >> 8) + u8(value);
}
inline std::string u24(std::size_t value) {
  return u8(value >> 16) + u16(value);
}
inline std::string vec8(const std::string& bytes) {
  return u8(bytes.size()) + bytes;
}
inline std::string vec16(const std::string& bytes) {
  return u16(bytes.size()) + bytes;
}

inline std::string extension(std::size_t type, const std::string& data) {
  return u16(type) + vec16(data);
}
inline std::string name_entry(const std::string& name, std::size_t type = 0) {
  return u8(type) + vec16(name);
}
inline std::string sni(const std::string& name) {
  return extension(0, vec16(name_entry(name)));
}
inline std::string alpn(const std::vector<std::string>& protocols) {
  std::string list;
  for (const std::string& protocol : protocols) {
    list += vec8(protocol);
  }
  return extension(16, vec16(list));
}
inline std::string supported_versions(std::initializer_list<std::size_t> versions) {
  std::string list;
  for (const std::size_t version : versions) {
    list += u16(version);
  }
  return extension(43, vec8(list));
}

// The fields in front of the extensions; those with a length have it with them.
struct Body {
  std::string version = u16(0x0303);
  std::string random = std::string(32, 'r');
  std::string session = vec8(std::string(32, 's'));
  std::string ciphers = vec16(u16(0x1301) + u16(0xc02b));
  std::string compressions = vec8(std::string(1, '\0'));
  std::string extensions = {};  // with their length, or nothing at all

  [[nodiscard]] std::string text() const {
    return version + random + session + ciphers + compressions + extensions;
  }
};

inline std::string message(const std::string& body, std::size_t type = 1) {
  return u8(type) + u24(body.size()) + body;
}
inline std::string record(const std::string& payload, std::size_t type = 22,
                          std::size_t version = 0x0301) {
  return u8(type) + u16(version) + vec16(payload);
}
// In records of `each` bytes.
inline std::string records(const std::string& whole, std::size_t each) {
  std::string stream;
  for (std::size_t at = 0; at < whole.size(); at += each) {
    stream += record(whole.substr(at, each));
  }
  return stream;
}

inline std::string hello_message(const std::string& extensions) {
  Body body;
  body.extensions = vec16(extensions);
  return message(body.text());
}
inline std::string hello(const std::string& extensions) {
  return record(hello_message(extensions));
}
// A message of exactly `size` bytes, by its padding (RFC 7685).
inline std::string padded_message(const std::string& extensions, std::size_t size) {
  const std::size_t least = hello_message(extensions + extension(21, "")).size();
  return hello_message(extensions + extension(21, std::string(size - std::min(least, size), '\0')));
}

// What a browser of 2025 sends: GREASE (RFC 8701) as cipher, group, version, protocol-less
// extensions in front and at the end, an X25519MLKEM768 share of 1,216 bytes, ECH GREASE; more than
// one TCP segment.
inline std::string browser_message(const std::string& name) {
  Body body;
  std::string ciphers = u16(0x3a3a);
  for (const std::size_t cipher : {0x1301, 0x1302, 0x1303, 0xc02b, 0xc02f, 0xc02c, 0xc030, 0xcca9,
                                   0xcca8, 0xc013, 0xc014, 0x009c, 0x009d, 0x002f, 0x0035}) {
    ciphers += u16(cipher);
  }
  body.ciphers = vec16(ciphers);
  const std::string shares = u16(0x9a9a) + vec16(std::string(1, '\0')) + u16(0x11ec) +
                             vec16(std::string(1216, 'k')) + u16(0x001d) +
                             vec16(std::string(32, 'x'));
  const std::string ech = u8(0) + u16(1) + u16(1) + u8(0x5d) + vec16(std::string(32, 'e')) +
                          vec16(std::string(208, 'p'));
  body.extensions = vec16(
      extension(0x2a2a, "") + extension(0x0017, "") + extension(0xff01, u8(0)) +
      extension(0x0033, vec16(shares)) + extension(0x0012, "") + sni(name) +
      extension(0x000a, vec16(u16(0x9a9a) + u16(0x11ec) + u16(0x001d) + u16(0x0017))) +
      extension(0xfe0d, ech) + supported_versions({0x6a6a, 0x0304, 0x0303}) +
      extension(0x000d, vec16(u16(0x0403) + u16(0x0804) + u16(0x0401))) +
      extension(0x002d, vec8(u8(1))) + alpn({"h2", "http/1.1"}) + extension(0x001b, vec8(u16(2))) +
      extension(0x44cd, vec16(vec8("h2"))) + extension(0x0005, u8(1) + u16(0) + u16(0)) +
      extension(0x000b, vec8(u8(0))) + extension(0x0023, "") + extension(0xdada, u8(0)));
  return message(body.text());
}

}  // namespace causeway::test::tls
