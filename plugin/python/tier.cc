// Rows by key: the options and the counters of a capture's tier.
#include "blockstore/wire/tier.h"

#include <string>

#include "plugin/python/capture.h"
#include "plugin/python/events.h"
#include "plugin/python/reading.h"

namespace waymark_python {

using nb::literals::operator""_a;
namespace wire = waymark::wire;

wire::TierOptions TierOptionsOf(nb::handle given) {
  wire::TierOptions options;
  if (given.is_none()) return options;
  options.get = nb::cast<const Source&>(given[0]).source;
  options.put = nb::cast<const Source&>(given[1]).source;
  options.space = nb::cast<std::string>(given[2]);
  options.key = KeyOf(given[3]);
  options.publisher = nb::cast<std::string>(given[4]);
  options.publish = nb::cast<bool>(given[5]);
  options.look_up = nb::cast<bool>(given[6]);
  options.lost = nb::cast<bool>(given[7]);
  options.timeout = std::chrono::nanoseconds(Nanoseconds(given[8]));
  options.skip = std::chrono::nanoseconds(Nanoseconds(given[9]));
  options.put_timeout = std::chrono::nanoseconds(Nanoseconds(given[10]));
  options.max_waiting = IntegerOf<std::uint64_t>(given[11], "max_waiting", 1);
  options.max_bytes = IntegerOf<std::uint64_t>(given[12], "max_bytes");
  options.time_to_live = std::chrono::nanoseconds(Nanoseconds(given[13]));
  return options;
}

void BindTier(nb::module_& module, nb::class_<Capture>& capture) {
  using Stats = wire::TierStats;
  BindCounters<Stats>(module, "TierStats", "Counters over the life of a capture's tier.",
                      {WAYMARK_TIER_COUNTERS(WAYMARK_COUNTER_OF)});
  capture
      .def_prop_ro("_has_tier",
                   [](const Capture& self) { return self.open().capture->tier() != nullptr; })
      .def(
          "tier_stats",
          [](const Capture& self) {
            const wire::Tier* const tier = self.here().capture->tier();
            return tier != nullptr ? tier->GetStats() : Stats();
          },
          "The counters of the tier; zeros without one. Any thread.")
      .def(
          "name_weights",
          [](const Capture& self, Uint64<"version"> version, const std::string& name) {
            Check(self.here().capture->NameWeights(version, name));
          },
          "version"_a, "name"_a,
          "The weights of `version` are those that every engine knows as `name`, e.g. the path of "
          "a checkpoint and its step, with those of the adapters (LoRA) in use; before the first "
          "step of the version. Without a name no other process finds the rows. Any thread.");
}

}  // namespace waymark_python
