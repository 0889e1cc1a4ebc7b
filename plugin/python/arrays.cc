// Arguments that are arrays of the caller.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "blockstore/step_path.h"
#include "plugin/python/arrays.h"

namespace waymark_python {
namespace {

// Conversions of an attribute's value: nanobind converts an accessor only to str and tuple.
std::string StringOf(const nb::object& object) {
  return nb::cast<std::string>(nb::str(object));
}
nb::tuple TupleOf(const nb::object& object) {
  return nb::tuple(object);
}

constexpr int kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13;

[[noreturn]] void TypeError(const char* name, const std::string& rule, nb::handle object) {
  RaiseType(std::string(name) + " " + rule + ", got " + StringOf(object.type().attr("__name__")));
}

// numpy.ndarray itself, the common case, recognised without looking for attributes.
PyTypeObject* NumpyArray() {
  static PyObject* const type =
      nb::object(nb::module_::import_("numpy").attr("ndarray")).release().ptr();
  return reinterpret_cast<PyTypeObject*>(type);
}
bool IsNumpy(nb::handle object) {
  return Py_TYPE(object.ptr()) == NumpyArray();
}
// What lies under the mask of a masked array is no value, and nothing here would see the mask.
bool IsMasked(nb::handle object) {
  return PyObject_TypeCheck(object.ptr(), NumpyArray()) != 0 && nb::hasattr(object, "harden_mask");
}

void SetType(Array& array, nb::dlpack::dtype type) {
  using Code = nb::dlpack::dtype_code;
  array.kind = type.lanes != 1                                ? 'V'
               : type.code == static_cast<int>(Code::Int)     ? 'i'
               : type.code == static_cast<int>(Code::UInt)    ? 'u'
               : type.code == static_cast<int>(Code::Bool)    ? 'b'
               : type.code == static_cast<int>(Code::Complex) ? 'c'
               : type.code == static_cast<int>(Code::Float)   ? 'f'
               : type.code == static_cast<int>(Code::Bfloat)  ? 'B'
                                                              : 'V';
  array.item_bytes = type.bits / 8;
}

void SetDims(Array& array, std::size_t dims, const char* name) {
  if (dims > Array::kMaxDims) {
    RaiseInvalid(std::string(name) + ": at most 4 dimensions, got " + std::to_string(dims));
  }
  array.dims = static_cast<int>(dims);
}

void FromNdarray(Array& array, const char* name) {
  const nb::ndarray<nb::ro>& lent = array.lent;
  SetDims(array, lent.ndim(), name);
  SetType(array, lent.dtype());
  array.data = lent.data();
  for (int i = 0; i < array.dims; ++i) {
    const auto axis = static_cast<std::size_t>(i);
    array.shape[i] = static_cast<std::int64_t>(lent.shape(axis));
    array.strides[i] = lent.stride(axis) * array.item_bytes;
  }
  const int device = lent.device_type();
  array.on_host = device == kCpu || device == kCudaHost || device == kCudaManaged || device == 0;
  array.on_device = device == kCuda || device == kCudaManaged || device == kCudaHost;
  array.device = lent.device_id();
  if (!array.on_host && !array.on_device) {
    RaiseInvalid(std::string(name) + ": memory of the host or of a CUDA device, got" +
                 " DLPack device type " + std::to_string(device));
  }
}

// The kind of a buffer's items by the character of its format; 0: another format.
char KindOf(const char* format) {
  if (format == nullptr) return 0;
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  if (format[0] == '\0' || format[1] != '\0') return 0;
  if (std::strchr("bhilq", *format) != nullptr) return 'i';
  if (std::strchr("BHILQ", *format) != nullptr) return 'u';
  if (std::strchr("efd", *format) != nullptr) return 'f';
  return *format == '?' ? 'b' : 0;
}

// A numpy array, whose memory stays where it is while the array exists.
void FromBuffer(Array& array, nb::handle object, const char* name) {
  Py_buffer view = {};
  if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_STRIDED_RO | PyBUF_FORMAT) != 0) {
    PyErr_Clear();
  } else {
    array.kind = KindOf(view.format);
    array.data = view.buf;
    array.item_bytes = static_cast<int>(view.itemsize);
    array.dims = view.ndim;
    std::copy_n(view.shape, std::min(view.ndim, Array::kMaxDims), array.shape);
    std::copy_n(view.strides, std::min(view.ndim, Array::kMaxDims), array.strides);
    array.owner = nb::borrow(object);
    PyBuffer_Release(&view);
    SetDims(array, static_cast<std::size_t>(array.dims), name);
    if (array.kind != 0) return;
  }
  RaiseType(std::string(name) + " must be an array of integers in native byte order, got " +
            StringOf(object.attr("dtype")));
}

