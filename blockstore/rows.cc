#include "blockstore/rows.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "blockstore/huge_pages.h"
#include "blockstore/invalid.h"

namespace waymark {
namespace {

constexpr std::int64_t kMaxRows = std::numeric_limits<std::int32_t>::max();

bool SameLayers(const RoutingShape& a, const RoutingShape& b) {
  if (a.num_layers != b.num_layers) return false;
  for (std::int32_t layer = 0; layer < a.num_layers; ++layer) {
    if (a.layer_id(layer) != b.layer_id(layer)) return false;
  }
  return true;
}

// Whether `part` names the rows behind those of `before`, in the same page and the same way.
bool GoesOn(PageName before, const PageName& part) {
  if (before.end != part.begin) return false;
  before.begin = part.begin;
  before.end = part.end;
  return before == part;
}

absl::Status Differ(const std::string& field, std::int64_t wanted, std::int64_t given) {
  return Invalid(field, " must be ", wanted, "; it is ", given);
}

// The largest of `count` ids that lie at `ids`.
template <class T>
std::int32_t LargestId(const std::uint8_t* ids, std::size_t count) {
  T largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    T id = 0;
    std::memcpy(&id, ids + i * sizeof(T), sizeof(T));
    largest = std::max(largest, id);
  }
  return largest;
}

// The shape of the layers of all stages.
absl::StatusOr<RoutingShape> JoinShapes(std::span<const Rows* const> stages) {
  RoutingShape joined = stages[0]->shape;
  bool explicit_ids = false;
  std::int64_t layers = 0;
  for (const Rows* stage : stages) {
    layers += stage->shape.num_layers;
    explicit_ids |= !stage->shape.layer_ids.empty();
  }
  if (layers > 1024) {
    return Invalid("stages: layers must be at most 1024 in all; they are ", layers);
  }
  joined.num_layers = static_cast<std::int32_t>(layers);
  joined.layer_ids.clear();
  if (!explicit_ids) return joined;
  std::int64_t next = 0;  // the lowest allowed id of the next layer
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const RoutingShape& shape = stages[s]->shape;
    for (std::int32_t layer = 0; layer < shape.num_layers; ++layer) {
      const std::int64_t id = shape.layer_ids.empty() ? next : shape.layer_id(layer);
      if (id < next || id > kMaxRows) {
        return Invalid("stages[", s, "].shape.layer_ids[", layer, "] must be at least ", next,
                       ", above every layer before it; it is ", id);
      }
      joined.layer_ids.push_back(static_cast<std::int32_t>(id));
      next = id + 1;
    }
  }
  return joined;
}

// Checks the rows of an array that are to be joined: there are some, none is null, each holds what
// it states, and K and E are those of the first.
absl::Status CheckSameModel(const char* array, std::span<const Rows* const> all) {
  if (all.empty()) {
    return Invalid(array, " must not be empty");
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::string name = absl::StrCat(array, "[", i, "]");
    if (all[i] == nullptr) {
      return Invalid(name, " must not be null");
    }
    if (absl::Status status = CheckRows(name, *all[i]); !status.ok()) return status;
    const RoutingShape& front = all[0]->shape;
    const RoutingShape& shape = all[i]->shape;
    if (shape.top_k != front.top_k) {
      return Differ(name + ".shape.top_k", front.top_k, shape.top_k);
    }
    if (shape.num_experts != front.num_experts) {
      return Differ(name + ".shape.num_experts", front.num_experts, shape.num_experts);
    }
  }
  return absl::OkStatus();
}

// How much a read knows of a row: why it is missing is more than *not told*, which is more than
// *never written*, as rows are that no read has.
int HowTold(const RowInfo& row) {
  if (row.valid()) return 3;
  if (row.reason == Reason::kNeverWritten) return 0;
  return row.reason == Reason::kNotTold ? 1 : 2;
}

}  // namespace

std::size_t IdBytes(IdType type) {
  static constexpr std::size_t kBytes[] = {1, 2, 2, 4, 8};  // of kUint8, kUint16, kInt16, ...
  const auto number = static_cast<std::size_t>(type);
  return number < std::size(kBytes) ? kBytes[number] : 0;
}

