/* Waymark's C ABI for rows outside the engine: documents, page sources, publishing and fetching.
 * An engine that only captures needs waymark.h alone; the rules for structs, arguments, statuses
 * and objects are at its top. C99 and C++.
 *
 * Example, which writes `rows` as a document in bytes and reads the rows of these bytes:
 *
 *   const wm_wire_api_v1* wire = wm_get_api_v1()->wire;
 *   char text[256];
 *   wm_message why = {text, sizeof text, 0};
 *   wm_bytes* bytes = NULL;
 *   wm_rows* again = NULL;
 *   const uint8_t* data = NULL;
 *   size_t size = 0;
 *   wm_status status = wire->rows_document(rows, NULL, &bytes, &why);
 *   if (status == WM_OK) status = wire->bytes_view(bytes, &data, &size);
 *   if (status == WM_OK) status = wire->document_read(data, size, NULL, NULL, &again, NULL, &why);
 *   if (status != WM_OK) fprintf(stderr, "%s\n", text);
 *   wire->bytes_release(bytes);
 *
 * Every function may be called by any thread.
 */
#ifndef WAYMARK_PLUGIN_WAYMARK_WIRE_H_
#define WAYMARK_PLUGIN_WAYMARK_WIRE_H_

#include "waymark.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- objects of the wire ------------------------------------------------------------------ */

typedef struct wm_bytes wm_bytes;         /* bytes that the library made; immutable */
typedef struct wm_source wm_source;       /* a page source: holds objects by their digests */
typedef struct wm_publisher wm_publisher; /* writes rows to a source, on its own thread */
typedef struct wm_ticket wm_ticket;       /* the result of one publication */
typedef struct wm_fetcher wm_fetcher;     /* reads rows from a source; caches objects */

/* ---- documents ---------------------------------------------------------------------------- */

enum { WM_CODEC_RAW = 0, WM_CODEC_SET = 1 }; /* ids as stored; sets in fewer bits, without order */

/* How ids are written (docs/internals/format.md). All 0: raw, in the router's order. */
typedef struct wm_chunk_code {
  uint32_t struct_size; /* required */
  uint32_t flags;       /* WM_CHUNK_* */
  int32_t codec;        /* WM_CODEC_* */
  int32_t crc_layers;   /* layers per crc: 1 ... L; 0 = a quarter of the layers, rounded up */
} wm_chunk_code;

#define WM_CHUNK_SORTED 1u /* ids ascend within a row and layer; not needed for sets */

typedef struct wm_document_options {
  uint32_t struct_size;      /* required */
  uint32_t flags;            /* WM_DOCUMENT_* */
  const wm_chunk_code* code; /* null: raw */
} wm_document_options;

#define WM_DOCUMENT_WITHOUT_STEPS 1u /* rows_join_layers cannot tell rows of other steps */
#define WM_DOCUMENT_WITH_NODES 2u    /* source_file_open can open it; rows begin at row 0 */

/* Limits on a read of bytes that are not trusted; beyond them: RESOURCE_EXHAUSTED. */
typedef struct wm_read_limits {
  uint32_t struct_size; /* required */
  uint32_t flags;       /* WM_READ_MAP */
  uint64_t max_rows;    /* 0 = 2^24 */
  uint64_t max_bytes;   /* allocated by one call, a file that is read included; 0 = 2^32 */
} wm_read_limits;

/* Map a file instead of reading it into memory. If another process truncates the
 * file, this process then receives SIGBUS. No effect on bytes in memory. */
#define WM_READ_MAP 1u

/* The digest that names an object: XXH3-128 of its bytes, or BLAKE2b with a key;
 * docs/internals/format.md defines both. */
typedef struct wm_digest {
  uint8_t bytes[16];
} wm_digest;

