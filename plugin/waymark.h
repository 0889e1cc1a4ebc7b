/* Waymark's C ABI for an inference engine: store, capture session, snapshots, rows. C99 and C++.
 *
 * waymark_wire.h adds documents, page sources, publishing and fetching. The terms (row,
 * block, slot, page, step, snapshot, key, version, reason) are defined in docs/architecture.md;
 * docs/abi.md describes how the ABI grows; docs/integrating.md describes a complete engine.
 *
 * Example, a step loop with one sequence of 16 tokens in KV block 5, one token per step:
 *
 *   #include <waymark.h>
 *   enum { L = 4, K = 2, E = 64, TOKENS = 16, BLOCK = 5 };
 *
 *   int main(void) {
 *     const wm_api_v1* wm = wm_get_api_v1();
 *     wm_store_options model = {.struct_size = sizeof model, .num_layers = L, .top_k = K,
 *                               .num_experts = E, .num_blocks = 8};
 *     wm_store* store;
 *     if (wm->store_create(&model, &store, NULL) != WM_OK) return 1;
 *     wm_session_options capture = {.struct_size = sizeof capture, .store = store, .max_rows = 1,
 *                                   .num_buffers = TOKENS};
 *     wm_session* session;
 *     if (wm->session_create(&capture, &session, NULL) != WM_OK) return 1;
 *
 *     const wm_event bind = wm_bind(BLOCK, NULL, 0);  // the block is allocated, with no key
 *     if (wm->store_report(store, &bind, 1, NULL) != WM_OK) return 1;
 *     for (uint64_t step = 1; step <= TOKENS; ++step) {
 *       const int64_t slot = BLOCK * 16 + (int64_t)(step - 1);  // block * block_tokens + offset
 *       const wm_step_batch batch = {.struct_size = sizeof batch, .step = step, .version = 1,
 *                                    .slots = &slot, .num_slots = 1};
 *       const wm_status begun = wm->session_begin_step(session, &batch, 0, NULL);
 *       wm_view view;  // int16 [L, max_rows, K]
 *       if (wm->session_view(session, step, &view) != WM_OK) return 1;
 *       for (int i = 0; i < L * K; ++i)  // the forward: its routers write their expert ids
 *         view.data[i / K * view.layer_stride + i % K] = (int16_t)(i + (int)step);
 *       if (begun == WM_OK) wm->session_submit(session, step, 0, NULL);
 *     }
 *
 *     const int32_t block = BLOCK;  // the request has finished: read its rows
 *     wm_snapshot_args range = {.struct_size = sizeof range, .blocks = &block, .num_blocks = 1,
 *                               .last = TOKENS};
 *     wm_snapshot* snapshot;
 *     if (wm->store_snapshot(store, &range, &snapshot, NULL) != WM_OK) return 1;
 *     int32_t ids[TOKENS][L][K];
 *     wm_read_args read = {.struct_size = sizeof read, .end = TOKENS, .id_type = WM_ID_INT32,
 *                          .out = ids, .out_bytes = sizeof ids};
 *     if (wm->snapshot_wait(snapshot, -1, NULL) != WM_OK) return 1;
 *     if (wm->snapshot_read(snapshot, &read, NULL) != WM_OK) return 1;
 *     wm->snapshot_release(snapshot);
 *     wm->session_release(session);
 *     wm->store_release(store);
 *     return ids[TOKENS - 1][L - 1][K - 1] == L * K - 1 + TOKENS ? 0 : 1;
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
 * crashes; retain and release ignore such objects.
 *
 * Statuses have the numbers of absl::StatusCode. Nothing throws and nothing aborts. On any status
 * other than WM_OK the call has done nothing and written no output, unless the function says
 * otherwise.
 *
 * Objects. Every call that returns an object through `out` returns one reference; *_retain adds
 * one, *_release removes one. An object keeps the objects that it depends on: a session its store;
 * a store and its snapshots their recorder. Retain and release: any thread, unless marked
 * otherwise.
 *
 * Threads. "Engine's thread": a store and its sessions are called by one thread at a time. "Step
 * path": in addition the call allocates nothing after warm-up, never waits, and copies no rows.
 * "Any thread": no restriction.
 *
 * Processes. A store, its sessions and its snapshots, a recorder, a publisher, its tickets and a
 * fetcher belong to the process that created them. In a forked child their functions return
 * FAILED_PRECONDITION (WM_RULE_FORKED) at once, and releasing them does not wait; snapshots that
 * were ready can be read.
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
  WM_RESOURCE_EXHAUSTED = 8, /* out of memory; from begin_step and submit_ids: the step */
                             /* was dropped */
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
  uint64_t index; /* the event or row, if the rule names one */
  int64_t value;  /* the offending value */
  int64_t limit;  /* the limit that it breaks, if the rule names one */
} wm_code;

enum wm_rule {
  WM_RULE_NONE = 0,
  WM_RULE_STEP_NOT_INCREASING = 1,    /* value: the step; steps are below 2^56 */
  WM_RULE_TOO_MANY_ROWS = 2,          /* value: the rows; limit, of a tensor: rows of the view */
  WM_RULE_UNKNOWN_EVENT = 3,          /* index: the event; value: its type */
  WM_RULE_BLOCK_OUT_OF_RANGE = 4,     /* index: the event; value: the block */
  WM_RULE_SRC_OUT_OF_RANGE = 5,       /* index: the event; value: its `src` */
  WM_RULE_KEY_TOO_LONG = 6,           /* index: the event; value: key_size */
  WM_RULE_ROWS_OUT_OF_RANGE = 7,      /* index: the event; value: rows */
  WM_RULE_SELF_COPY = 8,              /* index: the event; value: the block */
  WM_RULE_DUPLICATE_MOVE = 9,         /* index: the event; value: a block that is in two pairs */
  WM_RULE_SEAL_STEP = 10,             /* index: the event; value: its step, after this step */
  WM_RULE_SLOT_OUT_OF_RANGE = 11,     /* index: the row; value: the slot */
  WM_RULE_DEVICE_SLOTS = 12,          /* device slots where not allowed, or none where required */
  WM_RULE_STEP_NOT_IN_FLIGHT = 13,    /* value: the step: not begun by this session, or ended */
  WM_RULE_RING_FULL = 14,             /* value: open steps */
  WM_RULE_SCHEDULE_AHEAD = 15,        /* value: the step of the open schedule, after this step */
  WM_RULE_LOG_FULL = 16,              /* value: calls refused so far; see store_report */
  WM_RULE_BUSY = 17,                  /* another thread is in a call of the engine's thread */
  WM_RULE_ROW_FORMS = 18,             /* value: in how many forms the rows are given */
  WM_RULE_INDEX_BYTES = 19,           /* value: index_bytes or position_bytes of the pairs */
  WM_RULE_BLOCK_TOKENS = 20,          /* value: block_tokens of the pairs */
  WM_RULE_ROW_BLOCK = 21,             /* index: the row; value: its block */
  WM_RULE_ROW_OFFSET = 22,            /* index: the row; value: its offset in the block */
  WM_RULE_UNFINISHED_MOVE = 23,       /* index: the event; value: `more`; the next is not a Move */
  WM_RULE_FORKED = 24,                /* the store belongs to the parent of this process */
  WM_RULE_STEP_JUMP = 25,             /* value: the step; index: the last one begun, which it is */
                                      /* more than 2^27 above */
  WM_RULE_RANK_ROWS = 26,             /* value: the rows of a step, not a multiple of the ranks; */
                                      /* index: the number of ranks */
  WM_RULE_DERIVED_EVENTS = 27,        /* value: tokens of a block, too few to derive events */
  WM_RULE_LAYER_OUT_OF_RANGE = 32,    /* value: the layer; limit: layers captured */
  WM_RULE_LAYER_NOT_HANDED_OVER = 33, /* value: a layer that is captured otherwise */
  WM_RULE_NULL_DATA = 34,             /* value: rows of a tensor without data */
  WM_RULE_ID_TYPE = 35,               /* value: the type */
  WM_RULE_TOO_FEW_COLUMNS = 36,       /* value: columns; limit: K */
  WM_RULE_WRONG_LAYERS = 37,          /* value: layers of the tensor; limit: L */
  WM_RULE_TRANSPORT = 38,             /* the transport has failed; session_status has the reason */
  WM_RULE_LAYER_NOT_ROUTED = 39,      /* value: a layer not bound as WM_CAPTURE_ROUTING_KERNEL */
  WM_RULE_ARGUMENT = 64, /* index: the argument, from 0, that is null, garbage or too */
                         /* short; value: the wrong value in it, or 0 */
  WM_RULE_ROUTING = 128  /* and above: rule - 128 is the rule of kernels/routing.h that an */
                         /* argument of a wm_routing breaks; describe_code names the argument */
};

