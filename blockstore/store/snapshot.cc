#include "blockstore/store/snapshot.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "blockstore/digest.h"
#include "blockstore/huge_pages.h"
#include "blockstore/invalid.h"
#include "blockstore/store/store_core.h"

namespace waymark {
namespace {

constexpr std::size_t kReadChunk = 512;  // rows resolved before they are written out
// Pages lie anywhere: their stamps are asked for that many pages before they are read.
constexpr std::size_t kPagesAhead = 8;

void SetWhy(RowInfo& info, Why why) {
  info.reason = why.reason();
  info.cause = why.cause();
}

// Calls visit(i, pinned page, its row) for row begin + i of the sequence, for each i < count.
template <class Visit>
void ForEachRow(const StoreCore& core, const SnapshotState& state, std::int64_t begin,
                std::size_t count, const Visit& visit) {
  const std::int64_t page_tokens = core.page_tokens;
  const std::int64_t at = begin - state.first / page_tokens * page_tokens;
  auto index = static_cast<std::size_t>(at / page_tokens);
  auto row = static_cast<std::uint32_t>(at % page_tokens);
  for (std::size_t i = 0; i < count; ++index, row = 0) {
    const std::size_t ahead = index + kPagesAhead;
    if (ahead < state.pages.size() && state.pages[ahead].page != kNoPage) {
      __builtin_prefetch(&core.stamp(state.pages[ahead].page, 0));
    }
    for (; row < core.page_tokens && i < count; ++row, ++i)
      visit(i, state.pages[index], row);
  }
}

// Reads the stamps of rows [begin, begin + infos.size()) and finds the address of each row.
void ResolveRows(const StoreCore& core, const SnapshotState& state, std::int64_t begin,
                 std::span<const std::uint8_t*> row_pointers, std::span<RowInfo> infos) {
  if (state.lost != Cause::kNone) {
    std::fill(row_pointers.begin(), row_pointers.end(), nullptr);
    std::fill(infos.begin(), infos.end(),
              RowInfo{.reason = Reason::kCapacity, .cause = state.lost});
    return;
  }
  std::uint64_t version = 0;
  std::uint64_t version_of = 0;
  const auto resolve = [&](std::size_t i, const SnapshotPage& pinned, std::uint32_t row) {
    RowInfo& info = infos[i];
    info = RowInfo{};
    row_pointers[i] = nullptr;
    if (pinned.page == kNoPage) {
      SetWhy(info, pinned.lost.WhyOf(row, pinned.why, pinned.reason_rows));
      return;
    }
    const Stamp stamp = core.stamp(pinned.page, row).Load();
    info.provenance = pinned.by_key ? Provenance::kByKey : stamp.how();
    const bool released = state.last_step != 0 && stamp.step() > state.last_step;
    SetWhy(info, released ? Why(Reason::kReleased) : stamp.why());
    if (!info.valid()) return;
    if (stamp.step() != version_of) {
      version_of = stamp.step();
      version = core.versions.Of(version_of);
    }
    info.step = stamp.step();
    info.version = version;
    row_pointers[i] = core.row(pinned.page, row);
  };
  ForEachRow(core, state, begin, infos.size(), resolve);
}

// Checks the stamps again after the copy, for rows that were voided meanwhile. True if there was
// one.
bool RevalidateRows(const StoreCore& core, const SnapshotState& state, std::int64_t begin,
                    std::span<const std::uint8_t*> row_pointers, std::span<RowInfo> infos) {
  if (state.lost != Cause::kNone) return false;
  bool voided = false;
  const auto check = [&](std::size_t i, const SnapshotPage& pinned, std::uint32_t row) {
    if (row_pointers[i] == nullptr) return;
    const Stamp stamp = core.stamp(pinned.page, row).Load();
    if (stamp.valid()) return;
    row_pointers[i] = nullptr;
    SetWhy(infos[i], stamp.why());
    infos[i].step = infos[i].version = 0;
    voided = true;
  };
  ForEachRow(core, state, begin, infos.size(), check);
  return voided;
}

// In a forked child a thread of the parent may hold the recorder's lock for ever.
bool Records(const StoreCore& core, const SnapshotState& state) {
  return core.flight != nullptr && state.read_id != 0 && !core.guard.forked();
}

// Tells the flight recorder what was read.
void RecordRead(const StoreCore& core, const SnapshotState& state, std::int64_t begin,
                std::span<const std::uint8_t* const> row_pointers, std::span<const RowInfo> infos) {
  std::vector<std::uint64_t> digests(row_pointers.size());
  for (std::size_t i = 0; i < digests.size(); ++i) {
    if (row_pointers[i] != nullptr) digests[i] = RowDigest({row_pointers[i], core.row_bytes});
  }
  core.flight->On({.kind = FlightRecordKind::kRead,
                   .read_id = state.read_id,
                   .begin = begin,
                   .infos = infos,
                   .digests = digests});
}

// What a snapshot still waits for.
std::string Pending(const StoreCore& core) {
  if (core.guard.forked()) return "it was not ready when this process was forked";
  return "the store has not applied it yet: a step before it may wait for its ids";
}

absl::Status Empty() {
  return absl::FailedPreconditionError("Snapshot: it holds no rows");
}

}  // namespace

Snapshot::Snapshot(std::shared_ptr<StoreCore> core, SnapshotState* state)
    : core_(std::move(core)), state_(state) {}

Snapshot::~Snapshot() {
  Release();
}

Snapshot::Snapshot(Snapshot&& other) noexcept
    : core_(std::move(other.core_)), state_(std::exchange(other.state_, nullptr)) {}

Snapshot& Snapshot::operator=(Snapshot&& other) noexcept {
  std::swap(core_, other.core_);
  std::swap(state_, other.state_);
  return *this;
}

void Snapshot::Release() {
  SnapshotState* const state = std::exchange(state_, nullptr);
  // A ticket that has not been applied yet is taken back by the thread that applies it.
  if (state != nullptr && !core_->guard.forked() && state->ticket.Release()) {
    core_->released.enqueue(state);
  }
  core_.reset();
}

std::int64_t Snapshot::first() const {
  return state_ == nullptr ? 0 : state_->first;
}
std::int64_t Snapshot::last() const {
  return state_ == nullptr ? 0 : state_->last;
}

const RoutingShape* Snapshot::shape() const {
  return state_ == nullptr ? nullptr : &core_->shape;
}

bool Snapshot::Ready() const {
  return state_ == nullptr || state_->ticket.applied();
}

absl::Status Snapshot::Wait(std::chrono::nanoseconds timeout) const try {
  if (state_ != nullptr && core_->guard.forked() && !Ready()) {
    return absl::FailedPreconditionError(absl::StrCat("Snapshot::Wait: ", Pending(*core_)));
  }
  if (state_ == nullptr || core_->WaitUntil([&] { return state_->ticket.applied(); }, timeout)) {
    return absl::OkStatus();
  }
  return absl::DeadlineExceededError(
      absl::StrCat("Snapshot::Wait: ", Pending(*core_), " after ", timeout.count(), " ns"));
} catch (const std::bad_alloc&) {
  return absl::ResourceExhaustedError("");  // a text would need memory
}

absl::Status Snapshot::CheckRange(std::int64_t begin, std::int64_t end, std::size_t infos) const {
  if (state_ == nullptr) return Empty();
  if (begin < first() || begin > end || end > last()) {
    return absl::OutOfRangeError(absl::StrCat("Snapshot::Read: rows [", begin, ", ", end,
                                              ") must lie in [", first(), ", ", last(), ")"));
  }
  if (infos != 0 && infos != static_cast<std::size_t>(end - begin)) {
    return Invalid("Snapshot::Read: infos must be empty or ", end - begin, " long, got ", infos);
  }
  if (Ready()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("Snapshot::Read: ", Pending(*core_), "; Wait() first"));
}

absl::Status Snapshot::Read(std::int64_t begin, std::int64_t end, const ReadSpec& spec,
                            std::span<std::uint8_t> out, std::span<RowInfo> infos) const try {
  if (absl::Status status = CheckRange(begin, end, infos.size()); !status.ok()) return status;
  const RoutingShape& shape = core_->shape;
  if (absl::Status status = CheckReadSpec(shape, end - begin, spec, out.size()); !status.ok()) {
    return status;
  }
  const auto rows = static_cast<std::size_t>(end - begin);
  // [T, L, K] is written in chunks, while the stamps are in the cache. [L, T, K] is written at
  // once, because each layer is contiguous over the whole range.
  const std::size_t chunk =
      spec.layout == Layout::kTokensLayersK ? std::min(rows, kReadChunk) : rows;
  std::vector<const std::uint8_t*> row_pointers(chunk);
  std::vector<RowInfo> own_infos(infos.empty() ? chunk : 0);
  const std::size_t out_row = shape.row_ids() * IdBytes(spec.id_type);
  for (std::size_t at = 0; at < rows; at += chunk) {
    const std::size_t n = std::min(chunk, rows - at);
    const std::int64_t position = begin + static_cast<std::int64_t>(at);
    const std::span<const std::uint8_t*> chunk_rows(row_pointers.data(), n);
    const std::span<RowInfo> info =
        infos.empty() ? std::span<RowInfo>(own_infos).first(n) : infos.subspan(at, n);
    ResolveRows(*core_, *state_, position, chunk_rows, info);
    const std::span<std::uint8_t> to = out.subspan(at * out_row, n * out_row);
    WriteRows(shape, chunk_rows, spec, to);
    while (RevalidateRows(*core_, *state_, position, chunk_rows, info))
      WriteRows(shape, chunk_rows, spec, to);
    if (Records(*core_, *state_)) RecordRead(*core_, *state_, position, chunk_rows, info);
  }
  return absl::OkStatus();
} catch (const std::bad_alloc&) {
  return absl::ResourceExhaustedError("");  // a text would need memory
}

Birth Snapshot::BirthOf(std::int64_t row) const {
  const std::int64_t page_tokens = core_->page_tokens;
  const auto page = static_cast<std::size_t>(row / page_tokens - state_->first / page_tokens);
  const bool known = page < state_->births.size() && state_->lost == Cause::kNone;
  return known ? state_->births[page] : Birth();
}

std::optional<std::uint64_t> Snapshot::VersionOf(std::int64_t begin, std::int64_t end,
                                                 std::uint64_t present, bool written) const {
  std::optional<std::uint64_t> version;
  const std::int64_t page_tokens = core_->page_tokens;
  for (std::int64_t row = begin; row < end; row += page_tokens - row % page_tokens) {
    const Birth birth = BirthOf(row);
    if (birth.step == 0 || (written && birth.mixed != 0)) return std::nullopt;
    const bool since = birth.step == SnapshotState::kSinceLastStep;
    const std::uint64_t of = since ? present : core_->versions.Of(birth.step);
    if (version.value_or(of) != of) return std::nullopt;
    version = of;
  }
  return version;
}

absl::StatusOr<Rows> Snapshot::ReadRows() const try {
  if (state_ == nullptr) return Empty();
  Rows rows;
  rows.shape = core_->shape;
  rows.first = first();
  rows.infos.resize(static_cast<std::size_t>(size()));
  ResizeForWriting(static_cast<std::size_t>(size()) * core_->row_bytes, rows.ids);
  const ReadSpec spec{Layout::kTokensLayersK,
                      core_->shape.id_bytes() == 1 ? IdType::kUint8 : IdType::kUint16,
                      Fill::kZeros};
  if (absl::Status status = Read(first(), last(), spec, rows.ids, rows.infos); !status.ok()) {
    return status;
  }
  return rows;
} catch (const std::bad_alloc&) {
  return absl::ResourceExhaustedError("");  // a text would need memory
}

}  // namespace waymark
