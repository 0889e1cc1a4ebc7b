// Formats: the formats in which engines and trainers write routing today (docs/formats.md describes
// each), and ReadRows and WriteRows: rows from the bytes of any format, Waymark's own included
// (blockstore/wire/document.h), and to the bytes of the others. The tool and the Python package use
// these two. Results own their memory; any thread.
#ifndef WAYMARK_ADAPTERS_FORMATS_FORMATS_H_
#define WAYMARK_ADAPTERS_FORMATS_FORMATS_H_

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "adapters/formats/conventions.h"
#include "adapters/formats/routing_array.h"
#include "blockstore/rows.h"

namespace waymark::formats {

// All but kNpy are JSON texts, or a JSON string's characters without the quotes.
enum class Format : std::uint8_t {
  kNpy,              // an .npy file
  kVllm,             // base64 of an .npy file
  kVllmLists,        // nested JSON lists, as vLLM wrote them before 0.22
  kSglang,           // base64 of the ids alone; dtype and first row in fields beside it, no shape
  kMegatron,         // nested JSON lists
  kMegatronNdarray,  // ["ndarray", {data: nested lists, dtype}]
  kNemoRl,           // "nrlre1:<dtype>:<SxLxK>:<base64>"
  kSkyRl,            // {data: base64, shape, dtype}; cannot be written
  kPrimeRl,          // {data: base64, shape, start, dtype}; cannot be written
  kLmdeploy,         // nested JSON lists; cannot be written
};
inline constexpr int kNumFormats = 10;

// The properties of a format. Static storage.
struct FormatInfo {
  Format format = Format::kNpy;
  std::string_view name;          // its name in options, e.g. "nemo-rl"
  std::string_view summary;       // what its bytes are, in a few words
  Conventions conventions;        // what its arrays mean by default
  std::span<const Dtype> dtypes;  // those that WriteArray accepts, the usual one first; empty: the
                                  // format cannot be written
};
[[nodiscard]] const FormatInfo& InfoOf(Format format);
// The trainers whose arrays waymark.trainer.FORMATS describes: arrays in memory, not bytes. Some
// have a Format of the same name, too.
[[nodiscard]] std::span<const std::string_view> TrainerArrays();

// The name of Waymark's own format, documents (docs/internals/format.md), in options and arguments.
inline constexpr std::string_view kDocumentName = "waymark";
// Whether `bytes` begin with the magic bytes of a document.
[[nodiscard]] bool BeginsAsDocument(std::span<const std::uint8_t> bytes);

// Parses the text of an option or argument called `argument`. T is Format, by its name; RowCount,
// "tokens" or "tokens-1"; LayerAxis, "moe" or "all"; Sentinel, a SentinelName; or Dtype, a
// DtypeName. An empty text leaves the value as it is. InvalidArgument naming `argument`, the
// allowed texts and the text for any other.
template <class T>
[[nodiscard]] absl::Status SetNamed(std::string_view argument, std::string_view text,
                                    std::optional<T>& value);

// What the bytes themselves do not contain. nullopt, 0 and empty mean: not given. What is given
// must agree with what the bytes do contain.
struct ReadRowsOptions {
  bool document = false;  // the bytes must be a document
  // Default: recognised by the bytes. Nested lists are then kVllmLists under the key
  // routed_experts, else kMegatron; kLmdeploy's cannot be distinguished from kVllmLists.
  std::optional<Format> format;
  // A JSON pointer to the array. Empty: the array is the whole text, or the member routed_experts,
  // moe_topk_indices or routing_indices of the text's object or of its meta_info.
  std::string field;
  std::optional<RowCount> row_count;  // which tokens have a row; default: the format's
  // Which layers have a column. Default: the MoE layers if moe_layers are as many as the columns,
  // else the format's.
  std::optional<LayerAxis> layers;
  // The ids that mark a missing row; default: the format's. In an array whose dtype cannot hold
  // them every row is there.
  std::optional<Sentinel> sentinel;
  // kSglang requires top_k, num_experts, the number of columns (num_layers or moe_layers), and
  // dtype if there is no field routed_experts_dtype. For the other formats top_k and dtype, if
  // given, must be the bytes' (nested lists have no dtype).
  std::optional<Dtype> dtype;
  std::optional<std::int64_t> first;     // position of the first row; default: the bytes', or 0
  std::vector<std::int32_t> moe_layers;  // as Model::moe_layers
  bool all_moe = false;                  // every layer is an MoE layer; excludes moe_layers
  std::int32_t num_layers = 0;           // number of all layers of the model
  std::int32_t top_k = 0;                // K
  std::int32_t num_experts = 0;          // E; required unless assume_experts
  Limits limits;

