#include "adapters/formats/conventions.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace waymark::formats {
namespace {

constexpr std::int64_t kMostRows = std::numeric_limits<std::int32_t>::max();

absl::Status Bad(const std::string& what) {
  return absl::InvalidArgumentError(what);
}

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
  return Bad(absl::StrCat("sentinel must fit the dtype; ", std::string(DtypeName(dtype)),
                          " has no ", std::string(SentinelName(sentinel))));
}

// InvalidArgument if a router could choose the ids of `sentinel`.
absl::Status CheckSentinelIsNoRoute(Sentinel sentinel, std::int32_t top_k,
                                    std::int32_t num_experts) {
  const bool route = sentinel == Sentinel::kArange ||
                     (sentinel == Sentinel::kZeros && top_k == 1) ||
                     (sentinel == Sentinel::k255 && top_k == 1 && num_experts > 255);
  if (!route) return absl::OkStatus();
  return Bad(absl::StrCat("sentinel must not be a possible route; '",
                          std::string(SentinelName(sentinel)), "' is one for top_k = ", top_k,
                          " and ", num_experts, " experts"));
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
      return Bad(absl::StrCat("moe_layers[", i, "] must be at least ", least,
                              ", above every one before it; it is ", model.moe_layers[i]));
    }
  }
  Columns found;
  found.layer_ids = model.moe_layers;
  if (axis == LayerAxis::kAllLayers) {
    if (model.num_layers != 0 && model.num_layers != columns) {
      return Bad(absl::StrCat("num_layers must be the array's, ", columns,
                              ", if all layers have a column; it is ", model.num_layers));
    }
    if (model.moe_layers.empty()) {
      return Bad(
          "moe_layers is required if all layers have a column: the other columns have no routes");
    }
    if (model.moe_layers.back() >= columns) {
      return Bad(absl::StrCat("moe_layers must be below the array's ", columns,
                              " layers; the last is ", model.moe_layers.back()));
    }
    found.columns = model.moe_layers;
    return found;
  }
  if (!model.moe_layers.empty() && model.moe_layers.size() != static_cast<std::size_t>(columns)) {
    return Bad(absl::StrCat("moe_layers must have one layer per column, ", columns, "; they are ",
                            model.moe_layers.size()));
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

// Finds an id that occurs twice, for any number of ids below E.
class Distinct {
 public:
  explicit Distinct(std::int32_t num_experts) : seen_(static_cast<std::size_t>(num_experts), 0) {}
  void Begin() { ++turn_; }
  // False if the id was added since the last Begin.
  bool Add(std::int64_t id) {
    std::uint64_t& seen = seen_[static_cast<std::size_t>(id)];
    if (seen == turn_) return false;
    seen = turn_;
    return true;
  }

 private:
  std::vector<std::uint64_t> seen_;
  std::uint64_t turn_ = 0;
};

RowInfo Missing(Reason reason) {
  RowInfo info;
  info.reason = reason;
  return info;
}

}  // namespace

std::string_view SentinelName(Sentinel sentinel) {
  static constexpr std::string_view kNames[] = {"none", "-1", "255", "65535", "zeros", "arange"};
  return kNames[static_cast<std::size_t>(sentinel)];
}

std::int64_t SentinelId(Sentinel sentinel, std::int64_t k) {
  switch (sentinel) {
    case Sentinel::kNone:
    case Sentinel::kZeros:
      return 0;
    case Sentinel::kMinusOne:
      return -1;
    case Sentinel::k255:
      return 255;
    case Sentinel::k65535:
      return 65535;
    case Sentinel::kArange:
      return k;
  }
  return 0;
}

