#include "adapters/vllm/vllm_scheduler.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "blockstore/step_path.h"

namespace waymark {
namespace {

// Bytes of a message beside its events and blocks: more than its header, and than each item has.
constexpr std::size_t kFrameBytes = 64;
constexpr std::size_t kItemBytes = 40;
// Events that are written at once, where they fit.
constexpr std::size_t kPartEvents = 256;

template <class Value>
absl::Status Broken(absl::string_view argument, absl::string_view rule, Value value) {
  return absl::InvalidArgumentError(absl::StrCat(argument, " must be ", rule, "; it is ", value));
}

// The key of a block that is loaded and has none: no block is sealed with it, so that the rows are
// missing as those of a load (external KV).
BlockKey KeyOfNone() {
  static constexpr std::string_view kText = "waymark: loaded without a key";
  return BlockKey::FromBytes({reinterpret_cast<const std::uint8_t*>(kText.data()), kText.size()});
}

// Whether `tokens` of a request lie in its blocks.
WAYMARK_STEP_PATH absl::Status CheckInBlocks(absl::string_view argument, std::int64_t tokens,
                                             std::size_t num_blocks, std::int64_t block_tokens) {
  const std::int64_t most = static_cast<std::int64_t>(num_blocks) * block_tokens;
  if (tokens >= 0 && tokens <= most) return absl::OkStatus();
  return Broken(
      argument,
      absl::StrCat("in [0, ", most, "] (", num_blocks, " blocks of ", block_tokens, " tokens)"),
      tokens);
}

}  // namespace

absl::Status VllmSchedulerOptions::Validate() const {
  if (absl::Status status = limits.Validate(); !status.ok()) return status;
  if (hash_block_tokens < 0 ||
      (hash_block_tokens > 0 && limits.block_tokens % hash_block_tokens != 0)) {
    return Broken("VllmSchedulerOptions.hash_block_tokens",
                  absl::StrCat("0 or a divisor of block_tokens, ", limits.block_tokens),
                  hash_block_tokens);
  }
  return absl::OkStatus();
}

absl::StatusOr<VllmScheduler> VllmScheduler::Create(const VllmSchedulerOptions& options) {
  if (absl::Status status = options.Validate(); !status.ok()) return status;
  absl::StatusOr<ScheduleWriter> writer = ScheduleWriter::Create(options.limits);
  if (!writer.ok()) return writer.status();
  VllmSchedulerOptions complete = options;
  if (complete.hash_block_tokens == 0) complete.hash_block_tokens = options.limits.block_tokens;
  return VllmScheduler(complete, *std::move(writer));
}

// ---- checks

WAYMARK_STEP_PATH absl::StatusOr<VllmScheduler::Request*> VllmScheduler::Find(std::uint64_t request,
                                                                              bool preempted) {
  const auto found = requests_.find(request);
  if (found == requests_.end()) return Broken("request", "one that New has reported", request);
  if (found->second.preempted && !preempted) {
    return absl::FailedPreconditionError(
        absl::StrCat("request must have blocks: it was preempted; it is ", request));
  }
  return &found->second;
}

WAYMARK_STEP_PATH absl::Status VllmScheduler::CheckOpen() const {
  if (open_) return absl::OkStatus();
  return absl::FailedPreconditionError("a message must be begun first: call Begin");
}

WAYMARK_STEP_PATH absl::Status VllmScheduler::CheckBlocks(std::span<const BlockId> blocks) const {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i].value() < options_.limits.num_blocks) continue;
    return Broken(absl::StrCat("blocks[", i, "]"),
                  absl::StrCat("less than num_blocks, ", options_.limits.num_blocks),
                  blocks[i].value());
  }
  return absl::OkStatus();
}

WAYMARK_STEP_PATH absl::Status VllmScheduler::CheckHashes(std::int64_t first, std::int64_t last,
                                                          const BlockHashes& hashes) const {
  if (hashes.keys.empty() || first >= last) return absl::OkStatus();
  const std::int64_t per_block = options_.limits.block_tokens / options_.hash_block_tokens;
  const std::int64_t end = hashes.first + static_cast<std::int64_t>(hashes.keys.size());
  if (hashes.first < 0 || hashes.first > (first + 1) * per_block - 1) {
    return Broken("hashes.first", absl::StrCat("in [0, ", (first + 1) * per_block - 1, "]"),
                  hashes.first);
  }
  if (end < last * per_block) {
    return Broken("the end of hashes",
                  absl::StrCat("at least ", last * per_block, ", for ", last, " blocks"), end);
  }
  return absl::OkStatus();
}

