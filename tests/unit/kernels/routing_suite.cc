#include "tests/unit/kernels/routing_suite.h"
#include "tests/support/test_seed.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <set>
#include <sstream>

#include "kernels/routing_policy.h"
#include "tests/unit/kernels/guarded_buffer.h"
#include "tests/unit/kernels/routing_oracle.h"

namespace waymark::kernels {
namespace {

constexpr std::uint8_t kSentinel = 0xa5;

// The memory of one tensor, between guards. An output begins as sentinels throughout.
class TensorMemory {
 public:
  TensorMemory(DType type, std::int64_t rows, std::int64_t columns, const Layout& layout)
      : type_(type), rows_(rows), columns_(columns), stride_(columns + layout.gap) {
    const std::int64_t elements = rows == 0 ? 0 : (rows - 1) * stride_ + columns;
    std::size_t bytes = static_cast<std::size_t>(elements + layout.behind) * DTypeBytes(type);
    if (layout.at_start) {
      const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
      bytes = (bytes + page - 1) / page * page;
    }
    buffer_ = std::make_unique<GuardedBuffer>(bytes);
    if (bytes != 0) std::memset(buffer_->data(), kSentinel, bytes);
  }

  [[nodiscard]] Tensor Matrix() const {
    return Tensor::Matrix(buffer_->data(), type_, rows_, columns_, MemoryDevice::Host(), stride_);
  }
  [[nodiscard]] Tensor Vector() const { return Tensor::Vector(buffer_->data(), type_, rows_); }
  template <class T>
  [[nodiscard]] T* Row(std::int64_t row) const {
    return reinterpret_cast<T*>(buffer_->data()) + row * stride_;
  }

  // Of an input: what it holds now must stay.
  void Freeze() { frozen_.assign(buffer_->data(), buffer_->data() + buffer_->size()); }
  void ExpectFrozen(const char* what) const {
    if (frozen_.empty()) return;
    EXPECT_EQ(std::memcmp(frozen_.data(), buffer_->data(), frozen_.size()), 0)
        << what << " was written, and is an input";
  }
  // Of an output: nothing but rows [0, written) was.
  void ExpectSentinels(std::int64_t written, const char* what) const {
    const auto element = static_cast<std::int64_t>(DTypeBytes(type_));
    std::int64_t from = 0;
    const auto expect = [&](std::int64_t to) {
      for (; from < to; ++from) {
        if (buffer_->data()[from] == kSentinel) continue;
        ADD_FAILURE() << what << ": byte " << from << " (row " << from / (stride_ * element)
                      << " of " << rows_ << ", row stride " << stride_ * element
                      << " bytes) was written; only " << written << " rows of " << columns_
                      << " are the call's";
        return;
      }
    };
    for (std::int64_t row = 0; row < written; ++row) {
      expect(row * stride_ * element);
      from = (row * stride_ + columns_) * element;
    }
    expect(static_cast<std::int64_t>(buffer_->size()));
  }

 private:
  DType type_;
  std::int64_t rows_, columns_, stride_;
  std::unique_ptr<GuardedBuffer> buffer_;
  std::vector<std::uint8_t> frozen_;
};

std::unique_ptr<TensorMemory> LogitMemory(const Problem& problem, const Layout& layout) {
  auto memory =
      std::make_unique<TensorMemory>(problem.logit_type, problem.rows, problem.experts, layout);
  const float* from = problem.logits.data();
  for (std::int64_t row = 0; row < problem.rows; ++row) {
    for (std::int32_t e = 0; e < problem.experts; ++e, ++from) {
      const std::uint32_t bits = Encode(problem.logit_type, *from);
      if (problem.logit_type == DType::kFloat32) {
        memory->Row<std::uint32_t>(row)[e] = bits;
      } else {
        memory->Row<std::uint16_t>(row)[e] = static_cast<std::uint16_t>(bits);
      }
    }
  }
  memory->Freeze();
  return memory;
}

std::unique_ptr<TensorMemory> BiasMemory(const Problem& problem, const Layout& layout) {
  if (problem.bias.empty()) return nullptr;
  auto memory = std::make_unique<TensorMemory>(DType::kFloat32, problem.experts, 1,
                                               Layout{0, 0, layout.at_start, layout.behind});
  std::copy(problem.bias.begin(), problem.bias.end(), memory->Row<float>(0));
  memory->Freeze();
  return memory;
}

std::uint32_t EncodeFloat16(float value) {
  const std::uint32_t sign = std::bit_cast<std::uint32_t>(value) >> 16 & 0x8000;
  if (std::isnan(value)) return sign | 0x7e00;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (magnitude >= 65520.0) return sign | 0x7c00;
  if (magnitude == 0) return sign;
  const int exponent = std::max(std::ilogb(magnitude), -14);
  const double mantissa = std::nearbyint(std::ldexp(magnitude, 10 - exponent));
  return sign |
         ((static_cast<std::uint32_t>(exponent + 14) << 10) + static_cast<std::uint32_t>(mantissa));
}

float DecodeFloat16(std::uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 10 & 31);
  const auto mantissa = static_cast<float>(bits & 0x3ff);
  float value =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(mantissa + 1024.0f, exponent - 25);
  if (exponent == 31) value = mantissa == 0 ? INFINITY : NAN;
  return std::copysign(value, (bits & 0x8000) != 0 ? -1.0f : 1.0f);
}

std::uint32_t EncodeBfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t down = bits >> 16;
  if (std::isnan(value)) return down | 0x40;
  const std::uint32_t rest = bits & 0xffff;  // of what lies between `down` and the next one up
  const bool up = rest > 0x8000 || (rest == 0x8000 && down % 2 == 1);
  return down + (up ? 1 : 0);
}

}  // namespace

