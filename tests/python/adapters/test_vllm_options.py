"""Whether an engine of vLLM is captured, with which options, and what is refused before its model
is loaded: engines that start one after the other in a process, as far as the plugin meets them."""

from __future__ import annotations

import logging
import types
from typing import Any

import pytest
from test_vllm_results import Completion, Outputs, Processor, RequestOutput, State
from vllm_engine import (
    BLOCK,
    BlocksOfAGroup,
    Core,
    EngineCoreOutput,
    Manager,
    Pool,
    Runner,
    Scheduler,
    config,
    modules,
    vllm,
)
from waymark.vllm import _hooks, _options, _plugin, _versions, _weights
from waymark.vllm._options import Options, asks, may_stop_at_string

__all__ = ["vllm"]  # a fixture for every test


def fields(*names: str, **more: Any) -> type:
    """A class of vLLM as far as its names go."""
    return type("Fields", (), {"__annotations__": dict.fromkeys(names, Any), **more})


class Vllm:
    """The classes of a vLLM that was just imported, and engines made of them."""

    def __init__(self) -> None:
        self.loaded: list[str] = []  # models
        self.runner_type = type("RunnerOfTest", (Runner,), {})
        self.scheduler_type = self._scheduler_type()
        Outputs.CompletionOutput = type("CompletionOfTest", (Completion,), {})
        state = type("S", (State,), {})
        self.parts = {
            "vllm": types.SimpleNamespace(__version__="0.33.0"),
            "vllm.config": types.SimpleNamespace(
                VllmConfig=self._config_type(), SchedulerConfig=self._scheduler_config_type()),
            "vllm.outputs": types.SimpleNamespace(
                CompletionOutput=Outputs.CompletionOutput,
                RequestOutput=type("RequestOutputOfTest", (RequestOutput,), {})),
            "vllm.v1.executor.abstract": types.SimpleNamespace(Executor=self._executor_type()),
            "vllm.v1.worker.worker_base": types.SimpleNamespace(
                WorkerWrapperBase=self._wrapper_type()),
            "vllm.v1.engine.output_processor": types.SimpleNamespace(
                OutputProcessor=self._processor_type(state), RequestState=state),
            "vllm.v1.engine.llm_engine": types.SimpleNamespace(LLMEngine=self._engine_type()),
            "vllm.v1.engine.async_llm": types.SimpleNamespace(AsyncLLM=self._engine_type()),
            "vllm.v1.engine": types.SimpleNamespace(
                EngineCoreOutput=fields("request_id", "new_token_ids", "finish_reason",
                                        "routed_experts", "trace_headers"),
                EngineCoreOutputs=fields("outputs")),
            "vllm.v1.engine.core": types.SimpleNamespace(EngineCore=type("C", (Core,), {})),
            "vllm.v1.core.block_pool": types.SimpleNamespace(BlockPool=Pool),
            "vllm.v1.core.single_type_kv_cache_manager": types.SimpleNamespace(
                SingleTypeKVCacheManager=BlocksOfAGroup),
            "vllm.v1.core.kv_cache_manager": types.SimpleNamespace(
                KVCacheManager=type("KVCacheManager", (Manager,), {
                    name: vars(Manager)[name]
                    for name in ("allocate_slots", "free")})),
            "vllm.v1.core.sched.output": types.SimpleNamespace(
                SchedulerOutput=fields("scheduled_new_reqs", "scheduled_cached_reqs",
                                       "num_scheduled_tokens", "total_num_scheduled_tokens"),
                NewRequestData=fields("req_id", "block_ids", "num_computed_tokens"),
                CachedRequestData=fields("req_ids", "resumed_req_ids", "new_block_ids",
                                         "num_computed_tokens")),
        }  # fmt: skip

    def module(self, name: str) -> Any:
        return self.parts[name] if name in self.parts else modules(name)

    def llm(self, given: Any = None, moe: bool = True) -> Any:
        """An engine. given: `additional_config`."""
        config_type = self.parts["vllm.config"].VllmConfig
        return self.parts["vllm.v1.engine.llm_engine"].LLMEngine(config_type(given, moe))

    @staticmethod
    def _processor_type(state: Any) -> type:
        class OutputProcessor(Processor):
            def add_request(self, request: Any, prompt: Any = None, queue: Any = None) -> None:
                self.request_states[request.request_id] = state(request, queue)

        return OutputProcessor

    def _scheduler_type(self) -> type:
        class SchedulerOfTest(Scheduler):
            def __init__(self, vllm_config: Any) -> None:
                super().__init__()
                self.vllm_config = vllm_config

        return SchedulerOfTest

    def _scheduler_config_type(self) -> type:
        of_all = self

        class SchedulerConfig:
            max_num_batched_tokens = 64

            def get_scheduler_cls(self) -> type:
                return of_all.scheduler_type

        return SchedulerConfig

    def _config_type(self) -> type:
        of_all = self

        class VllmConfig:
            kv_transfer_config = speculative_config = None
            max_concurrent_batches = 2

            def __init__(self, given: Any, moe: bool) -> None:
                self.additional_config = {} if given is None else given
                self.device_config = types.SimpleNamespace(device_type="cpu")
                self.parallel_config = types.SimpleNamespace(data_parallel_size=1)
                self.compilation_config = types.SimpleNamespace(mode=0)
                self.scheduler_config = of_all.parts["vllm.config"].SchedulerConfig()
                self.model_config = types.SimpleNamespace(
                    model="a model", is_moe=moe, runner_type="generate",
                    hf_config=types.SimpleNamespace(model_type="qwen3_moe"),
                    get_total_num_hidden_layers=lambda: 3, get_num_experts=lambda: 128)
                self.__post_init__()

            def __post_init__(self) -> None:
                pass

        return VllmConfig

    def _executor_type(self) -> type:
        of_all = self

        class Executor:
            def collective_rpc(self, method: str) -> Any:
                return [getattr(self.wrapper.worker, method)()]

            def __init__(self, vllm_config: Any) -> None:
                self.wrapper = of_all.parts["vllm.v1.worker.worker_base"].WorkerWrapperBase(
                    vllm_config)
                self.wrapper.init_device()
                self.runner = self.wrapper.worker.model_runner
                of_all.loaded.append(vllm_config.model_config.model)
                self.runner.load_model()
                self.runner.initialize_kv_cache(config())

        return Executor

    def _wrapper_type(self) -> type:
        of_all = self

        class WorkerWrapperBase:
            def __init__(self, vllm_config: Any) -> None:
                self.vllm_config = vllm_config
                self.worker: Any = types.SimpleNamespace()

            def init_device(self) -> None:
                self.worker.model_runner = of_all.runner_type()
                self.worker.model_runner.vllm_config = self.vllm_config
                self.worker.model_runner.parameters = list  # of its model

        return WorkerWrapperBase

    def _engine_type(self) -> type:
        of_all = self

        class Engine:
            def __init__(self, vllm_config: Any) -> None:
                self.output_processor = of_all.parts[
                    "vllm.v1.engine.output_processor"].OutputProcessor()
                self.executor = of_all.parts["vllm.v1.executor.abstract"].Executor(vllm_config)
                self.scheduler: Any = vllm_config.scheduler_config.get_scheduler_cls()(vllm_config)

        return Engine


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Vllm:
    """A process of vLLM that has loaded the plugin, with nothing in the environment."""
    made = Vllm()
    for name in (_options.SWITCH, _options.OPTIONS):
        monkeypatch.setenv(name, "")
    for part in (_hooks, _versions, _weights):
        monkeypatch.setattr(part, "module", made.module)
    _plugin.register()
    return made


