#include "adapters/pool/block_allocator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "adapters/pool/block_pool.h"
#include "blockstore/digest.h"

namespace waymark {
namespace {

absl::Status CheckKey(const char* argument, const BlockKey& key) {
  if (key.size <= BlockKey::kMaxBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(argument, ".size must be at most 32; it is ", static_cast<int>(key.size)));
}

}  // namespace

// The keys of some engines are counters, or have equal ends.
struct BlockAllocator::KeyHash {
  std::size_t operator()(const BlockKey& key) const {
    return static_cast<std::size_t>(RowDigest(std::span(key.bytes).first(key.size)));
  }
};

struct BlockAllocator::Pool : BlockPool<BlockKey, KeyHash> {
  using BlockPool::BlockPool;
  [[nodiscard]] bool InRange(BlockId block) const {
    return block.value() >= 0 && block.value() < size();
  }
};

absl::StatusOr<std::unique_ptr<BlockAllocator>> BlockAllocator::Create(
    const StoreOptions& options) {
  if (!options.null_blocks.empty()) {
    return absl::InvalidArgumentError("null_blocks must be empty: all blocks are in the pool");
  }
  absl::StatusOr<std::unique_ptr<RoutingStore>> store = RoutingStore::Create(options);
  if (!store.ok()) return store.status();
  return std::unique_ptr<BlockAllocator>(new BlockAllocator(*std::move(store)));
}

BlockAllocator::BlockAllocator(std::unique_ptr<RoutingStore> store)
    : store_(std::move(store)),
      block_tokens_(store_->options().block_tokens > 0 ? store_->options().block_tokens
                                                       : store_->options().shape.page_tokens),
      pool_(std::make_unique<Pool>(store_->options().num_blocks, Pool::Freed::kStack)) {
  events_.reserve(std::clamp<std::size_t>(static_cast<std::size_t>(pool_->size()), 256, 16384));
}

BlockAllocator::~BlockAllocator() = default;

std::int32_t BlockAllocator::free_blocks() const {
  return pool_->free_count();
}

std::int32_t BlockAllocator::cached_blocks() const {
  return pool_->cached_count();
}

bool BlockAllocator::Allocate(std::span<BlockId> out) {
  if (out.size() > static_cast<std::size_t>(free_blocks() + cached_blocks())) return false;
  for (BlockId& given : out) {
    if (free_blocks() == 0) {
      const std::int32_t victim = pool_->LeastRecentLeaf();
      // Another block with its key takes its place, so that the prefix still hits.
      const std::int32_t twin = pool_->ForgetHash(victim);
      if (twin >= 0) pool_->Publish(twin);
      pool_->PushFree(victim);
      ++evictions_;
    }
    given = BlockId(pool_->PopFree());
    pool_->SetRefs(given.value(), 1, clock_);
    events_.push_back(Event::Bind(given));
  }
  Report();
  return true;
}

std::size_t BlockAllocator::MatchPrefix(std::span<const BlockKey> keys, std::span<BlockId> out) {
  std::size_t hits = 0;
  for (; hits < keys.size() && !keys[hits].empty(); ++hits) {
    out[hits] = BlockId(pool_->Find(keys[hits]));
    if (!out[hits].valid()) break;
  }
  AddReferences(out.first(hits));
  return hits;
}

absl::Status BlockAllocator::Retain(std::span<const BlockId> blocks) {
  for (const BlockId id : blocks) {
    if (absl::Status status = CheckContent("blocks", id); !status.ok()) return status;
  }
  AddReferences(blocks);
  return absl::OkStatus();
}

void BlockAllocator::AddReferences(std::span<const BlockId> blocks) {
  for (const BlockId id : blocks) {
    pool_->SetRefs(id.value(), pool_->at(id.value()).refs + 1, clock_);
    events_.push_back(Event::Retain(id));
  }
  Report();
}

absl::Status BlockAllocator::Release(std::span<const BlockId> blocks) {
  // Checks all counts first: a block may be listed as often as it has references.
  absl::Status status;
  std::size_t counted = 0;
  for (; counted < blocks.size(); ++counted) {
    status = CheckRange("blocks", blocks[counted]);
    if (!status.ok()) break;
    std::int32_t& refs = pool_->at(blocks[counted].value()).refs;
    if (refs == 0) {
      status = absl::FailedPreconditionError(
          absl::StrCat("blocks[", counted, "] must have a reference to release; block ",
                       blocks[counted].value(), " has no more"));
      break;
    }
    --refs;
  }
  for (const BlockId id : blocks.first(counted))
    ++pool_->at(id.value()).refs;
  if (!status.ok()) return status;
  for (const BlockId id : blocks)
    events_.push_back(Event::Release(id));
  Report();
  for (std::size_t i = blocks.size(); i-- > 0;) {  // the end of a sequence is evicted first
    const std::int32_t id = blocks[i].value();
    pool_->SetRefs(id, pool_->at(id).refs - 1, ++clock_);
    if (pool_->at(id).refs > 0) continue;
    // One of several blocks with a key is enough.
    if (pool_->at(id).hashed && pool_->Find(pool_->at(id).hash) != id) pool_->ForgetHash(id);
    if (!pool_->at(id).hashed) pool_->PushFree(id);
  }
  return absl::OkStatus();
}

absl::Status BlockAllocator::Seal(BlockId id, const BlockKey& key, const BlockKey& parent) {
  if (absl::Status status = CheckKey("key", key); !status.ok()) return status;
  if (absl::Status status = CheckKey("parent", parent); !status.ok()) return status;
  if (absl::Status status = CheckUsed("block", id); !status.ok()) return status;
  const Pool::Block& block = pool_->at(id.value());
  if (block.hashed) {
    if (block.hash == key) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("block must keep its key; block ", id.value(), " is given another"));
  }
  events_.push_back(Event::Seal(id, key));
  Report();
  if (!key.empty()) pool_->SetHash(id.value(), key, parent);
  return absl::OkStatus();
}

