/* Waymark's C ABI: what an inference engine calls. C99 and C++.
 *
 * waymark_graph.h is for engines whose kernels write a buffer inside CUDA graphs; waymark_wire.h
 * has documents. The terms (row, block, slot, page, step, key, version, reason) are defined in
 * docs/glossary.md; docs/abi.md describes how the ABI grows; docs/integrating.md describes a
 * complete engine.
 *
 * Example, a step loop with one sequence of 16 tokens in KV block 5, one token per step:
 *
 *   #include <waymark.h>
 *   enum { L = 4, K = 2, E = 64, TOKENS = 16, BLOCK = 5 };
 *
 *   int main(void) {
 *     static int32_t ids[TOKENS][L][K];  // a thread of the library reads them: see wm_done
 *     const wm_done no_call = {NULL, NULL};
 *     const wm_api_v1* wm = wm_get_api_v1();
 *     wm_capture_options model = {.struct_size = sizeof model, .num_layers = L, .top_k = K,
 *                                 .num_experts = E, .num_blocks = 8};
 *     wm_capture* capture;
 *     if (wm->capture_create(&model, &capture, NULL) != WM_OK) return 1;
 *
 *     const wm_event bind = wm_bind(BLOCK, NULL, 0);  // the block is allocated, with no key
 *     if (wm->capture_report(capture, &bind, 1, NULL) != WM_OK) return 1;
 *     for (uint64_t step = 1; step <= TOKENS; ++step) {
 *       int32_t* of_step = &ids[step - 1][0][0];
 *       for (int i = 0; i < L * K; ++i)  // the forward: its routers choose expert ids
 *         of_step[i] = i + (int)step;
 *       const int64_t slot = BLOCK * 16 + (int64_t)(step - 1);  // block * block_tokens + offset
 *       const wm_step_batch batch = {.struct_size = sizeof batch, .step = step, .version = 1,
 *                                    .slots = &slot, .num_slots = 1};
 *       const wm_ids given = wm_token_major(of_step, WM_ID_INT32, 1, L, K);
 *       if (wm->capture_step(capture, &batch, &given, no_call, NULL) != WM_OK) return 1;
 *     }
 *
 *     const int32_t block = BLOCK;  // the request has finished: take its rows
 *     wm_taken* taken;
 *     wm_rows* rows;
 *     wm_rows_view view = {.struct_size = sizeof view};
 *     if (wm->capture_take(capture, &block, 1, 0, TOKENS, &taken, NULL) != WM_OK) return 1;
 *     if (wm->taken_wait(taken, -1, NULL) != WM_OK) return 1;
 *     if (wm->taken_rows(taken, &rows, NULL) != WM_OK) return 1;
 *     if (wm->rows_view(rows, &view) != WM_OK) return 1;  // view.ids: uint8 [TOKENS, L, K]
 *     const int last = view.ids[TOKENS * L * K - 1];
 *     wm->rows_release(rows);
 *     wm->taken_release(taken);
 *     wm->capture_release(capture);
 *     return last == L * K - 1 + TOKENS ? 0 : 1;
 *   }
 *
 * Structs. A struct that begins with `struct_size` may get more fields at its end in later
 * versions. The caller sets struct_size to sizeof its own declaration and every field that it does
 * not use to 0; 0 is the default of every field. A struct_size that ends before the last field
 * marked "required", or above 65536, is an invalid argument; bytes beyond the fields that the
 * library knows are not read. In a struct that the library fills, it writes at most struct_size
 * bytes (at least 8) and sets struct_size to the number of bytes that it wrote. Structs without
 * struct_size never change. `reserved` fields and undefined bits of `flags` must be zero.
 *
 * Arguments. The library reads pointer arguments during the call only, unless the function says
 * otherwise. A null pointer with a count above 0 is an invalid argument; so is a count above
 * 2^31 - 1. Null objects, null structs and objects of another type are invalid arguments, not
 * crashes; releases ignore such objects. Where a function fills an array, it writes the
 * first `capacity` elements, and the number of all of them to *count.
 *
 * Statuses have the numbers of absl::StatusCode. Nothing throws and nothing aborts. On any status
 * other than WM_OK the call has done nothing and written no output, unless the function says
 * otherwise.
 *
 * Objects. A call that returns an object through `out` gives it to the caller, who ends it by
 * *_release: on any thread, unless marked otherwise. An object keeps the objects that it depends
 * on: a session its capture, which ends behind it.
 *
 * Threads. "Engine's thread": a capture and its sessions are called by one thread at a time. "Step
 * path": in addition the call allocates nothing after warm-up, never waits, and copies no rows.
 * "Any thread": no restriction.
 *
 * Processes. A capture and its sessions belong to the process that created them. In a forked child
 * their functions return FAILED_PRECONDITION (WM_RULE_FORKED) at once, and releasing them does not
 * wait. What was taken is done there, and has
 * its rows if they had been read before the fork, else that error; rows that were read stay.
 */
#ifndef WAYMARK_PLUGIN_WAYMARK_H_
#define WAYMARK_PLUGIN_WAYMARK_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define WM_EXPORT __attribute__((visibility("default")))
#else
#define WM_EXPORT
#endif

/* Source and binary compatible within a major version. The minor version counts additions. */
#define WM_ABI_MAJOR 1
#define WM_ABI_MINOR 0

