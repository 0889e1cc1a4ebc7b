// LogRing: a ring of records of any size with one producer and one consumer. Internal to
// blockstore.
//
//   producer:  std::uint8_t* record = ring.Reserve(most);   // write the record without its size
//              ring.Commit(size);                           // more of them, then
//              ring.Publish();
//   consumer:  const LogRing::Tail upto = ring.LoadTail();
//              while (const std::uint8_t* record = ring.Front(upto)) { ...; ring.Pop(); }
//
// A record begins with its size in bytes (uint32, a multiple of 8) and is contiguous. Size 0 marks
// a skip: the next record is at the beginning of the memory.
//
// Positions. A position is one 64-bit word, {generation: 16 bits | offset: 48 bits}. Within a
// generation the offset only grows; it is the number of bytes, skips included, since the generation
// began, and its place in the memory is the offset modulo the capacity. When the consumer has
// consumed everything, the producer may begin a new generation at offset 0 (a restart), so that a
// log that is drained often uses the same few KB, which stay in cache. The consumer is at most one
// generation behind: a head of another generation than the producer's means that everything before
// the restart was consumed, and nothing since.
#ifndef WAYMARK_BLOCKSTORE_STORE_LOG_RING_H_
#define WAYMARK_BLOCKSTORE_STORE_LOG_RING_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "blockstore/step_path.h"
#include "blockstore/store/std_atomics.h"

namespace waymark {

// The memory is the caller's and must outlive the ring. Producer members: one thread at a time;
// consumer members: one thread at a time. Where the threads of a side change, what orders them (a
// mutex) is the caller's. Sizes in the ring are trusted.
template <class Atomics = StdAtomics>
class BasicLogRing {
 public:
  // The producer looks for a restart once it is this far into a generation.
  static constexpr std::size_t kRestartAfter = 32768;
  // The largest record, if the memory is as large.
  static constexpr std::size_t kMaxRecord = (std::size_t{1} << 32) - 8;

  // A position up to which records can be read.
  class Tail {
   public:
    Tail() = default;

   private:
    friend BasicLogRing;
    explicit Tail(std::uint64_t position) : position_(position) {}
    std::uint64_t position_ = 0;
  };

  // An empty ring. REQUIRES: `memory` is 64-byte aligned; its size is a multiple of 64, > 0 and
  // < 2^40.
  explicit BasicLogRing(std::span<std::uint8_t> memory, std::size_t restart_after = kRestartAfter)
      : memory_(memory.data()),
        capacity_(memory.size()),
        room_end_(memory.size()),
        look_at_(restart_after),
        restart_after_(restart_after),
        read_memory_(memory.data()),
        read_capacity_(memory.size()) {}
  BasicLogRing(const BasicLogRing&) = delete;
  BasicLogRing& operator=(const BasicLogRing&) = delete;

  // --- Producer ---

  // Contiguous, 8-byte aligned room for a record of at most `bytes`, or null if there is none; if
  // the consumer has consumed everything and nothing is unpublished, there is room for the whole
  // capacity. Replaces a reservation that was not committed. Reads the consumer's line only if the
  // room that is known is too short, or to learn whether the ring can restart: past
  // `restart_after`, at the first record after a Publish, and not again before an eighth of
  // `restart_after` was appended.
  WAYMARK_STEP_PATH [[nodiscard]] std::uint8_t* Reserve(std::size_t bytes) {
    if (bytes > capacity_ || bytes > kMaxRecord) return nullptr;
    bytes = RoundUp(bytes);
    if (end_ >= look_at_ && end_ == published_) LookAtHead();
    if (!Fits(bytes)) {
      LookAtHead();
      if (!Fits(bytes)) return nullptr;
    }
    return memory_ + (skip_ == 0 ? place_ : 0);
  }

  // Appends the reserved record with its final size, rounded up to a multiple of 8, and stores the
  // size in its first 4 bytes. The consumer does not see it before Publish. One reservation can
  // hold several records, which lie behind one another and are committed in their order. REQUIRES:
  // the last Reserve returned room for it, and for those committed since.
  WAYMARK_STEP_PATH void Commit(std::size_t bytes) {
    if (skip_ != 0) {
      Atomics::Write32(memory_ + place_, 0);
      end_ += skip_;
      place_ = 0;
      skip_ = 0;  // for the next record of the same reservation
    }
    bytes = RoundUp(bytes);
    Atomics::Write32(memory_ + place_, static_cast<std::uint32_t>(bytes));
    end_ += bytes;
    place_ = Advance(place_, bytes, capacity_);
  }

  // Makes all committed records visible to the consumer: one release store, none if there is no
  // such record.
  WAYMARK_STEP_PATH void Publish() {
    if (end_ == published_) return;
    published_ = end_;
    tail_.store(end_, std::memory_order_release);
  }

  // Whether everything published was consumed and retired. Reads the consumer's line.
  [[nodiscard]] bool Drained() const {
    return Offset(published_) == 0 || head_.load(std::memory_order_acquire) == published_;
  }

  // --- Any thread ---

  // Whether everything that is published now was consumed and retired.
  [[nodiscard]] bool Empty() const {
    const std::uint64_t tail = tail_.load(std::memory_order_acquire);
    return Offset(tail) == 0 || head_.load(std::memory_order_acquire) == tail;
  }

  // A place ahead of the consumer's.
  class Ahead {
   private:
    friend BasicLogRing;
    std::uint64_t next_ = 0;
    std::size_t place_ = 0;
  };

  // --- Consumer ---

  // The end of what is published now. Acquire: the records before it can be read.
  [[nodiscard]] Tail LoadTail() const { return Tail(tail_.load(std::memory_order_acquire)); }

