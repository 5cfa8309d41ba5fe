// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "guest/gateway/timer_wheel.hpp"

namespace {

using causeway::gateway::TimerWheel;
using Timer = TimerWheel::Timer;

std::vector<Timer*> fired_at(TimerWheel& wheel, std::uint64_t now) {
  std::vector<Timer*> fired;
  wheel.expire(now, [&](Timer& timer) { fired.push_back(&timer); });
  return fired;
}

TEST_CASE("a timer fires at its deadline or within a tick after it, once") {
  for (const std::uint64_t span : {0U, 1U, 63U, 64U, 65U, 1000U, 32'767U, 32'768U, 600'000U}) {
    CAPTURE(span);
    constexpr std::uint64_t kStart = 1'000'003;
    TimerWheel wheel(kStart);
    Timer timer;
    wheel.arm(timer, kStart + span);
    std::uint64_t now = kStart;
    while (timer.armed()) {
      const int wait = wheel.wait(now);
      REQUIRE(wait >= 0);
      now += static_cast<std::uint64_t>(std::max(wait, 1));
      const auto fired = fired_at(wheel, now);
      CHECK(fired.size() == (timer.armed() ? 0 : 1));
      REQUIRE(now <= kStart + span + 2 * TimerWheel::kTick);
    }
    CHECK(now >= kStart + span);
    CHECK(fired_at(wheel, now + 100'000).empty());
    CHECK(wheel.wait(now + 100'000) == -1);
  }
}

TEST_CASE("many timers, in any order, with sleeps of any length") {
  std::mt19937 random(7);
  const auto below = [&](std::uint64_t limit) { return random() % limit; };
  std::uint64_t now = 5'000'000;
  TimerWheel wheel(now);
  std::vector<std::unique_ptr<Timer>> timers;
  std::vector<std::uint64_t> deadline(1000, TimerWheel::kNever);
  for (std::size_t i = 0; i < deadline.size(); ++i)
    timers.push_back(std::make_unique<Timer>());
  for (int round = 0; round < 3000; ++round) {
    for (int k = 0; k < 5; ++k) {
      const std::size_t i = below(timers.size());
      if (below(4) == 0) {
        TimerWheel::cancel(*timers[i]);
        deadline[i] = TimerWheel::kNever;
      } else {
        deadline[i] = now + below(below(2) == 0 ? 2000 : 90'000);
        wheel.arm(*timers[i], deadline[i]);
      }
    }
    now += below(20) == 0 ? below(100'000) : below(200);
    wheel.expire(now, [&](Timer& timer) {
      const auto at = std::find_if(timers.begin(), timers.end(),
                                   [&](const auto& one) { return one.get() == &timer; });
      const auto i = static_cast<std::size_t>(at - timers.begin());
      CHECK(deadline[i] <= now);
      deadline[i] = TimerWheel::kNever;
    });
    for (std::size_t i = 0; i < timers.size(); ++i) {
      const bool late = deadline[i] != TimerWheel::kNever && deadline[i] + TimerWheel::kTick < now;
      REQUIRE_FALSE(late);
      REQUIRE(timers[i]->armed() == (deadline[i] != TimerWheel::kNever));
    }
  }
  for (const auto& timer : timers)
    TimerWheel::cancel(*timer);
}

TEST_CASE("a timer that fires may arm itself, and cancel another that is due") {
  TimerWheel wheel(0);
  Timer a;
  Timer b;
  wheel.arm(a, 100);
  wheel.arm(b, 100);
  int fired = 0;
  wheel.expire(200, [&](Timer& timer) {
    ++fired;
    TimerWheel::cancel(&timer == &a ? b : a);
    wheel.arm(timer, 300);
  });
  CHECK(fired == 1);
  CHECK(a.armed() != b.armed());
  CHECK(fired_at(wheel, 400).size() == 1);
}

}  // namespace
