/* Waymark's C ABI for the scheduler of an engine like vLLM. C99 and C++.
 *
 * Such an engine has a pool of KV blocks, and requests that have lists of blocks. A scheduler object
 * takes these lists, once per schedule, and writes the schedule messages that the worker passes to
 * its store (store_report_message of waymark.h). It needs no store, and no hook in the block pool.
 * The rules for structs, arguments, statuses and objects are at the top of waymark.h.
 *
 * Example, a schedule in which request 1 finishes and request 2 gets its block:
 *
 *   const uint64_t tag = 11;
 *   const int32_t block = 5;
 *   wm_vllm_blocks blocks = {.struct_size = sizeof blocks, .blocks = &block, .num_blocks = 1};
 *   const uint8_t* bytes = NULL;
 *   size_t size = 0;
 *   wm_status status = vllm->scheduler_finish(scheduler, 1, 16, &tag, &why);
 *   if (status == WM_OK) status = vllm->scheduler_begin(scheduler, 7, 1, &why);
 *   if (status == WM_OK) status = vllm->scheduler_new(scheduler, 2, &blocks, 0, 0, &why);
 *   if (status == WM_OK) status = vllm->scheduler_finish_message(scheduler, &bytes, &size, &why);
 */
#ifndef WAYMARK_ADAPTERS_VLLM_WAYMARK_VLLM_H_
#define WAYMARK_ADAPTERS_VLLM_WAYMARK_VLLM_H_

#include "waymark.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- schedulers --------------------------------------------------------------------------- */

typedef struct wm_vllm_scheduler wm_vllm_scheduler; /* the requests of one scheduler */

typedef struct wm_vllm_options {
  uint32_t struct_size; /* required */
  uint32_t flags;       /* must be zero */
  const wm_ext* ext;
  int32_t num_blocks;        /* of the worker's store; required */
  int32_t block_tokens;      /* tokens of a KV block; required */
  int32_t hash_block_tokens; /* tokens of a block hash; divides block_tokens; 0: block_tokens */
  int32_t null_block;     /* the block that stands for no block; negative: only negative ids do */
  uint32_t max_bytes;     /* of a message; 0: 16 MiB; 64 ... 2^30 */
  uint32_t max_snapshots; /* in a message; 0: 4096 */
} wm_vllm_options;

/* Blocks of a request, and the hashes of its prefix. The arrays belong to the caller. */
typedef struct wm_vllm_blocks {
  uint32_t struct_size;  /* required */
  uint32_t hash_bytes;   /* bytes of each hash: 1 ... 32; 0 without hashes */
  const int32_t* blocks; /* [num_blocks], in order; required */
  size_t num_blocks;     /* required */
  const uint8_t*
      hashes;         /* [num_hashes][hash_bytes]: of hash blocks first_hash, first_hash + 1, ... */
  size_t num_hashes;  /* 0: the engine has no prefix cache; blocks are sealed without keys */
  int64_t first_hash; /* hash block i ends at token (i + 1) * hash_block_tokens */
} wm_vllm_blocks;

/* ---- the table ---------------------------------------------------------------------------- */

/* One thread at a time calls a scheduler. `request` is a number that the caller chooses, known from
 * scheduler_new to scheduler_finish. Statuses of every function: INVALID_ARGUMENT;
 * FAILED_PRECONDITION if no message is open, or if the request was preempted; RESOURCE_EXHAUSTED if
 * the message would exceed its limits. A refused call changes nothing, unless it says otherwise. */
