#include "blockstore/store/log_ring.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <cstdint>
#include <deque>
#include <random>
#include <semaphore>
#include <thread>
#include <vector>

#include "blockstore/store/wake_flag.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test_seed.h"

namespace waymark {
namespace {

// 64-byte aligned memory.
class Memory {
 public:
  explicit Memory(std::size_t size) : lines_(size / 64) {}
  [[nodiscard]] std::span<std::uint8_t> bytes() {
    return {lines_[0].bytes.data(), lines_.size() * 64};
  }

 private:
  struct alignas(64) Line {
    std::array<std::uint8_t, 64> bytes;
  };
  std::vector<Line> lines_;
};

// Appends a record whose payload begins with `first` and counts up; reserves `spare` bytes more.
template <class Ring>
bool Append(Ring& ring, std::size_t bytes, std::uint64_t first, std::size_t spare = 0) {
  std::uint8_t* const record = ring.Reserve(bytes + spare);
  if (record == nullptr) return false;
  for (std::size_t i = 4; i < bytes; ++i)
    record[i] = static_cast<std::uint8_t>(first + i);
  ring.Commit(bytes);
  return true;
}

// Whether the record is the one that Append wrote.
bool Is(const std::uint8_t* record, std::size_t bytes, std::uint64_t first) {
  if (record == nullptr || StdAtomics::Read32(record) != (bytes + 7) / 8 * 8) return false;
  for (std::size_t i = 4; i < bytes; ++i) {
    if (record[i] != static_cast<std::uint8_t>(first + i)) return false;
  }
  return true;
}

// Whether the record is the next one that is published; it is consumed.
bool Takes(LogRing& ring, std::size_t bytes, std::uint64_t first) {
  const bool is = Is(ring.Front(ring.LoadTail()), bytes, first);
  if (is) ring.Pop();
  return is;
}

TEST(LogRing, RecordsAreSeenInOrderAndOnlyWhenPublished) {
  Memory memory(256);
  LogRing ring(memory.bytes());
  EXPECT_TRUE(ring.Drained());
  EXPECT_EQ(ring.Front(ring.LoadTail()), nullptr);
  ASSERT_TRUE(Append(ring, 16, 1));
  ASSERT_TRUE(Append(ring, 13, 2, 50));
  EXPECT_EQ(ring.Front(ring.LoadTail()), nullptr);
  EXPECT_TRUE(ring.Drained());
  ring.Publish();
  EXPECT_FALSE(ring.Drained());
  const LogRing::Tail upto = ring.LoadTail();
  ASSERT_TRUE(Append(ring, 8, 3));
  ring.Publish();

  EXPECT_TRUE(Is(ring.Front(upto), 16, 1));
  EXPECT_TRUE(Is(ring.Front(upto), 16, 1));
  ring.Pop();
  EXPECT_TRUE(Is(ring.Front(upto), 13, 2));
  ring.Pop();
  EXPECT_EQ(ring.Front(upto), nullptr);
  EXPECT_TRUE(Takes(ring, 8, 3));
  EXPECT_FALSE(ring.Drained());
  ring.Retire();
  EXPECT_TRUE(ring.Drained());
  EXPECT_EQ(ring.Front(upto), nullptr) << "a tail from before";
}

TEST(LogRing, AnEmptyRingHasRoomForItsWholeCapacity) {
  Memory memory(192);
  LogRing ring(memory.bytes());
  EXPECT_EQ(ring.Reserve(193), nullptr);
  EXPECT_EQ(ring.Reserve(~std::size_t{0}), nullptr);
  for (const std::size_t bytes : {8, 192, 8, 64, 192}) {
    ASSERT_TRUE(Append(ring, bytes, bytes));
    EXPECT_EQ(ring.Reserve(192), nullptr) << "not while something is unpublished";
    ring.Publish();
    EXPECT_EQ(ring.Reserve(192), nullptr) << "not before it is consumed";
    EXPECT_TRUE(Takes(ring, bytes, bytes));
    EXPECT_EQ(ring.Reserve(192), nullptr) << "not before it is retired";
    EXPECT_EQ(ring.Front(ring.LoadTail()), nullptr);
  }
}

TEST(LogRing, AReservationCanBeReplacedAndShrunk) {
  Memory memory(64);
  LogRing ring(memory.bytes());
  ASSERT_TRUE(Append(ring, 40, 1));
  ring.Publish();
  ASSERT_TRUE(Takes(ring, 40, 1));
  ring.Retire();
  ASSERT_NE(ring.Reserve(64), nullptr);
  ASSERT_NE(ring.Reserve(0), nullptr);
  ASSERT_TRUE(Append(ring, 5, 2, 40));
  ASSERT_TRUE(Append(ring, 56, 3));
  EXPECT_EQ(ring.Reserve(1), nullptr);
  ring.Publish();
  EXPECT_TRUE(Takes(ring, 5, 2));
  EXPECT_TRUE(Is(ring.Front(ring.LoadTail()), 56, 3));
}

TEST(LogRing, OneReservationHoldsSeveralRecordsAlsoBehindASkip) {
  Memory memory(128);
  LogRing ring(memory.bytes());
  ASSERT_TRUE(Append(ring, 72, 1));
  ring.Publish();
  ASSERT_TRUE(Takes(ring, 72, 1));
  ring.Retire();
  ASSERT_TRUE(Append(ring, 16, 2));  // 40 bytes are left before the end
  ring.Publish();
  std::uint8_t* const both = ring.Reserve(48);
  ASSERT_EQ(both, memory.bytes().data()) << "behind a skip";
  for (std::size_t i = 4; i < 24; ++i) {
    both[i] = static_cast<std::uint8_t>(3 + i);
    both[24 + i] = static_cast<std::uint8_t>(4 + i);
  }
  ring.Commit(24);
  ring.Commit(24);
  ring.Publish();
  for (const std::uint64_t first : {2, 3, 4}) {
    ASSERT_TRUE(Takes(ring, first == 2 ? 16 : 24, first)) << first;
  }
  EXPECT_EQ(ring.Front(ring.LoadTail()), nullptr);
}

TEST(LogRing, StartsAgainAtItsBeginningWhenItIsDrained) {
  Memory memory(65536);
  LogRing ring(memory.bytes(), 128);
  // More than 2^16 generations.
  for (std::uint64_t record = 0; record < 150'000; ++record) {
    const std::size_t bytes = 128 - record % 7 * 8;
    ASSERT_TRUE(Append(ring, bytes, record));
    ring.Publish();
    const std::uint8_t* const front = ring.Front(ring.LoadTail());
    ASSERT_NE(front, nullptr);
    ASSERT_LT(front, memory.bytes().data() + 128);
    ASSERT_TRUE(Is(front, bytes, record));
    ring.Pop();
    ASSERT_EQ(ring.Front(ring.LoadTail()), nullptr);
  }
  // Nothing is published since the restart.
  ASSERT_EQ(ring.Reserve(65536), memory.bytes().data());
  ring.Publish();
  EXPECT_TRUE(ring.Drained());
  EXPECT_EQ(ring.Front(ring.LoadTail()), nullptr);
}

// Counts what a thread reads of lines that the other one writes.
struct CountingAtomics : StdAtomics {
  static inline int loads = 0;

