"""The layers that are captured: whose capture slot was proven to have what the router chose."""

from __future__ import annotations

from typing import Any, NamedTuple

from .._hooks import Refused, module

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
    """A layer that is captured."""

    layer_id: int
    name: str
    experts: int  # columns of the router; 0: as the model's configuration says


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


def moe_layers(model: Any) -> list[MoELayer]:
    """The layers that vLLM's capturer binds, in their order. A draft model is not part of
    ``model``. Kernels that route by themselves and do not say how are refused by vLLM."""
    runner = module(f"{_FUSED_MOE}.layer").MoERunner
    source = module(f"{_FUSED_MOE}.routed_experts_capturer").RoutedExpertsCaptureSource
    found = []
    for name, layer in model.named_modules():
        routes = isinstance(layer, runner)
        if routes and not layer._quant_method.is_monolithic:
            check(name, layer.router)
        if routes or isinstance(layer, source):
            experts = getattr(getattr(layer, "moe_config", None), "num_logical_experts", 0)
            found.append(MoELayer(layer.layer_id, name, experts))
    if not found:
        raise Refused("waymark: the model is refused: no layer has a router")
    return sorted(found)
