// SPDX-License-Identifier: Apache-2.0
// Configurations of the gateway for tests, as texts.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "guest/gateway/config.hpp"

namespace causeway::gateway::test {

using Texts = std::vector<std::string>;

// The table as the program has it.
struct Program {
  GatewayConfig config;
  OptionTable table{"causeway-gateway", "Relays TLS by name.", "causeway-gateway 1"};
  Program() { add_gateway_options(table, config); }
};

inline std::string refusal(const std::string& text) {
  Program program;
  const auto outcome = program.table.evaluate_text(text, "f.json");
  return outcome.exit_code ? outcome.err : std::string();
}

inline GatewayConfig accepted(const std::string& text) {
  Program program;
  const auto outcome = program.table.evaluate_text(text, "f.json");
  REQUIRE_MESSAGE(!outcome.exit_code, outcome.err);
  return program.config;
}

// A route with one upstream; `rest` begins with a comma.
inline std::string route(const std::string& names, const std::string& rest = "") {
  return R"({"names": [)" + names + R"(], "upstreams": [{"address": "tcp:u:1"}])" + rest + "}";
}

// Each of `lines` stands on a line of its own, the first on line 2.
inline std::string file(const Texts& lines) {
  std::string text = "{\"listen\": \"tcp:0.0.0.0:443\"";
  for (const std::string& line : lines) {
    text += ",\n" + line;
  }
  return text + "}";
}

inline std::string routes(const Texts& list) {
  std::string text;
  for (const std::string& each : list) {
    text += (text.empty() ? "\"routes\": [" : ",\n") + each;
  }
  return file({text + "]"});
}

inline std::string applications(const std::string& list, const std::string& more = "") {
  return file(
      {R"("base_domains": [{"name": "apps.example", "applications": [)" + list + "]}]" + more});
}

// "f.json:2:14: " for an @ there, which is taken out.
inline std::string take_place(std::string& text) {
  const std::size_t at = text.find('@');
  if (at == std::string::npos) return {};
  text.erase(at, 1);
  std::size_t line = 1;
  std::size_t column = 1;
  for (std::size_t i = 0; i < at; ++i) {
    column = text[i] == '\n' ? 1 : column + 1;
    if (text[i] == '\n') ++line;
  }
  return "f.json:" + std::to_string(line) + ":" + std::to_string(column) + ": ";
}

}  // namespace causeway::gateway::test
