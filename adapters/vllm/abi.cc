// The table of waymark_vllm.h.
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "adapters/vllm/vllm_scheduler.h"
#include "adapters/vllm/waymark_vllm.h"
#include "plugin/abi/arguments.h"

struct wm_vllm_scheduler : waymark::abi::RefCounted<0x776d20766c6c6d20> {  // "wm vllm "
  explicit wm_vllm_scheduler(waymark::VllmScheduler of) : scheduler(std::move(of)) {}

  waymark::VllmScheduler scheduler;
  std::vector<waymark::BlockKey> keys;  // scratch of TakeBlocks
};

namespace waymark::abi {

template <>
inline constexpr std::uint32_t kLeastBytes<wm_vllm_options> = offsetof(wm_vllm_options,
                                                                       block_tokens) +
                                                              sizeof(wm_vllm_options::block_tokens);
template <>
inline constexpr std::uint32_t kLeastBytes<wm_vllm_blocks> = offsetof(wm_vllm_blocks, num_blocks) +
                                                             sizeof(wm_vllm_blocks::num_blocks);

namespace {

wm_status Create(const wm_vllm_options* given, wm_vllm_scheduler** out, wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    wm_vllm_options args = {};
    Arguments check;
    check.Struct(given, args, "options").Flags(args.flags, 0, "options.flags");
    check.Chain(args.ext, "options.ext").Pointer(out, "out");
    if (!check.ok()) return check.status();
    VllmSchedulerOptions options;
    options.limits.num_blocks = args.num_blocks;
    options.limits.block_tokens = args.block_tokens;
    if (args.max_bytes != 0) options.limits.max_bytes = args.max_bytes;
    if (args.max_snapshots != 0) options.limits.max_snapshots = args.max_snapshots;
    options.hash_block_tokens = args.hash_block_tokens;
    options.null_block = BlockId(args.null_block);
    absl::StatusOr<VllmScheduler> scheduler = VllmScheduler::Create(options);
    if (!scheduler.ok()) return scheduler.status();
    *out = new wm_vllm_scheduler(*std::move(scheduler));
    return absl::OkStatus();
  });
}

// A call with `call(VllmScheduler&)`, which returns an absl::Status.
template <class Call>
wm_status With(wm_vllm_scheduler* scheduler, wm_message* why, Call call) noexcept {
  return Guard(why, [&]() -> absl::Status {
    Arguments check;
    check.Object(scheduler, "scheduler");
    return check.ok() ? call(scheduler->scheduler) : check.status();
  });
}

// The same for a call with blocks: `call(VllmScheduler&, span of BlockId, BlockHashes)`.
template <class Call>
wm_status WithBlocks(wm_vllm_scheduler* scheduler, const wm_vllm_blocks* given, wm_message* why,
                     Call call) noexcept {
  return Guard(why, [&]() -> absl::Status {
    wm_vllm_blocks args = {};
    Arguments check;
    check.Object(scheduler, "scheduler").Struct(given, args, "blocks");
    check.Array(args.blocks, args.num_blocks, "blocks.blocks");
    check.Array(args.hashes, args.num_hashes, "blocks.hashes");
    check.InRange(args.hash_bytes, args.num_hashes > 0 ? 1 : 0, BlockKey::kMaxBytes,
                  "blocks.hash_bytes");
    if (!check.ok()) return check.status();
    std::vector<BlockKey>& keys = scheduler->keys;
    keys.clear();
    for (std::size_t i = 0; i < args.num_hashes; ++i)
      keys.push_back(BlockKey::FromBytes({args.hashes + i * args.hash_bytes, args.hash_bytes}));
    const std::span blocks(reinterpret_cast<const BlockId*>(args.blocks), args.num_blocks);
    return call(scheduler->scheduler, blocks, BlockHashes{args.first_hash, keys});
  });
}

std::optional<std::uint64_t> TagOf(const std::uint64_t* tag) {
  return tag == nullptr ? std::nullopt : std::optional(*tag);
}

wm_status Begin(wm_vllm_scheduler* scheduler, std::uint64_t step, std::uint64_t version,
                wm_message* why) noexcept {
  return With(scheduler, why, [&](VllmScheduler& s) { return s.Begin(StepId(step), version); });
}

wm_status New(wm_vllm_scheduler* scheduler, std::uint64_t request, const wm_vllm_blocks* blocks,
              std::int64_t local_tokens, std::int64_t external_tokens, wm_message* why) noexcept {
  return WithBlocks(scheduler, blocks, why,
                    [&](VllmScheduler& s, auto ids, const BlockHashes& hashes) {
                      return s.New(request, ids, {local_tokens, external_tokens}, hashes);
                    });
}

wm_status Resume(wm_vllm_scheduler* scheduler, std::uint64_t request, const wm_vllm_blocks* blocks,
                 std::int64_t local_tokens, std::int64_t external_tokens,
                 wm_message* why) noexcept {
  return WithBlocks(scheduler, blocks, why,
                    [&](VllmScheduler& s, auto ids, const BlockHashes& hashes) {
                      return s.Resume(request, ids, {local_tokens, external_tokens}, hashes);
                    });
}

