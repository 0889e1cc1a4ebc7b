// ModelChecker: runs a few threads with a few operations each in every order, and with every value
// that the C++ memory model lets a load return.
//
//   const auto result = ModelChecker::Explore([](ModelChecker& model) {
//     BasicTicketState<ModelAtomics<>> ticket;                       // a class over the policy
//     int recycled = 0;
//     model.Run([&] { ... }, [&] { ... });                           // two threads, to their ends
//     model.Require(recycled == 1, "the ticket is recycled once");
//   });
//   EXPECT_EQ(result.failure, "");
//
// Explore calls the body again and again, each time with other choices, depth first: which thread
// does its next operation, and which store a load reads. The threads are fibers of the calling
// thread and stop before every operation on an atomic, fence and semaphore. The body must do the
// same each time, apart from what these operations return, and must not loop until another thread
// does something (Semaphore::Wait blocks). It fails at a data race, at a read of memory that was
// never written, at a Require that is false, and when no thread can go on.
//
// What is modelled, after C++20:
//   - atomics with loads, stores and updates (exchange, fetch_or) that are relaxed, acquire,
//   release
//     or acq_rel. The stores of an atomic are in one order. A load returns any of them, unless a
//     later one happens before the load, or the thread has read or written a later one (coherence).
//     An update reads the last one.
//   - happens-before by release and acquire, through release sequences and fences, and by the start
//     and the end of Run and by semaphores.
//   - full fences in one order: what a thread knows of the order of stores at a fence, every thread
//     knows after its later fences. So the two loads of the store-buffering pattern can both miss
//     the other thread's store, but not if each thread has a fence between its store and its load.
//   - plain memory in units of 4 bytes, with every data race.
//
// What is not:
//   - a load that reads a store executed later (load buffering; no processor that compilers of
//     today target does it to a pair of acquire and release);
//   - stores of several threads to one atomic in another order than that of their execution;
//   - sequentially consistent loads, stores and updates, release and acquire fences,
//     compare-and-exchange, consume: the first is refused, the others are not there;
//   - plain accesses of other sizes, and those that do not go through the policy.
//
// Orders that differ only in the order of independent operations (of different atomics, or two
// loads) are explored once (sleep sets: Godefroid, Partial-Order Methods for the Verification of
// Concurrent Systems, 1996).
#ifndef WAYMARK_TESTS_SUPPORT_MODEL_CHECKER_H_
#define WAYMARK_TESTS_SUPPORT_MODEL_CHECKER_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/fiber.h"

namespace waymark {

class ModelChecker {
 public:
  static constexpr int kMaxThreads = 4;
  static constexpr int kMaxLocations = 16;  // atomics and semaphores of one body

  struct Options {
    std::uint64_t max_executions = 2'000'000;
    bool every_order = false;  // explore independent operations in both orders, too
  };
  struct Result {
    std::uint64_t executions = 0;  // without those that were found to be explored already
    bool exhaustive = false;       // nothing is left to explore
    std::string failure;           // what failed first, and the operations up to there; or empty
  };

  // Explores the body until an execution fails.
  static Result Explore(const std::function<void(ModelChecker&)>& body, Options options) {
    ModelChecker model(options.every_order);
    ModelChecker* const outer = std::exchange(Current(), &model);
    Result result;
    for (;;) {
      model.Begin();
      try {
        body(model);
      } catch (const Abandoned&) {
      }
      result.executions += model.explored_already_ ? 0 : 1;
      result.failure = model.failure_;
      if (!result.failure.empty()) break;
      result.exhaustive = !model.NextChoices();
      if (result.exhaustive || result.executions == options.max_executions) break;
    }
    Current() = outer;
    return result;
  }
  static Result Explore(const std::function<void(ModelChecker&)>& body) {
    return Explore(body, Options());
  }

