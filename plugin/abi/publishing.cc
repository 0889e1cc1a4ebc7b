// Publishers, their tickets, and the handles of rows in the C ABI.
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "blockstore/wire/publisher.h"
#include "plugin/abi/fill.h"

namespace waymark::abi {
namespace {

absl::Status Forked(const char* what) {
  return absl::FailedPreconditionError(
      std::string(what) + " must be used in the process that created it; this is a forked child");
}
absl::Status OfThisProcess(const wm_publisher* publisher) {
  return publisher->publisher->forked() ? Forked("a publisher") : absl::OkStatus();
}

wm_status PublisherCreate(const wm_publisher_options* given, wm_publisher** out,
                          wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    wm_publisher_options args = {};
    Arguments check;
    check.Struct(given, args, "options").Flags(args.flags, 0, "options.flags");
    check.Object(args.source, "options.source");
    check.InRange(args.source_timeout_ns, 0, INT64_MAX, "options.source_timeout_ns");
    check.Array(args.cpus, args.num_cpus, "options.cpus");
    check.Array(args.key, args.key_size, "options.key");
    check.Pointer(out, "out");
    if (!check.ok()) return check.status();
    absl::StatusOr<RoutingShape> shape = TakeShape(args.shape);
    if (!shape.ok()) return shape.status();
    const absl::StatusOr<wire::ChunkCode> code = TakeChunkCode(args.code, *shape);
    if (!code.ok()) return code.status();
    wire::PublisherOptions options;
    options.shape = {*std::move(shape), *code};
    options.store = OrEmpty(args.store_name);
    if (args.max_waiting != 0) options.max_waiting = args.max_waiting;
    if (args.max_sequences != 0) options.max_sequences = args.max_sequences;
    if (args.source_timeout_ns != 0) options.source_timeout = Bounded(args.source_timeout_ns);
    if (args.key_size != 0) {
      const absl::StatusOr<wire::DigestKey> key =
          wire::DigestKey::Create("options.key", {args.key, args.key_size});
      if (!key.ok()) return key.status();
      options.key = *key;
    }
    if (args.num_cpus != 0) options.cpus.assign(args.cpus, args.cpus + args.num_cpus);
    auto publisher = std::make_unique<wm_publisher>(*args.source);
    options.log = LogTo(args.log);
    options.owner = args.source->source;
    absl::StatusOr<std::unique_ptr<wire::Publisher>> made =
        wire::Publisher::Create(args.source->source.get(), options);
    if (!made.ok()) return made.status();
    publisher->publisher = *std::move(made);
    *out = publisher.release();
    return absl::OkStatus();
  });
}

wm_status PublishRows(wm_publisher* publisher, const char* sequence, const wm_rows* rows,
                      wm_ticket** out, wm_message* why) noexcept {
  Arguments check;
  check.Object(publisher, "publisher").Object(rows, "rows").Pointer(out, "out");
  return Guard(why, check, [&]() -> absl::Status {
    if (absl::Status status = OfThisProcess(publisher); !status.ok()) return status;
    auto ticket = std::make_unique<wm_ticket>();
    ticket->result = publisher->publisher->Publish(OrEmpty(sequence), rows->kept).share();
    *out = ticket.release();
    return absl::OkStatus();
  });
}

wm_status PublisherForget(wm_publisher* publisher, const char* sequence, wm_message* why) noexcept {
  return Guard(why, Arguments().Object(publisher, "publisher"),
               [&] { return publisher->publisher->Forget(OrEmpty(sequence)); });
}

wm_status PublisherStatsOf(const wm_publisher* publisher, wm_counter* out, std::size_t capacity,
                           std::size_t* count) noexcept {
  Arguments check;
  check.Object(publisher, "publisher").Array(out, capacity, "out").Pointer(count, "count");
  return Guard(nullptr, check, [&]() -> absl::Status {
    if (absl::Status status = OfThisProcess(publisher); !status.ok()) return status;
    const wire::PublisherStats stats = publisher->publisher->GetStats();
    std::vector<wm_counter> counters;
#define WAYMARK_COUNTER(name, meaning) \
  counters.push_back({#name, meaning, static_cast<double>(stats.name)});
    WAYMARK_PUBLISHER_COUNTERS(WAYMARK_COUNTER)
#undef WAYMARK_COUNTER
    GiveAll(counters, out, capacity, count);
    return absl::OkStatus();
  });
}

// Polled: makes no text.
wm_status TicketReady(const wm_ticket* ticket) noexcept {
  return GuardStep(nullptr, [&]() -> wm_code {
    if (!IsA(ticket)) return BadArgument(0);
    if (ticket->process != getpid()) return {WM_FAILED_PRECONDITION, WM_RULE_FORKED};
    const bool ready =
        ticket->result.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    return {ready ? WM_OK : WM_UNAVAILABLE};
  });
}

absl::Status GiveHandle(const wire::Handle& handle, wm_bytes** out) {
  return Give(wire::EncodeHandle(handle), out);
}

wm_status TicketWait(const wm_ticket* ticket, std::int64_t timeout_ns, wm_bytes** out,
                     wm_message* why) noexcept {
  Arguments check;
  check.Object(ticket, "ticket").Pointer(out, "out");
  return Guard(why, check, [&]() -> absl::Status {
    if (ticket->process != getpid()) return Forked("a ticket");
    if (ticket->result.wait_for(Bounded(timeout_ns)) != std::future_status::ready) {
      return absl::DeadlineExceededError("the rows are not published yet");
    }
    const absl::StatusOr<wire::Published>& made = ticket->result.get();
    if (!made.ok()) return made.status();
    absl::Status given = GiveHandle(made->handle, out);
    if (!given.ok() || made->put.ok()) return given;
    return absl::DataLossError("readers may miss rows of the handle: " +
                               std::string(made->put.message()));
  });
}

wm_status RowsHandle(const wm_rows* rows, const wm_chunk_code* given, const char* store,
                     wm_bytes** out, wm_message* why) noexcept {
  return Guard(why, Arguments().Object(rows, "rows").Pointer(out, "out"), [&]() -> absl::Status {
    const absl::StatusOr<wire::ChunkCode> code = TakeChunkCode(given, rows->rows.shape);
    if (!code.ok()) return code.status();
    const absl::StatusOr<wire::Trajectory> trajectory =
        wire::MakeTrajectory(rows->rows, *code, OrEmpty(store));
    return trajectory.ok() ? GiveHandle(trajectory->handle, out) : trajectory.status();
  });
}

}  // namespace

void FillPublishing(wm_wire_api_v1& wire) {
  wire.publisher_create = &PublisherCreate;
  wire.publisher_release = &Release<wm_publisher>;
  wire.publisher_publish_rows = &PublishRows;
  wire.publisher_forget = &PublisherForget;
  wire.publisher_stats = &PublisherStatsOf;
  wire.ticket_release = &Release<wm_ticket>;
  wire.ticket_ready = &TicketReady;
  wire.ticket_wait = &TicketWait;
  wire.rows_handle = &RowsHandle;
}

}  // namespace waymark::abi
