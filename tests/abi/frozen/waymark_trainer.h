/* Waymark's C ABI for a trainer that replays routing. C99 and C++.
 *
 * A plan says which tokens the rows of one rank's routers belong to; fill writes the expert ids of
 * these rows, straight from where they are; audit compares what the routers were given with what
 * they would have chosen themselves. The rules for structs, arguments, statuses and objects are at
 * the top of waymark.h; docs/training.md describes replay in a trainer.
 *
 * Example, layers 0 and 1 on the first of two context ranks, of 8 tokens with rows in `rows`:
 *
 *   const int64_t tokens = 8;
 *   wm_trainer_layout layout = {.struct_size = sizeof layout, .context_size = 2};
 *   wm_trainer_plan* plan = NULL;
 *   wm_status status = trainer->plan_create(&layout, &tokens, NULL, 1, &plan, &why);
 *   wm_trainer_source source = {.struct_size = sizeof source, .rows = rows};
 *   const wm_trainer_source* sources[] = {&source};
 *   const int32_t layers[] = {0, 1};
 *   int64_t ids[2][4][2]; // [layers][rows of the plan][K]: tokens 0, 1, 6 and 7
 *   uint8_t mask[4];
 *   wm_trainer_fill_args args = {.struct_size = sizeof args, .plan = plan, .sources = sources,
 *                                .num_sources = 1, .layers = layers, .num_layers = 2,
 *                                .id_type = WM_ID_INT64, .fill = WM_FILL_ARANGE, .ids = ids,
 *                                .ids_bytes = sizeof ids, .mask = mask, .mask_bytes = sizeof mask};
 *   wm_trainer_report report = {.struct_size = sizeof report};
 *   if (status == WM_OK) status = trainer->fill(&args, &report, &why);
 *   trainer->plan_release(plan);
 */
#ifndef WAYMARK_ADAPTERS_TRAINER_WAYMARK_TRAINER_H_
#define WAYMARK_ADAPTERS_TRAINER_WAYMARK_TRAINER_H_

#include "waymark.h"
#include "waymark_wire.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- plans -------------------------------------------------------------------------------- */

typedef struct wm_trainer_plan wm_trainer_plan; /* the rows of a rank; immutable, any thread */

/* How the tokens of a micro-batch become rows, before they are cut for tensor parallelism. */
enum {
  WM_TRAINER_PACKED = 0,     /* THD: sequence after sequence, each padded and cut by itself */
  WM_TRAINER_SEQUENCE_MAJOR, /* BSHD: row s * batch + b (Megatron-Core) */
  WM_TRAINER_BATCH_MAJOR     /* BSHD: row b * length + s (Hugging Face) */
};
/* How context parallelism cuts a padded sequence between C ranks. */
enum {
  WM_TRAINER_ZIGZAG = 0, /* 2 C equal chunks; rank r has chunks r and 2 C - 1 - r */
  WM_TRAINER_CONTIGUOUS, /* C equal chunks; rank r has chunk r */
  WM_TRAINER_STREAM      /* packed only: C equal chunks of all padded sequences together */
};

/* Tensor ranks cut the rows (packed) or the positions (BSHD) of their context rank into equal
 * contiguous parts. Without it each of them has all. */
#define WM_TRAINER_SEQUENCE_PARALLEL 1u

typedef struct wm_trainer_layout {
  uint32_t struct_size; /* required */
  uint32_t flags;       /* WM_TRAINER_SEQUENCE_PARALLEL */
  const wm_ext* ext;
  int32_t order;             /* WM_TRAINER_PACKED, ... */
  int32_t context_cut;       /* WM_TRAINER_ZIGZAG, ... */
  int32_t context_size;      /* context-parallel ranks; 0: 1 */
  int32_t context_rank;      /* of this rank */
  int32_t tensor_size;       /* tensor-parallel ranks; 0: 1 */
  int32_t tensor_rank;       /* of this rank */
  int64_t sequence_multiple; /* each sequence, or the longest, is padded to a multiple; 0: 1 */
  int64_t total_multiple;    /* packed: the padded sequences together, behind the last; 0: 1 */
  int64_t local_multiple;    /* packed: the rows of a context rank, behind the last; 0: 1 */
} wm_trainer_layout;

