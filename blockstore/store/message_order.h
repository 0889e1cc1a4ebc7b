// MessageOrder: what the receiver of schedule messages does with each, by its sender and number.
#ifndef WAYMARK_BLOCKSTORE_STORE_MESSAGE_ORDER_H_
#define WAYMARK_BLOCKSTORE_STORE_MESSAGE_ORDER_H_

#include <cstdint>

namespace waymark {

// To *poison* a store: all its blocks lose their rows (reason capacity), because it is not known
// what happened to them. Live snapshots are untouched.
enum class MessageVerdict : std::uint8_t {
  kApply,     // the next message: apply it
  kIgnore,    // not above the number of an earlier message (doubled, late): do not apply it
  kGap,       // messages before it are missing: poison the store, then apply it
  kNewEpoch,  // another sender, or the sender was restarted: forget the tags of the former, poison
              // the store, then apply it
};

// The order of the messages that a receiver gets; for messages that were parsed
// (schedule_message.h). A message that does not parse has no number: the receiver poisons its store
// at once and does not call Next; the message after it is then a gap and poisons the store again.
//
// A late message of a sender that was replaced is a new epoch, and so is the message after it:
// rows are lost, but no wrong rows are returned. So are the messages of two senders at a time.
//
// One thread at a time.
class MessageOrder {
 public:
  // The verdict on a message, which counts as received from now on. The first message of all is
  // kApply if its number is 1, otherwise kGap. REQUIRES: sequence >= 1.
  [[nodiscard]] MessageVerdict Next(std::uint64_t epoch, std::uint64_t sequence) {
    const bool first = sequence_ == 0;
    const bool same_sender = epoch == epoch_;
    if (!first && same_sender && sequence <= sequence_) return MessageVerdict::kIgnore;
    const std::uint64_t expected = first ? 1 : sequence_ + 1;
    epoch_ = epoch;
    sequence_ = sequence;
    if (!first && !same_sender) return MessageVerdict::kNewEpoch;
    return sequence == expected ? MessageVerdict::kApply : MessageVerdict::kGap;
  }

 private:
  // Of the last message that was not ignored; 0 before the first.
  std::uint64_t epoch_ = 0;
  std::uint64_t sequence_ = 0;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_MESSAGE_ORDER_H_