/* ---- extensions --------------------------------------------------------------------------- */

/* One link of the chain that `ext` of an argument struct may point to. The library ignores a type
 * that it, or this function, does not know, unless WM_EXT_REQUIRED is set: then the function
 * returns WM_UNIMPLEMENTED. At most 16 links; each known type at most once. */
typedef struct wm_ext {
  uint32_t struct_size; /* of the extension that begins with this link; required */
  uint32_t type;        /* required */
  const struct wm_ext* next;
} wm_ext;

#define WM_EXT_REQUIRED 0x80000000u
#define WM_EXT_LOG 1u /* wm_ext_log, on the options of stores, sessions and publishers */

enum { WM_LOG_INFO = 0, WM_LOG_WARNING = 1, WM_LOG_ERROR = 2 };

/* Receives warnings and errors for the operator: pages that the audit voided, a layer that wrote no
 * ids (once per layer), a transport that failed, a source that failed. `text` has `size` bytes and a terminating 0 and is
 * valid during the call. Called on the landing or publisher's thread, or on the caller's thread within a call off
 * the step path; calls may be concurrent. The function must return soon, must not throw, and must
 * not call the library. A null function is the same as no extension. `context` must live as long as
 * the store, also for a session: its steps may land after it is released; as long as the publisher
 * for a publisher. */
typedef struct wm_ext_log {
  wm_ext head;
  void (*function)(void* context, int32_t level, const char* text, size_t size);
  void* context;
} wm_ext_log;

/* ---- objects ------------------------------------------------------------------------------ */

typedef struct wm_store wm_store;       /* the rows of every KV block; one per rank that stores */
typedef struct wm_session wm_session;   /* captures the forwards of one model into a store */
typedef struct wm_snapshot wm_snapshot; /* a pinned, immutable view of rows of one sequence */
typedef struct wm_rows wm_rows;         /* rows that were read, with their own memory; immutable */
typedef struct wm_recorder wm_recorder; /* the flight recorder of one store */
typedef struct wm_schedule_writer wm_schedule_writer; /* schedule messages of one scheduler */

/* ---- the store ---------------------------------------------------------------------------- */

enum { WM_LANDING_THREAD = 0, WM_LANDING_CALLER = 1 };

typedef struct wm_store_options {
  uint32_t struct_size;
  uint32_t flags; /* WM_STORE_* */
  const wm_ext* ext;
  int32_t num_layers;         /* captured MoE layers (L): 1 ... 1024; required */
  int32_t top_k;              /* experts per token and layer (K): 1 ... 64, at most E; required */
  int32_t num_experts;        /* logical experts per layer (E): 1 ... 65535; required */
  int32_t num_blocks;         /* block ids are in [0, num_blocks), other tiers included; required */
  int32_t page_tokens;        /* rows of a page (B): 0 = 16; 1 ... 4096 */
  int32_t block_tokens;       /* tokens of a KV block, a multiple of B; 0 = B */
  const int32_t* layer_ids;   /* [num_layer_ids]: the model's number of each captured layer, */
  size_t num_layer_ids;       /* increasing; L of them, or 0 for 0, 1, ..., L - 1 */
  const int32_t* null_blocks; /* [num_null_blocks]: the engine's placeholder block ids */
  size_t num_null_blocks;
  uint32_t num_pages;           /* 0 = one for each page of each block */
  uint32_t max_steps_in_flight; /* open at once; 0 = 16; 1 ... 4096; one beyond that is dropped */
  uint32_t max_step_rows;       /* 0 = 8192; rows of one step, padding included */
  int32_t landing;              /* WM_LANDING_* */
  double audit_threshold;       /* above K / E, what chance gives, up to 1; 0 = halfway between */
  uint64_t key_seed;            /* of the key index's hash; 0 = random */
  wm_recorder* recorder;        /* created for the same options, for this store only; null: none */
  const int32_t* landing_cpus;  /* [num_landing_cpus]: CPUs that the landing thread may run on; */
  size_t num_landing_cpus;      /* 0: all that the process could use when it loaded the library */
  uint64_t log_bytes; /* of the log that the engine's thread appends to; eight times as many are */
                      /* reserved for a log that is full; 0: 8 MiB, and at least four full steps */
  uint32_t max_tagged_snapshots; /* of store_take_tagged, at once; for one more the oldest is */
                                 /* given up; 0 = 4096; 1 ... 2^20 */
  uint32_t spare_pages; /* beside num_pages, for pages that only snapshots hold; a spare page */
                        /* costs address space until it is used; 0 = as many as num_pages; */
                        /* WM_NO_SPARE_PAGES */
  uint32_t reserved;    /* must be zero */
  int64_t teardown_timeout_ns; /* how long the end of the store waits for ids that have not */
                               /* arrived, and that of a session for its device and row_gather: */
                               /* the rows are then missing (not captured), and buffers that the */
                               /* device may still write stay allocated; 0 = 5 s; not negative; */
                               /* more than a year counts as a year */
  int64_t overdue_after_ns;    /* a step whose ids have not arrived this long after its submit is */
                               /* logged and counted (steps_overdue); 0 = 10 s; negative: never */
  int64_t ids_timeout_ns;      /* a step whose ids have not arrived this long after its submit is */
                               /* lost: its rows are missing (not captured), the log goes on, and */
                               /* its buffer is taken until they arrive; 0 = 60 s; negative: */
                               /* never */
  uint64_t ahead_bytes; /* of rows that are fetched because the ids of an earlier step have */
                        /* not arrived, so that their buffers are free; 0 = 64 MiB; */
                        /* WM_NO_FETCH_AHEAD */
} wm_store_options;

