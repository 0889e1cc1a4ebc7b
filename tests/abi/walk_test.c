/* Every function of the three tables, from plain C: a scenario for each page of the ABI.
 *
 * Calls go through WM(name), GRAPH(name) and WIRE(name), which note them; in the end every function
 * was called. */
#include <waymark_graph.h>
#include <waymark_wire.h>

#include <dirent.h>
#include <sched.h>
#include <semaphore.h>

#include "tests/abi/table_test.h"

enum { LAYERS = 2, TOP_K = 2, EXPERTS = 8, PAGE = 4, BLOCKS = 16, ROWS = 4 };

static unsigned char called[sizeof(wm_api_v1) / sizeof(void*)];
static unsigned char called_graph[sizeof(wm_graph_api_v1) / sizeof(void*)];
static unsigned char called_wire[sizeof(wm_wire_api_v1) / sizeof(void*)];
#define WM(name) NOTED(wm_api_v1, wm, called, name)
#define GRAPH(name) NOTED(wm_graph_api_v1, wm->graph, called_graph, name)
#define WIRE(name) NOTED(wm_wire_api_v1, wm->wire, called_wire, name)

static const wm_done no_call = {NULL, NULL};

/* The id that belongs at (step, row, layer, k): distinct within a layer, in [0, EXPERTS). */
static int id_of(unsigned long step, int row, int layer, int k) {
  return (int)((step * 3 + (unsigned long)(row * 5 + layer * 2 + k)) % EXPERTS);
}
static void fill(uint8_t* ids, unsigned long step) {
  int i;
  for (i = 0; i < ROWS * LAYERS * TOP_K; ++i)
    ids[i] = (uint8_t)id_of(step, i / (LAYERS * TOP_K), i / TOP_K % LAYERS, i % TOP_K);
}
static void forward(const wm_view* view, unsigned long step, int rows) {
  int layer, row, k;
  for (layer = 0; layer < view->num_layers; ++layer)
    for (row = 0; row < rows; ++row)
      for (k = 0; k < view->top_k; ++k)
        view->data[layer * view->layer_stride + row * view->top_k + k] =
            (int16_t)id_of(step, row, layer, k);
}
static wm_status forward_of_test(void* context, const wm_view* view, int32_t rows) {
  wm_view first = *view;
  first.num_layers -= *(const int*)context; /* layers that are forgotten */
  forward(&first, 1, rows);
  return WM_OK;
}
static void count_call(void* context) {
  ++*(int*)context;
}
/* Counts the lines of each level. */
static void hear(void* context, int32_t level, const char* line, size_t size) {
  CHECK(level >= WM_LOG_INFO && level <= WM_LOG_ERROR && strlen(line) == size);
  if (level == WM_LOG_INFO)
    CHECK(strstr(line, "the capture is on for a walk: 2 layers") == line ||
          strstr(line, "a session captures by views: host, ") == line);
  ++((int*)context)[level];
}

static double counter(const wm_counter* counters, size_t count, const char* name) {
  size_t i;
  for (i = 0; i < count; ++i)
    if (strcmp(counters[i].name, name) == 0 && strlen(counters[i].meaning) > 3)
      return counters[i].value;
  CHECK(!"the counter is there");
  return 0;
}

static wm_capture_options capture_options(void) {
  static const int32_t layer_ids[] = {3, 5};
  static const int32_t null_blocks[] = {0};
  static const wm_option named[] = {{"audit", "true"}, {"audit_threshold", "1"}};
  wm_capture_options options;
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.num_layers = LAYERS;
  options.top_k = TOP_K;
  options.num_experts = EXPERTS;
  options.num_blocks = BLOCKS;
  options.page_tokens = PAGE;
  options.layer_ids = layer_ids;
  options.num_layer_ids = LAYERS;
  options.null_blocks = null_blocks;
  options.num_null_blocks = 1;
  options.options = named;
  options.num_options = 2;
  return options;
}

/* `step` writes the rows of `block`. */
static wm_step_batch batch_of(unsigned long step, int block) {
  static int64_t slots[ROWS];
  wm_step_batch batch;
  int i;
  for (i = 0; i < ROWS; ++i)
    slots[i] = (int64_t)block * PAGE + i;
  memset(&batch, 0, sizeof(batch));
  batch.struct_size = sizeof(batch);
  batch.step = step;
  batch.version = 7;
  batch.slots = slots;
  batch.num_slots = ROWS;
  return batch;
}

