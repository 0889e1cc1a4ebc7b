#include "blockstore/store/slot_code.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "absl/status/status.h"
#include "blockstore/step_path.h"
#include "blockstore/store/slot_code_ops.h"

namespace waymark {

namespace internal {
namespace {

constexpr std::size_t kHeaderBytes = 2 * sizeof(std::uint32_t);
constexpr std::size_t kRowsWord = 0;  // of the header
constexpr std::size_t kFormWord = 1;
template <class T>
inline constexpr SlotForm kRunsForm = sizeof(T) == 8 ? SlotForm::kWideRuns : SlotForm::kRuns;
template <class T>
inline constexpr SlotForm kCodesForm = sizeof(T) == 8 ? SlotForm::kWideOneByOne
                                                      : SlotForm::kOneByOne;

StepCode Invalid(StepRule rule, std::size_t index, std::int64_t value) {
  return {static_cast<std::int32_t>(absl::StatusCode::kInvalidArgument), rule, index, value};
}

// ---- the rule that was broken: the slow way, after the fast one found that there is one

StepCode BadSlot(const SlotPlan& plan, const StepBatch& batch) {
  for (std::size_t i = 0; i < batch.num_slots; ++i) {
    const auto slot = LoadAt<std::int64_t>(batch.slots, i);
    if (slot >= plan.num_slots || slot < -1 - plan.num_slots) {
      return Invalid(StepRule::kSlotOutOfRange, i, slot);
    }
  }
  return {};
}

template <class Block, class Position>
StepCode BadPairOf(const SlotPlan& plan, const PairRows& pairs) {
  for (std::size_t i = 0; i < pairs.num_rows; ++i) {
    const auto block = LoadAt<Block>(pairs.block_idx, i);
    const auto offset = LoadAt<Position>(pairs.local_position, i);
    if (block < 0) continue;
    if (block >= plan.num_blocks) return Invalid(StepRule::kRowBlock, i, block);
    if (offset < 0 || offset >= plan.tokens) return Invalid(StepRule::kRowOffset, i, offset);
  }
  return {};
}

StepCode BadPair(const SlotPlan& plan, const PairRows& pairs) {
  return WithPairTypes(pairs, [&]<class Block, class Position>() {
    return BadPairOf<Block, Position>(plan, pairs);
  });
}

StepCode BadRequest(const SlotPlan& plan, const TableRows& table) {
  for (std::size_t r = 0; r < table.num_requests; ++r) {
    const std::int64_t first = LoadAt<std::int32_t>(table.num_computed_tokens, r);
    const std::int64_t rows = LoadAt<std::int32_t>(table.num_scheduled_tokens, r);
    if (rows < 0) return Invalid(StepRule::kScheduledTokens, r, rows);
    if (rows > 0 && first < 0) return Invalid(StepRule::kPosition, r, first);
    if (rows > 0 && first + rows > plan.table_end) {
      return Invalid(StepRule::kPosition, r, first + rows - 1);
    }
  }
  return {};
}

StepCode BadBlock(const SlotPlan& plan, const TableRows& table) {
  std::size_t row = 0;
  for (std::size_t r = 0; r < table.num_requests; ++r) {
    const std::int64_t first = LoadAt<std::int32_t>(table.num_computed_tokens, r);
    const std::int64_t end = first + LoadAt<std::int32_t>(table.num_scheduled_tokens, r);
    for (std::int64_t position = first; position < end; ++position, ++row) {
      const auto entry = static_cast<std::size_t>(position / plan.tokens);
      const auto block = LoadAt<std::int32_t>(table.block_table, r * table.table_stride + entry);
      if (block >= plan.num_blocks) return Invalid(StepRule::kRowBlock, row, block);
    }
  }
  return {};
}

// ---- runs

// Writes run i to an array of {T first, unsigned T rows}.
template <class T>
void StoreRun(std::uint8_t* runs, std::size_t i, T first, std::size_t rows) {
  StoreAt(runs, 2 * i, first);
  StoreAt(runs, 2 * i + 1, static_cast<std::make_unsigned_t<T>>(rows));
}

// Calls segment(code, rows) for each segment of the table, and for its padding: the rows of one
// request in one block, with the code of the first of them. Returns false if `segment` returned
// false, or a block is out of range.
template <class T, class Segment>
bool ForEachSegment(const SlotPlan& plan, const TableRows& table, Segment&& segment) {
  const auto tokens = static_cast<std::uint32_t>(plan.tokens);
  for (std::size_t r = 0; r < table.num_requests; ++r) {
    auto rows = LoadAt<std::uint32_t>(table.num_scheduled_tokens, r);
    if (rows == 0) continue;
    const auto position = LoadAt<std::uint32_t>(table.num_computed_tokens, r);
    const bool asked = table.asked == nullptr || table.asked[r] != 0;
    std::size_t entry = r * table.table_stride + position / tokens;
    for (std::uint32_t offset = position % tokens; rows > 0; offset = 0, ++entry) {
      const std::uint32_t n = std::min(rows, tokens - offset);
      const auto block = LoadAt<std::int32_t>(table.block_table, entry);
      if (block >= plan.num_blocks) return false;
      const std::int64_t slot = std::int64_t{block} * plan.tokens + offset;
      const std::int64_t code = block < 0 ? kPaddingSlot : asked ? slot : NotAsked(slot);
      if (!segment(static_cast<T>(code), std::size_t{n})) return false;
      rows -= n;
    }
  }
  return table.num_padding == 0 || segment(static_cast<T>(kPaddingSlot), table.num_padding);
}

// The code `rows` behind `code` in its run.
template <class T>
T CodeBehind(T code, std::size_t rows) {
  if (code == kPaddingSlot) return code;
  const auto by = static_cast<std::int64_t>(rows);
  return static_cast<T>(code >= 0 ? code + by : code - by);
}

// Writes the codes of the first `rows` rows of the run that begins with `code`.
template <class T>
void StoreCodes(T code, std::size_t rows, std::uint8_t* codes) {
  const int by = (code >= 0 ? 1 : 0) - (code < -1 ? 1 : 0);
  for (std::size_t i = 0; i < rows; ++i)
    StoreAt(codes, i, static_cast<T>(code + by * static_cast<T>(i)));
}

// ---- encoders

// Inlined always: g++ 12 takes a function that only prefetches for one without effect.
[[gnu::always_inline]] inline void Prefetch(const std::uint8_t* bytes, std::size_t size) {
  for (std::size_t at = 0; at < size; at += 64)
    __builtin_prefetch(bytes + at);
}

// Prefetches the entry for the first row of each request: each may be in a page of its own. Any
// position is safe, as an address that is prefetched may be wrong.
[[gnu::always_inline]] inline void PrefetchTable(const SlotPlan& plan, const TableRows& table) {
  const double inverse = 1.0 / plan.tokens;
  const auto begin = reinterpret_cast<std::uintptr_t>(table.block_table);
  for (std::size_t r = 0; r < table.num_requests; ++r) {
    const auto entry =
        static_cast<std::int64_t>(LoadAt<std::int32_t>(table.num_computed_tokens, r) * inverse);
    const std::uintptr_t at = r * table.table_stride + static_cast<std::uintptr_t>(entry);
    __builtin_prefetch(reinterpret_cast<const void*>(begin + at * sizeof(std::int32_t)));
  }
}

// Encodes the rows of one batch, and validates what needs a look at each row.
template <class T>
class Encoder {
 public:
  Encoder(const SlotOps<T>& ops, const SlotPlan& plan, std::size_t rows, std::uint8_t* out)
      : ops_(ops), plan_(plan), rows_(rows), out_(out), entries_(out + kHeaderBytes) {}