// A tensor with an address, used without importing its framework: no synchronisation, so
// that it works inside a graph capture.
void FromTensor(Array& array, nb::handle object, const char* name) {
  array.owner = nb::borrow(object);
  array.data = reinterpret_cast<const void*>(nb::cast<std::uintptr_t>(object.attr("data_ptr")()));
  const nb::tuple shape = TupleOf(object.attr("shape"));
  const nb::tuple strides = TupleOf(object.attr("stride")());
  SetDims(array, shape.size(), name);
  std::string type = StringOf(object.attr("dtype"));
  if (const std::size_t dot = type.rfind('.'); dot != std::string::npos) type.erase(0, dot + 1);
  array.kind = type.rfind("int", 0) == 0     ? 'i'
               : type.rfind("uint", 0) == 0  ? 'u'
               : type == "bool"              ? 'b'
               : type.rfind("float", 0) == 0 ? 'f'
               : type == "bfloat16"          ? 'B'
                                             : 'V';
  array.item_bytes = nb::cast<int>(object.attr("element_size")());
  for (int i = 0; i < array.dims; ++i) {
    array.shape[i] = nb::cast<std::int64_t>(shape[i]);
    array.strides[i] = nb::cast<std::int64_t>(strides[i]) * array.item_bytes;
  }
  const nb::object device = object.attr("device");
  const std::string where = StringOf(device.attr("type"));
  array.on_host = where == "cpu";
  array.on_device = where == "cuda";
  if (!array.on_host && !array.on_device) {
    RaiseInvalid(std::string(name) + ": memory of the host or of a CUDA device, got device " +
                 where);
  }
  const nb::object index = device.attr("index");
  array.device = index.is_none() ? 0 : nb::cast<int>(index);
}

// A capsule asked for without synchronisation: ids are read in stream order.
nb::object CapsuleOf(nb::handle object) {
  const nb::object dlpack = object.attr("__dlpack__");
  const nb::object stream = nb::int_(-1);
  try {
    return dlpack(nb::arg("stream") = stream, nb::arg("max_version") = nb::make_tuple(1, 0));
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
  }
  return dlpack(nb::arg("stream") = stream);
}

template <typename T>
T Fit(std::int64_t value, const char* name) {
  if constexpr (sizeof(T) < sizeof(std::int64_t)) {
    if (value < INT32_MIN || value > INT32_MAX) {
      Raise(absl::OutOfRangeError(std::string(name) + ": does not fit int32, got " +
                                  std::to_string(value)));
    }
  }
  return static_cast<T>(value);
}

// The int of an object that has one, bools excepted; null: none.
nb::object IndexOf(nb::handle object) {
  nb::object index;
  if (!PyBool_Check(object.ptr())) index = nb::steal(PyNumber_Index(object.ptr()));
  if (!index.is_valid()) PyErr_Clear();
  return index;
}

// "step: an integer in [0, 9], got 10".
template <typename T>
std::string WrongInteger(nb::handle object, const char* name, T least, T most) {
  constexpr std::size_t kMostText = 80;
  auto given = nb::cast<std::string>(nb::repr(object));
  if (given.size() > kMostText) given = given.substr(0, kMostText) + "...";
  return std::string(name) + ": an integer in [" + std::to_string(least) + ", " +
         std::to_string(most) + "], got " + given;
}

template <typename T, typename Convert>
T InRange(nb::handle object, const char* name, T least, T most, Convert convert) {
  const nb::object index = IndexOf(object);
  if (!index.is_valid()) RaiseType(WrongInteger(object, name, least, most));
  const auto value = static_cast<T>(convert(index.ptr()));
  const bool fits = PyErr_Occurred() == nullptr;
  PyErr_Clear();
  if (!fits || value < least || value > most) {
    RaiseInvalid(WrongInteger(index, name, least, most));
  }
  return value;
}

