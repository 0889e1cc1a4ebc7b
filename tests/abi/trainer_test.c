/* Every function of the table of waymark_trainer.h, from plain C, and the example at its top. */
#include <waymark_trainer.h>

#include "tests/abi/table_test.h"

enum { L = 3, K = 2, E = 16, TOKENS = 8 };

static const wm_trainer_api_v1* table;
static unsigned char called[sizeof(wm_trainer_api_v1) / sizeof(void*)];
#define TRAINER(name) NOTED(wm_trainer_api_v1, table, called, name)

/* Id k of layer l of token t: distinct within a layer. */
static uint8_t id_of(int t, int l, int k) {
  return (uint8_t)((t * 5 + l * 3 + k * 7) % E);
}

static void example(const wm_trainer_api_v1* trainer, const wm_rows* rows) {
#include "adapters/trainer/waymark_trainer.h.example"
  static const int tokens_of_rank[] = {0, 1, 6, 7};
  int l, r, k;
  CHECK_OK(status);
  CHECK(report.replayed == 4 && report.padding == 0 && report.no_row == 0);
  CHECK(report.first_missing_sequence == -1);
  for (r = 0; r < 4; ++r) {
    CHECK(mask[r] == 1);
    for (l = 0; l < 2; ++l) {
      for (k = 0; k < K; ++k)
        CHECK(ids[l][r][k] == id_of(tokens_of_rank[r], l, k));
    }
  }
}