  // Each returns the number of bytes written, or kOutOfRange.
  static constexpr std::size_t kOutOfRange = 0;
  std::size_t Slots(const std::int64_t* slots) {
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(slots);
    const auto fetch = [&](std::size_t first, std::size_t rows) {
      Prefetch(bytes + first * sizeof(std::int64_t), rows * sizeof(std::int64_t));
    };
    return Rows(fetch, [&](std::size_t first, std::size_t rows, std::uint8_t* codes) {
      return ops_.from_slots(plan_, bytes + first * sizeof(std::int64_t), rows, codes);
    });
  }
  // Not inlined: they are no part of a step whose rows are given as slots.
  [[gnu::noinline]] std::size_t Pairs(const PairRows& pairs) {
    const auto block = static_cast<std::size_t>(pairs.index_bytes);
    const auto position = static_cast<std::size_t>(pairs.BytesOfPosition());
    const auto fetch = [&](std::size_t first, std::size_t rows) {
      Prefetch(static_cast<const std::uint8_t*>(pairs.block_idx) + first * block, rows * block);
      Prefetch(static_cast<const std::uint8_t*>(pairs.local_position) + first * position,
               rows * position);
    };
    return Rows(fetch, [&](std::size_t first, std::size_t rows, std::uint8_t* codes) {
      return ops_.from_pairs(plan_, pairs, first, rows, codes);
    });
  }
  [[gnu::noinline]] std::size_t Table(const TableRows& table, const TableSums& sums) {
    if (!sums.one_each) PrefetchTable(plan_, table);
    const bool runs_first = !sums.one_each && rows_ > 2 * table.num_requests;
    if (runs_first) {
      const std::size_t bytes = TableAsRuns(table);
      if (bytes != kTooManyRuns) return bytes;
    }
    std::size_t runs = 0;
    if (!(sums.one_each ? RequestsAsCodes(table, &runs) : TableAsCodes(table, &runs))) {
      return kOutOfRange;
    }
    return runs > MostRuns() ? FinishCodes() : TableAsRuns(table);
  }

