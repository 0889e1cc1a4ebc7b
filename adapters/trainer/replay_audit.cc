#include "adapters/trainer/replay_audit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "adapters/trainer/invalid.h"

namespace waymark {
namespace {

// An error is named if the rows then agree at least so, and so much more than as they were given.
constexpr double kExplained = 0.7;
constexpr double kMore = 0.15;
// A row is low if it agrees less than half way from chance to 1. Single rows tell something if they
// have so many ids; so many low rows of a sequence, at this share at least, are an error in part of
// it, for example behind a prompt that it shares with the sequence whose ids it has.
constexpr std::size_t kTellingIds = 16;
constexpr std::int64_t kLowRows = 3;
constexpr double kLowShare = 0.03;
// Ids that agree so much more than by chance, of what is left above it, are those of these tokens,
// by other weights. The next token of a text agrees 0.15 more than chance.
constexpr double kSameTokens = 0.3;
// Rows that a hypothesis is tested on.
constexpr std::size_t kTestedRows = 64;
constexpr std::int64_t kFarTokens = 4;
constexpr std::int32_t kMostIds = 64;  // K and L, as RoutingShape has them
constexpr std::int32_t kMostLayers = 1024;

// Ids are compared as uint16; what is none of num_experts <= 65535 experts becomes 65535.
constexpr std::uint16_t kNoExpert = 0xffff;

template <class Id>
void LoadIdsOf(const std::uint8_t* ids, std::size_t first, std::size_t count,
               std::int32_t num_experts, std::uint16_t* out) {
  for (std::size_t i = 0; i < count; ++i) {
    Id id;
    std::memcpy(&id, ids + (first + i) * sizeof(Id), sizeof(id));
    const bool expert =
        id >= 0 && static_cast<std::uint64_t>(id) < static_cast<std::uint64_t>(num_experts);
    out[i] = expert ? static_cast<std::uint16_t>(id) : kNoExpert;
  }
}

using LoadIds = void (*)(const std::uint8_t* ids, std::size_t first, std::size_t count,
                         std::int32_t num_experts, std::uint16_t* out);
LoadIds LoaderOf(IdType type) {
  switch (type) {
    case IdType::kUint8:
      return &LoadIdsOf<std::uint8_t>;
    case IdType::kUint16:
      return &LoadIdsOf<std::uint16_t>;
    case IdType::kInt16:
      return &LoadIdsOf<std::int16_t>;
    case IdType::kInt32:
      return &LoadIdsOf<std::int32_t>;
    case IdType::kInt64:
      return &LoadIdsOf<std::int64_t>;
  }
  return nullptr;
}

// Shared ids of ids.
struct Share {
  std::int64_t shared = 0;
  std::int64_t ids = 0;
  void Add(const Share& other) {
    shared += other.shared;
    ids += other.ids;
  }
  [[nodiscard]] double value() const {
    return ids == 0 ? 1 : static_cast<double>(shared) / static_cast<double>(ids);
  }
};

// A row that is compared.
struct Sample {
  std::int64_t row;  // local
  std::size_t own;   // its place in `own`
  TokenPlace place;
  std::size_t index = 0;  // of the sample
};

class Audit {
 public:
  Audit(const ReplayedIds& ids, const ReplayAuditOptions& options) : in_(ids), options_(options) {}

  absl::Status Take();
  ReplayAudit Run();

 private:
  [[nodiscard]] absl::Status CheckIds(const Sample& sample) const;
  // The router's own K ids of a sample.
  [[nodiscard]] const std::uint16_t* OwnIds(const Sample& sample, std::size_t layer) const {
    return own_ids_.data() + (sample.index * layers_ + layer) * top_k_;
  }
  void LoadGiven(std::int64_t row, std::size_t layer, std::uint16_t* out) const {
    const auto rows = static_cast<std::size_t>(in_.plan->rows());
    load_given_(in_.given.data(), (layer * rows + static_cast<std::size_t>(row)) * top_k_, top_k_,
                in_.num_experts, out);
  }
  // Ids that row `given_row` of layer `given` was given, and the router chose in a sample of `own`.
  [[nodiscard]] Share Compare(std::int64_t given_row, std::size_t given, const Sample& sample,
                              std::size_t own) const;
  [[nodiscard]] bool replayed(std::int64_t row) const {
    return row >= 0 && row < in_.plan->rows() && in_.mask[static_cast<std::size_t>(row)] != 0;
  }
  void FindChance();
  // Few ids may disagree by accident: two standard deviations of least_agreement are left to them.
  [[nodiscard]] bool Enough(double agreement, std::size_t ids) const {
    const double least = options_.least_agreement;
    if (ids == 0) return true;
    return agreement >= least - 2 * std::sqrt(least * (1 - least) / static_cast<double>(ids));
  }
  [[nodiscard]] static bool OfTheseTokens(double agreement, double chance) {
    return agreement >= chance + kSameTokens * (1 - chance);
  }

