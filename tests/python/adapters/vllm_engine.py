"""A tiny engine with vLLM's names, under the hooks of the plugin. (tests/integration/vllm runs a
real vLLM.) A module that imports the fixture `vllm` runs its tests on it."""

from __future__ import annotations

import contextlib
import types
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any, TypeVar

import numpy as np
import pytest
from waymark.vllm import (
    _capture, _front_end, _results, _routers, _scheduler, _scheduler_hooks, _versions, _weights,
    _worker,
)  # fmt: skip
from waymark.vllm._options import Options

BLOCK = 4
E = TypeVar("E", bound="Engine")
LAYERS = 2
connector: Any = None  # loads the first tokens of some requests
STOPPED, ABORTED, IGNORED, ERROR = "stopped", "aborted", "ignored", "error"


arrivals = count()


class Status:
    PREEMPTED, FINISHED_ABORTED = "preempted", ABORTED
    FINISHED_IGNORED, FINISHED_ERROR = IGNORED, ERROR


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
    no_grad=contextlib.nullcontext,
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
        "vllm.v1.request": types.SimpleNamespace(RequestStatus=Status),
        "vllm.distributed": types.SimpleNamespace(
            get_tp_group=lambda: group, get_pp_group=lambda: group),
    }[name]  # fmt: skip


class Executor:
    """Of workers that have one weight."""

    is_sleeping = False

    def __init__(self) -> None:
        self.weight = 0

    def collective_rpc(self, method: Any, timeout: Any = None, args: Any = (), kwargs: Any = None) -> Any:
        return [self.weight] if method == "waymark_weights" else None


class Core:
    def __init__(self, scheduler: Any) -> None:
        _weights.hook(Executor)
        self.scheduler, self.model_executor = scheduler, Executor()
        self.model_executor._waymark = _weights.Weights(self.model_executor)  # type: ignore

    def set_weight_version(self, weight_version: str) -> None:
        pass

    def reset_prefix_cache(self) -> None:
        self.scheduler.kv_cache_manager.block_pool.reset_prefix_cache()

    def add_request(self, request: Any) -> None:
        self.scheduler.requests[request.request_id] = request


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
        self.status, self.arrival_time = "waiting", float(next(arrivals))
        self.block_hashes: list[bytes] = []
        self.blocks: list[int] = []
        self.reported = 0  # blocks of schedules

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
        return self[name]

    def __getitem__(self, name: str) -> Any:
        return [types.SimpleNamespace(block_id=block) for block in self.requests[name].blocks]


class BlocksOfAGroup:
    kv_cache_group_id = 0

    def __init__(self, requests: dict[str, Request]) -> None:
        self.req_to_blocks = Blocks(requests)

    def _apply_cow(
        self, request_id: str, block_idx: int, source_block: Any, cow_block: Any
    ) -> None:
        pass


