#include "adapters/formats/formats.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "blockstore/invalid.h"
#include "blockstore/wire/document.h"
#include "blockstore/wire/document_format.h"

namespace waymark::formats {
namespace {

// The names of the values of an enum, in its order.
template <class T>
std::vector<std::string_view> NamesOf(int count, std::string_view (*name)(T)) {
  std::vector<std::string_view> names;
  for (int i = 0; i < count; ++i)
    names.push_back(name(static_cast<T>(i)));
  return names;
}
std::vector<std::string_view> NamesOf(RowCount) {
  return {"tokens-1", "tokens"};
}
std::vector<std::string_view> NamesOf(LayerAxis) {
  return {"moe", "all"};
}
std::vector<std::string_view> NamesOf(Sentinel) {
  return NamesOf(static_cast<int>(Sentinel::kArange) + 1, &SentinelName);
}
std::vector<std::string_view> NamesOf(Dtype) {
  return NamesOf(kNumDtypes, &DtypeName);
}
std::vector<std::string_view> NamesOf(Format) {
  return NamesOf<Format>(kNumFormats, [](Format format) { return InfoOf(format).name; });
}

// Refuses the options that apply to arrays alone.
absl::Status RefuseArrayOptions(const ReadRowsOptions& options) {
  const std::pair<const char*, bool> given[] = {{"field", !options.field.empty()},
                                                {"row_count", options.row_count.has_value()},
                                                {"layers", options.layers.has_value()},
                                                {"sentinel", options.sentinel.has_value()},
                                                {"dtype", options.dtype.has_value()}};
  for (const auto& [name, is_given] : given) {
    if (is_given) {
      return Invalid(name, " is for arrays; this is a Waymark document, which contains it");
    }
  }
  return absl::OkStatus();
}

// Refuses options on the model and the first row that contradict the document.
absl::Status CheckAgainstDocument(const ReadRowsOptions& options, const Rows& rows) {
  const RoutingShape& shape = rows.shape;
  const auto differs = [](const char* name, std::int64_t document, std::int64_t said) {
    return Invalid(name, " must be the document's, ", document, "; it is ", said);
  };
  if (options.num_experts != 0 && options.num_experts != shape.num_experts) {
    return differs("num_experts", shape.num_experts, options.num_experts);
  }
  if (options.top_k != 0 && options.top_k != shape.top_k) {
    return differs("top_k", shape.top_k, options.top_k);
  }
  if (options.first.has_value() && *options.first != rows.first) {
    return differs("first", rows.first, *options.first);
  }
  const std::int32_t last = shape.layer_id(shape.num_layers - 1);
  if (options.num_layers != 0 && options.num_layers <= last) {
    return Invalid("num_layers must be above the document's last layer, ", last, "; it is ",
                   options.num_layers);
  }
  if (options.moe_layers.empty() && !options.all_moe) return absl::OkStatus();
  const auto layers = static_cast<std::int64_t>(options.moe_layers.size());
  if (!options.all_moe && layers != shape.num_layers) {
    return Invalid("moe_layers must be as many as the document's layers, ", shape.num_layers,
                   "; they are ", layers);
  }
  for (std::int32_t layer = 0; layer < shape.num_layers; ++layer) {
    const std::int32_t said =
        options.all_moe ? layer : options.moe_layers[static_cast<std::size_t>(layer)];
    if (said == shape.layer_id(layer)) continue;
    return differs(absl::StrCat("moe_layers[", layer, "]").c_str(), shape.layer_id(layer), said);
  }
  return absl::OkStatus();
}

absl::StatusOr<ReadRowsResult> ReadDocument(std::span<const std::uint8_t> bytes,
                                            const ReadRowsOptions& options) {
  if (!options.skip_options_that_do_not_fit) {
    if (absl::Status status = RefuseArrayOptions(options); !status.ok()) return status;
  }
  wire::ReadLimits limits;
  limits.max_bytes = options.limits.max_bytes;
  const absl::StatusOr<wire::Document> document = wire::Document::Open(bytes, limits);
  if (!document.ok()) return document.status();
  wire::ReadDamage damage;
  absl::StatusOr<Rows> rows = document->ReadRows(document->All(), &damage);
  if (!rows.ok()) return rows.status();
  if (absl::Status status = CheckAgainstDocument(options, *rows); !status.ok()) return status;
  ReadRowsResult result;
  result.rows = *std::move(rows);
  if (!result.rows.ordered) {
    result.notes.emplace_back("the ids of a layer are ascending: the router's order is not kept");
  }
  if (document->truncated()) result.notes.emplace_back("the document is cut off");
  if (damage.any()) {
    result.notes.push_back(
        absl::StrCat("chunks that are damaged or in a wrong place: ", damage.damaged_chunks,
                     ", that are cut off: ", damage.absent_chunks,
                     "; rows with invalid ids: ", damage.invalid_rows));
  }
  return result;
}

Conventions ConventionsOf(const FormatInfo& info, const std::optional<RowCount>& row_count,
                          const std::optional<LayerAxis>& layers,
                          const std::optional<Sentinel>& sentinel) {
  return {.rows = row_count.value_or(info.conventions.rows),
          .layers = layers.value_or(info.conventions.layers),
          .sentinel = sentinel.value_or(info.conventions.sentinel)};
}

// The first dtype of the format that fits every id and the sentinel.
absl::StatusOr<Dtype> DtypeFor(const FormatInfo& info, const Conventions& conventions,
                               std::int32_t num_experts) {
  const std::int64_t mark = SentinelId(conventions.sentinel, 0);
  for (const Dtype dtype : info.dtypes) {
    if (Holds(dtype, std::int64_t{num_experts} - 1) && Holds(dtype, mark)) return dtype;
  }
  return Invalid(info.name, info.dtypes.empty()
                                ? " cannot be written"
                                : " has no dtype that fits every id and the sentinel");
}

}  // namespace

template <class T>
absl::Status SetNamed(std::string_view argument, std::string_view text, std::optional<T>& value) {
  if (text.empty()) return absl::OkStatus();
  const std::vector<std::string_view> names = NamesOf(T{});
  const auto found = std::find(names.begin(), names.end(), text);
  if (found != names.end()) {
    value = static_cast<T>(found - names.begin());
    return absl::OkStatus();
  }
  const std::span<const std::string_view> arrays = TrainerArrays();
  if (std::is_same_v<T, Format> && std::find(arrays.begin(), arrays.end(), text) != arrays.end()) {
    return Invalid(argument, ": '", text, "' is no format of bytes; waymark.trainer.FORMATS['",
                   text, "'] reads and writes the arrays of this trainer");
  }
  std::string list;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const char* const before = i == 0 ? "" : i + 1 == names.size() ? " or " : ", ";
    absl::StrAppend(&list, before, std::string(names[i]));
  }
  return Invalid(argument, " must be ", list, "; it is '",
                 absl::CHexEscape(std::string(text.substr(0, 32))), "'");
}
template absl::Status SetNamed(std::string_view, std::string_view, std::optional<Format>&);
template absl::Status SetNamed(std::string_view, std::string_view, std::optional<RowCount>&);
template absl::Status SetNamed(std::string_view, std::string_view, std::optional<LayerAxis>&);
template absl::Status SetNamed(std::string_view, std::string_view, std::optional<Sentinel>&);
template absl::Status SetNamed(std::string_view, std::string_view, std::optional<Dtype>&);

