// A capture session and its views, which keep it alive.
#ifndef WAYMARK_PLUGIN_PYTHON_SESSION_H_
#define WAYMARK_PLUGIN_PYTHON_SESSION_H_

#include "plugin/python/core.h"

namespace waymark_python {

// A wm_session. Views keep it.
struct SharedSession {
  std::shared_ptr<SharedStore> store;
  wm_session* session = nullptr;
  int transport = WM_TRANSPORT_HOST;
  int device = 0;

  SharedSession() = default;
  ~SharedSession() {
    if (session == nullptr) return;
    const EngineCall call(*store, std::nothrow);
    if (!call.held()) return;  // the interpreter goes down under another thread's call
    const GilReleased released(Alive());
    Api().session_release(session);
  }
  SharedSession(const SharedSession&) = delete;
  SharedSession& operator=(const SharedSession&) = delete;
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

// The ids of a step that lie in `array`, [rows, layers, columns], or [layers, rows, columns] with
// `layers_first`. The array is kept by what is returned, until submit_ids takes it over.
std::unique_ptr<LentIds> Lend(SharedSession& session, nb::handle array, bool layers_first,
                              wm_ids& ids);
// submit_ids. The array is released when it has been read, or at once if the step is refused or
// dropped. Inside an EngineCall.
wm_status SubmitTo(SharedSession& session, std::uint64_t step, const wm_ids& ids,
                   std::unique_ptr<LentIds> lent, wm_code& code);

// Whether a step that was begun or submitted goes on: false if it was dropped here and now
// (capacity); raises what else is wrong.
bool NotDropped(wm_status status, const wm_code& code);

struct View {
  std::shared_ptr<SharedSession> session;
  wm_view view = {};
};

}  // namespace waymark_python

#endif  // WAYMARK_PLUGIN_PYTHON_SESSION_H_
