// What the publisher remembers of pages is never of other rows; and its queue.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "tests/unit/blockstore/store/store_driver.h"
#include "tests/unit/blockstore/test_seed.h"
#include "tests/unit/blockstore/wire/fetch_support.h"

namespace waymark::wire {
namespace {

constexpr std::size_t kPlenty = std::size_t{1} << 28;

// A store, a publisher of its rows, and a reader.
class Pages {
 public:
  explicit Pages(const StoreOptions& options = StoreDriver::Options())
      : driver(options),
        publisher(Publisher::Create(&source, {.shape = {options.shape, {}}}).value()),
        fetcher(&source) {}

  // Publishes rows [0, rows) of the sequence that lies in `blocks`; what is fetched must be what
  // the snapshot reads.
  void Publish(const std::vector<int>& blocks, std::int64_t rows) {
    const Rows right = driver.Take(blocks, 0, rows).ReadRows().value();
    const auto handle = publisher->Publish("", driver.Take(blocks, 0, rows)).get();
    ASSERT_TRUE(handle.ok()) << handle.status();
    const auto got = fetcher.Fetch(*handle, Soon());
    ASSERT_TRUE(got.ok()) << got.status();
    ExpectSame(*got, right);
  }
  [[nodiscard]] std::uint64_t encoded() const { return publisher->GetStats().pages_encoded; }

