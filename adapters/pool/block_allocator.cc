#include "adapters/pool/block_allocator.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "adapters/pool/eviction_heap.h"
#include "adapters/pool/prefix_index.h"

namespace waymark {
namespace {

constexpr std::int32_t kNone = PrefixIndex::kNone;

enum class State : std::uint8_t { kFree, kUsed, kCached, kNull };

}  // namespace

struct BlockAllocator::Block {
  State state = State::kFree;
  std::int32_t references = 0;
  std::int32_t entry = kNone;  // in the prefix index
  // Links blocks with the same key, in the order of their seals. All but the first are used: the
  // first one hits, so the others are freed when they lose their last reference.
  std::int32_t next_same = kNone;
  std::int32_t previous_same = kNone;
  std::uint64_t last_use = 0;
  std::uint64_t life_start = 0;  // 1 + the last step begun before its life, as in the store
  // The step that filled it; 1 + the last step begun, for a seal of the step that is begun next.
  std::uint64_t sealed_step = 0;  // 0: not sealed
  BlockKey key;                   // of its seal
};

absl::StatusOr<std::unique_ptr<BlockAllocator>> BlockAllocator::Create(
    const StoreOptions& options) {
  absl::StatusOr<std::unique_ptr<RoutingStore>> store = RoutingStore::Create(options);
  if (!store.ok()) return store.status();
  return std::make_unique<BlockAllocator>(*std::move(store));
}

BlockAllocator::BlockAllocator(std::unique_ptr<RoutingStore> store) : store_(std::move(store)) {
  const StoreOptions& options = store_->options();
  block_tokens_ = options.block_tokens > 0 ? options.block_tokens : options.shape.page_tokens;
  const auto num_blocks = static_cast<std::size_t>(options.num_blocks);
  blocks_.resize(num_blocks);
  for (const BlockId null : options.null_blocks) {
    if (null.value() >= 0 && null.value() < options.num_blocks) {
      At(null.value()).state = State::kNull;
    }
  }
  free_.reserve(num_blocks);
  for (std::int32_t block = options.num_blocks; block-- > 0;) {
    if (At(block).state == State::kFree) free_.push_back(block);
  }
  free_count_ = static_cast<std::int32_t>(free_.size());
  index_ = std::make_unique<PrefixIndex>(num_blocks);
  leaves_ = std::make_unique<EvictionHeap>(num_blocks);
  inner_ = std::make_unique<EvictionHeap>(num_blocks);
  events_.reserve(std::clamp<std::size_t>(num_blocks, 256, 16384));
}

BlockAllocator::~BlockAllocator() = default;

// ---- blocks ----

bool BlockAllocator::Allocate(std::span<BlockId> out) {
  if (out.size() >
      static_cast<std::size_t>(free_count_) + static_cast<std::size_t>(cached_count_)) {
    return false;
  }
  for (BlockId& given : out) {
    if (free_.empty()) EvictOne();
    given = BlockId(free_.back());
    free_.pop_back();
    Block& block = At(given.value());
    block.state = State::kUsed;
    block.references = 1;
    --free_count_;
    ++used_count_;
    StartLife(block);
    events_.push_back(Event::Bind(given));
  }
  Report();
  return true;
}

std::size_t BlockAllocator::MatchPrefix(std::span<const BlockKey> keys, std::span<BlockId> out,
                                        Clip clip) {
  std::size_t hits = 0;
  std::int32_t parent = kNone;
  for (; hits < keys.size() && !keys[hits].empty(); ++hits) {
    const std::int32_t entry = index_->Find(keys[hits]);
    // The same key after another parent is not this prefix.
    if (entry == kNone || index_->entry(entry).parent != parent) break;
    out[hits] = BlockId(index_->entry(entry).first_block);
    parent = entry;
  }
  if (clip == Clip::kToCovered) hits = CoveredBlocks(out.first(hits));
  for (const BlockId hit : out.first(hits)) {
    AddReference(hit.value());
    events_.push_back(Event::Retain(hit));
  }
  Report();
  return hits;
}

std::size_t BlockAllocator::CoveredBlocks(std::span<const BlockId> blocks) const {
  const std::int64_t rows = static_cast<std::int64_t>(blocks.size()) * block_tokens_;
  return static_cast<std::size_t>(store_->CoveredPrefix(blocks, rows) / block_tokens_);
}

absl::Status BlockAllocator::Retain(std::span<const BlockId> blocks) {
  for (const BlockId id : blocks) {
    if (absl::Status status = CheckRange("blocks", id); !status.ok()) return status;
    if (!IsNull(id) && At(id.value()).state == State::kFree) return NotInUse("blocks", id);
  }
  for (const BlockId id : blocks) {
    if (IsNull(id)) continue;
    AddReference(id.value());
    events_.push_back(Event::Retain(id));
  }
  Report();
  return absl::OkStatus();
}

absl::Status BlockAllocator::Release(std::span<const BlockId> blocks) {
  // Checks all counts first: a block may be listed as often as it has references.
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const BlockId id = blocks[i];
    absl::Status status = CheckRange("blocks", id);
    if (status.ok()) {
      if (IsNull(id)) continue;
      if (At(id.value()).references > 0) {
        --At(id.value()).references;
        continue;
      }
      status = absl::FailedPreconditionError(absl::StrCat(
          "blocks[", i, "] must have a reference to release; block ", id.value(), " has no more"));
    }
    for (const BlockId undone : blocks.first(i)) {
      if (!IsNull(undone)) ++At(undone.value()).references;
    }
    return status;
  }
  for (const BlockId id : blocks) {
    if (!IsNull(id)) events_.push_back(Event::Release(id));
  }
  Report();
  for (std::size_t i = blocks.size(); i-- > 0;) {  // the end of a sequence is evicted first
    if (IsNull(blocks[i])) continue;
    const Block& block = At(blocks[i].value());
    if (block.references == 0 && block.state == State::kUsed) StopUse(blocks[i].value());
  }
  return absl::OkStatus();
}

