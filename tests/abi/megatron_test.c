/* Every function of the table of waymark_megatron.h, from plain C, and the example at its top. What a
 * store counts, and the rows that it gives back, are what was reported. */
#include <waymark_megatron.h>

#include "tests/abi/table_test.h"

enum { TOKENS = 4, BLOCKS = 16, DUMMY = 15 };

static const wm_megatron_api_v1* megatron;
static unsigned char called[sizeof(wm_megatron_api_v1) / sizeof(void*)];
#define MEGATRON(name) NOTED(wm_megatron_api_v1, megatron, called, name)

/* The ids of rows [0, rows) of a snapshot, which is released; -1: missing. */
static void read_ids(wm_snapshot* snapshot, int32_t* ids, int64_t rows) {
  wm_read_args args = {.struct_size = sizeof args,
                       .end = rows,
                       .id_type = WM_ID_INT32,
                       .out = ids,
                       .out_bytes = (uint64_t)rows * sizeof *ids};
  CHECK_OK(wm->snapshot_wait(snapshot, 10 * (int64_t)1000000000, &why));
  CHECK_OK(wm->snapshot_read(snapshot, &args, &why));
  wm->snapshot_release(snapshot);
}

static void example(const wm_megatron_api_v1* table, wm_megatron_adapter* adapter,
                    wm_session* session, const wm_ids ids) {
  const wm_done done = {NULL, NULL};
  int32_t read[3];
#define megatron table
#include "adapters/megatron/waymark_megatron.h.example"
#undef megatron
  CHECK_OK(status);
  read_ids(snapshot, read, 3);
  CHECK(read[0] == 2 && read[1] == 3 && read[2] == 4);
}

