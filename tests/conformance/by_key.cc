#include "tests/conformance/by_key.h"

#include <algorithm>
#include <cstring>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"

namespace waymark::conformance {
namespace {

using sim::Mix;
using sim::PrefixHash;
using sim::Rng;

constexpr std::string_view kOwn = "this engine";
constexpr std::uint64_t kOther = 0x1234567890abcdefu;
constexpr std::chrono::minutes kNever(10);  // time decides nothing
enum Fault : std::uint8_t { kLost, kLate, kStale, kLying, kFailing, kHolds };

// What a publisher's steps are counted from.
std::uint64_t BaseOf(std::uint64_t publisher) {
  return (std::uint64_t{1} << 63) + (publisher >> 2);
}
std::uint64_t OwnNumber() {
  const Digest128 digest =
      ContentDigest({reinterpret_cast<const std::uint8_t*>(kOwn.data()), kOwn.size()});
  return digest.w[0] | std::uint64_t{digest.w[1]} << 32;
}

std::string WeightsOf(std::uint32_t version) {
  return absl::StrCat("weights ", version);
}

// Whether two entries are of pages in the same place of blocks with the same key.
bool OfOneKey(const wire::Object& a, const wire::Object& b) {
  constexpr std::size_t kAt = 32, kBytes = 40;  // in the head of an entry
  return std::memcmp(a.bytes.data() + kAt, b.bytes.data() + kAt, kBytes) == 0;
}

// Where the chunk of an entry begins.
std::size_t ChunkAt(const wire::Object& entry) {
  std::uint32_t step_bytes = 0;
  std::memcpy(&step_bytes, entry.bytes.data() + 4, sizeof(step_bytes));
  return 96 + step_bytes + sizeof(Digest128);
}

}  // namespace

// ---- the source

Rng FaultySource::Draw(const Digest128& name, std::uint64_t what) const {
  return Rng(Mix(seed_ + what, name.w[0] | std::uint64_t{name.w[1]} << 32));
}

wire::Object FaultySource::Exchanged(const Digest128& name, const wire::Object& right) const {
  Rng stale = Draw(name, kStale);
  if (stale.Chance(chances_.tier_stale)) {
    const auto older = std::find_if(in_order_.begin(), in_order_.end(), [&](const auto& object) {
      return right.present() && OfOneKey(object, right);
    });
    if (older != in_order_.end()) return *older;
  }
  Rng lying = Draw(name, kLying);
  if (!lying.Chance(chances_.tier_lying)) return right;
  const std::int64_t how = lying.Below(4);
  if (in_order_.empty()) return right;
  const auto any = lying.Below(static_cast<std::int64_t>(in_order_.size()));
  const wire::Object& other = in_order_[static_cast<std::size_t>(any)];
  if (how == 0) return other;
  std::vector<std::uint8_t> bytes(right.bytes.begin(), right.bytes.end());
  if (bytes.empty()) return right;
  const auto at = static_cast<std::size_t>(lying.Below(static_cast<std::int64_t>(bytes.size())));
  if (how == 1) bytes[at] ^= 1u << lying.Below(8);
  if (how == 2) bytes.resize(at);
  if (how == 3) {
    bytes.resize(ChunkAt(right));
    const auto chunk = other.bytes.subspan(ChunkAt(other));
    bytes.insert(bytes.end(), chunk.begin(), chunk.end());
  }
  return wire::Object::Of(std::move(bytes));
}

absl::Status FaultySource::Get(std::span<const Digest128> names, wire::Deadline,
                               std::span<wire::Object> objects) {
  const MutexLock lock(mutex_);
  const auto asked = static_cast<std::uint64_t>(asks_[NameOf(names[0])]);
  Rng failing = Draw(names[0], kFailing + 16 * asked);
  const bool fails = failing.Chance(chances_.tier_failing);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const int asks = ++asks_[NameOf(names[i])];
    if (fails && failing.Chance(.5)) continue;
    Rng late = Draw(names[i], kLate);
    if (late.Chance(chances_.tier_late) && asks < late.Between(2, kMostAsks + 2)) continue;
    const auto found = objects_.find(NameOf(names[i]));
    objects[i] =
        Exchanged(names[i], found != objects_.end() ? found->second.object : wire::Object());
  }
  if (!fails) return absl::OkStatus();
  return failing.Chance(.5) ? absl::UnavailableError("it fails")
                            : absl::DeadlineExceededError("it is late");
}

