// Checkpoints of stores (blockstore/store/checkpoint.h): what is loaded must be a store like any
// other.
#include "blockstore/store/checkpoint.h"

#include <memory>

#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/small_store.h"

namespace waymark::fuzz {
namespace {

std::unique_ptr<RoutingStore> Load(std::span<const std::uint8_t> bytes) {
  auto store = RoutingStore::Create(SmallOptions()).value();
  const absl::Status status = StoreCheckpoint::Load(bytes, *store);
  if (status.ok()) return store;
  Require(!status.message().empty(), "a refusal says why");
  return nullptr;
}

std::string Save(RoutingStore& store) {
  std::string bytes;
  Require(StoreCheckpoint::Save(store, bytes).ok(), "what was loaded can be saved");
  return bytes;
}

}  // namespace

void RunOne(std::span<const std::uint8_t> input) {
  const std::unique_ptr<RoutingStore> store = Load(input);
  if (store == nullptr) return;
  const std::string saved = Save(*store);
  const std::unique_ptr<RoutingStore> again = Load(AsBytes(saved));
  Require(again != nullptr && Save(*again) == saved, "what was saved is loaded as it was");
  ReadAll(*store);
  RunSteps(*store);
  ReadAll(*store);
  (void)Save(*store);
}

std::vector<std::string> Corpus() {
  const auto fresh = RoutingStore::Create(SmallOptions()).value();
  // Its last step is the number that stands for none: no snapshot was ever ready.
  std::string no_step = SmallCheckpoint();
  no_step.replace(8, 8, 8, '\xff');
  return {SmallCheckpoint(), Save(*fresh), no_step};
}

}  // namespace waymark::fuzz
