// Sources, publishers, handles and fetchers of the C ABI.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "blockstore/wire/file_source.h"
#include "blockstore/wire/memory_source.h"
#include "blockstore/wire/trajectory.h"
#include "plugin/abi/fill.h"
#include "plugin/sources/redis_source.h"

namespace waymark::abi {
namespace {

// A timeout that can be added to any clock; a negative one is as long as it takes.
std::chrono::nanoseconds Bounded(std::int64_t ns) {
  constexpr std::chrono::nanoseconds kLongest = std::chrono::hours(24 * 365);
  return ns < 0 ? kLongest : std::min(std::chrono::nanoseconds(ns), kLongest);
}

const char* OrEmpty(const char* text) {
  return text != nullptr ? text : "";
}

wm_status SourceMemoryCreate(std::uint64_t max_bytes, wm_source** out, wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    Arguments check;
    check.Pointer(out, "out");
    if (check.ok()) *out = new wm_source(std::make_unique<wire::MemorySource>(max_bytes));
    return check.status();
  });
}

wm_status SourceFileOpen(const char* path, const wm_read_limits* given, wm_source** out,
                         wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    Arguments check;
    check.Pointer(path, "path").Pointer(out, "out");
    if (!check.ok()) return check.status();
    const absl::StatusOr<wire::ReadLimits> limits = TakeLimits(given);
    if (!limits.ok()) return limits.status();
    absl::StatusOr<std::unique_ptr<wire::FileSource>> source =
        wire::FileSource::Open(path, *limits);
    if (!source.ok()) return source.status();
    *out = new wm_source(*std::move(source));
    return absl::OkStatus();
  });
}

wm_status SourceRedisCreate(const wm_redis_options* given, wm_source** out,
                            wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    wm_redis_options args = {};
    Arguments check;
    if (given != nullptr) check.Struct(given, args, "options");
    check.Flags(args.flags, WM_REDIS_TLS, "options.flags").Chain(args.ext, "options.ext");
    RedisOptions options;
    const auto text = [](const char* from, std::string& to) {
      if (from != nullptr) to = from;
    };
    if (*OrEmpty(args.host) != 0) options.host = args.host;
    text(args.unix_socket, options.unix_socket);
    text(args.user, options.user);
    text(args.password, options.password);
    text(args.key_prefix, options.key_prefix);
    text(args.tls_ca_file, options.tls.ca_file);
    text(args.tls_certificate_file, options.tls.certificate_file);
    text(args.tls_key_file, options.tls.key_file);
    text(args.tls_server_name, options.tls.server_name);
    options.tls.use = (args.flags & WM_REDIS_TLS) != 0;
    const auto number = [&check](std::int32_t from, std::int32_t most, const char* name, auto& to) {
      check.InRange(from, 0, most, name);
      if (from != 0) to = std::decay_t<decltype(to)>(from);
    };
    number(args.port, 65535, "options.port", options.port);
    number(args.database, INT32_MAX, "options.database", options.database);
    number(args.time_to_live_s, INT32_MAX, "options.time_to_live_s", options.time_to_live);
    number(args.connect_timeout_ms, INT32_MAX, "options.connect_timeout_ms",
           options.connect_timeout);
    number(args.command_timeout_ms, INT32_MAX, "options.command_timeout_ms",
           options.command_timeout);
    number(args.first_back_off_ms, INT32_MAX, "options.first_back_off_ms", options.first_back_off);
    number(args.greatest_back_off_ms, INT32_MAX, "options.greatest_back_off_ms",
           options.greatest_back_off);
    check.InRange(args.believe_ms, -1, INT32_MAX, "options.believe_ms");
    if (args.believe_ms != 0) {
      options.believe = std::chrono::milliseconds(std::max(args.believe_ms, 0));
    }
    if (args.max_believed != 0) options.max_believed = args.max_believed;
    check.Pointer(out, "out");
    if (!check.ok()) return check.status();
    absl::StatusOr<std::unique_ptr<RedisSource>> source = RedisSource::Create(options);
    if (!source.ok()) return source.status();
    *out = new wm_source(*std::move(source));
    return absl::OkStatus();
  });
}

// ---- publishers