/* ---- statuses and messages ---------------------------------------------------------------- */

typedef int32_t wm_status;

enum {
  WM_OK = 0,
  WM_CANCELLED = 1,
  WM_UNKNOWN = 2,
  WM_INVALID_ARGUMENT = 3,
  WM_DEADLINE_EXCEEDED = 4,
  WM_NOT_FOUND = 5,
  WM_ALREADY_EXISTS = 6,
  WM_PERMISSION_DENIED = 7,
  WM_RESOURCE_EXHAUSTED = 8, /* out of memory; on the step path: the step was dropped */
  WM_FAILED_PRECONDITION = 9,
  WM_ABORTED = 10,
  WM_OUT_OF_RANGE = 11,
  WM_UNIMPLEMENTED = 12,
  WM_INTERNAL = 13, /* a defect of the library; on the step path also out of memory */
  WM_UNAVAILABLE = 14,
  WM_DATA_LOSS = 15
};

/* A buffer for text: an error (argument, rule, value) or a report. May be null wherever a function
 * takes one; a capacity without text is an invalid argument. `text` receives at most `capacity`
 * bytes, 0-terminated and cut off if longer; `size` receives the length of the whole text without
 * the 0. On WM_OK a call that reports nothing sets an empty text and size 0. */
typedef struct wm_message {
  char* text;      /* owned by the caller; may be null when capacity == 0 */
  size_t capacity; /* bytes of text */
  size_t size;
} wm_message;

/* Details of the status of a step path call. May be null wherever a function takes one. */
typedef struct wm_code {
  wm_status code; /* the returned status */
  int32_t rule;   /* wm_rule */
  uint64_t index; /* the event, row or limit, if the rule names one */
  int64_t value;  /* the offending value */
} wm_code;

/* The rule that a call broke. describe_code names it, and says what index and value are;
 * these are the rules that an engine may act on. Numbers never change. */
enum wm_rule {
  WM_RULE_NONE = 0,
  WM_RULE_SCHEDULE_AHEAD = 15, /* value: the step of the open schedule, after this step */
  WM_RULE_LOG_FULL = 16,       /* value: calls refused so far; see the step path */
  WM_RULE_BUSY = 17,           /* another thread is in a call of the engine's thread */
  WM_RULE_FORKED = 24,         /* the capture belongs to the parent of this process */
  WM_RULE_IDS = 32,            /* and above: of the ids of a step, or the view that they are in */
  WM_RULE_ARGUMENT = 64        /* index: the argument, from 0, that is null, garbage or too */
                               /* short; value: the wrong value in it, or 0 */
};

/* ---- logs ------------------------------------------------------------------------------------ */

enum { WM_LOG_INFO = 0, WM_LOG_WARNING = 1, WM_LOG_ERROR = 2 };

/* Receives lines for the operator: that the capture is on (info), what costs rows (warnings), and
 * what has failed (errors); docs/troubleshooting.md lists them. `text` has `size` bytes and a
 * terminating 0 and is valid during the call. Called on a thread of the library, or on the
 * caller's within a call off the step path; calls may be concurrent. The function must return
 * soon, must not throw, and must not call the library. `context` must live as long as the
 * capture. A null function: lines go to stderr as "waymark: LEVEL: TEXT", at
 * most 20 in 10 seconds of a process. The environment's WAYMARK_LOG is the least level: "info",
 * "warning" (the default), "error" or "off". The table's log_discard as function: nothing is
 * logged. */
typedef struct wm_log {
  void (*function)(void* context, int32_t level, const char* text, size_t size);
  void* context;
} wm_log;

/* ---- objects ------------------------------------------------------------------------------ */

typedef struct wm_capture wm_capture; /* the rows of every KV block; one per rank that stores */
typedef struct wm_taken wm_taken;     /* rows that were taken, and are read by a thread */
typedef struct wm_rows wm_rows;       /* rows that were read, with their own memory; immutable */

/* ---- the capture -------------------------------------------------------------------------- */

/* An option by its name, a field of StoreOptions (blockstore/store/store_options.h describes each).
 * `value`: an integer; "true" or "false"; a number; or seconds, where "none" is never. */
typedef struct wm_option {
  const char* name;  /* e.g. "num_pages", "audit", "ids_timeout" */
  const char* value; /* e.g. "4096", "true", "2.5" */
} wm_option;

