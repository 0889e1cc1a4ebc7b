#include "plugin/capture/staged_transport.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "kernels/pack_rows.h"
#include "plugin/capture/device_resources.h"
#include "plugin/capture/ids_kind.h"
#include "plugin/capture/row_lander.h"

namespace waymark {
namespace {

constexpr std::size_t kAlign = 16;  // of what a staging buffer holds: the widest access of a device
constexpr std::ptrdiff_t kAlignIds = kAlign / sizeof(std::int16_t);
constexpr auto kLookEvery = std::chrono::microseconds(20);
// A device that fails writes no word, so the driver is also queried, at this interval.
constexpr auto kAskEvery = std::chrono::milliseconds(50);
// Of the word behind the rows of a staging buffer in pinned memory.
constexpr std::uint32_t kOnItsWay = 1;
constexpr std::uint32_t kArrived = 0;
constexpr std::size_t kLineBytes = 64;

constexpr std::size_t AlignUp(std::size_t bytes) {
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

std::ptrdiff_t LayerStride(const TransportOptions& options) {
  const std::ptrdiff_t ids = std::ptrdiff_t{options.max_rows} * options.shape.top_k;
  return (ids + kAlignIds - 1) / kAlignIds * kAlignIds;
}

// A staging buffer holds, both on the device and in pinned memory: faults by layer, verdicts by
// row, rows; without gaps for the rows that there are, so that one copy brings all.
struct StagingLayout {
  std::size_t verdicts = 0;
  std::size_t rows = 0;
  std::size_t end = 0;

  StagingLayout(const RoutingShape& shape, std::int32_t num_rows)
      : verdicts(CountBytes(shape)),
        rows(AlignUp(verdicts + static_cast<std::size_t>(num_rows))),
        end(rows + static_cast<std::size_t>(num_rows) * shape.row_bytes()) {}

  // Where the word lies in pinned memory that has room for `max_rows` rows: on a line of its own.
  static std::size_t Word(const RoutingShape& shape, std::int32_t max_rows) {
    const std::size_t end = StagingLayout(shape, max_rows).end;
    return (end + kLineBytes - 1) / kLineBytes * kLineBytes;
  }

  // Two counts per layer: silent, then invalid.
  static std::size_t CountBytes(const RoutingShape& shape) {
    return AlignUp(2 * static_cast<std::size_t>(shape.num_layers) * sizeof(std::uint32_t));
  }
};

}  // namespace

// A free staging buffer has no owner. A taken one belongs to the engine's thread from Acquire to
// Seal or Release, and to the landing thread from Seal to Done.
class StagedTransport::StagingBuffer : public PackedRows {
 public:
  StagingBuffer(StagedTransport& transport, std::int32_t at, std::uint8_t* device,
                std::uint8_t* pinned)
      : PackedRows(transport.options_.shape),
        index(at),
        transport_(transport),
        device_(device),
        pinned_(pinned),
        word_(*reinterpret_cast<std::uint32_t*>(
            pinned + StagingLayout::Word(transport.options_.shape, transport.options_.max_rows))) {}

  bool TryTake() {
    if (taken_.load(std::memory_order_acquire)) return false;
    taken_.store(true, std::memory_order_relaxed);  // only the engine's thread takes
    overwritten = false;
    overtaken.store(false, std::memory_order_relaxed);
    return true;
  }
  void GiveBack() { taken_.store(false, std::memory_order_release); }
  [[nodiscard]] bool taken() const { return taken_.load(std::memory_order_relaxed); }

  // Enqueues the pack of `view`. False: it could not, and the view still has the ids.
  [[nodiscard]] bool Seal(std::int16_t* view, std::int32_t rows, std::int32_t written_rows) {
    StagedTransport& t = transport_;
    owner_ = t.shared_from_this();
    rows_ = overwritten ? 0 : rows;
    written_rows_ = written_rows;
    layout_ = StagingLayout(shape_, rows_);
    fetch_ = Fetched::kNo;
    fetch_ok_ = false;
    enqueued_ = false;
    if (!t.healthy()) return false;
    // A step that was sealed and never landed has left its faults, perhaps on another stream.
    if (counts_left_) {
      const DeviceError error = t.device_.StreamWait(t.stream_, packed);
      if (error == kTryLater || !t.Check(error, "wait for a staging buffer") ||
          !t.Check(t.device_.Zero(device_, StagingLayout::CountBytes(shape_), t.stream_),
                   "clear a staging buffer")) {
        return false;
      }
    }
    kernels::PackLaunch launch = t.LaunchOn(view, written_rows);
    launch.rows = rows_;
    launch.packed = device_ + layout_.rows;
    launch.verdicts = reinterpret_cast<kernels::RowVerdict*>(device_ + layout_.verdicts);
    launch.silent = reinterpret_cast<std::uint32_t*>(device_);
    launch.invalid = launch.silent + shape_.num_layers;
    counts_left_ = true;
    enqueued_ = t.Check(t.device_.Pack(launch, t.stream_), "pack the rows of a step") &&
                t.Check(t.device_.Record(packed, t.stream_), "record the end of a pack");
    return enqueued_;
  }

