#include "tests/conformance/schedules.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <optional>

#include "adapters/simulators/hash.h"

namespace waymark::conformance {
namespace {

using sim::EngineOptions;
using sim::Rng;

// ---- the features of mixtures

// The features of sim::Features, and the range from which a mixture draws their chance; 0, 0: a
// switch. Each is there in about a third of the mixtures.
struct Range {
  const char* name;
  double low, high;
};
constexpr Range kRanges[] = {
    {"draft", .1, .9},
    {"preempt", .01, .1},
    {"drop", .01, .1},
    {"cancel", .01, .1},
    {"abort", .01, .05},
    {"reset", .003, .02},
    {"bump", .01, .1},
    {"fork", .02, .2},
    {"partial", .1, .9},
    {"tier", .1, 1},
    {"swap", .1, 1},
    {"external", .05, .3},
    {"stream", .05, .4},
    {"mute", .05, .3},
    {"silent", .01, .1},
    {"rewind", .01, .2},
    {"full_hit", .1, .8},
    {"pad", .1, .5},
    {"no_truncate", .1, 1},
    {"rollback", .2, .8},
    {"late", 0, 0},
    {"completion_seal", 0, 0},
    {"blind_truncate", 0, 0},
    {"guard", 0, 0},
    {"ref_zero", 0, 0},
    {"clip", 0, 0},
    {"mid", .1, .9},
    {"pause", .05, .5},
    {"by_key", 0, 0},
    {"lost_by_key", 0, 0},
    {"tier_lost", .05, .5},
    {"tier_late", .05, .5},
    {"tier_stale", .05, .5},
    {"tier_lying", .05, .5},
    {"tier_failing", .05, .5},
    {"unnamed", .1, .9},
};

// The other features: sizes, and when and how calls reach the store.
struct Other {
  const char* name;
  bool (*on)(const EngineOptions&);
};
constexpr Other kOthers[] = {
    {"spec_tokens", [](const EngineOptions& o) { return o.spec_tokens > 0; }},
    {"stages", [](const EngineOptions& o) { return o.stages > 1; }},
    {"small_pages", [](const EngineOptions& o) { return o.page_tokens < o.block_tokens; }},
    {"few_pages", [](const EngineOptions& o) { return o.max_pages > 0; }},
    {"audit", [](const EngineOptions& o) { return o.audit; }},
    {"thread", [](const EngineOptions& o) { return o.timing.landing == Landing::kThread; }},
    {"at_once", [](const EngineOptions& o) { return o.timing.land_at_once; }},
    {"small_ring", [](const EngineOptions& o) { return o.max_steps_in_flight < 16; }},
    {"truncate_delay", [](const EngineOptions& o) { return o.timing.truncate_delay > 0; }},
    {"report", [](const EngineOptions& o) { return o.timing.report > 0; }},
    {"lost", [](const EngineOptions& o) { return o.timing.lost > 0; }},
    {"lag", [](const EngineOptions& o) { return o.timing.lag > 0; }},
    {"small_log", [](const EngineOptions& o) { return o.log_bytes > 0; }},
    {"slow", [](const EngineOptions& o) { return o.timing.slow > 0; }},
    {"no_memory", [](const EngineOptions& o) { return o.features.no_memory > 0; }},
};

// What no engine has together.
struct Exclusion {
  const char* feature;
  const char* others;  // with spaces around
};
constexpr Exclusion kExclusions[] = {
    // A rewind is known to the scheduler at once: an engine that sees results late does not do it.
    {"rewind", " late "},
    {"spec_tokens", " draft "},  // one in the place of the other
    // What is drawn without a landing thread.
    {"thread", " at_once lag small_log no_memory "},
};

// What only engines with rows by key have.
constexpr const char* kOfTiers[] = {"lost_by_key", "tier_lost",    "tier_late", "tier_stale",
                                    "tier_lying",  "tier_failing", "unnamed"};

bool Lists(const char* names, std::string_view name) {
  return std::string_view(names).find(" " + std::string(name) + " ") != std::string_view::npos;
}

std::vector<FeaturePair> ListPairs() {
  const std::vector<std::string_view> names = MixtureFeatures();
  std::vector<FeaturePair> pairs;
  // Neighbours first, then those that are two apart, ...: a few pairs in a row have all features.
  for (std::size_t apart = 1; apart <= names.size() / 2; ++apart) {
    for (std::size_t i = 0; i < names.size(); ++i) {
      const std::size_t j = (i + apart) % names.size();
      if (2 * apart == names.size() && j < i) continue;
      if (GoTogether(names[i], names[j])) pairs.push_back({names[i], names[j]});
    }
  }
  return pairs;
}

// The numbers of a schedule, and the pair of features that it must have.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : rng(seed) {}
  void Want(const FeaturePair& pair) { pair_ = pair; }

