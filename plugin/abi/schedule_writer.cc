// Writers of schedule messages of the C ABI.

#include "blockstore/store/schedule_message.h"
#include "plugin/abi/fill.h"

namespace waymark::abi {
namespace {

wm_status WriterCreate(const wm_schedule_options* given, wm_schedule_writer** out,
                       wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    wm_schedule_options args = {};
    Arguments check;
    check.Struct(given, args, "options").Flags(args.flags, 0, "options.flags");
    check.Pointer(out, "out");
    if (!check.ok()) return check.status();
    ScheduleLimits limits;
    limits.num_blocks = args.num_blocks;
    limits.block_tokens = args.block_tokens;
    if (args.max_bytes != 0) limits.max_bytes = args.max_bytes;
    if (args.max_snapshots != 0) limits.max_snapshots = args.max_snapshots;
    return Give(ScheduleWriter::Create(limits), out);
  });
}

wm_status WriterBegin(wm_schedule_writer* writer, std::uint64_t step, std::uint64_t version,
                      wm_message* why) noexcept {
  return Guard(why, Arguments().Object(writer, "writer"),
               [&] { return writer->writer.Begin(StepId(step), version); });
}

wm_status WriterReport(wm_schedule_writer* writer, const wm_event* events, std::size_t num_events,
                       wm_message* why) noexcept {
  Arguments check;
  check.Object(writer, "writer").Array(events, num_events, "events");
  return Guard(why, check, [&]() -> absl::Status {
    return writer->writer.Report({reinterpret_cast<const Event*>(events), num_events});
  });
}

wm_status WriterSnapshot(wm_schedule_writer* writer, std::uint64_t tag, const std::int32_t* blocks,
                         std::size_t num_blocks, std::int64_t first, std::int64_t last,
                         wm_message* why) noexcept {
  return Guard(why, Arguments().Object(writer, "writer").Array(blocks, num_blocks, "blocks"), [&] {
    return writer->writer.Snapshot(tag, {reinterpret_cast<const BlockId*>(blocks), num_blocks},
                                   first, last);
  });
}

wm_status WriterForget(wm_schedule_writer* writer, std::uint64_t tag, wm_message* why) noexcept {
  return Guard(why, Arguments().Object(writer, "writer"),
               [&] { return writer->writer.Forget(tag); });
}

wm_status WriterFinish(wm_schedule_writer* writer, const std::uint8_t** bytes, std::size_t* size,
                       wm_message* why) noexcept {
  Arguments check;
  check.Object(writer, "writer").Pointer(bytes, "bytes").Pointer(size, "size");
  return Guard(why, check, [&]() -> absl::Status {
    const std::span<const std::uint8_t> written = writer->writer.Finish();
    if (written.empty()) return absl::FailedPreconditionError("finish: a message must be open");
    *bytes = written.data();
    *size = written.size();
    return absl::OkStatus();
  });
}

}  // namespace

void FillScheduleWriter(wm_api_v1& api) {
  api.schedule_writer_create = &WriterCreate;
  api.schedule_writer_release = &Release<wm_schedule_writer>;
  api.schedule_writer_begin = &WriterBegin;
  api.schedule_writer_report = &WriterReport;
  api.schedule_writer_snapshot = &WriterSnapshot;
  api.schedule_writer_forget = &WriterForget;
  api.schedule_writer_finish = &WriterFinish;
}

}  // namespace waymark::abi
