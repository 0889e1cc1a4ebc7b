// A program with an Abseil of its own loads libwaymark.so as engines do, and runs a step.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

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

  wm_store_options options = {};
  options.struct_size = sizeof(options);
  options.num_layers = 3;
  options.top_k = 2;
  options.num_experts = 16;
  options.num_blocks = 8;
  wm_store* store = nullptr;
  Check(wm->store_create(&options, &store, nullptr) == WM_OK, "a store");
  wm_session_options of_session = {};
  of_session.struct_size = sizeof(of_session);
  of_session.store = store;
  of_session.max_rows = 4;
  wm_session* session = nullptr;
  Check(wm->session_create(&of_session, &session, nullptr) == WM_OK, "a session");
  const wm_event bind = wm_bind(1, nullptr, 0);
  const std::int64_t slots[] = {16, 17, 18, 19};
  wm_step_batch batch = {};
  batch.struct_size = sizeof(batch);
  batch.step = 1;
  batch.events = &bind;
  batch.num_events = 1;
  batch.slots = slots;
  batch.num_slots = 4;
  Check(wm->session_begin_step(session, &batch, 0, nullptr) == WM_OK, "a step begins");
  wm_view view = {};
  Check(wm->session_view(session, 1, &view) == WM_OK, "it has a view");
  for (int layer = 0; layer < 3; ++layer) {
    for (int i = 0; i < 8; ++i)
      view.data[layer * view.layer_stride + i] = static_cast<std::int16_t>(layer + i);
  }
  Check(wm->session_submit(session, 1, 0, nullptr) == WM_OK, "it is submitted");
  // The longest time there is must not overflow into none.
  Check(wm->store_wait_idle(store, INT64_MAX, nullptr) == WM_OK, "it lands");
  const std::int32_t blocks[] = {1};
  wm_snapshot_args args = {};
  args.struct_size = sizeof(args);
  args.blocks = blocks;
  args.num_blocks = 1;
  args.last = 4;
  wm_snapshot* snapshot = nullptr;
  Check(wm->store_snapshot(store, &args, &snapshot, nullptr) == WM_OK, "a snapshot");
  std::vector<std::int64_t> ids(4 * 3 * 2);
  wm_read_args read = {};
  read.struct_size = sizeof(read);
  read.end = 4;
  read.layout = WM_LAYOUT_LTK;
  read.id_type = WM_ID_INT64;
  read.out = ids.data();
  read.out_bytes = ids.size() * sizeof(ids[0]);
  Check(wm->snapshot_wait(snapshot, -1, nullptr) == WM_OK, "it can be read");
  Check(wm->snapshot_read(snapshot, &read, nullptr) == WM_OK, "it is read");
  for (std::size_t i = 0; i < ids.size(); ++i)
    Check(ids[i] == static_cast<std::int64_t>(i / 8 + i % 8), absl::StrCat("id ", i));
  wm->snapshot_release(snapshot);
  wm->session_release(session);
  wm->store_release(store);
  Check(before.ToString() == absl::InternalError("status 1").ToString(),
        "the program's own Abseil");
  return failures == 0 ? 0 : 1;
}
