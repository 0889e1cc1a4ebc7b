// Collective: an all-gather in Python as a wm_collective.
#ifndef WAYMARK_PLUGIN_PYTHON_COLLECTIVE_H_
#define WAYMARK_PLUGIN_PYTHON_COLLECTIVE_H_

#include <memory>
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

  // One that lives until the library, which it is lent to at once, releases it. What an exception
  // says is logged, each text once in a row.
  [[nodiscard]] static const wm_collective* Lent(nb::object all_gather, std::int32_t rank,
                                                 std::int32_t ranks, std::shared_ptr<LogLines> log);
  // Valid as long as this object.
  [[nodiscard]] const wm_collective* get() const { return &collective_; }
  // What the last call raised, if it did; once. Needs the GIL.
  [[nodiscard]] nb::object TakeRaised() { return std::move(raised_); }

 private:
  static wm_status AllGather(void* context, const void* send, void* receive, std::size_t bytes);
  static void Release(void* context);
  void Call(const void* send, void* receive, std::size_t bytes);
  [[nodiscard]] wm_status Raised(nb::python_error& error);

  const nb::object all_gather_;
  wm_collective collective_ = {};
  std::shared_ptr<LogLines> log_;  // null: an exception is kept for TakeRaised
  nb::object raised_;
  std::string logged_;
};

}  // namespace waymark_python

#endif  // WAYMARK_PLUGIN_PYTHON_COLLECTIVE_H_
