// The table of a trainer. The bytes choose its calls and their arguments, one after another, over
// the plans and sequences that earlier calls have made; pointers are good, null, or of another
// object, numbers are anything. Every id says of which token and layer it is, so that a tensor can
// be checked row by row against the segments of its plan.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "adapters/trainer/waymark_trainer.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/input_bytes.h"

namespace waymark::fuzz {
namespace {

constexpr std::int32_t kTopK = 2;
constexpr std::int32_t kLayerIds[] = {0, 2, 3};  // those that were captured
constexpr auto kLayers = static_cast<std::int32_t>(std::size(kLayerIds));
constexpr std::size_t kMostSequences = 3;
constexpr std::uint32_t kMostTokens = 40;
constexpr std::int64_t kMostRows = 2048;  // of a plan that is filled

const wm_api_v1& Api() {
  return *wm_get_api_v1();
}
const wm_trainer_api_v1& Trainer() {
  return *wm_get_trainer_api_v1();
}

// A sequence whose rows a source has.
struct Sequence {
  std::int64_t tokens = 0;
  std::int64_t rows = 0;              // from the first token on
  std::vector<std::uint8_t> reasons;  // [rows]
  std::vector<std::int32_t> bad;  // [rows]: the place of a layer with one id twice; -1: none has
};

// A token of a row; sequence -1: padding.
struct Place {
  std::int32_t sequence = -1;
  std::int64_t position = -1;
};

class World {
 public:
  explicit World(Bytes bytes) : bytes_(bytes) {
    experts_ = bytes_.Once(2) ? 300 : 256;
    shape_ = {};
    shape_.struct_size = sizeof(shape_);
    shape_.num_layers = kLayers;
    shape_.top_k = kTopK;
    shape_.num_experts = experts_;
    shape_.layer_ids = kLayerIds;
    MakeSequences();
  }
  ~World() { Trainer().plan_release(plan_); }

  void Run() {
    for (int calls = 0; calls < 60 && !bytes_.empty(); ++calls)
      Call();
  }

 private:
  // A status of a call. `right`: whether its arguments were; then it must be OK.
  bool Is(wm_status status, bool right) {
    Require(status >= WM_OK && status <= WM_DATA_LOSS && status != WM_INTERNAL,
            "a status is one, and nothing is a defect of the library");
    Require(status == WM_OK || !right, "right arguments are accepted");
    Require(status == WM_OK || why_.size > 0, "a refusal says why");
    return status == WM_OK;
  }
  wm_message* Why() {
    why_ = {text_, sizeof(text_), 0};
    return &why_;
  }
  // As a rule the value; now and then another, and then the call is not right any more.
  template <class T>
  T Or(T value, T other, bool& right, std::uint32_t once = 64) {
    if (!bytes_.Once(once)) return value;
    right = false;
    return other;
  }
  std::uint32_t SizeOf(std::size_t size, bool& right) {
    // No size of a header cuts a pointer in two.
    const std::uint32_t given = bytes_.Size(size);
    const std::uint32_t said = given < size ? given & ~7u : given;
    right = right && said == size;
    return said;
  }
  // The number that is told of `size` elements; absurd now and then, which is refused.
  std::size_t CountOf(std::size_t size, bool& right) {
    if (!bytes_.Once(64)) return size;
    right = false;
    return bytes_.Once(2) ? ~std::size_t{0} : std::size_t{1} << 31;
  }

  // ---- the sequences

  [[nodiscard]] std::int32_t Id(const Place& place, std::int32_t layer, std::int32_t k) const {
    const std::int32_t half = experts_ / 2;
    const auto number = static_cast<std::int32_t>(place.sequence * kMostTokens + place.position);
    return (number + 31 * layer) % half + half * k;
  }

  void MakeSequences() {
    sequences_.assign(1 + bytes_.Below(kMostSequences), {});
    for (Sequence& of : sequences_) {
      of.tokens = bytes_.Below(kMostTokens);
      // Without the last token, as an engine has them; or with it.
      of.rows = std::max<std::int64_t>(of.tokens - (bytes_.Once(4) ? 0 : 1), 0);
      const bool some_missing = bytes_.Once(2);
      for (std::int64_t i = 0; i < of.rows; ++i) {
        const bool missing = some_missing && bytes_.Once(4);
        of.reasons.push_back(missing ? static_cast<std::uint8_t>(1 + bytes_.Below(6)) : 0);
        of.bad.push_back(some_missing && bytes_.Once(16)
                             ? static_cast<std::int32_t>(bytes_.Below(kLayers))
                             : -1);
      }
    }
  }

