// EmulatedBlock: runs code that is written over a Block (kernels/device_code.h) on the host.
//
//   RunBlocks(blocks, threads, shared_bytes, random, [&](const EmulatedBlock& block,
//                                                        std::uint8_t* shared) {
//     PackTile<...>(block, plan, shared);
//   });
//
// The threads of a phase run one after the other, in an order that is drawn anew for each phase, so
// what a thread reads of another's work without a barrier between the two is seen to. Blocks run
// one after the other too, in an order drawn likewise. Memory is the host's: sanitizers and guard
// pages see every access. Shared memory has as many bytes as asked for and holds garbage.
#ifndef WAYMARK_TESTS_SUPPORT_EMULATED_BLOCK_H_
#define WAYMARK_TESTS_SUPPORT_EMULATED_BLOCK_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/device_code.h"
#include "tests/unit/kernels/guarded_buffer.h"

namespace waymark::kernels {

class EmulatedBlock {
 public:
  // `order`: a permutation of the threads. Both are used by every phase.
  EmulatedBlock(std::uint64_t index, std::vector<unsigned>& order, std::mt19937_64& random)
      : index_(index), order_(order), random_(random) {}

  [[nodiscard]] std::uint64_t index() const { return index_; }
  template <class Phase>
  void ForEachThread(Phase&& phase) const {
    std::shuffle(order_.begin(), order_.end(), random_);
    for (const unsigned thread : order_)
      phase(thread);
  }
  void AtomicAdd(std::uint32_t* at, std::uint32_t value) const { *at += value; }
  void AtomicMin(std::uint32_t* at, std::uint32_t value) const { *at = std::min(*at, value); }

 private:
  std::uint64_t index_;
  std::vector<unsigned>& order_;
  std::mt19937_64& random_;
};

// Calls body(block, shared) for every block of a grid.
template <class Body>
void RunBlocks(std::uint64_t blocks, unsigned threads, std::size_t shared_bytes,
               std::mt19937_64& random, Body&& body) {
  std::vector<unsigned> order(threads);
  std::iota(order.begin(), order.end(), 0u);
  std::vector<std::uint64_t> indices(blocks);
  std::iota(indices.begin(), indices.end(), std::uint64_t{0});
  std::shuffle(indices.begin(), indices.end(), random);
  const GuardedBuffer shared(shared_bytes);
  for (const std::uint64_t index : indices) {
    std::memset(shared.data(), static_cast<int>(random() % 256), shared.size());
    body(EmulatedBlock(index, order, random), shared.data());
  }
}

}  // namespace waymark::kernels

#endif  // WAYMARK_TESTS_SUPPORT_EMULATED_BLOCK_H_
