// Statuses of the library as exceptions.
#include "plugin/python/core.h"

namespace waymark_python {
namespace {

[[noreturn]] void RaiseObject(const nb::object& exception) {
  PyErr_SetObject(exception.type().ptr(), exception.ptr());
  throw nb::python_error();
}

nb::object ErrorOf() {
  return nb::module_::import_("waymark._errors").attr("error_of");
}

}  // namespace

void Raise(const absl::Status& status) {
  RaiseObject(ErrorOf()(static_cast<int>(status.code()),
                        nb::str(status.message().data(), status.message().size())));
}

void RaiseInvalid(std::string_view text) {
  Raise(absl::InvalidArgumentError(std::string(text)));
}

void RaiseType(std::string_view text) {
  PyErr_SetString(PyExc_TypeError, std::string(text).c_str());
  throw nb::python_error();
}

void Raise(const waymark::StepCode& code) {
  const absl::Status status = code.ToStatus("events");
  RaiseObject(ErrorOf()(code.code, nb::str(status.message().data(), status.message().size()),
                        static_cast<int>(code.rule), code.index, code.value));
}

nb::tuple ShapeTuple(const waymark::RoutingShape& shape, std::int32_t block_tokens,
                     std::int32_t num_blocks) {
  nb::list layer_ids;
  for (std::int32_t layer = 0; layer < shape.num_layers; ++layer)
    layer_ids.append(shape.layer_id(layer));
  return nb::make_tuple(shape.num_layers, shape.top_k, shape.num_experts, shape.page_tokens,
                        block_tokens, num_blocks, nb::tuple(layer_ids));
}

waymark::RoutingShape ShapeOf(const nb::tuple& given) {
  waymark::RoutingShape shape;
  shape.num_layers = nb::cast<std::int32_t>(given[0]);
  shape.top_k = nb::cast<std::int32_t>(given[1]);
  shape.num_experts = nb::cast<std::int32_t>(given[2]);
  shape.page_tokens = nb::cast<std::int32_t>(given[3]);
  for (const nb::handle layer : nb::cast<nb::tuple>(given[6]))
    shape.layer_ids.push_back(nb::cast<std::int32_t>(layer));
  Check(shape.Validate());
  shape.Normalize();
  return shape;
}

}  // namespace waymark_python
