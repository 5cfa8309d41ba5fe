// SPDX-License-Identifier: Apache-2.0
// Theory of operation: from the TLS terms of a configuration, and the files that they name, to what
// the workers use.
//
// load() reads every file and makes one immutable TlsSnapshot, or says what is wrong with the first
// bad one: a reload takes all of it or nothing. Routes with the same terms share a profile, so that
// a worker has one configuration of mbedTLS for them.
//
// FileWatch notices that one of those files is another one than when it was last looked at. It
// looks at what a path leads to now, so a file that was replaced by a rename, and a symbolic link
// that points elsewhere, count as well, on any file system; inotify would have to follow each link
// on the way. What was written in part is taken or refused as it is, and looked at again when the
// rest has come.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/result.hpp"
#include "guest/gateway/config.hpp"
#include "guest/gateway/snapshot.hpp"

namespace causeway::gateway {

// `config` has passed the checks. Routes as effective_routes() has them.
Result<std::shared_ptr<const TlsSnapshot>> load_tls(const GatewayConfig& config);

// Every file that load_tls() and the ticket keys come from, each once.
std::vector<std::string> tls_files(const GatewayConfig& config);

class FileWatch {
 public:
  // From now on these, as they are now.
  void watch(std::vector<std::string> paths);
  // Whether any has changed since the last call. A file that is gone has changed, once.
  bool changed();
  [[nodiscard]] bool empty() const { return files_.empty(); }

 private:
  struct State {
    bool there = false;
    dev_t device = 0;
    ino_t inode = 0;
    off_t size = 0;
    std::int64_t written = 0;   // ns
    std::int64_t modified = 0;  // ns, of the inode: chmod and chown too
    friend bool operator==(const State&, const State&) = default;
  };
  struct File {
    std::string path;
    State state;
  };
  static State look(const std::string& path);
  std::vector<File> files_;
};

}  // namespace causeway::gateway
