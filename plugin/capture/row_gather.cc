#include "plugin/capture/row_gather.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include <xxhash.h>

#include "blockstore/exception_status.h"
#include "blockstore/step_path.h"
#include "blockstore/timeout.h"
#include "plugin/capture/row_lander.h"

namespace waymark {
namespace {

constexpr std::uint64_t kPartMagic =
    0x3173776f722d6d77;               // "wm-rows1"; another one on other machines
constexpr std::size_t kPacked = 128;  // rows packed at a time
constexpr auto kNap = std::chrono::microseconds(200);
constexpr auto kAwake = std::chrono::milliseconds(100);  // it naps so long after its last work

}  // namespace

// What the part of a rank begins with. Its verdicts (a Reason each) and its packed rows follow.
struct RowGather::Header {
  std::uint64_t magic = kPartMagic;
  std::uint64_t step = 0;
  std::uint64_t version = 0;
  std::int32_t rank = 0;
  std::int32_t ranks = 0;
  std::int32_t rows = 0;
  std::int32_t num_layers = 0;
  std::int32_t top_k = 0;
  std::int32_t num_experts = 0;
  std::uint32_t missing = 0;  // the Reason why the part has no rows; kNone: it has
  std::uint32_t reserved = 0;
  std::uint64_t rows_check = 0;  // XXH3-64 of what follows the header
  std::uint64_t check = 0;       // XXH3-64 of what stands before

  [[nodiscard]] std::uint64_t Check() const { return XXH3_64bits(this, offsetof(Header, check)); }
};

struct RowGather::Turn {
  std::atomic<bool> ended{false};
  std::uint64_t step = 0;
  std::uint64_t version = 0;
  std::int32_t rows = 0;           // of each rank
  Gathered* memory = nullptr;      // null: the step was dropped, or found no memory
  StepRows* local = nullptr;       // of this rank; null: none,
  Reason missing = Reason::kNone;  // for this reason
};

// Taken by the engine's thread. From Submit on it has two users, the store and the gather thread;
// the last one to leave frees it.
class RowGather::Gathered : public PackedRows {
 public:
  Gathered(const RowGather& gather, std::size_t bytes)
      : PackedRows(gather.options_.shape),
        received_(new std::uint8_t[bytes]),  // touched as it is used
        missing_(static_cast<std::size_t>(gather.ranks())) {}

  bool TryTake() {
    if (users_.load(std::memory_order_acquire) != kFree) return false;
    users_.store(kTaken, std::memory_order_relaxed);  // only the engine's thread takes
    return true;
  }
  void GiveBack() { users_.store(kFree, std::memory_order_release); }
  void Share(std::shared_ptr<RowGather> owner) {
    owner_ = std::move(owner);
    ready_.store(false, std::memory_order_relaxed);
    users_.store(kShared, std::memory_order_relaxed);
  }

  // ---- the gather thread
  [[nodiscard]] std::uint8_t* received() { return received_.get(); }
  void SetPart(std::size_t rank, Reason missing) { missing_[rank] = missing; }
  void SetReady(std::int32_t rows, std::size_t part_bytes) {
    rows_ = rows;
    part_bytes_ = part_bytes;
    ready_.store(true, std::memory_order_release);
  }
  void Leave() {
    if (users_.fetch_sub(1, std::memory_order_acq_rel) != kTaken + 1) return;
    // If the session is gone, this is the last reference to the gather, which owns *this.
    const std::shared_ptr<RowGather> owner = std::move(owner_);
    GiveBack();
  }

  // ---- the landing thread
  bool Poll() override { return ready_.load(std::memory_order_acquire); }

  void Done() override { Leave(); }

 private:
  static constexpr int kFree = 0;
  static constexpr int kTaken = 1;
  static constexpr int kShared = kTaken + 2;

