// Every mixing of ids that must not compile. One case at a time is switched on by its macro;
// without any the file compiles, which shows that a case fails for its own line and not for
// another.
#include <cstdint>

#include "blockstore/ids.h"

namespace waymark {
namespace {

bool TakesBlock(BlockId block) {
  return block.valid();
}

[[maybe_unused]] bool Use() {
  const BlockId block(7);
  const PageId page(7);
  const StepId step(7);
  const Version version(7);

#if defined(WAYMARK_CASE_FROM_INTEGER)
  const BlockId from_integer = 7;
  TakesBlock(from_integer);
#elif defined(WAYMARK_CASE_TO_INTEGER)
  const std::int32_t number = block;
  if (number == 7) return true;
#elif defined(WAYMARK_CASE_FROM_OTHER_ID)
  const StepId from_version(version);
  if (from_version.valid()) return true;
#elif defined(WAYMARK_CASE_ARGUMENT_OF_OTHER_ID)
  if (TakesBlock(page)) return true;
#elif defined(WAYMARK_CASE_COMPARE_WITH_INTEGER)
  if (block == 7) return true;
#elif defined(WAYMARK_CASE_COMPARE_WITH_OTHER_ID)
  if (step == version) return true;
#elif defined(WAYMARK_CASE_ORDER_WITH_OTHER_ID)
  if (step < version) return true;
#elif defined(WAYMARK_CASE_ARITHMETIC)
  if ((step + 1).valid()) return true;
#endif

  return TakesBlock(block) && page == PageId(7) && step < StepId(8) && version.value() == 7;
}

}  // namespace
}  // namespace waymark