  // Stored ids of rows [first, first + count), `stride` bytes apart. `bad`: with those of bad rows.
  std::vector<std::uint8_t> StoredIds(std::size_t sequence, std::int64_t count, std::size_t stride,
                                      bool bad) const {
    const std::size_t id_bytes = experts_ > 256 ? 2 : 1;
    const std::size_t row_bytes = kLayers * kTopK * id_bytes;
    // Exactly to the last id, so that a sanitizer sees what is read beyond.
    std::vector<std::uint8_t> stored(
        count == 0 ? 0 : static_cast<std::size_t>(count - 1) * stride + row_bytes, 0xee);
    for (std::int64_t i = 0; i < count; ++i) {
      std::uint8_t* at = stored.data() + static_cast<std::size_t>(i) * stride;
      for (std::int32_t l = 0; l < kLayers; ++l) {
        for (std::int32_t k = 0; k < kTopK; ++k, at += id_bytes) {
          const bool twice = bad && sequences_[sequence].bad[static_cast<std::size_t>(i)] == l;
          const auto id = static_cast<std::uint16_t>(
              Id({static_cast<std::int32_t>(sequence), i}, kLayerIds[l], twice ? 0 : k));
          std::memcpy(at, &id, id_bytes);
        }
      }
    }
    return stored;
  }

  // What the sources of one call lend.
  struct Lent {
    std::vector<wm_trainer_source> sources;
    std::vector<bool> bad;  // whether the ids of bad rows are in it
    std::vector<std::vector<std::uint8_t>> ids;
    std::vector<wm_rows*> rows;
    std::vector<wm_bytes*> bytes;
    std::vector<wm_document*> documents;

    Lent() = default;
    Lent(const Lent&) = delete;
    Lent& operator=(const Lent&) = delete;
    ~Lent() {
      for (wm_document* document : documents)
        Api().wire->document_release(document);
      for (wm_bytes* of : bytes)
        Api().wire->bytes_release(of);
      for (wm_rows* of : rows)
        Api().rows_release(of);
    }
  };

  wm_rows* RowsOf(std::size_t sequence) {
    const Sequence& of = sequences_[sequence];
    const std::size_t row_bytes = kLayers * kTopK * (experts_ > 256 ? 2u : 1u);
    std::vector<std::uint8_t> ids = StoredIds(sequence, of.rows, row_bytes, false);
    std::vector<wm_row_info> infos(static_cast<std::size_t>(of.rows) + 1);
    for (std::size_t i = 0; i < static_cast<std::size_t>(of.rows); ++i) {
      infos[i].reason = of.reasons[i];
      if (of.reasons[i] == 0) {
        infos[i].step = 1;
      } else {
        std::fill_n(ids.data() + i * row_bytes, row_bytes, std::uint8_t{0});
      }
    }
    wm_rows_view view = {};
    view.struct_size = sizeof(view);
    view.count = of.rows;
    view.ids = ids.data();
    view.infos = infos.data();
    wm_rows* rows = nullptr;
    Require(Api().rows_create(&shape_, &view, &rows, Why()) == WM_OK, "rows can be made");
    return rows;
  }

