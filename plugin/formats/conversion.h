// Conversion: rows from the bytes of any format, Waymark's own among them, and to those of others:
// what the tool, the C library and Python stand on. Nothing is kept of what a call is given; any
// thread.
#ifndef WAYMARK_PLUGIN_FORMATS_CONVERSION_H_
#define WAYMARK_PLUGIN_FORMATS_CONVERSION_H_

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/rows.h"
#include "plugin/formats/conventions.h"
#include "plugin/formats/dtype.h"
#include "plugin/formats/formats.h"
#include "plugin/formats/routing_array.h"

namespace waymark::formats {

// What options and arguments call Waymark's own format: a document (docs/format.md).
inline constexpr std::string_view kDocumentName = "waymark";
// Whether `bytes` begin as documents do.
[[nodiscard]] bool BeginsAsDocument(std::span<const std::uint8_t> bytes);

// From texts that options and arguments give, which an empty one leaves as it is: a format's name;
// "tokens" or "tokens-1"; "moe" or "all"; a SentinelName; a DtypeName. InvalidArgument, naming
// `argument`, for any other.
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

// What bytes do not say of themselves. nullopt, 0 and empty: not said.
struct ReadRowsOptions {
  bool document = false;                 // the bytes have to be a document
  std::optional<Format> format;          // else told by the bytes
  std::string field;                     // as ReadOptions::field
  std::optional<RowCount> row_count;     // which tokens have a row; else as the format has it
  std::optional<LayerAxis> layers;       // which layers have a column; so, too
  std::optional<Sentinel> sentinel;      // what a row has that is not there; so, too
  std::optional<Dtype> dtype;            // of bare ids
  std::optional<std::int64_t> first;     // position of the first row; else the bytes', or 0
  std::vector<std::int32_t> moe_layers;  // as Model::moe_layers
  bool all_moe = false;                  // every layer is an MoE layer; not with moe_layers
  std::int32_t num_layers = 0;           // all layers of the model
  std::int32_t top_k = 0;                // K
  std::int32_t num_experts = 0;          // E, which no array says
  Limits limits;

  // For a person who looks at a file, what is not said may be assumed. Where all layers have a
  // column and nobody says which are MoE layers: every one.
  bool assume_moe_columns = false;
  // Where E is not said: the least that could be (LeastExperts).
  bool assume_experts = false;
  // Of several files, some of which may be documents: what is for arrays is not said of those.
  bool of_several = false;
};

struct ReadRowsResult {
  Rows rows;
  std::optional<Format> format;                  // nullopt: a document
  Dtype dtype = Dtype::kInt16;                   // of an array
  std::array<std::int64_t, 3> array_shape = {};  // of an array
  bool experts_known = true;                     // false: rows.shape.num_experts was assumed
  std::vector<std::string> notes;                // what a person should know, one sentence each
};

// Reads all of `bytes`; any are safe. InvalidArgument naming argument, rule and value: as ReadArray
// and ToRows say; for what is of arrays only, with a document; for what is said and is not so; and
// for lists as routed_experts of which nobody says whether vLLM or LMDeploy wrote them. NotFound
// for bytes of no format; for a document, what Document::Open and ReadRows say; ResourceExhausted
// beyond the limits.
[[nodiscard]] absl::StatusOr<ReadRowsResult> ReadRows(std::span<const std::uint8_t> bytes,
                                                      const ReadRowsOptions& options);

// How an array is written. nullopt and 0: not said.
struct WriteRowsOptions {
  Format format = Format::kNpy;
  std::optional<RowCount> row_count;  // as ReadRowsOptions has these three
  std::optional<LayerAxis> layers;
  std::optional<Sentinel> sentinel;
  std::optional<Dtype> dtype;   // else the first of the format's that has every id and the sentinel
  std::int32_t num_layers = 0;  // all layers of the model, where each gets a column
  Limits limits;
};

struct WriteRowsResult {
  std::string bytes;               // the whole file
  std::vector<std::string> notes;  // what of the rows is not in the bytes, one sentence each
};

// Errors as FromRows and WriteArray.
[[nodiscard]] absl::StatusOr<WriteRowsResult> WriteRows(const Rows& rows,
                                                        const WriteRowsOptions& options);

}  // namespace waymark::formats

#endif  // WAYMARK_PLUGIN_FORMATS_CONVERSION_H_
