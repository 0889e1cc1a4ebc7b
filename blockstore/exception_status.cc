#include "blockstore/exception_status.h"

#include <exception>
#include <new>
#include <stdexcept>

#include "absl/strings/str_cat.h"

namespace waymark {
namespace {

absl::Status StatusOf(const char* doing) {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat(doing, ": no memory"));
  } catch (const std::length_error&) {
    return absl::ResourceExhaustedError(absl::StrCat(doing, ": no memory for so long an array"));
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat(doing, ": an exception: ", error.what()));
  } catch (...) {
    return absl::InternalError(absl::StrCat(doing, ": an exception"));
  }
}

}  // namespace

absl::Status ExceptionStatus(const char* doing) noexcept {
  try {
    return StatusOf(doing);
  } catch (...) {
    return absl::ResourceExhaustedError("");  // without a text, a status needs no memory
  }
}

}  // namespace waymark
