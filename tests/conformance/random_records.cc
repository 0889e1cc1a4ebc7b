#include "tests/conformance/random_records.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <utility>

#include "adapters/simulators/hash.h"
#include "blockstore/store/checkpoint.h"
#include "tests/conformance/direct.h"

namespace waymark::conformance {
namespace {

constexpr std::int32_t kBlocks = 8;  // the last one is null
constexpr std::int64_t kBlockTokens = 8;
constexpr int kSchedules = 40;

class Records {
 public:
  Records(std::uint64_t seed, Reporting reporting, const RecordsHooks& hooks)
      : rng_(sim::Mix(seed, 0x7ec)),
        reporting_(reporting),
        hooks_(hooks),
        by_slot_(seed % 4 == 1),
        direct_([&] {
          StoreOptions options =
              hooks.few_pages ? FewPages(seed) : RecordsOptions(seed, hooks.audit);
          options.flight = hooks.sink;
          return options;
        }()) {}

  std::vector<std::string> Run() {
    for (int i = 0; i < kSchedules; ++i) {
      RunSchedule();
      EndAndLand();
      ReadSome();
      if (hooks_.between_schedules) hooks_.between_schedules();
    }
    for (const std::uint64_t step : std::exchange(open_, {}))
      Check(direct_.store().Drop(StepId(step)));
    direct_.LandAll();
    TakeOne();
    (void)direct_.store().WaitIdle(std::chrono::seconds(0));
    ReadSome();
    taken_.clear();
    return std::move(texts_);
  }

 private:
  // Nothing that is drawn here may be refused.
  static void Check(const StepCode& code) {
    if (code.ok() || code.dropped()) return;
    std::fprintf(stderr, "%s\n", std::string(code.ToStatus().message()).c_str());
    std::abort();
  }

  bool Chance(double p) { return rng_.Chance(p); }
  // In [0, n).
  std::uint64_t Below(std::int64_t n) { return static_cast<std::uint64_t>(rng_.Below(n)); }
  std::int32_t AnyBlock() { return static_cast<std::int32_t>(Below(kBlocks + 1)) - 1; }
  BlockId Block() {
    return BlockId(Chance(.1) ? AnyBlock() : static_cast<std::int32_t>(Below(kBlocks - 1)));
  }
  BlockKey Key() { return BlockKey::FromInteger(1 + Below(5)); }

  // One event, or a group of simultaneous moves.
  std::vector<Event> DrawEvent() {
    const BlockId block = Block();
    const BlockId other = Block();
    // Before the first step there is none to name.
    const StepId earlier(
        last_ == 0 ? 0 : std::max<std::uint64_t>(1, last_ - std::min(last_, Below(3))));
    switch (Below(16)) {
      case 0:
        return {Event::Bind(block, Key())};
      case 1:
        return {Event::Bind(block, Key())};
      case 2:
        return {Event::Seal(block, Chance(.8) ? Key() : BlockKey(), earlier)};
      case 3:
      case 4:
      case 5:
        return {
            Event::Seal(block, Chance(.8) ? Key() : BlockKey(), StepId(Chance(.5) ? 0 : step_))};
      case 6:
      case 7:
        if (block == other) return {Event::Bind(block)};
        return {Event::Copy(block, other,
                            Chance(.5) ? Event::kAllRows : static_cast<std::int32_t>(Below(9)))};
      case 8:
        return {Event::Move(block, other)};
      case 9:
        if (block == other) return {Event::Move(block, other)};
        return {Event::Move(block, other, true), Event::Move(other, block)};
      case 10:
        return {Event::Truncate(block, static_cast<std::int32_t>(Below(9)), earlier)};
      case 11:
        return {Event::Retain(block)};
      case 12:
        return {Event::Release(block)};
      case 13:
        if (Chance(.1)) return {Event::Reset()};
        [[fallthrough]];
      default:
        return {Event::Bind(block)};
    }
  }

  void RunSchedule() {
    RoutingStore& store = direct_.store();
    step_ += 1 + (Chance(.1) ? Below(4) : 0);
    version_ += Chance(.15) ? 1 : 0;
    const bool mixed = reporting_ == Reporting::kMixed;
    bool scheduled = mixed ? Chance(.7) : reporting_ == Reporting::kOneByOne;
    std::vector<Event> batch;
    std::vector<std::vector<Event>> groups;
    for (std::uint64_t i = Below(7); i-- > 0;)
      groups.push_back(DrawEvent());
    if (scheduled && !groups.empty()) Check(store.Schedule(StepId(step_), version_));
    for (std::vector<Event>& group : groups) {
      const bool outside = mixed ? batch.empty() && Chance(.7) : scheduled;
      if (!outside) {
        batch.insert(batch.end(), group.begin(), group.end());
        continue;
      }
      for (Event& event : group) {
        if (event.type == EventType::kSeal && !scheduled && event.step == step_) event.step = 0;
      }
      Check(store.Report(group));
      if (mixed && Chance(.3)) TakeOne();
    }
    if (mixed && Chance(.1) && batch.empty()) return;  // nothing of it runs
    if (mixed && Chance(.03)) LoseRecords();
    Begin(batch);
    while (Chance(.5))
      TakeOne();
  }

  void Begin(const std::vector<Event>& events) {
    std::vector<std::int64_t> slots;
    const std::int64_t first = static_cast<std::int64_t>(Below(kBlocks * kBlockTokens));
    for (std::uint64_t i = Below(10); i-- > 0;) {
      std::int64_t slot = static_cast<std::int64_t>(Below(kBlocks * kBlockTokens));
      if (Chance(.6)) slot = (first + static_cast<std::int64_t>(i)) % (kBlocks * kBlockTokens);
      slots.push_back(Chance(.05) ? kPaddingSlot : Chance(.1) ? NotAsked(slot) : slot);
    }
    const StepCode code = direct_.Begin(step_, events, slots, version_);
    Check(code);
    last_ = step_;
    if (!code.ok()) return;
    open_.push_back(step_);
    slots_of_[step_] = std::move(slots);
  }

