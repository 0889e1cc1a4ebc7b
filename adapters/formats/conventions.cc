#include "adapters/formats/conventions.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "blockstore/distinct_ids.h"
#include "blockstore/invalid.h"

namespace waymark::formats {
namespace {

constexpr std::int64_t kMostRows = std::numeric_limits<std::int32_t>::max();

bool IsSentinel(Sentinel sentinel, std::span<const std::int64_t> ids) {
  if (sentinel == Sentinel::kNone) return false;
  for (std::size_t k = 0; k < ids.size(); ++k) {
    if (ids[k] != SentinelId(sentinel, static_cast<std::int64_t>(k))) return false;
  }
  return true;
}

absl::Status CheckSentinelFits(Sentinel sentinel, Dtype dtype) {
  if (sentinel == Sentinel::kNone || Holds(dtype, SentinelId(sentinel, 0))) {
    return absl::OkStatus();
  }
  return Invalid("sentinel must fit the dtype; ", DtypeName(dtype), " has no ",
                 SentinelName(sentinel));
}

// InvalidArgument if a router could choose the ids of `sentinel`.
absl::Status CheckSentinelIsNoRoute(Sentinel sentinel, std::int32_t top_k,
                                    std::int32_t num_experts) {
  const bool route = sentinel == Sentinel::kArange ||
                     (sentinel == Sentinel::kZeros && top_k == 1) ||
                     (sentinel == Sentinel::k255 && top_k == 1 && num_experts > 255);
  if (!route) return absl::OkStatus();
  return Invalid("sentinel must not be a possible route; '", SentinelName(sentinel),
                 "' is one for top_k = ", top_k, " and ", num_experts, " experts");
}

// The columns of an array that belong to MoE layers, and the numbers of those layers (empty:
// unknown).
struct Columns {
  std::vector<std::int32_t> columns;
  std::vector<std::int32_t> layer_ids;
};

absl::StatusOr<Columns> MoeColumns(std::int32_t columns, LayerAxis axis, const Model& model) {
  for (std::size_t i = 0; i < model.moe_layers.size(); ++i) {
    const std::int64_t least = i == 0 ? 0 : std::int64_t{model.moe_layers[i - 1]} + 1;
    if (model.moe_layers[i] < least) {
      return Invalid("moe_layers[", i, "] must be at least ", least,
                     ", above every one before it; it is ", model.moe_layers[i]);
    }
  }
  Columns found;
  found.layer_ids = model.moe_layers;
  if (axis == LayerAxis::kAllLayers) {
    if (model.num_layers != 0 && model.num_layers != columns) {
      return Invalid("num_layers must be the array's, ", columns,
                     ", if all layers have a column; it is ", model.num_layers);
    }
    if (model.moe_layers.empty()) {
      return Invalid(
          "moe_layers is required if all layers have a column: the other columns have no routes");
    }
    if (model.moe_layers.back() >= columns) {
      return Invalid("moe_layers must be below the array's ", columns, " layers; the last is ",
                     model.moe_layers.back());
    }
    found.columns = model.moe_layers;
    return found;
  }
  if (!model.moe_layers.empty() && model.moe_layers.size() != static_cast<std::size_t>(columns)) {
    return Invalid("moe_layers must have one layer per column, ", columns, "; they are ",
                   model.moe_layers.size());
  }
  for (std::int32_t column = 0; column < columns; ++column)
    found.columns.push_back(column);
  return found;
}

// Counts rows and remembers the first, for notes such as "3 rows (the first is row 12)".
struct Counted {
  std::int64_t rows = 0;
  std::int64_t first = 0;
  void Add(std::int64_t row) {
    if (rows++ == 0) first = row;
  }
  [[nodiscard]] std::string ToString() const {
    return absl::StrCat(rows, rows == 1 ? " row (row " : " rows (the first is row ", first, ")");
  }
};

// In the order of the enum; of kArange, the first id of a layer.
constexpr std::array<std::pair<std::string_view, std::int64_t>, 6> kSentinels = {
    {{"none", 0}, {"-1", -1}, {"255", 255}, {"65535", 65535}, {"zeros", 0}, {"arange", 0}}};

}  // namespace

std::string_view SentinelName(Sentinel sentinel) {
  return kSentinels[static_cast<std::size_t>(sentinel)].first;
}

std::int64_t SentinelId(Sentinel sentinel, std::int64_t k) {
  if (sentinel == Sentinel::kArange) return k;
  return kSentinels[static_cast<std::size_t>(sentinel)].second;
}

namespace {

// One call of ToRows.
class ArrayReader {
 public:
  ArrayReader(const RoutingArray& array, const Conventions& conventions, const Model& model)
      : array_(array),
        conventions_(conventions),
        experts_(model.num_experts),
        top_k_(static_cast<std::size_t>(array.top_k)),
        ids_(array.row_ids()) {}

