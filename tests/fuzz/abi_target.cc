// The C ABI. The bytes choose functions and fields of their structs, one after another, over what
// earlier calls have made; pointers are good, or null.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "plugin/waymark_graph.h"
#include "plugin/waymark_wire.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/input_bytes.h"

namespace waymark::fuzz {
namespace {

constexpr std::int32_t kMaxRows = 16;

const wm_api_v1& Api() {
  return *wm_get_api_v1();
}

// Counts that a step's ids were given back, once.
void CountDone(void* context) {
  ++*static_cast<std::atomic<std::uint64_t>*>(context);
}

wm_status ForwardOf(void* context, const wm_view* view, std::int32_t rows) {
  for (std::int32_t i = 0; i < rows * view->top_k; ++i)
    view->data[i] = static_cast<std::int16_t>(i % 8);
  return *static_cast<const wm_status*>(context);
}

// Everything that the calls of an input have made and lend.
class World {
 public:
  // Begins with a store and a session, as a rule, so that the calls that follow mean something.
  explicit World(Bytes bytes) : bytes_(bytes), ids_(std::size_t{1} << 16) {
    for (std::size_t i = 0; i < ids_.size(); ++i)
      ids_[i] = static_cast<std::uint8_t>(i * 5 % 8);
    const std::uint8_t begin = bytes_.Byte();
    if (begin % 16 == 15) return;
    static constexpr wm_option kNamed[] = {
        {"num_pages", "6"}, {"max_step_rows", "64"}, {"key_seed", "1"}};
    wm_capture_options options = {};
    options.struct_size = sizeof(options);
    options.num_layers = 2;
    options.top_k = 2;
    options.num_experts = (begin & 4) != 0 ? 300 : 8;
    options.num_blocks = 8;
    options.page_tokens = 4;
    options.options = kNamed;
    options.num_options = std::size(kNamed);
    if ((begin & 2) != 0) {
      of_recorder_ = {sizeof(of_recorder_), 0, 64 << 10, nullptr, 0};
      options.recorder = &of_recorder_;
    }
    Plain(Api().capture_create(&options, &capture_, nullptr));
    wm_session_options of_session = {};
    of_session.struct_size = sizeof(of_session);
    of_session.capture = capture_;
    of_session.max_rows = kMaxRows;
    Plain(Api().graph->session_create(&of_session, &session_, nullptr));
    Require(capture_ != nullptr && session_ != nullptr, "a small capture can be made");
    Plain(Api().graph->session_bind_layer(session_, 0, "a gate", nullptr));
    shape_.struct_size = sizeof(shape_);
    Plain(Api().capture_shape(capture_, &shape_));
    if ((begin & 8) != 0) BeginWithRows();
  }
  ~World() {
    // In an order that the bytes choose.
    const bool capture_first = bytes_.Once(2);
    if (capture_first) Api().capture_release(capture_);
    for (wm_bytes* bytes : made_)
      Api().wire->bytes_release(bytes);
    for (wm_taken* taken : taken_)
      Api().taken_release(taken);
    for (wm_rows* rows : rows_)
      Api().rows_release(rows);
    Api().graph->session_release(session_);
    if (!capture_first) Api().capture_release(capture_);
    if (!path_.empty()) unlink(path_.c_str());
    Require(done_ == asked_, "the ids of every step are given back once");
  }

  void Run() {
    for (int calls = 0; calls < 400 && !bytes_.empty(); ++calls)
      Call();
  }