wm_status PublisherCreate(const wm_publisher_options* given, wm_publisher** out,
                          wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    wm_publisher_options args = {};
    Arguments check;
    check.Struct(given, args, "options").Flags(args.flags, 0, "options.flags");
    check.Chain(args.ext, "options.ext").Handle(args.source, "options.source");
    check.InRange(args.landing_timeout_ns, 0, INT64_MAX, "options.landing_timeout_ns");
    check.InRange(args.source_timeout_ns, 0, INT64_MAX, "options.source_timeout_ns");
    check.Pointer(out, "out");
    if (!check.ok()) return check.status();
    absl::StatusOr<RoutingShape> shape = TakeShape(args.shape);
    if (!shape.ok()) return shape.status();
    const absl::StatusOr<wire::ChunkCode> code = TakeChunkCode(args.code, *shape);
    if (!code.ok()) return code.status();
    wire::PublisherOptions options;
    options.shape = {*std::move(shape), *code};
    options.store = OrEmpty(args.store);
    if (args.max_waiting != 0) options.max_waiting = args.max_waiting;
    if (args.max_pages != 0) options.max_pages = args.max_pages;
    if (args.max_sequences != 0) options.max_sequences = args.max_sequences;
    const auto timeout = [](std::int64_t ns, std::chrono::nanoseconds& to) {
      if (ns != 0) to = Bounded(ns);
    };
    timeout(args.landing_timeout_ns, options.landing_timeout);
    timeout(args.source_timeout_ns, options.source_timeout);
    auto publisher = std::make_unique<wm_publisher>(args.source);
    absl::StatusOr<std::unique_ptr<wire::Publisher>> made =
        wire::Publisher::Create(args.source->source.get(), options);
    if (!made.ok()) return made.status();
    publisher->publisher = *std::move(made);
    *out = publisher.release();
    return absl::OkStatus();
  });
}

wm_status PublishSnapshot(wm_publisher* publisher, const char* sequence, wm_snapshot* snapshot,
                          wm_ticket** out, wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    Arguments check;
    check.Handle(publisher, "publisher").Handle(snapshot, "snapshot").Pointer(out, "out");
    check.That(IsA(snapshot) && snapshot->snapshot.shape() != nullptr, "snapshot",
               "must have its rows; they were published");
    if (!check.ok()) return check.status();
    const std::lock_guard lock(publisher->pinned_mutex);
    publisher->pinned.remove_if([](const wm_publisher::Pinned& pinned) {
      return pinned.until.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    });
    std::string name(OrEmpty(sequence));
    auto ticket = std::make_unique<wm_ticket>();
    publisher->pinned.push_back({{}, snapshot->recorder});
    try {
      ticket->result =
          publisher->publisher->Publish(std::move(name), std::move(snapshot->snapshot)).share();
    } catch (...) {
      publisher->pinned.pop_back();
      throw;
    }
    publisher->pinned.back().until = ticket->result;
    *out = ticket.release();
    return absl::OkStatus();
  });
}

wm_status PublishRows(wm_publisher* publisher, const char* sequence, const wm_rows* rows,
                      wm_ticket** out, wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    Arguments check;
    check.Handle(publisher, "publisher").Handle(rows, "rows").Pointer(out, "out");
    if (!check.ok()) return check.status();
    auto ticket = std::make_unique<wm_ticket>();
    ticket->result = publisher->publisher->Publish(OrEmpty(sequence), rows->rows).share();
    *out = ticket.release();
    return absl::OkStatus();
  });
}

wm_status PublisherStatsOf(const wm_publisher* publisher, wm_publisher_stats* out) noexcept {
  return Guard(nullptr, [&]() -> absl::Status {
    Arguments check;
    check.Handle(publisher, "publisher").OutStruct(out, "out");
    if (!check.ok()) return check.status();
    const wire::PublisherStats from = publisher->publisher->GetStats();
    wm_publisher_stats stats = {};
    stats.published = from.published;
    stats.dropped = from.dropped;
    stats.failed = from.failed;
    stats.pages = from.pages;
    stats.pages_encoded = from.pages_encoded;
    stats.objects_held = from.objects_held;
    stats.objects_put = from.objects_put;
    stats.bytes_put = from.bytes_put;
    stats.puts_failed = from.puts_failed;
    CopyOut(stats, out);
    return absl::OkStatus();
  });
}

// Whoever publishes asks until it is: it costs no text.
wm_status TicketReady(const wm_ticket* ticket) noexcept {
  return GuardStep(nullptr, [&]() -> wm_code {
    if (!IsA(ticket)) return BadArgument(0);
    const bool ready =
        ticket->result.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    return {ready ? WM_OK : WM_UNAVAILABLE};
  });
}

absl::Status GiveHandle(const wire::Handle& handle, wm_bytes** out) {
  absl::StatusOr<std::vector<std::uint8_t>> bytes = wire::EncodeHandle(handle);
  if (!bytes.ok()) return bytes.status();
  *out = new wm_bytes(*std::move(bytes));
  return absl::OkStatus();
}

wm_status TicketWait(const wm_ticket* ticket, std::int64_t timeout_ns, wm_bytes** out,
                     wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    Arguments check;
    check.Handle(ticket, "ticket").Pointer(out, "out");
    if (!check.ok()) return check.status();
    const absl::Status waited = WaitFor(timeout_ns, [ticket](std::int64_t piece) -> absl::Status {
      if (ticket->result.wait_for(std::chrono::nanoseconds(piece)) == std::future_status::ready) {
        return absl::OkStatus();
      }
      return absl::DeadlineExceededError("the rows are not published yet");
    });
    if (!waited.ok()) return waited;
    const absl::StatusOr<wire::Handle>& handle = ticket->result.get();
    return handle.ok() ? GiveHandle(*handle, out) : handle.status();
  });
}