  void AddSource(std::size_t sequence, Lent& lent, bool& right) {
    const Sequence& of = sequences_[sequence];
    wm_trainer_source source = {};
    source.struct_size = SizeOf(sizeof(source), right);
    source.flags = Or(0u, 1u, right);
    const std::uint32_t kind = bytes_.Below(4);
    lent.bad.push_back(kind >= 2);
    if (kind < 2) {
      lent.rows.push_back(RowsOf(sequence));
      if (kind == 0) source.rows = lent.rows.back();
    }
    if (kind == 1) {
      wm_bytes* bytes = nullptr;
      wm_document* document = nullptr;
      const std::uint8_t* data = nullptr;
      std::size_t size = 0;
      Require(Api().wire->rows_document(lent.rows.back(), nullptr, &bytes, Why()) == WM_OK &&
                  Api().wire->bytes_view(bytes, &data, &size) == WM_OK &&
                  Api().wire->document_open(data, size, nullptr, &document, Why()) == WM_OK,
              "rows can be written and opened");
      lent.bytes.push_back(bytes);
      lent.documents.push_back(document);
      source.document = document;
    }
    if (kind >= 2) {
      const std::size_t row_bytes = kLayers * kTopK * (experts_ > 256 ? 2u : 1u);
      const std::size_t stride = row_bytes + (bytes_.Once(2) ? 0 : 1 + bytes_.Below(9));
      lent.ids.push_back(StoredIds(sequence, of.rows, stride, true));
      source.shape = Or<const wm_shape*>(&shape_, nullptr, right);
      source.count = of.rows;
      source.ids = lent.ids.back().data();
      source.row_stride =
          stride == row_bytes && bytes_.Once(2) ? 0 : static_cast<std::int64_t>(stride);
      source.reasons = of.reasons.data();
      if (of.rows == 0) source.reasons = nullptr;
      // Fewer rows than there are memory for.
      if (bytes_.Once(32)) source.count = bytes_.Below(static_cast<std::uint32_t>(of.rows) + 1);
      if (bytes_.Once(48)) source.count = bytes_.Once(2) ? -1 : INT64_MIN;
      if (bytes_.Once(48)) source.first = bytes_.Number();
      if (source.count != of.rows || source.first != 0) right = false;
    }
    if (bytes_.Once(64)) {
      source.snapshot =
          reinterpret_cast<const wm_snapshot*>(plan_);  // of another type, or a second
      right = false;
    }
    lent.sources.push_back(source);
  }

  // ---- plans

  wm_trainer_layout LayoutOf(bool& right) {
    const auto number = [&](std::int32_t most) {
      if (!bytes_.Once(32))
        return static_cast<std::int32_t>(bytes_.Below(static_cast<std::uint32_t>(most)));
      right = false;
      return bytes_.Small();
    };
    wm_trainer_layout layout = {};
    layout.struct_size = SizeOf(sizeof(layout), right);
    layout.flags = bytes_.Once(2) ? WM_TRAINER_SEQUENCE_PARALLEL : 0;
    layout.flags |= Or(0u, 2u, right);
    layout.order = number(3);
    layout.context_cut = number(3);
    layout.context_size = number(4);
    layout.context_rank = number(4);
    layout.tensor_size = number(4);
    layout.tensor_rank = number(4);
    layout.sequence_multiple = number(25);
    layout.total_multiple = bytes_.Once(2) ? 0 : number(25);
    layout.local_multiple = bytes_.Once(2) ? 0 : number(9);
    return layout;
  }

  void MakePlan() {
    bool right = false;  // whether the ranks get equal parts is not known here
    const wm_trainer_layout layout = LayoutOf(right);
    std::vector<std::int64_t> lengths, padded;
    for (const Sequence& of : sequences_)
      lengths.push_back(of.tokens);
    const bool pads = bytes_.Once(4);
    for (std::int64_t& length : lengths) {
      if (bytes_.Once(48)) length = bytes_.Number();
      padded.push_back(bytes_.Once(16) ? bytes_.Number()
                                       : length - length % 8 + 8 * (length < 1000));
    }
    const std::size_t count = CountOf(lengths.size(), right);
    wm_trainer_plan* plan = nullptr;
    const bool made =
        Is(Trainer().plan_create(Or<const wm_trainer_layout*>(&layout, nullptr, right),
                                 Or<const std::int64_t*>(lengths.data(), nullptr, right),
                                 pads ? padded.data() : nullptr, count, &plan, Why()),
           false);
    Require(made == (plan != nullptr), "a plan comes with OK");
    if (!made) return;
    Trainer().plan_release(plan_);
    plan_ = plan;
    lengths_ = lengths;
    Require(Trainer().plan_rows(plan) >= 0, "a plan has rows");
    CheckRanks(layout, lengths, pads ? padded.data() : nullptr);
  }

