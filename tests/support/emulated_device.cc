#include "tests/support/emulated_device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "kernels/capture_ids.h"
#include "kernels/pack_rows.h"

namespace waymark {
namespace {

constexpr DeviceError kFailed = 719;
constexpr DeviceError kHeld = 906;  // what CUDA calls cudaErrorStreamCaptureImplicit

// What a pack does, by the host forms of the kernels.
void RunPack(const kernels::PackLaunch& launch) {
  const kernels::RowShape& shape = launch.shape;
  const kernels::IdsView ids{launch.view, kernels::IdKind::kInt16, 2 * shape.top_k,
                             2 * launch.layer_stride, 2};
  for (std::int32_t i = 0; i < launch.rows; ++i) {
    std::uint8_t* const row = launch.packed + static_cast<std::size_t>(i) * shape.row_bytes();
    kernels::RowVerdict& verdict = launch.verdicts[i];
    kernels::PackRows(shape, ids.From(i), {&row, 1}, {&verdict, 1});
    if (verdict == kernels::RowVerdict::kOk) continue;
    for (std::int32_t layer = 0; layer < shape.num_layers; ++layer) {
      const auto of_layer = kernels::CheckLayer(shape, ids, i, layer);
      if (of_layer == kernels::RowVerdict::kNotWritten) ++launch.silent[layer];
      if (of_layer == kernels::RowVerdict::kInvalidId) ++launch.invalid[layer];
    }
  }
  kernels::PoisonRows(launch.view, launch.layer_stride, shape.num_layers, shape.top_k,
                      static_cast<std::int32_t>(launch.written_rows));
}

}  // namespace

EmulatedDevice::~EmulatedDevice() {
  halted_ = false;
  while (!failed_ && RunOne()) {
  }
}

void EmulatedDevice::Count(Call call) {
  ++calls_[std::this_thread::get_id()][static_cast<std::size_t>(call)];
}

EmulatedDevice::Counts EmulatedDevice::Calls() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = calls_.find(std::this_thread::get_id());
  return found == calls_.end() ? Counts{} : found->second;
}

void EmulatedDevice::Fail() {
  const std::lock_guard<std::mutex> lock(mutex_);
  failed_ = true;
}

void EmulatedDevice::Halt() {
  const std::lock_guard<std::mutex> lock(mutex_);
  halted_ = true;
}

void EmulatedDevice::Hang() {
  const std::lock_guard<std::mutex> lock(mutex_);
  halted_ = true;
  hung_ = true;
}

void EmulatedDevice::Go() {
  const std::lock_guard<std::mutex> lock(mutex_);
  halted_ = false;
  hung_ = false;
  going_.notify_all();
}

void EmulatedDevice::HoldDefaultStream(bool held) {
  const std::lock_guard<std::mutex> lock(mutex_);
  default_stream_held_ = held;
}

void EmulatedDevice::Capture(DeviceStream stream, bool captures) {
  const std::lock_guard<std::mutex> lock(mutex_);
  StreamOf(stream).captured = captures;
}

void EmulatedDevice::LoseWords(bool lost) {
  const std::lock_guard<std::mutex> lock(mutex_);
  words_lost_ = lost;
}

std::int64_t EmulatedDevice::outstanding() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return outstanding_;
}

std::string EmulatedDevice::ErrorText(DeviceError error) const {
  return error == 0 ? "no error" : "emulated failure " + std::to_string(error);
}

// ---- memory, streams, events

absl::StatusOr<void*> EmulatedDevice::AllocateMemory(std::size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Count(Call::kAllocate);
  ++outstanding_;
  void* const memory = std::malloc(bytes);  // not cleared: nor is a device's
  std::memset(memory, 0x5a, bytes);
  return memory;
}

absl::StatusOr<void*> EmulatedDevice::AllocatePinned(std::size_t bytes) {
  return AllocateMemory(bytes);
}

// Waits for the device, as CUDA does.
void EmulatedDevice::FreeMemory(void* memory) {
  std::unique_lock<std::mutex> lock(mutex_);
  Count(Call::kFree);
  going_.wait(lock, [this] { return !hung_; });
  --outstanding_;
  std::free(memory);
}

void EmulatedDevice::FreePinned(void* memory) {
  FreeMemory(memory);
}

absl::StatusOr<DeviceStream> EmulatedDevice::CreateStream() {
  const std::lock_guard<std::mutex> lock(mutex_);
  Count(Call::kAllocate);
  ++outstanding_;
  streams_.push_back(std::make_unique<Stream>());
  return static_cast<DeviceStream>(streams_.back().get());
}

absl::StatusOr<DeviceEvent> EmulatedDevice::CreateEvent() {
  const std::lock_guard<std::mutex> lock(mutex_);
  Count(Call::kAllocate);
  ++outstanding_;
  events_.push_back(std::make_unique<Event>());
  return static_cast<DeviceEvent>(events_.back().get());
}

// As on a real device, what is enqueued still runs; the objects go with the device.
void EmulatedDevice::DestroyStream(DeviceStream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Count(Call::kFree);
  --outstanding_;
}

void EmulatedDevice::DestroyEvent(DeviceEvent event) {
  DestroyStream(event);
}