  absl::Status Prepare(const Model& model, std::int64_t first, const Limits& limits);
  absl::Status ReadRow(std::int64_t i);
  // After all rows.
  absl::Status CheckColumns() const;
  void Note();

  [[nodiscard]] std::int64_t count() const { return result_.rows.size(); }
  RowsAndNotes result() && { return std::move(result_); }

 private:
  [[nodiscard]] std::span<const std::int64_t> ids_of(std::size_t layer) const {
    const auto column = static_cast<std::size_t>(columns_.columns[layer]);
    return std::span<const std::int64_t>(ids_).subspan(column * top_k_, top_k_);
  }
  absl::Status StoreLayer(std::int64_t i, std::size_t layer, std::uint8_t* out) const;
  [[nodiscard]] bool LooksLikeARoute();

  const RoutingArray& array_;
  const Conventions& conventions_;
  const std::int32_t experts_;
  const std::size_t top_k_;
  Columns columns_;
  RowsAndNotes result_;
  std::vector<std::int64_t> ids_;         // of one row of the array
  std::vector<std::int64_t> repeats_;     // [layers]: rows that have no choice of a router there
  std::vector<std::uint8_t> bad_layers_;  // [layers]: whether one row has none there
  std::int64_t written_ = 0;              // rows that are not the sentinel in every layer
  std::optional<DistinctIds> distinct_;
  Counted partial_;
  Counted repeating_;
};

absl::Status ArrayReader::Prepare(const Model& model, std::int64_t first, const Limits& limits) {
  absl::StatusOr<Columns> columns = MoeColumns(array_.layers, conventions_.layers, model);
  if (!columns.ok()) {
    const auto rows = static_cast<std::size_t>(array_.rows);
    const bool turned = rows == model.moe_layers.size() || array_.rows == model.num_layers;
    if (!turned || array_.rows == 0 || array_.rows == array_.layers) return columns.status();
    return Invalid(columns.status().message(), ". Is the array [layers, rows, K]? It has to be ",
                   "[rows, layers, K], and is [", array_.rows, ", ", array_.layers, ", ",
                   array_.top_k, "]");
  }
  columns_ = *std::move(columns);
  if (experts_ == 0) return Invalid("num_experts is required: no array contains it");
  Rows& rows = result_.rows;
  rows.shape.num_layers = static_cast<std::int32_t>(columns_.columns.size());
  rows.shape.top_k = array_.top_k;
  rows.shape.num_experts = experts_;
  rows.shape.layer_ids = columns_.layer_ids;
  absl::Status status = rows.shape.Validate();
  status.Update(CheckSentinelFits(conventions_.sentinel, array_.dtype));
  status.Update(CheckSentinelIsNoRoute(conventions_.sentinel, array_.top_k, experts_));
  if (!status.ok()) return status;
  distinct_.emplace(array_.top_k, experts_);
  const bool placeholder = conventions_.rows == RowCount::kTokens;
  if (placeholder && array_.rows == 0) {
    return Invalid("rows must be at least 1 if the last token has one; they are 0");
  }
  const std::int64_t count = array_.rows - (placeholder ? 1 : 0);
  if (first < 0 || first > kMostRows - count) {
    return Invalid("first must be in [0, ", kMostRows - count, "]; it is ", first);
  }
  const std::size_t bytes =
      static_cast<std::size_t>(count) * (rows.shape.row_bytes() + sizeof(RowInfo));
  if (bytes > limits.max_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("rows: they take ", bytes, " bytes; the limit is ", limits.max_bytes));
  }
  rows.first = first;
  rows.infos.resize(static_cast<std::size_t>(count));
  rows.ids.resize(static_cast<std::size_t>(count) * rows.shape.row_bytes());
  repeats_.resize(columns_.columns.size());
  bad_layers_.resize(columns_.columns.size());
  return absl::OkStatus();
}

absl::Status ArrayReader::StoreLayer(std::int64_t i, std::size_t layer, std::uint8_t* out) const {
  const std::size_t id_bytes = result_.rows.shape.id_bytes();
  for (const std::int64_t id : ids_of(layer)) {
    if (id < 0 || id >= experts_) {
      return Invalid("row ", result_.rows.first + i, ", column ", columns_.columns[layer],
                     ": an id must be in [0, ", experts_, ")",
                     conventions_.sentinel == Sentinel::kNone
                         ? ""
                         : ", or all of them " + std::string(SentinelName(conventions_.sentinel)),
                     "; it is ", id,
                     id == -1 && conventions_.sentinel == Sentinel::kNone
                         ? ": if that is a missing row, the sentinel is -1"
                         : "");
    }
    std::memcpy(out, &id, id_bytes);  // little-endian, as all that is stored
    out += id_bytes;
  }
  return absl::OkStatus();
}

absl::Status ArrayReader::ReadRow(std::int64_t i) {
  Rows& rows = result_.rows;
  const std::size_t layers = repeats_.size();
  const std::size_t row_bytes = rows.shape.row_bytes();
  std::uint8_t* const out = rows.ids.data() + static_cast<std::size_t>(i) * row_bytes;
  LoadRow(array_, i, ids_);
  std::size_t silent = 0;
  bool repeated = false;
  std::fill(bad_layers_.begin(), bad_layers_.end(), std::uint8_t{0});
  for (std::size_t layer = 0; layer < layers; ++layer) {
    std::uint8_t* const at = out + layer * (row_bytes / layers);
    if (IsSentinel(conventions_.sentinel, ids_of(layer))) {
      ++silent;
      bad_layers_[layer] = 1;
      continue;
    }
    if (absl::Status status = StoreLayer(i, layer, at); !status.ok()) return status;
    if (distinct_->FirstBad(at, 1) < 0) continue;
    bad_layers_[layer] = 1;
    repeated = true;
  }
  RowInfo& info = rows.infos[static_cast<std::size_t>(i)];
  info.provenance = Provenance::kUnknown;
  if (silent == layers) {
    info.reason = Reason::kNotTold;
    return absl::OkStatus();
  }
  ++written_;
  for (std::size_t layer = 0; layer < layers; ++layer)
    repeats_[layer] += bad_layers_[layer];
  info.reason = silent > 0 ? Reason::kNotCaptured : repeated ? Reason::kInvalidId : Reason::kNone;
  if (info.valid()) {
    info.version = kUnknownVersion;
    return absl::OkStatus();
  }
  (silent > 0 ? partial_ : repeating_).Add(rows.first + i);
  std::fill_n(out, row_bytes, std::uint8_t{0});
  return absl::OkStatus();
}

absl::Status ArrayReader::CheckColumns() const {
  for (std::size_t layer = 0; written_ > 0 && layer < repeats_.size(); ++layer) {
    if (repeats_[layer] < written_) continue;
    return Invalid("column ", columns_.columns[layer],
                   " has an id twice, or no ids, in every row, as no MoE layer does; "
                   "set moe_layers to the columns that are MoE layers");
  }
  return absl::OkStatus();
}

// Whether a router could have chosen the ids of the row that was loaded.
bool ArrayReader::LooksLikeARoute() {
  for (std::size_t layer = 0; layer < repeats_.size(); ++layer) {
    const std::span<const std::int64_t> ids = ids_of(layer);
    const std::set<std::int64_t> distinct(ids.begin(), ids.end());
    if (IsSentinel(conventions_.sentinel, ids) || *distinct.begin() < 0 ||
        distinct.size() != ids.size()) {
      return false;
    }
  }
  return true;
}

void ArrayReader::Note() {
  if (partial_.rows > 0) {
    result_.notes.push_back(partial_.ToString() +
                            " with the sentinel in some layers only: missing (not captured)");
  }
  if (repeating_.rows > 0) {
    result_.notes.push_back(repeating_.ToString() +
                            " with an id twice in a layer: missing (invalid id)");
  }
  if (conventions_.rows != RowCount::kTokens) return;
  LoadRow(array_, count(), ids_);
  if (!LooksLikeARoute()) return;
  result_.notes.emplace_back(
      "the last token's row looks like a route; the row is left out, because the token was never "
      "an input");
}

// The rows that an array cannot express in full.
struct Losses {
  Counted missing;
  std::map<std::string, std::int64_t> reasons;
  std::int64_t known = 0;  // rows with a step, a version or a provenance
};

Losses LossesOf(const Rows& rows) {
  Losses losses;
  for (std::int64_t i = 0; i < rows.size(); ++i) {
    const RowInfo& info = rows.infos[static_cast<std::size_t>(i)];
    if (info.valid()) {
      const bool known = info.step != 0 || info.version != kUnknownVersion ||
                         info.provenance != Provenance::kUnknown;
      losses.known += known ? 1 : 0;
    } else {
      losses.missing.Add(rows.first + i);
      ++losses.reasons[WhyMissing(info.reason, info.cause)];
    }
  }
  return losses;
}

std::vector<std::string> NotesOf(const Losses& losses, Sentinel sentinel,
                                 const RoutingShape& shape) {
  std::vector<std::string> notes;
  if (losses.missing.rows > 0) {
    std::string list;
    for (const auto& [reason, number] : losses.reasons)
      absl::StrAppend(&list, list.empty() ? "" : ", ", number, " ", reason);
    const std::string name(SentinelName(sentinel));
    notes.push_back(
        absl::StrCat(losses.missing.ToString(), losses.missing.rows == 1 ? " is" : " are",
                     " missing, written as '", name, "'; the reasons are not written: ", list));
    if (!CheckSentinelIsNoRoute(sentinel, shape.top_k, shape.num_experts).ok()) {
      notes.push_back(absl::StrCat("'", name, "' is also a route, so readers cannot tell these ",
                                   "rows from routes"));
    }
  }
  if (losses.known > 0) {
    notes.push_back(
        absl::StrCat("steps, versions and provenance of ", losses.known, " rows are not written"));
  }
  return notes;
}

// Writes row `i` of the array, one that has no valid row as the sentinel. `ids`: of one row.
absl::Status WriteRow(const Rows& rows, std::int64_t i, const Conventions& conventions,
                      std::span<std::int64_t> ids, RoutingArray& array) {
  const RoutingShape& shape = rows.shape;
  const std::size_t top_k = static_cast<std::size_t>(shape.top_k);
  const bool valid = i < rows.size() && rows.infos[static_cast<std::size_t>(i)].valid();
  const std::uint8_t* const row = valid ? rows.row(i).data() : nullptr;
  for (std::int32_t layer = 0; layer < shape.num_layers; ++layer) {
    const std::int32_t column =
        conventions.layers == LayerAxis::kAllLayers ? shape.layer_id(layer) : layer;
    for (std::size_t k = 0; k < top_k; ++k) {
      const std::int64_t id = valid
                                  ? shape.id_at(row, static_cast<std::size_t>(layer) * top_k + k)
                                  : SentinelId(conventions.sentinel, static_cast<std::int64_t>(k));
      if (!Holds(array.dtype, id)) {
        return Invalid("dtype must fit every id; ", DtypeName(array.dtype), " has no ", id,
                       ", of row ", rows.first + i);
      }
      ids[static_cast<std::size_t>(column) * top_k + k] = id;
    }
  }
  StoreRow(array, i, ids);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RowsAndNotes> ToRows(const RoutingArray& array, const Conventions& conventions,
                                    const Model& model, std::int64_t first, const Limits& limits) {
  ArrayReader reader(array, conventions, model);
  absl::Status status = reader.Prepare(model, first, limits);
  for (std::int64_t i = 0; status.ok() && i < reader.count(); ++i)
    status = reader.ReadRow(i);
  if (status.ok()) status = reader.CheckColumns();
  if (!status.ok()) return status;
  reader.Note();
  return std::move(reader).result();
}

absl::StatusOr<ArrayAndNotes> FromRows(const Rows& rows, const Conventions& conventions,
                                       const Model& model, Dtype dtype, const Limits& limits) {
  if (absl::Status status = CheckRows("rows", rows); !status.ok()) return status;
  const RoutingShape& shape = rows.shape;
  std::int32_t columns = shape.num_layers;
  if (conventions.layers == LayerAxis::kAllLayers) {
    const std::int32_t last = shape.layer_id(shape.num_layers - 1);
    if (model.num_layers <= last) {
      return Invalid("num_layers must be above the last MoE layer, ", last,
                     ", if all layers get a column; it is ",
                     model.num_layers == 0 ? "not given" : std::to_string(model.num_layers));
    }
    columns = model.num_layers;
  }
  if (absl::Status status = CheckSentinelFits(conventions.sentinel, dtype); !status.ok()) {
    return status;
  }
  const Losses losses = LossesOf(rows);
  const bool placeholder = conventions.rows == RowCount::kTokens;
  if (conventions.sentinel == Sentinel::kNone && (losses.missing.rows > 0 || placeholder)) {
    return absl::FailedPreconditionError(
        losses.missing.rows > 0
            ? absl::StrCat(losses.missing.ToString(), losses.missing.rows == 1 ? " is" : " are",
                           " missing, which an array can only mark by a sentinel: choose a "
                           "sentinel")
            : std::string("the last token's row must be filled: choose a sentinel"));
  }
  ArrayAndNotes result;
  const std::int64_t count = rows.size() + (placeholder ? 1 : 0);
  const std::int64_t axes[3] = {count, columns, shape.top_k};
  if (absl::Status status = MakeArray("rows", axes, dtype, limits, result.array); !status.ok()) {
    return status;
  }
  result.array.first = rows.first;
  std::vector<std::int64_t> ids(result.array.row_ids(), 0);
  for (std::int64_t i = 0; i < count; ++i) {
    absl::Status status = WriteRow(rows, i, conventions, ids, result.array);
    if (!status.ok()) return status;
  }
  result.notes = NotesOf(losses, conventions.sentinel, shape);
  return result;
}

std::int32_t LeastExperts(const RoutingArray& array, const Conventions& conventions,
                          const Model& model) {
  const absl::StatusOr<Columns> columns = MoeColumns(array.layers, conventions.layers, model);
  std::int64_t most = std::min(array.top_k, 65535) - 1;
  std::vector<std::int64_t> ids(array.row_ids());
  const std::size_t top_k = static_cast<std::size_t>(array.top_k);
  const std::int64_t count = array.rows - (conventions.rows == RowCount::kTokens ? 1 : 0);
  for (std::int64_t i = 0; i < count; ++i) {
    LoadRow(array, i, ids);
    for (std::int32_t column = 0; column < array.layers; ++column) {
      if (columns.ok() &&
          !std::binary_search(columns->columns.begin(), columns->columns.end(), column)) {
        continue;
      }
      const std::span<const std::int64_t> group = std::span<const std::int64_t>(ids).subspan(
          static_cast<std::size_t>(column) * top_k, top_k);
      if (IsSentinel(conventions.sentinel, group)) continue;
      most = std::max(most, *std::max_element(group.begin(), group.end()));
    }
  }
  return static_cast<std::int32_t>(std::min<std::int64_t>(most + 1, 65535));
}

}  // namespace waymark::formats
