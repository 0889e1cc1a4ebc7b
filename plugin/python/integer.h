// Integer arguments. What is not an integer, or out of range, raises an exception that names the
// argument, its range and the value; nanobind's own text names none of them. Needs the GIL.
#ifndef WAYMARK_PLUGIN_PYTHON_INTEGER_H_
#define WAYMARK_PLUGIN_PYTHON_INTEGER_H_

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace waymark_python {

// `object` as an integer in [least, most]: an int, or anything with __index__ (numpy's integers),
// but no bool. TypeError if it is none, InvalidArgumentError if it is out of range.
std::int64_t SignedOf(nanobind::handle object, const char* name, std::int64_t least,
                      std::int64_t most);
std::uint64_t UnsignedOf(nanobind::handle object, const char* name, std::uint64_t least,
                         std::uint64_t most);
// The same for any integer type; without bounds, those of the type.
template <typename T>
T IntegerOf(nanobind::handle object, const char* name, T least = std::numeric_limits<T>::min(),
            T most = std::numeric_limits<T>::max()) {
  if constexpr (std::is_signed_v<T>) {
    return static_cast<T>(SignedOf(object, name, least, most));
  } else {
    return static_cast<T>(UnsignedOf(object, name, least, most));
  }
}

// The name of an argument, as a template argument.
template <std::size_t N>
struct ArgumentName {
  consteval ArgumentName(const char (&name)[N]) { std::copy_n(name, N, text); }
  char text[N];
};

// A parameter of a bound function: any integer that fits T. `kName` is what an exception calls it.
// It takes part in no choice of overloads: overloads that differ in it must differ in their number
// of arguments.
template <typename T, ArgumentName kName>
struct Integer {
  T value;
  operator T() const { return value; }
};
template <ArgumentName kName>
using Int32 = Integer<std::int32_t, kName>;
template <ArgumentName kName>
using Int64 = Integer<std::int64_t, kName>;
template <ArgumentName kName>
using Uint32 = Integer<std::uint32_t, kName>;
template <ArgumentName kName>
using Uint64 = Integer<std::uint64_t, kName>;

}  // namespace waymark_python

template <typename T, waymark_python::ArgumentName kName>
struct nanobind::detail::type_caster<waymark_python::Integer<T, kName>> {
  using Value = waymark_python::Integer<T, kName>;
  static constexpr auto Name = const_name("int");
  template <typename>
  using Cast = Value;
  template <typename>
  static constexpr bool can_cast() {
    return true;
  }
  // Any object: a refusal here would become nanobind's text.
  bool from_python(handle object, std::uint8_t, cleanup_list*) noexcept {
    object_ = object;
    return true;
  }
  // Right before the call, where an exception is passed on.
  explicit operator Value() const { return {waymark_python::IntegerOf<T>(object_, kName.text)}; }

 private:
  handle object_;  // the caller's, who keeps it until the call is over
};

#endif  // WAYMARK_PLUGIN_PYTHON_INTEGER_H_
