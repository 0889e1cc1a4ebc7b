"""What the plugin for vLLM serves and refuses at the start, and its options."""

from __future__ import annotations

import types
from typing import Any

import pytest
from vllm_engine import BLOCK, Runner, Spec, config, vllm
from waymark.vllm import _capture, _routers, _versions, _worker
from waymark.vllm._options import Options

__all__ = ["vllm"]  # a fixture for every test
real_moe_layers = _routers.moe_layers  # the fixture replaces it


def given(device: str) -> Any:
    hf_config = types.SimpleNamespace(model_type="qwen3_moe")
    return types.SimpleNamespace(
        model_config=types.SimpleNamespace(
            model="m", is_moe=True, runner_type="generate", hf_config=hf_config),
        device_config=types.SimpleNamespace(device_type=device),
        parallel_config=types.SimpleNamespace(),
        cache_config=types.SimpleNamespace(),
        scheduler_config=types.SimpleNamespace(async_scheduling=False),
        kv_transfer_config=None,
        use_v2_model_runner=device == "cuda",
    )  # fmt: skip


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """vLLM's modules, as far as check() looks."""
    names = types.SimpleNamespace(
        __version__="0.32.0+cpu", current_platform=types.SimpleNamespace(is_rocm=lambda: False)
    )
    monkeypatch.setattr(_versions, "module", lambda name: names)
    return names


def is_refused(config: Any, text: str) -> None:
    with pytest.raises(_versions.Refused, match=text):
        _versions.check(config)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_is_refused_is_named_with_the_reason(installed: Any, device: str) -> None:
    _versions.check(given(device))
    for part, name, value, text in (
        ("model_config", "is_diffusion", True, "model m is refused: it computes each token sev"),
        ("device_config", "device_type", "xpu", "device xpu is refused"),
        ("parallel_config", "decode_context_parallel_size", 2, "decode_context_parallel_size is"),
        ("parallel_config", "prefill_context_parallel_size", 2, "prefill_context_parallel_size is"),
        ("parallel_config", "use_ubatching", True, "enable_dbo is refused: two threads"),
    ):
        refused = given(device)
        setattr(getattr(refused, part), name, value)
        is_refused(refused, text)
    refused = given(device)
    refused.model_config.hf_config.model_type = "deepseek_v4"
    is_refused(refused, "shared blocks")
    installed.__version__ = "0.29.1"
    is_refused(given(device), "0.29 is refused: older than 0.30")


def test_what_is_refused_on_a_cpu_alone(installed: Any) -> None:
    refused = given("cpu")
    refused.parallel_config.use_sequence_parallel_moe = True
    is_refused(refused, "sequence-parallel MoE on a CPU is refused")


def test_what_is_refused_on_cuda_alone(installed: Any) -> None:
    served = given("cuda")
    served.parallel_config.use_sequence_parallel_moe = True
    _versions.check(served)
    refused = given("cuda")
    refused.cache_config.kv_sharing_fast_prefill = True
    is_refused(refused, "kv_sharing_fast_prefill is refused")
    halves = given("cuda")
    halves.parallel_config.use_ubatching = True
    installed.dbo_current_ubatch_token_offset = None  # its name is there from 0.33 on
    _versions.check(halves)
    halves.use_v2_model_runner = False
    is_refused(halves, "enable_dbo")
    installed.current_platform.is_rocm = lambda: True
    is_refused(given("cuda"), "device cuda is refused: ROCm")


@pytest.mark.parametrize("what", ["runner V2", "async scheduling"])
def test_loads_that_vllm_computes_again_wrongly_are_refused(installed: Any, what: str) -> None:
    served = given("cpu")
    served.kv_transfer_config = types.SimpleNamespace(kv_load_failure_policy="recompute")
    _versions.check(served)
    served.use_v2_model_runner = what == "runner V2"
    served.scheduler_config.async_scheduling = what == "async scheduling"
    is_refused(served, "kv_load_failure_policy=recompute is refused: .* 49250")
    served.kv_transfer_config.kv_load_failure_policy = "fail"
    _versions.check(served)