// ---- content ----

absl::Status BlockAllocator::Seal(BlockId id, const BlockKey& key, const BlockKey& parent,
                                  StepId step) {
  if (absl::Status status = CheckRange("block", id); !status.ok()) return status;
  if (key.size > BlockKey::kMaxBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("key.size must be at most 32; it is ", static_cast<int>(key.size)));
  }
  if (parent.size > BlockKey::kMaxBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("parent.size must be at most 32; it is ", static_cast<int>(parent.size)));
  }
  const std::uint64_t last = store_->last_step().value();
  if (step.value() > last) {
    return absl::InvalidArgumentError(
        absl::StrCat("step must be at most the last step begun (", last,
                     "), or have no number for the step that is begun next; it is ", step.value()));
  }
  if (IsNull(id)) return absl::OkStatus();
  Block& block = At(id.value());
  if (block.state != State::kUsed) return NotInUse("block", id);
  if (block.sealed_step != 0) {
    if (!(block.key == key)) {
      return absl::FailedPreconditionError(
          absl::StrCat("block must keep the key that it was sealed with by step ",
                       block.sealed_step, "; block ", id.value(), " is given another"));
    }
    if (block.entry != kNone || key.empty()) return absl::OkStatus();
  }
  events_.push_back(Event::Seal(id, key, step));
  Report();
  block.key = key;
  block.sealed_step = step.valid() ? step.value() : last + 1;
  if (key.empty()) return absl::OkStatus();

  std::int32_t entry = index_->Find(key);
  if (entry == kNone) {
    const std::int32_t behind = parent.empty() ? kNone : index_->Find(parent);
    if (!parent.empty() && behind == kNone) return absl::OkStatus();
    entry = index_->Insert(key, behind);
    index_->entry(entry).first_block = id.value();
    if (behind != kNone) UpdateHeaps(behind);
  } else {
    block.previous_same = index_->entry(entry).last_block;
    At(block.previous_same).next_same = id.value();
  }
  index_->entry(entry).last_block = id.value();
  block.entry = entry;
  UpdateHeaps(entry);
  return absl::OkStatus();
}