absl::StatusOr<RowsAndNotes> ToRows(const RoutingArray& array, const Conventions& conventions,
                                    const Model& model, std::int64_t first, const Limits& limits) {
  const absl::StatusOr<Columns> columns = MoeColumns(array.layers, conventions.layers, model);
  if (!columns.ok()) return columns.status();
  if (model.num_experts == 0) return Bad("num_experts is required: no array contains it");
  RowsAndNotes result;
  Rows& rows = result.rows;
  rows.shape.num_layers = static_cast<std::int32_t>(columns->columns.size());
  rows.shape.top_k = array.top_k;
  rows.shape.num_experts = model.num_experts;
  rows.shape.layer_ids = columns->layer_ids;
  if (absl::Status status = rows.shape.Validate(); !status.ok()) return status;
  if (absl::Status status = CheckSentinelFits(conventions.sentinel, array.dtype); !status.ok()) {
    return status;
  }
  if (absl::Status status =
          CheckSentinelIsNoRoute(conventions.sentinel, array.top_k, model.num_experts);
      !status.ok()) {
    return status;
  }
  const bool placeholder = conventions.rows == RowCount::kTokens;
  if (placeholder && array.rows == 0) {
    return Bad("rows must be at least 1 if the last token has one; they are 0");
  }
  const std::int64_t count = array.rows - (placeholder ? 1 : 0);
  if (first < 0 || first > kMostRows - count) {
    return Bad(absl::StrCat("first must be in [0, ", kMostRows - count, "]; it is ", first));
  }
  const std::size_t row_bytes = rows.shape.row_bytes();
  if (static_cast<std::size_t>(count) * (row_bytes + sizeof(RowInfo)) > limits.max_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "rows: they take ", static_cast<std::size_t>(count) * (row_bytes + sizeof(RowInfo)),
        " bytes; the limit is ", limits.max_bytes));
  }
  rows.first = first;
  rows.infos.resize(static_cast<std::size_t>(count));
  rows.ids.resize(static_cast<std::size_t>(count) * row_bytes);

  const std::size_t top_k = static_cast<std::size_t>(array.top_k);
  const std::size_t id_bytes = rows.shape.id_bytes();
  std::vector<std::int64_t> ids(array.row_ids());
  std::vector<std::int64_t> repeats(columns->columns.size(), 0);
  std::int64_t written = 0;  // rows that are not the sentinel in every layer
  Distinct distinct(model.num_experts);
  Counted partial;
  Counted repeating;
  for (std::int64_t i = 0; i < count; ++i) {
    LoadRow(array, i, ids);
    std::uint8_t* out = rows.ids.data() + static_cast<std::size_t>(i) * row_bytes;
    std::size_t silent = 0;
    bool repeated = false;
    for (std::size_t layer = 0; layer < columns->columns.size(); ++layer) {
      const std::span<const std::int64_t> group = std::span<const std::int64_t>(ids).subspan(
          static_cast<std::size_t>(columns->columns[layer]) * top_k, top_k);
      if (IsSentinel(conventions.sentinel, group)) {
        ++silent;
        ++repeats[layer];
        continue;
      }
      distinct.Begin();
      bool twice = false;
      for (std::size_t k = 0; k < top_k; ++k) {
        if (group[k] < 0 || group[k] >= model.num_experts) {
          return Bad(absl::StrCat(
              "row ", first + i, ", column ", columns->columns[layer], ": an id must be in [0, ",
              model.num_experts, ")",
              conventions.sentinel == Sentinel::kNone
                  ? ""
                  : ", or all of them " + std::string(SentinelName(conventions.sentinel)),
              "; it is ", group[k]));
        }
        twice |= !distinct.Add(group[k]);
        if (id_bytes == 1) {
          out[layer * top_k + k] = static_cast<std::uint8_t>(group[k]);
        } else {
          const auto id = static_cast<std::uint16_t>(group[k]);
          std::memcpy(out + (layer * top_k + k) * 2, &id, 2);
        }
      }
      repeats[layer] += twice ? 1 : 0;
      repeated |= twice;
    }
    RowInfo& info = rows.infos[static_cast<std::size_t>(i)];
    if (silent == columns->columns.size()) {
      info = Missing(Reason::kNeverWritten);
      for (std::int64_t& layer : repeats)
        --layer;
      continue;
    }
    ++written;
    info = {};
    info.reason = Reason::kNone;
    if (silent > 0) {
      info = Missing(Reason::kNotCaptured);
      partial.Add(first + i);
    } else if (repeated) {
      info = Missing(Reason::kInvalidId);
      repeating.Add(first + i);
    }
    if (!info.valid()) std::fill_n(out, row_bytes, std::uint8_t{0});
  }
  for (std::size_t layer = 0; written > 0 && layer < repeats.size(); ++layer) {
    if (repeats[layer] < written) continue;
    return Bad(absl::StrCat("column ", columns->columns[layer],
                            " has an id twice, or no ids, in every row, as no MoE layer does; "
                            "set moe_layers to the columns that are MoE layers"));
  }
  if (partial.rows > 0) {
    result.notes.push_back(partial.ToString() +
                           " with the sentinel in some layers only: missing (not captured)");
  }
  if (repeating.rows > 0) {
    result.notes.push_back(repeating.ToString() +
                           " with an id twice in a layer: missing (invalid id)");
  }
  if (placeholder) {
    LoadRow(array, count, ids);
    bool route = true;
    for (const std::int32_t column : columns->columns) {
      const std::span<const std::int64_t> group = std::span<const std::int64_t>(ids).subspan(
          static_cast<std::size_t>(column) * top_k, top_k);
      std::vector<std::int64_t> sorted(group.begin(), group.end());
      std::sort(sorted.begin(), sorted.end());
      route &= !IsSentinel(conventions.sentinel, group) && sorted.front() >= 0 &&
               std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
    }
    if (route) {
      result.notes.emplace_back(
          "the last token's row looks like a route; the row is left out, because the token was "
          "never "
          "an input");
    }
  }
  return result;
}

