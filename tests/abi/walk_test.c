/* Every function of both tables, from plain C: an engine of three steps, read back row by row.
 *
 * Calls go through WM(name) and WIRE(name), which note them; in the end every function was called. */
#include <waymark_wire.h>

#include "tests/abi/table_test.h"

enum { LAYERS = 2, TOP_K = 2, EXPERTS = 8, PAGE = 4, BLOCKS = 16, ROWS = 4 };

static unsigned char called[sizeof(wm_api_v1) / sizeof(void*)];
static unsigned char called_wire[sizeof(wm_wire_api_v1) / sizeof(void*)];
#define WM(name) NOTED(wm_api_v1, wm, called, name)
#define WIRE(name) NOTED(wm_wire_api_v1, wm->wire, called_wire, name)

/* The id that belongs at (step, row, layer, k): distinct within a layer, in [0, EXPERTS). */
static int id_of(unsigned long step, int row, int layer, int k) {
  return (int)((step * 3 + (unsigned long)(row * 5 + layer * 2 + k)) % EXPERTS);
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
  ++*(int*)context;
  forward(view, 1, rows);
  return WM_OK;
}

static wm_status forward_that_forgets(void* context, const wm_view* view, int32_t rows) {
  wm_view first = *view;
  (void)context;
  first.num_layers = 1;
  forward(&first, 1, rows);
  return WM_OK;
}

static void count_done(void* context) {
  ++*(int*)context;
}

/* What was heard last, and how often. */
typedef struct heard {
  int times, level;
  char last[512];
} heard;

static void hear(void* context, int32_t level, const char* line, size_t size) {
  heard* of = (heard*)context;
  ++of->times;
  of->level = (int)level;
  CHECK(strlen(line) == size && size < sizeof(of->last));
  memcpy(of->last, line, size + 1);
}

static wm_status gather_alone(void* context, const void* send, void* receive, size_t bytes) {
  ++*(int*)context;
  memcpy(receive, send, bytes);
  return WM_OK;
}

static wm_store_options store_options(void) {
  static const int32_t layer_ids[] = {3, 5};
  static const int32_t null_blocks[] = {0};
  wm_store_options options;
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.flags = WM_STORE_DEVICE_SLOTS;
  options.num_layers = LAYERS;
  options.top_k = TOP_K;
  options.num_experts = EXPERTS;
  options.num_blocks = BLOCKS;
  options.page_tokens = PAGE;
  options.layer_ids = layer_ids;
  options.num_layer_ids = LAYERS;
  options.null_blocks = null_blocks;
  options.num_null_blocks = 1;
  options.landing = WM_LANDING_CALLER;
  options.audit_threshold = 1.0;
  return options;
}

static wm_step_batch batch_of(unsigned long step, const wm_event* events, size_t num_events,
                              const int64_t* slots, size_t num_slots) {
  wm_step_batch batch;
  memset(&batch, 0, sizeof(batch));
  batch.struct_size = sizeof(batch);
  batch.step = step;
  batch.version = 7;
  batch.events = events;
  batch.num_events = num_events;
  batch.slots = slots;
  batch.num_slots = num_slots;
  return batch;
}

static void check_rows(const int32_t* ids, const wm_row_info* infos, int first, int last,
                       unsigned long step, int is_valid) {
  int row, layer, k;
  for (row = first; row < last; ++row) {
    CHECK((infos[row].reason == WM_REASON_NONE) == is_valid);
    CHECK(infos[row].step == (is_valid ? step : 0) && infos[row].version == (is_valid ? 7u : 0u));
    for (layer = 0; layer < LAYERS; ++layer)
      for (k = 0; k < TOP_K; ++k)
        CHECK(ids[(row * LAYERS + layer) * TOP_K + k] ==
              (is_valid ? id_of(step, row - first, layer, k) : -1));
  }
}

/* A page source of the engine's own: a few objects in memory. */
typedef struct own_objects {
  int count, destroyed;
  wm_digest names[8];
  uint8_t* data[8];
  uint64_t sizes[8];
} own_objects;

static int own_find(const own_objects* own, const wm_digest* name) {
  int i;
  for (i = 0; i < own->count; ++i)
    if (memcmp(&own->names[i], name, sizeof(*name)) == 0) return i;
  return -1;
}

static wm_status own_get(void* context, const wm_digest* digests, size_t count, int64_t timeout_ns,
                         wm_reply* reply, wm_message* error) {
  const own_objects* own = (const own_objects*)context;
  size_t i;
  CHECK(count > 0 && timeout_ns > 0 && error != NULL);
  for (i = 0; i < count; ++i) {
    const int at = own_find(own, &digests[i]);
    if (at < 0) continue;
    CHECK_OK(WIRE(reply_object)(reply, i, own->data[at], own->sizes[at]));
  }
  CHECK(wm->wire->reply_object(reply, count, NULL, 0) == WM_INVALID_ARGUMENT);
  return WM_OK;
}

static wm_status own_get_ranges(void* context, const wm_object_range* ranges, size_t count,
                                int64_t timeout_ns, wm_reply* reply, wm_message* error) {
  const own_objects* own = (const own_objects*)context;
  size_t i;
  CHECK(count > 0 && timeout_ns > 0 && error != NULL);
  for (i = 0; i < count; ++i) {
    const int at = own_find(own, &ranges[i].digest);
    const uint64_t size = ranges[i].end - ranges[i].begin;
    CHECK(ranges[i].begin < ranges[i].end);
    if (at < 0 || ranges[i].end > own->sizes[at]) continue;
    CHECK(wm->wire->reply_object(reply, i, own->data[at], size - 1) == WM_INVALID_ARGUMENT);
    CHECK_OK(wm->wire->reply_object(reply, i, own->data[at] + ranges[i].begin, size));
  }
  return WM_OK;
}

static wm_status own_put(void* context, const wm_object* objects, size_t count, int64_t timeout_ns,
                         wm_message* error) {
  own_objects* own = (own_objects*)context;
  size_t i;
  CHECK(timeout_ns > 0);
  for (i = 0; i < count; ++i) {
    CHECK(own_find(own, &objects[i].digest) < 0);
    if (own->count == 8) {
      error->size = (size_t)snprintf(error->text, error->capacity, "no room for more than 8");
      return WM_RESOURCE_EXHAUSTED;
    }
    own->names[own->count] = objects[i].digest;
    own->sizes[own->count] = objects[i].size;
    own->data[own->count] = (uint8_t*)malloc(objects[i].size);
    CHECK(own->data[own->count] != NULL);
    memcpy(own->data[own->count++], objects[i].data, objects[i].size);
  }
  return WM_OK;
}

static wm_status own_holds(void* context, const wm_digest* digests, size_t count,
                           int64_t timeout_ns, uint8_t* held, wm_message* error) {
  const own_objects* own = (const own_objects*)context;
  size_t i;
  CHECK(timeout_ns > 0 && error != NULL);
  for (i = 0; i < count; ++i) {
    CHECK(held[i] == 0);
    held[i] = own_find(own, &digests[i]) >= 0;
  }
  return WM_OK;
}

static void own_destroy(void* context) {
  own_objects* own = (own_objects*)context;
  while (own->count > 0)
    free(own->data[--own->count]);
  ++own->destroyed;
}

static wm_status own_get_fails(void* context, const wm_digest* digests, size_t count,
                               int64_t timeout_ns, wm_reply* reply, wm_message* error) {
  CHECK_OK(own_get(context, digests, count > 1 ? 1 : count, timeout_ns, reply, error));
  error->size = (size_t)snprintf(error->text, error->capacity, "the network is down");
  return WM_UNAVAILABLE;
}

