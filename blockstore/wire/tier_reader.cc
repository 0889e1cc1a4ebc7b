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

std::vector<TierReader::Wanted> TierReader::PagesOf(const Rows& rows, const TierKeys& keys) const {
  std::vector<Wanted> wanted;
  const std::int64_t page_tokens = rows.shape.page_tokens;
  for (std::size_t block = 0; block < keys.keys.size(); ++block) {
    const BlockKey& key = keys.keys[block];
    const std::optional<std::uint64_t> version = keys.versions[block];
    const std::int64_t begin = static_cast<std::int64_t>(block) * keys.block_tokens - rows.first;
    if (key.empty() || key.size < options_.min_key_bytes) continue;
    if (!version.has_value() || begin >= rows.size()) continue;
    const bool lost = options_.lost && keys.lost[block];
    for (std::int64_t row = begin; row < begin + keys.block_tokens; row += page_tokens) {
      const std::int64_t first = std::clamp<std::int64_t>(row, 0, rows.size());
      const std::int64_t last = std::clamp<std::int64_t>(row + page_tokens, 0, rows.size());
      const auto infos = rows.infos.begin();
      if (std::none_of(infos + first, infos + last,
                       [lost](const RowInfo& info) { return IsAskedFor(info, lost); })) {
        continue;
      }
      const WeightNames::Space space = names_.Of(*version);
      Wanted page{.space = space.digest,
                  .page = {key, static_cast<std::uint32_t>((row - begin) / page_tokens)},
                  .version = *version,
                  .named = space.named,
                  .first_row = row,
                  .lost = lost};
      page.name = codec_.Name(page.space, page.page);
      wanted.push_back(page);
    }
  }
  return wanted;
}

void TierReader::Fill(std::shared_ptr<Rows> rows, const TierKeys& keys, Done done) {
  auto reading = std::make_shared<Reading>();
  reading->wanted = PagesOf(*rows, keys);
  reading->left = reading->wanted.size();
  reading->rows = std::move(rows);
  reading->done = std::move(done);
  reading->next = std::chrono::steady_clock::now();
  reading->deadline = After(options_.timeout);
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
  for (Wanted& page : reading->wanted)
    page.cause = Cause::kSkipped;
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
    const Digest128& name = one.reading->wanted[one.wanted].name;
    if (of_name.try_emplace(name, names.size()).second) names.push_back(name);
  }
  std::vector<Object> objects(names.size());
  const absl::Status status = Guarded("asking a tier for pages",
                                      [&] { return options_.get->Get(names, deadline, objects); });
  if (status.ok()) gate_.Succeeded();
  for (const Asked& one : asked) {
    Wanted& page = one.reading->wanted[one.wanted];
    Take(*one.reading, page, objects[of_name.at(page.name)], status);
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

void TierReader::Take(Reading& reading, Wanted& page, const Object& object,
                      const absl::Status& status) {
  std::vector<std::uint64_t> steps(static_cast<std::size_t>(codec_.shape().page_tokens));
  std::vector<std::uint8_t> ids;
  Cause cause = CauseOf(status);
  if (object.present()) {
    ids.resize(codec_.shape().page_bytes());
    const TierEntryState state = codec_.Decode(object.bytes, page.space, page.page, steps, ids);
    cause = state == TierEntryState::kGood      ? Cause::kNone
            : state == TierEntryState::kRefused ? Cause::kRefused
                                                : Cause::kDamaged;
  }
  const MutexLock lock(mutex_);
  if (reading.finished) return;
  page.cause = cause;
  page.found = cause == Cause::kNone;
  if (page.found) FillRows(reading, page, steps, ids);
  page.ended = page.found || IsFinal(cause) || ++page.asks == options_.most_asks;
  reading.left -= page.ended ? 1 : 0;
}

void TierReader::FillRows(Reading& reading, const Wanted& page,
                          std::span<const std::uint64_t> steps, std::span<const std::uint8_t> ids) {
  Rows& rows = *reading.rows;
  const std::size_t row_bytes = rows.shape.row_bytes();
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const std::int64_t row = page.first_row + static_cast<std::int64_t>(i);
    if (row < 0 || row >= rows.size()) continue;
    RowInfo& info = rows.infos[static_cast<std::size_t>(row)];
    if (!IsAskedFor(info, page.lost)) continue;
    info = {.step = steps[i],
            .version = page.version,
            .reason = Reason::kNone,
            .provenance = Provenance::kByKey};
    std::memcpy(rows.ids.data() + static_cast<std::size_t>(row) * row_bytes,
                ids.data() + i * row_bytes, row_bytes);
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
      const auto& wanted = (*reading)->wanted;
      const bool failed = std::any_of(wanted.begin(), wanted.end(), [](const Wanted& page) {
        return page.cause == Cause::kTimeout || page.cause == Cause::kUnreachable;
      });
      closed |= failed && gate_.Failed(failure);
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
  for (const Wanted& page : reading.wanted) {
    const Cause cause = page.cause == Cause::kAbsent && !page.named ? Cause::kUnnamed : page.cause;
    counted.pages_found += page.found ? 1 : 0;
    counted.pages_absent += cause == Cause::kAbsent ? 1 : 0;
    counted.pages_damaged += cause == Cause::kDamaged ? 1 : 0;
    counted.pages_refused += cause == Cause::kRefused ? 1 : 0;
    counted.pages_late += cause == Cause::kTimeout ? 1 : 0;
    counted.pages_unreachable += cause == Cause::kUnreachable ? 1 : 0;
    counted.pages_skipped += cause == Cause::kSkipped ? 1 : 0;
    counted.pages_unnamed += cause == Cause::kUnnamed ? 1 : 0;
    for (std::int64_t i = 0; !page.found && i < codec_.shape().page_tokens; ++i) {
      const std::int64_t row = page.first_row + i;
      if (row < 0 || row >= reading.rows->size()) continue;
      RowInfo& info = reading.rows->infos[static_cast<std::size_t>(row)];
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
  }
  changed_.notify_all();
}

void TierReader::AddTo(TierStats& stats) const {
  const MutexLock lock(mutex_);
  wire::AddTo(stats, stats_);
}

}  // namespace waymark::wire
