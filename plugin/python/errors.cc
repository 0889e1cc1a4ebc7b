// Statuses of the ABI as exceptions.
#include "plugin/python/core.h"

namespace waymark_python {
namespace {

[[noreturn]] void RaiseWith(const nb::object& exception) {
  PyErr_SetObject(exception.type().ptr(), exception.ptr());
  throw nb::python_error();
}

}  // namespace

void Raise(wm_status status, std::string_view text) {
  const nb::object error = nb::module_::import_("waymark._errors").attr("error_of");
  RaiseWith(error(status, nb::str(text.data(), text.size())));
}

void RaiseCode(const wm_code& code) {
  Message text;
  Api().describe_code(&code, text.get());
  const nb::object error = nb::module_::import_("waymark._errors").attr("error_of");
  RaiseWith(error(code.code, nb::str(text.text()), code.rule, code.index, code.value, code.limit));
}

}  // namespace waymark_python
