/* Knows the library only by its package; checks the heads of its tables. */
#include <stdio.h>
#include <waymark.h>
#include <waymark_graph.h>
#include <waymark_wire.h>

int main(void) {
  const wm_api_v1* api = wm_get_api_v1();
  if (api == NULL || api->abi_major != WM_ABI_MAJOR) {
    fprintf(stderr, "wm_get_api_v1 returned no table of its major version\n");
    return 1;
  }
  if (api->wire == NULL || api->wire->struct_size < sizeof(wm_wire_api_v1)) {
    fprintf(stderr, "the table of waymark_wire.h is missing or too short\n");
    return 1;
  }
  if (api->graph == NULL || api->graph->struct_size < sizeof(wm_graph_api_v1)) {
    fprintf(stderr, "the table of waymark_graph.h is missing or too short\n");
    return 1;
  }
  return 0;
}
