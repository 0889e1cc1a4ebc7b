#include "tests/conformance/slot_engine.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "adapters/simulators/hash.h"
#include "blockstore/store/store.h"

namespace waymark::conformance {
namespace {

using sim::Rng;

constexpr int kLayers = 2, kTopK = 2, kExperts = 200;
constexpr int kPageTokens = 4;
constexpr int kBlocks = 7;
constexpr int kIterations = 120;

// ---- the oracle

// What is in a slot: the KV of a token under the weights `version`. Token 0: nothing.
struct Kv {
  std::uint64_t token = 0;
  std::uint64_t version = 0;
};

using RowIds = std::array<std::uint8_t, kLayers * kTopK>;

RowIds RoutingOf(const Kv& kv) {
  const std::uint64_t hash = sim::Mix(kv.token, kv.version);
  RowIds ids;
  for (std::size_t layer = 0; layer < kLayers; ++layer) {
    const std::uint64_t bits = hash >> (16 * layer);
    const auto first = static_cast<std::uint8_t>((bits & 0xff) % kExperts);
    const auto other = static_cast<std::uint8_t>(1 + (bits >> 8 & 0xff) % (kExperts - 1));
    ids[layer * kTopK] = first;
    ids[layer * kTopK + 1] = static_cast<std::uint8_t>((first + other) % kExperts);
  }
  return ids;
}

// The rows of one step.
class SlotRows final : public StepRows {
 public:
  void Add(const Kv& kv, bool silent) { rows_.push_back({kv, silent}); }

  void Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
            std::span<Reason> verdicts) override {
    for (std::size_t i = 0; i < destinations.size(); ++i) {
      if (destinations[i] == nullptr) continue;
      const Row& row = rows_[first + i];
      verdicts[i] = row.silent ? Reason::kNotCaptured : Reason::kNone;
      std::ranges::copy(RoutingOf(row.kv), destinations[i]);
    }
  }
  bool LandLayers(std::uint32_t row, std::uint8_t* destination,
                  std::span<std::uint8_t> written) override {
    std::ranges::fill(written, rows_[row].silent ? 0 : 1);
    std::ranges::copy(RoutingOf(rows_[row].kv), destination);
    return !rows_[row].silent;
  }
  void Done() override {}

 private:
  struct Row {
    Kv kv;
    bool silent;
  };
  std::vector<Row> rows_;
};

// ---- the engine

struct Block {
  std::vector<Kv> kv;          // of its slots
  int known = 0;               // leading rows whose tokens stay
  int has = 1;                 // leading tokens that the sequence has; the last may not be computed
  std::uint64_t sequence = 0;  // its tokens; 0: not bound
  std::uint64_t bound_in = 0;  // the first step that may write it
  bool sealed = false;
};

// The rows of a block that a step computes: [first, last), from `drafts` on drafts, of which those
// before `accepted` are right.
struct Piece {
  int block, first, drafts, accepted, last;
  std::uint64_t key = 0;  // not 0: the step seals the block
  bool named = false;     // with this key
};

enum class End { kSubmit, kDrop, kCancel };

struct OpenStep {
  StepId step;
  End end;
  std::unique_ptr<SlotRows> rows;
};

// A snapshot, and what was in its slots when it was taken.
struct Taken {
  Snapshot snapshot;
  std::vector<Kv> kv;
  int block;
  std::uint64_t step;
};

// What the tier under a key holds: full blocks whose KV is of one version.
struct Stored {
  std::vector<Kv> kv;
  std::uint64_t version;
};

// The features of a seed: each one that is on with a chance of one half.
SlotFeatures DrawFeatures(Rng& rng, const SlotFeatures& allowed);

class SlotEngine {
 public:
  SlotEngine(std::uint64_t seed, const SlotFeatures& allowed)
      : rng_(seed),
        on_(DrawFeatures(rng_, allowed)),
        block_tokens_(rng_.Chance(.3) ? 2 * kPageTokens : kPageTokens) {
    auto store = RoutingStore::Create(DrawStoreOptions());
    if (!store.ok()) std::abort();
    store_ = *std::move(store);
    for (int block = 0; block < kBlocks; ++block)
      blocks_.push_back(Empty(0));
  }