typedef struct wm_capture_options {
  uint32_t struct_size;
  uint32_t flags;             /* must be zero */
  int32_t num_layers;         /* captured MoE layers (L): 1 ... 1024; required */
  int32_t top_k;              /* experts per token and layer (K): 1 ... 64, at most E; required */
  int32_t num_experts;        /* logical experts per layer (E): 1 ... 65535; required */
  int32_t num_blocks;         /* block ids: [0, num_blocks), other tiers included; required */
  int32_t page_tokens;        /* rows of a page (B): 0 = 16; 1 ... 4096 */
  int32_t block_tokens;       /* tokens of a KV block, a multiple of B; 0 = B */
  const int32_t* layer_ids;   /* [num_layer_ids]: the model's number of each captured layer, */
  size_t num_layer_ids;       /* increasing; L of them, or 0 for 0, 1, ..., L - 1 */
  const int32_t* null_blocks; /* [num_null_blocks]: the engine's placeholder block ids */
  size_t num_null_blocks;
  const int32_t* landing_cpus; /* [num_landing_cpus]: CPUs that the landing thread may run on; */
  size_t num_landing_cpus;     /* 0: all that the process could use when it loaded the library */
  const wm_option* options;    /* [num_options]: all other options, by name */
  size_t num_options;
  wm_log log;
  const struct wm_recorder_options* recorder; /* records a flight; null: none */
  /* Sequence parallelism: the ranks that share the rows of each forward; null: this one has all.
   * Every rank tells the same steps, of the same rows, in the same order. A batch has the rows of
   * all ranks, padding included (slots of -1): a multiple of the ranks. The ids of rank r are rows
   * [r * n, (r + 1) * n), n of each rank. The ranks exchange packed rows on a thread of the
   * library, one all_gather for each step, and every rank gets all rows. What a rank loses is
   * missing on all of them (capacity); if all_gather fails, the rows of its step are missing here
   * (not captured). It is called by that thread alone. A call that outlasts the option
   * "teardown_timeout" is left behind, and is the last: the context lives until it has returned
   * (`release`). */
  const struct wm_collective* row_gather;
  uint32_t reserved; /* must be zero */
  /* Columns of a tensor of ids behind the K that are captured, e.g. of shared experts: a tensor of
   * another number of columns than K + extra_columns is refused. */
  int32_t extra_columns; /* 0 ... 2^20 */
  const char* engine;    /* named in the line that says that the capture is on; null: no name */
} wm_capture_options;

/* The shape of the rows of a capture or of a wm_rows. */
typedef struct wm_shape {
  uint32_t struct_size; /* required */
  int32_t num_layers;
  int32_t top_k;
  int32_t num_experts;
  int32_t page_tokens;
  int32_t block_tokens;     /* 0 for a wm_rows */
  int32_t num_blocks;       /* 0 for a wm_rows */
  uint32_t id_bytes;        /* of a stored id: 1 (uint8) or 2 (uint16, little-endian) */
  uint64_t row_bytes;       /* of a stored row: L * K * id_bytes */
  const int32_t* layer_ids; /* [num_layers]; valid as long as the object */
} wm_shape;

/* ---- events and batches ------------------------------------------------------------------- */

enum {
  WM_EVENT_BIND = 1, /* `block` is allocated: new life; with a key: attach the page of that key */
  WM_EVENT_RETAIN,   /* `block` has one user more */
  WM_EVENT_RELEASE,  /* `block` has one user less; below zero: ignored and counted */
  WM_EVENT_SEAL,     /* `step` fills `block`, which is then found by its key */
  WM_EVENT_COPY,     /* `block` gets rows [0, rows) of `src` */
  WM_EVENT_MOVE,     /* `block` takes over the contents and state of another block */
  WM_EVENT_TRUNCATE, /* rows >= `rows` of `block` that steps <= `step` wrote are invalid */
  WM_EVENT_RESET     /* the block table and the key index are emptied */
};

#define WM_KEY_BYTES 32
#define WM_ALL_ROWS (-1)

/* One event of a KV block, in the order in which it happened. 56 bytes. Negative block ids and the
 * null blocks are legal: their events are ignored and counted. */
typedef struct wm_event {
  uint16_t type;
  uint8_t key_size; /* bytes of `key` in use; 0: no key */
  uint8_t more;     /* MOVE: 1 = the next event belongs to the same simultaneous move */
  int32_t block;    /* COPY, MOVE: the destination */
  int32_t src;      /* COPY, MOVE: the block copied or moved from */
  int32_t rows;     /* COPY: rows, or WM_ALL_ROWS; TRUNCATE: the first row to invalidate */
  uint64_t step;    /* SEAL: the step that fills the block, 0: the one that is begun next; */
                    /* TRUNCATE: the last step that it applies to */
  uint8_t key[WM_KEY_BYTES]; /* the engine's prefix-chain hash of the block; 0 beyond key_size */
} wm_event;

/* Constructors of events. `key`: [key_size], 1 ... 32 bytes; an event with a longer key is refused
 * with WM_RULE_KEY_TOO_LONG. */