EmulatedDevice::Stream& EmulatedDevice::StreamOf(DeviceStream stream) {
  return stream == nullptr ? default_stream_ : *static_cast<Stream*>(stream);
}

// ---- running

bool EmulatedDevice::RunOne() {
  if (failed_ || halted_) return false;
  std::vector<Stream*> able;
  const auto look = [&](Stream& stream) {
    if (stream.work.empty()) return;
    const Work& work = stream.work.front();
    if (work.waits_for == nullptr || work.waits_for->reached >= work.upto) able.push_back(&stream);
  };
  look(default_stream_);
  for (const auto& stream : streams_)
    look(*stream);
  if (able.empty()) return false;
  Stream& stream = *able[random_() % able.size()];
  const Work work = std::move(stream.work.front());
  stream.work.pop_front();
  if (work.run) work.run();
  if (work.records != nullptr) ++work.records->reached;
  return true;
}

void EmulatedDevice::RunSome() {
  if (random_() % 2 != 0) return;
  for (std::uint64_t left = random_() % 6; left > 0 && RunOne(); --left) {
  }
}

void EmulatedDevice::Synchronize(DeviceStream) {
  std::unique_lock<std::mutex> lock(mutex_);
  Count(Call::kSynchronize);
  going_.wait(lock, [this] { return !hung_; });
  const bool halted = std::exchange(halted_, false);
  while (RunOne()) {
  }
  halted_ = halted;
}

std::uint32_t EmulatedDevice::Load(const std::uint32_t* word) {
  const std::lock_guard<std::mutex> lock(mutex_);
  RunSome();
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

Device::State EmulatedDevice::Query(DeviceEvent event) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Count(Call::kQuery);
  const auto& of = *static_cast<const Event*>(event);
  if (failed_ || of.captured) return State::kFailed;
  RunSome();
  return of.reached == of.recorded ? State::kDone : State::kPending;
}

template <class Run>
DeviceError EmulatedDevice::Add(Call call, DeviceStream stream, Run run) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Count(call);
  if (failed_) return kFailed;
  if (default_stream_held_ && stream == nullptr) return kHeld;
  if (StreamOf(stream).captured) return 0;
  if (mode_ == Mode::kAtOnce) {
    run();
    return 0;
  }
  StreamOf(stream).work.push_back({run, nullptr, 0, nullptr});
  RunSome();
  return 0;
}

DeviceError EmulatedDevice::AddOrder(Call call, DeviceStream stream, Work work) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Count(call);
  if (failed_) return kFailed;
  if (default_stream_held_ && stream == nullptr) return kHeld;
  // An event of a capture stands for nothing outside of it: CUDA's error 907.
  if (work.records != nullptr) work.records->captured = StreamOf(stream).captured;
  if (work.waits_for != nullptr && work.waits_for->captured) return kFailed;
  if (mode_ == Mode::kAtOnce || StreamOf(stream).captured) return 0;
  if (work.records != nullptr) ++work.records->recorded;
  if (work.waits_for != nullptr) work.upto = work.waits_for->recorded;
  StreamOf(stream).work.push_back(std::move(work));
  RunSome();
  return 0;
}

// ---- enqueuing

void EmulatedDevice::Enqueue(DeviceStream stream, std::function<void()> work) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (failed_ || StreamOf(stream).captured) return;
  if (mode_ == Mode::kAtOnce) return work();
  StreamOf(stream).work.push_back({std::move(work), nullptr, 0, nullptr});
  RunSome();
}

DeviceError EmulatedDevice::Pack(const kernels::PackLaunch& launch, DeviceStream stream) {
  return Add(Call::kPack, stream, [launch] { RunPack(launch); });
}

DeviceError EmulatedDevice::CaptureIds(const kernels::IdsView& ids, std::int32_t rows,
                                       std::int32_t top_k, std::int16_t* view,
                                       DeviceStream stream) {
  return Add(Call::kCaptureIds, stream, [=] { kernels::CaptureIds(ids, rows, top_k, view); });
}

DeviceError EmulatedDevice::Zero(void* memory, std::size_t bytes, DeviceStream stream) {
  return Add(Call::kZero, stream, [=] { std::memset(memory, 0, bytes); });
}

DeviceError EmulatedDevice::CopyToHost(void* to, const void* from, std::size_t bytes,
                                       DeviceStream stream) {
  return Add(Call::kCopyToHost, stream, [=, this] {
    if (bytes != sizeof(std::uint32_t)) {
      std::memcpy(to, from, bytes);
    } else if (!words_lost_) {  // a word, which the host may be looking at
      __atomic_store_n(static_cast<std::uint32_t*>(to), *static_cast<const std::uint32_t*>(from),
                       __ATOMIC_RELEASE);
    }
  });
}

DeviceError EmulatedDevice::Record(DeviceEvent event, DeviceStream stream) {
  return AddOrder(Call::kRecord, stream, {nullptr, nullptr, 0, static_cast<Event*>(event)});
}

DeviceError EmulatedDevice::StreamWait(DeviceStream stream, DeviceEvent event) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (default_stream_held_ && stream == nullptr) return kTryLater;
    if (StreamOf(stream).captured) return kTryLater;
  }
  return AddOrder(Call::kStreamWait, stream, {nullptr, static_cast<Event*>(event), 0, nullptr});
}

}  // namespace waymark