/* Rows [begin, end) and layers [layer_begin, layer_end). */
typedef struct wm_part {
  uint32_t struct_size;
  uint32_t reserved;   /* must be zero */
  int64_t begin;       /* counted from the first row of the sequence; required */
  int64_t end;         /* required */
  int32_t layer_begin; /* captured layers */
  int32_t layer_end;   /* 0: all layers from layer_begin on */
} wm_part;

/* Damage that a read found; the rows are valid according to the coverage. */
typedef struct wm_read_damage {
  uint32_t struct_size; /* required */
  uint32_t reserved;
  uint64_t damaged_chunks; /* a crc or the place is wrong: their rows are missing (not captured) */
  uint64_t absent_chunks;  /* beyond the end of the bytes: missing (not captured) */
  uint64_t invalid_rows;   /* an id is not below E, or twice in a layer: missing (invalid id) */
} wm_read_damage;

/* ---- page sources ------------------------------------------------------------------------- */

/* A page source holds objects (pages, nodes, tails; docs/internals/format.md), each by its digest.
 * Objects never change. A lost object costs the reader rows; it is never an error of the engine. */

/* Bytes [begin, end) of an object; never empty. */
typedef struct wm_object_range {
  wm_digest digest;
  uint64_t begin;
  uint64_t end;
} wm_object_range;

/* An object: its name and its bytes. */
typedef struct wm_object {
  wm_digest digest;
  const uint8_t* data; /* [size] */
  uint64_t size;
} wm_object;

/* Receives the objects of one call of `get` or `get_ranges`, through reply_object. Owned by the
 * library; valid during that callback, on its thread. */
typedef struct wm_reply wm_reply;

/* A page source of the caller's own. The library calls it on the publisher's thread and on the
 * threads that fetch, concurrently if there are several.
 *
 * Arrays that a callback receives belong to the library and are valid during the callback; they
 * have at least one element. reply_object copies the bytes that it is given.
 *
 * `timeout_ns` is the time that is left to the caller of the library, at least 1. The library
 * cannot interrupt a callback: one that takes longer delays its caller. The objects that it
 * returned are still used, and no further callback is made for that fetch or publication.
 *
 * A callback returns WM_OK, or the reason why objects that exist may be absent: WM_UNAVAILABLE,
 * WM_DEADLINE_EXCEEDED, ... A number that is no status counts as WM_UNKNOWN. Objects that it
 * returned before are used all the same. An absent object is no error. `why` is never null; its
 * text is reported where the status is (fetcher_fetch). A callback must not throw, and must not
 * end what uses the source last. */
typedef struct wm_source_callbacks {
  uint32_t struct_size;
  uint32_t flags; /* must be zero */
  void* context;  /* the first argument of every callback; may be null */
  /* Calls reply_object(reply, i, ...) for each object digests[i] that it has. Required. */
  wm_status (*get)(void* context, const wm_digest* digests, size_t count, int64_t timeout_ns,
                   wm_reply* reply, wm_message* why);
  /* The same for exactly the bytes of ranges[i]; a range beyond the end of its object is absent.
   * Null: the library calls `get`, for whole objects. */
  wm_status (*get_ranges)(void* context, const wm_object_range* ranges, size_t count,
                          int64_t timeout_ns, wm_reply* reply, wm_message* why);
  /* Stores objects for as long as it can. Null: read only; publisher_create refuses it. */
  wm_status (*put)(void* context, const wm_object* objects, size_t count, int64_t timeout_ns,
                   wm_message* why);
  /* Sets held[i] to 1 if it has the object digests[i]; every held[i] is 0 before. Objects that it
   * has are not put again. Null: every object is put. */
  wm_status (*holds)(void* context, const wm_digest* digests, size_t count, int64_t timeout_ns,
                     uint8_t* held, wm_message* why);
  /* Called once, when the source and all that uses it are released, on that thread. May be null. */
  void (*destroy)(void* context);
} wm_source_callbacks;