/* Tokens position, position + 1, ... of a sequence, in rows row, row + row_stride, ... */
typedef struct wm_trainer_segment {
  int32_t sequence; /* index in the lengths of the plan */
  int32_t reserved; /* 0 */
  int64_t position;
  int64_t count; /* at least 1 */
  int64_t row;
  int64_t row_stride;
} wm_trainer_segment;

/* A model chunk of a pipeline stage: see LayersOfStage in adapters/trainer/stage_layers.h. */
typedef struct wm_trainer_pipeline {
  uint32_t struct_size; /* required */
  uint32_t flags;       /* must be zero */
  const wm_ext* ext;
  int32_t num_layers;         /* decoder layers of the model, dense ones included; required */
  int32_t pipeline_size;      /* stages; 0: 1 */
  int32_t pipeline_rank;      /* of this stage */
  int32_t virtual_size;       /* model chunks of each stage; 0: 1 */
  int32_t virtual_rank;       /* the chunk that is meant */
  int32_t first_stage_layers; /* of the first stage, all chunks together; 0: as the others */
  int32_t last_stage_layers;
} wm_trainer_pipeline;

/* ---- filling ------------------------------------------------------------------------------ */

/* Where the rows of one sequence are: exactly one of rows, snapshot, document, fetcher and ids. It
 * has rows [0, tokens - 1) or [0, tokens) of a sequence. The objects are used during the call. */
typedef struct wm_trainer_source {
  uint32_t struct_size; /* required */
  uint32_t flags;       /* must be zero */
  const wm_ext* ext;
  const wm_rows* rows;
  const wm_snapshot* snapshot; /* ready, and used by no other thread meanwhile */
  const wm_document* document;
  wm_fetcher* fetcher;   /* of the rows that `handle` names */
  const uint8_t* handle; /* [handle_bytes] */
  size_t handle_bytes;
  int64_t timeout_ns; /* of the page source; rows that have not arrived are missing; < 0: none */
  /* Rows [first, first + count) in memory of the caller. Row i: [L][K] ids, uint8 if E <= 256, else
   * uint16, at ids + i * row_stride; why it is missing, 0 if it is valid, at
   * reasons[i * reason_stride]. */
  const wm_shape* shape; /* as for rows_create */
  int64_t first;
  int64_t count;
  const uint8_t* ids;
  int64_t row_stride;     /* bytes; 0: L * K ids */
  const uint8_t* reasons; /* null: all rows are valid */
  int64_t reason_stride;  /* bytes; 0: 1 */
} wm_trainer_source;

/* Sources may have fewer rows; the others are missing (never written). */
#define WM_TRAINER_PARTIAL 1u
/* ids is [rows of the plan][num_layers][K], as rows are stored: id_type is WM_ID_UINT8 up to 256
 * experts, else WM_ID_UINT16. What expand makes the tensors of, in a device's memory for instance. A
 * row without routing is all zeros; in mask it is 0. */
#define WM_TRAINER_PACKED_ROWS 2u

typedef struct wm_trainer_fill_args {
  uint32_t struct_size; /* required */
  uint32_t flags;       /* WM_TRAINER_PARTIAL, WM_TRAINER_PACKED_ROWS */
  const wm_ext* ext;
  const wm_trainer_plan* plan;             /* required */
  const wm_trainer_source* const* sources; /* [num_sources], one a sequence of the plan; required */
  size_t num_sources;                      /* required */
  const int32_t* layers; /* [num_layers]: the model's numbers, from 0, in order of the tensors */
  size_t num_layers;     /* required */
  int32_t id_type;       /* WM_ID_*; must hold every id; required */
  int32_t fill;          /* WM_FILL_* of rows without routing; required. Megatron-Core takes */
                         /* distinct ids only: WM_FILL_ARANGE */
  void* ids;             /* [num_layers][rows of the plan][K], C order; required */
  uint64_t ids_bytes;    /* exactly their size; required */
  uint8_t* mask;         /* [rows of the plan]: 1: the engine's ids; 0: the fill; or null */
  size_t mask_bytes;     /* rows of the plan, or 0 */
} wm_trainer_fill_args;

/* What the rows got; they add up to the rows of the plan. */
typedef struct wm_trainer_report {
  uint32_t struct_size; /* required */
  uint32_t reserved;
  int64_t replayed;               /* rows with the engine's ids */
  int64_t padding;                /* rows of no token */
  int64_t no_row;                 /* last tokens: never an input of the engine */
  int64_t missing[8];             /* by reason */
  int64_t first_missing_position; /* the first row that is missing; -1: none is */
  int64_t first_missing_sequence;
} wm_trainer_report;