 private:
  void Right(wm_status status) {
    Require(status >= WM_OK && status <= WM_DATA_LOSS, "a status is one");
    Require(status != WM_INTERNAL, "nothing is a defect of the library");
    if (status != WM_OK) Require(why_.size > 0 || !said_, "a refusal says why");
  }
  wm_message* Why() {
    said_ = !bytes_.Once(8);
    why_ = {text_, bytes_.Once(4) ? bytes_.Byte() % sizeof(text_) : sizeof(text_), 0};
    return said_ ? &why_ : nullptr;
  }
  // Of calls without a text.
  void Plain(wm_status status) {
    said_ = false;
    Right(status);
  }
  void Step(wm_status status) {
    Plain(status);
    Require(code_.code == status, "a code is the status");
    Require(Api().describe_code(&code_, nullptr) == WM_OK, "a code can be described");
  }
  wm_code* Code() {
    code_ = {77, 77, 77, 77};
    return &code_;
  }
  template <class T>
  T* OrNull(T* pointer) {
    return bytes_.Once(32) ? nullptr : pointer;
  }
  wm_capture_options CaptureOptionsOf() {
    static constexpr const char* kNames[] = {"num_pages",   "max_steps_in_flight", "max_step_rows",
                                             "spare_pages", "audit_threshold",     "ids_timeout",
                                             "audit",       "log_bytes",           "nothing"};
    static constexpr const char* kValues[] = {"5", "0.5", "64", "none", "false", "", "-1"};
    wm_capture_options options = {};
    options.struct_size = bytes_.Size(sizeof(options));
    options.flags = bytes_.Once(16) ? bytes_.Flags() : 0;
    // Room stays small: what is refused is refused before memory is asked for.
    const auto few = [&](std::int32_t most) {
      const std::int32_t number = bytes_.Small();
      return number > most ? most : number;
    };
    options.num_layers = few(4);
    options.top_k = few(4);
    options.num_experts = bytes_.Once(2) ? 8 : bytes_.Small();
    options.num_blocks = few(16);
    options.page_tokens = few(8);
    options.block_tokens = bytes_.Once(2) ? 0 : few(16);
    options.layer_ids = OrNull(numbers_);
    options.num_layer_ids = bytes_.Once(2) ? 0 : bytes_.Count();
    options.null_blocks = OrNull(numbers_);
    options.num_null_blocks = bytes_.Once(2) ? 0 : std::min<std::size_t>(bytes_.Count(), 3);
    for (wm_option& option : named_)
      option = {OrNull(kNames[bytes_.Below(9)]), OrNull(kValues[bytes_.Below(7)])};
    options.options = OrNull(named_);
    options.num_options = bytes_.Below(4);
    options.reserved = bytes_.Once(8) ? bytes_.Byte() : 0;
    of_recorder_ = {bytes_.Size(sizeof(of_recorder_)), bytes_.Once(2) ? bytes_.Flags() : 0,
                    std::uint64_t{bytes_.Byte()} << 10, nullptr, 0};
    if (of_recorder_.ring_bytes == 0) of_recorder_.ring_bytes = 1;
    options.recorder = bytes_.Once(2) ? &of_recorder_ : nullptr;
    return options;
  }

