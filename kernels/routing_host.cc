// Routing on the host: the plain form, which is also the definition.
#include <algorithm>

#include "kernels/isa.h"
#include "kernels/routing.h"
#include "kernels/routing_policy.h"

namespace waymark::kernels {
namespace {

using routing::Methods;
using routing::Over;

template <class T>
T* RowOf(const Tensor& tensor, std::int64_t row) {
  return static_cast<T*>(tensor.data) + row * tensor.stride[0];
}

template <class Stored, class Value>
void LoadAs(const Tensor& logits, std::int64_t row, float* to, Value value) {
  const Stored* const from = RowOf<const Stored>(logits, row);
  for (std::int64_t e = 0; e < logits.shape[1]; ++e)
    to[e] = routing::Canonical(value(from[e]));
}
void LoadLogits(const Tensor& logits, std::int64_t row, float* to) {
  switch (logits.dtype) {
    case DType::kBfloat16:
      return LoadAs<std::uint16_t>(logits, row, to,
                                   [](auto x) { return routing::FromBfloat16(x); });
    case DType::kFloat16:
      return LoadAs<std::uint16_t>(logits, row, to, [](auto x) { return routing::FromFloat16(x); });
    default:
      return LoadAs<float>(logits, row, to, [](auto x) { return x; });
  }
}

float AddPairwise(float (&terms)[32]) {
  for (int apart = 16; apart > 0; apart /= 2) {
    for (int i = 0; i < apart; ++i)
      terms[i] += terms[i + apart];
  }
  return terms[0];
}

// One token at a time; the arrays are those of the current row.
template <class M>
class HostRouter {
 public:
  HostRouter(const RoutingConfig& config, const RoutingTensors& tensors)
      : config_(config),
        tensors_(tensors),
        experts_(static_cast<std::int32_t>(tensors.logits.shape[1])) {}

  void Route(std::int64_t row) {
    LoadLogits(tensors_.logits, row, logits_);
    const bool replayed = Replay(row);
    if (!replayed) Select();
    if (tensors_.routed.given()) {
      static_cast<std::uint8_t*>(tensors_.routed.data)[row] = replayed ? 0 : 1;
    }
    Weigh();
    Store(row);
  }

 private:
  bool Replay(std::int64_t row) {
    if (!tensors_.replay_in.given()) return false;
    const std::int16_t* const ids = RowOf<const std::int16_t>(tensors_.replay_in, row);
    for (std::int32_t k = 0; k < config_.top_k; ++k) {
      if (ids[k] < 0 || ids[k] >= experts_) return false;
      for (std::int32_t other = 0; other < k; ++other) {
        if (ids[other] == ids[k]) return false;
      }
      ids_[k] = ids[k];
    }
    return true;
  }

  void Select() {
    const auto* const bias = static_cast<const float*>(tensors_.bias.data);
    for (std::int32_t e = 0; e < experts_; ++e) {
      keys_[e] = routing::KeyOf(M::Score::Key(logits_[e], bias == nullptr ? 0.0f : bias[e]));
    }
    if (config_.num_groups > 1) MaskGroups();
    std::int32_t n = 0;  // the best so far, greatest first
    for (std::int32_t e = 0; e < experts_; ++e) {
      std::int32_t at = n;
      if (n < config_.top_k) {
        ++n;
      } else if (keys_[ids_[--at]] >= keys_[e]) {
        continue;
      }
      // Behind its equals, whose ids are lower.
      for (; at > 0 && keys_[ids_[at - 1]] < keys_[e]; --at)
        ids_[at] = ids_[at - 1];
      ids_[at] = e;
    }
  }

  // Keys of groups that are not kept become 0, which is below every key.
  void MaskGroups() {
    const std::int32_t size = experts_ / config_.num_groups;
    std::uint32_t scores[kMaxGroups];
    for (std::int32_t g = 0; g < config_.num_groups; ++g) {
      std::uint32_t first = 0, second = 0;
      for (std::int32_t e = g * size; e < (g + 1) * size; ++e) {
        second = std::max(second, std::min(first, keys_[e]));
        first = std::max(first, keys_[e]);
      }
      scores[g] = routing::GroupScore(first, second);
    }
    bool kept[kMaxGroups] = {};
    for (std::int32_t i = 0; i < config_.topk_groups; ++i) {
      const auto best = std::max_element(scores, scores + config_.num_groups) - scores;
      kept[best] = true;
      scores[best] = 0;
    }
    for (std::int32_t e = 0; e < experts_; ++e) {
      if (!kept[e / size]) keys_[e] = 0;
    }
  }

