// The table of a trainer. The bytes choose its calls and their arguments, one after another, over
// the plans and sequences that earlier calls have made; pointers are good, null, or of another
// object, numbers are anything. Every id says of which token and layer it is, so that a tensor can
// be checked row by row against the segments of its plan; of a document that was changed, and of
// objects that were lost, a reader of one layer at a time says what is known.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "adapters/trainer/waymark_trainer.h"
#include "blockstore/wire/document.h"
#include "blockstore/wire/document_writer.h"
#include "tests/fuzz/damaged_objects.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/input_bytes.h"
#include "tests/support/edited_document.h"

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

// What a reader gets of a row, layer by layer. Reasons are bits: more than one is true of a row whose
// chunk is damaged, and whose ids are impossible elsewhere.
struct KnownRow {
  std::array<std::uint32_t, kLayers> reasons = {};
  std::array<std::array<std::int32_t, kTopK>, kLayers> ids = {};
};
// -1 in uint8 is the last of 256 experts.
template <class Args>
bool FillIsAnExpert(std::int32_t experts, const Args& args) {
  return experts == 256 && args.id_type == WM_ID_UINT8 && args.fill == WM_FILL_MINUS_ONE;
}

constexpr std::uint32_t Bit(int reason) {
  return 1u << reason;
}
struct KnownRows {
  std::int64_t first = 0;
  std::vector<KnownRow> rows;
};

// Memory that a call may write, between canaries.
class Written {
 public:
  explicit Written(std::size_t size) : size_(size), bytes_(size + 2 * kAround, kCanary) {}
  [[nodiscard]] std::uint8_t* data() { return bytes_.data() + kAround; }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::vector<std::uint8_t> Get() const {
    return {bytes_.begin() + kAround, bytes_.end() - kAround};
  }
  [[nodiscard]] bool untouched() const { return AreCanaries(0, bytes_.size()); }
  [[nodiscard]] bool inside() const {
    return AreCanaries(0, kAround) && AreCanaries(kAround + size_, bytes_.size());
  }

 private:
  static constexpr std::ptrdiff_t kAround = 72;
  static constexpr std::uint8_t kCanary = 0xa5;

  [[nodiscard]] bool AreCanaries(std::size_t begin, std::size_t end) const {
    return std::all_of(bytes_.begin() + static_cast<std::ptrdiff_t>(begin),
                       bytes_.begin() + static_cast<std::ptrdiff_t>(end),
                       [](std::uint8_t byte) { return byte == kCanary; });
  }