  static std::vector<wm_trainer_segment> SegmentsOf(const wm_trainer_plan* plan) {
    std::size_t count = 0;
    Require(Trainer().plan_segments(plan, nullptr, 0, &count, nullptr) == WM_OK,
            "segments are counted");
    std::vector<wm_trainer_segment> segments(count);
    Require(Trainer().plan_segments(plan, segments.data(), count, &count, nullptr) == WM_OK &&
                count == segments.size(),
            "segments are given");
    return segments;
  }

  // The token of each row. REQUIRES: few rows.
  static std::vector<Place> PlacesOf(const wm_trainer_plan* plan,
                                     const std::vector<std::int64_t>& lengths) {
    const std::int64_t rows = Trainer().plan_rows(plan);
    std::vector<Place> places(static_cast<std::size_t>(rows));
    for (const wm_trainer_segment& segment : SegmentsOf(plan)) {
      Require(segment.count >= 1 && segment.position >= 0 && segment.sequence >= 0 &&
                  static_cast<std::size_t>(segment.sequence) < lengths.size() &&
                  segment.position + segment.count <=
                      lengths[static_cast<std::size_t>(segment.sequence)],
              "a segment has tokens of its sequence");
      for (std::int64_t i = 0; i < segment.count; ++i) {
        const std::int64_t row = segment.row + i * segment.row_stride;
        Require(row >= 0 && row < rows, "a token is in a row");
        Place& place = places[static_cast<std::size_t>(row)];
        Require(place.sequence < 0, "a row has one token");
        place = {segment.sequence, segment.position + i};
      }
    }
    return places;
  }

  // Together the ranks of a layout have each token once; tensor ranks all have it without sequence
  // parallelism.
  static void CheckRanks(wm_trainer_layout layout, const std::vector<std::int64_t>& lengths,
                         const std::int64_t* padded) {
    const std::int32_t contexts = std::max(layout.context_size, 1);
    const std::int32_t tensors = std::max(layout.tensor_size, 1);
    if (layout.struct_size != sizeof(layout) || contexts > 4 || tensors > 4) return;
    std::int64_t tokens = 0;
    for (const std::int64_t length : lengths)
      tokens += length;
    if (tokens > kMostRows) return;
    std::vector<std::vector<int>> times;
    for (const std::int64_t length : lengths)
      times.emplace_back(static_cast<std::size_t>(length), 0);
    std::int64_t rows = -1;
    for (layout.context_rank = 0; layout.context_rank < contexts; ++layout.context_rank) {
      for (layout.tensor_rank = 0; layout.tensor_rank < tensors; ++layout.tensor_rank) {
        wm_trainer_plan* plan = nullptr;
        Require(Trainer().plan_create(&layout, lengths.data(), padded, lengths.size(), &plan,
                                      nullptr) == WM_OK,
                "what one rank can be cut for, every rank can");
        const std::int64_t of_rank = Trainer().plan_rows(plan);
        Require(rows < 0 || rows == of_rank, "every rank has as many rows");
        rows = of_rank;
        for (const wm_trainer_segment& segment : SegmentsOf(plan)) {
          for (std::int64_t i = 0; i < segment.count; ++i)
            ++times.at(static_cast<std::size_t>(segment.sequence))
                  .at(static_cast<std::size_t>(segment.position + i));
        }
        Trainer().plan_release(plan);
      }
    }
    const int wanted = (layout.flags & WM_TRAINER_SEQUENCE_PARALLEL) != 0 ? 1 : tensors;
    for (const std::vector<int>& of : times) {
      Require(std::all_of(of.begin(), of.end(), [&](int n) { return n == wanted; }),
              "the ranks have each token once");
    }
  }