  wm_step_batch BatchOf() {
    wm_step_batch batch = {};
    batch.struct_size = bytes_.Size(sizeof(batch));
    batch.flags = bytes_.Once(32) ? bytes_.Flags() : 0;
    batch.step = bytes_.Once(16) ? static_cast<std::uint64_t>(bytes_.Number()) : ++step_;
    batch.version = bytes_.Below(3);
    const std::size_t events = bytes_.Below(6), slots = bytes_.Below(12);
    for (std::size_t i = 0; i < events; ++i) {
      wm_event& event = events_[i];
      std::memset(&event, 0, sizeof(event));
      event.type = static_cast<std::uint16_t>(bytes_.Once(32) ? bytes_.Byte()  //
                                                              : 1 + bytes_.Below(8));
      event.key_size = bytes_.Once(16) ? bytes_.Byte() : static_cast<std::uint8_t>(bytes_.Below(3));
      event.more = static_cast<std::uint8_t>(bytes_.Below(2));
      event.block = BlockOf();
      event.src = BlockOf();
      event.rows = bytes_.Once(8) ? bytes_.Small() : static_cast<std::int32_t>(bytes_.Below(6)) - 1;
      event.step = bytes_.Once(8) ? static_cast<std::uint64_t>(bytes_.Number()) : step_;
      event.key[0] = event.key_size > 0 ? bytes_.Byte() % 4 : 0;
    }
    for (std::size_t i = 0; i < slots; ++i)
      slots_[i] = bytes_.Once(32)  ? bytes_.Number()
                  : bytes_.Once(4) ? -1 - static_cast<std::int64_t>(bytes_.Below(33))
                                   : bytes_.Below(32);
    batch.events = OrNull(events_);
    batch.num_events = bytes_.Once(64) ? ~std::size_t{0} : events;
    batch.slots = OrNull(slots_);
    batch.num_slots = bytes_.Once(64) ? std::size_t{1} << 60 : slots;
    if (bytes_.Once(8)) GiveRows(batch);
    return batch;
  }
  // The rows of `batch` as pairs. Sizes are those of the arrays, or absurd.
  void GiveRows(wm_step_batch& batch) {
    if (!bytes_.Once(8)) batch.num_slots = 0;
    for (std::size_t i = 0; i < std::size(indices_); ++i) {
      indices_[i] =
          bytes_.Once(16) ? bytes_.Small() : static_cast<std::int32_t>(bytes_.Below(9)) - 1;
      asked_rows_[i] = static_cast<std::uint8_t>(bytes_.Below(2));
    }
    const auto tokens = [&] { return bytes_.Once(8) ? bytes_.Small() : 1 << bytes_.Below(3); };
    pairs_ = {};
    pairs_.struct_size = bytes_.Size(sizeof(pairs_));
    pairs_.index_bytes = bytes_.Once(16) ? bytes_.Small() : bytes_.Once(4) ? 8 : 4;
    pairs_.position_bytes = bytes_.Once(16) ? bytes_.Small() : bytes_.Once(4) ? 4 : 0;
    pairs_.block_idx = OrNull(indices_);
    pairs_.local_position = OrNull(indices_ + 8);
    pairs_.num_rows = bytes_.Once(64) ? std::size_t{1} << 60 : bytes_.Below(5);
    pairs_.block_tokens = tokens();
    pairs_.asked = OrNull(asked_rows_);
    batch.pairs = &pairs_;
  }

  wm_ids IdsOf() {
    wm_ids ids = {};
    ids.struct_size = bytes_.Size(sizeof(ids));
    ids.type = bytes_.Once(16) ? bytes_.Small() : static_cast<std::int32_t>(bytes_.Below(5));
    ids.data = OrNull(ids_.data() + ids_.size() / 2);
    // Rows that are taken lie in the array, whatever the strides: at most 64.
    ids.rows = bytes_.Once(16) ? bytes_.Small() : static_cast<std::int32_t>(bytes_.Below(17));
    if (ids.rows > 64 && ids.rows < (1 << 21)) ids.rows = 64;
    ids.columns = bytes_.Once(8) ? bytes_.Small() : shape_.top_k;
    const auto stride = [&] { return static_cast<std::int64_t>(bytes_.Below(129)) - 64; };
    ids.row_stride = stride();
    ids.k_stride = stride();
    ids.layers = bytes_.Once(8) ? bytes_.Small() : shape_.num_layers;
    ids.reserved = bytes_.Once(32) ? 1 : 0;
    ids.layer_stride = stride();
    return ids;
  }

