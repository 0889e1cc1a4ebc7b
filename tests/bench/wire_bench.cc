// What rows cost on their way to a wire: the set code against a memcpy of the same ids, in turns.
//
// 32,768 rows of 58 layers, every row valid, random ids, one core, chunk by chunk of 1024 rows.
// Each chunk is timed on its own, so that its ids come from memory or the last-level cache; figures
// are lower deciles of that: nanoseconds a code (one row and layer), the bytes of the ids a second,
// the sum for all chunks. `bound` is log2 C(E, K), which no code of fixed size can beat.
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>

#include "blockstore/wire/set_code.h"
#include "blockstore/wire/set_code_tile.h"
#include "tests/bench/bench_common.h"

namespace waymark::bench {
namespace {

constexpr std::int64_t kChunkRows = 1024;
constexpr std::int64_t kChunks = 32;

std::vector<std::uint8_t> RandomIds(const SetCodeParams& params) {
  const auto top_k = static_cast<std::size_t>(params.top_k);
  const auto experts = static_cast<std::size_t>(params.num_experts);
  const std::size_t id_bytes = params.num_experts <= 256 ? 1 : 2;
  std::mt19937_64 random(11);
  std::vector<std::uint16_t> ids(experts);
  std::iota(ids.begin(), ids.end(), std::uint16_t{0});
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(kChunks * kChunkRows) * kLayers * top_k *
                                  id_bytes);
  for (std::size_t at = 0; at < bytes.size();) {
    for (std::size_t k = 0; k < top_k; ++k, at += id_bytes) {
      std::swap(ids[k], ids[k + random() % (experts - k)]);
      std::memcpy(&bytes[at], &ids[k], id_bytes);
    }
  }
  return bytes;
}

void SetCodeBothWays(benchmark::State& state, SetCodeParams params,
                     const internal::SetCodeBackend* backend) {
  const SetCode code = *SetCode::CreateWith(params, *backend);
  const std::vector<std::uint8_t> ids = RandomIds(params);
  const std::vector<RowInfo> infos(static_cast<std::size_t>(kChunkRows),
                                   RowInfo{1, 1, Reason::kNone, Provenance::kHere});
  const std::size_t id_bytes = ids.size() / kChunks;
  const std::size_t code_bytes = kLayers * code.LayerBytes(kChunkRows);
  std::vector<std::uint8_t> codes(kChunks * code_bytes);
  std::vector<std::uint8_t> copy(ids.size());
  std::vector<std::uint8_t> decoded(ids.size());
  std::vector<std::uint8_t> corrupt(infos.size());
  const auto expected = static_cast<std::size_t>(state.max_iterations) * kChunks;
  Times encoding(expected), decoding(expected), copying(expected);
  bool ok = true;
  for (auto _ : state) {
    double nanoseconds = 0;
    for (std::size_t chunk = 0; chunk < kChunks; ++chunk) {
      const std::span<const std::uint8_t> from(ids.data() + chunk * id_bytes, id_bytes);
      const std::span<std::uint8_t> to(codes.data() + chunk * code_bytes, code_bytes);
      const std::span<std::uint8_t> back(decoded.data() + chunk * id_bytes, id_bytes);
      const double encode = Time([&] { ok &= code.Encode(infos, kLayers, from, to).ok(); });
      const double decode = Time([&] {
        ok &= code.Decode(to, infos, kLayers, {0, kChunkRows, 0, kLayers}, back, corrupt)
                  .value_or(1) == 0;
      });
      copying.Add(Time([&] {
        std::memcpy(copy.data() + chunk * id_bytes, from.data(), id_bytes);
        benchmark::ClobberMemory();
      }));
      encoding.Add(encode);
      decoding.Add(decode);
      nanoseconds += encode + decode;
    }
    state.SetIterationTime(nanoseconds / 1e9);
  }
  Demand(ok, "the set code refused its own rows");
  const double cells = static_cast<double>(kChunkRows) * kLayers;
  const auto bytes = static_cast<double>(id_bytes);
  const double encode_us = encoding.Micros(0.1);
  const double decode_us = decoding.Micros(0.1);
  const double copy_us = copying.Micros(0.1);
  state.counters["encode_ns"] = encode_us * 1e3 / cells;
  state.counters["decode_ns"] = decode_us * 1e3 / cells;
  state.counters["encode_MBps"] = bytes / encode_us;
  state.counters["decode_MBps"] = bytes / decode_us;
  state.counters["memcpy_MBps"] = bytes / copy_us;
  state.counters["both_ms"] = (encode_us + decode_us) * kChunks / 1e3;
  state.counters["both_memcpys"] = (encode_us + decode_us) / copy_us;
  state.counters["MB"] = static_cast<double>(codes.size()) / 1e6;
  state.counters["raw_MB"] = static_cast<double>(ids.size()) / 1e6;
  state.counters["bits"] = code.bits();
  const double n = params.num_experts;
  const double k = params.top_k;
  state.counters["bound"] =
      (std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1)) / std::log(2.0);
}

// Every model with its default parameters by every implementation, then other parameters by
// those for this kind of processor.
const bool kRegistered = [] {
  const auto add = [](const SetCodeParams& params, const internal::SetCodeBackend& backend) {
    const std::string name = "SetCode/E" + std::to_string(params.num_experts) + "_K" +
                             std::to_string(params.top_k) + "_l" + std::to_string(params.low_bits) +
                             (params.high_bits == HighBits::kUnary ? "_unary/" : "_ranked/") +
                             backend.name;
    benchmark::RegisterBenchmark(name.c_str(), SetCodeBothWays, params, &backend)
        ->UseManualTime()
        ->Iterations(20)
        ->Unit(benchmark::kMillisecond);
  };
  const std::span<const internal::SetCodeBackend> backends = internal::SetCodeBackends();
  const std::pair<int, int> models[] = {{128, 8}, {256, 8}, {384, 8}, {512, 10}, {512, 22}};
  for (const auto& [experts, top_k] : models) {
    for (const internal::SetCodeBackend& backend : backends)
      add(SetCodeParams::Default(experts, top_k), backend);
  }
  const SetCodeParams others[] = {{256, 8, 0, HighBits::kRanked},  {256, 8, 3, HighBits::kRanked},
                                  {256, 8, 4, HighBits::kUnary},   {384, 8, 5, HighBits::kRanked},
                                  {512, 10, 5, HighBits::kRanked}, {512, 10, 5, HighBits::kUnary},
                                  {512, 22, 4, HighBits::kRanked}, {512, 22, 5, HighBits::kUnary}};
  for (const SetCodeParams& params : others) {
    for (const internal::SetCodeBackend& backend : backends.subspan(1))
      add(params, backend);
  }
  return true;
}();

}  // namespace
}  // namespace waymark::bench