  // For people who inspect a file. If all layers have a column and the MoE layers are not given,
  // assume that every layer is an MoE layer.
  bool assume_moe_columns = false;
  // If num_experts is not given, assume the smallest E possible (LeastExperts).
  bool assume_experts = false;
  // The options are for several files: those that do not fit are ignored instead of refused. For a
  // document these are all that apply to arrays alone; for an array that has a dtype, another.
  bool skip_options_that_do_not_fit = false;
};

struct ReadResult {
  Format format = Format::kNpy;
  RoutingArray array;  // `first` is set if the bytes, or a field beside the array, contain it
};

// Reads an array; of the options those on the bytes count. Any bytes are safe; white space around a
// text is ignored. InvalidArgument naming what is wrong with the bytes or missing from the options;
// NotFound if the bytes are of no known format, or there is nothing at `field`; ResourceExhausted
// beyond the limits.
[[nodiscard]] absl::StatusOr<ReadResult> ReadArray(std::span<const std::uint8_t> bytes,
                                                   const ReadRowsOptions& options);

// Writes an array as a whole file. InvalidArgument if the format cannot be written or does not have
// the array's dtype. array.first is written if the format has a field for it, see FormatKeepsStart.
[[nodiscard]] absl::StatusOr<std::string> WriteArray(Format format, const RoutingArray& array);
// Whether the format has a field for the position of the first row.
[[nodiscard]] bool FormatKeepsStart(Format format);

struct ReadRowsResult {
  Rows rows;
  std::optional<Format> format;                  // nullopt: a document
  Dtype dtype = Dtype::kInt16;                   // of the array, unless it is a document
  std::array<std::int64_t, 3> array_shape = {};  // [rows, layers, top_k] of the array, likewise
  bool experts_known = true;                     // false: rows.shape.num_experts was assumed
  bool layers_known = true;                      // false: their numbers 0, 1, ... were assumed
  std::vector<std::string> notes;                // sentences for people on what is lost or missing
};

// Reads rows from `bytes`, all of which must be one file; any bytes are safe. InvalidArgument
// naming the argument, the rule and the value: as ReadArray and ToRows; for a document, if an
// option that applies to arrays alone is given; if an option contradicts the bytes; and for nested
// lists under the key routed_experts with neither `layers` nor `format`, because vLLM and LMDeploy
// write the same bytes with different layers. NotFound if the bytes are of no known format. For a
// document, the errors of Document::Open and ReadRows. ResourceExhausted beyond the limits.
[[nodiscard]] absl::StatusOr<ReadRowsResult> ReadRows(std::span<const std::uint8_t> bytes,
                                                      const ReadRowsOptions& options);

// How to write rows. nullopt and 0 mean: not given.
struct WriteRowsOptions {
  Format format = Format::kNpy;
  std::optional<RowCount> row_count;  // these three as in ReadRowsOptions
  std::optional<LayerAxis> layers;
  std::optional<Sentinel> sentinel;
  std::optional<Dtype> dtype;   // default: the first of the format that holds all ids and sentinel
  std::int32_t num_layers = 0;  // number of all layers; required if all layers get a column
  Limits limits;
};

struct WriteRowsResult {
  std::string bytes;               // the whole file
  std::vector<std::string> notes;  // sentences for people on what the bytes do not preserve
};

// Writes `rows` in the format of the options. Errors of FromRows and WriteArray.
[[nodiscard]] absl::StatusOr<WriteRowsResult> WriteRows(const Rows& rows,
                                                        const WriteRowsOptions& options);

}  // namespace waymark::formats

#endif  // WAYMARK_ADAPTERS_FORMATS_FORMATS_H_