  SlotCounts Run() {
    counts_.features = on_.ToString();
    for (int i = 0; i < kIterations; ++i) {
      if (on_.bump && rng_.Chance(.03)) ++version_;
      for (std::int64_t events = rng_.Below(3); events > 0; --events)
        DisturbABlock();
      RunStep();
      while (!open_.empty() && (open_.size() > 3 || !rng_.Chance(on_.late ? .7 : .1)))
        EndOne();
      if (rng_.Chance(.5)) TakeSnapshot();
      ApplyAndLand();
    }
    Finish();
    return std::move(counts_);
  }

 private:
  int Below(int bound) { return static_cast<int>(rng_.Below(bound)); }
  Block& At(int block) { return blocks_[static_cast<std::size_t>(block)]; }
  Block Empty(std::uint64_t sequence) {
    Block block;
    block.kv.resize(static_cast<std::size_t>(block_tokens_));
    block.has = 1 + Below(block_tokens_);
    block.sequence = sequence;
    block.bound_in = step_ + 1;
    return block;
  }
  static std::uint64_t TokenOf(std::uint64_t sequence, int row) {
    return sequence * 100 + static_cast<std::uint64_t>(row) + 1;
  }
  std::uint64_t DrawDraft() { return 1000000 + static_cast<std::uint64_t>(rng_.Below(100000)); }

  StoreOptions DrawStoreOptions();
  void Expect(const StepCode& code, const char* call);
  void Report(const Event& event) { Expect(store_->Report({&event, 1}), "Report"); }

  // What happens to blocks.
  void DisturbABlock();
  void BindByKey(int block);
  void Copy(int from, int to, int rows);
  void Move(int from, int to);
  void Truncate(int block);

  // Steps.
  Piece PlanPiece(int block);
  void RunStep();
  End DrawEnd();
  StepCode Begin(const std::vector<Piece>& pieces, std::vector<std::int64_t> slots);
  void Compute(const Piece& piece, SlotRows& rows, std::vector<Kv>& kv);
  void Write(const Piece& piece, std::span<const Kv> kv);
  void EndOne();

  // Reads.
  void TakeSnapshot();
  void ApplyAndLand();
  void Finish();
  bool Check(const Taken& taken);

