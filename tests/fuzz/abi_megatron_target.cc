// The table of an engine like Megatron. The bytes choose its calls and their arguments, one after
// another, around the steps of a session; pointers are good, null, or of another object, numbers
// are anything. A model of the blocks says what each snapshot that is taken may contain.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "adapters/megatron/waymark_megatron.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/input_bytes.h"

namespace waymark::fuzz {
namespace {

constexpr std::int32_t kBlocks = 8;
constexpr std::int32_t kBlockTokens = 4;
constexpr std::int32_t kDummy = 7;
constexpr std::int32_t kLayers = 2;
constexpr std::int32_t kTopK = 2;
constexpr std::int32_t kExperts = 300;
constexpr std::size_t kMostTokens = 16;  // of a step
constexpr std::size_t kMostOpen = 6;     // steps that have not landed

const wm_api_v1& Api() {
  return *wm_get_api_v1();
}
const wm_megatron_api_v1& Megatron() {
  return *wm_get_megatron_api_v1();
}

// Row `row` of batch `batch` has these ids, which no other row of an input has.
struct Writer {
  std::size_t batch = 0;
  std::size_t row = 0;
  friend bool operator==(const Writer&, const Writer&) = default;

  [[nodiscard]] std::int32_t Id(std::int32_t layer, std::int32_t k) const {
    const std::size_t number = batch * kMostTokens + row;
    const std::size_t part =
        (k == 0 ? number % 150 : number / 150) + 7u * static_cast<unsigned>(layer);
    return static_cast<std::int32_t>(part % 150) + 150 * k;
  }
};

enum class End { kOpen, kSubmitted, kLanded, kDropped, kCancelled };
enum class Fault { kNone, kOutOfRange, kTwice, kSilent };

// A step that was begun.
struct Batch {
  std::uint64_t step = 0;
  std::size_t rows = 0;
  std::vector<bool> asked;
  std::vector<Fault> faults;
  std::vector<std::int32_t> ids;  // [rows][layers][K], as they were handed over
  End end = End::kOpen;
};

// A row of a block, in its present life.
struct Row {
  std::vector<Writer> writers;  // in the order of their steps
  std::size_t first = 0;  // of them that it may have; the last one, unless the row was protected
  bool sealed = false;
  bool reset = false;  // since the block was allocated last
  // Some row of the block did not ask. Without a page that is told of all rows up to it.
  bool not_asked = false;
};

// What a snapshot may contain.
struct Expected {
  wm_snapshot* snapshot = nullptr;  // once it was taken
  std::vector<Row> rows;
  std::size_t batches = 0;  // that were begun before it
};

class World {
 public:
  explicit World(Bytes bytes) : bytes_(bytes) {
    wm_store_options options = {};
    options.struct_size = sizeof(options);
    options.flags = WM_STORE_NO_AUDIT;
    options.num_layers = kLayers;
    options.top_k = kTopK;
    options.num_experts = kExperts;
    options.num_blocks = kBlocks;
    options.page_tokens = bytes_.Once(2) ? kBlockTokens : kBlockTokens / 2;
    options.block_tokens = kBlockTokens;
    options.null_blocks = &kDummy;
    options.num_null_blocks = 1;
    options.num_pages = 1024;  // nothing is missing for want of pages
    options.max_step_rows = 64;
    options.log_bytes = 64 << 10;
    options.landing = WM_LANDING_CALLER;
    options.key_seed = 1;
    Good(Api().store_create(&options, &store_, nullptr));
    wm_session_options of_session = {};
    of_session.struct_size = sizeof(of_session);
    of_session.store = store_;
    of_session.max_rows = kMostTokens;
    Good(Api().session_create(&of_session, &session_, nullptr));
    wm_megatron_options of_adapter = {};
    of_adapter.struct_size = sizeof(of_adapter);
    of_adapter.store = store_;
    of_adapter.dummy_block = kDummy;
    Good(Megatron().adapter_create(&of_adapter, &adapter_, nullptr));
  }
  ~World() {
    // Half of the inputs end without the end of their steps.
    const bool settle = bytes_.Once(2);
    if (settle) {
      TakeAll();
      Settle();
      while (!taken_.empty())
        Read();
    }
    for (const Expected& taken : taken_)
      Api().snapshot_release(taken.snapshot);
    const bool store_first = bytes_.Once(2);
    if (store_first) Api().store_release(store_);
    Megatron().adapter_release(adapter_);
    Api().session_release(session_);
    if (!store_first) Api().store_release(store_);
    Require(done_ == asked_, "the ids of every step are given back once");
  }