  template <class T>
  struct Atomic : std::atomic<T> {
    using std::atomic<T>::atomic;
    T load(std::memory_order order) const {
      ++loads;
      return std::atomic<T>::load(order);
    }
  };
};

TEST(LogRing, AnAppendSeldomLooksAtTheHead) {
  Memory memory(65536);
  BasicLogRing<CountingAtomics> ring(memory.bytes(), 8192);
  CountingAtomics::loads = 0;
  for (int i = 0; i < 128; ++i) {
    ASSERT_TRUE(Append(ring, 64, 0));
    ring.Publish();
  }
  EXPECT_EQ(CountingAtomics::loads, 0) << "there is room, and it is too early for a restart";
  for (int i = 0; i < 128; ++i) {
    ASSERT_TRUE(Append(ring, 64, 0));
    ring.Publish();
  }
  EXPECT_EQ(CountingAtomics::loads, 8) << "one for each 1,024 bytes while records wait";
  for (int i = 0; i < 128; ++i)
    ASSERT_TRUE(Append(ring, 64, 0));
  EXPECT_EQ(CountingAtomics::loads, 9) << "no restart within a batch";
}

// Random records against a queue, in one thread.
TEST(LogRing, RandomRecordsComeOutAsTheyWentIn) {
  TestRandom random;
  int refused = 0;
  for (int round = 0; round < PlainOr(200, 50); ++round) {
    const std::size_t capacity = 64 * (1 + random() % 20);
    const std::array<std::size_t, 3> restart_after = {0, capacity / 2, LogRing::kRestartAfter};
    Memory memory(capacity);
    LogRing ring(memory.bytes(), restart_after[random() % 3]);
    const std::size_t largest = 1 + random() % capacity;
    struct Record {
      std::size_t bytes;
      std::uint64_t first;
    };
    std::deque<Record> committed, published;
    const auto expect_front = [&] {
      const std::uint8_t* const front = ring.Front(ring.LoadTail());
      if (published.empty()) {
        ASSERT_EQ(front, nullptr);
        ASSERT_TRUE(ring.Drained());
        return;
      }
      ASSERT_TRUE(Is(front, published.front().bytes, published.front().first));
      ASSERT_EQ((front - memory.bytes().data()) % 8, 0);
      ASSERT_LE(front + StdAtomics::Read32(front), memory.bytes().data() + capacity);
      ring.Pop();
      published.pop_front();
    };
    for (int turn = 0; turn < 500; ++turn) {
      switch (random() % 4) {
        case 0:
        case 1: {
          const Record record = {4 + random() % largest, random()};
          if (Append(ring, record.bytes, record.first, random() % 32)) {
            committed.push_back(record);
          } else {
            ++refused;
          }
          break;
        }
        case 2:
          ring.Publish();
          published.insert(published.end(), committed.begin(), committed.end());
          committed.clear();
          break;
        default:
          for (std::uint64_t n = random() % 5; n > 0; --n)
            ASSERT_NO_FATAL_FAILURE(expect_front());
          if (random() % 2 == 0) ring.Retire();
      }
    }
    ring.Publish();
    published.insert(published.end(), committed.begin(), committed.end());
    while (!published.empty())
      ASSERT_NO_FATAL_FAILURE(expect_front());
    ASSERT_NO_FATAL_FAILURE(expect_front());
  }
  EXPECT_GT(refused, 1000);
}

// A generation has 2^48 bytes; a ring that is never drained must not run over them.
TEST(LogRing, AGenerationEndsBeforeItsOffsetsDo) {
  constexpr std::size_t kCapacity = std::size_t{1} << 33;
  void* const memory = mmap(nullptr, kCapacity, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "no 8 GiB of addresses";
  {
    LogRing ring({static_cast<std::uint8_t*>(memory), kCapacity});
    std::uint64_t appended = 0;
    const auto append = [&] {
      if (ring.Reserve(LogRing::kMaxRecord) == nullptr) return false;
      ring.Commit(LogRing::kMaxRecord);
      ring.Publish();
      ++appended;
      return true;
    };
    const auto consume = [&] {
      const std::uint8_t* const front = ring.Front(ring.LoadTail());
      EXPECT_NE(front, nullptr);
      if (front != nullptr) ring.Pop();
      ring.Retire();
    };
    EXPECT_EQ(ring.Reserve(LogRing::kMaxRecord + 1), nullptr) << "its size has 32 bits";
    ASSERT_TRUE(append());
    while (append()) {
      ASSERT_LT(appended, 70'000) << "2^48 bytes are fewer records";
      consume();
    }
    EXPECT_GT(appended, 65'500);
    consume();
    EXPECT_TRUE(ring.Drained());
    EXPECT_TRUE(append());
    EXPECT_EQ(ring.Front(ring.LoadTail()), memory);
  }
  munmap(memory, kCapacity);
}

TEST(LogRing, TheThreadsHaveLinesOfTheirOwn) {
  EXPECT_EQ(alignof(LogRing), 128);
  EXPECT_EQ(sizeof(LogRing), 4 * 128);
  EXPECT_EQ(alignof(WakeFlag), 128);
}

// Two threads, for ThreadSanitizer: random records, batches and drains; the consumer sleeps when
// there is nothing.
TEST(LogRingThreads, RandomRecordsComeOutAsTheyWentIn) {
  const std::uint64_t seed = TestSeed();
  SCOPED_TRACE(testing::Message() << "WAYMARK_SEED=" << seed);
  constexpr std::array<std::size_t, 4> kCapacities = {64, 1024 - 64, 65536, 192};
  for (std::size_t round = 0; round < kCapacities.size(); ++round) {
    const std::size_t capacity = kCapacities[round];
    const std::uint64_t records = PlainOr(100'000, 3'000);
    Memory memory(capacity);
    LogRing ring(memory.bytes(), capacity / 4);
    WakeFlag flag;
    std::counting_semaphore<> semaphore(0);
    // The n-th record: its bytes, and the first of its payload.
    const auto bytes_of = [&](std::mt19937_64& random) {
      return 4 + random() % std::min<std::size_t>(capacity - 4, 300);
    };
    const auto publish = [&] {
      ring.Publish();
      if (flag.ShouldWake()) semaphore.release();
    };
    std::jthread producer([&] {
      std::mt19937_64 sizes(seed + round), random(seed + round + 1000);
      for (std::uint64_t n = 0; n < records; ++n) {
        const std::size_t bytes = bytes_of(sizes);
        while (!Append(ring, bytes, n)) {
          publish();
          std::this_thread::yield();
        }
        if (random() % 4 == 0) publish();
        // Lets the consumer come to the end, and sleep, now and then.
        if (random() % 256 == 0) {
          publish();
          while (!ring.Drained())
            std::this_thread::yield();
        }
      }
      publish();
    });
    std::mt19937_64 sizes(seed + round), random(seed + round + 2000);
    std::uint64_t consumed = 0, wrong = 0;
    while (consumed < records) {
      const LogRing::Tail upto = ring.LoadTail();
      while (const std::uint8_t* const record = ring.Front(upto)) {
        wrong += Is(record, bytes_of(sizes), consumed) ? 0 : 1;
        ++consumed;
        ring.Pop();
        if (random() % 4 == 0) ring.Retire();
      }
      if (consumed == records) break;
      flag.Announce();
      if (ring.Front(ring.LoadTail()) == nullptr) semaphore.acquire();
      flag.Withdraw();
    }
    producer.join();
    EXPECT_EQ(wrong, 0);
    EXPECT_TRUE(ring.Drained());
  }
}

}  // namespace
}  // namespace waymark