  void Call() {
    const wm_api_v1& api = Api();
    switch (bytes_.Below(38)) {
      case 0: {
        const wm_capture_options options = CaptureOptionsOf();
        wm_capture* capture = nullptr;
        const wm_status status = api.capture_create(OrNull(&options), OrNull(&capture), Why());
        Right(status);
        Require((capture != nullptr) == (status == WM_OK), "a capture comes with OK");
        if (capture == nullptr) break;
        api.graph->session_release(session_);
        session_ = nullptr;
        api.capture_release(capture_);
        capture_ = capture;
        step_ = 0;
        shape_ = {};
        shape_.struct_size = sizeof(shape_);
        Plain(api.capture_shape(capture_, &shape_));
        break;
      }
      case 2: {
        wm_session_options options = {};
        options.struct_size = bytes_.Size(sizeof(options));
        options.flags = bytes_.Once(16) ? bytes_.Flags() : 0;
        options.capture = capture_;
        options.max_rows = bytes_.Once(16) ? bytes_.Negative() : 1 + bytes_.Below(kMaxRows);
        options.num_buffers = static_cast<std::int32_t>(bytes_.Below(4)) - bytes_.Once(32);
        options.transport = bytes_.Once(16) ? bytes_.Small() : WM_TRANSPORT_HOST;
        if (options.transport == WM_TRANSPORT_CUDA) options.device_ordinal = -1;
        wm_session* session = nullptr;
        Right(api.graph->session_create(OrNull(&options), OrNull(&session), Why()));
        if (session == nullptr) break;
        api.graph->session_release(session_);
        session_ = session;
        view_ = {};
        break;
      }
      case 3:
        Right(api.graph->session_bind_layer(session_, bytes_.Small(), OrNull("a gate"), Why()));
        Right(api.capture_name_layer(capture_, bytes_.Small(), OrNull("another gate"), Why()));
        break;
      case 4:
      case 5:
      case 6:
      case 7: {
        const wm_step_batch batch = BatchOf();
        if (bytes_.Once(4)) {
          Step(api.capture_tell(capture_, OrNull(&batch), Code()));
        } else if (bytes_.Once(3)) {
          const wm_ids ids = IdsOf();
          ++asked_;
          Step(api.capture_step(capture_, OrNull(&batch), OrNull(&ids), {&CountDone, &done_},
                                Code()));
        } else {
          const std::int32_t written = bytes_.Once(8) ? bytes_.Small() : 0;
          Step(api.graph->session_begin_step(session_, OrNull(&batch), written, Code()));
        }
        break;
      }
      case 8:
      case 9: {
        Plain(api.graph->session_view(session_, StepOf(), OrNull(&view_)));
        if (session_ == nullptr || view_.data == nullptr || view_.step == 0) break;
        // Its buffer is the step's while that is open: only then may it be written.
        wm_view now = {};
        Plain(api.graph->session_view(session_, view_.step, &now));
        if (now.step != view_.step) break;
        const std::int32_t rows = static_cast<std::int32_t>(bytes_.Below(17));
        for (std::int32_t layer = 0; layer < now.num_layers; ++layer) {
          for (std::int32_t i = 0; i < std::min(rows, now.max_rows) * now.top_k; ++i)
            now.data[layer * now.layer_stride + i] =
                static_cast<std::int16_t>(bytes_.Once(16) ? bytes_.Small() : (i + layer) % 8);
        }
        break;
      }
      case 10: {
        const wm_ids ids = IdsOf();
        wm_view view = view_;
        if (bytes_.Once(16)) view.buffer = bytes_.Small();
        Step(api.graph->session_hand_over(session_, OrNull(&view),
                                          static_cast<int>(bytes_.Below(4)), OrNull(&ids), Code()));
        break;
      }
      case 11:
      case 12:
      case 13:
        Step(api.graph->session_submit(session_, StepOf(), bytes_.Once(8) ? bytes_.Small() : 0,
                                       Code()));
        break;
      case 14:
        Step(bytes_.Once(2) ? api.graph->session_drop(session_, StepOf(), Code())
                            : api.graph->session_lose(session_, StepOf(), Code()));
        break;
      case 15:
        Step(api.graph->session_cancel(session_, StepOf(), Code()));
        break;
      case 16:
        Plain(api.graph->session_discard(session_, bytes_.Small()));
        break;
      case 17:
      case 18: {
        const wm_ids ids = IdsOf();
        ++asked_;
        Step(api.capture_set_ids(capture_, StepOf(), OrNull(&ids), {&CountDone, &done_}, Code()));
        break;
      }
      case 19:
        Step(api.capture_lose(capture_, StepOf(), Code()));
        break;
      case 20:
        Step(api.capture_not_run(capture_, StepOf(), Code()));
        break;
      case 21: {
        for (std::int32_t& block : blocks_)
          block = BlockOf();
        wm_taken* taken = nullptr;
        Right(api.capture_take(
            capture_, OrNull(blocks_), bytes_.Once(32) ? ~std::size_t{0} : bytes_.Below(9),
            bytes_.Once(2) ? 0 : bytes_.Number(), bytes_.Number(), OrNull(&taken), Why()));
        Keep(taken_, taken, api.taken_release);
        break;
      }
      case 22:
      case 23:
      case 24: {
        // All of its steps have ended, or it is not waited for.
        wm_taken* const taken = Any(taken_);
        wm_rows* rows = nullptr;
        Plain(api.taken_done(taken));
        Right(api.taken_wait(taken, 1000000, Why()));
        Right(api.taken_rows(taken, OrNull(&rows), Why()));
        Keep(rows);
        break;
      }
      case 25:
        UseRows();
        break;
      case 26: {
        std::int64_t covered = -1;
        for (std::size_t i = 0; i < 8; ++i)
          blocks_[i] = BlockOf();
        Plain(api.capture_covered_prefix(capture_, OrNull(blocks_), bytes_.Below(9),
                                         bytes_.Number(), &covered));
        break;
      }
      case 29: {
        wm_counter counters[kItems];
        std::size_t count = 0;
        Plain(api.capture_stats(capture_, counters, bytes_.Below(kItems), &count));
        Plain(api.graph->session_stats(session_, counters, bytes_.Below(kItems), &count));
        wm_layer_stats of_layer = {};
        of_layer.struct_size = bytes_.Size(sizeof(of_layer));
        Plain(api.graph->session_layer_stats(session_, bytes_.Small(), &of_layer));
        Plain(api.capture_layer_stats(capture_, bytes_.Small(), &of_layer));
        wm_finding finding = {};
        finding.struct_size = bytes_.Size(sizeof(finding));
        Right(api.capture_next_finding(capture_, &finding, Why()));
        break;
      }
      case 30: {
        wm_layer_finding findings[4];
        std::size_t count = 0;
        wm_status answer = bytes_.Once(4) ? bytes_.Small() : WM_OK;
        if (answer == WM_INTERNAL) answer = WM_ABORTED;  // that would be the forward's own
        Right(api.graph->session_self_test(session_, bytes_.Small(), {OrNull(&ForwardOf), &answer},
                                           findings, bytes_.Below(5), OrNull(&count), Why()));
        break;
      }
      case 31:
        Right(api.graph->session_status(session_, Why()));
        Plain(api.graph->session_set_stream(session_, nullptr));
        Right(api.capture_wait_idle(capture_, 1000000, Why()));
        Right(api.capture_status(capture_, Why()));
        Right(api.capture_dump(capture_, "/dev/null", Why()));
        break;
      case 32:
      case 33:
      case 34:
      case 35:
        UseDocuments();
        break;
      default:
        UseLog();
        break;
    }
  }

