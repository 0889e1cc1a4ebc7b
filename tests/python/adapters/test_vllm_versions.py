"""What the plugin for vLLM serves and refuses at the start, and its options."""

from __future__ import annotations

import types
from typing import Any

import pytest
from vllm_engine import BLOCK, Runner, Spec, config, vllm
from waymark.vllm import _capture, _versions, _worker
from waymark.vllm._options import Options

__all__ = ["vllm"]  # a fixture for every test


def given(device: str) -> Any:
    hf_config = types.SimpleNamespace(model_type="qwen3_moe")
    return types.SimpleNamespace(
        model_config=types.SimpleNamespace(
            model="m", is_moe=True, runner_type="generate", hf_config=hf_config),
        device_config=types.SimpleNamespace(device_type=device),
        parallel_config=types.SimpleNamespace(),
        cache_config=types.SimpleNamespace(),
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
        ("model_config", "is_moe", False, "model m is refused: it has no routed experts"),
        ("model_config", "runner_type", "pooling", "model m is refused: it does not generate"),
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
    refused = given("cpu")
    refused.use_v2_model_runner = True
    is_refused(refused, "model runner V2 on a CPU is refused")


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