  // Of a decoder whose chunks are few: together they have every layer once.
  void CheckStages() {
    bool right = false;
    wm_trainer_pipeline pipeline = {};
    pipeline.struct_size = SizeOf(sizeof(pipeline), right);
    const auto number = [&](std::uint32_t most) {
      return bytes_.Once(24) ? bytes_.Small() : static_cast<std::int32_t>(bytes_.Below(most));
    };
    pipeline.num_layers = number(25);
    pipeline.pipeline_size = number(5);
    pipeline.pipeline_rank = number(5);
    pipeline.virtual_size = number(4);
    pipeline.virtual_rank = number(4);
    pipeline.first_stage_layers = bytes_.Once(2) ? 0 : number(9);
    pipeline.last_stage_layers = bytes_.Once(2) ? 0 : number(9);
    pipeline.flags = bytes_.Once(32) ? 1 : 0;
    std::int32_t first = -1, count = -1;
    if (!Is(Trainer().stage_layers(&pipeline, &first, &count, Why()), false)) return;
    Require(first >= 0 && count >= 0 && first <= pipeline.num_layers - count,
            "a stage has layers of the model");
    const std::int32_t stages = std::max(pipeline.pipeline_size, 1);
    const std::int32_t chunks = std::max(pipeline.virtual_size, 1);
    if (pipeline.struct_size != sizeof(pipeline) || stages > 8 || chunks > 8) return;
    std::int32_t next = 0;
    for (pipeline.virtual_rank = 0; pipeline.virtual_rank < chunks; ++pipeline.virtual_rank) {
      for (pipeline.pipeline_rank = 0; pipeline.pipeline_rank < stages; ++pipeline.pipeline_rank) {
        Require(
            Trainer().stage_layers(&pipeline, &first, &count, nullptr) == WM_OK && first == next,
            "chunk follows chunk");
        next += count;
      }
    }
    Require(next == pipeline.num_layers, "the chunks have every layer once");
  }

  // ---- filling

  // Whether this plan is of these sequences, and has few rows.
  [[nodiscard]] bool Fits() const {
    if (plan_ == nullptr || lengths_.size() != sequences_.size()) return false;
    if (Trainer().plan_rows(plan_) > kMostRows) return false;
    for (std::size_t i = 0; i < lengths_.size(); ++i) {
      if (lengths_[i] != sequences_[i].tokens) return false;
    }
    return true;
  }

  static constexpr std::size_t kIdBytes[] = {1, 2, 2, 4, 8};
  static std::int64_t Load(const std::vector<std::uint8_t>& ids, std::int32_t type,
                           std::size_t at) {
    const std::uint8_t* from = ids.data() + at * kIdBytes[type];
    const auto as = [from](auto value) {
      std::memcpy(&value, from, sizeof(value));
      return static_cast<std::int64_t>(value);
    };
    switch (type) {
      case WM_ID_UINT8:
        return as(std::uint8_t{});
      case WM_ID_UINT16:
        return as(std::uint16_t{});
      case WM_ID_INT16:
        return as(std::int16_t{});
      case WM_ID_INT32:
        return as(std::int32_t{});
      default:
        return as(std::int64_t{});
    }
  }

  // Why a token has no row in tensors of these layers; 0: it has one; -1: it is the last, which has
  // none in the source.
  [[nodiscard]] int ReasonOf(const Place& place, const std::vector<std::int32_t>& layers,
                             const Lent& lent) const {
    const Sequence& of = sequences_[static_cast<std::size_t>(place.sequence)];
    if (place.position >= of.rows) return -1;
    const auto row = static_cast<std::size_t>(place.position);
    // The last token may be told of as never written: there is no input of it.
    if (of.reasons[row] == WM_REASON_NEVER_WRITTEN && place.position == of.tokens - 1) return -1;
    if (of.reasons[row] != 0) return of.reasons[row];
    if (!lent.bad[static_cast<std::size_t>(place.sequence)] || of.bad[row] < 0) return 0;
    const bool taken =
        std::find(layers.begin(), layers.end(), kLayerIds[of.bad[row]]) != layers.end();
    return taken ? WM_REASON_INVALID_ID : 0;
  }