/* All arrays are in the memory of a CUDA device, the thread's current one. */
#define WM_TRAINER_ON_DEVICE 1u

typedef struct wm_trainer_expand_args {
  uint32_t struct_size; /* required */
  uint32_t flags;       /* WM_TRAINER_ON_DEVICE */
  const wm_ext* ext;
  int32_t num_layers;  /* tensors; required */
  int32_t top_k;       /* required */
  int32_t num_experts; /* required */
  int32_t id_type;     /* WM_ID_* of the tensors; must hold every id; required */
  int32_t fill;        /* WM_FILL_* of rows without routing; required */
  int32_t reserved;    /* must be zero */
  int64_t rows;        /* of a tensor; required */
  const void* packed;  /* [rows][num_layers][top_k], as filled (WM_TRAINER_PACKED_ROWS); required */
  uint64_t packed_bytes; /* exactly their size; required */
  const uint8_t* mask;   /* [rows], as filled; required */
  size_t mask_bytes;     /* rows; required */
  void* ids;             /* [num_layers][rows][top_k], C order; required */
  uint64_t ids_bytes;    /* exactly their size; required */
  void* stream;          /* of a device: a cudaStream_t; null: its default stream */
} wm_trainer_expand_args;

/* ---- the replay audit --------------------------------------------------------------------- */

/* What can be wrong with ids that a router replays: see wm_trainer_alarm. */
enum {
  WM_REPLAY_SHIFTED = 0,    /* they are those of the token `by` positions later (< 0: earlier) */
  WM_REPLAY_LAYERS,         /* layer `layer` has the ids of layer `by`; -1: of none of these */
  WM_REPLAY_OTHER_SEQUENCE, /* the ids of `sequence` are in the rows of sequence `by`; -1: of none */
  WM_REPLAY_BATCH_MAJOR,    /* they are in batch-major order, and the router's rows are not */
  WM_REPLAY_SEQUENCE_MAJOR, /* the other way round */
  WM_REPLAY_STALE_WEIGHTS   /* they are of these tokens, chosen by other weights */
};

typedef struct wm_trainer_alarm {
  int32_t error;    /* WM_REPLAY_* */
  int32_t sequence; /* the first that has it; -1: all */
  int32_t layer;    /* the first that has it, by its place in the tensors; -1: all */
  int32_t reserved; /* 0 */
  int64_t by;
  int64_t count;    /* sequences, or layers, that have it */
  double agreement; /* of the rows and layers meant, as they were given */
  double explained; /* and as the error says that they should have been */
} wm_trainer_alarm;

typedef struct wm_trainer_audit_args {
  uint32_t struct_size; /* required */
  uint32_t flags;       /* must be zero */
  const wm_ext* ext;
  const wm_trainer_plan* plan; /* required */
  int32_t num_layers;          /* tensors; required */
  int32_t top_k;               /* required */
  int32_t num_experts;         /* required */
  int32_t given_type;          /* WM_ID_* of given; required */
  const void* given;           /* [num_layers][rows of the plan][K], as filled; required */
  uint64_t given_bytes;        /* required */
  const uint8_t* mask;         /* [rows of the plan], as filled; required */
  size_t mask_bytes;           /* required */
  int32_t own_type;            /* WM_ID_* of own; required */
  int32_t reserved;            /* must be zero */
  const void* own;     /* [num_layers][num_rows][K]: what the router would have chosen; required */
  uint64_t own_bytes;  /* required */
  const int64_t* rows; /* [num_rows]: the local rows that own has, in any order; null: all */
  size_t num_rows;
  double least_agreement; /* an alarm below it, of few ids two standard deviations; 0: 0.8 */
  int64_t max_rows;       /* that are compared; 0: 256 */
  double* layers;         /* [num_layers_out]: agreement by layer; or null */
  size_t num_layers_out;  /* num_layers, or 0 */
  double* positions;      /* [num_positions]: by local row; -1: not compared; or null */
  size_t num_positions;   /* rows of the plan, or 0 */
  double* sequences;      /* [num_sequences]: by sequence; -1: none of its rows; or null */
  size_t num_sequences;   /* sequences of the plan, or 0 */
} wm_trainer_audit_args;

