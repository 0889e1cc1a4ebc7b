// The table of waymark_megatron.h.
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "adapters/megatron/megatron_adapter.h"
#include "adapters/megatron/waymark_megatron.h"
#include "plugin/abi/arguments.h"

struct wm_megatron_adapter : waymark::abi::RefCounted<0x776d206d65676174> {  // "wm megat"
  wm_megatron_adapter(wm_store* of, waymark::MegatronAdapter made)
      : store(of), adapter(std::move(made)) {}

  const waymark::abi::Reference<wm_store> store;  // outlives `adapter`
  waymark::MegatronAdapter adapter;
  wm_pair_rows pairs = {};  // of the last batch
};

namespace waymark::abi {

#define WM_LAST_REQUIRED(type, field) \
  template <>                         \
  inline constexpr std::uint32_t kLeastBytes<type> = offsetof(type, field) + sizeof(type::field)
WM_LAST_REQUIRED(wm_megatron_options, dummy_block);
WM_LAST_REQUIRED(wm_megatron_tokens, token_to_local_position_within_kv_block);
#undef WM_LAST_REQUIRED

namespace {

wm_status Create(const wm_megatron_options* given, wm_megatron_adapter** out,
                 wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    wm_megatron_options args = {};
    Arguments check;
    check.Struct(given, args, "options").Flags(args.flags, 0, "options.flags");
    check.Chain(args.ext, "options.ext").Object(args.store, "options.store");
    check.Zero(static_cast<std::uint32_t>(args.reserved), "options.reserved").Pointer(out, "out");
    if (!check.ok()) return check.status();
    absl::StatusOr<MegatronAdapter> made =
        MegatronAdapter::Create(args.store->store.get(), BlockId(args.dummy_block));
    if (!made.ok()) return made.status();
    *out = new wm_megatron_adapter(args.store, *std::move(made));
    return absl::OkStatus();
  });
}

// A call with `call(MegatronAdapter&)`, which returns an absl::Status.
template <class Call>
wm_status With(wm_megatron_adapter* adapter, wm_message* why, Call call) noexcept {
  return Guard(why, [&]() -> absl::Status {
    Arguments check;
    check.Object(adapter, "adapter");
    return check.ok() ? call(adapter->adapter) : check.status();
  });
}

// The same for a call with blocks: `call(MegatronAdapter&, span of BlockId)`.
template <class Call>
wm_status WithBlocks(wm_megatron_adapter* adapter, const std::int32_t* blocks,
                     std::size_t num_blocks, wm_message* why, Call call) noexcept {
  return Guard(why, [&]() -> absl::Status {
    Arguments check;
    check.Object(adapter, "adapter").Array(blocks, num_blocks, "blocks");
    if (!check.ok()) return check.status();
    return call(adapter->adapter, std::span(reinterpret_cast<const BlockId*>(blocks), num_blocks));
  });
}

absl::Status ToStatus(const StepCode& code) {
  return code.ok() ? absl::OkStatus() : code.ToStatus("blocks");
}

template <StepCode (MegatronAdapter::*hook)(std::span<const BlockId>)>
wm_status Hook(wm_megatron_adapter* adapter, const std::int32_t* blocks, std::size_t num_blocks,
               wm_message* why) noexcept {
  return WithBlocks(adapter, blocks, num_blocks, why,
                    [](MegatronAdapter& a, auto ids) { return ToStatus((a.*hook)(ids)); });
}

wm_status RegisterHashes(wm_megatron_adapter* adapter, const std::int32_t* blocks,
                         const std::int64_t* hashes, std::size_t num_blocks,
                         wm_message* why) noexcept {
  return WithBlocks(adapter, blocks, num_blocks, why,
                    [hashes](MegatronAdapter& a, auto ids) -> absl::Status {
                      Arguments check;
                      check.Array(hashes, ids.size(), "hashes");
                      return check.ok() ? ToStatus(a.Register(ids, hashes)) : check.status();
                    });
}

wm_status Reset(wm_megatron_adapter* adapter, wm_message* why) noexcept {
  return With(adapter, why, [](MegatronAdapter& a) { return ToStatus(a.Reset()); });
}

