// What the tests of SlotCode compare with: the rows of a batch, one by one and the simple way, and
// one check of what SlotCode does with a batch.
#ifndef WAYMARK_TESTS_UNIT_BLOCKSTORE_STORE_SLOT_CODE_REFERENCE_H_
#define WAYMARK_TESTS_UNIT_BLOCKSTORE_STORE_SLOT_CODE_REFERENCE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "blockstore/events.h"
#include "blockstore/step_code.h"
#include "blockstore/store/slot_code.h"

namespace waymark {

// An array that begins at an odd address.
template <class T>
class Unaligned {
 public:
  Unaligned() = default;
  explicit Unaligned(const std::vector<T>& values) : bytes_(values.size() * sizeof(T) + 1) {
    if (!values.empty()) std::memcpy(bytes_.data() + 1, values.data(), values.size() * sizeof(T));
  }
  [[nodiscard]] const T* data() const { return reinterpret_cast<const T*>(bytes_.data() + 1); }

 private:
  std::vector<std::uint8_t> bytes_ = std::vector<std::uint8_t>(1);
};

// The rows of a batch, in one form; the other forms are absent.
struct Rows {
  enum class Form : std::uint8_t { kSlots, kPairs };

  Form form = Form::kSlots;
  std::vector<std::int64_t> slots;
  // Pairs.
  std::vector<std::int64_t> block_idx;
  std::vector<std::int64_t> local_position;
  std::int32_t index_bytes = 8;
  std::int32_t position_bytes = 0;
  std::vector<std::uint8_t> asked;  // empty = all asked
  std::int32_t block_tokens = 0;
};

// A StepBatch of rows, all of whose arrays are unaligned.
class RowsBatch {
 public:
  explicit RowsBatch(const Rows& rows)
      : slots_(rows.slots),
        narrow_idx_(Narrow(rows.block_idx)),
        narrow_position_(Narrow(rows.local_position)),
        block_idx_(rows.block_idx),
        local_position_(rows.local_position),
        asked_(rows.asked) {
    const std::uint8_t* const asked = rows.asked.empty() ? nullptr : asked_.data();
    const bool narrow = rows.index_bytes == 4;
    const bool narrow_positions = rows.position_bytes == 4 || (rows.position_bytes == 0 && narrow);
    pairs_ = {.block_idx = narrow ? static_cast<const void*>(narrow_idx_.data())
                                  : static_cast<const void*>(block_idx_.data()),
              .local_position = narrow_positions ? static_cast<const void*>(narrow_position_.data())
                                                 : static_cast<const void*>(local_position_.data()),
              .asked = asked,
              .num_rows = rows.block_idx.size(),
              .index_bytes = rows.index_bytes,
              .block_tokens = rows.block_tokens,
              .position_bytes = rows.position_bytes};
    batch_.step = 1;
    if (rows.form == Rows::Form::kSlots) {
      batch_.slots = slots_.data();
      batch_.num_slots = rows.slots.size();
    }
    if (rows.form == Rows::Form::kPairs) batch_.pairs = &pairs_;
  }
  RowsBatch(const RowsBatch&) = delete;
  RowsBatch& operator=(const RowsBatch&) = delete;

  [[nodiscard]] const StepBatch& batch() const { return batch_; }

 private:
  static std::vector<std::int32_t> Narrow(const std::vector<std::int64_t>& values) {
    std::vector<std::int32_t> narrow;
    for (const std::int64_t value : values)
      narrow.push_back(static_cast<std::int32_t>(value));
    return narrow;
  }

