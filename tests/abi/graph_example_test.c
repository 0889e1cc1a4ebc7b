/* The example at the top of waymark_graph.h, of one step. */
#include <stdio.h>
#include <waymark_graph.h>

static void forward(int16_t* ids) {
  ids[0] = 3, ids[1] = 5;
}

static wm_session* example(wm_capture* capture, const wm_step_batch* batch) {
#include "plugin/waymark_graph.h.example"
  return session;
}

int main(void) {
  const wm_api_v1* wm = wm_get_api_v1();
  const wm_capture_options options = {.struct_size = sizeof options,
                                      .num_layers = 1,
                                      .top_k = 2,
                                      .num_experts = 9,
                                      .num_blocks = 2};
  const wm_event bind = wm_bind(1, NULL, 0);
  const int64_t slot = 16;
  const int32_t block = 1;
  const wm_step_batch batch = {.struct_size = sizeof batch,
                               .step = 1,
                               .events = &bind,
                               .num_events = 1,
                               .slots = &slot,
                               .num_slots = 1};
  wm_capture* capture = NULL;
  wm_session* session = NULL;
  wm_taken* taken = NULL;
  wm_rows* rows = NULL;
  wm_rows_view view = {.struct_size = sizeof view};
  if (wm->capture_create(&options, &capture, NULL) != WM_OK) return 1;
  session = example(capture, &batch);
  if (session == NULL) return 1;
  if (wm->capture_take(capture, &block, 1, 0, 1, &taken, NULL) != WM_OK) return 1;
  if (wm->taken_wait(taken, -1, NULL) != WM_OK) return 1;
  if (wm->taken_rows(taken, &rows, NULL) != WM_OK || wm->rows_view(rows, &view) != WM_OK) return 1;
  if (view.ids[0] != 3 || view.ids[1] != 5 || view.infos[0].step != 1) return 1;
  wm->rows_release(rows);
  wm->taken_release(taken);
  wm->graph->session_release(session);
  wm->capture_release(capture);
  return 0;
}