  Rng rng_;
  const SlotFeatures on_;
  const int block_tokens_;
  std::vector<std::unique_ptr<SlotRows>> submitted_;  // outlive the store
  std::unique_ptr<RoutingStore> store_;
  std::vector<Block> blocks_;
  std::map<std::uint64_t, Stored> tier_;
  std::uint64_t step_ = 0, version_ = 1, sequence_ = 0;
  std::vector<OpenStep> open_;
  std::vector<Taken> taken_;
  SlotCounts counts_;
};

StoreOptions SlotEngine::DrawStoreOptions() {
  StoreOptions options;
  options.shape = {
      .num_layers = kLayers, .top_k = kTopK, .num_experts = kExperts, .page_tokens = kPageTokens};
  options.block_tokens = block_tokens_;
  options.num_blocks = kBlocks;
  if (on_.few_pages) options.num_pages = static_cast<std::uint32_t>(rng_.Between(3, 7));
  options.spare_pages = on_.few_pages && rng_.Chance(.3) ? 0 : 6;
  options.landing = Landing::kManual;
  options.audit = on_.audit;
  options.max_step_rows = 64;
  options.max_steps_in_flight = 6;  // steps are dropped when they begin
  if (on_.small_log) options.log_bytes = 64;
  options.key_seed = 1;
  return options;
}

void SlotEngine::Expect(const StepCode& code, const char* call) {
  if (code.ok() || code.dropped() || code.rule == StepRule::kLogFull) return;
  if (counts_.refused++ == 0 && counts_.finding.empty())
    counts_.finding = std::string(call) + ": " + std::string(code.ToStatus().message());
}

void SlotEngine::DisturbABlock() {
  const int block = Below(kBlocks);
  const int other = Below(kBlocks);
  switch (Below(7)) {
    case 0:
      Report(Event::Bind(BlockId(block)));
      At(block) = Empty(++sequence_);
      break;
    case 1:
      if (on_.key) BindByKey(block);
      break;
    case 2:
      if (on_.copy && block != other) Copy(other, block, Event::kAllRows);
      break;
    case 3:
      if (on_.copy && block != other) Copy(other, block, Below(block_tokens_ + 1));
      break;
    case 4:
      if (on_.move && block != other) Move(other, block);
      break;
    case 5:
      if (on_.truncate) Truncate(block);
      break;
    default:
      Report(rng_.Chance(.5) ? Event::Release(BlockId(block)) : Event::Retain(BlockId(block)));
  }
}

void SlotEngine::BindByKey(int block) {
  if (tier_.empty()) return;
  const auto found = std::next(tier_.begin(), Below(static_cast<int>(tier_.size())));
  const auto& [key, stored] = *found;
  if (stored.version != version_) return;
  Expect(store_->Schedule(StepId(step_ + 1), version_), "Schedule");
  Report(Event::Bind(BlockId(block), BlockKey::FromInteger(key)));
  At(block) = Empty(key);
  At(block).kv = stored.kv;
  At(block).known = At(block).has = block_tokens_;
  At(block).sealed = true;
}

void SlotEngine::Copy(int from, int to, int rows) {
  Report(Event::Copy(BlockId(from), BlockId(to), rows));
  Block copy = At(from);
  copy.sealed = false;
  copy.bound_in = step_ + 1;
  if (rows != Event::kAllRows) {
    copy.known = std::min(copy.known, rows);
    std::fill(copy.kv.begin() + rows, copy.kv.end(), Kv());
  }
  // What follows the rows that it shares is its own.
  if (copy.known < block_tokens_) {
    copy.has = copy.known + 1;
    copy.sequence = ++sequence_;
  }
  At(to) = std::move(copy);
}

void SlotEngine::Move(int from, int to) {
  Report(Event::Move(BlockId(from), BlockId(to)));
  At(to) = std::exchange(At(from), Empty(0));
}

void SlotEngine::Truncate(int block) {
  Block& b = At(block);
  if (b.known == 0 || b.bound_in > step_) return;
  const int rows = Below(b.known + 1);
  Report(Event::Truncate(BlockId(block), rows, StepId(step_)));
  b.known = rows;
  b.has = std::min(block_tokens_, rows + 1);
  b.sealed = false;
  b.sequence = ++sequence_;
}

Piece SlotEngine::PlanPiece(int block) {
  Block& b = At(block);
  if (b.sequence == 0) {
    Report(Event::Bind(BlockId(block)));
    b = Empty(++sequence_);
  }
  Piece piece{.block = block, .first = b.known, .drafts = b.has, .accepted = 0, .last = 0};
  const bool full = b.known == block_tokens_;
  if (b.known > 0 && (full || (on_.again && rng_.Chance(.2)))) piece.first = Below(b.known);
  if (full) {
    piece.drafts = piece.first + 1 + Below(block_tokens_ - piece.first);
  } else if (rng_.Chance(.3)) {  // a chunk
    piece.drafts = std::max(piece.first + 1, b.known + Below(b.has - b.known + 1));
  }
  // Drafts follow when all tokens are computed.
  const bool drafts = on_.draft && piece.drafts == b.has;
  piece.last = piece.drafts + (drafts ? Below(block_tokens_ - b.has + 1) : 0);
  piece.accepted = piece.drafts + Below(piece.last - piece.drafts + 1);
  const bool fills = !full && b.has == block_tokens_ && piece.drafts == block_tokens_;
  if (on_.key && fills && !b.sealed && rng_.Chance(.8)) {
    piece.key = ++sequence_;
    piece.named = rng_.Chance(.7);
  }
  return piece;
}

End SlotEngine::DrawEnd() {
  if (on_.drop && rng_.Chance(.1)) return End::kDrop;
  if (on_.cancel && rng_.Chance(.1)) return End::kCancel;
  return End::kSubmit;
}

void SlotEngine::Compute(const Piece& piece, SlotRows& rows, std::vector<Kv>& kv) {
  const Block& b = At(piece.block);
  for (int row = piece.first; row < piece.last; ++row) {
    const std::uint64_t token = row < b.known          ? b.kv[static_cast<std::size_t>(row)].token
                                : row < piece.accepted ? TokenOf(b.sequence, row)
                                                       : DrawDraft();
    kv.push_back({token, version_});
    rows.Add(kv.back(), on_.silent && rng_.Chance(.1));
  }
}

StepCode SlotEngine::Begin(const std::vector<Piece>& pieces, std::vector<std::int64_t> slots) {
  std::vector<Event> seals;
  for (const Piece& piece : pieces) {
    if (piece.key == 0) continue;
    const BlockKey key = piece.named ? BlockKey::FromInteger(piece.key) : BlockKey();
    seals.push_back(Event::Seal(BlockId(piece.block), key));
  }
  for (std::int64_t& slot : slots)
    if (on_.mute && rng_.Chance(.2)) slot = NotAsked(slot);
  StepBatch batch{step_, version_, seals.data(), seals.size(), slots.data(), slots.size()};
  batch.drop = on_.drop && rng_.Chance(.03);
  return store_->BeginStep(batch);
}

void SlotEngine::RunStep() {
  const End end = DrawEnd();
  std::vector<Piece> pieces;
  const int first = Below(kBlocks);
  pieces.push_back(PlanPiece(first));
  if (rng_.Chance(.5)) pieces.push_back(PlanPiece((first + 3) % kBlocks));
  auto rows = std::make_unique<SlotRows>();
  std::vector<std::vector<Kv>> kv(pieces.size());
  std::vector<std::int64_t> slots;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    Compute(pieces[i], *rows, kv[i]);
    for (int row = pieces[i].first; row < pieces[i].last; ++row)
      slots.push_back(std::int64_t{pieces[i].block} * block_tokens_ + row);
  }
  ++step_;
  const StepCode begun = Begin(pieces, std::move(slots));
  Expect(begun, "BeginStep");
  if (!begun.ok() && !begun.dropped()) return;
  // The forward of a step that the store has dropped runs.
  const bool ran = end != End::kCancel || begun.dropped();
  for (std::size_t i = 0; ran && i < pieces.size(); ++i)
    Write(pieces[i], kv[i]);
  if (begun.ok()) open_.push_back({StepId(step_), end, std::move(rows)});
}