absl::Status BlockAllocator::Copy(BlockId src, BlockId dst, std::int32_t rows) {
  if (absl::Status status = CheckRange("src", src); !status.ok()) return status;
  if (absl::Status status = CheckRange("dst", dst); !status.ok()) return status;
  if (rows != Event::kAllRows && (rows < 0 || rows > block_tokens_)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rows must be in [0, ", block_tokens_, "] or kAllRows; it is ", rows));
  }
  if (IsNull(dst)) return absl::OkStatus();
  if (src == dst) {
    return absl::InvalidArgumentError(
        absl::StrCat("dst must be another block than src; both are ", src.value()));
  }
  if (!IsNull(src) && At(src.value()).state == State::kFree) {
    return NotInUse("src", src);
  }
  Block& block = At(dst.value());
  if (block.state != State::kUsed) return NotInUse("dst", dst);
  if (block.references > 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("dst must have one user; block ", dst.value(), " has ", block.references));
  }
  if (block.sealed_step != 0) {
    return absl::FailedPreconditionError(absl::StrCat("dst must not be sealed; block ", dst.value(),
                                                      " was sealed by step ", block.sealed_step));
  }
  StartLife(block);
  events_.push_back(Event::Copy(src, dst, rows));
  Report();
  return absl::OkStatus();
}

absl::Status BlockAllocator::Truncate(BlockId id, std::int32_t row, StepId step) {
  if (absl::Status status = CheckRange("block", id); !status.ok()) return status;
  if (row < 0 || row > block_tokens_) {
    return absl::InvalidArgumentError(
        absl::StrCat("row must be in [0, ", block_tokens_, "]; it is ", row));
  }
  if (!step.valid()) return absl::InvalidArgumentError("step must be at least 1; it is 0");
  if (IsNull(id) || row == block_tokens_) return absl::OkStatus();
  Block& block = At(id.value());
  const bool present_life = block.state != State::kFree && block.life_start <= step.value();
  if (present_life && block.references > 1) {
    return absl::FailedPreconditionError(absl::StrCat("block must have at most one user; block ",
                                                      id.value(), " has ", block.references));
  }
  events_.push_back(Event::Truncate(id, row, step));
  Report();
  const std::uint64_t upto = std::min(step.value(), store_->last_step().value());
  if (present_life && block.sealed_step != 0 && block.sealed_step <= upto) {
    block.sealed_step = 0;
    if (block.entry != kNone) Unregister(id.value());
  }
  return absl::OkStatus();
}

void BlockAllocator::Reset() {
  for (std::size_t i = blocks_.size(); i-- > 0;) {
    const auto block = static_cast<std::int32_t>(i);
    if (At(block).entry != kNone) LeaveEntry(block);
  }
  index_->Clear();
  if (used_count_ == 0) events_.push_back(Event::Reset());
  Report();
}

// ---- state ----

std::int32_t BlockAllocator::references(BlockId block) const {
  if (block.value() < 0 || static_cast<std::size_t>(block.value()) >= blocks_.size()) return 0;
  return At(block.value()).references;
}

BlockId BlockAllocator::Find(const BlockKey& key) const {
  const std::int32_t entry = key.empty() ? kNone : index_->Find(key);
  return entry == kNone ? BlockId::Invalid() : BlockId(index_->entry(entry).first_block);
}

// ---- internal ----

bool BlockAllocator::IsNull(BlockId block) const {
  return block.value() < 0 || At(block.value()).state == State::kNull;
}

absl::Status BlockAllocator::CheckRange(const char* argument, BlockId block) const {
  if (block.value() < 0 || static_cast<std::size_t>(block.value()) < blocks_.size()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(argument,
                                                 " must be null or less than num_blocks (",
                                                 blocks_.size(), "); it is ", block.value()));
}

absl::Status BlockAllocator::NotInUse(const char* argument, BlockId block) const {
  const bool cached = At(block.value()).state == State::kCached;
  return absl::FailedPreconditionError(absl::StrCat(
      argument, " must be in use; block ", block.value(), cached ? " is cached" : " is free"));
}