template <typename T>
T One(nb::handle item, const char* name) {
  const nb::object index = IndexOf(item);
  if (!index.is_valid()) TypeError(name, "must hold integers", item);
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0) {
    Raise(
        absl::OutOfRangeError(std::string(name) + ": does not fit int64, got " + StringOf(index)));
  }
  return Fit<T>(value, name);
}

// Whether `list` holds nothing but plain integers that fit T, then in `to`: the block ids of long
// requests come so. Runs no Python, so that the list stays as it is.
template <typename T>
bool PlainIntegers(PyObject* list, std::vector<T>& to) {
  const Py_ssize_t size = PyList_Size(list);
  to.resize(static_cast<std::size_t>(size));
  for (Py_ssize_t i = 0; i < size; ++i) {
    PyObject* const item = PyList_GetItem(list, i);
    if (!PyLong_CheckExact(item)) return false;
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(item, &overflow);
    to[static_cast<std::size_t>(i)] = static_cast<T>(value);
    if (overflow != 0 || to[static_cast<std::size_t>(i)] != value) return false;
  }
  return true;
}

std::int64_t Load(const std::uint8_t* at, char kind, int bytes, const char* name) {
  switch (bytes * (kind == 'u' ? -1 : 1)) {
#define WAYMARK_LOAD(key, type)             \
  case key: {                               \
    type value;                             \
    std::memcpy(&value, at, sizeof(value)); \
    return value;                           \
  }
    WAYMARK_LOAD(1, std::int8_t)
    WAYMARK_LOAD(2, std::int16_t)
    WAYMARK_LOAD(4, std::int32_t)
    WAYMARK_LOAD(8, std::int64_t)
    WAYMARK_LOAD(-1, std::uint8_t)
    WAYMARK_LOAD(-2, std::uint16_t)
    WAYMARK_LOAD(-4, std::uint32_t)
#undef WAYMARK_LOAD
    default: {
      std::uint64_t value;
      std::memcpy(&value, at, sizeof(value));
      if (value > INT64_MAX) {
        Raise(absl::OutOfRangeError(std::string(name) + ": does not fit int64, got " +
                                    std::to_string(value)));
      }
      return static_cast<std::int64_t>(value);
    }
  }
}

}  // namespace

WAYMARK_STEP_PATH std::int64_t SignedOf(nb::handle object, const char* name, std::int64_t least,
                                        std::int64_t most) {
  if (PyLong_CheckExact(object.ptr())) {  // most are, and touch less
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
    if (overflow == 0 && value >= least && value <= most) return value;
  }
  return InRange(object, name, least, most, &PyLong_AsLongLong);
}
WAYMARK_STEP_PATH std::uint64_t UnsignedOf(nb::handle object, const char* name, std::uint64_t least,
                                           std::uint64_t most) {
  if (PyLong_CheckExact(object.ptr())) {
    int overflow = 0;
    const long long given = PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
    const auto value = static_cast<std::uint64_t>(given);
    if (overflow == 0 && given >= 0 && value >= least && value <= most) return value;
  }
  return InRange(object, name, least, most, &PyLong_AsUnsignedLongLong);
}

nb::handle NumpyType(const char* name) {
  return nb::object(nb::module_::import_("numpy").attr("dtype")(name)).release();
}

const NumpyTypes& NumpyTypes::Get() {
  static const NumpyTypes types;
  return types;
}

bool NumpyMemory::Take(nb::handle object, nb::handle dtype, int dims) {
  static PyObject* const name = PyUnicode_InternFromString("dtype");
  if (!IsNumpy(object)) return false;
  const nb::object own = nb::steal(PyObject_GetAttr(object.ptr(), name));
  if (!own.is_valid()) throw nb::python_error();
  if (own.ptr() != dtype.ptr()) return false;
  // Without strides a buffer is in C order, or refused.
  if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_ND) != 0) {
    PyErr_Clear();
    view_ = {};
    return false;
  }
  const auto align = static_cast<std::uintptr_t>(view_.itemsize < 8 ? view_.itemsize : 8);
  if (view_.ndim == dims && reinterpret_cast<std::uintptr_t>(view_.buf) % align == 0) return true;
  PyBuffer_Release(&view_);
  view_ = {};
  return false;
}

