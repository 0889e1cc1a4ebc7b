// CallbackSource: a page source that is a Python object.
//
// Its methods are called with the GIL, on the publisher's thread and on the threads that fetch.
// What they raise becomes the status and the text of the call; the first exception of an object is
// also passed to sys.unraisablehook. Once the interpreter exits (atexit) no method is called.
#include <unistd.h>

#include <atomic>
#include <memory>
#include <span>

#include "plugin/python/module.h"
#include "plugin/python/source.h"

namespace waymark_python {
namespace {

using nb::literals::operator""_a;

// Counts the callbacks that are in Python, and refuses others once the interpreter exits: a thread
// that takes the GIL after that never gets it, and joining that thread would never end.
class Gate {
 public:
  [[nodiscard]] static bool Enter() {
    ++inside_;
    if (!closed_) return true;
    --inside_;
    return false;
  }
  static void Leave() { --inside_; }
  [[nodiscard]] static bool closed() { return closed_; }
  // Waits, without the GIL, until no callback is in Python. For atexit.
  static void Close() {
    closed_ = true;
    if (getpid() != process_) return;  // after a fork: the threads of the parent are not here
    WaitInSlices(-1, [](std::int64_t) {
      for (int i = 0; i < 100 && inside_ != 0; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return wm_status{inside_ == 0 ? WM_OK : WM_DEADLINE_EXCEEDED};
    });
  }

 private:
  static std::atomic<int> inside_;
  static std::atomic<bool> closed_;
  static const pid_t process_;
};
std::atomic<int> Gate::inside_{0};
std::atomic<bool> Gate::closed_{false};
const pid_t Gate::process_ = getpid();

// The Python object of one source. Made and destroyed with the GIL.
struct Object {
  nb::object object;
  nb::object get, get_ranges, put, holds;  // its methods; None: it has none
  std::atomic<bool> reported{false};
};

// Copies `text` to where a callback reports why it failed.
void Write(const std::string& text, wm_message* why) {
  why->size = text.size();
  if (why->capacity == 0) return;
  why->text[text.copy(why->text, why->capacity - 1)] = '\0';
}

// What an exception becomes. Needs the GIL; consumes `error`.
wm_status Fail(Object& self, nb::python_error& error, wm_message* why) {
  wm_status status = WM_UNKNOWN;
  try {
    const nb::object named =
        nb::module_::import_("waymark._errors").attr("status_and_text_of")(error.value());
    status = nb::cast<wm_status>(named[0]);
    Write(nb::cast<std::string>(named[1]), why);
  } catch (...) {
    Write("the source raised an exception without a text", why);
  }
  if (!self.reported.exchange(true)) error.discard_as_unraisable(self.object);
  return status;
}

// Runs a callback: `body(Object&)` with the GIL.
template <typename Body>
wm_status Run(void* context, wm_message* why, Body body) noexcept {
  auto& self = *static_cast<Object*>(context);
  if (!Gate::Enter()) {
    Write("the Python interpreter exits", why);
    return WM_CANCELLED;
  }
  wm_status status = WM_OK;
  {
    const GilTaken gil;
    try {
      body(self);
    } catch (nb::python_error& error) {
      status = Fail(self, error, why);
    } catch (const std::exception& error) {
      Write(error.what(), why);
      status = WM_INTERNAL;
    } catch (...) {
      status = WM_INTERNAL;
    }
  }
  Gate::Leave();
  return status;
}

nb::bytes ToBytes(const wm_digest& digest) {
  return nb::bytes(digest.bytes, sizeof(digest.bytes));
}
nb::list ToList(std::span<const wm_digest> digests) {
  nb::list list;
  for (const wm_digest& digest : digests)
    list.append(ToBytes(digest));
  return list;
}
nb::float_ Seconds(std::int64_t ns) {
  return nb::float_(static_cast<double>(ns) * 1e-9);
}

// The items that a method returned, of which there must be `count`.
nb::object Items(const nb::object& returned, const char* method, std::size_t count) {
  nb::object items = nb::steal(PySequence_Tuple(returned.ptr()));
  if (!items.is_valid()) throw nb::python_error();
  if (nb::len(items) != count) {
    Raise(WM_INVALID_ARGUMENT, std::string(method) + ": must return " + std::to_string(count) +
                                   " items, got " + std::to_string(nb::len(items)));
  }
  return items;
}

void Reply(const nb::object& items, const char* method, std::size_t count, wm_reply* reply,
           const wm_object_range* ranges) {
  for (std::size_t i = 0; i < count; ++i) {
    const nb::object item = items[i];
    if (item.is_none()) continue;
    const Bytes bytes = ReadableBytes(item, method);
    const wm_status status = Api().wire->reply_object(reply, i, bytes.data, bytes.size);
    if (status == WM_OK) continue;
    std::string rule = std::string(method) + ": item " + std::to_string(i);
    if (ranges != nullptr) {
      rule += " must have " + std::to_string(ranges[i].end - ranges[i].begin) + " bytes, got " +
              std::to_string(bytes.size);
    }
    Raise(status, rule);
  }
}

wm_status Get(void* context, const wm_digest* digests, std::size_t count, std::int64_t timeout_ns,
              wm_reply* reply, wm_message* why) {
  return Run(context, why, [&](Object& self) {
    const nb::object got = self.get(ToList({digests, count}), Seconds(timeout_ns));
    Reply(Items(got, "get", count), "get", count, reply, nullptr);
  });
}

wm_status GetRanges(void* context, const wm_object_range* ranges, std::size_t count,
                    std::int64_t timeout_ns, wm_reply* reply, wm_message* why) {
  return Run(context, why, [&](Object& self) {
    nb::list list;
    for (const wm_object_range& range : std::span(ranges, count))
      list.append(nb::make_tuple(ToBytes(range.digest), range.begin, range.end));
    const nb::object got = self.get_ranges(list, Seconds(timeout_ns));
    Reply(Items(got, "get_ranges", count), "get_ranges", count, reply, ranges);
  });
}

wm_status Put(void* context, const wm_object* objects, std::size_t count, std::int64_t timeout_ns,
              wm_message* why) {
  return Run(context, why, [&](Object& self) {
    nb::list list;
    for (const wm_object& object : std::span(objects, count))
      list.append(nb::make_tuple(ToBytes(object.digest), nb::bytes(object.data, object.size)));
    self.put(list, Seconds(timeout_ns));
  });
}

wm_status Holds(void* context, const wm_digest* digests, std::size_t count, std::int64_t timeout_ns,
                std::uint8_t* held, wm_message* why) {
  return Run(context, why, [&](Object& self) {
    const nb::object got = self.holds(ToList({digests, count}), Seconds(timeout_ns));
    const nb::object items = Items(got, "holds", count);
    for (std::size_t i = 0; i < count; ++i) {
      const int is_true = PyObject_IsTrue(nb::object(items[i]).ptr());
      if (is_true < 0) throw nb::python_error();
      held[i] = static_cast<std::uint8_t>(is_true);
    }
  });
}

void Destroy(void* context) {
  auto* const object = static_cast<Object*>(context);
  if (!Gate::Enter()) return;  // the interpreter exits: the object stays
  {
    const GilTaken gil;
    delete object;
  }
  Gate::Leave();
}

struct CallbackSource : Source {};

void Make(CallbackSource* self, nb::object given) {
  auto object = std::make_unique<Object>();
  const auto method = [&](const char* name) { return nb::getattr(given, name, nb::none()); };
  object->get = method("get");
  object->get_ranges = method("get_ranges");
  object->put = method("put");
  object->holds = method("holds");
  object->object = std::move(given);
  wm_source_callbacks callbacks = {};
  callbacks.struct_size = sizeof(callbacks);
  callbacks.context = object.get();
  callbacks.get = &Get;
  if (!object->get_ranges.is_none()) callbacks.get_ranges = &GetRanges;
  if (!object->put.is_none()) callbacks.put = &Put;
  if (!object->holds.is_none()) callbacks.holds = &Holds;
  callbacks.destroy = &Destroy;
  wm_source* source = nullptr;
  Message why;
  Check(Api().wire->source_callbacks_create(&callbacks, &source, why.get()), why);
  (void)object.release();
  new (self) CallbackSource;
  self->source = source;
  self->waits = true;
}

}  // namespace

void BindCallbackSource(nb::module_& module) {
  nb::class_<CallbackSource, Source>(module, "CallbackSource").def("__init__", &Make, "source"_a);
  nb::module_::import_("atexit").attr("register")(nb::cpp_function(&Gate::Close));
}

}  // namespace waymark_python