static wm_rows* take(wm_capture* capture, const int32_t* blocks, size_t num_blocks) {
  wm_taken* taken = NULL;
  wm_rows* rows = NULL;
  int done = 0;
  const wm_done tell = {&count_call, &done};
  CHECK_OK(
      WM(capture_take)(capture, blocks, num_blocks, 0, (int64_t)num_blocks * PAGE, &taken, &why));
  CHECK_OK(WM(taken_wait)(taken, -1, &why));
  CHECK_OK(WM(taken_done)(taken));
  CHECK_OK(WM(taken_when_done)(taken, tell, &why));
  CHECK(done == 1);
  CHECK_OK(WM(taken_rows)(taken, &rows, &why));
  WM(taken_release)(taken);
  return rows;
}

/* Rows [first, last) are those of `step`, or missing (step 0). */
static void check_rows(const wm_rows* rows, int first, int last, unsigned long step) {
  wm_rows_view view = {sizeof(view), 0, 0, 0, NULL, NULL};
  int row, i;
  CHECK_OK(WM(rows_view)(rows, &view));
  CHECK(last <= view.count);
  for (row = first; row < last; ++row) {
    CHECK((view.infos[row].reason == WM_REASON_NONE) == (step != 0));
    CHECK(view.infos[row].step == step && view.infos[row].version == (step != 0 ? 7u : 0u));
    for (i = 0; i < LAYERS * TOP_K; ++i)
      CHECK(view.ids[row * LAYERS * TOP_K + i] ==
            (step == 0 ? 0 : id_of(step, row - first, i / TOP_K, i % TOP_K)));
  }
}

/* Steps 1 to 3 in blocks 1 to 3, of which the last one is lost; then the state. */
static void walk_capture(wm_capture* capture) {
  static uint8_t ids[2][ROWS * LAYERS * TOP_K];
  const wm_event events[] = {wm_bind(1, NULL, 0), wm_bind(2, NULL, 0), wm_bind(3, NULL, 0),
                             wm_seal(1, "key of block 1", 14, 1)};
  const int32_t blocks[] = {1, 2, 3};
  int done = 0;
  const wm_done tell = {&count_call, &done};
  wm_step_batch batch = batch_of(1, 1);
  wm_ids given = wm_token_major(ids[0], WM_ID_UINT8, ROWS, LAYERS, TOP_K);
  wm_shape shape = {.struct_size = sizeof shape};
  wm_layer_stats layer = {.struct_size = sizeof layer};
  wm_finding finding = {.struct_size = sizeof finding};
  wm_counter counters[100];
  wm_code code;
  uint64_t last = 0;
  int64_t covered = 0;
  size_t count = 0;
  CHECK_OK(WM(capture_shape)(capture, &shape));
  CHECK(shape.num_blocks == BLOCKS && shape.id_bytes == 1 && shape.layer_ids[1] == 5);
  CHECK_OK(WM(capture_name_layer)(capture, 1, "model.layers.5.gate", &why));
  CHECK(wm->capture_name_layer(capture, 1, "again", &why) == WM_ALREADY_EXISTS);

  CHECK_OK(WM(capture_schedule)(capture, 1, 7, &code));
  CHECK_OK(WM(capture_report)(capture, events, 4, &code));
  fill(ids[0], 1);
  CHECK_OK(WM(capture_step)(capture, &batch, &given, tell, &code));
  CHECK(code.code == WM_OK && code.rule == WM_RULE_NONE);
  batch = batch_of(2, 2);
  CHECK_OK(WM(capture_tell)(capture, &batch, &code));
  batch = batch_of(3, 3);
  CHECK_OK(wm->capture_tell(capture, &batch, &code));
  CHECK_OK(WM(capture_lose)(capture, 3, &code));
  given.layers = 1;
  given.data = ids[1];
  CHECK(WM(capture_set_ids)(capture, 2, &given, tell, &code) == WM_INVALID_ARGUMENT);
  CHECK_OK(WM(describe_code)(&code, &why));
  CHECK(code.rule > WM_RULE_IDS && strstr(text, "layers") != NULL);
  given.layers = LAYERS;
  fill(ids[1], 2);
  CHECK_OK(wm->capture_set_ids(capture, 2, &given, tell, &code));
  batch = batch_of(4, 3);
  CHECK_OK(wm->capture_tell(capture, &batch, &code));
  CHECK_OK(WM(capture_not_run)(capture, 4, &code));
  CHECK_OK(WM(capture_wait_idle)(capture, -1, &why));
  CHECK(done == 3); /* one of them was refused */
  CHECK_OK(WM(capture_last_step)(capture, &last));
  CHECK(last == 4);
  CHECK_OK(WM(capture_covered_prefix)(capture, blocks, 3, 3 * ROWS, &covered));
  CHECK(covered == 2 * ROWS);
  CHECK_OK(WM(capture_status)(capture, &why));
  CHECK_OK(WM(capture_stats)(capture, counters, 100, &count));
  CHECK(count < 100 && counter(counters, count, "rows_landed") == 2 * ROWS);
  CHECK(counter(counters, count, "rows_missing.not captured") == ROWS);
  CHECK(counter(counters, count, "steps_cancelled") == 1);
  CHECK(counter(counters, count, "landing_lag_p50_ns") > 0);
  CHECK_OK(WM(capture_layer_stats)(capture, 1, &layer));
  CHECK(layer.layer_id == 5 && strcmp(layer.module, "model.layers.5.gate") == 0);
  CHECK(WM(capture_next_finding)(capture, &finding, &why) == WM_NOT_FOUND);
}

