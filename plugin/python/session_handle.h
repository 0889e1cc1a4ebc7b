// What the session's own file and routing share: the handle of a session, and its views.
#ifndef WAYMARK_PLUGIN_PYTHON_SESSION_HANDLE_H_
#define WAYMARK_PLUGIN_PYTHON_SESSION_HANDLE_H_

#include <cstdint>
#include <memory>
#include <new>

#include "plugin/python/core.h"

namespace waymark_python {

// A wm_session; views keep it.
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

// The Python class of a view.
struct View {
  std::shared_ptr<SessionHandle> session;
  wm_view view = {};
};

}  // namespace waymark_python

#endif  // WAYMARK_PLUGIN_PYTHON_SESSION_HANDLE_H_