wm_status Append(wm_vllm_scheduler* scheduler, std::uint64_t request, const wm_vllm_blocks* blocks,
                 std::int64_t full_tokens, wm_message* why) noexcept {
  return WithBlocks(scheduler, blocks, why,
                    [&](VllmScheduler& s, auto ids, const BlockHashes& hashes) {
                      return s.Append(request, ids, full_tokens, hashes);
                    });
}

wm_status FinishMessage(wm_vllm_scheduler* scheduler, const std::uint8_t** bytes, std::size_t* size,
                        wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    Arguments check;
    check.Object(scheduler, "scheduler").Pointer(bytes, "bytes").Pointer(size, "size");
    if (!check.ok()) return check.status();
    const auto written = scheduler->scheduler.FinishMessage();
    if (!written.ok()) return written.status();
    *bytes = written->data();
    *size = written->size();
    return absl::OkStatus();
  });
}

wm_status More(const wm_vllm_scheduler* scheduler, std::int32_t* more, wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    Arguments check;
    check.Object(scheduler, "scheduler").Pointer(more, "more");
    if (!check.ok()) return check.status();
    *more = scheduler->scheduler.more() ? 1 : 0;
    return absl::OkStatus();
  });
}

wm_status Preempt(wm_vllm_scheduler* scheduler, std::uint64_t request, std::int64_t rows,
                  const std::uint64_t* tag, wm_message* why) noexcept {
  return With(scheduler, why,
              [&](VllmScheduler& s) { return s.Preempt(request, rows, TagOf(tag)); });
}

wm_status Finish(wm_vllm_scheduler* scheduler, std::uint64_t request, std::int64_t rows,
                 const std::uint64_t* tag, wm_message* why) noexcept {
  return With(scheduler, why,
              [&](VllmScheduler& s) { return s.Finish(request, rows, TagOf(tag)); });
}

wm_status Extend(wm_vllm_scheduler* scheduler, std::uint64_t request, const wm_vllm_blocks* blocks,
                 wm_message* why) noexcept {
  return WithBlocks(scheduler, blocks, why, [&](VllmScheduler& s, auto ids, const BlockHashes&) {
    return s.Extend(request, ids);
  });
}

wm_status TakeSnapshot(wm_vllm_scheduler* scheduler, std::uint64_t request, std::int64_t first,
                       std::int64_t last, std::uint64_t tag, wm_message* why) noexcept {
  return With(scheduler, why,
              [&](VllmScheduler& s) { return s.Snapshot(request, first, last, tag); });
}

wm_status Forget(wm_vllm_scheduler* scheduler, std::uint64_t tag, wm_message* why) noexcept {
  return With(scheduler, why, [&](VllmScheduler& s) { return s.Forget(tag); });
}

wm_status Copy(wm_vllm_scheduler* scheduler, std::int32_t src, std::int32_t dst,
               wm_message* why) noexcept {
  return With(scheduler, why, [&](VllmScheduler& s) { return s.Copy(BlockId(src), BlockId(dst)); });
}

wm_status Truncate(wm_vllm_scheduler* scheduler, std::uint64_t request, std::int64_t position,
                   std::uint64_t step, wm_message* why) noexcept {
  return With(scheduler, why,
              [&](VllmScheduler& s) { return s.Truncate(request, position, StepId(step)); });
}

wm_status Reset(wm_vllm_scheduler* scheduler, wm_message* why) noexcept {
  return With(scheduler, why, [](VllmScheduler& s) { return s.Reset(); });
}

wm_status Sealed(const wm_vllm_scheduler* scheduler, std::uint64_t request, std::int64_t* blocks,
                 wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    Arguments check;
    check.Object(scheduler, "scheduler").Pointer(blocks, "blocks");
    if (!check.ok()) return check.status();
    const absl::StatusOr<std::int64_t> sealed = scheduler->scheduler.Sealed(request);
    if (!sealed.ok()) return sealed.status();
    *blocks = *sealed;
    return absl::OkStatus();
  });
}

wm_vllm_api_v1 MakeVllmTable() {
  wm_vllm_api_v1 api = {};
  api.struct_size = sizeof(api);
  api.scheduler_create = &Create;
  api.scheduler_retain = &Retain<wm_vllm_scheduler>;
  api.scheduler_release = &Release<wm_vllm_scheduler>;
  api.scheduler_begin = &Begin;
  api.scheduler_new = &New;
  api.scheduler_resume = &Resume;
  api.scheduler_append = &Append;
  api.scheduler_finish_message = &FinishMessage;
  api.scheduler_preempt = &Preempt;
  api.scheduler_finish = &Finish;
  api.scheduler_extend = &Extend;
  api.scheduler_snapshot = &TakeSnapshot;
  api.scheduler_forget = &Forget;
  api.scheduler_copy = &Copy;
  api.scheduler_truncate = &Truncate;
  api.scheduler_reset = &Reset;
  api.scheduler_sealed = &Sealed;
  api.scheduler_more = &More;
  return api;
}

}  // namespace
}  // namespace waymark::abi

extern "C" const wm_vllm_api_v1* wm_get_vllm_api_v1(void) {
  static const wm_vllm_api_v1 table = waymark::abi::MakeVllmTable();
  return &table;
}
