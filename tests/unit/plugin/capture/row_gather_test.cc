// The gather of rows of a session between two ranks in one process: what it refuses, what damaged
// and hung collectives leave, and what the audit sees. Ranks that are processes are in
// tests/conformance/parallel.
#include "plugin/capture/row_gather.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <xxhash.h>

#include "plugin/capture/capture_session.h"
#include "tests/contract/allocation_counter.h"
#include "tests/support/log_lines.h"
#include "tests/support/test_seed.h"

namespace waymark {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::int32_t kLayers = 3;
constexpr std::int32_t kTopK = 2;

// Two ranks whose sessions the test drives from one thread: no call of theirs waits.
class Pair {
 public:
  struct Side {
    Pair* pair = nullptr;
    std::int32_t rank = 0;
    std::unique_ptr<RoutingStore> store;
    std::unique_ptr<CaptureSession> session;
    std::uint64_t calls = 0;
    // What becomes of what this rank receives.
    std::function<void(std::uint64_t call, std::uint8_t* bytes, std::size_t size)> spoil;
    LogLines logged;
  };

  explicit Pair(const std::function<void(StoreOptions&, CaptureOptions&, int)>& with = {}) {
    for (std::int32_t rank = 0; rank < 2; ++rank) {
      Side& side = sides_[rank];
      side.pair = this;
      side.rank = rank;
      StoreOptions store;
      store.shape = {.num_layers = kLayers, .top_k = kTopK, .num_experts = 64, .page_tokens = 4};
      store.num_blocks = 64;
      store.max_step_rows = 64;
      store.max_steps_in_flight = 64;
      CaptureOptions capture;
      capture.max_rows = 32;
      capture.num_buffers = 16;
      capture.log = side.logged.callback();
      capture.row_gather = {rank, 2, &AllGather, &side};
      if (with) with(store, capture, rank);
      side.store = RoutingStore::Create(store).value();
      capture.store = side.store.get();
      side.session = CaptureSession::Create(capture).value();
    }
  }
  ~Pair() {
    Release();
    if (::testing::Test::HasFatalFailure()) {
      Leave(0);
      Leave(1);
    }
    // As ranks do: both at the same time.
    std::thread other([this] { sides_[1].session.reset(); });
    sides_[0].session.reset();
    other.join();
    for (Side& side : sides_)
      side.store.reset();
    // A session does not wait for a call that hangs, and the call uses this object.
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return calls_inside_ == 0; });
  }

  Side& operator[](int rank) { return sides_[rank]; }
  // From now on no call returns, until Release.
  void Hold() {
    const std::lock_guard<std::mutex> lock(mutex_);
    held_ = true;
  }
  void Release() {
    const std::lock_guard<std::mutex> lock(mutex_);
    held_ = false;
    changed_.notify_all();
  }
  [[nodiscard]] std::uint64_t Calls(int rank) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return sides_[rank].calls;
  }
  // A call of `rank` that waits for the other one fails from now on.
  void Leave(int rank) {
    const std::lock_guard<std::mutex> lock(mutex_);
    left_[1 - rank] = true;
    changed_.notify_all();
  }

  static std::int16_t IdOf(std::uint64_t step, std::size_t row, std::int32_t layer, int k) {
    return static_cast<std::int16_t>((step * 7 + row * 3 + static_cast<std::size_t>(layer) * 5 +
                                      static_cast<std::size_t>(k) * 11) %
                                     64);
  }
  // Begins `step` with `slots` on both ranks and writes their views: row i has the ids of `ids_of`.
  void Begin(std::uint64_t step, const std::vector<std::int64_t>& slots,
             std::uint64_t ids_of_step = 0) {
    for (Side& side : sides_) {
      const StepCode code = BeginOn(side, step, slots);
      ASSERT_TRUE(code.ok()) << code.ToStatus();
      Write(side, step, slots.size(), ids_of_step == 0 ? step : ids_of_step);
    }
  }
  static StepCode BeginOn(Side& side, std::uint64_t step, const std::vector<std::int64_t>& slots) {
    StepBatch batch = {.step = step, .version = 1};
    batch.slots = slots.data();
    batch.num_slots = slots.size();
    return side.session->BeginStep(batch);
  }
  static void Write(Side& side, std::uint64_t step, std::size_t rows, std::uint64_t ids_of_step) {
    const CaptureView view = side.session->view(StepId(step));
    const std::size_t part = rows / 2;
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      for (std::size_t row = 0; row < part; ++row) {
        for (int k = 0; k < kTopK; ++k) {
          view.layer(layer)[row * kTopK + static_cast<std::size_t>(k)] =
              IdOf(ids_of_step, row + part * static_cast<std::size_t>(side.rank), layer, k);
        }
      }
    }
  }
  void Submit(std::uint64_t step) {
    for (Side& side : sides_)
      ASSERT_TRUE(side.session->Submit(StepId(step)).ok());
  }
  // A step of both ranks with their ids.
  void Run(std::uint64_t step, const std::vector<std::int64_t>& slots) {
    Begin(step, slots);
    Submit(step);
  }
  // A step of rank 0, of which rank 1 knows nothing.
  void RunAlone(std::uint64_t step, const std::vector<std::int64_t>& slots) {
    ASSERT_TRUE(BeginOn(sides_[0], step, slots).ok());
    Write(sides_[0], step, slots.size(), step);
    ASSERT_TRUE(sides_[0].session->Submit(StepId(step)).ok());
  }
  // Until rank 0 is in a call.
  void AwaitCall() {
    while (Calls(0) == 0)
      std::this_thread::sleep_for(milliseconds(1));
  }
  void Report(const Event& event) {
    for (Side& side : sides_)
      ASSERT_TRUE(side.store->Report({&event, 1}).ok());
  }
  // The rows of blocks 0 ... on this rank.
  Rows Read(int rank, std::int64_t rows) {
    std::vector<BlockId> blocks;
    for (std::int32_t block = 0; block * 4 < rows; ++block)
      blocks.emplace_back(block);
    Snapshot snapshot = sides_[rank].store->TakeSnapshot(blocks, 0, rows).value();
    EXPECT_TRUE(snapshot.Wait(seconds(30)).ok());
    return snapshot.ReadRows().value();
  }
  // Rows 0 ... of `rank` are those of `step`.
  void ExpectRight(int rank, std::int64_t rows, std::uint64_t step) {
    const Rows read = Read(rank, rows);
    for (std::int64_t row = 0; row < rows; ++row)
      EXPECT_TRUE(Right(read, row, step, static_cast<std::size_t>(row))) << row;
  }
  void ExpectReason(int rank, std::int64_t rows, Reason reason) {
    for (const RowInfo& info : Read(rank, rows).infos)
      EXPECT_EQ(info.reason, reason) << "rank " << rank;
  }
  // Whether row `row` of `rows`, row `of_batch` of its step, is right.
  static bool Right(const Rows& rows, std::int64_t row, std::uint64_t step, std::size_t of_batch) {
    const auto ids = rows.row(row);
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      for (int k = 0; k < kTopK; ++k) {
        if (ids[static_cast<std::size_t>(layer * kTopK + k)] != IdOf(step, of_batch, layer, k)) {
          return false;
        }
      }
    }
    return true;
  }

 private:
  // A call that has not returned. Under the mutex.
  class Inside {
   public:
    explicit Inside(Pair& pair) : pair_(pair) { ++pair_.calls_inside_; }
    ~Inside() {
      --pair_.calls_inside_;
      pair_.changed_.notify_all();
    }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    Pair& pair_;
  };

  static std::int32_t AllGather(void* context, const void* send, void* receive, std::size_t bytes) {
    Side& side = *static_cast<Side*>(context);
    Pair& pair = *side.pair;
    std::unique_lock<std::mutex> lock(pair.mutex_);
    const Inside inside(pair);
    const std::uint64_t call = side.calls++;
    pair.changed_.notify_all();
    pair.changed_.wait(lock, [&] { return !pair.held_; });
    auto& parts = pair.sent_[side.rank];
    const auto* const from = static_cast<const std::uint8_t*>(send);
    parts.emplace_back(from, from + bytes);
    pair.changed_.notify_all();
    pair.changed_.wait(
        lock, [&] { return pair.left_[side.rank] || pair.sent_[1 - side.rank].size() > call; });
    if (pair.sent_[1 - side.rank].size() <= call) return 14;
    for (int rank = 0; rank < 2; ++rank) {
      const auto& part = pair.sent_[rank][call];
      if (part.size() != bytes) return 3;
      std::memcpy(static_cast<std::uint8_t*>(receive) + static_cast<std::size_t>(rank) * bytes,
                  part.data(), bytes);
    }
    if (side.spoil) side.spoil(call, static_cast<std::uint8_t*>(receive), 2 * bytes);
    return 0;
  }

  Side sides_[2];
  std::mutex mutex_;
  int calls_inside_ = 0;
  std::condition_variable changed_;
  bool held_ = false;
  bool left_[2] = {false, false};
  std::vector<std::vector<std::uint8_t>> sent_[2];
};