typedef struct wm_vllm_api_v1 {
  uint32_t struct_size; /* of the table that the library has */
  uint32_t reserved;

  /* ---- objects ---- */

  wm_status (*scheduler_create)(const wm_vllm_options* options, wm_vllm_scheduler** out,
                                wm_message* why);
  void (*scheduler_retain)(wm_vllm_scheduler* scheduler);
  void (*scheduler_release)(wm_vllm_scheduler* scheduler);

  /* ---- a schedule: between begin and finish_message, in any order ---- */

  /* Opens the message of the schedule of `step`, which is not below that of any message before.
   * `step` 0: a schedule without tokens; `version` is then 0. FAILED_PRECONDITION if one is open. */
  wm_status (*scheduler_begin)(wm_vllm_scheduler* scheduler, uint64_t step, uint64_t version,
                               wm_message* why);
  /* A request is scheduled for the first time. `blocks`: all its blocks. The KV of its first
   * `local_tokens` was found in the prefix cache, that of the next `external_tokens` is loaded. Of
   * the hashes, those at the ends of blocks with external tokens are read. */
  wm_status (*scheduler_new)(wm_vllm_scheduler* scheduler, uint64_t request,
                             const wm_vllm_blocks* blocks, int64_t local_tokens,
                             int64_t external_tokens, wm_message* why);
  /* The same for a request that was preempted: the blocks replace its former ones. One that was not
   * (a session with new input) goes on with its blocks, which are in front of the given ones. */
  wm_status (*scheduler_resume)(wm_vllm_scheduler* scheduler, uint64_t request,
                                const wm_vllm_blocks* blocks, int64_t local_tokens,
                                int64_t external_tokens, wm_message* why);
  /* Appends blocks to those of a request, and seals every block that ends at or before
   * `full_tokens` and is not sealed yet. `full_tokens`: the leading tokens that are computed and
   * accepted after this step. Of the hashes, those at the ends of these blocks are read. Without
   * blocks also while no message is open, so that the last full block of a request is sealed before
   * it leaves. */
  wm_status (*scheduler_append)(wm_vllm_scheduler* scheduler, uint64_t request,
                                const wm_vllm_blocks* blocks, int64_t full_tokens, wm_message* why);
  /* Closes the message, or writes the next one of a schedule that needs several: scheduler_more says
   * whether to call again. The bytes are valid until the next call with this scheduler; every
   * message must be sent, in this order. RESOURCE_EXHAUSTED: what was reported is lost, and the
   * store's blocks lose their rows with the next message. */
  wm_status (*scheduler_finish_message)(wm_vllm_scheduler* scheduler, const uint8_t** bytes,
                                        size_t* size, wm_message* why);

  /* ---- at any time: without an open message, kept for the next one ---- */

  /* A request is preempted, and its blocks are about to be freed: requests a snapshot of its rows
   * [0, rows) under `*tag`, and releases the blocks. A null `tag`: no snapshot; rows is not read.
   * RESOURCE_EXHAUSTED, if no message can hold the snapshot: the blocks were released, and none is
   * taken. */
  wm_status (*scheduler_preempt)(wm_vllm_scheduler* scheduler, uint64_t request, int64_t rows,
                                 const uint64_t* tag, wm_message* why);
  /* The same for a request that has finished or was aborted. `rows` of a preempted request: 0. */
  wm_status (*scheduler_finish)(wm_vllm_scheduler* scheduler, uint64_t request, int64_t rows,
                                const uint64_t* tag, wm_message* why);
  /* Appends blocks to those of a request, and writes no event: the worker's store derives them from
   * the slots of the decodes that begin and fill these blocks (WM_BATCH_DERIVE_EVENTS). Where it
   * does, blocks that decodes begin are reported by this function alone, and no block is sealed
   * (full_tokens 0). Hashes are not read. */
  wm_status (*scheduler_extend)(wm_vllm_scheduler* scheduler, uint64_t request,
                                const wm_vllm_blocks* blocks, wm_message* why);
  /* Requests a snapshot of rows [first, last) of a request that continues. */
  wm_status (*scheduler_snapshot)(wm_vllm_scheduler* scheduler, uint64_t request, int64_t first,
                                  int64_t last, uint64_t tag, wm_message* why);
  /* The snapshot `tag` will not be fetched: the worker's store releases it. */
  wm_status (*scheduler_forget)(wm_vllm_scheduler* scheduler, uint64_t tag, wm_message* why);
  /* The engine copies block `src` to `dst`, before a request gets `dst` in this schedule: a prefix
   * hit that ends inside a block. Ignored if no request gets it. */
  wm_status (*scheduler_copy)(wm_vllm_scheduler* scheduler, int32_t src, int32_t dst,
                              wm_message* why);
  /* The tokens of a request from `position` on that steps <= `step` computed were rejected. Ignored
   * if the request was resumed after `step`. */
  wm_status (*scheduler_truncate)(wm_vllm_scheduler* scheduler, uint64_t request, int64_t position,
                                  uint64_t step, wm_message* why);
  /* The prefix cache is reset, and no request has blocks. */
  wm_status (*scheduler_reset)(wm_vllm_scheduler* scheduler, wm_message* why);

  /* ---- queries ---- */

  /* Sets *blocks to the leading blocks of a request that are sealed, or were prefix hits: hashes of
   * these are not read any more. */
  wm_status (*scheduler_sealed)(const wm_vllm_scheduler* scheduler, uint64_t request,
                                int64_t* blocks, wm_message* why);
  /* Sets *more to 1 if the open schedule has another message, as one that would have more than
   * max_bytes or max_snapshots does: finish_message must be called again before begin. Else 0. */
  wm_status (*scheduler_more)(const wm_vllm_scheduler* scheduler, int32_t* more, wm_message* why);
} wm_vllm_api_v1;

/* The table: static, the same for every caller, never null. Any thread. */
WM_EXPORT const wm_vllm_api_v1* wm_get_vllm_api_v1(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* WAYMARK_ADAPTERS_VLLM_WAYMARK_VLLM_H_ */