class Manager:
    def __init__(self, requests: dict[str, Request], free: deque[int]) -> None:
        self.block_pool = Pool()
        self.free_blocks = free
        self.users: Counter[int] = Counter()  # of each block
        group: Any = BlocksOfAGroup(requests)
        group.block_pool = self.block_pool
        self.coordinator = types.SimpleNamespace(single_type_managers=[group])

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        hits: Any = (),
        num_external_computed_tokens: int = 0,
        delay_cache_blocks: bool = False,
    ) -> Any:
        """Blocks for what a connector loads, behind those of hits."""
        tokens = num_new_computed_tokens + num_external_computed_tokens
        self.hit(request, list(hits))
        self.extend(request, tokens)
        request.num_computed_tokens = tokens
        return request.blocks

    def hit(self, request: Request, blocks: list[int]) -> None:
        """The first blocks of a request are in the prefix cache."""
        request.blocks, request.num_computed_tokens = blocks, len(blocks) * BLOCK
        for block in blocks:
            self.users[block] += 1
            if block in self.free_blocks:
                self.free_blocks.remove(block)

    def extend(self, request: Request, tokens: int) -> list[int]:
        """Further blocks for so many tokens."""
        missing = -(-tokens // BLOCK) - len(request.blocks)
        more = [self.free_blocks.popleft() for _ in range(missing)]
        self.users.update(more)
        request.blocks = request.blocks + more
        return more

    def release(self, request: Request) -> None:
        self.users.subtract(request.blocks)
        self.free_blocks.extend(block for block in request.blocks if not self.users[block])

    def free(self, request: Request) -> None:
        self.release(request)
        request.blocks, request.num_computed_tokens = [], 0


def config() -> Any:
    spec = types.SimpleNamespace(kv_cache_spec=Spec(), host_resident=False)
    return types.SimpleNamespace(num_blocks=64, kv_cache_groups=[spec])


class Scheduler:
    options = Options()
    device_type = "cpu"
    hash_block_size = BLOCK
    resumed_as_new = False  # model runner V2

    def __init__(self) -> None:
        self.requests: dict[str, Request] = {}
        self.kv_cache_config = config()
        self.free = deque(range(1, 64))
        self.connector = connector
        self.kv_cache_manager = Manager(self.requests, self.free)
        self.vllm_config = types.SimpleNamespace(
            additional_config={"waymark": self.options._asdict()},
            kv_transfer_config=connector,
            model_config=types.SimpleNamespace(get_total_num_hidden_layers=lambda: 3),
            device_config=types.SimpleNamespace(device_type=self.device_type),
        )
        self.started: set[str] = set()

    def schedule(self, tokens: dict[str, int]) -> Any:
        """Each request gets so many tokens: a chunk of its prompt, or its last token."""
        new, resumed, cached = [], set(), []
        for name, count in tokens.items():
            request = self.requests[name]
            self.kv_cache_manager.extend(request, request.num_computed_tokens + count)
            more, request.reported = request.blocks[request.reported :], len(request.blocks)
            resumes, request.status = request.status == "preempted", "running"
            if name not in self.started or resumes and self.resumed_as_new:
                self.started.add(name)
                new.append(types.SimpleNamespace(
                    req_id=name, block_ids=(list(request.blocks),),
                    num_computed_tokens=request.num_computed_tokens))  # fmt: skip
                continue
            if resumes:
                resumed.add(name)
                more = list(request.blocks)
            cached.append((name, (more,) if more else None, request.num_computed_tokens))
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

    def give_back(self, request: Request) -> None:
        self.kv_cache_manager.release(request)

    def _preempt_request(self, request: Request) -> None:
        self.give_back(request)
        request.blocks, request.num_computed_tokens, request.status = [], 0, "preempted"
        request.reported = 0

    def _free_request(self, request: Request) -> None:
        self.give_back(request)
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

    def _handle_invalid_blocks(self, failed: dict[str, int]) -> set[str]:
        """Requests whose loads ended at so many tokens."""
        for name, tokens in failed.items():
            self.requests[name].num_computed_tokens = tokens
        return set(failed)


class Table:
    def __init__(self) -> None:
        self.array = np.zeros(64, np.int64)
        tensor = types.SimpleNamespace(
            numpy=lambda: self.array, device=types.SimpleNamespace(type="cpu")
        )
        self.slot_mapping = types.SimpleNamespace(gpu=tensor)


class Late:
    """An output that a thread of vLLM waits for."""

    def __init__(self, output: Any) -> None:
        self.output = output

    def get_output(self) -> Any:
        return self.output


class Runner:
    options = Options()
    mode = 0
    late = False

    def __init__(self) -> None:
        self.routers = [Router() for _ in range(LAYERS)]
        self.input_batch = types.SimpleNamespace(block_table=[Table()])
        self.vllm_config = types.SimpleNamespace(
            additional_config={"waymark": self.options._asdict()},
            kv_transfer_config=connector,
            scheduler_config=types.SimpleNamespace(max_num_batched_tokens=64),
            model_config=types.SimpleNamespace(get_num_experts=lambda: 128),
            parallel_config=types.SimpleNamespace(data_parallel_size=1),
            compilation_config=types.SimpleNamespace(mode=self.mode),
            device_config=types.SimpleNamespace(device_type="cpu"),
        )
        self.forward: Any = lambda: None

    @property
    def slots(self) -> Any:
        return self.input_batch.block_table[0].array

    def route(self, layer: int, ids: Any) -> None:
        self.routers[layer].capture_fn(ids.view(Ids))

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
        output = types.SimpleNamespace(req_ids=["some"], finished=[])
        return Late(output) if self.late else output

    def _dummy_run(self) -> None:
        self.forward()


class Engine:
    """Scheduler and worker. The id of layer l at position p is p + 50 l, plus `shift`."""

    runner_kind: Any = Runner
    scheduler_kind: Any = Scheduler
    device_type = "cpu"

    def __init__(self, given: Options = Options(), mode: int = 0) -> None:
        attributes = {"options": given, "device_type": self.device_type}
        kind = type("SchedulerOfTest", (self.scheduler_kind,), attributes)
        worker = type("RunnerOfTest", (self.runner_kind,), {"options": given, "mode": mode})
        _scheduler_hooks.hook(kind)
        self.runner = self.started(worker)
        self.scheduler = kind()
        self.shift = 0
        self.finished: dict[str, Any] = {}

    def started(self, worker: type) -> Any:
        _worker.hook(worker)
        runner = worker()
        runner.load_model()
        runner.initialize_kv_cache(config())
        return runner

    def id_of(self, name: str, position: int, layer: int) -> int:
        return position + 50 * layer + self.shift

    def add(self, request: Request) -> Request:
        self.scheduler.requests[request.request_id] = request
        return request

    def request(
        self, name: str, prompt: int, hashes: int = 0, hits: Iterable[int] = (), asked: bool = True
    ) -> Any:
        """hashes: how many of its blocks have one, which is that of other requests, too. hits: the
        blocks that it finds in the prefix cache."""
        request = self.add(Request(name, prompt, asked))
        request.block_hashes = [bytes([1 + i] * 32) for i in range(hashes)]
        self.scheduler.kv_cache_manager.hit(request, list(hits))
        return request

    def ask(self: E, **prompts: int) -> E:
        """New requests."""
        for name, prompt in prompts.items():
            self.request(name, prompt)
        return self

    def begin(self: E, **prompts: int) -> E:
        """A step of the whole prompts of new requests."""
        self.ask(**prompts).step(prompts)
        return self

    def last(self, tokens: dict[str, int], *finish: str) -> Any:
        """The last step of all requests in it, or of some, whose rows come then. Those of the first
        are returned."""
        finish = finish or tuple(tokens)
        self.step(tokens, finish)
        self.drain()
        return self.rows(finish[0])

    def step(self, tokens: dict[str, int], finish: tuple[str, ...] = ()) -> None:
        """A step; requests in `tokens` but for chunks of a prompt then have one token more."""
        starts = {name: self.scheduler.requests[name].num_computed_tokens for name in tokens}
        output = self.scheduler.schedule(tokens)

        def forward() -> None:
            rows = [(name, p) for name in tokens for p in range(starts[name], starts[name] + tokens[name])]
            slots = self.runner.slots
            for i, (name, p) in enumerate(rows):
                slots[i] = self.scheduler.requests[name].blocks[p // BLOCK] * BLOCK + p % BLOCK
            for layer in range(LAYERS):
                ids = np.array([[self.id_of(name, p, layer)] for name, p in rows], np.int32)
                self.runner.route(layer, ids)
                if self.runner.mode:
                    ids[:] = 99  # compiled code uses memory again

        self.runner.forward = forward
        result = self.runner.execute_model(output)
        if result is None:
            result = self.runner.sample_tokens()
        if hasattr(result, "get_output"):
            result = result.get_output()
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


def layers(runner: Any, cuda: bool = False) -> list[_routers.MoELayer]:
    return [_routers.MoELayer(i, f"layer{i}", r, r.top_k) for i, r in enumerate(runner.routers)]


def replaced(modules: Any = modules) -> Iterator[tuple[Any, str, Any]]:
    """What the plugin gets in place of vLLM."""
    for part in (_capture, _versions, _worker, _scheduler, _scheduler_hooks, _results):
        yield part, "module", modules
    yield _routers, "moe_layers", layers


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name, value in replaced():
        monkeypatch.setattr(owner, name, value)


def expected(first: int, last: int, shift: int = 0) -> Any:
    return np.array([[[p + shift], [p + 50 + shift]] for p in range(first, last)])


def lose_rows(engine: Engine) -> None:
    """What is taken from now on is never read."""
    engine.runner._waymark._answers._read = lambda timeout: []