#define WM_NO_SPARE_PAGES 0xffffffffu    /* wm_store_options::spare_pages: none */
#define WM_NO_FETCH_AHEAD (~(uint64_t)0) /* wm_store_options::ahead_bytes: nothing is fetched */

#define WM_STORE_DEVICE_SLOTS 1u /* batches may have WM_BATCH_DEVICE_SLOTS */
#define WM_STORE_NO_AUDIT 2u     /* do not compare ignored writes with the rows that are kept */

/* The shape of the rows of a store or of a wm_rows. */
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

/* ---- the capture session ------------------------------------------------------------------ */

enum { WM_TRANSPORT_HOST = 0, WM_TRANSPORT_CUDA = 1 };

typedef struct wm_session_options {
  uint32_t struct_size;
  uint32_t flags; /* WM_SESSION_* */
  const wm_ext* ext;
  wm_store* store;        /* with E <= 32768; retained; required */
  int32_t max_rows;       /* of the longest forward, padding included: 1 ... 2^20; required */
  int32_t num_buffers;    /* capture buffers, one per step begun and not yet read; 0 = 4 */
  int32_t num_ids_steps;  /* steps of session_submit_ids not yet read; 0: max_steps_in_flight */
  int32_t transport;      /* WM_TRANSPORT_CUDA: WM_UNIMPLEMENTED in a build without CUDA */
  int32_t device_ordinal; /* of the CUDA device */
  int32_t reserved;       /* must be zero */
  /* Sequence parallelism: the ranks that share the rows of each forward; null: this one has all.
   * Every rank begins the same steps, of the same rows, in the same order. A batch has the rows of
   * all ranks, padding included (slots of -1): a multiple of the ranks. The view and the ids of rank
   * r have rows [r * n, (r + 1) * n), n of each rank; max_rows and written_rows count those. The
   * ranks exchange packed rows on a thread of the session, one all_gather for each step that was
   * begun, and the store of every rank gets all rows. What a rank drops is missing on all of them
   * (capacity); if all_gather fails, the rows of its step are missing here (not captured). It has a
   * deadline of its own, and is called by that thread alone. A call that outlasts teardown_timeout
   * is left behind, and is the last: the context lives until it has returned (`release`). */
  const struct wm_collective* row_gather;
} wm_session_options;

/* One view at one address for every step, as a CUDA graph needs it; not with WM_TRANSPORT_HOST. */
#define WM_SESSION_ONE_VIEW 1u

/* How the ids of a layer get into the view: the engine's kernel writes them there; the engine
 * passes them to session_hand_over; Waymark's routing kernel writes them. */
enum { WM_CAPTURE_KERNEL_WRITES_VIEW = 0, WM_CAPTURE_HANDS_OVER, WM_CAPTURE_ROUTING_KERNEL };

typedef struct wm_layer_binding {
  uint32_t struct_size;
  int32_t layer;      /* captured layer, in [0, L); required */
  const char* module; /* the module of the model that routes it; named in every report; required */
  int32_t capture;    /* WM_CAPTURE_*; required */
  int32_t reserved;   /* must be zero */
} wm_layer_binding;

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
 * store's null blocks are legal: their events are ignored and counted. */
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
  int32_t block_tokens;       /* tokens per block of block_idx: the store's, or a divisor of it */
                              /* (kernel blocks); required */
  int32_t position_bytes;     /* of each entry of local_position: 4 or 8; 0: index_bytes */
  const uint8_t* asked;       /* [num_rows]: 0: the row's request did not ask for routing; null: */
                              /* all asked */
} wm_pair_rows;

/* A step as it is scheduled. The arrays belong to the caller. The rows of the forward are in one
 * form: `slots` or `pairs`. */
typedef struct wm_step_batch {
  uint32_t struct_size;
  uint32_t flags; /* WM_BATCH_* */
  const wm_ext* ext;
  uint64_t step;             /* above every earlier step, by at most 2^27; the first one: below */
                             /* 2^56; required */
  uint64_t version;          /* of the weights of the forward; required */
  const wm_event* events;    /* [num_events]: applied in order, before the rows; required */
  size_t num_events;         /* required */
  const int64_t* slots;      /* [num_slots]: one per row of the forward, in its order; required */
  size_t num_slots;          /* required */
  const wm_pair_rows* pairs; /* the rows, if not null; num_slots is then 0 */
} wm_step_batch;

/* Only the device knows which rows the forward writes: `slots` lists all slots that it may write,
 * in any order; session_submit_device_slots passes the actual ones. Needs WM_STORE_DEVICE_SLOTS. */
#define WM_BATCH_DEVICE_SLOTS 1u
/* The store derives events from the rows and applies them behind `events`: a Bind of each block of
 * which the step writes the first row and no other, as decodes do, and a Seal without a key of each
 * block whose last row it writes. Blocks that prompts fill are bound by the engine. Not where
 * tokens may be taken back (drafts), where blocks are found by their keys, or where requests share
 * a block that is not full; refused with WM_BATCH_DEVICE_SLOTS and in a store with blocks of one
 * token. */
#define WM_BATCH_DERIVE_EVENTS 2u

/* ---- the ids of a step -------------------------------------------------------------------- */

/* Where one forward writes: per layer a C-order int16 [max_rows, top_k] array, every id -1 before.
 * In the transport's memory; valid until its step is submitted, dropped or cancelled. 48 bytes. */
typedef struct wm_view {
  int16_t* data;        /* layer l begins at data + l * layer_stride */
  int64_t layer_stride; /* in ids */
  int32_t num_layers;
  int32_t max_rows;
  int32_t top_k;
  int32_t buffer; /* for the library's use; pass a view back unchanged */
  uint64_t step;  /* its step; 0: no step, nothing that is written there lands */
  uint64_t reserved;
} wm_view;

enum { WM_ID_UINT8 = 0, WM_ID_UINT16, WM_ID_INT16, WM_ID_INT32, WM_ID_INT64 };

/* A tensor of ids that the engine owns: (row, layer, k) is at data + row * row_stride + layer *
 * layer_stride + k * k_stride; strides in bytes, of any sign. Columns beyond K (shared experts) are
 * never read. An id of -1 (65535 in uint16) means that none was written. */
typedef struct wm_ids {
  uint32_t struct_size;
  int32_t type;       /* WM_ID_*; session_hand_over takes int16, int32 and int64; required */
  const void* data;   /* may be null when rows == 0; required */
  int32_t rows;       /* of the forward; required */
  int32_t columns;    /* K or more; required */
  int64_t row_stride; /* required */
  int64_t k_stride;   /* required */
  int32_t layers;     /* L; not read by session_hand_over, which takes one layer */
  int32_t reserved;   /* must be zero */
  int64_t layer_stride;
  int32_t first_row;  /* row i is row first_row + i of the view: of one of several micro-batches; */
                      /* for session_hand_over, else zero */
  int32_t reserved_2; /* must be zero */
} wm_ids;

/* Called once, when the library no longer reads the ids of a step: on the landing thread, or within
 * the call that failed. Must not throw and must not call the library. */
typedef struct wm_done {
  void (*function)(void* context); /* may be null */
  void* context;
} wm_done;

