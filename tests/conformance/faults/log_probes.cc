// Courses of records for the rules of the log, which the simulators' stores seldom stretch.
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
  options.max_step_rows = 8;
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

// Once wrong: the seal of a step before the loss was accepted, and the truncation that took it back
// was taken for one of an earlier life. The block stayed sealed with a step that had not filled it,
// and its rows of step 3 were protected from step 4, which wrote over them.
std::string ProbeASealAfterPoisonCanBeTakenBack() {
  Direct direct;
  direct.Step(1, {Event::Bind(BlockId(0))}, {0, 1}, {10, 11});
  direct.Step(2, {}, {2, 3}, {12, 13});
  if (direct.store().ReportMessage({}).ok()) return "a message without bytes was accepted";
  const std::vector<Event> rewind = {Event::Seal(BlockId(0), BlockKey::FromInteger(7), StepId(2)),
                                     Event::Truncate(BlockId(0), 0, StepId(2))};
  direct.Step(3, rewind, {0, 1}, {30, 31});
  direct.Step(4, {}, {1, 2}, {41, 42});
  const std::vector<int> rows = TagsOf(direct, direct.Take({0}, 3));
  return rows == std::vector<int>{30, 41, 42} ? "" : "a row of step 3 was kept at step 4";
}

std::string ProbeEndsAreNeverLost() {
  Direct direct(LaggingOptions());
  (void)direct.Begin(1, {Event::Bind(BlockId(0))}, {0});
  // A snapshot that waits for no record had no room.
  while (!direct.store().TakeSnapshot({}, 0, 0).value().Ready()) {
  }
  if (Report(direct, {Event::Retain(BlockId(9))})) return "the log is not full";
  return direct.Submit(1, {10}).ok() ? "" : "a step cannot end when the log is full";
}

std::string ProbeTicketIsRecycledOnce() {
  Direct direct(LaggingOptions());
  (void)direct.Begin(1, {Event::Bind(BlockId(0)), Event::Bind(BlockId(1))}, {0, 4});
  (void)direct.Submit(1, {10, 20});
  direct.Take({0}, 1).Release();  // before it is applied
  (void)direct.store().Apply(kAll);
  (void)direct.Begin(2, {}, {});  // released tickets are taken back
  (void)direct.Submit(2, {});
  (void)direct.store().Apply(kAll);
  const Snapshot first = direct.Take({0}, 1);
  const Snapshot second = direct.Take({1}, 1);
  return TagsOf(direct, first) == std::vector<int>{10} ? "" : "two snapshots have the same ticket";
}

}  // namespace waymark::conformance
