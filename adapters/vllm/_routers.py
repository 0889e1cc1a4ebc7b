"""The layers that are captured: whose capture slot was proven to have what the router chose."""

from __future__ import annotations

from typing import Any, NamedTuple

from ._hooks import Refused, module

_FUSED_MOE = "vllm.model_executor.layers.fused_moe"
# Of vLLM 0.30 to 0.33, each compared with its own choice by tests/integration/vllm/routers.
PROVEN = (
    "CPURouter CustomRoutingRouter FusedTopKBiasRouter FusedTopKRouter GroupedTopKRouter "
    "RoutingSimulatorRouter"
).split()
REFUSED = {
    "ZeroExpertRouter": "it writes 0 in place of zero experts before its capture slot, so that "
    "rows would have expert 0, which was not chosen",
    "AiterSharedRoutedFusedMoERouter": "its capture slot has shared experts, too",
}


class MoELayer(NamedTuple):
    """A layer whose router is captured."""

    layer_id: int
    name: str
    slot: Any
    """Its capture_fn is called with the ids [rows, K] of each forward."""
    top_k: int
    experts: int = 0
    """Columns of the router; 0: as the model's configuration says."""


def check(name: str, router: Any) -> None:
    """Refused if it is not known what the capture slot of a router has."""
    kind = type(router)
    known = kind.__module__.startswith(f"{_FUSED_MOE}.router.") and kind.__name__ in PROVEN
    if not known or not hasattr(router, "set_capture_fn"):
        why = REFUSED.get(kind.__name__, "nothing shows that its capture slot has what it chose")
        raise Refused(f"waymark: {name} is refused: its router is {kind.__name__}: {why}")


def experts_of(layers: list[MoELayer], config: Any) -> int:
    """E of the rows of these layers."""
    return max(layer.experts for layer in layers) or int(config.model_config.get_num_experts())


def moe_layers(model: Any, cuda: bool = False) -> list[MoELayer]:
    """The layers that are captured, in their order. A draft model is not part of ``model``. cuda:
    also those whose kernels route by themselves and write what they chose."""
    runner = module(f"{_FUSED_MOE}.layer").MoERunner
    capturer: Any = module(f"{_FUSED_MOE}.routed_experts_capturer") if cuda else None
    found = []
    for name, layer in model.named_modules():
        experts = getattr(getattr(layer, "moe_config", None), "num_logical_experts", 0)
        if cuda and isinstance(layer, capturer.RoutedExpertsCaptureSource):
            found.append(MoELayer(layer.layer_id, name, layer, layer.top_k, experts))
            continue
        if not isinstance(layer, runner):
            continue
        if layer._quant_method.is_monolithic:
            sink = _sink(layer, capturer) if cuda else None
            if sink is None:
                raise Refused(
                    f"waymark: {name} is refused: the kernel of "
                    f"{type(layer._quant_method).__name__} routes by itself"
                )
            found.append(MoELayer(layer.layer_id, name, sink, sink.buffer.shape[1], experts))
            continue
        check(name, layer.router)
        found.append(MoELayer(layer.layer_id, name, layer.router, layer.router.top_k, experts))
    if not found:
        raise Refused("waymark: the model is refused: no layer has a router")
    return sorted(found, key=lambda layer: layer.layer_id)


def _sink(layer: Any, capturer: Any) -> Any:
    """Where a kernel that routes by itself writes its ids (0.32 and later); None: it does not."""
    made = getattr(getattr(layer, "routed_experts", None), "routing_sink", None)
    if made is not None:
        return made
    kernel = getattr(layer._quant_method, "moe_kernel", None)
    experts: Any = getattr(getattr(kernel, "impl", None), "fused_experts", None)
    if (
        not hasattr(capturer, "RoutedExpertsSink")
        or not hasattr(experts, "supports_routing_replay_capture")
        or not experts.supports_routing_replay_capture()
    ):
        return None
    sink = capturer.RoutedExpertsSink(experts.moe_config, None)
    layer.routed_experts.routing_sink = sink
    return sink
