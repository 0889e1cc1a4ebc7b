// The last reference to an owner of threads goes away in a foreign call that one of these makes.
// Pins a bug: its destructor joined the thread that it ran on, and the process was aborted.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "blockstore/flight/recorder.h"
#include "blockstore/wire/publisher.h"
#include "tests/support/in_child.h"
#include "tests/unit/plugin/capture/tier_engine.h"

namespace waymark {
namespace {

// What is released in the call of this name. Calls wait until the scene is set.
struct Scene {
  void In(std::string_view foreign) {
    std::shared_ptr<void> gone;
    {
      const std::lock_guard lock(mutex);
      if (foreign == call) gone.swap(last);
    }
    if (gone == nullptr) return;
    gone.reset();
    released = true;
  }

  std::string call;
  std::mutex mutex;
  std::shared_ptr<void> last;
  std::atomic<bool> released{false};
  LogCallback log{[](void* to, LogLevel level, const char*, std::size_t) {
                    if (level != LogLevel::kInfo) static_cast<Scene*>(to)->In("log");
                  },
                  this};
};

class Source final : public wire::PageSource {
 public:
  explicit Source(Scene& scene) : scene_(scene) {}
  ~Source() override { alive_ = false; }
  absl::Status Get(std::span<const Digest128> digests, Deadline deadline,
                   std::span<Object> objects) override {
    scene_.In("get");
    return memory_.Get(digests, deadline, objects);
  }
  absl::Status Put(std::span<const wire::NamedObject> objects, Deadline deadline) override {
    scene_.In("put");
    return memory_.Put(objects, deadline);
  }
  absl::Status Holds(std::span<const Digest128> digests, Deadline deadline,
                     std::span<std::uint8_t> held) override {
    scene_.In("holds");
    return memory_.Holds(digests, deadline, held);
  }
  absl::Status Check(Deadline) override {
    scene_.In("check");
    return alive_ ? absl::UnavailableError("so that it is logged") : absl::OkStatus();
  }

 private:
  Scene& scene_;
  bool alive_ = true;
  wire::MemorySource memory_{1 << 24};
};

bool HasThreads() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::ifstream(task.path() / "comm") >> name;
    if (name.starts_with("wm-")) return true;
  }
  return false;
}

// What becomes of the scene that `play` sets; "": the reference was released in the call, and all
// threads ended in time.
template <class Play>
std::string Becomes(const std::string& call, const Play& play) {
  return InChild([&] {
    auto* const scene = new Scene;
    scene->call = call;
    {
      const std::lock_guard lock(scene->mutex);
      play(*scene);
    }
    for (int i = 0; i < 900 && (!scene->released || HasThreads()); ++i)
      std::this_thread::sleep_for(milliseconds(10));
    return std::string(scene->released ? "" : "not called ") + (HasThreads() ? "threads left" : "");
  });
}

constexpr std::int64_t kSlots[] = {4, 5, 6, 7};

struct LastReference : testing::TestWithParam<const char*> {};

// A capture with all that has threads. "wrong": a rank of its gather fails, which is logged.
using OfACapture = LastReference;
TEST_P(OfACapture, IsReleased) {
  const auto play = [](Scene& scene) {
    Capture::Options options;
    options.store.shape = kShape;
    options.store.num_blocks = 16;
    options.store.log = scene.log;
    options.store.teardown_timeout = seconds(1);
    options.store.flight = FlightRecorder::Create(options.store).value()->sink();
    options.tier.get = std::make_shared<Source>(scene);
    options.tier.min_key_bytes = 1;
    const bool gathers = scene.call == "gather" || scene.call == "gather done";
    if (gathers) {
      options.row_gather.ranks = 2;
      options.row_gather.all_gather = [](void* to, const void*, void*, std::size_t) {
        static_cast<Scene*>(to)->In("gather");
        return 3;
      };
      options.row_gather.context = &scene;
    }
    std::shared_ptr<Capture> capture = Capture::Create(options).value();
    const Event events[] = {Event::Bind(BlockId(1)), Event::Seal(BlockId(1), KeyOf(1)),
                            Event::Bind(BlockId(2))};
    EXPECT_TRUE(capture->Report(events).ok());
    static const std::uint8_t ids[] = {1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4};
    const StepIds given = StepIds::TokenMajor(ids, IdType::kUint8, gathers ? 2 : 4, kShape);
    const DoneCallback done = {[](void* to) {
                                 static_cast<Scene*>(to)->In("done");
                                 static_cast<Scene*>(to)->In("gather done");
                               },
                               &scene};
    const StepBatch batch{.step = 1, .version = 1, .slots = kSlots, .num_slots = 4};
    EXPECT_TRUE(capture->Step(batch, &given, done).ok());
    const BlockId here[] = {BlockId(1)}, there[] = {BlockId(2)};
    const BlockKey keys[] = {KeyOf(5)};
    const TakenRows taken = capture->Take(here, 0, 4, {1, {}}).value();
    taken.WhenDone([&scene] { scene.In("taken"); });
    const TakenRows by_key = capture->Take(there, 0, 4, {1, keys}, 1).value();
    by_key.WhenDone([&scene] { scene.In("taken by key"); });
    scene.last = std::move(capture);
  };
  EXPECT_EQ(Becomes(GetParam(), play), "");
}
INSTANTIATE_TEST_SUITE_P(Calls, OfACapture,
                         testing::Values("taken", "taken by key", "done", "get", "put", "holds",
                                         "check", "log", "gather", "gather done"));

