// ContractEngine: the smallest engine there is, to put a transport through its contract.
#ifndef WAYMARK_TESTS_CONTRACT_CONTRACT_ENGINE_H_
#define WAYMARK_TESTS_CONTRACT_CONTRACT_ENGINE_H_

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "blockstore/log.h"
#include "plugin/capture/capture_session.h"

namespace waymark {

// A StepBatch that owns its arrays.
struct OwnedStepBatch {
  std::uint64_t step = 0;
  std::vector<Event> events;
  std::vector<std::int64_t> slots;

  [[nodiscard]] StepBatch view() const {
    return {.step = step,
            .events = events.data(),
            .num_events = events.size(),
            .slots = slots.data(),
            .num_slots = slots.size()};
  }
};

struct EngineOptions {
  Landing landing = Landing::kCaller;
  std::int32_t max_rows = 64;
  std::int32_t num_buffers = 4;
  std::int32_t num_experts = 64;
  std::int32_t num_blocks = 4096;
  std::uint32_t max_steps_in_flight = 16;
  LogCallback log = {};  // of the store and of its sessions
  std::chrono::nanoseconds teardown_timeout = StoreOptions().teardown_timeout;
};

// What store and session of `Traits` are: the library's own, unless Traits say otherwise with a
// store, a session and a snapshot that have the same functions (tests/abi/abi_session.h).
template <class Traits>
struct EngineTypes {
  using Store = RoutingStore;
  using Session = CaptureSession;
  static auto MakeStore(const StoreOptions& options) { return RoutingStore::Create(options); }
  static auto MakeSession(RoutingStore& store, CaptureOptions options) {
    options.store = &store;
    return CaptureSession::Create(options);
  }
};
template <class Traits>
requires requires {
  typename Traits::Types;
}
struct EngineTypes<Traits> : Traits::Types {};

// Where forwards and tensors are in the host's memory: the part of Traits (below) that says so.
struct InHostMemory {
  static void Write(const CaptureView& view, std::int32_t layer, std::int32_t first_row,
                    const std::int16_t* ids, std::int32_t rows) {
    if (rows == 0) return;
    std::memcpy(view.layer(layer) + static_cast<std::ptrdiff_t>(first_row) * view.top_k, ids,
                static_cast<std::size_t>(rows) * static_cast<std::size_t>(view.top_k) *
                    sizeof(std::int16_t));
  }
  class Array {
   public:
    explicit Array(std::vector<std::uint8_t> bytes) : bytes_(std::move(bytes)) {}
    [[nodiscard]] const void* data() const { return bytes_.data(); }

   private:
    std::vector<std::uint8_t> bytes_;
  };
};

// Gives every step blocks of its own, writes ids that say where they belong, and reads them back.
// `Traits`: how a transport is made, and how a test gets ids to where its forwards and tensors are:
//   static TransportFactory Factory();
//   static void Write(const CaptureView&, layer, first_row, const int16* ids, rows);
//   class Array { explicit Array(std::vector<uint8_t>); const void* data(); }  // a tensor's memory
template <class Traits>
class ContractEngine {
 public:
  using Types = EngineTypes<Traits>;
  using Store = typename Types::Store;
  using Session = typename Types::Session;
  static constexpr std::int32_t kLayers = 5;
  static constexpr std::int32_t kTopK = 4;
  static constexpr std::int32_t kPage = 8;

  explicit ContractEngine(const EngineOptions& options = {}) : options_(options) {
    StoreOptions of_store;
    of_store.shape = {.num_layers = kLayers,
                      .top_k = kTopK,
                      .num_experts = options.num_experts,
                      .page_tokens = kPage,
                      .layer_ids = {1, 2, 4, 7, 11}};
    of_store.num_blocks = options.num_blocks;
    of_store.max_steps_in_flight = options.max_steps_in_flight;
    of_store.max_step_rows = 1024;
    of_store.landing = options.landing;
    of_store.log = options.log;
    of_store.teardown_timeout = options.teardown_timeout;
    store = Types::MakeStore(of_store).value();
    session = MakeSession();
  }
  ~ContractEngine() {
    session.reset();
    store.reset();
  }

  std::unique_ptr<Session> MakeSession() {
    CaptureOptions of_session;
    of_session.max_rows = options_.max_rows;
    of_session.num_buffers = options_.num_buffers;
    of_session.transport = Traits::Factory();
    of_session.log = options_.log;
    auto made = Types::MakeSession(*store, of_session).value();
    for (std::int32_t layer = 0; layer < kLayers; ++layer)
      EXPECT_TRUE(made->BindLayer(layer, ModuleName(layer)).ok());
    return made;
  }

