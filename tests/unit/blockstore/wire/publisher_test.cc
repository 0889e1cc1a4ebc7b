// The queue of a publisher, and threads that use one at once.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "blockstore/wire/object_cache.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test_seed.h"
#include "tests/support/wire_samples.h"
#include "tests/unit/blockstore/wire/fetch_support.h"

namespace waymark::wire {
namespace {

const RoutingShape kShape{.num_layers = 2, .top_k = 2, .num_experts = 1000, .page_tokens = 4};

// A page, valid from step `step`.
Rows PageOf(std::uint64_t step) {
  return wire_samples::RowsOf(kShape, 0,
                              std::vector<RowInfo>(4, {step, 1, Reason::kNone, Provenance::kHere}));
}

TEST(Publisher, SharedPagesAreOneObject) {
  MemorySource source(std::size_t{1} << 20);
  const auto publisher = Publisher::Create(&source, {.shape = {kShape, {}}}).value();
  for (const std::uint64_t step : {1, 1, 2}) {
    const Rows rows = PageOf(step);
    const auto handle = PublishRows(*publisher, "", rows).value();
    ExpectSame(Fetcher(&source).Fetch(handle, Soon()).value(), rows);
  }
  EXPECT_EQ(publisher->GetStats().pages, 3u);
  EXPECT_EQ(publisher->GetStats().objects_put, 3u);   // a chunk, and a node for each step
  EXPECT_EQ(publisher->GetStats().objects_held, 3u);  // the chunk twice, the node once
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
    ++entered_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
    return absl::UnavailableError("gone");
  }
  absl::Status Holds(std::span<const Digest128>, Deadline, std::span<std::uint8_t>) override {
    return absl::OkStatus();
  }
  void AwaitPut(int calls = 1) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return entered_ >= calls; });
  }
  void Open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int entered_ = 0;
  bool open_ = false;
};

TEST(Publisher, WhatIsTooMuchIsDroppedAndCounted) {
  SlowSource source;
  auto publisher = Publisher::Create(&source, {.shape = {kShape, {}}, .max_waiting = 2}).value();
  auto first = publisher->Publish("", PageOf(1));
  source.AwaitPut();
  std::vector<Publisher::Result> more;
  for (int i = 0; i < 4; ++i)
    more.push_back(publisher->Publish("", PageOf(1)));
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
  EXPECT_EQ(publisher->GetStats().puts_failed, 2u);  // those that waited were put together
  EXPECT_EQ(publisher->GetStats().objects_put, 0u);
}

TEST(Publisher, WhatWaitsIsCancelledAtTheEnd) {
  SlowSource source;
  auto publisher = Publisher::Create(&source, {.shape = {kShape, {}}}).value();
  auto first = publisher->Publish("", PageOf(1));
  source.AwaitPut();
  auto second = publisher->Publish("", PageOf(1));
  std::thread end([&] { publisher.reset(); });
  source.Open();
  end.join();
  EXPECT_TRUE(first.get().ok());
  const absl::Status status = second.get().status();
  EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kCancelled) << status;
}

// Bug: joined pipeline stages number all their layers, and no publisher of them took them.
TEST(Publisher, LayersThatAreNumberedFromZeroAreTheSameShape) {
  MemorySource source(1 << 16);
  RoutingShape numbered = kShape;
  numbered.layer_ids.resize(static_cast<std::size_t>(kShape.num_layers));
  std::iota(numbered.layer_ids.begin(), numbered.layer_ids.end(), 0);
  for (const bool publisher_numbers : {false, true}) {
    const RoutingShape& shape = publisher_numbers ? numbered : kShape;
    auto publisher = Publisher::Create(&source, {.shape = {shape, {}}}).value();
    for (const bool rows_number : {false, true}) {
      Rows rows = PageOf(1);
      rows.shape = rows_number ? numbered : kShape;
      EXPECT_TRUE(publisher->Publish("", std::move(rows)).get().ok());
    }
  }
}

class CountingSource final : public OverSource {
 public:
  explicit CountingSource(PageSource* source) : OverSource(source) {}
  absl::Status Holds(std::span<const Digest128> digests, Deadline deadline,
                     std::span<std::uint8_t> held) override {
    ++holds;
    return OverSource::Holds(digests, deadline, held);
  }
  absl::Status Put(std::span<const NamedObject> objects, Deadline deadline) override {
    ++puts;
    return OverSource::Put(objects, deadline);
  }
  std::atomic<int> holds{0}, puts{0};
};

