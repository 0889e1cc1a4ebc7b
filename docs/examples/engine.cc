// A complete engine on Waymark's C++ classes: paged KV, a prefix cache, chunked prefill, decoding.
// The model is a hash of the tokens so far, so that every row that is read can be checked. Exits
// with 1 if a row is wrong or missing. docs/integrating.md explains it.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <waymark/plugin/capture/capture.h>

namespace {

using waymark::BlockId;
using waymark::Event;

constexpr int kLayers = 4, kTopK = 2, kExperts = 64;
constexpr int kBlock = 16, kBlocks = 24, kChunk = 24, kPrompt = 48, kTokens = 75;
constexpr int kRows = kTokens - 1;  // the last sampled token was never an input

std::uint64_t Mix(std::uint64_t h, std::uint64_t v) {
  h = (h ^ v) * 0x9e3779b97f4a7c15u;
  return h ^ (h >> 29);
}

// Id i of layer i / kTopK; the ids of a layer are distinct.
std::int16_t Route(std::uint64_t prefix, int i) {
  const std::uint64_t h = Mix(prefix, static_cast<std::uint64_t>(i / kTopK) + 1);
  return static_cast<std::int16_t>((h + static_cast<std::uint64_t>(i % kTopK) * (h >> 32 | 1)) %
                                   kExperts);
}

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

struct Block {
  int users = 0;
  std::uint64_t key = 0, used = 0;
};

}  // namespace

int main() {
  const waymark::RoutingShape shape = {
      .num_layers = kLayers, .top_k = kTopK, .num_experts = kExperts, .page_tokens = kBlock};
  auto created = waymark::Capture::Create({.store = {.shape = shape, .num_blocks = kBlocks}});
  Check(created.status());
  waymark::Capture& capture = **created;

  std::vector<Block> pool(kBlocks);
  long rows = 0, hits = 0, wrong = 0;
  std::uint64_t step = 0;
  for (std::uint64_t request = 0; request < 200; ++request) {
    std::vector<std::uint64_t> prefix = {1};  // hash of tokens [0, t); groups of eight share most
    for (std::uint64_t t = 0; t < kTokens; ++t)
      prefix.push_back(Mix(prefix[t], t < kPrompt - 8 ? request / 8 : request * 1000 + t));
    std::vector<BlockId> blocks;
    std::vector<Event> events;
    while ((static_cast<int>(blocks.size()) + 1) * kBlock < kPrompt) {
      const std::uint64_t key = prefix[(blocks.size() + 1) * kBlock];
      const auto hit = std::find_if(pool.begin(), pool.end(),
                                    [&](const Block& block) { return block.key == key; });
      if (hit == pool.end()) break;
      ++hit->users;
      blocks.emplace_back(static_cast<int>(hit - pool.begin()));
      events.push_back(Event::Retain(blocks.back()));  // a prefix hit: one user more
    }
    int done = static_cast<int>(blocks.size()) * kBlock;
    hits += done;

    while (done < kRows) {
      const int end = done + std::clamp(kPrompt - done, 1, kChunk);
      ++step;
      std::vector<std::int64_t> slots;
      std::vector<std::int16_t> chosen;  // what the routers of the forward choose
      for (int t = done; t < end; ++t) {
        if (t / kBlock == static_cast<int>(blocks.size())) {
          Block* free = nullptr;  // the least recently used free block
          for (Block& block : pool)
            if (block.users == 0 && (free == nullptr || block.used < free->used)) free = &block;
          *free = {.users = 1};
          blocks.emplace_back(static_cast<int>(free - pool.data()));
          events.push_back(Event::Bind(blocks.back()));  // allocated
        }
        const BlockId id = blocks[static_cast<std::size_t>(t / kBlock)];
        Block& block = pool[static_cast<std::size_t>(id.value())];
        block.used = step;
        slots.push_back(std::int64_t{id.value()} * kBlock + t % kBlock);
        const std::uint64_t key = prefix[static_cast<std::size_t>(t) + 1];
        if (t % kBlock == kBlock - 1) {
          block.key = key;
          events.push_back(
              Event::Seal(id, waymark::BlockKey::FromInteger(key)));  // this step fills it
        }
        for (int i = 0; i < kLayers * kTopK; ++i)
          chosen.push_back(Route(key, i));
      }

      waymark::StepBatch batch = {.step = step, .version = 1};
      batch.events = events.data(), batch.num_events = events.size();
      batch.slots = slots.data(), batch.num_slots = slots.size();
      const auto ids =
          waymark::StepIds::TokenMajor(chosen.data(), waymark::IdType::kInt16, end - done, shape);
      const waymark::StepCode told = capture.Step(batch, &ids);
      if (!told.dropped()) Check(told.ToStatus());  // a dropped step: its rows will be missing
      Check(capture.WaitIdle(std::chrono::seconds(10)));  // `chosen` goes out of scope
      events.clear();
      done = end;
    }

    auto taken = capture.Take(blocks, 0, kRows);  // before the blocks are released
    Check(taken.status());
    for (const BlockId block : blocks) {
      --pool[static_cast<std::size_t>(block.value())].users;
      events.push_back(Event::Release(block));
    }
    Check(capture.Report(events).ToStatus());
    Check(taken->Wait(std::chrono::seconds(10)));  // from here on any thread may do this
    const auto got = taken->rows();
    Check(got.status());
    for (int t = 0; t < kRows; ++t, ++rows) {
      bool right = (*got)->infos[static_cast<std::size_t>(t)].valid();
      for (int i = 0; i < kLayers * kTopK; ++i)
        right = right && (*got)->row(t)[static_cast<std::size_t>(i)] ==
                             Route(prefix[static_cast<std::size_t>(t) + 1], i);
      wrong += right ? 0 : 1;
    }
  }
  std::printf("%ld rows, %ld from prefix hits, %ld wrong or missing\n", rows, hits, wrong);
  return wrong == 0 ? 0 : 1;
}
