// Fetchers in the C ABI.
#include <cstdint>
#include <memory>
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

wm_status FetcherCreate(const wm_fetcher_options* given, wm_fetcher** out,
                        wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    wm_fetcher_options args = {};
    Arguments check;
    check.Struct(given, args, "options");
    check.Flags(args.flags, WM_FETCHER_WHOLE_CHUNKS, "options.flags");
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
    if (absl::Status status = TakeTierOptions(args.tier, options.tier); !status.ok()) {
      return status;
    }
    auto fetcher = std::make_unique<wm_fetcher>(*args.source);
    options.log = LogTo(args.log);
    fetcher->fetcher = std::make_unique<wire::Fetcher>(args.source->source.get(), options);
    *out = fetcher.release();
    return absl::OkStatus();
  });
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
        fetcher->fetcher->Fetch(*handle, *part, wire::After(Bounded(timeout_ns)), &found);
    if (!rows.ok()) return rows.status();
    *out = new wm_rows(*std::move(rows));
    if (report != nullptr) {
      const wire::FetchCounts& counts = found.counts;
      CopyOut(wm_fetch_report{0, static_cast<wm_status>(found.source.code()), counts.fetched,
                              counts.fetched_bytes, counts.hits, counts.absent, counts.damaged},
              report);
    }
    WriteText({found.source.message().data(), found.source.message().size()}, why);
    return absl::OkStatus();
  });
}

}  // namespace

void FillFetching(wm_wire_api_v1& wire) {
  wire.fetcher_create = &FetcherCreate;
  wire.fetcher_release = &Release<wm_fetcher>;
  wire.fetcher_fetch = &FetcherFetch;
}

}  // namespace waymark::abi