  // Schedules, events, and events that were lost.
  void UseLog() {
    const wm_api_v1& api = Api();
    const wm_step_batch batch = BatchOf();
    switch (bytes_.Below(3)) {
      case 0:
        Step(api.capture_schedule(capture_, StepOf(), bytes_.Below(3), Code()));
        break;
      case 1:
        Step(api.capture_report(capture_, batch.events, batch.num_events, Code()));
        break;
      default:
        Step(api.capture_lose_rows(capture_, Code()));
        break;
    }
  }

  // Two pages and a row.
  void BeginWithRows() {
    std::vector<std::uint8_t> ids(9 * shape_.row_bytes);
    for (std::size_t i = 0; i < ids.size(); i += shape_.id_bytes)
      ids[i] = static_cast<std::uint8_t>(i / shape_.id_bytes % 8);
    std::vector<wm_row_info> infos(9);
    for (std::size_t i = 0; i < infos.size(); ++i)
      infos[i] = {7 + i / 5, 1, WM_REASON_NONE, WM_PROVENANCE_HERE, {}};
    wm_rows_view view = {sizeof(view), 0, 0, 9, ids.data(), infos.data()};
    wm_rows* rows = nullptr;
    Plain(Api().rows_create(&shape_, &view, &rows, nullptr));
    Require(rows != nullptr, "a few rows can be made");
    Keep(rows);
  }
  const wm_chunk_code* CodeOf() {
    if (bytes_.Once(2)) return nullptr;
    code_of_ = {};
    code_of_.struct_size = bytes_.Size(sizeof(code_of_));
    code_of_.flags = bytes_.Once(4) ? bytes_.Flags() : 0;
    code_of_.codec = static_cast<std::int32_t>(bytes_.Below(2));
    if (bytes_.Once(8)) code_of_.crc_layers = bytes_.Small();
    return &code_of_;
  }
  wm_document_options DocumentOptionsOf() {
    wm_document_options options = {};
    options.struct_size = bytes_.Size(sizeof(options));
    options.flags = bytes_.Once(16) ? bytes_.Flags() : bytes_.Below(4);
    options.code = CodeOf();
    return options;
  }
  wm_read_limits LimitsOf() {
    return {bytes_.Size(sizeof(wm_read_limits)), bytes_.Once(32) ? 1u : 0u, bytes_.Below(64),
            std::uint64_t{bytes_.Below(64)} << 10};
  }
  wm_part PartOf() {
    const auto layer = [&] {
      return bytes_.Once(8) ? bytes_.Small() : static_cast<std::int32_t>(bytes_.Below(3));
    };
    return {bytes_.Size(sizeof(wm_part)),
            bytes_.Once(32) ? 1u : 0u,
            bytes_.Number(),
            bytes_.Number(),
            layer(),
            layer()};
  }
  // A copy of bytes that the library made, as a rule as they are.
  std::vector<std::uint8_t> SomeBytes() {
    const std::uint8_t* data = nullptr;
    std::size_t size = 0;
    const wm_status status = Api().wire->bytes_view(Any(made_), OrNull(&data), &size);
    Plain(status);
    std::vector<std::uint8_t> bytes;
    if (status == WM_OK) bytes.assign(data, data + size);
    if (!bytes.empty() && bytes_.Once(4)) {
      const std::size_t at = static_cast<std::size_t>(bytes_.Byte() | bytes_.Byte() << 8);
      bytes[at % bytes.size()] ^= bytes_.Byte();
    }
    if (bytes_.Once(8)) bytes.resize(bytes.size() * bytes_.Byte() / 256);
    return bytes;
  }