int main(void) {
  wm_megatron_options options = {.struct_size = sizeof options, .dummy_block = DUMMY};
  wm_megatron_tokens tokens = {.struct_size = sizeof tokens};
  wm_step_batch batch = {.struct_size = sizeof batch};
  wm_megatron_adapter* adapter = NULL;
  const int32_t null_blocks[] = {DUMMY};
  wm_store_options of_store = {.struct_size = sizeof of_store,
                               .num_layers = 1,
                               .top_k = 1,
                               .num_experts = 8,
                               .num_blocks = BLOCKS,
                               .block_tokens = TOKENS,
                               .page_tokens = TOKENS,
                               .null_blocks = null_blocks,
                               .num_null_blocks = 1};
  wm_session_options of_session = {.struct_size = sizeof of_session, .max_rows = 8};
  wm_store* store = NULL;
  wm_session* session = NULL;
  wm_snapshot* snapshot = NULL;
  wm_view view;
  const int32_t blocks[] = {1, 2, 2};
  const int32_t wrong[] = {1, BLOCKS};
  const int64_t hashes[] = {-1, 7};
  const int64_t token_to_block_idx[] = {1, 1, DUMMY, 1, 1};
  const int32_t positions[] = {0, 1, 0, 2, 3};
  const int16_t expert_ids[] = {2, 3, 4};
  const wm_ids ids = {.struct_size = sizeof ids,
                      .type = WM_ID_INT16,
                      .data = expert_ids,
                      .rows = 3,
                      .layers = 1,
                      .columns = 1,
                      .row_stride = 2,
                      .layer_stride = 2,
                      .k_stride = 2};
  int32_t read[4];
  size_t i;

  wm = wm_get_api_v1();
  megatron = wm_get_megatron_api_v1();
  CHECK(megatron == wm_get_megatron_api_v1() &&
        megatron->struct_size == sizeof(wm_megatron_api_v1));
  CHECK_OK(wm->store_create(&of_store, &store, &why));
  of_session.store = store;
  CHECK_OK(wm->session_create(&of_session, &session, &why));

  /* Structs of every size, and of what is no adapter. */
  CHECK_BAD(MEGATRON(adapter_create)(NULL, &adapter, &why), "options");
  options.store = store;
  for (options.struct_size = 0; options.struct_size < 28; ++options.struct_size)
    CHECK_BAD(MEGATRON(adapter_create)(&options, &adapter, &why), "struct_size");
  options.struct_size = sizeof options;
  options.flags = 1;
  CHECK_BAD(MEGATRON(adapter_create)(&options, &adapter, &why), "flags");
  options.flags = 0;
  options.reserved = 1;
  CHECK_BAD(MEGATRON(adapter_create)(&options, &adapter, &why), "reserved");
  options.reserved = 0;
  CHECK_BAD(MEGATRON(adapter_create)(&options, NULL, &why), "out");
  options.store = (wm_store*)session;
  CHECK_BAD(MEGATRON(adapter_create)(&options, &adapter, &why), "options.store");
  options.store = store;
  options.dummy_block = 3;
  CHECK_BAD(MEGATRON(adapter_create)(&options, &adapter, &why), "dummy_block");
  options.dummy_block = DUMMY;
  CHECK(adapter == NULL);
  CHECK_OK(MEGATRON(adapter_create)(&options, &adapter, &why));
  MEGATRON(adapter_retain)(adapter);
  MEGATRON(adapter_release)(adapter);
  CHECK_BAD(MEGATRON(reset)(NULL, &why), "adapter");
  CHECK_BAD(MEGATRON(allocate)((wm_megatron_adapter*)store, blocks, 1, &why), "adapter");

  /* Hooks. */
  CHECK_BAD(MEGATRON(allocate)(adapter, NULL, 1, &why), "blocks");
  CHECK_BAD(MEGATRON(allocate)(adapter, wrong, 2, &why), "blocks[1]");
  CHECK_BAD(MEGATRON(match)(adapter, wrong, 2, &why), "blocks[1]");
  CHECK_BAD(MEGATRON(release)(adapter, wrong, 2, &why), "blocks[1]");
  CHECK_BAD(MEGATRON(register_hashes)(adapter, wrong, hashes, 2, &why), "blocks[1]");
  CHECK_BAD(MEGATRON(register_hashes)(adapter, blocks, NULL, 2, &why), "hashes");
  CHECK(events_of(store) == 0);
  CHECK_OK(MEGATRON(allocate)(adapter, blocks, 2, &why));
  CHECK_OK(MEGATRON(match)(adapter, blocks + 1, 1, &why));
  CHECK_OK(MEGATRON(register_hashes)(adapter, blocks, hashes, 2, &why));
  CHECK_OK(MEGATRON(release)(adapter, blocks, 3, &why));
  CHECK_OK(MEGATRON(reset)(adapter, &why));
  CHECK(events_of(store) == 2 + 1 + 2 + 3 + 1);

  /* A step whose forward writes the view of the session. */
  CHECK_OK(MEGATRON(allocate)(adapter, blocks, 1, &why));
  for (tokens.struct_size = 0; tokens.struct_size < 32; ++tokens.struct_size)
    CHECK_BAD(MEGATRON(batch)(adapter, 1, 1, &tokens, &batch, &why), "struct_size");
  tokens.active_tokens = 4;
  CHECK_BAD(MEGATRON(batch)(adapter, 1, 1, &tokens, &batch, &why), "token_to_block_idx");
  tokens.token_to_block_idx = token_to_block_idx;
  CHECK_BAD(MEGATRON(batch)(adapter, 1, 1, &tokens, &batch, &why), "kv_block");
  tokens.token_to_local_position_within_kv_block = positions;
  tokens.reserved = 1;
  CHECK_BAD(MEGATRON(batch)(adapter, 1, 1, &tokens, &batch, &why), "reserved");
  tokens.reserved = 0;
  CHECK_BAD(MEGATRON(batch)(adapter, 1, 1, &tokens, NULL, &why), "out");
  batch.struct_size = 64;
  CHECK_BAD(MEGATRON(batch)(adapter, 1, 1, &tokens, &batch, &why), "out.struct_size");
  batch.struct_size = sizeof batch;
  CHECK_OK(MEGATRON(batch)(adapter, 1, 1, &tokens, &batch, &why));
  CHECK(batch.step == 1 && batch.num_slots == 0);
  CHECK_OK(wm->session_begin_step(session, &batch, 8, NULL));
  CHECK_OK(wm->session_view(session, 1, &view));
  for (i = 0; i < 8; ++i)
    view.data[i] = (int16_t)(7 - i);
  CHECK_OK(wm->session_submit(session, 1, 0, NULL));

  /* Requests. */
  CHECK_BAD(MEGATRON(checkpoint)(adapter, 9, blocks, 1, 5, &why), "5");
  CHECK_BAD(MEGATRON(checkpoint)(adapter, 9, NULL, 1, 4, &why), "blocks");
  CHECK_OK(MEGATRON(checkpoint)(adapter, 9, blocks, 3, 4, &why));
  CHECK_OK(MEGATRON(checkpoint)(adapter, 9, blocks, 1, 2, &why));
  CHECK_OK(MEGATRON(checkpoint)(adapter, 8, blocks, 1, 2, &why));
  CHECK_BAD(MEGATRON(take)(adapter, 9, NULL, &why), "out");
  CHECK_OK(MEGATRON(take)(adapter, 9, &snapshot, &why));
  read_ids(snapshot, read, 4);
  CHECK(read[0] == 7 && read[1] == 6 && read[2] == 4 && read[3] == -1);
  CHECK_OK(MEGATRON(take)(adapter, 9, &snapshot, &why));
  wm->snapshot_release(snapshot);
  CHECK(MEGATRON(take)(adapter, 9, &snapshot, &why) == WM_NOT_FOUND);
  CHECK_OK(MEGATRON(forget)(adapter, 8, &why));
  CHECK(MEGATRON(take)(adapter, 8, &snapshot, &why) == WM_NOT_FOUND);

  example(megatron, adapter, session, ids);
  /* The adapter keeps its store. */
  wm->session_release(session);
  wm->store_release(store);
  CHECK_OK(MEGATRON(allocate)(adapter, blocks, 1, &why));
  MEGATRON(adapter_release)(adapter);

  CHECK_CALLED(wm_megatron_api_v1, adapter_create, called);
  return 0;
}
