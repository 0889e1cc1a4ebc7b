// The engine that knows what is in each slot (slot_engine.h): no valid row is wrong, and the audit
// voids none. WAYMARK_SLOT_ENGINES (default 500) engines from seed WAYMARK_SEED (default 1) on. For
// longer runs: waymark_slot_engine.
#include "tests/conformance/slot_engine.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "tests/conformance/schedules.h"
#include "tests/support/test_seed.h"

namespace waymark::conformance {
namespace {

TEST(SlotEngine, EveryValidRowIsThatOfTheKvInItsSlot) {
  const std::uint64_t first = FromEnvironment("WAYMARK_SEED", 1);
  const std::uint64_t count = FromEnvironment("WAYMARK_SLOT_ENGINES", 500);
  SlotCounts all;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const SlotCounts counts = RunSlotEngine(seed);
    EXPECT_TRUE(counts.clean()) << "seed " << seed << ": " << counts.features << "\n  "
                                << counts.ToString();
    all.Add(counts);
  }
  std::printf("seeds %llu ... %llu: %s\n", static_cast<unsigned long long>(first),
              static_cast<unsigned long long>(first + count - 1), all.ToString().c_str());
  // A third of the rows and more are compared, and nothing that the features are for is left out.
  EXPECT_GT(all.valid, all.rows / 3);
  for (const std::uint64_t occurred :
       {all.ignored, all.by_key, all.copies_on_write, all.without_page, all.log_losses}) {
    EXPECT_GT(occurred, 0u) << all.ToString();
  }
}

}  // namespace
}  // namespace waymark::conformance
