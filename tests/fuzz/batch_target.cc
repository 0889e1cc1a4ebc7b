// Serialised event batches (blockstore/events.h), alone and on their way into a store.
#include <cstddef>
#include <memory>
#include <utility>

#include "blockstore/events.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/small_store.h"

namespace waymark::fuzz {

void RunOne(std::span<const std::uint8_t> input) {
  std::unique_ptr<RoutingStore> store;
  std::span<const std::uint8_t> rest = input;
  for (;;) {
    const std::span<const std::uint8_t> before = rest;
    const absl::StatusOr<OwnedStepBatch> batch = ParseBatch(rest);
    if (!batch.ok()) {
      Require(rest.data() == before.data() && rest.size() == before.size(),
              "bytes that are refused stay as they are");
      Require(!batch.status().message().empty(), "a refusal says why");
      break;
    }
    // Only what SerializeBatch writes is taken, so it writes the same again.
    std::string again;
    SerializeBatch(batch->view(), again);
    const std::size_t taken = before.size() - rest.size();
    Require(
        again.size() == taken && again.size() == SerializedSize(batch->view()) &&
            std::equal(again.begin(), again.end(), before.begin(),
                       [](char a, std::uint8_t b) { return static_cast<std::uint8_t>(a) == b; }),
        "what was parsed serialises to the bytes that it came from");
    for (const Event& event : batch->events)
      Require(!DescribeEvent(event).empty(), "an event can be described");

    if (store == nullptr) store = RoutingStore::Create(SmallOptions()).value();
    const StepCode code = store->BeginStep(batch->view());
    Require(code.ok() || code.dropped() || !code.ToStatus().message().empty(),
            "a batch is begun, dropped, or refused with a word");
    if (code.ok()) {
      Require(store->Submit(StepId(batch->step), nullptr).ok(), "a begun step can be submitted");
      Require(store->Land(StepId(batch->step)), "a submitted step can be landed");
    }
  }
  if (store != nullptr) ReadAll(*store);
}

std::vector<std::string> Corpus() {
  const auto serialised = [](const OwnedStepBatch& batch) {
    std::string bytes;
    SerializeBatch(batch.view(), bytes);
    return bytes;
  };
  const BlockKey key = BlockKey::FromInteger(7);
  const std::string empty = serialised({.step = 1});
  const std::string first =
      serialised({.step = 2,
                  .version = 1,
                  .events = {Event::Bind(BlockId(1)), Event::Bind(BlockId(2), key),
                             Event::Retain(BlockId(1)), Event::Seal(BlockId(1), key, StepId(2))},
                  .slots = {4, 5, 6, 7, kPaddingSlot, NotAsked(8)}});
  const std::string second = serialised(
      {.step = 9,
       .version = 2,
       .events = {Event::Copy(BlockId(1), BlockId(3), 2), Event::Copy(BlockId(1), BlockId(4)),
                  Event::Move(BlockId(3), BlockId(4), true), Event::Move(BlockId(4), BlockId(3)),
                  Event::Truncate(BlockId(2), 1, StepId(8)), Event::Release(BlockId(1))},
       .slots = {9, 10}});
  const std::string reset = serialised({.step = 10, .version = 2, .events = {Event::Reset()}});
  // The number that stands for no step: from then on no snapshot was ready.
  const std::string no_step = serialised({.step = ~std::uint64_t{0}});
  return {empty, first, first + second + reset, first + no_step};
}

}  // namespace waymark::fuzz