  void Run() {
    for (int calls = 0; calls < 400 && !bytes_.empty(); ++calls)
      Call();
  }

 private:
  static void Good(wm_status status) { Require(status == WM_OK, "a right call is accepted"); }

  // A status of a call with a text. `right`: whether its arguments were, and so it must be OK.
  bool Is(wm_status status, bool right) {
    Require(status == WM_OK || status == WM_INVALID_ARGUMENT || status == WM_OUT_OF_RANGE,
            "a refusal is that of an argument");
    Require((status == WM_OK) == right, "right arguments are accepted, and no others");
    Require(status == WM_OK || why_.size > 0, "a refusal says why");
    return right;
  }
  wm_message* Why() {
    why_ = {text_, sizeof(text_), 0};
    return &why_;
  }
  // As a rule the adapter; now and then null or another object, and `right` is false.
  wm_megatron_adapter* Adapter(bool& right) {
    const std::uint32_t which = bytes_.Below(64);
    if (which > 1) return adapter_;
    right = false;
    return which == 0 ? nullptr : reinterpret_cast<wm_megatron_adapter*>(store_);
  }
  template <class T>
  T* OrNull(T* pointer, bool& right) {
    if (!bytes_.Once(48)) return pointer;
    right = false;
    return nullptr;
  }
  static bool IsNull(std::int64_t block) { return block < 0 || block == kDummy; }
  static bool IsBlock(std::int64_t block) { return block < kBlocks; }  // null ones, too

  std::int32_t BlockOf() {
    return bytes_.Once(24) ? bytes_.Small() : static_cast<std::int32_t>(bytes_.Below(kBlocks));
  }
  std::vector<std::int32_t> BlocksOf() {
    if (!bytes_.Once(16)) {
      std::vector<std::int32_t> blocks(bytes_.Below(6));
      for (std::int32_t& block : blocks)
        block = BlockOf();
      return blocks;
    }
    // More than one record of the log has, and the last one may be wrong.
    std::vector<std::int32_t> blocks(60 + bytes_.Below(10));
    for (std::size_t i = 0; i < blocks.size(); ++i)
      blocks[i] = static_cast<std::int32_t>(i % kBlocks);
    blocks.back() = bytes_.Once(2) ? kBlocks : BlockOf();
    return blocks;
  }
  // The number that is told of `size` elements; absurd now and then, which is refused.
  std::size_t CountOf(std::size_t size, bool& right) {
    if (!bytes_.Once(64)) return size;
    right = false;
    return bytes_.Once(2) ? ~std::size_t{0} : std::size_t{1} << 31;
  }

  // ---- the model

  // A new life; after a reset absent rows keep the reason that they had.
  void Clear(std::int32_t block, bool reset = false) {
    if (IsNull(block)) return;
    const bool not_asked = reset && of_block(block).rows[0].not_asked;
    of_block(block) = {};
    for (Row& row : of_block(block).rows)
      row.reset = reset, row.not_asked = not_asked;
  }
  struct Block {
    Row rows[kBlockTokens];
    bool sealed = false;      // by a step that has begun
    bool registered = false;  // for the step that is begun next
  };
  Block& of_block(std::int64_t block) { return blocks_[block]; }