  // The mean agreement of samples if their ids are at row_of(sample) in the given tensors, over the
  // layers that are not explained yet. Samples whose ids this rank does not have are left out;
  // nullopt if those are more than half.
  template <class RowOf>
  [[nodiscard]] std::optional<double> Test(std::span<const Sample* const> samples,
                                           RowOf&& row_of) const;
  [[nodiscard]] double AsGiven(std::span<const Sample* const> samples) const;
  [[nodiscard]] static bool Explains(double explained, double given) {
    return explained >= kExplained && explained >= given + kMore;
  }

  void FindOrder(ReplayAudit& audit);
  void FindLayers(ReplayAudit& audit);
  void FindRows(ReplayAudit& audit);
  bool FindRowsOf(std::int32_t sequence, std::span<const Sample* const> samples, double given,
                  ReplayAudit& audit);
  void AddTo(ReplayAudit& audit, const ReplayAlarm& alarm);

  const ReplayedIds& in_;
  const ReplayAuditOptions& options_;
  std::size_t layers_ = 0;
  std::size_t top_k_ = 0;
  std::size_t own_rows_ = 0;
  LoadIds load_given_ = nullptr;
  std::vector<std::uint16_t> own_ids_;  // [samples][layers][K]
  std::vector<Sample> samples_;
  std::vector<Share> row_shares_;      // [samples]
  std::vector<std::uint8_t> counted_;  // [layers]: 0: explained by another layer
  double chance_ = 0;                  // of different tokens, in all layers,
  std::vector<double> layer_chances_;  // and in each
};

absl::Status Audit::CheckIds(const Sample& sample) const {
  for (std::size_t layer = 0; layer < layers_; ++layer) {
    const std::uint16_t* const own = OwnIds(sample, layer);
    if (std::find(own, own + top_k_, kNoExpert) != own + top_k_) {
      return Invalid("own: ids must be in [0, num_experts = ", in_.num_experts, "), layer ", layer,
                     ", row ", sample.own, " has another");
    }
    std::array<std::uint16_t, kMostIds> given;
    LoadGiven(sample.row, layer, given.data());
    if (std::find(given.begin(), given.begin() + in_.top_k, kNoExpert) !=
        given.begin() + in_.top_k) {
      return Invalid("given: ids must be in [0, num_experts = ", in_.num_experts, "), layer ",
                     layer, ", row ", sample.row, " has another");
    }
  }
  return absl::OkStatus();
}

absl::Status Audit::Take() {
  if (in_.plan == nullptr) return Invalid("plan: must not be null");
  if (in_.num_layers < 1 || in_.num_layers > kMostLayers) {
    return Invalid("num_layers: must be in [1, ", kMostLayers, "], got ", in_.num_layers);
  }
  if (in_.top_k < 1 || in_.top_k > kMostIds) {
    return Invalid("top_k: must be in [1, ", kMostIds, "], got ", in_.top_k);
  }
  if (in_.num_experts < in_.top_k || in_.num_experts > kNoExpert) {
    return Invalid("num_experts: must be in [top_k = ", in_.top_k, ", 65535], got ",
                   in_.num_experts);
  }
  load_given_ = LoaderOf(in_.given_type);
  const LoadIds load_own = LoaderOf(in_.own_type);
  if (load_given_ == nullptr) return Invalid("given_type: must be an IdType");
  if (load_own == nullptr) return Invalid("own_type: must be an IdType");
  if (!(options_.least_agreement >= 0 && options_.least_agreement <= 1)) {
    return Invalid("least_agreement: must be in [0, 1], got ", options_.least_agreement);
  }
  if (options_.max_rows < 1)
    return Invalid("max_rows: must be at least 1, got ", options_.max_rows);
  layers_ = static_cast<std::size_t>(in_.num_layers);
  top_k_ = static_cast<std::size_t>(in_.top_k);
  const auto rows = static_cast<std::size_t>(in_.plan->rows());
  own_rows_ = in_.rows.empty() ? rows : in_.rows.size();
  const std::size_t given_bytes = layers_ * rows * top_k_ * IdBytes(in_.given_type);
  const std::size_t own_bytes = layers_ * own_rows_ * top_k_ * IdBytes(in_.own_type);
  if (in_.given.size() != given_bytes) {
    return Invalid("given: must be ", given_bytes, " bytes, [layers][rows][K] = [", layers_, "][",
                   rows, "][", top_k_, "], got ", in_.given.size());
  }
  if (in_.mask.size() != rows) {
    return Invalid("mask: must be ", rows, " bytes, one a row, got ", in_.mask.size());
  }
  if (in_.own.size() != own_bytes) {
    return Invalid("own: must be ", own_bytes, " bytes, [layers][rows][K] = [", layers_, "][",
                   own_rows_, "][", top_k_, "], got ", in_.own.size());
  }
  std::vector<TokenPlace> places(rows);
  in_.plan->Places(places);
  std::vector<Sample> all;
  for (std::size_t i = 0; i < own_rows_; ++i) {
    const std::int64_t row = in_.rows.empty() ? static_cast<std::int64_t>(i) : in_.rows[i];
    if (row < 0 || row >= in_.plan->rows()) {
      return Invalid("rows[", i, "]: must be in [0, ", rows, "), got ", row);
    }
    const TokenPlace& place = places[static_cast<std::size_t>(row)];
    if (replayed(row) && place.sequence >= 0) all.push_back({.row = row, .own = i, .place = place});
  }
  const auto wanted = std::min(all.size(), static_cast<std::size_t>(options_.max_rows));
  // Not at equal distances: sequences that take turns would be left out.
  std::uint64_t turn = 0x9e3779b97f4a7c15u;
  for (std::size_t i = 0; i < wanted; ++i) {
    const std::size_t begin = i * all.size() / wanted;
    const std::size_t end = (i + 1) * all.size() / wanted;
    turn = turn * 6364136223846793005u + 1442695040888963407u;
    samples_.push_back(all[begin + (turn >> 33) % (end - begin)]);
    samples_.back().index = i;
  }
  own_ids_.resize(samples_.size() * layers_ * top_k_);
  for (const Sample& sample : samples_) {
    for (std::size_t layer = 0; layer < layers_; ++layer) {
      load_own(in_.own.data(), (layer * own_rows_ + sample.own) * top_k_, top_k_, in_.num_experts,
               own_ids_.data() + (sample.index * layers_ + layer) * top_k_);
    }
  }
  for (const Sample& sample : samples_) {
    if (absl::Status status = CheckIds(sample); !status.ok()) return status;
  }
  counted_.assign(layers_, 1);
  return absl::OkStatus();
}

Share Audit::Compare(std::int64_t given_row, std::size_t given, const Sample& sample,
                     std::size_t own) const {
  std::array<std::uint16_t, kMostIds> ids;
  LoadGiven(given_row, given, ids.data());
  const std::uint16_t* const chosen = OwnIds(sample, own);
  std::int64_t shared = 0;
  for (std::size_t k = 0; k < top_k_; ++k) {
    int found = 0;
    for (std::size_t j = 0; j < top_k_; ++j)
      found |= chosen[j] == ids[k] ? 1 : 0;
    shared += found;
  }
  return {shared, static_cast<std::int64_t>(top_k_)};
}

// Of tokens that are far apart, at other positions: sequences may share a prompt.
void Audit::FindChance() {
  std::vector<Share> shares(layers_);
  Share all;
  const std::size_t count = samples_.size();
  for (std::size_t i = 0; i < count; i += 1 + count / kTestedRows) {
    const Sample& other = samples_[(i + count / 2 + i % 5) % count];
    if (std::abs(other.place.position - samples_[i].place.position) < kFarTokens) continue;
    for (std::size_t layer = 0; layer < layers_; ++layer)
      shares[layer].Add(Compare(other.row, layer, samples_[i], layer));
  }
  const double even = static_cast<double>(in_.top_k) / in_.num_experts;
  const auto chance = [even](const Share& share) {
    return share.ids == 0 ? even : std::max(share.value(), even);
  };
  for (const Share& share : shares) {
    all.Add(share);
    layer_chances_.push_back(chance(share));
  }
  chance_ = chance(all);
}

// At most kTestedRows of them.
std::vector<const Sample*> Thin(std::span<const Sample* const> samples) {
  std::vector<const Sample*> thin;
  const std::size_t count = std::min(samples.size(), kTestedRows);
  for (std::size_t i = 0; i < count; ++i)
    thin.push_back(samples[i * samples.size() / count]);
  return thin;
}

template <class RowOf>
std::optional<double> Audit::Test(std::span<const Sample* const> samples, RowOf&& row_of) const {
  Share share;
  std::size_t found = 0;
  const std::vector<const Sample*> thin = Thin(samples);
  for (const Sample* const sample : thin) {
    const std::int64_t row = row_of(*sample);
    if (!replayed(row)) continue;
    ++found;
    for (std::size_t layer = 0; layer < layers_; ++layer) {
      if (counted_[layer] != 0) share.Add(Compare(row, layer, *sample, layer));
    }
  }
  if (found == 0 || 2 * found < thin.size() || share.ids == 0) return std::nullopt;
  return share.value();
}

double Audit::AsGiven(std::span<const Sample* const> samples) const {
  return Test(samples, [](const Sample& sample) { return sample.row; }).value_or(1);
}

void Audit::AddTo(ReplayAudit& audit, const ReplayAlarm& alarm) {
  for (ReplayAlarm& known : audit.alarms) {
    const bool same_cause = known.error == alarm.error && known.by == alarm.by;
    if (same_cause && alarm.error != ReplayError::kLayers) {
      // The mean over all that have it.
      const auto mean = [&](double of_known, double of_this) {
        return (of_known * static_cast<double>(known.count) + of_this) /
               static_cast<double>(known.count + 1);
      };
      known.agreement = mean(known.agreement, alarm.agreement);
      known.explained = mean(known.explained, alarm.explained);
      ++known.count;
      return;
    }
  }
  audit.alarms.push_back(alarm);
}

// All rows in the other order of a batch.
void Audit::FindOrder(ReplayAudit& audit) {
  const std::int64_t batch = in_.plan->sequences();
  const std::int64_t rows = in_.plan->rows();
  if (batch < 2 || rows % batch != 0 || rows == batch) return;
  const std::int64_t steps = rows / batch;
  std::vector<const Sample*> all;
  for (const Sample& sample : samples_)
    all.push_back(&sample);
  const double given = AsGiven(all);
  if (given >= options_.least_agreement) return;
  const std::optional<double> batch_major =
      Test(all, [&](const Sample& s) { return s.row % batch * steps + s.row / batch; });
  const std::optional<double> sequence_major =
      Test(all, [&](const Sample& s) { return s.row % steps * batch + s.row / steps; });
  const bool first = batch_major.value_or(0) >= sequence_major.value_or(0);
  const double explained = first ? batch_major.value_or(0) : sequence_major.value_or(0);
  if (!Explains(explained, given)) return;
  AddTo(audit, {.error = first ? ReplayError::kBatchMajor : ReplayError::kSequenceMajor,
                .count = batch,
                .agreement = given,
                .explained = explained});
}

void Audit::FindLayers(ReplayAudit& audit) {
  // Rows that are wrong in all layers say nothing of one. If most are low, all are asked; a layer
  // that is right shows that the rows are, too.
  std::vector<const Sample*> asked;
  const double low = (1 + chance_) / 2;
  for (std::size_t i = 0; i < samples_.size(); ++i) {
    if (row_shares_[i].value() >= low) asked.push_back(&samples_[i]);
  }
  const auto right = [&](double of_layer) { return Enough(of_layer, samples_.size() * top_k_); };
  bool rows_are_right = 2 * asked.size() >= samples_.size();
  if (!rows_are_right) {
    rows_are_right = std::any_of(audit.layers.begin(), audit.layers.end(), right);
    asked.clear();
    for (const Sample& sample : samples_)
      asked.push_back(&sample);
  }
  const std::vector<const Sample*> tested = Thin(asked);
  const auto agreement = [&](std::span<const Sample* const> samples, std::size_t given,
                             std::size_t own) {
    Share share;
    for (const Sample* const sample : samples)
      share.Add(Compare(sample->row, given, *sample, own));
    return share.value();
  };
  std::vector<ReplayAlarm> alarms;
  for (std::size_t layer = 0; layer < layers_; ++layer) {
    // By all rows that are asked: with K = 1, those that are tested are few ids.
    if (right(audit.layers[layer])) continue;
    const double given = agreement(asked, layer, layer);
    if (Enough(given, asked.size() * top_k_)) continue;
    std::size_t best = layer;
    double explained = given;
    for (std::size_t other = 0; other < layers_; ++other) {
      const double value = agreement(tested, layer, other);
      if (value <= explained) continue;
      explained = value;
      best = other;
    }
    ReplayAlarm alarm = {.error = ReplayError::kLayers,
                         .layer = static_cast<std::int32_t>(layer),
                         .by = static_cast<std::int64_t>(best),
                         .agreement = given,
                         .explained = explained};
    if (best == layer || !Explains(explained, given)) {
      if (!rows_are_right) continue;  // the rows are asked next
      alarm.explained = given;
      alarm.by = -1;
      if (OfTheseTokens(given, layer_chances_[layer])) {
        alarm.error = ReplayError::kStaleWeights;
        alarm.by = 0;
      }
    }
    alarms.push_back(alarm);
  }
  for (ReplayAlarm& alarm : alarms) {
    counted_[static_cast<std::size_t>(alarm.layer)] = 0;
    alarm.count = static_cast<std::int64_t>(alarms.size());
    AddTo(audit, alarm);
  }
}

bool Audit::FindRowsOf(std::int32_t sequence, std::span<const Sample* const> samples, double given,
                       ReplayAudit& audit) {
  ReplayAlarm best = {.sequence = sequence, .agreement = given, .explained = given};
  const auto consider = [&](ReplayError error, std::int64_t by, std::optional<double> explained) {
    if (!explained.has_value() || *explained <= best.explained) return;
    best.error = error;
    best.by = by;
    best.explained = *explained;
  };
  // The ids of a token are where those of the token `by` positions later should be.
  for (const int by : {1, -1, 2, -2}) {
    consider(ReplayError::kShifted, -by, Test(samples, [&](const Sample& sample) {
               return in_.plan->RowOf(sequence, sample.place.position + by);
             }));
  }
  for (std::int32_t other = 0; other < in_.plan->sequences(); ++other) {
    if (other == sequence) continue;
    consider(ReplayError::kOtherSequence, other, Test(samples, [&](const Sample& sample) {
               return in_.plan->RowOf(other, sample.place.position);
             }));
  }
  if (!Explains(best.explained, given)) return false;
  AddTo(audit, best);
  return true;
}

void Audit::FindRows(ReplayAudit& audit) {
  const auto counted = static_cast<std::size_t>(std::count(counted_.begin(), counted_.end(), 1));
  if (counted == 0) return;
  const double low = (1 + chance_) / 2;
  const bool rows_tell = counted * top_k_ >= kTellingIds;
  std::map<std::int32_t, std::vector<const Sample*>> sequences;
  for (const Sample& sample : samples_)
    sequences[sample.place.sequence].push_back(&sample);
  std::vector<const Sample*> unexplained;
  for (const auto& [sequence, of_sequence] : sequences) {
    std::vector<const Sample*> low_rows;
    Share share;
    for (const Sample* const sample : of_sequence) {
      Share of_row;
      for (std::size_t layer = 0; layer < layers_; ++layer) {
        if (counted_[layer] != 0) of_row.Add(Compare(sample->row, layer, *sample, layer));
      }
      share.Add(of_row);
      if (of_row.value() < low) low_rows.push_back(sample);
    }
    const auto lows = static_cast<std::int64_t>(low_rows.size());
    const bool some_low =
        rows_tell && lows >= kLowRows &&
        static_cast<double>(lows) >= kLowShare * static_cast<double>(of_sequence.size());
    if (Enough(share.value(), static_cast<std::size_t>(share.ids)) && !some_low) continue;
    const std::vector<const Sample*>& wrong = some_low ? low_rows : of_sequence;
    if (FindRowsOf(sequence, wrong, AsGiven(wrong), audit)) continue;
    unexplained.insert(unexplained.end(), wrong.begin(), wrong.end());
  }
  if (unexplained.empty()) return;
  const double given = AsGiven(unexplained);
  const bool same_tokens = OfTheseTokens(given, chance_);
  AddTo(audit, {.error = same_tokens ? ReplayError::kStaleWeights : ReplayError::kOtherSequence,
                .sequence = unexplained.front()->place.sequence,
                .by = same_tokens ? 0 : -1,
                .agreement = given,
                .explained = given});
}

ReplayAudit Audit::Run() {
  ReplayAudit audit;
  audit.layers.assign(layers_, 1);
  audit.sequences.assign(static_cast<std::size_t>(in_.plan->sequences()), -1);
  audit.positions.assign(static_cast<std::size_t>(in_.plan->rows()), -1);
  audit.rows = static_cast<std::int64_t>(samples_.size());
  std::vector<Share> by_layer(layers_);
  std::vector<Share> by_sequence(audit.sequences.size());
  Share all;
  row_shares_.resize(samples_.size());
  for (std::size_t i = 0; i < samples_.size(); ++i) {
    const Sample& sample = samples_[i];
    for (std::size_t layer = 0; layer < layers_; ++layer) {
      const Share share = Compare(sample.row, layer, sample, layer);
      by_layer[layer].Add(share);
      row_shares_[i].Add(share);
    }
    all.Add(row_shares_[i]);
    by_sequence[static_cast<std::size_t>(sample.place.sequence)].Add(row_shares_[i]);
    audit.positions[static_cast<std::size_t>(sample.row)] = row_shares_[i].value();
  }
  audit.agreement = all.value();
  for (std::size_t layer = 0; layer < layers_; ++layer)
    audit.layers[layer] = by_layer[layer].value();
  for (std::size_t i = 0; i < by_sequence.size(); ++i) {
    if (by_sequence[i].ids != 0) audit.sequences[i] = by_sequence[i].value();
  }
  FindChance();
  audit.chance = chance_;
  FindOrder(audit);
  if (!audit.alarms.empty()) return audit;
  FindLayers(audit);
  FindRows(audit);
  return audit;
}

}  // namespace

std::string_view ReplayErrorName(ReplayError error) {
  constexpr std::array<std::string_view, kNumReplayErrors> kNames = {
      "shifted", "layers", "other sequence", "batch-major", "sequence-major", "stale weights"};
  const auto i = static_cast<std::size_t>(error);
  return i < kNames.size() ? kNames[i] : "unknown";
}

std::string ReplayAlarm::Describe() const {
  std::string what;
  switch (error) {
    case ReplayError::kShifted:
      what =
          absl::StrCat("sequence ", sequence, " has the ids of the tokens ",
                       by < 0 ? 0 - static_cast<std::uint64_t>(by) : static_cast<std::uint64_t>(by),
                       by > 0 ? " later" : " earlier");
      break;
    case ReplayError::kLayers:
      what = by < 0 ? absl::StrCat("layer ", layer, " has ids of none of these layers")
                    : absl::StrCat("layer ", layer, " has the ids of layer ", by);
      break;
    case ReplayError::kOtherSequence:
      what = by < 0 ? absl::StrCat("sequence ", sequence,
                                   " has ids of none of these sequences, or layers")
                    : absl::StrCat("the ids of sequence ", sequence,
                                   " are in the rows of sequence ", by);
      break;
    case ReplayError::kBatchMajor:
      what = "the ids are in batch-major order, and the router's rows are in sequence-major order";
      break;
    case ReplayError::kSequenceMajor:
      what = "the ids are in sequence-major order, and the router's rows are in batch-major order";
      break;
    case ReplayError::kStaleWeights:
      what = absl::StrCat(
          "the ids of ",
          layer >= 0 ? absl::StrCat("layer ", layer) : absl::StrCat("sequence ", sequence),
          " are of these tokens, but chosen by other weights");
      break;
  }
  return absl::StrFormat("%s (agreement %.2f, so explained %.2f; %d with this error)", what,
                         agreement, explained, count);
}

absl::StatusOr<ReplayAudit> AuditReplay(const ReplayedIds& ids, const ReplayAuditOptions& options) {
  Audit audit(ids, options);
  if (absl::Status status = audit.Take(); !status.ok()) return status;
  return audit.Run();
}

}  // namespace waymark
