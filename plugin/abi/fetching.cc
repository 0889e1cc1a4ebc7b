// Handles and fetchers in the C ABI.
#include <cstdint>
#include <cstring>
#include <utility>

#include "plugin/abi/fill.h"

namespace waymark::abi {
namespace {

absl::StatusOr<wire::Handle> TakeHandle(const std::uint8_t* data, std::size_t size) {
  Arguments check;
  check.That(data != nullptr || size == 0, "handle", "must not be null with a size");
  if (!check.ok()) return check.status();
  return wire::ParseHandle({data, size});
}

wm_status HandleInfo(const std::uint8_t* data, std::size_t size, wm_handle_info* out,
                     wm_message* store, wm_message* why) noexcept {
  Arguments check;
  check.OutStruct(out, "out").That(CanTake(store), "store", "must not be null with a capacity");
  return Guard(why, check, [&]() -> absl::Status {
    const absl::StatusOr<wire::Handle> handle = TakeHandle(data, size);
    if (!handle.ok()) return handle.status();
    wm_handle_info info = {};
    info.num_tail = static_cast<std::uint32_t>(handle->tail.size());
    info.rows = handle->rows;
    static_assert(sizeof(info.head) == sizeof(handle->head));
    std::memcpy(&info.head, &handle->head, sizeof(info.head));
    info.num_layers = handle->shape.rows.num_layers;
    info.top_k = handle->shape.rows.top_k;
    info.num_experts = handle->shape.rows.num_experts;
    info.page_tokens = handle->shape.rows.page_tokens;
    info.flags = handle->mac.has_value() ? WM_HANDLE_KEYED : 0;
    CopyOut(info, out);
    WriteText(handle->store, store);
    return absl::OkStatus();
  });
}

wm_status FetcherCreate(const wm_fetcher_options* given, wm_fetcher** out,
                        wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    wm_fetcher_options args = {};
    Arguments check;
    check.Struct(given, args, "options");
    check.Flags(args.flags, WM_FETCHER_WHOLE_CHUNKS, "options.flags");
    check.Chain(args.ext, "options.ext");
    check.Object(args.source, "options.source");
    check.Array(args.key, args.key_size, "options.key");
    check.Pointer(out, "out");
    if (!check.ok()) return check.status();
    wire::FetcherOptions options;
    if (args.cache_bytes != 0) options.cache_bytes = args.cache_bytes;
    if (args.batch_bytes != 0) options.batch_bytes = args.batch_bytes;
    if (args.max_rows != 0) options.max_rows = ToCount(args.max_rows);
    if (args.max_bytes != 0) options.max_bytes = args.max_bytes;
    options.whole_chunks = (args.flags & WM_FETCHER_WHOLE_CHUNKS) != 0;
    if (args.key_size != 0) {
      const absl::StatusOr<wire::DigestKey> key =
          wire::DigestKey::Create("options.key", {args.key, args.key_size});
      if (!key.ok()) return key.status();
      options.key = *key;
    }
    *out = new wm_fetcher(args.source, options);
    return absl::OkStatus();
  });
}

void GiveCounts(const wire::FetchCounts& from, wm_status source, wm_fetch_report* to) {
  wm_fetch_report report = {};
  report.source_status = source;
  report.fetched = from.fetched;
  report.fetched_bytes = from.fetched_bytes;
  report.hits = from.hits;
  report.absent = from.absent;
  report.damaged = from.damaged;
  CopyOut(report, to);
}

wm_status FetcherFetch(wm_fetcher* fetcher, const std::uint8_t* data, std::size_t size,
                       const wm_part* given, std::int64_t timeout_ns, wm_rows** out,
                       wm_fetch_report* report, wm_message* why) noexcept {
  Arguments check;
  check.Object(fetcher, "fetcher").Pointer(out, "out");
  if (report != nullptr) check.OutStruct(report, "report");
  return Guard(why, check, [&]() -> absl::Status {
    const absl::StatusOr<wire::Handle> handle = TakeHandle(data, size);
    if (!handle.ok()) return handle.status();
    const absl::StatusOr<RowsAndLayers> part =
        TakePart(given, {0, handle->rows, 0, handle->shape.rows.num_layers});
    if (!part.ok()) return part.status();
    wire::FetchReport found;
    absl::StatusOr<Rows> rows =
        fetcher->fetcher.Fetch(*handle, *part, wire::After(Bounded(timeout_ns)), &found);
    if (!rows.ok()) return rows.status();
    *out = new wm_rows(*std::move(rows));
    const auto source = static_cast<wm_status>(found.source.code());
    if (report != nullptr) GiveCounts(found.counts, source, report);
    WriteText({found.source.message().data(), found.source.message().size()}, why);
    return absl::OkStatus();
  });
}

wm_status FetcherCounts(const wm_fetcher* fetcher, wm_fetch_report* out) noexcept {
  return Guard(nullptr, Arguments().Object(fetcher, "fetcher").OutStruct(out, "out"),
               [&] { GiveCounts(fetcher->fetcher.GetCounts(), WM_OK, out); });
}

}  // namespace

void FillFetching(wm_wire_api_v1& wire) {
  wire.handle_info = &HandleInfo;
  wire.fetcher_create = &FetcherCreate;
  wire.fetcher_retain = &Retain<wm_fetcher>;
  wire.fetcher_release = &Release<wm_fetcher>;
  wire.fetcher_fetch = &FetcherFetch;
  wire.fetcher_counts = &FetcherCounts;
}

}  // namespace waymark::abi