/* ---- routing ------------------------------------------------------------------------------ */

/* How a router selects experts from its logits x and weights them, with s = sigmoid(x). The
 * formulas, with references, are in docs/kernels.md. */
enum {
  WM_ROUTING_DEFAULT = 0,           /* selects by x; weight: softmax over all experts */
  WM_ROUTING_RENORMALIZE = 1,       /* selects by x; weight: softmax over the selected experts */
  WM_ROUTING_RENORMALIZE_NAIVE = 2, /* the same */
  WM_ROUTING_DEEPSEEK_V3 = 3,       /* selects by s + bias, in the best groups; */
                                    /* weight: scale * s / sum of s */
  WM_ROUTING_LLAMA4 = 4,            /* top_k 1, selects by x; weight: s */
  WM_ROUTING_TOP_K = 5,             /* selects by x; weight: x */
  WM_ROUTING_SIGMOID_RENORM = 6,    /* selects by x; weight: s / sum of s */
  WM_ROUTING_MINIMAX2 = 7,          /* selects by s + bias; weight: scale * s / sum of s */
  WM_ROUTING_SIGMOID = 8,           /* selects by x; weight: s */
  WM_ROUTING_TOP_K_SIGMOID = 9      /* the same */
};
enum {
  WM_DTYPE_FLOAT32 = 0,
  WM_DTYPE_BFLOAT16,
  WM_DTYPE_FLOAT16,
  WM_DTYPE_UINT8,
  WM_DTYPE_INT16,
  WM_DTYPE_INT32,
  WM_DTYPE_INT64
};
enum { WM_DEVICE_HOST = 0, WM_DEVICE_CUDA = 1 };

/* A tensor of the caller: element (i, j) is at data + i * strides[0] + j * strides[1] elements. All
 * fields 0: the argument is not given. 56 bytes. */
typedef struct wm_tensor {
  void* data;
  int64_t shape[2];
  int64_t strides[2];  /* in elements */
  int32_t rank;        /* 1 or 2 */
  int32_t dtype;       /* WM_DTYPE_* */
  int32_t device_type; /* WM_DEVICE_* */
  int32_t device;      /* the CUDA device's ordinal; 0 for the host */
} wm_tensor;

/* One call of the router of one layer. N and E are the shape of the logits. All tensors are on one
 * device, and the elements of a row are adjacent. Outputs overlap nothing; they may have more than
 * N rows. */
typedef struct wm_routing {
  uint32_t struct_size;
  uint32_t flags; /* WM_ROUTING_NOT_NORMALIZED */
  const wm_ext* ext;
  int32_t method;         /* WM_ROUTING_DEFAULT ...; required */
  int32_t top_k;          /* K: 1 ... min(E, 32); required */
  int32_t num_groups;     /* WM_ROUTING_DEEPSEEK_V3: groups of E / num_groups experts; 0 = 1 */
  int32_t topk_groups;    /* WM_ROUTING_DEEPSEEK_V3: groups that are kept; 0 = 1 */
  float scale;            /* WM_ROUTING_DEEPSEEK_V3, WM_ROUTING_MINIMAX2; 0 = 1 */
  int32_t reserved;       /* must be zero */
  wm_tensor logits;       /* [N, E] float32, bfloat16 or float16; E <= 1024; required */
  wm_tensor topk_ids;     /* out: [>= N, K] int32; required */
  wm_tensor topk_weights; /* out: [>= N, K] float32 or bfloat16; required */
  wm_tensor bias;         /* [E] float32, for methods that have one; optional there */
  /* [>= N, K] int16: recorded ids; optional. A row of K distinct ids in [0, E) is used as it is,
   * and only its weights are computed. Any other row is routed. */
  wm_tensor replay_in;
  wm_tensor routed;     /* out: [>= N] uint8, 1 where a row of replay_in was routed; with it only */
  wm_tensor replay_out; /* out: [>= N, K] int16, the ids again; optional. Not for session_route, */
                        /* which records into the view */
} wm_routing;

#define WM_ROUTING_NOT_NORMALIZED 1u /* WM_ROUTING_SIGMOID_RENORM: weights are s alone */

/* ---- snapshots and rows ------------------------------------------------------------------- */

typedef struct wm_snapshot_args {
  uint32_t struct_size;
  uint32_t flags; /* must be zero */
  const wm_ext* ext;
  const int32_t* blocks; /* [num_blocks]: block i has tokens [i, i + 1) * block_tokens; required */
  size_t num_blocks;     /* required */
  int64_t first;         /* rows [first, last) of the sequence; required */
  int64_t last;          /* <= num_blocks * block_tokens; required */
} wm_snapshot_args;

enum {
  WM_REASON_NONE = 0,      /* the row is valid */
  WM_REASON_NEVER_WRITTEN, /* no step wrote it since the block was bound */
  WM_REASON_NOT_CAPTURED,  /* a layer wrote no ids, or the row did not ask for routing */
  WM_REASON_EXTERNAL_KV,   /* the KV came from elsewhere, and no page here has its rows */
  WM_REASON_CAPACITY,      /* the step was dropped, the page was evicted, or no page was free */
  WM_REASON_INVALID_ID,    /* an id was out of range, or repeated within a layer */
  WM_REASON_AUDIT,         /* voided: later writes contradicted the row */
  WM_NUM_REASONS
};

enum {
  WM_PROVENANCE_HERE = 0,  /* written by its step, since the block was bound */
  WM_PROVENANCE_KEPT,      /* the same, and a later write of the row was ignored */
  WM_PROVENANCE_BY_KEY     /* from another pass over the same prefix and version */
};

/* One row that was read. A missing row has step 0 and version 0. 24 bytes. */
typedef struct wm_row_info {
  uint64_t step;
  uint64_t version;
  uint8_t reason; /* WM_REASON_*; WM_REASON_NONE: valid */
  uint8_t provenance;
  uint8_t reserved[6]; /* 0 */
} wm_row_info;

/* Rows [begin, end), counted from the first of the sequence, that are alike. 32 bytes. */
typedef struct wm_coverage_run {
  int64_t begin;
  int64_t end;
  uint64_t version; /* 0 when missing */
  uint8_t reason;
  uint8_t provenance;
  uint8_t reserved[6]; /* 0 */
} wm_coverage_run;

enum { WM_LAYOUT_TLK = 0, WM_LAYOUT_LTK = 1 };                 /* [T, L, K], [L, T, K] */
enum { WM_FILL_MINUS_ONE = 0, WM_FILL_ZEROS, WM_FILL_ARANGE }; /* the ids of missing rows */

typedef struct wm_read_args {
  uint32_t struct_size;
  uint32_t flags; /* must be zero */
  const wm_ext* ext;
  int64_t begin;      /* rows [begin, end), within the rows that are read, counted from the first */
  int64_t end;        /* of the sequence; required */
  int32_t layout;     /* WM_LAYOUT_*; required */
  int32_t id_type;    /* WM_ID_*; must hold every id in [0, E); required */
  int32_t fill;       /* WM_FILL_*; not MINUS_ONE in uint8 with 256 experts; required */
  int32_t reserved;   /* must be zero */
  void* out;          /* C order; required */
  uint64_t out_bytes; /* exactly (end - begin) * L * K * bytes of the type; required */
  wm_row_info* infos; /* [num_infos], or null */
  size_t num_infos;   /* end - begin, or 0 */
} wm_read_args;