/* Agreements are shares, in [0, 1], of the given ids that are the router's own, too. */
typedef struct wm_trainer_audit {
  uint32_t struct_size; /* required */
  uint32_t reserved;
  double agreement; /* of all rows and layers that were compared */
  double chance;    /* of the ids of different tokens, measured on these rows */
  int64_t rows;     /* compared */
} wm_trainer_audit;

/* How one layer of two captures of the same tokens agrees. */
typedef struct wm_trainer_agreement {
  int64_t rows;       /* that are valid in both */
  int64_t same_set;   /* of them, rows with the same experts, in any order */
  int64_t same_order; /* of them, rows with the same experts in the same order */
  int64_t ids;        /* ids of these rows in one capture */
  int64_t shared_ids; /* of them, ids that are in both */
} wm_trainer_agreement;

/* ---- the table ---------------------------------------------------------------------------- */

/* Functions of any thread, off the step path. */
typedef struct wm_trainer_api_v1 {
  uint32_t struct_size; /* of the table that the library has */
  uint32_t reserved;

  /* The rows of one rank. `lengths`: the tokens of each sequence of the micro-batch.
   * `padded_lengths`: those after padding, for a trainer with rules of its own; null: by
   * layout->sequence_multiple. INVALID_ARGUMENT unless the ranks get equal parts. */
  wm_status (*plan_create)(const wm_trainer_layout* layout, const int64_t* lengths,
                           const int64_t* padded_lengths, size_t num_sequences,
                           wm_trainer_plan** out, wm_message* why);
  void (*plan_retain)(wm_trainer_plan* plan);
  void (*plan_release)(wm_trainer_plan* plan);
  /* Rows of this rank, padding included; -1 for no plan. */
  int64_t (*plan_rows)(const wm_trainer_plan* plan);
  /* Writes up to `capacity` segments, by sequence and position, and sets *count to their number.
   * Rows in none are padding. */
  wm_status (*plan_segments)(const wm_trainer_plan* plan, wm_trainer_segment* segments,
                             size_t capacity, size_t* count, wm_message* why);
  /* Layers [*first, *first + *count) of a model chunk, numbered from 0. */
  wm_status (*stage_layers)(const wm_trainer_pipeline* pipeline, int32_t* first, int32_t* count,
                            wm_message* why);

  /* Fills the tensors of the routers. Rows are checked: an id out of range, or twice in a layer,
   * makes the row missing (invalid id). INVALID_ARGUMENT also if sources differ in K or E, have not
   * exactly the rows of their tokens, or lack a layer. Errors of the objects. On an error nothing is
   * written. */
  wm_status (*fill)(const wm_trainer_fill_args* args, wm_trainer_report* report, wm_message* why);
  /* INVALID_ARGUMENT, naming the first row and layer, unless the ids of every valid row are in
   * range and distinct in each layer. `source`: one with ids. */
  wm_status (*check_ids)(const wm_trainer_source* source, wm_message* why);

  /* Compares what the routers were given with their own choices, and names what is wrong. Writes up
   * to `capacity` alarms and sets *num_alarms to their number; 0: all is well. */
  wm_status (*audit)(const wm_trainer_audit_args* args, wm_trainer_audit* audit,
                     wm_trainer_alarm* alarms, size_t capacity, size_t* num_alarms,
                     wm_message* why);
  /* An alarm in one sentence for people. */
  wm_status (*alarm_text)(const wm_trainer_alarm* alarm, wm_message* text);
  /* Compares two captures of the same tokens, layer by layer, on the positions that both have.
   * Writes up to `capacity` layers and sets *count to their number. INVALID_ARGUMENT unless both
   * have the same layers and K and some positions in common. */
  wm_status (*agreement)(const wm_rows* a, const wm_rows* b, wm_trainer_agreement* layers,
                         size_t capacity, size_t* count, wm_message* why);

  /* Makes the tensors of packed rows, where they are. On a device: one launch on `stream`, in the
   * order of its work; the arrays are used until it has run. UNIMPLEMENTED on a device if the library
   * was built without CUDA; UNAVAILABLE, with the number of the cudaError_t, if the launch failed. */
  wm_status (*expand)(const wm_trainer_expand_args* args, wm_message* why);
} wm_trainer_api_v1;

/* The table: static, the same for every caller, never null. Any thread. */
WM_EXPORT const wm_trainer_api_v1* wm_get_trainer_api_v1(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* WAYMARK_ADAPTERS_TRAINER_WAYMARK_TRAINER_H_ */
