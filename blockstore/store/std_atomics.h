// StdAtomics: how LogRing, TicketState and WakeFlag access memory that threads share. Internal to
// blockstore.
#ifndef WAYMARK_BLOCKSTORE_STORE_STD_ATOMICS_H_
#define WAYMARK_BLOCKSTORE_STORE_STD_ATOMICS_H_

#include <atomic>
#include <cstdint>
#include <cstring>

namespace waymark {

// The policy of the product. Tests have another one, under which a checker explores every
// interleaving of a few threads.
struct StdAtomics {
  template <class T>
  using Atomic = std::atomic<T>;

  // A full fence.
  static void Fence() { std::atomic_thread_fence(std::memory_order_seq_cst); }

  // Four bytes of memory that is not atomic, 4-byte aligned.
  static std::uint32_t Read32(const std::uint8_t* at) {
    std::uint32_t value;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  static void Write32(std::uint8_t* at, std::uint32_t value) {
    std::memcpy(at, &value, sizeof(value));
  }
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_STD_ATOMICS_H_