std::vector<std::int64_t> Slots(std::int64_t first, std::int64_t last) {
  std::vector<std::int64_t> slots;
  for (std::int64_t slot = first; slot < last; ++slot)
    slots.push_back(slot);
  return slots;
}

TEST(RowGather, RefusesWhatIsNotSplitOverTheRanks) {
  Pair pair;
  CaptureSession& session = *pair[0].session;
  const auto slots = Slots(0, 8);
  StepBatch batch = {.step = 1, .version = 1};
  batch.slots = slots.data();
  batch.num_slots = 7;
  StepCode code = session.BeginStep(batch);
  EXPECT_EQ(code.rule, StepRule::kRankRows);
  EXPECT_THAT(code.ToStatus().message(), AllOf(HasSubstr("2 ranks"), HasSubstr("7")));
  EXPECT_EQ(session.BeginIdsStep(batch).rule, StepRule::kRankRows);
  batch.num_slots = 8;
  const auto many = Slots(0, 66);
  batch.slots = many.data();
  batch.num_slots = many.size();
  EXPECT_EQ(session.BeginStep(batch).rule, StepRule::kTooManyRows);
  EXPECT_EQ(session.BeginIdsStep(batch).rule, StepRule::kTooManyRows);
  EXPECT_EQ(session.GetStats().steps_begun, 0u);
  EXPECT_EQ(pair.Calls(0), 0u);

  // Of the rows of all ranks only its own are this rank's to hand over.
  batch.slots = slots.data();
  batch.num_slots = 8;
  ASSERT_TRUE(session.BeginStep(batch).ok());
  std::int16_t ids[8 * kLayers * kTopK] = {};
  const StepCode over =
      session.HandOver(session.view(StepId(1)), 0, StepIds::OfLayer(ids, IdType::kInt16, 8, kTopK));
  EXPECT_EQ(over.rule, StepRule::kIdsRows);
  EXPECT_EQ(over.index, 4u);
  const StepCode all =
      session.SubmitIds(StepId(1), StepIds::TokenMajor(ids, IdType::kInt16, 8, session.shape()));
  EXPECT_EQ(all.rule, StepRule::kIdsRows);
  EXPECT_EQ(all.index, 4u);
  EXPECT_EQ(
      session.SubmitIds(StepId(2), StepIds::TokenMajor(ids, IdType::kInt16, 4, session.shape()))
          .rule,
      StepRule::kStepNotInFlight);
  ASSERT_TRUE(session.Drop(StepId(1)).ok());
  pair.Leave(1);
}