TEST(Publisher, DoesNotAskForWhatFollowsANewNode) {
  RoutingShape shape{.num_layers = 64, .top_k = 8, .num_experts = 256, .page_tokens = 16};
  Rows rows;
  rows.shape = shape;
  rows.infos.resize(16 * 64 * 12, RowInfo{.step = 1, .reason = Reason::kNone});
  rows.ids.resize(rows.infos.size() * shape.row_bytes());
  for (std::size_t i = 0; i < rows.ids.size(); ++i)
    rows.ids[i] = static_cast<std::uint8_t>(i % 8 + 8 * (i / 4096 % 31));
  MemorySource memory(1 << 28);
  CountingSource source(&memory);
  auto publisher = Publisher::Create(&source, {.shape = {shape, {}}}).value();
  ASSERT_TRUE(publisher->Publish("", rows).get().ok());
  const int puts = source.puts;
  EXPECT_GE(puts, 2);
  EXPECT_LE(source.holds, 2);  // the second put may begin before the first answer
  ASSERT_TRUE(publisher->Publish("", rows).get().ok());
  EXPECT_EQ(source.puts, puts) << "all is held";
  EXPECT_GE(source.holds, 3);
  EXPECT_EQ(Fetcher(&source).Fetch(publisher->Publish("", rows).get()->handle, Soon())->ids,
            rows.ids);
}

// ---- publications that are put together, or while others are encoded

// Takes its time, fails now and then, and counts how often it has taken an object.
class MoodySource final : public OverSource {
 public:
  MoodySource(PageSource* source, std::uint64_t seed, bool fails)
      : OverSource(source), random_(seed), fails_(fails) {}
  absl::Status Put(std::span<const NamedObject> objects, Deadline deadline) override {
    std::uint64_t mood;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      mood = random_();
    }
    const bool fails = fails_ && mood / 3000 % 5 == 0;
    // As those that time out, a call that fails is a slow one.
    std::this_thread::sleep_for(std::chrono::microseconds(fails ? 20000 : mood % 3000));
    const auto taken = objects.first(fails ? objects.size() / 2 : objects.size());
    const absl::Status put = OverSource::Put(taken, deadline);
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const NamedObject& named : taken)
      most_often = std::max(most_often, ++times_[named.digest]);
    return fails ? absl::UnavailableError("not in the mood") : put;
  }
  int most_often = 0;

 private:
  std::mutex mutex_;
  std::mt19937_64 random_;
  std::unordered_map<Digest128, int, DigestHash> times_;
  const bool fails_;
};

// Any number of publications wait: of one page and of many parts, with pages in common, of
// sequences that go on, and of ids that cannot be encoded, between others that can.
TEST(Publisher, EachOfThoseThatArePutTogetherIsWhole) {
  RoutingShape shape{.num_layers = 32, .top_k = 8, .num_experts = 200, .page_tokens = 16};
  const ChunkCode code = ChunkCode::SetCodeFor(shape);
  const auto rows_of = [&](std::uint64_t seed, std::int64_t size) {
    std::mt19937_64 random(seed);
    Rows rows =
        wire_samples::RowsOf(shape, 0,
                             std::vector<RowInfo>(static_cast<std::size_t>(size),
                                                  {seed, 1, Reason::kNone, Provenance::kHere}));
    rows.ordered = false;
    for (std::size_t i = 0; i < rows.ids.size(); i += 8) {
      const auto first = static_cast<std::uint8_t>(random() % 20);
      for (std::size_t k = 0; k < 8; ++k)
        rows.ids[i + k] = static_cast<std::uint8_t>(first + 20 * k);
    }
    return rows;
  };
  const std::uint64_t seed = TestSeed();
  for (std::uint64_t n = 0; n < PlainOr(24u, 4u) && !HasFailure(); ++n) {
    SCOPED_TRACE(::testing::Message() << "--seed=" << seed << ", round " << n);
    std::mt19937_64 random(seed + n);
    const Rows prompt = rows_of(1000, 700);
    MemorySource memory(std::size_t{1} << 28);
    MoodySource source(&memory, random(), n % 2 == 1);
    auto publisher = Publisher::Create(&source, {.shape = {shape, code}}).value();
    struct Expected {
      Rows rows;
      bool refused;
      Publisher::Result result;
    };
    std::vector<Expected> all;
    for (int i = 0; i < 16; ++i) {
      const std::int64_t most[] = {20, 400, 3000, 12000};
      const auto size = static_cast<std::int64_t>(1 + random() % most[random() % 4]);
      Rows rows = rows_of(seed + n * 100 + static_cast<std::uint64_t>(i), size);
      if (random() % 2 == 0) {  // a prompt that others have, too
        const std::int64_t shared = std::min<std::int64_t>(size, 700);
        std::copy_n(prompt.infos.begin(), shared, rows.infos.begin());
        std::copy_n(prompt.ids.begin(), shared * 256, rows.ids.begin());
      }
      const bool refused = random() % 5 == 0;
      if (refused) rows.ids.back() = 255;
      const std::string name = absl::StrCat("of ", i);
      if (!refused && random() % 2 == 0) {
        const auto half = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(size));
        all.push_back(
            {Slice(rows, 0, half), false, publisher->Publish(name, Slice(rows, 0, half))});
        all.push_back({rows, false, publisher->Publish(name, Slice(rows, half, size))});
      } else {
        all.push_back({rows, refused, publisher->Publish(name, rows)});
      }
      if (random() % 3 == 0) {
        EXPECT_TRUE(publisher->Forget(name).ok());
      }
    }
    std::uint64_t incomplete = 0, refused = 0;
    for (Expected& one : all) {
      const auto published = one.result.get();
      ASSERT_EQ(published.ok(), !one.refused) << published.status();
      if (one.refused) {
        EXPECT_EQ(published.status().code(), absl::StatusCode::kInvalidArgument);
        ++refused;
        continue;
      }
      const Rows got = Fetcher(&memory).Fetch(published->handle, Soon()).value();
      if (published->put.ok()) {
        ExpectSame(got, one.rows);
        continue;
      }
      ++incomplete;
      for (std::size_t i = 0; i < got.infos.size(); ++i) {
        if (!got.infos[i].valid()) continue;
        ASSERT_TRUE(std::equal(got.ids.begin() + i * 256, got.ids.begin() + (i + 1) * 256,
                               one.rows.ids.begin() + i * 256));
      }
    }
    const PublisherStats stats = publisher->GetStats();
    EXPECT_EQ(stats.published, all.size() - refused);
    EXPECT_EQ(stats.failed, refused);
    EXPECT_EQ(stats.incomplete, incomplete);
    if (n % 2 == 0) {
      EXPECT_EQ(incomplete, 0u);
      EXPECT_LE(source.most_often, 1) << "what one call puts, another does not";
    }
  }
}

