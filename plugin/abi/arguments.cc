#include "plugin/abi/arguments.h"

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

Arguments& Arguments::Fail(const char* name, const std::string& rule) {
  status_ = absl::InvalidArgumentError(std::string(name) + ": " + rule);
  return *this;
}

Arguments& Arguments::Fail(const char* name, const std::string& rule, std::int64_t value) {
  return Fail(name, rule + "; it is " + std::to_string(value));
}

Arguments& Arguments::Pointer(const void* pointer, const char* name) {
  return That(pointer != nullptr, name, "must not be null");
}

Arguments& Arguments::Array(const void* pointer, std::uint64_t count, const char* name) {
  if (!ok()) return *this;
  if (count > kMostElements) {
    return Fail(name, "must have at most 2147483647 elements; it has " + std::to_string(count));
  }
  if (pointer == nullptr && count > 0) {
    return Fail(name, "must not be null with elements; it has " + std::to_string(count));
  }
  return *this;
}

Arguments& Arguments::Flags(std::uint32_t flags, std::uint32_t known, const char* name) {
  if (!ok() || (flags & ~known) == 0) return *this;
  return Fail(name, "must have no bits but " + std::to_string(known) + "; it has " +
                        std::to_string(flags & ~known) + " besides");
}

Arguments& Arguments::Zero(std::uint64_t value, const char* name) {
  if (!ok() || value == 0) return *this;
  return Fail(name, "must be 0; it is " + std::to_string(value));
}

Arguments& Arguments::InRange(std::int64_t value, std::int64_t least, std::int64_t most,
                              const char* name) {
  if (!ok() || (value >= least && value <= most)) return *this;
  return Fail(name, "must be in [" + std::to_string(least) + ", " + std::to_string(most) + "]",
              value);
}

Arguments& Arguments::Chain(const wm_ext* chain, const char* name, wm_ext_log* log) {
  if (!ok()) return *this;
  const ChainFault fault = WalkChain(chain, log);
  if (fault.code == WM_OK) return *this;
  status_ = absl::Status(
      static_cast<absl::StatusCode>(fault.code),
      std::string(name) + ": " + fault.rule + "; the value is " + std::to_string(fault.value));
  return *this;
}

Arguments& Arguments::That(bool holds, const char* name, const char* rule) {
  if (ok() && !holds) Fail(name, rule);
  return *this;
}

}  // namespace waymark::abi