/* A Redis server. Texts are copied; null and 0 are the defaults. */
typedef struct wm_redis_options {
  uint32_t struct_size;             /* required */
  uint32_t flags;                   /* WM_REDIS_* */
  const char* host;                 /* null or "": "127.0.0.1" */
  const char* unix_socket;          /* path of a socket, instead of host and port; null: none */
  const char* user;                 /* for AUTH with a password, from Redis 6 on; null: none */
  const char* password;             /* null: no AUTH. Appears in no text of the library */
  const char* key_prefix;           /* prefix of every key; null: "waymark:" */
  const char* tls_ca_file;          /* trusted certificates, PEM; null: the system's */
  const char* tls_certificate_file; /* of this client, PEM; null: none */
  const char* tls_key_file;         /* of the certificate, PEM */
  const char* tls_server_name;      /* for SNI; null: none */
  int32_t port;                     /* 0 = 6379 */
  int32_t database;
  int32_t time_to_live_s;      /* objects expire this long after they were last put, or found by */
                               /* a publisher; 0: never */
  int32_t connect_timeout_ms;  /* in addition to each call's own timeout; 0 = 1000 */
  int32_t command_timeout_ms;  /* of the connection's turn, and of each reply; 0 = 5000 */
  int32_t initial_back_off_ms; /* no connection is tried for this long after a failure; 0 = 50 */
  int32_t max_back_off_ms;     /* doubled after each further failure, up to this; 0 = 5000 */
} wm_redis_options;

/* Use TLS, which the tls_* fields need. A trusted authority must have signed the server's
 * certificate; the name in it is not checked, so trust an authority of your own. WM_UNIMPLEMENTED
 * if the build's hiredis has no TLS (build_info: redis=...+tls if it has). */
#define WM_REDIS_TLS 1u

/* ---- publishing --------------------------------------------------------------------------- */

typedef struct wm_publisher_options {
  uint32_t struct_size;
  uint32_t flags;        /* must be zero */
  wm_source* source;     /* retained; required */
  const wm_shape* shape; /* of all rows, as for rows_create; required */
  wm_log log;
  const wm_chunk_code* code; /* null: raw */
  const char* store_name;    /* the store's name in handles: UTF-8, below 2^16 bytes; null: "" */
  uint64_t max_waiting;      /* queued publications; one more is dropped; 0 = 256 */
  uint64_t max_sequences;    /* sequences that can be continued; 0 = 1024 */
  int64_t source_timeout_ns; /* for the source, per publication; 0 = 10 s */
  const int32_t* cpus;       /* [num_cpus]: CPUs that its thread may run on; 0: any */
  size_t num_cpus;
  /* [key_size], 16 to 64 bytes, copied: only fetchers with the same key accept its handles and
   * objects. 0: digests without a key, which find damage and no forgery. */
  const uint8_t* key;
  size_t key_size;
} wm_publisher_options;

/* ---- rows by key -------------------------------------------------------------------------- */

/* Of wm_capture_options.tier: each complete page that is sealed with a key is put into a source,
 * and rows that no step wrote are looked up there, by the keys of wm_owner: valid by key, or
 * missing (capacity) with the source's cause. Threads of the library do both; capture_stats has the
 * counters as "tier.NAME". Read during the call; texts and keys are copied. */
typedef struct wm_tier_options {
  uint32_t struct_size;
  uint32_t flags;         /* WM_TIER_* */
  wm_source* source;      /* retained; required */
  wm_source* put;         /* retained: another connection to the same store, for puts, so that */
                          /* reads do not wait for them; null: `source` */
  const char* space;      /* the namespace, UTF-8: tenants need different ones, and so do models */
                          /* with a tokenizer in common; null: "" */
  const char* publisher;  /* the engine, the same on all its pipeline stages and no other's; */
                          /* null: a random one */
  const uint8_t* key;     /* [key_size], 16 to 64 secret bytes that all engines have, by which */
  size_t key_size;        /* pages are named and authenticated; 0: the source is trusted */
  int64_t timeout_ns;     /* that the rows of one take may wait; 0 = 250 ms */
  int64_t skip_ns;        /* for which a source that failed, or was late, three times in a row is */
                          /* not called; 0 = 10 s */
  int64_t put_timeout_ns; /* of each put; 0 = 5 s */
  int64_t time_to_live_ns; /* of a page in the source; 0: for ever */
  uint64_t max_waiting;    /* sealed pages that wait to be put; more are dropped; 0 = 4096 */
  uint64_t max_bytes;      /* put within time_to_live; more are dropped; 0: no limit */
} wm_tier_options;

