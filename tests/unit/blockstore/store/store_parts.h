// StoreParts: the classes of a store that its mutex guards, put together as RoutingStore::Impl
// does, for tests of one class at a time. 8 blocks of 4 tokens, one page each.
#ifndef WAYMARK_TESTS_UNIT_BLOCKSTORE_STORE_STORE_PARTS_H_
#define WAYMARK_TESTS_UNIT_BLOCKSTORE_STORE_STORE_PARTS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include "blockstore/store/event_applier.h"
#include "blockstore/store/page_memory.h"
#include "blockstore/store/pages.h"
#include "blockstore/store/step_writer.h"

namespace waymark {

inline StoreOptions SmallOptions(std::uint32_t num_pages = 8, std::uint32_t spare_pages = 0) {
  return {.shape = {.num_layers = 1, .top_k = 2, .num_experts = 16, .page_tokens = 4},
          .num_blocks = 8,
          .block_tokens = 4,
          .num_pages = num_pages,
          .spare_pages = spare_pages,
          .max_steps_in_flight = 2,
          .max_step_rows = 16,
          .landing = Landing::kCaller,
          .key_seed = 1};
}

inline BlockKey Key(std::uint8_t byte) {
  BlockKey key;
  key.size = 1;
  key.bytes[0] = byte;
  return key;
}

// Rows whose two ids are both `id`.
struct ConstantRows final : StepRows {
  explicit ConstantRows(std::uint8_t given) : id(given) {}
  void Land(std::uint32_t, std::span<std::uint8_t* const> destinations,
            std::span<Reason> verdicts) override {
    for (std::size_t i = 0; i < destinations.size(); ++i) {
      if (destinations[i] == nullptr) continue;
      std::memset(destinations[i], id, 2);
      verdicts[i] = verdict;
    }
  }
  void Done() override {}

  std::uint8_t id;
  Reason verdict = Reason::kNone;
};

struct StoreParts {
  explicit StoreParts(const StoreOptions& given = SmallOptions())
      : options(given),
        core(options.shape,
             PageMemory::Map(std::size_t{options.num_pages} * options.shape.page_bytes()).value(),
             options.num_pages),
        pages(options, core, stats),
        events(options, pages, stats),
        audit(options, core, mutex, pages, stats),
        writer(options, core, mutex, pages, audit, stats) {}

  // Applies a step with these events and slots as the log would. `rows`: null: its ids are lost
  // (capacity).
  void Step(std::uint64_t step, std::initializer_list<Event> given_events,
            std::vector<std::int64_t> slots, StepRows* rows, std::uint64_t version = 1) {
    std::vector<Event> own(given_events);
    for (Event& event : own) {
      if (event.type == EventType::kSeal && event.step == step) event.step = 0;
    }
    events.SetVersion(version);
    events.Apply(own, last, step);
    last = step;
    core.versions.Append(step, version);
    events.ForgetKeyedBinds();
    StepIds ids(rows);
    writer.Write({step, version, slots, Cause::kNoBuffer}, ids);
    events.ApplyOwnSeals(step);
    looked_at = pages.ContendWritten(version);
    {
      const MutexLock lock(mutex);
      audit.Conclude();
    }
    audit.LogFindings();
  }
  // The same, with rows whose ids are all 3.
  void Step(std::uint64_t step, std::initializer_list<Event> given_events,
            std::vector<std::int64_t> slots, std::uint64_t version = 1) {
    Step(step, given_events, std::move(slots), &threes, version);
  }

  [[nodiscard]] PageIndex PageOf(std::int32_t block) {
    return pages.table().hot(pages.FirstEntry(block)).page;
  }
  // The stamp of a row of a block that has a page.
  [[nodiscard]] Stamp StampOf(std::int32_t block, std::uint32_t row) {
    return core.stamp(PageOf(block), row).Load();
  }
  // Why the first row of a block without a page is missing.
  [[nodiscard]] Why WhyOf(std::int32_t block) {
    return pages.table().hot(pages.FirstEntry(block)).WhyOf(0);
  }

  const StoreOptions options;
  StoreCore core;
  Stats stats;
  Mutex mutex;
  Pages pages;
  EventApplier events;
  Audit audit;
  StepWriter writer;
  ConstantRows threes{3};
  std::size_t looked_at = 0;  // by ContendWritten of the last step
  std::uint64_t last = 0;     // the last step
};

}  // namespace waymark

#endif  // WAYMARK_TESTS_UNIT_BLOCKSTORE_STORE_STORE_PARTS_H_