  std::size_t size_;
  std::vector<std::uint8_t> bytes_;
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
    MakeRightPlan();
  }
  ~World() {
    Trainer().plan_release(plan_);
    Api().session_release(session_);
    Api().store_release(store_);
  }

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

  // Rows [first, first + count) of a sequence.
  struct Range {
    std::size_t sequence = 0;
    std::int64_t first = 0;
    std::int64_t count = 0;
  };

  [[nodiscard]] std::size_t id_bytes() const { return experts_ > 256 ? 2 : 1; }
  [[nodiscard]] std::size_t row_bytes() const { return kLayers * kTopK * id_bytes(); }

  // Stored ids of rows, `stride` bytes apart. `bad`: with those of bad rows.
  std::vector<std::uint8_t> StoredIds(const Range& range, std::size_t stride, bool bad) const {
    // Exactly to the last id, so that a sanitizer sees what is read beyond.
    std::vector<std::uint8_t> stored(
        range.count == 0 ? 0 : static_cast<std::size_t>(range.count - 1) * stride + row_bytes(),
        0xee);
    for (std::int64_t i = 0; i < range.count; ++i) {
      const std::int64_t row = range.first + i;
      std::uint8_t* at = stored.data() + static_cast<std::size_t>(i) * stride;
      for (std::int32_t l = 0; l < kLayers; ++l) {
        for (std::int32_t k = 0; k < kTopK; ++k, at += id_bytes()) {
          const bool twice =
              bad && sequences_[range.sequence].bad[static_cast<std::size_t>(row)] == l;
          const auto id = static_cast<std::uint16_t>(
              Id({static_cast<std::int32_t>(range.sequence), row}, kLayerIds[l], twice ? 0 : k));
          std::memcpy(at, &id, id_bytes());
        }
      }
    }
    return stored;
  }

  // What the sources of one call lend.
  struct Lent {
    std::vector<wm_trainer_source> sources;
    std::vector<KnownRows> known;
    std::vector<bool> bad;  // whether the ids of bad rows are in it
    bool refused = false;   // whether a source is no source: then the call is not OK
    bool unready = false;   // whether a snapshot is not ready
    std::vector<std::vector<std::uint8_t>> ids;
    std::vector<std::unique_ptr<DamagedObjects>> objects;
    std::vector<wm_rows*> rows;
    std::vector<wm_document*> documents;
    std::vector<wm_snapshot*> snapshots;
    std::vector<wm_fetcher*> fetchers;

    Lent() = default;
    Lent(const Lent&) = delete;
    Lent& operator=(const Lent&) = delete;
    ~Lent() {
      for (wm_document* document : documents)
        Api().wire->document_release(document);
      for (wm_rows* of : rows)
        Api().rows_release(of);
      for (wm_snapshot* snapshot : snapshots)
        Api().snapshot_release(snapshot);
      for (wm_fetcher* fetcher : fetchers)
        Api().wire->fetcher_release(fetcher);
    }
  };
  // What a source has by what was put in it.
  [[nodiscard]] KnownRows Known(const Range& range, bool bad) const {
    const Sequence& of = sequences_[range.sequence];
    KnownRows known;
    known.first = range.first;
    for (std::int64_t i = range.first; i < range.first + range.count; ++i) {
      const auto row = static_cast<std::size_t>(i);
      KnownRow& to = known.rows.emplace_back();
      for (std::size_t l = 0; l < kLayers; ++l) {
        for (std::int32_t k = 0; k < kTopK; ++k)
          to.ids[l][static_cast<std::size_t>(k)] =
              Id({static_cast<std::int32_t>(range.sequence), i}, kLayerIds[l], k);
        if (of.reasons[row] != 0) {
          to.reasons[l] = Bit(of.reasons[row]);
        } else if (bad && of.bad[row] == static_cast<std::int32_t>(l)) {
          to.reasons[l] = Bit(WM_REASON_INVALID_ID);
        }
      }
    }
    return known;
  }

  // What a source has of a layer by what was read of it.
  void Learn(const Rows& read, std::size_t layer, KnownRows& known) const {
    for (std::size_t i = 0; i < known.rows.size(); ++i) {
      KnownRow& to = known.rows[i];
      const auto reason = static_cast<int>(read.infos[i].reason);
      to.reasons[layer] = reason == 0 ? 0 : Bit(reason);
      const std::uint8_t* const from = read.row(static_cast<std::int64_t>(i)).data();
      for (std::size_t k = 0; k < kTopK; ++k) {
        std::uint16_t id = 0;
        std::memcpy(&id, from + k * id_bytes(), id_bytes());
        to.ids[layer][k] = id;
      }
      static_assert(kTopK == 2);
      const auto& ids = to.ids[layer];
      if (reason == 0 && (ids[0] == ids[1] || std::max(ids[0], ids[1]) >= experts_))
        to.reasons[layer] = Bit(WM_REASON_INVALID_ID);
    }
  }

  // The rows as the library's own objects have them.
  Rows StoredRows(const Range& range, bool bad, std::int32_t page_tokens) const {
    const Sequence& of = sequences_[range.sequence];
    Rows rows;
    rows.shape = {.num_layers = kLayers,
                  .top_k = kTopK,
                  .num_experts = experts_,
                  .page_tokens = page_tokens,
                  .layer_ids = {std::begin(kLayerIds), std::end(kLayerIds)}};
    rows.first = range.first;
    rows.ids = StoredIds(range, row_bytes(), bad);
    for (std::int64_t i = 0; i < range.count; ++i) {
      const auto reason =
          static_cast<Reason>(of.reasons[static_cast<std::size_t>(range.first + i)]);
      rows.infos.push_back({.step = reason == Reason::kNone ? 1u : 0u, .reason = reason});
      if (reason != Reason::kNone)
        std::fill_n(rows.ids.begin() + i * static_cast<std::ptrdiff_t>(row_bytes()), row_bytes(),
                    std::uint8_t{0});
    }
    return rows;
  }

  wm_rows* RowsOf(const Range& range) {
    const Rows stored = StoredRows(range, false, 16);
    std::vector<wm_row_info> infos(stored.infos.size() + 1);
    for (std::size_t i = 0; i < stored.infos.size(); ++i)
      infos[i] = {
          stored.infos[i].step, 0, static_cast<std::uint8_t>(stored.infos[i].reason), 0, {}};
    wm_rows_view view = {};
    view.struct_size = sizeof(view);
    view.first = range.first;
    view.count = range.count;
    view.ids = stored.ids.data();
    view.infos = infos.data();
    wm_rows* rows = nullptr;
    Require(Api().rows_create(&shape_, &view, &rows, Why()) == WM_OK, "rows can be made");
    return rows;
  }

  // How chunks are encoded; `bad`: rows with one id twice, too.
  wire::ChunkCode CodeOf(const RoutingShape& shape, bool bad) {
    wire::ChunkCode code;
    if (!bad && bytes_.Once(2)) {
      code = wire::ChunkCode::SetCodeFor(shape);
    } else {
      code.ordered = !bytes_.Once(3);
    }
    code.crc_layers = static_cast<std::int32_t>(bytes_.Below(kLayers + 1));
    return code;
  }

  // A document, changed or not.
  void AddDocument(const Range& range, wm_trainer_source& source, Lent& lent) {
    const bool bad = bytes_.Once(2);
    const Rows rows = StoredRows(range, bad, 1 + static_cast<std::int32_t>(bytes_.Below(24)));
    wire::DocumentOptions options;
    options.code = CodeOf(rows.shape, bad);
    auto written = wire::WriteDocument(rows, options);
    Require(written.ok(), "rows can be written");
    lent.known.back() = Known(range, bad);
    if (range.count != 0 && bytes_.Once(2)) {
      wire_samples::EditedDocument edited(*std::move(written));
      if (bytes_.Once(3)) edited.DropPlaces();
      for (std::uint32_t n = bytes_.Below(5); n > 0; --n)
        edited.ChangeAny(rows.infos, [&](std::uint32_t end) { return bytes_.Below(end); });
      const std::size_t header_bytes = edited.header_bytes();
      written = std::move(edited).Take();
      if (bytes_.Once(3))
        written->resize(header_bytes + (written->size() - header_bytes) * bytes_.Byte() / 256);
      const auto document = wire::Document::Open(*written);
      Require(document.ok(), "a document whose header is right can be opened");
      for (std::int32_t l = 0; l < kLayers; ++l) {
        KnownRows& known = lent.known.back();
        for (std::int64_t i = 0; i < range.count; ++i) {
          const std::int64_t row = range.first + i;
          KnownRows one;
          one.rows.push_back(known.rows[static_cast<std::size_t>(i)]);
          Learn(document->ReadRows({row, row + 1, l, l + 1}).value(), static_cast<std::size_t>(l),
                one);
          known.rows[static_cast<std::size_t>(i)] = one.rows.front();
        }
      }
    }
    // Exactly its bytes, so that a sanitizer sees what is read beyond.
    lent.ids.emplace_back(written->begin(), written->end());
    wm_document* document = nullptr;
    Require(Api().wire->document_open(lent.ids.back().data(), lent.ids.back().size(), nullptr,
                                      &document, Why()) == WM_OK,
            "a document can be opened");
    lent.documents.push_back(document);
    source.document = document;
  }

  // Rows by handle, whose objects may be lost or damaged.
  void AddFetcher(const Range& range, wm_trainer_source& source, Lent& lent) {
    const bool bad = bytes_.Once(2);
    const Rows rows = StoredRows(range, bad, 1 + static_cast<std::int32_t>(bytes_.Below(24)));
    lent.objects.push_back(std::make_unique<DamagedObjects>(rows, CodeOf(rows.shape, bad)));
    DamagedObjects& objects = *lent.objects.back();
    KnownRows& known = lent.known.back();
    known = Known(range, bad);
    const bool whole = bytes_.Once(3);
    const bool ranges = !bytes_.Once(3);
    if (bytes_.Once(2)) {
      objects.Damage(bytes_);
      const KnownRows right = known;
      wire::Fetcher fetcher(&objects, {.cache_bytes = 0, .whole_chunks = whole || !ranges});
      for (std::int32_t l = 0; l < kLayers; ++l) {
        const auto read = fetcher.Fetch(objects.handle, {0, range.count, l, l + 1},
                                        wire::After(std::chrono::seconds(100)));
        Require(read.ok(), "lost objects are no error");
        Learn(*read, static_cast<std::size_t>(l), known);
        for (std::size_t i = 0; i < known.rows.size(); ++i) {
          const auto layer = static_cast<std::size_t>(l);
          const std::uint32_t reasons = known.rows[i].reasons[layer];
          Require(reasons == right.rows[i].reasons[layer] || reasons == Bit(WM_REASON_CAPACITY),
                  "rows are lost for capacity, and no others");
          Require(reasons != 0 || known.rows[i].ids[layer] == right.rows[i].ids[layer],
                  "a row that is there is the row that was published");
        }
      }
    }
    const wm_source_callbacks callbacks = objects.Callbacks(ranges);
    wm_source* from = nullptr;
    Require(Api().wire->source_callbacks_create(&callbacks, &from, Why()) == WM_OK,
            "a source can be made");
    wm_fetcher_options options = {};
    options.struct_size = sizeof(options);
    options.flags = whole ? WM_FETCHER_WHOLE_CHUNKS : 0;
    options.source = from;
    options.cache_bytes = bytes_.Once(2) ? 0 : 1;
    options.batch_bytes = bytes_.Once(2) ? 0 : 64;
    wm_fetcher* fetcher = nullptr;
    Require(Api().wire->fetcher_create(&options, &fetcher, Why()) == WM_OK,
            "a fetcher can be made");
    Api().wire->source_release(from);
    lent.fetchers.push_back(fetcher);
    source.fetcher = fetcher;
    lent.ids.push_back(wire::EncodeHandle(objects.handle).value());
    std::vector<std::uint8_t>& handle = lent.ids.back();
    if (bytes_.Once(24)) {
      handle[bytes_.Byte() * handle.size() / 256] ^=
          static_cast<std::uint8_t>(1 << bytes_.Below(8));
      lent.refused = true;  // a crc finds a bit
    }
    source.handle = handle.data();
    source.handle_bytes = handle.size();
    source.timeout_ns = bytes_.Once(2) ? -1 : std::int64_t{100} * 1000 * 1000 * 1000;
  }

  void MakeStore() {
    static constexpr std::int32_t kNullBlock = 0;
    wm_store_options options = {};
    options.struct_size = sizeof(options);
    options.num_layers = kLayers;
    options.top_k = kTopK;
    options.num_experts = experts_;
    options.layer_ids = kLayerIds;
    options.num_layer_ids = kLayers;
    options.num_blocks = 1 + kMostSequences * kSequenceBlocks;
    options.page_tokens = bytes_.Once(2) ? kBlockTokens : kBlockTokens / 2;
    options.block_tokens = kBlockTokens;
    options.null_blocks = &kNullBlock;
    options.num_null_blocks = 1;
    options.num_pages = 1024;  // nothing is missing for want of pages
    options.max_step_rows = 64;
    options.log_bytes = 64 << 10;
    options.landing = WM_LANDING_CALLER;
    options.key_seed = 1;
    Require(Api().store_create(&options, &store_, Why()) == WM_OK, "a store can be made");
    wm_session_options of_session = {};
    of_session.struct_size = sizeof(of_session);
    of_session.store = store_;
    of_session.max_rows = kMostTokens;
    Require(Api().session_create(&of_session, &session_, Why()) == WM_OK, "and its session");
  }

  // A snapshot of rows that a step has written: all of those from row 0 on, and a part is taken.
  // What is missing by the sequence is never written, not captured, or no choice.
  void AddSnapshot(const Range& range, wm_trainer_source& source, Lent& lent) {
    if (store_ == nullptr) MakeStore();
    const Sequence& of = sequences_[range.sequence];
    const std::int64_t last = range.first + range.count;
    KnownRows& known = lent.known.back();
    known = Known(range, true);
    std::vector<std::int32_t> blocks;
    std::vector<wm_event> events;
    std::vector<std::int64_t> slots;
    std::vector<std::int32_t> ids;
    for (std::int64_t row = 0; row < last; ++row) {
      if (row % kBlockTokens == 0) {
        blocks.push_back(
            static_cast<std::int32_t>(1 + range.sequence * kSequenceBlocks + blocks.size()));
        events.push_back(wm_bind(blocks.back(), nullptr, 0));
      }
      const auto at = static_cast<std::size_t>(row);
      int reason = of.bad[at] >= 0 ? WM_REASON_INVALID_ID : WM_REASON_NONE;
      if (of.reasons[at] != 0) {
        static constexpr int kReasons[] = {WM_REASON_NEVER_WRITTEN, WM_REASON_NOT_CAPTURED,
                                           WM_REASON_INVALID_ID};
        reason = kReasons[of.reasons[at] % 3];
      }
      if (row >= range.first) {
        // A landed row is checked in all layers.
        known.rows[static_cast<std::size_t>(row - range.first)].reasons.fill(
            reason == 0 ? 0 : Bit(reason));
      }
      if (reason == WM_REASON_NEVER_WRITTEN) continue;
      slots.push_back(std::int64_t{blocks.back()} * kBlockTokens + row % kBlockTokens);
      for (const std::int32_t layer : kLayerIds) {
        for (std::int32_t k = 0; k < kTopK; ++k)
          ids.push_back(Id({static_cast<std::int32_t>(range.sequence), row}, layer, k));
      }
      // Of one layer, which need not be asked for.
      std::int32_t* const layer = ids.data() + ids.size() - kTopK * (1 + at % kLayers);
      if (reason == WM_REASON_NOT_CAPTURED) layer[0] = layer[1] = -1;
      if (reason == WM_REASON_INVALID_ID) layer[1] = row % 2 == 0 ? layer[0] : experts_;
    }
    wm_step_batch batch = {};
    batch.struct_size = sizeof(batch);
    batch.step = ++step_;
    batch.version = 1;
    batch.events = events.data();
    batch.num_events = events.size();
    batch.slots = slots.data();
    batch.num_slots = slots.size();
    wm_ids step_ids = {};
    step_ids.struct_size = sizeof(step_ids);
    step_ids.type = WM_ID_INT32;
    step_ids.data = ids.data();
    step_ids.rows = static_cast<std::int32_t>(slots.size());
    step_ids.columns = kTopK;
    step_ids.row_stride = kLayers * kTopK * std::ptrdiff_t{sizeof(std::int32_t)};
    step_ids.k_stride = sizeof(std::int32_t);
    step_ids.layers = kLayers;
    step_ids.layer_stride = kTopK * std::ptrdiff_t{sizeof(std::int32_t)};
    wm_code code = {};
    Require(Api().session_begin_ids_step(session_, &batch, &code) == WM_OK, "a step can be begun");
    wm_snapshot_args args = {};
    args.struct_size = sizeof(args);
    args.blocks = blocks.data();
    args.num_blocks = blocks.size();
    args.first = range.first;
    args.last = last;
    wm_snapshot* snapshot = nullptr;
    Require(Api().store_snapshot(store_, &args, &snapshot, Why()) == WM_OK,
            "a snapshot can be taken");
    lent.snapshots.push_back(snapshot);
    source.snapshot = snapshot;
    Require(Api().session_submit_ids(session_, step_, &step_ids, {}, &code) == WM_OK,
            "a step can be submitted");
    // Before its step, and those before it, have landed, a snapshot is not ready. The ids live as
    // long as the call.
    if (!unlanded_.empty()) lent.unready = true;
    if (bytes_.Once(24)) {
      lent.unready = true;
      unlanded_.push_back({step_, std::move(ids)});
      return;
    }
    if (!unlanded_.empty()) {
      unlanded_.push_back({step_, std::move(ids)});
      return;
    }
    Require(Api().store_land(store_, step_) == WM_OK, "a step can be landed");
  }
  void LandAll() {
    for (const Unlanded& of : unlanded_)
      Require(Api().store_land(store_, of.step) == WM_OK, "a step can be landed late");
    unlanded_.clear();
  }

  void AddView(const Range& range, wm_trainer_source& source, Lent& lent, bool& right) {
    const Sequence& of = sequences_[range.sequence];
    const std::size_t stride = row_bytes() + (bytes_.Once(2) ? 0 : 1 + bytes_.Below(9));
    lent.known.back() = Known(range, true);
    lent.ids.push_back(StoredIds(range, stride, true));
    source.shape = Or<const wm_shape*>(&shape_, nullptr, right);
    source.first = range.first;
    source.count = range.count;
    source.ids = lent.ids.back().data();
    source.row_stride =
        stride == row_bytes() && bytes_.Once(2) ? 0 : static_cast<std::int64_t>(stride);
    // A number that is no reason makes a row missing, too.
    std::vector<std::uint8_t> reasons(of.reasons.begin() + range.first,
                                      of.reasons.begin() + range.first + range.count);
    const std::uint32_t odd = bytes_.Below(128);
    if (odd < reasons.size()) {
      reasons[odd] = static_cast<std::uint8_t>(WM_NUM_REASONS + bytes_.Below(249));
      lent.known.back().rows[odd].reasons.fill(Bit(WM_REASON_INVALID_ID));
    }
    lent.ids.push_back(std::move(reasons));
    source.reasons = lent.ids.back().data();
    // Without reasons all rows are valid.
    if (std::count(lent.ids.back().begin(), lent.ids.back().end(), 0) == range.count)
      source.reasons = nullptr;
    // Fewer rows than there is memory for.
    if (bytes_.Once(32)) source.count = bytes_.Below(static_cast<std::uint32_t>(range.count) + 1);
    if (bytes_.Once(48)) source.count = bytes_.Once(2) ? -1 : INT64_MIN;
    if (bytes_.Once(48)) source.first = bytes_.Number();
    if (source.count != range.count || source.first != range.first) right = false;
  }

  // `partial`: any of the rows, else all.
  void AddSource(std::size_t sequence, Lent& lent, bool& right, bool partial = false) {
    Range range{sequence, 0, sequences_[sequence].rows};
    const std::uint32_t kind = bytes_.Below(9);
    const bool from_row_0 = kind == 7;  // what a handle names
    if (partial) {
      if (!from_row_0) range.first = bytes_.Below(static_cast<std::uint32_t>(range.count) + 1);
      range.count = bytes_.Below(static_cast<std::uint32_t>(range.count - range.first) + 1);
    }
    wm_trainer_source source = {};
    source.struct_size = bytes_.Once(8) ? SizeOf(sizeof(source), right) : sizeof(source);
    source.flags = Or(0u, 1u, right);
    lent.known.push_back(Known(range, false));
    if (kind == 0) {
      lent.rows.push_back(RowsOf(range));
      source.rows = lent.rows.back();
    } else if (kind < 5) {
      AddDocument(range, source, lent);
    } else if (kind == 7) {
      AddFetcher(range, source, lent);
    } else if (kind == 8 && range.count != 0) {
      AddSnapshot(range, source, lent);
    } else {
      AddView(range, source, lent, right);
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

  // A plan of the sequences: their padded lengths can be cut for every rank.
  void MakeRightPlan() {
    wm_trainer_layout layout = {};
    layout.struct_size = sizeof(layout);
    layout.flags = bytes_.Once(2) ? WM_TRAINER_SEQUENCE_PARALLEL : 0;
    layout.order = static_cast<std::int32_t>(bytes_.Below(3));
    layout.context_cut =
        static_cast<std::int32_t>(bytes_.Below(layout.order == WM_TRAINER_PACKED ? 3 : 2));
    const std::uint32_t contexts = 1 + bytes_.Below(3);
    const std::uint32_t tensors = 1u << bytes_.Below(3);
    layout.context_size = static_cast<std::int32_t>(contexts);
    layout.context_rank = static_cast<std::int32_t>(bytes_.Below(contexts));
    layout.tensor_size = static_cast<std::int32_t>(tensors);
    layout.tensor_rank = static_cast<std::int32_t>(bytes_.Below(tensors));
    layout.sequence_multiple = 24;  // of 2 C, and what is left of the tensor ranks
    std::vector<std::int64_t> lengths;
    for (const Sequence& of : sequences_)
      lengths.push_back(of.tokens);
    wm_trainer_plan* plan = nullptr;
    Is(Trainer().plan_create(&layout, lengths.data(), nullptr, lengths.size(), &plan, Why()), true);
    Trainer().plan_release(plan_);
    plan_ = plan;
    lengths_ = lengths;
  }

  void MakePlan() {
    if (bytes_.Once(2)) return MakeRightPlan();
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

  // What the row of a token gets in tensors of these layers.
  struct Verdict {
    std::uint32_t reasons = 0;      // 0: the ids of the source
    bool no_row = false;            // it is the last token, which has none
    std::vector<std::int32_t> ids;  // [layers][K]
  };
  [[nodiscard]] Verdict VerdictOf(const Place& place, const std::vector<std::int32_t>& layers,
                                  const Lent& lent) const {
    Verdict verdict;
    const auto sequence = static_cast<std::size_t>(place.sequence);
    const KnownRows& known = lent.known[sequence];
    const std::int64_t i = place.position - known.first;
    if (i < 0 || i >= static_cast<std::int64_t>(known.rows.size())) {
      verdict.reasons = Bit(WM_REASON_NEVER_WRITTEN);
    } else {
      const KnownRow& row = known.rows[static_cast<std::size_t>(i)];
      for (const std::int32_t layer : layers) {
        const auto at = static_cast<std::size_t>(
            std::find(std::begin(kLayerIds), std::end(kLayerIds), layer) - std::begin(kLayerIds));
        verdict.reasons |= row.reasons[at];
        verdict.ids.insert(verdict.ids.end(), row.ids[at].begin(), row.ids[at].end());
      }
    }
    // The last token may be told of as never written: there is no input of it.
    verdict.no_row = verdict.reasons == Bit(WM_REASON_NEVER_WRITTEN) &&
                     place.position == sequences_[sequence].tokens - 1;
    return verdict;
  }

  void Fill() {
    if (!Fits()) return;
    FillOnce();
    LandAll();
  }
  void FillOnce() {
    bool right = true;
    Lent lent;
    const bool partial = bytes_.Once(4);
    for (std::size_t i = 0; i < sequences_.size(); ++i)
      AddSource(i, lent, right, partial);
    std::vector<const wm_trainer_source*> sources;
    for (const wm_trainer_source& source : lent.sources)
      sources.push_back(Or(&source, static_cast<const wm_trainer_source*>(nullptr), right));
    std::vector<std::int32_t> layers(std::begin(kLayerIds), std::end(kLayerIds));
    std::rotate(layers.begin(), layers.begin() + bytes_.Below(kLayers), layers.end());
    layers.resize(1 + bytes_.Below(kLayers));
    if (bytes_.Once(2)) std::reverse(layers.begin(), layers.end());
    bool refused = lent.refused || lent.unready;
    if (bytes_.Once(32)) {
      layers.front() = bytes_.Small();
      refused = refused ||
                std::count(std::begin(kLayerIds), std::end(kLayerIds), layers.front()) != 1 ||
                std::count(layers.begin(), layers.end(), layers.front()) != 1;
    }
    const auto rows = static_cast<std::size_t>(Trainer().plan_rows(plan_));
    const bool packed = bytes_.Once(3);
    wm_trainer_fill_args args = {};
    args.struct_size = SizeOf(sizeof(args), right);
    args.flags = (partial ? WM_TRAINER_PARTIAL : 0) | (packed ? WM_TRAINER_PACKED_ROWS : 0);
    args.flags |= Or(0u, 4u << bytes_.Below(3), right);
    args.plan = Or<const wm_trainer_plan*>(
        plan_, reinterpret_cast<const wm_trainer_plan*>(bytes_.Once(2) ? nullptr : plan_), right);
    args.sources = sources.data();
    args.num_sources = CountOf(sources.size(), right);
    args.layers = layers.data();
    args.num_layers = CountOf(layers.size(), right);
    const std::int32_t stored_type = experts_ > 256 ? WM_ID_UINT16 : WM_ID_UINT8;
    args.id_type =
        packed && !bytes_.Once(16) ? stored_type : static_cast<std::int32_t>(bytes_.Below(5));
    if (experts_ > 256 && args.id_type == WM_ID_UINT8) refused = true;
    if (packed && args.id_type != stored_type) refused = true;
    const std::size_t width = kIdBytes[args.id_type];
    if (bytes_.Once(48)) args.id_type = bytes_.Small(), right = false;
    args.fill = static_cast<std::int32_t>(bytes_.Below(3));
    if (bytes_.Once(48)) args.fill = bytes_.Small(), right = false;
    if (FillIsAnExpert(experts_, args)) refused = true;
    Written ids(layers.size() * rows * kTopK * width);
    Written mask(rows);
    args.ids = ids.data();
    // Less than there is, never more.
    args.ids_bytes = ids.size();
    if (bytes_.Once(64) && ids.size() > 0) {
      args.ids_bytes -= std::min<std::size_t>(ids.size(), 1 + bytes_.Below(8));
      refused = true;
    }
    args.mask = mask.data();
    args.mask_bytes = bytes_.Once(8) ? 0 : rows;
    if (bytes_.Once(64) && rows > 1) {
      args.mask_bytes = 1 + bytes_.Below(static_cast<std::uint32_t>(rows - 1));
      refused = true;
    }
    wm_trainer_report report = {};
    report.struct_size = SizeOf(sizeof(report), right);
    const bool reported = report.struct_size == sizeof(report);
    const auto* const given = Or<const wm_trainer_fill_args*>(&args, nullptr, right);
    const bool filled = Is(Trainer().fill(given, &report, Why()), right && !refused);
    Require(ids.inside() && mask.inside(), "nothing is written beyond the arrays");
    if (!filled) {
      Require(ids.untouched() && mask.untouched() && report.replayed == 0,
              "on an error nothing is written");
      return;
    }
    Require(!refused, "what cannot be filled is refused");
    if (!right) return;  // what is harmless of what was changed is not known here
    Require(reported, "a report is whole");
    if (args.mask_bytes == 0) Require(mask.untouched(), "a mask of no bytes is not written");
    CheckFilled(args, layers, lent, ids.Get(), mask.Get(), &report);
    if (packed) {
      if (args.mask_bytes != 0) ExpandFilled(args, layers, lent, ids.Get(), mask.Get());
      return;
    }
    given_ = ids.Get();
    given_type_ = args.id_type;
    given_layers_ = static_cast<std::int32_t>(layers.size());
    given_mask_ = args.mask_bytes == 0 ? std::vector<std::uint8_t>() : mask.Get();
  }

  // Whether an id is the fill of rows without routing.
  static bool IsFill(std::int64_t id, std::int32_t fill, std::int32_t type, std::int32_t k) {
    if (fill == WM_FILL_ARANGE) return id == k;
    if (fill == WM_FILL_ZEROS) return id == 0;
    return id == (type == WM_ID_UINT8 ? 0xff : type == WM_ID_UINT16 ? 0xffff : -1);
  }

  void CheckFilled(const wm_trainer_fill_args& args, const std::vector<std::int32_t>& layers,
                   const Lent& lent, const std::vector<std::uint8_t>& ids,
                   const std::vector<std::uint8_t>& mask, const wm_trainer_report* given) const {
    const std::vector<Place> places = PlacesOf(plan_, lengths_);
    const bool packed = (args.flags & WM_TRAINER_PACKED_ROWS) != 0;
    wm_trainer_report wanted = {};
    wanted.first_missing_sequence = wanted.first_missing_position = -1;
    std::int64_t lost = 0;
    std::array<std::int64_t, 8> either = {};  // of `wanted.missing`, or for another reason
    for (std::size_t row = 0; row < places.size(); ++row) {
      const Place& place = places[row];
      const bool padding = place.sequence < 0;
      const Verdict verdict = padding ? Verdict{} : VerdictOf(place, layers, lent);
      const bool replayed = !padding && verdict.reasons == 0;
      wanted.padding += padding;
      wanted.no_row += verdict.no_row;
      wanted.replayed += replayed;
      if (verdict.reasons != 0 && !verdict.no_row) {
        ++lost;
        const bool one = (verdict.reasons & (verdict.reasons - 1)) == 0;
        for (std::size_t reason = 1; reason < 8; ++reason) {
          if ((verdict.reasons >> reason & 1) == 0) continue;
          ++(one ? wanted.missing[reason] : either[reason]);
        }
        const auto first = std::pair(wanted.first_missing_sequence, wanted.first_missing_position);
        if (first.first < 0 ||
            std::pair<std::int64_t, std::int64_t>(place.sequence, place.position) < first) {
          wanted.first_missing_sequence = place.sequence;
          wanted.first_missing_position = place.position;
        }
      }
      if (args.mask_bytes != 0)
        Require(mask[row] == (replayed ? 1 : 0), "the mask says what is replayed");
      for (std::size_t l = 0; l < layers.size(); ++l) {
        for (std::int32_t k = 0; k < kTopK; ++k) {
          const std::size_t group = packed ? row * layers.size() + l : l * places.size() + row;
          const std::int64_t id =
              Load(ids, args.id_type, group * kTopK + static_cast<std::size_t>(k));
          if (replayed) {
            Require(id == verdict.ids[l * kTopK + static_cast<std::size_t>(k)],
                    "a replayed row has the ids of its token");
          } else {
            Require(IsFill(id, packed ? WM_FILL_ZEROS : args.fill, args.id_type, k),
                    "other rows have the fill");
          }
        }
      }
    }
    if (given == nullptr) return;
    const wm_trainer_report& report = *given;
    Require(report.replayed == wanted.replayed && report.padding == wanted.padding &&
                report.no_row == wanted.no_row &&
                report.first_missing_sequence == wanted.first_missing_sequence &&
                report.first_missing_position == wanted.first_missing_position,
            "the report counts the rows");
    for (std::size_t reason = 0; reason < 8; ++reason) {
      lost -= report.missing[reason];
      Require(report.missing[reason] >= wanted.missing[reason] &&
                  report.missing[reason] <= wanted.missing[reason] + either[reason],
              "the report has the reasons");
    }
    Require(lost == 0, "the report has a reason for each row that is missing");
  }

  // Packed rows as they were filled become the tensors that filling would have made.
  void ExpandFilled(wm_trainer_fill_args args, const std::vector<std::int32_t>& layers,
                    const Lent& lent, const std::vector<std::uint8_t>& packed,
                    const std::vector<std::uint8_t>& mask) {
    do {
      args.id_type = static_cast<std::int32_t>(bytes_.Below(5));
    } while (experts_ > 256 && args.id_type == WM_ID_UINT8 && !bytes_.empty());
    if (experts_ > 256 && args.id_type == WM_ID_UINT8) args.id_type = WM_ID_INT64;
    if (FillIsAnExpert(experts_, args)) args.id_type = WM_ID_INT64;
    args.flags &= ~WM_TRAINER_PACKED_ROWS;
    wm_trainer_expand_args expand = {};
    expand.struct_size = sizeof(expand);
    expand.num_layers = static_cast<std::int32_t>(layers.size());
    expand.top_k = kTopK;
    expand.num_experts = experts_;
    expand.id_type = args.id_type;
    expand.fill = args.fill;
    expand.rows = static_cast<std::int64_t>(mask.size());
    expand.packed = packed.data();
    expand.packed_bytes = packed.size();
    expand.mask = mask.data();
    expand.mask_bytes = mask.size();
    Written ids(layers.size() * mask.size() * kTopK * kIdBytes[args.id_type]);
    expand.ids = ids.data();
    expand.ids_bytes = ids.size();
    Require(Is(Trainer().expand(&expand, Why()), true) && ids.inside(), "packed rows are expanded");
    CheckFilled(args, layers, lent, ids.Get(), mask, nullptr);
  }

  // Of the library's tensors of any packed rows, an id at a time.
  void Expand() {
    bool right = true;
    bool refused = false;
    wm_trainer_expand_args args = {};
    args.struct_size = SizeOf(sizeof(args), right);
    args.num_experts = bytes_.Once(2) ? 1 + static_cast<std::int32_t>(bytes_.Byte())
                                      : 257 + 300 * static_cast<std::int32_t>(bytes_.Below(218));
    args.num_layers = 1 + static_cast<std::int32_t>(bytes_.Below(9));
    args.top_k = std::min(1 + static_cast<std::int32_t>(bytes_.Below(12)), args.num_experts);
    args.rows = bytes_.Once(8) ? 4 * bytes_.Byte() : bytes_.Below(40);
    args.id_type = static_cast<std::int32_t>(bytes_.Below(5));
    args.fill = static_cast<std::int32_t>(bytes_.Below(3));
    const std::size_t stored = args.num_experts <= 256 ? 1 : 2;
    const auto rows = static_cast<std::size_t>(args.rows);
    const auto row_ids = static_cast<std::size_t>(args.num_layers * args.top_k);
    const std::size_t width = kIdBytes[args.id_type];
    const std::int32_t most = args.id_type == WM_ID_UINT8   ? 256
                              : args.id_type == WM_ID_INT16 ? 32768
                                                            : 65536;
    refused = args.num_experts > most || FillIsAnExpert(args.num_experts, args);
    std::vector<std::uint8_t> packed(rows * row_ids * stored);
    std::minstd_rand random(1 + bytes_.Byte());
    std::vector<std::uint16_t> wanted(rows * row_ids);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      wanted[i] =
          static_cast<std::uint16_t>(random() % static_cast<std::uint32_t>(args.num_experts));
      std::memcpy(packed.data() + i * stored, &wanted[i], stored);
    }
    std::vector<std::uint8_t> mask(rows);
    for (std::uint8_t& of : mask)
      of = static_cast<std::uint8_t>(random() % 3 == 0 ? 0 : 1 + random() % 255);
    Written ids(rows * row_ids * width);
    args.packed = packed.data();
    args.packed_bytes = packed.size();
    args.mask = mask.data();
    args.mask_bytes = mask.size();
    args.ids = ids.data();
    args.ids_bytes = ids.size();
    // One wrong thing, now and then. Where more is told of than there is, nothing is read.
    const wm_trainer_expand_args as_made = args;
    switch (bytes_.Below(32)) {
      case 0:
        args.packed_bytes += bytes_.Once(2) && !packed.empty() ? -1 : 1;
        break;
      case 1:
        args.mask_bytes += bytes_.Once(2) && !mask.empty() ? -1 : 1;
        break;
      case 2:
        args.ids_bytes += bytes_.Once(2) && ids.size() != 0 ? -1 : 1;
        break;
      case 3:
        args.packed = packed.empty() ? args.packed : nullptr;
        break;
      case 4:
        args.mask = mask.empty() ? args.mask : nullptr;
        break;
      case 5:
        args.ids = ids.size() == 0 ? args.ids : nullptr;
        break;
      case 6:
        args.rows = bytes_.Number();
        break;
      case 7:
        args.num_layers = bytes_.Small();
        break;
      case 8:
        args.top_k = bytes_.Small();
        break;
      case 9:
        args.num_experts = bytes_.Negative();
        break;
      case 10:
        args.id_type = 5 + static_cast<std::int32_t>(bytes_.Byte());
        break;
      case 11:
        args.fill = bytes_.Once(2) ? -1 : 3 + static_cast<std::int32_t>(bytes_.Byte());
        break;
      case 12:
        args.reserved = 1;
        break;
      case 13:
        args.flags = 2u << bytes_.Below(31);  // not of a device
        break;
      default:
        break;
    }
    const bool changed = std::memcmp(&args, &as_made, sizeof(args)) != 0;
    // Of no rows no size is wrong, and any number of layers and ids is right that is one.
    refused = refused || (changed && rows != 0);
    const auto* const given = Or<const wm_trainer_expand_args*>(&args, nullptr, right);
    const bool expanded = Is(Trainer().expand(given, Why()), right && !refused && !changed);
    Require(ids.inside(), "nothing is written beyond the tensors");
    if (!expanded) {
      Require(ids.untouched(), "on an error nothing is written");
      return;
    }
    Require(!refused, "what cannot be expanded is refused");
    if (!right || changed) return;
    const std::vector<std::uint8_t> tensors = ids.Get();
    const auto top_k = static_cast<std::size_t>(args.top_k);
    for (std::size_t row = 0; row < rows; ++row) {
      for (std::size_t at = 0; at < row_ids; ++at) {
        const std::int64_t id =
            Load(tensors, args.id_type, (at / top_k * rows + row) * top_k + at % top_k);
        Require(mask[row] != 0
                    ? id == wanted[row * row_ids + at]
                    : IsFill(id, args.fill, args.id_type, static_cast<std::int32_t>(at % top_k)),
                "a tensor has the packed ids, or the fill");
      }
    }
  }

  void CheckIds() {
    const std::size_t sequence = bytes_.Below(static_cast<std::uint32_t>(sequences_.size()));
    bool right = true;
    Lent lent;
    AddSource(sequence, lent, right);
    const wm_trainer_source& source = lent.sources.front();
    const bool accepted = Is(Trainer().check_ids(&source, Why()), false);
    LandAll();
    if (!right) return;
    const bool in_memory = source.rows != nullptr || source.shape != nullptr;
    // Ids are bad in one layer; what is missing for a reason is missing in all.
    const bool good = in_memory && std::all_of(lent.known.front().rows.begin(),
                                               lent.known.front().rows.end(), [](const auto& row) {
                                                 return row.reasons[0] == row.reasons[1] &&
                                                        row.reasons[0] == row.reasons[2];
                                               });
    Require(accepted == good, "bad ids are found, and no others; of what is elsewhere, none");
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
    wm_rows* const rows = RowsOf({sequence, 0, sequences_[sequence].rows});
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
    switch (bytes_.Below(14)) {
      case 12:
      case 13:
        Expand();
        break;
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
        if (bytes_.Once(4)) {
          MakeSequences();
          MakeRightPlan();
        }
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
  // Of snapshots.
  static constexpr std::int32_t kBlockTokens = 4;
  static constexpr std::size_t kSequenceBlocks = kMostTokens / kBlockTokens;
  struct Unlanded {
    std::uint64_t step;
    std::vector<std::int32_t> ids;
  };
  wm_store* store_ = nullptr;
  wm_session* session_ = nullptr;
  std::uint64_t step_ = 0;
  std::vector<Unlanded> unlanded_;
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
  for (std::uint32_t seed = 1; seed <= 32; ++seed) {
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
