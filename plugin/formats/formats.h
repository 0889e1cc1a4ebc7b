// Formats: the ways in which engines and trainers write routing today, by name. Waymark's own is
// blockstore/wire/document.h.
#ifndef WAYMARK_PLUGIN_FORMATS_FORMATS_H_
#define WAYMARK_PLUGIN_FORMATS_FORMATS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "plugin/formats/conventions.h"
#include "plugin/formats/routing_array.h"

namespace waymark::formats {

enum class Format : std::uint8_t {
  kNpy,              // an .npy file
  kVllm,             // base64 of an .npy
  kVllmLists,        // nested JSON lists: vLLM before 0.22
  kSglang,           // base64 of the bare ids; dtype and start beside it, the shape nowhere
  kMegatron,         // nested JSON lists
  kMegatronNdarray,  // ["ndarray", {data: nested lists, dtype}]
  kNemoRl,           // "nrlre1:<dtype>:<SxLxK>:<base64>"
  kSkyRl,            // {data: base64, shape, dtype}; read only
  kPrimeRl,          // {data: base64, shape, start, dtype}; read only
  kLmdeploy,         // nested JSON lists; read only
};
inline constexpr int kNumFormats = 10;

// What is known of a format. Static storage.
struct FormatInfo {
  Format format = Format::kNpy;
  std::string_view name;          // as options name it, e.g. "nemo-rl"
  std::string_view summary;       // what its bytes are, in a few words
  Conventions conventions;        // what its arrays mean where nobody says otherwise
  std::span<const Dtype> dtypes;  // that WriteArray takes, the usual one first; empty: read only
};
[[nodiscard]] const FormatInfo& InfoOf(Format format);

// What some bytes do not say of themselves.
struct ReadOptions {
  // nullopt: told by the bytes. Nested lists are then kMegatron, or kVllmLists under the key
  // routed_experts, where those of kLmdeploy are no other bytes.
  std::optional<Format> format;
  // Where in a JSON text the array is: a JSON pointer. Empty: the text is it, or an object that has
  // it as routed_experts, moe_topk_indices or routing_indices (or its meta_info does).
  std::string field;
  // kSglang says none of them: all are required, the dtype unless a field says it. Where the bytes
  // say it, top_k and dtype must be theirs; layers and num_experts are not looked at.
  std::int32_t layers = 0;  // columns
  std::int32_t top_k = 0;
  std::int32_t num_experts = 0;
  std::optional<Dtype> dtype;
  Limits limits;
};

struct ReadResult {
  Format format = Format::kNpy;
  RoutingArray array;  // `first`, where the bytes or a field beside them say it
};

// InvalidArgument naming what is wrong with the bytes or missing from the options; NotFound when
// the bytes are of no format, or `field` leads nowhere; ResourceExhausted beyond the limits. Any
// bytes are safe. White space around a text is not part of it.
[[nodiscard]] absl::StatusOr<ReadResult> ReadArray(std::span<const std::uint8_t> bytes,
                                                   const ReadOptions& options);

// The bytes of a file. A start row goes along where the format has a place (kVllm, kSglang):
// FormatKeepsStart. InvalidArgument for a format that is only read, or a dtype that it does not
// have.
[[nodiscard]] absl::StatusOr<std::string> WriteArray(Format format, const RoutingArray& array);
[[nodiscard]] bool FormatKeepsStart(Format format);

}  // namespace waymark::formats

#endif  // WAYMARK_PLUGIN_FORMATS_FORMATS_H_
