// SPDX-License-Identifier: Apache-2.0
// The main process's side of the broker (broker.hpp). Each call is one exchange of a few
// milliseconds on the control thread; lanes and published streams do not wait for it.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/bridge/tap.hpp"
#include "common/os/channel.hpp"
#include "common/os/unique_fd.hpp"
#include "common/result.hpp"

namespace causeway::host {

struct OpenedGuest {
  bridge::Tap tap;
  std::optional<UniqueFd> listener;
  std::uint32_t number = 0;  // of accept_unknown; 0: a named guest
};

class BrokerClient {
 public:
  explicit BrokerClient(Channel channel) : channel_(std::move(channel)) {}

  Result<UniqueFd> admin();
  Result<UniqueFd> listen();
  Result<OpenedGuest> open(const std::string& name);
  Result<OpenedGuest> open_unknown(std::uint32_t cid);
  Result<std::vector<UniqueFd>> publish(const std::string& name, std::size_t index);
  void release(const std::string& name);
  Result<void> rules();
  // The text of the configuration file, which the broker has read, checked and taken over.
  Result<std::string> reload();
  void goodbye();

  // Readable (at its end) when the broker is gone.
  [[nodiscard]] int fd() const { return channel_.fd(); }

 private:
  struct Reply;
  Result<Reply> call(const nlohmann::ordered_json& request);
  Result<OpenedGuest> opened(Result<Reply> reply);
  Channel channel_;
};

}  // namespace causeway::host