/* Publishes `rows` to objects of the engine's own, and fetches them; then from one that fails. */
static void walk_callbacks(const wm_rows* rows) {
  own_objects own;
  wm_source_callbacks callbacks;
  wm_publisher_options of_publisher;
  wm_fetcher_options of_fetcher;
  wm_fetch_report report = {sizeof(report)};
  wm_part part = {sizeof(part), 0, 0, ROWS, 0, 1};
  wm_shape shape = {sizeof(shape)};
  wm_rows_view wanted = {sizeof(wanted)}, lent = {sizeof(lent)};
  wm_source* source = NULL;
  wm_publisher* publisher = NULL;
  wm_fetcher* fetcher = NULL;
  wm_ticket* ticket = NULL;
  wm_bytes* handle = NULL;
  wm_rows* got = NULL;
  const uint8_t* named = NULL;
  size_t size = 0;
  int times;
  memset(&own, 0, sizeof(own));
  memset(&callbacks, 0, sizeof(callbacks));
  memset(&of_publisher, 0, sizeof(of_publisher));
  memset(&of_fetcher, 0, sizeof(of_fetcher));
  callbacks.struct_size = sizeof(callbacks);
  callbacks.context = &own;
  CHECK(WIRE(source_callbacks_create)(&callbacks, &source, &why) == WM_INVALID_ARGUMENT);
  CHECK(strstr(text, "callbacks.get") != NULL && own.destroyed == 0);
  callbacks.get = &own_get;
  callbacks.get_ranges = &own_get_ranges;
  callbacks.put = &own_put;
  callbacks.holds = &own_holds;
  callbacks.destroy = &own_destroy;
  CHECK_OK(wm->wire->source_callbacks_create(&callbacks, &source, &why));
  CHECK_OK(wm->rows_shape(rows, &shape));
  CHECK_OK(wm->rows_view(rows, &wanted));
  of_publisher.struct_size = sizeof(of_publisher);
  of_publisher.source = source;
  of_publisher.shape = &shape;
  CHECK_OK(wm->wire->publisher_create(&of_publisher, &publisher, &why));
  for (times = 0; times < 2; ++times) { /* the second time it has them */
    CHECK_OK(wm->wire->publisher_publish_rows(publisher, NULL, rows, &ticket, &why));
    wm->wire->bytes_release(handle);
    CHECK_OK(wm->wire->ticket_wait(ticket, -1, &handle, &why));
    wm->wire->ticket_release(ticket);
    CHECK(own.count == 4); /* three pages and a node */
  }
  wm->wire->publisher_release(publisher);
  CHECK_OK(wm->wire->bytes_view(handle, &named, &size));

  of_fetcher.struct_size = sizeof(of_fetcher);
  of_fetcher.source = source;
  CHECK_OK(wm->wire->fetcher_create(&of_fetcher, &fetcher, &why));
  CHECK_OK(wm->wire->fetcher_fetch(fetcher, named, size, &part, -1, &got, &report, &why));
  CHECK(report.source_status == WM_OK && report.absent == 0 && report.damaged == 0);
  CHECK_OK(wm->rows_view(got, &lent));
  CHECK(lent.count == ROWS && memcmp(lent.infos, wanted.infos, ROWS * sizeof(wm_row_info)) == 0);
  wm->rows_release(got);
  CHECK_OK(wm->wire->fetcher_fetch(fetcher, named, size, NULL, -1, &got, &report, &why));
  CHECK_OK(wm->rows_view(got, &lent));
  CHECK(memcmp(lent.ids, wanted.ids, 3 * ROWS * LAYERS * TOP_K) == 0);
  wm->rows_release(got);
  wm->wire->fetcher_release(fetcher);

  /* one that fails after its first object: that object is used, and its text is reported */
  callbacks.get = &own_get_fails;
  callbacks.get_ranges = NULL;
  callbacks.destroy = NULL;
  wm->wire->source_retain(source); /* the objects live on */
  of_fetcher.source = NULL;
  CHECK_OK(wm->wire->source_callbacks_create(&callbacks, &of_fetcher.source, &why));
  CHECK_OK(wm->wire->fetcher_create(&of_fetcher, &fetcher, &why));
  wm->wire->source_release(of_fetcher.source);
  CHECK_OK(wm->wire->fetcher_fetch(fetcher, named, size, NULL, -1, &got, &report, &why));
  CHECK(report.source_status == WM_UNAVAILABLE && report.fetched > 0 && report.absent > 0);
  CHECK(strcmp(text, "the network is down") == 0);
  wm->rows_release(got);
  wm->wire->fetcher_release(fetcher);
  wm->wire->bytes_release(handle);
  wm->wire->source_release(source);
  CHECK(own.destroyed == 0);
  wm->wire->source_release(source);
  CHECK(own.destroyed == 1);
}

