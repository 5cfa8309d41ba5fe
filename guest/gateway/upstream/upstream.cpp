// SPDX-License-Identifier: Apache-2.0
// Theory of operation: which upstream a connection goes to.
//
// Round robin keeps nothing but a turn. The upstreams lie side by side on a ring, each as long as
// its weight; turn n takes the place (n * stride) mod length. A stride without a factor in common
// with the length visits every place once a round, so the shares are exact over each round, and one
// near the golden section of the length spreads an upstream's places evenly over the round. What
// comes behind the first is drawn by weight, so that the load of an upstream that fails spreads
// over all the others.
//
// By load: (connections + 1) / weight, the load that this connection would make; equal ones take
// turns.
#include "guest/gateway/upstream/upstream.hpp"

#include <algorithm>
#include <numeric>

namespace causeway::gateway {

namespace {

struct Item {
  std::uint16_t index = 0;
  std::uint32_t weight = 1;
  std::uint32_t active = 0;
};

// At most kMax items, without allocation.
struct Items {
  std::array<Item, Candidates::kMax> storage;
  std::size_t count = 0;
  void add(const Item& item) { storage[count++] = item; }
  [[nodiscard]] std::span<Item> view() { return std::span(storage).first(count); }
};

// Vigna's splitmix64 finaliser: every bit of the input changes every bit of the output.
std::uint64_t mix(std::uint64_t value) {
  value += 0x9e37'79b9'7f4a'7c15U;
  value = (value ^ (value >> 30)) * 0xbf58'476d'1ce4'e5b9U;
  value = (value ^ (value >> 27)) * 0x94d0'49bb'1331'11ebU;
  return value ^ (value >> 31);
}

// Coprime to `length` and near its golden section. `length` - 1 is coprime, so the search ends.
std::uint64_t stride_for(std::uint64_t length) {
  std::uint64_t stride = std::max<std::uint64_t>(1, length * 618 / 1000);
  while (std::gcd(stride, length) != 1)
    ++stride;
  return stride;
}

// A ring is never empty; the static analyser does not know.
std::uint64_t on_ring(std::uint64_t value, std::uint64_t length) {
  return length == 0 ? 0 : value % length;
}

// The item at `place` of the ring.
std::size_t at_place(std::span<const Item> items, std::uint64_t place) {
  std::size_t at = 0;
  while (at + 1 < items.size() && place >= items[at].weight)
    place -= items[at++].weight;
  return at;
}

void by_turn(std::span<Item> items, std::uint64_t turn) {
  if (items.size() < 2) return;
  std::uint32_t divisor = 0;
  for (const Item& item : items)
    divisor = std::gcd(divisor, item.weight);
  std::uint64_t length = 0;
  for (Item& item : items) {
    item.weight /= std::max(divisor, 1U);
    length += item.weight;
  }
  std::uint64_t place = on_ring(on_ring(turn, length) * stride_for(length), length);
  for (std::size_t first = 0; first + 1 < items.size(); ++first) {
    const auto rest = items.subspan(first);
    std::swap(rest[0], rest[at_place(rest, place)]);
    length -= rest[0].weight;
    place = on_ring(mix(turn + (first << 56)), length);
  }
}

bool less_loaded(const Item& a, const Item& b) {
  return (std::uint64_t{a.active} + 1) * b.weight < (std::uint64_t{b.active} + 1) * a.weight;
}

// An insertion sort: stable, so that equal ones stay in turn, and std::stable_sort allocates.
void by_load(std::span<Item> items, std::uint64_t turn) {
  if (items.size() < 2) return;
  const auto first = static_cast<std::ptrdiff_t>(turn % items.size());
  std::rotate(items.begin(), items.begin() + first, items.end());
  for (std::size_t next = 1; next < items.size(); ++next) {
    for (std::size_t at = next; at > 0 && less_loaded(items[at], items[at - 1]); --at) {
      std::swap(items[at], items[at - 1]);
    }
  }
}

}  // namespace

void Upstream::note_connected() {
  connected.fetch_add(1, std::memory_order_relaxed);
  // Read first: the line is shared by all workers, and nearly always there is nothing to write.
  if (failures_.load(std::memory_order_relaxed) != 0) {
    failures_.store(0, std::memory_order_relaxed);
    paused_until_.store(0, std::memory_order_relaxed);
  }
}

void Upstream::note_failed(Clock::time_point now) {
  failed.fetch_add(1, std::memory_order_relaxed);
  const Clock::rep time = now.time_since_epoch().count();
  if (time < paused_until_.load(std::memory_order_relaxed)) return;
  const std::uint32_t failures = failures_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (failures < kPassiveFall) return;
  const std::uint32_t doublings = std::min(failures - kPassiveFall, 16U);
  const auto pause = std::min(kPassivePause * (1U << doublings), kPassiveMaxPause);
  paused_until_.store(time + Clock::duration(pause).count(), std::memory_order_relaxed);
}

bool Upstream::available(Clock::time_point now) const {
  return checked_up() &&
         now.time_since_epoch().count() >= paused_until_.load(std::memory_order_relaxed);
}

Candidates choose(Choice choice, std::span<const UpstreamView> upstreams, RoundRobin& turn,
                  Upstream::Clock::time_point now) {
  const std::uint64_t number = turn.turn++;
  const std::size_t size = upstreams.size();
  // The window and the turn within it must not go round together.
  const bool window = size > Candidates::kMax;
  const std::size_t from = window ? number % size : 0;
  const std::uint64_t inner = window ? mix(number) : number;
  Items good;
  Items bad;  // not available: better than nobody
  bool at_limit = false;
  for (std::size_t step = 0; step < size; ++step) {
    const std::size_t index = from + step < size ? from + step : from + step - size;
    const UpstreamView& view = upstreams[index];
    if (view.config.drain || view.targets.empty()) continue;
    const std::uint32_t active = view.state->active.get();
    if (view.config.max_connections != 0 && active >= view.config.max_connections) {
      at_limit = true;
      continue;
    }
    Items& kind = view.state->available(now) ? good : bad;
    if (kind.count == Candidates::kMax) continue;
    kind.add({static_cast<std::uint16_t>(index), std::max(view.config.weight, 1U), active});
  }
  Candidates result;
  for (Items* kind : {&good, &bad}) {
    if (choice == Choice::round_robin) {
      by_turn(kind->view(), inner);
    } else {
      by_load(kind->view(), inner);
    }
    for (const Item& item : kind->view()) {
      if (result.count < Candidates::kMax) result.index[result.count++] = item.index;
    }
  }
  if (at_limit) result.reason = Candidates::None::upstream_limit;
  return result;
}

}  // namespace causeway::gateway