  // Runs the threads to their ends; numbers are 0, 1, ... in the order given. What the body did
  // before happens before them; they happen before what it does next. Not inside a thread.
  template <class... Body>
  void Run(Body&&... bodies) {
    static_assert(sizeof...(bodies) <= kMaxThreads);
    num_threads_ = 0;
    for (auto& body : {std::function<void()>(std::ref(bodies))...}) {
      Thread& thread = threads_[At(num_threads_)];
      thread = Thread();
      thread.current = threads_[kBody].current;
      ++thread.current.clock[At(num_threads_)];
      thread.body = body;
      ++num_threads_;
    }
    ++threads_[kBody].current.clock[kBody];
    started_ = 0;
    sleeping_ = 0;
    SwitchToNext();
    if (abandoning_) throw Abandoned();
    for (int t = 0; t < num_threads_; ++t)
      threads_[kBody].current.Join(threads_[At(t)].current);
  }

  // Fails if false.
  void Require(bool holds, const char* what) {
    if (!holds) Fail(what);
  }

  // Counts; Wait blocks while the count is 0. Post happens before the Waits that follow it.
  class Semaphore {
   public:
    explicit Semaphore(int count) : location_(Model().AddLocation()) {
      Model().locations_[At(location_)].count = count;
    }
    Semaphore(const Semaphore&) = delete;
    Semaphore& operator=(const Semaphore&) = delete;
    void Post() { Model().ChangeSemaphore(Kind::kPost, location_); }
    void Wait() { Model().ChangeSemaphore(Kind::kWait, location_); }

   private:
    int location_;
  };

 private:
  template <class Policy, class T>
  friend class ModelAtomic;
  template <class Policy>
  friend struct ModelPolicy;

  static constexpr std::size_t kBody = kMaxThreads;  // the body outside Run, as a thread
  static constexpr std::size_t kMaxSteps = 10'000;
  static constexpr std::size_t kStackBytes = std::size_t{256} << 10;

  // Thrown through the threads and the body when an execution ends early.
  struct Abandoned {};

  // What happens before a point: of each thread everything up to a time, and of each location the
  // first store that can still be read.
  struct View {
    std::array<std::uint32_t, kMaxThreads + 1> clock{};
    std::array<std::uint32_t, kMaxLocations> seen{};

    void JoinSeen(const View& other) {
      for (std::size_t i = 0; i < seen.size(); ++i)
        seen[i] = std::max(seen[i], other.seen[i]);
    }
    void Join(const View& other) {
      for (std::size_t i = 0; i < clock.size(); ++i)
        clock[i] = std::max(clock[i], other.clock[i]);
      JoinSeen(other);
    }
  };
  struct Store {
    std::uint64_t value;
    View message;  // what happens before an acquire that reads it
  };
  // An atomic or a semaphore.
  struct Location {
    std::vector<Store> stores;  // of an atomic, in their order
    int count = 0;              // of a semaphore
    View posted;
  };
  enum class Kind { kLoad, kStore, kUpdate, kFence, kPost, kWait };
  struct Operation {
    Kind kind = Kind::kFence;
    int location = -1;
  };
  struct Thread {
    View current;   // what happens before its next operation
    View acquired;  // what a fence adds to it: the messages of all stores that were read
    View released;  // current at the last fence: the message of a relaxed store
    std::function<void()> body;
    Operation next;
    bool ended = false;
  };
  // Four bytes of plain memory.
  struct Cell {
    const std::uint8_t* at;
    int writer;                                        // -1: never written
    std::uint32_t written;                             // the writer's time
    std::array<std::uint32_t, kMaxThreads + 1> reads;  // each thread's time of its last read
  };
  struct Choice {
    bool of_thread;
    unsigned chosen;    // thread, or option
    unsigned options;   // bit set of threads, or number of options
    unsigned sleeping;  // threads whose next operation was explored before or is elsewhere
  };
  struct Event {
    int thread;
    Operation operation;
    std::uint64_t value;
    std::size_t store;  // which store was read or made
  };