/* The wire format: `rows` as documents and by handle. `snapshot` has the same rows. */
static void walk_wire(const wm_rows* rows, wm_snapshot* snapshot) {
  static const char path[] = "walk_test.wmk";
  static const uint8_t key[32] = {1, 2, 3};
  wm_chunk_code code = {sizeof(code), 0, 0, 0, 0, 0};
  wm_document_options options = {sizeof(options), WM_DOCUMENT_WITH_NODES, NULL, NULL};
  wm_read_limits limits = {sizeof(limits), 0, 3 * ROWS, 0};
  wm_document_info info = {sizeof(info)};
  wm_chunk_view chunk = {sizeof(chunk)};
  wm_read_damage damage = {sizeof(damage)};
  wm_part part = {sizeof(part), 0, ROWS, 2 * ROWS, 1, 0};
  wm_fetch_report report = {sizeof(report)};
  wm_handle_info of_handle = {sizeof(of_handle)};
  wm_publisher_stats stats = {sizeof(stats)};
  wm_publisher_options of_publisher;
  wm_fetcher_options of_fetcher;
  wm_shape shape = {sizeof(shape)};
  wm_rows_view lent = {sizeof(lent)}, wanted = {sizeof(wanted)};
  wm_read_args read;
  wm_row_info infos[3 * ROWS];
  wm_coverage_run runs[4];
  int32_t ids[3 * ROWS * LAYERS * TOP_K];
  wm_bytes *bytes = NULL, *handle = NULL, *again = NULL;
  wm_document *document = NULL, *mapped = NULL;
  wm_source *memory = NULL, *file = NULL, *redis = NULL;
  wm_redis_options of_redis;
  wm_status status;
  wm_publisher* publisher = NULL;
  wm_ticket* ticket = NULL;
  wm_fetcher* fetcher = NULL;
  wm_rows* got = NULL;
  const uint8_t *data = NULL, *named = NULL, *named_again = NULL;
  uint8_t* copy = NULL;
  size_t size = 0, named_size = 0, count = 0;
  char store_text[16];
  wm_message store_name = {store_text, sizeof(store_text), 0};
  int row, k;

  CHECK_OK(wm->rows_shape(rows, &shape));
  CHECK_OK(wm->rows_view(rows, &wanted));

  /* ---- a document, in memory and in a file */
  CHECK_OK(WIRE(rows_document)(rows, &options, &bytes, &why));
  WIRE(bytes_retain)(bytes);
  wm->wire->bytes_release(bytes);
  CHECK_OK(WIRE(bytes_view)(bytes, &data, &size));
  CHECK(size > 64 && memcmp(data, "\x89WMK\r\n\x1a\n", 8) == 0);
  CHECK(WIRE(rows_document_into)(rows, &options, NULL, 0, &count, &why) == WM_OUT_OF_RANGE);
  CHECK(count == size && (copy = (uint8_t*)malloc(size)) != NULL);
  count = 0;
  CHECK_OK(wm->wire->rows_document_into(rows, &options, copy, size, &count, &why));
  CHECK(count == size && memcmp(copy, data, size) == 0);
  free(copy);
  CHECK_OK(WIRE(document_open)(data, size, &limits, &document, &why));
  WIRE(document_retain)(document);
  wm->wire->document_release(document);
  CHECK_OK(WIRE(document_info)(document, &info));
  CHECK(info.first == 0 && info.count == 3 * ROWS && info.bytes == size);
  CHECK(info.flags == (WM_DOCUMENT_HAS_STEPS | WM_DOCUMENT_HAS_PLACES) && info.num_nodes == 1);
  CHECK_OK(WIRE(document_code)(document, &code));
  CHECK(code.codec == WM_CODEC_RAW && code.flags == 0 && code.crc_layers == 1);
  memset(&shape, 0, sizeof(shape));
  shape.struct_size = sizeof(shape);
  CHECK_OK(WIRE(document_shape)(document, &shape));
  CHECK(shape.num_layers == LAYERS && shape.layer_ids[1] == 5 && shape.num_blocks == 0);
  CHECK_OK(WIRE(document_coverage)(document, runs, 4, &count, &why));
  CHECK(count == 2 && runs[0].end == 2 * ROWS + 2 && runs[1].reason == WM_REASON_NEVER_WRITTEN);
  memset(&read, 0, sizeof(read));
  read.struct_size = sizeof(read);
  read.end = 3 * ROWS;
  read.id_type = WM_ID_INT32;
  read.out = ids;
  read.out_bytes = sizeof(ids);
  read.infos = infos;
  read.num_infos = 3 * ROWS;
  CHECK_OK(WIRE(document_read)(document, &read, 0, 0, &damage, &why));
  CHECK(damage.damaged_chunks == 0 && damage.absent_chunks == 0 && damage.invalid_rows == 0);
  check_rows(ids, infos, 0, ROWS, 1, 1);
  check_rows(ids, infos, ROWS, 2 * ROWS, 2, 1);
  check_rows(ids, infos, 2 * ROWS + 2, 3 * ROWS, 3, 0);
  CHECK_OK(WIRE(document_rows)(document, &part, &got, &damage, &why));
  CHECK_OK(wm->rows_shape(got, &shape));
  CHECK_OK(wm->rows_view(got, &lent));
  CHECK(shape.num_layers == 1 && shape.layer_ids[0] == 5);
  CHECK(lent.first == ROWS && lent.count == ROWS && lent.infos[0].step == 2);
  for (row = 0; row < ROWS; ++row)
    for (k = 0; k < TOP_K; ++k)
      CHECK(lent.ids[row * TOP_K + k] == id_of(2, row, 1, k));
  wm->rows_release(got);
  CHECK_OK(WIRE(document_chunk)(document, ROWS + 1, &chunk, &why));
  CHECK(chunk.first == ROWS && chunk.count == PAGE && chunk.layer_bytes == PAGE * TOP_K);
  for (row = 0; row < ROWS; ++row)
    for (k = 0; k < TOP_K; ++k)
      CHECK(chunk.layers[chunk.layer_bytes + (size_t)(row * TOP_K + k)] == id_of(2, row, 1, k));
  WIRE(document_release)(document);

  memset(&code, 0, sizeof(code));
  code.struct_size = sizeof(code);
  code.codec = WM_CODEC_SET;
  options.code = &code;
  CHECK_OK(WIRE(rows_write_document)(rows, &options, path, &why));
  CHECK_OK(WIRE(document_open_file)(path, NULL, &mapped, &why));
  CHECK_OK(wm->wire->document_code(mapped, &code));
  CHECK(code.codec == WM_CODEC_SET && code.flags == WM_CHUNK_PARAMETERS);
  CHECK(wm->wire->document_chunk(mapped, 0, &chunk, &why) == WM_FAILED_PRECONDITION);
  CHECK_OK(wm->wire->document_rows(mapped, NULL, &got, NULL, &why));
  CHECK_OK(wm->rows_view(got, &lent));
  CHECK(lent.count == 3 * ROWS);
  for (row = 0; row < 3 * ROWS * LAYERS; ++row) { /* sets */
    const uint8_t *a = lent.ids + row * TOP_K, *b = wanted.ids + row * TOP_K;
    CHECK((a[0] == b[0] && a[1] == b[1]) || (a[0] == b[1] && a[1] == b[0]));
  }
  wm->rows_release(got);
  wm->wire->document_release(mapped);

  /* ---- rows elsewhere: in memory */
  CHECK_OK(WIRE(source_memory_create)(1 << 20, &memory, &why));
  memset(&of_publisher, 0, sizeof(of_publisher));
  of_publisher.struct_size = sizeof(of_publisher);
  of_publisher.source = memory;
  of_publisher.shape = &shape;
  of_publisher.code = &code; /* as the file's */
  of_publisher.store_name = "engine-0";
  CHECK_OK(wm->rows_shape(rows, &shape));
  CHECK_OK(WIRE(publisher_create)(&of_publisher, &publisher, &why));
  CHECK_OK(WIRE(publisher_publish_rows)(publisher, "a", rows, &ticket, &why));
  WIRE(ticket_retain)(ticket);
  wm->wire->ticket_release(ticket);
  CHECK_OK(WIRE(ticket_wait)(ticket, -1, &handle, &why));
  CHECK_OK(WIRE(ticket_ready)(ticket));
  CHECK_OK(wm->wire->bytes_view(handle, &named, &named_size));
  CHECK_OK(WIRE(handle_info)(named, named_size, &of_handle, &store_name, &why));
  CHECK(of_handle.rows == 3 * ROWS && of_handle.num_layers == LAYERS && of_handle.num_tail == 0);
  CHECK(strcmp(store_text, "engine-0") == 0);
  WIRE(ticket_release)(ticket);
  /* the same rows: the same handle, whoever makes it, and no object more */
  CHECK_OK(WIRE(publisher_publish_snapshot)(publisher, NULL, snapshot, &ticket, &why));
  CHECK(wm->wire->publisher_publish_snapshot(publisher, NULL, snapshot, &ticket, &why) ==
        WM_INVALID_ARGUMENT); /* its rows were handed over */
  CHECK_OK(wm->wire->ticket_wait(ticket, 60000000000, &again, &why));
  CHECK_OK(wm->wire->bytes_view(again, &named_again, &count));
  CHECK(count == named_size && memcmp(named, named_again, count) == 0);
  wm->wire->bytes_release(again);
  wm->wire->ticket_release(ticket);
  CHECK_OK(WIRE(rows_handle)(rows, &code, "engine-0", &again, &why));
  CHECK_OK(wm->wire->bytes_view(again, &named_again, &count));
  CHECK(count == named_size && memcmp(named, named_again, count) == 0);
  wm->wire->bytes_release(again);
  /* the request of "a" has ended: another one may have its name */
  CHECK_OK(WIRE(publisher_forget)(publisher, "a", &why));
  CHECK_OK(WIRE(publisher_stats)(publisher, &stats));
  CHECK(stats.published == 2 && stats.objects_put == 4 && stats.failed == 0);
  WIRE(publisher_retain)(publisher);
  wm->wire->publisher_release(publisher);
  WIRE(publisher_release)(publisher);

  /* the same with a key, which the fetcher needs */
  of_publisher.key = key;
  of_publisher.key_size = sizeof(key);
  CHECK(of_handle.flags == 0);
  CHECK_OK(wm->wire->publisher_create(&of_publisher, &publisher, &why));
  CHECK_OK(wm->wire->publisher_publish_rows(publisher, "a", rows, &ticket, &why));
  CHECK_OK(wm->wire->ticket_wait(ticket, -1, &again, &why));
  CHECK_OK(wm->wire->bytes_view(again, &named_again, &count));
  CHECK_OK(wm->wire->handle_info(named_again, count, &of_handle, NULL, &why));
  CHECK(of_handle.flags == WM_HANDLE_KEYED);
  wm->wire->ticket_release(ticket);
  wm->wire->publisher_release(publisher);
  for (k = 0; k < 2; ++k) {
    memset(&of_fetcher, 0, sizeof(of_fetcher));
    of_fetcher.struct_size = sizeof(of_fetcher);
    of_fetcher.source = memory;
    of_fetcher.key = key;
    of_fetcher.key_size = k == 0 ? 0 : sizeof(key);
    CHECK_OK(wm->wire->fetcher_create(&of_fetcher, &fetcher, &why));
    status = wm->wire->fetcher_fetch(fetcher, named_again, count, NULL, -1, &got, NULL, &why);
    CHECK(status == (k == 0 ? WM_FAILED_PRECONDITION : WM_OK));
    if (k == 1) {
      CHECK_OK(wm->rows_view(got, &lent));
      CHECK(lent.count == 3 * ROWS && lent.infos[0].reason == WM_REASON_NONE);
      wm->rows_release(got);
      CHECK(wm->wire->fetcher_fetch(fetcher, named, named_size, NULL, -1, &got, NULL, &why) ==
            WM_DATA_LOSS);
    }
    wm->wire->fetcher_release(fetcher);
  }
  wm->wire->bytes_release(again);

  /* and where they lie in the file */
  CHECK_OK(WIRE(source_file_open)(path, NULL, &file, &why));
  for (k = 0; k < 2; ++k) {
    memset(&of_fetcher, 0, sizeof(of_fetcher));
    of_fetcher.struct_size = sizeof(of_fetcher);
    of_fetcher.source = k == 0 ? memory : file;
    CHECK_OK(WIRE(fetcher_create)(&of_fetcher, &fetcher, &why));
    WIRE(fetcher_retain)(fetcher);
    wm->wire->fetcher_release(fetcher);
    CHECK_OK(
        WIRE(fetcher_fetch)(fetcher, named, named_size, NULL, 60000000000, &got, &report, &why));
    CHECK(report.source_status == WM_OK && report.fetched == 4 && report.absent == 0 &&
          why.size == 0);
    CHECK_OK(wm->rows_view(got, &lent));
    CHECK(lent.count == 3 * ROWS);
    CHECK(memcmp(lent.infos, wanted.infos, 3 * ROWS * sizeof(wm_row_info)) == 0);
    wm->rows_release(got);
    CHECK_OK(wm->wire->fetcher_fetch(fetcher, named, named_size, &part, -1, &got, &report, &why));
    CHECK(report.fetched == 0 && report.hits > 0);
    CHECK_OK(wm->rows_view(got, &lent));
    CHECK(lent.first == ROWS && lent.count == ROWS);
    wm->rows_release(got);
    CHECK_OK(WIRE(fetcher_counts)(fetcher, &report));
    CHECK(report.fetched == 4);
    WIRE(fetcher_release)(fetcher);
  }

  /* and in a Redis server that is not there: every row is missing, and the report says why */
  memset(&of_redis, 0, sizeof(of_redis));
  of_redis.struct_size = sizeof(of_redis);
  of_redis.unix_socket = "/nowhere/redis";
  of_redis.password = "sesame";
  status = WIRE(source_redis_create)(&of_redis, &redis, &why);
  if (strstr(wm->build_info(), " redis=none ") != NULL) {
    CHECK(status == WM_UNIMPLEMENTED && redis == NULL && strstr(text, "hiredis") != NULL);
  } else {
    CHECK_OK(status);
    memset(&of_fetcher, 0, sizeof(of_fetcher));
    of_fetcher.struct_size = sizeof(of_fetcher);
    of_fetcher.source = redis;
    CHECK_OK(wm->wire->fetcher_create(&of_fetcher, &fetcher, &why));
    wm->wire->source_release(redis);
    CHECK_OK(wm->wire->fetcher_fetch(fetcher, named, named_size, NULL, -1, &got, &report, &why));
    CHECK(report.source_status == WM_UNAVAILABLE && report.fetched == 0 && report.absent > 0);
    CHECK(strstr(text, "redis: connecting") != NULL && strstr(text, "sesame") == NULL);
    CHECK_OK(wm->rows_view(got, &lent));
    CHECK(lent.count == 3 * ROWS && lent.infos[0].reason == WM_REASON_CAPACITY);
    wm->rows_release(got);
    wm->wire->fetcher_release(fetcher);
  }
  WIRE(source_retain)(memory);
  wm->wire->source_release(memory);
  WIRE(source_release)(memory);
  wm->wire->source_release(file);
  wm->wire->bytes_release(handle);
  WIRE(bytes_release)(bytes);
  remove(path);
}

