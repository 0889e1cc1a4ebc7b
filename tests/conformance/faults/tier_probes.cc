// Courses for the rules of rows by key: two engines, one page source.
#include <algorithm>
#include <array>
#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <utility>

#include "blockstore/rows.h"
#include "blockstore/wire/fetcher.h"
#include "blockstore/wire/memory_source.h"
#include "blockstore/wire/publisher.h"
#include "blockstore/wire/tier.h"
#include "tests/conformance/faults/faults.h"
#include "tests/conformance/faults/probe.h"

namespace waymark::conformance {
namespace {

using wire::Deadline;
using wire::Object;

constexpr std::chrono::minutes kNever(10);
const BlockKey kOtherKey = BlockKey::FromInteger(6);
const std::vector<int> kTwenties = {20, 21, 22, 23};

// A page source that changes what it has.
class Source final : public wire::PageSource {
 public:
  absl::Status Get(std::span<const Digest128> names, Deadline, std::span<Object> objects) override {
    for (std::size_t i = 0; i < names.size(); ++i) {
      const auto found = objects_.find(std::to_array(names[i].w));
      if (found != objects_.end()) objects[i] = found->second;
    }
    return absl::OkStatus();
  }
  absl::Status Put(std::span<const wire::NamedObject> objects, Deadline) override {
    for (const wire::NamedObject& named : objects) {
      if (objects_.emplace(std::to_array(named.digest.w), named.object).second)
        in_order.push_back(std::to_array(named.digest.w));
    }
    return absl::OkStatus();
  }
  Object& At(std::size_t i) { return objects_.at(in_order.at(i)); }
  void Flip(std::size_t i, std::size_t byte) {
    std::vector<std::uint8_t> bytes(At(i).bytes.begin(), At(i).bytes.end());
    bytes[byte] ^= 1;
    At(i) = Object::Of(std::move(bytes));
  }
  std::vector<std::array<std::uint32_t, 4>> in_order;

 private:
  std::map<std::array<std::uint32_t, 4>, Object> objects_;
};

struct Setup {
  std::string space = "a";
  std::string publisher = "one";
  std::int32_t page_tokens = static_cast<std::int32_t>(kDirectBlock);
  bool lost = false;
  bool look_up = true;
};

// An engine with a tier. Version 1 are the weights "1", version 2 "2". Probes use it from one
// thread, and wait for the tier's.
class Node {
 public:
  explicit Node(std::shared_ptr<Source> source, const Setup& setup = {}) {
    StoreOptions options = Direct::Options();
    options.shape.page_tokens = setup.page_tokens;
    wire::TierOptions of_tier;
    of_tier.get = std::move(source);
    of_tier.space = setup.space;
    of_tier.min_key_bytes = 1;
    of_tier.publisher = setup.publisher;
    of_tier.lost = setup.lost;
    of_tier.look_up = setup.look_up;
    of_tier.timeout = kNever;
    of_tier.most_asks = 1;
    of_tier.log = LogCallback::Discard();
    tier = wire::Tier::Create(options.shape, of_tier).value();
    (void)tier->NameWeights(1, "1");
    (void)tier->NameWeights(2, "2");
    options.seal_sink = tier;
    direct = std::make_unique<Direct>(options);
  }
  ~Node() { (void)tier->WaitPut(kNever); }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // Computes block 0 under `key`, and publishes it.
  Node& Publish(const std::vector<int>& tags, std::uint64_t version = 1,
                const BlockKey& key = kKey) {
    direct->Step(++step, {Event::Bind(BlockId(0)), Event::Seal(BlockId(0), key)}, Slots({0}), tags,
                 version);
    (void)tier->WaitPut(kNever);
    return *this;
  }
  // The KV of a block comes from elsewhere, and a step of `version` runs.
  Node& Load(std::int32_t block, std::uint64_t version = 1) {
    direct->Step(++step, {Event::Bind(BlockId(block), kKey)}, {}, {}, version);
    return *this;
  }
  Rows Read(std::int32_t block, std::uint64_t present = 1) {
    (void)tier->WaitPut(kNever);
    Snapshot snapshot = direct->Take({block}, kDirectBlock);
    const auto keys = wire::TierKeys::Of(snapshot, {kKey}, present, kDirectBlock);
    std::promise<std::shared_ptr<const Rows>> done;
    tier->Fill(std::make_shared<Rows>(snapshot.ReadRows().value()), keys,
               [&](std::shared_ptr<const Rows> rows) { done.set_value(std::move(rows)); });
    return *done.get_future().get();
  }
  std::vector<int> Tags(std::int32_t block, std::uint64_t present = 1) {
    return TagsOf(Read(block, present));
  }
  static std::vector<int> TagsOf(const Rows& rows) {
    std::vector<int> tags;
    for (std::int64_t i = 0; i < rows.size(); ++i)
      tags.push_back(rows.infos[static_cast<std::size_t>(i)].valid() ? rows.row(i)[0] : -1);
    return tags;
  }

