// Rows that were read, in the C ABI.
#include <string>
#include <vector>

#include "plugin/abi/fill.h"
#include "plugin/capture/collective.h"

namespace waymark::abi {
namespace {

static_assert(static_cast<int>(IdType::kUint8) == WM_ID_UINT8 &&
              static_cast<int>(IdType::kUint16) == WM_ID_UINT16 &&
              static_cast<int>(IdType::kInt16) == WM_ID_INT16 &&
              static_cast<int>(IdType::kInt32) == WM_ID_INT32 &&
              static_cast<int>(IdType::kInt64) == WM_ID_INT64);

absl::StatusOr<Rows> MakeRows(const wm_shape* given_shape, const wm_rows_view* given_view) {
  wm_rows_view view = {};
  Arguments check;
  check.Struct(given_view, view, "view").Flags(view.flags, WM_ROWS_SORTED, "view.flags");
  if (!check.ok()) return check.status();
  const absl::StatusOr<RoutingShape> shape = TakeShape(given_shape);
  if (!shape.ok()) return shape.status();
  check.InRange(view.first, 0, static_cast<std::int64_t>(kMostElements), "view.first");
  if (check.ok()) {
    check.InRange(view.count, 0, static_cast<std::int64_t>(kMostElements) - view.first,
                  "view.count");
  }
  if (!check.ok()) return check.status();
  const auto count = static_cast<std::size_t>(view.count);
  check.Array(view.ids, count, "view.ids").Array(view.infos, count, "view.infos");
  if (!check.ok()) return check.status();

  return CopyRows(*shape, view.first, (view.flags & WM_ROWS_SORTED) == 0,
                  {view.ids, count * shape->row_bytes()},
                  {reinterpret_cast<const RowInfo*>(view.infos), count});
}

wm_status RowsCreate(const wm_shape* shape, const wm_rows_view* view, wm_rows** out,
                     wm_message* why) noexcept {
  return Guard(why, Arguments().Pointer(out, "out"),
               [&] { return Give(MakeRows(shape, view), out); });
}

wm_status RowsShape(const wm_rows* rows, wm_shape* out) noexcept {
  return Guard(nullptr, Arguments().Object(rows, "rows").OutStruct(out, "out"),
               [&] { CopyOut(rows->shape.get(), out); });
}

wm_status RowsView(const wm_rows* rows, wm_rows_view* out) noexcept {
  Arguments check;
  check.Object(rows, "rows").OutStruct(out, "out");
  return Guard(nullptr, check, [&]() -> absl::Status {
    wm_rows_view view = {};
    view.flags = rows->rows.ordered ? 0 : WM_ROWS_SORTED;
    view.first = rows->rows.first;
    view.count = rows->rows.size();
    view.ids = rows->rows.ids.data();
    view.infos = reinterpret_cast<const wm_row_info*>(rows->rows.infos.data());
    CopyOut(view, out);
    return absl::OkStatus();
  });
}

// The rows of an array of objects.
std::vector<const Rows*> RowsOf(const wm_rows* const* objects, std::size_t count, const char* name,
                                Arguments& check) {
  std::vector<const Rows*> rows;
  for (std::size_t i = 0; check.ok() && i < count; ++i) {
    check.Object(objects[i], (std::string(name) + "[" + std::to_string(i) + "]").c_str());
    if (check.ok()) rows.push_back(&objects[i]->rows);
  }
  return rows;
}

wm_status RowsJoin(const wm_rows* const* reads, std::size_t num_reads, wm_rows** out,
                   wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    Arguments check;
    check.Array(reads, num_reads, "reads").Pointer(out, "out");
    const std::vector<const Rows*> rows = RowsOf(reads, num_reads, "reads", check);
    return check.ok() ? Give(Join(rows), out) : check.status();
  });
}

wm_status RowsJoinLayers(const wm_rows* const* stages, std::size_t num_stages, wm_rows** out,
                         wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    constexpr std::size_t kMostStages = 1024;  // a layer each
    Arguments check;
    check.Array(stages, num_stages, "stages").Pointer(out, "out");
    check.That(num_stages <= kMostStages, "num_stages", "must be at most 1024");
    const std::vector<const Rows*> rows = RowsOf(stages, num_stages, "stages", check);
    return check.ok() ? Give(JoinLayers(rows), out) : check.status();
  });
}

}  // namespace

Collective TakeCollective(const wm_collective* given, const char* of, Arguments& check) {
  wm_collective args = {};
  Collective collective;
  check.Struct(given, args, of);
  if (args.release != nullptr) collective.owner.reset(args.context, args.release);
  const std::string name = of;
  check.InRange(args.ranks, 1, 4096, (name + ".ranks").c_str());
  check.InRange(args.rank, 0, std::int64_t{args.ranks} - 1, (name + ".rank").c_str());
  check.Zero(static_cast<std::uint32_t>(args.reserved), (name + ".reserved").c_str());
  check.That(args.all_gather != nullptr, (name + ".all_gather").c_str(), "must not be null");
  collective.rank = args.rank;
  collective.ranks = args.ranks;
  collective.all_gather = args.all_gather;
  collective.context = args.context;
  return collective;
}

absl::StatusOr<RoutingShape> TakeShape(const wm_shape* given) {
  wm_shape args = {};
  Arguments check;
  check.Struct(given, args, "shape");
  if (!check.ok()) return check.status();
  RoutingShape shape;
  shape.num_layers = args.num_layers;
  shape.top_k = args.top_k;
  shape.num_experts = args.num_experts;
  if (args.page_tokens != 0) shape.page_tokens = args.page_tokens;
  if (absl::Status status = shape.Validate(); !status.ok()) return status;
  if (args.layer_ids == nullptr) return shape;
  shape.layer_ids.assign(args.layer_ids, args.layer_ids + args.num_layers);
  if (absl::Status status = shape.Validate(); !status.ok()) return status;
  // What wm_shape lends of a shape without layer ids must come back as it was.
  if (shape.layer_ids.back() == shape.num_layers - 1) shape.layer_ids.clear();
  return shape;
}

void FillRows(wm_api_v1& api) {
  api.rows_create = &RowsCreate;
  api.rows_release = &Release<wm_rows>;
  api.rows_shape = &RowsShape;
  api.rows_view = &RowsView;
  api.rows_join = &RowsJoin;
  api.rows_join_layers = &RowsJoinLayers;
}

}  // namespace waymark::abi
