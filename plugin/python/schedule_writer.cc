// Writers of schedule messages, for an engine whose scheduler is another process.
#include "blockstore/store/schedule_message.h"

#include "plugin/python/events.h"
#include "plugin/python/reading.h"

namespace waymark_python {
namespace {

using nb::literals::operator""_a;

struct ScheduleWriter {
  void Report(std::span<const waymark::Event> events) { Check(writer.Report(events)); }
  waymark::ScheduleWriter writer;
};

void MakeWriter(ScheduleWriter* self, Int32<"num_blocks"> num_blocks,
                Int32<"block_tokens"> block_tokens, Uint32<"max_bytes"> max_bytes,
                Uint32<"max_snapshots"> max_snapshots) {
  waymark::ScheduleLimits limits;
  limits.num_blocks = num_blocks;
  limits.block_tokens = block_tokens;
  if (max_bytes != 0) limits.max_bytes = max_bytes;
  if (max_snapshots != 0) limits.max_snapshots = max_snapshots;
  new (self) ScheduleWriter{Value(waymark::ScheduleWriter::Create(limits))};
}

}  // namespace

void BindScheduleWriter(nb::module_& module) {
  nb::class_<ScheduleWriter> writer(
      module, "ScheduleWriter",
      "Writes what a scheduler in another process than the capture reports, as one message per "
      "schedule.\n\n"
      "The scheduler sends finish() to the worker with the schedule, and the worker gives it to "
      "Capture.step, or to Capture.report_message before the step. Every message must be sent, in "
      "order. One thread at a time. FailedPreconditionError if no message is open (begin: if one "
      "is open); ResourceExhaustedError if the message would exceed max_bytes or max_snapshots: "
      "finish it, and begin another of the same step.");
  writer.def("__init__", &MakeWriter, "num_blocks"_a, "block_tokens"_a = 16, nb::kw_only(),
             "max_bytes"_a = 0, "max_snapshots"_a = 0,
             "num_blocks, block_tokens: as the worker's capture has. max_bytes: of a message; 0: "
             "16 MiB. max_snapshots: in a message; 0: 4096.");
  writer.def(
      "begin",
      [](ScheduleWriter& self, Uint64<"step"> step, Uint64<"version"> version) {
        Check(self.writer.Begin(waymark::StepId(step), version));
      },
      "step"_a, "version"_a,
      "Opens a message of the schedule of `step`, not below the step of a message before. "
      "step 0: a message without a step, for an engine that goes idle; version is then 0.");
  DefineEvents(writer);
  writer
      .def(
          "snapshot",
          [](ScheduleWriter& self, Uint64<"tag"> tag, nb::handle blocks, Int64<"first"> first,
             Int64<"last"> last) {
            Check(self.writer.Snapshot(tag, Blocks(blocks, "blocks").ids(), first, last));
          },
          "tag"_a, "blocks"_a, "first"_a, "last"_a,
          "Takes what Capture.take would take here, rows [first, last); the worker finds it under "
          "`tag` in Capture.results(). No other snapshot may have this tag until it was returned "
          "or forgotten; AlreadyExistsError for one of the same message.")
      .def(
          "forget", [](ScheduleWriter& self, Uint64<"tag"> tag) { Check(self.writer.Forget(tag)); },
          "tag"_a, "The rows of `tag` are not wanted (an abort).")
      .def(
          "finish",
          [](ScheduleWriter& self) {
            const std::span<const std::uint8_t> bytes = self.writer.Finish();
            if (bytes.empty()) {
              Raise(absl::FailedPreconditionError("finish: a message must be open"));
            }
            return BytesOf(bytes);
          },
          "Closes the message; its bytes.");
}

}  // namespace waymark_python