static void walk_rows(const wm_rows* rows) {
  wm_shape shape = {.struct_size = sizeof shape};
  wm_rows_view lent = {.struct_size = sizeof lent};
  wm_rows *tail = NULL, *joined = NULL;
  const wm_rows* parts[2];
  check_rows(rows, 0, ROWS, 1);
  check_rows(rows, ROWS, 2 * ROWS, 2);
  check_rows(rows, 2 * ROWS, 3 * ROWS, 0);
  CHECK_OK(WM(rows_view)(rows, &lent));
  CHECK(lent.infos[2 * ROWS].reason == WM_REASON_NOT_CAPTURED);
  CHECK_OK(WM(rows_shape)(rows, &shape));
  CHECK(shape.block_tokens == 0 && shape.layer_ids[0] == 3);
  /* the tail of it, as a read of its own, and both together */
  CHECK_OK(wm->rows_view(rows, &lent));
  lent.first = ROWS, lent.count = 2 * ROWS;
  lent.ids += ROWS * shape.row_bytes, lent.infos += ROWS;
  CHECK_OK(WM(rows_create)(&shape, &lent, &tail, &why));
  parts[0] = rows, parts[1] = tail;
  CHECK_OK(WM(rows_join)(parts, 2, &joined, &why));
  check_rows(joined, ROWS, 2 * ROWS, 2);
  WM(rows_release)(joined);
  CHECK(WM(rows_join_layers)(parts, 2, &joined, &why) == WM_INVALID_ARGUMENT);
  CHECK_OK(wm->rows_join_layers(parts, 1, &joined, &why));
  wm->rows_release(joined);
  wm->rows_release(tail);
}

