// ByKey: the rows that a simulated engine gets by key (Features::by_key), and what each must be.
//
// Every store has a tier over one page source, in which other engines publish, too. The source may
// lose, delay, exchange and damage its objects; what happens to one is drawn from its name, so that
// it does not depend on threads.
#ifndef WAYMARK_ADAPTERS_SIMULATORS_BY_KEY_H_
#define WAYMARK_ADAPTERS_SIMULATORS_BY_KEY_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "adapters/simulators/cells.h"
#include "adapters/simulators/options.h"
#include "adapters/simulators/oracle.h"
#include "adapters/simulators/request.h"
#include "blockstore/mutex.h"
#include "blockstore/wire/tier.h"
#include "blockstore/wire/tier_entry.h"

namespace waymark::sim {

// A page source in memory. Any thread.
class FaultySource final : public wire::PageSource {
 public:
  FaultySource(std::uint64_t seed, const Features& chances) : seed_(seed), chances_(chances) {}

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
  [[nodiscard]] Rng Draw(const Digest128& name, std::uint64_t what) const;
  // What is served instead of the object, if there is something to serve.
  [[nodiscard]] wire::Object Exchanged(const Digest128& name, const wire::Object& right) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::uint64_t seed_;
  const Features chances_;
  mutable Mutex mutex_;
  absl::flat_hash_map<Name, Stored> objects_ ABSL_GUARDED_BY(mutex_);
  std::vector<wire::Object> in_order_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<Name, int> asks_ ABSL_GUARDED_BY(mutex_);
};

// Not thread safe.
class ByKey {
 public:
  // `records_lost`: whether some did not reach a store. The pointers must outlive the object.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<ByKey>> Create(const EngineOptions& options,
                                                                     const RouteOracle* oracle,
                                                                     const bool* records_lost);

  [[nodiscard]] SealSink* sink(std::size_t stage) { return stages_[stage].tier.get(); }
  [[nodiscard]] bool asks_for_lost() const { return options_.features.lost_by_key > 0; }
  void NameWeights(std::uint32_t version);
  // Another engine has computed a block with these prefixes, of the tokens and each next one, in
  // its step 1: publishes its pages. And pages of another tenant, whose rows are others.
  void PublishOutside(std::span<const PrefixHash> prefixes, std::uint32_t version);

  // Fills rows of a stage. Calls `fail` with what is not as it must be.
  void Fill(std::size_t stage, const Snapshot& snapshot, const AskedByKey& asked, Rows& rows,
            const std::function<void(std::string)>& fail);
  // Replaces the step numbers that rows by key have for other stores by those of their publishers.
  void Localize(Rows& rows) const;

  struct Counts {
    std::int64_t rows = 0;  // right rows that came by key
    std::array<std::int64_t, kNumCauses> missing{};
    std::int64_t not_asked = 0;  // missing though held: the weights of a copied block are not known
  };
  [[nodiscard]] const Counts& counts() const { return counts_; }

 private:
  struct Stage {
    std::unique_ptr<wire::Tier> tier;
    std::unique_ptr<wire::TierCodec> codec, of_another_tenant;
  };
  ByKey(const EngineOptions& options, const RouteOracle* oracle, const bool* records_lost)
      : options_(options),
        oracle_(oracle),
        records_lost_(records_lost),
        source_(std::make_shared<FaultySource>(options.seed, options.features)) {}
  [[nodiscard]] bool IsNamed(std::uint32_t version) const;
  // The step of a row that came by key; 0: of no publisher.
  [[nodiscard]] static std::uint64_t LocalStep(std::uint64_t step);
  // What is wrong with row i, which was `before`; "" if nothing is.
  [[nodiscard]] std::string Check(std::size_t stage, const AskedByKey& asked, std::size_t i,
                                  const RowInfo& before, std::uint64_t puts, const Rows& rows);
  [[nodiscard]] std::string CheckMissing(std::size_t stage, const AskedByKey& asked, std::size_t i,
                                         const RowInfo& before, std::uint64_t puts,
                                         const RowInfo& info);

  const EngineOptions options_;
  const RouteOracle* const oracle_;
  const bool* const records_lost_;
  const std::shared_ptr<FaultySource> source_;
  std::vector<Stage> stages_;
  Counts counts_;
};

}  // namespace waymark::sim

#endif  // WAYMARK_ADAPTERS_SIMULATORS_BY_KEY_H_