std::uint64_t RoutingSeed() {
  static const std::uint64_t seed = DrawnSeed();
  return seed;
}

std::mt19937_64 RoutingRandom(std::uint64_t salt) {
  std::seed_seq sequence{RoutingSeed(), RoutingSeed() >> 32, salt};
  return std::mt19937_64(sequence);
}

const std::vector<MethodInfo>& AllMethods() {
  static const auto* const methods = [] {
    auto* list = new std::vector<MethodInfo>();
    routing::Methods::ForEach([&]<class M>() {
      list->push_back({M::kId, RoutingMethodName(M::kId), M::kTakesBias, M::kTakesGroups,
                       M::kTakesScale, M::kMaxK});
    });
    return list;
  }();
  return *methods;
}

std::vector<std::int32_t> TopKs(const MethodInfo& method, std::int32_t experts) {
  const std::int32_t most = std::min({experts, method.max_k, kMaxTopK});
  std::set<std::int32_t> ks = {1, most};
  for (const std::int32_t k : {8, 22, 32}) {
    if (k <= most) ks.insert(k);
  }
  return {ks.begin(), ks.end()};
}

std::vector<std::int32_t> GroupCounts(std::int32_t experts) {
  std::vector<std::int32_t> counts;
  for (std::int32_t groups = 1; groups <= std::min(experts, kMaxGroups); ++groups) {
    if (experts % groups == 0) counts.push_back(groups);
  }
  return counts;
}

std::int32_t LeastTopKGroups(std::int32_t experts, std::int32_t num_groups, std::int32_t top_k) {
  const std::int32_t size = experts / num_groups;
  return (top_k + size - 1) / size;
}

std::uint32_t Encode(DType type, float value) {
  switch (type) {
    case DType::kBfloat16:
      return EncodeBfloat16(value);
    case DType::kFloat16:
      return EncodeFloat16(value);
    default:
      return std::bit_cast<std::uint32_t>(value);
  }
}

float Decode(DType type, std::uint32_t bits) {
  switch (type) {
    case DType::kBfloat16:
      return std::bit_cast<float>(bits << 16);
    case DType::kFloat16:
      return DecodeFloat16(bits);
    default:
      return std::bit_cast<float>(bits);
  }
}

Problem Problem::Rows(const std::vector<std::int64_t>& which) const {
  Problem some = *this;
  some.rows = static_cast<std::int64_t>(which.size());
  some.logits.clear();
  some.replay.clear();
  for (const std::int64_t row : which) {
    some.logits.insert(some.logits.end(), logits.begin() + row * experts,
                       logits.begin() + (row + 1) * experts);
    if (replay.empty()) continue;
    some.replay.insert(some.replay.end(), replay.begin() + row * config.top_k,
                       replay.begin() + (row + 1) * config.top_k);
  }
  return some;
}

std::string Problem::ToString() const {
  std::ostringstream text;
  text << RoutingMethodName(config.method) << " N=" << rows << " E=" << experts
       << " K=" << config.top_k << " " << DTypeName(logit_type) << " -> " << DTypeName(weight_type);
  if (config.num_groups != 1) {
    text << ", " << config.topk_groups << " of " << config.num_groups << " groups";
  }
  text << (bias.empty() ? "" : ", bias") << (record ? ", recorded" : "")
       << (replay.empty() ? "" : ", replayed") << ", WAYMARK_SEED=" << RoutingSeed();
  return text.str();
}