#define WM_TIER_READ_ONLY 1u /* puts nothing */
#define WM_TIER_LOST 2u      /* also looks up rows that a step computed and that were lost */
/* Asks for nothing: a handle of the rows has the names of their pages, which
 * wm_fetcher_options.tier finds. */
#define WM_TIER_NAMES 4u

/* ---- fetching ----------------------------------------------------------------------------- */

typedef struct wm_fetcher_options {
  uint32_t struct_size;
  uint32_t flags;       /* WM_FETCHER_* */
  wm_source* source;    /* retained; required */
  uint64_t cache_bytes; /* of cached objects, the least recently used evicted first; 0 = 2^28 */
  uint64_t batch_bytes; /* requested from the source at a time; 0 = 2^28 */
  uint64_t max_rows;    /* of one call; 0 = 2^24 */
  uint64_t max_bytes;   /* of the rows that one call returns; 0 = 2^28 */
  /* [key_size], as the publishers have, copied: handles and objects without it, or with another,
   * are refused (DATA_LOSS; `damaged`). 0: keyed handles are refused (FAILED_PRECONDITION). */
  const uint8_t* key;
  size_t key_size;
  wm_log log;
  /* Where rows are whose pages a handle has by name (WM_TIER_NAMES); null: they are missing. Its
   * key is that of the engines' tiers; nothing is put. */
  const wm_tier_options* tier;
} wm_fetcher_options;

/* Fetch whole chunks even if only some layers are wanted, and compare all of their digests; ranges
 * are checked by the chunk's crcs, and these by 32 bits of its digest. With a key, chunks are
 * always fetched whole. */
#define WM_FETCHER_WHOLE_CHUNKS 1u

/* Counts of what was fetched. A range of an object counts as an object. */
typedef struct wm_fetch_report {
  uint32_t struct_size;   /* required */
  int32_t source_status;  /* the first status of the source that is not WM_OK */
  uint64_t fetched;       /* objects that the source returned */
  uint64_t fetched_bytes; /* their bytes */
  uint64_t hits;          /* objects from the cache */
  uint64_t absent;        /* objects that the source did not return */
  uint64_t damaged;       /* objects that do not match their digest, or have another key: treated */
                          /* as absent */
} wm_fetch_report;

/* ---- the table of the wire ---------------------------------------------------------------- */