// The next publication is put while a large one is, and a result is ready when its own puts are.
TEST(Publisher, APutDoesNotHoldUpTheNext) {
  RoutingShape shape{.num_layers = 64, .top_k = 8, .num_experts = 256, .page_tokens = 16};
  Rows large = wire_samples::RowsOf(
      shape, 0, std::vector<RowInfo>(16 * 64 * 2, {1, 1, Reason::kNone, Provenance::kHere}));
  Rows other = large;
  std::mt19937_64 random(1);  // no page is another, which would be put once, after the first
  for (Rows* const rows : {&large, &other}) {
    for (std::uint8_t& id : rows->ids)
      id = static_cast<std::uint8_t>(random());
  }
  SlowSource source;
  auto publisher = Publisher::Create(&source, {.shape = {shape, {}}}).value();
  auto first = publisher->Publish("a", std::move(large));
  auto second = publisher->Publish("b", std::move(other));
  source.AwaitPut(2);
  EXPECT_EQ(first.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  EXPECT_EQ(second.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  source.Open();
  EXPECT_EQ(first.get()->put.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(second.get()->put.code(), absl::StatusCode::kUnavailable);
}

// Threads that publish and fetch at once.
TEST(Publisher, ThreadsAtOnce) {
  MemorySource source(1 << 16);
  auto publisher = Publisher::Create(&source, {.shape = {kShape, {}}, .max_waiting = 512}).value();
  Fetcher fetcher(&source, {.cache_bytes = 1 << 14});
  std::mutex mutex;
  std::vector<std::shared_future<absl::StatusOr<Published>>> handles;
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> fetched{0};
  std::vector<std::thread> readers;
  for (int t = 0; t < 3; ++t) {
    readers.emplace_back([&, t] {
      std::mt19937_64 random(static_cast<std::uint64_t>(t));
      while (!stop) {
        std::shared_future<absl::StatusOr<Published>> handle;
        {
          const std::lock_guard<std::mutex> lock(mutex);
          if (handles.empty()) continue;
          handle = handles[random() % handles.size()];
        }
        if (!handle.get().ok()) continue;
        const auto rows = fetcher.Fetch(handle.get()->handle, Soon()).value();
        for (const RowInfo& info : rows.infos)
          ASSERT_TRUE(info.valid() || info.reason == Reason::kCapacity);
        ++fetched;
      }
    });
  }
  for (std::uint64_t step = 1; step <= 300; ++step) {
    auto result = publisher->Publish("", PageOf(step)).share();
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
