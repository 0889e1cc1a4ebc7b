#include "tests/conformance/flight_dump.h"

#include "blockstore/digest.h"

namespace waymark::conformance {
namespace {

const char* Kind(EventType type) {
  switch (type) {
    case EventType::kBind:
      return "bind";
    case EventType::kRetain:
      return "retain";
    case EventType::kRelease:
      return "release";
    case EventType::kSeal:
      return "seal";
    case EventType::kCopy:
      return "copy";
    case EventType::kMove:
      return "move";
    case EventType::kTruncate:
      return "truncate";
    case EventType::kReset:
      return "reset";
  }
  return "unknown";
}

unsigned long long Number(std::uint64_t value) {
  return value;
}
long long Number(std::int64_t value) {
  return value;
}

}  // namespace

void FlightDump::Header(const std::string& name, const StoreOptions& options) {
  std::string quoted;
  for (const char c : name) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  std::fprintf(file_, R"({"is":"flight","name":"%s","block_tokens":%d,"page_tokens":%d,"null":[)",
               quoted.c_str(), options.block_tokens, options.shape.page_tokens);
  for (std::size_t i = 0; i < options.null_blocks.size(); ++i) {
    std::fprintf(file_, "%s%d", i == 0 ? "" : ",", options.null_blocks[i].value());
  }
  std::fprintf(file_, "]}\n");
}

void FlightDump::OnBegin(const StepBatch& batch, bool dropped) {
  std::fprintf(
      file_, R"({"is":"begin","step":%llu,"version":%llu,"dropped":%d,"device":%d,"events":[)",
      Number(batch.step), Number(batch.version), dropped ? 1 : 0, batch.device_slots ? 1 : 0);
  const char* comma = "";
  for (const Event& event : batch.event_span()) {
    std::fprintf(file_, R"(%s["%s",%d,%d,%d,%d,%llu,")", comma, Kind(event.type), event.more,
                 event.block, event.src, event.rows, Number(event.step));
    for (std::size_t i = 0; i < event.key_size; ++i)
      std::fprintf(file_, "%02x", event.key[i]);
    std::fprintf(file_, "\"]");
    comma = ",";
  }
  std::fprintf(file_, R"(],"slots":[)");
  comma = "";
  for (const std::int64_t slot : batch.slot_span()) {
    std::fprintf(file_, "%s%lld", comma, Number(slot));
    comma = ",";
  }
  std::fprintf(file_, "]}\n");
}

void FlightDump::OnEnd(std::uint64_t step, StepEnd end) {
  if (end == StepEnd::kSubmit) return;  // it lands, and that is what counts
  std::fprintf(file_,
               R"({"is":"end","step":%llu,"how":"%s"})"
               "\n",
               Number(step), end == StepEnd::kDrop ? "drop" : "cancel");
}

void FlightDump::OnLanded(std::uint64_t step, std::span<const std::uint8_t> ids,
                          std::span<const Reason> verdicts, std::span<const std::int64_t> slots) {
  std::fprintf(file_, R"({"is":"landed","step":%llu,"rows":[)", Number(step));
  for (std::size_t i = 0; i < verdicts.size(); ++i) {
    if (i > 0) std::fputc(',', file_);
    if (verdicts[i] == Reason::kNone) {
      std::fprintf(file_, "%llu", Number(RowDigest(ids.subspan(i * row_bytes_, row_bytes_))));
    } else {
      std::fprintf(file_, "-%d", static_cast<int>(verdicts[i]));
    }
  }
  std::fprintf(file_, R"(],"slots":[)");
  for (std::size_t i = 0; i < slots.size(); ++i) {
    std::fprintf(file_, "%s%lld", i == 0 ? "" : ",", Number(slots[i]));
  }
  std::fprintf(file_, "]}\n");
}

void FlightDump::OnSnapshot(std::uint64_t read_id, std::span<const BlockId> blocks,
                            std::int64_t first, std::int64_t last) {
  std::fprintf(file_, R"({"is":"snapshot","id":%llu,"first":%lld,"last":%lld,"blocks":[)",
               Number(read_id), Number(first), Number(last));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    std::fprintf(file_, "%s%d", i == 0 ? "" : ",", blocks[i].value());
  }
  std::fprintf(file_, "]}\n");
}

void FlightDump::OnReleased(std::uint64_t read_id) {
  std::fprintf(file_,
               R"({"is":"released","id":%llu})"
               "\n",
               Number(read_id));
}

void FlightDump::OnRead(std::uint64_t read_id, std::int64_t begin, std::span<const RowInfo> infos,
                        std::span<const std::uint64_t> digests) {
  std::fprintf(file_, R"({"is":"read","id":%llu,"begin":%lld,"rows":[)", Number(read_id),
               Number(begin));
  for (std::size_t i = 0; i < infos.size(); ++i) {
    const RowInfo& info = infos[i];
    std::fprintf(file_, "%s[%d,%llu,%llu,%d,%llu]", i == 0 ? "" : ",",
                 static_cast<int>(info.reason), Number(info.step), Number(info.version),
                 static_cast<int>(info.provenance), Number(digests[i]));
  }
  std::fprintf(file_, "]}\n");
}

}  // namespace waymark::conformance