absl::StatusOr<ArrayAndNotes> FromRows(const Rows& rows, const Conventions& conventions,
                                       const Model& model, Dtype dtype, const Limits& limits) {
  if (absl::Status status = CheckRows("rows", rows); !status.ok()) return status;
  const RoutingShape& shape = rows.shape;
  std::int32_t columns = shape.num_layers;
  if (conventions.layers == LayerAxis::kAllLayers) {
    const std::int32_t last = shape.layer_id(shape.num_layers - 1);
    if (model.num_layers <= last) {
      return Bad(
          absl::StrCat("num_layers must be above the last MoE layer, ", last,
                       ", if all layers get a column; it is ",
                       model.num_layers == 0 ? "not given" : std::to_string(model.num_layers)));
    }
    columns = model.num_layers;
  }
  if (absl::Status status = CheckSentinelFits(conventions.sentinel, dtype); !status.ok()) {
    return status;
  }
  Counted missing;
  std::map<Reason, std::int64_t> reasons;
  std::int64_t known = 0;  // rows with a step, a version or a provenance
  for (std::int64_t i = 0; i < rows.size(); ++i) {
    const RowInfo& info = rows.infos[static_cast<std::size_t>(i)];
    if (info.valid()) {
      known += info.step != 0 || info.version != 0 || info.provenance != Provenance::kHere ? 1 : 0;
    } else {
      missing.Add(rows.first + i);
      ++reasons[info.reason];
    }
  }
  const bool placeholder = conventions.rows == RowCount::kTokens;
  if (conventions.sentinel == Sentinel::kNone && (missing.rows > 0 || placeholder)) {
    return absl::FailedPreconditionError(
        missing.rows > 0
            ? absl::StrCat(missing.ToString(), missing.rows == 1 ? " is" : " are",
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

  const std::size_t top_k = static_cast<std::size_t>(shape.top_k);
  const std::size_t id_bytes = shape.id_bytes();
  std::vector<std::int64_t> ids(result.array.row_ids(), 0);
  for (std::int64_t i = 0; i < count; ++i) {
    const bool valid = i < rows.size() && rows.infos[static_cast<std::size_t>(i)].valid();
    const std::uint8_t* row = valid ? rows.row(i).data() : nullptr;
    for (std::int32_t layer = 0; layer < shape.num_layers; ++layer) {
      const std::int32_t column =
          conventions.layers == LayerAxis::kAllLayers ? shape.layer_id(layer) : layer;
      for (std::size_t k = 0; k < top_k; ++k) {
        std::int64_t& id = ids[static_cast<std::size_t>(column) * top_k + k];
        const std::size_t at = static_cast<std::size_t>(layer) * top_k + k;
        if (!valid) {
          id = SentinelId(conventions.sentinel, static_cast<std::int64_t>(k));
        } else if (id_bytes == 1) {
          id = row[at];
        } else {
          std::uint16_t stored;
          std::memcpy(&stored, row + at * 2, 2);
          id = stored;
        }
        if (!Holds(dtype, id)) {
          return Bad(absl::StrCat("dtype must fit every id; ", std::string(DtypeName(dtype)),
                                  " has no ", id, ", of row ", rows.first + i));
        }
      }
    }
    StoreRow(result.array, i, ids);
  }

  if (missing.rows > 0) {
    std::string list;
    for (const auto& [reason, number] : reasons)
      absl::StrAppend(&list, list.empty() ? "" : ", ", number, " ",
                      std::string(ReasonName(reason)));
    result.notes.push_back(absl::StrCat(
        missing.ToString(), missing.rows == 1 ? " is" : " are", " missing, written as '",
        std::string(SentinelName(conventions.sentinel)), "'; the reasons are not written: ", list));
    if (!CheckSentinelIsNoRoute(conventions.sentinel, shape.top_k, shape.num_experts).ok()) {
      result.notes.push_back(
          absl::StrCat("'", std::string(SentinelName(conventions.sentinel)),
                       "' is also a route, so readers cannot tell these rows from routes"));
    }
  }
  if (known > 0) {
    result.notes.push_back(
        absl::StrCat("steps, versions and provenance of ", known, " rows are not written"));
  }
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