  [[nodiscard]] Row Find(std::size_t row) const override {
    const auto rows = static_cast<std::size_t>(rows_);
    if (rows == 0 || row >= rows * missing_.size()) return {};
    const std::size_t rank = row / rows;
    if (missing_[rank] != Reason::kNone) return {missing_[rank]};
    const std::uint8_t* const part = received_.get() + rank * part_bytes_ + sizeof(Header);
    const std::uint8_t verdict = part[row % rows];
    if (verdict >= kNumStoreReasons) return {};  // of a rank of another version
    return {static_cast<Reason>(verdict), part + rows + row % rows * shape_.row_bytes()};
  }

  std::atomic<int> users_{kFree};
  std::shared_ptr<RowGather> owner_;  // while shared
  std::int32_t rows_ = 0;             // of each rank
  std::size_t part_bytes_ = 0;
  std::unique_ptr<std::uint8_t[]> received_;
  std::vector<Reason> missing_;  // by rank: why its part has no rows
  std::atomic<bool> ready_{false};
};

// ---- making and ending it

RowGather::RowGather(const RowGatherOptions& options)
    : options_(options), row_bytes_(options.shape.row_bytes()) {}

RowGather::~RowGather() = default;

std::size_t RowGather::PartBytes(std::int32_t rows) const {
  return sizeof(Header) + static_cast<std::size_t>(rows) * (1 + row_bytes_);
}

absl::StatusOr<std::shared_ptr<RowGather>> RowGather::Create(const RowGatherOptions& options) {
  if (absl::Status status = CheckCollective(options.collective); !status.ok()) return status;
  return Guarded("making the gather of rows", [&]() -> absl::StatusOr<std::shared_ptr<RowGather>> {
    std::shared_ptr<RowGather> gather(new RowGather(options));
    const auto max_rows = static_cast<std::size_t>(options.max_rows);
    const auto ranks = static_cast<std::size_t>(options.collective.ranks);
    const std::size_t bytes = ranks * gather->PartBytes(options.max_rows);
    for (std::int32_t i = 0; i < options.num_steps; ++i)
      gather->steps_.push_back(std::make_unique<Gathered>(*gather, bytes));
    gather->turns_ = std::make_unique<Turn[]>(kMostWaiting);
    gather->open_.reserve(kMostWaiting);
    gather->send_.resize(gather->PartBytes(options.max_rows));
    gather->unwanted_.reset(new std::uint8_t[bytes]);
    gather->destinations_.resize(std::min(kPacked, max_rows));
    gather->written_.resize(static_cast<std::size_t>(options.shape.num_layers));
    absl::StatusOr<LibraryThread> thread =
        LibraryThread::Start("wm-gather", {}, gather, [at = gather.get()] { at->Run(); });
    if (!thread.ok()) return thread.status();
    gather->thread_ = *std::move(thread);
    return gather;
  });
}

void RowGather::Close(bool forked) {
  if (forked) return;  // thread_ is not touched: the thread's share of *this stays
  while (!open_.empty())
    End(StepId(open_.back()->step), Reason::kCapacity);
  closing_.store(true, std::memory_order_release);
  Wake();
  std::unique_lock<std::mutex> lock(mutex_);
  const auto timeout =
      thread_.IsHere() ? std::chrono::nanoseconds(0) : Clamped(options_.teardown_timeout);
  const bool finished = changed_.wait_for(lock, timeout, [&] { return finished_; });
  if (!finished) stop_.store(true, std::memory_order_release);
  if (finished || !calling_) {  // nor will it be
    Wake();
    lock.unlock();
    if (thread_.End()) options_.collective.owner.reset();
    return;
  }
  abandoned_ = true;  // the turns are this thread's from here on
  lock.unlock();
  // The collective may still write the memory of the first turn, which its thread leaves.
  std::uint64_t head = head_.load(std::memory_order_relaxed);
  const std::uint64_t tail = tail_.load(std::memory_order_relaxed);
  const std::uint64_t waiting = tail - head;
  if (Gathered* const memory = turns_[head % kMostWaiting].memory; memory != nullptr) {
    memory->SetReady(0, 0);
  }
  failures_.fetch_add(1, std::memory_order_relaxed);
  for (++head; head != tail; ++head)
    Fail(turns_[head % kMostWaiting]);
  (void)thread_.End(std::chrono::nanoseconds(0));
  options_.log(LogLevel::kError,
               "the gather of rows was given up: collective.all_gather has not returned, and " +
                   std::to_string(waiting) + " steps wait for it");
}

// ---- the engine's thread

WAYMARK_STEP_PATH bool RowGather::Ready() {
  if (failed_.load(std::memory_order_relaxed)) return false;
  if (tail_.load(std::memory_order_relaxed) - head_.load(std::memory_order_acquire) <
      kMostWaiting) {
    return true;
  }
  failed_.store(true, std::memory_order_release);
  return false;
}

WAYMARK_STEP_PATH RowGather::Gathered* RowGather::Take() {
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    Gathered& memory = *steps_[next_];
    next_ = next_ + 1 == steps_.size() ? 0 : next_ + 1;
    if (memory.TryTake()) return &memory;
  }
  return nullptr;
}

