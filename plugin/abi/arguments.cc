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

ChainFault WalkChain(const wm_ext* chain, wm_ext_log* log) {
  constexpr std::uint64_t kMostLinks = 16;
  std::uint64_t links = 0;
  bool has_log = false;
  for (const wm_ext* link = chain; link != nullptr; link = link->next) {
    if (++links > kMostLinks) return {WM_INVALID_ARGUMENT, "must have at most 16 links", links};
    if (link->struct_size < kLeastBytes<wm_ext> || link->struct_size > kMostStructBytes) {
      return {WM_INVALID_ARGUMENT, "struct_size of every link must be in [16, 65536]",
              link->struct_size};
    }
    if (log != nullptr && (link->type & ~WM_EXT_REQUIRED) == WM_EXT_LOG) {
      if (has_log) return {WM_INVALID_ARGUMENT, "must have a type once; twice is", link->type};
      if (link->struct_size < kLeastBytes<wm_ext_log>) {
        return {WM_INVALID_ARGUMENT, "struct_size of a wm_ext_log must be at least 32",
                link->struct_size};
      }
      std::memcpy(log, link, sizeof(*log));
      has_log = true;
    } else if ((link->type & WM_EXT_REQUIRED) != 0) {
      return {WM_UNIMPLEMENTED, "this library must know every required type, not",
              link->type & ~WM_EXT_REQUIRED};
    }
  }
  return {};
}

template <class... T>
Arguments& Arguments::Fail(const char* name, const char* rule, const T&... more) noexcept {
  try {
    status_ = absl::Status(code_, absl::StrCat(name, ": ", rule, more...));
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

Arguments& Arguments::Chain(const wm_ext* chain, const char* name, wm_ext_log* log) {
  if (!ok()) return *this;
  const ChainFault fault = WalkChain(chain, log);
  if (fault.code == WM_OK) return *this;
  code_ = static_cast<absl::StatusCode>(fault.code);
  return Fail(name, fault.rule, "; the value is ", fault.value);
}

Arguments& Arguments::That(bool holds, const char* name, const char* rule) {
  if (ok() && !holds) Fail(name, rule);
  return *this;
}

}  // namespace waymark::abi