/* Rows [first, first + count) of one sequence: ids as the store keeps them, and one info each. */
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

/* An all-gather between ranks, which the engine supplies, for example over its process group.
 * `all_gather` writes `bytes` bytes of each rank, in order of rank, to `receive`; all ranks call it
 * with the same `bytes`, in the same order. It may wait; it returns WM_OK or the error. It should
 * have a deadline: if a rank is late or gone, only it can end the wait of the others. After an error
 * it may be called again. Not called with one rank. */
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

/* ---- self-test and counters --------------------------------------------------------------- */

/* The forward of a self-test: writes rows [0, rows) of `view`. Must not throw. A status other than
 * WM_OK ends the test with that status, or with WM_UNKNOWN if the number is not a wm_status. */
typedef struct wm_forward {
  wm_status (*function)(void* context, const wm_view* view, int32_t rows);
  void* context;
} wm_forward;

enum { WM_FAULT_SILENT = 0, WM_FAULT_ALL_ZERO, WM_FAULT_OUT_OF_RANGE, WM_FAULT_REPEATING };

/* A layer that is not captured correctly. 24 bytes. */
typedef struct wm_layer_finding {
  int32_t layer;     /* captured layer */
  int32_t layer_id;  /* the model's number of the layer */
  int32_t fault;     /* WM_FAULT_* */
  int32_t rows;      /* rows that have the fault */
  int32_t first_row; /* the first of them */
  int32_t reserved;
} wm_layer_finding;

typedef struct wm_session_stats {
  uint32_t struct_size; /* required */
  uint32_t reserved;
  uint64_t steps_begun, steps_submitted, steps_dropped, steps_cancelled, ring_overflows, discards;
  uint64_t rows_handed_over; /* rows x layers */
  /* With row_gather: steps whose rows were exchanged; steps whose all_gather failed; parts of other
   * ranks that had no rows, in those exchanged. */
  uint64_t gathers, gathers_failed, parts_missing;
} wm_session_stats;

typedef struct wm_layer_stats {
  uint32_t struct_size; /* required */
  int32_t layer_id;     /* the model's number of the layer */
  const char* module;   /* "" if the layer is not bound; valid as long as the session */
  int32_t capture;      /* WM_CAPTURE_* */
  int32_t reserved;
  uint64_t rows_silent;  /* landed rows in which the layer had an id of -1 */
  uint64_t rows_invalid; /* landed rows in which it had an id out of range, or one twice */
} wm_layer_stats;

/* Counters over the life of a store; blockstore/store/stats.h describes each. */
typedef struct wm_store_stats {
  uint32_t struct_size; /* required */
  uint32_t reserved;
  uint64_t steps_begun, steps_landed, steps_dropped, steps_cancelled, steps_refused_ring;
  uint64_t steps_ahead, rows_landed;
  uint64_t rows_missing[8]; /* by reason */
  uint64_t rows_ignored, rows_not_asked, rows_padding, rows_outside;
  uint64_t events, events_on_null_blocks, releases_below_zero, hits_by_key, second_seals;
  uint64_t pages, pages_in_use, pages_in_use_peak, evictions, copies_on_write, no_page;
  uint64_t bytes, bytes_touched_peak;
  uint64_t audited_rows, audit_disagreements, audit_voided_pages, audit_voided_rows;
  double audit_agreement_sum; /* mean agreement = sum / audited_rows */
  uint64_t snapshots_taken, snapshots_live;
  uint64_t landing_lag_count, landing_lag_p50_ns, landing_lag_p99_ns; /* submit to landed */
  uint64_t log_records, log_losses, snapshots_lost, snapshots_given_up;
  uint64_t log_lag_count, log_lag_p50_ns, log_lag_p99_ns; /* begin_step to applied */
  uint64_t exceptions;
  uint64_t spare_pages, pages_detached, pages_detached_peak, rows_without_page;
  uint64_t steps_overdue;
} wm_store_stats;

/* A finding of the audit: later writes of `block` contradicted the rows that were kept. One finding
 * stands for one cause; its fields, but for the last three, are of the first page. */
typedef struct wm_finding {
  uint32_t struct_size; /* required */
  int32_t block;        /* -1: two pages, and the second is of no block */
  uint64_t step;        /* the step whose write disagreed: of two pages, the later one */
  uint64_t kept_step;   /* the step that wrote the rows that were kept */
  uint64_t sealed_step; /* the step that the page was sealed with */
  uint32_t rows;        /* compared */
  uint32_t voided;      /* 1: agreement was below the threshold; the page's rows are missing */
  double agreement;     /* mean share of common ids, in [0, 1] */
  uint32_t two_pages;   /* 1: two pages were sealed with one key; 0: a block was written again */
  uint32_t pages;       /* how many times it was found */
  uint64_t last_step;   /* `step` of the last time */
} wm_finding;

/* ---- schedule messages -------------------------------------------------------------------- */

/* The sizes of the worker's store, and the limits of a message. */
typedef struct wm_schedule_options {
  uint32_t struct_size;
  uint32_t flags; /* must be zero */
  const wm_ext* ext;
  int32_t num_blocks;     /* of wm_store_options; required */
  int32_t block_tokens;   /* tokens of a KV block; required */
  uint32_t max_bytes;     /* of a message; 0: 16 MiB; 64 ... 2^30 */
  uint32_t max_snapshots; /* in a message; 0: 4096 */
} wm_schedule_options;

/* ---- the flight recorder ------------------------------------------------------------------ */

typedef struct wm_recorder_options {
  uint32_t struct_size; /* required */
  uint32_t flags;       /* WM_RECORDER_* */
  const wm_ext* ext;
  uint64_t ring_bytes; /* 0: 64 MiB; at least 32 KiB; a step's batch must fit in an eighth of it */
  const int32_t* cpus; /* [num_cpus]: CPUs that its thread may run on; 0: any */
  size_t num_cpus;
} wm_recorder_options;

#define WM_RECORDER_IDS 1u /* record whole rows, not digests: for replays under other rules */

/* ---- the table ---------------------------------------------------------------------------- */