  explicit ModelChecker(bool every_order) : every_order_(every_order) {
    for (auto& fiber : fibers_)
      fiber = std::make_unique<Fiber>(kStackBytes, &ModelChecker::Entry);
  }

  static std::size_t At(int index) { return static_cast<std::size_t>(index); }
  static ModelChecker*& Current() {
    static thread_local ModelChecker* current = nullptr;
    return current;
  }
  static ModelChecker& Model() { return *Current(); }

  // --- Choices ---

  void Begin() {
    for (int l = 0; l < num_locations_; ++l) {
      locations_[At(l)].stores.clear();
      locations_[At(l)].posted = View();
    }
    num_locations_ = 0;
    cells_.clear();
    events_.clear();
    threads_[kBody] = Thread();
    threads_[kBody].current.clock[kBody] = 1;
    fenced_ = View();
    running_ = kBody;
    depth_ = 0;
    abandoning_ = explored_already_ = false;
  }

  // Goes on to the next execution in depth-first order; false if there is none.
  bool NextChoices() {
    while (!choices_.empty()) {
      Choice& choice = choices_.back();
      if (choice.of_thread) {
        choice.sleeping |= 1u << choice.chosen;
        const unsigned left = choice.options & ~choice.sleeping;
        if (left != 0) {
          choice.chosen = static_cast<unsigned>(std::countr_zero(left));
          return true;
        }
      } else if (choice.chosen + 1 < choice.options) {
        ++choice.chosen;
        return true;
      }
      choices_.pop_back();
    }
    return false;
  }

  unsigned ChooseOption(std::size_t count) {
    if (count == 1) return 0;
    if (depth_ == choices_.size()) choices_.push_back({false, 0, static_cast<unsigned>(count), 0});
    const Choice& choice = choices_[depth_++];
    if (choice.of_thread || choice.options != count) Fail("the body is not deterministic");
    return choice.chosen;
  }

  // Whether the order of two operations of different threads can matter.
  static bool Dependent(const Operation& a, const Operation& b) {
    if (a.kind == Kind::kFence || b.kind == Kind::kFence) return a.kind == b.kind;
    return a.location == b.location && !(a.kind == Kind::kLoad && b.kind == Kind::kLoad);
  }

  // The thread that goes on; -1 if all have ended or the execution is abandoned.
  int ChooseThread() {
    unsigned can_run = 0;
    bool all_ended = true;
    for (int t = 0; t < num_threads_; ++t) {
      const Thread& thread = threads_[At(t)];
      if (thread.ended) continue;
      all_ended = false;
      if (thread.next.kind != Kind::kWait || locations_[At(thread.next.location)].count > 0)
        can_run |= 1u << t;
    }
    if (all_ended) return -1;
    if (can_run == 0) return Abandon("no thread can go on");
    if (events_.size() > kMaxSteps) return Abandon("the threads do not end");
    if (depth_ == choices_.size()) {
      const unsigned left = can_run & ~sleeping_;
      if (left == 0) {
        explored_already_ = true;
        return Abandon("");
      }
      choices_.push_back({true, static_cast<unsigned>(std::countr_zero(left)), can_run, sleeping_});
    }
    const Choice& choice = choices_[depth_++];
    if (!choice.of_thread || choice.options != can_run)
      return Abandon("the body is not deterministic");
    sleeping_ = 0;
    for (unsigned t = 0; t < kMaxThreads && !every_order_; ++t) {
      if ((choice.sleeping >> t & 1) != 0 &&
          !Dependent(threads_[t].next, threads_[choice.chosen].next))
        sleeping_ |= 1u << t;
    }
    return static_cast<int>(choice.chosen);
  }

  // --- Threads ---

  // Ends the execution: every thread unwinds when it is switched to.
  int Abandon(const std::string& failure) {
    if (failure_.empty() && !failure.empty()) failure_ = failure + Trace();
    abandoning_ = true;
    return -1;
  }
  [[noreturn]] void Fail(const std::string& failure) {
    Abandon(failure);
    throw Abandoned();
  }

