#include "blockstore/wire/tier.h"

#include <algorithm>
#include <utility>

#include "blockstore/exception_status.h"
#include "blockstore/fork_guard.h"
#include "blockstore/invalid.h"
#include "blockstore/thread.h"
#include "blockstore/wire/tier_parts.h"
#include "blockstore/wire/tier_reader.h"
#include "blockstore/wire/tier_writer.h"

namespace waymark::wire {

struct Tier::Impl {
  Impl(const TierOptions& given, TierCodec of_shape, ForkGuard of_process)
      : options(given),
        codec(std::make_shared<const TierCodec>(std::move(of_shape))),
        guard(std::move(of_process)),
        names(*codec, options.log),
        writer(options, *codec, names),
        reader(options, *codec, names) {}

  const TierOptions options;
  const std::shared_ptr<const TierCodec> codec;
  const ForkGuard guard;
  WeightNames names;
  TierWriter writer;
  TierReader reader;
  std::atomic<bool> checks{true};  // the thread that puts has not looked at the source yet

  LibraryThread put, get, late;
  static absl::Status Start(const std::shared_ptr<Impl>& impl, const char* name,
                            LibraryThread& thread, std::function<void()> run) {
    absl::StatusOr<LibraryThread> started =
        LibraryThread::Start(name, impl->options.cpus, impl, std::move(run));
    if (started.ok()) thread = *std::move(started);
    return started.status();
  }
};

TierKeys TierKeys::Of(const Snapshot& snapshot, std::vector<BlockKey> given, std::uint64_t present,
                      std::int32_t block_tokens) {
  TierKeys keys{.keys = std::move(given), .block_tokens = block_tokens};
  keys.versions.resize(keys.keys.size());
  keys.lost.resize(keys.keys.size());
  for (std::size_t i = 0; i < keys.keys.size(); ++i) {
    const std::int64_t first = static_cast<std::int64_t>(i) * block_tokens;
    const std::int64_t begin = std::max(first, snapshot.first());
    const std::int64_t end = std::min(first + block_tokens, snapshot.last());
    if (begin >= end) continue;
    keys.versions[i] = snapshot.VersionOf(begin, end, present, /*written=*/false);
    keys.lost[i] = snapshot.VersionOf(begin, end, present, /*written=*/true).has_value();
  }
  return keys;
}

Tier::Tier(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

Tier::~Tier() {
  Impl& impl = *impl_;
  if (impl.guard.forked()) return;  // the threads are in the parent, with their shares of *impl_
  impl.writer.Stop();
  impl.reader.Stop();
  // Nobody waits for a look at the source if no page does; nor does the thread log it then.
  using std::chrono::nanoseconds, std::chrono::seconds;
  const bool idle = impl.writer.WaitPut(nanoseconds::zero()) && impl.checks.exchange(false);
  const nanoseconds put = impl.options.put_timeout + seconds(1);
  const nanoseconds get = std::min(put, impl.options.timeout + seconds(1));
  (void)impl.put.End(idle ? nanoseconds::zero() : put);
  (void)impl.get.End(get);
  (void)impl.late.End(get);
}

absl::StatusOr<std::unique_ptr<Tier>> Tier::Create(const RoutingShape& shape,
                                                   const TierOptions& given) {
  return Guarded("Tier::Create", [&]() -> absl::StatusOr<std::unique_ptr<Tier>> {
    TierOptions options = given;
    if (options.get == nullptr) return Invalid("TierOptions.get must not be null");
    if (options.put == nullptr) options.put = options.get;
    if (options.publish && options.put->read_only()) {
      return Invalid("TierOptions.put must take objects, with publish; it is read only");
    }
    if (options.failures_to_skip < 1) {
      return Invalid("TierOptions.failures_to_skip must be at least 1; it is ",
                     options.failures_to_skip);
    }
    if (options.max_waiting < 1) {
      return Invalid("TierOptions.max_waiting must be at least 1; it is ", options.max_waiting);
    }
    if (absl::Status status = CheckCpus("TierOptions.cpus", options.cpus); !status.ok()) {
      return status;
    }
    absl::StatusOr<TierCodec> codec = TierCodec::Create(shape, options.space, options.key);
    if (!codec.ok()) return codec.status();
    absl::StatusOr<ForkGuard> guard = ForkGuard::Create(0);
    if (!guard.ok()) return guard.status();
    const auto impl = std::make_shared<Impl>(options, *std::move(codec), *std::move(guard));
    std::unique_ptr<Tier> tier(new Tier(impl));
    Impl* const at = impl.get();
    const auto put = [at] {
      CheckAndLog(*at->options.put, After(std::chrono::seconds(2)), at->options.log, &at->checks);
      at->writer.Run();
    };
    absl::Status status;
    if (options.publish) status = Impl::Start(impl, "wm-tier-put", at->put, put);
    if (status.ok()) {
      status = Impl::Start(impl, "wm-tier-get", at->get, [at] { at->reader.RunGets(); });
    }
    if (status.ok()) {
      status = Impl::Start(impl, "wm-tier-late", at->late, [at] { at->reader.RunLate(); });
    }
    if (!status.ok()) return status;
    return tier;
  });
}

absl::Status Tier::NameWeights(std::uint64_t version, std::string_view name) {
  if (impl_->guard.forked()) {
    return absl::FailedPreconditionError(
        "NameWeights: in the process that created the tier; this is a forked child");
  }
  return Guarded("NameWeights", [&] { return impl_->names.Name(version, name); });
}

void Tier::OnSealed(const SealedPage& page) noexcept {
  if (!impl_->options.publish) return;
  Guarded("a sealed page", [&] {
    impl_->writer.Add(page);
    return absl::OkStatus();
  }).IgnoreError();
}

void Tier::Fill(std::shared_ptr<Rows> rows, const TierKeys& keys, Done done) {
  impl_->reader.NamePages(*rows, keys);
  if (!impl_->options.look_up) return done(std::move(rows));
  impl_->reader.Resolve(std::move(rows), impl_->codec, 0, Deadline::max(), std::move(done));
}

void Tier::Resolve(std::shared_ptr<Rows> rows, std::shared_ptr<const TierCodec> codec,
                   std::int32_t first_layer, Deadline deadline, Done done) {
  impl_->reader.Resolve(std::move(rows), std::move(codec), first_layer, deadline, std::move(done));
}

TierStats Tier::GetStats() const {
  TierStats stats;
  if (impl_->guard.forked()) return stats;
  impl_->writer.AddTo(stats);
  impl_->reader.AddTo(stats);
  return stats;
}

bool Tier::WaitPut(std::chrono::nanoseconds timeout) const {
  return impl_->writer.WaitPut(timeout);
}

}  // namespace waymark::wire
