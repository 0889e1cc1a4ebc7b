// View: where one forward writes.
#include "plugin/python/module.h"
#include "plugin/python/session.h"

namespace waymark_python {
namespace {

using nb::literals::operator""_a;

template <typename... Kind>
nb::object Wrap(nb::handle_t<View> self, bool one_layer, std::int32_t layer) {
  const auto& view = nb::cast<const View&>(self);
  const wm_view& v = view.view;
  if (one_layer && (layer < 0 || layer >= v.num_layers)) {
    Raise(WM_OUT_OF_RANGE,
          "layer: in [0, " + std::to_string(v.num_layers) + "), got " + std::to_string(layer));
  }
  const std::size_t shape[3] = {static_cast<std::size_t>(v.num_layers),
                                static_cast<std::size_t>(v.max_rows),
                                static_cast<std::size_t>(v.top_k)};
  const std::int64_t strides[3] = {v.layer_stride, v.top_k, 1};
  const bool host = view.session->transport == WM_TRANSPORT_HOST;
  const int skip = one_layer ? 1 : 0;
  std::int16_t* const data = v.data + (one_layer ? layer * v.layer_stride : 0);
  // The array keeps the view, and that the session.
  return nb::cast(
      nb::ndarray<std::int16_t, Kind...>(data, static_cast<std::size_t>(3 - skip), shape + skip,
                                         self, strides + skip, nb::dtype<std::int16_t>(),
                                         host ? nb::device::cpu::value : nb::device::cuda::value,
                                         host ? 0 : view.session->device),
      nb::rv_policy::reference);
}

nb::object ArrayOfView(nb::handle_t<View> self) {
  if (nb::cast<const View&>(self).session->transport != WM_TRANSPORT_HOST) {
    Raise(WM_FAILED_PRECONDITION,
          "array: the view lies in device memory; use __dlpack__ or __cuda_array_interface__");
  }
  return Wrap<nb::numpy>(self, false, 0);
}

nb::object LayerOfView(nb::handle_t<View> self, Int32<"layer"> layer) {
  if (nb::cast<const View&>(self).session->transport == WM_TRANSPORT_HOST) {
    return Wrap<nb::numpy>(self, true, layer);
  }
  return Wrap<nb::array_api>(self, true, layer);
}

nb::object DLPack(nb::handle_t<View> self, nb::kwargs kwargs) {
  // Views are written in stream order: there is nothing to synchronise with.
  if (kwargs.contains("stream")) kwargs.attr("pop")("stream");
  return Wrap<nb::array_api>(self, false, 0).attr("__dlpack__")(**kwargs);
}

nb::dict CudaArrayInterface(const View& self) {
  if (self.session->transport != WM_TRANSPORT_CUDA) {
    PyErr_SetString(PyExc_AttributeError, "__cuda_array_interface__: the view is in host memory");
    throw nb::python_error();
  }
  const wm_view& v = self.view;
  nb::dict out;
  out["shape"] = nb::make_tuple(v.num_layers, v.max_rows, v.top_k);
  out["strides"] = nb::make_tuple(v.layer_stride * 2, std::int64_t{v.top_k} * 2, 2);
  out["typestr"] = "<i2";
  out["data"] = nb::make_tuple(reinterpret_cast<std::uintptr_t>(v.data), false);
  out["version"] = 3;
  return out;
}

}  // namespace

void BindView(nb::module_& module) {
  nb::class_<View>(
      module, "View",
      "Where one forward writes: int16 [L, max_rows, K], every id -1 before.\n\n"
      "Valid until its step is submitted, dropped or cancelled; later writes are lost, or "
      "land in another step. Keeps its session. Kernels may write disjoint parts from any "
      "thread.")
      .def_prop_ro("array", &ArrayOfView, nb::sig("def array(self) -> " WAYMARK_ARRAY("int16")),
                   "numpy int16 [L, max_rows, K], writable, no copy. Host transport only "
                   "(FailedPreconditionError otherwise).")
      .def("layer", &LayerOfView, "layer"_a,
           nb::sig("def layer(self, layer: int) -> " WAYMARK_ARRAY("int16")),
           "int16 [max_rows, K] of a layer, contiguous: numpy, or a DLPack object of the device.")
      .def_prop_ro(
          "step", [](const View& self) { return self.view.step; },
          "Its step; 0: no step, nothing that is written there lands.")
      .def_prop_ro(
          "shape",
          [](const View& self) {
            return nb::make_tuple(self.view.num_layers, self.view.max_rows, self.view.top_k);
          },
          nb::sig("def shape(self) -> tuple[int, int, int]"), "(L, max_rows, K).")
      .def_prop_ro(
          "layer_stride", [](const View& self) { return self.view.layer_stride; },
          "The distance between layers, in ids.")
      .def(
          "data_ptr",
          [](const View& self) { return reinterpret_cast<std::uintptr_t>(self.view.data); },
          "The address of layer 0.")
      .def("__dlpack__", &DLPack, "kwargs"_a,
           nb::sig("def __dlpack__(self, **kwargs: typing.Any) -> typing.Any"),
           "No copy; `stream` is ignored, because views are written in stream order.")
      .def(
          "__dlpack_device__",
          [](const View& self) {
            const bool host = self.session->transport == WM_TRANSPORT_HOST;
            return nb::make_tuple(host ? 1 : 2, host ? 0 : self.session->device);
          },
          nb::sig("def __dlpack_device__(self) -> tuple[int, int]"))
      .def_prop_ro("__cuda_array_interface__", &CudaArrayInterface,
                   nb::sig("def __cuda_array_interface__(self) -> dict[str, typing.Any]"))
      .def(
          "__array__",
          [](nb::handle_t<View> self, nb::args args, nb::kwargs kwargs) {
            return nb::object(ArrayOfView(self)).attr("__array__")(*args, **kwargs);
          },
          nb::sig("def __array__(self, *args: typing.Any, **kwargs: typing.Any) -> " WAYMARK_ARRAY(
              "int16")));
}

}  // namespace waymark_python