/* Steps 5 to 10 by views: layer 0 handed over, layer 1 written. */
static void walk_graph(wm_capture* capture) {
  wm_session_options options = {
      .struct_size = sizeof options, .capture = capture, .max_rows = 8, .num_buffers = 8};
  const wm_event binds[] = {wm_bind(5, NULL, 0), wm_bind(6, NULL, 0)};
  const int32_t blocks[] = {5, 6};
  int32_t wide[ROWS * (TOP_K + 1)] = {0};
  wm_ids ids = wm_token_major(wide, WM_ID_INT32, ROWS, 1, TOP_K + 1);
  wm_layer_finding findings[2];
  int forgotten = 1;
  const wm_forward test = {&forward_of_test, &forgotten};
  wm_layer_stats layer = {.struct_size = sizeof layer};
  wm_counter counters[20];
  wm_session* session = NULL;
  const wm_owner owner = {.struct_size = sizeof owner, .last_step = 5};
  wm_taken* taken = NULL;
  wm_step_batch batch = batch_of(5, 5);
  wm_view view;
  wm_code code;
  wm_rows* rows;
  size_t count = 9;
  int row, k;
  CHECK_OK(WM(capture_report)(capture, binds, 2, NULL));
  CHECK_OK(GRAPH(session_create)(&options, &session, &why));
  options.transport = WM_TRANSPORT_CUDA;
  {
    wm_session* none = NULL;
    const wm_status cuda = wm->graph->session_create(&options, &none, &why);
    CHECK(cuda == WM_OK || cuda == WM_UNIMPLEMENTED || cuda == WM_UNAVAILABLE);
    wm->graph->session_release(none);
  }
  CHECK_OK(GRAPH(session_bind_layer)(session, 0, "model.layers.3.gate", &why));
  CHECK_OK(GRAPH(session_set_stream)(session, NULL));
  CHECK_OK(GRAPH(session_self_test)(session, 5, test, findings, 2, &count, &why));
  CHECK(count == 1 && findings[0].layer == 1 && findings[0].fault == WM_FAULT_SILENT);

  CHECK_OK(GRAPH(session_begin_step)(session, &batch, 6, &code));
  CHECK_OK(GRAPH(session_view)(session, 5, &view));
  CHECK(view.step == 5 && view.max_rows == 8 && view.num_layers == LAYERS);
  forward(&view, 5, 6); /* two rows of padding */
  for (row = 0; row < ROWS; ++row)
    for (k = 0; k <= TOP_K; ++k)
      wide[row * (TOP_K + 1) + k] = k < TOP_K ? id_of(5, row, 0, k) : 99; /* a shared expert */
  CHECK(wm->graph->session_hand_over(session, &view, 0, &ids, &code) == WM_INVALID_ARGUMENT);
  ids.columns = TOP_K; /* the rows are apart as before */
  CHECK_OK(GRAPH(session_hand_over)(session, &view, 0, &ids, &code));
  CHECK_OK(GRAPH(session_submit)(session, 5, 0, &code));
  CHECK(wm->graph->session_submit(session, 5, 0, &code) == WM_NOT_FOUND);
  batch = batch_of(6, 6);
  batch.num_slots = 2;
  CHECK_OK(wm->graph->session_begin_step(session, &batch, 0, NULL));
  CHECK_OK(wm->graph->session_view(session, 6, &view));
  forward(&view, 6, 2);
  CHECK_OK(GRAPH(session_submit)(session, 6, 0, &code));
  batch.num_slots = 0;
  for (batch.step = 7; batch.step <= 9; ++batch.step)
    CHECK_OK(wm->graph->session_begin_step(session, &batch, 0, &code));
  CHECK_OK(GRAPH(session_drop)(session, 7, &code));
  CHECK_OK(GRAPH(session_lose)(session, 8, &code));
  CHECK_OK(GRAPH(session_cancel)(session, 9, &code));
  CHECK_OK(GRAPH(session_discard)(session, 8));
  rows = take(capture, blocks, 2);
  check_rows(rows, 0, ROWS, 5);
  check_rows(rows, ROWS, ROWS + 2, 6);
  check_rows(rows, ROWS + 2, 2 * ROWS, 0);
  wm->rows_release(rows);
  CHECK_OK(WM(capture_take_of)(capture, &owner, blocks, 2, 0, 2 * PAGE, &taken, &why));
  CHECK_OK(WM(taken_wait)(taken, -1, &why));
  CHECK_OK(WM(taken_rows)(taken, &rows, &why));
  check_rows(rows, 0, ROWS, 5); /* step 6 is of a later owner */
  check_rows(rows, ROWS, 2 * ROWS, 0);
  wm->rows_release(rows);
  wm->taken_release(taken);

  CHECK_OK(GRAPH(session_status)(session, &why));
  CHECK_OK(GRAPH(session_stats)(session, counters, 20, &count));
  CHECK(counter(counters, count, "steps_begun") == 5);
  CHECK(counter(counters, count, "rows_handed_over") == ROWS);
  CHECK_OK(GRAPH(session_layer_stats)(session, 0, &layer));
  CHECK(strcmp(layer.module, "model.layers.3.gate") == 0 && layer.rows_silent == 0);
  batch = batch_of(10, 6);
  CHECK_OK(wm->graph->session_begin_step(session, &batch, 0, &code));
  GRAPH(session_release)(session); /* drops step 10 */
}

