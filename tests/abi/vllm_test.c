/* Every function of the table of waymark_vllm.h, from plain C, and the example at its top. The
 * messages are read by a store: what it counts is what was reported. */
#include <waymark_vllm.h>

#include "tests/abi/table_test.h"

enum { TOKENS = 4, BLOCKS = 16 };

static const wm_vllm_api_v1* vllm;
static unsigned char called[sizeof(wm_vllm_api_v1) / sizeof(void*)];
#define VLLM(name) NOTED(wm_vllm_api_v1, vllm, called, name)

static void example(const wm_vllm_api_v1* table, wm_vllm_scheduler* scheduler) {
#define vllm table
#include "adapters/vllm/waymark_vllm.h.example"
#undef vllm
  CHECK_OK(status);
  CHECK(size > 0 && bytes != NULL);
}

/* Passes the open message to the store. */
static void deliver(wm_vllm_scheduler* scheduler, wm_store* store) {
  const uint8_t* bytes = NULL;
  size_t size = 0;
  int32_t more = 1;
  while (more) {
    CHECK_OK(VLLM(scheduler_finish_message)(scheduler, &bytes, &size, &why));
    CHECK_OK(wm->store_report_message(store, bytes, size, &why));
    CHECK_OK(VLLM(scheduler_more)(scheduler, &more, &why));
  }
}