  static std::string ModuleName(std::int32_t layer) {
    return "model.block" + std::to_string(layer) + ".gate";
  }

  // Of all layers.
  [[nodiscard]] std::uint64_t SilentRows() const {
    std::uint64_t rows = 0;
    for (const LayerStats& layer : session->GetStats().layers)
      rows += layer.rows_silent;
    return rows;
  }

  // The id that belongs at (step, row, layer, k); distinct within a layer.
  [[nodiscard]] std::int16_t Id(std::uint64_t step, std::int32_t row, std::int32_t layer,
                                std::int32_t k) const {
    const auto mixed = step * 41 + static_cast<std::uint64_t>(row) * 13 +
                       static_cast<std::uint64_t>(layer) * 7 + static_cast<std::uint64_t>(k) * 3;
    return static_cast<std::int16_t>(mixed % static_cast<std::uint64_t>(options_.num_experts));
  }
  // [layers, rows, k], or [rows, layers, k].
  [[nodiscard]] std::vector<std::int16_t> Ids(std::uint64_t step, std::int32_t rows,
                                              bool token_major = false) const {
    std::vector<std::int16_t> ids(static_cast<std::size_t>(rows * kLayers * kTopK));
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      for (std::int32_t row = 0; row < rows; ++row) {
        for (std::int32_t k = 0; k < kTopK; ++k) {
          const std::int32_t at =
              token_major ? (row * kLayers + layer) * kTopK + k : (layer * rows + row) * kTopK + k;
          ids[static_cast<std::size_t>(at)] = Id(step, row, layer, k);
        }
      }
    }
    return ids;
  }

  // Begins `step` with `rows` rows in new blocks (bound by it).
  StepCode Begin(Session& with, std::uint64_t step, std::int32_t rows,
                 std::int32_t written_rows = 0) {
    Prepare(step, rows);
    return with.BeginStep(batch_.view(), written_rows);
  }
  StepCode Begin(std::uint64_t step, std::int32_t rows, std::int32_t written_rows = 0) {
    return Begin(*session, step, rows, written_rows);
  }
  // As Begin, in the blocks of `other_step`, which stay bound: the same rows run again. `sealed`:
  // the blocks were sealed with `other_step`.
  StepCode BeginAgain(std::uint64_t step, std::uint64_t other_step, std::int32_t rows,
                      bool sealed = false) {
    blocks_[step] = blocks_.at(other_step);
    batch_ = {};
    batch_.step = step;
    for (const BlockId block : blocks_[step]) {
      if (sealed) batch_.events.push_back(Event::Seal(block, BlockKey(), StepId(other_step)));
    }
    batch_.slots = SlotsOf(step, rows);
    return session->BeginStep(batch_.view());
  }
  StepCode BeginIds(std::uint64_t step, std::int32_t rows) {
    Prepare(step, rows);
    return session->BeginIdsStep(batch_.view());
  }