  // What was written reads as it was.
  void CheckDocument(const wm_rows* rows, const wm_bytes* document, bool steps, bool ordered) {
    const wm_api_v1& api = Api();
    const std::uint8_t* data = nullptr;
    std::size_t size = 0;
    wm_rows* read = nullptr;
    wm_read_damage damage = {};
    damage.struct_size = sizeof(damage);
    Require(
        api.wire->bytes_view(document, &data, &size) == WM_OK &&
            api.wire->document_read(data, size, nullptr, nullptr, &read, &damage, nullptr) == WM_OK,
        "what was written can be read");
    wm_rows_view before = {}, after = {};
    before.struct_size = after.struct_size = sizeof(before);
    Require(api.rows_view(rows, &before) == WM_OK && api.rows_view(read, &after) == WM_OK &&
                before.first == after.first && before.count == after.count,
            "it has the same rows");
    Require(damage.damaged_chunks == 0 && damage.absent_chunks == 0 && damage.invalid_rows == 0,
            "none of them is damaged");
    for (std::int64_t i = 0; i < before.count; ++i) {
      const wm_row_info &a = before.infos[i], &b = after.infos[i];
      Require(a.reason == b.reason && a.provenance == b.provenance && a.version == b.version &&
                  b.step == (steps ? a.step : 0),
              "infos stay as they were");
    }
    wm_shape shape = {};
    shape.struct_size = sizeof(shape);
    Require(api.rows_shape(rows, &shape) == WM_OK, "rows have a shape");
    if (ordered) {
      Require(before.count == 0 ||
                  std::memcmp(before.ids, after.ids,
                              static_cast<std::size_t>(before.count) * shape.row_bytes) == 0,
              "ids stay as they were");
    }
    api.rows_release(read);
  }