// A store whose log is full drops a step without looking at its rows. They were more than the part
// that the gather sends has room for.
TEST(RowGather, RefusesMoreRowsThanAStepMayHaveAlsoWithAFullLog) {
  Pair pair([](StoreOptions& store, CaptureOptions& capture, int) {
    store.landing = Landing::kManual;
    store.log_bytes = 1;
    capture.max_rows = 128;
  });
  const Event bind = Event::Bind(BlockId(0));
  while (pair[0].store->Report({&bind, 1}).ok()) {
  }
  ASSERT_EQ(Pair::BeginOn(pair[0], 1, Slots(0, 4)).rule, StepRule::kLogFull);
  EXPECT_EQ(Pair::BeginOn(pair[0], 2, Slots(0, 256)).rule, StepRule::kTooManyRows);
  EXPECT_EQ(pair[0].session->GetStats().steps_begun, 1u);
  pair.Leave(1);
}

TEST(RowGather, RefusesACollectiveThatIsNone) {
  const auto store =
      RoutingStore::Create(
          {.shape = {.num_layers = 1, .top_k = 1, .num_experts = 8, .page_tokens = 4},
           .num_blocks = 1})
          .value();
  for (const Collective& bad : {Collective{0, 0}, Collective{2, 2}, Collective{0, 2}}) {
    CaptureOptions options;
    options.store = store.get();
    options.max_rows = 8;
    options.row_gather = bad;
    const auto session = CaptureSession::Create(options);
    EXPECT_EQ(session.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(session.status().message(), HasSubstr("collective."));
  }
}

TEST(RowGather, LandsAlsoWhenTheSessionIsGone) {
  Pair pair;
  for (std::uint64_t step = 1; step <= 8; ++step) {
    const auto first = static_cast<std::int64_t>(step - 1) * 4;
    pair.Run(step, Slots(first, first + 4));
  }
  std::thread other([&] { pair[1].session.reset(); });
  pair[0].session.reset();
  other.join();
  for (int rank = 0; rank < 2; ++rank) {
    const Rows rows = pair.Read(rank, 32);
    for (std::int64_t row = 0; row < 32; ++row) {
      ASSERT_TRUE(rows.infos[static_cast<std::size_t>(row)].valid());
      EXPECT_TRUE(Pair::Right(rows, row, static_cast<std::uint64_t>(row / 4) + 1,
                              static_cast<std::size_t>(row % 4)));
    }
  }
}

TEST(RowGather, LandsOnTheCallersThread) {
  Pair pair([](StoreOptions& store, CaptureOptions&, int) { store.landing = Landing::kCaller; });
  pair.Run(1, Slots(0, 8));
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(pair[rank].store->LandOne());
    pair.ExpectRight(rank, 8, 1);
  }
}