RouteResult RunOn(RoutingBackend& backend, const Problem& problem, const Layout& layout) {
  SCOPED_TRACE(backend.name() + ": " + problem.ToString());
  const std::int64_t k = problem.config.top_k;
  const std::int64_t out_rows = problem.rows + layout.spare_rows;
  const auto logits = LogitMemory(problem, layout);
  const auto bias = BiasMemory(problem, layout);
  // With gaps, each matrix has a row stride of its own.
  const auto apart = [&](std::int64_t more) {
    Layout own = layout;
    if (own.gap != 0) own.gap += more;
    return own;
  };
  const TensorMemory ids(DType::kInt32, out_rows, k, layout);
  const TensorMemory weights(problem.weight_type, out_rows, k, apart(8));
  std::unique_ptr<TensorMemory> replay_out, replay_in, routed;
  RoutingTensors tensors;
  tensors.logits = logits->Matrix();
  if (bias != nullptr) tensors.bias = bias->Vector();
  tensors.topk_ids = ids.Matrix();
  tensors.topk_weights = weights.Matrix();
  if (problem.record) {
    replay_out = std::make_unique<TensorMemory>(DType::kInt16, out_rows, k, apart(16));
    tensors.replay_out = replay_out->Matrix();
  }
  if (!problem.replay.empty()) {
    replay_in = std::make_unique<TensorMemory>(DType::kInt16, out_rows, k, apart(24));
    for (std::int64_t row = 0; row < problem.rows; ++row) {
      std::copy_n(problem.replay.begin() + row * k, k, replay_in->Row<std::int16_t>(row));
    }
    replay_in->Freeze();
    tensors.replay_in = replay_in->Matrix();
    routed = std::make_unique<TensorMemory>(DType::kUint8, out_rows, 1,
                                            Layout{0, 0, layout.at_start, layout.behind});
    tensors.routed = routed->Vector();
  }

  RouteResult result;
  result.code = backend.Route(problem.config, tensors);
  result.weight_type = problem.weight_type;
  logits->ExpectFrozen("logits");
  if (bias != nullptr) bias->ExpectFrozen("bias");
  if (replay_in != nullptr) replay_in->ExpectFrozen("replay_in");
  const std::int64_t written = result.code.ok() ? problem.rows : 0;
  ids.ExpectSentinels(written, "topk_ids");
  weights.ExpectSentinels(written, "topk_weights");
  if (replay_out != nullptr) replay_out->ExpectSentinels(written, "replay_out");
  if (routed != nullptr) routed->ExpectSentinels(written, "routed");
  for (std::int64_t row = 0; row < written; ++row) {
    for (std::int64_t i = 0; i < k; ++i) {
      result.ids.push_back(ids.Row<std::int32_t>(row)[i]);
      result.weights.push_back(problem.weight_type == DType::kFloat32
                                   ? weights.Row<std::uint32_t>(row)[i]
                                   : weights.Row<std::uint16_t>(row)[i]);
      if (replay_out != nullptr) result.recorded.push_back(replay_out->Row<std::int16_t>(row)[i]);
    }
    if (routed != nullptr) result.routed.push_back(*routed->Row<std::uint8_t>(row));
  }
  return result;
}

RoutingBackend& ReferenceBackend() {
  static auto* const reference = new HostRoutingBackend();
  return *reference;
}

std::vector<float> KeysOf(const Problem& problem) {
  std::vector<float> keys;
  routing::Methods::Visit(problem.config.method, [&]<class M>() {
    for (std::int64_t row = 0; row < problem.rows; ++row) {
      for (std::int32_t e = 0; e < problem.experts; ++e) {
        const float bias = problem.bias.empty() ? 0.0f : problem.bias[static_cast<std::size_t>(e)];
        keys.push_back(M::Score::Key(routing::Canonical(problem.Logit(row, e)), bias));
      }
    }
  });
  return keys;
}

void ExpectSame(const RouteResult& wanted, const RouteResult& got, const Problem& problem) {
  ASSERT_TRUE(wanted.code.ok()) << wanted.code.ToString();
  ASSERT_TRUE(got.code.ok()) << got.code.ToString();
  const auto k = static_cast<std::size_t>(problem.config.top_k);
  ASSERT_EQ(got.ids.size(), wanted.ids.size());
  for (std::size_t i = 0; i < wanted.ids.size(); ++i) {
    ASSERT_EQ(got.ids[i], wanted.ids[i]) << "id " << i % k << " of row " << i / k;
    ASSERT_EQ(got.weights[i], wanted.weights[i])
        << "weight " << i % k << " of row " << i / k << ", of expert " << got.ids[i] << ": "
        << got.Weight(i) << " for " << wanted.Weight(i);
  }
  ASSERT_EQ(got.recorded, wanted.recorded);
  ASSERT_EQ(got.routed, wanted.routed);
}

void ExpectEverywhere(const RouteResult& wanted, const Problem& problem, const Layout& layout,
                      Slow slow) {
  for (const auto& backend : RoutingBackends()) {
    if (slow == Slow::kSpared && backend->slow()) continue;
    SCOPED_TRACE(backend->name() + ": " + problem.ToString());
    ExpectSame(wanted, RunOn(*backend, problem, layout), problem);
    if (testing::Test::HasFatalFailure()) return;
  }
}

RouteResult ExpectRight(const Problem& problem, Slow slow) {
  const RouteResult result = RunReference(problem);
  EXPECT_EQ(Judge(problem, KeysOf(problem), result), "") << problem.ToString();
  ExpectEverywhere(result, problem, {}, slow);
  return result;
}

}  // namespace waymark::kernels