  void UseDocuments() {
    const wm_api_v1& api = Api();
    switch (bytes_.Below(8)) {
      case 0: {
        const wm_document_options options = DocumentOptionsOf();
        const wm_rows* const rows = Any(rows_);
        const bool defaults = bytes_.Once(4);
        wm_bytes* document = nullptr;
        const wm_status status =
            api.wire->rows_document(rows, defaults ? nullptr : &options, OrNull(&document), Why());
        Right(status);
        Require((document != nullptr) == (status == WM_OK), "a document comes with OK");
        if (document == nullptr) break;
        const wm_chunk_code* const code = defaults ? nullptr : options.code;
        CheckDocument(rows, document, defaults || (options.flags & WM_DOCUMENT_WITHOUT_STEPS) == 0,
                      code == nullptr || (code->codec == WM_CODEC_RAW && code->flags == 0));
        Keep(made_, document, api.wire->bytes_release);
        break;
      }
      case 2: {
        const wm_document_options options = DocumentOptionsOf();
        Right(api.wire->rows_write_document(Any(rows_), OrNull(&options), OrNull(Path()), Why()));
        break;
      }
      default: {
        const wm_read_limits limits = LimitsOf();
        const wm_part part = PartOf();
        const wm_part* const of = bytes_.Once(2) ? &part : nullptr;
        const std::vector<std::uint8_t> bytes = SomeBytes();
        wm_read_damage damage = {};
        damage.struct_size = bytes_.Size(sizeof(damage));
        wm_read_damage* const found = bytes_.Once(2) ? &damage : nullptr;
        wm_rows* rows = nullptr;
        Right(bytes_.Once(4) ? api.wire->document_read_file(OrNull(Path()), OrNull(&limits), of,
                                                            &rows, found, Why())
                             : api.wire->document_read(bytes.data(), bytes.size(),
                                                       bytes_.Once(2) ? &limits : nullptr, of,
                                                       OrNull(&rows), found, Why()));
        Keep(rows);
        break;
      }
    }
  }

  void UseRows() {
    const wm_api_v1& api = Api();
    wm_rows* const a = Any(rows_);
    wm_rows* const b = Any(rows_);
    wm_rows* made = nullptr;
    switch (bytes_.Below(4)) {
      case 0: {
        const wm_rows* const reads[] = {a, b, a};
        Right(api.rows_join(reads, bytes_.Below(4), &made, Why()));
        break;
      }
      case 1: {
        const wm_rows* const stages[] = {a, b};
        Right(api.rows_join_layers(stages, bytes_.Below(3), &made, Why()));
        break;
      }
      case 2: {
        wm_shape shape = {};
        wm_rows_view view = {};
        shape.struct_size = sizeof(shape);
        view.struct_size = sizeof(view);
        if (api.rows_shape(a, &shape) != WM_OK || api.rows_view(a, &view) != WM_OK) break;
        const std::int64_t rows = view.count;
        std::vector<wm_row_info> infos(view.infos, view.infos + rows);
        std::vector<std::uint8_t> ids(view.ids,
                                      view.ids + static_cast<std::size_t>(rows) * shape.row_bytes);
        if (!infos.empty() && bytes_.Once(2)) infos[0].reason = bytes_.Byte();
        if (!infos.empty() && bytes_.Once(4)) infos[0].reserved[2] = bytes_.Byte();
        if (!ids.empty() && bytes_.Once(2)) ids[0] = bytes_.Byte();
        view.struct_size = bytes_.Size(sizeof(view));
        view.first = bytes_.Number();
        view.count = bytes_.Once(8) ? bytes_.Negative() : rows;
        if (view.count > rows) view.count = rows;
        view.ids = OrNull(ids.data());
        view.infos = OrNull(infos.data());
        shape.struct_size = bytes_.Size(sizeof(shape));
        if (bytes_.Once(8)) shape.num_experts = bytes_.Small();
        // Fewer ids a row than there are, never more.
        if (bytes_.Once(8)) shape.top_k = -shape.top_k;
        if (shape.num_experts > 256 && shape.id_bytes == 1) shape.num_experts = 256;
        Right(api.rows_create(&shape, &view, &made, Why()));
        break;
      }
      default:
        break;
    }
    Keep(made);
  }

