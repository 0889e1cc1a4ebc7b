// Courses of events for the rules of blocks, pages, keys and reasons.
#include "blockstore/rows.h"
#include "tests/conformance/faults/faults.h"
#include "tests/conformance/faults/probe.h"

namespace waymark::conformance {
namespace {

const std::vector<int> kTwenties = {20, 21, 22, 23};
const std::vector<int> kNone = {-1, -1, -1, -1};

// ---- ids

// Arrays that come in ask the same function: capture_test.cc, garbage_test.cc and test_ids.py have
// their doors.
std::string ProbeATypeMustHoldTheExperts() {
  Rows rows = {.shape = {.num_layers = 1, .top_k = 1, .num_experts = 300}};
  rows.infos.resize(1);
  rows.ids = {0x2b, 0x01};  // 299; cut to a byte it is 43
  std::uint8_t cut = 0;
  return rows.Write({.id_type = IdType::kUint8, .fill = Fill::kZeros}, {&cut, 1}).ok()
             ? "an id of 300 experts was written as " + std::to_string(cut)
             : "";
}

// ---- lives of blocks

std::string ProbeALifeEndsWithABind() {
  Direct direct;
  FillAndSeal(direct);
  direct.Step(2, {Event::Bind(BlockId(0))}, {0, 1}, {20, 21});
  return CompareRows(direct, {0}, {20, 21, -1, -1}, "rows of the life before");
}

std::string ProbeLifeStartsWithTheNextStep() {
  Direct direct;
  direct.Step(1, {Event::Bind(BlockId(0)), Event::Bind(BlockId(1))}, Slots({0}), kTens);
  // Between two steps the block gets another owner; then the rejection of drafts in step 1 is
  // reported, which wrote the rows that the new owner shares.
  (void)direct.Report(
      {Event::Copy(BlockId(0), BlockId(1)), Event::Truncate(BlockId(1), 0, StepId(1))});
  return CompareRows(direct, {1}, kTens, "a truncation of the life before cleared rows");
}

std::string ProbeTruncateFollowsAMove() {
  Direct direct;
  FillAndSeal(direct);
  direct.Step(2, {Event::Bind(BlockId(1))}, Slots({1}), kTwenties);
  // The drafts of step 2 were rejected, in the block to which they have moved.
  (void)direct.Report(
      {Event::Move(BlockId(1), BlockId(2)), Event::Truncate(BlockId(2), 1, StepId(2))});
  if (direct.Tags({2}, 4) != std::vector<int>{20, -1, -1, -1}) return "rejected drafts stay valid";
  // The next owner has them from the prefix cache.
  (void)direct.Report({Event::Bind(BlockId(2), kKey), Event::Truncate(BlockId(2), 0, StepId(1))});
  return CompareRows(direct, {2}, kTens, "a truncation of the life before cleared rows");
}

std::string ProbeTruncateKnowsItsStep() {
  Direct direct;
  direct.Step(1, {Event::Bind(BlockId(0))}, {0, 1}, {10, 11});
  direct.Step(2, {}, {1, 2}, {21, 22});
  (void)direct.Report({Event::Truncate(BlockId(0), 1, StepId(1))});
  return CompareRows(direct, {0}, {10, 21, 22}, "rows of a later step were cleared");
}

std::string ProbeTruncateClearsMissingRows() {
  Direct direct;
  direct.Step(1, {Event::Bind(BlockId(0))}, {0, 1}, {10, -1});
  (void)direct.Report({Event::Truncate(BlockId(0), 1, StepId(1))});
  return CompareReason(direct, Reason::kNeverWritten, 1);
}

std::string ProbeSealsAreOfStepsThatWereTold() {
  Direct direct;
  Fill(direct);
  return direct.Report({Event::Seal(BlockId(0), kKey, StepId(2))}).ok()
             ? "a block was sealed by a step that was not told"
             : "";
}

std::string ProbeMovesHappenAtOnce() {
  Direct direct;
  direct.Step(1, {Event::Bind(BlockId(0)), Event::Bind(BlockId(1))}, {0, 4}, {10, 20});
  (void)direct.Report(
      {Event::Move(BlockId(0), BlockId(1), true), Event::Move(BlockId(1), BlockId(0))});
  if (direct.Tags({0}, 1) != std::vector<int>{20}) return "the blocks were not exchanged";
  return CompareRows(direct, {1}, {10}, "the blocks were not exchanged");
}

std::string ProbeEventsInTheirOrder() {
  Direct direct;
  Fill(direct);
  direct.Step(2, {Event::Copy(BlockId(0), BlockId(1)), Event::Bind(BlockId(0))}, {}, {});
  return CompareRows(direct, {1}, kTens, "the copied block had been bound again");
}

// ---- visible rows, and copies

std::string ProbeSeenRowsStay() {
  Direct direct;
  Fill(direct);
  const Snapshot all = direct.Take({0}, 4);
  const Snapshot first = direct.Take({0}, 1);  // sees less than the one before
  direct.Step(2, {}, {2}, {22});
  if (const auto rows = direct.TagsOf(Direct::Read(all)); rows != kTens) {
    return Compare(rows, kTens, "a snapshot has changed");
  }
  // Its page was copied, and the copy has the rows that no snapshot sees, too.
  return CompareRows(direct, {0}, {10, 11, 22, 13}, "a row was lost with a copy on write");
}

std::string ProbeRowsAboveTheMarkAreCopied() {
  Direct direct;
  Fill(direct);
  const Snapshot first = direct.Take({0}, 1);
  direct.Step(2, {}, {0}, {20});
  return CompareRows(direct, {0}, {20, 11, 12, 13}, "a row was lost with a copy on write");
}

std::string ProbeASharedPageIsCopied() {
  Direct direct;
  Fill(direct);
  direct.Step(2, {Event::Copy(BlockId(0), BlockId(1))}, {Direct::Slot(1, 3)}, {23});
  if (direct.Tags({0}, 4) != kTens) return "a row of one block was written for another one";
  return CompareRows(direct, {1}, {10, 11, 12, 23}, "the copy");
}

std::string ProbeAPartialCopyHasItsRows() {
  Direct direct;
  Fill(direct);
  (void)direct.Report({Event::Copy(BlockId(0), BlockId(1), 2)});
  return CompareRows(direct, {1}, {10, 11, -1, -1}, "a copy of two rows");
}

std::string ProbeACopyHasAUser() {
  Direct direct;
  direct.Step(1, {Event::Bind(BlockId(0)), Event::Bind(BlockId(1)), Event::Release(BlockId(1))},
              Slots({0}), kTens);
  direct.Step(2, {Event::Copy(BlockId(0), BlockId(1), Event::kAllRows), Event::Release(BlockId(1))},
              {}, {});
  return direct.store().GetStats().releases_below_zero == 0 ? "" : "the copy had no user";
}

std::string ProbeTheSourceOfACopyStays() {
  Direct direct(WithPages(2, 4));
  direct.Step(1, {Event::Bind(BlockId(0)), Event::Bind(BlockId(1)), Event::Release(BlockId(0))},
              Slots({0, 1}), {10, 11, 12, 13, 20, 21, 22, 23});
  // Only the page that is to be copied could be evicted.
  (void)direct.Report({Event::Copy(BlockId(0), BlockId(2), 2)});
  return CompareRows(direct, {0}, kTens, "a page was evicted for its own copy");
}

std::string ProbeACopiedRowStaysByKey() {
  Direct direct;
  direct.Step(1, {Event::Bind(BlockId(0)), Event::Seal(BlockId(0), kKey, StepId(1))}, {0, 1},
              {10, 11});
  // Block 1 gets the page by key, and one of its own.
  direct.Step(2, {Event::Bind(BlockId(1), kKey)}, {Direct::Slot(1, 3)}, {23});
  const std::vector<Seen> rows = direct.Read({1}, 4);
  if (rows[1].tag != 11) return "a row was lost with its page's copy";
  return rows[1].info.provenance == Provenance::kByKey ? "" : "it does not say that it came by key";
}

std::string ProbeACopyStaysSealed() {
  Direct direct;
  direct.Step(1, {Event::Bind(BlockId(0)), Event::Seal(BlockId(0), kKey, StepId(1))}, {0, 1},
              {10, 11});
  direct.Step(2, {Event::Bind(BlockId(1), kKey)}, {Direct::Slot(1, 3)}, {23});
  direct.Step(3, {}, {Direct::Slot(1, 0)}, {30});
  return CompareRows(direct, {1}, {10, 11, -1, 23}, "a protected row was written over");
}

// ---- the key index

std::string ProbeASealNeverRebinds() {
  Direct direct;
  FillAndSeal(direct);
  direct.Step(2, {Event::Bind(BlockId(1)), Event::Seal(BlockId(1), kKey, StepId(2))}, Slots({1}),
              kTwenties);
  return CompareRows(direct, {1}, kTwenties, "a seal has changed the page of its block");
}

// Pages with one key: of two the one with more rows that were asked for is found.
std::string ProbeBetterPageIsIndexed() {
  Direct direct;
  direct.Step(1, {Event::Bind(BlockId(0)), Event::Seal(BlockId(0), kKey, StepId(1))},
              {0, 1, NotAsked(2), NotAsked(3)}, kTens);
  direct.Step(2, {Event::Bind(BlockId(1)), Event::Seal(BlockId(1), kKey, StepId(2))},
              {4, 5, 6, NotAsked(7)}, kTwenties);
  direct.Step(3, {Event::Bind(BlockId(2), kKey)}, {}, {});
  return CompareRows(direct, {2}, {20, 21, 22, -1}, "a page with fewer rows came by key");
}

// Two pipeline stages may lose different ids, and must find the same page.
std::string ProbeLostIdsDoNotDecide() {
  for (const bool lost : {false, true}) {
    Direct direct;
    (void)direct.Begin(1, {Event::Bind(BlockId(0)), Event::Seal(BlockId(0), kKey, StepId(1))},
                       Slots({0}));
    if (lost) {
      (void)direct.store().Drop(StepId(1));
    } else {
      (void)direct.Submit(1, {10, -1, 12, 13});
      (void)direct.Land(1);
    }
    direct.Step(2, {Event::Bind(BlockId(1)), Event::Seal(BlockId(1), kKey, StepId(2))}, Slots({1}),
                kTwenties);
    direct.Step(3, {Event::Bind(BlockId(2), kKey)}, {}, {});
    const std::vector<int> want = lost ? kNone : std::vector<int>{10, -1, 12, 13};
    if (direct.Tags({2}, 4) != want) return "whose ids were lost decides which page a key finds";
  }
  return "";
}

// What a key finds does not depend on readers.
std::string ProbeAKeyMovesWithItsBlock() {
  for (const bool read : {false, true}) {
    Direct direct;
    direct.Step(1, {Event::Bind(BlockId(0)), Event::Seal(BlockId(0), kKey, StepId(1))}, {0, 1},
                {10, -1});
    Snapshot reader;
    if (read) reader = direct.Take({0}, 4);
    direct.Step(2, {}, {1}, {21});
    direct.Step(3, {Event::Bind(BlockId(1), kKey)}, {}, {});
    if (direct.Tags({1}, 2) != std::vector<int>{10, 21}) return "the key finds another page";
  }
  return "";
}

std::string ProbeAKeyStaysBehindARewind() {
  Direct direct;
  FillAndSeal(direct);
  const Snapshot reader = direct.Take({0}, 4);
  direct.Step(2, {Event::Truncate(BlockId(0), 2, StepId(1))}, {2, 3}, {22, 23});
  direct.Step(3, {Event::Bind(BlockId(1), kKey)}, {}, {});
  return CompareRows(direct, {1}, kTens, "the key does not find the page that it was given to");
}

std::string ProbeRowsBehindTheSealContend() {
  Direct direct;
  direct.Step(1, {Event::Bind(BlockId(0)), Event::Seal(BlockId(0), kKey, StepId(1))}, {}, {});
  direct.Step(2, {}, Slots({0}), kTens);
  direct.Step(3, {Event::Bind(BlockId(1), kKey)}, {}, {});
  return CompareRows(direct, {1}, kTens, "the page that was written behind its seal has no key");
}

std::string ProbeKeyedBindKnowsItsVersion() {
  Direct direct;
  FillAndSeal(direct);
  // The first events under new weights.
  (void)direct.store().Schedule(StepId(2), 2);
  (void)direct.Report({Event::Bind(BlockId(1), kKey)});
  return CompareRows(direct, {1}, kNone, "a page of the old weights came by key");
}

std::string ProbePageOfAnotherVersionIsLost() {
  Direct direct;
  FillAndSeal(direct);
  // Bound, moved and copied before anybody says that the weights are new ones.
  (void)direct.Report({Event::Bind(BlockId(1), kKey), Event::Move(BlockId(1), BlockId(2)),
                       Event::Copy(BlockId(2), BlockId(3)),
                       Event::Copy(BlockId(2), BlockId(4), 2)});
  if (direct.Tags({2}, 4) != kTens) return "no page came by key";
  direct.Step(2, {}, {}, {}, 2);
  for (const Seen& row : direct.Read({2, 3, 4}, 12)) {
    if (row.info.reason != Reason::kExternalKv) return "a page of the old weights stayed";
  }
  return CompareRows(direct, {0}, kTens, "the page itself was lost");
}

std::string ProbeByKeyIsMarked() {
  Direct direct;
  FillAndSeal(direct);
  direct.Step(2, {Event::Bind(BlockId(1), kKey)}, {}, {});
  const Seen row = direct.Read({1}, 1)[0];
  if (row.tag != 10) return "no page came by key";
  return row.info.provenance == Provenance::kByKey ? "" : "a row that came by key does not say so";
}

std::string ProbeKeysAreOfAVersion() {
  Direct direct;
  FillAndSeal(direct);
  direct.Step(2, {}, {}, {}, 2);
  direct.Step(3, {Event::Bind(BlockId(1), kKey)}, {}, {}, 2);
  return CompareRows(direct, {1}, kNone, "rows of other weights came by key");
}

std::string ProbeKeysAreOfAPage() {
  Direct direct(Direct::With([](StoreOptions& o) { o.block_tokens = 8; }));
  const std::vector<int> tags = {10, 11, 12, 13, 14, 15, 16, 17};
  direct.Step(1, {Event::Bind(BlockId(0)), Event::Seal(BlockId(0), kKey, StepId(1))},
              {0, 1, 2, 3, 4, 5, 6, 7}, tags);
  direct.Step(2, {Event::Bind(BlockId(1), kKey)}, {}, {});
  return CompareRows(direct, {1}, tags, "another page of the block came by its key");
}

std::string ProbeOverwrittenPageLeavesTheIndex() {
  Direct direct;
  FillAndSeal(direct);
  // New weights compute the block again, in two steps and under the same key.
  direct.Step(2, {Event::Seal(BlockId(0), kKey, StepId(2))}, {0, 1}, {20, 21}, 2);
  direct.Step(3, {}, {2, 3}, {22, 23}, 2);
  direct.Step(4, {Event::Bind(BlockId(1), kKey)}, {}, {}, 2);
  if (direct.Tags({1}, 4) != kTwenties) {
    return "a page that was computed again did not come by the key of its new seal";
  }
  // The old weights come back, and with them KV of theirs from a tier.
  direct.Step(6, {Event::Bind(BlockId(2), kKey)}, {}, {}, 1);
  return CompareRows(direct, {2}, {-1}, "rows of other weights came by key");
}

std::string ProbePageOfTwoVersionsHasNoKey() {
  Direct direct;
  direct.Step(1, {Event::Bind(BlockId(0))}, {0, 1}, {10, 11}, 1);
  direct.Step(2, {Event::Seal(BlockId(0), kKey, StepId(2))}, {2, 3}, {22, 23}, 2);
  direct.Step(3, {Event::Bind(BlockId(1), kKey)}, {}, {}, 2);
  return CompareRows(direct, {1}, kNone, "rows of two versions came by key");
}

// The versions of steps lie in chunks: 256, then 512, ...
std::string ProbeVersionsOfManySteps() {
  Direct direct(Direct::With([](StoreOptions& o) { o.num_blocks = 400; }));
  for (std::uint64_t step = 1; step < 1600; ++step) {
    direct.Step(step, {}, {static_cast<std::int64_t>(step)}, {1}, 7 * step);
  }
  std::vector<std::int32_t> blocks;
  for (std::int32_t block = 0; block < 400; ++block)
    blocks.push_back(block);
  const std::vector<Seen> rows = direct.Read(blocks, 1600);
  for (std::uint64_t step = 1; step < 1600; ++step) {
    if (rows[step].info.version != 7 * step) {
      return "step " + std::to_string(step) + " has version " +
             std::to_string(rows[step].info.version);
    }
  }
  return "";
}

// ---- the owner of a snapshot

std::string ProbeTheNextOwnersRowsAreNotGiven() {
  Direct direct;
  const auto taken = [&](const SnapshotOwner& owner) {
    return direct.store()
        .TakeSnapshot(std::vector<BlockId>{BlockId(0)}, 0, kDirectBlock, owner)
        .value()
        .ReadRows()
        .value()
        .infos;
  };
  const BlockKey other = BlockKey::FromInteger(6);
  direct.Step(1, {Event::Bind(BlockId(0)), Event::Seal(BlockId(0), kKey, StepId(1))}, Slots({0}),
              kTens);
  (void)direct.store().Report(std::vector<Event>{Event::Release(BlockId(0))});
  for (const RowInfo& info : taken({}))
    if (info.reason != Reason::kReleased) return "rows of a block without users are given";
  for (const RowInfo& info : taken({1, {&kKey, 1}}))
    if (!info.valid()) return "the request's own rows are missing";
  for (const RowInfo& info : taken({1, {&other, 1}}))
    if (info.reason != Reason::kReleased) return "rows under another key are given";
  direct.Step(2, {Event::Retain(BlockId(0))}, {Direct::Slot(0, 0)}, {20}, 2);
  if (taken({1, {}})[0].reason != Reason::kReleased) return "a row of a later step is given";
  direct.Step(3, {Event::Bind(BlockId(0))}, {}, {});
  if (taken({2, {}})[0].reason != Reason::kReleased) return "a later life has its own reason";
  const BlockId block(0);
  if (direct.store().TakeSnapshot({&block, 1}, 0, 1, {0, {&kKey, 1}}).ok())
    return "keys without the last step are taken";
  return "";
}

// ---- memory

std::string ProbeReferencedPagesStay() {
  Direct direct(WithPages(1));
  direct.Step(1, {Event::Bind(BlockId(0))}, {Direct::Slot(0, 0)}, {10});
  // Block 0 has a user, so block 1 finds no page.
  direct.Step(2, {Event::Bind(BlockId(1))}, {Direct::Slot(1, 0)}, {20});
  if (direct.Tags({0}, 1) != std::vector<int>{10})
    return "the page of a block with users was taken";
  const std::vector<Seen> second = direct.Read({1}, 1);
  if (second[0].info.reason != Reason::kCapacity) return "a row without a page is not (capacity)";
  return "";
}

std::string ProbeUnsealedPagesAreEvictedFirst() {
  Direct direct(WithPages(2));
  direct.Step(
      1,
      {Event::Bind(BlockId(0)), Event::Bind(BlockId(1)), Event::Seal(BlockId(0), kKey, StepId(1))},
      Slots({0, 1}), {10, 11, 12, 13, 20, 21, 22, 23});
  direct.Step(2, {Event::Release(BlockId(0)), Event::Release(BlockId(1)), Event::Bind(BlockId(2))},
              Slots({2}), {30, 31, 32, 33});
  return CompareRows(direct, {0}, kTens, "the sealed page was evicted before the unsealed one");
}

std::string ProbeASealOutlivesItsPage() {
  Direct direct(WithPages(1));
  FillAndSeal(direct);
  direct.Step(2, {Event::Release(BlockId(0)), Event::Bind(BlockId(1))}, Slots({1}), kTwenties);
  direct.Step(3, {Event::Retain(BlockId(0)), Event::Release(BlockId(1))}, {0}, {30});
  direct.Step(4, {}, {0}, {40});
  return CompareRows(direct, {0}, {30}, "a row of a sealed block was written over");
}

std::string ProbeASlowReaderTakesNoPage() {
  Direct direct(WithPages(1, 1));
  Fill(direct);
  const Snapshot slow = direct.Take({0}, 4);
  direct.Step(2, {Event::Bind(BlockId(0))}, Slots({0}), kTwenties);
  return CompareRows(direct, {0}, kTwenties, "a page that a snapshot alone holds was counted");
}

std::string ProbeHeldPageIsNotEvictedForNothing() {
  Direct direct(WithPages(2, 0));
  direct.Step(1, {Event::Bind(BlockId(0)), Event::Bind(BlockId(1))}, Slots({0, 1}),
              {10, 11, 12, 13, 20, 21, 22, 23});
  const Snapshot held = direct.Take({0}, 4);
  // The page of block 0 was released first, and stays taken whether it is evicted or not.
  direct.Step(2, {Event::Release(BlockId(0)), Event::Release(BlockId(1)), Event::Bind(BlockId(2))},
              Slots({2}), {30, 31, 32, 33});
  if (direct.Tags({0}, 4) != kTens) {
    return "a page was evicted that a snapshot has, and no page was free for it";
  }
  return CompareRows(direct, {2}, {30, 31, 32, 33},
                     "the page that no snapshot has was not evicted");
}

// ---- reasons

std::string ProbeAbsentRowsKeepTheirReason() {
  Direct direct;
  // KV from outside, of which the first row is computed again here.
  direct.Step(1, {Event::Bind(BlockId(0), BlockKey::FromInteger(77))}, {0}, {10});
  if (direct.Tags({0}, 1) != std::vector<int>{10}) return "the row that was computed is missing";
  return CompareReason(direct, Reason::kExternalKv, 1);
}

std::string ProbeLostRowsWereThere() {
  Direct direct(Direct::With([](StoreOptions& o) { o.num_pages = 1; }));
  direct.Step(1, {Event::Bind(BlockId(0), BlockKey::FromInteger(77))}, {0}, {10});
  direct.Step(2, {Event::Release(BlockId(0)), Event::Bind(BlockId(1))}, {Direct::Slot(1, 0)}, {11});
  return CompareReason(direct, Reason::kExternalKv, 1);
}

std::string ProbeNotAskedIsNotCaptured() {
  Direct direct;
  direct.Step(1, {Event::Bind(BlockId(0))}, {NotAsked(0)}, {10});
  return CompareReason(direct, Reason::kNotCaptured);
}

std::string ProbeNotAskedInExternalBlock() {
  Direct direct;
  direct.Step(1, {Event::Bind(BlockId(0), BlockKey::FromInteger(77))}, {NotAsked(0)}, {10});
  return CompareReason(direct, Reason::kNotCaptured);
}

std::string ProbeResetIsCapacity() {
  Direct direct;
  Fill(direct);
  direct.Step(2, {Event::Reset()}, {}, {});
  return CompareReason(direct, Reason::kCapacity);
}

// ---- reading

std::string ProbeLayersAreOfOneStep() {
  Rows first;
  first.shape = {.num_layers = 1, .top_k = 2, .num_experts = 256, .page_tokens = 4};
  first.infos = {{.step = 1, .version = 1, .reason = Reason::kNone}};
  first.ids = {10, 11};
  Rows second = first;
  second.infos[0].step = 2;
  const Rows* const stages[] = {&first, &second};
  const absl::StatusOr<Rows> joined = JoinLayers(stages);
  if (!joined.ok()) return "the layers were not joined";
  return joined->infos[0].valid() ? "a row has layers of two steps" : "";
}

constexpr Fault kFaults[] = {
    {"every_type_holds_the_experts", ProbeATypeMustHoldTheExperts},
    // Lives of blocks.
    {"keep_the_page_at_bind", ProbeALifeEndsWithABind, "vllm", "draft=.5 drop=.05 cancel=.03"},
    {"truncate_ignores_the_life", ProbeLifeStartsWithTheNextStep, "vllm",
     "draft=.6 late=1 blind_truncate=1 preempt=.1 tier=.9 fork=.2 swap=.5"},
    {"truncate_spares_what_has_moved", ProbeTruncateFollowsAMove},
    {"moved_once_is_moved_for_ever", ProbeTruncateFollowsAMove},
    {"truncate_without_step", ProbeTruncateKnowsItsStep, "vllm", "draft=.6 late=1"},
    {"truncate_spares_missing_rows", ProbeTruncateClearsMissingRows},
    {"seal_of_a_step_to_come", ProbeSealsAreOfStepsThatWereTold},
    {"move_one_by_one", ProbeMovesHappenAtOnce, "vllm", "swap=.9"},
    {"events_by_type", ProbeEventsInTheirOrder, "vllm", "swap=.9 partial=.8 fork=.2"},
    {"life_starts_with_the_last_step", ProbeLifeStartsWithTheNextStep},
    // Seals.
    {"seal_dies_with_the_page", ProbeASealOutlivesItsPage, "megatron",
     WAYMARK_FULL WAYMARK_HARM "max_pages=16"},
    {"copy_on_write_forgets_the_seal", ProbeACopyStaysSealed, "megatron", WAYMARK_FULL},
    // Visible rows, and copies.
    {"append_in_place_under_a_snapshot", ProbeSeenRowsStay, "megatron",
     "full_hit=.7 bump=.1 stream=.4"},
    {"later_snapshot_lowers_the_mark", ProbeSeenRowsStay, "megatron",
     "full_hit=.7 bump=.1 stream=.4"},
    {"second_binding_does_not_count_as_seen", ProbeASharedPageIsCopied, "vllm", "fork=.3 draft=.5"},
    {"copy_on_write_leaves_rows_above_the_high_water_mark", ProbeRowsAboveTheMarkAreCopied,
     "megatron", WAYMARK_FULL},
    {"copied_row_forgets_that_it_came_by_key", ProbeACopiedRowStaysByKey, "vllm",
     WAYMARK_FULL "tier=1 preempt=.1"},
    {"copied_stamps_without_bytes", ProbeAPartialCopyHasItsRows, "vllm", "partial=.8 fork=.2"},
    {"copy_gives_no_user", ProbeACopyHasAUser},
    {"partial_copy_shares_the_page", ProbeAPartialCopyHasItsRows, "vllm",
     "partial=.8 drop=.05 tier=.3 fork=.2"},
    {"partial_copy_takes_all_rows", ProbeAPartialCopyHasItsRows},
    {"source_of_a_copy_is_evicted_for_it", ProbeTheSourceOfACopyStays},
    // The key index.
    {"seal_rebinds", ProbeASealNeverRebinds, "vllm", "preempt=.2 draft=.3"},
    {"first_writer_keeps_the_key", ProbeBetterPageIsIndexed, "megatron",
     WAYMARK_FULL WAYMARK_HARM "tier=.9 preempt=.1 silent=.1"},
    {"valid_rows_contend", ProbeLostIdsDoNotDecide},
    {"rows_that_did_not_ask_contend", ProbeBetterPageIsIndexed},
    {"key_stays_with_the_page_of_a_snapshot", ProbeAKeyMovesWithItsBlock},
    {"rewound_page_takes_the_key", ProbeAKeyStaysBehindARewind},
    {"rows_do_not_contend", ProbeRowsBehindTheSealContend, "megatron",
     WAYMARK_FULL WAYMARK_HARM "tier=.9"},
    {"keyed_bind_under_the_last_version", ProbeKeyedBindKnowsItsVersion},
    {"page_of_another_version_stays", ProbePageOfAnotherVersionIsLost},
    {"by_key_is_not_marked", ProbeByKeyIsMarked, "vllm", WAYMARK_FULL "tier=1 preempt=.1"},
    {"index_without_version", ProbeKeysAreOfAVersion, "vllm", "tier=.9 bump=.05 preempt=.2"},
    {"index_without_ordinal", ProbeKeysAreOfAPage, "vllm", "tier=.9 page_tokens=2"},
    {"index_keeps_an_overwritten_page", ProbeOverwrittenPageLeavesTheIndex},
    {"page_of_two_versions_is_indexed", ProbePageOfTwoVersionsHasNoKey, "vllm",
     "tier=.6 bump=.05 abort=.1"},
    {"versions_of_the_first_chunk_are_forgotten", ProbeVersionsOfManySteps},
    {"versions_wrap_in_a_chunk", ProbeVersionsOfManySteps},
    // The owner of a snapshot.
    {"rows_of_a_released_block_are_given", ProbeTheNextOwnersRowsAreNotGiven},
    {"rows_of_a_later_life_are_given", ProbeTheNextOwnersRowsAreNotGiven},
    {"rows_of_a_later_step_are_given", ProbeTheNextOwnersRowsAreNotGiven},
    {"rows_under_another_key_are_given", ProbeTheNextOwnersRowsAreNotGiven},
    {"keys_alone_are_taken", ProbeTheNextOwnersRowsAreNotGiven},
    // Memory.
    {"referenced_pages_are_evicted", ProbeReferencedPagesStay},
    {"sealed_pages_are_evicted_first", ProbeUnsealedPagesAreEvictedFirst},
    {"slow_reader_takes_pages", ProbeASlowReaderTakesNoPage, "vllm",
     "max_pages=-1 slow=8 draft=.4"},
    {"page_of_a_snapshot_is_evicted_for_nothing", ProbeHeldPageIsNotEvictedForNothing},
    {"absent_rows_lose_their_reason", ProbeAbsentRowsKeepTheirReason},
    {"rows_that_were_not_there_are_lost", ProbeLostRowsWereThere},
    // Reasons.
    {"not_asked_is_never_written", ProbeNotAskedIsNotCaptured, "vllm", "mute=.3"},
    {"not_asked_is_external_kv", ProbeNotAskedInExternalBlock},
    {"reset_is_never_written", ProbeResetIsCapacity},
    // Reading.
    {"join_layers_takes_any_step", ProbeLayersAreOfOneStep, "megatron",
     "stages=2 layers=8 drop=.1 full_hit=.7"},
};

}  // namespace

std::span<const Fault> BlockFaults() {
  return kFaults;
}

}  // namespace waymark::conformance
