"""The plugin for vLLM, on a tiny engine with vLLM's names: what its hooks do to schedules and outputs.
(tests/integration/vllm runs a real vLLM.)"""

from __future__ import annotations

import subprocess
import sys
import types
from collections import deque
from typing import Any

import numpy as np
import pytest
import waymark.vllm
from waymark.vllm import _capture, _front_end, _plugin, _results, _scheduler, _versions, _worker
from waymark.vllm._exchange import Result
from waymark.vllm._options import Options, options

BLOCK = 4
LAYERS = 2
drafts: Any = None  # vLLM's speculative_config
STOPPED, ABORTED, IGNORED, ERROR = "stopped", "aborted", "ignored", "error"


class Spec:
    block_size = BLOCK


class Ids(np.ndarray):  # type: ignore[type-arg]
    """A tensor as far as the plugin looks."""

    def numpy(self) -> Any:
        return self

    def clone(self) -> Any:
        return self.copy()


class Library:
    """torch.library, as far as the plugin uses it."""

    def __init__(self, *names: str) -> None:
        pass

    def define(self, schema: str) -> None:
        assert schema.startswith("capture(Tensor(a!)")  # or torch.compile leaves it out

    def impl(self, name: str, function: Any, device: str) -> None:
        torch.ops = types.SimpleNamespace(waymark=types.SimpleNamespace(
            capture=types.SimpleNamespace(default=function)))  # fmt: skip


class Router:
    top_k = 1
    capture_fn: Any = None

    def set_capture_fn(self, function: Any) -> None:
        self.capture_fn = function


def stack(tensors: list[Any], out: Any) -> None:
    if len({one.shape for one in tensors}) > 1:
        raise RuntimeError("stack expects each tensor to be equal size")
    np.stack(tensors, out=out)


torch: Any = types.SimpleNamespace(
    stack=stack,
    empty=lambda size, dtype: np.full(size, 99, dtype).view(Ids),
    library=types.SimpleNamespace(Library=Library, register_fake=lambda *names, lib: None),
)


def modules(name: str) -> Any:
    """The modules of vLLM and torch that the halves use."""
    group = types.SimpleNamespace(rank_in_group=0, world_size=1)
    return {
        "torch": torch,
        "vllm.v1.kv_cache_interface": types.SimpleNamespace(FullAttentionSpec=Spec),
        "vllm.v1.engine.core": types.SimpleNamespace(EngineCore=Core),
        "vllm.v1.engine": types.SimpleNamespace(
            EngineCoreOutputs=Outputs, EngineCoreOutput=EngineCoreOutput),
        "vllm.v1.request": types.SimpleNamespace(RequestStatus=types.SimpleNamespace(
            FINISHED_ABORTED=ABORTED, FINISHED_IGNORED=IGNORED, FINISHED_ERROR=ERROR)),
        "vllm.distributed": types.SimpleNamespace(
            get_tp_group=lambda: group, get_pp_group=lambda: group),
    }[name]  # fmt: skip


class Core:
    def set_weight_version(self, name: str) -> None:
        pass


class Outputs:
    def __init__(self) -> None:
        self.outputs: list[Any] = []


class EngineCoreOutput(types.SimpleNamespace):
    routed_experts: Any = None


class Request:
    resumable = False
    client_index = 0
    trace_headers: Any = None

    def __init__(self, name: str, prompt: int, asked: bool = True) -> None:
        self.request_id, self.num_tokens, self.num_computed_tokens = name, prompt, 0
        self.sampling_params = types.SimpleNamespace(
            extra_args=None if asked else {"waymark": False}, routed_experts_prompt_start=0,
            stop=[],
        )
        self.status = "waiting"
        self.block_hashes: list[bytes] = []
        self.blocks: list[int] = []

    def get_finished_reason(self) -> str:
        return "abort" if self.status == ABORTED else "stop"


class Pool:
    def reset_prefix_cache(self) -> bool:
        return True


