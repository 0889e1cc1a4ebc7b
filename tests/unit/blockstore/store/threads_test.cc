// The store under its threads: one engine that begins, ends, forks, moves and truncates as fast as
// it can, the landing thread, and readers that check every row they get against the step it names.
//
// A row's ids are a function of (step, offset in the block), and everything the engine does keeps a
// row's offset; so a valid row whose ids do not fit the step it names is torn or wrong.

#include <atomic>
#include <chrono>
#include <iostream>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "tests/support/test_seed.h"
#include "tests/unit/blockstore/store/store_driver.h"

namespace waymark {
namespace {

constexpr int kBlocks = 24;
constexpr int kBlockTokens = 8;

int NumberOf(std::uint64_t step, std::int64_t offset) {
  return static_cast<int>((step * kBlockTokens + static_cast<std::uint64_t>(offset)) & 0x7fffffff);
}

// Rows of a step, given by slots; deletes itself when the step is done.
class SelfDeletingRows final : public StepRows {
 public:
  SelfDeletingRows(const RoutingShape& shape, std::uint64_t step, std::vector<std::int64_t> slots)
      : shape_(shape), step_(step), slots_(std::move(slots)) {}
  void Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
            std::span<Reason> verdicts) override {
    for (std::size_t i = 0; i < destinations.size(); ++i) {
      if (destinations[i] == nullptr) continue;
      NumberedRows::Fill(shape_, NumberOf(step_, slots_[first + i] % kBlockTokens),
                         destinations[i]);
      verdicts[i] = Reason::kNone;
    }
  }
  void Done() override { delete this; }

 private:
  const RoutingShape& shape_;
  const std::uint64_t step_;
  const std::vector<std::int64_t> slots_;
};

struct Shared {
  std::mutex mutex;
  std::vector<Snapshot> snapshots;
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> rows{0};
  std::atomic<std::uint64_t> wrong{0};
};

void ReadAll(Shared& shared, const RoutingShape& shape) {
  std::vector<std::uint8_t> expected(shape.row_bytes());
  for (;;) {
    Snapshot snapshot;
    bool found = false;
    {
      const std::lock_guard<std::mutex> lock(shared.mutex);
      if (!shared.snapshots.empty()) {
        snapshot = std::move(shared.snapshots.back());
        shared.snapshots.pop_back();
        found = true;
      }
    }
    if (!found) {
      if (shared.stop) return;
      std::this_thread::yield();
      continue;
    }
    if (const absl::Status waited = snapshot.Wait(std::chrono::seconds(60)); !waited.ok()) {
      ADD_FAILURE() << waited;
      continue;
    }
    const absl::StatusOr<Rows> rows = snapshot.ReadRows();
    if (!rows.ok()) {
      ADD_FAILURE() << rows.status();
      continue;
    }
    for (std::int64_t i = 0; i < rows->size(); ++i) {
      const RowInfo& info = rows->infos[static_cast<std::size_t>(i)];
      if (!info.valid()) continue;
      ++shared.rows;
      NumberedRows::Fill(shape, NumberOf(info.step, (rows->first + i) % kBlockTokens),
                         expected.data());
      const std::span<const std::uint8_t> row = rows->row(i);
      if (!std::equal(row.begin(), row.end(), expected.begin())) ++shared.wrong;
    }
  }
}

// `spare`: few, so that rows are missing while snapshots are read.
void Stress(std::uint32_t pages, bool audit, std::uint32_t spare = 4 * kBlocks) {
  const std::uint64_t seed = FromEnvironment("WAYMARK_SEED", 1);
  std::cout << "seed " << seed << "\n";
  std::mt19937_64 rng(seed);
  StoreOptions options = StoreDriver::Options(4, kBlockTokens);
  options.num_blocks = kBlocks;
  options.num_pages = pages;
  options.spare_pages = spare;
  options.landing = Landing::kThread;
  options.max_steps_in_flight = 8;
  options.audit = audit;
  auto store = RoutingStore::Create(options).value();
  const RoutingShape& shape = store->options().shape;
  Shared shared;
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i)
    readers.emplace_back([&] { ReadAll(shared, shape); });

