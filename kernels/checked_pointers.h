// CheckedPointers: pointers that are known to lie in the memory of a device. Internal to kernels.
//
// Asking CUDA where memory lies costs up to a microsecond on the engine's thread, and an engine
// passes the same few hundred pointers in every step (of 58 layers: 464 at most). So each is asked
// for once. The table has a fixed size and never allocates or locks: sets of eight entries, a cache
// line each; in a full set a new pointer takes the place of another one, which is then asked for
// again. Memory that is freed and comes back as memory of another kind at the same address is not
// noticed: the check finds wrong arguments, it is no protection against dangling pointers.
#ifndef WAYMARK_KERNELS_CHECKED_POINTERS_H_
#define WAYMARK_KERNELS_CHECKED_POINTERS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace waymark::kernels {

// Any thread. About 32 KiB; make it static.
class CheckedPointers {
 public:
  // Whether Add was called with the same pointer and device. False when it has been displaced.
  [[nodiscard]] bool Has(const void* pointer, std::int32_t device) const {
    const std::uint64_t entry = EntryOf(pointer, device);
    const Set& set = sets_[SetOf(entry)];
    for (const std::atomic<std::uint64_t>& each : set.entries) {
      if (each.load(std::memory_order_relaxed) == entry) return entry != 0;
    }
    return false;
  }
  // `pointer` lies in the memory of CUDA device `device`.
  void Add(const void* pointer, std::int32_t device) {
    const std::uint64_t entry = EntryOf(pointer, device);
    if (entry == 0) return;
    Set& set = sets_[SetOf(entry)];
    for (std::atomic<std::uint64_t>& each : set.entries) {
      std::uint64_t free = 0;
      if (each.compare_exchange_strong(free, entry, std::memory_order_relaxed)) return;
    }
    set.entries[(entry * kMix >> 40) % kWays].store(entry, std::memory_order_relaxed);
  }

 private:
  static constexpr std::size_t kSets = 512;
  static constexpr std::size_t kWays = 8;
  static constexpr std::uint64_t kMix = 0x9E3779B97F4A7C15u;
  struct alignas(64) Set {
    std::atomic<std::uint64_t> entries[kWays] = {};  // 0: free
  };

  // The address, of 57 bits at most, and the device. 0: a device that is not remembered.
  static std::uint64_t EntryOf(const void* pointer, std::int32_t device) {
    if (device < 0 || device >= 127) return 0;
    return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(pointer)) << 7 |
           static_cast<std::uint64_t>(device + 1);
  }
  static std::size_t SetOf(std::uint64_t entry) { return (entry * kMix) >> 55; }

  Set sets_[kSets];
};

}  // namespace waymark::kernels

#endif  // WAYMARK_KERNELS_CHECKED_POINTERS_H_