bool BeginsAsDocument(std::span<const std::uint8_t> bytes) {
  // Half of the magic bytes, so that a document whose line ends were translated is recognised, too.
  constexpr std::size_t kBegin = sizeof(wire::kDocumentMagic) / 2;
  return bytes.size() >= kBegin &&
         std::equal(bytes.begin(), bytes.begin() + kBegin, std::begin(wire::kDocumentMagic));
}

absl::StatusOr<ReadRowsResult> ReadRows(std::span<const std::uint8_t> bytes,
                                        const ReadRowsOptions& options) {
  if (options.all_moe && !options.moe_layers.empty()) {
    return Invalid("moe_layers must be a list or all layers; both are given");
  }
  constexpr std::string_view kHandle = "WMKH";
  if (bytes.size() >= kHandle.size() && std::equal(kHandle.begin(), kHandle.end(), bytes.begin())) {
    return Invalid(
        "source: this is a handle, which names rows: a Fetcher of their source has them");
  }
  if (options.document || (BeginsAsDocument(bytes) && !options.format.has_value())) {
    return ReadDocument(bytes, options);
  }
  const absl::StatusOr<ReadResult> read_array = ReadArray(bytes, options);
  if (!read_array.ok()) return read_array.status();
  const RoutingArray& array = read_array->array;

  if (!options.format.has_value() && read_array->format == Format::kVllmLists &&
      !options.layers.has_value() && options.moe_layers.empty() && !options.all_moe &&
      !options.assume_moe_columns) {
    return Invalid(
        "layers is required, or the format: nested lists under routed_experts have columns of the "
        "MoE layers (vllm-lists) or of all layers (lmdeploy)");
  }
  Conventions conventions = ConventionsOf(InfoOf(read_array->format), options.row_count,
                                          options.layers, options.sentinel);
  if (!Holds(array.dtype, SentinelId(conventions.sentinel, 0))) {
    conventions.sentinel = Sentinel::kNone;
  }
  if (!options.layers.has_value() &&
      options.moe_layers.size() == static_cast<std::size_t>(array.layers)) {
    conventions.layers = LayerAxis::kMoeLayers;
  }
  Model model = {.num_experts = options.num_experts,
                 .moe_layers = options.moe_layers,
                 .num_layers = options.num_layers};
  if (options.all_moe) {
    for (std::int32_t layer = 0; layer < array.layers; ++layer)
      model.moe_layers.push_back(layer);
  } else if (options.assume_moe_columns && model.moe_layers.empty()) {
    conventions.layers = LayerAxis::kMoeLayers;
  }
  ReadRowsResult result;
  result.layers_known = !model.moe_layers.empty() || model.num_layers == array.layers;
  if (model.num_experts == 0 && options.assume_experts) {
    result.experts_known = false;
    model.num_experts = LeastExperts(array, conventions, model);
  }
  // SkyRL takes the least type that holds the ids of the array; all others know the model.
  const std::size_t id_bytes = DtypeBytes(array.dtype);
  const bool is_signed = Holds(array.dtype, -1);
  if (read_array->format != Format::kSkyRl && model.num_experts > ExpertsHeld(id_bytes, is_signed))
    return Invalid("ids: ", ExpertsHeldText(id_bytes, is_signed), ", num_experts is ",
                   model.num_experts);
  if (options.first.has_value() && array.first.value_or(*options.first) != *options.first) {
    return Invalid("first must be that of the bytes, ", *array.first, "; it is ", *options.first);
  }
  absl::StatusOr<RowsAndNotes> rows = ToRows(
      array, conventions, model, options.first.value_or(array.first.value_or(0)), options.limits);
  if (!rows.ok()) return rows.status();
  result.rows = std::move(rows->rows);
  result.format = read_array->format;
  result.dtype = array.dtype;
  result.array_shape = {array.rows, array.layers, array.top_k};
  result.notes = std::move(rows->notes);
  return result;
}