absl::Status VllmScheduler::CheckAdmission(std::span<const BlockId> blocks,
                                           const CachedTokens& cached,
                                           const BlockHashes& hashes) const {
  if (absl::Status status = CheckOpen(); !status.ok()) return status;
  if (absl::Status status = CheckBlocks(blocks); !status.ok()) return status;
  const std::int64_t block_tokens = options_.limits.block_tokens;
  const std::int64_t most = static_cast<std::int64_t>(blocks.size()) * block_tokens;
  if (absl::Status status =
          CheckInBlocks("local_tokens", cached.local_tokens, blocks.size(), block_tokens);
      !status.ok()) {
    return status;
  }
  if (cached.external_tokens < 0 || cached.external_tokens > most - cached.local_tokens) {
    return Broken(
        "external_tokens",
        absl::StrCat("in [0, ", most - cached.local_tokens, "] (", blocks.size(), " blocks of ",
                     block_tokens, " tokens, ", cached.local_tokens, " local tokens)"),
        cached.external_tokens);
  }
  if (cached.external_tokens > 0) {
    const std::int64_t end = (cached.local_tokens + cached.external_tokens) / block_tokens;
    const std::int64_t first = cached.local_tokens / block_tokens;
    return CheckHashes(first, end, hashes);
  }
  return absl::OkStatus();
}

// ---- messages

WAYMARK_STEP_PATH absl::Status VllmScheduler::Begin(StepId step, std::uint64_t version) {
  if (more_) {
    return absl::FailedPreconditionError("the schedule has another message: call FinishMessage");
  }
  if (absl::Status status = writer_.Begin(step, version); !status.ok()) return status;
  step_ = step;
  version_ = version;
  open_ = true;
  return absl::OkStatus();
}

WAYMARK_STEP_PATH void VllmScheduler::PutEvents(std::span<const Event> events) {
  if (events.empty()) return;
  if (kept_.empty() || kept_.back().tag.has_value()) {
    kept_.push_back({.begin = kept_events_.size()});
  }
  kept_events_.insert(kept_events_.end(), events.begin(), events.end());
  kept_.back().end = kept_events_.size();
}

WAYMARK_STEP_PATH void VllmScheduler::Flush() {
  // A copy takes a page, perhaps that of another's source, which may be of no request any more.
  for (const BlockCopy& copy : copies_)
    if (copy.bound) changes_.push_back(Event::Retain(copy.src));
  // In the order in which the engine copies: a copy may be copied.
  for (const BlockCopy& copy : copies_)
    if (copy.bound) changes_.push_back(Event::Copy(copy.src, copy.dst, copy.rows));
  for (const BlockCopy& copy : copies_)
    if (copy.bound) changes_.push_back(Event::Release(copy.src));
  std::erase_if(copies_, [](const BlockCopy& copy) { return copy.bound; });
  for (std::vector<Event>* const events : {&binds_, &changes_, &seals_}) {
    PutEvents(*events);
    events->clear();
  }
}

WAYMARK_STEP_PATH absl::Status VllmScheduler::WriteItem(const Item& item, bool* any) {
  const std::size_t count = item.end - item.begin;
  if (item.tag.has_value()) {
    const absl::Status status = writer_.Snapshot(
        *item.tag, std::span(kept_blocks_).subspan(item.begin, count), 0, item.rows);
    *any |= status.ok();
    return status;
  }
  const auto events = std::span<const Event>(kept_events_).subspan(item.begin, count);
  while (written_events_ < events.size()) {
    // What does not fit as a whole may fit in part; a part of one event needs a message of its own.
    std::size_t part = std::min(events.size() - written_events_, kPartEvents);
    absl::Status status = writer_.Report(events.subspan(written_events_, part));
    while (absl::IsResourceExhausted(status) && part > 1) {
      part /= 2;
      status = writer_.Report(events.subspan(written_events_, part));
    }
    if (!status.ok()) return status;
    *any = true;
    written_events_ += part;
  }
  return absl::OkStatus();
}

WAYMARK_STEP_PATH absl::StatusOr<std::span<const std::uint8_t>> VllmScheduler::FinishMessage() {
  if (absl::Status open = CheckOpen(); !open.ok()) return open;
  if (more_) {
    if (absl::Status status = writer_.Begin(step_, version_); !status.ok()) return status;
  }
  Flush();
  copies_.clear();
  bool any = false;  // item in this message
  absl::Status status;
  while (status.ok() && written_items_ < kept_.size()) {
    status = WriteItem(kept_[written_items_], &any);
    if (!status.ok()) break;
    ++written_items_;
    written_events_ = 0;
  }
  const std::span<const std::uint8_t> bytes = writer_.Finish();
  more_ = any && absl::IsResourceExhausted(status);
  if (more_) return bytes;
  kept_.clear();
  kept_events_.clear();
  kept_blocks_.clear();
  written_items_ = written_events_ = 0;
  open_ = false;
  if (!status.ok()) return status;
  return bytes;
}

