// A capture session and its views, which keep it alive.
#ifndef WAYMARK_PLUGIN_PYTHON_SESSION_H_
#define WAYMARK_PLUGIN_PYTHON_SESSION_H_

#include "plugin/python/core.h"

namespace waymark_python {

// A wm_session. Views keep it.
struct SessionHandle {
  std::shared_ptr<StoreHandle> store;
  wm_session* session = nullptr;
  int transport = WM_TRANSPORT_HOST;
  int device = 0;

  SessionHandle() = default;
  ~SessionHandle() {
    if (session == nullptr) return;
    const EngineCall call(*store, std::nothrow);
    if (!call.held()) return;  // the interpreter goes down under another thread's call
    const GilReleased released(Alive());
    Api().session_release(session);
  }
  SessionHandle(const SessionHandle&) = delete;
  SessionHandle& operator=(const SessionHandle&) = delete;
};

struct View {
  std::shared_ptr<SessionHandle> session;
  wm_view view = {};
};

}  // namespace waymark_python

#endif  // WAYMARK_PLUGIN_PYTHON_SESSION_H_
