// Seal: the step with which a block was reported as full, and the digest of its key. A block has
// one, and so has the page that it is bound to. Internal to blockstore.
//
// Records keep a seal in two parts, because writing a row reads the first one only.
#ifndef WAYMARK_BLOCKSTORE_STORE_SEAL_H_
#define WAYMARK_BLOCKSTORE_STORE_SEAL_H_

#include <cstdint>

#include "blockstore/digest.h"
#include "blockstore/store/stamp.h"

namespace waymark {

// The part that rows read. Default: not sealed.
struct SealHot {
  std::uint64_t step : kStepBits = 0;  // the step of the seal; 0 = not sealed
  std::uint64_t has_key : 1 = 0;       // SealCold is set

  // Rule 5: whether the seal protects rows. A step's own seals are set after its rows, so every
  // row that meets a seal is of a later step.
  [[nodiscard]] bool set() const { return step != 0; }
  // Whether the block was sealed by `upto` or earlier.
  [[nodiscard]] bool SetBy(std::uint64_t upto) const { return step != 0 && step <= upto; }
};
static_assert(sizeof(SealHot) == 8);

// The part that seals and the key index read. Not read without SealHot::has_key.
struct SealCold {
  Digest128 key{};            // the digest of (version, key, ordinal)
  std::uint64_t version = 0;  // of the weights with which the rows were computed
};
static_assert(sizeof(SealCold) == 24);

// A whole seal. BlockTable::seal and PagePool::seal return one; SetSeal assigns it.
struct Seal {
  SealHot hot;
  SealCold cold;

  // This seal, reported for what already has the seal `earlier`: the first step stays, because rows
  // are protected since then; the key is the new one.
  [[nodiscard]] Seal After(SealHot earlier) const {
    Seal seal = *this;
    if (earlier.step != 0) seal.hot.step = earlier.step;
    return seal;
  }
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_SEAL_H_