  // The rows of a step that was begun.
  void Write(const Batch& batch, std::size_t index, const std::int64_t* blocks,
             const std::int32_t* positions) {
    // Of the rows with one slot the first counts; of those that did ask, if there is one.
    std::map<std::pair<std::int64_t, std::int32_t>, std::size_t> rows;
    for (const bool asked : {true, false}) {
      for (std::size_t row = 0; row < batch.rows; ++row) {
        if (batch.asked[row] == asked && !IsNull(blocks[row]))
          rows.emplace(std::pair(blocks[row], positions[row]), row);
      }
    }
    for (std::size_t row = 0; row < batch.rows; ++row) {
      if (batch.asked[row] || IsNull(blocks[row])) continue;
      for (Row& of : of_block(blocks[row]).rows)
        of.not_asked = true;
    }
    for (const auto& [slot, row] : rows) {
      Block& block = of_block(slot.first);
      Row& of = block.rows[slot.second];
      if (!block.sealed) of.first = of.writers.size();
      of.writers.push_back({index, row});
    }
    for (Block& block : blocks_) {
      block.sealed = block.sealed || block.registered;
      block.registered = false;
      for (Row& row : block.rows)
        row.sealed = block.sealed;
    }
  }

  // Whether a row may be so, a reason or WM_REASON_NONE, after the first `count` of its writers.
  [[nodiscard]] bool MayBe(const Row& row, std::size_t count, std::uint8_t reason) const {
    if (count == 0) {
      return reason == WM_REASON_NEVER_WRITTEN || (row.reset && reason == WM_REASON_CAPACITY) ||
             (row.not_asked && reason == WM_REASON_NOT_CAPTURED);
    }
    const Writer& writer = row.writers[count - 1];
    const Batch& batch = batches_[writer.batch];
    if (batch.end == End::kCancelled) return MayBe(row, count - 1, reason);  // it has no effect
    const bool before = reason != WM_REASON_NONE && MayBe(row, count - 1, reason);
    if (batch.end == End::kDropped && reason == WM_REASON_CAPACITY) return true;
    // Where there is no page, nothing tells that a row was computed which nobody asked for.
    if (!batch.asked[writer.row]) return reason == WM_REASON_NOT_CAPTURED || before;
    if (batch.end == End::kDropped) return false;
    switch (batch.faults[writer.row]) {
      case Fault::kNone:
        return reason == WM_REASON_NONE;
      case Fault::kSilent:
        return reason == WM_REASON_NOT_CAPTURED;
      default:
        return reason == WM_REASON_INVALID_ID;
    }
  }

  [[nodiscard]] bool Ended(const Expected& of) const {
    return std::all_of(batches_.begin(), batches_.begin() + static_cast<std::ptrdiff_t>(of.batches),
                       [](const Batch& batch) { return batch.end >= End::kLanded; });
  }

  // REQUIRES: Ended(of).
  void Check(const Expected& of) {
    const std::size_t count = of.rows.size();
    std::int64_t first = -1, last = -1;
    Good(Api().snapshot_range(of.snapshot, &first, &last));
    Require(first == 0 && last == static_cast<std::int64_t>(count), "it has the rows asked for");
    Good(Api().snapshot_ready(of.snapshot));
    std::vector<std::int32_t> ids(count * kLayers * kTopK + 1);
    std::vector<wm_row_info> infos(count + 1);
    wm_read_args args = {};
    args.struct_size = sizeof(args);
    args.end = last;
    args.id_type = WM_ID_INT32;
    args.out = ids.data();
    args.out_bytes = count * kLayers * kTopK * sizeof(ids[0]);
    args.infos = infos.data();
    args.num_infos = count;
    Good(Api().snapshot_read(of.snapshot, &args, Why()));
    for (std::size_t i = 0; i < count; ++i) {
      const Row& row = of.rows[i];
      const std::uint8_t reason = infos[i].reason;
      const std::int32_t* const read = ids.data() + i * kLayers * kTopK;
      if (reason != WM_REASON_NONE) {
        Require(row.sealed || MayBe(row, row.writers.size(), reason),
                "a row is missing for the reason that it has");
        continue;
      }
      std::size_t from = row.first;
      while (from > 0 && batches_[row.writers[from].batch].end == End::kCancelled)
        --from;
      bool written = false;
      for (std::size_t n = from + 1; n <= row.writers.size() && !written; ++n) {
        const Writer& writer = row.writers[n - 1];
        written = MayBe(row, n, reason) && infos[i].step == batches_[writer.batch].step;
        for (std::int32_t at = 0; at < kLayers * kTopK; ++at)
          written = written && read[at] == writer.Id(at / kTopK, at % kTopK);
      }
      Require(written, "a valid row was written there, in this life of its block");
    }
  }

