// EmulatedDevice: a device on the host, with the freedom of order that a real one has.
//
// Streams are queues of work. What has been enqueued runs when the device pleases: one operation of
// a stream chosen by seed, at calls of Query and Synchronize and, now and then, of anything else.
// Events order streams as on a real device; so what is not ordered by stream or event runs in
// another order under another seed. Memory of the device is ordinary memory, which only enqueued
// work should touch.
//
// It counts what each thread called, and can be told to fail.
#ifndef WAYMARK_TESTS_SUPPORT_EMULATED_DEVICE_H_
#define WAYMARK_TESTS_SUPPORT_EMULATED_DEVICE_H_

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "plugin/capture/device.h"

namespace waymark {

class EmulatedDevice : public Device {
 public:
  // What is counted by Calls().
  enum class Call : std::uint8_t {
    kAllocate,
    kFree,
    kSynchronize,
    kPack,
    kCaptureIds,
    kZero,
    kCopyToHost,
    kRecord,
    kStreamWait,
    kQuery,
  };
  static constexpr std::size_t kNumCalls = 10;
  using Counts = std::array<std::int64_t, kNumCalls>;

  enum class Mode : std::uint8_t {
    kLate,    // as said above
    kAtOnce,  // every operation runs in the call that enqueues it, and no call allocates
  };
  explicit EmulatedDevice(std::uint64_t seed, Mode mode = Mode::kLate)
      : mode_(mode), random_(seed) {}
  ~EmulatedDevice() override;

  // What the calling thread has called so far.
  [[nodiscard]] Counts Calls() const;
  [[nodiscard]] static std::int64_t Of(const Counts& counts, Call call) {
    return counts[static_cast<std::size_t>(call)];
  }
  // From here on every call answers an error, and nothing that is enqueued runs any more.
  void Fail();
  // Nothing runs before Go(); Query returns kPending.
  void Halt();
  // As Halt(), and calls that wait for the device (Synchronize, FreeMemory, FreePinned) do not
  // return before Go().
  void Hang();
  void Go();
  // From here on the default stream takes nothing, as while another stream is captured into a
  // graph: StreamWait answers kTryLater, everything else an error. What was enqueued runs.
  void HoldDefaultStream(bool held);
  // From here on `stream` is captured into a graph: what is enqueued there never runs, and
  // StreamWait answers kTryLater, and an event that is recorded there fails until the next Record.
  void Capture(DeviceStream stream, bool captures);
  // From here on copies of 4 bytes are lost: a word that never arrives.
  void LoseWords(bool lost);
  // Any work on a stream, in order with the rest: what an engine's forward does.
  void Enqueue(DeviceStream stream, std::function<void()> work);
  // Allocations and streams and events that have not been given back.
  [[nodiscard]] std::int64_t outstanding() const;

  [[nodiscard]] std::string_view name() const override { return "emulated"; }
  [[nodiscard]] std::string ErrorText(DeviceError error) const override;
  [[nodiscard]] absl::StatusOr<void*> AllocateMemory(std::size_t bytes) override;
  [[nodiscard]] absl::StatusOr<void*> AllocatePinned(std::size_t bytes) override;
  void FreeMemory(void* memory) override;
  void FreePinned(void* memory) override;
  [[nodiscard]] absl::StatusOr<DeviceStream> CreateStream() override;
  [[nodiscard]] absl::StatusOr<DeviceEvent> CreateEvent() override;
  void DestroyStream(DeviceStream stream) override;
  void DestroyEvent(DeviceEvent event) override;
  // Whatever the stream, all that can run.
  void Synchronize(DeviceStream stream = nullptr) override;
  DeviceError Pack(const kernels::PackLaunch& launch, DeviceStream stream) override;
  DeviceError CaptureIds(const kernels::IdsView& ids, std::int32_t rows, std::int32_t top_k,
                         std::int16_t* view, DeviceStream stream) override;
  DeviceError Zero(void* memory, std::size_t bytes, DeviceStream stream) override;
  DeviceError CopyToHost(void* to, const void* from, std::size_t bytes,
                         DeviceStream stream) override;
  DeviceError Record(DeviceEvent event, DeviceStream stream) override;
  DeviceError StreamWait(DeviceStream stream, DeviceEvent event) override;
  // Runs some of what was enqueued, as Query does, and counts nothing.
  [[nodiscard]] std::uint32_t Load(const std::uint32_t* word) override;
  [[nodiscard]] State Query(DeviceEvent event) override;

 private:
  struct Event {
    std::uint64_t recorded = 0;  // Records enqueued
    std::uint64_t reached = 0;   // and run
    bool captured = false;       // by the last Record
  };
  struct Work {
    std::function<void()> run;
    Event* waits_for = nullptr;  // runs when this event has reached `upto`
    std::uint64_t upto = 0;
    Event* records = nullptr;
  };
  struct Stream {
    std::deque<Work> work;
    bool captured = false;
  };

  // Enqueues run(), or `work` if it is an order between streams.
  template <class Run>
  DeviceError Add(Call call, DeviceStream stream, Run run);
  DeviceError AddOrder(Call call, DeviceStream stream, Work work);
  Stream& StreamOf(DeviceStream stream);
  void Count(Call call);
  // Runs one operation of a stream that can run; false when there is none. Under the lock.
  bool RunOne();
  void RunSome();

  const Mode mode_;
  mutable std::mutex mutex_;
  std::mt19937_64 random_;
  bool failed_ = false;
  bool halted_ = false;
  bool hung_ = false;
  std::condition_variable going_;
  bool default_stream_held_ = false;
  bool words_lost_ = false;
  Stream default_stream_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<std::unique_ptr<Event>> events_;
  std::map<std::thread::id, Counts> calls_;
  std::int64_t outstanding_ = 0;
};

}  // namespace waymark

#endif  // WAYMARK_TESTS_SUPPORT_EMULATED_DEVICE_H_
