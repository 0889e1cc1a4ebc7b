// Schedule messages (blockstore/store/schedule_message.h), and the order of their receiver.
#include "blockstore/store/schedule_message.h"

#include <algorithm>
#include <string>
#include <vector>

#include "blockstore/store/message_order.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/support/schedule_messages.h"

namespace waymark::fuzz {
namespace {

constexpr ScheduleLimits kLimits = {
    .num_blocks = 16, .block_tokens = 8, .max_bytes = 1 << 16, .max_snapshots = 6};

bool Printable(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

}  // namespace

void RunOne(std::span<const std::uint8_t> input) {
  if (input.empty()) return;
  std::vector<std::uint8_t> bytes(input.begin() + 1, input.end());
  // The number of bytes and the check, so that it goes on.
  if (input[0] % 2 == 0) schedule_messages::Correct(bytes);
  auto message = ParseScheduleMessage(bytes, kLimits);
  if (!message.ok()) {
    const std::string refusal(message.status().message());
    Require(!refusal.empty() && refusal.size() < 300 && Printable(refusal),
            "a refusal is a line that can be read");
    return;
  }
  Require(schedule_messages::WithinLimits(*message, kLimits), "every number is within the limits");
  Require(schedule_messages::Written(*message, kLimits) == bytes,
          "what was parsed is written as the bytes that it came from");

  MessageOrder order;
  const bool first = message->sequence == 1;
  Require(order.Next(message->epoch, message->sequence) ==
              (first ? MessageVerdict::kApply : MessageVerdict::kGap),
          "the first message is numbered 1, or others are missing");
  Require(order.Next(message->epoch, message->sequence) == MessageVerdict::kIgnore,
          "a doubled message is ignored");
}

std::vector<std::string> Corpus() {
  std::vector<std::string> corpus;
  ScheduleWriter writer = ScheduleWriter::Create(kLimits, 7).value();
  const auto keep = [&corpus, &writer] {
    const std::span<const std::uint8_t> bytes = writer.Finish();
    for (const char first : {char{0}, char{1}})
      corpus.push_back(first + AsText(bytes));
  };
  const auto require = [](const absl::Status& status) {
    Require(status.ok(), "the corpus can be written");
  };
  const BlockKey key = BlockKey::FromInteger(9);
  const std::vector<Event> events = {Event::Bind(BlockId(1)),
                                     Event::Bind(BlockId(2), key),
                                     Event::Retain(BlockId(2)),
                                     Event::Seal(BlockId(1), key, StepId()),
                                     Event::Seal(BlockId(2), key, StepId(3)),
                                     Event::Copy(BlockId(1), BlockId(3), 5),
                                     Event::Copy(BlockId(1), BlockId(4)),
                                     Event::Move(BlockId(3), BlockId(4), true),
                                     Event::Move(BlockId(4), BlockId(3)),
                                     Event::Truncate(BlockId(2), 1, StepId(2)),
                                     Event::Release(BlockId(-1)),
                                     Event::Reset()};
  const std::vector<BlockId> blocks = {BlockId(3), BlockId(-1), BlockId(15)};
  require(writer.Begin(StepId(4), 2));
  keep();
  require(writer.Begin(StepId(4), 2));
  require(writer.Report(events));
  keep();
  require(writer.Begin(StepId(5), 2));
  require(writer.Report({events.data(), 3}));
  require(writer.Snapshot(70, blocks, 1, 24));
  require(writer.Report({events.data() + 3, 2}));
  require(writer.Snapshot(71, {}, 0, 0));
  require(writer.Forget(70));
  keep();
  require(writer.Begin(StepId(), 0));
  require(writer.Snapshot(72, blocks, 0, 9));
  require(writer.Forget(72));
  keep();
  // One past the limits of the target.
  ScheduleLimits wide = kLimits;
  wide.num_blocks += 1;
  wide.block_tokens += 1;
  writer = ScheduleWriter::Create(wide, 8).value();
  const Event outside[] = {Event::Retain(BlockId(16)), Event::Move(BlockId(16), BlockId(1)),
                           Event::Truncate(BlockId(1), 9, StepId(1))};
  for (const Event& event : outside) {
    require(writer.Begin(StepId(4), 2));
    require(writer.Report({&event, 1}));
    keep();
  }
  const BlockId last(16);
  require(writer.Begin(StepId(4), 2));
  require(writer.Snapshot(73, {&last, 1}, 0, 8));
  keep();
  require(writer.Begin(StepId(4), 2));
  require(writer.Snapshot(74, blocks, 0, 25));
  keep();
  return corpus;
}

}  // namespace waymark::fuzz
