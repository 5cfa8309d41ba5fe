// SPDX-License-Identifier: Apache-2.0
// Signals belong to the control thread: a thread that is made while this lives has all of them
// blocked, since it inherits the mask of that moment.
#pragma once

#include <pthread.h>

#include <csignal>

namespace causeway {

class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace causeway
