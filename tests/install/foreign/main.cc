// A user's program: every public header at once, and one call that needs the installed library.
#include "all_public_headers.h"

#include <cstdio>

int main() {
  waymark::RoutingShape shape;
  shape.num_layers = 4;
  shape.top_k = 8;
  shape.num_experts = 256;
  waymark::RoutingShape broken = shape;
  broken.num_layers = 0;
  if (!shape.Validate().ok() || broken.Validate().ok()) {
    std::fprintf(stderr, "RoutingShape::Validate gives the wrong answer\n");
    return 1;
  }
  std::printf("one row is %zu bytes\n", shape.row_bytes());
  return 0;
}
