// The session of the C ABI with the functions of the C++ one: what lets the contract of transports
// run through the table. Every call of a session goes through the table, but for what it has not on
// purpose: the transport itself, and ids in one tensor.
#ifndef WAYMARK_TESTS_ABI_ABI_SESSION_H_
#define WAYMARK_TESTS_ABI_ABI_SESSION_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/log.h"
#include "blockstore/rows.h"
#include "blockstore/store/stats.h"
#include "blockstore/store/store.h"
#include "plugin/abi/types.h"
#include "plugin/capture/capture_session.h"
#include "plugin/capture/self_test.h"
#include "plugin/waymark_graph.h"

namespace waymark::abi_test {

inline const wm_graph_api_v1& Graph() {
  return *wm_get_api_v1()->graph;
}

// A text that a call writes, and the status that it becomes with one.
class Why {
 public:
  [[nodiscard]] wm_message* get() { return &message_; }
  [[nodiscard]] std::string text() const { return text_; }
  [[nodiscard]] absl::Status Status(wm_status code) const {
    return absl::Status(static_cast<absl::StatusCode>(code), code == WM_OK ? "" : text_);
  }

 private:
  char text_[1024] = {};
  wm_message message_ = {text_, sizeof(text_), 0};
};

// The capture that sessions are of. A caller lands it, so it is not made by the table.
class AbiStore {
 public:
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<AbiStore>> Create(
      const StoreOptions& options);
  ~AbiStore() { wm_get_api_v1()->capture_release(object_); }
  AbiStore(const AbiStore&) = delete;
  AbiStore& operator=(const AbiStore&) = delete;

  [[nodiscard]] wm_capture* handle() { return object_; }
  [[nodiscard]] RoutingStore& store() const { return object_->capture->store(); }
  [[nodiscard]] absl::StatusOr<Snapshot> TakeSnapshot(std::span<const BlockId> blocks,
                                                      std::int64_t first, std::int64_t last) {
    return store().TakeSnapshot(blocks, first, last);
  }
  bool LandOne() { return store().LandOne(); }
  [[nodiscard]] absl::Status WaitIdle(std::chrono::nanoseconds timeout) {
    return store().WaitIdle(timeout);
  }
  [[nodiscard]] Stats GetStats() const { return store().GetStats(); }
  // Behind the session's back.
  [[nodiscard]] StepCode Drop(StepId step) { return store().Drop(step); }

 private:
  explicit AbiStore(wm_capture* handle) : object_(handle) {}
  wm_capture* const object_;
};

class AbiSession {
 public:
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<AbiSession>> Create(
      AbiStore& store, const CaptureOptions& options);
  ~AbiSession() { Graph().session_release(object_); }
  AbiSession(const AbiSession&) = delete;
  AbiSession& operator=(const AbiSession&) = delete;

  [[nodiscard]] wm_session* handle() { return object_; }
  [[nodiscard]] absl::Status BindLayer(std::int32_t layer, const std::string& module);
  [[nodiscard]] StepCode BeginStep(const StepBatch& batch, std::int32_t written_rows = 0);
  [[nodiscard]] CaptureView view(StepId step);
  [[nodiscard]] CaptureView scratch_view() { return view(StepId()); }
  [[nodiscard]] StepCode HandOver(const CaptureView& view, std::int32_t layer, const StepIds& ids);
  [[nodiscard]] StepCode Submit(StepId step, std::int32_t written_rows = 0);
  [[nodiscard]] StepCode Drop(StepId step);
  [[nodiscard]] StepCode Cancel(StepId step);
  void Discard(std::int32_t written_rows);
  // Which the table does not have.
  [[nodiscard]] StepCode BeginIdsStep(const StepBatch& batch) {
    return object_->session->BeginIdsStep(batch);
  }
  [[nodiscard]] StepCode SubmitIds(StepId step, const StepIds& ids, DoneCallback done = {}) {
    return object_->session->SubmitIds(step, ids, done);
  }
  [[nodiscard]] Transport& transport() { return object_->session->transport(); }

  [[nodiscard]] CaptureStats GetStats() const;
  [[nodiscard]] const RoutingShape& shape() const { return object_->session->shape(); }
  [[nodiscard]] std::int32_t max_rows() const { return object_->session->max_rows(); }

 private:
  explicit AbiSession(wm_session* handle) : object_(handle) {}
  wm_session* const object_;
};

// Found beside waymark::RunSelfTest, by its first argument.
[[nodiscard]] absl::StatusOr<SelfTestReport> RunSelfTest(
    AbiSession& session, std::int32_t rows,
    const std::function<absl::Status(const CaptureView& view, std::int32_t rows)>& forward);

}  // namespace waymark::abi_test

#endif  // WAYMARK_TESTS_ABI_ABI_SESSION_H_
