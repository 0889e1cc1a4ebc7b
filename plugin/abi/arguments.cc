#include "plugin/abi/arguments.h"

#include "absl/strings/str_cat.h"

namespace waymark::abi {

void WriteText(std::string_view text, wm_message* to) {
  if (to == nullptr) return;
  to->size = text.size();
  if (to->capacity == 0) return;
  const std::size_t size = std::min(text.size(), to->capacity - 1);
  if (size > 0) std::memcpy(to->text, text.data(), size);
  to->text[size] = '\0';
}

template <class... T>
Arguments& Arguments::Fail(const char* name, const char* rule, const T&... more) noexcept {
  try {
    status_ = absl::InvalidArgumentError(absl::StrCat(name, ": ", rule, more...));
  } catch (...) {
    status_ = absl::Status(absl::StatusCode::kResourceExhausted, "");
  }
  return *this;
}

Arguments& Arguments::Size(const char* name, const void* given, std::uint32_t least,
                           std::uint32_t size) {
  if (given == nullptr) return Fail(name, "must not be null");
  return Fail(name, "struct_size must be in [", least, ", ", kMostStructBytes, "]; it is ", size);
}

Arguments& Arguments::Pointer(const void* pointer, const char* name) {
  return That(pointer != nullptr, name, "must not be null");
}

Arguments& Arguments::Array(const void* pointer, std::uint64_t count, const char* name) {
  if (!ok()) return *this;
  if (count > kMostElements) {
    return Fail(name, "must have at most 2147483647 elements; it has ", count);
  }
  if (pointer == nullptr && count > 0) {
    return Fail(name, "must not be null with elements; it has ", count);
  }
  return *this;
}

Arguments& Arguments::Flags(std::uint32_t flags, std::uint32_t known, const char* name) {
  if (!ok() || (flags & ~known) == 0) return *this;
  return Fail(name, "must have no bits but ", known, "; it has ", flags & ~known, " besides");
}

Arguments& Arguments::Zero(std::uint64_t value, const char* name) {
  if (!ok() || value == 0) return *this;
  return Fail(name, "must be 0; it is ", value);
}

Arguments& Arguments::InRange(std::int64_t value, std::int64_t least, std::int64_t most,
                              const char* name) {
  if (!ok() || (value >= least && value <= most)) return *this;
  return Fail(name, "must be in [", least, ", ", most, "]; it is ", value);
}

Arguments& Arguments::That(bool holds, const char* name, const char* rule) {
  if (ok() && !holds) Fail(name, rule);
  return *this;
}

}  // namespace waymark::abi