void RowGather::GiveBack(Gathered* memory) {
  memory->GiveBack();
}

WAYMARK_STEP_PATH void RowGather::Begin(StepId step, std::uint64_t version, std::int32_t rows,
                                        Gathered* memory) {
  const std::uint64_t tail = tail_.load(std::memory_order_relaxed);
  Turn& turn = turns_[tail % kMostWaiting];
  turn.step = step.value();
  turn.version = version;
  turn.rows = rows;
  turn.memory = memory;
  turn.local = nullptr;
  turn.missing = Reason::kCapacity;
  turn.ended.store(memory == nullptr, std::memory_order_relaxed);
  if (memory != nullptr) open_.push_back(&turn);
  tail_.store(tail + 1, std::memory_order_release);
  if (memory == nullptr) Wake();
}

RowGather::Turn* RowGather::FindOpen(StepId step) const {
  const auto found = std::find_if(open_.begin(), open_.end(),
                                  [step](const Turn* turn) { return turn->step == step.value(); });
  return found == open_.end() ? nullptr : *found;
}

std::int32_t RowGather::OpenRows(StepId step) const {
  const Turn* const turn = FindOpen(step);
  return turn == nullptr ? -1 : turn->rows;
}

WAYMARK_STEP_PATH StepRows* RowGather::Submit(StepId step, StepRows* local) {
  Turn& turn = *FindOpen(step);
  turn.local = local;
  turn.missing = Reason::kNone;
  Gathered* const memory = turn.memory;
  memory->Share(shared_from_this());
  EndTurn(turn);
  return memory;
}

void RowGather::End(StepId step, Reason why) {
  Turn* const turn = FindOpen(step);
  if (turn == nullptr) return;
  turn->memory->GiveBack();
  turn->memory = nullptr;
  turn->missing = why;
  EndTurn(*turn);
}

WAYMARK_STEP_PATH void RowGather::EndTurn(Turn& turn) {
  std::erase(open_, &turn);
  turn.ended.store(true, std::memory_order_release);
  Wake();
}

WAYMARK_STEP_PATH void RowGather::Wake() {
  wakes_.fetch_add(1, std::memory_order_release);
  wakes_.notify_one();
}

absl::Status RowGather::status() const {
  if (!failed_.load(std::memory_order_acquire)) return absl::OkStatus();
  return absl::UnavailableError("the gather of rows has failed: " + std::to_string(kMostWaiting) +
                                " steps waited for collective.all_gather, which is not called any "
                                "more");
}

RowGatherStats RowGather::GetStats() const {
  return {exchanged_.load(std::memory_order_relaxed), failures_.load(std::memory_order_relaxed),
          parts_missing_.load(std::memory_order_relaxed)};
}

// ---- the gather thread