  [[nodiscard]] bool Wants(std::string_view feature) const {
    return pair_ && (feature == pair_->first || feature == pair_->second);
  }
  // Whether the feature goes with the pair.
  [[nodiscard]] bool Allows(std::string_view feature) const {
    return !pair_ || (GoTogether(feature, pair_->first) && GoTogether(feature, pair_->second));
  }
  // Whether the schedule has this feature, with the chance where nothing else decides.
  bool Has(std::string_view feature, double chance) {
    return Wants(feature) || (Allows(feature) && rng.Chance(chance));
  }

  Rng rng;

 private:
  std::optional<FeaturePair> pair_;
};

// ---- drawing

void DrawMixture(Draw& draw, EngineOptions& options, std::string& text) {
  Rng& rng = draw.rng;
  for (const Range& range : kRanges) {
    if (!draw.Has(range.name, .3)) continue;
    const double span = range.high - range.low;
    const double value =
        range.high == 0 ? 1 : range.low + span * static_cast<double>(rng.Below(100)) / 100;
    SetOption(options, range.name, value);
  }
  sim::Features& f = options.features;
  if (f.late) f.rewind = 0;
  // What befalls a tier is of one that is there.
  for (const char* const name : kOfTiers) {
    if (draw.Wants(name)) f.by_key = 1;
  }
  for (const char* const name : kOfTiers) {
    if (f.by_key == 0) SetOption(options, name, 0);
  }
  if (draw.Has("spec_tokens", .1)) {
    options.spec_tokens = static_cast<std::int32_t>(rng.Between(1, 4));
    f.draft = 0;
  }
  if (draw.Has("stages", .2)) options.stages = 2;
  if (draw.Has("small_pages", .2)) options.page_tokens = 2;
  if (draw.Has("few_pages", .15))
    options.max_pages = static_cast<std::int32_t>(rng.Between(12, 40));
  text = ToString(options.features) + " spec_tokens=" + std::to_string(options.spec_tokens) +
         " stages=" + std::to_string(options.stages) +
         " page_tokens=" + std::to_string(options.page_tokens) +
         " max_pages=" + std::to_string(options.max_pages);
}

// A log that is applied late; with a small one, so late that records are lost.
void DrawLag(Draw& draw, EngineOptions& options, std::string& text) {
  constexpr std::int32_t kLags[] = {3, 30, 60, 300, 100000};
  options.timing.landing = Landing::kManual;
  const bool small_log = draw.Wants("small_log");
  options.timing.lag = kLags[draw.rng.Between(small_log ? 2 : 0, std::size(kLags))];
  text += ", lag " + std::to_string(options.timing.lag);
  if (options.timing.lag < 60 || !draw.Has("small_log", .4)) return;
  options.log_bytes = 1;  // as few as the store allows
  text += ", small log";
}

void DrawSlowReaders(Draw& draw, EngineOptions& options) {
  if (options.timing.slow > 0 || !draw.Has("slow", .2)) return;
  options.timing.slow = static_cast<std::int32_t>(draw.rng.Between(1, 12));
  if (options.max_pages != 0 || options.features.tier > 0) return;
  options.max_pages = -1;
  if (draw.rng.Chance(.5)) options.spare_pages = 64;
}

void DrawLanding(Draw& draw, EngineOptions& options, std::string& text) {
  sim::Timing& timing = options.timing;
  if (draw.Has("thread", .25)) {
    timing.landing = Landing::kThread;
    timing.behind = static_cast<std::int32_t>(draw.rng.Below(4));
    timing.shuffle = draw.rng.Chance(.5);
    text += " [thread";
  } else if (draw.Has("at_once", .33)) {
    timing.land_at_once = true;
    text += " [at once";
  } else {
    if (timing.behind == 0) timing.behind = static_cast<std::int32_t>(draw.rng.Below(5));
    timing.shuffle = timing.shuffle || draw.rng.Chance(.7);
    text += " [late";
  }
}

void DrawTiming(Draw& draw, EngineOptions& options, std::string& text) {
  Rng& rng = draw.rng;
  sim::Timing& timing = options.timing;
  timing.seed = rng.Next();
  DrawLanding(draw, options, text);
  if (draw.Has("small_ring", .1)) {
    options.max_steps_in_flight = static_cast<std::uint32_t>(rng.Between(3, 8));
  }
  // vLLM-like engines announce nothing that others build on: their news may come any time.
  if (draw.Has("truncate_delay", .25)) {
    timing.truncate_delay = static_cast<std::int32_t>(rng.Between(1, 4));
  }
  text += ", behind " + std::to_string(timing.behind) + ", shuffle " +
          std::to_string(timing.shuffle) + ", ring " + std::to_string(options.max_steps_in_flight) +
          ", truncate delay " + std::to_string(timing.truncate_delay);
  if (timing.report == 0 && (draw.Has("report", .4) || draw.Wants("lost"))) {
    timing.report = static_cast<std::int32_t>(rng.Between(1, 6));
  }
  if (timing.report > 0) text += ", report " + std::to_string(timing.report);
  if (timing.report > 0 && draw.Has("lost", .1)) {
    timing.lost = rng.Chance(.5) ? .005 : .05;
    text += ", lost " + std::to_string(timing.lost);
  }
  if (timing.landing == Landing::kCaller && (draw.Has("lag", .5) || draw.Wants("small_log"))) {
    DrawLag(draw, options, text);
  }
  DrawSlowReaders(draw, options);
  // Steps in flight hold pages, too, and above all those whose records are applied late. A landing
  // thread may get no core while the engine goes on: these steps have no forward to wait for.
  if (timing.landing == Landing::kThread || timing.lag > 0) {
    options.spare_pages = EngineOptions().spare_pages;
  }
  if (timing.slow > 0) {
    text += ", slow " + std::to_string(timing.slow) + " (pages " +
            std::to_string(options.max_pages) + ", spare " + std::to_string(options.spare_pages) +
            ")";
  }
  if (timing.landing != Landing::kThread && draw.Has("no_memory", .05)) {
    options.features.no_memory = rng.Chance(.5) ? .001 : .02;
    text += ", no memory " + std::to_string(options.features.no_memory);
  }
  text += "]";
}

void Sum(const sim::CheckCounts& from, sim::CheckCounts& to) {
  to.requests += from.requests;
  to.rows += from.rows;
  to.exact += from.exact;
  to.kept += from.kept;
  to.by_key += from.by_key;
  to.wrong += from.wrong;
  to.unexplained += from.unexplained;
  for (std::size_t i = 0; i < to.missing.size(); ++i)
    to.missing[i] += from.missing[i];
}

std::string CountsText(const sim::CheckCounts& checks) {
  std::string text = "requests " + std::to_string(checks.requests) + ", rows " +
                     std::to_string(checks.rows) + ", exact " + std::to_string(checks.exact) +
                     ", kept " + std::to_string(checks.kept) + ", by key " +
                     std::to_string(checks.by_key) + ", wrong " + std::to_string(checks.wrong) +
                     ", unexplained " + std::to_string(checks.unexplained) + ", missing:";
  for (int reason = 1; reason < kNumReasons; ++reason) {
    const std::int64_t count = checks.missing[static_cast<std::size_t>(reason)];
    if (count == 0) continue;
    text +=
        " " + std::string(ReasonName(static_cast<Reason>(reason))) + " " + std::to_string(count);
  }
  return text;
}

// From tiers, row by row and stage by stage.
std::string ByKeyText(const ByKey::Counts& by_key) {
  std::string text = "from tiers " + std::to_string(by_key.rows) + ", not asked for though held " +
                     std::to_string(by_key.not_asked) + ", missing:";
  for (int cause = 1; cause < kNumCauses; ++cause) {
    const std::int64_t count = by_key.missing[static_cast<std::size_t>(cause)];
    if (count == 0) continue;
    text += " " + std::string(CauseName(static_cast<Cause>(cause))) + " " + std::to_string(count);
  }
  return text;
}

}  // namespace