absl::Status FaultySource::Put(std::span<const wire::NamedObject> objects, wire::Deadline) {
  const MutexLock lock(mutex_);
  for (const wire::NamedObject& named : objects) {
    if (Draw(named.digest, kFailing).Chance(chances_.tier_failing))
      return absl::UnavailableError("it fails");
    if (Draw(named.digest, kLost).Chance(chances_.tier_lost)) continue;
    const bool added = objects_
                           .try_emplace(NameOf(named.digest),
                                        Stored{named.object, std::uint64_t{in_order_.size()}})
                           .second;
    if (added) in_order_.push_back(named.object);
  }
  return absl::OkStatus();
}

absl::Status FaultySource::Holds(std::span<const Digest128> names, wire::Deadline,
                                 std::span<std::uint8_t> held) {
  const MutexLock lock(mutex_);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const bool lies = Draw(names[i], kHolds).Chance(chances_.tier_lying);
    held[i] = lies || objects_.contains(NameOf(names[i])) ? 1 : 0;
  }
  return absl::OkStatus();
}

std::uint64_t FaultySource::puts() const {
  const MutexLock lock(mutex_);
  return in_order_.size();
}

bool FaultySource::Serves(const Digest128& name, std::uint64_t puts) const {
  const MutexLock lock(mutex_);
  const auto found = objects_.find(NameOf(name));
  Rng late = Draw(name, kLate);
  return found != objects_.end() && found->second.number < puts && chances_.tier_failing == 0 &&
         !Draw(name, kStale).Chance(chances_.tier_stale) &&
         !Draw(name, kLying).Chance(chances_.tier_lying) &&
         !(late.Chance(chances_.tier_late) && late.Between(2, kMostAsks + 2) > kMostAsks);
}

// ---- the tiers

ByKey::ByKey(const sim::EngineOptions& options, const sim::RouteOracle& oracle)
    : options_(options),
      oracle_(oracle),
      source_(std::make_shared<FaultySource>(options.seed, options.features)) {
  wire::TierOptions tier;
  tier.get = source_;
  tier.publisher = kOwn;
  tier.space = "tenant one";
  tier.min_key_bytes = 1;
  tier.timeout = tier.put_timeout = kNever;
  tier.failures_to_skip = 1 << 30;
  tier.most_asks = options.features.tier_late > 0 ? FaultySource::kMostAsks : 1;
  tier.lost = options.features.lost_by_key > 0;
  tier.log = LogCallback::Discard();
  if (options.seed % 2 == 0) {
    const std::vector<std::uint8_t> secret(wire::DigestKey::kLeastBytes, 7);
    tier.key = wire::DigestKey::Create("key", secret).value();
  }
  for (std::int32_t stage = 0; stage < options.stages; ++stage) {
    const RoutingShape shape = oracle_.StageShape(stage, options.page_tokens);
    const auto codec = [&](std::string space) {
      return std::make_unique<wire::TierCodec>(
          wire::TierCodec::Create(shape, std::move(space), tier.key).value());
    };
    wire::PublisherOptions publisher;
    publisher.shape.rows = shape;
    publisher.shape.rows.Normalize();
    const wire::FetcherOptions fetcher = {.tier = tier};
    tier.look_up = options.seed % 3 != 0;
    stages_.push_back(
        {wire::Tier::Create(shape, tier).value(), codec(tier.space), codec("tenant two"),
         tier.look_up ? nullptr : wire::Publisher::Create(&objects_, publisher).value(),
         tier.look_up ? nullptr : std::make_unique<wire::Fetcher>(&objects_, fetcher)});
  }
}

bool ByKey::IsNamed(std::uint32_t version) const {
  return !Rng(Mix(options_.seed, version)).Chance(options_.features.unnamed);
}