  // The next record before `upto`, valid until Retire; the same one until Pop. Null if there is
  // none, which retires what was popped; so a drain to the end needs no Retire. A tail older than
  // what was consumed already has none.
  [[nodiscard]] const std::uint8_t* Front(Tail upto) {
    if (MoveToRecord(upto, next_, read_place_)) return read_memory_ + read_place_;
    Retire();
    return nullptr;
  }

  // The place of the record that Front returns next. It is valid as long as a record at or behind
  // it is not popped.
  [[nodiscard]] Ahead LookAhead() const {
    Ahead ahead;
    ahead.next_ = next_;
    ahead.place_ = read_place_;
    return ahead;
  }
  // The record at that place, if it is before `upto`, else null; moves the place behind it.
  [[nodiscard]] const std::uint8_t* Next(Ahead& ahead, Tail upto) const {
    if (!MoveToRecord(upto, ahead.next_, ahead.place_)) return nullptr;
    const std::uint8_t* const record = read_memory_ + ahead.place_;
    Skip(ahead.next_, ahead.place_);
    return record;
  }

  // Consumes the record that Front returned. Its room is the producer's after Retire. REQUIRES: the
  // last Front returned a record that was not popped yet.
  void Pop() { Skip(next_, read_place_); }

  // Gives the room of all popped records to the producer: one release store, none if there is no
  // such record. REQUIRES: the caller reads them no more.
  void Retire() {
    if (next_ == retired_) return;
    retired_ = next_;
    head_.store(next_, std::memory_order_release);
  }

 protected:
  // Begins a new generation. REQUIRES: Drained(), and nothing is unpublished. Protected for a test
  // that does it when it must not.
  void Restart() {
    end_ = published_ = Generation(end_) + kGeneration;
    place_ = 0;
    room_end_ = end_ + capacity_;
    look_at_ = end_ + restart_after_;
  }

 private:
  // The distance between two generations.
  static constexpr std::uint64_t kGeneration = std::uint64_t{1} << 48;
  // Offset 0 of the position's generation.
  static constexpr std::uint64_t Generation(std::uint64_t position) {
    return position & ~(kGeneration - 1);
  }
  static constexpr std::uint64_t Offset(std::uint64_t position) {
    return position & (kGeneration - 1);
  }
  static constexpr std::size_t RoundUp(std::size_t bytes) {
    return bytes <= 8 ? 8 : (bytes + 7) & ~std::size_t{7};
  }
  // The place behind `bytes` at `place`, which do not cross the end of the memory.
  static constexpr std::size_t Advance(std::size_t place, std::size_t bytes, std::size_t capacity) {
    return place + bytes == capacity ? 0 : place + bytes;
  }

  // Moves a position and its place in the memory to the next record, over what is skipped or was
  // left by a restart. False if there is none before `upto`.
  bool MoveToRecord(Tail upto, std::uint64_t& next, std::size_t& place) const {
    if (static_cast<std::int64_t>(upto.position_ - next) <= 0) return false;
    if (Generation(upto.position_) != Generation(next)) {
      next = Generation(upto.position_);
      place = 0;
    }
    if (Atomics::Read32(read_memory_ + place) == 0) {
      next += read_capacity_ - place;
      place = 0;
    }
    return true;
  }
  // Moves them behind the record there.
  void Skip(std::uint64_t& next, std::size_t& place) const {
    const std::uint32_t bytes = Atomics::Read32(read_memory_ + place);
    next += bytes;
    place = Advance(place, bytes, read_capacity_);
  }

  // Whether the room that is known holds a record of `bytes`. Sets skip_.
  bool Fits(std::size_t bytes) {
    skip_ = bytes <= capacity_ - place_ ? 0 : capacity_ - place_;
    return skip_ + bytes <= room_end_ - end_;
  }

  // Learns what was consumed, and restarts if it was everything.
  WAYMARK_STEP_PATH void LookAtHead() {
    const std::uint64_t head = head_.load(std::memory_order_acquire);
    if (head == published_ && end_ == published_ && Offset(end_) != 0) {
      Restart();
      return;
    }
    const std::uint64_t generation = Generation(end_);
    const std::uint64_t consumed = Generation(head) == generation ? head : generation;
    // Offsets end at 2^48: from there on there is no room before a restart.
    room_end_ = generation + std::min(Offset(consumed) + capacity_, kGeneration - 1);
    look_at_ = end_ + restart_after_ / 8;
  }

  // The producer's. What every append needs is in the first 64 bytes.
  alignas(128) std::uint8_t* memory_;
  std::size_t capacity_;
  std::uint64_t end_ = 0;        // behind the last committed record
  std::uint64_t published_ = 0;  // behind the last published one
  std::size_t place_ = 0;        // of end_ in the memory
  std::size_t skip_ = 0;         // bytes to skip before the reserved record
  std::uint64_t room_end_;       // records may end here, as far as is known
  std::uint64_t look_at_;        // from here on, look whether the ring can restart
  std::size_t restart_after_;

  // The consumer's.
  alignas(128) const std::uint8_t* read_memory_;
  std::size_t read_capacity_;
  std::uint64_t next_ = 0;      // the record that Front looks at
  std::size_t read_place_ = 0;  // of next_ in the memory
  std::uint64_t retired_ = 0;   // the value of head_

  alignas(128) typename Atomics::template Atomic<std::uint64_t> tail_{0};  // = published_
  alignas(128) typename Atomics::template Atomic<std::uint64_t> head_{0};
};

using LogRing = BasicLogRing<>;

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_LOG_RING_H_