  const auto block = [&] { return static_cast<int>(rng() % kBlocks); };
  std::vector<std::pair<std::uint64_t, std::vector<std::int64_t>>> begun;
  // Until the readers have had enough to look at.
  for (std::uint64_t step = 1; step <= 3000 || (shared.rows < 8000 && step < 5000000); ++step) {
    std::vector<Event> events;
    const std::uint64_t late = step > 3 ? step - rng() % 3 : step;
    for (std::uint64_t n = rng() % 4; n > 0; --n) {
      const int a = block();
      const int b = (a + 1 + static_cast<int>(rng() % (kBlocks - 1))) % kBlocks;
      const int row = static_cast<int>(rng() % kBlockTokens);
      const std::uint64_t key = rng() % 8;
      const Event kinds[] = {Bind(a),
                             Copy(a, b),
                             Copy(a, b, row),
                             Move(a, b, true),
                             Truncate(a, row, late),
                             Seal(a, key, late),
                             Bind(a, key),
                             Retain(a),
                             Release(a)};
      events.push_back(kinds[rng() % std::size(kinds)]);
      if (events.back().type == EventType::kMove) events.push_back(Move(b, a));
    }
    if (rng() % 500 == 0) events.push_back(Event::Reset());
    std::vector<std::int64_t> slots;
    for (std::uint64_t n = rng() % 48; n > 0; --n) {
      const std::int64_t slot =
          block() * kBlockTokens + static_cast<std::int64_t>(rng() % kBlockTokens);
      slots.push_back(rng() % 10 == 0 ? NotAsked(slot) : slot);
    }
    const StepCode code = store->BeginStep(
        {step, 1 + step / 10000, events.data(), events.size(), slots.data(), slots.size()});
    ASSERT_TRUE(code.ok() || code.dropped()) << code.ToStatus();
    if (code.ok()) begun.emplace_back(step, std::move(slots));
    // A forward takes a while; without one the landing thread would find nothing but full rings.
    if (code.dropped()) std::this_thread::sleep_for(std::chrono::microseconds(100));
    // Else a landing thread that gets little time is behind by as much as the log holds.
    const bool all = step % 256 == 0;
    while (begun.size() > (all ? 0 : rng() % 4)) {
      const std::size_t at = rng() % begun.size();
      auto [number, rows] = std::move(begun[at]);
      begun.erase(begun.begin() + static_cast<std::ptrdiff_t>(at));
      const std::uint64_t how = rng() % 20;
      if (how == 0) {
        ASSERT_TRUE(store->Drop(StepId(number)).ok());
      } else if (how == 1) {
        ASSERT_TRUE(store->Cancel(StepId(number)).ok());
      } else {
        ASSERT_TRUE(
            store->Submit(StepId(number), new SelfDeletingRows(shape, number, std::move(rows)))
                .ok());
      }
    }
    if (all) {
      const absl::Status idle = store->WaitIdle(std::chrono::seconds(60));
      ASSERT_TRUE(idle.ok()) << idle;
    }
    if (rng() % 16 == 0) {
      std::vector<BlockId> blocks;
      for (int i = 0; i < 5; ++i)
        blocks.emplace_back(block());
      const std::int64_t last = static_cast<std::int64_t>(rng() % (5 * kBlockTokens + 1));
      Snapshot snapshot = store->TakeSnapshot(blocks, last / 2, last).value();
      const std::lock_guard<std::mutex> lock(shared.mutex);
      if (shared.snapshots.size() < 16) shared.snapshots.push_back(std::move(snapshot));
    }
  }
  for (auto& [number, rows] : begun)
    ASSERT_TRUE(store->Drop(StepId(number)).ok());
  EXPECT_TRUE(store->WaitIdle(std::chrono::seconds(20)).ok());
  shared.stop = true;
  for (std::thread& reader : readers)
    reader.join();
  EXPECT_EQ(shared.wrong, 0u);
  EXPECT_GE(shared.rows, 8000u);
  const Stats stats = store->GetStats();
  EXPECT_TRUE(spare >= kBlocks || stats.rows_without_page > 0);
}

TEST(Threads, EnoughPages) {
  Stress(2 * kBlocks, false);
}
TEST(Threads, FewPages) {
  Stress(kBlocks, false);
}
TEST(Threads, ReadersHoldAllSparePages) {
  Stress(2 * kBlocks, false, kBlocks / 4);
}
// Rows of different steps do not agree, so the audit voids pages under the readers' hands.
TEST(Threads, AuditVoidsUnderReaders) {
  Stress(2 * kBlocks, true);
}

// The landing thread applied records as long as there were any: an engine that appends faster than
// they are applied kept every step from landing.
TEST(Threads, AFloodOfEventsKeepsNoStepFromLanding) {
  StoreOptions options = StoreDriver::Options(4, kBlockTokens);
  options.num_blocks = kBlocks;
  options.landing = Landing::kThread;
  auto store = RoutingStore::Create(options).value();
  // Dear to apply, and cheap to append.
  std::vector<Event> events;
  for (int i = 0; i < 16; ++i)
    events.insert(events.end(), {Bind(1), Seal(1, 7, 0), Copy(1, 2), Move(2, 3, true), Move(3, 2)});
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  const auto flood = [&](int reports) {
    for (; reports > 0; --reports)
      (void)store->Report(events);
  };
  flood(10000);
  const std::vector<std::int64_t> slots = {0};
  std::uint64_t step = 0;
  StepCode begun;
  do {  // a full log drops steps
    ++step;
    begun = store->BeginStep({step, 1, nullptr, 0, slots.data(), slots.size()});
    flood(begun.ok() ? 0 : 10);
  } while (!begun.ok() && std::chrono::steady_clock::now() < deadline);
  ASSERT_TRUE(begun.ok()) << begun.ToStatus();
  std::atomic<bool> landed{false};
  struct Landed final : StepRows {
    explicit Landed(std::atomic<bool>& given) : flag(given) {}
    void Land(std::uint32_t, std::span<std::uint8_t* const>, std::span<Reason>) override {}
    void Done() override { flag = true; }
    std::atomic<bool>& flag;
  } rows(landed);
  ASSERT_TRUE(store->Submit(StepId(step), &rows).ok());
  while (!landed && std::chrono::steady_clock::now() < deadline)
    flood(10);
  EXPECT_TRUE(landed);
}

}  // namespace
}  // namespace waymark