TEST(RowGather, AHungCollectiveEndsWithTheSession) {
  int done = 0;
  std::int16_t ids[4 * kLayers * kTopK] = {};
  Pair pair([](StoreOptions& store, CaptureOptions&, int) {
    store.teardown_timeout = milliseconds(100);
  });
  pair.Hold();
  for (std::uint64_t step = 1; step <= 3; ++step) {
    pair.RunAlone(step, Slots(0, 8));
  }
  StepBatch batch = {.step = 4, .version = 1};
  const auto slots = Slots(8, 16);
  batch.slots = slots.data();
  batch.num_slots = slots.size();
  ASSERT_TRUE(pair[0].session->BeginIdsStep(batch).ok());
  const StepIds tensor = StepIds::TokenMajor(ids, IdType::kInt16, 4, pair[0].session->shape());
  const DoneCallback count{[](void* context) { ++*static_cast<int*>(context); }, &done};
  ASSERT_TRUE(pair[0].session->SubmitIds(StepId(4), tensor, count).ok());
  pair.AwaitCall();
  const auto start = std::chrono::steady_clock::now();
  pair[0].session.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(5));
  EXPECT_EQ(done, 1);
  pair.ExpectReason(0, 16, Reason::kNotCaptured);
  ASSERT_EQ(pair[0].logged.lines().size(), 1u);
  EXPECT_THAT(pair[0].logged.lines()[0].text,
              AllOf(HasSubstr("has not returned"), HasSubstr("4 steps")));
  pair.Leave(1);  // the thread returns into nothing
  pair.Release();
}

// The sum of the clock and such a timeout overflowed: the session waited for nothing, and the rows
// were not captured.
TEST(RowGather, TheLongestTeardownWaitsForTheOtherRank) {
  Pair pair([](StoreOptions& store, CaptureOptions&, int) {
    store.teardown_timeout = std::chrono::nanoseconds::max();
  });
  pair.Hold();
  pair.Run(1, Slots(0, 8));
  std::thread release([&pair] {
    std::this_thread::sleep_for(milliseconds(100));
    pair.Release();
  });
  pair[0].session.reset();
  release.join();
  pair.ExpectRight(0, 8, 1);
}