BlockAllocator::Block& BlockAllocator::At(std::int32_t block) {
  return blocks_[static_cast<std::size_t>(block)];
}

const BlockAllocator::Block& BlockAllocator::At(std::int32_t block) const {
  return blocks_[static_cast<std::size_t>(block)];
}

void BlockAllocator::StartLife(Block& block) {
  block.life_start = store_->last_step().value() + 1;
  block.sealed_step = 0;
}

void BlockAllocator::Report() {
  // The events are valid, so the store refuses them only if its log is full, and it then removes
  // its rows: the blocks and their KV are as the caller knows them.
  (void)store_->Report(events_);
  events_.clear();
}

void BlockAllocator::AddReference(std::int32_t id) {
  Block& block = At(id);
  if (++block.references > 1) return;
  block.state = State::kUsed;
  --cached_count_;
  ++used_count_;
  UpdateHeaps(block.entry);
}

void BlockAllocator::StopUse(std::int32_t id) {
  Block& block = At(id);
  block.last_use = ++clock_;
  --used_count_;
  block.state = State::kCached;
  ++cached_count_;
  const std::int32_t entry = block.entry;
  if (entry == kNone) {
    MakeFree(id);
  } else if (index_->entry(entry).first_block == id) {
    UpdateHeaps(entry);
  } else {
    LeaveEntry(id);
    UpdateHeaps(entry);
  }
}

void BlockAllocator::MakeFree(std::int32_t id) {
  At(id).state = State::kFree;
  --cached_count_;
  ++free_count_;
  free_.push_back(id);
}

void BlockAllocator::EvictOne() {
  // Without a leaf, every cached block is followed by one in use.
  const std::int32_t victim = leaves_->empty() ? inner_->oldest() : leaves_->oldest();
  const std::int32_t free_before = free_count_;
  Unregister(victim);
  evictions_ += static_cast<std::uint64_t>(free_count_ - free_before);
}

void BlockAllocator::Unregister(std::int32_t id) {
  const std::int32_t entry = At(id).entry;
  const PrefixIndex::Entry& node = index_->entry(entry);
  if (node.first_block == node.last_block) {
    UnregisterTree(entry);
  } else {
    LeaveEntry(id);
    UpdateHeaps(entry);
  }
}

void BlockAllocator::UnregisterTree(std::int32_t root) {
  // Children first. Not recursive, because a sequence may have thousands of blocks.
  const std::int32_t parent = index_->entry(root).parent;
  for (std::int32_t at = root;;) {
    while (index_->entry(at).child != kNone)
      at = index_->entry(at).child;
    while (index_->entry(at).first_block != kNone)
      LeaveEntry(index_->entry(at).first_block);
    const std::int32_t up = index_->entry(at).parent;
    index_->Remove(at);
    if (at == root) break;
    at = up;
  }
  if (parent != kNone) UpdateHeaps(parent);
}

void BlockAllocator::LeaveEntry(std::int32_t id) {
  Block& block = At(id);
  PrefixIndex::Entry& entry = index_->entry(block.entry);
  if (block.previous_same != kNone) {
    At(block.previous_same).next_same = block.next_same;
  } else {
    entry.first_block = block.next_same;
  }
  if (block.next_same != kNone) {
    At(block.next_same).previous_same = block.previous_same;
  } else {
    entry.last_block = block.previous_same;
  }
  block.entry = block.next_same = block.previous_same = kNone;
  leaves_->Erase(id);
  inner_->Erase(id);
  if (block.state == State::kCached) MakeFree(id);
}

void BlockAllocator::UpdateHeaps(std::int32_t at) {
  const PrefixIndex::Entry& entry = index_->entry(at);
  const std::int32_t id = entry.first_block;
  const Block& block = At(id);
  const bool cached = block.state == State::kCached;
  // With another block of this key, the blocks after it can still be reached.
  const bool leaf = entry.child == kNone || entry.first_block != entry.last_block;
  if (!cached || !leaf) leaves_->Erase(id);
  if (!cached || leaf) inner_->Erase(id);
  if (cached) (leaf ? leaves_ : inner_)->Insert(id, block.last_use);
}

}  // namespace waymark