  StoreDriver driver;
  MemorySource source{kPlenty};
  std::unique_ptr<Publisher> publisher;
  Fetcher fetcher;
};

TEST(Publisher, SharedPagesAreEncodedOnce) {
  Pages pages;
  pages.driver.Step(1, {Bind(1), Bind(2)}, pages.driver.Slots({1, 2}, 0, 8),
                    {10, 11, 12, 13, 14, 15, 16, 17});
  pages.driver.Step(2, {Seal(1, 71, 1), Bind(3), Bind(4, 71)}, pages.driver.Slots({3}, 0, 2),
                    {20, 21});
  pages.Publish({1, 2}, 8);
  EXPECT_EQ(pages.encoded(), 2u);
  pages.Publish({1, 2, 3}, 10);
  pages.Publish({1, 2}, 7);
  pages.Publish({4}, 4);  // the page of block 1, by key
  EXPECT_EQ(pages.encoded(), 2u);
  EXPECT_EQ(pages.publisher->GetStats().pages, 6u);
  // Rows that come to a page that is known: another chunk.
  pages.driver.Step(3, {}, pages.driver.Slots({3}, 2, 4), {22, 23});
  pages.Publish({1, 2, 3}, 12);
  EXPECT_EQ(pages.encoded(), 3u);
}

TEST(Publisher, APageWrittenAgainIsAnother) {
  StoreOptions options = StoreDriver::Options();
  options.num_pages = 1;
  Pages pages(options);
  pages.driver.Step(1, {Bind(1)}, pages.driver.Slots({1}, 0, 4), {1, 2, 3, 4});
  pages.Publish({1}, 4);
  // The same page under another block, then under the first one again.
  (void)pages.driver.store().WaitIdle(std::chrono::seconds(1));
  pages.driver.Step(2, {Release(1), Bind(2)}, pages.driver.Slots({2}, 0, 4), {5, 6, 7, 8});
  EXPECT_EQ(pages.driver.Read({2}, 0, 4), "5@2 6@2 7@2 8@2");
  pages.Publish({2}, 4);
  pages.driver.Step(3, {Release(2), Bind(1)}, pages.driver.Slots({1}, 0, 4), {1, 2, 3, 4});
  pages.Publish({1}, 4);
  EXPECT_EQ(pages.encoded(), 3u);
  EXPECT_EQ(pages.publisher->GetStats().objects_held, 1u);  // equal rows, equal digests
}

TEST(Publisher, RowsOfNewWeightsAreOthers) {
  Pages pages;
  pages.driver.Step(1, {Bind(1)}, pages.driver.Slots({1}, 0, 4), {1, 2, 3, 4});
  pages.driver.Step(2, {Seal(1, 5, 1)}, {}, {});
  pages.Publish({1}, 4);
  (void)pages.driver.store().WaitIdle(std::chrono::seconds(1));
  pages.driver.Step(3, {}, pages.driver.Slots({1}, 0, 4), {31, 32, 33, 34}, 2);
  EXPECT_EQ(pages.driver.Read({1}, 0, 4), "31@3 32@3 33@3 34@3");
  pages.Publish({1}, 4);
  EXPECT_EQ(pages.encoded(), 2u);
}

TEST(Publisher, RowsThatTheAuditVoidedAreNotGivenOut) {
  StoreOptions options = StoreDriver::Options();
  options.audit = true;
  Pages pages(options);
  pages.driver.Step(1, {Bind(1)}, pages.driver.Slots({1}, 0, 4), {10, 11, 12, 13});
  pages.driver.Step(2, {Seal(1, 5, 1)}, {}, {});
  pages.Publish({1}, 4);
  // A snapshot that was taken before, and published after.
  Snapshot early = pages.driver.Take({1}, 0, 4);
  pages.driver.Step(3, {}, pages.driver.Slots({1}, 0, 4), {20, 21, 22, 23});
  EXPECT_EQ(pages.driver.Show(early), "~a ~a ~a ~a");
  const auto handle = pages.publisher->Publish("", std::move(early)).get();
  ASSERT_TRUE(handle.ok());
  const auto got = pages.fetcher.Fetch(*handle, Soon());
  ASSERT_TRUE(got.ok());
  for (const RowInfo& info : got->infos)
    EXPECT_EQ(info.reason, Reason::kAudit);
  EXPECT_EQ(got->ids, std::vector<std::uint8_t>(got->ids.size()));
}

// One step writes two pages; rows of either are copied into one and the same page, one after the
// other. Page and steps are equal, and the rows are not.
TEST(Publisher, CopiedRowsHaveNoNameOfTheirPage) {
  StoreOptions options = StoreDriver::Options();
  options.num_pages = 3;
  Pages pages(options);
  pages.driver.Step(1, {Bind(1), Bind(2)}, pages.driver.Slots({1, 2}, 0, 8),
                    {10, 11, 12, 13, 14, 15, 16, 17});
  pages.driver.Step(2, {Bind(3), Copy(1, 3, 3)}, {}, {});
  (void)pages.driver.store().WaitIdle(std::chrono::seconds(1));
  EXPECT_EQ(pages.driver.Read({3}, 0, 4), "10@1 11@1 12@1 n");
  pages.Publish({3}, 4);
  pages.driver.Step(3, {Release(3), Bind(3)}, {}, {});
  pages.driver.Step(4, {Copy(2, 3, 3)}, {}, {});
  (void)pages.driver.store().WaitIdle(std::chrono::seconds(1));
  EXPECT_EQ(pages.driver.Read({3}, 0, 4), "14@1 15@1 16@1 n");
  pages.Publish({3}, 4);
}

TEST(Publisher, WhateverHappensToPages) {
  const std::uint64_t seed = TestSeed();
  std::uint64_t encoded = 0;
  std::uint64_t published = 0;
  for (std::uint64_t round = 0; round < 30; ++round) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " round " << round);
    std::mt19937_64 random(seed + round);
    StoreOptions options = StoreDriver::Options();
    options.num_blocks = 8;
    options.num_pages = 4 + static_cast<std::uint32_t>(random() % 8);
    options.audit = random() % 2 == 0;
    Pages pages(options);
    std::uint64_t version = 1;
    int number = 0;
    for (std::uint64_t step = 1; step < 120; ++step) {
      std::vector<Event> events;
      std::set<int> touched;
      const auto block = [&] { return static_cast<int>(random() % 8); };
      for (int n = static_cast<int>(random() % 4); n > 0; --n) {
        const int b = block();
        if (!touched.insert(b).second) continue;
        switch (random() % 7) {
          case 0:
            events.push_back(Bind(b));
            break;
          case 1:
            events.push_back(Bind(b, 1 + random() % 4));
            break;
          case 2:
            events.push_back(Release(b));
            break;
          case 3:
          case 4: {
            const int source = block();
            if (!touched.insert(source).second) break;
            events.push_back(Copy(source, b, static_cast<int>(1 + random() % 4)));
            break;
          }
          case 5:
            events.push_back(Truncate(b, static_cast<int>(random() % 4), step));
            break;
          default:
            events.push_back(Seal(b, 1 + random() % 4, std::max<std::uint64_t>(1, step - 1)));
        }
      }
      if (random() % 30 == 0) ++version;
      if (random() % 60 == 0) events.push_back(Event::Reset());
      std::vector<std::int64_t> slots;
      std::vector<int> numbers;
      for (int n = static_cast<int>(random() % 3); n > 0; --n) {
        const int b = block();
        for (int row = static_cast<int>(random() % 4); row < 4; ++row) {
          slots.push_back(b * 4 + row);
          numbers.push_back(random() % 20 == 0 ? -1 : number++ % 1000);
        }
      }
      pages.driver.Begin(step, events, slots, version);
      if (HasFatalFailure()) return;
      if (random() % 10 == 0) {
        ASSERT_TRUE(pages.driver.store().Drop(StepId(step)).ok());
      } else {
        pages.driver.Submit(step, numbers);
        (void)pages.driver.store().Land(StepId(step));
      }
      ASSERT_TRUE(pages.driver.store().WaitIdle(std::chrono::seconds(1)).ok());
      std::vector<int> blocks;
      for (int n = static_cast<int>(1 + random() % 6); n > 0; --n)
        blocks.push_back(block());
      pages.Publish(blocks, static_cast<std::int64_t>(4 * blocks.size() - random() % 4));
      if (HasFatalFailure()) return;
    }
    encoded += pages.encoded();
    published += pages.publisher->GetStats().pages;
  }
  EXPECT_GT(published - encoded, 1000u);  // or the test would prove nothing
}

