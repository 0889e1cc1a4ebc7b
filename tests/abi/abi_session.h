// The store and the session of the C ABI with the functions of the C++ ones: what lets the contract
// of transports run through the table. Every call goes through the table, but for what it has not
// on purpose: the transport itself, and a step that is ended behind its session's back.
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
#include "plugin/waymark.h"

namespace waymark::abi_test {

inline const wm_api_v1& Api() {
  return *wm_get_api_v1();
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

// A snapshot handle; what it reads comes through a wm_rows.
class AbiSnapshot {
 public:
  explicit AbiSnapshot(wm_snapshot* handle) : object_(handle) {}
  ~AbiSnapshot() { Api().snapshot_release(object_); }
  AbiSnapshot(AbiSnapshot&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  AbiSnapshot& operator=(AbiSnapshot&&) = delete;

  [[nodiscard]] absl::Status Wait(std::chrono::nanoseconds timeout) const;
  [[nodiscard]] absl::StatusOr<Rows> ReadRows() const;

 private:
  wm_snapshot* object_;
};

class AbiStore {
 public:
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<AbiStore>> Create(
      const StoreOptions& options);
  ~AbiStore() { Api().store_release(object_); }
  AbiStore(const AbiStore&) = delete;
  AbiStore& operator=(const AbiStore&) = delete;

  [[nodiscard]] wm_store* handle() { return object_; }
  [[nodiscard]] absl::StatusOr<AbiSnapshot> TakeSnapshot(std::span<const BlockId> blocks,
                                                         std::int64_t first, std::int64_t last);
  bool LandOne() { return Api().store_land_one(object_) == WM_OK; }
  [[nodiscard]] absl::Status WaitIdle(std::chrono::nanoseconds timeout);
  [[nodiscard]] Stats GetStats() const;
  // Behind the session's back.
  [[nodiscard]] StepCode Drop(StepId step) { return object_->store->Drop(step); }
  // What a log's link points to lives as long as the store.
  void Keep(std::unique_ptr<const LogCallback> log) { logs_.push_back(std::move(log)); }

 private:
  explicit AbiStore(wm_store* handle) : object_(handle) {}
  wm_store* const object_;
  std::vector<std::unique_ptr<const LogCallback>> logs_;
};

class AbiSession {
 public:
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<AbiSession>> Create(
      AbiStore& store, const CaptureOptions& options);
  ~AbiSession() { Api().session_release(object_); }
  AbiSession(const AbiSession&) = delete;
  AbiSession& operator=(const AbiSession&) = delete;

  [[nodiscard]] wm_session* handle() { return object_; }
  [[nodiscard]] StepCode BeginStep(const StepBatch& batch, std::int32_t written_rows = 0);
  [[nodiscard]] CaptureView view(StepId step);
  [[nodiscard]] CaptureView scratch_view() { return view(StepId()); }
  [[nodiscard]] CaptureCode HandOver(const CaptureView& view, std::int32_t layer,
                                     const IdsTensor& ids);
  [[nodiscard]] CaptureCode HandOver(StepId step, std::int32_t layer, const IdsTensor& ids) {
    return HandOver(view(step), layer, ids);
  }
  [[nodiscard]] CaptureCode Route(const CaptureView& view, std::int32_t layer,
                                  const kernels::RoutingConfig& config,
                                  const kernels::RoutingTensors& tensors);
  [[nodiscard]] StepCode Submit(StepId step, std::int32_t written_rows = 0);
  [[nodiscard]] StepCode SubmitDeviceSlots(StepId step, const std::int64_t* slots,
                                           std::int32_t rows, std::int32_t written_rows = 0);
  [[nodiscard]] StepCode Drop(StepId step);
  [[nodiscard]] StepCode Cancel(StepId step);
  void Discard(std::int32_t written_rows);
  [[nodiscard]] StepCode BeginIdsStep(const StepBatch& batch);
  [[nodiscard]] CaptureCode SubmitIds(StepId step, const StepIds& ids, DoneCallback done = {});
  [[nodiscard]] bool Landed(StepId step) const;

  [[nodiscard]] CaptureStats GetStats() const;
  [[nodiscard]] std::vector<SilentLayer> SilentLayers() const;
  [[nodiscard]] const RoutingShape& shape() const { return shape_; }
  [[nodiscard]] std::int32_t max_rows() const { return max_rows_; }
  // Which the table does not have.
  [[nodiscard]] Transport& transport() { return object_->session->transport(); }

 private:
  AbiSession(wm_session* handle, RoutingShape shape, std::int32_t max_rows)
      : object_(handle), shape_(std::move(shape)), max_rows_(max_rows) {}
  wm_session* const object_;
  const RoutingShape shape_;
  const std::int32_t max_rows_;
};

// Found beside waymark::RunSelfTest, by its first argument.
[[nodiscard]] absl::StatusOr<SelfTestReport> RunSelfTest(
    AbiSession& session, std::int32_t rows,
    const std::function<absl::Status(const CaptureView& view, std::int32_t rows)>& forward);

}  // namespace waymark::abi_test

#endif  // WAYMARK_TESTS_ABI_ABI_SESSION_H_
