// SPDX-License-Identifier: Apache-2.0
#include "common/log.hpp"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

namespace causeway::log {

namespace {

// The journal's priority of a level (sd-daemon(3)): 7 debug, 6 info, 4 warning, 3 error.
class Priority final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm& /*time*/,
              spdlog::memory_buf_t& out) override {
    const char* text = "<6>";
    if (message.level >= spdlog::level::err) {
      text = "<3>";
    } else if (message.level == spdlog::level::warn) {
      text = "<4>";
    } else if (message.level <= spdlog::level::debug) {
      text = "<7>";
    }
    out.append(text, text + 3);
  }
  [[nodiscard]] std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<Priority>();
  }
};

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::debug:
      return spdlog::level::debug;
    case Level::warning:
      return spdlog::level::warn;
    case Level::error:
      return spdlog::level::err;
    case Level::info:
      break;
  }
  return spdlog::level::info;
}

}  // namespace

bool LogBudget::take() {
  const auto now = std::chrono::steady_clock::now();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - refilled_).count();
  if (seconds > 0) {
    left_ = static_cast<unsigned>(std::min<std::int64_t>(kBurst, left_ + seconds));
    refilled_ = now;
  }
  if (left_ == 0) {
    ++suppressed_;
    return false;
  }
  --left_;
  return true;
}

std::string LogBudget::suppressed_text() {
  if (suppressed_ == 0) {
    return {};
  }
  return " (" + std::to_string(std::exchange(suppressed_, 0)) + " lines like this left out)";
}

void init(const char* program, Level level) {
  auto logger = spdlog::stderr_logger_mt(program);
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  const bool journal = std::getenv("JOURNAL_STREAM") != nullptr;
  if (journal) {
    formatter->add_flag<Priority>('*').set_pattern("%*%v");
  } else {
    formatter->set_pattern("%Y-%m-%dT%H:%M:%S.%e %n %l: %v");
  }
  logger->set_formatter(std::move(formatter));
  logger->set_level(to_spdlog(level));
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace causeway::log