  // What the forward of `step` does: rows [0, rows) of every layer but `silent_layer`.
  void Forward(const CaptureView& view, std::uint64_t step, std::int32_t rows,
               std::int32_t silent_layer = -1) const {
    const std::vector<std::int16_t> ids = Ids(step, rows);
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      if (layer == silent_layer) continue;
      Traits::Write(view, layer, 0, ids.data() + static_cast<std::ptrdiff_t>(layer) * rows * kTopK,
                    rows);
    }
  }
  void Forward(std::uint64_t step, std::int32_t rows, std::int32_t silent_layer = -1) {
    Forward(session->view(StepId(step)), step, rows, silent_layer);
  }

  // Begin and Forward.
  void Start(std::uint64_t step, std::int32_t rows, std::int32_t silent_layer = -1) {
    ASSERT_TRUE(Begin(step, rows).ok());
    Forward(step, rows, silent_layer);
  }
  // Begin, Forward and Submit. `written_rows`: of the forward, if they are more than `rows`.
  void Run(std::uint64_t step, std::int32_t rows, std::int32_t silent_layer = -1,
           std::int32_t written_rows = 0) {
    ASSERT_TRUE(Begin(step, rows, written_rows).ok());
    Forward(step, written_rows == 0 ? rows : written_rows, silent_layer);
    ASSERT_TRUE(session->Submit(StepId(step)).ok());
  }

  // Lands what was submitted.
  void Settle() {
    if (options_.landing == Landing::kCaller) {
      while (store->LandOne()) {
      }
    }
  }

  // Waits until every step has ended and every buffer is free: a step counts as ended a moment
  // before its rows are done.
  void SettleAndAwaitBuffers() {
    Settle();
    EXPECT_TRUE(store->WaitIdle(std::chrono::seconds(20)).ok());
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (session->transport().in_use() != 0) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "a buffer does not come back";
      std::this_thread::yield();
    }
  }

  // The rows that `step` claimed. Lands first.
  Rows Read(std::uint64_t step, std::int32_t rows) {
    Settle();
    const Snapshot snapshot = store->TakeSnapshot(blocks_.at(step), 0, rows).value();
    EXPECT_TRUE(snapshot.Wait(std::chrono::seconds(20)).ok());
    return snapshot.ReadRows().value();
  }

  // Row `row` of `read` is what `step` routed.
  ::testing::AssertionResult IsRow(const Rows& read, std::uint64_t step, std::int32_t row) const {
    const RowInfo& info = read.infos[static_cast<std::size_t>(row)];
    if (!info.valid()) {
      return ::testing::AssertionFailure()
             << "step " << step << ", row " << row
             << " is missing: " << std::string(ReasonName(info.reason));
    }
    if (info.step != step) {
      return ::testing::AssertionFailure() << "row " << row << " is of step " << info.step;
    }
    const std::size_t id_bytes = read.shape.id_bytes();
    for (std::int32_t i = 0; i < kLayers * kTopK; ++i) {
      std::uint16_t id = 0;
      std::memcpy(&id, read.row(row).data() + static_cast<std::size_t>(i) * id_bytes, id_bytes);
      if (id != Id(step, row, i / kTopK, i % kTopK)) {
        return ::testing::AssertionFailure()
               << "step " << step << ", row " << row << ", layer " << i / kTopK << ", k "
               << i % kTopK << ": id " << id << ", not " << Id(step, row, i / kTopK, i % kTopK);
      }
    }
    return ::testing::AssertionSuccess();
  }
  // Of the rows of `step`, those for which `there` holds are right, and others missing for `reason`.
  template <class There>
  void ExpectRowsWhere(std::uint64_t step, std::int32_t rows, Reason reason, There there) {
    const Rows read = Read(step, rows);
    for (std::int32_t row = 0; row < rows; ++row) {
      if (there(row)) {
        ASSERT_TRUE(IsRow(read, step, row));
      } else {
        ASSERT_EQ(ReasonName(read.infos[static_cast<std::size_t>(row)].reason), ReasonName(reason))
            << "step " << step << ", row " << row;
      }
    }
  }
  void ExpectRows(std::uint64_t step, std::int32_t rows) {
    ExpectRowsWhere(step, rows, Reason::kNone, [](std::int32_t) { return true; });
  }
  void ExpectMissing(std::uint64_t step, std::int32_t rows, Reason reason) {
    ExpectRowsWhere(step, rows, reason, [](std::int32_t) { return false; });
  }

  [[nodiscard]] const OwnedStepBatch& batch() const { return batch_; }
  [[nodiscard]] const std::vector<BlockId>& blocks(std::uint64_t step) const {
    return blocks_.at(step);
  }
  // Makes the batch of `step` without beginning it.
  void Prepare(std::uint64_t step, std::int32_t rows) {
    std::vector<BlockId>& blocks = blocks_[step];
    batch_ = {};
    batch_.step = step;
    for (std::int32_t row = 0; row < rows; row += kPage) {
      blocks.push_back(BlockId(next_block_++ % options_.num_blocks));
      batch_.events.push_back(Event::Bind(blocks.back()));
    }
    batch_.slots = SlotsOf(step, rows);
  }

  std::unique_ptr<Store> store;
  std::unique_ptr<Session> session;

 private:
  [[nodiscard]] std::vector<std::int64_t> SlotsOf(std::uint64_t step, std::int32_t rows) const {
    std::vector<std::int64_t> slots;
    for (std::int32_t row = 0; row < rows; ++row) {
      const std::int64_t block = blocks_.at(step)[static_cast<std::size_t>(row / kPage)].value();
      slots.push_back(block * kPage + row % kPage);
    }
    return slots;
  }

  const EngineOptions options_;
  std::int32_t next_block_ = 0;
  OwnedStepBatch batch_;
  std::unordered_map<std::uint64_t, std::vector<BlockId>> blocks_;
};

}  // namespace waymark

#endif  // WAYMARK_TESTS_CONTRACT_CONTRACT_ENGINE_H_
