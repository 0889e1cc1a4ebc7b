#include "adapters/simulators/request.h"

#include <array>

namespace waymark::sim {

void Request::Fresh() {
  computed = sealed = 0;
  blocks.clear();
  dirty.clear();
  confirmed = -1;
  unseen = true;
  running = false;
}

void Request::HashFrom(std::int64_t first) {
  prefix.resize(stream.size() + 1);
  if (first == 0) prefix[0] = {0x243f6a8885a308d3u, 0x13198a2e03707344u};
  for (auto i = static_cast<std::size_t>(first); i < stream.size(); ++i) {
    prefix[i + 1] = prefix[i].Extend(stream[i]);
  }
}

RandomArrivals::RandomArrivals(std::uint64_t seed, double full_hit, double mute,
                               std::int32_t block_tokens)
    : full_hit_(full_hit), mute_(mute), block_tokens_(block_tokens) {
  Rng rng(Mix(seed, 0x5eed));
  for (auto& beginning : beginnings_) {
    for (std::int32_t i = 0; i < 3 * block_tokens; ++i) {
      beginning.push_back(static_cast<std::uint64_t>(rng.Below(kWords)));
    }
  }
}

bool RandomArrivals::Next(Rng& rng, std::int64_t spare, Request& request) {
  const std::int64_t b = block_tokens_;
  std::int64_t prompt = rng.Between(3, 4 * b + 2);
  request.stream = beginnings_[rng.Below(2)];
  if (rng.Chance(full_hit_)) {
    const std::array<std::int64_t, 5> full = {2 * b, 3 * b, 2 * b + 1, 3 * b + 1, b + 1};
    prompt = full[static_cast<std::size_t>(rng.Below(5))];
  }
  request.known = prompt;
  request.goal = prompt + rng.Between(3, 20);
  while (static_cast<std::int64_t>(request.stream.size()) < request.goal + spare) {
    request.stream.push_back(static_cast<std::uint64_t>(rng.Below(kWords)));
  }
  request.mute = rng.Chance(mute_);
  return true;
}

}  // namespace waymark::sim