absl::Status BlockAllocator::Copy(BlockId src, BlockId dst, std::int32_t rows) {
  if (absl::Status status = CheckContent("src", src); !status.ok()) return status;
  if (absl::Status status = CheckUsed("dst", dst); !status.ok()) return status;
  if (rows != Event::kAllRows && (rows < 0 || rows > block_tokens_)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rows must be in [0, ", block_tokens_, "] or kAllRows; it is ", rows));
  }
  if (src == dst) {
    return absl::InvalidArgumentError(
        absl::StrCat("dst must be another block than src; both are ", src.value()));
  }
  const Pool::Block& block = pool_->at(dst.value());
  if (block.refs > 1 || block.hashed) {
    return absl::FailedPreconditionError(absl::StrCat("dst must have one user and no seal; block ",
                                                      dst.value(), " has ", block.refs,
                                                      block.hashed ? " and a seal" : " users"));
  }
  events_.push_back(Event::Copy(src, dst, rows));
  Report();
  return absl::OkStatus();
}

void BlockAllocator::Reset() {
  for (std::int32_t block = pool_->size(); block-- > 0;) {
    const bool cached = pool_->at(block).hashed && pool_->at(block).refs == 0;
    pool_->ForgetHash(block);
    if (cached) pool_->PushFree(block);
  }
  if (free_blocks() == pool_->size()) events_.push_back(Event::Reset());
  Report();
}

absl::Status BlockAllocator::CheckRange(const char* argument, BlockId block) const {
  if (pool_->InRange(block)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(argument, " must be in [0, ", pool_->size(), "); it is ", block.value()));
}

absl::Status BlockAllocator::CheckContent(const char* argument, BlockId block) const {
  if (absl::Status status = CheckRange(argument, block); !status.ok()) return status;
  if (!pool_->at(block.value()).free) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(argument, " must be in use; block ", block.value(), " is free"));
}

absl::Status BlockAllocator::CheckUsed(const char* argument, BlockId block) const {
  absl::Status status = CheckContent(argument, block);
  if (!status.ok() || pool_->at(block.value()).refs > 0) return status;
  return absl::FailedPreconditionError(
      absl::StrCat(argument, " must be in use; block ", block.value(), " is cached"));
}

void BlockAllocator::Report() {
  // The events are valid, so the store refuses them only if its log is full, and it then removes
  // its rows: the blocks and their KV are as the caller knows them.
  (void)store_->Report(events_);
  events_.clear();
}

}  // namespace waymark