static inline wm_event wm_make_event(int type, int32_t block, int32_t src, int32_t rows,
                                     uint64_t step, const void* key, size_t key_size) {
  wm_event event;
  memset(&event, 0, sizeof(event));
  event.type = (uint16_t)type;
  event.block = block;
  event.src = src;
  event.rows = rows;
  event.step = step;
  event.key_size = (uint8_t)(key_size < 255 ? key_size : 255);
  if (key != NULL && key_size <= WM_KEY_BYTES) memcpy(event.key, key, key_size);
  return event;
}
/* A null `key`: no page is attached; the block has no rows until a step writes them. */
static inline wm_event wm_bind(int32_t block, const void* key, size_t key_size) {
  return wm_make_event(WM_EVENT_BIND, block, -1, 0, 0, key, key_size);
}
static inline wm_event wm_retain(int32_t block) {
  return wm_make_event(WM_EVENT_RETAIN, block, -1, 0, 0, NULL, 0);
}
static inline wm_event wm_release(int32_t block) {
  return wm_make_event(WM_EVENT_RELEASE, block, -1, 0, 0, NULL, 0);
}
/* `step` 0: the step that is begun next. */
static inline wm_event wm_seal(int32_t block, const void* key, size_t key_size, uint64_t step) {
  return wm_make_event(WM_EVENT_SEAL, block, -1, 0, step, key, key_size);
}
static inline wm_event wm_copy(int32_t src, int32_t dst, int32_t rows) {
  return wm_make_event(WM_EVENT_COPY, dst, src, rows, 0, NULL, 0);
}
/* `more` = 1 joins this pair with the MOVE that follows: all pairs of a group move at once. */
static inline wm_event wm_move(int32_t src, int32_t dst, int more) {
  wm_event event = wm_make_event(WM_EVENT_MOVE, dst, src, 0, 0, NULL, 0);
  event.more = (uint8_t)(more != 0);
  return event;
}
static inline wm_event wm_truncate(int32_t block, int32_t row, uint64_t step) {
  return wm_make_event(WM_EVENT_TRUNCATE, block, -1, row, step, NULL, 0);
}
static inline wm_event wm_reset(void) {
  return wm_make_event(WM_EVENT_RESET, -1, -1, 0, 0, NULL, 0);
}

/* Slots: block * block_tokens + offset, or one of these. */
#define WM_PADDING_SLOT ((int64_t)-1)             /* writes no KV: no row */
#define WM_NOT_ASKED(slot) ((int64_t)-2 - (slot)) /* writes KV, but did not ask for routing */

/* The rows of a forward as pairs of a block and an offset in it, for engines that keep these two
 * arrays instead of slots. Both arrays may be unaligned. */
typedef struct wm_pair_rows {
  uint32_t struct_size;
  int32_t index_bytes;        /* of each entry of block_idx: 4 (int32) or 8 (int64); required */
  const void* block_idx;      /* [num_rows]: the block; negative: padding; required */
  const void* local_position; /* [num_rows]: offset in the block; not read for padding; required */
  size_t num_rows;            /* required */
  int32_t block_tokens;       /* tokens per block of block_idx: block_tokens or a divisor of it */
                              /* (kernel blocks); required */
  int32_t position_bytes;     /* of each entry of local_position: 4 or 8; 0: index_bytes */
  const uint8_t* asked;       /* [num_rows]: 0: the row's request did not ask for routing; null: */
                              /* all asked */
} wm_pair_rows;

/* A step as it is scheduled. The arrays belong to the caller. The rows of the forward are in one
 * form: `slots` or `pairs`. */
typedef struct wm_step_batch {
  uint32_t struct_size;
  uint32_t flags;            /* must be zero */
  uint64_t step;             /* above every earlier step, by at most 2^27; the first one: below */
                             /* 2^56; required */
  uint64_t version;          /* of the weights of the forward; required */
  const wm_event* events;    /* [num_events]: applied in order, before the rows; required */
  size_t num_events;         /* required */
  const int64_t* slots;      /* [num_slots]: one per row of the forward, in its order; required */
  size_t num_slots;          /* required */
  const wm_pair_rows* pairs; /* the rows, if not null; num_slots is then 0 */
} wm_step_batch;

/* ---- the ids of a step -------------------------------------------------------------------- */

enum { WM_ID_UINT8 = 0, WM_ID_UINT16, WM_ID_INT16, WM_ID_INT32, WM_ID_INT64 };

/* A tensor of ids that the engine owns: (row, layer, k) is at data + row * row_stride + layer *
 * layer_stride + k * k_stride; strides in bytes, of any sign. Columns beyond K (extra_columns) are
 * never read. An id of -1 (65535 in uint16) means that none was written. A type that cannot hold
 * every expert (uint8 with more than 256) is refused. */
typedef struct wm_ids {
  uint32_t struct_size;
  int32_t type;       /* WM_ID_*; session_hand_over takes int16, int32 and int64; required */
  const void* data;   /* may be null when rows == 0; required */
  int32_t rows;       /* of the forward; required */
  int32_t columns;    /* K + extra_columns of the capture; required */
  int64_t row_stride; /* required */
  int64_t k_stride;   /* required */
  int32_t layers;     /* L; not read by session_hand_over, which takes one layer */
  int32_t reserved;   /* must be zero */
  int64_t layer_stride;
  int32_t first_row;  /* row i is row first_row + i of the view: of one of several micro-batches; */
                      /* for session_hand_over, else zero */
  int32_t reserved_2; /* must be zero */
} wm_ids;

/* The ids of a C-order [rows, layers, top_k] array of `type`. */
static inline wm_ids wm_token_major(const void* data, int32_t type, int32_t rows, int32_t layers,
                                    int32_t top_k) {
  static const uint8_t id_bytes[] = {1, 2, 2, 4, 8};
  const int64_t bytes = type >= WM_ID_UINT8 && type <= WM_ID_INT64 ? id_bytes[type] : 0;
  wm_ids ids;
  memset(&ids, 0, sizeof(ids));
  ids.struct_size = sizeof(ids);
  ids.type = type;
  ids.data = data;
  ids.rows = rows;
  ids.columns = top_k;
  ids.layers = layers;
  ids.k_stride = bytes;
  ids.layer_stride = bytes * top_k;
  ids.row_stride = bytes * top_k * layers;
  return ids;
}