// What all_gather uses may go when the session ends, or with the call that outlasts it.
TEST(RowGather, KeepsTheOwnerOfItsCollectiveAsLongAsItMayCall) {
  for (const bool hangs : {false, true}) {
    std::weak_ptr<int> kept;
    {
      Pair pair([&](StoreOptions& store, CaptureOptions& capture, int rank) {
        store.teardown_timeout = milliseconds(100);
        if (rank != 0) return;
        const auto owner = std::make_shared<int>(1);
        kept = owner;
        capture.row_gather.owner = owner;
      });
      ASSERT_FALSE(kept.expired());
      if (hangs) pair.Hold();
      ASSERT_TRUE(Pair::BeginOn(pair[0], 1, Slots(0, 8)).ok());
      ASSERT_TRUE(pair[0].session->Submit(StepId(1)).ok());
      pair.AwaitCall();
      if (!hangs) pair.Leave(1);
      pair[0].session.reset();
      EXPECT_EQ(kept.expired(), !hangs);
      pair.Leave(1);
      pair.Release();
      while (!kept.expired())
        std::this_thread::sleep_for(milliseconds(1));
    }
  }
}

TEST(RowGather, AFailedCallLosesItsStepAndIsLoggedNowAndThen) {
  Pair pair;
  pair.Leave(1);  // rank 1 takes no part
  for (std::uint64_t step = 1; step <= 12; ++step) {
    pair.RunAlone(step, Slots(0, 4));
    ASSERT_TRUE(pair[0].store->WaitIdle(seconds(30)).ok());
  }
  pair.ExpectReason(0, 4, Reason::kNotCaptured);
  const CaptureStats stats = pair[0].session->GetStats();
  EXPECT_EQ(stats.gathers, 0u);
  EXPECT_EQ(stats.gathers_failed, 12u);
  EXPECT_TRUE(pair[0].session->status().ok());
  // The 1st and the 10th.
  const auto lines = pair[0].logged.lines();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[0].text, AllOf(HasSubstr("step 1 "), HasSubstr("answered 14")));
  EXPECT_THAT(lines[1].text, AllOf(HasSubstr("step 10 "), HasSubstr("problem 10")));
}

TEST(RowGather, TooManyStepsThatWaitEndItForGood) {
  Pair pair;
  pair.Hold();
  std::uint64_t step = 0;
  const auto slots = Slots(0, 4);
  // Those that have memory, and then those that are dropped as they begin.
  for (; step < RowGather::kMostWaiting; ++step) {
    const StepCode code = Pair::BeginOn(pair[0], step + 1, slots);
    if (code.ok()) {
      ASSERT_TRUE(pair[0].session->Submit(StepId(step + 1)).ok());
    } else {
      ASSERT_TRUE(code.dropped());
    }
    pair.AwaitCall();
  }
  EXPECT_TRUE(pair[0].session->status().ok());
  EXPECT_TRUE(Pair::BeginOn(pair[0], ++step, slots).dropped());
  EXPECT_EQ(pair[0].session->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Pair::BeginOn(pair[0], ++step, slots).dropped());
  pair.Leave(1);
  pair.Release();
  ASSERT_TRUE(pair[0].store->WaitIdle(seconds(30)).ok());
  EXPECT_EQ(pair.Calls(0), 1u);
  pair.ExpectReason(0, 4, Reason::kCapacity);
}

// Bits of what a rank receives are turned over: in headers, verdicts and rows.
TEST(RowGather, DamagedPartsNeverGiveOtherRows) {
  TestRandom random;
  Pair pair;
  pair[0].spoil = [&](std::uint64_t, std::uint8_t* bytes, std::size_t size) {
    for (int i = 0; i < 3; ++i)
      bytes[random() % size] ^= static_cast<std::uint8_t>(1 + random() % 255);
  };
  std::int64_t right = 0, missing = 0;
  for (std::uint64_t step = 1; step <= 300; ++step) {
    pair.Run(step, Slots(0, 16));
    const Rows rows = pair.Read(0, 16);
    for (std::int64_t row = 0; row < 16; ++row) {
      const RowInfo& info = rows.infos[static_cast<std::size_t>(row)];
      if (info.valid()) {
        ASSERT_TRUE(Pair::Right(rows, row, step, static_cast<std::size_t>(row))) << "step " << step;
        ++right;
      } else {
        ASSERT_EQ(info.reason, Reason::kNotCaptured);
        ++missing;
      }
    }
    for (const RowInfo& info : pair.Read(1, 16).infos)
      ASSERT_TRUE(info.valid());
  }
  EXPECT_GT(right, 0);
  EXPECT_GT(missing, 1000);
}