// ---- the queue

// Waits in Put until it is let go.
class SlowSource final : public PageSource {
 public:
  absl::Status Get(std::span<const Digest128>, Deadline, std::span<Object>) override {
    return absl::OkStatus();
  }
  absl::Status GetRanges(std::span<const ObjectRange>, Deadline, std::span<Object>) override {
    return absl::OkStatus();
  }
  absl::Status Put(std::span<const NamedObject>, Deadline) override {
    std::unique_lock<std::mutex> lock(mutex_);
    entered_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
    return absl::UnavailableError("gone");
  }
  absl::Status Holds(std::span<const Digest128>, Deadline, std::span<std::uint8_t>) override {
    return absl::OkStatus();
  }
  void AwaitPut() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return entered_; });
  }
  void Open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool entered_ = false;
  bool open_ = false;
};

TEST(Publisher, WhatIsTooMuchIsDroppedAndCounted) {
  SlowSource source;
  auto publisher =
      Publisher::Create(&source, {.shape = {StoreDriver::Shape(), {}}, .max_waiting = 2}).value();
  StoreDriver driver;
  driver.Step(1, {Bind(1)}, driver.Slots({1}, 0, 4), {1, 2, 3, 4});
  auto first = publisher->Publish("", driver.Take({1}, 0, 4));
  source.AwaitPut();
  std::vector<Publisher::Result> more;
  for (int i = 0; i < 4; ++i)
    more.push_back(publisher->Publish("", driver.Take({1}, 0, 4)));
  EXPECT_EQ(more[2].get().status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(more[3].get().status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(publisher->GetStats().dropped, 2u);
  // Names can be forgotten all the same, and take no place of the queue.
  EXPECT_TRUE(publisher->Forget("a").ok());
  EXPECT_TRUE(publisher->Forget("b").ok());
  source.Open();
  // A source that fails costs the reader rows; the handle is right all the same.
  EXPECT_TRUE(first.get().ok());
  EXPECT_TRUE(more[0].get().ok());
  EXPECT_TRUE(more[1].get().ok());
  EXPECT_EQ(publisher->GetStats().puts_failed, 3u);
  EXPECT_EQ(publisher->GetStats().objects_put, 0u);
  // Dropped or published: no page stays pinned.
  ASSERT_TRUE(driver.store().WaitIdle(std::chrono::seconds(1)).ok());
  driver.Step(2, {}, {}, {});
  EXPECT_EQ(driver.store().GetStats().snapshots_live, 0u);
}

TEST(Publisher, WhatWaitsIsCancelledAtTheEnd) {
  SlowSource source;
  auto publisher = Publisher::Create(&source, {.shape = {StoreDriver::Shape(), {}}}).value();
  StoreDriver driver;
  driver.Step(1, {Bind(1)}, driver.Slots({1}, 0, 4), {1, 2, 3, 4});
  auto first = publisher->Publish("", driver.Take({1}, 0, 4));
  source.AwaitPut();
  auto second = publisher->Publish("", driver.Take({1}, 0, 4));
  std::thread end([&] { publisher.reset(); });
  source.Open();
  end.join();
  EXPECT_TRUE(first.get().ok());
  const absl::Status status = second.get().status();
  EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kCancelled) << status;
}

TEST(Publisher, ASnapshotThatIsNeverReadyFails) {
  MemorySource source(kPlenty);
  auto publisher = Publisher::Create(&source, {.shape = {StoreDriver::Shape(), {}},
                                               .landing_timeout = std::chrono::milliseconds(20)})
                       .value();
  StoreDriver driver;
  driver.Begin(1, {Bind(1)}, driver.Slots({1}, 0, 4));
  auto result = publisher->Publish("", driver.Take({1}, 0, 4));
  EXPECT_EQ(result.get().status().code(), absl::StatusCode::kDeadlineExceeded);
  driver.Land(1, {1, 2, 3, 4});
}

// Threads that publish and fetch at once, of a store that goes on.
TEST(Publisher, ThreadsAtOnce) {
  StoreOptions options = StoreDriver::Options();
  options.landing = Landing::kThread;
  options.max_steps_in_flight = 512;
  StoreDriver driver(options);
  MemorySource source(1 << 16);
  auto publisher = Publisher::Create(&source, {.shape = {options.shape, {}}}).value();
  Fetcher fetcher(&source, {.cache_bytes = 1 << 14});
  std::mutex mutex;
  std::vector<std::shared_future<absl::StatusOr<Handle>>> handles;
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> fetched{0};
  std::vector<std::thread> readers;
  for (int t = 0; t < 3; ++t) {
    readers.emplace_back([&, t] {
      std::mt19937_64 random(static_cast<std::uint64_t>(t));
      while (!stop) {
        std::shared_future<absl::StatusOr<Handle>> handle;
        {
          const std::lock_guard<std::mutex> lock(mutex);
          if (handles.empty()) continue;
          handle = handles[random() % handles.size()];
        }
        if (!handle.get().ok()) continue;
        const auto rows = fetcher.Fetch(*handle.get(), Soon());
        ASSERT_TRUE(rows.ok());
        for (const RowInfo& info : rows->infos)
          ASSERT_TRUE(info.valid() || info.reason == Reason::kCapacity);
        ++fetched;
      }
    });
  }
  for (std::uint64_t step = 1; step <= 300; ++step) {
    const int b = static_cast<int>(step % 8);
    std::vector<int> numbers;
    for (int i = 0; i < 4; ++i)
      numbers.push_back(static_cast<int>(step) + i);
    driver.Begin(step, {Bind(b)}, driver.Slots({b}, 0, 4));
    driver.Submit(step, numbers);
    auto result = publisher->Publish("", driver.Take({b}, 0, 4)).share();
    const std::lock_guard<std::mutex> lock(mutex);
    handles.push_back(std::move(result));
  }
  for (const auto& handle : handles)
    handle.wait();
  while (fetched < 50)
    std::this_thread::yield();
  stop = true;
  for (std::thread& reader : readers)
    reader.join();
}

}  // namespace
}  // namespace waymark::wire
