"""Whether an engine of vLLM is captured, with which options, and what is refused before its model
is loaded."""

from __future__ import annotations

import logging
import sys
import types
from typing import Any

import pytest
from vllm_engine import MODEL_LAYERS, VERSION, Engine, Model, MoERunner, vllm
from waymark import _hooks
from waymark.vllm import _checks, _options, _plugin, _routers, _tier
from waymark.vllm._options import Options, asks

__all__ = ["vllm"]  # a fixture for every test


class Scheduler:
    def __init__(self, vllm_config: Any) -> None:
        engine = Engine(1)
        self.vllm_config, self.kv_cache_config = vllm_config, engine.kv_cache_config
        self.kv_cache_manager, self.aux_output_connector = engine.kv_cache_manager, "vLLM's own"
        self.hash_block_size = engine.hash_block_size


class SchedulerConfig:
    max_num_batched_tokens = 64

    def get_scheduler_cls(self) -> Any:
        return sys.modules["vllm.v1.core.sched.scheduler"].Scheduler


class VllmConfig:
    kv_transfer_config = speculative_config = None
    use_v2_model_runner = True
    max_concurrent_batches = 2

    def __init__(self, given: Any = None, moe: bool = True) -> None:
        space = types.SimpleNamespace
        self.additional_config = {} if given is None else given
        self.device_config = space(device_type="cpu")
        self.parallel_config = space(pipeline_parallel_size=1)
        self.compilation_config, self.cache_config = space(mode=0), space()
        self.aux_output_config = space(enable_return_routed_experts=False)
        self.scheduler_config = sys.modules["vllm.config"].SchedulerConfig()
        self.model_config = space(
            model="a model", is_moe=moe, runner_type="generate", max_model_len=100,
            hf_config=space(model_type="qwen3_moe"), get_num_experts=lambda: 16)  # fmt: skip

    def _verify_aux_output_compatibility(self) -> None:
        self.verified = True


def own_connector(model: Any, vllm_config: Any, kv_cache_config: Any) -> str:
    return "vLLM's own"


class WorkerBase:
    def __init__(self, vllm_config: Any) -> None:
        self.vllm_config = vllm_config


def fresh(kind: type) -> Any:
    """A class whose attributes may be replaced."""
    return type(kind.__name__, (kind,), dict(vars(kind)))


class Executor:
    def collective_rpc(self, method: Any) -> None:
        pass


