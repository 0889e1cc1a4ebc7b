// The scheduler of an engine like vLLM, over the adapter's table.
#include <waymark_vllm.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "plugin/python/core.h"
#include "plugin/python/module.h"

namespace waymark_python {
namespace {

using nb::literals::operator""_a;

const wm_vllm_api_v1& Table() {
  return *wm_get_vllm_api_v1();
}

struct VllmScheduler {
  VllmScheduler(wm_vllm_scheduler* owned, std::int64_t of_block, std::int64_t per_block)
      : scheduler(owned), block_tokens(of_block), hashes_per_block(per_block) {}
  ~VllmScheduler() { Table().scheduler_release(scheduler); }
  VllmScheduler(const VllmScheduler&) = delete;
  VllmScheduler& operator=(const VllmScheduler&) = delete;

  wm_vllm_scheduler* scheduler;
  std::int64_t block_tokens;
  std::int64_t hashes_per_block;
};

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

  void Set(wm_vllm_blocks& blocks) const {
    blocks.hashes = bytes_.data();
    blocks.num_hashes = width_ == 0 ? 0 : bytes_.size() / width_;
    blocks.hash_bytes = static_cast<std::uint32_t>(width_);
    blocks.first_hash = first_;
  }

 private:
  void Add(nb::handle hashes, std::int64_t i) {
    const nb::object item = nb::steal(PySequence_GetItem(hashes.ptr(), i));
    if (!item.is_valid()) throw nb::python_error();
    const bool is_bytes = PyBytes_Check(item.ptr());
    const auto size = is_bytes ? static_cast<std::size_t>(PyBytes_Size(item.ptr())) : 0;
    if (size < 1 || size > WM_KEY_BYTES || (width_ != 0 && size != width_)) {
      Raise(WM_INVALID_ARGUMENT, "hashes[" + std::to_string(i) +
                                     "]: must be 1 ... 32 bytes, as many in each; it is " +
                                     (is_bytes ? std::to_string(size) + " bytes"
                                               : nb::cast<std::string>(nb::repr(item.type()))));
    }
    width_ = size;
    const char* const data = PyBytes_AsString(item.ptr());
    bytes_.insert(bytes_.end(), data, data + size);
  }

