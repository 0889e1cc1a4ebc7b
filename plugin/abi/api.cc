// The C ABI's one symbol, and its three tables.
#include <cstdio>

#include "kernels/isa.h"
#include "plugin/abi/fill.h"
#include "plugin/waymark.h"
#include "plugin/waymark_graph.h"
#include "plugin/waymark_wire.h"

#ifndef WAYMARK_CUDA_VERSION
#define WAYMARK_CUDA_VERSION "none"
#endif
#ifndef WAYMARK_CUDA_ARCHS
#define WAYMARK_CUDA_ARCHS "none"
#endif
#if defined(__clang__)
#define WM_COMPILER "clang-" __clang_version__
#else
#define WM_COMPILER "gcc-" __VERSION__
#endif

namespace waymark::abi {
namespace {

const char* Version() noexcept {
  return WAYMARK_VERSION;
}

const char* BuildInfo() noexcept {
  struct Text {
    char text[512];
    Text() {
      int size = std::snprintf(
          text, sizeof(text),
          "version=%s abi=%d.%d compiler=%s cuda=%s archs=%s host=", WAYMARK_VERSION, WM_ABI_MAJOR,
          WM_ABI_MINOR, WM_COMPILER, WAYMARK_CUDA_VERSION, WAYMARK_CUDA_ARCHS);
      const char* before = "";
      for (const kernels::Isa isa : kernels::SupportedIsas()) {
        if (size < 0 || static_cast<std::size_t>(size) >= sizeof(text)) break;
        size += std::snprintf(text + size, sizeof(text) - static_cast<std::size_t>(size), "%s%s",
                              before, kernels::IsaName(isa));
        before = ",";
      }
    }
  };
  static const Text info;
  return info.text;
}

wm_wire_api_v1 MakeWireTable() {
  wm_wire_api_v1 wire = {};
  wire.struct_size = sizeof(wire);
  FillDocuments(wire);
  return wire;
}

wm_graph_api_v1 MakeGraphTable() {
  wm_graph_api_v1 graph = {};
  graph.struct_size = sizeof(graph);
  FillSession(graph);
  return graph;
}

wm_api_v1 MakeTable() {
  wm_api_v1 api = {};
  api.struct_size = sizeof(api);
  api.abi_major = WM_ABI_MAJOR;
  api.abi_minor = WM_ABI_MINOR;
  api.version = &Version;
  api.build_info = &BuildInfo;
  FillCapture(api);
  FillTaken(api);
  FillRows(api);
  FillCounters(api);
  FillNames(api);
  static const wm_wire_api_v1 wire = MakeWireTable();
  static const wm_graph_api_v1 graph = MakeGraphTable();
  api.wire = &wire;
  api.graph = &graph;
  return api;
}

}  // namespace
}  // namespace waymark::abi

extern "C" const wm_api_v1* wm_get_api_v1(void) {
  static const wm_api_v1 table = waymark::abi::MakeTable();
  return &table;
}