std::vector<std::string_view> MixtureFeatures() {
  std::vector<std::string_view> names;
  for (const Range& range : kRanges)
    names.emplace_back(range.name);
  for (const Other& other : kOthers)
    names.emplace_back(other.name);
  return names;
}

bool GoTogether(std::string_view first, std::string_view second) {
  return std::ranges::none_of(kExclusions, [&](const Exclusion& rule) {
    return (first == rule.feature && Lists(rule.others, second)) ||
           (second == rule.feature && Lists(rule.others, first));
  });
}

std::span<const FeaturePair> FeaturePairs() {
  static const std::vector<FeaturePair> kPairs = ListPairs();
  return kPairs;
}

bool HasFeature(const EngineOptions& options, std::string_view feature) {
  for (const Other& other : kOthers)
    if (feature == other.name) return other.on(options);
  return IsOn(options.features, feature);
}

std::uint64_t SeedsOfAllPairs() {
  const std::uint64_t scenarios = sim::Scenarios().size();
  const std::uint64_t pairs = FeaturePairs().size();
  return 4 * scenarios * ((pairs + scenarios - 1) / scenarios);
}

Schedule DrawSchedule(std::uint64_t seed) {
  Schedule schedule;
  EngineOptions& options = schedule.options;
  options.seed = seed;
  options.megatron = seed % 2 == 1;
  Draw draw(sim::Mix(seed, 0xc0f));
  const auto scenarios = sim::Scenarios();
  const std::uint64_t round = seed / 2 / (2 * scenarios.size());
  const std::uint64_t turn = seed / 2 % (2 * scenarios.size());
  std::string what;
  if (turn < scenarios.size()) {
    SetOptions(options, scenarios[turn].features);
    what = scenarios[turn].name;
  } else {
    const std::span<const FeaturePair> pairs = FeaturePairs();
    schedule.pair = pairs[(round * scenarios.size() + turn - scenarios.size()) % pairs.size()];
    draw.Want(*schedule.pair);
    DrawMixture(draw, options, what);
  }
  options.audit = draw.Has("audit", .5);
  if (options.stages > 1) options.layers = 8;
  schedule.features = std::string(options.megatron ? "megatron" : "vllm") + " \"" + what + "\"" +
                      (options.audit ? " audit" : "");
  DrawTiming(draw, options, schedule.features);
  return schedule;
}

