// Routing as a warp does it: one row, from its logits to its ids and weights. Internal to kernels.
//
// RouteRow is the body of every CUDA variant, written once over a Warp (warp.h), the two policies
// of a method, and how many quads of experts a lane holds (routing_policy.h). It is compiled by
// nvcc for devices and by any compiler for the emulated warp that tests run it on.
//
// Shape of the code, and why:
//   - A row stays in registers from its load to its stores. What goes through them is Unrolled, so
//     that no register is indexed at run time: that would put the array into memory.
//   - Each lane offers its best candidate, and the warp takes the greatest of the 32 with two
//     reductions (the key, then the least id of the lanes that have it), top_k times. The second
//     one breaks the tie and broadcasts the id in one instruction; a ballot and the find-first,
//     shuffle and compare behind it are one more (counts: docs/internals/kernels.md). Keys do not
//     change: the last candidate that a lane gave describes all that it gave. A lane keeps its two
//     best, since most lanes give two at most, and searches its keys again only when both are gone.
//   - Lane k holds the k-th result, and makes its weight and its stores.
#ifndef WAYMARK_KERNELS_ROUTING_KERNEL_H_
#define WAYMARK_KERNELS_ROUTING_KERNEL_H_

#include <cassert>
#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/device_code.h"
#include "kernels/routing.h"
#include "kernels/routing_math.h"
#include "kernels/routing_policy.h"

namespace waymark::kernels::routing {

// The arguments of a launch, already checked. Plain data that owns nothing: what it points to lies
// on the device of the launch, and must stay until the stream has passed it. Strides in elements.
struct RouteArgs {
  const void* logits = nullptr;             // [rows, num_experts], of the kernel's type of logits
  const float* bias = nullptr;              // [num_experts]; null: none
  std::int32_t* ids = nullptr;              // [rows, top_k]
  void* weights = nullptr;                  // [rows, top_k], float32 or bfloat16
  std::int16_t* replay_out = nullptr;       // [rows, top_k]; null: not recorded
  const std::int16_t* replay_in = nullptr;  // [rows, top_k]; null: nothing is replayed
  std::uint8_t* routed = nullptr;           // [rows]: 1 where a row is missing
  std::int64_t logits_stride = 0;
  std::int64_t ids_stride = 0;
  std::int64_t weights_stride = 0;
  std::int64_t replay_out_stride = 0;
  std::int64_t replay_in_stride = 0;
  std::int32_t rows = 0;
  std::int32_t num_experts = 0;
  std::int32_t top_k = 0;
  std::int32_t num_groups = 1;
  std::int32_t topk_groups = 1;
  std::int32_t group_experts = 0;  // E / num_groups
  std::int32_t group_shift = 0;    // its logarithm, where it is a power of two
  Scaling scaling;
  bool bfloat16_weights = false;
  bool whole_quads = false;  // four adjacent logits, and biases, can be loaded at once, in each row
};

// Calls visit(0) ... visit(kCount - 1), without a loop.
template <int kCount, class Visit>
WAYMARK_DEVICE void Unrolled(Visit&& visit) {
  [&]<int... kIndices>(std::integer_sequence<int, kIndices...>) {
    (visit(kIndices), ...);
  }
  (std::make_integer_sequence<int, kCount>());
}

// ---- logits as they are stored

template <DType kType>
struct Stored;
template <>
struct Stored<DType::kFloat32> {
  using Type = float;
  static constexpr bool kIsShort = false;
  WAYMARK_HOST_DEVICE static float Value(float stored) { return stored; }
};
template <>
struct Stored<DType::kBfloat16> {
  using Type = std::uint16_t;
  static constexpr bool kIsShort = true;
  WAYMARK_HOST_DEVICE static float Value(std::uint16_t stored) { return FromBfloat16(stored); }
};
template <>
struct Stored<DType::kFloat16> {
  using Type = std::uint16_t;
  static constexpr bool kIsShort = true;
  WAYMARK_HOST_DEVICE static float Value(std::uint16_t stored) { return FromFloat16(stored); }
};

template <class T>
WAYMARK_DEVICE void LoadQuad(const T* from, T (&to)[4]) {
  struct alignas(4 * sizeof(T)) Quad {
    T values[4];
  };
#if !defined(__CUDA_ARCH__)
  assert(reinterpret_cast<std::uintptr_t>(from) % sizeof(Quad) == 0);
#endif
  Quad quad;
  std::memcpy(&quad, __builtin_assume_aligned(from, sizeof(Quad)), sizeof(Quad));
  Unrolled<4>([&](int j) { to[j] = quad.values[j]; });
}

// ---- the row

// An expert and its key; key 0: none, whatever the expert.
struct Candidate {
  std::uint32_t key = 0;
  std::int32_t expert = -1;
};

// A float16 has 13 bits less of mantissa than a float32, a bfloat16 has 16: the low bits of their
// keys carry no information, and have room for the expert. Such keys are unique, ties are in their
// order, and one reduction finds the best of a warp instead of two.
inline constexpr std::uint32_t kExpertBits = 0x1fff;
static_assert(kMaxExperts - 1 <= kExpertBits);
WAYMARK_DEVICE std::uint32_t WithExpert(std::uint32_t key, std::int32_t expert) {
  return (key & ~kExpertBits) | (kExpertBits - static_cast<std::uint32_t>(expert));
}
WAYMARK_DEVICE std::int32_t ExpertOf(std::uint32_t key) {
  return static_cast<std::int32_t>(kExpertBits - (key & kExpertBits));
}

template <class Warp, class Score, DType kLogits, int kQuads>
class Row {
 public:
  WAYMARK_DEVICE Row(const Warp& warp, const RouteArgs& args, std::int64_t row)
      : warp_(warp),
        args_(args),
        row_(row),
        logits_(static_cast<const LogitType*>(args.logits) + row * args.logits_stride) {}

