// What the probes share: rows that come when they are told to, and comparisons.
#ifndef WAYMARK_TESTS_CONFORMANCE_FAULTS_PROBE_H_
#define WAYMARK_TESTS_CONFORMANCE_FAULTS_PROBE_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/direct.h"

namespace waymark::conformance {

// Ids that are there when `come` is set, or were asked for `after` times. They know who uses them
// after Done(). Must outlive the store.
class LateRows final : public StepRows {
 public:
  explicit LateRows(std::vector<int> tags) : rows_(std::move(tags)) {}
  bool Poll() override {
    Use();
    return ++polls > after || come.load();
  }
  void Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
            std::span<Reason> verdicts) override {
    Use();
    rows_.Land(first, destinations, verdicts);
  }
  void GiveUp() override { gave_up = true; }
  void Done() override { ++dones; }

  std::atomic<bool> come{false};
  int after = 1 << 30;
  std::atomic<int> polls{0}, dones{0};
  std::atomic<bool> gave_up{false}, used_after_done{false};

 private:
  void Use() {
    if (dones.load() > 0) used_after_done = true;
  }
  TagRows rows_;
};

// The key of block 0, and its rows, in most courses.
inline const BlockKey kKey = BlockKey::FromInteger(5);
inline const std::vector<int> kTens = {10, 11, 12, 13};

// All slots of these blocks.
inline std::vector<std::int64_t> Slots(const std::vector<std::int32_t>& blocks) {
  std::vector<std::int64_t> slots;
  for (const std::int32_t block : blocks) {
    for (std::int64_t offset = 0; offset < kDirectBlock; ++offset)
      slots.push_back(Direct::Slot(block, offset));
  }
  return slots;
}

// Step 1 fills block 0; and seals it with the key.
inline void Fill(Direct& direct) {
  direct.Step(1, {Event::Bind(BlockId(0))}, Slots({0}), kTens);
}
inline void FillAndSeal(Direct& direct) {
  direct.Step(1, {Event::Bind(BlockId(0)), Event::Seal(BlockId(0), kKey, StepId(1))}, Slots({0}),
              kTens);
}

// Stores with so few pages, and with an audit.
inline StoreOptions WithPages(std::uint32_t num_pages,
                              std::optional<std::uint32_t> spare_pages = {}) {
  return Direct::With(
      [&](StoreOptions& o) { o.num_pages = num_pages, o.spare_pages = spare_pages; });
}
inline StoreOptions Audited() {
  return Direct::With([](StoreOptions& o) { o.audit = true; });
}

// Empty if both are equal, else `why`, and what is there.
inline std::string Compare(const std::vector<int>& got, const std::vector<int>& want,
                           const char* why) {
  if (got == want) return "";
  std::string text = std::string(why) + ": the rows are";
  for (const int tag : got)
    text += " " + std::to_string(tag);
  return text;
}
inline std::string CompareRows(Direct& direct, const std::vector<std::int32_t>& blocks,
                               const std::vector<int>& want, const char* why) {
  return Compare(direct.Tags(blocks, static_cast<std::int64_t>(want.size())), want, why);
}
// The same of the reason of row `row` of block 0.
inline std::string CompareReason(Direct& direct, Reason want, std::int64_t row = 0) {
  const RowInfo info = direct.Read({0}, row + 1)[static_cast<std::size_t>(row)].info;
  return info.reason == want ? "" : "the reason is " + std::string(ReasonName(info.reason));
}

}  // namespace waymark::conformance

#endif  // WAYMARK_TESTS_CONFORMANCE_FAULTS_PROBE_H_