absl::StatusOr<WriteRowsResult> WriteRows(const Rows& rows, const WriteRowsOptions& options) {
  if (absl::Status status = CheckRows("rows", rows); !status.ok()) return status;
  const FormatInfo& info = InfoOf(options.format);
  const Conventions conventions =
      ConventionsOf(info, options.row_count, options.layers, options.sentinel);
  absl::StatusOr<Dtype> dtype = options.dtype.has_value()
                                    ? *options.dtype
                                    : DtypeFor(info, conventions, rows.shape.num_experts);
  if (!dtype.ok()) return dtype.status();
  Model model;
  model.num_layers = options.num_layers;
  absl::StatusOr<ArrayAndNotes> flat = FromRows(rows, conventions, model, *dtype, options.limits);
  if (!flat.ok()) return flat.status();
  absl::StatusOr<std::string> bytes = WriteArray(options.format, flat->array);
  if (!bytes.ok()) return bytes.status();
  WriteRowsResult result = {.bytes = *std::move(bytes), .notes = std::move(flat->notes)};
  if (!rows.ordered) {
    result.notes.emplace_back("the ids of a layer are not in the router's order");
  }
  if (rows.first != 0 && !FormatKeepsStart(options.format)) {
    result.notes.push_back(absl::StrCat("the first row is row ", rows.first, ", but ",
                                        std::string(info.name), " has no field for its position"));
  }
  return result;
}

}  // namespace waymark::formats