static wm_tensor tensor_of(void* data, int dtype, int64_t rows, int64_t columns) {
  wm_tensor tensor;
  memset(&tensor, 0, sizeof(tensor));
  tensor.data = data;
  tensor.dtype = dtype;
  tensor.rank = columns == 0 ? 1 : 2;
  tensor.shape[0] = rows;
  tensor.shape[1] = columns;
  tensor.strides[0] = columns == 0 ? 1 : columns;
  tensor.strides[1] = columns == 0 ? 0 : 1;
  return tensor;
}

/* Routing alone, and into the layers of a session of its own, whose rows are then read back. */
static void walk_routing(void) {
  wm_store_options options = store_options();
  wm_session_options of_session;
  wm_layer_binding binding;
  wm_store* store = NULL;
  wm_session* session = NULL;
  wm_snapshot* snapshot = NULL;
  wm_snapshot_args args;
  wm_read_args read;
  wm_routing routing;
  wm_step_batch batch;
  wm_event event = wm_bind(1, NULL, 0);
  wm_code code;
  wm_view view;
  const int64_t slots[ROWS] = {PAGE, PAGE + 1, PAGE + 2, PAGE + 3};
  const int32_t block = 1;
  float logits[ROWS * EXPERTS], weights[ROWS * TOP_K], bias[EXPERTS];
  int32_t ids[ROWS * TOP_K], landed[ROWS * LAYERS * TOP_K];
  int16_t recorded[ROWS * TOP_K];
  uint8_t routed[ROWS];
  int row, k, layer;

  memset(&routing, 0, sizeof(routing));
  routing.struct_size = sizeof(routing);
  routing.method = WM_ROUTING_RENORMALIZE;
  routing.top_k = TOP_K;
  routing.logits = tensor_of(logits, WM_DTYPE_FLOAT32, ROWS, EXPERTS);
  routing.topk_ids = tensor_of(ids, WM_DTYPE_INT32, ROWS, TOP_K);
  routing.topk_weights = tensor_of(weights, WM_DTYPE_FLOAT32, ROWS, TOP_K);
  routing.replay_out = tensor_of(recorded, WM_DTYPE_INT16, ROWS, TOP_K);
  for (k = 0; k < ROWS * EXPERTS; ++k)
    logits[k] = (float)((k * 5) % 8); /* of each row a permutation of 0 ... 7 */
  CHECK_OK(WM(route)(&routing, NULL, &code));
  for (row = 0; row < ROWS; ++row) {
    CHECK(logits[row * EXPERTS + ids[row * TOP_K]] == 7.0f);
    CHECK(logits[row * EXPERTS + ids[row * TOP_K + 1]] == 6.0f);
    CHECK(weights[row * TOP_K] > 0.731f && weights[row * TOP_K] < 0.7311f); /* sigmoid(1) */
    CHECK(recorded[row * TOP_K] == ids[row * TOP_K]);
  }
  /* the recorded ids again, but for a row that has none; the bias is of another method */
  recorded[3 * TOP_K] = -1;
  memset(&routing.replay_out, 0, sizeof(routing.replay_out));
  routing.replay_in = tensor_of(recorded, WM_DTYPE_INT16, ROWS, TOP_K);
  routing.routed = tensor_of(routed, WM_DTYPE_UINT8, ROWS, 0);
  for (k = 0; k < ROWS * EXPERTS; ++k)
    logits[k] = -logits[k];
  CHECK_OK(wm->route(&routing, NULL, &code));
  CHECK(routed[0] == 0 && routed[2] == 0 && routed[3] == 1);
  CHECK(ids[0] == recorded[0] && logits[3 * EXPERTS + ids[3 * TOP_K]] == 0.0f);
  memset(bias, 0, sizeof(bias));
  routing.bias = tensor_of(bias, WM_DTYPE_FLOAT32, EXPERTS, 0);
  CHECK(wm->route(&routing, NULL, &code) == WM_INVALID_ARGUMENT);
  CHECK(code.rule > WM_RULE_ROUTING);
  CHECK_OK(wm->describe_code(&code, &why));
  CHECK(strncmp(text, "bias must not be given", 22) == 0);
  memset(&routing.bias, 0, sizeof(routing.bias));
  memset(&routing.replay_in, 0, sizeof(routing.replay_in));
  memset(&routing.routed, 0, sizeof(routing.routed));

  CHECK_OK(wm->store_create(&options, &store, &why));
  memset(&of_session, 0, sizeof(of_session));
  of_session.struct_size = sizeof(of_session);
  of_session.store = store;
  of_session.max_rows = 8;
  CHECK_OK(wm->session_create(&of_session, &session, &why));
  memset(&binding, 0, sizeof(binding));
  binding.struct_size = sizeof(binding);
  binding.module = "model.layers.3.gate";
  binding.capture = WM_CAPTURE_ROUTING_KERNEL;
  CHECK_OK(wm->session_bind_layer(session, &binding, &why));
  batch = batch_of(1, &event, 1, slots, ROWS);
  CHECK_OK(wm->session_begin_step(session, &batch, 0, &code));
  CHECK_OK(wm->session_view(session, 1, &view));
  CHECK(wm->session_route(session, &view, 1, &routing, &code) == WM_FAILED_PRECONDITION);
  CHECK(code.rule == WM_RULE_LAYER_NOT_ROUTED && code.value == 1);
  CHECK_OK(wm->describe_code(&code, &why));
  CHECK(strstr(text, "routing kernel") != NULL);
  CHECK_OK(WM(session_route)(session, &view, 0, &routing, &code));
  forward(&view, 1, ROWS);
  for (row = 0; row < ROWS; ++row) /* of layer 0 as it was routed */
    for (k = 0; k < TOP_K; ++k)
      view.data[row * TOP_K + k] = -1;
  CHECK_OK(wm->session_route(session, &view, 0, &routing, &code));
  CHECK_OK(wm->session_submit(session, 1, 0, &code));
  CHECK_OK(wm->store_wait_idle(store, -1, &why));
  memset(&args, 0, sizeof(args));
  args.struct_size = sizeof(args);
  args.blocks = &block;
  args.num_blocks = 1;
  args.last = ROWS;
  CHECK_OK(wm->store_snapshot(store, &args, &snapshot, &why));
  memset(&read, 0, sizeof(read));
  read.struct_size = sizeof(read);
  read.end = ROWS;
  read.id_type = WM_ID_INT32;
  read.out = landed;
  read.out_bytes = sizeof(landed);
  CHECK_OK(wm->snapshot_read(snapshot, &read, &why));
  for (row = 0; row < ROWS; ++row)
    for (layer = 0; layer < LAYERS; ++layer)
      for (k = 0; k < TOP_K; ++k)
        CHECK(landed[(row * LAYERS + layer) * TOP_K + k] ==
              (layer == 0 ? ids[row * TOP_K + k] : id_of(1, row, layer, k)));
  wm->snapshot_release(snapshot);
  wm->session_release(session);
  wm->store_release(store);
}

