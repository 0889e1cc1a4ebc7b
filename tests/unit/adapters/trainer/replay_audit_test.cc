// AuditReplay: it names planted errors, and is silent on the same tokens; on synthetic routing and
// on real captures of one request by three builds.
#include "adapters/trainer/replay_audit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/unit/blockstore/test_seed.h"

namespace waymark {
namespace {

using ::testing::HasSubstr;
using Random = std::mt19937_64;

// The routing of sequences: ids of (sequence, position, layer), and what a router with slightly
// other arithmetic, or other weights, makes of it.
class Routing {
 public:
  Routing(std::int32_t layers, std::int32_t top_k, std::int32_t experts)
      : num_layers(layers), k(top_k), num_experts(experts) {}

  const std::int32_t num_layers;
  const std::int32_t k;
  const std::int32_t num_experts;
  // [sequence][(position * layers + layer) * K]
  std::vector<std::vector<std::int32_t>> sequences;

  [[nodiscard]] std::size_t row() const {
    return static_cast<std::size_t>(num_layers) * static_cast<std::size_t>(k);
  }
  // Popular experts are chosen more often, by their place squared; a token has something of the one
  // before.
  void Add(std::int64_t tokens, Random& random) {
    std::vector<std::int32_t> ids;
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int32_t layer = 0; layer < num_layers; ++layer) {
        std::vector<std::int32_t> chosen;
        for (std::int32_t i = 0; i < k; ++i) {
          std::int32_t id = Draw(layer, random);
          if (t > 0 && random() % 6 == 0) {
            id = ids[ids.size() - row() + static_cast<std::size_t>(i) - chosen.size() +
                     chosen.size() % static_cast<std::size_t>(k)];
          }
          while (std::find(chosen.begin(), chosen.end(), id) != chosen.end())
            id = Draw(layer, random);
          chosen.push_back(id);
        }
        ids.insert(ids.end(), chosen.begin(), chosen.end());
      }
    }
    sequences.push_back(std::move(ids));
  }
  // About `share` of the ids of a layer are others.
  void Perturb(std::vector<std::int32_t>& ids, double share, Random& random) const {
    std::uniform_real_distribution<double> chance;
    for (std::size_t first = 0; first < ids.size(); first += static_cast<std::size_t>(k)) {
      const auto begin = ids.begin() + static_cast<std::ptrdiff_t>(first);
      for (auto id = begin; id != begin + k; ++id) {
        if (chance(random) >= share) continue;
        std::int32_t other = *id;
        while (std::find(begin, begin + k, other) != begin + k)
          other = static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(num_experts));
        *id = other;
      }
    }
  }

 private:
  [[nodiscard]] std::int32_t Draw(std::int32_t layer, Random& random) const {
    const double u = std::uniform_real_distribution<double>()(random);
    const auto rank = static_cast<std::int32_t>(u * (0.6 + 0.4 * u) * num_experts);
    return (rank * 397 + layer * 13) % num_experts;  // a prime: each rank has an id of its own
  }
};

