// CallbackSource: a page source that is a Python object.
//
// Its methods are called with the GIL, on the publisher's thread and on the threads that fetch.
// What they raise becomes the status and the text of the call; the first exception of an object is
// also passed to sys.unraisablehook. Once the interpreter exits (atexit) no method is called.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "plugin/python/reading.h"

namespace waymark_python {
namespace {

using nb::literals::operator""_a;
using waymark::Digest128;
namespace wire = waymark::wire;

nb::bytes ToBytes(const Digest128& digest) {
  return nb::bytes(&digest, sizeof(digest));
}
nb::list ToList(std::span<const Digest128> digests) {
  nb::list list;
  for (const Digest128& digest : digests)
    list.append(ToBytes(digest));
  return list;
}
nb::float_ SecondsUntil(wire::Deadline deadline) {
  return nb::float_(
      std::chrono::duration<double>(deadline - std::chrono::steady_clock::now()).count());
}

// The items that a method returned, of which there must be `count`.
nb::object Items(const nb::object& returned, const char* method, std::size_t count) {
  nb::object items = nb::steal(PySequence_Tuple(returned.ptr()));
  if (!items.is_valid()) throw nb::python_error();
  if (nb::len(items) != count) {
    RaiseInvalid(std::string(method) + ": must return " + std::to_string(count) + " items, got " +
                 std::to_string(nb::len(items)));
  }
  return items;
}

// Copies what a method returned.
void TakeItems(const nb::object& items, const char* method,
               std::span<const wire::ObjectRange> ranges, std::span<wire::Object> objects) {
  for (std::size_t i = 0; i < objects.size(); ++i) {
    const nb::object item = items[i];
    if (item.is_none()) continue;
    const Bytes bytes = ReadableBytes(item, method);
    if (!ranges.empty() && bytes.size != ranges[i].end - ranges[i].begin) {
      RaiseInvalid(std::string(method) + ": item " + std::to_string(i) + " must have " +
                   std::to_string(ranges[i].end - ranges[i].begin) + " bytes, got " +
                   std::to_string(bytes.size));
    }
    objects[i] = wire::Object::Of({bytes.data, bytes.data + bytes.size});
  }
}

class CallbackSource final : public wire::PageSource {
 public:
  explicit CallbackSource(nb::object given)
      : object_(given.inc_ref()),
        has_ranges_(!nb::getattr(given, "get_ranges", nb::none()).is_none()),
        has_holds_(!nb::getattr(given, "holds", nb::none()).is_none()) {}
  ~CallbackSource() override {
    const Callback python;
    if (python) object_.dec_ref();  // else the interpreter exits: the object stays
  }

  [[nodiscard]] absl::Status Get(std::span<const Digest128> digests, wire::Deadline deadline,
                                 std::span<wire::Object> objects) override {
    std::fill(objects.begin(), objects.end(), wire::Object{});
    if (digests.empty()) return absl::OkStatus();
    return Run(deadline, [&](nb::float_ timeout) {
      TakeItems(Items(object_.attr("get")(ToList(digests), timeout), "get", digests.size()), "get",
                {}, objects);
    });
  }

  [[nodiscard]] absl::Status GetRanges(std::span<const wire::ObjectRange> ranges,
                                       wire::Deadline deadline,
                                       std::span<wire::Object> objects) override {
    std::fill(objects.begin(), objects.end(), wire::Object{});
    if (ranges.empty()) return absl::OkStatus();
    if (!has_ranges_) return absl::UnimplementedError("the source has no ranges");
    return Run(deadline, [&](nb::float_ timeout) {
      nb::list list;
      for (const wire::ObjectRange& range : ranges)
        list.append(nb::make_tuple(ToBytes(range.digest), range.begin, range.end));
      TakeItems(Items(object_.attr("get_ranges")(list, timeout), "get_ranges", ranges.size()),
                "get_ranges", ranges, objects);
    });
  }

  [[nodiscard]] absl::Status Put(std::span<const wire::NamedObject> objects,
                                 wire::Deadline deadline) override {
    if (objects.empty()) return absl::OkStatus();
    return Run(deadline, [&](nb::float_ timeout) {
      nb::list list;
      for (const wire::NamedObject& named : objects)
        list.append(nb::make_tuple(ToBytes(named.digest), BytesOf(named.object.bytes)));
      object_.attr("put")(list, timeout);
    });
  }

  [[nodiscard]] absl::Status Holds(std::span<const Digest128> digests, wire::Deadline deadline,
                                   std::span<std::uint8_t> held) override {
    std::fill(held.begin(), held.end(), std::uint8_t{0});
    if (!has_holds_ || digests.empty()) return absl::OkStatus();
    return Run(deadline, [&](nb::float_ timeout) {
      const nb::object items =
          Items(object_.attr("holds")(ToList(digests), timeout), "holds", digests.size());
      for (std::size_t i = 0; i < digests.size(); ++i) {
        const int is_true = PyObject_IsTrue(nb::object(items[i]).ptr());
        if (is_true < 0) throw nb::python_error();
        held[i] = static_cast<std::uint8_t>(is_true);
      }
    });
  }

 private:
  // Runs a callback: `body(seconds)` with the GIL.
  template <typename Body>
  absl::Status Run(wire::Deadline deadline, Body body) noexcept {
    if (deadline <= std::chrono::steady_clock::now()) {
      return absl::DeadlineExceededError("no time was left for the source");
    }
    const Callback python;
    if (!python) return absl::CancelledError("the Python interpreter exits");
    try {
      body(SecondsUntil(deadline));
    } catch (nb::python_error& error) {
      return Failed(error);
    } catch (const std::exception& error) {
      return absl::InternalError(error.what());
    } catch (...) {
      return absl::InternalError("a method of the source failed");
    }
    return absl::OkStatus();
  }

  // What an exception becomes. Needs the GIL; consumes `error`.
  absl::Status Failed(nb::python_error& error) {
    absl::Status status = absl::UnknownError("the source raised an exception without a text");
    try {
      const nb::object named =
          nb::module_::import_("waymark._errors").attr("status_and_text_of")(error.value());
      status = absl::Status(static_cast<absl::StatusCode>(nb::cast<int>(named[0])),
                            nb::cast<std::string>(named[1]));
    } catch (...) {
    }
    if (!reported_.exchange(true)) error.discard_as_unraisable(object_);
    return status;
  }

  const nb::handle object_;  // a reference, which is released with the GIL
  const bool has_ranges_;
  const bool has_holds_;
  std::atomic<bool> reported_{false};
};

struct PythonSource : Source {};

}  // namespace

void Callback::End() {
  ended_ = true;
  if (getpid() != process_) return;  // after a fork: the threads of the parent are not here
  (void)WaitInSlices(-1, [](std::chrono::nanoseconds) {
    for (int i = 0; i < 100 && inside_ != 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return inside_ == 0 ? absl::OkStatus() : absl::DeadlineExceededError("in Python");
  });
}

void BindCallbackSource(nb::module_& module) {
  nb::class_<PythonSource, Source>(module, "CallbackSource")
      .def(
          "__init__",
          [](PythonSource* self, nb::object source) {
            new (self) PythonSource{{std::make_shared<CallbackSource>(std::move(source)), true}};
          },
          "source"_a);
  nb::module_::import_("atexit").attr("register")(nb::cpp_function(&Callback::End));
}

}  // namespace waymark_python
