// The routing kernels in the C ABI: on their own, and into a view of a capture session.
#include "kernels/routing.h"
#include "plugin/abi/fill.h"
#ifdef WAYMARK_HAS_CUDA
#include "kernels/routing_cuda.h"
#endif

namespace waymark::abi {
namespace {

using kernels::DType;
using kernels::RoutingArgument;
using kernels::RoutingMethod;
using kernels::RoutingRule;

static_assert(static_cast<int>(RoutingMethod::kDefault) == WM_ROUTING_DEFAULT &&
              static_cast<int>(RoutingMethod::kRenormalize) == WM_ROUTING_RENORMALIZE &&
              static_cast<int>(RoutingMethod::kRenormalizeNaive) == WM_ROUTING_RENORMALIZE_NAIVE &&
              static_cast<int>(RoutingMethod::kDeepSeekV3) == WM_ROUTING_DEEPSEEK_V3 &&
              static_cast<int>(RoutingMethod::kLlama4) == WM_ROUTING_LLAMA4 &&
              static_cast<int>(RoutingMethod::kTopK) == WM_ROUTING_TOP_K &&
              static_cast<int>(RoutingMethod::kSigmoidRenorm) == WM_ROUTING_SIGMOID_RENORM &&
              static_cast<int>(RoutingMethod::kMiniMax2) == WM_ROUTING_MINIMAX2 &&
              static_cast<int>(RoutingMethod::kSigmoid) == WM_ROUTING_SIGMOID &&
              static_cast<int>(RoutingMethod::kTopKSigmoid) == WM_ROUTING_TOP_K_SIGMOID &&
              kernels::kNumRoutingMethods == WM_ROUTING_TOP_K_SIGMOID + 1);
static_assert(static_cast<int>(DType::kFloat32) == WM_DTYPE_FLOAT32 &&
              static_cast<int>(DType::kBfloat16) == WM_DTYPE_BFLOAT16 &&
              static_cast<int>(DType::kFloat16) == WM_DTYPE_FLOAT16 &&
              static_cast<int>(DType::kUint8) == WM_DTYPE_UINT8 &&
              static_cast<int>(DType::kInt16) == WM_DTYPE_INT16 &&
              static_cast<int>(DType::kInt32) == WM_DTYPE_INT32 &&
              static_cast<int>(DType::kInt64) == WM_DTYPE_INT64);

// One of the numbers that are narrower inside than in the ABI; what does not fit must not wrap into
// something valid.
std::uint8_t Narrow(std::int32_t number) {
  return number < 0 || number > 255 ? 255 : static_cast<std::uint8_t>(number);
}

kernels::Tensor ToTensor(const wm_tensor& from) {
  kernels::Tensor tensor;
  tensor.data = from.data;
  tensor.dtype = static_cast<DType>(Narrow(from.dtype));
  tensor.rank = from.rank;
  for (int i = 0; i < 2; ++i) {
    tensor.shape[i] = from.shape[i];
    tensor.stride[i] = from.strides[i];
  }
  tensor.device = from.device_type == WM_DEVICE_HOST ? kernels::MemoryDevice::Host()
                                                     : kernels::MemoryDevice::Cuda(from.device);
  return tensor;
}

struct Routing {
  kernels::RoutingConfig config;
  kernels::RoutingTensors tensors;
};

// Argument `index` of the call. The values are the kernels' to judge.
wm_code TakeRouting(const wm_routing* given, std::uint64_t index, Routing& to) {
  wm_routing args = {};
  if (!CopyIn(given, args)) return BadArgument(index, args.struct_size);
  if ((args.flags & ~WM_ROUTING_NOT_NORMALIZED) != 0) return BadArgument(index, args.flags);
  if (args.reserved != 0) return BadArgument(index, args.reserved);
  if (const ChainFault fault = WalkChain(args.ext, nullptr); fault.code != WM_OK) {
    wm_code code = BadArgument(index, static_cast<std::int64_t>(fault.value));
    code.code = fault.code;
    return code;
  }
  for (const wm_tensor* tensor : {&args.logits, &args.topk_ids, &args.topk_weights, &args.bias,
                                  &args.replay_in, &args.routed, &args.replay_out}) {
    if (tensor->device_type != WM_DEVICE_HOST && tensor->device_type != WM_DEVICE_CUDA) {
      return BadArgument(index, tensor->device_type);
    }
  }
  // Before it is narrowed, so that the error has the number that was given.
  if (args.method < 0 || args.method >= kernels::kNumRoutingMethods) {
    return ToCode(WM_INVALID_ARGUMENT, {RoutingArgument::kMethod, RoutingRule::kUnknown,
                                        args.method, kernels::kNumRoutingMethods - 1});
  }
  to.config.method = static_cast<RoutingMethod>(args.method);
  to.config.top_k = args.top_k;
  if (args.num_groups != 0) to.config.num_groups = args.num_groups;
  if (args.topk_groups != 0) to.config.topk_groups = args.topk_groups;
  if (args.scale != 0.0f) to.config.scale = args.scale;
  to.config.normalize = (args.flags & WM_ROUTING_NOT_NORMALIZED) == 0;
  to.tensors = {ToTensor(args.logits),       ToTensor(args.bias),       ToTensor(args.topk_ids),
                ToTensor(args.topk_weights), ToTensor(args.replay_out), ToTensor(args.replay_in),
                ToTensor(args.routed)};
  return {};
}

wm_status Route(const wm_routing* given, void* stream, wm_code* code) noexcept {
  return GuardStep(code, [&]() -> wm_code {
    Routing routing;
    if (const wm_code bad = TakeRouting(given, 0, routing); bad.code != WM_OK) return bad;
    kernels::RoutingCode answer;
    if (routing.tensors.logits.device == kernels::MemoryDevice::Host()) {
      answer = kernels::RouteOnHost(routing.config, routing.tensors);
    } else {
#ifdef WAYMARK_HAS_CUDA
      answer =
          kernels::RouteOnCuda(routing.config, routing.tensors, static_cast<CUstream_st*>(stream));
#else
      wm_code none = {};
      none.code = WM_UNIMPLEMENTED;
      return none;
#endif
    }
    (void)stream;
    return ToCode(answer.rule == RoutingRule::kCuda ? WM_UNAVAILABLE : WM_INVALID_ARGUMENT, answer);
  });
}

wm_status SessionRoute(wm_session* session, const wm_view* view, std::int32_t layer,
                       const wm_routing* given, wm_code* code) noexcept {
  return StepCall(code, session, [&]() -> wm_code {
    if (view == nullptr || view->reserved != 0) return BadArgument(1);
    Routing routing;
    if (const wm_code bad = TakeRouting(given, 3, routing); bad.code != WM_OK) return bad;
    CaptureView to;
    to.buffer = view->buffer;
    to.step = view->step;
    return ToCode(session->session->Route(to, layer, routing.config, routing.tensors));
  });
}

}  // namespace

void FillRouting(wm_graph_api_v1& graph) {
  graph.route = &Route;
  graph.session_route = &SessionRoute;
}

}  // namespace waymark::abi