// A micro-batch: what the routers chose, and where a test puts ids that are given.
struct Batch {
  Batch(Routing of, RowPlan by) : routing(std::move(of)), plan(std::move(by)) {
    places.resize(static_cast<std::size_t>(plan.rows()));
    plan.Places(places);
    given.assign(ids(), 0);
    mask.assign(places.size(), 0);
    for (std::size_t i = 0; i < given.size(); ++i)
      given[i] = static_cast<std::int32_t>(i % static_cast<std::size_t>(routing.k));
    own = given;
  }
  [[nodiscard]] std::size_t ids() const { return places.size() * routing.row(); }
  // Writes layer `from` of a token to layer `layer` of a row.
  void Put(std::vector<std::int32_t>& out, std::size_t row, std::int32_t layer,
           const std::vector<std::int32_t>& sequence, std::int64_t position,
           std::int32_t from) const {
    const auto k = static_cast<std::size_t>(routing.k);
    std::copy_n(sequence.begin() +
                    static_cast<std::ptrdiff_t>(static_cast<std::size_t>(position) * routing.row() +
                                                static_cast<std::size_t>(from) * k),
                k,
                out.begin() + static_cast<std::ptrdiff_t>(
                                  (static_cast<std::size_t>(layer) * places.size() + row) * k));
  }
  [[nodiscard]] std::int64_t TokensOf(const std::vector<std::int32_t>& sequence) const {
    return static_cast<std::int64_t>(sequence.size() / routing.row());
  }
  // Which token and layer a row is given; false: none.
  using Source = std::function<bool(TokenPlace& place, std::int32_t& layer)>;
  // Gives every row what `source` says, of `from` (the engine's routing).
  void Give(const std::vector<std::vector<std::int32_t>>& from, const Source& source) {
    for (std::size_t row = 0; row < places.size(); ++row) {
      for (std::int32_t layer = 0; layer < routing.num_layers; ++layer) {
        TokenPlace place = places[row];
        std::int32_t of_layer = layer;
        if (place.sequence < 0 || !source(place, of_layer)) continue;
        const auto& sequence = from[static_cast<std::size_t>(place.sequence)];
        if (place.position < 0 || place.position >= TokensOf(sequence)) continue;
        mask[row] = 1;
        Put(given, row, layer, sequence, place.position, of_layer);
      }
    }
  }
  // What the routers choose themselves.
  void Choose(const std::vector<std::vector<std::int32_t>>& by) {
    for (std::size_t row = 0; row < places.size(); ++row) {
      if (places[row].sequence < 0) continue;
      for (std::int32_t layer = 0; layer < routing.num_layers; ++layer) {
        Put(own, row, layer, by[static_cast<std::size_t>(places[row].sequence)],
            places[row].position, layer);
      }
    }
  }
  [[nodiscard]] ReplayAudit Audit() const {
    ReplayedIds in;
    in.plan = &plan;
    in.num_layers = routing.num_layers;
    in.top_k = routing.k;
    in.num_experts = routing.num_experts;
    in.given_type = in.own_type = IdType::kInt32;
    in.given = {reinterpret_cast<const std::uint8_t*>(given.data()), given.size() * 4};
    in.own = {reinterpret_cast<const std::uint8_t*>(own.data()), own.size() * 4};
    in.mask = mask;
    const absl::StatusOr<ReplayAudit> audit = AuditReplay(in);
    EXPECT_TRUE(audit.ok()) << audit.status();
    return audit.ok() ? *audit : ReplayAudit();
  }

  Routing routing;
  RowPlan plan;
  std::vector<TokenPlace> places;
  std::vector<std::int32_t> given;
  std::vector<std::int32_t> own;
  std::vector<std::uint8_t> mask;
};

enum class Planted {
  kNothing,
  kShifted,
  kSwappedLayers,
  kLayersOffByOne,
  kSwappedSequences,
  kSwappedBehindAPrompt,
  kForeignSequence,
  kBatchMajor,
  kSequenceMajor,
  kStaleWeights,
  kForeignLayer,
  kOtherMicroBatch,
  kOtherContextCut,
  kPlanOfOtherOrder,
  kKinds
};

struct Outcome {
  bool named = false;
  std::string text;
};

bool All(const ReplayAudit& audit, const std::function<bool(const ReplayAlarm&)>& is) {
  return !audit.alarms.empty() && std::all_of(audit.alarms.begin(), audit.alarms.end(), is);
}

// Small ones as often as large ones.
std::int32_t LogUniform(std::int32_t least, std::int32_t most, Random& random) {
  const double u = std::uniform_real_distribution<double>()(random);
  return static_cast<std::int32_t>(least * std::pow((most + 1.0) / least, u));
}