  // ---- steps

  void Begin() {
    std::int64_t blocks[kMostTokens];
    std::int32_t positions[kMostTokens];
    std::uint8_t asked[kMostTokens];
    const std::size_t count = bytes_.Below(kMostTokens + 1);
    bool right = true;   // of batch
    bool begins = true;  // of begin
    for (std::size_t i = 0; i < count; ++i) {
      blocks[i] = bytes_.Once(48) ? bytes_.Number() : bytes_.Below(kBlocks);
      positions[i] =
          bytes_.Once(48) ? bytes_.Small() : static_cast<std::int32_t>(bytes_.Below(kBlockTokens));
      asked[i] = static_cast<std::uint8_t>(!bytes_.Once(8));
      const bool inside = positions[i] >= 0 && positions[i] < kBlockTokens;
      if (blocks[i] >= 0) begins = begins && IsBlock(blocks[i]) && inside;
    }
    wm_megatron_tokens tokens = {};
    tokens.struct_size = bytes_.Size(sizeof(tokens));
    const bool has_asked = tokens.struct_size >= sizeof(tokens) && bytes_.Once(2);
    constexpr std::uint32_t kLeast = offsetof(wm_megatron_tokens, asked);
    right = right && tokens.struct_size >= kLeast && tokens.struct_size <= 65536;
    tokens.reserved = bytes_.Once(64) ? 1 : 0;
    right = right && tokens.reserved == 0;
    tokens.active_tokens = CountOf(count, right);
    bool lent = true;
    tokens.token_to_block_idx = OrNull(blocks, lent);
    tokens.token_to_local_position_within_kv_block = OrNull(positions, lent);
    if (has_asked) tokens.asked = asked;
    right = right && (lent || count == 0);
    wm_step_batch batch = {};
    batch.struct_size = sizeof(batch);
    if (bytes_.Once(48)) batch.struct_size = bytes_.Below(sizeof(batch));
    right = right && batch.struct_size == sizeof(batch);
    const std::uint64_t last = batches_.empty() ? 0 : batches_.back().step;
    // Not far ahead: there stamps get a new base, and rows are missing for that.
    const std::uint64_t step = !bytes_.Once(24) ? last + 1
                               : bytes_.Once(2)
                                   ? last + 1 + bytes_.Byte()
                                   : last - std::min<std::uint64_t>(last, bytes_.Byte());
    begins = begins && step > last;
    const std::uint64_t version = 1 + bytes_.Below(16) / 14;
    wm_megatron_adapter* const adapter = Adapter(right);
    const wm_status made =
        Megatron().batch(adapter, step, version, OrNull(&tokens, right), &batch, Why());
    // A struct that ends before the batch does may be filled, and is of no further use.
    if (batch.struct_size != sizeof(batch)) return;
    if (!Is(made, right)) return;
    if (Open() == kMostOpen) return;
    wm_code code = {};
    const wm_status begun = Api().session_begin_ids_step(session_, &batch, &code);
    if (begun != WM_OK) {
      Require(begun == WM_INVALID_ARGUMENT || begun == WM_FAILED_PRECONDITION ||
                  begun == WM_OUT_OF_RANGE,
              "a refused step is refused for its arguments");
      Require(!begins, "a right step begins");
      return;
    }
    Require(begins, "a wrong step does not begin");
    Batch made_of;
    made_of.step = step;
    made_of.rows = count;
    for (std::size_t i = 0; i < count; ++i) {
      made_of.asked.push_back(!has_asked || asked[i] != 0);
      made_of.faults.push_back(bytes_.Once(16) ? static_cast<Fault>(1 + bytes_.Below(3))
                                               : Fault::kNone);
    }
    batches_.push_back(std::move(made_of));
    Write(batches_.back(), batches_.size() - 1, blocks, positions);
  }