  std::vector<std::uint8_t> bytes_;
  std::size_t width_ = 0;
  std::int64_t first_ = 0;
};

void Make(VllmScheduler* self, Int32<"num_blocks"> num_blocks, Int32<"block_tokens"> block_tokens,
          Int32<"hash_block_tokens"> hash_block_tokens, Int32<"null_block"> null_block,
          Uint32<"max_bytes"> max_bytes, Uint32<"max_snapshots"> max_snapshots) {
  wm_vllm_options options = {};
  options.struct_size = sizeof(options);
  options.num_blocks = num_blocks;
  options.block_tokens = block_tokens;
  options.hash_block_tokens = hash_block_tokens;
  options.null_block = null_block;
  options.max_bytes = max_bytes;
  options.max_snapshots = max_snapshots;
  wm_vllm_scheduler* scheduler = nullptr;
  Message why;
  Check(Table().scheduler_create(&options, &scheduler, why.get()), why);
  const std::int32_t of_hash = hash_block_tokens == 0 ? block_tokens : hash_block_tokens;
  new (self) VllmScheduler(scheduler, block_tokens, block_tokens / of_hash);
}

void Begin(const VllmScheduler& self, Uint64<"step"> step, Uint64<"version"> version) {
  Message why;
  Check(Table().scheduler_begin(self.scheduler, step, version, why.get()), why);
}

wm_vllm_blocks BlocksOf(const Integers<std::int32_t>& ids, const HashRange& hashes) {
  wm_vllm_blocks blocks = {};
  blocks.struct_size = sizeof(blocks);
  blocks.blocks = ids.data();
  blocks.num_blocks = ids.size();
  hashes.Set(blocks);
  return blocks;
}

// scheduler_new, scheduler_resume
using AdmitCall = wm_status (*)(wm_vllm_scheduler*, std::uint64_t, const wm_vllm_blocks*,
                                std::int64_t, std::int64_t, wm_message*);
void Admit(AdmitCall call, const VllmScheduler& self, std::uint64_t request, nb::handle block_ids,
           std::int64_t local_tokens, std::int64_t external_tokens, nb::handle hash_list) {
  const Integers<std::int32_t> ids(block_ids, "blocks");
  // Of external tokens: the blocks that begin before their end. Negative tokens are refused below.
  std::int64_t first = 0;
  std::int64_t last = 0;
  const auto most = static_cast<std::int64_t>(ids.size()) * self.block_tokens;
  if (external_tokens > 0 && local_tokens >= 0 && local_tokens <= most - external_tokens) {
    first = local_tokens / self.block_tokens * self.hashes_per_block;
    last = (local_tokens + external_tokens + self.block_tokens - 1) / self.block_tokens *
           self.hashes_per_block;
  }
  const HashRange hashes(hash_list, first, last);
  const wm_vllm_blocks blocks = BlocksOf(ids, hashes);
  Message why;
  Check(call(self.scheduler, request, &blocks, local_tokens, external_tokens, why.get()), why);
}

void New(const VllmScheduler& self, Uint64<"request"> request, nb::handle blocks,
         Int64<"local_tokens"> local_tokens, Int64<"external_tokens"> external_tokens,
         nb::handle hashes) {
  Admit(Table().scheduler_new, self, request, blocks, local_tokens, external_tokens, hashes);
}

void Resume(const VllmScheduler& self, Uint64<"request"> request, nb::handle blocks,
            Int64<"local_tokens"> local_tokens, Int64<"external_tokens"> external_tokens,
            nb::handle hashes) {
  Admit(Table().scheduler_resume, self, request, blocks, local_tokens, external_tokens, hashes);
}

void Append(const VllmScheduler& self, Uint64<"request"> request, nb::handle block_ids,
            Int64<"full_tokens"> full_tokens, nb::handle hash_list) {
  Message why;
  std::int64_t sealed = 0;
  Check(Table().scheduler_sealed(self.scheduler, request, &sealed, why.get()), why);
  const Integers<std::int32_t> ids(block_ids, "blocks");
  const std::int64_t full = full_tokens / self.block_tokens;
  const HashRange hashes(hash_list, (sealed + 1) * self.hashes_per_block - 1,
                         full * self.hashes_per_block);
  const wm_vllm_blocks blocks = BlocksOf(ids, hashes);
  Check(Table().scheduler_append(self.scheduler, request, &blocks, full_tokens, why.get()), why);
}

// scheduler_preempt, scheduler_finish
using LeaveCall = wm_status (*)(wm_vllm_scheduler*, std::uint64_t, std::int64_t,
                                const std::uint64_t*, wm_message*);
void Leave(LeaveCall call, const VllmScheduler& self, std::uint64_t request, std::int64_t rows,
           nb::handle tag) {
  std::uint64_t number = 0;
  if (!tag.is_none()) number = IntegerOf<std::uint64_t>(tag, "tag");
  Message why;
  Check(call(self.scheduler, request, rows, tag.is_none() ? nullptr : &number, why.get()), why);
}

void Preempt(const VllmScheduler& self, Uint64<"request"> request, Int64<"rows"> rows,
             nb::handle tag) {
  Leave(Table().scheduler_preempt, self, request, rows, tag);
}

void Finish(const VllmScheduler& self, Uint64<"request"> request, Int64<"rows"> rows,
            nb::handle tag) {
  Leave(Table().scheduler_finish, self, request, rows, tag);
}

void Extend(const VllmScheduler& self, Uint64<"request"> request, nb::handle block_ids) {
  const Integers<std::int32_t> ids(block_ids, "blocks");
  wm_vllm_blocks blocks = {};
  blocks.struct_size = sizeof(blocks);
  blocks.blocks = ids.data();
  blocks.num_blocks = ids.size();
  Message why;
  Check(Table().scheduler_extend(self.scheduler, request, &blocks, why.get()), why);
}

void TakeSnapshot(const VllmScheduler& self, Uint64<"request"> request, Int64<"first"> first,
                  Int64<"last"> last, Uint64<"tag"> tag) {
  Message why;
  Check(Table().scheduler_snapshot(self.scheduler, request, first, last, tag, why.get()), why);
}

void Forget(const VllmScheduler& self, Uint64<"tag"> tag) {
  Message why;
  Check(Table().scheduler_forget(self.scheduler, tag, why.get()), why);
}

void Copy(const VllmScheduler& self, Int32<"src"> src, Int32<"dst"> dst) {
  Message why;
  Check(Table().scheduler_copy(self.scheduler, src, dst, why.get()), why);
}

void Truncate(const VllmScheduler& self, Uint64<"request"> request, Int64<"position"> position,
              Uint64<"step"> step) {
  Message why;
  Check(Table().scheduler_truncate(self.scheduler, request, position, step, why.get()), why);
}

void Reset(const VllmScheduler& self) {
  Message why;
  Check(Table().scheduler_reset(self.scheduler, why.get()), why);
}

nb::bytes FinishMessage(const VllmScheduler& self) {
  const std::uint8_t* bytes = nullptr;
  std::size_t size = 0;
  Message why;
  Check(Table().scheduler_finish_message(self.scheduler, &bytes, &size, why.get()), why);
  return nb::bytes(bytes, size);
}

bool More(const VllmScheduler& self) {
  std::int32_t more = 0;
  Message why;
  Check(Table().scheduler_more(self.scheduler, &more, why.get()), why);
  return more != 0;
}

std::int64_t Sealed(const VllmScheduler& self, Uint64<"request"> request) {
  std::int64_t sealed = 0;
  Message why;
  Check(Table().scheduler_sealed(self.scheduler, request, &sealed, why.get()), why);
  return sealed;
}

}  // namespace