@pytest.fixture(autouse=True)
def start(vllm: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """A process of vLLM that has loaded the plugin, with nothing in the environment."""
    monkeypatch.setenv(_options.SWITCH, "")
    space, executor = types.SimpleNamespace, fresh(Executor)
    methods = "initialize_kv_cache execute_model sample_tokens".split()
    VERSION.__version__ = "0.33.0"
    for name, module in {
        "vllm.config": space(VllmConfig=fresh(VllmConfig), SchedulerConfig=fresh(SchedulerConfig)),
        "vllm.v1.core.sched.scheduler": space(Scheduler=fresh(Scheduler)),
        "vllm.v1.executor.abstract": space(Executor=executor, other=type("Other", (executor,), {
            "collective_rpc": lambda self, method, **more: None})),
        "vllm.v1.engine.core": space(EngineCore=type("EngineCore", (), {
            "set_weight_version": lambda self, name: None})),
        "vllm.v1.worker.worker_base": space(WorkerBase=fresh(WorkerBase)),
        "vllm.v1.worker.gpu.model_runner": space(
            __name__="runner", get_aux_output_connector=own_connector),
        "vllm.v1.worker.cpu_model_runner": space(CPUModelRunner=type("CPUModelRunner", (), {
            name: lambda self: None for name in methods})),
    }.items():  # fmt: skip
        monkeypatch.setitem(sys.modules, name, module)  # type: ignore[misc]
    _plugin.register()


def llm(given: Any = None, moe: bool = True, **changed: Any) -> Any:
    """An engine: its scheduler's connector, its worker's and its configuration. given:
    `additional_config`; changed: attributes of the configuration, of parts as part__attribute."""
    config = sys.modules["vllm.config"].VllmConfig(given, moe)
    for name, value in changed.items():
        part, _, attribute = name.rpartition("__")
        setattr(getattr(config, part) if part else config, attribute, value)
    config._verify_aux_output_compatibility()
    scheduler = config.scheduler_config.get_scheduler_cls()(config)
    sys.modules["vllm.v1.worker.worker_base"].WorkerBase(config)
    worker = sys.modules["vllm.v1.worker.gpu.model_runner"].get_aux_output_connector(
        Model(), config, scheduler.kv_cache_config)  # fmt: skip
    return types.SimpleNamespace(
        config=config, scheduler=scheduler.aux_output_connector, worker=worker
    )


def captured(one: Any) -> bool:
    """Of an engine: whether both halves are Waymark's, which have to agree."""
    found = {type(half).__name__ for half in (one.scheduler, one.worker)}
    assert found in ({"SchedulerConnector", "WorkerConnector"}, {"str"})
    on = "str" not in found
    assert one.config.aux_output_config.enable_return_routed_experts is on
    assert on != hasattr(one.config, "verified")
    return on


def layers(one: Any) -> int:
    return MODEL_LAYERS if one.worker._zeros else 0


ON = {"waymark": True}
ALL = {"waymark": {"layers": "all"}}


def test_an_engine_that_does_not_ask_is_vllms_own(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert captured(llm(ON))
    assert "captures the routing of a model: layers 'moe'" in caplog.text
    assert not captured(llm()) and not captured(llm({"other": 1}))
    assert not captured(llm(moe=False))


def test_a_dense_engine_that_asks_runs_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(_options.SWITCH, "1")
    assert not captured(llm(moe=False)) and captured(llm())
    assert [one.getMessage() for one in caplog.records if one.levelname == "WARNING"] == [
        "waymark: nothing of a model is captured: it has no routed experts"]  # fmt: skip


def test_every_engine_of_a_process_has_its_own_options() -> None:
    given = {"waymark": {"layers": "all"}, "other": [1]}
    assert [layers(llm({"waymark": {}})), layers(llm(given))] == [0, MODEL_LAYERS]
    assert given == {"waymark": {"layers": "all"}, "other": [1]}


@pytest.mark.parametrize("no", [False, 0, "0", "false", "False", "no", "off", None])
def test_false_is_off_whatever_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, no: Any
) -> None:
    monkeypatch.setenv("WAYMARK_VLLM", "1")
    assert not captured(llm({"waymark": no}))
    assert captured(llm()) and layers(llm(ALL)) == MODEL_LAYERS
    monkeypatch.setenv("WAYMARK_VLLM", str(no))
    assert not captured(llm()) and not captured(llm(ON))


@pytest.mark.parametrize("yes", ["1", "true", "True", "yes", "on"])
def test_what_switches_the_capture_on(monkeypatch: pytest.MonkeyPatch, yes: str) -> None:
    assert captured(llm({"waymark": yes})) and captured(llm({"waymark": {}}))
    monkeypatch.setenv("WAYMARK_VLLM", yes)
    assert captured(llm())


@pytest.mark.parametrize("wrong", [
    {"layer": "all"}, {"layers": ["all"]}, {"store": None}, {"store": {"num_pagez": 5}},
    {"store": {"num_pages": 2**32}}, {"store": {"audit": "no"}}, {"reasons": "no"},
    {"store": {"num_blocks": 5}}, {"store": {"max_steps_in_flight": "many"}}, {"tier": {"space": "s"}},
    {"tier": "python:5"}, {"tier": "ftp://x"}, 2, "maybe", ["all"],
])  # fmt: skip
def test_wrong_options_of_an_engine_are_refused_by_their_key_and_value(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r'additional_config\["waymark"\]') as refused:
        llm({"waymark": wrong})
    assert repr(wrong).strip("{}") in str(refused.value)


REFUSED = {
    "an old vLLM": ({}, "0.31.0", "vLLM 0.31.0 is refused: the oldest that is served is 0.32"),
    "diffusion": ({"model_config__is_diffusion": True}, "", "the last pass alone counts"),
    "another device": ({"device_config__device_type": "tpu"}, "", "device tpu is refused"),
    "V1 on a GPU": ({"device_config__device_type": "cuda", "use_v2_model_runner": False}, "",
                    "set VLLM_USE_V2_MODEL_RUNNER=1"),
    "compile": ({"compilation_config__mode": 3}, "", "torch.compile on a CPU is refused"),
    "stages": ({"parallel_config__pipeline_parallel_size": 2}, "", "the last stage captured"),
    "context": ({"parallel_config__decode_context_parallel_size": 2}, "",
                "decode_context_parallel_size is refused"),
    "micro-batches": ({"parallel_config__data_parallel_size": 2,
                       "parallel_config__use_ubatching": True}, "", "dual-batch overlap is refused"),
    "fast prefill": ({"cache_config__kv_sharing_fast_prefill": True}, "", "part of the tokens"),
    "a scheduler": ({"scheduler_config__get_scheduler_cls": lambda: Scheduler}, "",
                    "scheduler Scheduler is refused: it is not derived from vLLM's"),
    "recompute": ({"kv_transfer_config": types.SimpleNamespace(kv_load_failure_policy="recompute")},
                  "", "kv_load_failure_policy=recompute is refused"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_captured_is_refused(case: str) -> None:
    changed, version, text = REFUSED[case]
    VERSION.__version__ = version or "0.33.0"
    with pytest.raises(_hooks.Refused, match="^waymark: ") as refused:
        llm(ON, **changed)
    assert text in str(refused.value)
    assert not captured(llm(**changed))  # vLLM runs


def test_micro_batches_are_served_where_the_capturer_asks_for_their_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known, place = _checks.module, types.SimpleNamespace(dbo_current_ubatch_token_offset=None)
    monkeypatch.setattr(_checks, "module", lambda name: place if "captur" in name else known(name))
    changed: dict[str, Any] = REFUSED["micro-batches"][0]
    assert captured(llm(ON, **changed))


def test_a_router_whose_slot_is_not_proven_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    zero = type("ZeroExpertRouter", (), {"__module__": type(MoERunner.router).__module__})
    monkeypatch.setattr(MoERunner, "router", zero())
    with pytest.raises(_hooks.Refused, match=r"layers.1.mlp.experts is refused: .*zero experts"):
        _routers.moe_layers(Model())
    other = type("FusedTopKRouter", (), {"__module__": "somebody", "set_capture_fn": None})
    monkeypatch.setattr(MoERunner, "router", other())
    with pytest.raises(_hooks.Refused, match="nothing shows that its capture slot"):
        _routers.moe_layers(Model())


def test_who_asks() -> None:
    params = types.SimpleNamespace(extra_args=None)
    assert asks(params, False) and not asks(params, True) and not asks(None, False)
    for no in (False, 0, "0", "no", "false", None):
        params.extra_args = {"waymark": no}
        assert not asks(params, False)
    params.extra_args = {"waymark": 1}
    assert asks(params, False)


def test_calls_of_workers_are_counted_in_every_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of vLLM's executors has a collective_rpc of its own, which were not counted once."""
    monkeypatch.setattr(_tier, "_changes", 0)
    llm(ON)
    module = sys.modules["vllm.v1.executor.abstract"]
    for executor in (module.Executor(), module.other()):
        before = _tier.changes()
        executor.collective_rpc("execute_model")
        assert _tier.changes() == before
        executor.collective_rpc("reload_weights")
        executor.collective_rpc(print)
        assert _tier.changes() == before + 2
    module.other().collective_rpc("sleep", kwargs={"level": 1})
    assert _tier.changes() == before + 2
    module.other().collective_rpc("sleep", kwargs={"level": 2})
    assert _tier.changes() == before + 3


@pytest.mark.parametrize("switch", ["", "1"])
def test_a_vllm_without_the_seam(monkeypatch: pytest.MonkeyPatch, switch: str) -> None:
    monkeypatch.setattr(sys.modules["vllm.config"], "VllmConfig", type("VllmConfig", (), {}))
    VERSION.__version__ = "0.30.0"
    monkeypatch.setenv(_options.SWITCH, switch)
    if not switch:
        return _plugin.register()  # it is vLLM's own
    with pytest.raises(_hooks.Refused, match="this vLLM is refused: the oldest .* is 0.32"):
        _plugin.register()


def test_model_runner_v1_is_hooked() -> None:
    runner = sys.modules["vllm.v1.worker.cpu_model_runner"].CPUModelRunner
    sys.modules["vllm.v1.worker.worker_base"].WorkerBase(llm().config)
    assert not hasattr(runner.execute_model, "_waymark")
    llm(ON, use_v2_model_runner=False)
    assert hasattr(runner.execute_model, "_waymark")


def test_options_reach_other_processes() -> None:
    given = llm(ALL).config.additional_config
    assert Options(**given["waymark"]) == Options(layers="all")