bool Outcome::clean(const Schedule& schedule) const {
  return error.empty() && checks.wrong == 0 && checks.unexplained == 0 && voided_rows == 0 &&
         (releases_below_zero == 0 || log_losses > 0 || schedule.options.features.no_memory > 0) &&
         (schedule.options.max_pages > 0 || schedule.options.few_spare() ||
          schedule.options.log_bytes > 0 || schedule.options.features.no_memory > 0 ||
          schedule.options.timing.lost > 0 || !scarce);
}

std::string Outcome::Describe(const Schedule& schedule) const {
  std::string text = "seed " + std::to_string(schedule.options.seed) + ", " +
                     std::to_string(schedule.steps) + " steps, " + schedule.features + "\n  " +
                     CountsText(checks) + ", voided rows " + std::to_string(voided_rows) +
                     ", releases below zero " + std::to_string(releases_below_zero) + "; " +
                     ByKeyText(by_key) + (scarce ? ", pages were scarce" : "") + ", log losses " +
                     std::to_string(log_losses) + (error.empty() ? "" : "\n  " + error);
  for (const std::string& finding : checks.findings)
    text += "\n  " + finding;
  return text;
}

Outcome RunSchedule(const Schedule& schedule) {
  Outcome outcome;
  EngineOptions options = schedule.options;
  ByKey* by_key = nullptr;
  options.rows_by_key = [&by_key](const EngineOptions& of, const sim::RouteOracle& oracle) {
    auto made = std::make_unique<ByKey>(of, oracle);
    by_key = made.get();
    return made;
  };
  auto engine = sim::Engine::Create(options);
  if (!engine.ok()) {
    outcome.error = std::string(engine.status().message());
    return outcome;
  }
  (*engine)->Run(schedule.steps);
  (*engine)->Finish();
  outcome.checks = (*engine)->checks();
  if (by_key != nullptr) outcome.by_key = by_key->counts();
  outcome.scarce = (*engine)->PagesShort();
  for (std::int32_t stage = 0; stage < schedule.options.stages; ++stage) {
    const Stats stats = (*engine)->StoreStats(stage);
    outcome.voided_rows += stats.audit_voided_rows;
    outcome.log_losses += stats.log_losses;
    outcome.releases_below_zero += stats.releases_below_zero;
  }
  return outcome;
}

void Totals::Add(const Outcome& outcome) {
  ++schedules;
  with_log_losses += outcome.log_losses > 0 ? 1 : 0;
  Sum(outcome.checks, checks);
  by_key.rows += outcome.by_key.rows;
  by_key.not_asked += outcome.by_key.not_asked;
  for (std::size_t i = 0; i < by_key.missing.size(); ++i)
    by_key.missing[i] += outcome.by_key.missing[i];
}

std::string Totals::ToString() const {
  return std::to_string(schedules) + " schedules, " + std::to_string(failed) + " failed, " +
         std::to_string(with_log_losses) + " lost records: " + CountsText(checks) + "; " +
         ByKeyText(by_key);
}

}  // namespace waymark::conformance
