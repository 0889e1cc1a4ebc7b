#include "tests/conformance/flight_dump.h"

#include "blockstore/digest.h"

namespace waymark::conformance {
namespace {

// By EventType, which begins at 1.
constexpr const char* kKinds[] = {"",     "bind", "retain",   "release", "seal",
                                  "copy", "move", "truncate", "reset"};

unsigned long long Number(std::uint64_t value) {
  return value;
}
long long Number(std::int64_t value) {
  return value;
}

std::string KeyText(std::span<const std::uint8_t> key) {
  std::string text;
  char byte[3];
  for (const std::uint8_t part : key) {
    std::snprintf(byte, sizeof byte, "%02x", part);
    text += byte;
  }
  return text;
}

// A list of blocks, as the last value of a line.
void PutBlocks(std::FILE* file, std::span<const BlockId> blocks) {
  std::fprintf(file, "[");
  for (std::size_t i = 0; i < blocks.size(); ++i)
    std::fprintf(file, "%s%d", i == 0 ? "" : ",", blocks[i].value());
  std::fprintf(file, "]}\n");
}

}  // namespace

void FlightDump::Header(const std::string& name, const StoreOptions& options) {
  key_seed_ = options.key_seed;
  std::string quoted;
  for (const char c : name) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  std::fprintf(
      file_,
      R"({"is":"flight","name":"%s","block_tokens":%d,"page_tokens":%d,"num_blocks":%d,"null":[)",
      quoted.c_str(), options.block_tokens, options.shape.page_tokens, options.num_blocks);
  for (std::size_t i = 0; i < options.null_blocks.size(); ++i) {
    std::fprintf(file_, "%s%d", i == 0 ? "" : ",", options.null_blocks[i].value());
  }
  std::fprintf(file_, "]}\n");
}

void FlightDump::On(const FlightEntry& entry) {
  switch (entry.kind) {
    case FlightRecordKind::kSchedule:
      std::fprintf(file_,
                   R"({"is":"schedule","step":%llu,"version":%llu})"
                   "\n",
                   Number(entry.step), Number(entry.version));
      versions_.insert(entry.version);
      return;
    case FlightRecordKind::kEvents:
      return PutEvents(entry.events);
    case FlightRecordKind::kPoison:
      std::fprintf(file_,
                   R"({"is":"poison","last":%llu,"version":%llu})"
                   "\n",
                   Number(entry.step), Number(entry.version));
      return;
    case FlightRecordKind::kStep:
      return PutStep(entry);
    case FlightRecordKind::kLanded:
      std::fprintf(file_,
                   R"({"is":"landed","step":%llu,%s})"
                   "\n",
                   Number(entry.step), landed_.empty() ? R"("rows":[])" : landed_.c_str());
      landed_.clear();
      return;
    case FlightRecordKind::kSnapshot:
      std::fprintf(
          file_, R"({"is":"snapshot","id":%llu,"first":%lld,"last":%lld,"last_step":%llu,)",
          Number(entry.read_id), Number(entry.first), Number(entry.last), Number(entry.last_step));
      PutKeys(entry.keys);
      return PutBlocks(file_, entry.blocks);
    case FlightRecordKind::kReleased:
      std::fprintf(file_,
                   R"({"is":"released","id":%llu})"
                   "\n",
                   Number(entry.read_id));
      return;
    case FlightRecordKind::kVoided:
      return PutVoided(entry.voided);
    case FlightRecordKind::kRead:
      return PutRead(entry);
    default:
      return;
  }
}

void FlightDump::PutKeys(std::span<const BlockKey> keys) {
  std::fprintf(file_, R"("keys":[)");
  for (std::size_t i = 0; i < keys.size(); ++i) {
    std::fprintf(file_, R"(%s"%s")", i == 0 ? "" : ",",
                 KeyText(std::span(keys[i].bytes).first(keys[i].size)).c_str());
  }
  std::fprintf(file_, R"(],"blocks":)");
}

void FlightDump::PutEvents(std::span<const Event> events) {
  std::fprintf(file_, R"({"is":"events","events":[)");
  const char* comma = "";
  for (const Event& event : events) {
    std::fprintf(file_, R"(%s["%s",%d,%d,%d,%d,%llu,")", comma,
                 kKinds[static_cast<std::size_t>(event.type)], event.more, event.block, event.src,
                 event.rows, Number(event.step));
    const std::string key = KeyText(std::span(event.key).first(event.key_size));
    if (!key.empty()) keys_[key] = event.GetKey();
    std::fprintf(file_, "%s\"]", key.c_str());
    comma = ",";
  }
  std::fprintf(file_, "]}\n");
}

void FlightDump::PutStep(const FlightEntry& step) {
  versions_.insert(step.version);
  const char* how = step.end == StepEnd::kSubmit ? "submit"
                    : step.end == StepEnd::kDrop ? "drop"
                                                 : "cancel";
  std::fprintf(file_, R"({"is":"step","step":%llu,"version":%llu,"how":"%s","slots":[)",
               Number(step.step), Number(step.version), how);
  const char* comma = "";
  for (const std::int64_t slot : step.slots) {
    std::fprintf(file_, "%s%lld", comma, Number(slot));
    comma = ",";
  }
  std::fprintf(file_, "]}\n");
}

void FlightDump::OnRows(std::uint64_t /*step*/, std::span<const std::uint8_t> ids,
                        std::span<const Reason> verdicts) {
  landed_ = R"("rows":[)";
  for (std::size_t i = 0; i < verdicts.size(); ++i) {
    if (i > 0) landed_ += ',';
    landed_ += verdicts[i] == Reason::kNone
                   ? std::to_string(RowDigest(ids.subspan(i * row_bytes_, row_bytes_)))
                   : "-" + std::to_string(static_cast<int>(verdicts[i]));
  }
  landed_ += "]";
}

// The specification has keys, and not their digests.
void FlightDump::PutVoided(const VoidedPage& page) {
  std::string key;
  std::uint64_t of_version = 0;
  std::uint32_t of_ordinal = 0;
  for (const auto& [text, bytes] : keys_) {
    for (const std::uint64_t version : versions_) {
      for (std::uint32_t ordinal = 0; ordinal < 8; ++ordinal) {
        const bool same = page.by == VoidedPage::By::kKey &&
                          IndexKey(key_seed_, version, ordinal, bytes) == page.index_key;
        if (!same) continue;
        key = text;
        of_version = version;
        of_ordinal = ordinal;
      }
    }
  }
  std::fprintf(
      file_,
      R"({"is":"voided","by":%d,"block":%d,"ordinal":%u,"id":%llu,"key":[%llu,"%s",%u],"row":%d})"
      "\n",
      static_cast<int>(page.by), page.block, page.ordinal, Number(page.read_id), Number(of_version),
      key.c_str(), of_ordinal, page.row);
}

void FlightDump::PutRead(const FlightEntry& read) {
  std::fprintf(file_, R"({"is":"read","id":%llu,"begin":%lld,"rows":[)", Number(read.read_id),
               Number(read.begin));
  for (std::size_t i = 0; i < read.infos.size(); ++i) {
    const RowInfo& info = read.infos[i];
    std::fprintf(file_, "%s[%d,%llu,%llu,%d,%llu]", i == 0 ? "" : ",",
                 static_cast<int>(info.reason), Number(info.step), Number(info.version),
                 static_cast<int>(info.provenance), Number(read.digests[i]));
  }
  std::fprintf(file_, "]}\n");
}

}  // namespace waymark::conformance