void ByKey::NameWeights(std::uint32_t version) {
  for (const Stage& stage : stages_) {
    if (IsNamed(version)) stage.tier->NameWeights(version, WeightsOf(version)).IgnoreError();
  }
}

void ByKey::Publish(std::span<const PrefixHash> prefixes, std::uint32_t version) {
  const auto rows = static_cast<std::size_t>(options_.page_tokens);
  const std::vector<std::uint64_t> steps(rows, 1);
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    for (std::size_t first = 0; first < prefixes.size(); first += rows) {
      for (auto* const codec : {stages_[s].of_another_tenant.get(), stages_[s].codec.get()}) {
        const bool other = codec != stages_[s].codec.get();
        const std::size_t row_bytes = codec->shape().row_bytes();
        std::vector<std::uint8_t> ids(rows * row_bytes);
        for (std::size_t row = 0; row < rows; ++row) {
          oracle_.StageRow(static_cast<std::int32_t>(s), prefixes[first + row],
                           version + (other ? 1 : 0), 1, &ids[row * row_bytes]);
        }
        const Digest128 space = codec->Space("named " + WeightsOf(version));
        const wire::TierPage page{prefixes.back().ToKey(),
                                  static_cast<std::uint32_t>(first / rows)};
        const wire::NamedObject named{
            codec->Name(space, page),
            wire::Object::Of(codec->Encode(space, page, kOther, steps, ids))};
        source_->Put({&named, 1}, {}).IgnoreError();
      }
    }
  }
}

// ---- reading

Rows ByKey::Resolved(const Stage& stage, const Rows& rows, const wire::TierKeys& keys,
                     const std::function<void(std::string)>& fail) {
  const auto wait = [](const auto& call) {
    std::promise<std::shared_ptr<const Rows>> done;
    call([&done](std::shared_ptr<const Rows> filled) { done.set_value(std::move(filled)); });
    return *done.get_future().get();
  };
  Rows filled = wait(
      [&](auto done) { stage.tier->Fill(std::make_shared<Rows>(rows), keys, std::move(done)); });
  if (stage.publisher == nullptr) return filled;
  if (filled.first != 0) {  // no handle begins there
    return wait([&](auto done) {
      stage.tier->Resolve(std::make_shared<Rows>(filled), stage.codec, 0, wire::Deadline::max(),
                          std::move(done));
    });
  }
  const auto published = stage.publisher->Publish("", std::move(filled)).get();
  if (!published.ok()) {
    fail(absl::StrCat("by key: no handle: ", published.status().message()));
    return rows;
  }
  return stage.fetcher->Fetch(published->handle, wire::After(kNever)).value();
}

void ByKey::Fill(std::size_t stage, const Snapshot& snapshot, const sim::AskedByKey& asked,
                 bool all_told, Rows& rows, const std::function<void(std::string)>& fail) {
  for (const Stage& of : stages_) {
    if (!of.tier->WaitPut(kNever)) fail("the tier does not put its pages");
  }
  const std::vector<RowInfo> before = rows.infos;
  const Read read{stage, asked, before, source_->puts(), all_told};
  const auto keys = wire::TierKeys::Of(snapshot, asked.keys, asked.version, options_.block_tokens);
  const Rows done = Resolved(stages_[stage], rows, keys, fail);
  const std::size_t row_bytes = rows.shape.row_bytes();
  for (std::size_t i = 0; i < before.size(); ++i) {
    const bool same =
        std::memcmp(&done.ids[i * row_bytes], &rows.ids[i * row_bytes], row_bytes) == 0 &&
        done.infos[i] == before[i];
    const std::string wrong = before[i].valid()
                                  ? (same ? "" : "a row that was computed here was replaced")
                                  : Check(read, i, done);
    if (wrong.empty()) continue;
    fail(absl::StrCat("by key: stage ", stage, " row ", i, ": ", wrong, "; was ",
                      WhyMissing(before[i].reason, before[i].cause), ", is ",
                      WhyMissing(done.infos[i].reason, done.infos[i].cause), " version ",
                      done.infos[i].version, ", the KV is of version ",
                      i < asked.cells.size() ? asked.cells[i].pass.version : 0, ", excuse ",
                      i < asked.cells.size() ? static_cast<int>(asked.cells[i].excuse) : -1,
                      " taken with version ", asked.version));
  }
  rows = done;
}

