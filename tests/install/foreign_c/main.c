/* Knows the library by its package alone, and of its table the head. */
#include <stdio.h>
#include <waymark.h>

int main(void) {
  const wm_api_v1* api = wm_get_api_v1();
  if (api == NULL || api->abi_major != WM_ABI_MAJOR) {
    fprintf(stderr, "wm_get_api_v1 gave no table of its major version\n");
    return 1;
  }
  return 0;
}
