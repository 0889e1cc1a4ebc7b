// waymark.route: the routing kernels, on arrays of any library (numpy, DLPack).
#include <string>

#include "plugin/python/core.h"
#include "plugin/python/module.h"
#include "plugin/python/session.h"

namespace waymark_python {
namespace {

using nb::literals::operator""_a;

// WM_DTYPE_*, or TypeError.
std::int32_t DTypeOf(const Array& array, const char* name) {
  const auto is = [&](char kind, int bytes) {
    return array.kind == kind && array.item_bytes == bytes;
  };
  if (is('f', 4)) return WM_DTYPE_FLOAT32;
  if (is('B', 2)) return WM_DTYPE_BFLOAT16;
  if (is('f', 2)) return WM_DTYPE_FLOAT16;
  if (is('u', 1) || is('b', 1)) return WM_DTYPE_UINT8;
  if (is('i', 2)) return WM_DTYPE_INT16;
  if (is('i', 4)) return WM_DTYPE_INT32;
  if (is('i', 8)) return WM_DTYPE_INT64;
  const std::string text = std::string(name) + " must be of a type that routing knows, got kind '" +
                           array.kind + "' of " + std::to_string(array.item_bytes) + " bytes";
  PyErr_SetString(PyExc_TypeError, text.c_str());
  throw nb::python_error();
}

// An argument: None, or an array, which it keeps for the call. The library checks its contents,
// except for what a wm_tensor cannot express.
class Argument {
 public:
  Argument(nb::handle object, const char* name, bool is_written = false) {
    if (object.is_none()) return;
    array_ = ArrayOf(object, name);
    if (is_written && array_.on_host && !nb::hasattr(object, "data_ptr") &&
        !nb::try_cast(object, writable_, false)) {
      Raise(WM_INVALID_ARGUMENT, std::string(name) + ": must be writable");
    }
    if (array_.dims < 1 || array_.dims > 2) {
      Raise(WM_INVALID_ARGUMENT,
            std::string(name) + ": one or two dimensions, got " + std::to_string(array_.dims));
    }
    static const char kNothing = 0;  // an empty array is given, too
    tensor.data = const_cast<void*>(array_.data != nullptr ? array_.data : &kNothing);
    tensor.rank = array_.dims;
    tensor.dtype = DTypeOf(array_, name);
    for (int i = 0; i < array_.dims; ++i) {
      if (array_.strides[i] % array_.item_bytes != 0) {
        Raise(WM_INVALID_ARGUMENT, std::string(name) + ": strides of whole elements, got " +
                                       std::to_string(array_.strides[i]) + " bytes");
      }
      tensor.shape[i] = array_.shape[i];
      tensor.strides[i] = array_.strides[i] / array_.item_bytes;
    }
    if (bytes() == 0) {  // without elements, strides are whatever the owner makes of them
      tensor.strides[0] = tensor.rank == 2 ? tensor.shape[1] : 1;
      tensor.strides[1] = 1;
    }
    tensor.device_type = array_.on_host ? WM_DEVICE_HOST : WM_DEVICE_CUDA;
    tensor.device = array_.on_host ? 0 : array_.device;
  }
  // For a call on CUDA device `device`: memory that both can read lies there, and so does memory
  // whose owner does not name its device.
  void LieOn(std::int32_t device) {
    if (!array_.on_device || tensor.device > 0) return;
    if (!array_.on_host && tensor.device == 0) return;
    tensor.device_type = WM_DEVICE_CUDA;
    tensor.device = device;
  }

  wm_tensor tensor = {};
  [[nodiscard]] std::uint64_t bytes() const {
    return static_cast<std::uint64_t>(tensor.shape[0]) *
           static_cast<std::uint64_t>(array_.item_bytes) *
           static_cast<std::uint64_t>(tensor.rank == 2 ? tensor.shape[1] : 1);
  }

 private:
  Array array_;
  nb::ndarray<> writable_;
};

void Route(nb::handle logits, nb::handle topk_ids, nb::handle topk_weights, nb::handle bias,
           nb::handle replay_in, nb::handle routed, nb::handle replay_out, std::int32_t method,
           Int32<"top_k"> top_k, Int32<"num_groups"> num_groups, Int32<"topk_groups"> topk_groups,
           float scale, bool normalize, nb::handle view, Int32<"layer"> layer, nb::handle stream) {
  Argument all[] = {{logits, "logits"},
                    {topk_ids, "topk_ids", true},
                    {topk_weights, "topk_weights", true},
                    {bias, "bias"},
                    {replay_in, "replay_in"},
                    {routed, "routed", true},
                    {replay_out, "replay_out", true}};
  if (all[0].tensor.device_type == WM_DEVICE_CUDA) {
    std::int32_t device = 0;
    for (const Argument& each : all) {
      if (each.tensor.device_type == WM_DEVICE_CUDA && each.tensor.device > 0) {
        device = each.tensor.device;
      }
    }
    for (Argument& each : all)
      each.LieOn(device);
  }
  wm_routing routing = {};
  routing.struct_size = sizeof(routing);
  routing.flags = normalize ? 0 : WM_ROUTING_NOT_NORMALIZED;
  routing.method = method;
  routing.top_k = top_k;
  routing.num_groups = num_groups;
  routing.topk_groups = topk_groups;
  routing.scale = scale;
  routing.logits = all[0].tensor;
  routing.topk_ids = all[1].tensor;
  routing.topk_weights = all[2].tensor;
  routing.bias = all[3].tensor;
  routing.replay_in = all[4].tensor;
  routing.routed = all[5].tensor;
  routing.replay_out = all[6].tensor;
  const bool is_long =
      routing.logits.device_type == WM_DEVICE_HOST && all[0].bytes() >= kReleaseBytes;
  wm_code code = {};
  wm_status status;
  if (view.is_none()) {
    void* const on = StreamOf(stream);
    const GilReleased released(is_long);
    status = Api().route(&routing, on, &code);
  } else {
    const View* of = nullptr;
    if (!nb::try_cast(view, of, false) || of == nullptr) {
      PyErr_SetString(PyExc_TypeError, "view must be a View of a session");
      throw nb::python_error();
    }
    SharedSession& session = *of->session;
    const EngineCall call(*session.store);
    const GilReleased released(is_long);
    status = Api().session_route(session.session, &of->view, layer, &routing, &code);
  }
  Check(code, status);
}

}  // namespace

void BindRouting(nb::module_& module) {
  module.def("route", &Route, "logits"_a, "topk_ids"_a.none(), "topk_weights"_a.none(),
             "bias"_a.none(), "replay_in"_a.none(), "routed"_a.none(), "replay_out"_a.none(),
             "method"_a, "top_k"_a, "num_groups"_a, "topk_groups"_a, "scale"_a, "normalize"_a,
             "view"_a.none(), "layer"_a, "stream"_a.none(),
             "One call of a router; waymark.route is what is for use.");
}

}  // namespace waymark_python