void RowGather::Run() {
  busy_ = std::chrono::steady_clock::now();
  while (Turn* const turn = WaitForTurn()) {
    if (!Exchange(*turn)) {
      options_.collective.owner.reset();
      return;
    }
    busy_ = std::chrono::steady_clock::now();
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  finished_ = true;
  changed_.notify_all();
}

RowGather::Turn* RowGather::WaitForTurn() {
  for (;;) {
    const std::uint32_t seen = wakes_.load(std::memory_order_acquire);
    const bool closing = closing_.load(std::memory_order_acquire);
    const std::uint64_t head = head_.load(std::memory_order_relaxed);
    const bool none = head == tail_.load(std::memory_order_acquire);
    if (none && closing) return nullptr;
    Turn& turn = turns_[head % kMostWaiting];
    if (none || !turn.ended.load(std::memory_order_acquire)) {
      if (std::chrono::steady_clock::now() - busy_ < kAwake) {
        std::this_thread::sleep_for(kNap);
      } else {
        wakes_.wait(seen, std::memory_order_acquire);
      }
      continue;
    }
    if (turn.local == nullptr || stop_.load(std::memory_order_acquire)) return &turn;
    bool ready = true;
    try {
      ready = turn.local->Poll();
    } catch (...) {
      turn.missing = Reason::kNotCaptured;
    }
    if (ready) return &turn;
    std::this_thread::sleep_for(kNap);
  }
}

bool RowGather::Exchange(Turn& turn) {
  if (failed_.load(std::memory_order_acquire) && !std::exchange(logged_failure_, true)) {
    options_.log(LogLevel::kError, std::string(status().message()));
  }
  if (stop_.load(std::memory_order_acquire) || failed_.load(std::memory_order_acquire)) {
    Fail(turn);
    head_.fetch_add(1, std::memory_order_release);
    return true;
  }
  const std::size_t bytes = Pack(turn);
  Gathered* const memory = turn.memory;
  std::uint8_t* const received = memory != nullptr ? memory->received() : unwanted_.get();
  absl::Status status = absl::UnavailableError("collective.all_gather is not called any more");
  bool calls = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    calls = calling_ = !stop_.load(std::memory_order_relaxed);
  }
  if (calls) {
    status = AllGather(options_.collective, "rows of a step", send_.data(), received, bytes);
    const std::lock_guard<std::mutex> lock(mutex_);
    calling_ = false;
    if (abandoned_) {
      if (memory != nullptr) memory->Leave();
      return false;
    }
  }

  std::string problem;
  if (!status.ok()) {
    failures_.fetch_add(1, std::memory_order_relaxed);
    problem = std::string(status.message());
  } else {
    exchanged_.fetch_add(1, std::memory_order_relaxed);
    for (std::int32_t rank = 0; rank < ranks(); ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      const Reason missing = CheckPart(turn, rank, received + at * bytes, problem);
      if (missing != Reason::kNone && rank != options_.collective.rank) {
        parts_missing_.fetch_add(1, std::memory_order_relaxed);
      }
      if (memory != nullptr) memory->SetPart(at, missing);
    }
  }
  if (memory != nullptr) {
    memory->SetReady(status.ok() ? turn.rows : 0, bytes);
    memory->Leave();
  }
  if (!problem.empty() && ++problems_ == next_problem_) {
    next_problem_ *= 10;
    options_.log(LogLevel::kWarning, "rows of step " + std::to_string(turn.step) +
                                         " were not gathered (problem " +
                                         std::to_string(problems_) + "): " + problem);
  }
  head_.fetch_add(1, std::memory_order_release);
  return true;
}

std::size_t RowGather::Pack(Turn& turn) {
  const std::size_t bytes = PartBytes(turn.rows);
  std::uint8_t* const verdicts = send_.data() + sizeof(Header);
  std::memset(verdicts, 0, bytes - sizeof(Header));
  if (turn.local != nullptr) {
    if (turn.missing == Reason::kNone) {
      turn.missing = PackRows(turn, verdicts, verdicts + turn.rows);
    }
    (void)Guarded("StepRows::Done", [&] {
      turn.local->Done();
      return absl::OkStatus();
    });
    turn.local = nullptr;
  }
  Header header;
  header.step = turn.step;
  header.version = turn.version;
  header.rank = options_.collective.rank;
  header.ranks = ranks();
  header.rows = turn.rows;
  header.num_layers = options_.shape.num_layers;
  header.top_k = options_.shape.top_k;
  header.num_experts = options_.shape.num_experts;
  header.missing = static_cast<std::uint32_t>(turn.missing);
  header.rows_check = XXH3_64bits(verdicts, bytes - sizeof(Header));
  header.check = header.Check();
  std::memcpy(send_.data(), &header, sizeof(Header));
  return bytes;
}