int main(void) {
  uint8_t ids[TOKENS][L][K];
  wm_row_info infos[TOKENS];
  wm_shape shape = {.struct_size = sizeof shape, .num_layers = L, .top_k = K, .num_experts = E};
  wm_rows_view view = {.struct_size = sizeof view, .count = TOKENS};
  wm_rows* rows = NULL;
  size_t count = 0;
  int t, l, k;

  wm = wm_get_api_v1();
  table = wm_get_trainer_api_v1();
  CHECK(table == wm_get_trainer_api_v1() && table->struct_size == sizeof(wm_trainer_api_v1));
  memset(infos, 0, sizeof infos);
  for (t = 0; t < TOKENS; ++t) {
    for (l = 0; l < L; ++l) {
      for (k = 0; k < K; ++k)
        ids[t][l][k] = id_of(t, l, k);
    }
  }
  view.ids = &ids[0][0][0];
  view.infos = infos;
  CHECK_OK(wm->rows_create(&shape, &view, &rows, &why));
  example(table, rows);

  /* Plans. */
  {
    const int64_t lengths[] = {5, 8};
    const int64_t padded[] = {8, 12};
    wm_trainer_layout layout = {.struct_size = sizeof layout, .context_size = 2, .context_rank = 1};
    wm_trainer_plan* plan = NULL;
    wm_trainer_segment segments[4];
    CHECK_BAD(TRAINER(plan_create)(&layout, lengths, NULL, 2, &plan, &why), "lengths[0]");
    CHECK_BAD(TRAINER(plan_create)(NULL, lengths, NULL, 2, &plan, &why), "layout");
    CHECK_BAD(TRAINER(plan_create)(&layout, NULL, NULL, 2, &plan, &why), "lengths");
    CHECK_BAD(TRAINER(plan_create)(&layout, lengths, padded, 2, NULL, &why), "out");
    layout.order = 3;
    CHECK_BAD(TRAINER(plan_create)(&layout, lengths, padded, 2, &plan, &why), "layout.order");
    layout.order = WM_TRAINER_PACKED;
    layout.flags = 2;
    CHECK_BAD(TRAINER(plan_create)(&layout, lengths, padded, 2, &plan, &why), "layout.flags");
    layout.flags = 0;
    CHECK_OK(TRAINER(plan_create)(&layout, lengths, padded, 2, &plan, &why));
    CHECK(TRAINER(plan_rows)(plan) == 10 && TRAINER(plan_rows)(NULL) == -1);
    /* Of 8: chunks 1 and 2 of four, tokens 2 to 5; of 12: tokens 3 to 8. */
    CHECK_OK(TRAINER(plan_segments)(plan, segments, 1, &count, &why));
    CHECK(count == 4);
    CHECK_OK(TRAINER(plan_segments)(plan, segments, 4, &count, &why));
    CHECK(segments[0].position == 2 && segments[0].count == 2 && segments[0].row == 0);
    CHECK(segments[1].position == 4 && segments[1].count == 1 && segments[1].row == 2);
    CHECK(segments[2].sequence == 1 && segments[2].position == 3 && segments[2].row == 4);
    CHECK(segments[3].position == 6 && segments[3].count == 2 && segments[3].row == 7 &&
          segments[3].row_stride == 1);
    CHECK_BAD(TRAINER(plan_segments)(NULL, segments, 4, &count, &why), "plan");
    TRAINER(plan_retain)(plan);
    TRAINER(plan_release)(plan);
    CHECK(TRAINER(plan_rows)(plan) == 10);
    TRAINER(plan_release)(plan);
  }
  {
    wm_trainer_pipeline pipeline = {.struct_size = sizeof pipeline,
                                    .num_layers = 16,
                                    .pipeline_size = 2,
                                    .pipeline_rank = 1,
                                    .virtual_size = 4,
                                    .virtual_rank = 3};
    int32_t first = 0;
    int32_t layers = 0;
    CHECK_OK(TRAINER(stage_layers)(&pipeline, &first, &layers, &why));
    CHECK(first == 14 && layers == 2);
    pipeline.num_layers = 15;
    CHECK_BAD(TRAINER(stage_layers)(&pipeline, &first, &layers, &why), "pipeline.num_layers");
  }

  /* Filling from rows in memory, and what is refused. */
  {
    const int64_t lengths[] = {TOKENS};
    const uint8_t reasons[TOKENS] = {0, 0, 0, WM_REASON_AUDIT, 0, 0, 0, 0};
    const int32_t layers[] = {2};
    int32_t out[1][TOKENS][K];
    uint8_t mask[TOKENS];
    wm_trainer_layout layout = {.struct_size = sizeof layout};
    wm_trainer_plan* plan = NULL;
    wm_trainer_source source = {.struct_size = sizeof source,
                                .shape = &shape,
                                .count = TOKENS,
                                .ids = &ids[0][0][0],
                                .reasons = reasons};
    const wm_trainer_source* sources[] = {&source};
    wm_trainer_fill_args args = {.struct_size = sizeof args,
                                 .sources = sources,
                                 .num_sources = 1,
                                 .layers = layers,
                                 .num_layers = 1,
                                 .id_type = WM_ID_INT32,
                                 .fill = WM_FILL_ARANGE,
                                 .ids = out,
                                 .ids_bytes = sizeof out,
                                 .mask = mask,
                                 .mask_bytes = sizeof mask};
    wm_trainer_report report = {.struct_size = sizeof report};
    CHECK_OK(TRAINER(plan_create)(&layout, lengths, NULL, 1, &plan, &why));
    CHECK_BAD(TRAINER(fill)(&args, &report, &why), "args.plan");
    args.plan = plan;
    CHECK_OK(TRAINER(fill)(&args, &report, &why));
    CHECK(report.replayed == TOKENS - 1 && report.missing[WM_REASON_AUDIT] == 1);
    CHECK(report.first_missing_sequence == 0 && report.first_missing_position == 3);
    for (t = 0; t < TOKENS; ++t) {
      CHECK(mask[t] == (t != 3));
      for (k = 0; k < K; ++k)
        CHECK(out[0][t][k] == (t == 3 ? k : id_of(t, 2, k)));
    }
    CHECK_OK(TRAINER(fill)(&args, NULL, &why));
    source.count = TOKENS - 2;
    CHECK_BAD(TRAINER(fill)(&args, &report, &why), "sources[0]");
    args.flags = WM_TRAINER_PARTIAL;
    CHECK_OK(TRAINER(fill)(&args, &report, &why));
    CHECK(report.missing[WM_REASON_NEVER_WRITTEN] == 1 && report.no_row == 1);
    args.flags = 4;
    CHECK_BAD(TRAINER(fill)(&args, &report, &why), "args.flags");
    args.flags = 0;
    source.rows = rows;
    CHECK_BAD(TRAINER(fill)(&args, &report, &why), "exactly one");
    source.shape = NULL;
    CHECK_OK(TRAINER(fill)(&args, &report, &why));
    CHECK(report.replayed == TOKENS);
    source.rows = NULL;
    CHECK_BAD(TRAINER(fill)(&args, &report, &why), "exactly one");
    sources[0] = NULL;
    CHECK_BAD(TRAINER(fill)(&args, &report, &why), "args.sources[0]");
    sources[0] = &source;
    source.rows = rows;
    args.ids_bytes -= 1;
    CHECK_BAD(TRAINER(fill)(&args, &report, &why), "ids");
    args.ids_bytes += 1;
    args.id_type = 5;
    CHECK_BAD(TRAINER(fill)(&args, &report, &why), "args.id_type");

    /* The same by way of packed rows. */
    {
      uint8_t packed[TOKENS][1][K];
      int32_t again[1][TOKENS][K];
      wm_trainer_expand_args to = {.struct_size = sizeof to,
                                   .num_layers = 1,
                                   .top_k = K,
                                   .num_experts = shape.num_experts,
                                   .id_type = WM_ID_INT32,
                                   .fill = WM_FILL_ARANGE,
                                   .rows = TOKENS,
                                   .packed = packed,
                                   .packed_bytes = sizeof packed,
                                   .mask = mask,
                                   .mask_bytes = sizeof mask,
                                   .ids = again,
                                   .ids_bytes = sizeof again};
      source.rows = NULL;
      source.shape = &shape;
      source.count = TOKENS;
      args.flags = 0;
      args.id_type = WM_ID_INT32;
      CHECK_OK(TRAINER(fill)(&args, &report, &why));
      args.flags = WM_TRAINER_PACKED_ROWS;
      args.ids = packed;
      args.ids_bytes = sizeof packed;
      CHECK_BAD(TRAINER(fill)(&args, &report, &why), "ids");
      args.id_type = WM_ID_UINT8;
      CHECK_OK(TRAINER(fill)(&args, &report, &why));
      CHECK(report.replayed == TOKENS - 1 && report.missing[WM_REASON_AUDIT] == 1);
      for (k = 0; k < K; ++k)
        CHECK(packed[3][0][k] == 0 && packed[4][0][k] == id_of(4, 2, k));
      CHECK_OK(TRAINER(expand)(&to, &why));
      CHECK(memcmp(again, out, sizeof out) == 0);
      to.mask_bytes -= 1;
      CHECK_BAD(TRAINER(expand)(&to, &why), "mask: must be 8 bytes");
      to.mask_bytes += 1;
      to.packed = NULL;
      CHECK_BAD(TRAINER(expand)(&to, &why), "args.packed");
      to.packed = packed;
      to.flags = 2;
      CHECK_BAD(TRAINER(expand)(&to, &why), "args.flags");
      to.flags = 0;
      to.reserved = 1;
      CHECK_BAD(TRAINER(expand)(&to, &why), "args.reserved");
      CHECK_BAD(TRAINER(expand)(NULL, &why), "args");
      args.flags = 0;
    }

    source.rows = NULL;
    source.shape = &shape;
    source.count = TOKENS;
    CHECK_OK(TRAINER(check_ids)(&source, &why));
    ids[3][1][0] = ids[3][1][1]; /* of the missing row */
    CHECK_OK(TRAINER(check_ids)(&source, &why));
    ids[4][1][0] = ids[4][1][1];
    CHECK_BAD(TRAINER(check_ids)(&source, &why), "row 4, layer 1");
    CHECK_BAD(TRAINER(check_ids)(NULL, &why), "source");

    /* The audit: layers swapped. */
    {
      uint8_t given[2][TOKENS][K];
      uint8_t own[2][TOKENS][K];
      double by_layer[2];
      double by_row[TOKENS];
      double by_sequence[1];
      wm_trainer_alarm alarms[2];
      wm_trainer_audit audit = {.struct_size = sizeof audit};
      wm_trainer_audit_args compared = {.struct_size = sizeof compared,
                                        .plan = plan,
                                        .num_layers = 2,
                                        .top_k = K,
                                        .num_experts = E,
                                        .given_type = WM_ID_UINT8,
                                        .given = given,
                                        .given_bytes = sizeof given,
                                        .mask = mask,
                                        .mask_bytes = sizeof mask,
                                        .own_type = WM_ID_UINT8,
                                        .own = own,
                                        .own_bytes = sizeof own,
                                        .layers = by_layer,
                                        .num_layers_out = 2,
                                        .positions = by_row,
                                        .num_positions = TOKENS,
                                        .sequences = by_sequence,
                                        .num_sequences = 1};
      for (t = 0; t < TOKENS; ++t) {
        mask[t] = 1;
        for (l = 0; l < 2; ++l) {
          for (k = 0; k < K; ++k) {
            own[l][t][k] = id_of(t, l, k);
            given[l][t][k] = id_of(t, l, k);
          }
        }
      }
      CHECK_OK(TRAINER(audit)(&compared, &audit, alarms, 2, &count, &why));
      CHECK(count == 0 && audit.agreement == 1 && audit.rows == TOKENS && by_layer[1] == 1);
      CHECK(by_row[3] == 1 && by_sequence[0] == 1);
      for (t = 0; t < TOKENS; ++t) {
        for (l = 0; l < 2; ++l) {
          for (k = 0; k < K; ++k)
            given[l][t][k] = id_of(t, 1 - l, k);
        }
      }
      CHECK_OK(TRAINER(audit)(&compared, &audit, alarms, 2, &count, &why));
      CHECK(count == 2 && alarms[0].error == WM_REPLAY_LAYERS && alarms[0].layer == 0);
      CHECK(alarms[0].by == 1 && alarms[0].count == 2 && alarms[0].explained == 1);
      CHECK_OK(TRAINER(alarm_text)(&alarms[0], &why));
      CHECK(strstr(text, "layer 0 has the ids of layer 1") != NULL);
      alarms[0].error = 6;
      CHECK_BAD(TRAINER(alarm_text)(&alarms[0], &why), "alarm.error");
      compared.own_bytes = 1;
      CHECK_BAD(TRAINER(audit)(&compared, &audit, alarms, 2, &count, &why), "own");
      compared.own_bytes = sizeof own;
      compared.num_positions = 1;
      CHECK_BAD(TRAINER(audit)(&compared, &audit, alarms, 2, &count, &why), "args.num_positions");
    }
    TRAINER(plan_release)(plan);
  }

  /* Agreement: layer 2 of one row in another order, another id in another. */
  {
    wm_rows* other = NULL;
    wm_trainer_agreement layers[L];
    for (t = 3; t < 5; ++t) {
      for (k = 0; k < K; ++k)
        ids[t][1][k] = id_of(t, 1, k);
    }
    ids[0][2][0] = id_of(0, 2, 1);
    ids[0][2][1] = id_of(0, 2, 0);
    ids[1][2][0] = (uint8_t)((id_of(1, 2, 0) + 1) % E);
    CHECK_OK(wm->rows_create(&shape, &view, &other, &why));
    CHECK_OK(TRAINER(agreement)(rows, other, layers, L, &count, &why));
    CHECK(count == L && layers[1].same_order == TOKENS && layers[1].shared_ids == TOKENS * K);
    CHECK(layers[2].rows == TOKENS && layers[2].same_set == TOKENS - 1);
    CHECK(layers[2].same_order == TOKENS - 2 && layers[2].shared_ids == TOKENS * K - 1);
    CHECK_BAD(TRAINER(agreement)(rows, NULL, layers, L, &count, &why), "b");
    wm->rows_release(other);
  }
  wm->rows_release(rows);
  CHECK_CALLED(wm_trainer_api_v1, plan_create, called);
  return 0;
}
