// Placeholder for the C interface: a table without functions, enough to build, package and load
// libwaymark.so.
#include <cstddef>

#include "plugin/waymark.h"

const wm_api_v1* wm_get_api_v1(void) {
  static constexpr wm_api_v1 kApi{.struct_size = offsetof(wm_api_v1, version),
                                  .abi_major = WM_ABI_MAJOR,
                                  .abi_minor = WM_ABI_MINOR};
  return &kApi;
}