/* Called once, when the library no longer reads the ids of a step: on the landing thread, or within
 * the call that gave them. Must not throw and must not call the library, but it may release
 * objects: see capture_release. */
typedef struct wm_done {
  void (*function)(void* context); /* may be null */
  void* context;
} wm_done;

/* ---- rows --------------------------------------------------------------------------------- */

enum {
  WM_REASON_NONE = 0,      /* the row is valid */
  WM_REASON_NEVER_WRITTEN, /* no step wrote it since the block was bound */
  WM_REASON_NOT_CAPTURED,  /* a layer wrote no ids, or the row did not ask for routing */
  WM_REASON_EXTERNAL_KV,   /* the KV came from elsewhere, and no page here has its rows */
  WM_REASON_CAPACITY,      /* there was no room: `cause` says where */
  WM_REASON_INVALID_ID,    /* an id was out of range, or repeated within a layer */
  WM_REASON_AUDIT,         /* voided: later writes contradicted the row */
  WM_REASON_RELEASED,      /* the block had no users, or has another owner than the request */
  WM_REASON_NOT_TOLD,      /* the array from which the row was read does not say; of no capture */
  WM_NUM_REASONS
};

/* What WM_REASON_CAPACITY stands for. A later library may have more, below 32. */
enum {
  WM_CAUSE_NONE = 0,        /* another reason, or rows of a format that had no causes */
  WM_CAUSE_NO_BUFFER,       /* the step was dropped as it began: all buffers were in use */
  WM_CAUSE_STEP_DROPPED,    /* the engine dropped the step, or ended without having submitted it */
  WM_CAUSE_OTHER_RANK,      /* another rank dropped or cancelled it, or the all-gather failed */
  WM_CAUSE_LOG_FULL,        /* what the engine told was lost */
  WM_CAUSE_EVENTS_LOST,     /* events were lost before they were reported (capture_lose_rows) */
  WM_CAUSE_RESET,           /* WM_EVENT_RESET ended the life of the block */
  WM_CAUSE_NO_PAGE,         /* no page was free: blocks in use have all */
  WM_CAUSE_HELD_BY_READERS, /* no page was free: rows that were not released hold some */
  WM_CAUSE_EVICTED,         /* the page went to rows of another block */
  WM_CAUSE_NO_MEMORY,       /* no memory for the rows to be taken */
  WM_CAUSE_STORE_FAILED,    /* capture_status says why */
  WM_CAUSE_UNREACHABLE,     /* a source could not be reached, or returned an error */
  WM_CAUSE_ABSENT,          /* it does not have the object */
  WM_CAUSE_DAMAGED,         /* the object is not the one that was published */
  WM_CAUSE_TIMEOUT,         /* it had not come at the deadline */
  WM_CAUSE_SKIPPED,         /* the source was not asked: it did not answer in time before */
  WM_CAUSE_REFUSED,         /* an authentic entry, but of another key */
  WM_CAUSE_UNNAMED,         /* the weights have no name by which others could store their rows */
  WM_NUM_CAUSES
};

enum {
  WM_PROVENANCE_HERE = 0, /* written by its step, since the block was bound */
  WM_PROVENANCE_KEPT,     /* the same, and a later write of the row was ignored */
  WM_PROVENANCE_BY_KEY,   /* from another pass over the same prefix and version */
  WM_PROVENANCE_UNKNOWN   /* the array from which the row was read does not say; of no capture */
};

/* The version of a valid row whose array does not say it. No step has it. */
#define WM_UNKNOWN_VERSION UINT64_MAX

/* One row that was read. A missing row has step 0 and version 0. 24 bytes. */
typedef struct wm_row_info {
  uint64_t step;
  uint64_t version;
  uint8_t reason; /* WM_REASON_*; WM_REASON_NONE: valid */
  uint8_t provenance;
  uint8_t cause;       /* WM_CAUSE_*, of WM_REASON_CAPACITY; else 0 */
  uint8_t reserved[5]; /* 0 */
} wm_row_info;

/* Rows [first, first + count) of one sequence: ids as they are kept, and one info each. */
typedef struct wm_rows_view {
  uint32_t struct_size;
  uint32_t flags;           /* WM_ROWS_* */
  int64_t first;            /* required */
  int64_t count;            /* required */
  const uint8_t* ids;       /* [count][row_bytes], token-major; missing rows are 0; required */
  const wm_row_info* infos; /* [count]; required */
} wm_rows_view;

/* The K ids of a row and layer may be in another order than the router's. */
#define WM_ROWS_SORTED 1u

/* Distinguishes the rows of a request from the rows of a later owner of its blocks. All 0: as
 * capture_take. Read during the call. */
typedef struct wm_owner {
  uint32_t struct_size;
  uint32_t key_size;  /* bytes of each key, up to WM_KEY_BYTES; 0 without keys */
  uint64_t last_step; /* in which the request ran; later rows are another's; 0: not given */
  /* [num_keys][key_size]: of the first blocks of the sequence, those that are full. A page that is
   * sealed under another key is another's. Only with last_step: they do not say whose the blocks
   * behind them are. */
  const uint8_t* keys;
  uint64_t num_keys; /* 0 ... num_blocks */
} wm_owner;

