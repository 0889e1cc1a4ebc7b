// StoreParts: the classes of a store that its mutex guards, put together as RoutingStore::Impl
// does, for tests of one class at a time. 8 blocks of 4 tokens, one page each.
#ifndef WAYMARK_TESTS_UNIT_BLOCKSTORE_STORE_STORE_PARTS_H_
#define WAYMARK_TESTS_UNIT_BLOCKSTORE_STORE_STORE_PARTS_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "blockstore/store/event_applier.h"
#include "blockstore/store/page_memory.h"
#include "blockstore/store/pages.h"
#include "blockstore/store/steps.h"

namespace waymark {

inline StoreOptions SmallOptions(std::uint32_t num_pages = 8, std::uint32_t spare_pages = 0) {
  StoreOptions options;
  options.shape = {.num_layers = 1, .top_k = 2, .num_experts = 16, .page_tokens = 4};
  options.num_blocks = 8;
  options.block_tokens = 4;
  options.num_pages = num_pages;
  options.spare_pages = spare_pages;
  options.copy_out_bytes = 1 << 20;
  options.max_steps_in_flight = 2;
  options.max_step_rows = 16;
  options.device_slots = true;
  options.landing = Landing::kCaller;
  options.key_seed = 1;
  return options;
}

inline BlockKey Key(std::uint8_t byte) {
  BlockKey key;
  key.size = 1;
  key.bytes[0] = byte;
  return key;
}

struct StoreParts {
  explicit StoreParts(const StoreOptions& given = SmallOptions())
      : options(given),
        core(options.shape,
             PageMemory::Map(std::size_t{options.num_pages} * options.shape.page_bytes()).value(),
             options.num_pages),
        pages(options, core, stats),
        steps(options, pages, stats),
        events(options, pages, steps.device(), stats) {}

  // Begins a step with these events and slots; null if it is dropped.
  StepRecord* Begin(std::uint64_t step, std::initializer_list<Event> given_events,
                    std::initializer_list<std::int64_t> slots, bool device = false,
                    std::uint64_t version = 1) {
    StepBatch batch = {.step = step, .version = version};
    batch.events = given_events.begin(), batch.num_events = given_events.size();
    batch.slots = slots.begin(), batch.num_slots = slots.size();
    batch.device_slots = device;
    std::vector<Event> own(given_events);
    for (Event& event : own) {
      if (event.type == EventType::kSeal && event.step == step) event.step = 0;
    }
    events.SetVersion(version);
    events.Apply(own, last);
    last = step;
    events.Begin(version);
    StepRecord* const record = steps.MakeRoomFor(step, version) ? steps.Begin(batch) : nullptr;
    steps.ClaimRows(record, batch);
    events.ApplyOwnSeals(step);
    pages.ContendClaimed(pages.base().Relative(step));
    return record;
  }
  // Lands the rows that the step still holds, without bytes, and ends it.
  void Land(StepRecord* record) {
    for (StampCell& cell : core.stamps) {
      if (cell.Load().pending_for(record->relative)) cell.Store(cell.Load().Landed());
    }
    steps.Retire(*record);
  }

  [[nodiscard]] PageIndex PageOf(std::int32_t block) {
    return pages.table().hot(pages.FirstEntry(block)).page;
  }
  // The stamp of a row of a block that has a page.
  [[nodiscard]] Stamp StampOf(std::int32_t block, std::uint32_t row) {
    return core.stamp(PageOf(block), row).Load();
  }
  // The reason of a block that has no page.
  [[nodiscard]] Reason ReasonOf(std::int32_t block) {
    return pages.table().hot(pages.FirstEntry(block)).reason;
  }

  const StoreOptions options;
  StoreCore core;
  Stats stats;
  Pages pages;
  Steps steps;
  EventApplier events;
  std::uint64_t last = 0;  // the last step begun
};

}  // namespace waymark

#endif  // WAYMARK_TESTS_UNIT_BLOCKSTORE_STORE_STORE_PARTS_H_