  // The logit of any expert, canonical.
  [[nodiscard]] WAYMARK_DEVICE float Logit(std::int32_t expert) const {
    return Canonical(Stored<kLogits>::Value(logits_[expert]));
  }

  // The same from a key that LoadKeys made. REQUIRES: Score::kIsLogit.
  [[nodiscard]] static WAYMARK_DEVICE float LogitOf(std::uint32_t key) {
    const float logit = OfKey(key);
    return kUnique ? FromBits(Bits(logit) & ~kExpertBits) : logit;
  }

  // Makes the keys of all experts.
  WAYMARK_DEVICE void LoadKeys() {
    LogitType logits[kQuads][4] = {};
    float biases[kQuads][4] = {};
    // All loads before all arithmetic: their latencies overlap.
    if (args_.whole_quads) {
      Unrolled<kQuads>([&](int q) {
        const std::int32_t first = ExpertAt(q, 0);
        if (first >= args_.num_experts) return;
        LoadQuad(logits_ + first, logits[q]);
        if (!Score::kIsLogit && args_.bias != nullptr) LoadQuad(args_.bias + first, biases[q]);
      });
    } else {
      ForEachKey([&](int q, int j) {
        const std::int32_t expert = ExpertAt(q, j);
        if (expert >= args_.num_experts) return;
        logits[q][j] = logits_[expert];
        if (!Score::kIsLogit && args_.bias != nullptr) biases[q][j] = args_.bias[expert];
      });
    }
    ForEachKey([&](int q, int j) {
      const float logit = Canonical(Stored<kLogits>::Value(logits[q][j]));
      const std::uint32_t key = KeyOf(Score::Key(logit, biases[q][j]));
      keys_[q][j] = kUnique ? WithExpert(key, ExpertAt(q, j)) : key;
    });
    // The same for all lanes, so that the usual numbers of experts pass by.
    if (args_.num_experts < kQuads * kQuadExperts) {
      ForEachKey([&](int q, int j) {
        if (ExpertAt(q, j) >= args_.num_experts) keys_[q][j] = 0;
      });
    }
  }

