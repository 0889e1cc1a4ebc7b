// StoreDriver: a store with landing by hand, rows that are told apart by a number, and reads that
// say which number came back. Shared by the tests of the store's rules.
#ifndef WAYMARK_TESTS_UNIT_BLOCKSTORE_STORE_STORE_DRIVER_H_
#define WAYMARK_TESTS_UNIT_BLOCKSTORE_STORE_STORE_DRIVER_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "blockstore/store/store.h"
#include "gtest/gtest.h"

namespace waymark {

// Rows given by number: row number n is ids derived from n; a negative number is a row whose layer
// was silent (not captured).
class NumberedRows final : public StepRows {
 public:
  NumberedRows(const RoutingShape& shape, std::vector<int> numbers)
      : shape_(shape), numbers_(std::move(numbers)) {}

  static void Fill(const RoutingShape& shape, int number, std::uint8_t* out) {
    // Layer l holds K ids in a row that start at a place given by the number: distinct ids, and
    // rows of different numbers share few.
    for (int layer = 0; layer < shape.num_layers; ++layer) {
      const unsigned start = static_cast<unsigned>(number) * 2654435761u >> (layer + 3);
      for (int k = 0; k < shape.top_k; ++k) {
        const unsigned id =
            (start + static_cast<unsigned>(k)) % static_cast<unsigned>(shape.num_experts);
        *out++ = static_cast<std::uint8_t>(id);
        if (shape.id_bytes() == 2) *out++ = static_cast<std::uint8_t>(id >> 8);
      }
    }
  }

  void Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
            std::span<Reason> verdicts) override {
    for (std::size_t i = 0; i < destinations.size(); ++i) {
      if (destinations[i] == nullptr) continue;
      const int number = numbers_.at(first + i);
      verdicts[i] = number < 0 ? Reason::kNotCaptured : Reason::kNone;
      if (number >= 0) Fill(shape_, number, destinations[i]);
    }
  }
  void Done() override { ++done; }

  int done = 0;

 private:
  const RoutingShape shape_;
  const std::vector<int> numbers_;
};

class StoreDriver {
 public:
  static RoutingShape Shape(int page_tokens = 4) {
    return {.num_layers = 3, .top_k = 4, .num_experts = 64, .page_tokens = page_tokens};
  }
  static StoreOptions Options(int page_tokens = 4, int block_tokens = 4) {
    return {.shape = Shape(page_tokens),
            .num_blocks = 32,
            .block_tokens = block_tokens,
            .landing = Landing::kCaller,
            .audit = false};
  }
  // Options, with what `change` sets.
  template <class Change>
  static StoreOptions With(Change change) {
    StoreOptions options = Options();
    change(options);
    return options;
  }
  static StoreOptions WithPages(std::uint32_t pages, std::optional<std::uint32_t> spare = {}) {
    return With([&](StoreOptions& o) { o.num_pages = pages, o.spare_pages = spare; });
  }

  explicit StoreDriver(const StoreOptions& options = Options())
      : store_(RoutingStore::Create(options).value()) {}
  // The store lands the rows that are left, so it goes first.
  ~StoreDriver() { store_.reset(); }

  RoutingStore& store() { return *store_; }
  const RoutingShape& shape() { return store_->options().shape; }

  // Slots of rows [from, to) of a sequence that lies in `blocks`.
  std::vector<std::int64_t> Slots(const std::vector<int>& blocks, int from, int to) {
    const int block_tokens = store_->options().block_tokens;
    std::vector<std::int64_t> slots;
    for (int at = from; at < to; ++at) {
      slots.push_back(std::int64_t{blocks[static_cast<std::size_t>(at / block_tokens)]} *
                          block_tokens +
                      at % block_tokens);
    }
    return slots;
  }