void SlotEngine::Write(const Piece& piece, std::span<const Kv> kv) {
  Block& b = At(piece.block);
  std::ranges::copy(kv, b.kv.begin() + piece.first);
  b.known = std::max(b.known, piece.accepted);
  b.has = std::max(b.has, std::min(block_tokens_, b.known + 1));
  if (piece.key == 0) return;
  b.sealed = true;
  const bool one_version =
      std::ranges::all_of(b.kv, [this](const Kv& row) { return row.version == version_; });
  if (piece.named && one_version) tier_[piece.key] = {b.kv, version_};
}

void SlotEngine::EndOne() {
  const auto at = open_.begin() + rng_.Below(static_cast<std::int64_t>(open_.size()));
  OpenStep step = std::move(*at);
  open_.erase(at);
  switch (step.end) {
    case End::kDrop:
      return Expect(store_->Drop(step.step), "Drop");
    case End::kCancel:
      return Expect(store_->Cancel(step.step), "Cancel");
    case End::kSubmit:
      submitted_.push_back(std::move(step.rows));
      return Expect(store_->Submit(step.step, submitted_.back().get()), "Submit");
  }
}

void SlotEngine::TakeSnapshot() {
  const int block = Below(kBlocks);
  const BlockId id(block);
  absl::StatusOr<Snapshot> snapshot = store_->TakeSnapshot({&id, 1}, 0, block_tokens_);
  if (!snapshot.ok()) return;  // the log is full
  ++counts_.snapshots;
  taken_.push_back({*std::move(snapshot), At(block).kv, block, step_});
}

void SlotEngine::ApplyAndLand() {
  for (int i = Below(on_.small_log ? 2 : 6); i > 0; --i) {
    (void)store_->Apply(static_cast<std::size_t>(rng_.Between(1, 4)));
    if (rng_.Chance(.6)) (void)store_->LandOne();
  }
  std::erase_if(taken_, [this](const Taken& taken) { return rng_.Chance(.5) && Check(taken); });
}

void SlotEngine::Finish() {
  while (!open_.empty())
    EndOne();
  const absl::Status idle = store_->WaitIdle(std::chrono::seconds(0));
  const bool ready = std::ranges::all_of(taken_, [this](const Taken& t) { return Check(t); });
  if (!idle.ok() || !ready) {
    ++counts_.refused;
    counts_.finding = idle.ok() ? "a snapshot is not ready though all steps have ended"
                                : "WaitIdle: " + std::string(idle.message());
  }
  taken_.clear();
  const Stats stats = store_->GetStats();
  counts_.voided = stats.audit_voided_rows;
  counts_.ignored = stats.rows_ignored;
  counts_.by_key = stats.hits_by_key;
  counts_.copies_on_write = stats.copies_on_write;
  counts_.without_page = stats.no_page;
  counts_.log_losses = stats.log_losses;
}

