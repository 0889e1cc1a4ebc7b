#include "plugin/python/batch.h"

namespace waymark_python {

BatchArgs::BatchArgs(std::uint64_t step, std::uint64_t version, const RowArgs& rows,
                     nb::handle events, bool derive_events) {
  batch_.step = step;
  batch_.version = version;
  batch_.derive_events = derive_events;
  if (PyTuple_Check(rows.rows.ptr())) {
    TakePairs(rows);
  } else {
    indexes_[0].emplace(rows.rows, "slots");
    batch_.slots = indexes_[0]->data();
    batch_.num_slots = indexes_[0]->size();
    if (!rows.asked.is_none()) {
      RaiseInvalid("asked: with pairs; a slot that is not asked for is NOT_ASKED(slot)");
    }
    if (!rows.block_tokens.is_none()) {
      RaiseInvalid(std::string("block_tokens: with pairs, got ") +
                   nb::repr(rows.block_tokens).c_str());
    }
  }
  if (!events.is_none()) {
    events_.emplace(events);
    batch_.events = events_->events().data();
    batch_.num_events = events_->events().size();
  }
}

std::int64_t BatchArgs::rows() const {
  return static_cast<std::int64_t>(batch_.pairs != nullptr ? pairs_.num_rows : batch_.num_slots);
}

void BatchArgs::First(std::int64_t count) {
  if (count < 0 || count > rows()) {
    RaiseInvalid("count: in [0, " + std::to_string(rows()) + "], the number of rows, got " +
                 std::to_string(count));
  }
  (batch_.pairs != nullptr ? pairs_.num_rows : batch_.num_slots) = static_cast<std::size_t>(count);
}

const std::uint8_t* BatchArgs::TakeAsked(nb::handle asked, std::size_t count) {
  if (asked.is_none()) return nullptr;
  const NumpyTypes& types = NumpyTypes::Get();
  const void* flags = nullptr;
  std::size_t size = 0;
  if (asked_.Take(asked, types.boolean, 1) || asked_.Take(asked, types.uint8, 1)) {
    flags = asked_.data();
    size = asked_.shape(0);
  } else {
    asked_array_ = ArrayOf(asked, "asked");
    const bool flag = asked_array_.kind == 'u' || asked_array_.kind == 'b';
    if (!flag || asked_array_.item_bytes != 1 || asked_array_.dims != 1 ||
        !asked_array_.contiguous() || !asked_array_.on_host) {
      RaiseType(
          "asked must be an array of bool or uint8 with one dimension, contiguous, in host memory");
    }
    flags = asked_array_.data;
    size = static_cast<std::size_t>(asked_array_.shape[0]);
  }
  if (size != count) {
    RaiseInvalid("asked: one per row, got " + std::to_string(size) + " of " +
                 std::to_string(count));
  }
  return static_cast<const std::uint8_t*>(flags);
}

const void* BatchArgs::TakeIndexes(nb::handle given, const char* name, int index,
                                   std::size_t& count, std::int32_t& bytes) {
  NumpyMemory& memory = memory_[index];
  if (memory.Take(given, NumpyTypes::Get().int32, 1)) {
    bytes = 4;
    count = memory.shape(0);
    return memory.data();
  }
  const Integers<std::int64_t>& taken = indexes_[index].emplace(given, name);
  bytes = 8;
  count = taken.size();
  return taken.data();
}

void BatchArgs::TakePairs(const RowArgs& rows) {
  if (PyTuple_Size(rows.rows.ptr()) != 2) RaiseType("pairs must be (block_idx, local_position)");
  std::size_t positions = 0;
  pairs_.block_idx = TakeIndexes(PyTuple_GetItem(rows.rows.ptr(), 0), "block_idx", 0,
                                 pairs_.num_rows, pairs_.index_bytes);
  pairs_.local_position = TakeIndexes(PyTuple_GetItem(rows.rows.ptr(), 1), "local_position", 1,
                                      positions, pairs_.position_bytes);
  if (positions != pairs_.num_rows) {
    RaiseInvalid("local_position: as many as block_idx, got " + std::to_string(positions) + " of " +
                 std::to_string(pairs_.num_rows));
  }
  pairs_.block_tokens = rows.block_tokens.is_none()
                            ? rows.store_block_tokens
                            : IntegerOf<std::int32_t>(rows.block_tokens, "block_tokens");
  pairs_.asked = TakeAsked(rows.asked, pairs_.num_rows);
  batch_.pairs = &pairs_;
}

}  // namespace waymark_python