/* Rows as a document, in bytes and in a file. */
static void walk_wire(const wm_rows* rows) {
  static const char path[] = "walk_test.wmk";
  const wm_chunk_code set = {.struct_size = sizeof set, .codec = WM_CODEC_SET};
  const wm_document_options options = {
      .struct_size = sizeof options, .flags = WM_DOCUMENT_WITH_NODES, .code = &set};
  const wm_part part = {
      .struct_size = sizeof part, .begin = ROWS, .end = 2 * ROWS, .layer_begin = 1};
  wm_read_damage damage = {.struct_size = sizeof damage};
  wm_shape shape = {.struct_size = sizeof shape};
  wm_bytes* bytes = NULL;
  wm_rows* got = NULL;
  const uint8_t* data = NULL;
  size_t size = 0;

  CHECK_OK(WIRE(rows_document)(rows, NULL, &bytes, &why));
  CHECK_OK(WIRE(bytes_view)(bytes, &data, &size));
  CHECK_OK(WIRE(document_read)(data, size, NULL, &part, &got, &damage, &why));
  CHECK_OK(wm->rows_shape(got, &shape));
  CHECK(shape.num_layers == 1 && shape.layer_ids[0] == 5 && damage.damaged_chunks == 0);
  wm->rows_release(got);
  CHECK_OK(wm->wire->document_read(data, size, NULL, NULL, &got, NULL, &why));
  check_rows(got, ROWS, 2 * ROWS, 2);
  wm->rows_release(got);
  CHECK_OK(WIRE(rows_write_document)(rows, &options, path, &why));
  CHECK_OK(WIRE(document_read_file)(path, NULL, NULL, &got, NULL, &why));
  check_rows(got, 2 * ROWS, 3 * ROWS, 0);
  wm->rows_release(got);
  WIRE(bytes_release)(bytes);
  remove(path);
}

static sem_t
    told; /* once for each callback; ThreadSanitizer sees it in a file that is not its own */
static void when_told(void* context) {
  sem_wait(&told);
  if (context != NULL) wm->capture_release(context);
}

static int threads(void) {
  DIR* const tasks = opendir("/proc/self/task");
  int n = 0;
  CHECK(tasks != NULL);
  while (readdir(tasks) != NULL)
    ++n;
  closedir(tasks);
  return n;
}

/* Events that were lost cost the rows that are there, and nothing that comes later. */
static void walk_loss(void) {
  const wm_capture_options options = capture_options();
  const int32_t blocks[] = {1};
  const wm_event event = wm_bind(1, NULL, 0);
  const wm_step_batch batch = batch_of(1, 1);
  uint8_t ids[ROWS * LAYERS * TOP_K];
  const wm_ids given = wm_token_major(ids, WM_ID_UINT8, ROWS, LAYERS, TOP_K);
  wm_capture* capture = NULL;
  wm_rows* rows = NULL;
  fill(ids, 1);
  CHECK_OK(wm->capture_create(&options, &capture, &why));
  CHECK_OK(wm->capture_report(capture, &event, 1, NULL));
  CHECK_OK(wm->capture_step(capture, &batch, &given, no_call, NULL));
  CHECK_OK(WM(capture_lose_rows)(capture, NULL));
  rows = take(capture, blocks, 1);
  check_rows(rows, 0, ROWS, 0);
  wm->rows_release(rows);
  wm->capture_release(capture);
}

/* The last reference may go away in a callback on a thread of the library, which ends behind it. */
static void walk_release(void) {
  const int before = threads();
  const wm_capture_options options = capture_options();
  const int32_t blocks[] = {1};
  static const uint8_t same[ROWS * LAYERS * TOP_K] = {0};
  const wm_ids given = wm_token_major(same, WM_ID_UINT8, ROWS, LAYERS, TOP_K);
  int of_step;
  for (of_step = 0; of_step < 2; ++of_step) {
    const wm_step_batch batch = batch_of(1, 1);
    wm_capture* capture = NULL;
    wm_taken* taken = NULL;
    wm_done call = {&when_told, NULL};
    sem_init(&told, 0, 0);
    CHECK_OK(wm->capture_create(&options, &capture, &why));
    if (of_step) call.context = capture;
    CHECK_OK(wm->capture_step(capture, &batch, &given, call, NULL));
    CHECK_OK(wm->capture_take(capture, blocks, 1, 0, ROWS, &taken, &why));
    call.context = of_step ? NULL : capture;
    CHECK_OK(wm->taken_when_done(taken, call, &why));
    sem_post(&told);
    sem_post(&told);
    CHECK_OK(wm->taken_wait(taken, -1, &why));
    wm->taken_release(taken);
    while (threads() > before) /* their callbacks have ended, too */
      sched_yield();
  }
}

