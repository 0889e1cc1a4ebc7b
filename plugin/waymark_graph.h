/* Waymark's C ABI for an engine whose kernels write expert ids into a buffer, as inside CUDA
 * graphs; and the routing kernel. An engine that has the ids of a step in one array needs waymark.h
 * alone; the rules for structs, arguments, statuses, objects and threads are at its top. C99 and
 * C++.
 *
 * A session gives each forward a buffer, the view, in which every id is -1. Events, rows and the
 * other counters are its capture's, in waymark.h.
 *
 * Example, where `capture` and `batch` are as there, and the model has one MoE layer:
 *
 *   const wm_graph_api_v1* graph = wm_get_api_v1()->graph;
 *   const wm_session_options options = {.struct_size = sizeof options, .capture = capture,
 *                                       .max_rows = 512};  // on a GPU: .transport, too
 *   wm_session* session = NULL;
 *   wm_view view;
 *   if (graph->session_create(&options, &session, NULL) != WM_OK) return NULL;
 *
 *   const wm_status begun = graph->session_begin_step(session, batch, 0, NULL);  // it is scheduled
 *   if (graph->session_view(session, batch->step, &view) != WM_OK) return NULL;
 *   forward(view.data);  // its kernels write the ids of row r from view.data + r * view.top_k on
 *   if (begun == WM_OK) graph->session_submit(session, batch->step, 0, NULL);
 */
#ifndef WAYMARK_PLUGIN_WAYMARK_GRAPH_H_
#define WAYMARK_PLUGIN_WAYMARK_GRAPH_H_

#include "waymark.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wm_session wm_session; /* captures the forwards of one model by their views */

/* ---- the session -------------------------------------------------------------------------- */

enum { WM_TRANSPORT_HOST = 0, WM_TRANSPORT_CUDA = 1 };

typedef struct wm_session_options {
  uint32_t struct_size;
  uint32_t flags;         /* WM_SESSION_* */
  wm_capture* capture;    /* with E <= 32768; retained; its log is the session's; required */
  int32_t max_rows;       /* of the longest forward, padding included: 1 ... 2^20; required */
  int32_t num_buffers;    /* capture buffers, one per step begun and not yet read; 0 = 4 */
  int32_t transport;      /* WM_TRANSPORT_CUDA: WM_UNIMPLEMENTED in a build without CUDA */
  int32_t device_ordinal; /* of the CUDA device */
  /* As wm_capture_options.row_gather, for the steps of this session: a rank's view has its rows
   * alone; max_rows and written_rows count those. */
  const wm_collective* row_gather;
} wm_session_options;

/* One view at one address for every step, as a CUDA graph needs it; not with WM_TRANSPORT_HOST. */
#define WM_SESSION_ONE_VIEW 1u

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

/* ---- the table ---------------------------------------------------------------------------- */

typedef struct wm_graph_api_v1 {
  size_t struct_size; /* bytes of the library's table: a function at or beyond it does not exist */

  /* ---- creation ---- */

  /* UNAVAILABLE if the device does not exist. Any thread. */
  wm_status (*session_create)(const wm_session_options* options, wm_session** out, wm_message* why);
  /* Drops the steps that have a buffer here and have not ended; submitted steps
   * still land. With row_gather it waits until they have been exchanged, at most the option
   * "teardown_timeout" of the capture. Engine's thread. */
  void (*session_release)(wm_session* session);
  /* Binds captured layer `layer` to the module of the model that routes it, which every report
   * names, before the first step. ALREADY_EXISTS, FAILED_PRECONDITION, INVALID_ARGUMENT. Engine's
   * thread. */
  wm_status (*session_bind_layer)(wm_session* session, int32_t layer, const char* module,
                                  wm_message* why);

  /* ---- the step path: engine's thread ---- */

  /* Sets the CUDA stream (cudaStream_t) of all later forwards; null: the default stream. If it
   * changes between the begin of a step and its end, the new stream must wait for the old one. Any
   * other stream on which a forward writes the view must wait for it first, and it must wait for
   * that one before the submit. A stream is valid until the call that replaces it has returned. */
  wm_status (*session_set_stream)(wm_session* session, void* stream);
  /* Begins a step and takes a buffer for its forward. `written_rows`: rows that the forward writes,
   * graph padding included; the larger of it and the rows of the batch counts. RESOURCE_EXHAUSTED:
   * the step was dropped and has ended; its forward runs as usual. */
  wm_status (*session_begin_step)(wm_session* session, const wm_step_batch* batch,
                                  int32_t written_rows, wm_code* code);
  /* Sets *view to the view of `step`; for a step without a buffer, and for step 0, to the scratch
   * view. A forward may always write max_rows rows to it. For a step above the last one begun,
   * session_hand_over refuses it. */
  wm_status (*session_view)(wm_session* session, uint64_t step, wm_view* view);
  /* Copies the first K columns of `ids` into the ids->rows rows from ids->first_row on of a layer;
   * on a device in stream order, and allowed during graph capture. NOT_FOUND: the step of the view
   * has ended, or was not begun. */
  wm_status (*session_hand_over)(wm_session* session, const wm_view* view, int32_t layer,
                                 const wm_ids* ids, wm_code* code);
  /* Submits `step`, whose forward has written the view (host) or has been launched (device). */
  wm_status (*session_submit)(wm_session* session, uint64_t step, int32_t written_rows,
                              wm_code* code);
  /* Ends `step`, whose forward ran, or may have, and whose ids are lost: its rows are missing
   * (capacity). In doubt it is this call. Where session_begin_step had no written_rows, all rows of
   * the view are set to -1 before the buffer is used again. */
  wm_status (*session_drop)(wm_session* session, uint64_t step, wm_code* code);
  /* As session_drop, but the rows are missing (not captured). */
  wm_status (*session_lose)(wm_session* session, uint64_t step, wm_code* code);
  /* Ends `step`, which did not run: no kernel that writes KV was issued. It has no effect, and its
   * seals have none: report them again with the step that runs. */
  wm_status (*session_cancel)(wm_session* session, uint64_t step, wm_code* code);
  /* Sets rows [0, written_rows) of the scratch view to -1, after a forward that belongs to no step.
   * A number above max_rows means all rows. */
  wm_status (*session_discard)(wm_session* session, int32_t written_rows);

  /* ---- off the step path ---- */

  /* Runs `forward` on the scratch view and checks every layer. Writes the first `capacity` findings
   * to `findings`, their number to *count (0: no fault), and one line for each to `text`. Call it
   * at every batch size that has its own kernel. Engine's thread. */
  wm_status (*session_self_test)(wm_session* session, int32_t rows, wm_forward forward,
                                 wm_layer_finding* findings, size_t capacity, size_t* count,
                                 wm_message* text);
  /* OK, or the reason why the transport has failed permanently, or why row_gather is not called any
   * more (4096 steps waited for it): every step is then dropped when it begins. Any thread. */
  wm_status (*session_status)(const wm_session* session, wm_message* why);
  /* Counters of the session, and of one layer. Any thread. */
  wm_status (*session_stats)(const wm_session* session, wm_counter* out, size_t capacity,
                             size_t* count);
  wm_status (*session_layer_stats)(const wm_session* session, int32_t layer, wm_layer_stats* out);
} wm_graph_api_v1;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* WAYMARK_PLUGIN_WAYMARK_GRAPH_H_ */