// One micro-batch with one error.
Outcome Plant(Planted planted, Random& random) {
  // K of 1 to 10, at most a quarter of 8 to 384 experts; one layer, or 2 to 60.
  struct Model {
    std::int32_t k, experts;
  };
  const auto k = static_cast<std::int32_t>(1 + random() % 10);
  const Model model = {k, LogUniform(std::max(8, 4 * k), 384, random)};
  const bool layers_matter = planted == Planted::kSwappedLayers ||
                             planted == Planted::kLayersOffByOne ||
                             planted == Planted::kForeignLayer;
  const bool partly =
      planted == Planted::kSwappedBehindAPrompt || planted == Planted::kOtherContextCut;
  std::int32_t num_layers = !layers_matter && random() % 6 == 0 ? 1 : LogUniform(2, 60, random);
  // An error in a part of a sequence is found from 16 ids a row on.
  while (partly && num_layers * model.k < 16)
    ++num_layers;
  Routing routing(num_layers, model.k, model.experts);

  const bool orders = planted == Planted::kBatchMajor || planted == Planted::kSequenceMajor ||
                      planted == Planted::kPlanOfOtherOrder;
  TrainerLayout layout;
  layout.order = static_cast<TokenOrder>(random() % 3);
  if (planted == Planted::kBatchMajor) layout.order = TokenOrder::kSequenceMajor;
  if (planted == Planted::kSequenceMajor) layout.order = TokenOrder::kBatchMajor;
  // A rank whose rows are all of the prompt would have no error.
  layout.context_size = random() % 3 == 0 && planted != Planted::kSwappedBehindAPrompt ? 2 : 1;
  if (planted == Planted::kOtherContextCut) layout.context_size = 2;
  if (planted == Planted::kPlanOfOtherOrder) layout.context_size = 1;
  layout.context_rank = static_cast<std::int32_t>(random()) & (layout.context_size - 1);
  layout.sequence_multiple = 4;
  // 256 rows in all.
  const std::int32_t batch =
      orders || planted == Planted::kSwappedSequences || planted == Planted::kSwappedBehindAPrompt
          ? (random() % 2 == 0 ? 2 : 4)
          : (1 << random() % 3);
  const std::int64_t padded = 256 * layout.context_size / batch;
  std::vector<std::int64_t> lengths;
  std::int64_t longest = 0;
  for (std::int32_t i = 0; i < batch; ++i) {
    const std::int64_t tokens = padded - static_cast<std::int64_t>(random() % 8);
    lengths.push_back(tokens);
    longest = std::max(longest, tokens);
    routing.Add(tokens, random);
  }
  if (planted == Planted::kSwappedBehindAPrompt) {  // all share 3 of 4 rows
    const std::size_t prompt = static_cast<std::size_t>(padded) * 3 / 4 * routing.row();
    for (auto& sequence : routing.sequences)
      std::copy_n(routing.sequences[0].begin(), prompt, sequence.begin());
  }
  const RowPlan plan =
      RowPlan::Make(layout, lengths, std::vector<std::int64_t>(lengths.size(), padded)).value();
  Batch b(routing, plan);

  // The engine's routing and the trainer's: 0.01 to 0.1 of the ids differ.
  std::vector<std::vector<std::int32_t>> engine = routing.sequences;
  const double noise = std::uniform_real_distribution<double>(0.01, 0.1)(random);
  for (auto& sequence : engine)
    routing.Perturb(sequence, noise, random);
  std::vector<std::vector<std::int32_t>> trainer = routing.sequences;
  const std::int64_t by = random() % 2 == 0 ? 1 : -1;
  std::int32_t a = 0;
  std::int32_t c = 0;
  const std::int32_t among = layers_matter ? num_layers : batch;
  if (among > 1) {
    a = static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(among));
    c = (a + 1 + static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(among - 1))) %
        among;
  }
  const auto swapped = [&](std::int32_t i) { return i == a ? c : i == c ? a : i; };
  std::function<bool(const ReplayAlarm&)> right;
  Batch::Source source = [](TokenPlace&, std::int32_t&) { return true; };
  switch (planted) {
    case Planted::kNothing:
    case Planted::kKinds:
      break;
    case Planted::kShifted:
      source = [&](TokenPlace& place, std::int32_t&) {
        place.position += by;
        return true;
      };
      right = [&](const ReplayAlarm& alarm) {
        return alarm.error == ReplayError::kShifted && alarm.by == by;
      };
      break;
    case Planted::kSwappedLayers:
      source = [&](TokenPlace&, std::int32_t& layer) {
        layer = swapped(layer);
        return true;
      };
      right = [&](const ReplayAlarm& alarm) {
        return alarm.error == ReplayError::kLayers &&
               alarm.layer == swapped(static_cast<std::int32_t>(alarm.by)) &&
               (alarm.layer == a || alarm.layer == c) && alarm.count == 2;
      };
      break;
    case Planted::kLayersOffByOne:
      source = [&](TokenPlace&, std::int32_t& layer) {
        layer = (layer + 1) % num_layers;
        return true;
      };
      right = [&](const ReplayAlarm& alarm) {
        return alarm.error == ReplayError::kLayers && alarm.by == (alarm.layer + 1) % num_layers &&
               alarm.count == num_layers;
      };
      break;
    case Planted::kSwappedSequences:
    case Planted::kSwappedBehindAPrompt:
      source = [&](TokenPlace& place, std::int32_t&) {
        place.sequence = swapped(place.sequence);
        return true;
      };
      right = [&](const ReplayAlarm& alarm) {
        return alarm.error == ReplayError::kOtherSequence &&
               (alarm.sequence == a || alarm.sequence == c) && alarm.by == swapped(alarm.sequence);
      };
      break;
    case Planted::kForeignSequence: {
      for (std::int32_t i = 0; i < batch; ++i) {
        routing.Add(padded, random);
        engine.push_back(routing.sequences.back());
      }
      source = [&](TokenPlace& place, std::int32_t&) {
        if (place.sequence == a) place.sequence += batch;
        return true;
      };
      right = [&](const ReplayAlarm& alarm) {
        return alarm.error == ReplayError::kOtherSequence && alarm.by == -1 && alarm.sequence == a;
      };
      break;
    }
    case Planted::kBatchMajor:
    case Planted::kSequenceMajor: {
      // The same tokens by a plan of the wrong order.
      TrainerLayout wrong = layout;
      wrong.order =
          planted == Planted::kBatchMajor ? TokenOrder::kBatchMajor : TokenOrder::kSequenceMajor;
      Batch given(
          routing,
          RowPlan::Make(wrong, lengths, std::vector<std::int64_t>(lengths.size(), padded)).value());
      given.Give(engine, source);
      b.given = given.given;
      b.mask = given.mask;
      right = [&](const ReplayAlarm& alarm) {
        return alarm.error == (planted == Planted::kBatchMajor ? ReplayError::kBatchMajor
                                                               : ReplayError::kSequenceMajor);
      };
      break;
    }
    case Planted::kPlanOfOtherOrder: {
      // The plan of another layout with as many rows: packed or batch-major where the router has
      // sequence-major rows, or the other way round.
      const bool padded_router = random() % 2 == 0;
      TrainerLayout of_plan = layout;
      TrainerLayout of_router = layout;
      of_plan.order = padded_router ? static_cast<TokenOrder>(random() % 2 == 0 ? 0 : 2)
                                    : TokenOrder::kSequenceMajor;
      of_router.order = padded_router ? TokenOrder::kSequenceMajor : TokenOrder::kPacked;
      const std::vector<std::int64_t> all(lengths.size(), padded);
      Batch router(routing, RowPlan::Make(of_router, lengths, all).value());
      router.Choose(trainer);
      b.plan = RowPlan::Make(of_plan, lengths, all).value();
      b.plan.Places(b.places);
      b.Give(engine, source);
      b.own = router.own;
      right = [padded_router](const ReplayAlarm& alarm) {
        return alarm.error ==
               (padded_router ? ReplayError::kBatchMajor : ReplayError::kSequenceMajor);
      };
      break;
    }
    case Planted::kOtherContextCut: {
      TrainerLayout wrong = layout;
      wrong.context_cut = ContextCut::kContiguous;
      b.plan =
          RowPlan::Make(wrong, lengths, std::vector<std::int64_t>(lengths.size(), padded)).value();
      Batch router(routing, plan);
      router.Choose(trainer);
      b.plan.Places(b.places);
      b.Give(engine, source);
      b.own = router.own;
      right = [](const ReplayAlarm& alarm) {
        return alarm.error == ReplayError::kOtherSequence && alarm.by == -1;
      };
      break;
    }
    case Planted::kForeignLayer: {  // the ids of a layer that this rank does not have
      Routing others(num_layers, model.k, model.experts);
      for (const std::int64_t tokens : lengths)
        others.Add(tokens, random);
      for (std::size_t s = 0; s < engine.size(); ++s) {
        for (std::size_t at = 0; at < engine[s].size(); ++at) {
          const auto layer = at % routing.row() / static_cast<std::size_t>(model.k);
          if (layer == static_cast<std::size_t>(a)) engine[s][at] = others.sequences[s][at];
        }
      }
      right = [&](const ReplayAlarm& alarm) {
        return alarm.error == ReplayError::kLayers && alarm.layer == a && alarm.by == -1;
      };
      break;
    }
    case Planted::kOtherMicroBatch: {  // of the one before, whose lists were not cleared
      Routing others(num_layers, model.k, model.experts);
      for (const std::int64_t tokens : lengths)
        others.Add(tokens, random);
      engine = others.sequences;
      right = [](const ReplayAlarm& alarm) {
        return alarm.error == ReplayError::kOtherSequence && alarm.by == -1;
      };
      break;
    }
    case Planted::kStaleWeights: {
      const double stale = std::uniform_real_distribution<double>(0.3, 0.5)(random);
      for (auto& sequence : engine)
        routing.Perturb(sequence, stale, random);
      right = [&](const ReplayAlarm& alarm) { return alarm.error == ReplayError::kStaleWeights; };
      break;
    }
  }
  const bool of_plan =
      planted == Planted::kPlanOfOtherOrder || planted == Planted::kOtherContextCut;
  if (!orders && !of_plan) b.Give(engine, source);
  if (!of_plan) b.Choose(trainer);
  const ReplayAudit audit = b.Audit();
  Outcome outcome;
  outcome.named = planted == Planted::kNothing ? audit.alarms.empty() : All(audit, right);
  outcome.text = "K " + std::to_string(model.k) + ", E " + std::to_string(model.experts) +
                 ", layers " + std::to_string(num_layers) + ", batch " + std::to_string(batch) +
                 ", order " + std::to_string(static_cast<int>(layout.order)) + ", agreement " +
                 std::to_string(audit.agreement) + ", chance " + std::to_string(audit.chance);
  for (const ReplayAlarm& alarm : audit.alarms)
    outcome.text += "\n  " + alarm.Describe();
  return outcome;
}

