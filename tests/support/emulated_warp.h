// EmulatedWarp: runs code that is written over a Warp (kernels/device_code.h) on the host.
//
//   EmulatedWarp warp(seed);
//   std::string fault = warp.Run([&](const EmulatedWarp::Lane& lane) { RouteRow(lane, ...); });
//
// The 32 lanes are fibers of the calling thread. One runs at a time, until it comes to a collective
// or to its end; then the next. When all have come to the collective, each gets its result and goes
// on. Between two collectives lanes run in an order that is drawn anew from the seed, so what must
// not depend on the order is seen to. Run ends with a fault, in words, when lanes come to different
// collectives, or some to one and others to their end: on a device that is undefined. Memory is the
// host's: sanitizers and guard pages see every access of every lane.
//
// What lanes have to themselves is what the body declares; what they share is what it captures. A
// faulty Run leaves its lanes where they stand: nothing that they own is destroyed.
#ifndef WAYMARK_TESTS_SUPPORT_EMULATED_WARP_H_
#define WAYMARK_TESTS_SUPPORT_EMULATED_WARP_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>

#include "kernels/device_code.h"
#include "tests/support/fiber.h"

namespace waymark::kernels {

class EmulatedWarp {
 public:
  // What a lane sees: a Warp, as kernels/device_code.h says.
  class Lane {
   public:
    [[nodiscard]] int lane() const { return lane_; }
    std::uint32_t Max(std::uint32_t value) const { return Call(kMax, value); }
    std::uint32_t Min(std::uint32_t value) const { return Call(kMin, value); }
    std::uint32_t Ballot(bool value) const { return Call(kBallot, value); }
    std::uint32_t Match(std::uint32_t value) const { return Call(kMatch, value); }
    template <class T>
    T Shuffle(T value, int from) const {
      return std::bit_cast<T>(Call(kShuffle, std::bit_cast<std::uint32_t>(value), from));
    }
    template <class T>
    T ShuffleXor(T value, int mask) const {
      return std::bit_cast<T>(Call(kShuffleXor, std::bit_cast<std::uint32_t>(value), mask));
    }

   private:
    friend class EmulatedWarp;
    enum Collective { kMax, kMin, kBallot, kMatch, kShuffle, kShuffleXor, kEnd };

    std::uint32_t Call(Collective collective, std::uint32_t value, int operand = 0) const {
      return warp_->Arrive(lane_, collective, value, operand);
    }

    EmulatedWarp* warp_ = nullptr;
    int lane_ = 0;
  };

  explicit EmulatedWarp(std::uint64_t seed, std::size_t stack_bytes = std::size_t{256} << 10)
      : random_(seed), stack_bytes_(stack_bytes) {
    std::iota(order_.begin(), order_.end(), 0);
    for (int l = 0; l < kWarpLanes; ++l) {
      lanes_[At(l)].warp_ = this;
      lanes_[At(l)].lane_ = l;
    }
  }
  EmulatedWarp(const EmulatedWarp&) = delete;
  EmulatedWarp& operator=(const EmulatedWarp&) = delete;

  // Runs `body` on every lane to its end. Returns "", or what went wrong.
  std::string Run(std::function<void(const Lane&)> body) {
    body_ = std::move(body);
    fault_.clear();
    if (fibers_[0] == nullptr) {
      for (auto& fiber : fibers_)
        fiber = std::make_unique<Fiber>(stack_bytes_, &EmulatedWarp::Entry);
    }
    Current() = this;
    StartRound();
    Fiber::Switch(thread_, NextFiber());
    if (!fault_.empty()) fibers_ = {};  // they stand somewhere in the middle
    return fault_;
  }

 private:
  static std::size_t At(int lane) { return static_cast<std::size_t>(lane); }
  static EmulatedWarp*& Current() {
    static thread_local EmulatedWarp* current = nullptr;
    return current;
  }