  // Records up to some later step are lost, behind those that are there.
  void LoseRecords() {
    while (!open_.empty())
      EndAndLand();
    direct_.LandAll();
    last_ = std::max(last_, step_ - 1) + Below(3);
    step_ = last_ + 1;
    StoreCheckpoint::Poison(direct_.store(), last_, version_);
    // Late reports of what had happened before the loss.
    std::vector<Event> events;
    for (std::int32_t block = 0; block < kBlocks && last_ > 0; ++block) {
      if (Chance(.5)) events.push_back(Event::Seal(BlockId(block), Key(), StepId(last_)));
      if (Chance(.5)) {
        const auto row = static_cast<std::int32_t>(Below(9));
        events.push_back(Event::Truncate(BlockId(block), row, StepId(last_)));
      }
    }
    Check(direct_.store().Report(events));
  }

  void EndAndLand() {
    for (std::size_t i = 0; i < open_.size();) {
      if (Chance(.4)) {
        ++i;
        continue;
      }
      const std::uint64_t step = open_[i];
      open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(i));
      const std::uint64_t how = Below(10);
      if (how == 0) {
        Check(direct_.store().Drop(StepId(step)));
      } else if (how == 1) {
        Check(direct_.store().Cancel(StepId(step)));
      } else {
        Check(direct_.Submit(step, Tags(slots_of_[step], step)));
      }
    }
    for (int i = 0; i < 4; ++i) {
      if (Chance(.5)) (void)direct_.store().LandOne();
    }
  }

  std::vector<int> Tags(const std::vector<std::int64_t>& slots, std::uint64_t step) {
    std::vector<int> tags;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      // Of a slot they are mostly the same, whoever writes it, or never.
      const bool same = by_slot_ && slots[i] >= 0 && !Chance(.1);
      const std::uint64_t number = same ? static_cast<std::uint64_t>(slots[i]) : step * 16 + i;
      tags.push_back(Chance(.05) ? -1 : static_cast<int>(number % 250));
    }
    for (int& tag : tags)
      tag = hooks_.equal_rows && tag >= 0 ? 10 : tag;
    return tags;
  }

  void TakeOne() {
    std::vector<std::int32_t> blocks;
    for (std::uint64_t i = 1 + Below(4); i-- > 0;)
      blocks.push_back(AnyBlock());
    const auto rows = static_cast<std::int64_t>(blocks.size()) * kBlockTokens;
    const auto last = static_cast<std::int64_t>(Below(rows + 1));
    const auto first = static_cast<std::int64_t>(Below(last + 1));
    std::vector<BlockKey> keys;
    while (keys.size() < blocks.size() && Chance(.8))
      keys.push_back(Chance(.8) ? Key() : BlockKey());
    SnapshotOwner owner;
    owner.last_step = Chance(.5)   ? ~std::uint64_t{0}
                      : Chance(.7) ? last_ - std::min(last_, Below(3))
                                   : 0;
    if (owner.given() && Chance(.3)) owner.keys = keys;
    taken_.push_back(direct_.Take(blocks, last, first, owner));
  }

  // Reads and releases some of the snapshots that are readable.
  void ReadSome() {
    for (std::size_t i = 0; i < taken_.size();) {
      if (!taken_[i].Ready() || Chance(.3)) {
        ++i;
        continue;
      }
      for (const Seen& row : Direct::Read(taken_[i])) {
        texts_.push_back(std::to_string(row.tag) + " step " + std::to_string(row.info.step) +
                         " version " + std::to_string(row.info.version) + " " +
                         std::string(ReasonName(row.info.reason)) + " " +
                         std::string(ProvenanceName(row.info.provenance)));
      }
      taken_.erase(taken_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  sim::Rng rng_;
  const Reporting reporting_;
  const RecordsHooks& hooks_;
  const bool by_slot_;
  Direct direct_;
  std::uint64_t step_ = 0;  // of the schedule
  std::uint64_t last_ = 0;  // begun
  std::uint64_t version_ = 1;
  std::vector<std::uint64_t> open_;  // begun, not ended
  std::map<std::uint64_t, std::vector<std::int64_t>> slots_of_;
  std::vector<Snapshot> taken_;
  std::vector<std::string> texts_;
};

}  // namespace

StoreOptions RecordsOptions(std::uint64_t seed, bool audit) {
  StoreOptions options = Direct::Options();
  options.num_blocks = kBlocks;
  options.block_tokens = static_cast<std::int32_t>(kBlockTokens);
  options.num_pages = 1024;
  options.null_blocks = {BlockId(kBlocks - 1)};
  options.max_steps_in_flight = seed % 4 == 0 ? 2 : 64;
  options.audit = audit;
  options.key_seed = seed + 1;
  return options;
}

StoreOptions FewPages(std::uint64_t seed) {
  StoreOptions options = RecordsOptions(seed, /*audit=*/true);
  options.num_pages = 3 + static_cast<std::uint32_t>(seed % 8);
  options.spare_pages = static_cast<std::uint32_t>(seed / 8 % 11);
  return options;
}

std::vector<std::string> RunRecords(std::uint64_t seed, Reporting reporting,
                                    const RecordsHooks& hooks) {
  return Records(seed, reporting, hooks).Run();
}

}  // namespace waymark::conformance