 private:
  static constexpr std::size_t kTooManyRuns = ~std::size_t{0};
  static constexpr std::size_t kTileRows = SlotOps<T>::kTileRows;
  static constexpr std::size_t kLookRows = 32;
  static constexpr std::size_t kAheadRows = 2 * kTileRows;
  using Starts = std::array<std::uint64_t, kTileRows / 64>;

  // The most runs that are smaller than the codes one by one.
  [[nodiscard]] std::size_t MostRuns() const { return rows_ == 0 ? 0 : (rows_ - 1) / 2; }

  // Rows whose codes fill(first row, rows, codes) writes; it returns false if one is out of range.
  // fetch(first row, rows) prefetches what it reads.
  template <class Fetch, class Fill>
  std::size_t Rows(const Fetch& fetch, const Fill& fill_fetched) {
    // The input is often cold, and a new page of it stops the processor's own prefetching.
    fetch(0, std::min(rows_, kAheadRows));
    const auto fill = [&](std::size_t first, std::size_t rows, std::uint8_t* codes) {
      const std::size_t ahead = std::min(first + kAheadRows, rows_);
      fetch(ahead, std::min(rows, rows_ - ahead));
      return fill_fetched(first, rows, codes);
    };
    // The rows in the middle decide what is tried first.
    const std::size_t look = std::min(rows_, kLookRows);
    alignas(64) std::uint8_t codes[kLookRows * sizeof(T)];
    Starts starts;
    if (!fill((rows_ - look) / 2, look, codes)) return kOutOfRange;
    if (2 * ops_.find_runs(codes, look, kNoCode<T>, starts.data()) < look) {
      const std::size_t bytes = RowsAsRuns(fill);
      if (bytes != kTooManyRuns) return bytes;
    }
    std::size_t runs = 0;
    if (!RowsAsCodes(fill, &runs)) return kOutOfRange;
    return runs > MostRuns() ? FinishCodes() : RowsAsRuns(fill);
  }

  template <class Fill>
  std::size_t RowsAsRuns(const Fill& fill) {
    alignas(64) std::uint8_t codes[kTileRows * sizeof(T)];
    Starts starts;
    T before = kNoCode<T>;
    std::size_t runs = 0;  // found; the last of them is open: it begins at `begin` with `first`
    std::size_t written = 0;
    T first{};
    std::size_t begin = 0;
    for (std::size_t at = 0; at < rows_; at += kTileRows) {
      const std::size_t rows = std::min(rows_ - at, kTileRows);
      if (!fill(at, rows, codes)) return kOutOfRange;
      runs += ops_.find_runs(codes, rows, before, starts.data());
      if (runs > MostRuns()) return kTooManyRuns;
      for (std::size_t i = 0; i < rows; i += 64) {
        for (std::uint64_t left = starts[i / 64]; left != 0; left &= left - 1) {
          const std::size_t start = i + static_cast<std::size_t>(std::countr_zero(left));
          if (at + start > 0) StoreRun(entries_, written++, first, at + start - begin);
          first = LoadAt<T>(codes, start);
          begin = at + start;
        }
      }
      before = LoadAt<T>(codes, rows - 1);
    }
    if (rows_ > 0) StoreRun(entries_, written++, first, rows_ - begin);
    return FinishRuns(written);
  }

  // Adds to *runs, like the two below.
  template <class Fill>
  bool RowsAsCodes(const Fill& fill, std::size_t* runs) {
    T before = kNoCode<T>;
    for (std::size_t at = 0; at < rows_; at += kTileRows) {
      const std::size_t rows = std::min(rows_ - at, kTileRows);
      std::uint8_t* const codes = entries_ + at * sizeof(T);
      if (!fill(at, rows, codes)) return false;
      *runs += CountRuns(codes, rows, &before);
    }
    return true;
  }

