// Batches of steps.
#include "plugin/python/batch.h"

namespace waymark_python {
namespace {

std::int32_t BlockTokens(const RowArgs& rows) {
  if (rows.block_tokens.is_none()) return rows.store_block_tokens;
  return IntegerOf<std::int32_t>(rows.block_tokens, "block_tokens");
}

// Item `i` of a tuple or list of `size`.
nb::object Item(nb::handle items, Py_ssize_t i, Py_ssize_t size, const char* rule) {
  if ((!PyTuple_Check(items.ptr()) && !PyList_Check(items.ptr())) ||
      PySequence_Size(items.ptr()) != size) {
    PyErr_SetString(PyExc_TypeError, rule);
    throw nb::python_error();
  }
  return nb::steal(PySequence_GetItem(items.ptr(), i));
}

}  // namespace

BatchArgs::BatchArgs(std::uint64_t step, std::uint64_t version, const RowArgs& rows,
                     nb::handle events, std::uint32_t flags) {
  batch.struct_size = sizeof(batch);
  batch.flags = flags;
  batch.step = step;
  batch.version = version;
  if (rows.pairs.is_valid() && !rows.pairs.is_none()) TakePairs(rows);
  if (!rows.slots.is_none()) {
    slots_.emplace(rows.slots, "slots");
    batch.slots = slots_->data();
    batch.num_slots = slots_->size();
  }
  RefuseOtherForms(rows);
  if (!events.is_none()) {
    events_.emplace(events);
    batch.events = events_->data();
    batch.num_events = events_->size();
  }
}

void BatchArgs::RefuseOtherForms(const RowArgs& rows) const {
  const bool plain = batch.pairs == nullptr;
  if (plain && rows.asked.is_valid() && !rows.asked.is_none()) {
    Raise(WM_INVALID_ARGUMENT,
          "asked: with pairs; a slot that is not asked for is NOT_ASKED(slot)");
  }
  if (plain && rows.block_tokens.is_valid() && !rows.block_tokens.is_none()) {
    Raise(WM_INVALID_ARGUMENT,
          std::string("block_tokens: with pairs, got ") + nb::repr(rows.block_tokens).c_str());
  }
}

std::int64_t BatchArgs::rows() const {
  return static_cast<std::int64_t>(batch.pairs != nullptr ? pairs_.num_rows : batch.num_slots);
}

void BatchArgs::First(std::int64_t count) {
  if (count < 0 || count > rows()) {
    Raise(WM_INVALID_ARGUMENT, "count: in [0, " + std::to_string(rows()) +
                                   "], the number of rows, got " + std::to_string(count));
  }
  (batch.pairs != nullptr ? pairs_.num_rows : batch.num_slots) = static_cast<std::size_t>(count);
}

waymark::StepBatch BatchArgs::cpp() {
  waymark::StepBatch to = {.step = batch.step,
                           .version = batch.version,
                           .events = reinterpret_cast<const waymark::Event*>(batch.events),
                           .num_events = batch.num_events,
                           .slots = batch.slots,
                           .num_slots = batch.num_slots,
                           .derive_events = (batch.flags & WM_BATCH_DERIVE_EVENTS) != 0};
  if (batch.pairs != nullptr) {
    pair_rows_ = {pairs_.block_idx,   pairs_.local_position, pairs_.asked,         pairs_.num_rows,
                  pairs_.index_bytes, pairs_.block_tokens,   pairs_.position_bytes};
    to.pairs = &pair_rows_;
  }
  return to;
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
      PyErr_SetString(PyExc_TypeError,
                      "asked must be an array of bool or uint8 with one dimension, contiguous, in "
                      "host memory");
      throw nb::python_error();
    }
    flags = asked_array_.data;
    size = static_cast<std::size_t>(asked_array_.shape[0]);
  }
  if (size != count) {
    Raise(WM_INVALID_ARGUMENT,
          "asked: one per row, got " + std::to_string(size) + " of " + std::to_string(count));
  }
  return static_cast<const std::uint8_t*>(flags);
}

void BatchArgs::TakePairs(const RowArgs& rows) {
  const char* const rule = "pairs must be (block_idx, local_position)";
  const nb::object blocks = Item(rows.pairs, 0, 2, rule);
  const nb::object positions = Item(rows.pairs, 1, 2, rule);
  const NumpyTypes& types = NumpyTypes::Get();
  std::size_t num_positions = 0;
  pairs_.index_bytes = 4;
  pairs_.position_bytes = 4;
  if (memory_[0].Take(blocks, types.int32, 1)) {
    pairs_.block_idx = memory_[0].data();
    pairs_.num_rows = memory_[0].shape(0);
  } else {
    block_idx_.emplace(blocks, "block_idx");
    pairs_.index_bytes = 8;
    pairs_.block_idx = block_idx_->data();
    pairs_.num_rows = block_idx_->size();
  }
  if (memory_[1].Take(positions, types.int32, 1)) {
    pairs_.local_position = memory_[1].data();
    num_positions = memory_[1].shape(0);
  } else {
    local_position_.emplace(positions, "local_position");
    pairs_.position_bytes = 8;
    pairs_.local_position = local_position_->data();
    num_positions = local_position_->size();
  }
  if (num_positions != pairs_.num_rows) {
    Raise(WM_INVALID_ARGUMENT, "local_position: as many as block_idx, got " +
                                   std::to_string(num_positions) + " of " +
                                   std::to_string(pairs_.num_rows));
  }
  pairs_.struct_size = sizeof(pairs_);
  pairs_.block_tokens = BlockTokens(rows);
  pairs_.asked = TakeAsked(rows.asked, pairs_.num_rows);
  batch.pairs = &pairs_;
}

}  // namespace waymark_python