/* An all-gather between ranks, which the engine supplies, for example over its process group.
 * `all_gather` writes `bytes` bytes of each rank, in order of rank, to `receive`; all ranks call it
 * with the same `bytes`, in the same order. It may wait; it returns WM_OK or the error. It should
 * have a deadline: if a rank is late or gone, only it can end the wait of the others. After an
 * error it may be called again. Not called with one rank. */
typedef struct wm_collective {
  uint32_t struct_size;
  int32_t rank;     /* of this process; required */
  int32_t ranks;    /* 1 ... 4096; required */
  int32_t reserved; /* must be zero */
  wm_status (*all_gather)(void* context, const void* send, void* receive,
                          size_t bytes); /* required */
  void* context;
  /* Null, or called once when all_gather will not be called any more: behind its last call, which
   * may outlast the session, or in a call that fails or needs no all-gather. On any thread. */
  void (*release)(void* context);
} wm_collective;

/* ---- counters ----------------------------------------------------------------------------- */

/* One counter; both texts are static. Names may be added, and their order may change. */
typedef struct wm_counter {
  const char* name;    /* e.g. "rows_landed", "rows_missing.capacity", "landing_lag_p50_ns" */
  const char* meaning; /* one line */
  double value;
} wm_counter;

typedef struct wm_layer_stats {
  uint32_t struct_size;  /* required */
  int32_t layer_id;      /* the model's number of the layer */
  const char* module;    /* "" if the layer has no name; valid as long as the object */
  uint64_t rows_silent;  /* landed rows in which every id of the layer was -1 */
  uint64_t rows_invalid; /* landed rows in which it had an id out of range, or one twice */
} wm_layer_stats;

/* A finding of the audit: later writes of `block` contradicted the rows that were kept. One finding
 * stands for one cause; its fields, except the last three, are of the first page. */
typedef struct wm_finding {
  uint32_t struct_size; /* required */
  int32_t block;        /* -1: two pages, and the second is of no block */
  uint64_t step;        /* the step whose write disagreed: of two pages, the later one */
  uint64_t kept_step;   /* the step that wrote the rows that were kept */
  uint64_t sealed_step; /* the step that the page was sealed with */
  uint32_t rows;        /* compared; if the page stays, those that were voided */
  uint32_t voided;      /* 1: the rows of the page are missing, or these rows alone */
  double agreement;     /* mean share of common ids, in [0, 1] */
  uint32_t two_pages;   /* 1: two pages were sealed with one key; 0: a block was written again */
  uint32_t pages;       /* how many times it was found */
  uint64_t last_step;   /* `step` of the last time */
} wm_finding;

/* ---- the flight recorder ------------------------------------------------------------------ */

/* Keeps the latest steps of a capture in fixed memory, for `waymark check`. Commits the ring and 16
 * bytes per row of the capture's memory. */
typedef struct wm_recorder_options {
  uint32_t struct_size; /* required */
  uint32_t flags;       /* WM_RECORDER_* */
  uint64_t ring_bytes;  /* 0: 64 MiB; at least 32 KiB; a step's batch must fit in an eighth of it */
  const int32_t* cpus;  /* [num_cpus]: CPUs that its thread may run on; 0: any */
  size_t num_cpus;
} wm_recorder_options;

#define WM_RECORDER_IDS 1u /* record whole rows, not digests: for replays under other rules */

/* ---- the table ---------------------------------------------------------------------------- */

