// ReadRows and WriteRows: rows from the bytes of any format, Waymark's own included, and to the
// bytes of the others. The tool, the C library and the Python package use these two. Results own
// their memory; any thread.
#ifndef WAYMARK_ADAPTERS_FORMATS_CONVERSION_H_
#define WAYMARK_ADAPTERS_FORMATS_CONVERSION_H_

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
#include "adapters/formats/formats.h"
#include "adapters/formats/routing_array.h"
#include "blockstore/rows.h"

namespace waymark::formats {

// The name of Waymark's own format, documents (docs/format.md), in options and arguments.
inline constexpr std::string_view kDocumentName = "waymark";
// Whether `bytes` begin with the magic bytes of a document.
[[nodiscard]] bool BeginsAsDocument(std::span<const std::uint8_t> bytes);

// Parse the text of an option or argument called `argument`: the name of a format; "tokens" or
// "tokens-1"; "moe" or "all"; a SentinelName; a DtypeName. An empty text leaves the value as it is.
// InvalidArgument naming `argument`, the allowed texts and the text for any other.
[[nodiscard]] absl::Status SetFormat(std::string_view argument, std::string_view text,
                                     std::optional<Format>& format);
[[nodiscard]] absl::Status SetRowCount(std::string_view argument, std::string_view text,
                                       std::optional<RowCount>& row_count);
[[nodiscard]] absl::Status SetLayerAxis(std::string_view argument, std::string_view text,
                                        std::optional<LayerAxis>& layers);
[[nodiscard]] absl::Status SetSentinel(std::string_view argument, std::string_view text,
                                       std::optional<Sentinel>& sentinel);
[[nodiscard]] absl::Status SetDtype(std::string_view argument, std::string_view text,
                                    std::optional<Dtype>& dtype);

// What the bytes themselves do not contain. nullopt, 0 and empty mean: not given. What is given
// must agree with what the bytes do contain.
struct ReadRowsOptions {
  bool document = false;                 // the bytes must be a document
  std::optional<Format> format;          // default: recognised by the bytes
  std::string field;                     // as ReadOptions::field
  std::optional<RowCount> row_count;     // which tokens have a row; default: the format's
  std::optional<LayerAxis> layers;       // which layers have a column; default: the format's
  std::optional<Sentinel> sentinel;      // the ids that mark a missing row; default: the format's
  std::optional<Dtype> dtype;            // as ReadOptions::dtype
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
  // The options are for several files, some of which may be documents: for a document, the options
  // that apply to arrays alone are ignored instead of refused.
  bool skip_array_options_for_documents = false;
};

struct ReadRowsResult {
  Rows rows;
  std::optional<Format> format;                  // nullopt: a document
  Dtype dtype = Dtype::kInt16;                   // of the array, unless it is a document
  std::array<std::int64_t, 3> array_shape = {};  // [rows, layers, top_k] of the array, likewise
  bool experts_known = true;                     // false: rows.shape.num_experts was assumed
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

#endif  // WAYMARK_ADAPTERS_FORMATS_CONVERSION_H_
