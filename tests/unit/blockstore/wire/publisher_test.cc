// The queue of a publisher, and threads that use one at once.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

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
  EXPECT_EQ(publisher->GetStats().puts_failed, 3u);
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
