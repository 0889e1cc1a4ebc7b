// ModelLog: a small LogRing under the ModelChecker, whose records are numbered.
#ifndef WAYMARK_TESTS_UNIT_BLOCKSTORE_STORE_MODEL_LOG_H_
#define WAYMARK_TESTS_UNIT_BLOCKSTORE_STORE_MODEL_LOG_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "blockstore/store/log_ring.h"
#include "tests/support/model_checker.h"

namespace waymark {

// The threads of a Run that use a log.
inline constexpr int kProducer = 0;
inline constexpr int kConsumer = 1;

template <class Atomics>
struct ModelLog : BasicLogRing<Atomics> {
  using Ring = BasicLogRing<Atomics>;
  static constexpr std::size_t kMaxBytes = 256;

  ModelLog(ModelChecker& checker, std::size_t capacity, std::size_t restart_after)
      : Ring(std::span(Memory()).first(capacity), restart_after), model(checker) {}

  // Appends the next record: its number is in its second word and, if it has more, in its last one.
  // False if there is no room.
  bool Append(std::uint32_t bytes) {
    std::uint8_t* const record = Ring::Reserve(bytes);
    if (record == nullptr) return false;
    if (appended != 0 && record == Memory().data() && record != behind) ++began_anew;
    Atomics::Write32(record + 4, appended);
    if (bytes > 8) Atomics::Write32(record + bytes - 4, appended);
    Ring::Commit(bytes);
    ++appended;
    behind = record + bytes;
    return true;
  }

  // Consumes at most `most` of the records that are published now, which must be the next ones.
  void Drain(std::uint32_t most = std::numeric_limits<std::uint32_t>::max()) {
    DrainUpto(Ring::LoadTail(), most);
  }
  void DrainUpto(typename Ring::Tail upto,
                 std::uint32_t most = std::numeric_limits<std::uint32_t>::max()) {
    for (; most > 0; --most) {
      const std::uint8_t* const record = Ring::Front(upto);
      if (record == nullptr) return;
      if (retires_early) {
        Ring::Pop();
        Ring::Retire();
      }
      Check(record);
      if (!retires_early) Ring::Pop();
    }
    Ring::Retire();
  }

  // In the body, after the threads: what was appended is there.
  void DrainTheRest() {
    Ring::Publish();
    Drain();
    model.Require(consumed == appended, "every record is consumed");
    model.Require(Ring::Drained(), "the log is drained");
  }

  ModelChecker& model;
  std::uint32_t appended = 0;  // the producer's
  std::uint8_t* behind = nullptr;
  int began_anew = 0;          // records at the beginning of the memory, after a skip or a restart
  std::uint32_t consumed = 0;  // the consumer's
  bool retires_early = false;  // a bug of the consumer

 private:
  static std::array<std::uint8_t, kMaxBytes>& Memory() {
    alignas(64) static std::array<std::uint8_t, kMaxBytes> memory;
    return memory;
  }
  void Check(const std::uint8_t* record) {
    const std::uint32_t bytes = Atomics::Read32(record);
    model.Require(bytes >= 8 && record + bytes <= Memory().data() + Memory().size(),
                  "the size is that of a record");
    model.Require(Atomics::Read32(record + 4) == consumed, "the next record");
    model.Require(Atomics::Read32(record + bytes - 4) == consumed, "the whole record");
    ++consumed;
  }
};

}  // namespace waymark

#endif  // WAYMARK_TESTS_UNIT_BLOCKSTORE_STORE_MODEL_LOG_H_
