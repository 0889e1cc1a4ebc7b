#include "blockstore/wire/tier_reader.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <unordered_map>
#include <utility>

#include "blockstore/exception_status.h"
#include "blockstore/wire/object_cache.h"

namespace waymark::wire {
namespace {

constexpr std::size_t kGetsAtOnce = 2048;
constexpr std::chrono::milliseconds kFirstPause(4);  // doubled for each time that pages are absent
constexpr std::chrono::milliseconds kLongestPause(32);
constexpr std::chrono::milliseconds kStuck(50);  // behind the deadline of a call

bool IsFinal(Cause cause) {
  return cause == Cause::kDamaged || cause == Cause::kRefused;
}

Cause CauseOf(const absl::Status& status) {
  if (status.ok()) return Cause::kAbsent;
  return absl::IsDeadlineExceeded(status) ? Cause::kTimeout : Cause::kUnreachable;
}

// Does the work of a thread until there is no more. Without memory some of it is done later.
template <class Once>
void Repeat(const Once& once) {
  for (bool more = true; more;) {
    const absl::Status status = Guarded("reading from a tier", [&] {
      more = once();
      return absl::OkStatus();
    });
    if (!status.ok()) std::this_thread::sleep_for(kFirstPause);
  }
}

}  // namespace

TierReader::TierReader(const TierOptions& options, const TierCodec& codec, WeightNames& names)
    : options_(options),
      codec_(codec),
      names_(names),
      gate_(options, "the tier is not asked for some time") {}

bool TierReader::IsAskedFor(const RowInfo& info, bool lost) {
  return info.reason == Reason::kExternalKv || info.reason == Reason::kNeverWritten ||
         (lost && info.reason == Reason::kCapacity);
}

bool TierReader::AsksForRows(const Rows& rows, std::int64_t begin, std::int64_t end, bool lost) {
  const auto in_rows = [&](std::int64_t position) {
    return rows.infos.begin() + std::clamp<std::int64_t>(position - rows.first, 0, rows.size());
  };
  return std::any_of(in_rows(begin), in_rows(end),
                     [lost](const RowInfo& info) { return IsAskedFor(info, lost); });
}

void TierReader::NamePages(Rows& rows, const TierKeys& keys) const {
  const std::int64_t page_tokens = rows.shape.page_tokens;
  for (std::size_t block = 0; block < keys.keys.size(); ++block) {
    const BlockKey& key = keys.keys[block];
    const std::optional<std::uint64_t> version = keys.versions[block];
    const std::int64_t begin = static_cast<std::int64_t>(block) * keys.block_tokens;
    if (key.empty() || key.size < options_.min_key_bytes) continue;
    if (!version.has_value() || begin >= rows.last()) continue;
    const bool lost = options_.lost && keys.lost[block];
    for (std::int64_t first = begin; first < begin + keys.block_tokens; first += page_tokens) {
      const std::int64_t last = std::min(first + page_tokens, rows.last());
      if (!AsksForRows(rows, first, last, lost)) continue;
      const WeightNames::Space space = names_.Of(*version);
      const auto ordinal = static_cast<std::uint32_t>((first - begin) / page_tokens);
      rows.names.push_back({.begin = std::max(first, rows.first),
                            .end = last,
                            .name = codec_.Name(space.digest, {key, ordinal}),
                            .version = *version,
                            .lost = lost,
                            .unnamed = !space.named});
    }
  }
}

void TierReader::Resolve(std::shared_ptr<Rows> rows, std::shared_ptr<const TierCodec> codec,
                         std::int32_t first_layer, Deadline deadline, Tier::Done done) {
  auto reading = std::make_shared<Reading>();
  for (const PageName& page : std::exchange(rows->names, {})) {
    if (AsksForRows(*rows, page.begin, page.end, page.lost))
      reading->wanted.push_back({.page = page});
  }
  reading->left = reading->wanted.size();
  reading->rows = std::move(rows);
  reading->codec = std::move(codec);
  reading->first_layer = first_layer;
  reading->done = std::move(done);
  reading->next = std::chrono::steady_clock::now();
  reading->deadline = std::min(deadline, After(options_.timeout));
  if (reading->wanted.empty()) return reading->done(std::move(reading->rows));
  bool asks = false;
  {
    const MutexLock lock(mutex_);
    ++stats_.fills;
    stats_.pages_asked += reading->wanted.size();
    const bool stuck = call_ends_ < Deadline::max() - kStuck && reading->next > call_ends_ + kStuck;
    asks = gate_.open() && !stuck && !stop_;
    if (asks) readings_.push_back(reading);
  }
  if (asks) return changed_.notify_all();
  Finish(*reading);
}

// ---- asking

void TierReader::RunGets() {
  Repeat([this] { return GetOnce(); });
}

bool TierReader::GetOnce() {
  std::vector<Asked> asked;
  Deadline deadline;
  {
    std::unique_lock lock(mutex_);
    call_ends_ = Deadline::max();
    if (readings_.empty()) {
      if (stop_) return false;
      changed_.wait(lock);
      return true;
    }
    const auto now = std::chrono::steady_clock::now();
    Deadline next = Deadline::max();
    for (const std::shared_ptr<Reading>& reading : readings_) {
      if (reading->next > now || asked.size() >= kGetsAtOnce) {
        next = std::min(next, reading->next);
        continue;
      }
      for (std::size_t i = 0; i < reading->wanted.size(); ++i) {
        if (!reading->wanted[i].ended) asked.push_back({reading, i});
      }
    }
    if (asked.empty()) {
      changed_.wait_until(lock, next);
      return true;
    }
    // Not the deadline of a reading, which RunLate ends: a call that is cut off costs a connection.
    deadline = call_ends_ = After(options_.timeout);
  }
  Get(asked, deadline);
  Readings done;
  {
    const MutexLock lock(mutex_);
    call_ends_ = Deadline::max();
    for (auto at = readings_.begin(); at != readings_.end();) {
      const auto reading = at++;
      if ((*reading)->left == 0) done.splice(done.end(), readings_, reading);
    }
  }
  for (const std::shared_ptr<Reading>& reading : done)
    Finish(*reading);
  return true;
}

void TierReader::Get(const std::vector<Asked>& asked, Deadline deadline) {
  std::unordered_map<Digest128, std::size_t, DigestHash> of_name;
  std::vector<Digest128> names;
  for (const Asked& one : asked) {
    const Digest128& name = one.reading->wanted[one.wanted].page.name;
    if (of_name.try_emplace(name, names.size()).second) names.push_back(name);
  }
  std::vector<Object> objects(names.size());
  const absl::Status status = Guarded("asking a tier for pages",
                                      [&] { return options_.get->Get(names, deadline, objects); });
  if (status.ok()) gate_.Succeeded();
  for (const Asked& one : asked) {
    Wanted& wanted = one.reading->wanted[one.wanted];
    Take(*one.reading, wanted, objects[of_name.at(wanted.page.name)], status);
  }
  const auto now = std::chrono::steady_clock::now();
  const MutexLock lock(mutex_);
  const Reading* last = nullptr;
  for (const Asked& one : asked) {
    if (std::exchange(last, one.reading.get()) == one.reading.get()) continue;
    Reading& reading = *one.reading;
    reading.pause =
        std::clamp<std::chrono::nanoseconds>(2 * reading.pause, kFirstPause, kLongestPause);
    reading.next = now + reading.pause;
  }
}

void TierReader::Take(Reading& reading, Wanted& wanted, const Object& object,
                      const absl::Status& status) {
  const TierCodec& codec = *reading.codec;
  std::vector<std::uint64_t> steps(static_cast<std::size_t>(codec.shape().page_tokens));
  std::vector<std::uint8_t> ids;
  Cause cause = CauseOf(status);
  if (object.present()) {
    ids.resize(codec.shape().page_bytes());
    const TierEntryState state = codec.Decode(object.bytes, wanted.page.name, steps, ids);
    cause = state == TierEntryState::kGood      ? Cause::kNone
            : state == TierEntryState::kRefused ? Cause::kRefused
                                                : Cause::kDamaged;
  }
  const MutexLock lock(mutex_);
  if (reading.finished) return;
  wanted.cause = cause;
  wanted.found = cause == Cause::kNone;
  if (wanted.found) FillRows(reading, wanted.page, steps, ids);
  wanted.ended = wanted.found || IsFinal(cause) || ++wanted.asks == options_.most_asks;
  reading.left -= wanted.ended ? 1 : 0;
}

void TierReader::FillRows(Reading& reading, const PageName& page,
                          std::span<const std::uint64_t> steps, std::span<const std::uint8_t> ids) {
  Rows& rows = *reading.rows;
  const RoutingShape& shape = reading.codec->shape();
  const std::size_t row_bytes = rows.shape.row_bytes();
  const std::size_t layers_at = static_cast<std::size_t>(reading.first_layer) *
                                static_cast<std::size_t>(shape.top_k) * shape.id_bytes();
  const std::int64_t end = std::min(page.end, rows.last());
  for (std::int64_t at = std::max(page.begin, rows.first); at < end; ++at) {
    const auto row = static_cast<std::size_t>(at - rows.first);
    const auto i = static_cast<std::size_t>(at % shape.page_tokens);
    RowInfo& info = rows.infos[row];
    if (!IsAskedFor(info, page.lost)) continue;
    info = {.step = steps[i],
            .version = page.version,
            .reason = Reason::kNone,
            .provenance = Provenance::kByKey};
    std::memcpy(rows.ids.data() + row * row_bytes, ids.data() + i * shape.row_bytes() + layers_at,
                row_bytes);
    ++stats_.rows_filled;
  }
}

// ---- ending

void TierReader::RunLate() {
  Repeat([this] { return EndLate(); });
}

bool TierReader::EndLate() {
  const absl::Status failure = absl::DeadlineExceededError(
      "the page source has failed, or was late, several times in a row");
  Readings late;
  {
    std::unique_lock lock(mutex_);
    if (readings_.empty()) {
      if (stop_) return false;
      changed_.wait(lock);
      return true;
    }
    const auto now = std::chrono::steady_clock::now();
    Deadline next = Deadline::max();
    bool closed = false;
    for (auto at = readings_.begin(); at != readings_.end();) {
      const auto reading = at++;
      if ((*reading)->deadline > now) {
        next = std::min(next, (*reading)->deadline);
        continue;
      }
      bool failed = false;
      for (Wanted& page : (*reading)->wanted) {
        if (page.cause == Cause::kSkipped && !stop_) page.cause = Cause::kTimeout;
        failed |= page.cause == Cause::kTimeout || page.cause == Cause::kUnreachable;
      }
      closed |= failed && !stop_ && gate_.Failed(failure);
      late.splice(late.end(), readings_, reading);
    }
    if (closed) {
      ++stats_.skips;
      late.splice(late.end(), readings_);
    }
    if (late.empty()) {
      changed_.wait_until(lock, next);
      return true;
    }
    for (const std::shared_ptr<Reading>& reading : late)
      reading->finished = true;
  }
  for (const std::shared_ptr<Reading>& reading : late)
    Finish(*reading);
  return true;
}

void TierReader::Finish(Reading& reading) {
  TierStats counted;
  for (const Wanted& wanted : reading.wanted) {
    const PageName& page = wanted.page;
    const bool unnamed = wanted.cause == Cause::kAbsent && page.unnamed;
    const Cause cause = unnamed ? Cause::kUnnamed : wanted.cause;
    counted.pages_found += wanted.found ? 1 : 0;
    counted.pages_absent += cause == Cause::kAbsent ? 1 : 0;
    counted.pages_damaged += cause == Cause::kDamaged ? 1 : 0;
    counted.pages_refused += cause == Cause::kRefused ? 1 : 0;
    counted.pages_late += cause == Cause::kTimeout ? 1 : 0;
    counted.pages_unreachable += cause == Cause::kUnreachable ? 1 : 0;
    counted.pages_skipped += cause == Cause::kSkipped ? 1 : 0;
    counted.pages_unnamed += cause == Cause::kUnnamed ? 1 : 0;
    Rows& rows = *reading.rows;
    const std::int64_t end = std::min(page.end, rows.last());
    for (std::int64_t at = std::max(page.begin, rows.first); !wanted.found && at < end; ++at) {
      RowInfo& info = rows.infos[static_cast<std::size_t>(at - rows.first)];
      if (!IsAskedFor(info, page.lost) || info.reason == Reason::kCapacity) continue;
      info.reason = Reason::kCapacity;
      info.cause = cause;
    }
  }
  {
    const MutexLock lock(mutex_);
    wire::AddTo(stats_, counted);
  }
  reading.done(std::move(reading.rows));
}

void TierReader::Stop() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
    for (const std::shared_ptr<Reading>& reading : readings_)
      reading->deadline = Deadline();
  }
  changed_.notify_all();
}

void TierReader::AddTo(TierStats& stats) const {
  const MutexLock lock(mutex_);
  wire::AddTo(stats, stats_);
}

}  // namespace waymark::wire
