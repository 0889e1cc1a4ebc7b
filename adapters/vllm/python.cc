// The scheduler of an engine like vLLM for Python.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "adapters/python/module.h"
#include "adapters/vllm/vllm_scheduler.h"
#include "plugin/python/arrays.h"
#include "plugin/python/core.h"
#include "plugin/python/reading.h"

namespace waymark_python {
namespace {

using nb::literals::operator""_a;
using waymark::BlockHashes;
using waymark::BlockId;
using waymark::BlockKey;
using waymark::StepId;
using Scheduler = waymark::VllmScheduler;

std::int32_t BlockTokens(const Scheduler& self) {
  return self.options().limits.block_tokens;
}
// Hashes of a block.
std::int64_t HashesPerBlock(const Scheduler& self) {
  const std::int32_t of_hash = self.options().hash_block_tokens;
  return of_hash == 0 ? 1 : BlockTokens(self) / of_hash;
}

// Hashes [first, last) of the sequence `hashes`, or as many of them as there are. Only these are
// read: a request may have thousands, and a schedule needs one or two.
class HashRange {
 public:
  HashRange(nb::handle hashes, std::int64_t first, std::int64_t last) {
    const Py_ssize_t count = PySequence_Size(hashes.ptr());
    if (count < 0) throw nb::python_error();
    last = std::min<std::int64_t>(last, count);
    first_ = first;
    if (first < last) {
      for (std::int64_t i = first; i < last; ++i)
        Add(hashes, i);
    } else if (count > 0) {
      // No hashes at all would mean that the engine has no prefix cache.
      first_ = count - 1;
      Add(hashes, first_);
    }
  }
  [[nodiscard]] BlockHashes hashes() const { return {first_, keys_}; }

 private:
  void Add(nb::handle hashes, std::int64_t i) {
    const nb::object item = nb::steal(PySequence_GetItem(hashes.ptr(), i));
    if (!item.is_valid()) throw nb::python_error();
    const bool is_bytes = PyBytes_Check(item.ptr());
    const auto size = is_bytes ? static_cast<std::size_t>(PyBytes_Size(item.ptr())) : 0;
    if (size < 1 || size > BlockKey::kMaxBytes || (!keys_.empty() && size != keys_[0].size)) {
      RaiseInvalid("hashes[" + std::to_string(i) +
                   "]: must be 1 ... 32 bytes, as many in each; it is " +
                   (is_bytes ? std::to_string(size) + " bytes"
                             : nb::cast<std::string>(nb::repr(item.type()))));
    }
    const auto* data = reinterpret_cast<const std::uint8_t*>(PyBytes_AsString(item.ptr()));
    keys_.push_back(BlockKey::FromBytes({data, size}));
  }