  bool RequestsAsCodes(const TableRows& table, std::size_t* runs) {
    if (!ops_.from_requests(plan_, table, entries_)) return false;
    StoreCodes<T>(kPaddingSlot, table.num_padding, entries_ + table.num_requests * sizeof(T));
    T before = kNoCode<T>;
    for (std::size_t at = 0; at < rows_; at += kTileRows)
      *runs += CountRuns(entries_ + at * sizeof(T), std::min(rows_ - at, kTileRows), &before);
    return true;
  }

  bool TableAsCodes(const TableRows& table, std::size_t* runs) {
    std::uint8_t* at = entries_;
    T next = kNoCode<T>;
    return ForEachSegment<T>(plan_, table, [&](T code, std::size_t rows) {
      *runs += code != next;
      next = CodeBehind(code, rows);
      StoreCodes(code, rows, at);
      at += rows * sizeof(T);
      return true;
    });
  }

  std::size_t TableAsRuns(const TableRows& table) {
    const std::size_t most = MostRuns();
    std::size_t runs = 0;  // the last of them is open: it has `open` rows and begins with `first`
    T first{};
    std::size_t open = 0;
    T next = kNoCode<T>;
    bool too_many = false;
    const bool all = ForEachSegment<T>(plan_, table, [&](T code, std::size_t rows) {
      if (code == next) {
        open += rows;
      } else {
        if (runs > 0) StoreRun(entries_, runs - 1, first, open);
        if (runs == most) return !(too_many = true);
        ++runs;
        first = code;
        open = rows;
      }
      next = CodeBehind(code, rows);
      return true;
    });
    if (!all) return too_many ? kTooManyRuns : kOutOfRange;
    if (runs > 0) StoreRun(entries_, runs - 1, first, open);
    return FinishRuns(runs);
  }

  std::size_t CountRuns(const std::uint8_t* codes, std::size_t rows, T* before) const {
    Starts starts;
    const std::size_t runs = ops_.find_runs(codes, rows, *before, starts.data());
    *before = LoadAt<T>(codes, rows - 1);
    return runs;
  }

  std::size_t Finish(SlotForm form, std::size_t entry_bytes) {
    StoreAt(out_, kRowsWord, static_cast<std::uint32_t>(rows_));
    StoreAt(out_, kFormWord, static_cast<std::uint32_t>(form));
    return kHeaderBytes + entry_bytes;
  }
  std::size_t FinishRuns(std::size_t runs) { return Finish(kRunsForm<T>, runs * 2 * sizeof(T)); }
  std::size_t FinishCodes() { return Finish(kCodesForm<T>, rows_ * sizeof(T)); }

