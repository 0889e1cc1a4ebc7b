// The adapter of an engine like Megatron, over its table: each hook and a whole step in one call.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "adapters/megatron/waymark_megatron.h"
#include "adapters/python/module.h"
#include "plugin/python/reading.h"
#include "plugin/python/session.h"

namespace waymark_python {
namespace {

using nb::literals::operator""_a;

const wm_megatron_api_v1& Table() {
  return *wm_get_megatron_api_v1();
}

struct MegatronAdapter {
  MegatronAdapter(std::shared_ptr<SharedSession> of, wm_megatron_adapter* owned)
      : session(std::move(of)), adapter(owned) {
    tokens.struct_size = sizeof(tokens);
  }
  ~MegatronAdapter() { Table().adapter_release(adapter); }
  MegatronAdapter(const MegatronAdapter&) = delete;
  MegatronAdapter& operator=(const MegatronAdapter&) = delete;
  // Releases the arrays that the landing thread has read.
  [[nodiscard]] SharedStore& store() const {
    session->store->GiveBack();
    return *session->store;
  }

  std::shared_ptr<SharedSession> session;
  wm_megatron_adapter* adapter;
  Array blocks, positions;  // lent by lend_tokens
  wm_megatron_tokens tokens = {};
};

void Make(MegatronAdapter* self, const Session& of, Int32<"dummy_block"> dummy_block) {
  SharedSession& session = of.open();
  wm_megatron_options options = {};
  options.struct_size = sizeof(options);
  options.store = session.store->store;
  options.dummy_block = dummy_block;
  wm_megatron_adapter* adapter = nullptr;
  Message why;
  Check(Table().adapter_create(&options, &adapter, why.get()), why);
  new (self) MegatronAdapter(of.shared, adapter);
}

// A full log is no error: the store loses its rows (capacity), and the engine goes on.
void CheckReported(wm_status status, const Message& why) {
  if (status != WM_RESOURCE_EXHAUSTED) Check(status, why);
}

template <wm_status (*wm_megatron_api_v1::*hook)(wm_megatron_adapter*, const std::int32_t*,
                                                 std::size_t, wm_message*)>
void Hook(MegatronAdapter& self, nb::handle block_ids) {
  SharedStore& store = self.store();
  const Integers<std::int32_t> blocks(block_ids, "blocks");
  Message why;
  wm_status status;
  {
    const EngineCall call(store);
    status = (Table().*hook)(self.adapter, blocks.data(), blocks.size(), why.get());
  }
  CheckReported(status, why);
}

void RegisterHashes(MegatronAdapter& self, nb::handle block_ids, nb::handle hash_list) {
  SharedStore& store = self.store();
  const Integers<std::int32_t> blocks(block_ids, "blocks");
  const Integers<std::int64_t> hashes(hash_list, "hashes");
  if (hashes.size() != blocks.size()) {
    Raise(WM_INVALID_ARGUMENT, "hashes: as many as blocks, got " + std::to_string(hashes.size()) +
                                   " of " + std::to_string(blocks.size()));
  }
  Message why;
  wm_status status;
  {
    const EngineCall call(store);
    status = Table().register_hashes(self.adapter, blocks.data(), hashes.data(), blocks.size(),
                                     why.get());
  }
  CheckReported(status, why);
}

void Reset(MegatronAdapter& self) {
  SharedStore& store = self.store();
  Message why;
  wm_status status;
  {
    const EngineCall call(store);
    status = Table().reset(self.adapter, why.get());
  }
  CheckReported(status, why);
}

// An array of `bytes` wide integers in host memory, whose memory is kept.
Array Lent(nb::handle given, const char* name, int bytes) {
  Array array = ArrayOf(given, name);
  if (array.dims != 1 || array.kind != 'i' || array.item_bytes != bytes || !array.on_host ||
      !array.contiguous()) {
    Raise(WM_INVALID_ARGUMENT, std::string(name) + ": int" + std::to_string(8 * bytes) +
                                   ", one dimension, contiguous, in host memory");
  }
  return array;
}

void LendTokens(MegatronAdapter& self, nb::handle given_blocks, nb::handle given_positions) {
  const char* const name = "token_to_local_position_within_kv_block";
  Array blocks = Lent(given_blocks, "token_to_block_idx", 8);
  Array positions = Lent(given_positions, name, 4);
  if (blocks.shape[0] != positions.shape[0]) {
    Raise(WM_INVALID_ARGUMENT, std::string(name) + ": as long as token_to_block_idx, got " +
                                   std::to_string(positions.shape[0]) + " of " +
                                   std::to_string(blocks.shape[0]));
  }
  self.tokens.token_to_block_idx = static_cast<const std::int64_t*>(blocks.data);
  self.tokens.token_to_local_position_within_kv_block =
      static_cast<const std::int32_t*>(positions.data);
  self.blocks = std::move(blocks);
  self.positions = std::move(positions);
}

// The batch of a step with the first `active_tokens` of the lent arrays.
wm_step_batch BatchOf(MegatronAdapter& self, std::uint64_t step, std::uint64_t version,
                      std::int64_t active_tokens) {
  if (active_tokens < 0 || active_tokens > self.blocks.shape[0]) {
    Raise(WM_INVALID_ARGUMENT, "active_tokens: in [0, " + std::to_string(self.blocks.shape[0]) +
                                   "], the length of the arrays of lend_tokens, got " +
                                   std::to_string(active_tokens));
  }
  self.tokens.active_tokens = static_cast<std::size_t>(active_tokens);
  wm_step_batch batch = {};
  batch.struct_size = sizeof(batch);
  Message why;
  Check(Table().batch(self.adapter, step, version, &self.tokens, &batch, why.get()), why);
  return batch;
}

bool BeginStep(MegatronAdapter& self, Uint64<"step"> step, Uint64<"version"> version,
               Int64<"active_tokens"> active_tokens, Int32<"padded_tokens"> padded_tokens) {
  SharedStore& store = self.store();
  const wm_step_batch batch = BatchOf(self, step, version, active_tokens);
  wm_code code = {};
  wm_status status;
  {
    const EngineCall call(store);
    status = Api().session_begin_step(self.session->session, &batch, padded_tokens, &code);
  }
  return NotDropped(status, code);
}

// True: its rows will land; False: it was dropped.
bool Step(MegatronAdapter& self, Uint64<"step"> step, Uint64<"version"> version,
          Int64<"active_tokens"> active_tokens, nb::handle ids_array) {
  SharedStore& store = self.store();
  std::optional<GivenIds> ids;
  if (!ids_array.is_none()) ids.emplace(ids_array, false);
  const wm_step_batch batch = BatchOf(self, step, version, active_tokens);
  wm_session* const session = self.session->session;
  wm_code code = {};
  wm_status status;
  {
    const EngineCall call(store);
    status = Api().session_begin_ids_step(session, &batch, &code);
    if (status == WM_OK) {
      if (ids) status = ids->Submit(*self.session, step, &code);
      // Ids that cannot be submitted leave the step open, as no ids do.
      if (!ids || (status != WM_OK && status != WM_RESOURCE_EXHAUSTED)) {
        wm_code dropped = {};
        (void)Api().session_drop(session, step, &dropped);
      }
    }
  }
  return NotDropped(status, code) && ids.has_value();
}

void Checkpoint(MegatronAdapter& self, Uint64<"request"> request, nb::handle block_ids,
                Int64<"rows"> rows) {
  SharedStore& store = self.store();
  const Integers<std::int32_t> blocks(block_ids, "blocks");
  Message why;
  wm_status status;
  {
    const EngineCall call(store);
    status =
        Table().checkpoint(self.adapter, request, blocks.data(), blocks.size(), rows, why.get());
  }
  Check(status, why);
}

nb::list Take(MegatronAdapter& self, Uint64<"request"> request) {
  SharedStore& store = self.store();
  nb::list out;
  for (;;) {
    wm_snapshot* snapshot = nullptr;
    Message why;
    wm_status status;
    {
      const EngineCall call(store);
      status = Table().take(self.adapter, request, &snapshot, why.get());
    }
    if (status == WM_NOT_FOUND) return out;
    Check(status, why);
    out.append(SnapshotObject(snapshot));
  }
}

void Forget(MegatronAdapter& self, Uint64<"request"> request) {
  SharedStore& store = self.store();
  Message why;
  const EngineCall call(store);
  Check(Table().forget(self.adapter, request, why.get()), why);
}

}  // namespace

void BindMegatronAdapter(nb::module_& module) {
  using Api = wm_megatron_api_v1;
  nb::class_<MegatronAdapter>(
      module, "MegatronAdapter",
      "Reports to a store what an engine like Megatron does with its KV blocks, as it happens, and "
      "keeps the snapshots of requests that have lost their blocks. blocks: one, or an array, "
      "tensor "
      "or list of them. Engine's thread.")
      .def(
          "__init__", &Make, "session"_a, "dummy_block"_a,
          "session: a CaptureSession, of a store of which dummy_block, the block of tokens without "
          "KV, is a null block.")
      .def("allocate", &Hook<&Api::allocate>, "blocks"_a,
           "Blocks were allocated. Read at once: a view of the allocator's free list will do.")
      .def("match", &Hook<&Api::match>, "blocks"_a,
           "The blocks of a prefix match were pinned, once each.")
      .def("release", &Hook<&Api::release>, "blocks"_a,
           "Blocks were released; ids may repeat, once for each owner.")
      .def("register", &RegisterHashes, "blocks"_a, "hashes"_a,
           "hashes, integers of 64 bits, were registered for blocks, when their request was "
           "admitted: the steps from the next one on fill them.")
      .def("reset", &Reset,
           "The allocator was reset: no request has blocks, and no prefix is found any more.")
      .def(
          "lend_tokens", &LendTokens, "token_to_block_idx"_a,
          "token_to_local_position_within_kv_block"_a,
          "The arrays of the context, int64 and int32 [max_tokens], in host memory: kept, and read "
          "in begin_step and step. Again when the context has made others.")
      .def("begin_step", &BeginStep, "step"_a, "version"_a, "active_tokens"_a,
           "padded_tokens"_a = 0,
           nb::sig("def begin_step(self, step: int, version: int, active_tokens: int, "
                   "padded_tokens: int = 0) -> bool"),
           "CaptureSession.begin_step with the first active_tokens of the lent arrays, before a "
           "forward that writes the view of the session, padded_tokens rows with the padding of "
           "graphs. Tokens of the dummy block are padding.")
      .def("step", &Step, "step"_a, "version"_a, "active_tokens"_a, "ids"_a.none(),
           nb::sig("def step(self, step: int, version: int, active_tokens: int, ids: object) -> "
                   "bool"),
           "A whole step in one call, after its forward and before its blocks are released: "
           "CaptureSession.begin_ids_step and submit_ids. Returns whether its rows will land.\n\n"
           "ids: integers [active_tokens, layers, columns] in host memory, which must not change "
           "until they have landed; None: they are lost, and the rows are missing (capacity). An "
           "exception: no step was begun, or it was dropped since its ids cannot be submitted.")
      .def(
          "checkpoint", &Checkpoint, "request"_a, "blocks"_a, "rows"_a,
          "Keeps a snapshot of rows [0, rows) of a request, whose KV is in `blocks` in this order; "
          "entries behind those rows are not read. Before the blocks of a request are released, "
          "for "
          "whatever reason, and for every request that runs when the weights change.")
      .def("take", &Take, "request"_a, nb::sig("def take(self, request: int) -> list[typing.Any]"),
           "The snapshots (waymark.Snapshot) that are kept of a request, the oldest first; then "
           "none "
           "is kept. Its routing is waymark.join of their rows. Any thread may read them.")
      .def("forget", &Forget, "request"_a, "The request was aborted: releases its snapshots.");
}

}  // namespace waymark_python