class PlantedErrors : public ::testing::TestWithParam<Planted> {};

TEST_P(PlantedErrors, AreNamed) {
  const std::uint64_t seed = TestSeed();
  Random random(seed + static_cast<std::uint64_t>(GetParam()));
  constexpr int kCases = 1000;
  int named = 0;
  std::string first;
  for (int n = 0; n < kCases; ++n) {
    const Outcome outcome = Plant(GetParam(), random);
    named += outcome.named ? 1 : 0;
    if (!outcome.named && first.empty()) first = "case " + std::to_string(n) + ": " + outcome.text;
  }
  std::printf("kind %d: %d of %d named\n", static_cast<int>(GetParam()), named, kCases);
  // No alarm may be false; of the errors one in a hundred may be called otherwise.
  EXPECT_GE(named, GetParam() == Planted::kNothing ? kCases : kCases * 99 / 100)
      << "seed " << seed << ", " << first;
}

std::string NameOf(const ::testing::TestParamInfo<Planted>& kind) {
  constexpr const char* kNames[] = {"Nothing",         "Shifted",          "SwappedLayers",
                                    "LayersOffByOne",  "SwappedSequences", "SwappedBehindAPrompt",
                                    "ForeignSequence", "BatchMajor",       "SequenceMajor",
                                    "StaleWeights",    "ForeignLayer",     "OtherMicroBatch",
                                    "OtherContextCut", "PlanOfOtherOrder"};
  return kNames[static_cast<int>(kind.param)];
}
INSTANTIATE_TEST_SUITE_P(Kinds, PlantedErrors,
                         ::testing::Values(Planted::kNothing, Planted::kShifted,
                                           Planted::kSwappedLayers, Planted::kLayersOffByOne,
                                           Planted::kSwappedSequences,
                                           Planted::kSwappedBehindAPrompt,
                                           Planted::kForeignSequence, Planted::kBatchMajor,
                                           Planted::kSequenceMajor, Planted::kStaleWeights,
                                           Planted::kForeignLayer, Planted::kOtherMicroBatch,
                                           Planted::kOtherContextCut, Planted::kPlanOfOtherOrder),
                         NameOf);