/* The messages of a scheduler in another process. */
static void walk_schedule_writer(void) {
  wm_schedule_options options;
  wm_schedule_writer* writer = NULL;
  wm_snapshot_args args;
  const int32_t blocks[] = {1, 2};
  const uint8_t* bytes = NULL;
  size_t size = 0;
  wm_event event = wm_seal(1, "key of block 1", 14, 0);
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.num_blocks = BLOCKS;
  options.block_tokens = PAGE;
  CHECK_OK(WM(schedule_writer_create)(&options, &writer, &why));
  WM(schedule_writer_retain)(writer);
  WM(schedule_writer_release)(writer);
  CHECK_OK(WM(schedule_writer_begin)(writer, 1, 7, &why));
  CHECK(wm->schedule_writer_begin(writer, 1, 7, &why) == WM_FAILED_PRECONDITION);
  CHECK_OK(WM(schedule_writer_report)(writer, &event, 1, &why));
  memset(&args, 0, sizeof(args));
  args.struct_size = sizeof(args);
  args.blocks = blocks;
  args.num_blocks = 2;
  args.last = 2 * PAGE;
  CHECK_OK(WM(schedule_writer_snapshot)(writer, 5, &args, &why));
  args.last = 2 * PAGE + 1;
  CHECK(wm->schedule_writer_snapshot(writer, 6, &args, &why) == WM_INVALID_ARGUMENT);
  args.last = PAGE;
  CHECK_OK(wm->schedule_writer_snapshot(writer, 6, &args, &why));
  CHECK_OK(WM(schedule_writer_forget)(writer, 6, &why));
  CHECK_OK(WM(schedule_writer_finish)(writer, &bytes, &size, &why));
  CHECK(bytes != NULL && size > sizeof(wm_event));
  {
    wm_store_options of_store = store_options();
    wm_store* store = NULL;
    wm_snapshot* snapshot = NULL;
    wm_store_stats stats = {sizeof(stats)};
    CHECK_OK(wm->store_create(&of_store, &store, &why));
    CHECK_OK(WM(store_report_message)(store, bytes, size, &why));
    CHECK_OK(wm->store_report_message(store, bytes, size, &why)); /* ignored */
    CHECK(wm->store_report_message(store, bytes, 5, &why) == WM_INVALID_ARGUMENT);
    CHECK(WM(store_take_tagged)(store, 6, &snapshot, &why) == WM_NOT_FOUND);
    CHECK_OK(wm->store_take_tagged(store, 5, &snapshot, &why));
    CHECK(wm->store_take_tagged(store, 5, &snapshot, &why) == WM_NOT_FOUND);
    CHECK_OK(WM(store_forget_tag)(store, 5));
    CHECK_OK(wm->store_stats(store, &stats));
    CHECK(stats.snapshots_taken == 2 && stats.snapshots_given_up == 0);
    wm->snapshot_release(snapshot);
    wm->store_release(store);
  }
  CHECK(wm->schedule_writer_finish(writer, &bytes, &size, &why) == WM_FAILED_PRECONDITION);
  wm->schedule_writer_release(writer);
}

