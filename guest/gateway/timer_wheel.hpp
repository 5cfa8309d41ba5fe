// SPDX-License-Identifier: Apache-2.0
// Theory of operation: deadlines of many connections, coarse and cheap.
//
// Time is in milliseconds of the caller's clock, in ticks of kTick. A deadline lies in the slot of
// its tick; one that is more than a turn of the wheel away stays there while the wheel comes by.
// Arming and cancelling are a few stores, no memory is allocated, and nothing has to be armed for a
// single read or write: a connection has one timer, re-armed when its phase changes or when it
// fires. A timer fires at its deadline or up to kTick later, never earlier.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace causeway::gateway {

class TimerWheel {
 public:
  static constexpr std::uint64_t kTick = 64;  // milliseconds
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};

  // A link in a slot's ring. Its owner derives from it.
  struct Timer {
    Timer* next = nullptr;  // null: not armed
    Timer* previous = nullptr;
    std::uint64_t due = 0;  // ticks
    [[nodiscard]] bool armed() const { return next != nullptr; }
  };

  explicit TimerWheel(std::uint64_t now) : done_(now / kTick) {
    for (Timer& slot : slots_)
      slot.next = slot.previous = &slot;
  }
  TimerWheel(const TimerWheel&) = delete;
  TimerWheel& operator=(const TimerWheel&) = delete;

  // Re-arms a timer that is armed. kNever: cancels.
  void arm(Timer& timer, std::uint64_t deadline) {
    cancel(timer);
    if (deadline == kNever) return;
    timer.due = (deadline + kTick - 1) / kTick;
    if (timer.due <= done_) timer.due = done_ + 1;
    Timer& slot = slots_[timer.due % kSlots];
    timer.next = &slot;
    timer.previous = slot.previous;
    slot.previous->next = &timer;
    slot.previous = &timer;
    mark(timer.due % kSlots);
  }

  static void cancel(Timer& timer) {
    if (!timer.armed()) return;
    timer.previous->next = timer.next;
    timer.next->previous = timer.previous;
    timer.next = timer.previous = nullptr;
  }

  // Calls fire(timer) for each that is due, no longer armed by then; it may arm and cancel any.
  template <class Fire>
  void expire(std::uint64_t now, Fire&& fire) {
    const std::uint64_t tick = now / kTick;
    // After a long sleep once around is enough: every slot is looked at.
    if (tick > done_ + kSlots) done_ = tick - kSlots;
    while (done_ < tick) {
      ++done_;
      Timer& slot = slots_[done_ % kSlots];
      // What is due goes into a ring of its own first, so that fire() may change the slot.
      Timer due;
      due.next = due.previous = &due;
      for (Timer* timer = slot.next; timer != &slot;) {
        Timer* const next = timer->next;
        if (timer->due <= tick) {
          cancel(*timer);
          timer->next = &due;
          timer->previous = due.previous;
          due.previous->next = timer;
          due.previous = timer;
        }
        timer = next;
      }
      if (slot.next == &slot) clear(done_ % kSlots);
      while (due.next != &due) {
        Timer& timer = *due.next;
        cancel(timer);
        fire(timer);
      }
    }
  }

  // How long to sleep, milliseconds; -1: nothing is armed. May be too short, never too long.
  [[nodiscard]] int wait(std::uint64_t now) const {
    for (std::size_t ahead = 1; ahead <= kSlots;) {
      const std::size_t slot = (done_ + ahead) % kSlots;
      const std::uint64_t word = marks_[slot / 64] >> (slot % 64);
      if (word == 0) {
        ahead += 64 - slot % 64;
        continue;
      }
      ahead += static_cast<std::size_t>(std::countr_zero(word));
      const std::uint64_t at = (done_ + ahead) * kTick;
      return at <= now ? 0 : static_cast<int>(at - now);
    }
    return -1;
  }

 private:
  static constexpr std::size_t kSlots = 512;  // a turn takes 32 s
  void mark(std::size_t slot) { marks_[slot / 64] |= std::uint64_t{1} << (slot % 64); }
  void clear(std::size_t slot) { marks_[slot / 64] &= ~(std::uint64_t{1} << (slot % 64)); }

  std::uint64_t done_;  // the last tick that was looked at
  std::array<Timer, kSlots> slots_;
  // Slots that may have a timer: a cancelled one leaves its mark until the wheel comes by.
  std::array<std::uint64_t, kSlots / 64> marks_{};
};

}  // namespace causeway::gateway