// ---- real captures: one request, three builds, uint8 [117, 27, 6] of 64 experts ----

constexpr std::int32_t kRealRows = 117;
constexpr std::int32_t kRealLayers = 27;
constexpr std::int32_t kRealK = 6;

std::vector<std::vector<std::int32_t>> RealCaptures() {
  std::vector<std::vector<std::int32_t>> captures;
  const char* const data = std::getenv("WAYMARK_DATA");
  if (data == nullptr) return captures;
  const std::filesystem::path folder = std::filesystem::path(data) / "megatron_16b_routing";
  for (const char* name :
       {"build_2026_03_eager.npy", "build_2026_04_cudagraph.npy", "build_2026_04_eager.npy"}) {
    std::ifstream file(folder / name, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)),
                            std::istreambuf_iterator<char>());
    constexpr std::size_t kSize = std::size_t{kRealRows} * kRealLayers * kRealK;
    if (bytes.size() < kSize) continue;
    std::vector<std::int32_t> ids;
    for (std::size_t i = bytes.size() - kSize; i < bytes.size(); ++i)
      ids.push_back(static_cast<std::uint8_t>(bytes[i]));
    captures.push_back(std::move(ids));
  }
  return captures;
}

ReplayAudit AuditReal(const std::vector<std::int32_t>& given, const std::vector<std::int32_t>& own,
                      const Batch::Source& source) {
  const std::int64_t lengths[] = {kRealRows + 1};
  Routing routing(kRealLayers, kRealK, 64);
  Batch batch(routing, RowPlan::Make({}, lengths).value());
  std::vector<std::int32_t> longer = own;
  longer.insert(longer.end(), own.end() - static_cast<std::ptrdiff_t>(routing.row()), own.end());
  batch.Give({given}, source);
  batch.Choose({longer});
  return batch.Audit();
}

