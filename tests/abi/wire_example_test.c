/* The example at the top of waymark_wire.h, on a few rows. */
#include <stdio.h>
#include <string.h>
#include <waymark_wire.h>

static wm_rows* example(const wm_rows* rows) {
#include "plugin/waymark_wire.h.example"
  return again;
}

int main(void) {
  const wm_api_v1* wm = wm_get_api_v1();
  const wm_shape shape = {
      .struct_size = sizeof shape, .num_layers = 2, .top_k = 1, .num_experts = 9};
  const uint8_t ids[3][2] = {{1, 2}, {3, 4}, {5, 6}};
  const wm_row_info infos[3] = {{.step = 1}, {.step = 2}, {.step = 2}};
  const wm_rows_view given = {sizeof given, 0, 7, 3, ids[0], infos};
  wm_rows_view view = {.struct_size = sizeof view};
  wm_rows *rows = NULL, *again;
  if (wm->rows_create(&shape, &given, &rows, NULL) != WM_OK) return 1;
  again = example(rows);
  if (wm->rows_view(again, &view) != WM_OK || view.first != 7 || view.count != 3) return 1;
  if (memcmp(view.ids, ids, sizeof ids) != 0 || memcmp(view.infos, infos, sizeof infos) != 0)
    return 1;
  wm->rows_release(again);
  wm->rows_release(rows);
  return 0;
}
