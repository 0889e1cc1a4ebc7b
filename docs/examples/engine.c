/* A complete engine on Waymark's C ABI: paged KV, a prefix cache, chunked prefill, decoding. The
 * model is a hash of the tokens so far, so that every row that is read can be checked. Exits with 1
 * if a row is wrong or missing. docs/integrating.md explains it. */
#include <stdio.h>
#include <stdlib.h>
#include <waymark.h>

enum { L = 4, K = 2, E = 64, BLOCK = 16, BLOCKS = 24, CHUNK = 24, PROMPT = 48, TOKENS = 75 };
enum { ROWS = TOKENS - 1 }; /* the last sampled token was never an input */

static struct {
  int users;
  uint64_t key, used;
} pool[BLOCKS]; /* the KV blocks */

static uint64_t mix(uint64_t h, uint64_t v) {
  h = (h ^ v) * 0x9e3779b97f4a7c15u;
  return h ^ (h >> 29);
}
static int16_t route(uint64_t prefix, uint64_t i) { /* i of L * K; distinct experts in a layer */
  const uint64_t h = mix(prefix, i / K + 1);
  return (int16_t)((h + i % K * (h >> 32 | 1)) % E);
}
static void ok(wm_status status) {
  if (status != WM_OK) exit(fprintf(stderr, "status %d\n", (int)status));
}
static void report(const wm_api_v1* wm, wm_capture* capture, wm_event event) {
  const wm_status status = wm->capture_report(capture, &event, 1, NULL);
  if (status != WM_RESOURCE_EXHAUSTED) ok(status); /* else the log was full: rows will be missing */
}

int main(void) {
  const wm_api_v1* wm = wm_get_api_v1();
  wm_capture_options sizes = {.struct_size = sizeof sizes, .num_layers = L, .top_k = K};
  sizes.num_experts = E, sizes.num_blocks = BLOCKS, sizes.page_tokens = BLOCK;
  wm_capture* capture;
  ok(wm->capture_create(&sizes, &capture, NULL));

  wm_step_batch batch = {.struct_size = sizeof batch, .version = 1};
  long rows = 0, hits = 0, wrong = 0;
  for (uint64_t request = 0; request < 200; ++request) {
    uint64_t prefix[TOKENS + 1] = {1}; /* hash of tokens [0, t); groups of eight share most */
    for (uint64_t t = 0; t < TOKENS; ++t)
      prefix[t + 1] = mix(prefix[t], t < PROMPT - 8 ? request / 8 : request * 1000 + t);
    int32_t blocks[TOKENS / BLOCK + 1], num_blocks = 0, done, end;
    for (int b = 0; b < BLOCKS && (num_blocks + 1) * BLOCK < PROMPT; ++b)
      if (pool[b].key == prefix[(num_blocks + 1) * BLOCK]) { /* a prefix hit: one user more */
        ++pool[b].users;
        report(wm, capture, wm_retain(blocks[num_blocks++] = b));
        b = -1;
      }
    hits += done = num_blocks * BLOCK;

    for (; done < ROWS; done = end) {
      int64_t slots[CHUNK];
      end = done + (PROMPT - done > CHUNK ? CHUNK : PROMPT > done ? PROMPT - done : 1);
      ++batch.step;
      for (int t = done; t < end; ++t) {
        if (t / BLOCK == num_blocks) { /* allocate the least recently used free block */
          int b = -1;
          for (int i = 0; i < BLOCKS; ++i)
            if (pool[i].users == 0 && (b < 0 || pool[i].used < pool[b].used)) b = i;
          pool[b].users = 1, pool[b].key = 0;
          report(wm, capture, wm_bind(blocks[num_blocks++] = b, NULL, 0));
        }
        const int32_t block = blocks[t / BLOCK];
        pool[block].used = batch.step;
        slots[t - done] = (int64_t)block * BLOCK + t % BLOCK;
        if (t % BLOCK == BLOCK - 1) { /* this step fills it: sealed with the hash of its prefix */
          pool[block].key = prefix[t + 1];
          report(wm, capture, wm_seal(block, &prefix[t + 1], sizeof prefix[0], 0));
        }
      }
      batch.slots = slots, batch.num_slots = (size_t)(end - done);
      int16_t chosen[CHUNK][L * K]; /* what the forward's routers choose */
      for (int t = done; t < end; ++t)
        for (int i = 0; i < L * K; ++i)
          chosen[t - done][i] = route(prefix[t + 1], (uint64_t)i);
      const wm_ids ids = wm_token_major(chosen, WM_ID_INT16, end - done, L, K);
      const wm_status told = wm->capture_step(capture, &batch, &ids, (wm_done){NULL, NULL}, NULL);
      if (told != WM_RESOURCE_EXHAUSTED) ok(told);  /* else it was dropped: rows will be missing */
      ok(wm->capture_wait_idle(capture, -1, NULL)); /* `chosen` goes: a real engine has buffers */
    }

    wm_taken* taken; /* take the rows before the blocks are released */
    ok(wm->capture_take(capture, blocks, (size_t)num_blocks, 0, ROWS, &taken, NULL));
    for (int i = 0; i < num_blocks; ++i) {
      --pool[blocks[i]].users;
      report(wm, capture, wm_release(blocks[i]));
    }
    wm_rows* read; /* from here on any thread may do this */
    wm_rows_view view = {.struct_size = sizeof view};
    ok(wm->taken_wait(taken, -1, NULL));
    ok(wm->taken_rows(taken, &read, NULL));
    ok(wm->rows_view(read, &view));
    for (int t = 0; t < ROWS; ++t, ++rows) {
      int right = view.infos[t].reason == WM_REASON_NONE;
      for (int i = 0; i < L * K; ++i)
        right &= view.ids[t * L * K + i] == route(prefix[t + 1], (uint64_t)i);
      wrong += !right;
    }
    wm->rows_release(read);
    wm->taken_release(taken);
  }
  printf("%ld rows, %ld from prefix hits, %ld wrong or missing\n", rows, hits, wrong);
  wm->capture_release(capture);
  return wrong != 0;
}
