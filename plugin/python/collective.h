// Collective: an all-gather in Python as a wm_collective.
#ifndef WAYMARK_PLUGIN_PYTHON_COLLECTIVE_H_
#define WAYMARK_PLUGIN_PYTHON_COLLECTIVE_H_

#include <atomic>
#include <string>

#include "plugin/python/core.h"

namespace waymark_python {

// Calls `all_gather(bytes)`, with the GIL, on the thread that gathers. An exception becomes a
// status: DEADLINE_EXCEEDED of a TimeoutError, UNAVAILABLE of an OSError (ConnectionError), UNKNOWN
// of any other.
class Collective {
 public:
  // Needs the GIL, as does the destructor.
  Collective(nb::object all_gather, std::int32_t rank, std::int32_t ranks);
  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;

  // Valid as long as this object.
  [[nodiscard]] const wm_collective* get() const { return &collective_; }
  // Whether a call is in progress. Any thread.
  [[nodiscard]] bool calling() const { return calling_.load(std::memory_order_acquire); }
  // What the last call raised, if it did; once. Needs the GIL.
  [[nodiscard]] nb::object TakeRaised() { return std::move(raised_); }
  // What an exception says is logged there, each text once in a row. Null: nowhere.
  void LogTo(SharedStore* store) { store_ = store; }

 private:
  static wm_status AllGather(void* context, const void* send, void* receive, std::size_t bytes);
  void Call(const void* send, void* receive, std::size_t bytes);
  [[nodiscard]] wm_status Raised(nb::python_error& error);

  const nb::object all_gather_;
  wm_collective collective_ = {};
  std::atomic<bool> calling_{false};
  SharedStore* store_ = nullptr;
  nb::object raised_;
  std::string logged_;
};

}  // namespace waymark_python

#endif  // WAYMARK_PLUGIN_PYTHON_COLLECTIVE_H_