TEST(RealCaptures, OfDifferentBuildsRaiseNoAlarmAndTheirErrorsAreNamed) {
  const auto captures = RealCaptures();
  if (captures.size() != 3) GTEST_SKIP() << "WAYMARK_DATA names no folder with the captures";
  for (std::size_t a = 0; a < 3; ++a) {
    for (std::size_t b = 0; b < 3; ++b) {
      const ReplayAudit same =
          AuditReal(captures[a], captures[b], [](TokenPlace&, std::int32_t&) { return true; });
      EXPECT_TRUE(same.alarms.empty()) << same.alarms.front().Describe();
      EXPECT_GT(same.agreement, 0.95);
      EXPECT_LT(same.chance, 0.2);
      EXPECT_EQ(same.rows, kRealRows);
      for (const int by : {1, -1, 2, -2}) {
        const ReplayAudit shifted =
            AuditReal(captures[a], captures[b], [by](TokenPlace& place, std::int32_t&) {
              place.position += by;
              return true;
            });
        ASSERT_EQ(shifted.alarms.size(), 1u) << by;
        EXPECT_EQ(shifted.alarms[0].error, ReplayError::kShifted);
        EXPECT_EQ(shifted.alarms[0].by, by) << shifted.alarms[0].Describe();
      }
      const ReplayAudit layers =
          AuditReal(captures[a], captures[b], [](TokenPlace&, std::int32_t& layer) {
            layer = layer == 3 ? 20 : layer == 20 ? 3 : layer;
            return true;
          });
      ASSERT_EQ(layers.alarms.size(), 2u);
      EXPECT_EQ(layers.alarms[0].error, ReplayError::kLayers);
      EXPECT_EQ(layers.alarms[0].layer, 3);
      EXPECT_EQ(layers.alarms[0].by, 20);
      // Other tokens of the same text are of no sequence here.
      const ReplayAudit other =
          AuditReal(captures[a], captures[b], [](TokenPlace& place, std::int32_t&) {
            place.position = (place.position * 37 + 50) % kRealRows;
            return true;
          });
      ASSERT_EQ(other.alarms.size(), 1u);
      EXPECT_EQ(other.alarms[0].error, ReplayError::kOtherSequence);
      EXPECT_EQ(other.alarms[0].by, -1);
    }
  }
}

