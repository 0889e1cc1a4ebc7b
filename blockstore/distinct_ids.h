// DistinctIds: whether the K ids of every layer of a row are in range and distinct.
#ifndef WAYMARK_BLOCKSTORE_DISTINCT_IDS_H_
#define WAYMARK_BLOCKSTORE_DISTINCT_IDS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace waymark {

// What vector code knows of K and E.
struct IdVectors {
  std::size_t bytes = 0;   // of the whole layers that a vector of 64 bytes holds
  std::size_t pairs = 0;   // K / 2
  std::uint32_t most = 0;  // the largest id
  // [pairs][64]: where the ids at distances 1 ... K / 2 in the ring of a layer are, which meet
  // every pair: indices of bytes, or of ids of 16 bits.
  std::vector<std::uint8_t> rotations;
};

// Checks stored rows of one K and E. Immutable: const access from any thread.
class DistinctIds {
 public:
  DistinctIds(std::int32_t top_k, std::int32_t num_experts);

  // The first of `layers` layers, [layers][K] stored ids at `ids`, that has an id out of range or
  // one twice; -1: there is none.
  [[nodiscard]] std::int32_t FirstBad(const std::uint8_t* ids, std::int32_t layers) const;
  // Sets good[i] to whether row i has none; null rows have. True: all have none. REQUIRES:
  // good.size() >= rows.size().
  [[nodiscard]] bool CheckRows(std::span<const std::uint8_t* const> rows, std::int32_t layers,
                               std::span<std::uint8_t> good) const;

 private:
  template <class Id>
  [[nodiscard]] std::int32_t FirstBadOf(const std::uint8_t* ids, std::int32_t layers) const;
  [[nodiscard]] std::size_t BytesOf(std::int32_t layers) const;

  std::int32_t top_k_;
  std::int32_t num_experts_;
  IdVectors vectors_;
  // CheckRows for rows of `bytes` bytes; null: no such code for K, E, or machine.
  bool (*check_)(const IdVectors& vectors, std::span<const std::uint8_t* const> rows,
                 std::size_t bytes, std::uint8_t* good) = nullptr;
  std::size_t least_bytes_ = 0;  // that it takes
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_DISTINCT_IDS_H_
