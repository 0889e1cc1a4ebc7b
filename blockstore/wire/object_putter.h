// ObjectPutter: puts the objects of publications into a page source, while more are made. Internal
// to Waymark: no installed header includes it.
#ifndef WAYMARK_BLOCKSTORE_WIRE_OBJECT_PUTTER_H_
#define WAYMARK_BLOCKSTORE_WIRE_OBJECT_PUTTER_H_

#include <atomic>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/mutex.h"
#include "blockstore/thread.h"
#include "blockstore/wire/object_cache.h"
#include "blockstore/wire/page_source.h"
#include "blockstore/wire/publisher.h"

namespace waymark::wire {

// A call of Publish, or of Forget. The last of those who use it, the publisher's thread or one that
// puts, destroys it, and that sets its result.
struct Publication {
  Publication() = default;
  Publication(const Publication&) = delete;
  Publication& operator=(const Publication&) = delete;
  ~Publication() {
    if (finish) finish(*this);
  }

  std::string sequence;
  std::shared_ptr<const Rows> rows;  // null: the sequence is forgotten
  std::promise<absl::StatusOr<Published>> result;

  // Since the publisher's thread has it:
  std::function<void(Publication&)> finish;
  absl::StatusOr<Published> made;
  Deadline deadline;  // set before its first call of the source
  // The last object of a Put, a node, was not held. So none of the nodes that follow is, since they
  // name it.
  std::atomic<bool> is_new{false};
  Mutex mutex;
  std::shared_ptr<absl::Status> put ABSL_PT_GUARDED_BY(mutex);  // its sequence's
  PublisherStats counted ABSL_GUARDED_BY(mutex);
};

// Used by one thread. Two others, which it starts, call the source.
class ObjectPutter {
 public:
  // `source` is not owned; null: nothing is put. `options` are referred to: both outlive it.
  ObjectPutter(PageSource* source, const PublisherOptions& options)
      : source_(source), options_(options) {}

  // Objects that are added from here on are of this publication, which is used until they are put.
  void Begin(std::shared_ptr<Publication> publication);
  // A node is put with its chunks, or after them. REQUIRES: Begin, since the last PutAdded.
  void Add(NamedObject object);
  // Whether so much was added, for the calls that put now, that it should be put.
  [[nodiscard]] bool full();
  // Nothing was added that was not handed to a call.
  [[nodiscard]] bool empty() const { return part_ == nullptr || part_->objects.empty(); }

  // Puts what was added: little at once, if nothing else is being put, or else on another thread,
  // for which it may wait. What a call is putting already is not put again.
  void PutAdded() noexcept;
  // Returns when all is put.
  void PutAll();

 private:
  using Digests = std::unordered_set<Digest128, DigestHash>;

  // Objects that are put together.
  struct Part {
    void Fail(const absl::Status& status);  // OK: nothing happens

    std::vector<std::shared_ptr<Publication>> users;  // the last one may have more parts
    std::vector<NamedObject> objects;
    std::size_t bytes = 0;                // of the objects
    Deadline deadline = Deadline::max();  // the first of the users'
    bool asks = true;  // whether the source holds some; decided before a later part is put
  };

  // A call that puts objects, on a thread of its own. Its destructor waits.
  struct Putting {
    Digests digests;
    LibraryThread thread;
  };

  std::size_t NumPutting();
  void Put(std::shared_ptr<Part> part);
  void PutMissing(Part& part);
  template <class Call>
  absl::Status OfSource(const char* doing, Publication& publication, const Call& call);

  PageSource* const source_;
  const PublisherOptions& options_;
  std::shared_ptr<Part> part_;   // what was added; null: nothing, since the last PutAdded
  std::deque<Putting> putting_;  // first to last
  std::atomic<bool> logged_source_{false};
};

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_OBJECT_PUTTER_H_