// False if the snapshot is not ready.
bool SlotEngine::Check(const Taken& taken) {
  if (!taken.snapshot.Ready()) return false;
  const absl::StatusOr<Rows> rows = taken.snapshot.ReadRows();
  if (!rows.ok()) return false;
  for (std::size_t i = 0; i < taken.kv.size(); ++i) {
    ++counts_.rows;
    const RowInfo& info = rows->infos[i];
    if (!info.valid()) continue;
    ++counts_.valid;
    const Kv& kv = taken.kv[i];
    if (info.version == kv.version &&
        std::ranges::equal(RoutingOf(kv), rows->row(static_cast<std::int64_t>(i)))) {
      continue;
    }
    if (counts_.wrong++ > 0) continue;
    counts_.finding = "block " + std::to_string(taken.block) + " row " + std::to_string(i) +
                      " after step " + std::to_string(taken.step) + ": the row of step " +
                      std::to_string(info.step) + " version " + std::to_string(info.version) +
                      " (" + std::string(ProvenanceName(info.provenance)) +
                      "), the KV of version " + std::to_string(kv.version);
  }
  return true;
}

// ---- features

struct NamedFeature {
  const char* name;
  bool SlotFeatures::*field;
};
constexpr NamedFeature kFeatures[] = {
    {"draft", &SlotFeatures::draft},         {"again", &SlotFeatures::again},
    {"bump", &SlotFeatures::bump},           {"key", &SlotFeatures::key},
    {"copy", &SlotFeatures::copy},           {"move", &SlotFeatures::move},
    {"truncate", &SlotFeatures::truncate},   {"late", &SlotFeatures::late},
    {"mute", &SlotFeatures::mute},           {"silent", &SlotFeatures::silent},
    {"few_pages", &SlotFeatures::few_pages}, {"audit", &SlotFeatures::audit},
    {"drop", &SlotFeatures::drop},           {"cancel", &SlotFeatures::cancel},
    {"small_log", &SlotFeatures::small_log},
};

SlotFeatures DrawFeatures(Rng& rng, const SlotFeatures& allowed) {
  SlotFeatures drawn = allowed;
  for (const NamedFeature& feature : kFeatures) {
    // What an engine always has a part of: drafts, and blocks that change hands.
    const bool often = drawn.*feature.field && (feature.field == &SlotFeatures::draft ||
                                                feature.field == &SlotFeatures::again ||
                                                feature.field == &SlotFeatures::key);
    drawn.*feature.field = drawn.*feature.field && rng.Chance(often ? .85 : .5);
  }
  return drawn;
}

}  // namespace

bool SlotFeatures::Set(std::string_view name, bool on) {
  for (const NamedFeature& feature : kFeatures) {
    if (name != feature.name) continue;
    this->*feature.field = on;
    return true;
  }
  return false;
}

std::string SlotFeatures::ToString() const {
  std::string text;
  for (const NamedFeature& feature : kFeatures) {
    if (this->*feature.field) text += (text.empty() ? "" : " ") + std::string(feature.name);
  }
  return text;
}

std::string SlotFeatures::Names() {
  SlotFeatures all;
  for (const NamedFeature& feature : kFeatures)
    all.*feature.field = true;
  return all.ToString();
}

void SlotCounts::Add(const SlotCounts& other) {
  constexpr std::uint64_t SlotCounts::*kSums[] = {
      &SlotCounts::snapshots,    &SlotCounts::rows,      &SlotCounts::valid,
      &SlotCounts::wrong,        &SlotCounts::voided,    &SlotCounts::refused,
      &SlotCounts::ignored,      &SlotCounts::by_key,    &SlotCounts::copies_on_write,
      &SlotCounts::without_page, &SlotCounts::log_losses};
  for (std::uint64_t SlotCounts::*sum : kSums)
    this->*sum += other.*sum;
}

std::string SlotCounts::ToString() const {
  std::string text;
  const auto add = [&text](const char* name, std::uint64_t value) {
    text += (text.empty() ? "" : ", ") + std::string(name) + " " + std::to_string(value);
  };
  add("snapshots", snapshots);
  add("rows", rows);
  add("valid", valid);
  add("wrong", wrong);
  add("voided", voided);
  add("refused calls", refused);
  add("ignored writes", ignored);
  add("hits by key", by_key);
  add("copies on write", copies_on_write);
  add("claims without a page", without_page);
  add("lost records", log_losses);
  return text + (finding.empty() ? "" : "; " + finding);
}

SlotCounts RunSlotEngine(std::uint64_t seed, const SlotFeatures& features) {
  return SlotEngine(seed, features).Run();
}

}  // namespace waymark::conformance
