#include "blockstore/wire/object_putter.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "blockstore/exception_status.h"

namespace waymark::wire {
namespace {

// What was added is put when it is so many bytes and 0, 1 or 2 calls put something else. Two, so
// that a source can prepare one while its store takes the other.
constexpr std::array<std::size_t, 3> kPutBytes = {std::size_t{1} << 19, std::size_t{1} << 22,
                                                  std::size_t{1} << 24};
constexpr std::size_t kMostPutting = kPutBytes.size() - 1;

}  // namespace

void ObjectPutter::Begin(std::shared_ptr<Publication> publication) {
  if (part_ == nullptr) part_ = std::make_shared<Part>();
  part_->users.push_back(std::move(publication));
}

void ObjectPutter::Add(NamedObject object) {
  part_->bytes += object.object.bytes.size();
  part_->objects.push_back(std::move(object));
}

bool ObjectPutter::full() {
  return part_ != nullptr && part_->bytes >= kPutBytes[NumPutting()];
}

void ObjectPutter::PutAdded() noexcept {
  const std::shared_ptr<Part> part = std::exchange(part_, nullptr);
  if (source_ == nullptr || part == nullptr || part->objects.empty()) return;
  try {
    Digests digests;
    for (const NamedObject& named : part->objects)
      digests.insert(named.digest);
    // What an earlier call puts is held when it is there.
    const auto puts_some = [&digests](const Putting& one) {
      return std::ranges::any_of(
          one.digests, [&digests](const Digest128& digest) { return digests.contains(digest); });
    };
    while (NumPutting() == kMostPutting || std::ranges::any_of(putting_, puts_some))
      putting_.pop_front();
    for (const std::shared_ptr<Publication>& user : part->users) {
      if (user->deadline == Deadline()) user->deadline = After(options_.source_timeout);
      part->deadline = std::min(part->deadline, user->deadline);
    }
    part->asks = part->users.size() > 1 || !part->users.back()->is_new;
    if (part->bytes < kPutBytes[0] && putting_.empty()) return Put(part);
    absl::StatusOr<LibraryThread> thread = LibraryThread::Start(
        "wm-put", options_.cpus, nullptr, [this, put = part]() mutable { Put(std::move(put)); });
    if (!thread.ok()) return Put(part);
    putting_.push_back({std::move(digests), *std::move(thread)});
  } catch (...) {
    part->Fail(ExceptionStatus("publishing rows"));
  }
}

void ObjectPutter::PutAll() {
  PutAdded();
  while (!putting_.empty())
    putting_.pop_front();
}

void ObjectPutter::Part::Fail(const absl::Status& status) {
  for (const std::shared_ptr<Publication>& user : users) {
    const MutexLock lock(user->mutex);
    user->put->Update(status);
  }
}

// How many calls put objects now.
std::size_t ObjectPutter::NumPutting() {
  std::erase_if(putting_,
                [](const Putting& one) { return one.thread.Wait(std::chrono::seconds(0)); });
  return putting_.size();
}

// The last to use a publication destroys it, before this returns.
void ObjectPutter::Put(std::shared_ptr<Part> part) {
  try {
    PutMissing(*part);
  } catch (...) {
    part->Fail(ExceptionStatus("publishing rows"));
  }
}

// What a call of the source returns. It must not throw, but those of others do.
template <class Call>
absl::Status ObjectPutter::OfSource(const char* doing, Publication& publication, const Call& call) {
  absl::Status status;
  bool threw = false;
  try {
    status = call();
  } catch (...) {
    threw = true;
    status = ExceptionStatus(doing);
  }
  if (status.ok()) return status;
  {
    const MutexLock lock(publication.mutex);
    publication.counted.exceptions += threw ? 1 : 0;
    ++publication.counted.puts_failed;
  }
  LogOnce(options_.log, logged_source_, LogLevel::kWarning,
          "readers may miss rows that are published", status);
  return status;
}

// Puts those of the objects that the source does not hold, each once. If its Holds fails, it is
// taken to hold none. Counts for the last publication.
void ObjectPutter::PutMissing(Part& part) {
  std::vector<NamedObject>& objects = part.objects;
  Publication& last = *part.users.back();
  std::vector<std::uint8_t> held(objects.size());
  if (part.asks) {
    const absl::Status asked = OfSource("the page source's Holds", last, [&] {
      return source_->HoldsOf(objects, part.deadline, held);
    });
    if (!asked.ok()) std::fill(held.begin(), held.end(), std::uint8_t{0});
    if (asked.ok() && held.back() == 0) last.is_new = true;
  }
  std::uint64_t num_held = 0, bytes = 0;
  Digests putting;
  std::size_t at = 0;
  std::erase_if(objects, [&](const NamedObject& named) {
    const bool there = held[at++] != 0;
    num_held += there ? 1 : 0;
    const bool leaves = there || !putting.insert(named.digest).second;
    bytes += leaves ? 0 : named.object.bytes.size();
    return leaves;
  });
  absl::Status put;
  if (!objects.empty()) {
    put = OfSource("the page source's Put", last,
                   [&] { return source_->Put(objects, part.deadline); });
  }
  part.Fail(put);
  const MutexLock lock(last.mutex);
  last.counted.objects_held += num_held;
  if (!put.ok()) return;
  last.counted.objects_put += objects.size();
  last.counted.bytes_put += bytes;
}

}  // namespace waymark::wire