  const SlotOps<T>& ops_;
  const SlotPlan& plan_;
  const std::size_t rows_;
  std::uint8_t* const out_;
  std::uint8_t* const entries_;  // behind the header
};

// Validates what is cheap, then encodes.
template <class T>
WAYMARK_STEP_PATH StepCode Encode(const SlotOps<T>& ops, const StepBatch& batch,
                                  const SlotLimits& limits, std::uint8_t* out, std::size_t* bytes) {
  const int forms =
      int{batch.num_slots > 0} + int{batch.pairs != nullptr} + int{batch.table != nullptr};
  if (forms > 1) return Invalid(StepRule::kRowForms, 0, forms);
  SlotPlan plan = {.num_slots = limits.num_slots()};
  TableSums sums;
  std::size_t rows = batch.num_slots;
  if (forms == 1 && batch.num_slots == 0) {
    const PairRows* const pairs = batch.pairs;
    if (pairs != nullptr) {
      const std::int32_t block = pairs->index_bytes;
      const std::int32_t position = pairs->BytesOfPosition();
      if (block != 4 && block != 8) return Invalid(StepRule::kIndexBytes, 0, block);
      if (position != 4 && position != 8) return Invalid(StepRule::kIndexBytes, 0, position);
    }
    plan.tokens = pairs != nullptr ? pairs->block_tokens : batch.table->block_tokens;
    if (plan.tokens <= 0 || limits.block_tokens % plan.tokens != 0) {
      return Invalid(StepRule::kBlockTokens, 0, plan.tokens);
    }
    // As many blocks as the store has, or kernel blocks.
    plan.num_blocks = std::int64_t{limits.num_blocks} * (limits.block_tokens / plan.tokens);
    if (pairs != nullptr) {
      rows = pairs->num_rows;
    } else {
      const std::size_t stride = batch.table->table_stride;
      plan.table_end = stride > static_cast<std::size_t>(INT32_MAX / plan.tokens)
                           ? INT32_MAX
                           : static_cast<std::int32_t>(stride) * plan.tokens;
      if (!ops.sum_requests(plan, *batch.table, &sums)) return BadRequest(plan, *batch.table);
      rows = sums.rows + batch.table->num_padding;
    }
  }
  if (rows > limits.max_step_rows || rows < sums.rows) {
    return Invalid(StepRule::kTooManyRows, 0, static_cast<std::int64_t>(rows));
  }

  Encoder<T> encoder(ops, plan, rows, out);
  const std::size_t written = batch.pairs != nullptr   ? encoder.Pairs(*batch.pairs)
                              : batch.table != nullptr ? encoder.Table(*batch.table, sums)
                                                       : encoder.Slots(batch.slots);
  if (written != Encoder<T>::kOutOfRange) {
    *bytes = written;
    return {};
  }
  if (batch.table != nullptr) return BadBlock(plan, *batch.table);
  if (batch.pairs == nullptr) return BadSlot(plan, batch);
  return BadPair(plan, *batch.pairs);
}

}  // namespace

std::span<const SlotOps<std::int32_t>* const> SupportedSlotOps() {
#if defined(__x86_64__)
  static constexpr std::array<const SlotOps<std::int32_t>*, 2> kAll = {&kSlotOpsPlain,
                                                                       &kSlotOpsAvx2};
  static const bool avx2 = [] {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt");
  }();
  return std::span(kAll).first(avx2 ? 2 : 1);
#else
  static constexpr std::array<const SlotOps<std::int32_t>*, 1> kAll = {&kSlotOpsPlain};
  return kAll;
#endif
}

}  // namespace internal

WAYMARK_STEP_PATH std::size_t MaxEncodedBytes(std::size_t rows, const SlotLimits& limits) {
  return internal::kHeaderBytes +
         rows * (limits.wide() ? sizeof(std::int64_t) : sizeof(std::int32_t));
}

SlotEncoder::SlotEncoder(const SlotLimits& limits)
    : SlotEncoder(limits, *internal::SupportedSlotOps().back()) {}

WAYMARK_STEP_PATH StepCode SlotEncoder::Encode(const StepBatch& batch, std::uint8_t* out,
                                               std::size_t* bytes) const {
  if (limits_.wide()) {
    return internal::Encode(internal::kSlotOpsWide, batch, limits_, out, bytes);
  }
  return internal::Encode(ops_, batch, limits_, out, bytes);
}

EncodedSlots::EncodedSlots(std::span<const std::uint8_t> bytes)
    : entries_(bytes.data() + internal::kHeaderBytes),
      num_rows_(internal::LoadAt<std::uint32_t>(bytes.data(), internal::kRowsWord)),
      num_runs_(num_rows_),
      form_(internal::LoadAt<SlotForm>(bytes.data(), internal::kFormWord)) {
  const std::size_t entry_bytes = bytes.size() - internal::kHeaderBytes;
  if (form_ == SlotForm::kRuns) num_runs_ = entry_bytes / (2 * sizeof(std::int32_t));
  if (form_ == SlotForm::kWideRuns) num_runs_ = entry_bytes / (2 * sizeof(std::int64_t));
}

SlotRun EncodedSlots::run(std::size_t i) const {
  using internal::LoadAt;
  switch (form_) {
    case SlotForm::kRuns:
      return {LoadAt<std::int32_t>(entries_, 2 * i), LoadAt<std::uint32_t>(entries_, 2 * i + 1)};
    case SlotForm::kWideRuns:
      return {LoadAt<std::int64_t>(entries_, 2 * i),
              static_cast<std::uint32_t>(LoadAt<std::uint64_t>(entries_, 2 * i + 1))};
    case SlotForm::kOneByOne:
      return {LoadAt<std::int32_t>(entries_, i), 1};
    case SlotForm::kWideOneByOne:
      return {LoadAt<std::int64_t>(entries_, i), 1};
  }
  return {};
}

void EncodedSlots::Decode(std::int64_t* slots) const {
  if (form_ == SlotForm::kOneByOne) {
    for (std::size_t i = 0; i < num_rows_; ++i)
      slots[i] = internal::LoadAt<std::int32_t>(entries_, i);
  } else if (form_ == SlotForm::kWideOneByOne) {
    std::copy_n(entries_, num_rows_ * sizeof(std::int64_t), reinterpret_cast<std::uint8_t*>(slots));
  } else {
    for (std::size_t i = 0; i < num_runs_; ++i) {
      const SlotRun each = run(i);
      internal::StoreCodes(each.first, each.rows, reinterpret_cast<std::uint8_t*>(slots));
      slots += each.rows;
    }
  }
}

}  // namespace waymark
