// Validating and encoding the rows of a step (SlotCode), in all forms, against a memcpy of the
// slots of the same rows, in turns.
//
// Warm: 16 calls are timed together. Cold: one call, after a walk through 96 MB; the slots, the
// tables and the output are then not in the core's own caches. `bytes`: encoded.
#include <random>
#include <string>
#include <vector>

#include "blockstore/store/slot_code.h"
#include "tests/bench/bench_common.h"

namespace waymark::bench {
namespace {

constexpr std::int32_t kTokens = 16;
constexpr SlotLimits kLimits = {
    .num_blocks = 65536, .block_tokens = kTokens, .max_step_rows = 8192};
constexpr std::size_t kStride = 512;
constexpr std::size_t kWarmCalls = 16;

// The arrays of all forms.
struct Input {
  std::vector<std::int64_t> slots;
  std::vector<std::int32_t> block_idx, local_position;
  std::vector<std::int64_t> wide_block_idx, wide_local_position;
  PairRows pairs, wide_pairs;

  // Requests of `rows` rows each, which begin at random positions, or, with more than one row, at
  // the beginning of a block. Blocks are random.
  Input(std::size_t requests, std::int32_t rows) {
    std::mt19937_64 random(7);
    for (std::size_t r = 0; r < requests; ++r) {
      const auto blocks = static_cast<std::uint64_t>((rows + kTokens - 1) / kTokens);
      auto first = static_cast<std::int32_t>(random() % (kStride - blocks + 1) * kTokens);
      if (rows == 1) first += static_cast<std::int32_t>(random() % kTokens);
      std::vector<std::int32_t> table(kStride);
      for (std::int32_t& block : table)
        block = static_cast<std::int32_t>(random() % 65536);
      for (std::int32_t position = first; position < first + rows; ++position) {
        block_idx.push_back(table[static_cast<std::size_t>(position / kTokens)]);
        local_position.push_back(position % kTokens);
        slots.push_back(std::int64_t{block_idx.back()} * kTokens + local_position.back());
      }
    }
    wide_block_idx.assign(block_idx.begin(), block_idx.end());
    wide_local_position.assign(local_position.begin(), local_position.end());
    pairs = {.block_idx = block_idx.data(),
             .local_position = local_position.data(),
             .num_rows = block_idx.size(),
             .block_tokens = kTokens};
    wide_pairs = pairs;
    wide_pairs.block_idx = wide_block_idx.data();
    wide_pairs.local_position = wide_local_position.data();
    wide_pairs.index_bytes = 8;
  }
};

enum class Form { kSlots, kPairs, kWidePairs };

StepBatch Batch(const Input& input, Form form) {
  if (form == Form::kPairs) return {.pairs = &input.pairs};
  if (form == Form::kWidePairs) return {.pairs = &input.wide_pairs};
  return {.slots = input.slots.data(), .num_slots = input.slots.size()};
}

void Walk() {
  static std::vector<std::uint64_t> buffer((std::size_t{96} << 20) / sizeof(std::uint64_t));
  for (std::size_t i = 0; i < buffer.size(); i += 8)
    ++buffer[i];
  KeepAlive(buffer.data());
}

void EncodeRows(benchmark::State& state, std::size_t requests, std::int32_t rows, Form form,
                bool cold) {
  const Input input(requests, rows);
  const StepBatch batch = Batch(input, form);
  const std::size_t slot_bytes = input.slots.size() * sizeof(std::int64_t);
  std::vector<std::uint8_t> copy(slot_bytes);
  std::vector<std::uint8_t> out(MaxEncodedBytes(input.slots.size(), kLimits));
  std::size_t bytes = 0;
  bool ok = true;
  const std::size_t calls = cold ? 1 : kWarmCalls;
  const auto timed = [&](auto&& call) {
    if (cold) Walk();
    return Time([&] {
             for (std::size_t i = 0; i < calls; ++i)
               call();
           }) /
           static_cast<double>(calls);
  };
  Times encoding(static_cast<std::size_t>(state.max_iterations));
  Times copying(static_cast<std::size_t>(state.max_iterations));
  for (auto _ : state) {
    const double encode = timed([&] {
      ok &= EncodeSlots(batch, kLimits, out.data(), &bytes).ok();
      KeepAlive(out.data());
    });
    encoding.Add(encode);
    copying.Add(timed([&] {
      Copy(copy.data(), input.slots.data(), slot_bytes);
      KeepAlive(copy.data());
    }));
    state.SetIterationTime(encode / 1e9);
  }
  Demand(ok, "encoding failed");
  Report(state, encoding);
  state.counters["copy_p50_us"] = copying.Micros(0.5);
  state.counters["ratio"] = encoding.Micros(0.5) / copying.Micros(0.5);
  state.counters["bytes"] = static_cast<double>(bytes);
}

const int kRegistered = [] {
  struct Case {
    const char* name;
    std::size_t requests;
    std::int32_t rows;
    Form form;
  };
  constexpr Case kCases[] = {{"slots/decode256", 256, 1, Form::kSlots},
                             {"slots/prefill8192", 16, 512, Form::kSlots},
                             {"slots/scattered8192", 8192, 1, Form::kSlots},
                             {"pairs/decode256", 256, 1, Form::kPairs},
                             {"pairs/prefill8192", 16, 512, Form::kPairs},
                             {"pairs64/prefill8192", 16, 512, Form::kWidePairs}};
  for (const Case& each : kCases) {
    for (const bool cold : {false, true}) {
      const std::string name = std::string("SlotCode/") + each.name + (cold ? "/cold" : "/warm");
      benchmark::RegisterBenchmark(name.c_str(), &EncodeRows, each.requests, each.rows, each.form,
                                   cold)
          ->UseManualTime()
          ->Iterations(cold ? 60 : 2000)
          ->Unit(benchmark::kMicrosecond);
    }
  }
  return 0;
}();

}  // namespace
}  // namespace waymark::bench