int main(void) {
  wm_vllm_options options = {.struct_size = sizeof options,
                             .num_blocks = BLOCKS,
                             .block_tokens = TOKENS,
                             .hash_block_tokens = 2};
  wm_vllm_blocks blocks = {.struct_size = sizeof blocks};
  wm_vllm_scheduler* scheduler = NULL;
  wm_store_options of_store = {.struct_size = sizeof of_store,
                               .num_layers = 1,
                               .top_k = 1,
                               .num_experts = 8,
                               .num_blocks = BLOCKS,
                               .block_tokens = TOKENS,
                               .page_tokens = TOKENS};
  wm_store* store = NULL;
  wm_snapshot* snapshot = NULL;
  const int32_t ids[] = {1, 2, 3};
  const uint8_t hashes[6][8] = {{1}, {2}, {3}, {4}, {5}, {6}};
  const uint64_t tags[] = {21, 22, 23};
  int64_t sealed = 0;
  size_t i;

  wm = wm_get_api_v1();
  vllm = wm_get_vllm_api_v1();
  CHECK(vllm == wm_get_vllm_api_v1() && vllm->struct_size == sizeof(wm_vllm_api_v1));
  CHECK_OK(wm->store_create(&of_store, &store, &why));

  /* Structs of every size. */
  CHECK_BAD(VLLM(scheduler_create)(NULL, &scheduler, &why), "options");
  for (options.struct_size = 0; options.struct_size < 24; ++options.struct_size)
    CHECK_BAD(VLLM(scheduler_create)(&options, &scheduler, &why), "struct_size");
  options.struct_size = 65537;
  CHECK_BAD(VLLM(scheduler_create)(&options, &scheduler, &why), "struct_size");
  options.struct_size = sizeof options;
  CHECK_BAD(VLLM(scheduler_create)(&options, NULL, &why), "out");
  options.flags = 1;
  CHECK_BAD(VLLM(scheduler_create)(&options, &scheduler, &why), "flags");
  options.flags = 0;
  options.hash_block_tokens = 3;
  CHECK_BAD(VLLM(scheduler_create)(&options, &scheduler, &why), "hash_block_tokens");
  CHECK(scheduler == NULL);
  options.struct_size = 24; /* cut behind what is required: hash_block_tokens is 0 */
  CHECK_OK(VLLM(scheduler_create)(&options, &scheduler, &why));
  VLLM(scheduler_release)(scheduler);
  options.struct_size = sizeof options;
  options.hash_block_tokens = 2;
  CHECK_OK(VLLM(scheduler_create)(&options, &scheduler, &why));
  VLLM(scheduler_retain)(scheduler);
  VLLM(scheduler_release)(scheduler);
  CHECK_BAD(VLLM(scheduler_begin)(NULL, 1, 1, &why), "scheduler");
  CHECK_BAD(VLLM(scheduler_begin)((wm_vllm_scheduler*)store, 1, 1, &why), "scheduler");

  /* A request gets three blocks, of which two are hits or are filled. */
  CHECK_OK(VLLM(scheduler_begin)(scheduler, 1, 1, &why));
  for (blocks.struct_size = 0; blocks.struct_size < 24; ++blocks.struct_size)
    CHECK_BAD(VLLM(scheduler_new)(scheduler, 1, &blocks, 0, 0, &why), "struct_size");
  blocks.struct_size = sizeof blocks;
  blocks.num_blocks = 3;
  CHECK_BAD(VLLM(scheduler_new)(scheduler, 1, &blocks, 0, 0, &why), "blocks.blocks");
  blocks.blocks = ids;
  blocks.num_hashes = 6;
  CHECK_BAD(VLLM(scheduler_new)(scheduler, 1, &blocks, 0, 0, &why), "blocks.hashes");
  blocks.hashes = hashes[0];
  CHECK_BAD(VLLM(scheduler_new)(scheduler, 1, &blocks, 0, 0, &why), "hash_bytes");
  blocks.hash_bytes = 33;
  CHECK_BAD(VLLM(scheduler_new)(scheduler, 1, &blocks, 0, 0, &why), "hash_bytes");
  blocks.hash_bytes = 8;
  CHECK_BAD(VLLM(scheduler_new)(scheduler, 1, &blocks, 13, 0, &why), "local_tokens");
  CHECK_OK(VLLM(scheduler_new)(scheduler, 1, &blocks, 0, 4, &why)); /* 3 Binds, 1 Seal */
  blocks.num_blocks = 0;
  CHECK_OK(VLLM(scheduler_append)(scheduler, 1, &blocks, 11, &why)); /* 1 Seal */
  CHECK_OK(VLLM(scheduler_sealed)(scheduler, 1, &sealed, &why));
  CHECK(sealed == 2);
  CHECK_BAD(VLLM(scheduler_sealed)(scheduler, 9, &sealed, &why), "request");
  CHECK_BAD(VLLM(scheduler_sealed)(scheduler, 1, NULL, &why), "blocks");
  CHECK_BAD(VLLM(scheduler_finish_message)(scheduler, NULL, NULL, &why), "bytes");
  CHECK_BAD(VLLM(scheduler_more)(scheduler, NULL, &why), "more");
  deliver(scheduler, store);
  CHECK(events_of(store) == 5);

  /* It is read, loses its drafts, and is preempted; the cache is reset, and it is resumed. */
  CHECK_OK(VLLM(scheduler_snapshot)(scheduler, 1, 1, 9, tags[0], &why));
  CHECK_OK(VLLM(scheduler_snapshot)(scheduler, 1, 0, 9, tags[1], &why));
  CHECK_OK(VLLM(scheduler_forget)(scheduler, tags[1], &why));
  CHECK_OK(VLLM(scheduler_truncate)(scheduler, 1, 9, 1, &why));       /* 1 Truncate */
  CHECK_OK(VLLM(scheduler_preempt)(scheduler, 1, 9, &tags[2], &why)); /* 3 Releases */
  CHECK_OK(VLLM(scheduler_reset)(scheduler, &why));                   /* 1 Reset */
  CHECK_OK(VLLM(scheduler_copy)(scheduler, 5, 2, &why)); /* 1 Copy, with its source retained */
  CHECK_BAD(VLLM(scheduler_copy)(scheduler, 5, BLOCKS, &why), "dst");
  CHECK_OK(VLLM(scheduler_begin)(scheduler, 2, 1, &why));
  blocks.num_blocks = 3;
  CHECK_OK(VLLM(scheduler_resume)(scheduler, 1, &blocks, 6, 0, &why)); /* 1 Retain, 2 Binds */
  deliver(scheduler, store);
  CHECK(events_of(store) == 5 + 11);
  for (i = 0; i < 3; ++i) {
    const wm_status taken = wm->store_take_tagged(store, tags[i], &snapshot, &why);
    CHECK(taken == (i == 1 ? WM_NOT_FOUND : WM_OK));
    if (taken == WM_OK) wm->snapshot_release(snapshot);
  }

  /* A decode has begun block 4. */
  {
    const int32_t begun = 4;
    wm_vllm_blocks more = {.struct_size = sizeof more, .blocks = &begun, .num_blocks = 1};
    CHECK_OK(VLLM(scheduler_extend)(scheduler, 1, &more, &why));
    CHECK_BAD(VLLM(scheduler_extend)(scheduler, 9, &more, &why), "request");
  }
  CHECK_OK(VLLM(scheduler_finish)(scheduler, 1, 0, NULL, &why));
  CHECK_BAD(VLLM(scheduler_finish)(scheduler, 1, 0, NULL, &why), "request");
  VLLM(scheduler_release)(scheduler);

  options.struct_size = 24;
  options.block_tokens = 16;
  CHECK_OK(VLLM(scheduler_create)(&options, &scheduler, &why));
  CHECK_OK(VLLM(scheduler_begin)(scheduler, 3, 1, &why));
  blocks.num_blocks = 1;
  blocks.num_hashes = 0;
  CHECK_OK(VLLM(scheduler_new)(scheduler, 1, &blocks, 0, 0, &why));
  deliver(scheduler, store);
  example(vllm, scheduler);
  VLLM(scheduler_release)(scheduler);

  CHECK_CALLED(wm_vllm_api_v1, scheduler_create, called);
  wm->store_release(store);
  return 0;
}
