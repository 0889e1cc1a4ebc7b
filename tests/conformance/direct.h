// Direct: a small store driven by hand, for tests that spell out a course of events.
//
// Row ids tell who wrote them: every layer of a row holds {tag, tag + 1} modulo the experts, so
// that Tag() reads back what a step put down. Landing is the caller's.
#ifndef WAYMARK_TESTS_CONFORMANCE_DIRECT_H_
#define WAYMARK_TESTS_CONFORMANCE_DIRECT_H_

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "blockstore/store/store.h"

namespace waymark::conformance {

inline constexpr std::int64_t kDirectBlock = 4;  // tokens of a block, and rows of a page

// Rows of one step, each by its tag; a negative tag: missing, not captured.
class TagRows final : public StepRows {
 public:
  explicit TagRows(std::vector<int> tags) : tags_(std::move(tags)) {}
  void Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
            std::span<Reason> verdicts) override {
    for (std::size_t i = 0; i < destinations.size(); ++i) {
      if (destinations[i] == nullptr) continue;
      const int tag = tags_[first + i];
      verdicts[i] = tag < 0 ? Reason::kNotCaptured : Reason::kNone;
      for (int id = 0; id < 4 && tag >= 0; ++id) {
        destinations[i][id] = static_cast<std::uint8_t>((tag + id % 2) % 256);
      }
    }
  }
  void Done() override { done = true; }
  bool done = false;

 private:
  std::vector<int> tags_;
};

// What was read of one position: the tag (-1: missing), and what the store says about it.
struct Seen {
  int tag = -1;
  RowInfo info;
};

class Direct {
 public:
  static StoreOptions Options() {
    return {.shape = {.num_layers = 2,
                      .top_k = 2,
                      .num_experts = 256,
                      .page_tokens = static_cast<std::int32_t>(kDirectBlock)},
            .num_blocks = 16,
            .block_tokens = static_cast<std::int32_t>(kDirectBlock),
            .max_step_rows = 64,
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

  explicit Direct(const StoreOptions& options = Options()) {
    auto store = RoutingStore::Create(options);
    if (!store.ok()) {
      std::fprintf(stderr, "%s\n", std::string(store.status().message()).c_str());
      std::abort();
    }
    store_ = *std::move(store);
  }

  [[nodiscard]] RoutingStore& store() { return *store_; }
  static std::int64_t Slot(std::int32_t block, std::int64_t offset) {
    return block * kDirectBlock + offset;
  }

  StepCode Report(const std::vector<Event>& events) { return store_->Report(events); }
  StepCode Begin(std::uint64_t step, const std::vector<Event>& events,
                 const std::vector<std::int64_t>& slots, std::uint64_t version = 1) {
    return store_->BeginStep(
        {step, version, events.data(), events.size(), slots.data(), slots.size()});
  }
  // Ends a begun step with these rows; Land or LandAll brings them in.
  StepCode Submit(std::uint64_t step, std::vector<int> tags) {
    step_rows_.push_back(std::make_unique<TagRows>(std::move(tags)));
    return store_->Submit(StepId(step), step_rows_.back().get());
  }
  bool Land(std::uint64_t step) { return store_->Land(StepId(step)); }
  // Of the steps behind one that is open.
  void FetchAhead() { (void)store_->LandOne(); }
  void LandAll() {
    while (store_->Apply(1000) > 0 || store_->LandOne()) {
    }
  }
  // Begin, Submit and Land in one.
  void Step(std::uint64_t step, const std::vector<Event>& events,
            const std::vector<std::int64_t>& slots, std::vector<int> tags,
            std::uint64_t version = 1) {
    if (!Begin(step, events, slots, version).ok() || !Submit(step, std::move(tags)).ok() ||
        !Land(step)) {
      std::fprintf(stderr, "step %llu failed\n", static_cast<unsigned long long>(step));
      std::abort();
    }
  }

  // `owner`: without one, of a request that has its blocks still.
  [[nodiscard]] Snapshot Take(const std::vector<std::int32_t>& blocks, std::int64_t rows,
                              std::int64_t first = 0,
                              const SnapshotOwner& owner = {.last_step = ~std::uint64_t{0}}) {
    std::vector<BlockId> ids;
    for (const std::int32_t block : blocks)
      ids.emplace_back(block);
    auto snapshot = store_->TakeSnapshot(ids, first, rows, owner);
    if (!snapshot.ok()) {
      std::fprintf(stderr, "%s\n", std::string(snapshot.status().message()).c_str());
      std::abort();
    }
    return *std::move(snapshot);
  }
  static std::vector<Seen> Read(const Snapshot& snapshot) {
    auto rows = snapshot.ReadRows();
    std::vector<Seen> seen;
    if (!rows.ok()) return seen;
    for (std::int64_t i = 0; i < rows->size(); ++i) {
      const RowInfo& info = rows->infos[static_cast<std::size_t>(i)];
      seen.push_back({info.valid() ? rows->row(i)[0] : -1, info});
    }
    return seen;
  }
  [[nodiscard]] std::vector<Seen> Read(const std::vector<std::int32_t>& blocks, std::int64_t rows) {
    return Read(Take(blocks, rows));
  }
  [[nodiscard]] std::vector<int> Tags(const std::vector<std::int32_t>& blocks, std::int64_t rows) {
    return TagsOf(Read(blocks, rows));
  }
  static std::vector<int> TagsOf(const std::vector<Seen>& seen) {
    std::vector<int> tags;
    for (const Seen& row : seen)
      tags.push_back(row.tag);
    return tags;
  }

 private:
  std::vector<std::unique_ptr<TagRows>> step_rows_;  // outlive the store
  std::unique_ptr<RoutingStore> store_;
};

// What tests that name many blocks and slots call them.
inline BlockId B(std::int32_t block) {
  return BlockId(block);
}
inline std::int64_t S(std::int32_t block, std::int64_t offset) {
  return Direct::Slot(block, offset);
}

}  // namespace waymark::conformance

#endif  // WAYMARK_TESTS_CONFORMANCE_DIRECT_H_
