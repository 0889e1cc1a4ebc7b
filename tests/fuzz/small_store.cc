#include "tests/fuzz/small_store.h"

#include <span>
#include <utility>

#include "blockstore/flight/format.h"
#include "blockstore/flight/writer.h"
#include "blockstore/store/checkpoint.h"
#include "blockstore/store/step_rows.h"
#include "tests/fuzz/fuzz_target.h"

namespace waymark::fuzz {
namespace {

// Rows that differ from step to step; each third one is not captured.
class SomeRows final : public StepRows {
 public:
  SomeRows(const RoutingShape& shape, std::uint64_t step) : shape_(shape), step_(step) {}
  void Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
            std::span<Reason> verdicts) override {
    for (std::size_t i = 0; i < destinations.size(); ++i) {
      if (destinations[i] == nullptr) continue;
      const std::uint64_t token = step_ * 31 + first + i;
      verdicts[i] = token % 3 == 0 ? Reason::kNotCaptured : Reason::kNone;
      for (std::size_t b = 0; b < shape_.row_bytes(); ++b)
        destinations[i][b] = static_cast<std::uint8_t>((token + b) % 8);
    }
  }
  void Done() override {}

 private:
  const RoutingShape shape_;
  const std::uint64_t step_;
};

std::unique_ptr<RoutingStore> Make(const StoreOptions& options) {
  auto store = RoutingStore::Create(options);
  Require(store.ok(), "a small store can be made");
  return *std::move(store);
}

}  // namespace

StoreOptions SmallOptions() {
  return {.shape = {.num_layers = 2, .top_k = 2, .num_experts = 8, .page_tokens = 4},
          .num_blocks = 8,
          .num_pages = 6,
          .null_blocks = {BlockId(0)},
          .max_steps_in_flight = 4,
          .max_step_rows = 64,
          .landing = Landing::kCaller,
          .key_seed = 1,
          .log = LogCallback::Discard()};
}

void RunStep(RoutingStore& store, std::vector<Event> events, std::vector<std::int64_t> slots) {
  const std::uint64_t step = store.last_step().value() + 1;
  for (Event& event : events) {
    if (event.type == EventType::kSeal || event.type == EventType::kTruncate) event.step = step;
  }
  SomeRows rows(store.options().shape, step);
  const StepCode code =
      store.BeginStep({step, 1, events.data(), events.size(), slots.data(), slots.size()});
  if (!code.ok()) return;
  Require(store.Submit(StepId(step), &rows).ok(), "a begun step can be submitted");
  Require(store.Land(StepId(step)), "a submitted step can be landed");
}

void RunSteps(RoutingStore& store) {
  const auto block = [](int number) { return BlockId(number); };
  const auto key = [](int number) {
    return BlockKey::FromInteger(static_cast<std::uint64_t>(number));
  };
  const StepId now(1);  // RunStep says which
  RunStep(store,
          {Event::Bind(block(1)), Event::Bind(block(2)), Event::Bind(block(3)),
           Event::Seal(block(1), key(7), now), Event::Seal(block(2), key(8), now)},
          {4, 5, 6, 7, 8, 9, 10, 11, 12, 13});
  RunStep(store,
          {Event::Copy(block(1), block(4)), Event::Copy(block(2), block(5), 2),
           Event::Retain(block(1)), Event::Truncate(block(3), 1, now)},
          {13, 4, kPaddingSlot, NotAsked(22)});
  RunStep(store,
          {Event::Move(block(4), block(5), true), Event::Move(block(5), block(4)),
           Event::Release(block(2)), Event::Bind(block(6)), Event::Bind(block(7), key(7))},
          {24, 25, 26, 27, 16});
  const std::uint64_t step = store.last_step().value() + 1;
  const std::int64_t slots[] = {14, 15};
  if (store.BeginStep({step, 2, nullptr, 0, slots, 2}).ok()) {
    Require(store.Drop(StepId(step)).ok(), "a begun step can be dropped");
  }
  if (store.BeginStep({step + 1, 2, nullptr, 0, slots, 2}).ok()) {
    Require(store.Cancel(StepId(step + 1)).ok(), "a begun step can be cancelled");
  }
  RunStep(store,
          {Event::Release(block(6)), Event::Release(block(1)), Event::Bind(block(2), key(8)),
           Event::Seal(block(6), key(9), now)},
          {8, 9, 12});
  // A schedule that has not begun: an own seal, and a block found under its version.
  const std::vector<Event> events = {Event::Seal(block(3), key(4), StepId(0)),
                                     Event::Bind(block(4), key(7)),
                                     Event::Move(block(3), block(5))};
  (void)store.Schedule(StepId(store.last_step().value() + 1), 1);
  (void)store.Report(events);
}

void ReadAll(RoutingStore& store) {
  std::vector<BlockId> blocks;
  for (std::int32_t block = 0; block < store.options().num_blocks; ++block)
    blocks.emplace_back(block);
  const std::int64_t rows = std::int64_t{store.options().num_blocks} * store.options().block_tokens;
  auto snapshot = store.TakeSnapshot(blocks, 0, rows);
  Require(snapshot.ok(), "a snapshot of all blocks can be taken");
  Require(snapshot->Ready() && snapshot->ReadRows().ok(), "a store at rest can be read");
}

std::string SmallCheckpoint() {
  const auto store = Make(SmallOptions());
  RunSteps(*store);
  std::string bytes;
  Require(StoreCheckpoint::Save(*store, bytes).ok(), "a store at rest can be saved");
  return bytes;
}

std::string SmallFlight(FlightRows rows, bool from_checkpoint) {
  StoreOptions options = SmallOptions();
  if (from_checkpoint && rows == FlightRows::kDigests)
    options.shape = flight::DigestShape(options.shape);
  const FlightInfo info = FlightInfo::Of(options, rows);
  const auto writer = FlightWriter::InMemory(info);
  options.flight = writer->sink();
  std::string checkpoint;
  {
    const auto store = Make(options);
    if (from_checkpoint) {
      StoreOptions before = options;
      before.flight = nullptr;
      const auto earlier = Make(before);
      RunSteps(*earlier);
      Require(StoreCheckpoint::Save(*earlier, checkpoint).ok(), "a store at rest can be saved");
      Require(StoreCheckpoint::Load(AsBytes(checkpoint), *store).ok(),
              "what was saved can be loaded");
    }
    RunSteps(*store);
    ReadAll(*store);
    RunSteps(*store);
    ReadAll(*store);
  }
  Require(writer->Close().ok(), "a flight in memory can be closed");
  if (!from_checkpoint) return writer->bytes();
  const std::string head = flight::EncodeHead(info);
  std::string bytes = head;
  flight::AppendRecord({.kind = FlightRecordKind::kCheckpoint, .bytes = AsBytes(checkpoint)},
                       bytes);
  return bytes + writer->bytes().substr(head.size());
}

}  // namespace waymark::fuzz