  void Fill() {
    if (!Fits()) return;
    bool right = true;
    Lent lent;
    for (std::size_t i = 0; i < sequences_.size(); ++i)
      AddSource(i, lent, right);
    std::vector<const wm_trainer_source*> sources;
    for (const wm_trainer_source& source : lent.sources)
      sources.push_back(Or(&source, static_cast<const wm_trainer_source*>(nullptr), right));
    std::vector<std::int32_t> layers(std::begin(kLayerIds), std::end(kLayerIds));
    std::rotate(layers.begin(), layers.begin() + bytes_.Below(kLayers), layers.end());
    layers.resize(1 + bytes_.Below(kLayers));
    if (bytes_.Once(32)) {
      layers.front() = bytes_.Small();
      right = right &&
              std::count(std::begin(kLayerIds), std::end(kLayerIds), layers.front()) == 1 &&
              std::count(layers.begin(), layers.end(), layers.front()) == 1;
    }
    const auto rows = static_cast<std::size_t>(Trainer().plan_rows(plan_));
    wm_trainer_fill_args args = {};
    args.struct_size = SizeOf(sizeof(args), right);
    args.flags = Or(0u, 1u << bytes_.Below(3), right, 16);
    args.plan = Or<const wm_trainer_plan*>(
        plan_, reinterpret_cast<const wm_trainer_plan*>(bytes_.Once(2) ? nullptr : plan_), right);
    args.sources = sources.data();
    args.num_sources = CountOf(sources.size(), right);
    args.layers = layers.data();
    args.num_layers = CountOf(layers.size(), right);
    args.id_type = static_cast<std::int32_t>(bytes_.Below(5));
    if (experts_ > 256 && args.id_type == WM_ID_UINT8) right = false;
    const std::size_t id_bytes = kIdBytes[args.id_type];
    if (bytes_.Once(48)) args.id_type = bytes_.Small(), right = false;
    args.fill = static_cast<std::int32_t>(bytes_.Below(3));
    if (bytes_.Once(48)) args.fill = bytes_.Small(), right = false;
    std::vector<std::uint8_t> ids(layers.size() * rows * kTopK * id_bytes, 0xa5);
    std::vector<std::uint8_t> mask(rows, 0xa5);
    args.ids = ids.data();
    // Less than there is, never more.
    args.ids_bytes =
        ids.size() -
        Or<std::size_t>(0, std::min<std::size_t>(ids.size(), 1 + bytes_.Below(8)), right);
    args.mask = mask.data();
    args.mask_bytes = bytes_.Once(8) ? 0 : rows;
    wm_trainer_report report = {};
    report.struct_size = SizeOf(sizeof(report), right);
    const bool reported = report.struct_size == sizeof(report);
    const auto* const given = Or<const wm_trainer_fill_args*>(&args, nullptr, right);
    if (!Is(Trainer().fill(given, &report, Why()), right)) {
      const auto untouched = [](std::uint8_t byte) { return byte == 0xa5; };
      Require(std::all_of(ids.begin(), ids.end(), untouched) &&
                  std::all_of(mask.begin(), mask.end(), untouched),
              "on an error nothing is written");
      return;
    }
    if (!right) return;  // what is harmless of what was changed is not known here
    Require(reported, "a report is whole");
    CheckFilled(args, layers, lent, ids, mask, report);
    given_ = ids;
    given_type_ = args.id_type;
    given_layers_ = static_cast<std::int32_t>(layers.size());
    given_mask_ = args.mask_bytes == 0 ? std::vector<std::uint8_t>() : mask;
  }

  void CheckFilled(const wm_trainer_fill_args& args, const std::vector<std::int32_t>& layers,
                   const Lent& lent, const std::vector<std::uint8_t>& ids,
                   const std::vector<std::uint8_t>& mask, const wm_trainer_report& report) const {
    const std::vector<Place> places = PlacesOf(plan_, lengths_);
    wm_trainer_report wanted = {};
    for (std::size_t row = 0; row < places.size(); ++row) {
      const Place& place = places[row];
      const int reason = place.sequence < 0 ? -2 : ReasonOf(place, layers, lent);
      wanted.padding += reason == -2;
      wanted.no_row += reason == -1;
      wanted.replayed += reason == 0;
      if (reason > 0) ++wanted.missing[reason];
      if (args.mask_bytes != 0)
        Require(mask[row] == (reason == 0 ? 1 : 0), "the mask says what is replayed");
      for (std::size_t l = 0; l < layers.size(); ++l) {
        for (std::int32_t k = 0; k < kTopK; ++k) {
          const std::size_t at = (l * places.size() + row) * kTopK + static_cast<std::size_t>(k);
          const std::int64_t id = Load(ids, args.id_type, at);
          if (reason == 0) {
            Require(id == Id(place, layers[l], k), "a replayed row has the ids of its token");
          } else if (args.fill == WM_FILL_ARANGE) {
            Require(id == k, "other rows have the fill");
          } else if (args.fill == WM_FILL_ZEROS) {
            Require(id == 0, "other rows have the fill");
          }
        }
      }
    }
    Require(report.replayed == wanted.replayed && report.padding == wanted.padding &&
                report.no_row == wanted.no_row &&
                std::equal(std::begin(report.missing), std::end(report.missing), wanted.missing),
            "the report counts the rows");
  }

