/* Waymark's C ABI for an engine like Megatron. C99 and C++.
 *
 * In such an engine the scheduler, the block allocator and the forward of a rank share a thread. An
 * adapter takes what the hooks of allocator and context see, and appends it to the store's log as it
 * happens; it keeps the snapshots of requests that have lost their blocks until their result is
 * wanted. The rules for structs, arguments, statuses and objects are at the top of waymark.h.
 *
 * Example, a step of the request 1, which then finishes and releases its block:
 *
 *   const int32_t block = 5;
 *   const int64_t token_to_block_idx[] = {5, 5, 5};
 *   const int32_t positions[] = {0, 1, 2};
 *   const wm_megatron_tokens tokens = {.struct_size = sizeof tokens, .active_tokens = 3,
 *                                      .token_to_block_idx = token_to_block_idx,
 *                                      .token_to_local_position_within_kv_block = positions};
 *   wm_step_batch batch = {.struct_size = sizeof batch};
 *   wm_status status = megatron->allocate(adapter, &block, 1, &why);
 *   if (status == WM_OK) status = megatron->batch(adapter, 7, 1, &tokens, &batch, &why);
 *   if (status == WM_OK) status = wm->session_begin_ids_step(session, &batch, NULL);
 *   if (status == WM_OK) status = wm->session_submit_ids(session, 7, &ids, done, NULL);
 *   if (status == WM_OK) status = megatron->checkpoint(adapter, 1, &block, 1, 3, &why);
 *   if (status == WM_OK) status = megatron->release(adapter, &block, 1, &why);
 *   wm_snapshot* snapshot = NULL;
 *   if (status == WM_OK) status = megatron->take(adapter, 1, &snapshot, &why);
 */
#ifndef WAYMARK_ADAPTERS_MEGATRON_WAYMARK_MEGATRON_H_
#define WAYMARK_ADAPTERS_MEGATRON_WAYMARK_MEGATRON_H_

#include "waymark.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wm_megatron_adapter
    wm_megatron_adapter; /* the allocator and the context of a rank */

typedef struct wm_megatron_options {
  uint32_t struct_size;
  uint32_t flags; /* must be zero */
  const wm_ext* ext;
  wm_store* store;     /* of which dummy_block is a null block; retained; required */
  int32_t dummy_block; /* the block of tokens without KV; required */
  int32_t reserved;    /* must be zero */
} wm_megatron_options;

/* The tokens of a forward, as the engine's context has them. The arrays belong to the caller. The
 * dummy block, and negative blocks, are padding. */
typedef struct wm_megatron_tokens {
  uint32_t struct_size;
  uint32_t reserved;                 /* must be zero */
  size_t active_tokens;              /* without the padding of graphs; required */
  const int64_t* token_to_block_idx; /* [active_tokens]; required */
  const int32_t* token_to_local_position_within_kv_block; /* [active_tokens]; required */
  const uint8_t* asked; /* [active_tokens]: 0: the token's request did not ask for routing; null: */
                        /* all asked */
} wm_megatron_tokens;

/* ---- the table ---------------------------------------------------------------------------- */

/* Engine's thread, every call but adapter_retain; the last adapter_release, too. Nothing is to be
 * reported where the engine deregisters hashes or pauses a request; everything else that may happen
 * to a block is reported by store_report of waymark.h, in its place among these calls. */
typedef struct wm_megatron_api_v1 {
  uint32_t struct_size; /* of the table that the library has */
  uint32_t reserved;

  /* ---- objects ---- */

  wm_status (*adapter_create)(const wm_megatron_options* options, wm_megatron_adapter** out,
                              wm_message* why);
  void (*adapter_retain)(wm_megatron_adapter* adapter);
  void (*adapter_release)(wm_megatron_adapter* adapter);

  /* ---- hooks of the block allocator, each when the engine has done it: step path ---- */

  /* Statuses: INVALID_ARGUMENT for a block that the store does not have, with its index;
   * RESOURCE_EXHAUSTED if the store's log is full: the store will lose its rows (capacity), and the
   * engine goes on; FAILED_PRECONDITION in a forked child, or if another thread is in a call. */

  /* Blocks were allocated, each for one user. */
  wm_status (*allocate)(wm_megatron_adapter* adapter, const int32_t* blocks, size_t num_blocks,
                        wm_message* why);
  /* The blocks of a prefix match were pinned: each has one user more. */
  wm_status (*match)(wm_megatron_adapter* adapter, const int32_t* blocks, size_t num_blocks,
                     wm_message* why);
  /* Each entry is one user less of its block; ids may repeat. */
  wm_status (*release)(wm_megatron_adapter* adapter, const int32_t* blocks, size_t num_blocks,
                       wm_message* why);
  /* hashes[i] was registered for blocks[i], both [num_blocks], when its request was admitted: the
   * steps from the next one on fill the block, whose rows are protected after that one. */
  wm_status (*register_hashes)(wm_megatron_adapter* adapter, const int32_t* blocks,
                               const int64_t* hashes, size_t num_blocks, wm_message* why);
  /* The allocator was reset: no request has blocks, and no prefix is found any more. */
  wm_status (*reset)(wm_megatron_adapter* adapter, wm_message* why);

  /* ---- the step ---- */

  /* Fills `*out`, for session_begin_ids_step or session_begin_step (whose written_rows are the
   * tokens with the padding of graphs). It points to the arrays of `tokens`, and into the adapter,
   * until the next call of batch. Step path. */
  wm_status (*batch)(wm_megatron_adapter* adapter, uint64_t step, uint64_t version,
                     const wm_megatron_tokens* tokens, wm_step_batch* out, wm_message* why);

  /* ---- requests: `request` is a number that the engine chooses ---- */

  /* Keeps a snapshot of rows [0, rows) of a request, whose KV is in `blocks` in this order; entries
   * behind those rows are not read. Before the blocks of a request are released, for whatever
   * reason; where weights change while KV stays, for every request that runs then, and after the
   * first step of a request that hit rows of older weights. Statuses of store_snapshot. */
  wm_status (*checkpoint)(wm_megatron_adapter* adapter, uint64_t request, const int32_t* blocks,
                          size_t num_blocks, int64_t rows, wm_message* why);
  /* The oldest snapshot that is kept of a request, which is then the caller's. NOT_FOUND: none is
   * kept any more. The request's routing is the rows of all of them, joined in this order
   * (rows_join). */
  wm_status (*take)(wm_megatron_adapter* adapter, uint64_t request, wm_snapshot** out,
                    wm_message* why);
  /* The request was aborted: releases its snapshots. */
  wm_status (*forget)(wm_megatron_adapter* adapter, uint64_t request, wm_message* why);
} wm_megatron_api_v1;

/* The table: static, the same for every caller, never null. Any thread. */
WM_EXPORT const wm_megatron_api_v1* wm_get_megatron_api_v1(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* WAYMARK_ADAPTERS_MEGATRON_WAYMARK_MEGATRON_H_ */
