// What goes wrong on the threads of publishers and in fetchers: sources that throw, and no memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/failing_new.h"
#include "tests/support/log_lines.h"
#include "tests/support/wire_samples.h"
#include "tests/unit/blockstore/wire/fetch_support.h"

namespace waymark::wire {
namespace {

using testing::HasSubstr;

constexpr std::size_t kPlenty = std::size_t{1} << 28;

RoutingShape Shape() {
  return {.num_layers = 3, .top_k = 4, .num_experts = 64, .page_tokens = 4};
}

// Rows [first, last), all of them valid, of step 1 + the position.
Rows RowsAt(std::int64_t first, std::int64_t last) {
  std::vector<RowInfo> infos;
  for (std::int64_t at = first; at < last; ++at) {
    infos.push_back({1, static_cast<std::uint64_t>(at) + 1, Reason::kNone, Provenance::kHere});
  }
  return wire_samples::RowsOf(Shape(), first, std::move(infos));
}

// ---- a source that throws

enum class Throws { kNever, kGet, kGetRanges, kPut, kHolds };

class ThrowingSource final : public PageSource {
 public:
  absl::Status Get(std::span<const Digest128> digests, Deadline deadline,
                   std::span<Object> objects) override {
    return Call(Throws::kGet), source_.Get(digests, deadline, objects);
  }
  absl::Status GetRanges(std::span<const ObjectRange> ranges, Deadline deadline,
                         std::span<Object> objects) override {
    return Call(Throws::kGetRanges), source_.GetRanges(ranges, deadline, objects);
  }
  absl::Status Put(std::span<const NamedObject> objects, Deadline deadline) override {
    return Call(Throws::kPut), source_.Put(objects, deadline);
  }
  absl::Status Holds(std::span<const Digest128> digests, Deadline deadline,
                     std::span<std::uint8_t> held) override {
    return Call(Throws::kHolds), source_.Holds(digests, deadline, held);
  }

  std::atomic<Throws> at = Throws::kNever;