  void CheckIds() {
    const std::size_t sequence = bytes_.Below(static_cast<std::uint32_t>(sequences_.size()));
    bool right = true;
    Lent lent;
    AddSource(sequence, lent, right);
    const wm_status status = Trainer().check_ids(&lent.sources.front(), Why());
    Is(status, false);
    if (!right || lent.sources.front().document != nullptr) return;
    bool good = true;
    for (std::size_t i = 0; i < sequences_[sequence].bad.size(); ++i) {
      const bool valid = sequences_[sequence].reasons[i] == 0;
      good = good && !(valid && lent.bad.front() && sequences_[sequence].bad[i] >= 0);
    }
    Require((status == WM_OK) == good, "bad ids are found, and no others");
  }

  // ---- the audit

  void Audit() {
    if (given_.empty() || !Fits() || given_mask_.empty()) return;
    const std::vector<Place> places = PlacesOf(plan_, lengths_);
    if (given_mask_.size() != places.size()) return;  // of another plan
    bool right = true;
    std::vector<std::uint8_t> own = given_;
    const bool changed = bytes_.Once(2);
    if (changed) {
      // Another layer's, or another row's, or noise.
      const std::size_t row_bytes = kTopK * kIdBytes[given_type_];
      std::rotate(
          own.begin(),
          own.begin() + static_cast<std::ptrdiff_t>(
                            row_bytes * bytes_.Below(static_cast<std::uint32_t>(
                                            std::min<std::size_t>(own.size() / row_bytes, 200)))),
          own.end());
    }
    std::vector<std::int64_t> rows;
    for (std::size_t i = bytes_.Once(2) ? 0 : bytes_.Below(20); i > 0; --i)
      rows.push_back(bytes_.Once(32) ? bytes_.Number()
                                     : bytes_.Below(static_cast<std::uint32_t>(places.size())));
    if (!rows.empty()) {
      // The tensors of these rows only, whatever they say.
      own.resize(std::min(own.size(), static_cast<std::size_t>(given_layers_) * rows.size() *
                                          kTopK * kIdBytes[given_type_]));
    }
    wm_trainer_audit_args args = {};
    args.struct_size = SizeOf(sizeof(args), right);
    args.flags = Or(0u, 1u, right);
    args.plan = plan_;
    args.num_layers = Or(given_layers_, bytes_.Small(), right);
    args.top_k = Or(kTopK, bytes_.Small(), right);
    args.num_experts = Or(experts_, bytes_.Small(), right);
    args.given_type = args.own_type = given_type_;
    args.given = given_.data();
    args.given_bytes = given_.size();
    args.mask = given_mask_.data();
    args.mask_bytes = given_mask_.size();
    args.own = own.data();
    args.own_bytes = own.size();
    args.rows = rows.empty() ? nullptr : rows.data();
    args.num_rows = rows.size();
    if (bytes_.Once(8)) args.least_agreement = bytes_.Below(5) / 4.0;
    if (bytes_.Once(8)) args.max_rows = bytes_.Number();
    std::vector<double> of_layers(static_cast<std::size_t>(given_layers_), 7);
    std::vector<double> of_rows(places.size(), 7);
    std::vector<double> of_sequences(lengths_.size(), 7);
    args.layers = of_layers.data();
    args.num_layers_out = bytes_.Once(2) ? of_layers.size() : 0;
    args.positions = of_rows.data();
    args.num_positions = bytes_.Once(2) ? of_rows.size() : 0;
    args.sequences = of_sequences.data();
    args.num_sequences = bytes_.Once(2) ? of_sequences.size() : 0;
    wm_trainer_audit audit = {};
    audit.struct_size = sizeof(audit);
    std::array<wm_trainer_alarm, 8> alarms = {};
    const std::size_t capacity = bytes_.Below(9);
    std::size_t num_alarms = 0;
    if (!Is(Trainer().audit(&args, &audit, alarms.data(), capacity, &num_alarms, Why()), false))
      return;
    const auto share = [](double value) { return value >= 0 && value <= 1; };
    const auto share_or_none = [&](double value) { return value == -1 || share(value); };
    Require(share(audit.agreement) && share(audit.chance) && audit.rows >= 0,
            "agreements are shares");
    Require(
        std::all_of(of_layers.begin(),
                    of_layers.begin() + static_cast<std::ptrdiff_t>(args.num_layers_out), share) &&
            std::all_of(of_rows.begin(),
                        of_rows.begin() + static_cast<std::ptrdiff_t>(args.num_positions),
                        share_or_none) &&
            std::all_of(of_sequences.begin(),
                        of_sequences.begin() + static_cast<std::ptrdiff_t>(args.num_sequences),
                        share_or_none),
        "agreements are shares, or there are none");
    for (std::size_t i = 0; i < std::min(capacity, num_alarms); ++i) {
      Require(Trainer().alarm_text(&alarms[i], Why()) == WM_OK && why_.size > 0,
              "an alarm has a text");
    }
    if (right && !changed && rows.empty()) {
      Require(audit.agreement == 1 && num_alarms == 0, "what was given agrees with itself");
    }
  }

