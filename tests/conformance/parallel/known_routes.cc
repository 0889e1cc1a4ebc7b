#include "tests/conformance/parallel/known_routes.h"

#include <chrono>
#include <stdexcept>

#include <xxhash.h>

#include "adapters/simulators/hash.h"

namespace waymark::conformance {

void KnownRoutes::Ids(const Token& token, std::int32_t layer, std::int16_t* out) {
  const std::uint64_t where = static_cast<std::uint64_t>(token.sequence) << 40 |
                              static_cast<std::uint64_t>(token.position) << 8 |
                              static_cast<std::uint64_t>(layer);
  const std::uint64_t hash = sim::Mix(where, 0x726f757465);
  // In a random order, of which every part is seen.
  const auto first = static_cast<std::int16_t>(hash % kExperts);
  const auto other = static_cast<std::int16_t>(1 + (hash >> 8) % (kExperts - 1));
  out[0] = first;
  out[1] = static_cast<std::int16_t>((first + other) % kExperts);
}

std::vector<Token> KnownRoutes::TokensOf(std::uint64_t step) {
  std::vector<Token> tokens;
  for (std::int32_t sequence = 0; sequence < kSequences; ++sequence) {
    const std::int32_t first = step == 1 ? 0 : kPrompt + static_cast<std::int32_t>(step) - 2;
    const std::int32_t last = step == 1 ? kPrompt : first + 1;
    for (std::int32_t position = first; position < last; ++position)
      tokens.push_back({sequence, position});
  }
  return tokens;
}

std::int64_t KnownRoutes::SlotOf(const Token& token) {
  return std::int64_t{token.sequence} * kBlocks * kPageTokens + token.position;
}

std::vector<std::int64_t> KnownRoutes::SlotsOf(const std::vector<Token>& tokens,
                                               std::size_t pad_to) {
  std::vector<std::int64_t> slots;
  for (const Token& token : tokens)
    slots.push_back(SlotOf(token));
  slots.resize((slots.size() + pad_to - 1) / pad_to * pad_to, kPaddingSlot);
  return slots;
}

StepBatch KnownRoutes::BatchOf(std::uint64_t step, const std::vector<std::int64_t>& slots) {
  StepBatch batch = {.step = step, .version = 1};
  batch.slots = slots.data();
  batch.num_slots = slots.size();
  return batch;
}

std::vector<BlockId> KnownRoutes::BlocksOf(std::int32_t sequence) {
  std::vector<BlockId> blocks;
  for (std::int32_t i = 0; i < kBlocks; ++i)
    blocks.emplace_back(sequence * kBlocks + i);
  return blocks;
}

StoreOptions KnownRoutes::OptionsOf(std::int32_t first_layer, std::int32_t last_layer) {
  StoreOptions options;
  options.shape = {.num_layers = last_layer - first_layer,
                   .top_k = kTopK,
                   .num_experts = kExperts,
                   .page_tokens = kPageTokens};
  for (std::int32_t layer = first_layer; layer < last_layer; ++layer)
    options.shape.layer_ids.push_back(layer);
  options.num_blocks = kSequences * kBlocks;
  options.max_steps_in_flight = 2 * kSteps;
  options.max_step_rows = 512;
  return options;
}

std::unique_ptr<RoutingStore> KnownRoutes::MakeStore(const StoreOptions& options) {
  std::unique_ptr<RoutingStore> store = RoutingStore::Create(options).value();
  std::vector<Event> events;
  for (std::int32_t block = 0; block < options.num_blocks; ++block)
    events.push_back(Event::Bind(BlockId(block)));
  if (!store->Report(events).ok()) throw std::runtime_error("Report");
  return store;
}

Rows KnownRoutes::Read(RoutingStore& store, std::int32_t sequence) {
  absl::StatusOr<Snapshot> snapshot = store.TakeSnapshot(BlocksOf(sequence), 0, kTokens);
  if (!snapshot.ok()) throw std::runtime_error(snapshot.status().ToString());
  if (const absl::Status waited = snapshot->Wait(std::chrono::minutes(1)); !waited.ok()) {
    throw std::runtime_error(waited.ToString());
  }
  return snapshot->ReadRows().value();
}

std::string KnownRoutes::Judge(const Rows& rows, std::int32_t sequence) {
  std::string text;
  for (std::int64_t i = 0; i < rows.size(); ++i) {
    const RowInfo& info = rows.infos[static_cast<std::size_t>(i)];
    if (info.reason != Reason::kNone) {
      text += static_cast<char>('0' + static_cast<int>(info.reason));
      continue;
    }
    bool right = true;
    for (std::int32_t layer = 0; layer < rows.shape.num_layers; ++layer) {
      std::int16_t ids[kTopK];
      const auto position = static_cast<std::int32_t>(rows.first + i);
      Ids({sequence, position}, rows.shape.layer_id(layer), ids);
      for (std::int32_t k = 0; k < kTopK; ++k)
        right = right && rows.row(i)[static_cast<std::size_t>(layer * kTopK + k)] == ids[k];
    }
    text += right ? '.' : 'W';
  }
  return text;
}

std::string KnownRoutes::JudgeSequences(RoutingStore& store) {
  std::string text;
  for (std::int32_t sequence = 0; sequence < kSequences; ++sequence)
    text += Judge(Read(store, sequence), sequence) + "\n";
  return text;
}

std::string KnownRoutes::JudgeAll(RoutingStore& store) {
  XXH64_hash_t digest = 0;
  for (std::int32_t sequence = 0; sequence < kSequences; ++sequence) {
    const Rows rows = Read(store, sequence);
    digest = XXH3_64bits_withSeed(rows.ids.data(), rows.ids.size(), digest);
    for (const RowInfo& info : rows.infos)
      digest = XXH3_64bits_withSeed(&info.step, sizeof(info.step), digest);
  }
  return JudgeSequences(store) + "digest=" + std::to_string(digest) + "\n";
}

}  // namespace waymark::conformance
