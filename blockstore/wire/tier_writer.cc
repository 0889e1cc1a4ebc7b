#include "blockstore/wire/tier_writer.h"

#include <unordered_set>

#include "blockstore/exception_status.h"
#include "blockstore/wire/object_cache.h"

namespace waymark::wire {
namespace {

constexpr std::size_t kPutsAtOnce = 64;

std::uint64_t NumberOf(const std::string& publisher) {
  if (publisher.empty()) return DrawSeed();
  const Digest128 digest =
      ContentDigest({reinterpret_cast<const std::uint8_t*>(publisher.data()), publisher.size()});
  return digest.w[0] | std::uint64_t{digest.w[1]} << 32;
}

}  // namespace

TierWriter::TierWriter(const TierOptions& options, const TierCodec& codec, WeightNames& names)
    : options_(options),
      codec_(codec),
      names_(names),
      gate_(options, "no pages are put into the tier for some time"),
      publisher_(NumberOf(options.publisher)) {
  pages_.reserve(kPutsAtOnce);
}

void TierWriter::Add(const SealedPage& page) {
  if (page.key.size < options_.min_key_bytes) return;
  const auto room = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    ++stats_.pages_sealed;
    const bool takes = gate_.open() && waiting_.size() < options_.max_waiting;
    stats_.pages_dropped += takes ? 0 : 1;
    return takes;
  };
  {
    const MutexLock lock(mutex_);
    if (!room()) return;
  }
  Sealed sealed{{page.key, page.ordinal},
                page.version,
                {page.steps.begin(), page.steps.end()},
                {page.ids.begin(), page.ids.end()}};
  {
    const MutexLock lock(mutex_);
    waiting_.push_back(std::move(sealed));
  }
  changed_.notify_all();
}

void TierWriter::Run() {
  for (;;) {
    pages_.clear();
    {
      std::unique_lock lock(mutex_);
      while (waiting_.empty() && !stop_)
        changed_.wait(lock);
      if (waiting_.empty()) return;
      while (!waiting_.empty() && pages_.size() < kPutsAtOnce) {
        pages_.push_back(std::move(waiting_.front()));
        waiting_.pop_front();
      }
      putting_ = pages_.size();
    }
    PutPages();
    {
      const MutexLock lock(mutex_);
      putting_ = 0;
    }
    changed_.notify_all();
  }
}

bool TierWriter::TakeBytes(std::size_t bytes) {
  if (options_.max_bytes == 0) return true;
  const auto now = std::chrono::steady_clock::now();
  while (!put_.empty() && put_.front().first <= now) {
    bytes_ -= put_.front().second;
    put_.pop_front();
  }
  if (bytes_ + bytes > options_.max_bytes) return false;
  bytes_ += bytes;
  if (options_.time_to_live > std::chrono::nanoseconds::zero()) {
    put_.emplace_back(After(options_.time_to_live), bytes);
  }
  return true;
}

absl::Status TierWriter::PutMissing(std::vector<NamedObject>& entries, TierStats& counted) {
  const Deadline deadline = After(options_.put_timeout);
  std::vector<Digest128> names;
  for (const NamedObject& entry : entries)
    names.push_back(entry.digest);
  std::vector<std::uint8_t> held(names.size());
  // The first complete page wins, so that stages find pages of one publisher.
  if (absl::Status status = options_.put->Holds(names, deadline, held); !status.ok()) return status;
  std::vector<NamedObject> missing;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::size_t bytes = entries[i].object.bytes.size();
    if (held[i] != 0) {
      ++counted.pages_held;
    } else if (TakeBytes(bytes)) {
      counted.bytes_put += bytes;
      missing.push_back(std::move(entries[i]));
    } else {
      ++counted.pages_dropped;
    }
  }
  if (missing.empty()) return absl::OkStatus();
  absl::Status status = options_.put->Put(missing, deadline);
  if (!status.ok()) counted.bytes_put = 0;
  counted.pages_put += status.ok() ? missing.size() : 0;
  return status;
}

void TierWriter::PutPages() {
  TierStats counted;
  const absl::Status status = Guarded("putting pages into a tier", [&] {
    std::vector<NamedObject> entries;
    std::unordered_set<Digest128, DigestHash> names;
    for (const Sealed& sealed : pages_) {
      const Digest128 space = names_.Of(sealed.version).digest;
      const Digest128 name = codec_.Name(space, sealed.page);
      if (!names.insert(name).second) {  // its block was sealed again
        ++counted.pages_held;
        continue;
      }
      entries.push_back({name, Object::Of(codec_.Encode(space, sealed.page, publisher_,
                                                        sealed.steps, sealed.ids))});
    }
    return PutMissing(entries, counted);
  });
  counted.pages_failed =
      pages_.size() - counted.pages_put - counted.pages_held - counted.pages_dropped;
  if (status.ok()) {
    gate_.Succeeded();
  } else {
    counted.skips += gate_.Failed(status) ? 1 : 0;
  }
  const MutexLock lock(mutex_);
  wire::AddTo(stats_, counted);
}

void TierWriter::Stop() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
}

bool TierWriter::WaitPut(std::chrono::nanoseconds timeout) const {
  const Deadline deadline = After(timeout);
  std::unique_lock lock(mutex_);
  while (!waiting_.empty() || putting_ > 0) {
    if (changed_.wait_until(lock, deadline) == std::cv_status::timeout &&
        (!waiting_.empty() || putting_ > 0)) {
      return false;
    }
  }
  return true;
}

void TierWriter::AddTo(TierStats& stats) const {
  const MutexLock lock(mutex_);
  wire::AddTo(stats, stats_);
}

}  // namespace waymark::wire
