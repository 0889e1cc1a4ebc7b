// A capture session and its views, which keep it alive.
#ifndef WAYMARK_PLUGIN_PYTHON_SESSION_H_
#define WAYMARK_PLUGIN_PYTHON_SESSION_H_

#include "plugin/python/collective.h"
#include "plugin/python/core.h"

namespace waymark_python {

// A wm_session. Views keep it.
struct SharedSession {
  std::shared_ptr<SharedStore> store;
  wm_session* session = nullptr;
  int transport = WM_TRANSPORT_HOST;
  int device = 0;
  std::int64_t ranks = 1;  // that share the rows of a step
  // The rows of this rank in the steps that were begun and have not ended; a step with device_slots
  // is not among them. Engine's thread.
  std::vector<std::pair<std::uint64_t, std::int64_t>> open;

  void Begun(std::uint64_t step, std::int64_t rows) { open.emplace_back(step, rows / ranks); }
  void Ended(std::uint64_t step) {
    std::erase_if(open, [step](const auto& one) { return one.first == step; });
  }
  SharedSession() = default;
  ~SharedSession() { Release(); }
  SharedSession(const SharedSession&) = delete;
  SharedSession& operator=(const SharedSession&) = delete;

 private:
  void Release() {
    if (session == nullptr) return;
    const EngineCall call(*store, std::nothrow);
    if (!call.held()) return;  // the interpreter goes down under another thread's call
    const GilReleased released(Alive());
    Api().session_release(session);
  }
};

// The Python class of a session.
struct Session {
  std::shared_ptr<SharedSession> shared;  // null: closed
  // FailedPrecondition when it is closed. Releases the arrays that the landing thread has read.
  [[nodiscard]] SharedSession& open() const {
    if (shared == nullptr) Raise(WM_FAILED_PRECONDITION, "the session is closed");
    shared->store->GiveBack();
    return *shared;
  }
};

// The WM_ID_* of an array's items; TypeError naming `name` if they cannot be ids.
std::int32_t IdType(const Array& array, const char* name);
// Ids that a caller gives with a step: [rows, layers, columns], or [layers, rows, columns]. The
// landing thread reads them where they are.
class GivenIds {
 public:
  // TypeError and InvalidArgument for what is no such array.
  GivenIds(nb::handle array, bool layers_first);
  [[nodiscard]] std::int64_t rows() const { return ids_.rows; }
  // session_submit_ids, inside an EngineCall; once.
  [[nodiscard]] wm_status Submit(SharedSession& session, std::uint64_t step, wm_code* code);

 private:
  std::unique_ptr<LentIds> lent_;
  wm_ids ids_ = {};
};
// Whether a step that was begun or submitted goes on: false if it was dropped here and now
// (capacity); raises what else is wrong.
bool NotDropped(wm_status status, const wm_code& code);

struct View {
  std::shared_ptr<SharedSession> session;
  wm_view view = {};
};

}  // namespace waymark_python

#endif  // WAYMARK_PLUGIN_PYTHON_SESSION_H_