  [[nodiscard]] std::size_t Open() const {
    return static_cast<std::size_t>(
        std::count_if(batches_.begin(), batches_.end(),
                      [](const Batch& batch) { return batch.end < End::kLanded; }));
  }

  void EndOne(std::size_t index) {
    Batch& batch = batches_[index];
    if (batch.end == End::kSubmitted) {
      for (std::size_t before = 0; before < index; ++before) {
        while (batches_[before].end < End::kLanded)
          EndOne(before);
      }
      Good(Api().store_land(store_, batch.step));
      batch.end = End::kLanded;
      return;
    }
    if (batch.end != End::kOpen) return;
    wm_code code = {};
    const std::uint32_t how = bytes_.Below(16);
    if (how == 0) {
      Good(Api().session_drop(session_, batch.step, &code));
      batch.end = End::kDropped;
      return;
    }
    if (how == 1) {
      Good(Api().session_cancel(session_, batch.step, &code));
      batch.end = End::kCancelled;
      return;
    }
    Submit(batch, index);
  }

  void Submit(Batch& batch, std::size_t index) {
    batch.ids.clear();
    for (std::size_t row = 0; row < batch.rows; ++row) {
      for (std::int32_t at = 0; at < kLayers * kTopK; ++at)
        batch.ids.push_back(Writer{index, row}.Id(at / kTopK, at % kTopK));
      std::int32_t& last = batch.ids.back();
      if (batch.faults[row] == Fault::kOutOfRange) last = kExperts;
      if (batch.faults[row] == Fault::kTwice) last = *(batch.ids.end() - 2);
      // Of one layer both.
      if (batch.faults[row] == Fault::kSilent) last = *(batch.ids.end() - 2) = -1;
    }
    wm_ids ids = {};
    ids.struct_size = sizeof(ids);
    ids.type = WM_ID_INT32;
    ids.data = batch.ids.data();
    ids.rows = static_cast<std::int32_t>(batch.rows);
    ids.columns = kTopK;
    ids.row_stride = kLayers * kTopK * std::ptrdiff_t{sizeof(std::int32_t)};
    ids.k_stride = sizeof(std::int32_t);
    ids.layers = kLayers;
    ids.layer_stride = kTopK * std::ptrdiff_t{sizeof(std::int32_t)};
    wm_code code = {};
    ++asked_;
    Good(Api().session_submit_ids(session_, batch.step, &ids,
                                  {[](void* done) { ++*static_cast<int*>(done); }, &done_}, &code));
    batch.end = End::kSubmitted;
  }

  void Settle() {
    for (std::size_t index = 0; index < batches_.size(); ++index) {
      while (batches_[index].end < End::kLanded)
        EndOne(index);
    }
  }

  // ---- requests

  void TakeAll() {
    for (auto& [request, kept] : kept_) {
      for (Expected& of : kept) {
        Good(Megatron().take(adapter_, request, &of.snapshot, Why()));
        taken_.push_back(std::move(of));
      }
      wm_snapshot* none = nullptr;
      Require(Megatron().take(adapter_, request, &none, Why()) == WM_NOT_FOUND && none == nullptr,
              "no more snapshots are kept than were taken");
    }
    kept_.clear();
  }