  // The greatest logit, and the sum over all experts of Weight::Term(logit, it). REQUIRES: the keys
  // are the logits'.
  [[nodiscard]] WAYMARK_DEVICE float MaxOfAll() const {
    std::uint32_t max = 0;
    ForEachKey([&](int q, int j) { max = Greater(max, keys_[q][j]); });
    return LogitOf(warp_.Max(max));
  }
  template <class Weight>
  [[nodiscard]] WAYMARK_DEVICE float SumOfAll(float max) const {
    float columns[4] = {};
    ForEachKey([&](int q, int j) {
      const float term = Weight::Term(LogitOf(keys_[q][j]), max);
      columns[j] += keys_[q][j] != 0 ? term : 0.0f;
    });
    return Sum((columns[0] + columns[1]) + (columns[2] + columns[3]));
  }

  // Of all lanes' values, pairwise: 16 apart, then 8, 4, 2 and 1.
  [[nodiscard]] WAYMARK_DEVICE float Sum(float value) const {
    Unrolled<5>([&](int i) { value += warp_.ShuffleXor(value, 16 >> i); });
    return value;
  }

  // Gives lane k the k-th of the keys' order, lanes from top_k on nothing.
  [[nodiscard]] WAYMARK_DEVICE Candidate Select() const {
    Candidate mine;
    Pair best = TwoBest<true>({});
    for (std::int32_t k = 0; k < args_.top_k; ++k) {
      const std::uint32_t key = warp_.Max(best.first.key);
      bool given = best.first.key == key;
      std::int32_t expert = -1;
      if constexpr (!kUnique) {
        const auto offered = static_cast<std::uint32_t>(best.first.expert);
        expert = static_cast<std::int32_t>(warp_.Min(given ? offered : ~0u));
        given = best.first.expert == expert;
      }
      if (warp_.lane() == k) mine = {key, expert};
      if (!given) continue;
      if (best.second.key != 0) {
        best.first = best.second;
        best.second = {};
      } else {
        best = TwoBest<false>(best.first);
      }
    }
    if constexpr (kUnique) mine.expert = ExpertOf(mine.key);
    return mine;
  }

  // Makes the keys 0 of experts whose group is not kept. What lies past the last group has 0 as key
  // already.
  WAYMARK_DEVICE void MaskGroups() {
    const std::int32_t size = args_.group_experts;
    if (size >= 4 && size <= kQuadExperts && (size & (size - 1)) == 0) {
      const std::uint32_t kept = BestGroups(ScoreOfAlignedGroup());
      Unrolled<kQuads>([&](int q) {
        const std::int32_t group = ExpertAt(q, 0) >> args_.group_shift;
        if ((kept >> (group & 31) & 1) != 0) return;
        Unrolled<4>([&](int j) { keys_[q][j] = 0; });
      });
    } else {
      const std::uint32_t kept = BestGroups(ScoreOfAnyGroup());
      ForEachKey([&](int q, int j) {
        const std::int32_t group = ExpertAt(q, j) / size;
        if ((kept >> (group & 31) & 1) == 0) keys_[q][j] = 0;
      });
    }
  }

 private:
  using LogitType = typename Stored<kLogits>::Type;
  // Whether a key holds its expert (WithExpert).
  static constexpr bool kUnique = Score::kIsLogit && Stored<kLogits>::kIsShort;
  struct Pair {
    Candidate first, second;
  };

  [[nodiscard]] WAYMARK_DEVICE std::int32_t ExpertAt(int q, int j) const {
    return q * kQuadExperts + 4 * warp_.lane() + j;
  }

  // In ascending order of the lane's experts.
  template <class Visit>
  static WAYMARK_DEVICE void ForEachKey(Visit&& visit) {
    Unrolled<kQuads>([&](int q) { Unrolled<4>([&](int j) { visit(q, j); }); });
  }