void BindVllmScheduler(nb::module_& module) {
  nb::class_<VllmScheduler>(
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
      .def("__init__", &Make, "num_blocks"_a, "block_tokens"_a, "hash_block_tokens"_a = 0,
           nb::kw_only(), "null_block"_a = 0, "max_bytes"_a = 0, "max_snapshots"_a = 0,
           "num_blocks, block_tokens: those of the worker's store. hash_block_tokens: tokens of a "
           "block hash, a divisor of block_tokens; 0: block_tokens. null_block: the block that "
           "stands for no block. max_bytes: of a message; 0: 16 MiB. max_snapshots: in a message; "
           "0: 4096.")
      .def("begin", &Begin, "step"_a, "version"_a,
           "Opens the message of the schedule of `step`, which is not below that of any message "
           "before. step 0: a schedule without tokens; version is then 0.")
      .def("new", &New, "request"_a, "blocks"_a, "local_tokens"_a, "external_tokens"_a, "hashes"_a,
           "A request is scheduled for the first time, with all its blocks: the KV of its first "
           "`local_tokens` was found in the prefix cache, that of the next `external_tokens` is "
           "loaded.\n\n"
           "hashes: those of all hash blocks of the request so far, a sequence of bytes, of which "
           "few are read; empty: the engine has no prefix cache.")
      .def("resume", &Resume, "request"_a, "blocks"_a, "local_tokens"_a, "external_tokens"_a,
           "hashes"_a,
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
      .def_prop_ro("more", &More,
                   "Whether the schedule has another message, since one would have more than "
                   "max_bytes or max_snapshots: finish_message must be called again before begin.")
      .def("preempt", &Preempt, "request"_a, "rows"_a, "tag"_a.none(),
           nb::sig("def preempt(self, request: int, rows: int, tag: int | None) -> None"),
           "A request is preempted, and its blocks are about to be freed: requests a snapshot of "
           "its rows [0, rows) under `tag` (None: no snapshot) and releases the blocks.")
      .def("finish", &Finish, "request"_a, "rows"_a, "tag"_a.none(),
           nb::sig("def finish(self, request: int, rows: int, tag: int | None) -> None"),
           "The same for a request that has finished or was aborted. `rows` of a preempted "
           "request: 0.")
      .def(
          "extend", &Extend, "request"_a, "blocks"_a,
          "Appends blocks to those of a request, and writes no event: the worker derives them from "
          "the slots of the decodes that begin and fill these blocks (VllmWorker).")
      .def("snapshot", &TakeSnapshot, "request"_a, "first"_a, "last"_a, "tag"_a,
           "Requests a snapshot of rows [first, last) of a request that continues.")
      .def("forget", &Forget, "tag"_a,
           "The snapshot `tag` will not be fetched: the worker's store releases it.")
      .def(
          "copy", &Copy, "src"_a, "dst"_a,
          "The engine copies block `src` to `dst`, which a request of this schedule gets: a prefix "
          "hit that ends inside a block.")
      .def("truncate", &Truncate, "request"_a, "position"_a, "step"_a,
           "The tokens of a request from `position` on that steps <= `step` computed were "
           "rejected.")
      .def("reset", &Reset, "The prefix cache is reset, and no request has blocks.")
      .def("sealed", &Sealed, "request"_a,
           "The leading blocks of a request that are sealed, or were prefix hits.");
}

}  // namespace waymark_python