  // What every fiber runs: the body of one Run after the other.
  static void Entry() {
    EmulatedWarp& warp = *Current();
    const int lane = warp.running_;
    warp.fibers_[At(lane)]->Arrived();
    for (;;) {
      warp.body_(warp.lanes_[At(lane)]);
      warp.Arrive(lane, Lane::kEnd, 0, 0);
    }
  }

  void StartRound() {
    std::shuffle(order_.begin(), order_.end(), random_);
    arrived_ = 0;
  }
  Fiber& NextFiber() {
    running_ = order_[arrived_];
    return *fibers_[At(running_)];
  }

  // Called on the lane's fiber; returns its result when all lanes have come.
  std::uint32_t Arrive(int lane, Lane::Collective collective, std::uint32_t value, int operand) {
    calls_[At(lane)] = {collective, value, operand};
    ++arrived_;
    Fiber* next = &thread_;
    if (arrived_ < kWarpLanes) {
      next = &NextFiber();
    } else if (!Finish()) {
      StartRound();
      next = &NextFiber();
    }
    if (next != fibers_[At(lane)].get()) Fiber::Switch(*fibers_[At(lane)], *next);
    return results_[At(lane)];
  }

  // All lanes have come: their results. True when the run is over.
  bool Finish() {
    const Lane::Collective collective = calls_[0].collective;
    for (int l = 0; l < kWarpLanes; ++l) {
      if (calls_[At(l)].collective == collective) continue;
      fault_ = std::string("lane 0 is at ") + Name(collective) + ", lane " + std::to_string(l) +
               " at " + Name(calls_[At(l)].collective);
      return true;
    }
    for (int l = 0; l < kWarpLanes; ++l)
      results_[At(l)] = Result(collective, l);
    return collective == Lane::kEnd || !fault_.empty();
  }

  std::uint32_t Result(Lane::Collective collective, int lane) {
    const Call& mine = calls_[At(lane)];
    std::uint32_t result = collective == Lane::kMin ? ~0u : 0;
    switch (collective) {
      case Lane::kMax:
        for (const Call& call : calls_)
          result = std::max(result, call.value);
        break;
      case Lane::kMin:
        for (const Call& call : calls_)
          result = std::min(result, call.value);
        break;
      case Lane::kBallot:
        for (int l = 0; l < kWarpLanes; ++l)
          result |= calls_[At(l)].value << l;
        break;
      case Lane::kMatch:
        for (int l = 0; l < kWarpLanes; ++l)
          result |= static_cast<std::uint32_t>(calls_[At(l)].value == mine.value) << l;
        break;
      case Lane::kShuffle:
      case Lane::kShuffleXor: {
        const int from = collective == Lane::kShuffle ? mine.operand : lane ^ mine.operand;
        // A device would take it modulo 32; nothing of ours means to.
        if (from < 0 || from >= kWarpLanes) {
          fault_ = "lane " + std::to_string(lane) + " asks lane " + std::to_string(from);
          break;
        }
        result = calls_[At(from)].value;
        break;
      }
      case Lane::kEnd:
        break;
    }
    return result;
  }

  static const char* Name(Lane::Collective collective) {
    constexpr const char* kNames[] = {"Max",     "Min",        "Ballot", "Match",
                                      "Shuffle", "ShuffleXor", "its end"};
    return kNames[collective];
  }

  struct Call {
    Lane::Collective collective = Lane::kEnd;
    std::uint32_t value = 0;
    int operand = 0;
  };

  std::mt19937_64 random_;
  const std::size_t stack_bytes_;
  std::function<void(const Lane&)> body_;
  std::string fault_;
  Fiber thread_;
  std::array<std::unique_ptr<Fiber>, kWarpLanes> fibers_;
  std::array<Lane, kWarpLanes> lanes_;
  std::array<Call, kWarpLanes> calls_;
  std::array<std::uint32_t, kWarpLanes> results_ = {};
  std::array<int, kWarpLanes> order_ = {};
  std::size_t arrived_ = 0;  // lanes that have come to the round's collective
  int running_ = 0;
};

}  // namespace waymark::kernels

#endif  // WAYMARK_TESTS_SUPPORT_EMULATED_WARP_H_