// ---- requests that are scheduled

WAYMARK_STEP_PATH BlockKey VllmScheduler::KeyOf(std::int64_t index,
                                                const BlockHashes& hashes) const {
  const std::int64_t per_block = options_.limits.block_tokens / options_.hash_block_tokens;
  const std::int64_t at = (index + 1) * per_block - 1 - hashes.first;
  if (at < 0 || at >= static_cast<std::int64_t>(hashes.keys.size())) return {};
  return hashes.keys[static_cast<std::size_t>(at)];
}

WAYMARK_STEP_PATH void VllmScheduler::Bind(BlockId block, const BlockKey& key, std::int32_t rows) {
  const auto copy = std::find_if(copies_.begin(), copies_.end(), [block](const BlockCopy& c) {
    return c.dst == block && !c.bound;
  });
  if (copy == copies_.end()) {
    binds_.push_back(Event::Bind(block, key));
    return;
  }
  binds_.push_back(Event::Bind(block));
  copy->rows = rows;
  copy->bound = true;
}

void VllmScheduler::AppendBlocks(Request& r, std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) {
    r.blocks.push_back(block);
    if (!IsNull(block)) Bind(block, BlockKey(), Event::kAllRows);
  }
}

WAYMARK_STEP_PATH void VllmScheduler::SealBlocks(Request& r, std::int64_t end,
                                                 const BlockHashes& hashes) {
  for (std::int64_t i = r.sealed; i < end; ++i) {
    const BlockId block = r.blocks[static_cast<std::size_t>(i)];
    if (!IsNull(block)) seals_.push_back(Event::Seal(block, KeyOf(i, hashes)));
  }
  r.sealed = std::max(r.sealed, end);
}

void VllmScheduler::Admit(Request& r, const CachedTokens& cached, const BlockHashes& hashes) {
  const std::int64_t block_tokens = options_.limits.block_tokens;
  const std::int64_t local = cached.local_tokens;
  const std::int64_t loaded = local + cached.external_tokens;
  const std::int64_t hits = local / block_tokens;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(r.blocks.size()); ++i) {
    const BlockId block = r.blocks[static_cast<std::size_t>(i)];
    if (IsNull(block)) continue;
    if (i < hits) {
      changes_.push_back(Event::Retain(block));
      continue;
    }
    // Of a block whose load ends inside it, the rest is computed again.
    const bool external = cached.external_tokens > 0 && i * block_tokens < loaded;
    const std::int64_t rows = local - i * block_tokens;
    BlockKey key;
    if (external) key = KeyOf(i, hashes);
    if (external && key.empty()) key = KeyOfNone();
    Bind(block, key, rows > 0 ? static_cast<std::int32_t>(rows) : Event::kAllRows);
  }
  r.preempted = false;
  r.sealed = hits;
  if (cached.external_tokens > 0) SealBlocks(r, loaded / block_tokens, hashes);
}

absl::Status VllmScheduler::New(std::uint64_t request, std::span<const BlockId> blocks,
                                const CachedTokens& cached, const BlockHashes& hashes) {
  if (requests_.contains(request)) return Broken("request", "a new one", request);
  if (absl::Status status = CheckAdmission(blocks, cached, hashes); !status.ok()) return status;
  Request& r = requests_[request];
  r.blocks.assign(blocks.begin(), blocks.end());
  Admit(r, cached, hashes);
  return absl::OkStatus();
}

absl::Status VllmScheduler::Resume(std::uint64_t request, std::span<const BlockId> blocks,
                                   const CachedTokens& cached, const BlockHashes& hashes) {
  absl::StatusOr<Request*> found = Find(request, /*preempted=*/true);
  if (!found.ok()) return found.status();
  Request& r = **found;
  const auto [its, given] = std::ranges::mismatch(r.blocks, blocks);
  if (!r.preempted && its != r.blocks.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("request must have been preempted, or go on with its ", r.blocks.size(),
                     " blocks; it is ", request));
  }
  if (absl::Status status = CheckAdmission(blocks, cached, hashes); !status.ok()) return status;
  if (!r.preempted) {
    AppendBlocks(r, {given, blocks.end()});
    return absl::OkStatus();
  }
  r.blocks.assign(blocks.begin(), blocks.end());
  Admit(r, cached, hashes);
  return absl::OkStatus();
}