  // Looks at the word, which takes a load from memory; a query of the driver takes a microsecond
  // and a lock that the engine's launches need. Once the word has arrived, the event, which comes
  // before it on the stream, is queried: CUDA guarantees by an event that the host sees the rows,
  // but not by the order in which two copies appear in memory. So a step takes one query, and one
  // more every kAskEvery.
  bool Poll() override {
    StagedTransport& t = transport_;
    if (fetch_ == Fetched::kNo) {
      asked_ = std::chrono::steady_clock::now();
      fetch_ = Fetched::kOnItsWay;
      if (!EnqueueCopy()) EndFetch(false);
    }
    if (fetch_ == Fetched::kDone) return true;
    const bool arrived = t.device_.Load(&word_) == kArrived;
    const auto now = std::chrono::steady_clock::now();
    auto state = Device::State::kPending;
    if (arrived || now - asked_ >= kAskEvery) {
      asked_ = now;
      state = t.device_.Query(copied);
    }
    if (state == Device::State::kFailed || !t.healthy()) {
      t.Fail("the device has failed while a step was on its way");
      EndFetch(false);
    } else if (state == Device::State::kDone) {
      EndFetch(true);
    }
    return fetch_ == Fetched::kDone;
  }

  // The device may write the memory until it is freed, which the transport sees to.
  void GiveUp() override { transport_.waited_ = true; }

  void Done() override {
    // The session may be gone: then this was the last that kept the transport, and *this, alive.
    const std::shared_ptr<StagedTransport> owner = std::move(owner_);
    GiveBack();
  }

  const std::int32_t index;
  DeviceEvent packed = nullptr;  // recorded after the pack
  DeviceEvent copied = nullptr;  // recorded after the copy to the host
  bool overwritten = false;      // another forward has written into the view
  // Another forward, not ordered after the pack, may have written into it. Both threads access it.
  std::atomic<bool> overtaken{false};

 private:
  [[nodiscard]] Row Find(std::size_t row) const override {
    if (!fetch_ok_ || row >= static_cast<std::size_t>(rows_)) return {};
    return {ToReason(static_cast<kernels::RowVerdict>(pinned_[layout_.verdicts + row])),
            pinned_ + layout_.rows + row * shape_.row_bytes()};
  }

  void EndFetch(bool copied_to_host) {
    fetch_ = Fetched::kDone;
    fetch_ok_ = copied_to_host && !overtaken.load(std::memory_order_acquire);
    if (copied_to_host) {
      counts_left_ = false;
      Count();
    }
    if (!fetch_ok_) transport_.LogFailure();
  }

  // Enqueues the copy of the staging buffer to the host. False: the device has failed.
  bool EnqueueCopy() {
    StagedTransport& t = transport_;
    if (!enqueued_ || !t.healthy()) return false;
    std::atomic_ref<std::uint32_t>(word_).store(kOnItsWay, std::memory_order_relaxed);
    // In this order on the copy stream: the rows, the event, the word.
    return t.Check(t.device_.StreamWait(t.copy_stream_, packed), "wait for a pack") &&
           t.Check(t.device_.CopyToHost(pinned_, device_, layout_.end, t.copy_stream_),
                   "copy a step to the host") &&
           t.Check(t.device_.Zero(device_, StagingLayout::CountBytes(shape_), t.copy_stream_),
                   "clear a staging buffer") &&
           t.Check(t.device_.Record(copied, t.copy_stream_), "record the end of a copy") &&
           t.Check(t.device_.CopyToHost(&word_, t.arrived_, sizeof(word_), t.copy_stream_),
                   "copy the word behind a step");
  }