std::int64_t Nanoseconds(nb::handle timeout, const char* name) {
  if (timeout.is_none()) return -1;
  double seconds = 0;
  if (!nb::try_cast(timeout, seconds)) TypeError(name, "must be seconds or None", timeout);
  if (!(seconds >= 0)) {
    RaiseInvalid(std::string(name) + ": seconds >= 0, got " + std::to_string(seconds));
  }
  return seconds > 9e9 ? -1 : static_cast<std::int64_t>(std::ceil(seconds * 1e9));
}

void* StreamOf(nb::handle stream) {
  nb::object number = nb::borrow(stream);
  if (stream.is_none()) {
    number = nb::int_(0);
  } else if (nb::hasattr(stream, "cuda_stream")) {
    number = stream.attr("cuda_stream");
  } else if (nb::hasattr(stream, "__cuda_stream__")) {
    number = nb::object(stream.attr("__cuda_stream__")())[1];
  }
  std::uintptr_t handle = 0;
  if (!nb::try_cast(number, handle)) {
    RaiseType(
        "stream must be a cudaStream_t as an int, None, or an object with cuda_stream or "
        "__cuda_stream__()");
  }
  return reinterpret_cast<void*>(handle);
}

void RaiseDeadline(const char* what, nb::handle timeout, const std::string& why) {
  Raise(absl::DeadlineExceededError(std::string(what) + " after " +
                                    nb::cast<std::string>(nb::str(timeout)) + " s" + why));
}

bool Array::contiguous() const {
  // Without elements it is, whatever its strides.
  if (std::find(shape, shape + dims, 0) != shape + dims) return true;
  std::int64_t stride = item_bytes;
  for (int i = dims - 1; i >= 0; --i) {
    if (shape[i] != 1 && strides[i] != stride) return false;
    stride *= shape[i];
  }
  return true;
}

Array ArrayOf(nb::handle object, const char* name) {
  Array array;
  if (IsNumpy(object)) {
    FromBuffer(array, object, name);
    return array;
  }
  if (IsMasked(object)) {
    RaiseInvalid(std::string(name) + ": no masked array, whose mask would be ignored");
  }
  if (nb::hasattr(object, "data_ptr") && nb::hasattr(object, "stride")) {
    FromTensor(array, object, name);
    return array;
  }
  nb::object source = nb::borrow(object);
  if (nb::hasattr(object, "__dlpack_device__")) {
    const nb::tuple device = TupleOf(object.attr("__dlpack_device__")());
    if (nb::cast<int>(device[0]) == kCuda) source = CapsuleOf(object);
  }
  if (!nb::try_cast(source, array.lent, false)) {
    TypeError(name, "must be an array (buffer protocol, DLPack, or a tensor with data_ptr())",
              object);
  }
  array.owner = nb::borrow(object);
  FromNdarray(array, name);
  return array;
}