std::uint64_t ByKey::LocalStep(std::uint64_t step) {
  for (const std::uint64_t publisher : {OwnNumber(), kOther}) {
    const std::uint64_t local = step - BaseOf(publisher);
    if (local != 0 && local <= 0xffffffffu) return local;
  }
  return 0;
}

void ByKey::Localize(Rows& rows) const {
  for (RowInfo& info : rows.infos) {
    if (info.step >> 63 != 0) info.step = LocalStep(info.step);
  }
}

std::string ByKey::Check(const Read& read, std::size_t i, const Rows& rows) {
  if (i >= read.asked.cells.size() || !read.asked.cells[i].present) return "";
  const RowInfo& info = rows.infos[i];
  if (!info.valid()) return CheckMissing(read, i, info);
  const sim::KvCell& cell = read.asked.cells[i];
  ++counts_.rows;
  if (info.version != cell.pass.version) return "it is of other weights";
  std::vector<std::uint8_t> right(rows.shape.row_bytes());
  oracle_.StageRow(static_cast<std::int32_t>(read.stage), cell.prefix, info.version,
                   LocalStep(info.step), right.data());
  const bool equal = std::ranges::equal(rows.row(static_cast<std::int64_t>(i)), right);
  return equal && info.provenance == Provenance::kByKey ? "" : "its ids are wrong";
}

std::string ByKey::CheckMissing(const Read& read, std::size_t i, const RowInfo& info) {
  const sim::Features& f = options_.features;
  const RowInfo& before = read.before[i];
  const std::uint32_t version = read.asked.cells[i].pass.version;
  const bool lost = before.reason == Reason::kCapacity;
  const bool asks = before.reason == Reason::kExternalKv ||
                    before.reason == Reason::kNeverWritten || (lost && f.lost_by_key > 0);
  if (!asks) return info == before ? "" : "its reason has changed";
  const auto block_tokens = static_cast<std::size_t>(options_.block_tokens);
  const std::size_t block = i / block_tokens;
  if (block >= read.asked.keys.size() || read.asked.keys[block].empty()) {
    return info == before ? "" : "it was asked for without a key";
  }
  const auto page =
      static_cast<std::uint32_t>(i % block_tokens / static_cast<std::size_t>(options_.page_tokens));
  const wire::TierCodec& codec = *stages_[read.stage].codec;
  const Digest128 space = codec.Space("named " + WeightsOf(version));
  const Digest128 name = codec.Name(space, {read.asked.keys[block], page});
  const bool held = IsNamed(version) && source_->Serves(name, read.puts);
  if (info == before) {
    // The weights of lost rows need not be known; nor those of a block to which new weights wrote
    // rows that were taken back, behind what was copied.
    const bool taken_back = f.bump > 0 && f.draft + f.rewind + options_.spec_tokens > 0;
    counts_.not_asked += held && !lost ? 1 : 0;
    const bool known = !lost && !taken_back && read.all_told;
    return held && known ? "missing though held, and not asked for" : "";
  }
  if (!lost) ++counts_.missing[static_cast<std::size_t>(info.cause)];
  if (held) return "missing though held";
  const bool lies = f.tier_lying + f.tier_stale > 0;
  const bool fits =
      info == before || info.cause == Cause::kAbsent ||
      (info.cause == Cause::kUnnamed && f.unnamed > 0) ||
      ((info.cause == Cause::kRefused || info.cause == Cause::kDamaged) && lies) ||
      ((info.cause == Cause::kTimeout || info.cause == Cause::kUnreachable) && f.tier_failing > 0);
  return fits && info.reason == Reason::kCapacity ? "" : "a cause that cannot be";
}

}  // namespace waymark::conformance