std::int32_t ExpertsHeld(std::size_t bytes, bool is_signed) {
  const std::size_t bits = 8 * bytes - (is_signed ? 1 : 0);
  return 1 << std::min<std::size_t>(bits, 16);
}

std::int32_t ExpertsHeld(IdType type) {
  return ExpertsHeld(IdBytes(type), type >= IdType::kInt16);
}

std::string ExpertsHeldText(std::size_t bytes, bool is_signed) {
  return absl::StrCat(is_signed ? "int" : "uint", 8 * bytes, " holds ",
                      ExpertsHeld(bytes, is_signed), " experts");
}

std::span<const std::uint8_t> Rows::row(std::int64_t index) const {
  const std::size_t bytes = shape.row_bytes();
  return std::span(ids).subspan(static_cast<std::size_t>(index) * bytes, bytes);
}

absl::Status Rows::Write(const ReadSpec& spec, std::span<std::uint8_t> out) const {
  if (absl::Status status = CheckRows("rows", *this); !status.ok()) return status;
  if (absl::Status status = CheckReadSpec(shape, size(), spec, out.size()); !status.ok()) {
    return status;
  }
  std::vector<const std::uint8_t*> row_pointers(infos.size());
  for (std::size_t i = 0; i < row_pointers.size(); ++i) {
    row_pointers[i] = infos[i].valid() ? ids.data() + i * shape.row_bytes() : nullptr;
  }
  WriteRows(shape, row_pointers, spec, out);
  return absl::OkStatus();
}

absl::Status CheckRows(const std::string& name, const Rows& rows) {
  if (absl::Status status = rows.shape.Validate(); !status.ok()) {
    return Invalid(name, ".", std::string(status.message()));
  }
  if (rows.first < 0 || rows.size() > kMaxRows || rows.first > kMaxRows - rows.size()) {
    return Invalid(name, ": positions must be in [0, ", kMaxRows, "]; it has ", rows.size(),
                   " from ", rows.first);
  }
  const std::size_t bytes = rows.infos.size() * rows.shape.row_bytes();
  if (rows.ids.size() != bytes) {
    return Invalid(name, ".ids must hold ", bytes, " bytes for its ", rows.infos.size(),
                   " infos; it holds ", rows.ids.size());
  }
  return absl::OkStatus();
}

void AddNames(const Rows& rows, std::int64_t begin, std::int64_t end,
              std::vector<PageName>& names) {
  begin = std::max(begin, rows.first);
  end = std::min(end, rows.last());
  auto name = std::ranges::partition_point(
      rows.names, [begin](const PageName& one) { return one.end <= begin; });
  for (; name != rows.names.end() && name->begin < end; ++name) {
    PageName part = *name;
    part.begin = std::max(part.begin, begin);
    part.end = std::min(part.end, end);
    if (part.begin >= part.end) continue;
    if (!names.empty() && GoesOn(names.back(), part)) {
      names.back().end = part.end;
    } else {
      names.push_back(part);
    }
  }
}

