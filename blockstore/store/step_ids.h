// StepIds: the calls of a step's StepRows, guarded: an exception ends the step's ids, and nothing
// else. Internal to blockstore.
#ifndef WAYMARK_BLOCKSTORE_STORE_STEP_IDS_H_
#define WAYMARK_BLOCKSTORE_STORE_STEP_IDS_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <type_traits>

#include "blockstore/store/step_rows.h"

namespace waymark {

// A view of one StepRows, which is foreign code: no call is made under the store's mutex. If one
// throws, the rows that have not been read are not captured, and only Done is called after it. Owns
// nothing: the StepRows live until their Done(), which is StoreCore's call. No call throws. The
// thread that applies the log. Shapes and meaning of each call: step_rows.h.
class StepIds {
 public:
  StepIds() = default;
  // Null: none of the step's ids are there.
  explicit StepIds(StepRows* rows) : rows_(rows) {}

  // Whether the step has ids, which may not have come yet.
  [[nodiscard]] bool there() const { return rows_ != nullptr; }
  // Whether a call has thrown. From then on no call reaches the rows.
  [[nodiscard]] bool threw() const { return threw_; }
  // Whether there is nothing to wait for: the ids have come, there are none, or a call has thrown.
  [[nodiscard]] bool Poll() {
    return !there() || threw_ || Guarded([this] { return rows_->Poll(); }, true);
  }
  // Rows first, first + 1, ...: row_bytes bytes to each destination that is not null, and its
  // verdict. If the call throws, all of them are not captured.
  void Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
            std::span<Reason> verdicts) {
    const auto land = [&] {
      rows_->Land(first, destinations, verdicts);
      return true;
    };
    if (!there() || threw_ || !Guarded(land, false)) {
      std::fill(verdicts.begin(), verdicts.end(), Reason::kNotCaptured);
    }
  }
  // Of a row that is missing: the ids of the layers that wrote some, and which did,
  // written[layers]. False: nothing is known of it.
  [[nodiscard]] bool LandLayers(std::uint32_t row, std::uint8_t* destination,
                                std::span<std::uint8_t> written) {
    return there() && !threw_ &&
           Guarded([&] { return rows_->LandLayers(row, destination, written); }, false);
  }
  // Tells the owner that the ids are not waited for any more.
  void GiveUp() {
    const auto give_up = [this] {
      rows_->GiveUp();
      return true;
    };
    if (there() && !threw_) (void)Guarded(give_up, false);
  }

 private:
  template <class Call, class Result = std::invoke_result_t<Call>>
  Result Guarded(const Call& call, std::type_identity_t<Result> otherwise) {
    try {
      return call();
    } catch (...) {
      threw_ = true;
      return otherwise;
    }
  }

  StepRows* rows_ = nullptr;
  bool threw_ = false;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_STEP_IDS_H_