class Blocks:
    """The blocks of each request."""

    def __init__(self, requests: dict[str, Request]) -> None:
        self.requests = requests

    def get(self, name: str, other: Any) -> Any:
        return [types.SimpleNamespace(block_id=block) for block in self.requests[name].blocks]


class Manager:
    def __init__(self, requests: dict[str, Request]) -> None:
        self.block_pool = Pool()
        group = types.SimpleNamespace(req_to_blocks=Blocks(requests))
        self.coordinator = types.SimpleNamespace(single_type_managers=[group])


def config() -> Any:
    spec = types.SimpleNamespace(kv_cache_spec=Spec(), host_resident=False)
    return types.SimpleNamespace(num_blocks=64, kv_cache_groups=[spec])


class Scheduler:
    connector = None
    hash_block_size = BLOCK

    def __init__(self) -> None:
        self.requests: dict[str, Request] = {}
        self.kv_cache_config = config()
        self.kv_cache_manager = Manager(self.requests)
        self.vllm_config = types.SimpleNamespace(
            speculative_config=drafts,
            kv_transfer_config=None,
            model_config=types.SimpleNamespace(get_total_num_hidden_layers=lambda: 3),
        )
        self.free = deque(range(1, 64))
        self.started: set[str] = set()

    def schedule(self, tokens: dict[str, int]) -> Any:
        """Each request gets so many tokens: a chunk of its prompt, or its last token."""
        new, resumed, cached = [], set(), []
        for name, count in tokens.items():
            request = self.requests[name]
            missing = -(-(request.num_computed_tokens + count) // BLOCK) - len(request.blocks)
            more = [self.free.popleft() for _ in range(missing)]
            request.blocks += more
            if name not in self.started:
                self.started.add(name)
                new.append(types.SimpleNamespace(
                    req_id=name, block_ids=(list(request.blocks),),
                    num_computed_tokens=request.num_computed_tokens))  # fmt: skip
                continue
            if request.status == "preempted":
                resumed.add(name)
            cached.append((name, (more,) if more else None, request.num_computed_tokens))
            request.status = "running"
        output = types.SimpleNamespace(
            scheduled_new_reqs=new,
            scheduled_cached_reqs=types.SimpleNamespace(
                req_ids=[one[0] for one in cached], resumed_req_ids=resumed,
                new_block_ids=[one[1] for one in cached],
                num_computed_tokens=[one[2] for one in cached]),
            num_scheduled_tokens=tokens,
            total_num_scheduled_tokens=sum(tokens.values()),
        )  # fmt: skip
        for name, count in tokens.items():
            self.requests[name].num_computed_tokens += count
        return output

    def _preempt_request(self, request: Request) -> None:
        self.free.extend(request.blocks)
        request.blocks, request.num_computed_tokens, request.status = [], 0, "preempted"

    def _free_request(self, request: Request) -> None:
        self.free.extend(request.blocks)
        del self.requests[request.request_id]

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        outputs: dict[int, Outputs] = {}
        for name in model_runner_output.finished:
            request = self.requests[name]
            request.status = STOPPED
            self._free_request(request)
            outputs.setdefault(0, Outputs()).outputs.append(types.SimpleNamespace(
                request_id=name, finish_reason="stop", routed_experts=None,
                trace_headers=None))  # fmt: skip
        return outputs

    def has_finished_requests(self) -> bool:
        return False


class Table:
    def __init__(self) -> None:
        self.array = np.zeros(64, np.int64)
        tensor = types.SimpleNamespace(
            numpy=lambda: self.array, device=types.SimpleNamespace(type="cpu")
        )
        self.slot_mapping = types.SimpleNamespace(gpu=tensor)


class Runner:
    mode = 0

    def __init__(self) -> None:
        self.routers = [Router() for _ in range(LAYERS)]
        self.input_batch = types.SimpleNamespace(block_table=[Table()])
        self.vllm_config = types.SimpleNamespace(
            speculative_config=drafts,
            kv_transfer_config=None,
            scheduler_config=types.SimpleNamespace(max_num_batched_tokens=64),
            model_config=types.SimpleNamespace(get_num_experts=lambda: 128),
            parallel_config=types.SimpleNamespace(data_parallel_size=1),
            compilation_config=types.SimpleNamespace(mode=self.mode),
        )
        self.forward: Any = lambda: None

    def get_model(self) -> Any:
        return self

    def load_model(self) -> None:
        pass

    def initialize_kv_cache(self, kv_cache_config: Any) -> None:
        pass

    def execute_model(self, scheduler_output: Any) -> Any:
        if scheduler_output.total_num_scheduled_tokens:
            self.forward()
            return None
        return types.SimpleNamespace(req_ids=[], finished=[])

    def sample_tokens(self) -> Any:
        return types.SimpleNamespace(req_ids=["some"], finished=[])

    def _dummy_run(self) -> None:
        self.forward()


class Engine:
    """Scheduler and worker. The id of layer l at position p is p + 50 l, plus `shift`."""

    def __init__(self, given: Options = Options(), mode: int = 0) -> None:
        kind = type("SchedulerOfTest", (Scheduler,), {})
        worker = type("RunnerOfTest", (Runner,), {"mode": mode})
        _scheduler.hook(kind, given)
        _worker.hook(worker, given)
        self.runner = worker()
        self.runner.load_model()
        self.runner.initialize_kv_cache(config())
        self.scheduler = kind()
        self.shift = 0
        self.finished: dict[str, Any] = {}

    def add(self, request: Request) -> Request:
        self.scheduler.requests[request.request_id] = request
        return request

    def step(self, tokens: dict[str, int], finish: tuple[str, ...] = ()) -> None:
        """A step; requests in `tokens` but for chunks of a prompt then have one token more."""
        starts = {name: self.scheduler.requests[name].num_computed_tokens for name in tokens}
        output = self.scheduler.schedule(tokens)

        def forward() -> None:
            rows = [(name, p) for name in tokens for p in range(starts[name], starts[name] + tokens[name])]
            slots = self.runner.input_batch.block_table[0].array
            for i, (name, p) in enumerate(rows):
                slots[i] = self.scheduler.requests[name].blocks[p // BLOCK] * BLOCK + p % BLOCK
            for layer, router in enumerate(self.runner.routers):
                ids = np.array([[p + 50 * layer + self.shift] for _, p in rows], np.int32)
                router.capture_fn(ids.view(Ids))
                if self.runner.mode:
                    ids[:] = 99  # compiled code uses memory again

        self.runner.forward = forward
        result = self.runner.execute_model(output)
        if result is None:
            result = self.runner.sample_tokens()
        for name in tokens:
            request = self.scheduler.requests.get(name)
            if request and request.num_computed_tokens == request.num_tokens:
                request.num_tokens += 1
        result.finished = finish
        for of_client in self.scheduler.update_from_output(output, result).values():
            for one in of_client.outputs:
                self.finished[one.request_id] = one

    def drain(self) -> None:
        for _ in range(10):
            if not self.scheduler.has_finished_requests():
                return
            self.step({})
        raise AssertionError("outputs are held")

    def rows(self, name: str) -> Any:
        return self.finished[name].routed_experts

    def coverage(self, name: str) -> Any:
        return _front_end.coverage(self.finished[name].trace_headers)


@pytest.fixture(autouse=True, params=["derived", "reported"])
def vllm(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker derives the events of decodes, or, as with drafts, the scheduler reports them."""
    drafts = object() if request.param == "reported" else None
    monkeypatch.setattr(sys.modules[__name__], "drafts", drafts)
    for part in (_capture, _versions, _worker, _scheduler, _results):
        monkeypatch.setattr(part, "module", modules)
    monkeypatch.setattr(
        _versions, "moe_layers",
        lambda runner: [_versions.MoELayer(i, f"layer{i}", r) for i, r in enumerate(runner.routers)],
    )  # fmt: skip


def expected(first: int, last: int, shift: int = 0) -> Any:
    return np.array([[[p + shift], [p + 50 + shift]] for p in range(first, last)])


def test_importing_needs_neither_torch_nor_vllm() -> None:
    code = "import sys, waymark.vllm; print({'torch', 'vllm'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_finished_request_is_held_until_its_rows_are_there() -> None:
    engine = Engine()
    engine.add(Request("a", 6))
    engine.step({"a": 6})
    engine.step({"a": 1}, finish=("a",))
    assert "a" not in engine.finished and engine.scheduler.has_finished_requests()
    engine.drain()
    assert (engine.rows("a") == expected(0, 7)).all() and engine.rows("a").dtype == np.uint8
    coverage = engine.coverage("a")
    assert coverage.complete and not coverage.missing
    assert [(run.begin, run.end, run.version_name) for run in coverage.runs] == [(0, 7, "default")]


def test_rows_of_all_lives_are_joined_the_first_life_first() -> None:
    engine = Engine()
    a, b = engine.add(Request("a", 6)), engine.add(Request("b", 3))
    engine.step({"a": 6, "b": 3})
    engine.step({"a": 1, "b": 1})
    engine.scheduler._preempt_request(a)
    engine.step({"b": 1})
    engine.shift = 20  # rows of the second life differ
    engine.step({"a": a.num_tokens, "b": 1})
    engine.step({"a": 1, "b": 1}, finish=("a", "b"))
    engine.drain()
    assert (engine.rows("a") == np.concatenate([expected(0, 7), expected(7, 9, 20)])).all()
    assert len(engine.rows("b")) == b.num_tokens - 1
    assert engine.coverage("a").complete


def test_rows_of_drafts_that_were_in_flight_at_a_preemption_do_not_win() -> None:
    engine = Engine()
    a = engine.add(Request("a", 6))
    engine.step({"a": 6})
    a.num_tokens += 2  # the step's tokens and two drafts
    engine.step({"a": 3})
    a.num_tokens -= 3  # both are rejected, and the preemption comes before that is known
    engine.scheduler._preempt_request(a)
    engine.shift = 20
    engine.step({"a": a.num_tokens})
    engine.step({"a": 1}, finish=("a",))
    engine.drain()
    assert (engine.rows("a") == np.concatenate([expected(0, 6), expected(6, 8, 20)])).all()


def test_a_request_that_ends_while_it_is_preempted_has_its_rows() -> None:
    engine = Engine()
    a = engine.add(Request("a", 6))
    engine.step({"a": 6})
    engine.scheduler._preempt_request(a)
    engine.step({}, finish=("a",))
    engine.drain()
    assert (engine.rows("a") == expected(0, 6)).all()


def test_requests_that_do_not_ask_and_aborted_ones_have_no_rows() -> None:
    engine = Engine()
    engine.add(Request("a", 6, asked=False))
    b, c = engine.add(Request("b", 6)), engine.add(Request("c", 6))
    engine.step({"a": 6, "b": 6, "c": 6})
    engine.scheduler._preempt_request(c)
    for one in (b, c):
        one.status = ABORTED
        engine.scheduler._free_request(one)
    engine.step({"a": 1}, finish=("a",))
    assert engine.rows("a") is None and engine.finished["a"].trace_headers is None
    assert not engine.scheduler.has_finished_requests()
    assert not engine.scheduler._waymark._results  # nothing waits for rows that nobody gets


def test_missing_rows_are_minus_one_and_have_a_reason() -> None:
    engine = Engine()
    engine.add(Request("a", 6))
    engine.step({"a": 6})
    engine.runner.routers[1].set_capture_fn(lambda ids: None)  # the layer is lost
    engine.step({"a": 1}, finish=("a",))
    engine.drain()
    rows = engine.rows("a")
    assert rows.dtype == np.int16 and (rows[:6] == expected(0, 6)).all() and (rows[6] == -1).all()
    assert sum(engine.coverage("a").missing.values()) == 1 and not engine.coverage("a").complete
    assert engine.runner._waymark.steps_without_ids == 1


def test_a_router_that_chooses_twice_in_a_forward_is_noticed() -> None:
    engine = Engine()
    engine.add(Request("a", 6))
    router = engine.runner.routers[0]
    take = router.capture_fn
    router.capture_fn = lambda ids: (take(ids), take(ids))
    engine.step({"a": 6}, finish=("a",))
    engine.drain()
    assert not engine.coverage("a").complete


def test_a_forward_outside_any_step_loses_one_step() -> None:
    """It lost all of them: what it had left behind was never cleared."""
    engine = Engine()
    engine.add(Request("a", 6))
    for router in engine.runner.routers:  # not by _dummy_run
        router.capture_fn(np.zeros((64, 1), np.int32).view(Ids))
    engine.step({"a": 4})
    engine.step({"a": 2}, finish=("a",))
    engine.drain()
    assert engine.runner._waymark.steps_without_ids == 1
    assert (engine.rows("a")[4:] == expected(4, 6)).all()


def test_forwards_that_are_no_steps_are_forgotten() -> None:
    engine = Engine()
    engine.add(Request("a", 6))

    def forward() -> None:
        for router in engine.runner.routers:
            router.capture_fn(np.zeros((64, 1), np.int32).view(Ids))

    engine.runner.forward = forward
    engine.runner._dummy_run()  # profiling, a dummy batch
    engine.step({"a": 6}, finish=("a",))
    engine.drain()
    assert (engine.rows("a") == expected(0, 6)).all()


def test_who_had_the_capture_slot_is_called_first() -> None:
    seen: list[Any] = []
    engine = Engine()
    engine.runner.routers[0].set_capture_fn(seen.append)
    engine.runner._waymark.capture.attach()
    engine.runner._waymark.capture.attach()
    engine.add(Request("a", 3))
    engine.step({"a": 3}, finish=("a",))
    engine.drain()
    assert len(seen) == 1 and (engine.rows("a") == expected(0, 3)).all()


def test_compiled_models() -> None:
    engine = Engine(mode=3)
    engine.add(Request("a", 6))
    engine.step({"a": 6})
    engine.step({"a": 1}, finish=("a",))
    engine.drain()
    assert (engine.rows("a") == expected(0, 7)).all()


def test_data_parallel_engines_take_their_own_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = np.array([2, 3, 4])
    metadata = types.SimpleNamespace(num_tokens_across_dp_cpu=tokens)
    context = types.SimpleNamespace(dp_metadata=metadata)
    forward = types.SimpleNamespace(get_forward_context=lambda: context)
    monkeypatch.setattr(_versions, "module", lambda name: forward)
    parallel = types.SimpleNamespace(data_parallel_size=3, data_parallel_rank=1)
    own = _versions.own_rows(parallel)
    assert own(np.arange(9)).tolist() == [2, 3, 4]  # of all engines
    assert own(np.arange(3)).tolist() == [0, 1, 2]  # of this one
    context.dp_metadata = None
    assert own(np.arange(9)).tolist() == list(range(9))


def test_all_layers_of_the_model() -> None:
    engine = Engine(Options(layers="all"))
    engine.add(Request("a", 3))
    engine.step({"a": 3}, finish=("a",))
    engine.drain()
    assert engine.rows("a").shape == (3, 3, 1)
    assert (engine.rows("a")[:, :2] == expected(0, 3)).all() and not engine.rows("a")[:, 2].any()


def test_part_of_the_prompt() -> None:
    engine = Engine()
    engine.add(Request("a", 6)).sampling_params.routed_experts_prompt_start = 4
    engine.step({"a": 6}, finish=("a",))
    engine.drain()
    assert (engine.rows("a") == expected(4, 6)).all()


def test_versions_are_names() -> None:
    engine = Engine()
    engine.add(Request("a", 3))
    engine.step({"a": 3})
    core = Core()
    core.scheduler = engine.scheduler  # type: ignore[attr-defined]
    core.set_weight_version("step-7")
    engine.step({"a": 1}, finish=("a",))
    engine.drain()
    assert [run.version_name for run in engine.coverage("a").runs] == ["default", "step-7"]


def test_a_failure_of_ours_ends_the_capture_and_nothing_else() -> None:
    engine = Engine()
    engine.add(Request("a", 3))
    engine.step({"a": 3})
    half = engine.scheduler._waymark
    half._writer = None
    engine.add(Request("b", 3))
    engine.step({"a": 1, "b": 3})
    assert half.failure
    engine.step({"a": 1}, finish=("a",))
    assert "a" in engine.finished and engine.rows("a") is None
    engine.runner._waymark.store = None
    engine.step({})
    engine.add(Request("b", 3))
    engine.step({"b": 3}, finish=("b",))
    assert "b" in engine.finished and not engine.scheduler.has_finished_requests()


def test_outputs_are_not_held_for_rows_that_never_come() -> None:
    engine = Engine()
    engine.add(Request("a", 3))
    engine.step({"a": 3}, finish=("a",))
    engine.runner._waymark._reader.read = lambda tags: None
    engine.drain()
    assert engine.rows("a") is None and engine.coverage("a").failure


def test_outputs_that_wait_when_the_capture_ends_are_released() -> None:
    for spoil in ("failure", "outputs"):
        engine = Engine()
        for name in "ab":
            engine.add(Request(name, 3))
        engine.runner._waymark._reader.read = lambda tags: None
        engine.step({"a": 3, "b": 3}, finish=("a",))
        half = engine.scheduler._waymark
        assert half.holds
        if spoil == "failure":
            half.fail(RuntimeError("a test"))
        else:
            half._results = None
        engine.step({"b": 1})
        assert "a" in engine.finished and engine.rows("a") is None and not half.holds


def test_a_request_without_a_last_output_holds_nothing() -> None:
    engine = Engine()
    a = engine.add(Request("a", 3))
    engine.step({"a": 3})
    a.status = STOPPED
    engine.scheduler._free_request(a)
    engine.step({})
    assert not engine.scheduler.has_finished_requests()
    assert not engine.scheduler._waymark._results


def test_a_result_that_is_not_complete_says_so() -> None:
    none = Result.none(3, "why")
    output = types.SimpleNamespace(trace_headers={"traceparent": "x"}, routed_experts=None)
    _results.fill(output, Request("a", 3), [(none, 5)], 5, '["v"]', 0)
    assert output.routed_experts is None and output.trace_headers["traceparent"] == "x"
    coverage = _front_end.coverage(output.trace_headers)
    assert coverage is not None and coverage.failure == "why"


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
        _worker.WorkerHalf(runner, config(), _capture.Capture(runner), Options())


def test_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAYMARK_VLLM_OPTIONS", '{"layers": "all", "store": {"audit": false}}')
    assert options() == Options("all", {"audit": False})
    for wrong in ('{"layer": "all"}', '{"layers": "some"}'):
        monkeypatch.setenv("WAYMARK_VLLM_OPTIONS", wrong)
        with pytest.raises(ValueError, match="options are"):
            options()


def test_hooks_are_installed_once() -> None:
    kind = type("SchedulerOfTest", (Scheduler,), {})
    _scheduler.hook(kind, Options())
    before = kind.schedule  # type: ignore[attr-defined]
    _scheduler.hook(kind, Options())
    assert kind.schedule is before  # type: ignore[attr-defined]


def test_the_report_of_a_worker() -> None:
    engine = Engine()
    engine.add(Request("a", 3))
    engine.step({"a": 3})
    engine.runner._waymark.store.wait_idle(10)
    report = _plugin.worker_report(types.SimpleNamespace(model_runner=engine.runner))
    assert report["store"]["rows_landed"] == 3 and report["failure"] == ""
    assert _plugin.worker_report(types.SimpleNamespace(model_runner=object())) == {}
