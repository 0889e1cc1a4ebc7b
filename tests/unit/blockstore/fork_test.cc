// Publishers, fetchers and flight recorders in a forked child of their process.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>

#include "blockstore/flight/encoder.h"
#include "blockstore/flight/recorder.h"
#include "blockstore/wire/fetcher.h"
#include "blockstore/wire/memory_source.h"
#include "blockstore/wire/publisher.h"
#include "tests/support/in_child.h"
#include "tests/unit/blockstore/store/store_driver.h"

namespace waymark {
namespace {

using wire::Fetcher;
using wire::Handle;
using wire::MemorySource;
using wire::Publisher;

std::string Name(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) ? "refused " : status.ToString() + " ";
}
wire::Deadline Soon() {
  return wire::After(std::chrono::seconds(5));
}

// Two valid rows.
Rows SomeRows() {
  StoreDriver driver;
  driver.Step(1, {Bind(1)}, driver.Slots({1}, 0, 2), {1, 2});
  return driver.Take({1}, 0, 2).ReadRows().value();
}

TEST(Fork, APublisherIsRefusedAndDestroyedAtOnce) {
  MemorySource source(1 << 20);
  auto publisher = Publisher::Create(&source, {.shape = {StoreDriver::Shape(), {}}}).value();
  ASSERT_TRUE(publisher->Publish("a", SomeRows()).get().ok());
  const std::string found = InChild([&] {
    std::string out = publisher->forked() ? "forked " : "";
    out += Name(publisher->Publish("a", SomeRows()).get().status());
    out += std::to_string(publisher->GetStats().published);
    publisher.reset();
#if defined(WAYMARK_SANITIZER_thread)  // under which such a child cannot start a thread
    return out;
  });
  EXPECT_EQ(found, "forked refused 0");
#else
    // A child may have one of its own.
    auto own = Publisher::Create(&source, {.shape = {StoreDriver::Shape(), {}}}).value();
    return out + (own->Publish("a", SomeRows()).get().ok() ? " own" : "");
  });
  EXPECT_EQ(found, "forked refused 0 own");
#endif
  EXPECT_FALSE(publisher->forked());
  EXPECT_TRUE(publisher->Publish("a", SomeRows()).get().ok()) << "the parent goes on";
}

TEST(Fork, AFetcherIsRefused) {
  MemorySource source(1 << 20);
  auto publisher = Publisher::Create(&source, {.shape = {StoreDriver::Shape(), {}}}).value();
  const Handle handle = publisher->Publish("a", SomeRows()).get()->handle;
  auto fetcher = std::make_unique<Fetcher>(&source);
  ASSERT_TRUE(fetcher->Fetch(handle, Soon()).ok());
  const std::string found = InChild([&] {
    std::string out = Name(fetcher->Fetch(handle, Soon()).status());
    out += std::to_string(fetcher->GetCounts().fetched);
    fetcher.reset();
    return out + (Fetcher(&source).Fetch(handle, Soon()).ok() ? " own" : "");
  });
  EXPECT_EQ(found, "refused 0 own");
  EXPECT_TRUE(fetcher->Fetch(handle, Soon()).ok());
}

TEST(Fork, ARecorderIsRefusedAndDestroyedAtOnce) {
  const StoreOptions options = StoreDriver::Options();
  auto recorder = FlightRecorder::Create(options, {.ring_bytes = 64 * 1024}).value();
  StoreOptions recorded = options;
  recorded.flight = recorder->sink();
  auto driver = std::make_unique<StoreDriver>(recorded);
  driver->Step(1, {Bind(1)}, driver->Slots({1}, 0, 2), {1, 2});
  const Snapshot ready = driver->Take({1}, 0, 2);
  ASSERT_TRUE(ready.Ready());
  std::string text;
  {
    // A thread of the parent that is in the recorder while the process forks.
    const MutexLock busy(static_cast<flight::FlightEncoder*>(recorder->sink().get())->mutex());
    text = InChild([&] {
      std::string out;
      const absl::StatusOr<Rows> rows = ready.ReadRows();  // is not recorded
      out += rows.ok() && rows->infos[0].valid() ? "read " : "not read ";
      std::string dump;
      out += Name(recorder->DumpTo(dump)) + Name(recorder->Dump("/nonexistent/flight"));
      out += Name(recorder->ReplayOldest());
      out += recorder->stopped().empty() ? "" : "stopped";
      driver.reset();
      recorder.reset();
      return out;
    });
  }
  EXPECT_EQ(text, "read refused refused refused stopped");
  std::string dump;
  EXPECT_TRUE(recorder->DumpTo(dump).ok());
}

}  // namespace
}  // namespace waymark
