// A program with an Abseil of its own loads libwaymark.so as engines do, and runs a step.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "plugin/waymark.h"

namespace {

int failures = 0;
void Check(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "not so: %s\n", what.c_str());
  ++failures;
}

using Get = const wm_api_v1* (*)();

}  // namespace

// argv[1]: the library.
int main(int argc, char** argv) {
  if (argc != 2) return 2;
  // The program's own Abseil is in use before, and after.
  const absl::Status before = absl::InternalError(absl::StrCat("status ", 1));
  void* const library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  const auto get = reinterpret_cast<Get>(dlsym(library, "wm_get_api_v1"));
  if (get == nullptr) return 1;
  Check(dlsym(RTLD_DEFAULT, "wm_get_api_v1") == nullptr, "RTLD_LOCAL keeps the symbol apart");
  const wm_api_v1* const wm = get();
  void* const second = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  const auto get_again = reinterpret_cast<Get>(dlsym(second, "wm_get_api_v1"));
  Check(get_again != nullptr && get_again() == wm, "loaded twice it has one table");
  Check(wm->struct_size >= sizeof(wm_api_v1) && wm->abi_major == WM_ABI_MAJOR, "its version");

  wm_capture_options options = {};
  options.struct_size = sizeof(options);
  options.num_layers = 3;
  options.top_k = 2;
  options.num_experts = 16;
  options.num_blocks = 8;
  wm_capture* capture = nullptr;
  Check(wm->capture_create(&options, &capture, nullptr) == WM_OK, "a capture");
  const wm_event bind = wm_bind(1, nullptr, 0);
  const std::int64_t slots[] = {16, 17, 18, 19};
  wm_step_batch batch = {};
  batch.struct_size = sizeof(batch);
  batch.step = 1;
  batch.events = &bind;
  batch.num_events = 1;
  batch.slots = slots;
  batch.num_slots = 4;
  std::int16_t chosen[4 * 3 * 2];
  for (int i = 0; i < 24; ++i)
    chosen[i] = static_cast<std::int16_t>(i % 16);
  const wm_ids ids = wm_token_major(chosen, WM_ID_INT16, 4, 3, 2);
  Check(wm->capture_step(capture, &batch, &ids, {nullptr, nullptr}, nullptr) == WM_OK, "a step");
  const std::int32_t block = 1;
  wm_taken* taken = nullptr;
  wm_rows* rows = nullptr;
  Check(wm->capture_take(capture, &block, 1, 0, 4, &taken, nullptr) == WM_OK, "its rows are taken");
  // The longest time there is must not overflow into none.
  Check(wm->taken_wait(taken, INT64_MAX, nullptr) == WM_OK, "they are read");
  Check(wm->taken_rows(taken, &rows, nullptr) == WM_OK, "they are there");
  wm_rows_view view = {};
  view.struct_size = sizeof(view);
  Check(wm->rows_view(rows, &view) == WM_OK && view.count == 4, "they can be looked at");
  for (int i = 0; i < 24; ++i)
    Check(view.ids[i] == i % 16, absl::StrCat("id ", i));
  wm->rows_release(rows);
  wm->taken_release(taken);
  wm->capture_release(capture);
  Check(before.ToString() == absl::InternalError("status 1").ToString(),
        "the program's own Abseil");
  return failures == 0 ? 0 : 1;
}