// What the landing thread asks of a step; it logs that Land throws.
using OfAStore = LastReference;
class SceneRows final : public StepRows {
 public:
  explicit SceneRows(Scene& scene) : scene_(scene) {}
  bool Poll() override { return scene_.In("Poll"), true; }
  void Land(std::uint32_t, std::span<std::uint8_t* const>, std::span<Reason>) override {
    scene_.In("Land");
    throw std::bad_alloc();
  }
  void Done() override { scene_.In("Done"); }

 private:
  Scene& scene_;
};
TEST_P(OfAStore, IsReleased) {
  const auto play = [](Scene& scene) {
    StoreOptions options{.shape = kShape, .num_blocks = 4};
    options.log = scene.log;
    std::shared_ptr<RoutingStore> store = RoutingStore::Create(options).value();
    EXPECT_TRUE(store->BeginStep({.step = 1, .version = 1, .slots = kSlots, .num_slots = 4}).ok());
    EXPECT_TRUE(store->Submit(StepId(1), new SceneRows(scene)).ok());
    scene.last = std::move(store);
  };
  EXPECT_EQ(Becomes(GetParam(), play), "");
}
INSTANTIATE_TEST_SUITE_P(Calls, OfAStore, testing::Values("Poll", "Land", "Done", "log"));

// Little is put on the publisher's thread, much ("put" of 8192 rows) on another.
struct OfAPublisher : testing::TestWithParam<std::pair<const char*, std::size_t>> {};
TEST_P(OfAPublisher, IsReleased) {
  const auto play = [](Scene& scene) {
    Rows rows;
    rows.shape = {.num_layers = 32, .top_k = 8, .num_experts = 64, .page_tokens = 16};
    rows.infos.assign(GetParam().second, {.step = 1, .version = 1, .reason = Reason::kNone});
    for (std::size_t i = 0; i < rows.infos.size() * rows.shape.row_bytes(); ++i)
      rows.ids.push_back(static_cast<std::uint8_t>(i % 8 + i / (1 << 14) % 56));
    const auto source = std::make_shared<Source>(scene);
    wire::PublisherOptions options{.shape = {rows.shape, {}}, .log = scene.log, .owner = source};
    std::shared_ptr<wire::Publisher> publisher =
        wire::Publisher::Create(source.get(), options).value();
    for (int i = 0; i < 3; ++i)
      (void)publisher->Publish("a" + std::to_string(i), rows);
    scene.last = std::move(publisher);
  };
  EXPECT_EQ(Becomes(GetParam().first, play), "");
}
INSTANTIATE_TEST_SUITE_P(Calls, OfAPublisher,
                         testing::Values(std::pair("put", 16), std::pair("put", 8192),
                                         std::pair("holds", 8192), std::pair("check", 16),
                                         std::pair("log", 16)));

TEST(OfARecorder, IsReleasedInItsLog) {
  const auto play = [](Scene& scene) {
    const RecorderOptions ring{.ring_bytes = 32 * 1024, .log = scene.log};
    std::shared_ptr<FlightRecorder> recorder =
        FlightRecorder::Create({.shape = kShape, .num_blocks = 4}, ring).value();
    const std::vector<Event> many(600, Event::Bind(BlockId(1)));  // do not fit
    recorder->sink()->On({.kind = FlightRecordKind::kEvents, .events = many});
    scene.last = std::move(recorder);
  };
  EXPECT_EQ(Becomes("log", play), "");
}

}  // namespace
}  // namespace waymark
