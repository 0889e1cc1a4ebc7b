"""What the plugin for vLLM serves and refuses at the start, and its options."""

from __future__ import annotations

import types
from typing import Any

import pytest
from vllm_engine import BLOCK, Runner, Spec, config, vllm
from waymark.vllm import _capture, _versions, _worker
from waymark.vllm._options import Options

__all__ = ["vllm"]  # a fixture for every test


def test_what_is_refused_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm = types.SimpleNamespace(__version__="0.32.0+cpu")
    monkeypatch.setattr(_versions, "module", lambda name: vllm)

    def given() -> Any:
        hf_config = types.SimpleNamespace(model_type="qwen3_moe")
        return types.SimpleNamespace(
            model_config=types.SimpleNamespace(
                model="m", is_moe=True, runner_type="generate", hf_config=hf_config),
            device_config=types.SimpleNamespace(device_type="cpu"),
            parallel_config=types.SimpleNamespace(),
        )  # fmt: skip

    _versions.check(given())
    for part, name, value, text in (
        ("model_config", "is_moe", False, "model m is refused: it has no routed experts"),
        ("model_config", "runner_type", "pooling", "model m is refused: it does not generate"),
        ("device_config", "device_type", "cuda", "device cuda is refused"),
        ("parallel_config", "decode_context_parallel_size", 2, "decode_context_parallel_size is"),
        ("parallel_config", "prefill_context_parallel_size", 2, "prefill_context_parallel_size is"),
        ("parallel_config", "use_ubatching", True, "enable_dbo is refused: two threads"),
        ("parallel_config", "use_sequence_parallel_moe", True, "sequence-parallel MoE is refused"),
    ):
        refused = given()
        setattr(getattr(refused, part), name, value)
        with pytest.raises(_versions.Refused, match=text):
            _versions.check(refused)
    refused = given()
    refused.use_v2_model_runner = True
    with pytest.raises(_versions.Refused, match="model runner V2 is refused"):
        _versions.check(refused)
    refused = given()
    refused.model_config.hf_config.model_type = "deepseek_v4"
    with pytest.raises(_versions.Refused, match="shared blocks"):
        _versions.check(refused)
    vllm.__version__ = "0.29.1"
    with pytest.raises(_versions.Refused, match="0.29 is refused: older than 0.30"):
        _versions.check(given())


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
        _worker.WorkerHalf(runner, config(), _capture.Ids(runner), Options())
