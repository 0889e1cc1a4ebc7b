// Courses of records for the rules of the log, which the simulators' stores seldom stretch.
#include "blockstore/store/schedule_message.h"
#include "tests/conformance/direct.h"
#include "tests/conformance/faults/faults.h"

namespace waymark::conformance {
namespace {

constexpr std::size_t kAll = ~std::size_t{0};

// A store whose records wait for Apply, with the least room for them.
StoreOptions LaggingOptions() {
  StoreOptions options = Direct::Options();
  options.landing = Landing::kManual;
  options.log_bytes = 1;
  return options;
}

bool Report(Direct& direct, const std::vector<Event>& events) {
  return direct.store().Report(events).ok();
}

// Reports what changes nothing, `times` times or until it is refused.
int Retain(Direct& direct, int times) {
  const std::vector<Event> events(4, Event::Retain(BlockId(9)));
  int reported = 0;
  while (reported < times && Report(direct, events))
    ++reported;
  return reported;
}

std::vector<int> TagsOf(Direct& direct, const Snapshot& snapshot) {
  (void)direct.store().Apply(kAll);
  direct.LandAll();
  return Direct::TagsOf(Direct::Read(snapshot));
}

}  // namespace

std::string ProbeOverflowStandsBehindTheRing() {
  Direct direct(LaggingOptions());
  (void)direct.Begin(1, {Event::Bind(BlockId(0))}, {0, 1});
  (void)direct.Submit(1, {10, 11});
  if (Retain(direct, 40) != 40) return "there is no overflow";  // the ring holds fewer
  (void)Report(direct, {Event::Bind(BlockId(0))});
  if (TagsOf(direct, direct.Take({0}, 2)) != std::vector<int>{-1, -1}) {
    return "a bind was applied before the step that was begun before it";
  }
  return "";
}

std::string ProbeEveryLossIsPoisoned() {
  Direct direct(LaggingOptions());
  (void)direct.Begin(1, {Event::Bind(BlockId(0)), Event::Bind(BlockId(1))}, {0, 4});
  (void)direct.Submit(1, {10, 20});
  for (int loss = 1; loss <= 2; ++loss) {
    (void)Retain(direct, 1 << 20);
    (void)Report(direct, std::vector<Event>(8, Event::Bind(BlockId(0))));  // lost
    (void)direct.store().Apply(kAll);
    direct.LandAll();
    const std::uint64_t step = static_cast<std::uint64_t>(loss) + 1;
    (void)direct.Begin(step, {Event::Bind(BlockId(1))}, {4});
    (void)direct.Submit(step, {30});
    if (TagsOf(direct, direct.Take({0}, 1)) != std::vector<int>{-1}) {
      return "a row whose block may have been bound again was returned";
    }
    // The block has a row again, for the next loss.
    (void)Report(direct, {Event::Bind(BlockId(0)), Event::Copy(BlockId(1), BlockId(0))});
    if (TagsOf(direct, direct.Take({0}, 1)) != std::vector<int>{30}) return "a row is missing";
  }
  return "";
}

std::string ProbeSnapshotHasItsPlace() {
  Direct direct(LaggingOptions());
  (void)direct.Begin(1, {Event::Bind(BlockId(0))}, {0});
  (void)direct.Submit(1, {10});
  const Snapshot before = direct.Take({0}, 1);
  (void)Report(direct, {Event::Bind(BlockId(0))});
  const Snapshot after = direct.Take({0}, 1);
  (void)Report(direct, {Event::Retain(BlockId(9))});
  if (TagsOf(direct, before) != std::vector<int>{10}) return "it saw what was reported after it";
  if (TagsOf(direct, after) != std::vector<int>{-1}) return "it did not see what was before it";
  return "";
}

std::string ProbeTicketIsRecycledOnce() {
  Direct direct;
  direct.Step(1, {Event::Bind(BlockId(0)), Event::Bind(BlockId(1))}, {0, 4}, {10, 20});
  const Snapshot first = direct.Take({0}, 1);
  const Snapshot second = direct.Take({1}, 1);
  if (Direct::TagsOf(Direct::Read(first)) != std::vector<int>{10}) {
    return "a snapshot reads the rows of a later one";
  }
  return "";
}

std::string ProbeMessageIsAppliedOnce() {
  Direct direct;
  ScheduleWriter writer = ScheduleWriter::Create({.num_blocks = 16, .block_tokens = 4}).value();
  if (!writer.Begin(StepId(1), 1).ok() ||
      !writer.Report({{Event::Bind(BlockId(0)), Event::Bind(BlockId(1))}}).ok()) {
    return "the writer refuses a schedule";
  }
  const std::span<const std::uint8_t> message = writer.Finish();
  if (!direct.store().ReportMessage(message).ok()) return "the store refuses a message";
  (void)direct.Begin(1, {}, {0});
  (void)direct.Submit(1, {10});
  (void)direct.store().ReportMessage(message);
  direct.LandAll();
  return direct.Tags({0}, 1) == std::vector<int>{10} ? "" : "a doubled message was applied";
}

std::string ProbeCoveredPrefixIsOfNow() {
  Direct direct(LaggingOptions());
  (void)direct.Begin(1, {Event::Bind(BlockId(0))}, {0});
  (void)direct.Submit(1, {10});
  (void)direct.store().Apply(kAll);
  (void)Report(direct, {Event::Bind(BlockId(0))});
  const BlockId blocks[] = {BlockId(0)};
  return direct.store().CoveredPrefix(blocks, 1) == 0
             ? ""
             : "the rows of the last owner of a block count as covered";
}

std::string ProbeBeginIsNotBehindALaterSchedule() {
  Direct direct;
  (void)direct.store().Schedule(StepId(2), 1);
  (void)Report(direct, {Event::Bind(BlockId(0))});
  return direct.Begin(1, {}, {0}).ok() ? "a step claimed a block of the schedule after it" : "";
}

}  // namespace waymark::conformance