typedef struct wm_api_v1 {
  size_t struct_size; /* bytes of the library's table: a function at or beyond it does not exist */
  uint16_t abi_major; /* WM_ABI_MAJOR of the library */
  uint16_t abi_minor;
  uint32_t reserved;
  const struct wm_wire_api_v1* wire; /* the functions of waymark_wire.h; never null */

  /* ---- creation ---- */

  /* RESOURCE_EXHAUSTED if memory cannot be allocated, or the tables would exceed that of the machine;
   * this is known before any is touched. Any thread. */
  wm_status (*store_create)(const wm_store_options* options, wm_store** out, wm_message* why);
  /* The last release lands submitted steps and drops the open ones; no other thread may be in a
   * call of the store. Snapshots stay readable. */
  void (*store_retain)(wm_store* store);
  void (*store_release)(wm_store* store);
  /* Any thread. */
  wm_status (*store_shape)(const wm_store* store, wm_shape* out);

  /* UNAVAILABLE if the device does not exist. Any thread. */
  wm_status (*session_create)(const wm_session_options* options, wm_session** out, wm_message* why);
  /* The last release drops the steps that have a buffer here and have not ended; submitted steps
   * still land. With row_gather it waits until they have been exchanged, at most the store's
   * teardown_timeout. Engine's thread. */
  void (*session_retain)(wm_session* session);
  void (*session_release)(wm_session* session);
  /* Binds a layer to its module, before the first step. ALREADY_EXISTS, FAILED_PRECONDITION,
   * INVALID_ARGUMENT. Engine's thread. */
  wm_status (*session_bind_layer)(wm_session* session, const wm_layer_binding* binding,
                                  wm_message* why);

  /* ---- the step path: engine's thread ---- */

  /* What the engine's thread reports is appended to a log and takes effect in that order, once; a
   * snapshot reads what was reported before it, and nothing later. A step waits in the log until it
   * is submitted, dropped or cancelled, in any order of steps, and its ids are there; what was
   * reported behind it waits with it.
   *
   * FAILED_PRECONDITION with WM_RULE_BUSY: another thread is in a call of the engine's thread;
   * nothing was done. RESOURCE_EXHAUSTED with WM_RULE_LOG_FULL: the log was full, because the
   * store's thread got no CPU; what the call reported is lost, and the store loses its rows
   * (capacity) but returns no wrong one. The engine continues as if the call had succeeded; a step
   * whose begin was lost has ended. The calls that end a step never return it. */

  /* Opens the schedule of `step` under weights `version`: events and snapshots belong to it until
   * the step is begun. Optional, for engines that report events before the step begins and whose
   * weights change, or that schedule ahead: begin_step of an earlier step is then refused
   * (WM_RULE_SCHEDULE_AHEAD). Seals without a step that were reported for an open schedule are
   * discarded if its step was not begun. `step` is above every step begun, and not below the open
   * schedule. */
  wm_status (*store_schedule)(wm_store* store, uint64_t step, uint64_t version, wm_code* code);
  /* Reports events, in order. An invalid event: nothing was done. A group of Moves is in one call.
   */
  wm_status (*store_report)(wm_store* store, const wm_event* events, size_t num_events,
                            wm_code* code);
  /* Sets the CUDA stream (cudaStream_t) of all later forwards; null: the default stream. If it
   * changes between the begin of a step and its end, the new stream must wait for the old one. A
   * stream is valid until the call that replaces it has returned. */
  wm_status (*session_set_stream)(wm_session* session, void* stream);
  /* Begins a step and takes a buffer for its forward. `written_rows`: rows that the forward writes,
   * graph padding included; the larger of it and the rows of the batch counts. RESOURCE_EXHAUSTED:
   * the step was dropped and has ended; its forward runs as usual. */
  wm_status (*session_begin_step)(wm_session* session, const wm_step_batch* batch,
                                  int32_t written_rows, wm_code* code);
  /* Sets *view to the view of `step`; for a step without a buffer, and for step 0, to the scratch
   * view. A forward may always write max_rows rows to it. For a step above the last one begun,
   * session_hand_over and session_route refuse it. */
  wm_status (*session_view)(wm_session* session, uint64_t step, wm_view* view);
  /* Copies the first K columns of `ids` into the ids->rows rows from ids->first_row on of a layer
   * that is bound as WM_CAPTURE_HANDS_OVER, or not bound; on a device in stream order, and allowed during graph
   * capture. NOT_FOUND: the step of the view has ended, or was not begun. */
  wm_status (*session_hand_over)(wm_session* session, const wm_view* view, int32_t layer,
                                 const wm_ids* ids, wm_code* code);
  /* Routes N tokens: writes their ids and weights and, if asked, the ids as int16. Runs on the
   * calling thread for host tensors, and in one launch on `stream` for a device: a cudaStream_t of
   * the thread's current device, where the tensors must be; null is the legacy default stream. The
   * launch is allowed during graph capture. Allocates nothing and does not wait. Host and device
   * give the same bits. INVALID_ARGUMENT with WM_RULE_ROUTING: nothing was done. UNAVAILABLE: the
   * device refused the launch. UNIMPLEMENTED: the library was built without CUDA. Any thread. */
  wm_status (*route)(const wm_routing* routing, void* stream, wm_code* code);
  /* The same on the session's transport (on its stream, for a device), and records the ids in rows
   * [0, N) of `layer` of `view`. The layer must be bound as WM_CAPTURE_ROUTING_KERNEL; N is at most
   * max_rows, and with row_gather this rank's rows of the step; E and K are the store's.
   * FAILED_PRECONDITION and NOT_FOUND as in session_hand_over. Step path, engine's thread. */
  wm_status (*session_route)(wm_session* session, const wm_view* view, int32_t layer,
                             const wm_routing* routing, wm_code* code);
  /* Submits `step`, whose forward has written the view (host) or has been launched (device). */
  wm_status (*session_submit)(wm_session* session, uint64_t step, int32_t written_rows,
                              wm_code* code);
  /* Submits a step with WM_BATCH_DEVICE_SLOTS: row i has slot slots[i]. `slots`: [rows] in the
   * transport's memory, read in stream order with the forward. `written_rows`: as in
   * session_begin_step; 0 in both: the forward may have written all max_rows rows, which are all
   * set to -1 before the buffer is used again. */
  wm_status (*session_submit_device_slots)(wm_session* session, uint64_t step, const int64_t* slots,
                                           int32_t rows, int32_t written_rows, wm_code* code);
  /* Ends `step`, whose forward ran, or may have, and whose ids are lost: its rows are missing
   * (capacity). In doubt it is this call. Where session_begin_step had no written_rows, all rows of
   * the view are set to -1 before the buffer is used again. */
  wm_status (*session_drop)(wm_session* session, uint64_t step, wm_code* code);
  /* Ends `step`, which did not run: no kernel that writes KV was issued. It has no effect, and its
   * seals have none: report them again with the step that runs. */
  wm_status (*session_cancel)(wm_session* session, uint64_t step, wm_code* code);
  /* Sets rows [0, written_rows) of the scratch view to -1, after a forward that belongs to no step.
   * A number above max_rows means all rows. */
  wm_status (*session_discard)(wm_session* session, int32_t written_rows);
  /* Begins a step whose ids come as one tensor in host memory: no buffer, no copy before landing.
   */
  wm_status (*session_begin_ids_step)(wm_session* session, const wm_step_batch* batch,
                                      wm_code* code);
  /* Submits the ids of `step`. The caller keeps them unchanged until `done` is called, exactly
   * once: when they have been read (the step has landed or was fetched, or was lost), or on failure
   * before the return. RESOURCE_EXHAUSTED: those of num_ids_steps steps have not been read yet, so
   * this one was dropped (capacity) and has ended; the engine goes on. After any other failure the
   * step is still open. */
  wm_status (*session_submit_ids)(wm_session* session, uint64_t step, const wm_ids* ids,
                                  wm_done done, wm_code* code);

  /* ---- reading ---- */

  /* Pins rows of a sequence: O(pages), no copy, no wait. INVALID_ARGUMENT names the range or the
   * block. While the log is full it pins nothing: the snapshot is ready, and all its rows are
   * missing (capacity). Engine's thread. */
  wm_status (*store_snapshot)(wm_store* store, const wm_snapshot_args* args, wm_snapshot** out,
                              wm_message* why);
  /* A snapshot may be used by any thread, one at a time, and may outlive its store. */
  void (*snapshot_retain)(wm_snapshot* snapshot);
  void (*snapshot_release)(wm_snapshot* snapshot);
  /* The range [first, last) of the snapshot. Any thread, as all functions of this section below. */
  wm_status (*snapshot_range)(const wm_snapshot* snapshot, int64_t* first, int64_t* last);
  wm_status (*snapshot_shape)(const wm_snapshot* snapshot, wm_shape* out);
  /* OK once every step begun before the snapshot has landed or otherwise ended, and it can be read;
   * else UNAVAILABLE. Never waits. */
  wm_status (*snapshot_ready)(const wm_snapshot* snapshot);
  /* Waits until the snapshot is ready. DEADLINE_EXCEEDED after `timeout_ns`; a negative timeout
   * never expires. With WM_LANDING_CALLER another thread must land. */
  wm_status (*snapshot_wait)(const wm_snapshot* snapshot, int64_t timeout_ns, wm_message* why);
  /* Writes ids and infos. FAILED_PRECONDITION before it is ready; OUT_OF_RANGE outside the range;
   * INVALID_ARGUMENT for sizes and types that do not match. A row whose info is valid is complete.
   */
  wm_status (*snapshot_read)(const wm_snapshot* snapshot, const wm_read_args* args,
                             wm_message* why);
  /* Runs over the whole range: writes the first `capacity` runs to `runs` and the number of all
   * runs to *count. Errors as snapshot_read. */
  wm_status (*snapshot_coverage)(const wm_snapshot* snapshot, wm_coverage_run* runs,
                                 size_t capacity, size_t* count, wm_message* why);
  /* Copies all rows. Errors as snapshot_read. */
  wm_status (*snapshot_rows)(const wm_snapshot* snapshot, wm_rows** out, wm_message* why);

  /* Copies rows from arrays, for example of another process. Of `shape` it reads num_layers, top_k,
   * num_experts, page_tokens (0 = 16) and layer_ids (null: 0, 1, ...). INVALID_ARGUMENT names the
   * field or the row: ids of a valid row must be in [0, E); those of a missing row are not read. */
  wm_status (*rows_create)(const wm_shape* shape, const wm_rows_view* view, wm_rows** out,
                           wm_message* why);
  void (*rows_retain)(wm_rows* rows);
  void (*rows_release)(wm_rows* rows);
  wm_status (*rows_shape)(const wm_rows* rows, wm_shape* out);
  /* The arrays; valid as long as the object. */
  wm_status (*rows_view)(const wm_rows* rows, wm_rows_view* out);
  /* As snapshot_read and snapshot_coverage. */
  wm_status (*rows_write)(const wm_rows* rows, const wm_read_args* args, wm_message* why);
  wm_status (*rows_coverage)(const wm_rows* rows, wm_coverage_run* runs, size_t capacity,
                             size_t* count, wm_message* why);
  /* Sets reused[i] to 1 if row i is known to be reused by the request whose first step was
   * `first_step` (of the first of its lives): another request computed the row, because its step is
   * earlier. Else 0: the request computed it, or it is missing or has no step, or it was computed by
   * another since (a hit after a preemption). Never 1 for a row that the request computed. The steps
   * must be of one store: call it before rows of others are joined. OUT_OF_RANGE if `capacity` is
   * below the number of rows. */
  wm_status (*rows_reused)(const wm_rows* rows, uint64_t first_step, uint8_t* reused,
                           size_t capacity, wm_message* why);
  /* Merges reads of one sequence, the earliest first (the lives of a preempted request, for
   * instance): at each position the first valid row wins. INVALID_ARGUMENT unless there is at least
   * one and all have the same layers, K and E. */
  wm_status (*rows_join)(const wm_rows* const* reads, size_t num_reads, wm_rows** out,
                         wm_message* why);
  /* Joins 1 to 1024 pipeline stages, in order of layers, into rows of all layers. A row is missing
   * (not captured) if its steps differ or, without steps (0), its versions; that such rows of one
   * version are of one step, the caller vouches. Call it before rows_join. */
  wm_status (*rows_join_layers)(const wm_rows* const* stages, size_t num_stages, wm_rows** out,
                                wm_message* why);
  /* rows_join_layers across ranks: every rank passes the rows of its stage (ranks in order of
   * layers) and receives the rows of all layers. Every rank must call it; a rank that could not
   * read its rows passes a null `stage` and gets INVALID_ARGUMENT. ABORTED if another rank could
   * not take part; the status of the collective if that failed. Waits in the collective. */
  wm_status (*rows_gather_layers)(const wm_rows* stage, const wm_collective* collective,
                                  wm_rows** out, wm_message* why);

  /* ---- the store, off the step path ---- */

  /* Writes the number of leading rows of [0, rows) that are valid, as far as the log was applied,
   * to *covered: a hint to one scheduler, since it may be late and differ from rank to rank. Any
   * thread. */
  wm_status (*store_covered_prefix)(const wm_store* store, const int32_t* blocks, size_t num_blocks,
                                    int64_t rows, int64_t* covered);
  /* Waits until the whole log has been applied: every step begun so far has ended.
   * DEADLINE_EXCEEDED after `timeout_ns`; a negative timeout never expires. With WM_LANDING_CALLER
   * it lands submitted steps, and does not wait for an open one. Engine's thread. */
  wm_status (*store_wait_idle)(wm_store* store, int64_t timeout_ns, wm_message* why);
  /* WM_LANDING_CALLER only, else FAILED_PRECONDITION. Lands the oldest step begun that has not
   * landed, and waits for its ids; with `step` only if it is that one. NOT_FOUND if there is none,
   * it is another one, or it was not submitted. Engine's thread. */
  wm_status (*store_land_one)(wm_store* store);
  wm_status (*store_land)(wm_store* store, uint64_t step);
  /* The last step begun; 0: none. Engine's thread. */
  wm_status (*store_last_step)(const wm_store* store, uint64_t* step);
  /* All counters, as far as the log was applied; the main ones as text, one per line. Any thread.
   */
  wm_status (*store_stats)(const wm_store* store, wm_store_stats* out);
  wm_status (*store_stats_text)(const wm_store* store, wm_message* text);
  /* A finding of the audit that no call has returned yet, and its text; NOT_FOUND if there is none.
   * What was found since is one finding for each cause. Any thread, one at a time. */
  wm_status (*store_next_finding)(wm_store* store, wm_finding* out, wm_message* text);

  /* ---- the session, off the step path ---- */

  /* Runs `forward` on the scratch view and checks every layer. Writes the first `capacity` findings
   * to `findings`, their number to *count (0: no fault), and one line for each to `text`. Call it
   * at every batch size that has its own kernel. Engine's thread. */
  wm_status (*session_self_test)(wm_session* session, int32_t rows, wm_forward forward,
                                 wm_layer_finding* findings, size_t capacity, size_t* count,
                                 wm_message* text);
  /* OK, or the reason why the transport has failed permanently, or why row_gather is not called any
   * more (4096 steps waited for it): every step is then dropped when it begins. Any thread. */
  wm_status (*session_status)(const wm_session* session, wm_message* why);
  /* Counters of the session, of one layer, and both as text. Any thread. */
  wm_status (*session_stats)(const wm_session* session, wm_session_stats* out);
  wm_status (*session_layer_stats)(const wm_session* session, int32_t layer, wm_layer_stats* out);
  wm_status (*session_stats_text)(const wm_session* session, wm_message* text);
  /* Rows, padding included, of the forwards in which `layer` was silent: writes the first
   * `capacity` sizes, ascending, to `batch_sizes` and their number to *count. Any thread. */
  wm_status (*session_silent_batch_sizes)(const wm_session* session, int32_t layer,
                                          int32_t* batch_sizes, size_t capacity, size_t* count);

  /* ---- schedule messages, for an engine whose scheduler is another process ---- */

  /* A writer of the messages of one scheduler, which needs no store: what would be reported to a
   * store goes into a message (docs/schedule-message.md), one per schedule, and the bytes go to
   * the worker with the schedule. One thread at a time. A refused call changes nothing.
   *
   * FAILED_PRECONDITION if no message is open (begin: if one is open); RESOURCE_EXHAUSTED if the
   * message would exceed the limits: finish and send it, and begin another of the same step. */
  wm_status (*schedule_writer_create)(const wm_schedule_options* options, wm_schedule_writer** out,
                                      wm_message* why);
  void (*schedule_writer_retain)(wm_schedule_writer* writer);
  void (*schedule_writer_release)(wm_schedule_writer* writer);
  /* Opens a message of the schedule of `step`, which is not below that of any message before.
   * `step` 0: without a step, for an engine that goes idle; `version` is then 0. */
  wm_status (*schedule_writer_begin)(wm_schedule_writer* writer, uint64_t step, uint64_t version,
                                     wm_message* why);
  /* As store_report. */
  wm_status (*schedule_writer_report)(wm_schedule_writer* writer, const wm_event* events,
                                      size_t num_events, wm_message* why);
  /* As store_snapshot; the worker fetches it by `tag`, any number that no other snapshot has until
   * it was fetched or forgotten. */
  wm_status (*schedule_writer_snapshot)(wm_schedule_writer* writer, uint64_t tag,
                                        const wm_snapshot_args* args, wm_message* why);
  /* The snapshot `tag` will not be fetched (an abort): the worker's store releases it. */
  wm_status (*schedule_writer_forget)(wm_schedule_writer* writer, uint64_t tag, wm_message* why);
  /* Closes the message. Its bytes are valid until the next begin or the last release. Every message
   * must be sent, in this order. */
  wm_status (*schedule_writer_finish)(wm_schedule_writer* writer, const uint8_t** bytes,
                                      size_t* size, wm_message* why);

  /* In the worker's process: reports a message, when its schedule is about to be begun. A message
   * that was received before is ignored. If messages are missing before it, or it comes from another
   * sender, all blocks lose their rows (capacity) before it is applied; tagged snapshots of a former
   * sender are released. INVALID_ARGUMENT (also if its step was begun before), ALREADY_EXISTS (a tag
   * is in use) and RESOURCE_EXHAUSTED: the message is refused, or the log is full: nothing of a
   * refused message is applied, no snapshot can be taken under a tag that it names, and all blocks
   * lose their rows. FAILED_PRECONDITION: another thread is in a call; the message was not received.
   * Engine's thread. */
  wm_status (*store_report_message)(wm_store* store, const uint8_t* bytes, size_t size,
                                    wm_message* why);
  /* Takes the snapshot that a message requested under `tag`, once. NOT_FOUND if there is none: it
   * was forgotten, taken before, given up (max_tagged_snapshots), or requested by a former sender.
   * Any thread. */
  wm_status (*store_take_tagged)(wm_store* store, uint64_t tag, wm_snapshot** out, wm_message* why);
  /* Releases that snapshot, if there is one. Any thread. */
  wm_status (*store_forget_tag)(wm_store* store, uint64_t tag);

  /* ---- the flight recorder: any thread ---- */

  /* Keeps the latest steps of one store in fixed memory, for `waymark check`. `options`: those of
   * the store; their `recorder` is not read. A null `recorder`: the defaults. Commits the ring and
   * 16 bytes per row of the store's memory. */
  wm_status (*recorder_create)(const wm_store_options* options, const wm_recorder_options* recorder,
                               wm_recorder** out, wm_message* why);
  void (*recorder_retain)(wm_recorder* recorder);
  void (*recorder_release)(wm_recorder* recorder);
  /* Writes the contents of the ring to the file `path`; recording continues. UNKNOWN if the file
   * cannot be written; DATA_LOSS if the recorder has lost records. */
  wm_status (*recorder_dump)(wm_recorder* recorder, const char* path, wm_message* why);
  /* OK while it records; else DATA_LOSS and the reason why it stopped. */
  wm_status (*recorder_status)(const wm_recorder* recorder, wm_message* why);

  /* ---- texts: static, any thread ---- */

  /* `version`: as "0.1.0". `build_info`: one line of "name=value" pairs separated by spaces:
   * version, abi, compiler, cuda (its version, or none), archs, redis (its client library, or
   * none), host (instruction sets). */
  const char* (*version)(void);
  const char* (*build_info)(void);
  /* "OK", "INVALID_ARGUMENT", ...; "never written", ...; "by key", ...; "unknown" for any other
   * number. */
  const char* (*status_name)(wm_status status);
  const char* (*reason_name)(int32_t reason);
  const char* (*provenance_name)(int32_t provenance);
  /* Writes `code` as text: argument, rule, value. */
  wm_status (*describe_code)(const wm_code* code, wm_message* text);

  /* ---- failures ---- */

  /* OK, or why the store has failed: an exception in its own work. RESOURCE_EXHAUSTED: there was no
   * memory; else INTERNAL. It then returns no row of its blocks any more: rows that have not landed,
   * and those of later snapshots, are missing (capacity), and store_wait_idle returns this status.
   * The functions of the step path work as before, so that the engine runs on.
   * FAILED_PRECONDITION in a forked child. Any thread. */
  wm_status (*store_status)(const wm_store* store, wm_message* why);

  /* ---- ids of the caller ---- */

  /* Sets *landed to 1 if the ids that session_submit_ids was given for `step` may be written again:
   * their `done` has been called, or there were none; else to 0. Engine's thread. */
  wm_status (*session_landed)(const wm_session* session, uint64_t step, int32_t* landed);

  /* ---- parallel setups ---- */

  /* rows_join across ranks that hold different tokens of a sequence (context parallelism): every
   * rank passes its rows of the same range, and receives those of all; at each position the first
   * rank that has a valid row. Otherwise as rows_gather_layers. */
  wm_status (*rows_gather)(const wm_rows* rows, const wm_collective* collective, wm_rows** out,
                           wm_message* why);
} wm_api_v1;

/* The table: static, the same for every caller, never null. The library exports this symbol, and one
 * for the table of each adapter. Any thread. */
WM_EXPORT const wm_api_v1* wm_get_api_v1(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* WAYMARK_PLUGIN_WAYMARK_H_ */