Reason RowGather::PackRows(Turn& turn, std::uint8_t* verdicts, std::uint8_t* rows) {
  static_assert(sizeof(Reason) == 1);
  const std::size_t of_id = row_bytes_ / written_.size();
  try {
    const auto count = static_cast<std::size_t>(turn.rows);
    for (std::size_t first = 0; first < count; first += kPacked) {
      const std::size_t chunk = std::min(kPacked, count - first);
      for (std::size_t i = 0; i < chunk; ++i)
        destinations_[i] = rows + (first + i) * row_bytes_;
      const std::span<Reason> judged(reinterpret_cast<Reason*>(verdicts + first), chunk);
      turn.local->Land(static_cast<std::uint32_t>(first), {destinations_.data(), chunk}, judged);
      for (std::size_t i = 0; i < chunk; ++i) {
        if (judged[i] != Reason::kNotCaptured) continue;
        // For the audit of the other ranks: what was written of the row, and -1 elsewhere.
        if (!turn.local->LandLayers(static_cast<std::uint32_t>(first + i), destinations_[i],
                                    written_)) {
          std::fill(written_.begin(), written_.end(), std::uint8_t{0});
        }
        for (std::size_t layer = 0; layer < written_.size(); ++layer) {
          if (written_[layer] == 0) std::memset(destinations_[i] + layer * of_id, 0xff, of_id);
        }
      }
    }
    return Reason::kNone;
  } catch (...) {
    return Reason::kNotCaptured;
  }
}

Reason RowGather::CheckPart(const Turn& turn, std::int32_t rank, const std::uint8_t* at,
                            std::string& problem) const {
  Header header;
  std::memcpy(&header, at, sizeof(Header));
  const auto differs = [&](const char* field, auto here, auto there) {
    if (here == there) return false;
    problem = "rank " + std::to_string(rank) + ": " + field + " must be " + std::to_string(here) +
              "; it is " + std::to_string(there);
    return true;
  };
  if (header.magic != kPartMagic || header.check != header.Check()) {
    problem = "rank " + std::to_string(rank) + ": its header is not what it sent";
    return Reason::kNotCaptured;
  }
  if (differs("rank", rank, header.rank) || differs("ranks", ranks(), header.ranks) ||
      differs("step", turn.step, header.step) || differs("version", turn.version, header.version) ||
      differs("rows", turn.rows, header.rows) ||
      differs("num_layers", options_.shape.num_layers, header.num_layers) ||
      differs("top_k", options_.shape.top_k, header.top_k) ||
      differs("num_experts", options_.shape.num_experts, header.num_experts)) {
    return Reason::kNotCaptured;
  }
  if (header.missing >= kNumStoreReasons) return Reason::kNotCaptured;
  if (header.missing != 0) return static_cast<Reason>(header.missing);
  if (header.rows_check !=
      XXH3_64bits(at + sizeof(Header), PartBytes(turn.rows) - sizeof(Header))) {
    problem = "rank " + std::to_string(rank) + ": its rows are not what it sent";
    return Reason::kNotCaptured;
  }
  return Reason::kNone;
}

void RowGather::Fail(Turn& turn) {
  if (turn.local != nullptr) {
    (void)Guarded("StepRows::Done", [&] {
      if (!turn.local->Poll()) turn.local->GiveUp();
      turn.local->Done();
      return absl::OkStatus();
    });
    turn.local = nullptr;
  }
  failures_.fetch_add(1, std::memory_order_relaxed);
  if (turn.memory == nullptr) return;
  turn.memory->SetReady(0, 0);
  turn.memory->Leave();
}

}  // namespace waymark