  void Count() {
    LayerCounters* const counters = transport_.options_.counters.get();
    if (counters == nullptr) return;
    const std::int32_t layers = shape_.num_layers;
    const auto* const counts = reinterpret_cast<const std::uint32_t*>(pinned_);
    for (std::int32_t layer = 0; layer < layers; ++layer) {
      if (counts[layer] != 0) counters->AddSilent(layer, written_rows_, counts[layer]);
      if (counts[layers + layer] != 0) counters->AddInvalid(layer, counts[layers + layer]);
    }
  }

  StagedTransport& transport_;
  std::uint8_t* const device_;
  std::uint8_t* const pinned_;
  std::uint32_t& word_;  // in pinned memory; the device makes it kArrived
  std::atomic<bool> taken_{false};
  std::shared_ptr<StagedTransport> owner_;  // from Seal to Done
  std::int32_t rows_ = 0;
  std::int32_t written_rows_ = 0;
  StagingLayout layout_{shape_, 0};  // of the step
  bool enqueued_ = false;            // the pack and its event are
  enum class Fetched : std::uint8_t { kNo, kOnItsWay, kDone } fetch_ = Fetched::kNo;
  bool fetch_ok_ = false;                        // once kDone: the copy has succeeded
  std::chrono::steady_clock::time_point asked_;  // the driver, last
  bool counts_left_ = false;                     // the staging buffer's faults are not cleared
};

TransportFactory StagedTransport::Factory(StagedOptions staged) {
  return [staged](const TransportOptions& options) { return Create(options, staged); };
}

absl::StatusOr<std::shared_ptr<Transport>> StagedTransport::Create(const TransportOptions& options,
                                                                   const StagedOptions& staged) {
  if (staged.device == nullptr) {
    return absl::InvalidArgumentError("StagedOptions.device: must not be null");
  }
  std::shared_ptr<StagedTransport> transport(new StagedTransport(options, staged));
  if (absl::Status status = transport->Allocate(); !status.ok()) return status;
  return std::shared_ptr<Transport>(std::move(transport));
}

StagedTransport::StagedTransport(const TransportOptions& options, const StagedOptions& staged)
    : options_(options),
      staged_(staged),
      device_(*staged_.device),
      resources_(std::make_unique<DeviceResources>(staged.device)) {}

absl::Status StagedTransport::Allocate() {
  copy_stream_ = resources_->CreateStream();
  const std::size_t view_bytes = static_cast<std::size_t>(LayerStride(options_)) *
                                 static_cast<std::size_t>(options_.shape.num_layers) *
                                 sizeof(std::int16_t);
  const std::int32_t views = staged_.one_view ? 1 : options_.num_buffers + 1;
  for (std::int32_t i = 0; i < views; ++i) {
    auto* const data = static_cast<std::int16_t*>(resources_->AllocateMemory(view_bytes));
    views_.push_back({.data = data, .own = resources_->CreateEvent()});
  }
  arrived_ = resources_->AllocateMemory(sizeof(std::uint32_t));
  const std::size_t staging_bytes = StagingLayout(options_.shape, options_.max_rows).end;
  const std::size_t pinned_bytes =
      StagingLayout::Word(options_.shape, options_.max_rows) + sizeof(std::uint32_t);
  std::vector<void*> buffers;
  for (std::int32_t i = 0; i < options_.num_buffers && resources_->status().ok(); ++i) {
    buffers.push_back(resources_->AllocateMemory(staging_bytes));
    auto* const pinned = static_cast<std::uint8_t*>(resources_->AllocatePinned(pinned_bytes));
    if (pinned == nullptr) break;
    staging_.push_back(std::make_unique<StagingBuffer>(
        *this, i, static_cast<std::uint8_t*>(buffers.back()), pinned));
    staging_.back()->packed = resources_->CreateEvent();
    staging_.back()->copied = resources_->CreateEvent();
  }
  if (!resources_->status().ok()) return resources_->status();

  static_assert(kArrived == 0);
  (void)Check(device_.Zero(arrived_, sizeof(std::uint32_t), copy_stream_), "make a word");
  for (void* const memory : buffers)  // with the gaps, which are copied, and never written
    (void)Check(device_.Zero(memory, staging_bytes, copy_stream_), "clear a staging buffer");
  stream_ = copy_stream_;
  for (ViewMemory& view : views_)
    Poison(view, options_.max_rows);
  stream_ = nullptr;
  device_.Synchronize(copy_stream_);
  for (ViewMemory& view : views_)
    view = {.data = view.data, .own = view.own};
  return status();
}

StagedTransport::~StagedTransport() {
  LogFailure();
  const std::size_t bytes = resources_->bytes();
  const auto timeout = waited_ ? std::chrono::nanoseconds(0) : options_.teardown_timeout;
  if (DeviceResources::Free(std::move(resources_), timeout)) return;
  try {
    options_.log(LogLevel::kError,
                 "staged transport on " + std::string(device_.name()) +
                     ": the device has not finished its work, and may write memory of the "
                     "transport, which was destroyed: " +
                     std::to_string(bytes) + " bytes stay allocated until it has");
  } catch (const std::bad_alloc&) {  // no memory for the line
  }
}

bool StagedTransport::Check(DeviceError error, const char* what) {
  if (error == 0) return true;
  Fail(std::string("could not ") + what + ": " + device_.ErrorText(error));
  return false;
}

void StagedTransport::Fail(const std::string& why) {
  const std::lock_guard<std::mutex> lock(error_mutex_);
  if (error_.empty()) {
    error_ = "staged transport on " + std::string(device_.name()) + ": " + why;
  }
  healthy_.store(false, std::memory_order_release);
}

void StagedTransport::LogFailure() const {
  if (healthy()) return;
  std::string text;
  {
    const std::lock_guard<std::mutex> lock(error_mutex_);
    if (std::exchange(failure_logged_, true)) return;
    text = error_;
  }
  options_.log(LogLevel::kError, text);
}

absl::Status StagedTransport::status() const {
  if (healthy()) return absl::OkStatus();
  LogFailure();
  const std::lock_guard<std::mutex> lock(error_mutex_);
  return absl::InternalError(error_);
}

StagedTransport::ViewMemory& StagedTransport::MemoryOf(BufferId buffer) {
  if (staged_.one_view) return views_[0];
  return buffer == kScratchBuffer ? views_.back() : views_[static_cast<std::size_t>(buffer)];
}

bool StagedTransport::Follow(ViewMemory& view) {
  if (!view.loose || *view.loose == stream_ || !healthy()) return true;
  const DeviceStream stream = *view.loose;
  // Behind the recorded use as well, so that the one event stands for both. Its answer says whether
  // the stream takes an event now, too.
  const DeviceError error = device_.StreamWait(stream, view.used != nullptr ? view.used : view.own);
  if (error == kTryLater) return false;
  (void)(Check(error, "wait for a view") &&
         Check(device_.Record(view.own, stream), "record the use of a view"));
  view.used = view.own;
  view.stream = stream;
  view.loose.reset();
  return true;
}

bool StagedTransport::Order(ViewMemory& view) {
  if (!Follow(view)) return false;
  if (view.stream == stream_) return true;
  if (view.used != nullptr) {
    const DeviceError error = device_.StreamWait(stream_, view.used);
    // Nothing can be enqueued now, and nothing has to be when the last use is over.
    if (error == kTryLater) {
      if (device_.Query(view.used) != Device::State::kDone) return false;
    } else {
      (void)Check(error, "wait for a view");
    }
  }
  view.stream = stream_;
  return true;
}

kernels::PackLaunch StagedTransport::LaunchOn(std::int16_t* view, std::int32_t written) const {
  kernels::PackLaunch launch;
  launch.shape = ToRowShape(options_.shape);
  launch.view = view;
  launch.layer_stride = LayerStride(options_);
  launch.written_rows = written;
  return launch;
}

void StagedTransport::Poison(ViewMemory& view, std::int32_t rows) {
  (void)Order(view);
  if (!healthy() || rows == 0) return;
  // A graph in capture would clear it at every replay, and keep the event.
  if (device_.StreamWait(stream_, view.own) == kTryLater) {
    view.stale = true;
    return;
  }
  (void)(Check(device_.Pack(LaunchOn(view.data, rows), stream_), "clear a view") &&
         Check(device_.Record(view.own, stream_), "record the use of a view"));
  Recorded(view, view.own);
}

void StagedTransport::MarkOverwritten(ViewMemory& view) {
  if (view.open != nullptr) view.open->overwritten = true;
}

void StagedTransport::Recorded(ViewMemory& view, DeviceEvent event) {
  view.used = event;
  if (view.loose == stream_) view.loose.reset();
}

void StagedTransport::Loosen(ViewMemory& view) {
  if (!Follow(view))
    Fail("forwards of dropped steps are on two streams, one of which is in capture");
  view.loose = stream_;
}

void StagedTransport::SetStream(DeviceStream stream) {
  if (stream == std::exchange(stream_, stream) || !staged_.one_view) return;
  // Now, as forwards that take no buffer, or are in no step, come without a call.
  if (Order(views_[0])) return;
  // They may run before any pack that is on its way.
  for (const auto& staging : staging_) {
    if (staging.get() != views_[0].open) {
      staging->overtaken.store(true, std::memory_order_release);
    }
  }
}

BufferId StagedTransport::Acquire() {
  if (staged_.one_view && views_[0].open != nullptr) return kNoBuffer;
  const auto count = static_cast<std::int32_t>(staging_.size());
  for (std::int32_t i = 0; i < count; ++i) {
    StagingBuffer& staging = *staging_[static_cast<std::size_t>(next_)];
    next_ = next_ + 1 == count ? 0 : next_ + 1;
    if (!staging.TryTake()) continue;
    ViewMemory& view = MemoryOf(staging.index);
    const bool ordered = Order(view);
    if (ordered && std::exchange(view.stale, false)) Poison(view, options_.max_rows);
    if (!ordered || view.stale) {
      staging.GiveBack();
      return kNoBuffer;
    }
    view.open = &staging;
    return staging.index;
  }
  return kNoBuffer;
}

void StagedTransport::OnStepWithoutBuffer() {
  if (!staged_.one_view) {
    // It writes to the scratch view, which is set to -1 before it is read and never lands.
    return;
  }
  views_[0].stale = true;
  MarkOverwritten(views_[0]);
  Loosen(views_[0]);
}

std::int32_t StagedTransport::in_use() const {
  return static_cast<std::int32_t>(std::count_if(
      staging_.begin(), staging_.end(), [](const auto& staging) { return staging->taken(); }));
}

CaptureView StagedTransport::View(BufferId buffer) {
  return ViewOf(options_, MemoryOf(buffer).data, LayerStride(options_), buffer);
}

void StagedTransport::HandOver(BufferId buffer, std::int32_t layer, const StepIds& ids) {
  ViewMemory& view = MemoryOf(buffer);
  if (buffer == kScratchBuffer) MarkOverwritten(view);
  (void)Order(view);
  if (!healthy() || ids.rows == 0) return;
  (void)Check(device_.CaptureIds({ids.data, ToKind(ids.type), ids.row_stride, 0, ids.k_stride},
                                 ids.rows, options_.shape.top_k,
                                 view.data + layer * LayerStride(options_) +
                                     std::ptrdiff_t{ids.first_row} * options_.shape.top_k,
                                 stream_),
              "copy the ids of a layer");
}

StepRows* StagedTransport::Seal(BufferId buffer, std::int32_t rows, std::int32_t written_rows) {
  StagingBuffer& staging = *staging_[static_cast<std::size_t>(buffer)];
  ViewMemory& view = MemoryOf(buffer);
  (void)Order(view);
  view.open = nullptr;
  if (staging.Seal(view.data, rows, written_rows)) {
    Recorded(view, staging.packed);
  } else {
    view.stale = true;
  }
  return &staging;
}

void StagedTransport::Release(BufferId buffer, std::int32_t written_rows) {
  ViewMemory& view = MemoryOf(buffer);
  if (buffer == kScratchBuffer) MarkOverwritten(view);
  Poison(view, written_rows);
  if (buffer == kScratchBuffer) return;
  // A forward that comes after its step's end writes into the scratch view.
  if (staged_.one_view && written_rows != 0) {
    view.stale = true;
    Loosen(view);
  }
  view.open = nullptr;
  staging_[static_cast<std::size_t>(buffer)]->GiveBack();
}

absl::Status StagedTransport::ReadBack(BufferId buffer, std::int32_t rows, std::int16_t* out) {
  const CaptureView view = View(buffer);
  ViewMemory& memory = MemoryOf(buffer);
  (void)Order(memory);
  const std::size_t ids = static_cast<std::size_t>(rows) * static_cast<std::size_t>(view.top_k);
  for (std::int32_t layer = 0; layer < view.num_layers && ids > 0 && healthy(); ++layer) {
    (void)Check(device_.CopyToHost(out + static_cast<std::size_t>(layer) * ids, view.layer(layer),
                                   ids * sizeof(std::int16_t), stream_),
                "read a view");
  }
  if (healthy()) (void)Check(device_.Record(memory.own, stream_), "record the reading of a view");
  Recorded(memory, memory.own);
  while (healthy()) {
    const Device::State state = device_.Query(memory.own);
    if (state == Device::State::kDone) break;
    if (state == Device::State::kFailed) Fail("the device has failed while a view was read");
    std::this_thread::sleep_for(kLookEvery);
  }
  return status();
}

}  // namespace waymark