  void AlarmText() {
    wm_trainer_alarm alarm = {};
    alarm.error = bytes_.Small();
    alarm.sequence = bytes_.Small();
    alarm.layer = bytes_.Small();
    alarm.by = bytes_.Number();
    alarm.count = bytes_.Number();
    alarm.agreement = bytes_.Once(2) ? std::numeric_limits<double>::quiet_NaN() : 1e300;
    (void)Trainer().alarm_text(bytes_.Once(16) ? nullptr : &alarm, Why());
  }

  void Agreement() {
    const std::size_t sequence = bytes_.Below(static_cast<std::uint32_t>(sequences_.size()));
    wm_rows* const rows = RowsOf(sequence);
    wm_trainer_agreement layers[kLayers] = {};
    std::size_t count = 0;
    const std::size_t capacity = bytes_.Below(kLayers + 1);
    if (Is(Trainer().agreement(rows, bytes_.Once(32) ? nullptr : rows, layers, capacity, &count,
                               Why()),
           false)) {
      const auto valid =
          std::count(sequences_[sequence].reasons.begin(), sequences_[sequence].reasons.end(), 0);
      Require(count == kLayers, "every layer is compared");
      for (std::size_t l = 0; l < capacity; ++l) {
        Require(layers[l].rows == valid && layers[l].same_order == valid &&
                    layers[l].shared_ids == valid * kTopK,
                "rows agree with themselves");
      }
    }
    Api().rows_release(rows);
  }

  void Call() {
    switch (bytes_.Below(12)) {
      case 0:
      case 1:
      case 2:
        MakePlan();
        break;
      case 3:
      case 4:
      case 5:
        Fill();
        break;
      case 6:
        CheckIds();
        break;
      case 7:
      case 8:
        Audit();
        break;
      case 9:
        Agreement();
        AlarmText();
        break;
      case 10:
        CheckStages();
        break;
      default: {
        Trainer().plan_retain(plan_);
        Trainer().plan_release(plan_);
        Require(Trainer().plan_rows(nullptr) == -1, "no plan has no rows");
        if (bytes_.Once(8)) MakeSequences();
        break;
      }
    }
  }

  Bytes bytes_;
  std::int32_t experts_ = 0;
  wm_shape shape_ = {};
  std::vector<Sequence> sequences_;
  wm_trainer_plan* plan_ = nullptr;
  std::vector<std::int64_t> lengths_;  // that it was made of
  // What was filled last.
  std::vector<std::uint8_t> given_, given_mask_;
  std::int32_t given_type_ = 0, given_layers_ = 0;
  char text_[512];
  wm_message why_ = {};
};

}  // namespace

void RunOne(std::span<const std::uint8_t> input) {
  World(Bytes(input)).Run();
}

std::vector<std::string> Corpus() {
  std::vector<std::string> corpus;
  for (std::uint32_t seed = 1; seed <= 64; ++seed) {
    std::mt19937 random(seed);
    std::string input;
    const std::size_t length = 256u << (seed % 4);
    while (input.size() < length)
      input.push_back(static_cast<char>(random()));
    corpus.push_back(input);
  }
  return corpus;
}

}  // namespace waymark::fuzz
