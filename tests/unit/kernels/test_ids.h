// Ids in the memory of a tensor, and wrong ones.
#ifndef WAYMARK_TESTS_UNIT_KERNELS_TEST_IDS_H_
#define WAYMARK_TESTS_UNIT_KERNELS_TEST_IDS_H_

#include <cstdint>
#include <cstring>
#include <iterator>
#include <random>

#include "kernels/pack_rows.h"

namespace waymark::kernels {

inline void StoreId(std::uint8_t* address, IdKind kind, std::int64_t id) {
  std::memcpy(address, &id, IdKindBytes(kind));  // little-endian
}

// One that the kind can hold: what is drawn at random must mean the same to the test and to the
// kernel.
inline std::int64_t FaultyId(IdKind kind, std::int32_t num_experts, std::mt19937_64& random) {
  const std::int64_t e = num_experts;
  const std::int64_t wide = std::int64_t{1} << 32;
  const std::int64_t choices[] = {-1, -1,        -2,        -256,      -1000,     -65536,
                                  e,  e + 1,     e + 255,   e + 65535, e + 65536, 65535,
                                  -e, INT32_MIN, INT64_MIN, wide - 1,  wide,      wide + 1};
  for (;;) {
    const std::int64_t id = choices[random() % std::size(choices)];
    switch (kind) {
      case IdKind::kUint8:
        if (id >= 0 && id <= 255) return id;
        if (e >= 256) return 0;  // there is no wrong id
        break;
      case IdKind::kUint16:
        if (id == -1 || (id >= 0 && id < 65535)) return id;
        break;
      case IdKind::kInt16:
        if (id >= -32768 && id <= 32767) return id;
        break;
      case IdKind::kInt32:
        if (id >= INT32_MIN && id <= INT32_MAX) return id;
        break;
      case IdKind::kInt64:
        return id;
    }
  }
}

}  // namespace waymark::kernels

#endif  // WAYMARK_TESTS_UNIT_KERNELS_TEST_IDS_H_
