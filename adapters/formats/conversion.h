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
