// waymark_demo: the demo as a program of its own, which builds what the demo runs and nothing else.
#include <string>

#include "adapters/cli/console.h"
#include "adapters/cli/demo.h"

int main(int argc, char**) {
  using namespace waymark::cli;
  if (argc > 1) return Fail("demo", "waymark_demo takes no options; `waymark demo` does");
  const DemoOptions options;
  const absl::StatusOr<DemoResult> result = RunDemo(options);
  if (!result.ok()) return Fail("demo", std::string(result.status().message()));
  PrintDemo(options, *result);
  return result->proved() ? kExitOk : kExitFoundWrong;
}