  // Lets another thread, or the body, go on if it is its turn.
  void SwitchToNext() {
    const std::size_t from = running_;
    running_ = Next();
    if (running_ != from) Fiber::Switch(FiberOf(from), FiberOf(running_));
  }
  std::size_t Next() {
    if (!abandoning_) {
      if (started_ < num_threads_) return At(started_++);
      const int chosen = ChooseThread();
      if (chosen >= 0) return At(chosen);
    }
    for (int t = 0; t < num_threads_; ++t) {
      if (!threads_[At(t)].ended) return At(t);
    }
    return kBody;
  }
  Fiber& FiberOf(std::size_t thread) { return thread == kBody ? body_ : *fibers_[thread]; }

  // What every fiber runs: the body of one thread after the other.
  static void Entry() {
    ModelChecker& model = Model();
    const std::size_t self = model.running_;
    model.fibers_[self]->Arrived();
    for (;;) {
      if (!model.abandoning_) {
        try {
          model.threads_[self].body();
        } catch (const Abandoned&) {
        }
      }
      model.threads_[self].ended = true;
      model.SwitchToNext();
    }
  }

  // Before every operation: returns when it is the turn of the thread.
  Thread& Arrive(Kind kind, int location) {
    Thread& thread = threads_[running_];
    if (running_ != kBody) {
      thread.next = {kind, location};
      SwitchToNext();
      if (abandoning_) throw Abandoned();
    }
    return thread;
  }
  void Did(Kind kind, int location, std::uint64_t value, std::size_t store) {
    // The messages sent so far do not cover what the thread does from here on.
    ++threads_[running_].current.clock[running_];
    events_.push_back({static_cast<int>(running_), {kind, location}, value, store});
  }

  // --- Operations ---

  int AddLocation() {
    if (num_locations_ == kMaxLocations) Fail("too many atomics");
    return num_locations_++;
  }
  int AddAtomic(std::uint64_t value) {
    const int location = AddLocation();
    locations_[At(location)].stores.push_back({value, threads_[running_].current});
    return location;
  }

  std::uint64_t Load(int location, std::memory_order order) {
    if (order != std::memory_order_relaxed && order != std::memory_order_acquire)
      Fail("a load of an order that is not modelled");
    Thread& thread = Arrive(Kind::kLoad, location);
    const std::vector<Store>& stores = locations_[At(location)].stores;
    const std::size_t first = thread.current.seen[At(location)];
    const std::size_t read = stores.size() - 1 - ChooseOption(stores.size() - first);
    Read(thread, location, read, order == std::memory_order_acquire);
    Did(Kind::kLoad, location, stores[read].value, read);
    return stores[read].value;
  }

  void StoreTo(int location, std::uint64_t value, std::memory_order order) {
    if (order != std::memory_order_relaxed && order != std::memory_order_release)
      Fail("a store of an order that is not modelled");
    Thread& thread = Arrive(Kind::kStore, location);
    Write(thread, location, value, order == std::memory_order_release);
    Did(Kind::kStore, location, value, locations_[At(location)].stores.size() - 1);
  }

  // Returns the value before.
  std::uint64_t Update(int location, const std::function<std::uint64_t(std::uint64_t)>& change,
                       std::memory_order order) {
    if (order == std::memory_order_seq_cst || order == std::memory_order_consume)
      Fail("an update of an order that is not modelled");
    const bool acquire = order == std::memory_order_acquire || order == std::memory_order_acq_rel;
    const bool release = order == std::memory_order_release || order == std::memory_order_acq_rel;
    Thread& thread = Arrive(Kind::kUpdate, location);
    std::vector<Store>& stores = locations_[At(location)].stores;
    const std::size_t read = stores.size() - 1;
    const std::uint64_t before = stores[read].value;
    Read(thread, location, read, acquire);
    Write(thread, location, change(before), release);
    stores.back().message.Join(stores[read].message);  // it continues the release sequence
    Did(Kind::kUpdate, location, stores.back().value, read + 1);
    return before;
  }

