// SPDX-License-Identifier: Apache-2.0
// causewayctl: asks a running program over its admin socket.
#include <httplib.h>
#include <sys/socket.h>

#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>

#include "common/config/option_table.hpp"
#include "common/version.hpp"

namespace {

using Json = nlohmann::ordered_json;

constexpr int kExitFailure = 1;
constexpr time_t kTimeoutSeconds = 5;

struct Config {
  std::string socket = "/run/causeway/admin.sock";
  std::string command;
  bool json = false;
};

std::string scalar(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// One "path value" line for each leaf: fit for reading and for grep.
void print_flat(const Json& value, const std::string& path) {
  if (value.is_object() || (value.is_array() && !value.empty() && value.front().is_object())) {
    for (const auto& [key, item] : value.items()) {
      print_flat(item, path.empty() ? key : std::string(path).append(".").append(key));
    }
    return;
  }
  std::printf("%-40s %s\n", path.c_str(), scalar(value).c_str());
}

int status(const Config& config) {
  httplib::Client client(config.socket, 1);
  client.set_address_family(AF_UNIX);
  client.set_connection_timeout(kTimeoutSeconds);
  client.set_read_timeout(kTimeoutSeconds);
  const auto answer = client.Get("/status");
  if (!answer || answer->status != 200) {
    std::fprintf(stderr, "causewayctl: %s: %s\n", config.socket.c_str(),
                 answer ? ("HTTP status " + std::to_string(answer->status)).c_str()
                        : "no answer: is the program running with --admin?");
    return kExitFailure;
  }
  if (config.json) {
    std::fputs(answer->body.c_str(), stdout);
    return 0;
  }
  auto document = Json::parse(answer->body, nullptr, false);
  if (document.is_discarded()) {
    std::fprintf(stderr, "causewayctl: %s: the answer is not JSON\n", config.socket.c_str());
    return kExitFailure;
  }
  // A lone guest stands at the top level already.
  if (const auto guests = document.find("guests");
      guests != document.end() && guests->size() == 1 && document.contains("tap")) {
    document.erase(guests);
  }
  print_flat(document, "");
  return 0;
}

int run(int argc, const char* const* argv) {
  using namespace causeway;
  Config config;
  OptionTable table("causewayctl", "Asks a running causeway program over its admin socket.",
                    std::string("causewayctl ") + kVersion + " (commit " + kCommit + ")");
  table.without_config_file();
  table.add("socket", config.socket, {.value = "PATH", .doc = "The admin socket's path."});
  table.add("json", config.json, {.doc = "Print the answer as it came."});
  table.add("command", config.command,
            {.value = "COMMAND",
             .doc = "status: what is known and counted.",
             .required = true,
             .positional = true,
             .check = [](std::string_view text) -> Result<void> {
               return text == "status" ? Result<void>{}
                                       : Result<void>{Error{"unknown command; there is: status"}};
             }});
  const auto outcome = table.parse(argc, argv);
  if (outcome.exit_code) {
    return *outcome.exit_code;
  }
  return status(config);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "causewayctl: %s\n", error.what());
    return kExitFailure;
  }
}
