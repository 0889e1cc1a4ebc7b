/* Waymark's C ABI: one function, which gives a table of all the others. C99, and C++.
 *
 * Words (row, block, slot, page, step, snapshot, key, version, reason) and rules are those of
 * docs/architecture.md; how the ABI grows is in docs/abi.md; docs/integrating.md shows an engine.
 *
 *   const wm_api_v1* wm = wm_get_api_v1();
 *   wm_store_options options = {sizeof(options)};
 *   options.num_layers = 58;  options.top_k = 8;  options.num_experts = 256;
 *   options.num_blocks = 4096;
 *   wm_store* store = NULL;
 *   char text[256];  wm_message why = {text, sizeof(text), 0};
 *   if (wm->store_create(&options, &store, &why) != WM_OK) { fputs(text, stderr); ... }
 *
 * Structs. One that begins with `struct_size` grows at its end in later versions. The caller sets
 * struct_size to the sizeof of its own declaration and everything that it does not mean to 0: zero
 * is the default of every field, and of every field that an older caller does not have. A size that
 * ends before the last field marked "required", or above 65536, is an invalid argument; bytes
 * behind the fields that this library knows are not read. Structs that the library fills: it writes
 * no more than struct_size bytes, 8 at least, and sets struct_size to how many it wrote. Structs
 * without struct_size never change. `reserved` fields and unknown bits of `flags` must be 0: a
 * later version may give them a meaning.
 *
 * Arguments. Pointers that a call takes are read during the call only, unless it says otherwise.
 * Counts and pointers belong together: a null pointer with a count above 0 is an invalid argument,
 * and so is a count above 2^31 - 1. Null handles, null structs and handles of another type are
 * invalid arguments, not crashes; a retain or release of such a handle does nothing.
 *
 * Answers. Statuses have absl::StatusCode's numbers. Nothing throws and nothing aborts. On any
 * status but WM_OK nothing was done and no output was written, unless the call says otherwise.
 *
 * Handles. A *_create, and every other call that gives a handle by `out`, gives one reference;
 * *_retain adds one, *_release gives one back (null: nothing). A handle keeps what it needs: a
 * session its store, a store and its snapshots their recorder. Retain and release: any thread.
 *
 * Threads. "Engine's thread": one thread at a time calls the functions of a store and of its
 * sessions that are marked so. "Step path" besides: allocates nothing after warm-up, waits for
 * nothing, copies no rows. Everything else says "any thread".
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

/* Same major: everything that compiled and ran goes on to. The minor counts additions. */
#define WM_ABI_MAJOR 1
#define WM_ABI_MINOR 1

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
  WM_RESOURCE_EXHAUSTED = 8, /* memory that could not be had; of a step's begin: the step was */
                             /* dropped, and has ended */
  WM_FAILED_PRECONDITION = 9,
  WM_ABORTED = 10,
  WM_OUT_OF_RANGE = 11,
  WM_UNIMPLEMENTED = 12,
  WM_INTERNAL = 13, /* a defect of the library; on the step path, memory that could not be had */
  WM_UNAVAILABLE = 14,
  WM_DATA_LOSS = 15
};

/* Where a call writes text for people: what went wrong (argument, rule, value), or a report. May be
 * null wherever it is taken; with a capacity and no text it is an invalid argument. `text` gets at
 * most `capacity` bytes, the last of them a 0, cut off when it does not fit; `size` gets the bytes
 * that the whole text has without the 0. On WM_OK a call that reports nothing sets size 0 and an
 * empty text. */
typedef struct wm_message {
  char* text;      /* the caller's; may be null when capacity == 0 */
  size_t capacity; /* bytes of text */
  size_t size;
} wm_message;

/* What a call of the step path answers besides its status. May be null wherever it is taken. */
typedef struct wm_code {
  wm_status code; /* as returned */
  int32_t rule;   /* wm_rule */
  uint64_t index; /* which event or row, where the rule says so */
  int64_t value;  /* the offending value */
  int64_t limit;  /* what it was held against, where the rule says so */
} wm_code;

enum wm_rule {
  WM_RULE_NONE = 0,
  WM_RULE_STEP_NOT_INCREASING = 1, /* value: the step; 2^64 - 1 is none, either */
  WM_RULE_TOO_MANY_ROWS = 2,       /* value: the rows; of a tensor, limit: rows of the view */
  WM_RULE_UNKNOWN_EVENT = 3,       /* index: the event; value: its type */
  WM_RULE_BLOCK_OUT_OF_RANGE = 4,  /* index: the event; value: the block */
  WM_RULE_SOURCE_OUT_OF_RANGE = 5, /* index: the event; value: the source block */
  WM_RULE_KEY_TOO_LONG = 6,        /* index: the event; value: key_size */
  WM_RULE_ROWS_OUT_OF_RANGE = 7,   /* index: the event; value: rows */
  WM_RULE_SELF_COPY = 8,           /* index: the event; value: the block */
  WM_RULE_DUPLICATE_MOVE = 9,      /* index: the event; value: a block that two pairs name */
  WM_RULE_SEAL_STEP = 10,          /* index: the event; value: its step: 0, or after this step */
  WM_RULE_SLOT_OUT_OF_RANGE = 11,  /* index: the row; value: the slot */
  WM_RULE_DEVICE_SLOTS = 12,       /* device slots where they may not be, or none where they must */
  WM_RULE_STEP_NOT_IN_FLIGHT = 13, /* value: the step: never begun here, or ended */
  WM_RULE_RING_FULL = 14,          /* value: steps in flight */
  WM_RULE_STAMPS_WRAP = 15,        /* value: steps that a new base waits for */
  WM_RULE_LAYER_OUT_OF_RANGE = 32, /* value: the layer; limit: layers captured */
  WM_RULE_LAYER_NOT_HANDED_OVER = 33, /* value: a layer of another source */
  WM_RULE_NULL_DATA = 34,             /* value: the rows that a tensor without data claims */
  WM_RULE_ID_TYPE = 35,               /* value: the type */
  WM_RULE_TOO_FEW_COLUMNS = 36,       /* value: columns; limit: K */
  WM_RULE_WRONG_LAYERS = 37,          /* value: layers of the tensor; limit: L */
  WM_RULE_TRANSPORT = 38,             /* the transport has failed: session_status says how */
  WM_RULE_LAYER_NOT_ROUTED = 39, /* value: a layer that is not bound WM_SOURCE_ROUTING_KERNEL */
  WM_RULE_ARGUMENT = 64,         /* index: the argument that is null, garbage or too short, */
                                 /* counted from 0; value: what is wrong in it, or 0 */
  WM_RULE_ROUTING = 128          /* and above: an argument of a wm_routing breaks rule - 128 of */
  /* kernels/routing.h; index: which argument; describe_code names it */
};

/* ---- extensions --------------------------------------------------------------------------- */

/* A link of the chain that `ext` of any argument struct may carry: an addition of its own type. A
 * type that the library, or this call, does not know is passed over, unless it has WM_EXT_REQUIRED
 * set: then the call answers WM_UNIMPLEMENTED. At most 16 links; a known type once. */
typedef struct wm_ext {
  uint32_t struct_size; /* of the extension that begins with this; required */
  uint32_t type;        /* required */
  const struct wm_ext* next;
} wm_ext;

#define WM_EXT_REQUIRED 0x80000000u
#define WM_EXT_LOG 1u /* wm_ext_log, on wm_store_options and wm_session_options */

enum { WM_LOG_INFO = 0, WM_LOG_WARNING = 1, WM_LOG_ERROR = 2 };

/* Hears what an operator should read: pages that the audit voided, a layer that fell silent (once a
 * layer), a transport that failed. `text` has `size` bytes and a 0, and lives for the call. Called
 * on the landing thread or, from within a call that is not of the step path, on the caller's,
 * perhaps by several at once; it must return soon, not throw, and not call the library. Null: as
 * without it. `context` must live as long as the store, a session's too: steps land after it. */
typedef struct wm_ext_log {
  wm_ext head;
  void (*function)(void* context, int32_t level, const char* text, size_t size);
  void* context;
} wm_ext_log;

/* ---- events and batches ------------------------------------------------------------------- */

