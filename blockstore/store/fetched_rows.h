// FetchedRows: the rows of a step that was fetched before its turn; rule 4 of docs/architecture.md.
// Internal to blockstore.
#ifndef WAYMARK_BLOCKSTORE_STORE_FETCHED_ROWS_H_
#define WAYMARK_BLOCKSTORE_STORE_FETCHED_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "blockstore/shape.h"
#include "blockstore/store/step_ids.h"

namespace waymark {

// Memory of the store, so that the owner of the ids has its buffer back although an earlier step
// is not there yet. What is written from it is what would be written from the owner's. The thread
// that applies the log.
class FetchedRows final : public StepRows {
 public:
  explicit FetchedRows(const RoutingShape& shape)
      : row_bytes_(shape.row_bytes()), layers_(static_cast<std::size_t>(shape.num_layers)) {}

  // Reads the rows of `ids`, whose Poll is true. `batch`: the slots that were told; of a device
  // step the range, whose slots come with the ids and are asked for once, however often this is
  // called. False if it takes more than `room` bytes: nothing but those slots was read. Throws
  // std::bad_alloc.
  bool Read(StepIds& ids, std::span<const std::int64_t> batch, bool device_slots, std::size_t room);
  // Whether all that is needed was read. Else only Slots() of this object is to be used.
  [[nodiscard]] bool read() const { return read_; }
  // Whether Slots() has what the owner said.
  [[nodiscard]] bool has_slots() const { return has_slots_; }
  [[nodiscard]] std::size_t bytes() const {
    return ids_.size() + verdicts_.size() + written_.size() + slot_bytes();
  }

  std::optional<std::span<const std::int64_t>> Slots() override {
    if (!slots_.has_value()) return std::nullopt;
    return *slots_;
  }
  void Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
            std::span<Reason> verdicts) override;
  bool LandLayers(std::uint32_t row, std::uint8_t* destination,
                  std::span<std::uint8_t> written) override;
  void Done() override {}

 private:
  [[nodiscard]] std::size_t slot_bytes() const {
    return slots_.has_value() ? slots_->size() * sizeof(std::int64_t) : 0;
  }
  // Which rows asked; empty: all.
  std::vector<bool> AskedOf(std::span<const std::int64_t> batch, bool device_slots) const;

  const std::size_t row_bytes_;
  const std::size_t layers_;
  bool read_ = false;
  bool has_slots_ = false;
  std::optional<std::vector<std::int64_t>> slots_;
  std::vector<std::uint8_t> ids_;  // [rows, row_bytes]
  std::vector<Reason> verdicts_;   // [rows]
  // [rows, layers]: those that were written of rows without a row; empty if there is none.
  std::vector<std::uint8_t> written_;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_FETCHED_ROWS_H_
