#include "plugin/python/collective.h"

#include <cstring>

namespace waymark_python {

Collective::Collective(nb::object all_gather, std::int32_t rank, std::int32_t ranks)
    : all_gather_(std::move(all_gather)) {
  collective_.struct_size = sizeof(collective_);
  collective_.rank = rank;
  collective_.ranks = ranks;
  collective_.all_gather = &AllGather;
  collective_.context = this;
}

const wm_collective* Collective::Lent(nb::object all_gather, std::int32_t rank, std::int32_t ranks,
                                      std::shared_ptr<LogLines> log) {
  auto* const lent = new Collective(std::move(all_gather), rank, ranks);
  lent->log_ = std::move(log);
  lent->collective_.release = &Release;
  return lent->get();
}

void Collective::Release(void* context) {
  if (!Alive()) return;  // the memory goes with the process
  const GilTaken gil;
  delete static_cast<Collective*>(context);
}

wm_status Collective::AllGather(void* context, const void* send, void* receive, std::size_t bytes) {
  auto& self = *static_cast<Collective*>(context);
  const GilTaken gil;
  try {
    self.Call(send, receive, bytes);
    return WM_OK;
  } catch (nb::python_error& error) {
    return self.Raised(error);
  } catch (...) {
    return WM_UNKNOWN;
  }
}

void Collective::Call(const void* send, void* receive, std::size_t bytes) {
  const nb::object gathered = all_gather_(nb::bytes(send, bytes));
  auto* const out = static_cast<std::uint8_t*>(receive);
  const auto ranks = static_cast<std::size_t>(collective_.ranks);
  const auto copy = [&](nb::handle part, std::uint8_t* to, std::size_t wanted) {
    const Bytes got = ReadableBytes(part, "all_gather");
    if (got.size != wanted) {
      Raise(WM_INVALID_ARGUMENT, "all_gather: must return " + std::to_string(wanted) +
                                     " bytes, got " + std::to_string(got.size));
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
    Raise(WM_INVALID_ARGUMENT, "all_gather: must return the bytes of " + std::to_string(ranks) +
                                   " ranks, got " + std::to_string(nb::len(parts)));
  }
  for (std::size_t rank = 0; rank < ranks; ++rank)
    copy(parts[rank], out + rank * bytes, bytes);
}

wm_status Collective::Raised(nb::python_error& error) {
  wm_status status = WM_UNKNOWN;
  if (error.matches(PyExc_TimeoutError)) {
    status = WM_DEADLINE_EXCEEDED;
  } else if (error.matches(PyExc_OSError)) {
    status = WM_UNAVAILABLE;
  }
  if (log_ == nullptr) {
    raised_ = nb::borrow(error.value());
    return status;
  }
  try {
    const std::string text =
        std::string("row_gather.all_gather: ") + nb::cast<std::string>(nb::repr(error.value()));
    if (text != logged_) LogLines::Log(log_.get(), 1, text.c_str(), text.size());
    logged_ = text;
  } catch (...) {
    PyErr_Clear();
  }
  return status;
}

}  // namespace waymark_python