  // This lane's two best of those that come after `last`; of all, when it is the first time.
  template <bool kFirst>
  [[nodiscard]] WAYMARK_DEVICE Pair TwoBest(Candidate last) const {
    return TwoBestOf<kFirst, 0, 4 * kQuads>(last);
  }
  // Of kCount keys from the kBegin-th on: of each half, and then of both. A tree needs fewer
  // comparisons than one key after the other.
  template <bool kFirst, int kBegin, int kCount>
  [[nodiscard]] WAYMARK_DEVICE Pair TwoBestOf(Candidate last) const {
    if constexpr (kCount == 1) {
      constexpr int kQuad = kBegin / 4, kIndex = kBegin % 4;
      Candidate only = {keys_[kQuad][kIndex], ExpertAt(kQuad, kIndex)};
      const bool comes_after =
          only.key < last.key || (!kUnique && only.key == last.key && only.expert > last.expert);
      if (!kFirst && !comes_after) only.key = 0;
      return {only, {}};
    } else {
      const Pair low = TwoBestOf<kFirst, kBegin, kCount / 2>(last);
      const Pair high = TwoBestOf<kFirst, kBegin + kCount / 2, kCount - kCount / 2>(last);
      Pair best = low;
      if constexpr (kUnique) {
        Merge(best.first.key, best.second.key, high.first.key, high.second.key);
        return best;
      }
      // Of equal keys the low half's stay ahead: its experts are the lower ones.
      const bool taken = high.first.key > low.first.key;
      if constexpr (kCount == 2) {
        return taken ? Pair{high.first, low.first} : Pair{low.first, high.first};
      }
      const Candidate next_low = taken ? low.first : low.second;
      const Candidate next_high = taken ? high.second : high.first;
      best.first = taken ? high.first : low.first;
      best.second = next_high.key > next_low.key ? next_high : next_low;
      return best;
    }
  }

  // The two greatest keys of two sets, from the two of each.
  static WAYMARK_DEVICE void Merge(std::uint32_t& first, std::uint32_t& second,
                                   std::uint32_t other_first, std::uint32_t other_second) {
    const std::uint32_t less = Less(first, other_first);
    first = Greater(first, other_first);
    second = Greater(less, Greater(second, other_second));
  }
  static WAYMARK_DEVICE std::uint32_t Greater(std::uint32_t a, std::uint32_t b) {
    return a > b ? a : b;
  }
  static WAYMARK_DEVICE std::uint32_t Less(std::uint32_t a, std::uint32_t b) {
    return a < b ? a : b;
  }

  // The score of group lane(), 0 from num_groups on. Groups are a power of two of whole lanes of a
  // quad: each quad finds the scores of its groups between neighbours.
  [[nodiscard]] WAYMARK_DEVICE std::uint32_t ScoreOfAlignedGroup() const {
    const std::int32_t first_expert = warp_.lane() << args_.group_shift;
    std::uint32_t mine = 0;
    Unrolled<kQuads>([&](int q) {
      std::uint32_t first = 0, second = 0;
      Unrolled<4>([&](int j) { Merge(first, second, keys_[q][j], 0); });
      for (std::int32_t apart = 1; 4 * apart < args_.group_experts; apart *= 2) {
        const std::uint32_t other_first = warp_.ShuffleXor(first, apart);
        const std::uint32_t other_second = warp_.ShuffleXor(second, apart);
        Merge(first, second, other_first, other_second);
      }
      const std::uint32_t score = first == 0 ? 0 : GroupScore(first, second);
      const std::uint32_t theirs = warp_.Shuffle(score, (first_expert / 4) % kWarpLanes);
      if (first_expert / kQuadExperts == q) mine = theirs;
    });
    return warp_.lane() < args_.num_groups ? mine : 0;
  }

  // The same of groups of any size, one after the other.
  [[nodiscard]] WAYMARK_DEVICE std::uint32_t ScoreOfAnyGroup() const {
    std::uint32_t mine = 0;
    for (std::int32_t group = 0; group < args_.num_groups; ++group) {
      const std::int32_t begin = group * args_.group_experts;
      std::uint32_t first = 0, second = 0;
      ForEachKey([&](int q, int j) {
        const std::int32_t expert = ExpertAt(q, j);
        const bool inside = expert >= begin && expert < begin + args_.group_experts;
        Merge(first, second, inside ? keys_[q][j] : 0, 0);
      });
      const std::uint32_t greatest = warp_.Max(first);
      const std::uint32_t holders = warp_.Ballot(first == greatest);
      // One holder gives it away; a second one has it for the second.
      const bool gives = (holders & (holders - 1)) == 0 && first == greatest;
      const std::uint32_t next = warp_.Max(gives ? second : first);
      if (warp_.lane() == group) mine = GroupScore(greatest, next);
    }
    return mine;
  }