  StepCode TryBegin(std::uint64_t step, const std::vector<Event>& events,
                    const std::vector<std::int64_t>& slots, std::uint64_t version = 1) {
    return store_->BeginStep(
        {step, version, events.data(), events.size(), slots.data(), slots.size()});
  }
  void Begin(std::uint64_t step, const std::vector<Event>& events,
             const std::vector<std::int64_t>& slots, std::uint64_t version = 1) {
    const StepCode code = TryBegin(step, events, slots, version);
    ASSERT_TRUE(code.ok()) << code.ToStatus();
  }
  // A step that is dropped: at its begin, or behind it.
  void Drop(bool at_begin, std::uint64_t step, const std::vector<Event>& events,
            const std::vector<std::int64_t>& slots, std::uint64_t version = 1) {
    StepBatch batch{step, version, events.data(), events.size(), slots.data(), slots.size()};
    batch.drop = at_begin;
    ASSERT_EQ(store_->BeginStep(batch).dropped(), at_begin);
    ASSERT_TRUE(at_begin || store_->Drop(StepId(step)).ok());
  }
  // Submits without landing.
  void Submit(std::uint64_t step, std::vector<int> numbers) {
    step_rows_.push_back(std::make_unique<NumberedRows>(shape(), std::move(numbers)));
    const StepCode code = store_->Submit(StepId(step), step_rows_.back().get());
    ASSERT_TRUE(code.ok()) << code.ToStatus();
  }
  void Land(std::uint64_t step, std::vector<int> numbers) {
    Submit(step, std::move(numbers));
    ASSERT_TRUE(store_->Land(StepId(step)));
  }
  // Begin, submit and land in one go.
  void Step(std::uint64_t step, const std::vector<Event>& events,
            const std::vector<std::int64_t>& slots, std::vector<int> numbers,
            std::uint64_t version = 1) {
    Begin(step, events, slots, version);
    Land(step, std::move(numbers));
  }

  void Report(const std::vector<Event>& events) {
    const StepCode code = store_->Report(events);
    ASSERT_TRUE(code.ok()) << code.ToStatus();
  }

  // Of any owner, unless one is given: blocks need no users.
  Snapshot Take(const std::vector<int>& blocks, std::int64_t first, std::int64_t last,
                const SnapshotOwner& owner = {.last_step = ~std::uint64_t{0}}) {
    std::vector<BlockId> ids;
    for (const int block : blocks)
      ids.emplace_back(block);
    return store_->TakeSnapshot(ids, first, last, owner).value();
  }

  // What a snapshot holds, e.g. "7@3 8@3 - -": row number and step; "~7@3" is kept, "#7@3" by key,
  // the first letters of its reason stand for a missing row: n(ever written), N(ot captured), x
  // (external KV), c(apacity), i(nvalid id), a(udit), r(eleased); "?" is a row of no number in use.
  std::string Show(const Snapshot& snapshot) {
    const absl::StatusOr<Rows> rows = snapshot.ReadRows();
    return rows.ok() ? Show(*rows) : std::string(rows.status().message());
  }
  std::string Show(const Rows& rows) {
    std::string out;
    for (std::int64_t i = 0; i < rows.size(); ++i) {
      const RowInfo& info = rows.infos[static_cast<std::size_t>(i)];
      if (!out.empty()) out += ' ';
      if (info.provenance == Provenance::kKept) out += '~';
      if (info.provenance == Provenance::kByKey) out += '#';
      if (info.valid()) {
        absl::StrAppend(&out, NumberOf(rows.row(i)), "@", info.step);
      } else {
        out += std::string("!nNxciar")[static_cast<std::size_t>(info.reason)];
      }
    }
    return out;
  }
  std::string Read(const std::vector<int>& blocks, std::int64_t first, std::int64_t last,
                   const SnapshotOwner& owner = {.last_step = ~std::uint64_t{0}}) {
    return Show(Take(blocks, first, last, owner));
  }

 private:
  std::string NumberOf(std::span<const std::uint8_t> row) {
    std::vector<std::uint8_t> expected(shape().row_bytes());
    for (int number = 0; number < 1000; ++number) {
      NumberedRows::Fill(shape(), number, expected.data());
      if (std::memcmp(expected.data(), row.data(), row.size()) == 0) return absl::StrCat(number);
    }
    return "?";
  }

  std::vector<std::unique_ptr<NumberedRows>> step_rows_;
  std::unique_ptr<RoutingStore> store_;
};

inline BlockKey Key(std::uint64_t n) {
  return BlockKey::FromInteger(n);
}
inline Event Bind(int block) {
  return Event::Bind(BlockId(block));
}
inline Event Bind(int block, std::uint64_t key) {
  return Event::Bind(BlockId(block), Key(key));
}
inline Event Retain(int block) {
  return Event::Retain(BlockId(block));
}
inline Event Release(int block) {
  return Event::Release(BlockId(block));
}
inline Event Seal(int block, std::uint64_t key, std::uint64_t step) {
  return Event::Seal(BlockId(block), Key(key), StepId(step));
}
inline Event Copy(int src, int block, int rows = Event::kAllRows) {
  return Event::Copy(BlockId(src), BlockId(block), rows);
}
inline Event Move(int src, int block, bool more = false) {
  return Event::Move(BlockId(src), BlockId(block), more);
}
inline Event Truncate(int block, int row, std::uint64_t step) {
  return Event::Truncate(BlockId(block), row, StepId(step));
}

}  // namespace waymark

#endif  // WAYMARK_TESTS_UNIT_BLOCKSTORE_STORE_STORE_DRIVER_H_
