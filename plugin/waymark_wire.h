/* Waymark's C ABI for documents: rows as bytes, in memory and in files. An engine that only
 * captures needs waymark.h alone; the rules for structs, arguments, statuses and objects are at its
 * top. Page sources, publishing, fetching and rows by key are in C++ and Python. C99 and C++.
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

typedef struct wm_bytes wm_bytes; /* bytes that the library made; immutable */

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
#define WM_DOCUMENT_WITH_NODES 2u    /* rows begin at row 0; a FileSource (C++, Python) opens it */

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

/* ---- the table of the wire ---------------------------------------------------------------- */

typedef struct wm_wire_api_v1 {
  size_t struct_size; /* bytes of the library's table: a function at or beyond it does not exist */

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
} wm_wire_api_v1;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* WAYMARK_PLUGIN_WAYMARK_WIRE_H_ */
