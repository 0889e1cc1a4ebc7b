#include "tests/conformance/schedules.h"

#include <cstdlib>
#include <iterator>

#include "adapters/simulators/hash.h"

namespace waymark::conformance {
namespace {

using sim::EngineOptions;
using sim::Rng;

// Features of a random mixture: each is there in about a third of the mixtures.
void DrawMixture(Rng& rng, EngineOptions& options, std::string& text) {
  struct Range {
    const char* name;
    double low, high;  // 0, 0: a switch
  };
  constexpr Range kRanges[] = {
      {"draft", .1, .9},      {"preempt", .01, .1},      {"drop", .01, .1},
      {"cancel", .01, .1},    {"abort", .01, .05},       {"reset", .003, .02},
      {"bump", .01, .1},      {"fork", .02, .2},         {"partial", .1, .9},
      {"tier", .1, 1},        {"swap", .1, 1},           {"external", .05, .3},
      {"stream", .05, .4},    {"mute", .05, .3},         {"silent", .01, .1},
      {"rewind", .01, .2},    {"full_hit", .1, .8},      {"pad", .1, .5},
      {"no_truncate", .1, 1}, {"rollback", .2, .8},      {"late", 0, 0},
      {"device", 0, 0},       {"completion_seal", 0, 0}, {"blind_truncate", 0, 0},
      {"guard", 0, 0},        {"ref_zero", 0, 0},        {"clip", 0, 0},
      {"mid", .1, .9},        {"pause", .05, .5},
  };
  for (const Range& range : kRanges) {
    if (!rng.Chance(.3)) continue;
    const double span = range.high - range.low;
    const double value =
        range.high == 0 ? 1 : range.low + span * static_cast<double>(rng.Below(100)) / 100;
    SetOption(options, range.name, value);
  }
  // A rewind is known to the scheduler at once: an engine that sees results late does not do it.
  if (options.features.late || options.features.device) options.features.rewind = 0;
  if (rng.Chance(.2)) options.stages = 2;
  if (rng.Chance(.2)) options.page_tokens = 2;
  if (rng.Chance(.15)) options.max_pages = static_cast<std::int32_t>(rng.Between(12, 40));
  text = options.features.ToString() + " stages=" + std::to_string(options.stages) +
         " page_tokens=" + std::to_string(options.page_tokens) +
         " max_pages=" + std::to_string(options.max_pages);
}

// A log that is applied late; with a small one, so late that records are lost.
void DrawLag(Rng& rng, EngineOptions& options, std::string& text) {
  constexpr std::int32_t kLags[] = {3, 30, 60, 300, 100000};
  options.timing.landing = Landing::kManual;
  options.timing.lag = kLags[rng.Below(std::size(kLags))];
  text += ", lag " + std::to_string(options.timing.lag);
  if (options.timing.lag < 60 || !rng.Chance(.4)) return;
  options.log_bytes = 1;  // as few as the store allows
  text += ", small log";
}

void DrawTiming(Rng& rng, EngineOptions& options, std::string& text) {
  sim::Timing& timing = options.timing;
  timing.seed = rng.Next();
  switch (rng.Below(4)) {
    case 0:
      timing.landing = Landing::kThread;
      timing.behind = static_cast<std::int32_t>(rng.Below(4));
      timing.shuffle = rng.Chance(.5);
      text += " [thread";
      break;
    case 1:
      timing.land_at_once = true;
      text += " [at once";
      break;
    default:
      if (timing.behind == 0) timing.behind = static_cast<std::int32_t>(rng.Below(5));
      timing.shuffle = timing.shuffle || rng.Chance(.7);
      text += " [late";
  }
  if (rng.Chance(.1)) options.max_steps_in_flight = static_cast<std::uint32_t>(rng.Between(3, 8));
  // vLLM-like engines announce nothing that others build on: their news may come any time.
  if (rng.Chance(.3)) timing.truncate_delay = static_cast<std::int32_t>(rng.Below(4));
  text += ", behind " + std::to_string(timing.behind) + ", shuffle " +
          std::to_string(timing.shuffle) + ", ring " + std::to_string(options.max_steps_in_flight) +
          ", truncate delay " + std::to_string(timing.truncate_delay);
  if (timing.report == 0 && rng.Chance(.4)) {
    timing.report = static_cast<std::int32_t>(rng.Between(1, 6));
  }
  // A scheduler in another process cannot ask what is covered.
  if (!options.features.clip && rng.Chance(.25)) {
    timing.wire = true;
    text += ", wire";
    if (rng.Chance(.3)) {
      const double chance = rng.Chance(.5) ? .02 : .2;
      timing.lost = rng.Chance(.5) ? chance : 0;
      timing.doubled = rng.Chance(.5) ? chance : 0;
      timing.restart = rng.Chance(.5) ? chance : 0;
      text += ": lost " + std::to_string(timing.lost) + ", doubled " +
              std::to_string(timing.doubled) + ", restart " + std::to_string(timing.restart);
    }
  }
  if (timing.report > 0) text += ", report " + std::to_string(timing.report);
  if (timing.landing == Landing::kCaller && rng.Chance(.5)) DrawLag(rng, options, text);
  if (timing.slow == 0 && rng.Chance(.2)) {
    timing.slow = static_cast<std::int32_t>(rng.Between(1, 12));
    if (options.max_pages == 0 && options.features.tier == 0) {
      options.max_pages = -1;
      if (rng.Chance(.5)) options.spare_pages = 64;
    }
  }
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
  if (timing.landing != Landing::kThread && rng.Chance(.05)) {
    options.features.no_memory = rng.Chance(.5) ? .001 : .02;
    text += ", no memory " + std::to_string(options.features.no_memory);
  }
  text += "]";
}

// Whether the engine reports through its adapter. Half of the vLLM-like ones that do lack the
// features for which the adapter has no call, so that it is used with all others.
void DrawAdapter(EngineOptions& options, std::string& text) {
  Rng rng(sim::Mix(options.seed, 0xada));
  options.adapter = rng.Chance(.7);
  if (!options.adapter) return;
  text += ", adapter";
  if (options.megatron) return;
  const bool for_all = rng.Chance(.5);
  options.decodes = rng.Chance(.7);
  const bool derived = options.decodes && rng.Chance(.5);
  if (!for_all) return;
  text += " (for all)";
  sim::Features& f = options.features;
  f.swap = 0;
  f.completion_seal = f.blind_truncate = f.clip = false;
  options.timing.restart = 0;
  if (!derived) return;
  text += ", events of decodes derived";
  f.draft = f.cancel = f.rewind = f.tier = f.external = 0;
  f.device = false;
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

}  // namespace

Schedule DrawSchedule(std::uint64_t seed) {
  Schedule schedule;
  EngineOptions& options = schedule.options;
  options.seed = seed;
  Rng rng(sim::Mix(seed, 0xc0f));
  const auto scenarios = sim::Scenarios();
  options.megatron = seed % 2 == 1;
  const std::uint64_t turn = seed / 2 % (2 * scenarios.size());
  std::string what;
  if (turn < scenarios.size()) {
    SetOptions(options, scenarios[turn].features);
    what = scenarios[turn].name;
  } else {
    DrawMixture(rng, options, what);
  }
  options.audit = rng.Chance(.5);
  if (options.stages > 1) options.layers = 8;
  schedule.features = std::string(options.megatron ? "megatron" : "vllm") + " \"" + what + "\"" +
                      (options.audit ? " audit" : "");
  DrawTiming(rng, options, schedule.features);
  DrawAdapter(options, schedule.features);
  return schedule;
}

bool Outcome::clean(const Schedule& schedule) const {
  return error.empty() && checks.wrong == 0 && checks.unexplained == 0 &&
         (voided_rows == 0 || schedule.options.timing.lost > 0) &&
         (releases_below_zero == 0 || log_losses > 0 || schedule.options.features.no_memory > 0) &&
         (schedule.options.max_pages > 0 || schedule.options.log_bytes > 0 ||
          schedule.options.features.no_memory > 0 || schedule.options.timing.lost > 0 ||
          schedule.options.timing.restart > 0 || !scarce);
}

std::string Outcome::Describe(const Schedule& schedule) const {
  std::string text = "seed " + std::to_string(schedule.options.seed) + ", " +
                     std::to_string(schedule.steps) + " steps, " + schedule.features + "\n  " +
                     CountsText(checks) + ", voided rows " + std::to_string(voided_rows) +
                     ", releases below zero " + std::to_string(releases_below_zero) +
                     (scarce ? ", pages were scarce" : "") + ", log losses " +
                     std::to_string(log_losses) + (error.empty() ? "" : "\n  " + error);
  for (const std::string& finding : checks.findings)
    text += "\n  " + finding;
  return text;
}

Outcome RunSchedule(const Schedule& schedule) {
  Outcome outcome;
  auto engine = sim::Engine::Create(schedule.options);
  if (!engine.ok()) {
    outcome.error = std::string(engine.status().message());
    return outcome;
  }
  (*engine)->Run(schedule.steps);
  (*engine)->Finish();
  outcome.checks = (*engine)->checks();
  outcome.scarce = (*engine)->PagesShort();
  outcome.adapter = (*engine)->through_adapter();
  for (std::int32_t stage = 0; stage < schedule.options.stages; ++stage) {
    const Stats stats = (*engine)->StoreStats(stage);
    outcome.voided_rows += stats.audit_voided_rows;
    outcome.log_losses += stats.log_losses;
    outcome.releases_below_zero += stats.releases_below_zero;
    outcome.pages_copied_out += stats.pages_copied_out;
  }
  return outcome;
}

void Totals::Add(const Outcome& outcome) {
  ++schedules;
  with_log_losses += outcome.log_losses > 0 ? 1 : 0;
  with_copies += outcome.pages_copied_out > 0 ? 1 : 0;
  with_adapter += outcome.adapter ? 1 : 0;
  Sum(outcome.checks, checks);
}

std::string Totals::ToString() const {
  return std::to_string(schedules) + " schedules, " + std::to_string(failed) + " failed, " +
         std::to_string(with_adapter) + " through an adapter, " + std::to_string(with_log_losses) +
         " lost records, " + std::to_string(with_copies) +
         " copied pages out: " + CountsText(checks);
}

std::uint64_t FromEnvironment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? otherwise : std::strtoull(text, nullptr, 10);
}

}  // namespace waymark::conformance
