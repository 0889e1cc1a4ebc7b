// PlainOr: what a test does in full in a plain build and in part under a sanitizer.
#ifndef WAYMARK_TESTS_SUPPORT_SANITIZERS_H_
#define WAYMARK_TESTS_SUPPORT_SANITIZERS_H_

namespace waymark {

// `plain` in a plain build, `sanitized` under AddressSanitizer or ThreadSanitizer, where code runs
// five to fifty times as long to be watched, not to be compared again. For rounds, sizes and
// strides; every kind of case is run in both.
template <typename T>
constexpr T PlainOr([[maybe_unused]] T plain, [[maybe_unused]] T sanitized) {
#if defined(WAYMARK_SANITIZER_address) || defined(WAYMARK_SANITIZER_thread)
  return sanitized;
#else
  return plain;
#endif
}

}  // namespace waymark

#endif  // WAYMARK_TESTS_SUPPORT_SANITIZERS_H_