wm_status Batch(wm_megatron_adapter* adapter, std::uint64_t step, std::uint64_t version,
                const wm_megatron_tokens* given, wm_step_batch* out, wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    wm_megatron_tokens args = {};
    Arguments check;
    check.Object(adapter, "adapter").Struct(given, args, "tokens");
    check.Zero(args.reserved, "tokens.reserved");
    check.Array(args.token_to_block_idx, args.active_tokens, "tokens.token_to_block_idx");
    check.Array(args.token_to_local_position_within_kv_block, args.active_tokens,
                "tokens.token_to_local_position_within_kv_block");
    check.OutStruct(out, "out");
    if (!check.ok()) return check.status();
    constexpr std::uint32_t kLeast = offsetof(wm_step_batch, pairs) + sizeof(wm_step_batch::pairs);
    check.That(out->struct_size >= kLeast, "out.struct_size", "must reach the end of pairs");
    if (!check.ok()) return check.status();
    const StepBatch made = adapter->adapter.Batch(
        StepId(step), version,
        {args.token_to_block_idx, args.token_to_local_position_within_kv_block, args.active_tokens,
         args.asked});
    wm_pair_rows& pairs = adapter->pairs;
    pairs.struct_size = sizeof(pairs);
    pairs.index_bytes = made.pairs->index_bytes;
    pairs.block_idx = made.pairs->block_idx;
    pairs.local_position = made.pairs->local_position;
    pairs.num_rows = made.pairs->num_rows;
    pairs.block_tokens = made.pairs->block_tokens;
    pairs.position_bytes = made.pairs->position_bytes;
    pairs.asked = made.pairs->asked;
    wm_step_batch batch = {};
    batch.step = made.step;
    batch.version = made.version;
    batch.pairs = &pairs;
    CopyOut(batch, out);
    return absl::OkStatus();
  });
}

wm_status Checkpoint(wm_megatron_adapter* adapter, std::uint64_t request,
                     const std::int32_t* blocks, std::size_t num_blocks, std::int64_t rows,
                     wm_message* why) noexcept {
  return WithBlocks(adapter, blocks, num_blocks, why,
                    [&](MegatronAdapter& a, auto ids) { return a.Checkpoint(request, ids, rows); });
}

wm_status Take(wm_megatron_adapter* adapter, std::uint64_t request, wm_snapshot** out,
               wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    Arguments check;
    check.Object(adapter, "adapter").Pointer(out, "out");
    if (!check.ok()) return check.status();
    std::optional<Snapshot> snapshot = adapter->adapter.Take(request);
    if (!snapshot.has_value()) return absl::NotFoundError("");
    *out = new wm_snapshot(*adapter->store.get(), *std::move(snapshot));
    return absl::OkStatus();
  });
}

wm_status Forget(wm_megatron_adapter* adapter, std::uint64_t request, wm_message* why) noexcept {
  return With(adapter, why, [request](MegatronAdapter& a) {
    a.Forget(request);
    return absl::OkStatus();
  });
}

wm_megatron_api_v1 MakeMegatronTable() {
  wm_megatron_api_v1 api = {};
  api.struct_size = sizeof(api);
  api.adapter_create = &Create;
  api.adapter_retain = &Retain<wm_megatron_adapter>;
  api.adapter_release = &Release<wm_megatron_adapter>;
  api.allocate = &Hook<&MegatronAdapter::Allocate>;
  api.match = &Hook<&MegatronAdapter::Match>;
  api.release = &Hook<&MegatronAdapter::Release>;
  api.register_hashes = &RegisterHashes;
  api.reset = &Reset;
  api.batch = &Batch;
  api.checkpoint = &Checkpoint;
  api.take = &Take;
  api.forget = &Forget;
  return api;
}

}  // namespace
}  // namespace waymark::abi

extern "C" const wm_megatron_api_v1* wm_get_megatron_api_v1(void) {
  static const wm_megatron_api_v1 table = waymark::abi::MakeMegatronTable();
  return &table;
}