 private:
  void Call(Throws now) const {
    if (now == at.load()) throw std::runtime_error("the disk is gone");
  }
  MemorySource source_{kPlenty};
};

TEST(PublisherFailure, ASourceThatThrowsIsASourceThatFails) {
  for (const Throws at : {Throws::kPut, Throws::kHolds}) {
    SCOPED_TRACE(static_cast<int>(at));
    ThrowingSource source;
    LogLines lines;
    const auto publisher =
        Publisher::Create(&source, {.shape = {Shape(), {}}, .log = lines.callback()}).value();
    source.at = at;
    const absl::StatusOr<Published> published = publisher->Publish("a", RowsAt(0, 6)).get();
    ASSERT_TRUE(published.ok()) << published.status();
    // Without an answer what it holds, every object is put.
    EXPECT_EQ(published->put.ok(), at == Throws::kHolds) << published->put;
    EXPECT_TRUE(PublishRows(*publisher, "b", RowsAt(0, 6)).ok());
    const PublisherStats stats = publisher->GetStats();
    EXPECT_EQ(stats.incomplete, at == Throws::kPut ? 2u : 0u);
    EXPECT_GE(stats.puts_failed, 2u);
    EXPECT_EQ(stats.exceptions, stats.puts_failed);
    const std::vector<LogLines::Line> logged = lines.lines();
    ASSERT_EQ(logged.size(), 1u) << "once";
    EXPECT_EQ(logged[0].level, LogLevel::kWarning);
    EXPECT_THAT(logged[0].text, HasSubstr("the disk is gone"));
    // The thread goes on, and so does the sequence; what was not put stays so.
    source.at = Throws::kNever;
    EXPECT_EQ(publisher->Publish("a", RowsAt(6, 9)).get()->put.ok(), at == Throws::kHolds);
    EXPECT_TRUE(publisher->Publish("a", RowsAt(0, 9)).get()->put.ok());
    const auto whole = PublishRows(*publisher, "c", RowsAt(0, 6)).value();
    Fetcher fetcher(&source);
    ExpectSame(fetcher.Fetch(whole, Soon()).value(), RowsAt(0, 6));
  }
}

TEST(FetcherFailure, ASourceThatThrowsIsASourceThatFails) {
  ThrowingSource source;
  const auto publisher = Publisher::Create(&source, {.shape = {Shape(), {}}}).value();
  const Handle handle = PublishRows(*publisher, "a", RowsAt(0, 6)).value();
  for (const Throws at : {Throws::kGet, Throws::kGetRanges}) {
    SCOPED_TRACE(static_cast<int>(at));
    source.at = at;
    Fetcher fetcher(&source);
    FetchReport report;
    const auto rows = fetcher.Fetch(handle, {0, 6, 1, 2}, Soon(), &report).value();
    EXPECT_EQ(report.source.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(report.source.message(), HasSubstr("the disk is gone"));
    for (std::int64_t row = 0; row < 4; ++row)
      EXPECT_EQ(rows.infos[static_cast<std::size_t>(row)].reason, Reason::kCapacity);
    source.at = Throws::kNever;
    EXPECT_TRUE(fetcher.Fetch(handle, {0, 6, 1, 2}, Soon(), &report)->infos[0].valid());
    EXPECT_TRUE(report.source.ok());
  }
}

// ---- no memory

// Publishes two sequences in two parts each and fetches them. An allocation fails meanwhile.
class Scenario {
 public:
  Scenario() {
    for (int i = 0; i < 3; ++i) {
      first_.push_back(RowsAt(0, 6));
      rest_.push_back(RowsAt(6, 13));
    }
  }

  // Runs it with the n-th allocation failing; returns how many there were.
  std::uint64_t Run(std::uint64_t n, bool and_all_after) {
    MemorySource source(kPlenty);
    std::unique_ptr<Publisher> publisher;
    std::unique_ptr<Fetcher> fetcher;
    FailAllocation(n, and_all_after);
    try {
      absl::StatusOr<std::unique_ptr<Publisher>> made = Publisher::Create(&source, options_);
      made_ = made.ok();
      if (made_) publisher = *std::move(made);
    } catch (...) {
      ADD_FAILURE() << "Create throws";
    }
    if (made_) {
      // What throws here is on the caller's thread.
      try {
        fetcher = std::make_unique<Fetcher>(&source);
        for (int round = 0; round < 2; ++round)
          Use(*publisher, *fetcher, round);
      } catch (const std::bad_alloc&) {
      }
    }
    const std::uint64_t seen = AllocationsSeen();
    FailAllocation(0);
    if (!made_) return seen;
    // Nothing is pending for ever.
    for (std::optional<Publisher::Result>& result : results_) {
      if (!result.has_value()) continue;
      EXPECT_EQ(result->wait_for(std::chrono::seconds(20)), std::future_status::ready);
      const absl::StatusOr<Published> handle = result->get();
      failed_ += handle.ok() ? 0 : 1;
      EXPECT_TRUE(handle.ok() || IsAllowed(handle.status())) << handle.status();
      if (handle.ok() && fetcher != nullptr) Check(fetcher->Fetch(handle->handle, Soon()));
    }
    for (const absl::StatusOr<Rows>& rows : fetched_) {
      EXPECT_TRUE(rows.ok() || IsAllowed(rows.status())) << rows.status();
      Check(rows);
    }
    // Both go on.
    const absl::StatusOr<Handle> late = PublishRows(*publisher, "c", std::move(first_.back()));
    EXPECT_TRUE(late.ok()) << late.status();
    const absl::StatusOr<Handle> more = PublishRows(*publisher, "c", std::move(rest_.back()));
    EXPECT_TRUE(more.ok()) << more.status();
    if (more.ok()) ExpectSame(Fetcher(&source).Fetch(*more, Soon()).value(), RowsAt(0, 13));
    return seen;
  }

  [[nodiscard]] bool made() const { return made_; }
  [[nodiscard]] int failed() const { return failed_; }
  [[nodiscard]] int valid() const { return valid_; }

 private:
  static bool IsAllowed(const absl::Status& status) {
    return absl::IsResourceExhausted(status) ||
           absl::IsFailedPrecondition(status);  // rows that go on where a publication failed
  }
  void Use(Publisher& publisher, Fetcher& fetcher, int round) {
    const auto at = static_cast<std::size_t>(round);
    const char* const name = round == 0 ? "a" : "b";
    results_[2 * at] = publisher.Publish(name, std::move(first_[at]));
    results_[2 * at + 1] = publisher.Publish(name, std::move(rest_[at]));
    for (std::size_t i = 2 * at; i < 2 * at + 2; ++i) {
      if (results_[i]->wait_for(std::chrono::seconds(20)) != std::future_status::ready) return;
    }
    const absl::StatusOr<Published> handle = results_[2 * at + 1]->get();
    results_[2 * at + 1].reset();
    failed_ += handle.ok() ? 0 : 1;
    if (!handle.ok()) return;
    fetched_[2 * at] = fetcher.Fetch(handle->handle, Soon());
    fetched_[2 * at + 1] = fetcher.Fetch(handle->handle, {2, 11, 1, 2}, Soon());
  }
  void Check(const absl::StatusOr<Rows>& rows) {
    if (!rows.ok() || rows->infos.empty()) return;
    const bool all_layers = rows->shape.num_layers == 3;
    const Rows right = RowsAt(rows->first, rows->last());
    for (std::int64_t i = 0; i < rows->size(); ++i) {
      if (!rows->infos[static_cast<std::size_t>(i)].valid()) continue;
      ++valid_;
      const std::size_t layer = all_layers ? 0 : right.shape.row_bytes() / 3;
      EXPECT_TRUE(std::equal(rows->row(i).begin(), rows->row(i).end(),
                             right.row(i).begin() + static_cast<std::ptrdiff_t>(layer)))
          << "a wrong row " << i;
    }
  }

  const PublisherOptions options_{.shape = {Shape(), {}}, .store = "memory", .cpus = {}};
  std::vector<Rows> first_, rest_;
  std::array<std::optional<Publisher::Result>, 4> results_;
  std::array<absl::StatusOr<Rows>, 4> fetched_{Rows{}, Rows{}, Rows{}, Rows{}};
  bool made_ = false;
  int failed_ = 0;
  int valid_ = 0;
};

TEST(NoMemory, EndsAPublicationAndNotTheProcess) {
  Scenario whole;
  const std::uint64_t allocations = whole.Run(0, false);
  EXPECT_EQ(whole.failed(), 0);
  EXPECT_EQ(whole.valid(), 2 * (6 + 13 + 9)) << "every row is fetched";
  EXPECT_GT(allocations, 100u);
  int made = 0;
  int failed = 0;
  for (const bool and_all_after : {false, true}) {
    for (std::uint64_t n = 1; n <= allocations + 5 && !testing::Test::HasFailure(); ++n) {
      SCOPED_TRACE(absl::StrCat("allocation ", n, and_all_after ? " and all after" : ""));
      Scenario scenario;
      scenario.Run(n, and_all_after);
      made += scenario.made() ? 1 : 0;
      failed += scenario.failed() > 0 ? 1 : 0;
    }
  }
  EXPECT_GT(made, 100);
  EXPECT_GT(failed, 50);
  EXPECT_LT(failed, made);
}

}  // namespace
}  // namespace waymark::wire