  void Checkpoint(std::uint64_t request) {
    const std::vector<std::int32_t> blocks = BlocksOf();
    bool right = true;
    wm_megatron_adapter* const adapter = Adapter(right);
    const std::size_t count = CountOf(blocks.size(), right);
    const auto room = static_cast<std::int64_t>(blocks.size()) * kBlockTokens;
    const std::int64_t rows = bytes_.Once(24)  ? bytes_.Number()
                              : bytes_.Once(4) ? room
                                               : bytes_.Below(static_cast<std::uint32_t>(room) + 1);
    right = right && rows >= 0 && rows <= room;
    for (std::int64_t row = 0; row < rows && right; row += kBlockTokens)
      right = IsBlock(blocks[static_cast<std::size_t>(row / kBlockTokens)]);
    if (!Is(Megatron().checkpoint(adapter, request, blocks.data(), count, rows, Why()), right))
      return;
    Expected of;
    of.batches = batches_.size();
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int32_t block = blocks[static_cast<std::size_t>(row / kBlockTokens)];
      of.rows.push_back(IsNull(block) ? Row{} : of_block(block).rows[row % kBlockTokens]);
    }
    kept_[request].push_back(std::move(of));
    ++num_kept_;
  }

  void Take(std::uint64_t request) {
    const auto found = kept_.find(request);
    wm_snapshot* snapshot = nullptr;
    const wm_status status = Megatron().take(adapter_, request, &snapshot, Why());
    Require(
        (status == WM_OK) == (found != kept_.end()) && (snapshot != nullptr) == (status == WM_OK),
        "a snapshot is taken if one is kept");
    if (snapshot == nullptr) {
      Require(status == WM_NOT_FOUND, "or there is none");
      return;
    }
    Expected of = std::move(found->second.front());
    found->second.pop_front();
    --num_kept_;
    if (found->second.empty()) kept_.erase(found);
    of.snapshot = snapshot;
    taken_.push_back(std::move(of));
  }

  // The oldest that was taken: read if it can be, else released, or kept for later.
  void Read() {
    if (taken_.empty()) return;
    // The rows of a page copy may wait for a landing.
    if (Open() == 0) Good(Api().store_wait_idle(store_, 0, Why()));
    const bool ready = Api().snapshot_ready(taken_.front().snapshot) == WM_OK;
    Require(ready ? Ended(taken_.front()) : Open() != 0,
            "a snapshot waits for the steps that were begun before it, and for no others");
    if (ready) Check(taken_.front());
    if (!ready && bytes_.Once(2)) return;
    Api().snapshot_release(taken_.front().snapshot);
    taken_.pop_front();
  }

  // ---- one call

  using Hook = wm_status (*)(wm_megatron_adapter*, const std::int32_t*, std::size_t, wm_message*);
  // Whether the engine's blocks were taken.
  bool Report(Hook hook, const std::vector<std::int32_t>& blocks) {
    bool right = true;
    wm_megatron_adapter* const adapter = Adapter(right);
    bool lent = true;
    const std::int32_t* const given = OrNull(blocks.data(), lent);
    right = right && (lent || blocks.empty());
    const std::size_t count = CountOf(blocks.size(), right);
    right = right && std::all_of(blocks.begin(), blocks.end(), IsBlock);
    return Is(hook(adapter, given, count, Why()), right);
  }