  std::vector<BlockKey> keys_;
  std::int64_t first_ = 0;
};

void MakeScheduler(Scheduler* self, Int32<"num_blocks"> num_blocks,
                   Int32<"block_tokens"> block_tokens, Int32<"hash_block_tokens"> hash_block_tokens,
                   Int32<"null_block"> null_block, Uint32<"max_bytes"> max_bytes,
                   Uint32<"max_snapshots"> max_snapshots) {
  waymark::VllmSchedulerOptions options;
  options.limits.num_blocks = num_blocks;
  options.limits.block_tokens = block_tokens;
  if (max_bytes != 0) options.limits.max_bytes = max_bytes;
  if (max_snapshots != 0) options.limits.max_snapshots = max_snapshots;
  options.hash_block_tokens = hash_block_tokens;
  options.null_block = BlockId(null_block);
  new (self) Scheduler(Value(Scheduler::Create(options)));
}

void Begin(Scheduler& self, Uint64<"step"> step, Uint64<"version"> version) {
  Check(self.Begin(StepId(step), version));
}

using AdmitCall = absl::Status (Scheduler::*)(std::uint64_t, std::span<const BlockId>,
                                              const waymark::CachedTokens&, const BlockHashes&);
template <AdmitCall call>
void Admit(Scheduler& self, Uint64<"request"> request, nb::handle block_ids,
           Int64<"local_tokens"> local_tokens, Int64<"external_tokens"> external_tokens,
           nb::handle hash_list) {
  const Blocks blocks(block_ids, "blocks");
  // Of external tokens: the blocks that begin before their end. Negative tokens are refused below.
  std::int64_t first = 0;
  std::int64_t last = 0;
  const std::int64_t of_block = BlockTokens(self);
  const auto most = static_cast<std::int64_t>(blocks.size()) * of_block;
  if (external_tokens > 0 && local_tokens >= 0 && local_tokens <= most - external_tokens) {
    first = local_tokens / of_block * HashesPerBlock(self);
    last = (local_tokens + external_tokens + of_block - 1) / of_block * HashesPerBlock(self);
  }
  const HashRange range(hash_list, first, last);
  Check((self.*call)(request, blocks.ids(), {local_tokens, external_tokens}, range.hashes()));
}

void Append(Scheduler& self, Uint64<"request"> request, nb::handle block_ids,
            Int64<"full_tokens"> full_tokens, nb::handle hash_list) {
  const std::int64_t sealed = Value(self.Sealed(request));
  const Blocks blocks(block_ids, "blocks");
  const HashRange range(hash_list, (sealed + 1) * HashesPerBlock(self) - 1,
                        full_tokens / BlockTokens(self) * HashesPerBlock(self));
  Check(self.Append(request, blocks.ids(), full_tokens, range.hashes()));
}

using LeaveCall = absl::Status (Scheduler::*)(std::uint64_t, std::int64_t,
                                              std::optional<std::uint64_t>);
template <LeaveCall call>
void Leave(Scheduler& self, Uint64<"request"> request, Int64<"rows"> rows, nb::handle tag) {
  std::optional<std::uint64_t> number;
  if (!tag.is_none()) number = IntegerOf<std::uint64_t>(tag, "tag");
  Check((self.*call)(request, rows, number));
}

void Extend(Scheduler& self, Uint64<"request"> request, nb::handle block_ids) {
  Check(self.Extend(request, Blocks(block_ids, "blocks").ids()));
}

nb::bytes FinishMessage(Scheduler& self) {
  const auto message = Value(self.FinishMessage());
  return nb::bytes(message.data(), message.size());
}

// ([[begin, end, reason, version, provenance], ...] as JSON, whether all rows are valid).
nb::tuple RunsAsJson(const Rows& rows) {
  std::string text = "[";
  bool complete = true;
  for (const waymark::CoverageRun& run : rows.rows->Coverage()) {
    if (text.size() > 1) text += ", ";
    text += "[" + std::to_string(run.begin) + ", " + std::to_string(run.end) + ", " +
            std::to_string(static_cast<int>(run.reason)) + ", " + std::to_string(run.version) +
            ", " + std::to_string(static_cast<int>(run.provenance)) + "]";
    complete = complete && run.reason == waymark::Reason::kNone;
  }
  return nb::make_tuple(text + "]", complete);
}

}  // namespace

void BindVllmScheduler(nb::module_& module) {
  module.def("_runs_as_json", &RunsAsJson, "rows"_a,
             nb::sig("def _runs_as_json(rows: Rows) -> tuple[str, bool]"));
  nb::class_<Scheduler>(
      module, "VllmScheduler",
      "Writes what the scheduler of an engine like vLLM did as schedule messages, from the lists "
      "of each schedule.\n\n"
      "Once per schedule: begin, one call for each request whose blocks changed, finish_message, "
      "again as long as there is `more`; the bytes go to the worker with the schedule, and every "
      "message must be sent, in order. "
      "Requests that are preempted or have finished are reported before their blocks are freed, "
      "copies on write when they are decided; without an open message these are kept for the next "
      "one. A request is an integer that the caller chooses, known from new to finish. One thread "
      "at a time. A refused call changes nothing; but preempt and finish have released the blocks, "
      "without a snapshot, if they raise ResourceExhaustedError: no message can hold it.")
      .def("__init__", &MakeScheduler, "num_blocks"_a, "block_tokens"_a, "hash_block_tokens"_a = 0,
           nb::kw_only(), "null_block"_a = 0, "max_bytes"_a = 0, "max_snapshots"_a = 0,
           "num_blocks, block_tokens: those of the worker's store. hash_block_tokens: tokens of a "
           "block hash, a divisor of block_tokens; 0: block_tokens. null_block: the block that "
           "stands for no block. max_bytes: of a message; 0: 16 MiB. max_snapshots: in a message; "
           "0: 4096.")
      .def("begin", &Begin, "step"_a, "version"_a,
           "Opens the message of the schedule of `step`, which is not below that of any message "
           "before. step 0: a schedule without tokens; version is then 0.")
      .def("new", &Admit<&Scheduler::New>, "request"_a, "blocks"_a, "local_tokens"_a,
           "external_tokens"_a, "hashes"_a,
           "A request is scheduled for the first time, with all its blocks: the KV of its first "
           "`local_tokens` was found in the prefix cache, that of the next `external_tokens` is "
           "loaded.\n\n"
           "hashes: those of all hash blocks of the request so far, a sequence of bytes, of which "
           "few are read; empty: the engine has no prefix cache.")
      .def("resume", &Admit<&Scheduler::Resume>, "request"_a, "blocks"_a, "local_tokens"_a,
           "external_tokens"_a, "hashes"_a,
           "The same for a request that was preempted: `blocks` replace its former ones. One that "
           "was not (a session with new input) goes on with its blocks, which are in front of "
           "`blocks`.")
      .def(
          "append", &Append, "request"_a, "blocks"_a, "full_tokens"_a, "hashes"_a,
          "Appends blocks to those of a request, and seals every block that ends at or before "
          "`full_tokens`, the leading tokens that are computed and accepted after this step. "
          "hashes: as in new. Without blocks also while no message is open: so the last full block "
          "of a request is sealed before it leaves.")
      .def(
          "finish_message", &FinishMessage,
          "Closes the message, or writes the next one of a schedule that needs several; its bytes.")
      .def_prop_ro("more", &Scheduler::more,
                   "Whether the schedule has another message, since one would have more than "
                   "max_bytes or max_snapshots: finish_message must be called again before begin.")
      .def("preempt", &Leave<&Scheduler::Preempt>, "request"_a, "rows"_a, "tag"_a.none(),
           nb::sig("def preempt(self, request: int, rows: int, tag: int | None) -> None"),
           "A request is preempted, and its blocks are about to be freed: requests a snapshot of "
           "its rows [0, rows) under `tag` (None: no snapshot) and releases the blocks.")
      .def("finish", &Leave<&Scheduler::Finish>, "request"_a, "rows"_a, "tag"_a.none(),
           nb::sig("def finish(self, request: int, rows: int, tag: int | None) -> None"),
           "The same for a request that has finished or was aborted. `rows` of a preempted "
           "request: 0.")
      .def(
          "extend", &Extend, "request"_a, "blocks"_a,
          "Appends blocks to those of a request, and writes no event: the worker derives them from "
          "the slots of the decodes that begin and fill these blocks (Capture.step).")
      .def(
          "copy",
          [](Scheduler& self, Int32<"src"> src, Int32<"dst"> dst) {
            Check(self.Copy(BlockId(src), BlockId(dst)));
          },
          "src"_a, "dst"_a,
          "The engine copies block `src` to `dst`, which a request of this schedule gets: a prefix "
          "hit that ends inside a block.")
      .def(
          "reset", [](Scheduler& self) { Check(self.Reset()); },
          "The prefix cache is reset, and no request has blocks.");
}

}  // namespace waymark_python