typedef struct wm_wire_api_v1 {
  size_t struct_size; /* bytes of the library's table: a function at or beyond it does not exist */

  /* ---- documents ---- */

  /* Writes `rows` as the bytes of a document. Null `options`: the defaults. INVALID_ARGUMENT also
   * for ids that the codec cannot write (a set with an id twice). */
  wm_status (*rows_document)(const wm_rows* rows, const wm_document_options* options,
                             wm_bytes** out, wm_message* why);
  /* The same to a temporary file that then replaces `path`, so that no reader sees a part of it.
   * UNAVAILABLE if it cannot be written; no file is left behind. */
  wm_status (*rows_write_document)(const wm_rows* rows, const wm_document_options* options,
                                   const char* path, wm_message* why);
  void (*bytes_release)(wm_bytes* bytes);
  /* The bytes; valid as long as the object. */
  wm_status (*bytes_view)(const wm_bytes* bytes, const uint8_t** data, size_t* size);

  /* Copies the rows of `part` (null: all) of a document, in a shape of its layers; reads only the
   * crcs and layers that cover the part. Any bytes are safe, and bytes after the document are
   * ignored. `limits` and `damage` may be null. INVALID_ARGUMENT if it is no document;
   * UNIMPLEMENTED for another major version or an unknown codec; DATA_LOSS if the header is damaged
   * or incomplete; OUT_OF_RANGE outside the document; RESOURCE_EXHAUSTED beyond the limits. A chunk
   * in the place of another reads as damaged. */
  wm_status (*document_read)(const uint8_t* data, size_t size, const wm_read_limits* limits,
                             const wm_part* part, wm_rows** out, wm_read_damage* damage,
                             wm_message* why);
  /* The same of a file, which is read into memory or, with WM_READ_MAP, mapped: NOT_FOUND,
   * UNAVAILABLE; INVALID_ARGUMENT also if it is no regular file (a folder, a FIFO, a device);
   * RESOURCE_EXHAUSTED if it is read and has more than max_bytes. */
  wm_status (*document_read_file)(const char* path, const wm_read_limits* limits,
                                  const wm_part* part, wm_rows** out, wm_read_damage* damage,
                                  wm_message* why);

  /* ---- page sources ---- */

  /* Objects in this process's memory, at most `max_bytes`; the least recently used are evicted. */
  wm_status (*source_memory_create)(uint64_t max_bytes, wm_source** out, wm_message* why);
  /* Objects in a document with nodes, read only; its file is read or mapped as by
   * document_read_file. FAILED_PRECONDITION if it has no nodes; else errors as that function. */
  wm_status (*source_file_open)(const char* path, const wm_read_limits* limits, wm_source** out,
                                wm_message* why);
  /* Objects that the caller's `callbacks` store. On failure `destroy` is not called. */
  wm_status (*source_callbacks_create)(const wm_source_callbacks* callbacks, wm_source** out,
                                       wm_message* why);
  /* Passes object `index` of a request to the library, which copies its `size` bytes; a second call
   * for one index replaces the first. INVALID_ARGUMENT beyond the request, and for a range when
   * `size` is not its length; RESOURCE_EXHAUSTED if memory cannot be allocated: the object is then
   * absent. Within `get` or `get_ranges` only, on their thread. */
  wm_status (*reply_object)(wm_reply* reply, size_t index, const uint8_t* data, uint64_t size);
  /* Objects in a folder, a file each, for processes of one machine or of one file system with hard
   * links. `max_bytes`: of all its objects, beyond which the oldest are deleted, 0 for no limit.
   * `time_to_live_s`: objects expire this long after they were last put, or found by a publisher;
   * 0: never. An object that is there is not replaced. The first put makes the folder, but not its
   * parents, or source_check does. INVALID_ARGUMENT. */
  wm_status (*source_folder_create)(const char* path, uint64_t max_bytes, int32_t time_to_live_s,
                                    wm_source** out, wm_message* why);
  /* Objects in a Redis server, which may evict them. Does not connect yet (source_check does): an
   * unreachable server, or a refused password, costs rows; publishers and fetchers log it when they
   * are made. Null `options`: the defaults. INVALID_ARGUMENT; UNIMPLEMENTED in a build without
   * hiredis. */
  wm_status (*source_redis_create)(const wm_redis_options* options, wm_source** out,
                                   wm_message* why);
  void (*source_release)(wm_source* source);

  /* ---- publishing ---- */

  /* INVALID_ARGUMENT also for a source that is read only. */
  wm_status (*publisher_create)(const wm_publisher_options* options, wm_publisher** out,
                                wm_message* why);
  /* Its release waits for the publication in progress, but not in a call of the source or the log
   * on its own threads, which end then by themselves; publications in the queue are CANCELLED. */
  void (*publisher_release)(wm_publisher* publisher);
  /* Publishes rows of a sequence, which are copied; the ticket receives the handle of rows [0,
   * last). Rows that begin at row 0 are the whole sequence; others continue the rows of the same
   * `sequence`. A name that two requests had while it was remembered (max_sequences), because a
   * whole sequence had fewer rows than the one before, or rows of other steps, cannot be continued
   * any more: whose rows they are is not known. A sequence named "" or null cannot be continued.
   * Never waits for the source or the publisher's thread. */
  wm_status (*publisher_publish_rows)(wm_publisher* publisher, const char* sequence,
                                      const wm_rows* rows, wm_ticket** out, wm_message* why);
  /* Forgets what is remembered of `sequence`, a request that ended: its name can then go to
   * another request. Takes its turn after the publications in the queue; rows that are published
   * after it begin at row 0. Nothing happens to handles and objects. Never waits. */
  wm_status (*publisher_forget)(wm_publisher* publisher, const char* sequence, wm_message* why);
  /* The counters since it was created, without the publication in progress. */
  wm_status (*publisher_stats)(const wm_publisher* publisher, wm_counter* out, size_t capacity,
                               size_t* count);

  void (*ticket_release)(wm_ticket* ticket);
  /* OK if the ticket has its result, a handle or an error; else UNAVAILABLE. Never waits. */
  wm_status (*ticket_ready)(const wm_ticket* ticket);
  /* Waits for the handle, which each call makes. The objects have been put by then. DATA_LOSS: the
   * source failed, so that readers miss rows, and *out is the handle all the same; `why` has the
   * source's text. DEADLINE_EXCEEDED after `timeout_ns`; a
   * negative timeout never expires. Results of a ticket that is ready: RESOURCE_EXHAUSTED if the
   * queue was full; INVALID_ARGUMENT for another shape, or ids that the codec cannot write;
   * FAILED_PRECONDITION if the rows do not continue their sequence, it is no longer known, or
   * two requests had its name: publish from row 0; CANCELLED; RESOURCE_EXHAUSTED or INTERNAL if
   * an exception ended the publication, as a rule no memory: the publisher goes on. */
  wm_status (*ticket_wait)(const wm_ticket* ticket, int64_t timeout_ns, wm_bytes** out,
                           wm_message* why);

  /* The handle that publishing `rows`, which begin at row 0, would make without a key; puts
   * nothing. If the same rows are written as a document WM_DOCUMENT_WITH_NODES with the same
   * `code`, source_file_open makes a source with the objects of the handle. `code` and `store` may
   * be null. */
  wm_status (*rows_handle)(const wm_rows* rows, const wm_chunk_code* code, const char* store,
                           wm_bytes** out, wm_message* why);
  /* ---- fetching ---- */

  wm_status (*fetcher_create)(const wm_fetcher_options* options, wm_fetcher** out, wm_message* why);
  void (*fetcher_release)(wm_fetcher* fetcher);
  /* The rows of `part` (null: all) of a handle, in a shape of its layers. Waits for the source
   * until `timeout_ns` (a negative timeout never expires) and then returns what has arrived: other
   * rows are missing (capacity). `report` may be null; on OK `why` receives the text of the
   * source's status. OUT_OF_RANGE outside the handle; RESOURCE_EXHAUSTED beyond max_rows or
   * max_bytes; INVALID_ARGUMENT, DATA_LOSS and UNIMPLEMENTED if it is no handle of this version
   * (any bytes are safe), DATA_LOSS and FAILED_PRECONDITION by the key. Calls the source at most
   * four times, whatever the length, if batch_bytes is not below max_bytes. */
  wm_status (*fetcher_fetch)(wm_fetcher* fetcher, const uint8_t* handle, size_t size,
                             const wm_part* part, int64_t timeout_ns, wm_rows** out,
                             wm_fetch_report* report, wm_message* why);

  /* Tries whether the source can be used: UNAVAILABLE, DEADLINE_EXCEEDED, as far as that shows
   * without an object. Of a folder: whether it can be written. Of Redis: address, password,
   * database. OK for callbacks. */
  wm_status (*source_check)(const wm_source* source, int64_t timeout_ns, wm_message* why);
} wm_wire_api_v1;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* WAYMARK_PLUGIN_WAYMARK_WIRE_H_ */