// ---- a sample, profiles, and what is refused ----

struct Small {
  Small() {
    Random random(1);
    routing.Add(40, random);
    routing.Add(30, random);
    const std::int64_t lengths[] = {40, 30};
    batch = std::make_unique<Batch>(routing, RowPlan::Make({}, lengths).value());
    batch->Give(routing.sequences, [](TokenPlace& place, std::int32_t&) {
      return place.position != 29 || place.sequence != 1;  // the last token has no row
    });
    batch->Choose(routing.sequences);
    in.plan = &batch->plan;
    in.num_layers = 3;
    in.top_k = 4;
    in.num_experts = 64;
    in.given_type = in.own_type = IdType::kInt32;
    in.given = {reinterpret_cast<const std::uint8_t*>(batch->given.data()),
                batch->given.size() * 4};
    in.own = {reinterpret_cast<const std::uint8_t*>(batch->own.data()), batch->own.size() * 4};
    in.mask = batch->mask;
  }
  Routing routing{3, 4, 64};
  std::unique_ptr<Batch> batch;
  ReplayedIds in;
};

TEST(AuditReplay, ASampleOfRowsIsEnough) {
  Small small;
  std::vector<std::int64_t> rows;
  std::vector<std::int64_t> own;
  for (std::int64_t row = 68; row > 0; row -= 3)
    rows.push_back(row);
  for (std::size_t layer = 0; layer < 3; ++layer) {
    for (const std::int64_t row : rows) {
      for (std::size_t k = 0; k < 4; ++k) {
        own.push_back(small.batch->own[(layer * 70 + static_cast<std::size_t>(row)) * 4 + k]);
      }
    }
  }
  own[0] = (own[0] + 1) % 64 == own[1] ? (own[0] + 2) % 64 : (own[0] + 1) % 64;
  small.in.own_type = IdType::kInt64;
  small.in.own = {reinterpret_cast<const std::uint8_t*>(own.data()), own.size() * 8};
  small.in.rows = rows;
  const absl::StatusOr<ReplayAudit> audit = AuditReplay(small.in);
  ASSERT_TRUE(audit.ok()) << audit.status();
  EXPECT_EQ(audit->rows, static_cast<std::int64_t>(rows.size()));
  EXPECT_TRUE(audit->alarms.empty());
  EXPECT_EQ(audit->layers[1], 1);
  EXPECT_LT(audit->layers[0], 1);
  EXPECT_EQ(audit->positions[65], 1);
  EXPECT_LT(audit->positions[68], 1);
  EXPECT_EQ(audit->positions[67], -1);
  EXPECT_EQ(audit->sequences.size(), 2u);
  EXPECT_EQ(audit->sequences[0], 1);
}

// A layer of 48 was judged by 64 ids, a sequence of one layer by those of its rows: with K = 1, one
// in four micro-batches that agree in 0.9 raised an alarm.
TEST(AuditReplay, FewIdsThatDisagreeByAccidentRaiseNoAlarm) {
  const std::uint64_t seed = TestSeed();
  Random random(seed);
  for (const std::int32_t layers : {1, 2, 48}) {
    for (int n = 0; n < 100; ++n) {
      Routing routing(layers, 1, 16);
      const std::vector<std::int64_t> lengths(4, 64);
      for (const std::int64_t tokens : lengths)
        routing.Add(tokens, random);
      std::vector<std::vector<std::int32_t>> engine = routing.sequences;
      for (auto& sequence : engine)
        routing.Perturb(sequence, 0.1, random);
      Batch batch(routing, RowPlan::Make({}, lengths).value());
      batch.Give(engine, [](TokenPlace&, std::int32_t&) { return true; });
      batch.Choose(routing.sequences);
      const ReplayAudit audit = batch.Audit();
      ASSERT_TRUE(audit.alarms.empty())
          << "seed " << seed << ", layers " << layers << ": " << audit.alarms.front().Describe();
    }
  }
}

