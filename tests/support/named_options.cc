#include "tests/support/named_options.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"

namespace waymark::sim {
namespace {

struct Feature {
  const char* name;
  double Features::*field;
};
#define WAYMARK_SIM_FEATURE(name, meaning) {#name, &Features::name},
constexpr Feature kFeatures[] = {WAYMARK_SIM_FEATURES(WAYMARK_SIM_FEATURE)};

// The feature with this name; null if there is none.
const Feature* Find(std::string_view name) {
  const auto* found = std::ranges::find(kFeatures, name, &Feature::name);
  return found == std::end(kFeatures) ? nullptr : found;
}

#define WAYMARK_SIM_FULL                                                                   \
  "draft=.5 preempt=.03 abort=.01 bump=.02 fork=.05 partial=.3 tier=.5 swap=.3 stream=.1 " \
  "rewind=.03 full_hit=.4 pad=.3 behind=3 shuffle=1 "
#define WAYMARK_SIM_HARM "drop=.03 cancel=.03 reset=.005 external=.1 mute=.1 silent=.03 "

constexpr Scenario kScenarios[] = {
    {"plain", ""},
    {"drafts", "draft=.6"},
    {"late results", "draft=.6 late=1"},
    {"begun far ahead", "draft=.5 behind=4 shuffle=1"},
    {"preempt, resume", "preempt=.1 draft=.4"},
    {"drop", "drop=.05 draft=.5"},
    {"cancel", "cancel=.05 draft=.5"},
    {"abort", "abort=.05 draft=.5"},
    {"reset", "reset=.02"},
    {"version bump", "bump=.1 draft=.4 full_hit=.4"},
    {"fork", "fork=.2 draft=.4"},
    {"partial copy", "partial=.8 draft=.3"},
    {"tier by key", "tier=.9 bump=.02"},
    {"swap by id", "swap=.9 bump=.02"},
    {"external", "external=.3"},
    {"stream", "stream=.4 draft=.4"},
    {"not asked, silent", "mute=.2 silent=.05 pad=.3"},
    {"rewind", "rewind=.2 draft=.4 tier=.5"},
    {"full hits", "full_hit=.7 drop=.03"},
    {"sealed at completion", "completion_seal=1 draft=.5 full_hit=.6"},
    {"stages", "stages=2 drop=.03 draft=.4 preempt=.05 full_hit=.4"},
    {"few pages", "max_pages=14 draft=.4 stream=.05"},
    {"slow readers", "max_pages=-1 slow=8 draft=.4 preempt=.05 stream=.2 fork=.05"},
    {"slower readers", "max_pages=-1 slow=24 draft=.4 preempt=.05 stream=.2 fork=.05"},
    {"small pages", "page_tokens=2 draft=.5 fork=.1 partial=.3"},
    {"no truncate", "no_truncate=1 draft=.6 late=1"},
    {"dummy block", "guard=1 full_hit=.7 draft=.4 drop=.03"},
    {"reference zero", "ref_zero=1 full_hit=.6 draft=.4"},
    {"clipped hits", "clip=1 drop=.05 draft=.4 external=.2"},
    {"read after the release", "after=.6 draft=.4 preempt=.05 full_hit=.4 fork=.1 bump=.05"},
    {"all harmless", WAYMARK_SIM_FULL},
    {"all", WAYMARK_SIM_FULL WAYMARK_SIM_HARM},
    {"all, late", WAYMARK_SIM_FULL WAYMARK_SIM_HARM "late=1 rewind=0"},
    {"all, few pages", WAYMARK_SIM_FULL WAYMARK_SIM_HARM "max_pages=16"},
    {"all, slow readers", WAYMARK_SIM_FULL WAYMARK_SIM_HARM "max_pages=-1 slow=12 tier=0"},
    {"all, slower readers", WAYMARK_SIM_FULL WAYMARK_SIM_HARM "max_pages=-1 slow=24 tier=0"},
    {"all, stages", WAYMARK_SIM_FULL WAYMARK_SIM_HARM "stages=2"},
    {"all, completion", WAYMARK_SIM_FULL WAYMARK_SIM_HARM "completion_seal=1 page_tokens=2"},
    {"in the middle", "mid=.6 preempt=.1 abort=.05 fork=.1 draft=.4 report=2"},
    {"all, in the middle", WAYMARK_SIM_FULL WAYMARK_SIM_HARM "mid=.5 report=3"},
    {"paused", "pause=.4 preempt=.1 draft=.4 full_hit=.4"},
    {"all, paused", WAYMARK_SIM_FULL WAYMARK_SIM_HARM "pause=.2"},
    {"all, read after the release", WAYMARK_SIM_FULL WAYMARK_SIM_HARM "after=.5"},
};

}  // namespace

bool SetFeature(Features& features, std::string_view name, double value) {
  const Feature* feature = Find(name);
  if (feature != nullptr) features.*feature->field = value;
  return feature != nullptr;
}

bool IsOn(const Features& features, std::string_view name) {
  const Feature* feature = Find(name);
  return feature != nullptr && features.*feature->field > 0;
}

std::string ToString(const Features& features) {
  std::string out;
  for (const Feature& feature : kFeatures) {
    if (features.*feature.field == 0) continue;
    absl::StrAppend(&out, out.empty() ? "" : " ", feature.name, "=", features.*feature.field);
  }
  return out;
}

std::span<const Scenario> Scenarios() {
  return kScenarios;
}

bool SetOption(EngineOptions& options, std::string_view name, double value) {
  using Field = std::variant<std::int32_t*, std::uint32_t*, double*, bool*>;
  Timing& timing = options.timing;
  const std::pair<const char*, Field> fields[] = {
      {"behind", &timing.behind},
      {"truncate_delay", &timing.truncate_delay},
      {"seal_delay", &timing.seal_delay},
      {"lag", &timing.lag},
      {"report", &timing.report},
      {"slow", &timing.slow},
      {"lost", &timing.lost},
      {"shuffle", &timing.shuffle},
      {"land_at_once", &timing.land_at_once},
      {"log_bytes", &options.log_bytes},
      {"block_tokens", &options.block_tokens},
      {"page_tokens", &options.page_tokens},
      {"blocks", &options.blocks},
      {"host_blocks", &options.host_blocks},
      {"tier_keys", &options.tier_keys},
      {"max_pages", &options.max_pages},
      {"spare", &options.spare_pages},
      {"stages", &options.stages},
      {"layers", &options.layers},
      {"top_k", &options.top_k},
      {"experts", &options.experts},
      {"max_running", &options.max_running},
      {"spec_tokens", &options.spec_tokens},
      {"ring", &options.max_steps_in_flight},
      {"audit", &options.audit},
  };
  for (const auto& [field_name, field] : fields) {
    if (name != field_name) continue;
    const auto set = [value](auto* to) {
      *to = static_cast<std::remove_pointer_t<decltype(to)>>(value);
    };
    std::visit(set, field);
    return true;
  }
  if (name == "thread") {
    timing.landing = value != 0 ? Landing::kThread : Landing::kCaller;
  } else if (name == "manual") {
    timing.landing = value != 0 ? Landing::kManual : Landing::kCaller;
  } else {
    return SetFeature(options.features, name, value);
  }
  return true;
}

bool SetOptions(EngineOptions& options, std::string_view text) {
  while (!text.empty()) {
    const std::size_t end = text.find(' ');
    const std::string word(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (word.empty()) continue;
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos) return false;
    double value = 0;
    const char* last = word.data() + word.size();
    const auto parsed = std::from_chars(word.data() + equals + 1, last, value);
    if (parsed.ec != std::errc() || parsed.ptr != last) return false;
    if (!SetOption(options, std::string_view(word).substr(0, equals), value)) return false;
  }
  return true;
}

}  // namespace waymark::sim