// A part that seems to say that it was dropped.
TEST(RowGather, AReasonThatWasDamagedIsNotTaken) {
  Pair pair;
  pair[0].spoil = [](std::uint64_t, std::uint8_t* bytes, std::size_t size) {
    constexpr std::size_t kMissing = 48;  // of the header
    bytes[size / 2 + kMissing] = static_cast<std::uint8_t>(Reason::kCapacity);
  };
  pair.Run(1, Slots(0, 4));
  const Rows rows = pair.Read(0, 4);
  EXPECT_TRUE(rows.infos[0].valid() && rows.infos[1].valid());
  EXPECT_EQ(rows.infos[2].reason, Reason::kNotCaptured);
  EXPECT_EQ(rows.infos[3].reason, Reason::kNotCaptured);
}

// The other rank has a reason that this build does not know: it was an index of the tallies.
TEST(RowGather, AVerdictThatIsNoReasonIsNotCaptured) {
  Pair pair;
  pair[0].spoil = [](std::uint64_t, std::uint8_t* bytes, std::size_t size) {
    constexpr std::size_t kRowsCheck = 56, kCheck = 64, kHeader = 72;
    std::uint8_t* const part = bytes + size / 2;
    part[kHeader] = kNumReasons;
    part[kHeader + 1] = 255;
    const auto digest = [part](std::size_t at, std::uint64_t of) {
      std::memcpy(part + at, &of, sizeof(of));
    };
    digest(kRowsCheck, XXH3_64bits(part + kHeader, size / 2 - kHeader));
    digest(kCheck, XXH3_64bits(part, kCheck));
  };
  pair.Run(1, Slots(0, 6));
  const Rows rows = pair.Read(0, 6);
  for (std::size_t row = 0; row < 6; ++row) {
    const bool bad = row == 3 || row == 4;
    EXPECT_EQ(rows.infos[row].reason, bad ? Reason::kNotCaptured : Reason::kNone) << row;
  }
  EXPECT_TRUE(pair[0].logged.lines().empty());
}

// A sealed block was given to another request, which nobody reported. Of its rows a layer is silent;
// rows 2 and 3 are those of rank 1. As of a session without ranks, a row with an invalid id, too,
// counts as not written in all its layers, though the first fault that is found is the silent one.
TEST(RowGather, TheAuditSeesTheWrittenLayersOfRowsOfAnotherRankUnlessAnIdIsInvalid) {
  for (const bool invalid : {false, true}) {
    Pair pair([](StoreOptions& store, CaptureOptions&, int) { store.audit_threshold = .5; });
    pair.Report(Event::Bind(BlockId(0)));
    pair.Run(1, Slots(0, 4));
    pair.Report(Event::Seal(BlockId(0), BlockKey::FromInteger(1), StepId(1)));
    pair.Begin(2, {kPaddingSlot, kPaddingSlot, 2, 3}, 5);
    const CaptureView view = pair[1].session->view(StepId(2));
    std::fill_n(view.layer(1), 2 * kTopK, std::int16_t{-1});
    if (invalid) std::fill_n(view.layer(2), 2 * kTopK, std::int16_t{64});
    pair.Submit(2);
    for (int rank = 0; rank < 2; ++rank) {
      pair.ExpectReason(rank, 4, invalid ? Reason::kNone : Reason::kAudit);
      EXPECT_EQ(pair[rank].store->TakeFindings().size(), invalid ? 0u : 1u) << "rank " << rank;
    }
  }
}

TEST(RowGather, TheStepPathAllocatesNothing) {
  Pair pair;
  const auto slots = Slots(0, 16);
  for (std::uint64_t step = 1; step <= 40; ++step) {
    const std::uint64_t before = AllocationsOfThisThread();
    for (int rank = 0; rank < 2; ++rank) {
      (void)Pair::BeginOn(pair[rank], step, slots);
      if (step % 7 == 0) {
        (void)pair[rank].session->Drop(StepId(step));
      } else if (step % 11 == 0) {
        (void)pair[rank].session->Cancel(StepId(step));
      } else {
        (void)pair[rank].session->Submit(StepId(step));
      }
    }
    if (step > 2) {
      EXPECT_EQ(AllocationsOfThisThread(), before) << "step " << step;
    }
    ASSERT_TRUE(pair[0].store->WaitIdle(seconds(30)).ok());
    ASSERT_TRUE(pair[1].store->WaitIdle(seconds(30)).ok());
  }
}

}  // namespace
}  // namespace waymark