  std::shared_ptr<wire::Tier> tier;
  std::unique_ptr<Direct> direct;
  std::uint64_t step = 0;
};

const std::vector<int> kNothing = {-1, -1, -1, -1};

std::string ProbeWeightsAreInTheName() {
  const auto source = std::make_shared<Source>();
  Node(source).Publish(kTens);
  return Compare(Node(source).Load(1, 2).Tags(1), kNothing, "rows of other weights");
}

std::string ProbeTheNamespaceIsInTheName() {
  const auto source = std::make_shared<Source>();
  Node(source).Publish(kTens);
  return Compare(Node(source, {.space = "b"}).Load(1).Tags(1), kNothing, "rows of another tenant");
}

std::string ProbeTheOrdinalIsInTheName() {
  const auto source = std::make_shared<Source>();
  const Setup small{.page_tokens = 2};
  Node(source, small).Publish(kTens);
  return Compare(Node(source, small).Load(1).Tags(1), kTens, "the pages of a block are one");
}

std::string ProbeAnEntryIsOfItsPage() {
  const auto source = std::make_shared<Source>();
  Node(source).Publish(kTens).Publish(kTwenties, 1, kOtherKey);
  source->At(0) = source->At(1);
  return Compare(Node(source).Load(1).Tags(1), kNothing, "the entry of another page");
}

std::string ProbeAnEntryHasACode() {
  const auto source = std::make_shared<Source>();
  Node(source).Publish(kTens);
  source->Flip(0, 72);  // of the publisher
  return Compare(Node(source).Load(1).Tags(1), kNothing, "an entry that was changed");
}

std::string ProbeAnEntryIsOfItsChunk() {
  const auto source = std::make_shared<Source>();
  Node(source).Publish(kTens).Publish(kTwenties, 1, kOtherKey);
  // The chunk of one under the head of the other: behind 96 bytes, the steps and the code.
  std::vector<std::uint8_t> bytes(source->At(0).bytes.begin(), source->At(0).bytes.end());
  const std::size_t chunk_at = 96 + bytes[4] + 16u;
  std::copy(source->At(1).bytes.begin() + static_cast<std::ptrdiff_t>(chunk_at),
            source->At(1).bytes.end(), bytes.begin() + static_cast<std::ptrdiff_t>(chunk_at));
  source->At(0) = Object::Of(std::move(bytes));
  return Compare(Node(source).Load(1).Tags(1), kNothing, "the chunk of another page");
}

std::string ProbeStepsAreOfTheirPublisher() {
  const auto source = std::make_shared<Source>();
  Node(source).Publish(kTens);
  Rows first = Node(source).Load(1).Read(1);
  const auto other = std::make_shared<Source>();
  Node(other, {.publisher = "two"}).Publish(kTens);
  Rows second = Node(other).Load(1).Read(1);
  first.shape.layer_ids = {0, 1};
  second.shape.layer_ids = {2, 3};
  const Rows* const stages[] = {&first, &second};
  return JoinLayers(stages)->infos[0].valid() ? "pages of two publishers were joined" : "";
}

std::string ProbeOnlyCompletePagesAreOffered() {
  const auto source = std::make_shared<Source>();
  Node first(source);
  first.Publish({10, 11, -1, 13});
  return first.tier->GetStats().pages_sealed == 0 ? "" : "a page with a hole was offered";
}

// A prompt that is registered when it is admitted, and computed in two chunks.
std::string ProbeASealBeforeTheRows() {
  const auto source = std::make_shared<Source>();
  Node first(source);
  first.direct->Step(++first.step, {Event::Bind(BlockId(0)), Event::Seal(BlockId(0), kKey)}, {0, 1},
                     {10, 11});
  first.direct->Step(++first.step, {}, {2, 3}, {12, 13});
  (void)first.tier->WaitPut(kNever);
  return Compare(Node(source).Load(1).Tags(1), kTens, "a page that was sealed early");
}

std::string ProbeASealEndsWithItsLife() {
  const auto source = std::make_shared<Source>();
  Node first(source);
  first.direct->Step(++first.step, {Event::Bind(BlockId(0)), Event::Seal(BlockId(0), kKey)}, {0, 1},
                     {10, 11});
  first.direct->Step(++first.step, {Event::Bind(BlockId(0))}, Slots({0}), kTwenties);
  (void)first.tier->WaitPut(kNever);
  return Compare(Node(source).Load(1).Tags(1), kNothing, "rows of the next owner");
}

std::string ProbePagesOfOneVersionAreOffered() {
  const auto source = std::make_shared<Source>();
  Node first(source);
  first.direct->Step(++first.step, {Event::Bind(BlockId(0))}, {0, 1}, {10, 11}, 1);
  first.direct->Step(++first.step, {Event::Seal(BlockId(0), kKey)}, {2, 3}, {12, 13}, 2);
  (void)first.tier->WaitPut(kNever);
  return Compare(Node(source).Load(1, 2).Tags(1), kNothing, "a page of two versions");
}

std::string ProbeRowsComputedHereStay() {
  const auto source = std::make_shared<Source>();
  Node(source).Publish(kTens);
  Node second(source);
  second.Load(1).direct->Step(++second.step, {}, {6, 7}, {22, 23});
  return Compare(second.Tags(1), {10, 11, 22, 23}, "rows that were computed here");
}

// Drops a step of `version` that has computed block 1.
void DropOne(Node& node, std::uint64_t version, const std::vector<Event>& events = {}) {
  (void)node.direct->Begin(++node.step, events, Slots({1}), version);
  (void)node.direct->store().Drop(StepId(node.step));
  node.direct->LandAll();
}

std::string ProbeLostRowsOfNewWeights() {
  const auto source = std::make_shared<Source>();
  Node(source).Publish(kTens);
  Node second(source, {.lost = true});
  DropOne(second, 1, {Event::Bind(BlockId(1))});
  second.direct->Step(++second.step, {Event::Bind(BlockId(2))}, Slots({2}), kTwenties, 2);
  if (second.Tags(1) != kTens) return "";  // noticed without the fault
  DropOne(second, 2);
  return Compare(second.Tags(1), kNothing, "rows of old weights for those that new ones lost");
}

std::string ProbeLostRowsThatWereCopied() {
  const auto source = std::make_shared<Source>();
  Node(source).Publish(kTens);
  Node second(source, {.lost = true});
  DropOne(second, 1, {Event::Bind(BlockId(1))});
  DropOne(second, 2);
  second.direct->Step(++second.step, {Event::Copy(BlockId(1), BlockId(2))}, {}, {}, 2);
  return Compare(second.Tags(2), kNothing, "rows of old weights for a copy of what new ones lost");
}

std::string ProbeLostRowsOfTheSecondPage() {
  const auto source = std::make_shared<Source>();
  Node(source, {.page_tokens = 2}).Publish(kTens);
  Node second(source, {.page_tokens = 2, .lost = true});
  DropOne(second, 1, {Event::Bind(BlockId(1))});
  if (second.Tags(1) != kTens) return "";  // noticed without the fault
  (void)second.direct->Begin(++second.step, {}, {6, 7}, 2);
  (void)second.direct->store().Drop(StepId(second.step));
  second.direct->LandAll();
  return Compare(second.Tags(1), kNothing, "rows of old weights in the second page");
}

std::string ProbeLoadedRowsKeepTheirWeights() {
  const auto source = std::make_shared<Source>();
  Node(source).Publish(kTens).Publish(kTwenties, 2);
  Node second(source);
  second.Load(1).Load(2, 2);
  return Compare(second.Tags(1, 2), kTens, "rows of the present weights");
}

std::string ProbeRelocated(const Event& event, const char* why) {
  const auto source = std::make_shared<Source>();
  Node(source).Publish(kTens).Publish(kTwenties, 2);
  Node second(source);
  second.Load(1).direct->Step(++second.step, {event}, {}, {}, 2);
  return Compare(second.Tags(2, 2), kTens, why);
}
std::string ProbeCopiedRowsKeepTheirWeights() {
  return ProbeRelocated(Event::Copy(BlockId(1), BlockId(2)), "copied rows are of the weights now");
}
std::string ProbeMovedRowsKeepTheirWeights() {
  return ProbeRelocated(Event::Move(BlockId(1), BlockId(2)), "moved rows are of the weights now");
}

std::string ProbeRowsTakenBackAreOfNoWeights() {
  const auto source = std::make_shared<Source>();
  Node(source).Publish(kTens);
  Node second(source);
  second.Load(1).direct->Step(++second.step, {}, Slots({1}), kTwenties, 2);
  (void)second.direct->Report({Event::Truncate(BlockId(1), 0, StepId(second.step))});
  return Compare(second.Tags(1, 2), kNothing, "rows of old weights for those taken back");
}

std::string ProbeABlockWithoutABind() {
  const auto source = std::make_shared<Source>();
  Node(source).Publish(kTwenties, 2);
  Node second(source);
  second.direct->Step(++second.step, {Event::Retain(BlockId(1))}, {}, {}, 2);
  return Compare(second.Tags(1, 2), kNothing, "rows of the weights when it was hit");
}

std::string ProbeAResetEndsWhatIsKnown() {
  const auto source = std::make_shared<Source>();
  Node(source).Publish(kTwenties, 2);
  Node second(source, {.lost = true});
  second.direct->Step(++second.step, {Event::Bind(BlockId(1))}, Slots({1}), kTens);
  second.direct->Step(++second.step, {Event::Reset()}, {}, {}, 2);
  return Compare(second.Tags(1, 2), kNothing, "rows of the weights at the reset");
}

std::string ProbeLostRecordsEndWhatIsKnown() {
  const auto source = std::make_shared<Source>();
  Node(source).Publish(kTens);
  Node second(source, {.lost = true});
  second.Load(1).direct->Step(++second.step, {Event::Copy(BlockId(1), BlockId(2))}, {}, {});
  (void)second.direct->store().LoseRows();
  second.direct->LandAll();
  return Compare(second.Tags(2), kNothing, "rows of a block that may have been bound again");
}

// What a trainer fetches of rows by their handle.
Rows Fetched(const std::shared_ptr<Source>& source, const Rows& rows) {
  wire::MemorySource objects(std::size_t{1} << 20);
  wire::PublisherOptions of_publisher;
  of_publisher.shape.rows = rows.shape;
  const auto publisher = wire::Publisher::Create(&objects, of_publisher).value();
  const wire::Handle handle = publisher->Publish("", rows).get()->handle;
  wire::FetcherOptions options;
  options.tier.get = source;
  options.tier.timeout = kNever;
  options.tier.most_asks = 1;
  wire::Fetcher fetcher(&objects, options);
  return fetcher.Fetch(handle, wire::After(kNever)).value();
}

std::string ProbeANameIsOfItsPage() {
  const auto source = std::make_shared<Source>();
  const Setup small{.page_tokens = 2, .look_up = false};
  Node(source, small).Publish(kTens);
  Node second(source, small);
  second.Load(1).direct->Step(++second.step, {}, {6, 7}, {22, 23});
  return Compare(Node::TagsOf(Fetched(source, second.Read(1))), {10, 11, 22, 23},
                 "a name is of the page behind");
}

std::string ProbeANameIsOfItsRows() {
  const auto source = std::make_shared<Source>();
  Node(source).Publish(kTens);
  Node(source).Publish(kTwenties, 2);
  Node second(source, {.look_up = false});
  Rows first = second.Load(1).Read(1);
  Rows behind = second.Load(1, 2).Read(1, 2);
  const std::size_t half = first.ids.size() / 2;
  first.infos.resize(2), first.ids.resize(half);
  behind.first = 2, behind.infos.resize(2), behind.ids.resize(half);
  const Rows* const reads[] = {&first, &behind};
  return Compare(Node::TagsOf(Fetched(source, Join(reads).value())), {10, 11, 22, 23},
                 "the name of an earlier read is taken for the rows of a later one");
}

std::string ProbeANameHasItsVersion() {
  const auto source = std::make_shared<Source>();
  Node(source).Publish(kTens, 2);
  Node second(source, {.look_up = false});
  const Rows rows = Fetched(source, second.Load(1, 2).Read(1, 2));
  return rows.infos[0].valid() && rows.infos[0].version == 2 ? "" : "rows are of another version";
}

std::string ProbeLostRowsStayMissing() {
  const auto source = std::make_shared<Source>();
  Node(source).Publish(kTens);
  Node second(source, {.look_up = false});
  second.Load(1);
  (void)second.direct->Begin(++second.step, {}, {6, 7}, 1);
  (void)second.direct->store().Drop(StepId(second.step));
  second.direct->LandAll();
  return Compare(Node::TagsOf(Fetched(source, second.Read(1))), {10, 11, -1, -1},
                 "rows that were lost here came from another pass");
}

#define WAYMARK_BY_KEY "by_key=1 external=.3 tier=.5 draft=.4 partial=.4 fork=.1 full_hit=.5 "

const Fault kFaults[] = {
    {"name_without_the_weights", ProbeWeightsAreInTheName, "vllm", WAYMARK_BY_KEY "bump=.1"},
    {"name_without_the_namespace", ProbeTheNamespaceIsInTheName, "vllm", WAYMARK_BY_KEY},
    {"name_without_the_ordinal", ProbeTheOrdinalIsInTheName, "vllm",
     WAYMARK_BY_KEY "page_tokens=2"},
    {"entry_of_any_page", ProbeAnEntryIsOfItsPage, "megatron", WAYMARK_BY_KEY "tier_lying=.5"},
    {"entry_without_its_code", ProbeAnEntryHasACode},  // few of the bytes that lie are its own
    {"entry_of_any_chunk", ProbeAnEntryIsOfItsChunk, "vllm", WAYMARK_BY_KEY "tier_lying=.5"},
    {"steps_of_any_publisher", ProbeStepsAreOfTheirPublisher, "vllm",
     WAYMARK_BY_KEY "stages=2 layers=8 drop=.1"},
    {"incomplete_page_is_offered", ProbeOnlyCompletePagesAreOffered, "vllm",
     WAYMARK_BY_KEY "drop=.1 silent=.1"},
    {"page_of_two_versions_is_offered", ProbePagesOfOneVersionAreOffered, "vllm",
     WAYMARK_BY_KEY "bump=.1"},
    {"sealed_early_is_forgotten", ProbeASealBeforeTheRows},
    {"sealed_early_ignores_the_seal", ProbeASealEndsWithItsLife, "megatron",
     WAYMARK_BY_KEY "preempt=.2 abort=.05"},
    {"rows_computed_here_are_replaced", ProbeRowsComputedHereStay, "megatron", WAYMARK_BY_KEY},
    {"lost_rows_of_any_version", ProbeLostRowsOfNewWeights, "megatron",
     WAYMARK_BY_KEY "lost_by_key=1 bump=.1 drop=.1"},
    {"copies_forget_other_weights", ProbeLostRowsThatWereCopied},
    {"only_the_first_page_counts", ProbeLostRowsOfTheSecondPage, "megatron",
     WAYMARK_BY_KEY "lost_by_key=1 page_tokens=2 bump=.1 drop=.1"},
    {"name_of_the_page_behind", ProbeANameIsOfItsPage, "vllm", WAYMARK_BY_KEY "page_tokens=2"},
    {"the_earlier_name_goes_on", ProbeANameIsOfItsRows},
    {"name_of_the_first_version", ProbeANameHasItsVersion, "vllm", WAYMARK_BY_KEY "bump=.1"},
    {"name_of_lost_rows", ProbeLostRowsStayMissing},
    {"rows_are_of_the_present_version", ProbeLoadedRowsKeepTheirWeights, "vllm",
     WAYMARK_BY_KEY "bump=.1"},
    {"copied_rows_are_of_now", ProbeCopiedRowsKeepTheirWeights, "vllm", WAYMARK_BY_KEY "bump=.1"},
    {"moved_rows_are_of_now", ProbeMovedRowsKeepTheirWeights, "vllm",
     WAYMARK_BY_KEY "swap=.9 tier=0 bump=.1"},
    {"rows_taken_back_were_never_there", ProbeRowsTakenBackAreOfNoWeights},
    {"block_without_a_bind_is_new", ProbeABlockWithoutABind},
    {"reset_begins_a_known_life", ProbeAResetEndsWhatIsKnown},
    {"poison_keeps_births", ProbeLostRecordsEndWhatIsKnown},
};

}  // namespace

std::span<const Fault> TierFaults() {
  return kFaults;
}

}  // namespace waymark::conformance
