// SPDX-License-Identifier: Apache-2.0
#include "guest/gateway/upstream/upstream.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

namespace causeway::gateway {
namespace {

using namespace std::chrono_literals;
using Clock = Upstream::Clock;

struct Pool {
  explicit Pool(const std::vector<std::uint32_t>& weights) {
    for (const std::uint32_t weight : weights) {
      UpstreamView view;
      view.config.weight = weight;
      view.state = std::make_shared<Upstream>("u" + std::to_string(views.size()));
      view.targets.resize(1);
      views.push_back(view);
    }
  }
  Candidates choose(Choice choice) { return gateway::choose(choice, views, turn, now); }
  std::vector<int> order(Choice choice) {
    const Candidates found = choose(choice);
    return {found.index.begin(), found.index.begin() + static_cast<std::ptrdiff_t>(found.count)};
  }
  void set_active(std::size_t index, unsigned count) {
    while (views[index].state->active.get() > count)
      views[index].state->active.give_back();
    while (views[index].state->active.get() < count)
      views[index].state->active.take(0);
  }
  void pause(std::size_t index) {
    for (unsigned i = 0; i < Upstream::kPassiveFall; ++i)
      views[index].state->note_failed(now);
  }
  std::vector<UpstreamView> views;
  RoundRobin turn;
  Clock::time_point now = Clock::now();
};

bool is_permutation(std::vector<int> order, int size) {
  std::sort(order.begin(), order.end());
  std::vector<int> all(static_cast<std::size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  return order == all;
}

TEST_CASE("round robin gives each upstream its exact share of every round") {
  const std::vector<std::vector<std::uint32_t>> cases{
      {1},           {1, 1},
      {1, 1, 1},     {100, 100, 100},
      {1, 2, 5},     {256, 1},
      {256, 255, 1}, {3, 3, 1, 7, 256},
      {4, 6},        std::vector<std::uint32_t>(16, 256),
      {2, 3, 5, 7},  {1, 1, 1, 1}};
  for (const auto& weights : cases) {
    CAPTURE(weights.size());
    CAPTURE(weights[0]);
    Pool pool(weights);
    std::uint32_t divisor = 0;
    for (const auto weight : weights)
      divisor = std::gcd(divisor, weight);
    const std::uint32_t round = std::accumulate(weights.begin(), weights.end(), 0U) / divisor;
    pool.turn.turn = 12'345;
    std::vector<std::uint64_t> picks(weights.size());
    const std::uint64_t total = 10'000;
    for (std::uint64_t i = 0; i < total; ++i) {
      const auto order = pool.order(Choice::round_robin);
      REQUIRE(is_permutation(order, static_cast<int>(weights.size())));
      ++picks[static_cast<std::size_t>(order[0])];
      if ((i + 1) % round == 0) {
        for (std::size_t k = 0; k < weights.size(); ++k) {
          REQUIRE(picks[k] == (i + 1) / round * (weights[k] / divisor));
        }
      }
    }
    for (std::size_t k = 0; k < weights.size(); ++k) {
      const double share = static_cast<double>(total) * weights[k] / divisor / round;
      CHECK(std::abs(static_cast<double>(picks[k]) - share) <= weights[k] / divisor);
    }
  }
}

TEST_CASE("round robin is smooth: nobody's turns come in one go") {
  Pool pool({10, 10});
  std::vector<int> firsts;
  for (int i = 0; i < 100; ++i)
    firsts.push_back(pool.order(Choice::round_robin)[0]);
  for (std::size_t i = 1; i < firsts.size(); ++i)
    CHECK(firsts[i] != firsts[i - 1]);

  Pool mixed({251, 127, 61});
  std::vector<std::size_t> seen[3];
  for (std::size_t i = 0; i < 10'000; ++i) {
    seen[mixed.order(Choice::round_robin)[0]].push_back(i);
  }
  const std::size_t ideal[3] = {439 / 251 + 1, 439 / 127 + 1, 439 / 61 + 1};
  for (std::size_t k = 0; k < 3; ++k) {
    for (std::size_t i = 1; i < seen[k].size(); ++i) {
      REQUIRE(seen[k][i] - seen[k][i - 1] <= 2 * ideal[k]);
    }
  }
}

TEST_CASE("what a failing upstream would have had spreads over the others by weight") {
  Pool pool({1, 1, 2, 4});
  std::map<int, int> second;
  for (int i = 0; i < 8000; ++i) {
    const auto order = pool.order(Choice::round_robin);
    if (order[0] == 0) ++second[order[1]];
  }
  // 1000 picks of the first: 1/7, 2/7 and 4/7 of them go to the others.
  CHECK(second[1] > 100);
  CHECK(second[1] < 190);
  CHECK(second[2] > 230);
  CHECK(second[2] < 340);
  CHECK(second[3] > 510);
  CHECK(second[3] < 630);
}

TEST_CASE("by load: the fewest connections for the weight, this one included") {
  for (const Choice choice : {Choice::least_connections, Choice::race}) {
    Pool pool({1, 1, 1});
    pool.set_active(0, 5);
    pool.set_active(1, 3);
    pool.set_active(2, 4);
    CHECK(pool.order(choice) == std::vector<int>{1, 2, 0});
    Pool weighted({1, 10});
    weighted.set_active(1, 8);  // 9/10 < 1/1
    CHECK(weighted.order(choice) == std::vector<int>{1, 0});
    weighted.set_active(1, 10);  // 11/10 > 1/1
    CHECK(weighted.order(choice) == std::vector<int>{0, 1});
  }
}

TEST_CASE("by load: equal ones take turns, and loads follow the weights") {
  Pool pool({1, 1, 1, 1});
  std::vector<int> picks(4);
  for (int i = 0; i < 10'000; ++i) {
    ++picks[static_cast<std::size_t>(pool.order(Choice::least_connections)[0])];
  }
  for (const int count : picks)
    CHECK(count == 2500);

  Pool weighted({1, 2, 5});
  for (int i = 0; i < 8000; ++i) {
    const auto first = static_cast<std::size_t>(weighted.order(Choice::least_connections)[0]);
    weighted.views[first].state->active.take(0);
  }
  CHECK(weighted.views[0].state->active.get() == 1000);
  CHECK(weighted.views[1].state->active.get() == 2000);
  CHECK(weighted.views[2].state->active.get() == 5000);
}

TEST_CASE("drained, full and unresolved upstreams are never candidates") {
  for (const Choice choice : {Choice::round_robin, Choice::least_connections, Choice::race}) {
    Pool pool({1, 1, 1, 1});
    pool.views[0].config.drain = true;
    pool.views[1].targets.clear();
    pool.views[2].config.max_connections = 2;
    pool.set_active(2, 2);
    for (int i = 0; i < 8; ++i)
      CHECK(pool.order(choice) == std::vector<int>{3});
    pool.set_active(2, 1);
    CHECK(is_permutation(pool.order(choice), 4) == false);
    CHECK(pool.order(choice).size() == 2);
  }
}

TEST_CASE("why there is no candidate") {
  Pool pool({1, 1});
  pool.views[0].config.drain = true;
  pool.views[1].targets.clear();
  Candidates none = pool.choose(Choice::race);
  CHECK(none.count == 0);
  CHECK(none.reason == Candidates::None::no_upstream);
  pool.views[1].targets.resize(1);
  pool.views[1].config.max_connections = 1;
  pool.set_active(1, 1);
  none = pool.choose(Choice::round_robin);
  CHECK(none.count == 0);
  CHECK(none.reason == Candidates::None::upstream_limit);
  // A drained one at its limit is no matter of limits.
  pool.views[1].config.drain = true;
  CHECK(pool.choose(Choice::round_robin).reason == Candidates::None::no_upstream);
  Pool nobody({});
  CHECK(nobody.choose(Choice::race).count == 0);
}

TEST_CASE("unavailable upstreams come last, and are still tried when nothing else is left") {
  for (const Choice choice : {Choice::round_robin, Choice::least_connections, Choice::race}) {
    Pool pool({1, 1, 1});
    pool.views[0].state->set_up(false);
    pool.pause(1);
    pool.set_active(2, 50);
    for (int i = 0; i < 6; ++i) {
      const auto order = pool.order(choice);
      CHECK(order.size() == 3);
      CHECK(order[0] == 2);
    }
    pool.views[2].state->set_up(false);
    std::vector<int> firsts(3);
    for (int i = 0; i < 300; ++i)
      ++firsts[static_cast<std::size_t>(pool.order(choice)[0])];
    if (choice == Choice::round_robin) CHECK(firsts == std::vector<int>{100, 100, 100});
    CHECK(pool.order(choice).size() == 3);
  }
}

TEST_CASE("more upstreams than candidates: everyone has a share") {
  Pool pool(std::vector<std::uint32_t>(40, 1));
  for (const Choice choice : {Choice::round_robin, Choice::least_connections}) {
    std::vector<int> seen(40);
    for (int i = 0; i < 4000; ++i) {
      const auto order = pool.order(choice);
      REQUIRE(order.size() == Candidates::kMax);
      ++seen[static_cast<std::size_t>(order[0])];
    }
    CHECK(*std::min_element(seen.begin(), seen.end()) > 40);
    CHECK(*std::max_element(seen.begin(), seen.end()) < 250);
  }
}

TEST_CASE("passive health: a pause after failures in a row") {
  Upstream upstream("u");
  auto now = Clock::now();
  const auto fail = [&] { upstream.note_failed(now); };
  fail();
  fail();
  CHECK(upstream.available(now));
  upstream.note_connected();  // not in a row any more
  fail();
  fail();
  CHECK(upstream.available(now));
  fail();
  CHECK_FALSE(upstream.available(now));
  CHECK_FALSE(upstream.available(now + Upstream::kPassivePause - 1ms));
  CHECK(upstream.available(now + Upstream::kPassivePause));
  // Connects that had begun before do not make the pause longer.
  for (int i = 0; i < 100; ++i)
    fail();
  CHECK(upstream.available(now + Upstream::kPassivePause));
  // Each failure after a pause doubles it.
  auto pause = Upstream::kPassivePause;
  for (int i = 0; i < 20; ++i) {
    now += pause;
    CHECK(upstream.available(now));
    fail();
    pause = std::min(pause * 2, Upstream::kPassiveMaxPause);
    CHECK_FALSE(upstream.available(now + pause - 1ms));
    CHECK(upstream.available(now + pause));
  }
  upstream.note_connected();
  CHECK(upstream.available(now));
  fail();
  fail();
  CHECK(upstream.available(now));
  CHECK(upstream.connected == 2);
  CHECK(upstream.failed == 2 + 3 + 100 + 20 + 2);
  // By the active checks.
  upstream.set_up(false);
  CHECK_FALSE(upstream.available(now));
  upstream.set_up(true);
  CHECK(upstream.available(now));
}

TEST_CASE("many threads choose and count at once") {
  Pool pool({1, 2, 3});
  pool.views[2].config.max_connections = 7;
  std::vector<std::thread> threads;
  std::atomic<bool> over{false};
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      RoundRobin turn{t};
      for (int i = 0; i < 5000; ++i) {
        const auto now = Clock::now();
        const auto found =
            choose(i % 2 != 0 ? Choice::race : Choice::round_robin, pool.views, turn, now);
        for (std::size_t k = 0; k < found.count; ++k) {
          const UpstreamView& view = pool.views[found.index[k]];
          if (!view.state->active.take(view.config.max_connections)) continue;
          if (view.state->active.get() > 7 && found.index[k] == 2) over = true;
          if (i % 3 == 0) view.state->note_failed(now);
          if (i % 3 != 0) view.state->note_connected();
          view.state->active.give_back();
          break;
        }
      }
    });
  }
  for (auto& thread : threads)
    thread.join();
  CHECK_FALSE(over);
  std::uint64_t sum = 0;
  for (const auto& view : pool.views) {
    CHECK(view.state->active.get() == 0);
    sum += view.state->connected + view.state->failed;
  }
  CHECK(sum == 20'000);
}

}  // namespace
}  // namespace causeway::gateway