absl::StatusOr<Rows> Join(std::span<const Rows* const> reads) {
  if (absl::Status status = CheckSameModel("reads", reads); !status.ok()) return status;
  const Rows& front = *reads[0];
  for (std::size_t r = 1; r < reads.size(); ++r) {
    const RoutingShape& shape = reads[r]->shape;
    if (shape.num_layers != front.shape.num_layers) {
      return Differ(absl::StrCat("reads[", r, "].shape.num_layers"), front.shape.num_layers,
                    shape.num_layers);
    }
    if (!SameLayers(front.shape, shape)) {
      return Invalid("reads[", r, "].shape.layer_ids must be those of reads[0]; they differ");
    }
  }
  Rows joined;
  joined.shape = front.shape;
  joined.first = front.first;
  joined.ordered = true;
  std::int64_t last = front.first;
  bool any = false;  // the position of an empty range is ignored
  for (const Rows* read : reads) {
    if (read->infos.empty()) continue;
    joined.first = any ? std::min(joined.first, read->first) : read->first;
    last = any ? std::max(last, read->last()) : read->last();
    joined.ordered &= read->ordered;
    any = true;
  }
  if (!any) return front;
  const auto size = static_cast<std::size_t>(last - joined.first);
  const std::size_t row_bytes = joined.shape.row_bytes();
  joined.infos.resize(size);
  ResizeForWriting(size * row_bytes, joined.ids);
  for (std::size_t i = 0; i < size; ++i) {
    const std::int64_t position = joined.first + static_cast<std::int64_t>(i);
    RowInfo& info = joined.infos[i];
    const Rows* from = nullptr;
    for (const Rows* read : reads) {
      if (position < read->first || position >= read->last()) continue;
      const RowInfo& found = read->infos[static_cast<std::size_t>(position - read->first)];
      const int told = HowTold(found) - HowTold(info);
      if (told < 0 || (told == 0 && info.reason != Reason::kNeverWritten)) continue;
      info = found;
      from = read;
      if (!info.valid()) continue;
      std::memcpy(joined.ids.data() + i * row_bytes, read->row(position - read->first).data(),
                  row_bytes);
      break;
    }
    if (from != nullptr && from->shape.page_tokens == joined.shape.page_tokens)
      AddNames(*from, position, position + 1, joined.names);
  }
  return joined;
}

absl::StatusOr<Rows> JoinLayers(std::span<const Rows* const> stages) {
  if (absl::Status status = CheckSameModel("stages", stages); !status.ok()) return status;
  for (std::size_t s = 1; s < stages.size(); ++s) {
    const std::string name = absl::StrCat("stages[", s, "]");
    const Rows& stage = *stages[s];
    const Rows& front = *stages[0];
    if (stage.first != front.first) return Differ(name + ".first", front.first, stage.first);
    if (stage.size() != front.size()) return Differ(name + ".size()", front.size(), stage.size());
  }
  absl::StatusOr<RoutingShape> shape = JoinShapes(stages);
  if (!shape.ok()) return shape.status();

  Rows joined;
  joined.shape = *std::move(shape);
  joined.first = stages[0]->first;
  const std::size_t size = stages[0]->infos.size();
  joined.infos.resize(size);
  ResizeForWriting(size * joined.shape.row_bytes(), joined.ids);
  joined.ordered =
      std::all_of(stages.begin(), stages.end(), [](const Rows* s) { return s->ordered; });
  std::uint8_t* at = joined.ids.data();
  for (std::size_t i = 0; i < size; ++i) {
    RowInfo info = stages[0]->infos[i];
    bool unequal = false;
    for (const Rows* stage : stages) {
      const RowInfo& part = stage->infos[i];
      if (!part.valid()) {  // the reason of the first stage without it
        info = part;
        unequal = false;
        break;
      }
      unequal |= part.step != info.step || (info.step == 0 && part.version != info.version);
      if (info.provenance == Provenance::kHere) info.provenance = part.provenance;
    }
    if (unequal) {
      info = RowInfo{};
      info.reason = Reason::kNotCaptured;
    }
    joined.infos[i] = info;
    for (const Rows* stage : stages) {
      const std::size_t bytes = stage->shape.row_bytes();
      if (info.valid()) {
        std::memcpy(at, stage->row(static_cast<std::int64_t>(i)).data(), bytes);
      }
      at += bytes;
    }
  }
  return joined;
}