// ---- handles

wm_status RowsHandle(const wm_rows* rows, const wm_chunk_code* given, const char* store,
                     wm_bytes** out, wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    Arguments check;
    check.Handle(rows, "rows").Pointer(out, "out");
    if (!check.ok()) return check.status();
    const absl::StatusOr<wire::ChunkCode> code = TakeChunkCode(given, rows->rows.shape);
    if (!code.ok()) return code.status();
    const absl::StatusOr<wire::Trajectory> trajectory =
        wire::MakeTrajectory(rows->rows, *code, OrEmpty(store));
    return trajectory.ok() ? GiveHandle(trajectory->handle, out) : trajectory.status();
  });
}

absl::StatusOr<wire::Handle> TakeHandle(const std::uint8_t* data, std::size_t size) {
  Arguments check;
  check.That(data != nullptr || size == 0, "handle", "must not be null with a size");
  if (!check.ok()) return check.status();
  return wire::ParseHandle({data, size});
}

wm_status HandleInfo(const std::uint8_t* data, std::size_t size, wm_handle_info* out,
                     wm_message* store, wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    Arguments check;
    check.OutStruct(out, "out").That(CanTake(store), "store", "must not be null with a capacity");
    if (!check.ok()) return check.status();
    const absl::StatusOr<wire::Handle> handle = TakeHandle(data, size);
    if (!handle.ok()) return handle.status();
    wm_handle_info info = {};
    info.num_tail = static_cast<std::uint32_t>(handle->tail.size());
    info.rows = handle->rows;
    static_assert(sizeof(info.head) == sizeof(handle->head));
    std::memcpy(info.head, &handle->head, sizeof(info.head));
    info.num_layers = handle->shape.rows.num_layers;
    info.top_k = handle->shape.rows.top_k;
    info.num_experts = handle->shape.rows.num_experts;
    info.page_tokens = handle->shape.rows.page_tokens;
    CopyOut(info, out);
    WriteText(handle->store, store);
    return absl::OkStatus();
  });
}

// ---- fetchers

wm_status FetcherCreate(const wm_fetcher_options* given, wm_fetcher** out,
                        wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    wm_fetcher_options args = {};
    Arguments check;
    check.Struct(given, args, "options");
    check.Flags(args.flags, WM_FETCHER_WHOLE_CHUNKS, "options.flags");
    check.Chain(args.ext, "options.ext").Handle(args.source, "options.source");
    check.Pointer(out, "out");
    if (!check.ok()) return check.status();
    wire::FetcherOptions options;
    if (args.cache_bytes != 0) options.cache_bytes = args.cache_bytes;
    if (args.batch_bytes != 0) options.batch_bytes = args.batch_bytes;
    if (args.max_rows != 0) options.max_rows = ToCount(args.max_rows);
    options.whole_chunks = (args.flags & WM_FETCHER_WHOLE_CHUNKS) != 0;
    *out = new wm_fetcher(args.source, options);
    return absl::OkStatus();
  });
}

void GiveCounts(const wire::FetchCounts& from, wm_status source, wm_fetch_report* to) {
  wm_fetch_report report = {};
  report.source = source;
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
  return Guard(why, [&]() -> absl::Status {
    Arguments check;
    check.Handle(fetcher, "fetcher").Pointer(out, "out");
    if (report != nullptr) check.OutStruct(report, "report");
    if (!check.ok()) return check.status();
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
  return Guard(nullptr, [&]() -> absl::Status {
    Arguments check;
    check.Handle(fetcher, "fetcher").OutStruct(out, "out");
    if (check.ok()) GiveCounts(fetcher->fetcher.GetCounts(), WM_OK, out);
    return check.status();
  });
}

}  // namespace

void FillFetching(wm_api_v1& api) {
  api.source_memory_create = &SourceMemoryCreate;
  api.source_file_open = &SourceFileOpen;
  api.source_redis_create = &SourceRedisCreate;
  api.source_retain = &Retain<wm_source>;
  api.source_release = &Release<wm_source>;
  api.publisher_create = &PublisherCreate;
  api.publisher_retain = &Retain<wm_publisher>;
  api.publisher_release = &Release<wm_publisher>;
  api.publisher_publish_snapshot = &PublishSnapshot;
  api.publisher_publish_rows = &PublishRows;
  api.publisher_stats = &PublisherStatsOf;
  api.ticket_retain = &Retain<wm_ticket>;
  api.ticket_release = &Release<wm_ticket>;
  api.ticket_ready = &TicketReady;
  api.ticket_wait = &TicketWait;
  api.rows_handle = &RowsHandle;
  api.handle_info = &HandleInfo;
  api.fetcher_create = &FetcherCreate;
  api.fetcher_retain = &Retain<wm_fetcher>;
  api.fetcher_release = &Release<wm_fetcher>;
  api.fetcher_fetch = &FetcherFetch;
  api.fetcher_counts = &FetcherCounts;
}

}  // namespace waymark::abi