  void Weigh() {
    using W = typename M::Weight;
    float max = logits_[W::kSum == Over::kAll ? 0 : ids_[0]];
    if constexpr (W::kUsesMax) {
      if constexpr (W::kSum == Over::kAll) {
        max = *std::max_element(logits_, logits_ + experts_);
      } else {
        for (std::int32_t k = 1; k < config_.top_k; ++k)
          max = std::max(max, logits_[ids_[k]]);
      }
    }
    float terms[32] = {};
    for (std::int32_t k = 0; k < config_.top_k; ++k)
      weights_[k] = terms[k] = W::Term(logits_[ids_[k]], max);
    float sum = 0.0f;
    if constexpr (W::kSum == Over::kSelected) sum = AddPairwise(terms);
    if constexpr (W::kSum == Over::kAll) sum = SumOfAll(max);
    for (std::int32_t k = 0; k < config_.top_k; ++k) {
      weights_[k] = W::Weight(weights_[k], sum, {config_.scale, config_.normalize});
    }
  }

  float SumOfAll(float max) {
    float columns[routing::kQuadExperts] = {};
    for (std::int32_t e = 0; e < experts_; ++e) {
      columns[e % routing::kQuadExperts] += M::Weight::Term(logits_[e], max);
    }
    float terms[32];
    for (int i = 0; i < 32; ++i) {
      const float* const quad = columns + 4 * i;
      terms[i] = (quad[0] + quad[1]) + (quad[2] + quad[3]);
    }
    return AddPairwise(terms);
  }

  void Store(std::int64_t row) {
    std::int32_t* const ids = RowOf<std::int32_t>(tensors_.topk_ids, row);
    std::copy_n(ids_, config_.top_k, ids);
    if (tensors_.topk_weights.dtype == DType::kBfloat16) {
      std::transform(weights_, weights_ + config_.top_k,
                     RowOf<std::uint16_t>(tensors_.topk_weights, row), routing::ToBfloat16);
    } else {
      std::copy_n(weights_, config_.top_k, RowOf<float>(tensors_.topk_weights, row));
    }
    if (tensors_.replay_out.given()) {
      std::transform(ids_, ids_ + config_.top_k, RowOf<std::int16_t>(tensors_.replay_out, row),
                     [](std::int32_t id) { return static_cast<std::int16_t>(id); });
    }
  }

  const RoutingConfig& config_;
  const RoutingTensors& tensors_;
  const std::int32_t experts_;
  float logits_[kMaxExperts];
  std::uint32_t keys_[kMaxExperts];
  std::int32_t ids_[kMaxTopK];
  float weights_[kMaxTopK];
};

template <class M>
void RouteRows(const RoutingConfig& config, const RoutingTensors& tensors) {
  HostRouter<M> router(config, tensors);
  for (std::int64_t row = 0; row < tensors.logits.shape[0]; ++row)
    router.Route(row);
}

#if defined(__x86_64__)
// The same code, for a compiler that may use vectors and fused multiply-adds.
template <class M>
__attribute__((target("avx2,fma"), flatten)) void RouteRowsAvx2(const RoutingConfig& config,
                                                                const RoutingTensors& tensors) {
  RouteRows<M>(config, tensors);
}
#endif

}  // namespace

RoutingCode RouteOnHost(const RoutingConfig& config, const RoutingTensors& tensors) {
  if (RoutingCode code = CheckRouting(config, tensors, MemoryDevice::Host()); !code.ok())
    return code;
  Methods::Visit(config.method, [&]<class M>() {
#if defined(__x86_64__)
    if (SupportedIsas().back() != Isa::kPortable) return RouteRowsAvx2<M>(config, tensors);
#endif
    RouteRows<M>(config, tensors);
  });
  return {};
}

}  // namespace waymark::kernels