int main(void) {
  wm_store_options options = store_options();
  wm_recorder_options of_recorder = {sizeof(of_recorder), 0, NULL, 1 << 20};
  wm_recorder* recorder = NULL;
  wm_store* store = NULL;
  wm_session* session = NULL;
  wm_session_options of_session;
  wm_layer_binding binding;
  wm_shape shape;
  wm_view view, old_view;
  wm_code code;
  wm_event events[4];
  int64_t slots[3 * ROWS];
  int32_t blocks[3] = {1, 2, 3};
  int32_t wide[ROWS * (TOP_K + 1)];
  uint8_t packed[ROWS * LAYERS * TOP_K];
  int done = 0, forwards = 0, i, layer, row, k;
  wm_step_batch batch;
  heard by_store = {0, 0, ""}, by_session = {0, 0, ""};
  wm_ext_log log_of_store = {{sizeof(wm_ext_log), WM_EXT_LOG, NULL}, &hear, NULL};
  wm_ext_log log_of_session = {
      {sizeof(wm_ext_log), WM_EXT_LOG | WM_EXT_REQUIRED, NULL}, &hear, NULL};

  wm = wm_get_api_v1();
  CHECK(wm != NULL && wm == wm_get_api_v1());
  CHECK(wm->struct_size == sizeof(wm_api_v1) && wm->wire->struct_size == sizeof(wm_wire_api_v1));
  CHECK(wm->abi_major == WM_ABI_MAJOR && wm->abi_minor == WM_ABI_MINOR);
  CHECK(strlen(WM(version)()) >= 5);
  CHECK(strncmp(WM(build_info)(), "version=", 8) == 0 && strchr(wm->build_info(), '\n') == NULL);
  CHECK(strcmp(WM(status_name)(WM_DATA_LOSS), "DATA_LOSS") == 0);
  CHECK(strcmp(wm->status_name(99), "unknown") == 0 && strcmp(wm->status_name(-1), "unknown") == 0);
  CHECK(strcmp(WM(reason_name)(WM_REASON_NEVER_WRITTEN), "never written") == 0);
  CHECK(strcmp(wm->reason_name(WM_NUM_REASONS), "unknown") == 0);
  CHECK(strcmp(WM(provenance_name)(WM_PROVENANCE_BY_KEY), "by key") == 0);

  /* ---- what is made */
  CHECK_OK(WM(recorder_create)(&options, &of_recorder, &recorder, &why));
  options.recorder = recorder;
  log_of_store.context = &by_store;
  options.ext = &log_of_store.head;
  CHECK_OK(WM(store_create)(&options, &store, &why));
  CHECK(why.size == 0 && text[0] == 0);
  {
    wm_store* second = NULL;
    CHECK(wm->store_create(&options, &second, &why) == WM_INVALID_ARGUMENT && second == NULL);
    CHECK(strstr(text, "recorder") != NULL && why.size == strlen(text));
  }
  WM(recorder_release)(recorder); /* the store keeps it */
  WM(store_retain)(store);
  wm->store_release(store);
  memset(&shape, 0, sizeof(shape));
  shape.struct_size = sizeof(shape);
  CHECK_OK(WM(store_shape)(store, &shape));
  CHECK(shape.num_layers == LAYERS && shape.top_k == TOP_K && shape.num_experts == EXPERTS);
  CHECK(shape.page_tokens == PAGE && shape.block_tokens == PAGE && shape.num_blocks == BLOCKS);
  CHECK(shape.id_bytes == 1 && shape.row_bytes == LAYERS * TOP_K && shape.layer_ids[1] == 5);

  memset(&of_session, 0, sizeof(of_session));
  of_session.struct_size = sizeof(of_session);
  of_session.store = store;
  of_session.max_rows = 8;
  log_of_session.context = &by_session;
  of_session.ext = &log_of_session.head;
  CHECK_OK(WM(session_create)(&of_session, &session, &why));
  of_session.transport = WM_TRANSPORT_CUDA;
  {
    wm_session* none = NULL;
    const wm_status cuda = wm->session_create(&of_session, &none, &why);
    CHECK(cuda == WM_OK || cuda == WM_UNIMPLEMENTED || cuda == WM_UNAVAILABLE);
    CHECK((cuda == WM_OK) == (none != NULL));
    wm->session_release(none);
  }
  WM(session_retain)(session);
  wm->session_release(session);
  memset(&binding, 0, sizeof(binding));
  binding.struct_size = sizeof(binding);
  binding.module = "model.layers.3.gate";
  binding.capture = WM_CAPTURE_HANDS_OVER;
  CHECK_OK(WM(session_bind_layer)(session, &binding, &why));
  CHECK(wm->session_bind_layer(session, &binding, &why) == WM_ALREADY_EXISTS);
  binding.layer = 1;
  binding.module = "model.layers.5.gate";
  binding.capture = WM_CAPTURE_KERNEL_WRITES_VIEW;
  CHECK_OK(wm->session_bind_layer(session, &binding, &why));
  CHECK_OK(WM(session_set_stream)(session, NULL));

  /* ---- the self-test */
  {
    wm_layer_finding findings[2];
    size_t count = 99;
    wm_forward of_test = {&forward_of_test, NULL};
    of_test.context = &forwards;
    CHECK_OK(WM(session_self_test)(session, 5, of_test, findings, 2, &count, &why));
    CHECK(count == 0 && forwards == 1 && why.size > 0);
    of_test.function = &forward_that_forgets;
    CHECK_OK(wm->session_self_test(session, 5, of_test, findings, 2, &count, &why));
    CHECK(count == 1 && findings[0].layer == 1 && findings[0].fault == WM_FAULT_SILENT);
    CHECK(findings[0].layer_id == 5 && findings[0].rows == 5 && findings[0].reserved == 0);
    CHECK(strstr(text, "model.layers.5.gate") != NULL);
  }

  /* ---- step 1: a view and a hand-over */
  for (i = 0; i < 3 * ROWS; ++i)
    slots[i] = PAGE + i; /* blocks 1, 2, 3 */
  events[0] = wm_bind(1, NULL, 0);
  CHECK_OK(WM(store_schedule)(store, 1, 7, &code));
  CHECK_OK(WM(store_report)(store, events, 1, &code));
  batch = batch_of(1, NULL, 0, slots, ROWS);
  CHECK_OK(WM(session_begin_step)(session, &batch, 6, &code));
  CHECK(code.code == WM_OK && code.rule == WM_RULE_NONE);
  {
    uint64_t last = 0;
    CHECK_OK(WM(store_last_step)(store, &last));
    CHECK(last == 1);
  }
  CHECK_OK(WM(session_view)(session, 1, &view));
  CHECK(view.step == 1 && view.num_layers == LAYERS && view.max_rows == 8 && view.top_k == TOP_K);
  forward(&view, 1, 6); /* two rows of padding */
  for (row = 0; row < ROWS; ++row)
    for (k = 0; k <= TOP_K; ++k)
      wide[row * (TOP_K + 1) + k] = k < TOP_K ? id_of(1, row, 0, k) : 99; /* a shared expert */
  {
    wm_ids ids;
    memset(&ids, 0, sizeof(ids));
    ids.struct_size = sizeof(ids);
    ids.type = WM_ID_INT32;
    ids.data = wide;
    ids.rows = ROWS;
    ids.columns = TOP_K + 1;
    ids.row_stride = (TOP_K + 1) * 4;
    ids.k_stride = 4;
    CHECK_OK(WM(session_hand_over)(session, &view, 0, &ids, &code));
    CHECK(wm->session_hand_over(session, &view, 1, &ids, &code) == WM_FAILED_PRECONDITION);
    CHECK(code.rule == WM_RULE_LAYER_NOT_HANDED_OVER && code.value == 1);
    CHECK_OK(WM(describe_code)(&code, &why));
    CHECK(strstr(text, "layer 1") != NULL);
  }
  CHECK_OK(WM(session_submit)(session, 1, 0, &code));
  old_view = view;
  CHECK(wm->session_submit(session, 1, 0, &code) == WM_NOT_FOUND);
  CHECK(code.rule == WM_RULE_STEP_NOT_IN_FLIGHT && code.value == 1);
  CHECK_OK(WM(store_land_one)(store));
  CHECK(wm->store_land_one(store) == WM_NOT_FOUND);

  /* ---- step 2: rows as pairs; ids of all layers in one tensor */
  events[0] = wm_seal(1, "key of block 1", 14, 1);
  events[1] = wm_retain(1);
  events[2] = wm_release(1);
  events[3] = wm_bind(2, NULL, 0);
  {
    const int64_t block_idx[] = {2, 2, 2, 2}, local_position[] = {0, 1, 2, 3};
    wm_pair_rows pairs;
    memset(&pairs, 0, sizeof(pairs));
    pairs.struct_size = sizeof(pairs);
    pairs.index_bytes = 8;
    pairs.block_idx = block_idx;
    pairs.local_position = local_position;
    pairs.num_rows = ROWS;
    pairs.block_tokens = PAGE;
    batch = batch_of(2, events, 4, NULL, 0);
    batch.pairs = &pairs;
    CHECK_OK(WM(session_begin_ids_step)(session, &batch, &code));
  }
  for (row = 0; row < ROWS; ++row)
    for (layer = 0; layer < LAYERS; ++layer)
      for (k = 0; k < TOP_K; ++k)
        packed[(row * LAYERS + layer) * TOP_K + k] = (uint8_t)id_of(2, row, layer, k);
  {
    wm_ids ids;
    wm_done tell = {&count_done, NULL};
    tell.context = &done;
    memset(&ids, 0, sizeof(ids));
    ids.struct_size = sizeof(ids);
    ids.type = WM_ID_UINT8;
    ids.data = packed;
    ids.rows = ROWS;
    ids.columns = TOP_K;
    ids.row_stride = LAYERS * TOP_K;
    ids.k_stride = 1;
    ids.layers = LAYERS + 1;
    ids.layer_stride = TOP_K;
    CHECK(WM(session_submit_ids)(session, 2, &ids, tell, &code) == WM_INVALID_ARGUMENT);
    CHECK(code.rule == WM_RULE_WRONG_LAYERS && done == 1);
    ids.layers = LAYERS;
    CHECK_OK(wm->session_submit_ids(session, 2, &ids, tell, &code));
  }
  {
    int32_t landed = -1;
    CHECK_OK(WM(session_landed)(session, 2, &landed));
    CHECK(landed == 0);
    CHECK_OK(WM(store_land)(store, 2));
    CHECK_OK(WM(session_landed)(session, 2, &landed));
    CHECK(landed == 1 && done == 2);
  }

  /* ---- step 3: rows as pairs, slots that only the device knows; a drop, a cancel, a forward that was no step */
  events[0] = wm_bind(3, NULL, 0);
  {
    int32_t block_idx[ROWS], position[ROWS], i;
    wm_pair_rows pairs;
    for (i = 0; i < ROWS; ++i) {
      block_idx[i] = 3;
      position[i] = i;
    }
    memset(&pairs, 0, sizeof(pairs));
    pairs.struct_size = sizeof(pairs);
    pairs.index_bytes = 4;
    pairs.block_tokens = PAGE;
    pairs.block_idx = block_idx;
    pairs.local_position = position;
    pairs.num_rows = ROWS;
    batch = batch_of(3, events, 1, NULL, 0);
    batch.pairs = &pairs;
    batch.flags = WM_BATCH_DEVICE_SLOTS;
    CHECK_OK(wm->session_begin_step(session, &batch, 0, NULL));
  }
  CHECK_OK(wm->session_view(session, 3, &view));
  forward(&view, 3, 2);
  CHECK_OK(WM(session_submit_device_slots)(session, 3, slots + 2 * ROWS, 2, 0, &code));
  CHECK_OK(WM(store_wait_idle)(store, 0, &why));
  batch = batch_of(4, NULL, 0, slots, 0);
  CHECK_OK(wm->session_begin_step(session, &batch, 0, &code));
  CHECK_OK(WM(session_drop)(session, 4, &code));
  batch.step = 5;
  CHECK_OK(wm->session_begin_step(session, &batch, 0, &code));
  CHECK_OK(WM(session_cancel)(session, 5, &code));
  CHECK_OK(wm->session_view(session, 0, &view));
  CHECK(view.step == 0);
  forward(&view, 9, 8);
  CHECK_OK(WM(session_discard)(session, 8));
  {
    wm_ids ids;
    memset(&ids, 0, sizeof(ids));
    ids.struct_size = sizeof(ids);
    ids.type = WM_ID_INT32;
    ids.data = wide;
    ids.rows = 1;
    ids.columns = TOP_K;
    CHECK(wm->session_hand_over(session, &old_view, 0, &ids, &code) == WM_NOT_FOUND);
  }

  /* ---- reading */
  {
    wm_snapshot_args args;
    wm_snapshot* snapshot = NULL;
    wm_read_args read;
    wm_rows *rows = NULL, *again = NULL, *joined = NULL, *tail = NULL;
    wm_rows_view lent;
    wm_coverage_run runs[4];
    wm_row_info infos[3 * ROWS];
    int32_t ids[3 * ROWS * LAYERS * TOP_K];
    int64_t first = -1, last = -1, covered = -1;
    size_t count = 0;
    CHECK_OK(WM(store_covered_prefix)(store, blocks, 3, 3 * ROWS, &covered));
    CHECK(covered == 2 * ROWS + 2);
    memset(&args, 0, sizeof(args));
    args.struct_size = sizeof(args);
    args.blocks = blocks;
    args.num_blocks = 3;
    args.last = 3 * ROWS;
    CHECK_OK(WM(store_snapshot)(store, &args, &snapshot, &why));
    WM(snapshot_retain)(snapshot);
    wm->snapshot_release(snapshot);
    CHECK_OK(WM(snapshot_range)(snapshot, &first, &last));
    CHECK(first == 0 && last == 3 * ROWS);
    memset(&shape, 0, sizeof(shape));
    shape.struct_size = sizeof(shape);
    CHECK_OK(WM(snapshot_shape)(snapshot, &shape));
    CHECK(shape.num_layers == LAYERS);
    CHECK_OK(WM(snapshot_ready)(snapshot));
    CHECK_OK(WM(snapshot_wait)(snapshot, -1, &why));

    memset(&read, 0, sizeof(read));
    memset(infos, 0xee, sizeof(infos));
    read.struct_size = sizeof(read);
    read.end = 3 * ROWS;
    read.id_type = WM_ID_INT32;
    read.out = ids;
    read.out_bytes = sizeof(ids);
    read.infos = infos;
    read.num_infos = 3 * ROWS;
    CHECK_OK(WM(snapshot_read)(snapshot, &read, &why));
    check_rows(ids, infos, 0, ROWS, 1, 1);
    check_rows(ids, infos, ROWS, 2 * ROWS, 2, 1);
    check_rows(ids, infos, 2 * ROWS, 2 * ROWS + 2, 3, 1);
    check_rows(ids, infos, 2 * ROWS + 2, 3 * ROWS, 3, 0);
    for (i = 0; i < 3 * ROWS; ++i)
      for (k = 0; k < 6; ++k)
        CHECK(infos[i].reserved[k] == 0);

    CHECK_OK(WM(snapshot_coverage)(snapshot, runs, 4, &count, &why));
    CHECK(count == 2 && runs[0].begin == 0 && runs[0].end == 2 * ROWS + 2);
    CHECK(runs[0].version == 7 && runs[1].reason == WM_REASON_NEVER_WRITTEN);
    CHECK_OK(wm->snapshot_coverage(snapshot, NULL, 0, &count, &why));
    CHECK(count == 2);

    CHECK_OK(WM(snapshot_rows)(snapshot, &rows, &why));
    WM(rows_retain)(rows);
    wm->rows_release(rows);
    CHECK_OK(WM(rows_shape)(rows, &shape));
    CHECK(shape.block_tokens == 0 && shape.layer_ids[0] == 3);
    memset(&lent, 0, sizeof(lent));
    lent.struct_size = sizeof(lent);
    CHECK_OK(WM(rows_view)(rows, &lent));
    CHECK(lent.count == 3 * ROWS && lent.ids[0] == id_of(1, 0, 0, 0));
    CHECK_OK(WM(rows_create)(&shape, &lent, &again, &why));
    memset(ids, 0, sizeof(ids));
    CHECK_OK(WM(rows_write)(again, &read, &why));
    check_rows(ids, infos, ROWS, 2 * ROWS, 2, 1);
    check_rows(ids, infos, 2 * ROWS + 2, 3 * ROWS, 3, 0);
    CHECK_OK(WM(rows_coverage)(again, runs, 4, &count, &why));
    CHECK(count == 2 && runs[1].begin == 2 * ROWS + 2);

    /* the tail of it, as a read of its own, and both together */
    lent.first = ROWS;
    lent.count = 2 * ROWS;
    lent.ids += ROWS * shape.row_bytes;
    lent.infos += ROWS;
    CHECK_OK(wm->rows_create(&shape, &lent, &tail, &why));
    {
      const wm_rows* reads[3];
      uint8_t reused[3 * ROWS];
      reads[0] = tail;
      reads[1] = rows;
      reads[2] = tail;
      CHECK_OK(WM(rows_join)(reads, 3, &joined, &why));
      CHECK_OK(WM(rows_reused)(joined, 2, reused, 3 * ROWS, &why));
      CHECK_OK(wm->rows_view(joined, &lent));
      for (k = 0; k < 3 * ROWS; ++k)
        CHECK(reused[k] == (lent.infos[k].reason == WM_REASON_NONE && lent.infos[k].step == 1));
      CHECK(wm->rows_reused(joined, 2, reused, 3 * ROWS - 1, &why) == WM_OUT_OF_RANGE);
    }
    lent.first = -1;
    CHECK_OK(wm->rows_view(joined, &lent));
    CHECK(lent.first == 0 && lent.count == 3 * ROWS);
    wm->rows_release(joined);
    joined = NULL;
    {
      const wm_rows* stages[2];
      stages[0] = rows;
      stages[1] = again;
      CHECK(WM(rows_join_layers)(stages, 2, &joined, &why) == WM_INVALID_ARGUMENT);
      CHECK(joined == NULL && strstr(text, "layer_ids") != NULL);
      CHECK_OK(wm->rows_join_layers(stages, 1, &joined, &why));
      WM(rows_release)(joined);
      joined = NULL;
    }
    {
      wm_collective alone;
      int exchanges = 0;
      memset(&alone, 0, sizeof(alone));
      alone.struct_size = sizeof(alone);
      alone.ranks = 1;
      alone.all_gather = &gather_alone;
      alone.context = &exchanges;
      CHECK_OK(WM(rows_gather_layers)(rows, &alone, &joined, &why));
      CHECK_OK(wm->rows_view(joined, &lent));
      CHECK(lent.count == 3 * ROWS);
      wm->rows_release(joined);
      CHECK_OK(WM(rows_gather)(rows, &alone, &joined, &why));
      CHECK_OK(wm->rows_view(joined, &lent));
      CHECK(lent.count == 3 * ROWS && exchanges == 0);
      wm->rows_release(joined);
    }
    wm->rows_release(rows);
    wm->rows_release(again);
    wm->rows_release(tail);

    /* ---- what it knows */
    {
      wm_store_stats stats = {sizeof(stats)};
      wm_session_stats of_steps = {sizeof(of_steps)};
      wm_layer_stats of_layer = {sizeof(of_layer)};
      wm_finding finding = {sizeof(finding)};
      int32_t sizes[4];
      CHECK_OK(WM(store_stats)(store, &stats));
      CHECK(stats.steps_begun == 5 && stats.steps_landed == 3 && stats.steps_dropped == 1);
      CHECK(stats.steps_cancelled == 1 && stats.rows_landed == 2 * ROWS + 2);
      CHECK(stats.snapshots_live == 1 && stats.landing_lag_count == 3);
      CHECK(stats.log_records > 10 && stats.log_losses == 0 && stats.log_lag_count == 5);
      CHECK(stats.log_lag_p50_ns <= stats.log_lag_p99_ns);
      CHECK(stats.exceptions == 0);
      CHECK_OK(WM(store_status)(store, &why));
      CHECK_OK(WM(store_stats_text)(store, &why));
      CHECK(strstr(text, "rows landed") != NULL && why.size >= strlen(text));
      CHECK(WM(store_next_finding)(store, &finding, &why) == WM_NOT_FOUND);
      CHECK_OK(WM(session_status)(session, &why));
      CHECK_OK(WM(session_stats)(session, &of_steps));
      CHECK(of_steps.steps_begun == 5 && of_steps.steps_submitted == 3);
      CHECK(of_steps.rows_handed_over == ROWS);
      CHECK_OK(WM(session_layer_stats)(session, 1, &of_layer));
      CHECK(strcmp(of_layer.module, "model.layers.5.gate") == 0 && of_layer.layer_id == 5);
      CHECK_OK(WM(session_stats_text)(session, &why));
      CHECK(strncmp(text, "steps 5", 7) == 0);
      CHECK_OK(WM(session_silent_batch_sizes)(session, 0, sizes, 4, &count));
      CHECK(count == 0);
    }

    {
      wm_snapshot* second = NULL;
      CHECK_OK(wm->store_snapshot(store, &args, &second, &why));
      CHECK_OK(wm->snapshot_rows(second, &rows, &why));
      walk_callbacks(rows);
      walk_wire(rows, second);
      wm->rows_release(rows);
      wm->snapshot_release(second);
    }

    /* ---- the last writes disagree with what is kept: an audit's finding, and a dump */
    {
      wm_finding finding = {sizeof(finding)};
      batch = batch_of(6, NULL, 0, slots, ROWS); /* block 1 again, which is sealed */
      CHECK_OK(wm->session_begin_step(session, &batch, 0, &code));
      CHECK_OK(wm->session_view(session, 6, &view));
      forward(&view, 2, ROWS); /* not what it wrote before */
      CHECK_OK(wm->session_submit(session, 6, 0, &code));
      CHECK_OK(wm->store_wait_idle(store, -1, &why));
      CHECK_OK(wm->store_next_finding(store, &finding, &why));
      CHECK(finding.block == 1 && finding.step == 6 && finding.kept_step == 1);
      CHECK(finding.voided == 1 && finding.agreement < 1 && strstr(text, "block 1") != NULL);
      CHECK(wm->store_next_finding(store, &finding, &why) == WM_NOT_FOUND);
      CHECK(by_store.times == 1 && by_store.level == WM_LOG_WARNING);
      CHECK(strstr(by_store.last, "block 1") != NULL);
    }
    /* a step whose session is gone before it lands: no layer wrote, and each is heard once */
    CHECK(by_session.times == 0);
    batch = batch_of(7, NULL, 0, slots + 3 * ROWS - 1, 1);
    CHECK_OK(wm->session_begin_step(session, &batch, 0, &code));
    CHECK_OK(wm->session_submit(session, 7, 0, &code));
    WM(recorder_retain)(recorder);
    WM(session_release)(session);
    WM(store_release)(store);
    CHECK(by_session.times == LAYERS && by_session.level == WM_LOG_WARNING);
    CHECK(strstr(by_session.last, "model.layers.5.gate") != NULL);
    CHECK_OK(WM(recorder_status)(recorder, &why));
    CHECK_OK(WM(recorder_dump)(recorder, "walk_test.flight", &why));
    {
      FILE* file = fopen("walk_test.flight", "rb");
      CHECK(file != NULL && fgetc(file) != EOF);
      fclose(file);
      remove("walk_test.flight");
    }
    wm->recorder_release(recorder);
    /* outlives them all */
    CHECK_OK(wm->snapshot_read(snapshot, &read, &why));
    check_rows(ids, infos, ROWS, 2 * ROWS, 2, 1);
    CHECK(infos[0].reason == WM_REASON_AUDIT);
    WM(snapshot_release)(snapshot);
  }

  walk_routing();
  walk_schedule_writer();

  CHECK_CALLED(wm_api_v1, store_create, called);
  CHECK_CALLED(wm_wire_api_v1, rows_document, called_wire);
  return 0;
}