template <typename T>
Integers<T>::Integers(nb::handle object, const char* name) {
  const NumpyTypes& types = NumpyTypes::Get();
  if (memory_.Take(object, sizeof(T) == 4 ? types.int32 : types.int64, 1)) {
    data_ = static_cast<const T*>(memory_.data());
    size_ = memory_.shape(0);
    return;
  }
  PyObject* const o = object.ptr();
  const bool numpy = IsNumpy(object);
  if (PyBytes_Check(o) || PyUnicode_Check(o)) TypeError(name, "must be integers", object);
  // torch's tensors have __index__ and are no sequences, whatever their shape.
  const bool tensor = !numpy && !PyLong_Check(o) && nb::hasattr(object, "data_ptr");
  if (!numpy && !tensor && PyIndex_Check(o) && !PySequence_Check(o)) {  // one, a numpy scalar too
    converted_.push_back(One<T>(object, name));
  } else if (PyList_CheckExact(o) && PlainIntegers(o, converted_)) {
  } else if (!numpy && !tensor &&
             (PyList_Check(o) || PyTuple_Check(o) || !nb::ndarray_check(object))) {
    // A tuple, since an item's __index__ may change a list.
    const nb::object items = nb::steal(PySequence_Tuple(o));
    if (!items.is_valid()) {
      PyErr_Clear();
      TypeError(name, "must be integers: an array, a list, or one", object);
    }
    const Py_ssize_t size = PyTuple_Size(items.ptr());
    converted_.clear();
    converted_.reserve(static_cast<std::size_t>(size));
    for (Py_ssize_t i = 0; i < size; ++i) {
      converted_.push_back(One<T>(PyTuple_GetItem(items.ptr(), i), name));
    }
  } else {
    array_ = ArrayOf(object, name);
    if (!array_.on_host) RaiseInvalid(std::string(name) + ": device memory");
    if (array_.kind != 'i' && array_.kind != 'u') {
      // An empty list that numpy made an array of floats is still empty.
      if (array_.dims == 1 && array_.shape[0] == 0) return;
      TypeError(name, "must hold integers", object);
    }
    if (array_.dims == 0 && PyIndex_Check(o)) {
      converted_.push_back(One<T>(object, name));
      data_ = converted_.data();
      size_ = 1;
      return;
    }
    if (array_.dims != 1) {
      RaiseInvalid(std::string(name) + ": one dimension, got " + std::to_string(array_.dims));
    }
    size_ = static_cast<std::size_t>(array_.shape[0]);
    if (array_.kind == 'i' && array_.item_bytes == sizeof(T) && array_.contiguous() &&
        reinterpret_cast<std::uintptr_t>(array_.data) % sizeof(T) == 0) {
      data_ = static_cast<const T*>(array_.data);
      return;
    }
    converted_.reserve(size_);
    const auto* at = static_cast<const std::uint8_t*>(array_.data);
    for (std::size_t i = 0; i < size_; ++i, at += array_.strides[0]) {
      converted_.push_back(Fit<T>(Load(at, array_.kind, array_.item_bytes, name), name));
    }
  }
  data_ = converted_.data();
  size_ = converted_.size();
}
template class Integers<std::int32_t>;
template class Integers<std::int64_t>;

Bytes WritableBytes(nb::handle object, const char* name) {
  Bytes bytes;
  if (!nb::try_cast(object, bytes.writable, false)) {
    TypeError(name, "must be a writable array in host memory", object);
  }
  const nb::ndarray<>& array = bytes.writable;
  std::int64_t stride = 1;
  bool contiguous = array.device_type() == kCpu;
  for (std::size_t i = array.ndim(); i-- > 0;) {
    contiguous = contiguous && (array.shape(i) <= 1 || array.stride(i) == stride);
    stride *= static_cast<std::int64_t>(array.shape(i));
  }
  if (!contiguous && stride != 0) {
    RaiseInvalid(std::string(name) + ": C order, in host memory");
  }
  bytes.data = static_cast<std::uint8_t*>(array.data());
  bytes.size = array.nbytes();
  return bytes;
}

Bytes ReadableBytes(nb::handle object, const char* name) {
  Bytes bytes;
  if (PyBytes_Check(object.ptr())) {
    bytes.array.owner = nb::borrow(object);
    bytes.data = reinterpret_cast<std::uint8_t*>(PyBytes_AsString(object.ptr()));
    bytes.size = static_cast<std::uint64_t>(PyBytes_Size(object.ptr()));
    return bytes;
  }
  bytes.array = ArrayOf(object, name);
  if (!bytes.array.on_host || !bytes.array.contiguous()) {
    RaiseInvalid(std::string(name) + ": C order, in host memory");
  }
  bytes.data = static_cast<std::uint8_t*>(const_cast<void*>(bytes.array.data));
  bytes.size = static_cast<std::uint64_t>(bytes.array.item_bytes);
  for (int i = 0; i < bytes.array.dims; ++i) {
    bytes.size *= static_cast<std::uint64_t>(bytes.array.shape[i]);
  }
  return bytes;
}

WAYMARK_STEP_PATH waymark::IdType ItemType(const Array& array, const char* name) {
  using waymark::IdType;
  switch (array.item_bytes * (array.kind == 'u' ? -1 : array.kind == 'i' ? 1 : 0)) {
    case -1:
      return IdType::kUint8;
    case -2:
      return IdType::kUint16;
    case 2:
      return IdType::kInt16;
    case 4:
      return IdType::kInt32;
    case 8:
      return IdType::kInt64;
    default:
      RaiseType(std::string(name) + " must be uint8, uint16, int16, int32 or int64, got kind '" +
                array.kind + "' of " + std::to_string(array.item_bytes) + " bytes");
  }
}

}  // namespace waymark_python