def test_the_kv_group_is_the_one_of_full_attention() -> None:
    window, full = types.SimpleNamespace(block_size=2), Spec()
    groups = [types.SimpleNamespace(kv_cache_spec=one) for one in (window, full)]
    found = _versions.kv_group(types.SimpleNamespace(kv_cache_groups=groups))
    assert found == (1, BLOCK)
    with pytest.raises(_versions.Refused, match="without full attention"):
        _versions.kv_group(types.SimpleNamespace(kv_cache_groups=groups[:1]))


def test_slots_on_a_device_are_refused_at_the_start() -> None:
    runner = Runner()
    runner.input_batch.block_table[0].slot_mapping.gpu.device.type = "cuda"
    with pytest.raises(_versions.Refused, match="device memory"):
        _worker.HostHalf(runner, config(), _capture.Ids(runner), Options())


class FusedTopKRouter:
    __module__ = "vllm.model_executor.layers.fused_moe.router.fused_topk_router"
    top_k = 2
    capture_fn: Any = None

    def set_capture_fn(self, function: Any) -> None:
        self.capture_fn = function


class MoERunner:
    """A layer: with a router, or whose kernel routes by itself and may say how."""

    def __init__(self, layer_id: int, says: bool | None = None) -> None:
        experts = types.SimpleNamespace(
            moe_config=object(), supports_routing_replay_capture=lambda: bool(says)
        )
        impl = types.SimpleNamespace(fused_experts=experts)
        self.layer_id, self.router = layer_id, FusedTopKRouter()
        self.moe_config = types.SimpleNamespace(num_logical_experts=100 + layer_id)
        self.routed_experts = types.SimpleNamespace(routing_sink=None)
        self._quant_method = types.SimpleNamespace(
            is_monolithic=says is not None, moe_kernel=types.SimpleNamespace(impl=impl)
        )


class Source:
    layer_id, top_k, capture_fn = 7, 2, None


class Sink:
    def __init__(self, moe_config: Any, capture_fn: Any) -> None:
        self.buffer, self.capture_fn = types.SimpleNamespace(shape=(64, 2)), capture_fn


def test_every_way_by_which_a_layer_says_what_it_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    names = types.SimpleNamespace(
        MoERunner=MoERunner, RoutedExpertsCaptureSource=Source,
        RoutedExpertsSink=Sink)  # fmt: skip
    monkeypatch.setattr(_routers, "module", lambda name: names)
    layers = {"c": Source(), "b": MoERunner(3, says=True), "a": MoERunner(1)}
    model = types.SimpleNamespace(named_modules=lambda: layers.items())
    found = real_moe_layers(model, cuda=True)
    assert [(one.layer_id, one.name, one.top_k) for one in found] == [
        (1, "a", 2), (3, "b", 2), (7, "c", 2)]  # fmt: skip
    assert _routers.experts_of(found, None) == 103  # the routers' own columns
    seen: list[Any] = []
    for one in found:
        _capture.fill(one.slot, seen.append)
    again = real_moe_layers(model, cuda=True)
    assert [one.slot for one in again] == [one.slot for one in found]
    for one in again:
        one.slot.capture_fn(one.layer_id)
    assert seen == [1, 3, 7]
    layers["b"] = MoERunner(3, says=False)
    with pytest.raises(_versions.Refused, match="b is refused: the kernel of SimpleNamespace rout"):
        real_moe_layers(model, cuda=True)
    del names.RoutedExpertsSink  # before 0.32
    layers["b"] = MoERunner(3, says=True)
    for cuda in (False, True):
        with pytest.raises(_versions.Refused, match="b is refused"):
            real_moe_layers(model, cuda=cuda)
    layers["b"] = MoERunner(3)
    zero = type("ZeroExpertRouter", (FusedTopKRouter,), {"__module__": FusedTopKRouter.__module__})
    for router, why in (
        (zero(), "ZeroExpertRouter: it writes 0 in place of zero experts"),
        (type("FusedTopKRouter", (), {"set_capture_fn": None})(), "nothing shows"),  # not vLLM's
        (type("NewRouter", (FusedTopKRouter,), {})(), "NewRouter: nothing shows that its capture"),
    ):
        layers["b"].router = router
        with pytest.raises(_versions.Refused, match=f"b is refused: its router is .*{why}"):
            real_moe_layers(model)
    layers.clear()
    with pytest.raises(_versions.Refused, match="no layer has a router"):
        real_moe_layers(model, cuda=True)
