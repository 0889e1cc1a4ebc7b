/* What a test of the ABI's tables in plain C needs: checks, of which the first that fails ends the
 * program, and a record of the functions that were called. */
#ifndef WAYMARK_TESTS_ABI_TABLE_TEST_H_
#define WAYMARK_TESTS_ABI_TABLE_TEST_H_

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <waymark.h>

static const wm_api_v1* wm; /* main sets it, before the first check that needs it */

/* What the last call that was given `&why` wrote. */
static char text[1024];
static wm_message why = {text, sizeof(text), 0};

static void fail(const char* file, int line, const char* what) {
  fprintf(stderr, "%s:%d: not so: %s (text: \"%s\")\n", file, line, what, text);
  exit(1);
}
#define CHECK(holds)                                \
  do {                                              \
    if (!(holds)) fail(__FILE__, __LINE__, #holds); \
  } while (0)
#define CHECK_OK(call) CHECK((call) == WM_OK)
/* Function `name` of `table`, which is a `type`, to be called. `called`: a byte for each pointer
 * that would fit into the table, one of which is set. */
#define NOTED(type, table, called, name) \
  ((called)[offsetof(type, name) / sizeof(void*)] = 1, (table)->name)
/* Every function of a `type` was noted in `called`, an array; `first` is the first of them. */
#define CHECK_CALLED(type, first, called) \
  check_called(called, offsetof(type, first) / sizeof(void*), sizeof(called), #type)
static void check_called(const unsigned char* called, size_t first, size_t last, const char* type) {
  size_t i;
  for (i = first; i < last; ++i) {
    if (!called[i]) fprintf(stderr, "function %u of %s was not called\n", (unsigned)i, type);
    CHECK(called[i]);
  }
}

#endif /* WAYMARK_TESTS_ABI_TABLE_TEST_H_ */