  void Call() {
    const wm_megatron_api_v1& megatron = Megatron();
    const std::uint64_t request =
        bytes_.Once(32) ? static_cast<std::uint64_t>(bytes_.Number()) : bytes_.Below(3);
    switch (bytes_.Below(16)) {
      case 0: {
        const std::vector<std::int32_t> blocks = BlocksOf();
        if (!Report(megatron.allocate, blocks)) break;
        for (const std::int32_t block : blocks)
          Clear(block);
        break;
      }
      case 1: {
        const Hook hook = bytes_.Once(2) ? megatron.match : megatron.release;
        Report(hook, BlocksOf());
        break;
      }
      case 2: {
        const std::vector<std::int32_t> blocks = BlocksOf();
        std::vector<std::int64_t> hashes(blocks.size());
        for (std::int64_t& hash : hashes)
          hash = bytes_.Number();
        bool right = true;
        wm_megatron_adapter* const adapter = Adapter(right);
        bool lent = true;
        const std::int64_t* const given = OrNull(hashes.data(), lent);
        right = right && (lent || blocks.empty());
        const std::size_t count = CountOf(blocks.size(), right);
        right = right && std::all_of(blocks.begin(), blocks.end(), IsBlock);
        if (!Is(megatron.register_hashes(adapter, blocks.data(), given, count, Why()), right))
          break;
        for (const std::int32_t block : blocks) {
          if (!IsNull(block)) of_block(block).registered = true;
        }
        break;
      }
      case 3: {
        if (!bytes_.Once(4)) break;
        bool right = true;
        wm_megatron_adapter* const adapter = Adapter(right);
        if (!Is(megatron.reset(adapter, Why()), right)) break;
        for (std::int32_t block = 0; block < kBlocks; ++block)
          Clear(block, true);
        break;
      }
      case 4:
      case 5:
      case 6:
      case 7:
        Begin();
        break;
      case 8:
      case 9:
      case 10:
        if (!batches_.empty()) {
          const std::size_t most = std::min<std::size_t>(batches_.size(), 8);
          EndOne(batches_.size() - 1 - bytes_.Below(static_cast<std::uint32_t>(most)));
        }
        break;
      case 11:
      case 12:
        // So that pages never run out.
        if (num_kept_ + taken_.size() < 24) Checkpoint(request);
        break;
      case 13:
        if (bytes_.Once(4)) {
          bool right = true;
          wm_megatron_adapter* const adapter = Adapter(right);
          if (!Is(megatron.forget(adapter, request, Why()), right)) break;
          const auto found = kept_.find(request);
          if (found == kept_.end()) break;
          num_kept_ -= found->second.size();
          kept_.erase(found);
        } else {
          Take(request);
        }
        break;
      case 14:
        if (bytes_.Once(4)) Settle();
        Read();
        break;
      default:
        Objects();
        break;
    }
  }

  void Objects() {
    const wm_megatron_api_v1& megatron = Megatron();
    wm_megatron_adapter* const same = bytes_.Once(4) ? nullptr : adapter_;
    megatron.adapter_retain(same);
    megatron.adapter_release(same);
    wm_megatron_options options = {};
    options.struct_size = bytes_.Size(sizeof(options));
    options.flags = bytes_.Once(8) ? 1 : 0;
    options.store = bytes_.Once(8) ? nullptr : store_;
    options.dummy_block = bytes_.Once(4) ? BlockOf() : kDummy;
    options.reserved = bytes_.Once(16) ? 1 : 0;
    wm_megatron_adapter* other = nullptr;
    const wm_status status = megatron.adapter_create(&options, &other, Why());
    Require((status == WM_OK) == (other != nullptr), "an adapter comes with OK");
    Require(status == WM_OK || why_.size > 0, "a refusal says why");
    if (other != nullptr) {
      Require(options.dummy_block == kDummy, "a dummy block is a null block of the store");
      // Its snapshots are its own.
      wm_snapshot* none = nullptr;
      Require(megatron.take(other, 0, &none, nullptr) == WM_NOT_FOUND, "a new one has none");
      megatron.adapter_release(other);
    }
  }

  Bytes bytes_;
  wm_store* store_ = nullptr;
  wm_session* session_ = nullptr;
  wm_megatron_adapter* adapter_ = nullptr;
  char text_[256];
  wm_message why_ = {};
  Block blocks_[kBlocks];
  std::vector<Batch> batches_;
  std::map<std::uint64_t, std::deque<Expected>> kept_;
  std::size_t num_kept_ = 0;  // snapshots in it
  std::deque<Expected> taken_;
  int asked_ = 0, done_ = 0;
};

}  // namespace

void RunOne(std::span<const std::uint8_t> input) {
  World(Bytes(input)).Run();
}

std::vector<std::string> Corpus() {
  std::vector<std::string> corpus;
  for (std::uint32_t seed = 1; seed <= 48; ++seed) {
    std::mt19937 random(seed);
    std::string input;
    const std::size_t length = 64u << (seed % 6);
    while (input.size() < length)
      input.push_back(static_cast<char>(random()));
    corpus.push_back(input);
  }
  return corpus;
}

}  // namespace waymark::fuzz