  std::int32_t BlockOf() {
    return bytes_.Once(32) ? bytes_.Small() : static_cast<std::int32_t>(bytes_.Below(9)) - 1;
  }
  std::uint64_t StepOf() {
    const std::uint64_t back = bytes_.Below(6);
    return back < step_ ? step_ - back : static_cast<std::uint64_t>(bytes_.Number());
  }
  template <class H>
  H* Any(const std::vector<H*>& handles) {
    return handles.empty() ? nullptr : handles[bytes_.Below(8) % handles.size()];
  }
  template <class H>
  void Keep(std::vector<H*>& handles, H* handle, void (*release)(H*)) {
    if (handle == nullptr) return;
    if (handles.size() == 4) {
      release(handles.front());
      handles.erase(handles.begin());
    }
    handles.push_back(handle);
  }
  void Keep(wm_rows* rows) { Keep(rows_, rows, Api().rows_release); }
  // The only file that is written; it goes with this.
  const char* Path() {
    if (path_.empty()) path_ = "/tmp/waymark_fuzz_" + std::to_string(getpid()) + ".wmk";
    return path_.c_str();
  }

  Bytes bytes_;
  char text_[256] = {};
  wm_message why_ = {};
  bool said_ = false;
  wm_code code_ = {};
  std::int32_t numbers_[kItems] = {0, 1, 2, 5, 7, 9};
  std::int32_t blocks_[8] = {};
  wm_event events_[6] = {};
  std::int64_t slots_[12] = {};
  std::int32_t indices_[16] = {};  // of pairs_ and table_
  std::uint8_t asked_rows_[16] = {};
  wm_pair_rows pairs_ = {};
  std::vector<std::uint8_t> ids_;  // lives until every step has been given back
  std::uint64_t asked_ = 0;
  std::atomic<std::uint64_t> done_{0};  // by the store's thread, too

  std::uint64_t step_ = 0;
  wm_shape shape_ = {};
  wm_view view_ = {};
  wm_recorder_options of_recorder_ = {};
  wm_capture* capture_ = nullptr;
  wm_option named_[4] = {};
  wm_session* session_ = nullptr;
  std::vector<wm_taken*> taken_;
  std::vector<wm_rows*> rows_;
  wm_chunk_code code_of_ = {};
  std::string path_;
  std::vector<wm_bytes*> made_;
};

}  // namespace

void RunOne(std::span<const std::uint8_t> input) {
  World(Bytes(input)).Run();
}

std::vector<std::string> Corpus() {
  std::vector<std::string> corpus;
  for (std::uint32_t seed = 1; seed <= 24; ++seed) {
    std::mt19937 random(seed);
    std::string input(1, static_cast<char>(seed % 16));
    const std::size_t length = 64 << (seed % 5);
    while (input.size() < length)
      input.push_back(static_cast<char>(random()));
    corpus.push_back(input);
  }
  return corpus;
}

}  // namespace waymark::fuzz