  // Bit g: whether group g is one of the best. `score` of lane g is its score.
  [[nodiscard]] WAYMARK_DEVICE std::uint32_t BestGroups(std::uint32_t score) const {
    std::uint32_t kept = 0;
    for (std::int32_t i = 0; i < args_.topk_groups; ++i) {
      const std::uint32_t greatest = warp_.Max(score);
      const std::uint32_t holders = warp_.Ballot(score == greatest);
      const std::uint32_t lowest = holders & (0 - holders);
      kept |= lowest;
      if (lowest == 1u << warp_.lane()) score = 0;
    }
    return kept;
  }

  const Warp& warp_;
  const RouteArgs& args_;
  const std::int64_t row_;
  const LogitType* const logits_;
  std::uint32_t keys_[kQuads][4];  // of expert ExpertAt(q, j); 0: it may not be selected
};

// ---- the kernel

// The recorded id of lane k, or -1 where the row is missing; the same lanes have -1 in both cases.
template <class Warp>
[[nodiscard]] WAYMARK_DEVICE bool ReplayedRow(const Warp& warp, const RouteArgs& args,
                                              std::int64_t row, std::int32_t& expert) {
  const bool mine = warp.lane() < args.top_k;
  if (mine) expert = args.replay_in[row * args.replay_in_stride + warp.lane()];
  // What lanes without an id compare is never an id, nor the same.
  const std::uint32_t twins =
      warp.Match(static_cast<std::uint32_t>(mine ? expert : -1 - 0x10000 * (1 + warp.lane())));
  const bool good =
      !mine || (expert >= 0 && expert < args.num_experts && (twins & (twins - 1)) == 0);
  return warp.Ballot(good) == kAllLanes;
}

// The one place where results are written.
WAYMARK_DEVICE void StoreResult(const RouteArgs& args, std::int64_t row, int k, std::int32_t expert,
                                float weight) {
  args.ids[row * args.ids_stride + k] = expert;
  if (args.bfloat16_weights) {
    static_cast<std::uint16_t*>(args.weights)[row * args.weights_stride + k] = ToBfloat16(weight);
  } else {
    static_cast<float*>(args.weights)[row * args.weights_stride + k] = weight;
  }
  if (args.replay_out != nullptr) {
    args.replay_out[row * args.replay_out_stride + k] = static_cast<std::int16_t>(expert);
  }
}

// Routes one row. REQUIRES: row < args.rows; the variant fits the call (VisitVariant).
template <class Score, class Weight, bool kGrouped, int kQuads, DType kLogits, class Warp>
WAYMARK_DEVICE void RouteRow(const Warp& warp, const RouteArgs& args, std::int64_t row) {
  constexpr bool kNeedsAll = Weight::kSum == Over::kAll;
  static_assert(!kNeedsAll || Score::kIsLogit, "SumOfAll takes the logits from their keys");
  Row<Warp, Score, kLogits, kQuads> experts(warp, args, row);

  Candidate mine;
  const bool replayed = args.replay_in != nullptr && ReplayedRow(warp, args, row, mine.expert);
  if (kNeedsAll || !replayed) experts.LoadKeys();
  if (!replayed) {
    if constexpr (kGrouped) experts.MaskGroups();
    mine = experts.Select();
  }
  if (args.routed != nullptr && warp.lane() == 0) args.routed[row] = replayed ? 0 : 1;

  const bool has_one = warp.lane() < args.top_k;
  float logit = 0.0f;
  if (Score::kIsLogit && !replayed) {
    if (has_one) logit = experts.LogitOf(mine.key);
  } else if (has_one) {
    logit = experts.Logit(mine.expert);
  }
  float max = 0.0f;
  if constexpr (Weight::kUsesMax) {
    max = kNeedsAll ? experts.MaxOfAll() : OfKey(warp.Max(has_one ? KeyOf(logit) : 0));
  }
  const float term = has_one ? Weight::Term(logit, max) : 0.0f;
  float sum = 0.0f;
  if constexpr (Weight::kSum == Over::kSelected) sum = experts.Sum(term);
  if constexpr (kNeedsAll) sum = experts.template SumOfAll<Weight>(max);
  if (has_one) {
    StoreResult(args, row, warp.lane(), mine.expert, Weight::Weight(term, sum, args.scaling));
  }
}

// ---- which variant

// Calls visitor.operator()<Score, Weight, kGrouped, kQuads>() of the variant that a checked call
// takes; what the tables of routing_policy.h do not differ in, shares one. The type of the logits
// is left to the visitor: each is compiled on its own.
template <class Visitor>
void VisitVariant(const RoutingConfig& config, std::int64_t num_experts, Visitor&& visitor) {
  Methods::Visit(config.method, [&]<class M>() {
    Tiers::Visit(static_cast<std::int32_t>(num_experts), [&]<std::int32_t kQuads>() {
      using Score = typename M::Score;
      using Weight = typename M::Weight;
      if constexpr (M::kTakesGroups) {
        if (config.num_groups > 1) {
          visitor.template operator()<Score, Weight, true, kQuads>();
          return;
        }
      }
      visitor.template operator()<Score, Weight, false, kQuads>();
    });
  });
}

// ---- arguments of a checked call

// Allocates nothing and looks at no element. REQUIRES: CheckRouting passed.
inline RouteArgs MakeRouteArgs(const RoutingConfig& config, const RoutingTensors& tensors) {
  const Tensor& logits = tensors.logits;
  RouteArgs args;
  args.logits = logits.data;
  args.bias = static_cast<const float*>(tensors.bias.data);
  args.ids = static_cast<std::int32_t*>(tensors.topk_ids.data);
  args.weights = tensors.topk_weights.data;
  args.replay_out = static_cast<std::int16_t*>(tensors.replay_out.data);
  args.replay_in = static_cast<const std::int16_t*>(tensors.replay_in.data);
  args.routed = static_cast<std::uint8_t*>(tensors.routed.data);
  args.logits_stride = logits.stride[0];
  args.ids_stride = tensors.topk_ids.stride[0];
  args.weights_stride = tensors.topk_weights.stride[0];
  args.replay_out_stride = tensors.replay_out.stride[0];
  args.replay_in_stride = tensors.replay_in.stride[0];
  args.rows = static_cast<std::int32_t>(logits.shape[0]);
  args.num_experts = static_cast<std::int32_t>(logits.shape[1]);
  args.top_k = config.top_k;
  args.num_groups = config.num_groups;
  args.topk_groups = config.topk_groups;
  args.group_experts = args.num_experts / config.num_groups;
  while (2 << args.group_shift <= args.group_experts)
    ++args.group_shift;
  args.scaling = {config.scale, config.normalize};
  args.bfloat16_weights = tensors.topk_weights.dtype == DType::kBfloat16;
  const auto aligned = [](const void* data, std::size_t bytes) {
    return reinterpret_cast<std::uintptr_t>(data) % bytes == 0;
  };
  args.whole_quads = args.num_experts % 4 == 0 &&
                     aligned(logits.data, 4 * DTypeBytes(logits.dtype)) &&
                     (args.rows <= 1 || logits.stride[0] % 4 == 0) && aligned(args.bias, 16);
  return args;
}

// ---- which CUDA kernel

// A kernel of this type of logits, as cudaLaunchKernel takes it: void(RouteArgs), one warp per row
// in blocks of at most kMaxBlockWarps. Each type is compiled in a file of its own, so that they are
// compiled side by side. REQUIRES: a checked call.
template <DType kLogits>
const void* FindRouteKernel(const RoutingConfig& config, std::int64_t num_experts);

// Many rows: as many as give each of the SM's four schedulers one, so that a block's warps end
// together and leave no scheduler idle; few rows: each warp is a block of its own, and goes to an
// SM of its own.
inline constexpr int kMaxBlockWarps = 4;

}  // namespace waymark::kernels::routing

#endif  // WAYMARK_KERNELS_ROUTING_KERNEL_H_