  Unaligned<std::int64_t> slots_;
  Unaligned<std::int32_t> narrow_idx_;
  Unaligned<std::int32_t> narrow_position_;
  Unaligned<std::int64_t> block_idx_;
  Unaligned<std::int64_t> local_position_;
  Unaligned<std::uint8_t> asked_;
  PairRows pairs_;
  StepBatch batch_;
};

// What EncodeSlots must do with rows: the slots that it encodes, or the rule that is broken.
struct Expected {
  StepCode code;
  std::vector<std::int64_t> slots;
};

inline Expected Refused(StepRule rule, std::size_t index, std::int64_t value) {
  return {{static_cast<std::int32_t>(absl::StatusCode::kInvalidArgument), rule, index, value}, {}};
}

inline Expected Reference(const Rows& rows, const SlotLimits& limits) {
  const std::int64_t all = std::int64_t{limits.num_blocks} * limits.block_tokens;
  Expected expected;
  if (rows.form == Rows::Form::kSlots) {
    if (rows.slots.size() > limits.max_step_rows) {
      return Refused(StepRule::kTooManyRows, 0, static_cast<std::int64_t>(rows.slots.size()));
    }
    for (std::size_t i = 0; i < rows.slots.size(); ++i) {
      const std::int64_t slot = rows.slots[i] < -1 ? -2 - rows.slots[i] : rows.slots[i];
      if (slot >= all) return Refused(StepRule::kSlotOutOfRange, i, rows.slots[i]);
    }
    expected.slots = rows.slots;
    return expected;
  }

  if (rows.index_bytes != 4 && rows.index_bytes != 8) {
    return Refused(StepRule::kIndexBytes, 0, rows.index_bytes);
  }
  if (rows.position_bytes != 0 && rows.position_bytes != 4 && rows.position_bytes != 8) {
    return Refused(StepRule::kIndexBytes, 0, rows.position_bytes);
  }
  if (rows.block_tokens <= 0 || limits.block_tokens % rows.block_tokens != 0) {
    return Refused(StepRule::kBlockTokens, 0, rows.block_tokens);
  }
  // The row at `offset` of `block`; the rule that it breaks is expected.code.
  const auto add = [&](std::int64_t block, std::int64_t offset, bool asked) {
    const std::size_t row = expected.slots.size();
    expected.slots.push_back(-1);
    if (block < 0 || !expected.code.ok()) return;
    if (block >= all / rows.block_tokens) {
      expected.code = Refused(StepRule::kRowBlock, row, block).code;
    } else if (offset < 0 || offset >= rows.block_tokens) {
      expected.code = Refused(StepRule::kRowOffset, row, offset).code;
    } else {
      const std::int64_t slot = block * rows.block_tokens + offset;
      expected.slots.back() = asked ? slot : -2 - slot;
    }
  };
  if (rows.block_idx.size() > limits.max_step_rows) {
    return Refused(StepRule::kTooManyRows, 0, static_cast<std::int64_t>(rows.block_idx.size()));
  }
  for (std::size_t i = 0; i < rows.block_idx.size(); ++i)
    add(rows.block_idx[i], rows.local_position[i], rows.asked.empty() || rows.asked[i] != 0);
  return expected;
}

// The number of bytes that `slots` are encoded in, as slot_code.h defines it.
inline std::size_t EncodedBytes(const std::vector<std::int64_t>& slots, std::size_t width) {
  const std::size_t tiles = slots.size() / 16;
  std::size_t codes = slots.size();
  for (std::size_t tile = 0; tile < tiles; ++tile) {
    bool ascends = true;
    for (std::size_t i = 16 * tile + 1; i < 16 * tile + 16; ++i)
      ascends &= slots[i] == slots[i - 1] + 1;
    codes -= ascends ? 15 : 0;
  }
  return 8 + tiles + codes * width;
}

// Checks what was encoded: it decodes to `slots`, and is as small as it should be. `exact`: also
// where a tile that ascends is in two blocks.
inline void CheckEncoded(std::span<const std::uint8_t> bytes,
                         const std::vector<std::int64_t>& slots, bool wide, bool exact = true) {
  ASSERT_GE(bytes.size(), EncodedBytes(slots, wide ? 8 : 4));
  if (exact) {
    ASSERT_EQ(bytes.size(), EncodedBytes(slots, wide ? 8 : 4));
  }
  ASSERT_EQ(NumEncodedRows(bytes), slots.size());
  std::vector<std::int64_t> decoded(slots.size());
  DecodeSlots(bytes, decoded.data());
  ASSERT_EQ(decoded, slots);
}

// Encodes the rows, and checks the result against Reference. Nothing may be written outside
// MaxEncodedBytes, which begin at an odd address.
inline void CheckRows(const Rows& rows, const SlotLimits& limits) {
  constexpr std::size_t kGuard = 65;
  constexpr std::uint8_t kUntouched = 0xa5;
  constexpr std::size_t kNoBytes = 12345678;
  const RowsBatch given(rows);
  const Expected expected = Reference(rows, limits);
  const std::size_t num_rows = NumRows(given.batch());
  if (expected.code.ok()) {
    ASSERT_EQ(num_rows, expected.slots.size());
  }
  const std::size_t most =
      MaxEncodedBytes(std::min<std::size_t>(num_rows, limits.max_step_rows), limits);

  std::vector<std::uint8_t> out(kGuard + most + kGuard, kUntouched);
  std::size_t bytes = kNoBytes;
  const StepCode code = EncodeSlots(given.batch(), limits, out.data() + kGuard, &bytes);
  ASSERT_EQ(code.rule, expected.code.rule) << code.ToStatus() << expected.code.ToStatus();
  ASSERT_EQ(code.code, expected.code.code);
  ASSERT_EQ(code.index, expected.code.index);
  ASSERT_EQ(code.value, expected.code.value);
  const auto untouched = [](std::uint8_t byte) { return byte == kUntouched; };
  ASSERT_TRUE(std::all_of(out.begin(), out.begin() + kGuard, untouched));
  ASSERT_TRUE(std::all_of(out.end() - kGuard, out.end(), untouched)) << "written behind the end";
  if (!code.ok()) {
    ASSERT_EQ(bytes, kNoBytes);
    return;
  }
  ASSERT_LE(bytes, most);
  ASSERT_NO_FATAL_FAILURE(CheckEncoded({out.data() + kGuard, bytes}, expected.slots, limits.wide(),
                                       rows.form == Rows::Form::kSlots));
}

}  // namespace waymark

#endif  // WAYMARK_TESTS_UNIT_BLOCKSTORE_STORE_SLOT_CODE_REFERENCE_H_
