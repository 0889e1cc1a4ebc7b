// Writers of schedule messages, for an engine whose scheduler is another process.
#include "plugin/python/events.h"
#include "plugin/python/module.h"

namespace waymark_python {
namespace {

using nb::literals::operator""_a;

struct ScheduleWriter {
  explicit ScheduleWriter(wm_schedule_writer* owned) : writer(owned) {}
  ~ScheduleWriter() { Api().schedule_writer_release(writer); }
  ScheduleWriter(const ScheduleWriter&) = delete;
  ScheduleWriter& operator=(const ScheduleWriter&) = delete;
  void Report(const wm_event* events, std::size_t num_events) const {
    Message why;
    Check(Api().schedule_writer_report(writer, events, num_events, why.get()), why);
  }
  wm_schedule_writer* writer;
};

void Make(ScheduleWriter* self, Int32<"num_blocks"> num_blocks, Int32<"block_tokens"> block_tokens,
          Uint32<"max_bytes"> max_bytes, Uint32<"max_snapshots"> max_snapshots) {
  wm_schedule_options options = {};
  options.struct_size = sizeof(options);
  options.num_blocks = num_blocks;
  options.block_tokens = block_tokens;
  options.max_bytes = max_bytes;
  options.max_snapshots = max_snapshots;
  wm_schedule_writer* writer = nullptr;
  Message why;
  Check(Api().schedule_writer_create(&options, &writer, why.get()), why);
  new (self) ScheduleWriter(writer);
}

void Begin(const ScheduleWriter& self, Uint64<"step"> step, Uint64<"version"> version) {
  Message why;
  Check(Api().schedule_writer_begin(self.writer, step, version, why.get()), why);
}

void TakeSnapshot(const ScheduleWriter& self, Uint64<"tag"> tag, nb::handle block_ids,
                  Int64<"first"> first, Int64<"last"> last) {
  const Integers<std::int32_t> blocks(block_ids, "blocks");
  wm_snapshot_args args = {};
  args.struct_size = sizeof(args);
  args.blocks = blocks.data();
  args.num_blocks = blocks.size();
  args.first = first;
  args.last = last;
  Message why;
  Check(Api().schedule_writer_snapshot(self.writer, tag, &args, why.get()), why);
}

void Forget(const ScheduleWriter& self, Uint64<"tag"> tag) {
  Message why;
  Check(Api().schedule_writer_forget(self.writer, tag, why.get()), why);
}

nb::bytes Finish(const ScheduleWriter& self) {
  const std::uint8_t* bytes = nullptr;
  std::size_t size = 0;
  Message why;
  Check(Api().schedule_writer_finish(self.writer, &bytes, &size, why.get()), why);
  return nb::bytes(bytes, size);
}

}  // namespace

void BindScheduleWriter(nb::module_& module) {
  nb::class_<ScheduleWriter> writer(
      module, "ScheduleWriter",
      "Writes what a scheduler in another process than the store reports, as one message per "
      "schedule.\n\n"
      "The scheduler sends finish() to the worker with the schedule, and the worker calls "
      "Store.report_message before it begins the step. Every message must be sent, in order. One "
      "thread at a time. FailedPreconditionError if no message is open (begin: if one is open); "
      "ResourceExhaustedError if the message would exceed max_bytes or max_snapshots: finish it, "
      "and begin another of the same step.");
  writer.def("__init__", &Make, "num_blocks"_a, "block_tokens"_a = 16, nb::kw_only(),
             "max_bytes"_a = 0, "max_snapshots"_a = 0,
             "num_blocks, block_tokens: those of the worker's store. max_bytes: of a message; 0: "
             "16 MiB. max_snapshots: in a message; 0: 4096.");
  writer.def("begin", &Begin, "step"_a, "version"_a,
             "Opens a message of the schedule of `step`, which is not below that of any message "
             "before. step 0: a message without a step, for an engine that goes idle; version is "
             "then 0.");
  DefineEvents(writer);
  writer
      .def("snapshot", &TakeSnapshot, "tag"_a, "blocks"_a, "first"_a, "last"_a,
           "Requests what Store.snapshot would take here; the worker fetches it with "
           "Store.take_tagged(tag). No other snapshot may have this tag until it was fetched or "
           "forgotten.")
      .def("forget", &Forget, "tag"_a,
           "The snapshot `tag` will not be fetched (an abort): the worker's store releases it.")
      .def("finish", &Finish, "Closes the message; its bytes.");
}

}  // namespace waymark_python