typedef struct wm_api_v1 {
  size_t struct_size; /* bytes of the library's table: a function at or beyond it does not exist */
  uint16_t abi_major; /* WM_ABI_MAJOR of the library */
  uint16_t abi_minor;
  uint32_t reserved;
  const struct wm_wire_api_v1* wire;   /* the functions of waymark_wire.h; never null */
  const struct wm_graph_api_v1* graph; /* the functions of waymark_graph.h; never null */

  /* ---- what an engine calls ---- */

  /* RESOURCE_EXHAUSTED if memory cannot be allocated, or the tables would exceed the memory of the
   * machine; this is known before any is touched. Any thread. */
  wm_status (*capture_create)(const wm_capture_options* options, wm_capture** out, wm_message* why);
  /* Lands what was submitted, loses the open steps, and reads what was taken; no
   * other thread may be in a call of the capture. What was taken stays readable. In a callback of
   * the library (a wm_done, a log, a collective) it does not wait for the thread that
   * calls back, which does the same when the callback has returned: until then, and until what was
   * taken is done, callbacks and their contexts are in use. */
  void (*capture_release)(wm_capture* capture);

  /* The step path, engine's thread: all calls down to capture_take, and in the next section.
   * What is told is appended to a log and takes effect in that order, once; rows that are taken are
   * of what was told before, and of nothing later.
   *
   * FAILED_PRECONDITION with WM_RULE_BUSY: another thread is in a call of the engine's thread;
   * nothing was done. RESOURCE_EXHAUSTED with WM_RULE_LOG_FULL: the log was full, because the
   * landing thread got no CPU; what the call told is lost, and so are all rows (capacity), but no
   * wrong one is returned. The engine continues as if the call had succeeded; a step whose begin
   * was lost has ended. The calls that end a step never return it. */

  /* Reports events, in order. An invalid event: nothing was done. A group of Moves is in one call.
   */
  wm_status (*capture_report)(wm_capture* capture, const wm_event* events, size_t num_events,
                              wm_code* code);
  /* A whole step, told after its forward was issued and before the next events: row i of `ids` is
   * row i of the batch. Null `ids`: they are lost; the rows are missing (not captured). The ids
   * must not change until `done` is called, once: when they have been read, or before the return.
   * If one of eight that are looked at has, the rows that were not read yet are missing (not
   * captured), and the log says so; a change of others is not noticed. RESOURCE_EXHAUSTED: there
   * was no room for one more step, which has ended: max_steps_in_flight (an option) steps are
   * without ids, or have ids that were not read yet; its rows are missing (capacity). DATA_LOSS:
   * the step is told, but its ids were refused, as `code` says; its rows are missing (not
   * captured). After any other error nothing has happened. */
  wm_status (*capture_step)(wm_capture* capture, const wm_step_batch* batch, const wm_ids* ids,
                            wm_done done, wm_code* code);
  /* Takes rows [first, last) of the sequence whose KV is in `blocks`, before these are released:
   * block i has tokens [i, i + 1) * block_tokens; blocks behind those rows are not looked at.
   * Returns at once; a thread of the library reads them. INVALID_ARGUMENT names the range or the
   * block. While the log is full all rows are missing (capacity). Allocates. Engine's thread. */
  wm_status (*capture_take)(wm_capture* capture, const int32_t* blocks, size_t num_blocks,
                            int64_t first, int64_t last, wm_taken** out, wm_message* why);
  /* OK once the rows have been read, or it is known why they cannot be; else UNAVAILABLE. Never
   * waits. Any thread, as all functions of what was taken and of rows. */
  wm_status (*taken_done)(const wm_taken* taken);
  /* Waits for that. DEADLINE_EXCEEDED after `timeout_ns`; a negative timeout never expires. */
  wm_status (*taken_wait)(const wm_taken* taken, int64_t timeout_ns, wm_message* why);
  /* The rows; or why there are none: DEADLINE_EXCEEDED if their steps did not land in time, else
   * the error of the read. UNAVAILABLE before taken_done. */
  wm_status (*taken_rows)(const wm_taken* taken, wm_rows** out, wm_message* why);
  /* Calls `call` once when taken_done is OK: on a thread of the library, or here. It must not throw
   * and must not wait; it may call what any thread may call, and release any object, also the
   * capture and `taken`. */
  wm_status (*taken_when_done)(wm_taken* taken, wm_done call, wm_message* why);
  void (*taken_release)(wm_taken* taken);

  /* As capture_take, also after the blocks were released: rows that are another request's by
   * `owner` are missing (released), and blocks need no users. INVALID_ARGUMENT names the field of
   * `owner`, too. On OK *out is the caller's (taken_release); else it is not written. Engine's
   * thread. */
  wm_status (*capture_take_of)(wm_capture* capture, const wm_owner* owner, const int32_t* blocks,
                               size_t num_blocks, int64_t first, int64_t last, wm_taken** out,
                               wm_message* why);

  /* ---- steps in two calls, and steps that did not run ---- */

  /* Opens the schedule of `step` under weights `version`: events, and rows that are taken, belong
   * to it until the step is told. Optional, for engines that report events before the step begins
   * and whose weights change, or that schedule ahead: an earlier step is then refused
   * (WM_RULE_SCHEDULE_AHEAD). Seals without a step that were reported for an open schedule are
   * discarded if its step was not told. `step` is above every step told, and not below the open
   * schedule. */
  wm_status (*capture_schedule)(wm_capture* capture, uint64_t step, uint64_t version,
                                wm_code* code);
  /* capture_step in two calls, where other steps are told before the ids of this one exist. The
   * step waits in the log until one of the next three calls, in any order of steps, and its ids;
   * what is told behind it waits with it. Errors as capture_step. */
  wm_status (*capture_tell)(wm_capture* capture, const wm_step_batch* batch, wm_code* code);
  /* RESOURCE_EXHAUSTED: as capture_step. After any other failure the step is still open, and `done`
   * was called. NOT_FOUND: it is not open. */
  wm_status (*capture_set_ids)(wm_capture* capture, uint64_t step, const wm_ids* ids, wm_done done,
                               wm_code* code);
  /* The forward ran, or may have, and its ids are lost: the rows are missing (not captured). In
   * doubt, call this. */
  wm_status (*capture_lose)(wm_capture* capture, uint64_t step, wm_code* code);
  /* No kernel that writes KV was issued: the step has no effect, and neither have its seals: report
   * them again with the step that runs. */
  wm_status (*capture_not_run)(wm_capture* capture, uint64_t step, wm_code* code);
  /* Nobody knows what the engine did to its blocks: events were lost on their way to this call, as
   * between two processes, or a forward wrote KV into blocks that are not known. All blocks lose
   * their rows (capacity) and keep their users; what was taken before stays as it is. It takes
   * effect in its place, like an event: call it before the next step is told, and before what is
   * known is reported again. */
  wm_status (*capture_lose_rows)(wm_capture* capture, wm_code* code);

  /* ---- rows: any thread ---- */

  /* Copies rows from arrays, for example of another process. Of `shape` it reads num_layers, top_k,
   * num_experts, page_tokens (0 = 16) and layer_ids (null: 0, 1, ...). INVALID_ARGUMENT names the
   * field or the row: ids of a valid row must be in [0, E); a missing row's are not read. */
  wm_status (*rows_create)(const wm_shape* shape, const wm_rows_view* view, wm_rows** out,
                           wm_message* why);
  void (*rows_release)(wm_rows* rows);
  wm_status (*rows_shape)(const wm_rows* rows, wm_shape* out);
  /* The arrays; valid as long as the object. */
  wm_status (*rows_view)(const wm_rows* rows, wm_rows_view* out);
  /* Merges reads of one sequence, the earliest first (the lives of a preempted request, for
   * instance): at each position the first valid row wins. INVALID_ARGUMENT unless there is at least
   * one and all have the same layers, K and E. */
  wm_status (*rows_join)(const wm_rows* const* reads, size_t num_reads, wm_rows** out,
                         wm_message* why);
  /* Joins 1 to 1024 pipeline stages, in order of layers, into rows of all layers. A row is missing
   * (not captured) if its steps differ or, without steps (0), its versions; the caller vouches that
   * such rows of one version are of one step. Call it before rows_join. */
  wm_status (*rows_join_layers)(const wm_rows* const* stages, size_t num_stages, wm_rows** out,
                                wm_message* why);

  /* ---- state ---- */

  /* Any thread. */
  wm_status (*capture_shape)(const wm_capture* capture, wm_shape* out);
  /* Names the module of a captured layer, for reports; before the first step. ALREADY_EXISTS,
   * FAILED_PRECONDITION, INVALID_ARGUMENT. Engine's thread. */
  wm_status (*capture_name_layer)(wm_capture* capture, int32_t layer, const char* name,
                                  wm_message* why);
  /* Writes the number of leading rows of [0, rows) that are valid, as far as the log was applied,
   * to *covered: a hint to one scheduler, since it may be late and differ from rank to rank. Any
   * thread. */
  wm_status (*capture_covered_prefix)(const wm_capture* capture, const int32_t* blocks,
                                      size_t num_blocks, int64_t rows, int64_t* covered);
  /* Waits until every step told so far has ended, and the rows taken so far have been read; rows
   * by key may come later. A loop whose forward takes no time calls it. DEADLINE_EXCEEDED after
   * `timeout_ns`; a negative timeout never expires. Engine's thread. */
  wm_status (*capture_wait_idle)(wm_capture* capture, int64_t timeout_ns, wm_message* why);
  /* The last step told; 0: none. Engine's thread. */
  wm_status (*capture_last_step)(const wm_capture* capture, uint64_t* step);
  /* OK, or why the capture has failed: an exception in its own work, RESOURCE_EXHAUSTED if there
   * was no memory, else INTERNAL; or row_gather is not called any more (4096 steps waited for it).
   * It then returns no row of its blocks any more: rows that have not landed, and those that are
   * taken later, are missing. The step path works as before, so that the engine runs on.
   * FAILED_PRECONDITION in a forked child. Any thread. */
  wm_status (*capture_status)(const wm_capture* capture, wm_message* why);
  /* The counters since it was created, as far as the log was applied. Any thread. */
  wm_status (*capture_stats)(const wm_capture* capture, wm_counter* out, size_t capacity,
                             size_t* count);
  /* The counters of one captured layer, in steps told here. Any thread. */
  wm_status (*capture_layer_stats)(const wm_capture* capture, int32_t layer, wm_layer_stats* out);
  /* A finding of the audit that no call has returned yet, and its text; NOT_FOUND if there is none.
   * What was found since is one finding for each cause. Any thread. */
  wm_status (*capture_next_finding)(wm_capture* capture, wm_finding* out, wm_message* text);

  /* ---- the flight recorder ---- */

  /* Writes the contents of the ring to the file `path`; recording continues. FAILED_PRECONDITION if
   * the capture has no recorder; UNKNOWN if the file cannot be written; DATA_LOSS if the recorder
   * has lost records. Any thread. */
  wm_status (*capture_dump)(wm_capture* capture, const char* path, wm_message* why);

  /* ---- texts: static, any thread ---- */

  /* `version`: as "0.1.0". `build_info`: one line of "name=value" pairs separated by spaces:
   * version, abi, compiler, cuda (its version, or none), archs, host
   * (instruction sets). */
  const char* (*version)(void);
  const char* (*build_info)(void);
  /* "OK", "INVALID_ARGUMENT", ...; "never written", ...; "by key", ...; "unknown" for any other
   * number. */
  const char* (*status_name)(wm_status status);
  const char* (*reason_name)(int32_t reason);
  const char* (*provenance_name)(int32_t provenance);
  const char* (*cause_name)(int32_t cause); /* "" for WM_CAUSE_NONE */
  /* Writes `code` as text: argument, rule, value. */
  wm_status (*describe_code)(const wm_code* code, wm_message* text);

  /* The function of a wm_log that discards: nothing is logged. */
  void (*log_discard)(void* context, int32_t level, const char* text, size_t size);
} wm_api_v1;

/* The table: static, the same for every caller, never null; the only symbol of the library. Any
 * thread. */
WM_EXPORT const wm_api_v1* wm_get_api_v1(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* WAYMARK_PLUGIN_WAYMARK_H_ */
