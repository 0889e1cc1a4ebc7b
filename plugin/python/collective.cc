// The all_gather of a Python object, as a Collective.
#include <cstring>
#include <string>
#include <utility>

#include "plugin/python/capture.h"

namespace waymark_python {
namespace {

// Lives until the last call is over. Made and destroyed with the GIL.
struct Gather {
  void Call(const void* send, void* receive, std::size_t bytes) const;
  [[nodiscard]] std::int32_t Raised(nb::python_error& error);

  nb::object all_gather;
  std::size_t ranks;
  std::string logged;
};

std::int32_t AllGather(void* context, const void* send, void* receive, std::size_t bytes) {
  auto& self = *static_cast<Gather*>(context);
  const GilTaken gil;
  try {
    self.Call(send, receive, bytes);
    return 0;
  } catch (nb::python_error& error) {
    return self.Raised(error);
  } catch (...) {
    return static_cast<std::int32_t>(absl::StatusCode::kUnknown);
  }
}

void Gather::Call(const void* send, void* receive, std::size_t bytes) const {
  const nb::object gathered = all_gather(nb::bytes(send, bytes));
  auto* const out = static_cast<std::uint8_t*>(receive);
  const auto copy = [&](nb::handle part, std::uint8_t* to, std::size_t wanted) {
    const Bytes got = ReadableBytes(part, "all_gather");
    if (got.size != wanted) {
      RaiseInvalid("all_gather: must return " + std::to_string(wanted) + " bytes, got " +
                   std::to_string(got.size));
    }
    if (wanted != 0) std::memcpy(to, got.data, wanted);
  };
  if (!PyList_Check(gathered.ptr()) && !PyTuple_Check(gathered.ptr())) {
    copy(gathered, out, ranks * bytes);
    return;
  }
  const nb::object parts = nb::steal(PySequence_Tuple(gathered.ptr()));
  if (!parts.is_valid()) throw nb::python_error();
  if (nb::len(parts) != ranks) {
    RaiseInvalid("all_gather: must return the bytes of " + std::to_string(ranks) + " ranks, got " +
                 std::to_string(nb::len(parts)));
  }
  for (std::size_t rank = 0; rank < ranks; ++rank)
    copy(parts[rank], out + rank * bytes, bytes);
}

std::int32_t Gather::Raised(nb::python_error& error) {
  try {
    const std::string text =
        std::string("row_gather.all_gather: ") + nb::cast<std::string>(nb::repr(error.value()));
    if (text != logged) AddLogLine(nullptr, waymark::LogLevel::kWarning, text.data(), text.size());
    logged = text;
  } catch (...) {
    PyErr_Clear();
  }
  const auto code = error.matches(PyExc_TimeoutError) ? absl::StatusCode::kDeadlineExceeded
                    : error.matches(PyExc_OSError)    ? absl::StatusCode::kUnavailable
                                                      : absl::StatusCode::kUnknown;
  return static_cast<std::int32_t>(code);
}

void Release(void* gather) {
  if (!Alive()) return;  // the memory goes with the process
  const GilTaken gil;
  delete static_cast<Gather*>(gather);
}

}  // namespace

waymark::Collective CollectiveOf(nb::object all_gather, std::int32_t rank, std::int32_t ranks) {
  const std::shared_ptr<void> gather(
      new Gather{std::move(all_gather), static_cast<std::size_t>(ranks), {}}, &Release);
  return {.rank = rank,
          .ranks = ranks,
          .all_gather = &AllGather,
          .context = gather.get(),
          .owner = gather};
}

}  // namespace waymark_python