TEST(AuditReplay, ALayerThatIsNoneOfTheseIsNamed) {
  Small small;
  Random random(2);
  for (std::size_t row = 0; row < 70; ++row) {
    for (std::size_t k = 0; k < 4; ++k)
      small.batch->given[(70 + row) * 4 + k] = static_cast<std::int32_t>((row + 16 * k) % 64);
  }
  const absl::StatusOr<ReplayAudit> audit = AuditReplay(small.in);
  ASSERT_EQ(audit->alarms.size(), 1u);
  EXPECT_EQ(audit->alarms[0].error, ReplayError::kLayers);
  EXPECT_EQ(audit->alarms[0].layer, 1);
  EXPECT_EQ(audit->alarms[0].by, -1);
  EXPECT_THAT(audit->alarms[0].Describe(), HasSubstr("layer 1 has ids of none of these layers"));
}

TEST(AuditReplay, RowsThatWereNotReplayedAreNotCompared) {
  Small small;
  EXPECT_EQ(AuditReplay(small.in)->rows, 69);
  std::fill(small.batch->mask.begin(), small.batch->mask.end(), 0);
  const absl::StatusOr<ReplayAudit> audit = AuditReplay(small.in);
  ASSERT_TRUE(audit.ok());
  EXPECT_EQ(audit->rows, 0);
  EXPECT_TRUE(audit->alarms.empty());
}

TEST(AuditReplay, RefusesWhatDoesNotMatchAndNamesIt) {
  const auto refusal = [](const std::function<void(Small&)>& change,
                          const ReplayAuditOptions& options = {}) {
    Small small;
    change(small);
    const absl::StatusOr<ReplayAudit> audit = AuditReplay(small.in, options);
    EXPECT_EQ(audit.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(audit.status().message());
  };
  const auto nothing = [](Small&) {};
  EXPECT_THAT(refusal([](Small& s) { s.in.plan = nullptr; }), HasSubstr("plan"));
  EXPECT_THAT(refusal([](Small& s) { s.in.num_layers = 0; }), HasSubstr("num_layers"));
  EXPECT_THAT(refusal([](Small& s) { s.in.num_layers = 1025; }), HasSubstr("num_layers"));
  EXPECT_THAT(refusal([](Small& s) { s.in.num_layers = 2; }),
              HasSubstr("given: must be 2240 bytes"));
  EXPECT_THAT(refusal([](Small& s) { s.in.top_k = 65; }), HasSubstr("top_k"));
  EXPECT_THAT(refusal([](Small& s) { s.in.num_experts = 3; }), HasSubstr("num_experts"));
  EXPECT_THAT(refusal([](Small& s) { s.in.mask = s.in.mask.first(3); }),
              HasSubstr("mask: must be 70 bytes"));
  EXPECT_THAT(refusal([](Small& s) { s.in.own = s.in.own.first(3); }), HasSubstr("own: must be"));
  EXPECT_THAT(refusal([](Small& s) {
                static const std::int64_t rows[] = {70};
                s.in.rows = rows;
                s.in.own = s.in.own.first(3 * 4 * 4);
              }),
              HasSubstr("rows[0]: must be in [0, 70), got 70"));
  EXPECT_THAT(refusal([](Small& s) { s.batch->own[0] = 64; }), HasSubstr("own: ids must be in"));
  EXPECT_THAT(refusal([](Small& s) { s.batch->given[0] = -1; }),
              HasSubstr("given: ids must be in"));
  EXPECT_THAT(refusal(nothing, {.least_agreement = 1.5}), HasSubstr("least_agreement"));
  EXPECT_THAT(refusal(nothing, {.max_rows = 0}), HasSubstr("max_rows"));
}

}  // namespace
}  // namespace waymark