WAYMARK_STEP_PATH absl::Status VllmScheduler::Append(std::uint64_t request,
                                                     std::span<const BlockId> blocks,
                                                     std::int64_t full_tokens,
                                                     const BlockHashes& hashes) {
  if (absl::Status status = CheckOpen(); !blocks.empty() && !status.ok()) return status;
  absl::StatusOr<Request*> found = Find(request);
  if (!found.ok()) return found.status();
  if (absl::Status status = CheckBlocks(blocks); !status.ok()) return status;
  Request& r = **found;
  const std::int64_t block_tokens = options_.limits.block_tokens;
  const std::size_t num_blocks = r.blocks.size() + blocks.size();
  if (absl::Status status = CheckInBlocks("full_tokens", full_tokens, num_blocks, block_tokens);
      !status.ok()) {
    return status;
  }
  const std::int64_t full = full_tokens / block_tokens;
  if (absl::Status status = CheckHashes(r.sealed, full, hashes); !status.ok()) return status;
  AppendBlocks(r, blocks);
  SealBlocks(r, full, hashes);
  return absl::OkStatus();
}

// ---- requests that leave, and everything else that may come between two messages

absl::Status VllmScheduler::Leave(Request& r, std::int64_t rows, std::optional<std::uint64_t> tag) {
  absl::Status status;
  const std::int64_t block_tokens = options_.limits.block_tokens;
  if (tag.has_value()) {
    status = CheckInBlocks("rows", rows, r.blocks.size(), block_tokens);
    if (!status.ok()) return status;
    const std::size_t bytes = kFrameBytes + kItemBytes + r.blocks.size() * sizeof(BlockId);
    const std::size_t most = options_.limits.max_bytes;
    if (bytes > most) {
      status = absl::ResourceExhaustedError(absl::StrCat(
          "a message must have at most max_bytes, ", most, "; that of the snapshot has ", bytes));
    }
  }
  Flush();
  if (tag.has_value() && status.ok()) {
    const auto num_blocks = static_cast<std::ptrdiff_t>((rows + block_tokens - 1) / block_tokens);
    const std::size_t begin = kept_blocks_.size();
    kept_blocks_.insert(kept_blocks_.end(), r.blocks.begin(), r.blocks.begin() + num_blocks);
    kept_.push_back({tag, rows, begin, kept_blocks_.size()});
  }
  // As the engine frees them: the last block is the first to be evicted.
  for (auto block = r.blocks.rbegin(); block != r.blocks.rend(); ++block)
    if (!IsNull(*block)) changes_.push_back(Event::Release(*block));
  Flush();
  r.blocks.clear();
  r.sealed = 0;
  r.preempted = true;
  return status;
}

absl::Status VllmScheduler::Preempt(std::uint64_t request, std::int64_t rows,
                                    std::optional<std::uint64_t> tag) {
  absl::StatusOr<Request*> found = Find(request);
  if (!found.ok()) return found.status();
  return Leave(**found, rows, tag);
}

absl::Status VllmScheduler::Finish(std::uint64_t request, std::int64_t rows,
                                   std::optional<std::uint64_t> tag) {
  absl::StatusOr<Request*> found = Find(request, /*preempted=*/true);
  if (!found.ok()) return found.status();
  const absl::Status status = Leave(**found, rows, tag);
  if (status.ok() || absl::IsResourceExhausted(status)) requests_.erase(request);
  return status;
}

absl::Status VllmScheduler::Extend(std::uint64_t request, std::span<const BlockId> blocks) {
  absl::StatusOr<Request*> found = Find(request);
  if (!found.ok()) return found.status();
  if (absl::Status status = CheckBlocks(blocks); !status.ok()) return status;
  Request& r = **found;
  r.blocks.insert(r.blocks.end(), blocks.begin(), blocks.end());
  return absl::OkStatus();
}

absl::Status VllmScheduler::Copy(BlockId src, BlockId dst) {
  const std::int32_t most = options_.limits.num_blocks;
  if (src.value() >= most) {
    return Broken("src", absl::StrCat("less than num_blocks, ", most), src.value());
  }
  if (dst.value() >= most || IsNull(dst)) {
    return Broken("dst", absl::StrCat("a block below num_blocks, ", most, ", and not null"),
                  dst.value());
  }
  if (src == dst) return Broken("dst", "another block than src", dst.value());
  copies_.push_back({.src = src, .dst = dst});
  return absl::OkStatus();
}

absl::Status VllmScheduler::Reset() {
  Flush();
  changes_.push_back(Event::Reset());
  Flush();
  return absl::OkStatus();
}

absl::StatusOr<std::int64_t> VllmScheduler::Sealed(std::uint64_t request) const {
  const auto found = requests_.find(request);
  if (found == requests_.end()) return Broken("request", "one that New has reported", request);
  return found->second.sealed;
}

}  // namespace waymark