def captured(llm: Any) -> bool:
    """Of an engine: whether scheduler, worker and front end are, which have to agree."""
    parts = (llm.scheduler, llm.executor.runner, llm.output_processor)
    found = {getattr(part, "_waymark", None) is not None for part in parts}
    worker = llm.executor.wrapper.worker
    found.add(hasattr(worker, "waymark_report") and worker.waymark_report()["failure"] == "")
    assert len(found) == 1
    return found.pop()


def layers(llm: Any) -> int:
    """Layers of `routed_experts`; 0: those with routers."""
    found: int = llm.scheduler._waymark._layers
    return found


ON = {"waymark": True}
ALL = {"waymark": {"layers": "all"}}


# -- engines of one process --------------------------------------------------------------------
def test_an_engine_that_does_not_ask_is_not_captured_after_one_that_does(start: Vllm) -> None:
    assert captured(start.llm(ON))
    assert not captured(start.llm()) and not captured(start.llm({"other": 1}))
    assert captured(start.llm(ON))


def test_a_dense_engine_starts_after_one_that_is_captured(start: Vllm) -> None:
    assert captured(start.llm(ON))
    assert not captured(start.llm(moe=False))


def test_a_dense_engine_that_asks_runs_and_says_so(
    start: Vllm, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """WAYMARK_VLLM=1 refused a reward model beside the policy."""
    monkeypatch.setenv(_options.SWITCH, "1")
    assert not captured(start.llm(moe=False)) and captured(start.llm())
    assert [one.getMessage() for one in caplog.records if one.levelname == "WARNING"] == [
        "waymark: nothing of a model is captured: it has no routed experts"]  # fmt: skip


def test_every_engine_of_a_process_has_its_own_options(start: Vllm) -> None:
    first, second = start.llm({"waymark": {"layers": "moe"}}), start.llm(ALL)
    third = start.llm({"waymark": {"store": {"max_steps_in_flight": 7}}})
    assert [layers(llm) for llm in (first, second, third)] == [0, 3, 0]


def test_an_engine_leaves_the_dict_of_the_user_as_it_is(start: Vllm) -> None:
    given = {"waymark": {"layers": "all"}, "other": [1]}
    start.llm(given)
    assert given == {"waymark": {"layers": "all"}, "other": [1]}


# -- the environment and additional_config -----------------------------------------------------
def test_options_of_an_engine_hold_with_the_switch_of_the_environment(
    start: Vllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAYMARK_VLLM", "1")
    assert layers(start.llm()) == 0
    assert layers(start.llm(ALL)) == 3


@pytest.mark.parametrize("no", [False, 0, "0", "false", "False", "no", "off", None])
def test_false_is_off_whatever_the_environment_says(
    start: Vllm, monkeypatch: pytest.MonkeyPatch, no: Any
) -> None:
    monkeypatch.setenv("WAYMARK_VLLM", "1")
    assert not captured(start.llm({"waymark": no}))
    assert captured(start.llm())
    monkeypatch.setenv("WAYMARK_VLLM", str(no))
    assert not captured(start.llm()) and not captured(start.llm(ON))


@pytest.mark.parametrize("yes", ["1", "true", "True", "yes", "on"])
def test_what_switches_the_capture_on(
    start: Vllm, monkeypatch: pytest.MonkeyPatch, yes: str
) -> None:
    assert captured(start.llm({"waymark": yes})) and captured(start.llm({"waymark": {}}))
    monkeypatch.setenv("WAYMARK_VLLM", yes)
    assert captured(start.llm())


def test_options_that_are_given_twice_are_refused(
    start: Vllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAYMARK_VLLM_OPTIONS", '{"store": {"audit": false}}')
    assert not captured(start.llm())  # they switch nothing on
    assert captured(start.llm(ON))
    with pytest.raises(ValueError, match="given twice") as refused:
        start.llm(ALL)
    text = str(refused.value)
    assert 'WAYMARK_VLLM_OPTIONS is {"store": {"audit": false}}' in text
    assert """additional_config["waymark"] is {'layers': 'all'}""" in text
    assert captured(start.llm({"waymark": {"store": {"audit": False}}}))  # the same


WRONG = {
    "not JSON": "{layers: all}",
    "a number": "5",
    "null": "null",
    "a list": '["all"]',
    "an unknown option": '{"layer": "all"}',
    "another value": '{"layers": "some"}',
    "a store that is no dict": '{"store": 5}',
    "an unknown argument": '{"store": {"num_pagez": 5}}',
    "an argument that vLLM decides": '{"store": {"num_blocks": 5}}',
    "a value out of range": '{"store": {"num_pages": -3}}',
    "a value of another type": '{"store": {"max_steps_in_flight": "many"}}',
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_wrong_options_of_the_environment_are_refused_by_their_name_and_value(
    start: Vllm, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    monkeypatch.setenv("WAYMARK_VLLM", "1")
    monkeypatch.setenv("WAYMARK_VLLM_OPTIONS", wrong)
    with pytest.raises(ValueError, match="^waymark: WAYMARK_VLLM_OPTIONS: ") as refused:
        start.llm()
    assert wrong in str(refused.value) and start.loaded == []
    assert not captured(start.llm({"waymark": False}))


@pytest.mark.parametrize("wrong", [
    {"layer": "all"}, {"layers": "some"}, {"layers": ["all"]}, {"store": 5}, {"store": None},
    {"store": {"num_pagez": 5}}, {"store": {"num_pages": -3}}, {"store": {"landing": "caller"}},
    {"store": {"num_pages": 2**32}}, {"store": {"audit": "no"}},
    2, "maybe", ["all"],
])  # fmt: skip
def test_wrong_options_of_an_engine_are_refused_by_their_key_and_value(
    start: Vllm, wrong: Any
) -> None:
    with pytest.raises(ValueError) as refused:
        start.llm({"waymark": wrong})
    text = str(refused.value)
    assert text.startswith('waymark: additional_config["waymark"]: ') and repr(wrong) in text
    assert start.loaded == [] and not captured(start.llm())


def test_a_wrong_switch_is_refused(start: Vllm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAYMARK_VLLM", "maybe")
    with pytest.raises(ValueError, match="^waymark: WAYMARK_VLLM: .* got 'maybe'"):
        start.llm()


def test_arguments_of_the_store_are_passed_on(start: Vllm) -> None:
    llm = start.llm({"waymark": {"store": {"num_pages": 5, "audit": False}}})
    assert llm.executor.runner._waymark.store.stats().pages == 5


def test_options_are_checked_in_no_memory() -> None:
    given = {"store": {"num_pages": 2**32 - 2, "spare_pages": 0}}
    found = _options.of(types.SimpleNamespace(additional_config={"waymark": given}))
    assert found == Options(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize("of", [asks, may_stop_at_string])
def test_a_request_says_no(of: Any) -> None:
    def params(asked: Any) -> Any:
        return types.SimpleNamespace(extra_args=asked, stop=["x"])

    # An HTTP client's vllm_xargs has no booleans.
    for no in (False, 0, 0.0, "0", "false", "False", " no", "off", "", None):
        assert not of(params({"waymark": no}), False), no
    for yes in (True, 1, 1.0, "1", "true"):
        assert of(params({"waymark": yes}), False), yes
    assert of(params({"other": 0}), False) and of(params(None), False)
    assert not of(params(None), True) and not of(None, False)


# -- what the plugin needs of vLLM -------------------------------------------------------------
def all_hooked(start: Vllm) -> list[str]:
    """The methods that are wrapped."""
    first = ("vllm.config", "vllm.v1.executor.abstract", "vllm.v1.worker.worker_base")
    kinds = [kind for name in first for kind in vars(start.parts[name]).values()]
    return [
        f"{kind.__name__}.{name}"
        for kind in (*kinds, start.scheduler_type, start.runner_type)
        for name, method in vars(kind).items()
        if getattr(method, "_waymark", False)
    ]


def refused(start: Vllm, text: str, kind: str) -> None:
    """Before a model is loaded, and no class of this kind is half hooked."""
    with pytest.raises(_versions.Refused, match=text):
        start.llm(ON)
    assert start.loaded == [] and not [one for one in all_hooked(start) if kind in one]


@pytest.mark.parametrize(("where", "name"), [
    ("vllm.v1.core.single_type_kv_cache_manager", "SingleTypeKVCacheManager._apply_cow"),
    ("vllm.v1.engine.core", "EngineCore.set_weight_version"),
    ("vllm.v1.core.block_pool", "BlockPool.reset_prefix_cache"),
    ("vllm.v1.core.kv_cache_manager", "KVCacheManager.allocate_slots"),
    ("vllm.v1.core.kv_cache_manager", "KVCacheManager.free"),
    ("vllm.v1.core.sched.output", "SchedulerOutput.scheduled_new_reqs"),
    ("vllm.v1.core.sched.output", "CachedRequestData.resumed_req_ids"),
    ("vllm.v1.engine", "EngineCoreOutput.trace_headers"),
])  # fmt: skip
def test_a_name_that_is_gone_is_refused_by_name_and_nothing_is_half_hooked(
    start: Vllm, where: str, name: str
) -> None:
    owner, _, gone = name.partition(".")
    before = getattr(start.parts[where], owner)
    names = {key: value for key, value in vars(before).items() if key != gone}
    fields = set(getattr(before, "__annotations__", ())) - {gone}
    names["__annotations__"] = dict.fromkeys(fields, Any)
    setattr(start.parts[where], owner, type(owner, (), names))
    refused(start, f"{owner}.{gone} is not there", "Scheduler")
    assert not captured(start.llm())


@pytest.mark.parametrize(("of", "gone"), [
    (Scheduler, "_free_request"), (Scheduler, "update_from_output"),
    (Scheduler, "has_finished_requests"), (Runner, "_dummy_run"),
])  # fmt: skip
def test_a_method_of_scheduler_or_worker_that_is_gone_is_refused_by_name(
    start: Vllm, of: type, gone: str
) -> None:
    kind = of.__name__
    names = {key: value for key, value in vars(of).items() if key != gone}
    setattr(start, f"{kind.lower()}_type", type(f"{kind}OfTest", (), names))
    refused(start, f"{kind}OfTest.{gone} is not there", kind)


def test_an_argument_that_is_gone_is_refused_by_name(start: Vllm) -> None:
    def update_from_output(self: Any, scheduler_output: Any, results: Any) -> None:
        pass

    start.scheduler_type = type("SchedulerOfTest", (Scheduler,), dict(
        update_from_output=update_from_output))  # fmt: skip
    refused(start, "has no argument 'model_runner_output'", "Scheduler")


def test_a_vllm_without_the_first_names_goes_on_uncaptured(
    start: Vllm, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    other = Vllm()
    del other.parts["vllm.v1.worker.worker_base"].WorkerWrapperBase.init_device
    monkeypatch.setattr(_hooks, "module", other.module)
    _plugin.register()
    assert "WorkerWrapperBase.init_device is not there" in caplog.text
    assert all_hooked(other) == []
    monkeypatch.setenv("WAYMARK_VLLM", "1")
    with pytest.raises(_versions.Refused, match="WorkerWrapperBase.init_device is not there"):
        _plugin.register()
    del other.parts["vllm.v1.worker.worker_base"].WorkerWrapperBase
    with pytest.raises(_versions.Refused, match="worker_base.WorkerWrapperBase is not there"):
        _plugin.register()


def test_what_is_wrong_at_the_start_says_whose_it_is(
    start: Vllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_versions, "kv_group", lambda given: None)
    with pytest.raises(_versions.Refused, match="^waymark: the capture cannot start: "):
        start.llm(ON)


# -- what the log says -------------------------------------------------------------------------
def test_the_log_says_that_the_capture_is_on(
    start: Vllm, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "vllm.waymark")
    start.llm()
    assert not caplog.records
    start.llm(ALL)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("waymark ") and "captures the routing of a model: layers 'all'" in line
    assert "waymark)" in line  # the folder of the package


@pytest.mark.parametrize(("version", "known"), [
    ("0.30.0", True), ("0.33.2+cpu", True), ("0.34.0", False), ("1.0.0", False), ("dev", False),
])  # fmt: skip
def test_an_unknown_version_is_named_in_one_line(
    start: Vllm, caplog: pytest.LogCaptureFixture, version: str, known: bool
) -> None:
    start.parts["vllm"].__version__ = version
    assert captured(start.llm(ON))
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [f"vLLM {version} is not known" in line for line in lines] == [True] * (not known)


def test_steps_in_flight_follow_the_engine(start: Vllm) -> None:
    assert _versions.steps_in_flight(types.SimpleNamespace()) == 64
    for batches, given, steps in ((1, {}, 64), (2, {}, 128), (2, {"max_steps_in_flight": 3}, 3)):
        start.parts["vllm.config"].VllmConfig.max_concurrent_batches = batches
        llm = start.llm({"waymark": {"store": given}})
        store = llm.executor.runner._waymark.store
        told = [store.step(step, 1, [-1]) for step in range(1, steps + 2)]
        assert [step.dropped for step in told] == [False] * steps + [True]


# -- the front end of an engine that is not captured -------------------------------------------
def test_an_engine_that_is_not_captured_ends_requests_at_stop_strings_itself(start: Vllm) -> None:
    """Its outputs would wait for rows that never come."""
    start.llm(ON)
    processor = start.llm().output_processor
    params = types.SimpleNamespace(extra_args=None, stop=[7], routed_experts_prompt_start=0)
    processor.add_request(types.SimpleNamespace(
        request_id="a", sampling_params=params, resumable=False, prompt_len=BLOCK))  # fmt: skip
    output = EngineCoreOutput(
        request_id="a", new_token_ids=[7], finish_reason=None, trace_headers=None)  # fmt: skip
    made = processor.process_outputs([output])
    assert [one.request_id for one in made.request_outputs] == ["a"]
    assert made.request_outputs[0].outputs[0].waymark is None and not processor.request_states