enum {
  WM_EVENT_BIND = 1, /* new life of `block`; with a key: attach the page known by it */
  WM_EVENT_RETAIN,   /* one more user of `block` */
  WM_EVENT_RELEASE,  /* one user fewer; below zero: ignored and counted */
  WM_EVENT_SEAL,     /* `block` is full, or will be by `step`, and known by the key */
  WM_EVENT_COPY,     /* `block` gets rows [0, rows) of `source` */
  WM_EVENT_MOVE,     /* `block` takes over what `source` is */
  WM_EVENT_TRUNCATE, /* rows >= `rows` of `block` written by steps <= `step` are no more */
  WM_EVENT_RESET     /* table and key index are emptied */
};

#define WM_KEY_BYTES 32
#define WM_ALL_ROWS (-1)

/* What happened to a block, in the order in which it happened. 56 bytes. Blocks that are negative,
 * or null blocks of the store, are legal: the event is ignored and counted. */
typedef struct wm_event {
  uint16_t type;
  uint8_t key_size; /* bytes of `key` in use; 0: no key */
  uint8_t more;     /* MOVE: 1 = the next event belongs to the same simultaneous move */
  int32_t block;    /* COPY, MOVE: the destination */
  int32_t source;   /* COPY, MOVE */
  int32_t rows;     /* COPY: rows, or WM_ALL_ROWS; TRUNCATE: the first row that goes */
  uint64_t step;    /* SEAL: the step that fills the block; TRUNCATE: the last step meant */
  uint8_t key[WM_KEY_BYTES]; /* the engine's prefix-chain hash of the block; 0 behind key_size */
} wm_event;

/* Makers of events. `key`: [key_size], 1 ... 32 bytes; a longer one is refused when the step
 * begins, as WM_RULE_KEY_TOO_LONG. */
