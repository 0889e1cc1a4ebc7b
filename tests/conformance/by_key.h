// ByKey: the rows that a simulated engine gets by key (sim::Features::by_key), and what each must be.
//
// Every store has a tier over one page source, in which other engines publish, too. Of every third
// seed the rows go through handles, which have the names of their pages. The source may
// lose, delay, exchange and damage its objects; what happens to one is drawn from its name, so that
// it does not depend on threads.
#ifndef WAYMARK_TESTS_CONFORMANCE_BY_KEY_H_
#define WAYMARK_TESTS_CONFORMANCE_BY_KEY_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "adapters/simulators/options.h"
#include "adapters/simulators/oracle.h"
#include "adapters/simulators/rows_by_key.h"
#include "blockstore/mutex.h"
#include "blockstore/wire/fetcher.h"
#include "blockstore/wire/memory_source.h"
#include "blockstore/wire/publisher.h"
#include "blockstore/wire/tier.h"
#include "blockstore/wire/tier_entry.h"

namespace waymark::conformance {

// A page source in memory. Any thread.
class FaultySource final : public wire::PageSource {
 public:
  FaultySource(std::uint64_t seed, const sim::Features& chances) : seed_(seed), chances_(chances) {}

  absl::Status Get(std::span<const Digest128> names, wire::Deadline deadline,
                   std::span<wire::Object> objects) override;
  absl::Status Put(std::span<const wire::NamedObject> objects, wire::Deadline deadline) override;
  absl::Status Holds(std::span<const Digest128> names, wire::Deadline deadline,
                     std::span<std::uint8_t> held) override;

  // The number of objects that were put.
  [[nodiscard]] std::uint64_t puts() const;
  // Whether the object was among the first `puts`, and nothing keeps a tier from it.
  [[nodiscard]] bool Serves(const Digest128& name, std::uint64_t puts) const;

  // A late object is there from one of its first so many asks on.
  static constexpr int kMostAsks = 3;

 private:
  struct Stored {
    wire::Object object;
    std::uint64_t number = 0;
  };
  using Name = std::array<std::uint32_t, 4>;
  static Name NameOf(const Digest128& digest) { return std::to_array(digest.w); }
  // A number for the object: the same in each run.
  [[nodiscard]] sim::Rng Draw(const Digest128& name, std::uint64_t what) const;
  // What is served instead of the object, if there is something to serve.
  [[nodiscard]] wire::Object Exchanged(const Digest128& name, const wire::Object& right) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::uint64_t seed_;
  const sim::Features chances_;
  mutable Mutex mutex_;
  // These outlive an insertion without memory, which can happen here: absl's maps do not.
  std::map<Name, Stored> objects_ ABSL_GUARDED_BY(mutex_);
  std::vector<wire::Object> in_order_ ABSL_GUARDED_BY(mutex_);
  std::map<Name, int> asks_ ABSL_GUARDED_BY(mutex_);
};

// Of one run. Not thread safe.
class ByKey final : public sim::RowsByKey {
 public:
  // Throws if the tiers cannot be made. `oracle` must outlive the object.
  ByKey(const sim::EngineOptions& options, const sim::RouteOracle& oracle);

  std::shared_ptr<SealSink> sink(std::size_t stage) override { return stages_[stage].tier; }
  void NameWeights(std::uint32_t version) override;
  // Also publishes pages of another tenant, whose rows are others.
  void Publish(std::span<const sim::PrefixHash> prefixes, std::uint32_t version) override;
  void Fill(std::size_t stage, const Snapshot& snapshot, const sim::AskedByKey& asked,
            bool all_told, Rows& rows, const std::function<void(std::string)>& fail) override;
  void Localize(Rows& rows) const override;

  struct Counts {
    std::int64_t rows = 0;  // right rows that came by key
    std::array<std::int64_t, kNumCauses> missing{};
    std::int64_t not_asked = 0;  // missing though held: their weights were not known
  };
  [[nodiscard]] const Counts& counts() const { return counts_; }

 private:
  struct Stage {
    std::shared_ptr<wire::Tier> tier;
    std::shared_ptr<const wire::TierCodec> codec, of_another_tenant;
    // With handles: rows are published with the names of their pages, and fetched.
    std::unique_ptr<wire::Publisher> publisher;
    std::unique_ptr<wire::Fetcher> fetcher;
  };
  // A read of a stage, as it was before, and whose tier could have what objects.
  struct Read {
    std::size_t stage;
    const sim::AskedByKey& asked;
    const std::vector<RowInfo>& before;
    std::uint64_t puts;
    bool all_told;
  };
  [[nodiscard]] bool IsNamed(std::uint32_t version) const;
  // The rows that come for `rows`.
  [[nodiscard]] Rows Resolved(const Stage& stage, const Rows& rows, const wire::TierKeys& keys,
                              const std::function<void(std::string)>& fail);
  // The step of a row that came by key; 0: of no publisher.
  [[nodiscard]] static std::uint64_t LocalStep(std::uint64_t step);
  // What is wrong with row i; "" if nothing is.
  [[nodiscard]] std::string Check(const Read& read, std::size_t i, const Rows& rows);
  [[nodiscard]] std::string CheckMissing(const Read& read, std::size_t i, const RowInfo& info);

  const sim::EngineOptions options_;
  const sim::RouteOracle& oracle_;
  const std::shared_ptr<FaultySource> source_;
  wire::MemorySource objects_{std::size_t{1} << 22};
  std::vector<Stage> stages_;
  Counts counts_;
};

}  // namespace waymark::conformance

#endif  // WAYMARK_TESTS_CONFORMANCE_BY_KEY_H_