int main(void) {
  wm_capture_options options = capture_options();
  const wm_recorder_options ring = {.struct_size = sizeof ring, .ring_bytes = 1 << 20};
  const int32_t blocks[] = {1, 2, 3};
  int heard[] = {0, 0, 0};
  wm_finding finding = {.struct_size = sizeof finding};
  uint8_t other[ROWS * LAYERS * TOP_K] = {0};
  wm_ids ids = wm_token_major(other, WM_ID_UINT8, ROWS, LAYERS, TOP_K);
  wm_step_batch batch;
  wm_capture* capture = NULL;
  wm_rows* rows;

  wm = wm_get_api_v1();
  CHECK(wm != NULL && wm == wm_get_api_v1());
  CHECK(wm->struct_size == sizeof(wm_api_v1) && wm->wire->struct_size == sizeof(wm_wire_api_v1));
  CHECK(wm->graph->struct_size == sizeof(wm_graph_api_v1));
  CHECK(wm->abi_major == WM_ABI_MAJOR && wm->abi_minor == WM_ABI_MINOR);
  CHECK(strlen(WM(version)()) >= 5);
  CHECK(strncmp(WM(build_info)(), "version=", 8) == 0 && strchr(wm->build_info(), '\n') == NULL);
  CHECK(strcmp(WM(status_name)(WM_DATA_LOSS), "DATA_LOSS") == 0);
  CHECK(strcmp(WM(reason_name)(WM_REASON_NEVER_WRITTEN), "never written") == 0);
  CHECK(strcmp(WM(cause_name)(WM_CAUSE_EVICTED), "the page was evicted") == 0);
  CHECK(strcmp(WM(provenance_name)(WM_PROVENANCE_BY_KEY), "by key") == 0);

  options.recorder = &ring;
  options.log.function = &hear;
  options.log.context = heard;
  options.engine = "a walk";
  CHECK_OK(WM(capture_create)(&options, &capture, &why));
  CHECK(why.size == 0 && text[0] == 0);
  walk_capture(capture);
  rows = take(capture, blocks, 3);
  walk_rows(rows);
  walk_wire(rows);
  walk_graph(capture);
  walk_loss();
  walk_release();

  /* the last write disagrees with what is kept: an audit's finding */
  batch = batch_of(11, 1); /* block 1 again, which is sealed */
  fill(other, 2);
  CHECK_OK(wm->capture_step(capture, &batch, &ids, no_call, NULL));
  CHECK_OK(wm->capture_wait_idle(capture, -1, &why));
  CHECK_OK(wm->capture_next_finding(capture, &finding, &why));
  CHECK(finding.block == 1 && finding.step == 11 && finding.kept_step == 1 && finding.voided == 1);
  CHECK(strstr(text, "block 1") != NULL);
  CHECK_OK(WM(capture_dump)(capture, "walk_test.flight", &why));
  remove("walk_test.flight");
  WM(capture_release)(capture); /* its log was heard by then */
  /* a step that was dropped, and the finding */
  CHECK(heard[WM_LOG_INFO] == 2 && heard[WM_LOG_WARNING] == 2 && heard[WM_LOG_ERROR] == 0);
  WM(log_discard)(NULL, WM_LOG_ERROR, "", 0);
  check_rows(rows, ROWS, 2 * ROWS, 2); /* outlives them all */
  wm->rows_release(rows);

  CHECK_CALLED(wm_api_v1, capture_create, called);
  CHECK_CALLED(wm_graph_api_v1, session_create, called_graph);
  CHECK_CALLED(wm_wire_api_v1, rows_document, called_wire);
  return 0;
}