static inline wm_event wm_make_event(int type, int32_t block, int32_t source, int32_t rows,
                                     uint64_t step, const void* key, size_t key_size) {
  wm_event event;
  memset(&event, 0, sizeof(event));
  event.type = (uint16_t)type;
  event.block = block;
  event.source = source;
  event.rows = rows;
  event.step = step;
  event.key_size = (uint8_t)(key_size < 255 ? key_size : 255);
  if (key != NULL && key_size <= WM_KEY_BYTES) memcpy(event.key, key, key_size);
  return event;
}
/* `key` may be null: the block's rows come from this engine's own forwards, or from outside. */
static inline wm_event wm_bind(int32_t block, const void* key, size_t key_size) {
  return wm_make_event(WM_EVENT_BIND, block, -1, 0, 0, key, key_size);
}
static inline wm_event wm_retain(int32_t block) {
  return wm_make_event(WM_EVENT_RETAIN, block, -1, 0, 0, NULL, 0);
}
static inline wm_event wm_release(int32_t block) {
  return wm_make_event(WM_EVENT_RELEASE, block, -1, 0, 0, NULL, 0);
}
static inline wm_event wm_seal(int32_t block, const void* key, size_t key_size, uint64_t step) {
  return wm_make_event(WM_EVENT_SEAL, block, -1, 0, step, key, key_size);
}
static inline wm_event wm_copy(int32_t source, int32_t destination, int32_t rows) {
  return wm_make_event(WM_EVENT_COPY, destination, source, rows, 0, NULL, 0);
}
/* `more` = 1 joins this pair with the MOVE that follows: all pairs of a group happen at once. */
static inline wm_event wm_move(int32_t source, int32_t destination, int more) {
  wm_event event = wm_make_event(WM_EVENT_MOVE, destination, source, 0, 0, NULL, 0);
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

/* A step as it is scheduled. The arrays are the caller's. */
typedef struct wm_step_batch {
  uint32_t struct_size;
  uint32_t flags; /* WM_BATCH_* */
  const wm_ext* ext;
  uint64_t step;          /* above every step begun before, below 2^64 - 1; required */
  uint64_t version;       /* of the weights of the forward; required */
  const wm_event* events; /* applied in this order, before the rows are claimed; required */
  size_t num_events;      /* required */
  const int64_t* slots;   /* [num_slots]: of each row of the forward, in its order; required */
  size_t num_slots;       /* required */
} wm_step_batch;

/* Which rows the forward writes is known on the device only: `slots` are all that it may write, in
 * any order, and session_submit_device_slots says which it did. Needs WM_STORE_DEVICE_SLOTS. */
#define WM_BATCH_DEVICE_SLOTS 1u

/* A batch that owns its arrays: parsed from bytes. Immutable; any thread. */
typedef struct wm_batch wm_batch;

/* ---- the flight recorder ------------------------------------------------------------------ */

/* Keeps the last of what a store was told and gave, in fixed memory, ready to be dumped for
 * `waymark check`. */
typedef struct wm_recorder wm_recorder;

typedef struct wm_recorder_options {
  uint32_t struct_size; /* required */
  uint32_t flags;       /* WM_RECORDER_* */
  const wm_ext* ext;
  uint64_t ring_bytes; /* 0: 64 MiB; at least 32 KiB. A step's batch must fit an eighth of it */
} wm_recorder_options;

#define WM_RECORDER_IDS 1u /* record whole rows, not digests: for replays with other rules */

/* ---- the store ---------------------------------------------------------------------------- */

/* The rows of every KV block of an engine, one a rank that stores. */
typedef struct wm_store wm_store;

enum { WM_LANDING_THREAD = 0, WM_LANDING_CALLER = 1 };

typedef struct wm_store_options {
  uint32_t struct_size;
  uint32_t flags; /* WM_STORE_* */
  const wm_ext* ext;
  int32_t num_layers;       /* captured MoE layers (L): 1 ... 1024; required */
  int32_t top_k;            /* experts a token and layer (K): 1 ... 64, <= num_experts; required */
  int32_t num_experts;      /* logical experts a layer (E): 1 ... 65535; required */
  int32_t num_blocks;       /* block ids are in [0, num_blocks), other tiers' included; required */
  int32_t page_tokens;      /* rows of a page (B): 0 = 16; 1 ... 4096 */
  int32_t block_tokens;     /* tokens of a KV block, a multiple of B; 0 = B */
  const int32_t* layer_ids; /* [num_layer_ids]: the model's number of each captured layer, */
  size_t num_layer_ids;     /* increasing; 0 = 0, 1, ..., L - 1; else L */
  const int32_t* null_blocks; /* [num_null_blocks]: the engine's placeholder ids */
  size_t num_null_blocks;
  uint32_t num_pages;           /* 0 = one for every page of every block */
  uint32_t max_steps_in_flight; /* 0 = 16; one more is dropped; 1 ... 4096 */
  uint32_t max_step_rows;       /* 0 = 8192; rows of one step, padding included */
  int32_t landing;              /* WM_LANDING_* */
  double audit_threshold;       /* 0 = 0.5; in (0, 1] */
  uint64_t key_seed;            /* of the key index's hash; 0 = drawn at random */
  wm_recorder* recorder;        /* made for the same options, and no other store's; null = none */
} wm_store_options;

#define WM_STORE_DEVICE_SLOTS 1u  /* batches with WM_BATCH_DEVICE_SLOTS may come */
#define WM_STORE_NO_AUDIT 2u      /* do not compare ignored writes with what is kept */
#define WM_STORE_COUNT_EXPERTS 4u /* count the experts of landed rows, by version */

/* What the rows of a store, or of a wm_rows, are. */
typedef struct wm_shape {
  uint32_t struct_size; /* required */
  int32_t num_layers;
  int32_t top_k;
  int32_t num_experts;
  int32_t page_tokens;
  int32_t block_tokens;     /* 0 for a wm_rows */
  int32_t num_blocks;       /* 0 for a wm_rows */
  uint32_t id_bytes;        /* of a stored id: 1 (uint8), or 2 (uint16, little-endian) */
  uint64_t row_bytes;       /* of a stored row: L * K * id_bytes */
  const int32_t* layer_ids; /* [num_layers]; lives as long as the handle */
} wm_shape;

enum {
  WM_REASON_NONE = 0,      /* the row is there */
  WM_REASON_NEVER_WRITTEN, /* no step of the block's present life wrote it */
  WM_REASON_NOT_CAPTURED,  /* a layer's source did not write, or the row did not ask */
  WM_REASON_EXTERNAL_KV,   /* the KV came from outside, and no page here had its rows */
  WM_REASON_CAPACITY,      /* dropped step, evicted page, no page to be had */
  WM_REASON_INVALID_ID,    /* an id was out of range, or repeated within a layer */
  WM_REASON_AUDIT,         /* voided: later writes contradicted it */
  WM_NUM_REASONS
};

enum {
  WM_PROVENANCE_HERE = 0,  /* written by its step, in the present life of the block */
  WM_PROVENANCE_KEPT,      /* so, and a later write of the row was ignored */
  WM_PROVENANCE_BY_KEY,    /* another pass over the same prefix and version */
  WM_PROVENANCE_RECOMPUTED /* routed again beside a fused kernel */
};

/* What is known of one row that was read. A missing row has step 0 and version 0. 24 bytes. */
typedef struct wm_row_info {
  uint64_t step;
  uint64_t version;
  uint8_t reason; /* WM_REASON_NONE: valid */
  uint8_t provenance;
  uint8_t reserved[6]; /* 0 */
} wm_row_info;

/* Rows [begin, end), counted from the sequence's first, that agree in what follows. 32 bytes. */
typedef struct wm_coverage_run {
  int64_t begin;
  int64_t end;
  uint64_t version; /* 0 when missing */
  uint8_t reason;
  uint8_t provenance;
  uint8_t reserved[6]; /* 0 */
} wm_coverage_run;

/* The store's counters, of its whole life; blockstore/store/stats.h says what moves each. */
typedef struct wm_store_stats {
  uint32_t struct_size; /* required */
  uint32_t reserved;
  uint64_t steps_begun, steps_landed, steps_dropped, steps_cancelled, steps_refused_ring, rebases;
  uint64_t rows_claimed, rows_landed;
  uint64_t rows_missing[8]; /* by reason */
  uint64_t rows_ignored, rows_not_asked, rows_padding, rows_outside, rows_without_claim;
  uint64_t events, events_on_null_blocks, releases_below_zero, hits_by_key, second_seals;
  uint64_t pages, pages_in_use, pages_in_use_peak, evictions, own_pages, no_page;
  uint64_t bytes, bytes_touched_peak;
  uint64_t audited_rows, audit_disagreements, audit_voided_pages, audit_voided_rows;
  double audit_agreement_sum; /* mean agreement = sum / audited_rows */
  uint64_t snapshots_taken, snapshots_live;
  uint64_t landing_lag_count, landing_lag_p50_ns, landing_lag_p99_ns; /* submit to landed */
} wm_store_stats;

/* What the audit found: later writes of `block` contradicted the rows that were kept. */
typedef struct wm_finding {
  uint32_t struct_size; /* required */
  int32_t block;        /* -1: between two pages */
  uint64_t step;        /* whose write disagreed */
  uint64_t kept_step;   /* that wrote the rows kept until then */
  uint64_t sealed_step; /* that the page was sealed with */
  uint32_t rows;        /* compared */
  uint32_t voided;      /* 1: under the threshold, the page's rows were voided */
  double agreement;     /* mean share of common ids, in [0, 1] */
} wm_finding;

/* ---- reading ------------------------------------------------------------------------------ */

/* A pinned, immutable view of rows [first, last) of one sequence. Made on the engine's thread; used
 * and released on any, by one thread at a time. It may outlive its store. */
typedef struct wm_snapshot wm_snapshot;

typedef struct wm_snapshot_args {
  uint32_t struct_size;
  uint32_t flags; /* 0 */
  const wm_ext* ext;
  const int32_t*
      blocks;        /* [num_blocks]: block i holds tokens [i, i + 1) * block_tokens; required */
  size_t num_blocks; /* required */
  int64_t first;     /* required */
  int64_t last;      /* <= num_blocks * block_tokens; required */
} wm_snapshot_args;

enum { WM_LAYOUT_TLK = 0, WM_LAYOUT_LTK = 1 }; /* [T, L, K], [L, T, K] */
enum { WM_ID_UINT8 = 0, WM_ID_UINT16, WM_ID_INT16, WM_ID_INT32, WM_ID_INT64 };
enum { WM_FILL_MINUS_ONE = 0, WM_FILL_ZEROS, WM_FILL_ARANGE }; /* of missing rows */

typedef struct wm_read_args {
  uint32_t struct_size;
  uint32_t flags; /* 0 */
  const wm_ext* ext;
  int64_t begin;      /* first <= begin <= end <= last, counted as the range of what is read; */
  int64_t end;        /* required */
  int32_t layout;     /* required */
  int32_t id_type;    /* must hold every id in [0, E); required */
  int32_t fill;       /* required */
  int32_t reserved;   /* 0 */
  void* out;          /* C order; required */
  uint64_t out_bytes; /* exactly (end - begin) * L * K * the type's bytes; required */
  wm_row_info* infos; /* [num_infos], or null */
  size_t num_infos;   /* end - begin, or 0 */
} wm_read_args;

/* Rows [first, first + count) of one sequence that were read: ids as the store keeps them, and an
 * info each. Owns them; immutable; any thread. */
typedef struct wm_rows wm_rows;

typedef struct wm_rows_view {
  uint32_t struct_size;
  uint32_t flags;           /* WM_ROWS_* */
  int64_t first;            /* required */
  int64_t count;            /* required */
  const uint8_t* ids;       /* [count][row_bytes], token-major; missing rows are 0; required */
  const wm_row_info* infos; /* [count]; required */
} wm_rows_view;

/* The K ids of a layer do not stand in the router's order, or not everywhere; nothing that is
 * written of these rows claims it. Since 1.1. */
#define WM_ROWS_SORTED 1u

/* How ranks exchange bytes; the engine supplies it, e.g. over its process group. `all_gather` gives
 * every rank `bytes` bytes of each rank, in order of rank, at `receive`; all ranks call it, with
 * the same `bytes`, in the same order. It may wait; it answers WM_OK or why it failed. */
typedef struct wm_collective {
  uint32_t struct_size;
  int32_t rank;  /* of this process; required */
  int32_t ranks; /* 1 ... 4096; required */
  int32_t reserved;
  wm_status (*all_gather)(void* context, const void* send, void* receive,
                          size_t bytes); /* required */
  void* context;
} wm_collective;

/* ---- the wire format ---------------------------------------------------------------------- */

/* Rows as bytes, for files and other processes: documents (docs/format.md), and handles, which name
 * rows that lie elsewhere. Since 1.1. */

/* Bytes that the library made. Immutable; any thread. */
typedef struct wm_bytes wm_bytes;

enum { WM_CODEC_RAW = 0, WM_CODEC_SET = 1 }; /* as stored; sets in fewer bits, never ordered */
enum { WM_HIGH_PARTS_RANKED = 0, WM_HIGH_PARTS_UNARY = 1 };

/* How ids are written. All 0: raw, in the router's order. */
typedef struct wm_chunk_code {
  uint32_t struct_size; /* required */
  uint32_t flags;       /* WM_CHUNK_* */
  int32_t codec;        /* WM_CODEC_* */
  int32_t low_bits;     /* 0 without WM_CHUNK_PARAMETERS */
  int32_t high_parts;   /* WM_HIGH_PARTS_*; 0 without WM_CHUNK_PARAMETERS */
  int32_t crc_layers;   /* layers under one crc: 1 ... L; 0 = a quarter of them, rounded up */
} wm_chunk_code;

#define WM_CHUNK_SORTED 1u     /* ids ascend within a row and layer; sets do without it */
#define WM_CHUNK_PARAMETERS 2u /* sets: low_bits and high_parts are given, not the recommended */

typedef struct wm_document_options {
  uint32_t struct_size; /* required */
  uint32_t flags;       /* WM_DOCUMENT_* */
  const wm_ext* ext;
  const wm_chunk_code* code; /* null: raw */
} wm_document_options;

#define WM_DOCUMENT_WITHOUT_STEPS 1u /* rows_join_layers cannot join what is read from it */
#define WM_DOCUMENT_WITH_NODES 2u    /* a source of pages (source_file_open): rows from row 0 on */

/* A document, read where it lies. Immutable; any thread. */
typedef struct wm_document wm_document;

/* What bytes from outside may make a reader do; beyond it is RESOURCE_EXHAUSTED. */
typedef struct wm_read_limits {
  uint32_t struct_size; /* required */
  uint32_t reserved;    /* 0 */
  uint64_t max_rows;    /* of one read; 0 = 2^24 */
  uint64_t max_bytes;   /* that one call allocates; 0 = 2^32 */
} wm_read_limits;

typedef struct wm_document_info {
  uint32_t struct_size;   /* required */
  uint32_t flags;         /* WM_DOCUMENT_HAS_STEPS, WM_DOCUMENT_TRUNCATED */
  int64_t first;          /* rows [first, first + count) of one sequence */
  int64_t count;          /* */
  uint64_t bytes;         /* of the whole document */
  int32_t minor_version;  /* of the format */
  uint32_t num_nodes;     /* above 0: it can be a source of pages */
  uint8_t trajectory[16]; /* the last node of the trajectory; zeros: not said */
} wm_document_info;

#define WM_DOCUMENT_HAS_STEPS 1u /* else every step reads 0 */
#define WM_DOCUMENT_TRUNCATED 2u /* bytes are missing at its end */

/* Rows [begin, end) and layers [layer_begin, layer_end) of something. */
typedef struct wm_part {
  uint32_t struct_size;
  uint32_t reserved;   /* 0 */
  int64_t begin;       /* counted from the sequence's first row; required */
  int64_t end;         /* required */
  int32_t layer_begin; /* captured layers */
  int32_t layer_end;   /* 0: all from layer_begin on */
} wm_part;

/* What a read found missing that coverage calls valid. */
typedef struct wm_read_damage {
  uint32_t struct_size; /* required */
  uint32_t reserved;
  uint64_t damaged_chunks; /* a crc did not fit: their rows are missing (not captured) */
  uint64_t absent_chunks;  /* beyond the end of the bytes: missing (not captured) */
  uint64_t invalid_rows;   /* an id was not below E: missing (invalid id) */
} wm_read_damage;

/* Rows [first, first + count) of a document where they lie, ids layer-major: the ids of layer l are
 * a C-order [count, K] array at layers + l * layer_bytes, at any address. */
typedef struct wm_chunk_view {
  uint32_t struct_size; /* required */
  uint32_t reserved;
  int64_t first;
  int64_t count;
  const uint8_t* layers; /* [L * layer_bytes] */
  uint64_t layer_bytes;
} wm_chunk_view;

/* ---- the formats of others ---------------------------------------------------------------- */

/* What the bytes of a format (docs/formats.md) do not say of themselves, and how they are written.
 * Texts are words of that page; null, "" and 0: not said. What is not said is not guessed. Since
 * 1.1. */
typedef struct wm_format_options {
  uint32_t struct_size; /* required */
  uint32_t flags;       /* WM_FORMAT_*; reading only */
  const wm_ext* ext;
  const char* format;        /* its name; reading: null = told by the bytes; writing: required */
  const char* field;         /* where the array is in a JSON text, a JSON pointer; reading only */
  const char* row_count;     /* "tokens-1", "tokens"; not said: as the format has it */
  const char* layers;        /* which have a column: "moe", "all"; not said: likewise */
  const char* sentinel;      /* "none", "-1", "255", "65535", "zeros", "arange"; likewise */
  const char* dtype;         /* "int32" ...; reading: of bare ids; writing: null = one that fits */
  const int32_t* moe_layers; /* [num_moe_layers] numbers of the MoE layers, increasing; reading */
  uint64_t num_moe_layers;   /* 0 ... 4096 */
  int64_t first;             /* row of the array's first, with WM_FORMAT_FIRST; else 0 */
  int32_t num_layers;        /* all layers of the model, dense ones among them */
  int32_t top_k;             /* K; reading only, as is E */
  int32_t num_experts;       /* E; no array says it */
  int32_t reserved;          /* 0 */
  uint64_t max_bytes;        /* of each text and array that is made on the way; 0 = 2^32 */
} wm_format_options;

#define WM_FORMAT_FIRST 1u   /* `first` is said */
#define WM_FORMAT_ALL_MOE 2u /* every layer is an MoE layer */

/* ---- rows elsewhere ----------------------------------------------------------------------- */

/* Where the objects of published rows lie, by their digests. Any thread. Since 1.1. */
typedef struct wm_source wm_source;

/* A Redis server. Texts are copied; null and 0 are the defaults. */
typedef struct wm_redis_options {
  uint32_t struct_size; /* required */
  uint32_t flags;       /* WM_REDIS_* */
  const wm_ext* ext;
  const char* host;                 /* null or "": "127.0.0.1" */
  const char* unix_socket;          /* its path, instead of host and port; null: those */
  const char* user;                 /* for AUTH, from Redis 6 on, and with a password; null: none */
  const char* password;             /* null: AUTH is not sent. It is in no text of the library */
  const char* key_prefix;           /* in front of every key; null: "waymark:" */
  const char* tls_ca_file;          /* trusted certificates, PEM; null: the system's */
  const char* tls_certificate_file; /* of this client, PEM; null: none */
  const char* tls_key_file;         /* of the certificate, PEM */
  const char* tls_server_name;      /* for SNI; null: none */
  int32_t port;                     /* 0 = 6379 */
  int32_t database;
  int32_t time_to_live_s;       /* objects expire so many seconds after they were last put, or */
                                /* found there by a publisher; 0: never */
  int32_t connect_timeout_ms;   /* beside each call's own deadline; 0 = 1000 */
  int32_t command_timeout_ms;   /* of one exchange; 0 = 5000 */
  int32_t first_back_off_ms;    /* after a failure the server is left alone so long; 0 = 50 */
  int32_t greatest_back_off_ms; /* and after each further one twice as long, to this; 0 = 5000 */
  int32_t believe_ms; /* how long an object that was put or found there is believed to be there; */
                      /* then the server is asked. 0 = 60000; -1: it is always asked */
  uint64_t max_believed; /* objects so believed; 0 = 2^18 */
} wm_redis_options;

/* TLS; the server's certificate must be signed by a trusted one (the name in it is not looked at:
 * trust an authority of your own). The tls_* fields want it. WM_UNIMPLEMENTED where the build's
 * hiredis has none (build_info: redis=...+tls has). */
#define WM_REDIS_TLS 1u

/* Turns rows into objects in a source, and a handle, on a thread of its own; what was put once is
 * not put again. Any thread. */
typedef struct wm_publisher wm_publisher;

typedef struct wm_publisher_options {
  uint32_t struct_size;
  uint32_t flags; /* 0 */
  const wm_ext* ext;
  wm_source* source;          /* retained; required */
  const wm_shape* shape;      /* of all rows, as for rows_create; required */
  const wm_chunk_code* code;  /* null: raw */
  const char* store;          /* what handles name, UTF-8, below 2^16 bytes; null: "" */
  uint64_t max_waiting;       /* rows waiting, with the pages they pin; 0 = 256. One more is */
                              /* dropped */
  uint64_t max_pages;         /* pages whose digest is remembered; 0 = 2^17 */
  uint64_t max_sequences;     /* sequences that are remembered; 0 = 1024 */
  int64_t landing_timeout_ns; /* for a snapshot to become readable; 0 = 10 s */
  int64_t source_timeout_ns;  /* for the source, over one publication; 0 = 10 s */
} wm_publisher_options;

/* What becomes of one publication. Any thread. */
typedef struct wm_ticket wm_ticket;

typedef struct wm_publisher_stats {
  uint32_t struct_size; /* required */
  uint32_t reserved;
  uint64_t published, dropped, failed; /* handles made; not taken; taken, and no handle made */
  uint64_t pages, pages_encoded;       /* complete pages; of them: the rest was remembered */
  uint64_t objects_held, objects_put;  /* that the source had already; that it got */
  uint64_t bytes_put;
  uint64_t puts_failed; /* calls of the source that failed: readers will miss rows */
} wm_publisher_stats;

typedef struct wm_handle_info {
  uint32_t struct_size; /* required */
  uint32_t num_tail;    /* segments behind the last complete page */
  int64_t rows;         /* it names rows [0, rows) */
  uint8_t head[16];     /* the last node; zeros when no page is complete */
  int32_t num_layers;
  int32_t top_k;
  int32_t num_experts;
  int32_t page_tokens;
} wm_handle_info;

/* Gives rows by handle; asks its source for what it has not fetched before. Any thread. */
typedef struct wm_fetcher wm_fetcher;

typedef struct wm_fetcher_options {
  uint32_t struct_size;
  uint32_t flags; /* WM_FETCHER_* */
  const wm_ext* ext;
  wm_source* source;    /* retained; required */
  uint64_t cache_bytes; /* objects kept, least recently used out first; 0 = 2^28 */
  uint64_t batch_bytes; /* asked of the source at a time; 0 = 2^22 */
  uint64_t max_rows;    /* of one call; 0 = 2^24 */
} wm_fetcher_options;

/* Fetch chunks whole also where some layers are wanted: their digests then find a source that gives
 * one object under another's name; crcs find damage only. */
#define WM_FETCHER_WHOLE_CHUNKS 1u

/* What fetching took. Objects include ranges of them. */
typedef struct wm_fetch_report {
  uint32_t struct_size;   /* required */
  int32_t source;         /* the first status that the source gave but WM_OK */
  uint64_t fetched;       /* objects that the source gave */
  uint64_t fetched_bytes; /* of them */
  uint64_t hits;          /* objects that had been fetched before */
  uint64_t absent;        /* objects that the source did not give */
  uint64_t damaged;       /* objects that are not what they are named by: as good as absent */
} wm_fetch_report;

/* ---- the capture session ------------------------------------------------------------------ */

/* Joins an engine's forwards to a store. One a model and a rank that stores. */
typedef struct wm_session wm_session;

enum { WM_TRANSPORT_HOST = 0, WM_TRANSPORT_CUDA = 1 };

typedef struct wm_session_options {
  uint32_t struct_size;
  uint32_t flags; /* WM_SESSION_* */
  const wm_ext* ext;
  wm_store* store;         /* E <= 32768; retained; required */
  int32_t max_rows;        /* of the longest forward, padding included: 1 ... 2^20; required */
  int32_t num_buffers;     /* steps begun and not landed that can have a buffer; 0 = 4 */
  int32_t num_ids_sources; /* steps of submit_ids on their way; 0 = the store's steps in flight */
  int32_t transport;       /* WM_TRANSPORT_CUDA: WM_UNIMPLEMENTED where it was not built in */
  int32_t device_ordinal;  /* of the CUDA device */
  int32_t reserved;        /* 0 */
} wm_session_options;

/* One view at one address for every step, as a CUDA graph needs it (plugin/capture/staged_transport.h); not
 * with WM_TRANSPORT_HOST. */
#define WM_SESSION_ONE_VIEW 1u

enum { WM_SOURCE_KERNEL_WRITES_VIEW = 0, WM_SOURCE_HANDS_OVER, WM_SOURCE_ROUTING_KERNEL };

typedef struct wm_layer_binding {
  uint32_t struct_size;
  int32_t layer;      /* captured layer, in [0, L); required */
  const char* module; /* of the model that routes it; names it in every report; required */
  int32_t source;     /* WM_SOURCE_*; required */
  int32_t reserved;   /* 0 */
} wm_layer_binding;

/* Where one forward writes: of each layer a C-order [max_rows, top_k] array, every id -1 before. In
 * the transport's memory; valid until its step is submitted, dropped or cancelled. 48 bytes. */
typedef struct wm_view {
  int16_t* data;        /* layer l begins at data + l * layer_stride */
  int64_t layer_stride; /* in ids */
  int32_t num_layers;
  int32_t max_rows;
  int32_t top_k;
  int32_t buffer; /* the library's; a view is passed back as it came */
  uint64_t step;  /* whose it is; 0: of no step, what is written there never lands */
  uint64_t reserved;
} wm_view;

/* Ids that an engine owns: (row, layer, k) lies at data + row * row_stride + layer * layer_stride
 * + k * k_stride, strides in bytes, any sign. Columns beyond K (shared experts) are never read. -1
 * (65535 in uint16) says that nothing was written. */
typedef struct wm_ids {
  uint32_t struct_size;
  int32_t type;       /* WM_ID_*; session_hand_over takes int16, int32 and int64; required */
  const void* data;   /* may be null when rows == 0; required */
  int32_t rows;       /* of the forward; required */
  int32_t columns;    /* K, or more; required */
  int64_t row_stride; /* required */
  int64_t k_stride;   /* required */
  int32_t layers;     /* L; not read by session_hand_over, which has one */
  int32_t reserved;   /* 0 */
  int64_t layer_stride;
} wm_ids;

/* Called once, when nobody reads a step's ids any more: on the landing thread, or within the call
 * that failed. Must not throw and not call the library. */
typedef struct wm_done {
  void (*function)(void* context); /* null: nobody wants to know */
  void* context;
} wm_done;

/* The forward of a self-test: writes rows [0, rows) of `view`. Must not throw. Another answer than
 * WM_OK ends the test with it; a number that is no status, with WM_UNKNOWN. */
typedef struct wm_forward {
  wm_status (*function)(void* context, const wm_view* view, int32_t rows);
  void* context;
} wm_forward;

enum { WM_FAULT_SILENT = 0, WM_FAULT_ALL_ZERO, WM_FAULT_OUT_OF_RANGE, WM_FAULT_REPEATING };

/* A layer that did not capture as it should. 24 bytes. */
typedef struct wm_layer_finding {
  int32_t layer;     /* captured layer */
  int32_t layer_id;  /* the model's number of it */
  int32_t fault;     /* WM_FAULT_* */
  int32_t rows;      /* that show it */
  int32_t first_row; /* the first of them */
  int32_t reserved;
} wm_layer_finding;

typedef struct wm_session_stats {
  uint32_t struct_size; /* required */
  uint32_t reserved;
  uint64_t steps_begun, steps_submitted, steps_dropped, steps_cancelled, ring_overflows, discards;
  uint64_t rows_handed_over; /* rows x layers */
} wm_session_stats;

typedef struct wm_layer_stats {
  uint32_t struct_size; /* required */
  int32_t layer_id;     /* the model's number of it */
  const char* module;   /* "" when not bound; lives as long as the session's handle */
  int32_t source;       /* WM_SOURCE_* */
  int32_t reserved;
  uint64_t rows_silent;  /* landed rows in which it had an id of -1 */
  uint64_t rows_invalid; /* landed rows in which it had an id out of range, or one twice */
} wm_layer_stats;

/* ---- routing ------------------------------------------------------------------------------ */

/* What a router makes of its logits x (docs/kernels.md has the formulas; s = sigmoid(x)). */
enum {
  WM_ROUTING_DEFAULT = 0,           /* selects by x; weight: softmax over all experts */
  WM_ROUTING_RENORMALIZE = 1,       /* selects by x; weight: softmax over the selected */
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

/* A tensor of the caller's: element (i, j) lies at data + i * strides[0] + j * strides[1] elements.
 * All 0: the argument is not given. 56 bytes. */
typedef struct wm_tensor {
  void* data;
  int64_t shape[2];
  int64_t strides[2];  /* in elements */
  int32_t rank;        /* 1 or 2 */
  int32_t dtype;       /* WM_DTYPE_* */
  int32_t device_type; /* WM_DEVICE_* */
  int32_t device;      /* CUDA's number of it; 0 for the host */
} wm_tensor;

/* One call of the router of one layer. N and E are the shape of the logits; all tensors lie on one
 * device, elements of a row are adjacent, outputs overlap nothing and may have more than N rows. */
typedef struct wm_routing {
  uint32_t struct_size;
  uint32_t flags; /* WM_ROUTING_* bits */
  const wm_ext* ext;
  int32_t method;         /* WM_ROUTING_DEFAULT ...; required */
  int32_t top_k;          /* K: 1 ... min(E, 32); required */
  int32_t num_groups;     /* WM_ROUTING_DEEPSEEK_V3: E experts in so many groups; 0 = 1 */
  int32_t topk_groups;    /* of which so many are kept; 0 = 1 */
  float scale;            /* WM_ROUTING_DEEPSEEK_V3, WM_ROUTING_MINIMAX2; 0 = 1 */
  int32_t reserved;       /* 0 */
  wm_tensor logits;       /* [N, E] float32, bfloat16 or float16; E <= 1024; required */
  wm_tensor topk_ids;     /* out: [>= N, K] int32; required */
  wm_tensor topk_weights; /* out: [>= N, K] float32 or bfloat16; required */
  wm_tensor bias;         /* [E] float32; of the methods that have one, and may be left out */
  /* [>= N, K] int16: recorded ids. A row of K distinct ids in [0, E) is used as it is, and only its
   * weights are computed; any other row is routed. May be left out. */
  wm_tensor replay_in;
  wm_tensor routed;     /* out: [>= N] uint8, 1 where a row of replay_in was routed; with it only */
  wm_tensor replay_out; /* out: [>= N, K] int16, the ids again; may be left out. Not of */
                        /* session_route, which records into the view */
} wm_routing;

#define WM_ROUTING_NOT_NORMALIZED 1u /* WM_ROUTING_SIGMOID_RENORM: weights are s alone */

/* ---- the table ---------------------------------------------------------------------------- */

typedef struct wm_api_v1 {
  size_t struct_size; /* bytes of the table that this library has: a function that begins */
                      /* beyond it is not there */
  uint16_t abi_major; /* WM_ABI_MAJOR of the library */
  uint16_t abi_minor;
  uint32_t reserved;
  const wm_ext* ext; /* null */

  /* Static text. `version`: as "0.1.0". `build_info`: one line of "name=value" pairs separated by
   * spaces: version, abi, compiler, cuda (its version, or none), archs, redis (its client library,
   * or none), host (instruction sets). Any thread. */
  const char* (*version)(void);
  const char* (*build_info)(void);
  /* "OK", "INVALID_ARGUMENT", ...; "never written", ...; "by key", ... Static; "unknown" for a
   * number that is none. Any thread. */
  const char* (*status_name)(wm_status status);
  const char* (*reason_name)(int32_t reason);
  const char* (*provenance_name)(int32_t provenance);
  /* What `code` says, for people: argument, rule, value. Any thread. */
  wm_status (*describe_code)(const wm_code* code, wm_message* text);

  /* ---- batches: any thread ---- */

  /* Bytes that batch_serialize writes; 0 for a batch that is not valid. */
  uint64_t (*batch_size)(const wm_step_batch* batch);
  /* Writes `batch` as bytes (docs/abi.md) to `out`, which has `capacity` of them. OUT_OF_RANGE when
   * they are too few; *size is then what it takes. */
  wm_status (*batch_serialize)(const wm_step_batch* batch, uint8_t* out, size_t capacity,
                               size_t* size, wm_message* why);
  /* Reads one batch from the front of `bytes`, which may be anything; *used gets its bytes (may be
   * null). INVALID_ARGUMENT on what batch_serialize does not write. */
  wm_status (*batch_parse)(const uint8_t* bytes, size_t size, size_t* used, wm_batch** out,
                           wm_message* why);
  void (*batch_retain)(wm_batch* batch);
  void (*batch_release)(wm_batch* batch);
  /* The batch, its arrays lent for as long as the handle lives. */
  wm_status (*batch_view)(const wm_batch* batch, wm_step_batch* view);

  /* ---- the flight recorder: any thread ---- */

  /* For one store, made with the same options (their `recorder` is not read). `recorder` may be
   * null: the defaults. Commits the ring and 16 bytes a row of the store's memory. */
  wm_status (*recorder_create)(const wm_store_options* options, const wm_recorder_options* recorder,
                               wm_recorder** out, wm_message* why);
  void (*recorder_retain)(wm_recorder* recorder);
  void (*recorder_release)(wm_recorder* recorder);
  /* Writes what the ring holds to the file `path`; the flight goes on. UNAVAILABLE while a step
   * from before the ring's first record has not ended; UNKNOWN when the file cannot be written;
   * DATA_LOSS when the recorder has lost track. */
  wm_status (*recorder_dump)(wm_recorder* recorder, const char* path, wm_message* why);
  /* OK while it records; else DATA_LOSS and why it stopped. */
  wm_status (*recorder_status)(const wm_recorder* recorder, wm_message* why);

  /* ---- the store ---- */

  /* RESOURCE_EXHAUSTED when the memory cannot be had. Any thread. */
  wm_status (*store_create)(const wm_store_options* options, wm_store** out, wm_message* why);
  /* The last release lands what was submitted and drops the other steps in flight: by then no
   * thread is in a call of the store. Snapshots stay readable. */
  void (*store_retain)(wm_store* store);
  void (*store_release)(wm_store* store);
  /* Any thread. */
  wm_status (*store_shape)(const wm_store* store, wm_shape* out);

  /* Pins rows of a sequence. O(pages); no copy, no wait. INVALID_ARGUMENT names the range or the
   * block. Engine's thread. */
  wm_status (*store_snapshot)(wm_store* store, const wm_snapshot_args* args, wm_snapshot** out,
                              wm_message* why);
  /* Leading rows of [0, rows) that are valid or pending, into *covered: what a scheduler may take
   * as a prefix hit with routing. Engine's thread. */
  wm_status (*store_covered_prefix)(const wm_store* store, const int32_t* blocks, size_t num_blocks,
                                    int64_t rows, int64_t* covered);
  /* Waits until every step begun so far has ended. DEADLINE_EXCEEDED after `timeout_ns`; a negative
   * one waits for ever. With WM_LANDING_CALLER it lands what was submitted and does not wait:
   * DEADLINE_EXCEEDED when a step is left. Engine's thread. */
  wm_status (*store_wait_idle)(wm_store* store, int64_t timeout_ns, wm_message* why);
  /* WM_LANDING_CALLER only (else FAILED_PRECONDITION): lands the submitted step that was submitted
   * first, or exactly `step`; NOT_FOUND when there is none. Engine's thread. */
  wm_status (*store_land_one)(wm_store* store);
  wm_status (*store_land)(wm_store* store, uint64_t step);
  /* The last step begun; 0: none. Engine's thread. */
  wm_status (*store_last_step)(const wm_store* store, uint64_t* step);

  /* Counters. Any thread. */
  wm_status (*store_stats)(const wm_store* store, wm_store_stats* out);
  /* The counters that a person asks for first, a line each. Any thread. */
  wm_status (*store_report)(const wm_store* store, wm_message* text);
  /* Expert counts of the index-th version counted, oldest first: counts[layer * E + expert], into
   * `counts`, which has `capacity` of them; NOT_FOUND beyond the last, OUT_OF_RANGE when capacity
   * is under L * E. Any thread. */
  wm_status (*store_expert_counts)(const wm_store* store, size_t index, uint64_t* version,
                                   uint64_t* counts, size_t capacity);
  /* What the audit found and this call has not told yet, oldest first, and its line for people;
   * NOT_FOUND when there is none. Any thread, one at a time. */
  wm_status (*store_next_finding)(wm_store* store, wm_finding* out, wm_message* text);

  /* ---- snapshots: any thread, one at a time a snapshot ---- */

  void (*snapshot_retain)(wm_snapshot* snapshot);
  void (*snapshot_release)(wm_snapshot* snapshot);
  /* The range that it was taken of. */
  wm_status (*snapshot_range)(const wm_snapshot* snapshot, int64_t* first, int64_t* last);
  wm_status (*snapshot_shape)(const wm_snapshot* snapshot, wm_shape* out);
  /* OK when it can be read: every step begun before it has ended; else UNAVAILABLE. Never waits. */
  wm_status (*snapshot_ready)(const wm_snapshot* snapshot);
  /* Waits for that. DEADLINE_EXCEEDED after `timeout_ns`; a negative one waits for ever. With
   * WM_LANDING_CALLER somebody else must land. */
  wm_status (*snapshot_wait)(const wm_snapshot* snapshot, int64_t timeout_ns, wm_message* why);
  /* Writes rows and infos. FAILED_PRECONDITION before it is ready; OUT_OF_RANGE outside the range;
   * INVALID_ARGUMENT for sizes and types that do not fit. A row whose info is valid is whole. */
  wm_status (*snapshot_read)(const wm_snapshot* snapshot, const wm_read_args* args,
                             wm_message* why);
  /* Runs over the whole range: the first `capacity` of them into `runs`, how many there are into
   * *count. Errors as snapshot_read. */
  wm_status (*snapshot_coverage)(const wm_snapshot* snapshot, wm_coverage_run* runs,
                                 size_t capacity, size_t* count, wm_message* why);
  /* All rows as a value of their own. Errors as snapshot_read. */
  wm_status (*snapshot_rows)(const wm_snapshot* snapshot, wm_rows** out, wm_message* why);

  /* ---- rows that were read: any thread ---- */

  /* From arrays, which are copied: rows that came from another process. `shape`: num_layers, top_k,
   * num_experts, page_tokens (0 = 16) and layer_ids (null: 0, 1, ...); the rest is not read.
   * INVALID_ARGUMENT names the field, or the row: ids of a valid row must be in [0, E); those of a
   * missing one are not read. */
  wm_status (*rows_create)(const wm_shape* shape, const wm_rows_view* view, wm_rows** out,
                           wm_message* why);
  void (*rows_retain)(wm_rows* rows);
  void (*rows_release)(wm_rows* rows);
  wm_status (*rows_shape)(const wm_rows* rows, wm_shape* out);
  /* The arrays, lent for as long as the handle lives. */
  wm_status (*rows_view)(const wm_rows* rows, wm_rows_view* out);
  wm_status (*rows_write)(const wm_rows* rows, const wm_read_args* args, wm_message* why);
  wm_status (*rows_coverage)(const wm_rows* rows, wm_coverage_run* runs, size_t capacity,
                             size_t* count, wm_message* why);
  /* The only merge of two reads of one sequence: of each position, the first valid row wins. */
  wm_status (*rows_join)(const wm_rows* a, const wm_rows* b, wm_rows** out, wm_message* why);
  /* Pipeline stages, in order of layers, to rows of all layers; where steps differ the row is
   * missing (not captured). At most 1024 stages, a layer each. Comes before rows_join. */
  wm_status (*rows_join_layers)(const wm_rows* const* stages, size_t num_stages, wm_rows** out,
                                wm_message* why);
  /* The same across ranks: every rank gives the rows of its stage (ranks in order of layers), and
   * every rank gets the rows of all layers. All ranks call it, also one that could not read its
   * rows: with a null `stage`, which is INVALID_ARGUMENT there. ABORTED when another rank could not
   * take part; the collective's own answer when that failed. Waits in the collective. */
  wm_status (*rows_gather_layers)(const wm_rows* stage, const wm_collective* collective,
                                  wm_rows** out, wm_message* why);

  /* ---- the capture session ---- */

  /* UNAVAILABLE when there is no such device. Any thread. */
  wm_status (*session_create)(const wm_session_options* options, wm_session** out, wm_message* why);
  /* The last release drops the steps that have a buffer here and have not ended; submitted ones
   * land. Engine's thread. */
  void (*session_retain)(wm_session* session);
  void (*session_release)(wm_session* session);
  /* Before the first step. ALREADY_EXISTS, FAILED_PRECONDITION, INVALID_ARGUMENT. Engine's thread.
   */
  wm_status (*session_bind_layer)(wm_session* session, const wm_layer_binding* binding,
                                  wm_message* why);

  /* -- the step path, engine's thread -- */

  /* The stream (cudaStream_t) on which forwards are issued from here on; null: the default one. */
  wm_status (*session_set_stream)(wm_session* session, void* stream);
  /* Begins a step, and gives its forward a buffer. `written_rows`: rows that the forward writes,
   * graph padding included; fewer than the slots means as many. RESOURCE_EXHAUSTED: the step was
   * dropped here and now, and needs no end; its forward runs as ever. */
  wm_status (*session_begin_step)(wm_session* session, const wm_step_batch* batch,
                                  int32_t written_rows, wm_code* code);
  /* Where the forward of `step` writes; of a step without a buffer, or 0, the scratch view: always
   * safe to write max_rows rows into. */
  wm_status (*session_view)(wm_session* session, uint64_t step, wm_view* view);
  /* Copies the first K columns of `ids` into rows [0, ids->rows) of a layer that hands over; on a
   * device in stream order, and safe inside a graph. */
  wm_status (*session_hand_over)(wm_session* session, const wm_view* view, int32_t layer,
                                 const wm_ids* ids, wm_code* code);
  /* The forward of `step` has written its view or, on a device, has been issued. */
  wm_status (*session_submit)(wm_session* session, uint64_t step, int32_t written_rows,
                              wm_code* code);
  /* Ends a step with WM_BATCH_DEVICE_SLOTS: row i lies at slots[i]. `slots`: [rows] in the
   * transport's memory, read in stream order with the forward. */
  wm_status (*session_submit_device_slots)(wm_session* session, uint64_t step, const int64_t* slots,
                                           int32_t rows, int32_t written_rows, wm_code* code);
  /* The ids of `step` will not come: its rows are missing (capacity). */
  wm_status (*session_drop)(wm_session* session, uint64_t step, wm_code* code);
  /* The forward of `step` did not run: its claims are revoked. */
  wm_status (*session_cancel)(wm_session* session, uint64_t step, wm_code* code);
  /* A forward that was no step has written rows [0, written_rows) of the scratch view; more than it
   * has means all. */
  wm_status (*session_discard)(wm_session* session, int32_t written_rows);
  /* For ids of all layers in one tensor in host memory: no buffer, and no copy before landing. */
  wm_status (*session_begin_ids_step)(wm_session* session, const wm_step_batch* batch,
                                      wm_code* code);
  /* The ids of `step`, which stay the caller's, unchanged, until `done`: called exactly once, also
   * on failure (then before the return, and the step is as before: also with RESOURCE_EXHAUSTED,
   * when num_ids_sources are on their way). */
  wm_status (*session_submit_ids)(wm_session* session, uint64_t step, const wm_ids* ids,
                                  wm_done done, wm_code* code);

  /* -- beside it -- */

  /* Runs `forward` on the scratch view and looks at every layer: the first `capacity` findings into
   * `findings`, how many there are into *count (0: all is well), and lines for people into `text`.
   * Call it at every batch size that has a kernel of its own. Engine's thread. */
  wm_status (*session_self_test)(wm_session* session, int32_t rows, wm_forward forward,
                                 wm_layer_finding* findings, size_t capacity, size_t* count,
                                 wm_message* text);
  /* OK, or why the transport has failed for good: every step is then dropped at its begin. Any
   * thread. */
  wm_status (*session_status)(const wm_session* session, wm_message* why);
  /* Counters, of the session and of a layer; and both for people. Any thread. */
  wm_status (*session_stats)(const wm_session* session, wm_session_stats* out);
  wm_status (*session_layer_stats)(const wm_session* session, int32_t layer, wm_layer_stats* out);
  wm_status (*session_report)(const wm_session* session, wm_message* text);
  /* Rows, padding included, of the forwards in which `layer` was silent: the first `capacity` into
   * `batch_sizes`, ascending, how many there are into *count. Any thread. */
  wm_status (*session_silent_batch_sizes)(const wm_session* session, int32_t layer,
                                          int32_t* batch_sizes, size_t capacity, size_t* count);

  /* ---- documents: any thread. Since 1.1, and all that follows ---- */

  /* `rows` as the bytes of a document. `options` may be null: the defaults. INVALID_ARGUMENT also
   * for ids that the code does not have (a set with an id twice). */
  wm_status (*rows_document)(const wm_rows* rows, const wm_document_options* options,
                             wm_bytes** out, wm_message* why);
  /* The same to memory of the caller's, which has `capacity` bytes. OUT_OF_RANGE when they are too
   * few; *size is then what it takes. After another error `out` may have been written to. */
  wm_status (*rows_document_into)(const wm_rows* rows, const wm_document_options* options,
                                  uint8_t* out, size_t capacity, size_t* size, wm_message* why);
  /* The same to a file beside `path` that then takes its place: nobody sees half of one.
   * UNAVAILABLE when it cannot be written; nothing is left behind. */
  wm_status (*rows_write_document)(const wm_rows* rows, const wm_document_options* options,
                                   const char* path, wm_message* why);
  void (*bytes_retain)(wm_bytes* bytes);
  void (*bytes_release)(wm_bytes* bytes);
  /* The bytes, lent for as long as the handle lives. */
  wm_status (*bytes_view)(const wm_bytes* bytes, const uint8_t** data, size_t* size);

  /* Reads the header of a document; nothing of a chunk is touched until it is read. `data` stays
   * the caller's, unchanged, until the last release; any bytes are safe, and those behind the
   * document are not looked at. `limits` may be null. INVALID_ARGUMENT for what is no document;
   * UNIMPLEMENTED for another major version, or a codec that is not known; DATA_LOSS when the
   * header is damaged or not all there. */
  wm_status (*document_open)(const uint8_t* data, size_t size, const wm_read_limits* limits,
                             wm_document** out, wm_message* why);
  /* The same of a file, which is mapped: NOT_FOUND, UNAVAILABLE. Another process that cuts it off
   * makes this one receive SIGBUS. */
  wm_status (*document_open_file)(const char* path, const wm_read_limits* limits, wm_document** out,
                                  wm_message* why);
  void (*document_retain)(wm_document* document);
  void (*document_release)(wm_document* document);
  wm_status (*document_info)(const wm_document* document, wm_document_info* out);
  wm_status (*document_shape)(const wm_document* document, wm_shape* out);
  /* How it is written: a wm_chunk_code that writes the same. */
  wm_status (*document_code)(const wm_document* document, wm_chunk_code* out);
  /* What it says of its rows, whatever has become of their chunks; as snapshot_coverage. */
  wm_status (*document_coverage)(const wm_document* document, wm_coverage_run* runs,
                                 size_t capacity, size_t* count, wm_message* why);
  /* Writes rows of layers [layer_begin, layer_end) and infos; `layer_end` 0: all from layer_begin
   * on. L of `args` is the number of those layers. Touches no more of the document than the crcs
   * and layers that cover the part. `damage` may be null. OUT_OF_RANGE outside the document; errors
   * as snapshot_read; RESOURCE_EXHAUSTED beyond the limits. */
  wm_status (*document_read)(const wm_document* document, const wm_read_args* args,
                             int32_t layer_begin, int32_t layer_end, wm_read_damage* damage,
                             wm_message* why);
  /* The rows of `part` (null: all) as a value of their own, in a shape of its layers. Errors as
   * document_read. */
  wm_status (*document_rows)(const wm_document* document, const wm_part* part, wm_rows** out,
                             wm_read_damage* damage, wm_message* why);
  /* The chunk that has row `row`, lent for as long as the document's bytes; begin with its first
   * row and go on at first + count. Its crcs are looked at, its ids are not: they may be any.
   * Missing rows are 0. FAILED_PRECONDITION unless the codec is WM_CODEC_RAW; OUT_OF_RANGE;
   * DATA_LOSS when the chunk is damaged or not there. */
  wm_status (*document_chunk)(const wm_document* document, int64_t row, wm_chunk_view* out,
                              wm_message* why);

  /* ---- sources, publishers, handles, fetchers: any thread ---- */

  /* Objects in this process's memory, `max_bytes` at most, the least recently used out first. */
  wm_status (*source_memory_create)(uint64_t max_bytes, wm_source** out, wm_message* why);
  /* Objects of a document with nodes, where they lie in its file; read only. FAILED_PRECONDITION
   * when it has none; else errors as document_open_file. */
  wm_status (*source_file_open)(const char* path, const wm_read_limits* limits, wm_source** out,
                                wm_message* why);
  /* Objects in a Redis server, whose memory may forget them. Does not connect: a server that is not
   * there, or refuses the password, costs rows, and fetcher_fetch says why. `options` may be null.
   * INVALID_ARGUMENT; UNIMPLEMENTED where the library was built without hiredis. */
  wm_status (*source_redis_create)(const wm_redis_options* options, wm_source** out,
                                   wm_message* why);
  void (*source_retain)(wm_source* source);
  void (*source_release)(wm_source* source);

  wm_status (*publisher_create)(const wm_publisher_options* options, wm_publisher** out,
                                wm_message* why);
  /* The last release waits for what is being published; what still waits is CANCELLED. */
  void (*publisher_retain)(wm_publisher* publisher);
  void (*publisher_release)(wm_publisher* publisher);
  /* Publishes rows of a sequence; the ticket gets the handle of rows [0, last). Rows that begin at
   * row 0 are the whole sequence; others go on where those of the same `sequence` ended. "" or null
   * is remembered by nobody. Never waits for the source, the rows or the publisher's thread. On OK
   * the snapshot's rows were handed over: it is empty, and good for nothing but a release. */
  wm_status (*publisher_publish_snapshot)(wm_publisher* publisher, const char* sequence,
                                          wm_snapshot* snapshot, wm_ticket** out, wm_message* why);
  /* The same of rows, which are copied. */
  wm_status (*publisher_publish_rows)(wm_publisher* publisher, const char* sequence,
                                      const wm_rows* rows, wm_ticket** out, wm_message* why);
  wm_status (*publisher_stats)(const wm_publisher* publisher, wm_publisher_stats* out);

  void (*ticket_retain)(wm_ticket* ticket);
  void (*ticket_release)(wm_ticket* ticket);
  /* OK when it has its result, good or bad; else UNAVAILABLE. Never waits. */
  wm_status (*ticket_ready)(const wm_ticket* ticket);
  /* Waits for the handle; each call gives a reference. The objects have been put by then; that the
   * source failed is no error, who fetches misses rows. DEADLINE_EXCEEDED after `timeout_ns`; a
   * negative one waits for ever. Of a ticket that is ready: RESOURCE_EXHAUSTED when too many were
   * waiting; DEADLINE_EXCEEDED when the snapshot was not readable in time; INVALID_ARGUMENT for
   * another shape, or ids that the code does not have; FAILED_PRECONDITION when the rows do not go
   * on where the sequence ended, or it is forgotten: publish from row 0; CANCELLED. */
  wm_status (*ticket_wait)(const wm_ticket* ticket, int64_t timeout_ns, wm_bytes** out,
                           wm_message* why);

  /* The handle that publishing `rows`, which begin at row 0, makes; nothing is put anywhere. A
   * document of them WM_DOCUMENT_WITH_NODES, of the same `code`, is a source of it. `code`, `store`
   * may be null. */
  wm_status (*rows_handle)(const wm_rows* rows, const wm_chunk_code* code, const char* store,
                           wm_bytes** out, wm_message* why);
  /* What a handle says; `store` gets the name of its store. INVALID_ARGUMENT, DATA_LOSS,
   * UNIMPLEMENTED for what is no handle of this version; any bytes are safe. */
  wm_status (*handle_info)(const uint8_t* handle, size_t size, wm_handle_info* out,
                           wm_message* store, wm_message* why);

  wm_status (*fetcher_create)(const wm_fetcher_options* options, wm_fetcher** out, wm_message* why);
  void (*fetcher_retain)(wm_fetcher* fetcher);
  void (*fetcher_release)(wm_fetcher* fetcher);
  /* The rows of `part` (null: all) that the handle names, in a shape of its layers. Waits for the
   * source until `timeout_ns` is over (a negative one: as long as it takes), and then gives what
   * there is: rows that could not be had are missing (capacity). `report` may be null; on OK `why`
   * gets what the source said. OUT_OF_RANGE outside the handle; RESOURCE_EXHAUSTED beyond max_rows,
   * or 2^32 bytes; errors as handle_info. */
  wm_status (*fetcher_fetch)(wm_fetcher* fetcher, const uint8_t* handle, size_t size,
                             const wm_part* part, int64_t timeout_ns, wm_rows** out,
                             wm_fetch_report* report, wm_message* why);
  /* Of all calls; `source` is WM_OK. */
  wm_status (*fetcher_counts)(const wm_fetcher* fetcher, wm_fetch_report* out);

  /* ---- the formats of others: any thread ---- */

  /* The rows that `data` holds, in any format that docs/formats.md names, documents ("waymark")
   * among them; null `options`: all of it told by the bytes. Rows of an array have step 0 and
   * version 0. `notes` (may be null) gets what a person should know of how they came about, one
   * sentence a line, "" when there is nothing. Any bytes are safe. NOT_FOUND for those of no
   * format; INVALID_ARGUMENT for what is malformed, ambiguous or not said, naming it;
   * RESOURCE_EXHAUSTED beyond max_bytes; of documents also what document_open says. */
  wm_status (*rows_from_format)(const uint8_t* data, size_t size, const wm_format_options* options,
                                wm_rows** out, wm_bytes** notes, wm_message* why);
  /* `rows` in the format that `options` name, documents not among them. `notes`: what of the rows
   * the bytes do not hold. FAILED_PRECONDITION when rows are missing and there is no sentinel;
   * INVALID_ARGUMENT for a format that is only read, and ids that the dtype does not have. */
  wm_status (*rows_to_format)(const wm_rows* rows, const wm_format_options* options, wm_bytes** out,
                              wm_bytes** notes, wm_message* why);

  /* ---- routing ---- */

  /* Routes N tokens: ids, weights and, where asked, the ids as int16. On the calling thread for
   * host tensors; else in one launch on `stream` (cudaStream_t, of the thread's current device,
   * where the tensors lie; null: the legacy default one), which is safe inside a graph capture.
   * Nothing is allocated or waited for. Ids and weights are the same bits on host and device.
   * INVALID_ARGUMENT with WM_RULE_ROUTING: nothing was done; UNAVAILABLE: the device refused the
   * launch; UNIMPLEMENTED: CUDA was not built in. Any thread. */
  wm_status (*route)(const wm_routing* routing, void* stream, wm_code* code);
  /* The same on the session's transport (its stream, on a device), with the ids recorded in rows
   * [0, N) of `layer` of `view`, which is bound WM_SOURCE_ROUTING_KERNEL. N <= max_rows; E and K
   * are the store's. FAILED_PRECONDITION, NOT_FOUND as session_hand_over. Step path, engine's
   * thread. */
  wm_status (*session_route)(wm_session* session, const wm_view* view, int32_t layer,
                             const wm_routing* routing, wm_code* code);
} wm_api_v1;

/* The table. Static, the same for every caller; never null. Any thread. The only symbol. */
WM_EXPORT const wm_api_v1* wm_get_api_v1(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* WAYMARK_PLUGIN_WAYMARK_H_ */
