// The Python class of a Capture: what it owns, and what its parts share.
#ifndef WAYMARK_PLUGIN_PYTHON_CAPTURE_H_
#define WAYMARK_PLUGIN_PYTHON_CAPTURE_H_

#include <atomic>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "blockstore/events.h"
#include "blockstore/flight/recorder.h"
#include "plugin/capture/capture.h"
#include "plugin/capture/collective.h"
#include "plugin/python/arrays.h"
#include "plugin/python/core.h"

namespace waymark_python {

// Ids that a step reads, and the step. The landing thread sets `read` and pushes it on the stack
// `done` when it has read them; a later call that has the GIL releases the array and the step.
struct LentIds {
  LentIds* next = nullptr;
  std::atomic<LentIds*>* done = nullptr;
  Array array;
  nb::object step;
  std::atomic<bool>* read = nullptr;
};

// A capture and what it calls back into. Shared by the Python objects that need it.
class SharedCapture {
 public:
  SharedCapture() = default;
  ~SharedCapture() { Close(); }
  SharedCapture(const SharedCapture&) = delete;
  SharedCapture& operator=(const SharedCapture&) = delete;

  // Ends the capture: waits for the landing thread. Needs the GIL.
  void Close();
  [[nodiscard]] bool closed() const { return capture == nullptr; }
  // Releases the arrays on `done`. Needs the GIL; may run any Python.
  void GiveBack() {
    if (done.load(std::memory_order_relaxed) != nullptr) GiveBackAll();
  }
  [[nodiscard]] waymark::RoutingStore& store() const { return capture->store(); }

  std::unique_ptr<waymark::FlightRecorder> recorder;  // outlives `capture`
  std::unique_ptr<waymark::Capture> capture;
  std::atomic<LentIds*> done = nullptr;
  std::uint64_t version = 0;             // of the last step
  bool layers_first = false;             // layout of ids
  std::int64_t ranks = 1;                // that share the rows of a step
  std::atomic<std::uint64_t> engine{0};  // the thread in a call of the engine's thread; 0: none

 private:
  void GiveBackAll();
};

// One call of the engine's thread. FailedPrecondition while another thread is in one; the same
// thread may call again from a callback.
class EngineCall {
 public:
  explicit EngineCall(SharedCapture& capture);
  // For destructors: waits for the other thread instead. !held() when the interpreter is on its
  // way down and the other thread will never be back.
  EngineCall(SharedCapture& capture, std::nothrow_t);
  ~EngineCall() {
    if (outer_) capture_.engine.store(0, std::memory_order_release);
  }
  EngineCall(const EngineCall&) = delete;
  EngineCall& operator=(const EngineCall&) = delete;
  [[nodiscard]] bool held() const { return held_; }
  // Whether the thread is in no other call.
  [[nodiscard]] bool outer() const { return outer_; }

 private:
  [[nodiscard]] bool Take();

  SharedCapture& capture_;
  bool outer_ = false;
  bool held_ = true;
};

// The Python class.
struct Capture {
  std::shared_ptr<SharedCapture> shared;  // null: closed
  // Appends events to the store's log. Engine's thread.
  void Report(std::span<const waymark::Event> events) const;
  // FailedPrecondition when it is closed. Releases the arrays that the landing thread has read.
  [[nodiscard]] SharedCapture& open() const;
  // The same, for what reads state that is not there in a forked child: FailedPrecondition.
  [[nodiscard]] SharedCapture& here() const;
};

// Defines what Capture has for its tier.
void BindTier(nb::module_& module, nb::class_<Capture>& capture);
// `all_gather` as a Collective, whose calls take the GIL, on the thread that gathers. An exception
// becomes a status: DeadlineExceeded of a TimeoutError, Unavailable of an OSError
// (ConnectionError), Unknown of any other; what it says is logged, each text once in a row. Needs
// the GIL.
[[nodiscard]] waymark::Collective CollectiveOf(nb::object all_gather, std::int32_t rank,
                                               std::int32_t ranks);
// Defines what Capture has for events.
void DefineEvents(nb::class_<Capture>& capture);
// Defines what Capture has for steps.
void BindSteps(nb::module_& module, nb::class_<Capture>& capture);

}  // namespace waymark_python

#endif  // WAYMARK_PLUGIN_PYTHON_CAPTURE_H_