  void Fence() {
    Thread& thread = Arrive(Kind::kFence, -1);
    thread.current.Join(thread.acquired);
    fenced_.JoinSeen(thread.current);
    thread.current.JoinSeen(fenced_);
    thread.released = thread.current;
    Did(Kind::kFence, -1, 0, 0);
  }

  void ChangeSemaphore(Kind kind, int location) {
    Thread& thread = Arrive(kind, location);
    Location& semaphore = locations_[At(location)];
    if (kind == Kind::kPost) {
      ++semaphore.count;
      semaphore.posted.Join(thread.current);
    } else {
      --semaphore.count;
      thread.current.Join(semaphore.posted);
    }
    Did(kind, location, static_cast<std::uint64_t>(semaphore.count), 0);
  }

  void Read(Thread& thread, int location, std::size_t store, bool acquire) {
    const View& message = locations_[At(location)].stores[store].message;
    thread.current.seen[At(location)] = static_cast<std::uint32_t>(store);
    thread.acquired.Join(message);
    if (acquire) thread.current.Join(message);
  }
  void Write(Thread& thread, int location, std::uint64_t value, bool release) {
    std::vector<Store>& stores = locations_[At(location)].stores;
    const auto store = static_cast<std::uint32_t>(stores.size());
    thread.current.seen[At(location)] = store;
    stores.push_back({value, release ? thread.current : thread.released});
    stores.back().message.seen[At(location)] = store;
  }

  // --- Plain memory ---

  Cell& CellAt(const std::uint8_t* at) {
    for (Cell& cell : cells_) {
      if (cell.at == at) return cell;
    }
    cells_.push_back({at, -1, 0, {}});
    return cells_.back();
  }
  // The cell, if the access does not race with a write.
  Cell& AfterWrite(const std::uint8_t* at) {
    Cell& cell = CellAt(at);
    if (cell.writer >= 0 && cell.written > threads_[running_].current.clock[At(cell.writer)])
      Fail("data race: thread " + std::to_string(running_) + " with a write of thread " +
           std::to_string(cell.writer));
    return cell;
  }
  std::uint32_t Read32(const std::uint8_t* at) {
    Cell& cell = AfterWrite(at);
    if (cell.writer < 0) Fail("memory is read that was never written");
    cell.reads[running_] = threads_[running_].current.clock[running_];
    std::uint32_t value;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  void Write32(std::uint8_t* at, std::uint32_t value) {
    Cell& cell = AfterWrite(at);
    for (std::size_t t = 0; t < cell.reads.size(); ++t) {
      if (cell.reads[t] > threads_[running_].current.clock[t])
        Fail("data race: thread " + std::to_string(running_) + " with a read of thread " +
             std::to_string(t));
    }
    cell.writer = static_cast<int>(running_);
    cell.written = threads_[running_].current.clock[running_];
    std::memcpy(at, &value, sizeof(value));
  }

  // The operations of the execution, one a line.
  [[nodiscard]] std::string Trace() const {
    static constexpr std::array<const char*, 6> kNames = {"load",  "store", "update",
                                                          "fence", "post",  "wait"};
    std::string text;
    for (const Event& event : events_) {
      text += "\n  thread " + std::to_string(event.thread) + ": " +
              kNames[static_cast<std::size_t>(event.operation.kind)];
      if (event.operation.kind == Kind::kFence) continue;
      text +=
          " of " + std::to_string(event.operation.location) + ": " + std::to_string(event.value);
      const Location& location = locations_[At(event.operation.location)];
      if (event.operation.kind == Kind::kLoad)
        text += ", store " + std::to_string(event.store + 1) + " of in all " +
                std::to_string(location.stores.size());
    }
    return text;
  }

  const bool every_order_;
  std::vector<Choice> choices_;
  std::string failure_;

  // One execution.
  std::size_t depth_ = 0;  // choices made
  std::array<Location, kMaxLocations> locations_;
  int num_locations_ = 0;
  std::vector<Cell> cells_;
  std::vector<Event> events_;
  std::array<Thread, kMaxThreads + 1> threads_;
  View fenced_;  // what threads know of the order of stores at fences; its clock is not used
  std::size_t running_ = kBody;
  int num_threads_ = 0;
  int started_ = 0;
  unsigned sleeping_ = 0;  // threads whose next operation need not be explored here
  bool abandoning_ = false;
  bool explored_already_ = false;

  Fiber body_;
  std::array<std::unique_ptr<Fiber>, kMaxThreads> fibers_;
};

// A bug that the policy puts into the class under test.
enum class Weakening {
  kNone,
  kRelaxedStores,   // stores are relaxed
  kRelaxedLoads,    // loads are relaxed
  kRelaxedUpdates,  // updates are relaxed
  kSplitUpdates,    // an update is a load and a store
  kNoFences,        // fences do nothing
};

// An atomic of the policy.
template <class Policy, class T>
class ModelAtomic {
 public:
  ModelAtomic(T value = T()) : location_(ModelChecker::Model().AddAtomic(value)) {}
  ModelAtomic(const ModelAtomic&) = delete;
  ModelAtomic& operator=(const ModelAtomic&) = delete;