absl::Status CheckReadSpec(const RoutingShape& shape, std::int64_t rows, const ReadSpec& spec,
                           std::size_t bytes) {
  if (rows < 0) {
    return Invalid("rows must not be negative; it is ", rows);
  }
  if (spec.layout > Layout::kLayersTokensK) {
    return Invalid("spec.layout must be kTokensLayersK (0) or kLayersTokensK (1); it is ",
                   static_cast<int>(spec.layout));
  }
  if (spec.fill > Fill::kZeros) {
    return Invalid("spec.fill must be kMinusOne (0) or kZeros (1); it is ",
                   static_cast<int>(spec.fill));
  }
  const std::size_t id_bytes = IdBytes(spec.id_type);
  if (id_bytes == 0) {
    return Invalid("spec.id_type must be in [0, 4]; it is ", static_cast<int>(spec.id_type));
  }
  const std::int32_t most = ExpertsHeld(spec.id_type);
  if (shape.num_experts > most) {
    return Invalid("spec.id_type holds ids below ", most, " only; shape.num_experts is ",
                   shape.num_experts);
  }
  if (spec.fill == Fill::kMinusOne && spec.id_type == IdType::kUint8 && shape.num_experts == most) {
    return Invalid("spec.fill must not be kMinusOne with kUint8, where it is 255, an expert of ",
                   most);
  }
  std::size_t wanted = 0;
  if (__builtin_mul_overflow(static_cast<std::size_t>(rows), shape.row_ids() * id_bytes, &wanted) ||
      bytes != wanted) {
    return Invalid("out must hold ", rows, " rows of ", shape.row_ids() * id_bytes,
                   " bytes; it holds ", bytes, " bytes");
  }
  return absl::OkStatus();
}

absl::Status CheckRowArrays(const RoutingShape& shape, std::int64_t first,
                            std::span<const std::uint8_t> ids, std::span<const RowInfo> infos) {
  if (absl::Status status = shape.Validate(); !status.ok()) return status;
  const std::size_t row_bytes = shape.row_bytes();
  if (first < 0 || first > kMaxRows || infos.size() > static_cast<std::size_t>(kMaxRows - first)) {
    return Invalid("first: rows in [0, 2^31), got ", infos.size(), " rows from ", first, " on");
  }
  if (ids.size() != infos.size() * row_bytes) {
    return Invalid("ids: ", row_bytes, " bytes a row, got ", ids.size(), " for ", infos.size(),
                   " rows");
  }
  for (std::size_t i = 0; i < infos.size(); ++i) {
    const RowInfo& info = infos[i];
    const auto bad = [i](const char* rule, auto value) {
      return Invalid("infos[", i, "]", rule, "; it is ", static_cast<std::uint64_t>(value));
    };
    if (static_cast<int>(info.reason) >= kNumReasons) {
      return bad(".reason: must be a reason, in [0, 8]", info.reason);
    }
    if (!IsCauseOf(info.reason, info.cause)) {
      return bad(".cause: must be 0, or of capacity in [0, 31]", info.cause);
    }
    if (static_cast<int>(info.provenance) >= kNumProvenances) {
      return bad(".provenance: must be one, in [0, 3]", info.provenance);
    }
    const auto* const reserved = std::ranges::find_if(info.reserved, [](int b) { return b != 0; });
    if (reserved != std::end(info.reserved)) return bad(".reserved: must be 0", *reserved);
    if (!info.valid()) {
      if (info.step == 0 && info.version == 0) continue;
      return bad(".step, .version: must be 0 in a missing row", info.step | info.version);
    }
    const std::uint8_t* const row = ids.data() + i * row_bytes;
    const std::int32_t largest = shape.id_bytes() == 1
                                     ? LargestId<std::uint8_t>(row, shape.row_ids())
                                     : LargestId<std::uint16_t>(row, shape.row_ids());
    if (largest >= shape.num_experts) {
      return Invalid("ids: must be below num_experts (", shape.num_experts, "); row ", i, " has ",
                     largest);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Rows> CopyRows(const RoutingShape& shape, std::int64_t first, bool ordered,
                              std::span<const std::uint8_t> ids, std::span<const RowInfo> infos) {
  absl::Status status = CheckRowArrays(shape, first, ids, infos);
  if (!status.ok()) return status;
  Rows rows;
  rows.shape = shape;
  rows.first = first;
  rows.ordered = ordered;
  rows.infos.assign(infos.begin(), infos.end());
  ResizeForWriting(ids.size(), rows.ids);
  const std::size_t row_bytes = shape.row_bytes();
  for (std::size_t i = 0; i < infos.size(); ++i) {
    if (!infos[i].valid()) continue;
    std::memcpy(rows.ids.data() + i * row_bytes, ids.data() + i * row_bytes, row_bytes);
  }
  return rows;
}

}  // namespace waymark