  T load(std::memory_order order) const {
    if (Policy::Has(Weakening::kRelaxedLoads)) order = std::memory_order_relaxed;
    return static_cast<T>(ModelChecker::Model().Load(location_, order));
  }
  void store(T value, std::memory_order order) {
    if (Policy::Has(Weakening::kRelaxedStores)) order = std::memory_order_relaxed;
    ModelChecker::Model().StoreTo(location_, value, order);
  }
  T exchange(T value, std::memory_order order) {
    return Update([value](std::uint64_t) { return value; }, order);
  }
  T fetch_or(T value, std::memory_order order) {
    return Update([value](std::uint64_t before) { return before | value; }, order);
  }

 private:
  T Update(const std::function<std::uint64_t(std::uint64_t)>& change, std::memory_order order) {
    ModelChecker& model = ModelChecker::Model();
    if (Policy::Has(Weakening::kSplitUpdates)) {
      const std::uint64_t before = model.Load(location_, std::memory_order_acquire);
      model.StoreTo(location_, change(before), std::memory_order_release);
      return static_cast<T>(before);
    }
    if (Policy::Has(Weakening::kRelaxedUpdates)) order = std::memory_order_relaxed;
    return static_cast<T>(model.Update(location_, change, order));
  }

  int location_;
};

template <class Policy>
struct ModelPolicy {
  template <class T>
  using Atomic = ModelAtomic<Policy, T>;

  static void Fence() {
    if (!Policy::Has(Weakening::kNoFences)) ModelChecker::Model().Fence();
  }
  static std::uint32_t Read32(const std::uint8_t* at) { return ModelChecker::Model().Read32(at); }
  static void Write32(std::uint8_t* at, std::uint32_t value) {
    ModelChecker::Model().Write32(at, value);
  }

 protected:
  static bool IsThread(int thread) {
    return thread < 0 || ModelChecker::Model().running_ == ModelChecker::At(thread);
  }
};

// The policy. `kBug` is in what thread `kThread` does; -1: every thread.
template <Weakening kBug = Weakening::kNone, int kThread = -1>
struct ModelAtomics : ModelPolicy<ModelAtomics<kBug, kThread>> {
  static bool Has(Weakening bug) {
    return bug == kBug && ModelPolicy<ModelAtomics>::IsThread(kThread);
  }
};

}  // namespace waymark

#endif  // WAYMARK_TESTS_SUPPORT_MODEL_CHECKER_H_
